//! Frames as the naive reference writes them. Every checksum is a sum over all that it covers; one that was wrong stays
//! wrong by as much.

use super::read::{Ip, Link, be16};
use std::net::IpAddr;

/// A frame that leaves.
#[derive(Clone, Debug)]
pub struct Sent {
    pub bytes: Vec<u8>,
    /// By another interface.
    pub redirect: bool,
    /// Checksums that were wrong, or not written as a sum makes them: 0 and 0xffff say the same there.
    pub loose: Vec<usize>,
    /// An IPv4 header whose identification is left open.
    pub renamed: Option<usize>,
}

/// Where to.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub from: [u8; 6],
    pub to: [u8; 6],
    pub vlan: u16,
    pub ifindex: u32,
    /// Bytes a packet may have.
    pub mtu: u16,
}

pub fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

pub fn sum(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    bytes.chunks(2).map(word).sum()
}

/// Of the pseudo-header.
pub fn pseudo(from: IpAddr, to: IpAddr, proto: u8, len: usize) -> u64 {
    sum(&octets(from)) + sum(&octets(to)) + u64::from(proto) + len as u64
}

/// Sends the IP packet of `frame` by a way.
pub fn leave(frame: &[u8], link: &Link, way: &Way) -> Sent {
    let mut bytes = [&way.to[..], &way.from].concat();
    if (way.ifindex, way.vlan) == (link.ifindex, link.vlan) {
        bytes.extend(&frame[12..link.l3]);
    } else {
        if way.vlan != 0 {
            bytes.extend([0x81, 0]);
            bytes.extend(way.vlan.to_be_bytes());
        }
        bytes.extend(link.kind.to_be_bytes());
    }
    bytes.extend(&frame[link.l3..]);
    Sent {
        bytes,
        redirect: way.ifindex != link.ifindex,
        loose: Vec::new(),
        renamed: None,
    }
}

/// A frame while it is written.
#[derive(Debug)]
pub struct Draft {
    pub bytes: Vec<u8>,
    loose: Vec<usize>,
}

impl Draft {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            loose: Vec::new(),
        }
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes the checksum at `at`, now that what it covers has the sum `covered` (itself included): off by the remainder
    /// of `before`, as it was.
    pub fn seal(&mut self, at: usize, before: u64, covered: u64) {
        let old = be16(&self.bytes, at);
        let rest = (covered - u64::from(old)) % 0xffff;
        let new = (before % 0xffff + 0xffff - rest) % 0xffff;
        self.write(at, &u16::try_from(new).expect("16 bits").to_be_bytes());
        if !before.is_multiple_of(0xffff) || old == 0xffff {
            self.loose.push(at);
        }
    }

    /// The same for UDP: 0 says that there is none.
    pub fn seal_udp(&mut self, at: usize, before: u64, covered: u64) {
        if be16(&self.bytes, at) == 0 {
            return;
        }
        self.seal(at, before, covered);
        self.loose.retain(|loose| *loose != at);
        if be16(&self.bytes, at) == 0 {
            self.write(at, &[0xff; 2]);
        }
    }

    /// Writes addresses and hop limit.
    pub fn readdress(&mut self, ip: &Ip, (from, to): (IpAddr, IpAddr), ttl: u8) {
        let header = |bytes: &[u8]| sum(&bytes[ip.l3..ip.l3 + header_len(bytes, ip)]);
        let before = header(&self.bytes);
        let (at, hop_limit) = if ip.v6 { (8, 7) } else { (12, 8) };
        self.write(ip.l3 + at, &[octets(from), octets(to)].concat());
        self.bytes[ip.l3 + hop_limit] = ttl;
        if !ip.v6 {
            self.seal(ip.l3 + 10, before, header(&self.bytes));
        }
    }

    /// Writes ports into the transport header at `l4`, then the checksum, which covers the addresses too.
    pub fn renumber(&mut self, ip: &Ip, l4: usize, ports: (u16, u16), new: (IpAddr, IpAddr)) {
        let rest = |bytes: &[u8]| sum(&bytes[l4..ip.end]);
        let before = pseudo(ip.from, ip.to, 0, 0) + rest(&self.bytes);
        self.write(l4, &ports.0.to_be_bytes());
        self.write(l4 + 2, &ports.1.to_be_bytes());
        let covered = pseudo(new.0, new.1, 0, 0) + rest(&self.bytes);
        // What does not change, protocol and length, changes no remainder; but a right checksum is to be known as one.
        let constant = u64::from(ip.proto) + (ip.end - l4) as u64;
        if ip.proto == 17 {
            self.seal_udp(l4 + 6, before + constant, covered + constant);
        } else {
            self.seal(l4 + 16, before + constant, covered + constant);
        }
    }

    pub fn leave(self, link: &Link, way: &Way) -> Sent {
        let mut sent = leave(&self.bytes, link, way);
        let moved = sent.bytes.len().cast_signed() - self.bytes.len().cast_signed();
        sent.loose = self
            .loose
            .iter()
            .map(|at| at.checked_add_signed(moved).expect("behind the Ethernet header"))
            .collect();
        sent
    }
}

fn header_len(bytes: &[u8], ip: &Ip) -> usize {
    if ip.v6 {
        40
    } else {
        usize::from(bytes[ip.l3] & 15) * 4
    }
}

/// An IP packet of ours around `payload`, whose checksum at `checksum` is made.
pub fn packet(from: IpAddr, to: IpAddr, proto: u8, payload: &[u8], checksum: usize) -> Vec<u8> {
    let len = payload.len();
    let (mut out, v6) = (Vec::new(), from.is_ipv6());
    if v6 {
        out.extend([0x60, 0, 0, 0]);
        out.extend(u16::try_from(len).expect("short").to_be_bytes());
        out.extend([proto, 64]);
    } else {
        out.extend([0x45, 0]);
        out.extend(u16::try_from(len + 20).expect("short").to_be_bytes());
        out.extend([0, 0, 0x40, 0, 64, proto, 0, 0]);
    }
    out.extend(octets(from));
    out.extend(octets(to));
    let mut draft = Draft::new(out);
    if !v6 {
        let covered = sum(&draft.bytes);
        draft.seal(10, 0, covered);
    }
    let at = draft.bytes.len();
    draft.bytes.extend(payload);
    let head = if proto == 1 {
        0
    } else {
        pseudo(from, to, proto, len)
    };
    draft.seal(at + checksum, 0, head + sum(payload));
    draft.bytes
}
