//! Frames a stranger on the segment makes.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
};

use anyhow::Result;
use nix::sys::socket::{MsgFlags, bind, send};
use socket2::{Domain, Socket, Type};

use crate::{
    clock::{self, MS, Nanos},
    measure::capture::link_address,
    netns::Namespace,
    packet::{VRRP, arp_request},
};

type Mac = [u8; 6];

const GROUP4: (Ipv4Addr, Mac) = (Ipv4Addr::new(224, 0, 0, 18), [1, 0, 0x5e, 0, 0, 0x12]);
const GROUP6: (Ipv6Addr, Mac) = (
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12),
    [0x33, 0x33, 0, 0, 0, 0x12],
);
const ALL_NODES6: (Ipv6Addr, Mac) = (
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    [0x33, 0x33, 0, 0, 0, 1],
);

/// Sends `count` frames, `frames` in turn, so many a second, from `eth0` of `ns`; how long it took.
///
/// # Errors
/// When there is no socket. A frame the kernel refuses counts as sent.
pub(in crate::scenario) fn send_all(
    ns: &Namespace,
    frames: &[Vec<u8>],
    count: u64,
    a_second: u64,
) -> Result<Nanos> {
    ns.enter(|| {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        bind(socket.as_raw_fd(), &link_address("eth0")?)?;
        let begun = clock::now();
        for (frame, number) in frames.iter().cycle().zip(0..count) {
            let due = begun + number * 1_000 * MS / a_second;
            // In bursts of a millisecond.
            if due > clock::now() + MS {
                clock::sleep_until(due);
            }
            send(socket.as_raw_fd(), frame, MsgFlags::empty()).ok();
        }
        Ok(clock::now() - begun)
    })
}

fn ethernet(to: Mac, from: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes(), payload].concat()
}

fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

fn folded(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap_or(0)).to_be_bytes()
}

fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u32 {
    let addresses = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => sum(&from.octets()) + sum(&to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => sum(&from.octets()) + sum(&to.octets()),
        _ => 0,
    };
    addresses + u32::from(protocol) + u32::try_from(length).unwrap_or(0)
}

fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(0);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0xc0];
            header.extend((length + 20).to_be_bytes());
            header.extend([0, 1, 0, 0, 255, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let check = folded(sum(&header));
            header[10..12].copy_from_slice(&check);
            header.extend(payload);
            header
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x6c, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([protocol, 255]);
            header.extend(from.octets());
            header.extend(to.octets());
            header.extend(payload);
            header
        }
        _ => Vec::new(),
    }
}

/// A plain VRRPv3 advert to the group.
#[derive(Clone, Debug)]
pub(in crate::scenario) struct Advert {
    /// Claimed sender.
    pub from: IpAddr,
    /// Virtual router.
    pub vrid: u8,
    pub priority: u8,
    /// Interval in centiseconds, at most 4,095.
    pub interval_cs: u16,
    /// Address list.
    pub addresses: Vec<IpAddr>,
}

impl Advert {
    pub(in crate::scenario) fn frame(&self, mac: Mac) -> Vec<u8> {
        let (to, to_mac, ethertype) = match self.from {
            IpAddr::V4(_) => (IpAddr::from(GROUP4.0), GROUP4.1, 0x0800),
            IpAddr::V6(_) => (IpAddr::from(GROUP6.0), GROUP6.1, 0x86dd),
        };
        let count = u8::try_from(self.addresses.len()).unwrap_or(0);
        let mut body = vec![0x31, self.vrid, self.priority, count];
        body.extend(self.interval_cs.to_be_bytes());
        body.extend([0, 0]);
        for address in &self.addresses {
            match address {
                IpAddr::V4(four) => body.extend(four.octets()),
                IpAddr::V6(six) => body.extend(six.octets()),
            }
        }
        let check = folded(sum(&body) + pseudo_header(self.from, to, VRRP, body.len()));
        body[6..8].copy_from_slice(&check);
        ethernet(to_mac, mac, ethertype, &packet(self.from, to, VRRP, &body))
    }
}

/// A UDP datagram between two ports of the same number.
pub(in crate::scenario) fn datagram(
    (to_mac, to): (Mac, Ipv4Addr),
    (mac, from): (Mac, Ipv4Addr),
    port: u16,
    said: &[u8],
) -> Vec<u8> {
    let length = u16::try_from(said.len() + 8).unwrap_or(0);
    let mut body = [port, port, length, 0].map(u16::to_be_bytes).concat();
    body.extend(said);
    let check = folded(sum(&body) + pseudo_header(from.into(), to.into(), 17, body.len()));
    body[6..8].copy_from_slice(&check);
    ethernet(to_mac, mac, 0x0800, &packet(from.into(), to.into(), 17, &body))
}

/// A claim that `address` is at `mac`: an ARP reply of it to itself, or an unsolicited neighbour advertisement; to `to_mac`,
/// or to everybody.
pub(in crate::scenario) fn claim(to_mac: Option<Mac>, mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => {
            let mut body = vec![0, 1, 8, 0, 6, 4, 0, 2];
            body.extend(mac);
            body.extend(four.octets());
            body.extend(to_mac.unwrap_or([0xff; 6]));
            body.extend(four.octets());
            ethernet(to_mac.unwrap_or([0xff; 6]), mac, 0x0806, &body)
        }
        IpAddr::V6(six) => {
            let from = IpAddr::from(six);
            let to = IpAddr::from(ALL_NODES6.0);
            // Override, not solicited.
            let mut body = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
            body.extend(six.octets());
            body.extend([2, 1]);
            body.extend(mac);
            let check = folded(sum(&body) + pseudo_header(from, to, 58, body.len()));
            body[2..4].copy_from_slice(&check);
            ethernet(
                to_mac.unwrap_or(ALL_NODES6.1),
                mac,
                0x86dd,
                &packet(from, to, 58, &body),
            )
        }
    }
}

/// An ARP question of `from` for `target`, to one host alone.
pub(in crate::scenario) fn question(to_mac: Mac, (mac, from): (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let mut frame = arp_request(mac, from, target);
    frame[..6].copy_from_slice(&to_mac);
    frame
}

/// The same frame from another Ethernet address: recorded frames are sent again from where the attacker is, so that it is
/// the protocol that is attacked and not the switch.
pub(in crate::scenario) fn sent_by(mut frame: Vec<u8>, mac: Mac) -> Vec<u8> {
    if let Some(source) = frame.get_mut(6..12) {
        source.copy_from_slice(&mac);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Frame;

    fn advert(from: IpAddr, address: IpAddr) -> Vec<u8> {
        Advert {
            from,
            vrid: 51,
            priority: 255,
            interval_cs: 4_095,
            addresses: vec![address],
        }
        .frame([2; 6])
    }

    #[test]
    fn a_forged_advert_reads_back_and_its_checksums_are_right() {
        let frame = advert([10, 0, 0, 1].into(), [10, 0, 0, 9].into());
        let read = Frame::new(&frame).and_then(|f| f.advert()).expect("an advert");
        assert_eq!((read.priority, read.interval_cs, read.vrid), (255, 4_095, 51));
        assert_eq!(folded(sum(&frame[14..34])), [0, 0]);
        let whole = sum(&frame[34..]) + pseudo_header([10, 0, 0, 1].into(), GROUP4.0.into(), VRRP, 12);
        assert_eq!(folded(whole), [0, 0]);
    }

    #[test]
    fn checksums_of_ipv6_are_right() {
        let from: IpAddr = "fe80::1".parse().expect("an address");
        let frame = advert(from, from);
        assert_eq!(frame.len(), 14 + 40 + 24);
        let whole = sum(&frame[54..]) + pseudo_header(from, GROUP6.0.into(), VRRP, 24);
        assert_eq!(folded(whole), [0, 0]);
        let claimed = claim(None, [2; 6], from);
        let whole = sum(&claimed[54..]) + pseudo_header(from, ALL_NODES6.0.into(), 58, 32);
        assert_eq!(folded(whole), [0, 0]);
    }

    #[test]
    fn a_claim_is_an_announcement_and_a_datagram_carries_what_was_said() {
        let frame = claim(None, [2, 0, 0, 0, 0, 70], [10, 0, 0, 9].into());
        assert!(
            Frame::new(&frame)
                .and_then(|f| f.arp())
                .expect("ARP")
                .is_announcement()
        );
        let frame = datagram(
            ([2; 6], [10, 0, 0, 1].into()),
            ([4; 6], [10, 0, 0, 2].into()),
            8_471,
            b"said",
        );
        let ip = Frame::new(&frame).and_then(|f| f.ip()).expect("IPv4");
        assert_eq!((ip.sport, ip.dport), (8_471, 8_471));
        assert_eq!(&frame[42..], b"said");
        assert_eq!(sent_by(frame, [9; 6])[6..12], [9; 6]);
    }
}
