//! What the lab reads out of captured frames: Ethernet, ARP, IPv4, TCP, UDP, VRRPv3.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Ethernet protocol of ARP.
pub const ARP: u16 = 0x0806;
/// Ethernet protocol of IPv4.
pub const IPV4: u16 = 0x0800;
/// IP protocol of adverts.
pub const VRRP: u8 = 112;
/// TCP flag.
pub const FIN: u8 = 1;
/// TCP flag.
pub const SYN: u8 = 2;
/// TCP flag.
pub const RST: u8 = 4;
/// TCP flag.
pub const ACK: u8 = 16;

/// A view of one frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// 1 request, 2 reply.
    pub operation: u16,
    /// Sender's MAC as the ARP packet says.
    pub sender_mac: [u8; 6],
    /// Sender's address.
    pub sender: Ipv4Addr,
    /// Target's address.
    pub target: Ipv4Addr,
}

impl Arp {
    /// An announcement: sender and target are the same address.
    pub fn is_announcement(&self) -> bool {
        self.sender == self.target
    }
}

/// The part of an IPv4 packet the lab looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Time to live.
    pub ttl: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Identification.
    pub id: u16,
    /// Source port of TCP and UDP, else 0.
    pub sport: u16,
    /// Destination port of TCP and UDP, else 0.
    pub dport: u16,
    /// TCP flags, else 0.
    pub flags: u8,
}

/// A VRRPv3 advert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advert {
    /// Address it came from.
    pub src: Ipv4Addr,
    /// Virtual router id.
    pub vrid: u8,
    /// Priority; 0 releases.
    pub priority: u8,
    /// Interval in centiseconds.
    pub interval_cs: u16,
}

/// A TCP connection as one of its segments shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Who sent it.
    pub from: SocketAddrV4,
    /// To whom.
    pub to: SocketAddrV4,
    /// Number of the first byte after it.
    pub next: u32,
}

impl<'a> Frame<'a> {
    /// Takes a frame that has at least an Ethernet header.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= 14).then_some(Self { bytes })
    }

    fn mac(&self, at: usize) -> [u8; 6] {
        self.bytes
            .get(at..at + 6)
            .and_then(|b| b.try_into().ok())
            .unwrap_or_default()
    }

    fn be16(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes.get(at..at + 2)?.try_into().ok()?))
    }

    fn addr(&self, at: usize) -> Option<Ipv4Addr> {
        let octets: [u8; 4] = self.bytes.get(at..at + 4)?.try_into().ok()?;
        Some(octets.into())
    }

    /// Destination MAC.
    pub fn dst_mac(&self) -> [u8; 6] {
        self.mac(0)
    }

    /// Source MAC.
    pub fn src_mac(&self) -> [u8; 6] {
        self.mac(6)
    }

    /// Ethernet protocol.
    pub fn ethertype(&self) -> u16 {
        self.be16(12).unwrap_or(0)
    }

    /// The ARP packet in it.
    pub fn arp(&self) -> Option<Arp> {
        if self.ethertype() != ARP {
            return None;
        }
        Some(Arp {
            operation: self.be16(20)?,
            sender_mac: self.mac(22),
            sender: self.addr(28)?,
            target: self.addr(38)?,
        })
    }

    fn ip_header_len(&self) -> Option<usize> {
        let first = *self.bytes.get(14)?;
        (self.ethertype() == IPV4 && first >> 4 == 4).then_some(usize::from(first & 15) * 4)
    }

    /// The IPv4 packet in it.
    pub fn ip(&self) -> Option<Ip> {
        let l4 = 14 + self.ip_header_len()?;
        let protocol = *self.bytes.get(23)?;
        let first_fragment = self.be16(20)? % 0x2000 == 0;
        let ports = matches!(protocol, 6 | 17) && first_fragment;
        Some(Ip {
            src: self.addr(26)?,
            dst: self.addr(30)?,
            ttl: *self.bytes.get(22)?,
            protocol,
            id: self.be16(18)?,
            sport: if ports { self.be16(l4)? } else { 0 },
            dport: if ports { self.be16(l4 + 2)? } else { 0 },
            flags: if ports && protocol == 6 {
                *self.bytes.get(l4 + 13)?
            } else {
                0
            },
        })
    }

    /// The connection of the TCP segment in it, where that carries data.
    pub fn tcp_flow(&self) -> Option<Flow> {
        let ip = self.ip()?;
        let header = self.ip_header_len()?;
        let at = 14 + header;
        let total = usize::from(self.be16(16)?);
        let offset = usize::from(*self.bytes.get(at + 12)? >> 4) * 4;
        let data = total.checked_sub(header + offset).filter(|data| *data > 0)?;
        let number = u32::from_be_bytes(self.bytes.get(at + 4..at + 8)?.try_into().ok()?);
        (ip.protocol == 6).then_some(Flow {
            from: SocketAddrV4::new(ip.src, ip.sport),
            to: SocketAddrV4::new(ip.dst, ip.dport),
            next: number.wrapping_add(u32::try_from(data).ok()?),
        })
    }

    /// The advert in it (version 3).
    pub fn advert(&self) -> Option<Advert> {
        let ip = self.ip()?;
        let at = 14 + self.ip_header_len()?;
        let first = *self.bytes.get(at)?;
        (ip.protocol == VRRP && first == 0x31).then_some(Advert {
            src: ip.src,
            vrid: *self.bytes.get(at + 1)?,
            priority: *self.bytes.get(at + 2)?,
            interval_cs: self.be16(at + 4)? & 0x0fff,
        })
    }

    /// What stays the same of a packet while switches and a one-arm balancer *carry* it: everything behind the Ethernet
    /// header but the time to live and the header checksum. Two frames with the same value that were seen entering
    /// the switch are one packet sent twice.
    pub fn carried_identity(&self) -> Vec<u8> {
        let mut rest = self.bytes.get(12..).unwrap_or_default().to_vec();
        if self.ethertype() == IPV4 {
            for at in [10, 12, 13] {
                if let Some(b) = rest.get_mut(at) {
                    *b = 0;
                }
            }
        }
        rest
    }
}

/// An ARP request for `target`, broadcast from `mac`, claiming to come from `sender`.
pub fn arp_request(mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

/// A TCP reset as the sender of `flow` would send it next, from the MAC `from` to `to`.
pub fn tcp_reset(to: [u8; 6], from: [u8; 6], flow: &Flow) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0];
    ip.extend(flow.from.ip().octets());
    ip.extend(flow.to.ip().octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = Vec::new();
    tcp.extend(flow.from.port().to_be_bytes());
    tcp.extend(flow.to.port().to_be_bytes());
    tcp.extend(flow.next.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x50, RST, 0, 0, 0, 0, 0, 0]);
    let pseudo = [&ip[12..20], &[0, 6, 0, 20], &tcp].concat();
    tcp[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    [&to[..], &from, &[8, 0], &ip, &tcp].concat()
}

/// The Internet checksum of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.as_chunks::<2>().0;
    let mut sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arp_request_reads_back_as_built() {
        let mac = [2, 0, 0, 0, 0, 60];
        let bytes = arp_request(mac, [192, 168, 100, 200].into(), [192, 168, 100, 100].into());
        let frame = Frame::new(&bytes).expect("long enough");
        let arp = frame.arp().expect("ARP");
        assert_eq!((arp.operation, arp.sender_mac), (1, mac));
        assert_eq!(arp.target, Ipv4Addr::new(192, 168, 100, 100));
        assert_eq!(frame.dst_mac(), [0xff; 6]);
        assert!(!arp.is_announcement());
    }

    #[test]
    fn a_reset_has_the_numbers_of_the_connection_and_right_checksums() {
        let flow = Flow {
            from: "192.168.100.3:40000".parse().expect("an address"),
            to: "192.168.100.2:8470".parse().expect("an address"),
            next: 0xffff_fff0,
        };
        let bytes = tcp_reset([2; 6], [4; 6], &flow);
        let frame = Frame::new(&bytes).expect("long enough");
        let ip = frame.ip().expect("IPv4");
        assert_eq!((ip.sport, ip.dport, ip.flags), (40_000, 8_470, RST));
        assert_eq!(checksum(&bytes[14..34]), 0);
        assert_eq!(
            checksum(&[&bytes[26..34], &[0, 6, 0, 20], &bytes[34..]].concat()),
            0
        );
        assert_eq!(frame.tcp_flow(), None, "it carries nothing");
        let mut data = bytes;
        data[17] = 40 + 32;
        data.extend([0; 32]);
        let read = Frame::new(&data).and_then(|frame| frame.tcp_flow());
        assert_eq!(read, Some(Flow { next: 16, ..flow }));
    }

    #[test]
    fn truncated_frames_give_nothing_and_do_not_panic() {
        let bytes = arp_request([2; 6], [1, 2, 3, 4].into(), [1, 2, 3, 5].into());
        for len in 0..bytes.len() {
            let frame = Frame::new(&bytes[..len]);
            assert_eq!(frame.is_some(), len >= 14);
            assert!(frame.and_then(|f| f.arp()).is_none());
            assert!(frame.and_then(|f| f.ip()).is_none());
        }
    }

    #[test]
    fn carried_packets_are_recognised_in_spite_of_the_time_to_live() {
        let mut bytes = vec![0u8; 14];
        bytes[12] = 8;
        bytes.extend([
            0x45, 0, 0, 28, 1, 2, 0, 0, 64, 17, 9, 9, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 8, 0, 8, 0, 0,
        ]);
        let mut carried = bytes.clone();
        carried[0] = 7;
        carried[22] -= 1;
        carried[24] = 1;
        let id = |b: &[u8]| Frame::new(b).expect("long enough").carried_identity();
        assert_eq!(id(&bytes), id(&carried));
        carried[35] = 9;
        assert_ne!(id(&bytes), id(&carried));
        let ip = Frame::new(&bytes).and_then(|f| f.ip()).expect("IPv4");
        assert_eq!((ip.sport, ip.dport, ip.protocol, ip.ttl), (7, 8, 17, 64));
    }
}
