//! TCP segments without data in IP packets, as far as a check needs them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Protocol number.
pub(super) const TCP: u8 = 6;
/// Bytes of the headers.
const IPV4: usize = 20;
const IPV6: usize = 40;
const SEGMENT: usize = 20;
/// The same as fields of headers: a segment, and a whole IPv4 packet.
const SEGMENT_FIELD: u8 = 20;
const TOTAL_FIELD: u8 = 40;
const TTL: u8 = 64;

/// Flags of a segment.
pub(super) mod flags {
    pub(in super::super) const SYN: u8 = 0x02;
    pub(in super::super) const RST: u8 = 0x04;
    pub(in super::super) const ACK: u8 = 0x10;
}

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    /// Of the same family.
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) flags: u8,
}

impl Segment {
    /// The segment in an IP packet of its own. Checksums of received ones are the kernel's affair.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (from, to, tcp): (IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
            4 => {
                let header: &[u8; IPV4] = packet.first_chunk()?;
                let len = usize::from(header[0] & 0x0f) * 4;
                if header[9] != TCP || len < IPV4 {
                    return None;
                }
                let address = |at: usize| header[at..].first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into());
                (address(12)?, address(16)?, packet.get(len..)?)
            }
            6 => {
                let header: &[u8; IPV6] = packet.first_chunk()?;
                if header[6] != TCP {
                    return None;
                }
                let address = |at: usize| {
                    header[at..]
                        .first_chunk::<16>()
                        .map(|a| Ipv6Addr::from(*a).into())
                };
                (address(8)?, address(24)?, &packet[IPV6..])
            }
            _ => return None,
        };
        let tcp: &[u8; SEGMENT] = tcp.first_chunk()?;
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        Some(Self {
            from: SocketAddr::new(from, port(0)),
            to: SocketAddr::new(to, port(2)),
            sequence: number(4),
            acknowledgment: number(8),
            flags: tcp[13],
        })
    }

    /// The packet.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(SEGMENT);
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgment.to_be_bytes());
        // Five words of header; a window of nothing, as nothing follows.
        tcp.extend([0x50, self.flags, 0, 0, 0, 0, 0, 0]);
        let addresses = [octets(self.from.ip()), octets(self.to.ip())].concat();
        let pseudo = [&addresses[..], &[0, TCP, 0, SEGMENT_FIELD]].concat();
        let sum = checksum([&pseudo[..], &tcp[..]].concat().as_slice());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut packet = if self.from.is_ipv4() {
            let mut header = vec![0x45, 0, 0, TOTAL_FIELD, 0, 0, 0x40, 0, TTL, TCP, 0, 0];
            header.extend(&addresses);
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        } else {
            let mut header = vec![0x60, 0, 0, 0, 0, SEGMENT_FIELD, TCP, TTL];
            header.extend(&addresses);
            header
        };
        packet.extend(tcp);
        packet
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Of an even number of bytes, few enough for the sum not to overflow (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks_exact(2)
        .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn(from: &str, to: &str) -> Segment {
        Segment {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            sequence: 0x0102_0304,
            acknowledgment: 0,
            flags: flags::SYN,
        }
    }

    /// The checksums were worked out by another program: the header's words sum to 30ee4, the segment's with addresses,
    /// protocol and length to 33a68.
    #[test]
    fn a_syn_is_the_golden_bytes_and_is_read_again() {
        let segment = syn("192.168.100.2:40000", "192.168.100.100:80");
        let packet = segment.emit();
        assert_eq!(packet.len(), 40);
        #[rustfmt::skip]
        assert_eq!(
            packet,
            [
                0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0xf1, 0x18, 192, 168, 100, 2, 192, 168, 100, 100,
                0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, 2, 0, 0, 0xc5, 0x94, 0, 0,
            ]
        );
        assert_eq!(Segment::parse(&packet), Some(segment));
    }

    #[test]
    fn every_packet_sums_to_nothing_and_is_read_again() {
        for (from, to) in [
            ("192.0.2.1:1", "203.0.113.255:65535"),
            ("[2001:db8::2]:40000", "[2001:db8::100]:443"),
        ] {
            for flags in [flags::SYN, flags::RST, flags::SYN | flags::ACK] {
                let segment = Segment {
                    flags,
                    acknowledgment: 7,
                    ..syn(from, to)
                };
                let packet = segment.emit();
                let (header, tcp) = packet.split_at(packet.len() - SEGMENT);
                let addresses = if segment.from.is_ipv4() {
                    assert_eq!(checksum(header), 0);
                    &header[12..]
                } else {
                    &header[8..]
                };
                let whole = [addresses, &[0, TCP, 0, SEGMENT_FIELD], tcp].concat();
                assert_eq!(checksum(&whole), 0);
                assert_eq!(Segment::parse(&packet), Some(segment));
            }
        }
    }

    #[test]
    fn what_is_no_segment_is_not_read() {
        let four = syn("192.0.2.1:1", "192.0.2.2:2").emit();
        let six = syn("[2001:db8::1]:1", "[2001:db8::2]:2").emit();
        for packet in [&four, &six] {
            for len in 0..packet.len() {
                assert_eq!(Segment::parse(&packet[..len]), None, "{len} bytes");
            }
        }
        let changed = |packet: &[u8], at: usize, value: u8| {
            let mut packet = packet.to_vec();
            packet[at] = value;
            Segment::parse(&packet)
        };
        assert_eq!(changed(&four, 9, 17), None);
        assert_eq!(changed(&four, 0, 0x44), None);
        assert_eq!(changed(&four, 0, 0x4f), None);
        assert_eq!(changed(&six, 6, 0), None);
        assert_eq!(changed(&six, 0, 0x50), None);
    }
}
