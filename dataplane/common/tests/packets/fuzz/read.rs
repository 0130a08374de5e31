//! A frame as the naive reference reads it: byte by byte, with no regard to speed.

use std::net::IpAddr;

/// Offsets beyond this are not looked at, nor transport headers that would reach beyond.
const DEEPEST: usize = 235;
/// Extension headers of a packet, and of one quoted in an ICMP error, that are walked.
const MOST_EXTENSIONS: (usize, usize) = (6, 4);

pub fn be16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn be32(frame: &[u8], at: usize) -> u32 {
    u32::from(be16(frame, at)) << 16 | u32::from(be16(frame, at + 2))
}

/// The Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub ifindex: u32,
    pub to: [u8; 6],
    pub from: [u8; 6],
    /// VLAN id; 0: no tag, or one that says so.
    pub vlan: u16,
    pub kind: u16,
    /// Where its payload begins.
    pub l3: usize,
}

impl Link {
    pub fn read(frame: &[u8], ifindex: u32) -> Option<Self> {
        if frame.len() < 14 {
            return None;
        }
        let mac = |at: usize| -> [u8; 6] { frame[at..at + 6].try_into().expect("six bytes") };
        let mut link = Self {
            ifindex,
            to: mac(0),
            from: mac(6),
            vlan: 0,
            kind: be16(frame, 12),
            l3: 14,
        };
        if link.kind == 0x8100 {
            if frame.len() < 18 {
                return None;
            }
            (link.vlan, link.kind, link.l3) = (be16(frame, 14) & 0xfff, be16(frame, 16), 18);
        }
        Some(link)
    }
}

/// What follows the IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// TCP or UDP: source and destination port.
    Ports(u16, u16),
    /// A fragment; the offset of the fragment header in IPv6, of the payload in IPv4.
    Fragment,
    /// Cut short, behind options or extension headers that cannot be followed, or to be routed by way of others.
    Broken,
    /// Another protocol.
    Other,
}

/// The IP headers.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    pub v6: bool,
    pub l3: usize,
    /// Where the transport header begins.
    pub l4: usize,
    /// Where the packet ends.
    pub end: usize,
    pub proto: u8,
    pub ttl: u8,
    pub from: IpAddr,
    pub to: IpAddr,
    pub content: Content,
}

pub fn address(bytes: &[u8]) -> IpAddr {
    match <[u8; 4]>::try_from(bytes) {
        Ok(four) => four.into(),
        Err(_) => <[u8; 16]>::try_from(bytes).expect("sixteen bytes").into(),
    }
}

fn is_extension(next: u8) -> bool {
    [0, 43, 44, 51, 60].contains(&next)
}

/// Bytes of a transport header without options.
pub fn transport_len(proto: u8) -> Option<usize> {
    match proto {
        6 => Some(20),
        17 => Some(8),
        _ => None,
    }
}

/// No source route, and nothing that breaks off.
fn may_have(options: &[u8]) -> bool {
    match options {
        [] | [0, ..] => true,
        [1, rest @ ..] => may_have(rest),
        [131 | 137, ..] | [_] => false,
        [_, len, ..] => *len >= 2 && options.get(usize::from(*len)..).is_some_and(may_have),
    }
}

impl Ip {
    /// `None` unless the headers fit the frame and make sense.
    pub fn read(frame: &[u8], l3: usize, v6: bool) -> Option<Self> {
        if v6 {
            Self::read6(frame, l3)
        } else {
            Self::read4(frame, l3)
        }
    }

    fn read4(frame: &[u8], l3: usize) -> Option<Self> {
        let header = frame.get(l3..l3 + 20)?;
        let (l4, end) = (
            l3 + usize::from(header[0] & 15) * 4,
            l3 + usize::from(be16(header, 2)),
        );
        if header[0] >> 4 != 4 || l4 < l3 + 20 || end < l4 || end > frame.len() {
            return None;
        }
        let mut ip = Self {
            v6: false,
            l3,
            l4,
            end,
            proto: header[9],
            ttl: header[8],
            from: address(&header[12..16]),
            to: address(&header[16..20]),
            content: Content::Fragment,
        };
        if !may_have(&frame[l3 + 20..l4]) {
            ip.content = Content::Broken;
        } else if be16(header, 6).trailing_zeros() >= 14 {
            ip.content = ip.transport(frame);
        }
        Some(ip)
    }

    fn read6(frame: &[u8], l3: usize) -> Option<Self> {
        let header = frame.get(l3..l3 + 40)?;
        let end = l3 + 40 + usize::from(be16(header, 4));
        if header[0] >> 4 != 6 || end > frame.len() || end - l3 > 65_535 {
            return None;
        }
        let mut ip = Self {
            v6: true,
            l3,
            l4: l3 + 40,
            end,
            proto: header[6],
            ttl: header[7],
            from: address(&header[8..24]),
            to: address(&header[24..40]),
            content: Content::Other,
        };
        if [ip.from, ip.to].iter().any(|a| is_mapped(*a)) {
            return None;
        }
        ip.content = match ip.walk(frame) {
            Some(Content::Other) => ip.transport(frame),
            Some(content) => content,
            None => Content::Broken,
        };
        Some(ip)
    }

    /// Past the extension headers. `None`: they lead nowhere.
    fn walk(&mut self, frame: &[u8]) -> Option<Content> {
        for n in 0.. {
            match self.proto {
                next if !is_extension(next) => return Some(Content::Other),
                44 => return Some(Content::Fragment),
                _ if n == MOST_EXTENSIONS.0 || self.l4 > DEEPEST => return None,
                next => {
                    let header = frame.get(self.l4..self.l4 + 4)?;
                    if next == 43 && header[3] != 0 {
                        return None;
                    }
                    let units = usize::from(header[1]);
                    let len = if next == 51 {
                        (units + 2) * 4
                    } else {
                        (units + 1) * 8
                    };
                    if self.l4 + len > self.end.min(DEEPEST) {
                        return None;
                    }
                    (self.proto, self.l4) = (header[0], self.l4 + len);
                }
            }
        }
        None
    }

    fn transport(&self, frame: &[u8]) -> Content {
        match transport_len(self.proto) {
            None => Content::Other,
            Some(len) if self.l4 + len > self.end => Content::Broken,
            Some(_) => Content::Ports(be16(frame, self.l4), be16(frame, self.l4 + 2)),
        }
    }

    /// TCP flags.
    pub fn flags(&self, frame: &[u8]) -> u8 {
        if self.proto == 6 { frame[self.l4 + 13] } else { 0 }
    }

    /// The fragment it is.
    pub fn piece(&self, frame: &[u8]) -> Option<Piece> {
        if !self.v6 {
            let word = be16(frame, self.l3 + 6);
            return Some(Piece {
                id: u32::from(be16(frame, self.l3 + 4)),
                offset: usize::from(word & 0x1fff) * 8,
                more: word & 0x2000 != 0,
                proto: self.proto,
                at: self.l4,
            });
        }
        let header = frame.get(self.l4..self.l4 + 8)?;
        let word = be16(header, 2);
        Some(Piece {
            id: be32(header, 4),
            offset: usize::from(word & 0xfff8),
            more: word & 1 != 0,
            proto: header[0],
            at: self.l4 + 8,
        })
    }

    /// The TCP or UDP packet that an ICMP error quotes.
    pub fn quote(&self, frame: &[u8]) -> Option<Self> {
        let at = self.l4 + 8;
        let v6 = self.v6;
        if at > 255 {
            return None;
        }
        let header = frame.get(at..at + if v6 { 40 } else { 20 })?;
        let addresses = if v6 { &header[8..40] } else { &header[12..20] };
        let (from, to) = addresses.split_at(addresses.len() / 2);
        let mut quote = Self {
            v6,
            l3: at,
            l4: at + 40,
            end: self.end,
            proto: header[6],
            ttl: 0,
            from: address(from),
            to: address(to),
            content: Content::Other,
        };
        if v6 && header[0] >> 4 == 6 {
            for _ in 0..MOST_EXTENSIONS.1 {
                if ![0, 43, 44, 60].contains(&quote.proto) {
                    break;
                }
                let extension = frame.get(quote.l4..quote.l4 + 8).filter(|_| quote.l4 <= 255)?;
                let fragment = quote.proto == 44;
                if fragment && be16(extension, 2) & 0xfff8 != 0 {
                    return None;
                }
                let units = if fragment { 0 } else { usize::from(extension[1]) };
                (quote.proto, quote.l4) = (extension[0], quote.l4 + (units + 1) * 8);
            }
        } else if !v6 && header[0] >> 4 == 4 && header[0] & 15 >= 5 && be16(header, 6).trailing_zeros() >= 13
        {
            (quote.proto, quote.l4) = (header[9], at + usize::from(header[0] & 15) * 4);
        } else {
            return None;
        }
        transport_len(quote.proto)?;
        if quote.l4 > 255 || quote.l4 + 8 > quote.end {
            return None;
        }
        quote.content = Content::Ports(be16(frame, quote.l4), be16(frame, quote.l4 + 2));
        Some(quote)
    }
}

/// A fragment.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub id: u32,
    pub offset: usize,
    pub more: bool,
    pub proto: u8,
    /// Where its part of the datagram begins.
    pub at: usize,
}

/// An IPv6 address that means an IPv4 one.
pub fn is_mapped(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(six) if six.to_ipv4_mapped().is_some())
}

/// No host's: this network, loopback, groups, reserved; unspecified, mapped and compatible.
pub fn is_special(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(four) => matches!(four.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(six) => {
            let high = six.segments();
            six.is_multicast() || high[..4] == [0; 4] && high[4] == 0 && matches!(high[5], 0 | 0xffff)
        }
    }
}

pub fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(six) if six.segments()[0] & 0xffc0 == 0xfe80)
}
