//! The naive reference: edits a frame and recomputes every checksum from nothing.

use super::frames::{End, Mac};

/// What translation is expected to do to a frame.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub from_mac: Mac,
    pub to_mac: Mac,
    pub from: End,
    pub to: End,
}

fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|c| u64::from(c[0]) << 8 | u64::from(c.get(1).copied().unwrap_or(0)))
        .sum()
}

fn checksum(total: u64) -> [u8; 2] {
    let mut total = total;
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    (!u16::try_from(total).expect("folded")).to_be_bytes()
}

/// Checksum of bytes among which its own are zero.
pub fn checksum_of(bytes: &[u8]) -> [u8; 2] {
    checksum(sum(bytes))
}

/// Offset of the IP header.
pub fn l3(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0] { 18 } else { 14 }
}

/// Where things are in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub v6: bool,
    pub l3: usize,
    pub l4: usize,
    /// End of the IP packet.
    pub end: usize,
    /// Protocol of the transport header.
    pub proto: u8,
}

impl Layout {
    /// Of a frame whose headers are whole.
    pub fn of(frame: &[u8]) -> Self {
        let l3 = l3(frame);
        let word = |at: usize| usize::from(frame[at]) << 8 | usize::from(frame[at + 1]);
        if frame[l3] >> 4 == 4 {
            return Self {
                v6: false,
                l3,
                l4: l3 + usize::from(frame[l3] & 15) * 4,
                end: l3 + word(l3 + 2),
                proto: frame[l3 + 9],
            };
        }
        let (mut proto, mut l4) = (frame[l3 + 6], l3 + 40);
        while matches!(proto, 0 | 43 | 51 | 60) {
            let units = usize::from(frame[l4 + 1]);
            let len = if proto == 51 {
                (units + 2) * 4
            } else {
                (units + 1) * 8
            };
            proto = frame[l4];
            l4 += len;
        }
        Self {
            v6: true,
            l3,
            l4,
            end: l3 + 40 + word(l3 + 4),
            proto,
        }
    }

    /// Offset of TTL or hop limit.
    pub fn ttl(&self) -> usize {
        self.l3 + if self.v6 { 7 } else { 8 }
    }

    /// Where the two addresses are.
    fn addresses(&self) -> std::ops::Range<usize> {
        if self.v6 {
            self.l3 + 8..self.l3 + 40
        } else {
            self.l3 + 12..self.l3 + 20
        }
    }

    fn header_sum(&self, frame: &[u8]) -> u64 {
        if self.v6 {
            0xffff
        } else {
            sum(&frame[self.l3..self.l4])
        }
    }

    fn pseudo(&self, frame: &[u8]) -> u64 {
        if self.proto == 1 {
            return 0;
        }
        sum(&frame[self.addresses()]) + u64::from(self.proto) + (self.end - self.l4) as u64
    }
}

fn octets(addr: std::net::IpAddr) -> Vec<u8> {
    match addr {
        std::net::IpAddr::V4(addr) => addr.octets().to_vec(),
        std::net::IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

/// The frame as it should leave: translated, TTL − 1, all checksums made anew. A UDP checksum of 0 stays 0.
pub fn translated(frame: &[u8], want: &Expected) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[0..6].copy_from_slice(&want.to_mac);
    out[6..12].copy_from_slice(&want.from_mac);
    let layout = Layout::of(frame);
    let l4 = layout.l4;
    out[layout.ttl()] -= 1;
    let addresses = [octets(want.from.0), octets(want.to.0)].concat();
    out[layout.addresses()].copy_from_slice(&addresses);
    out[l4..l4 + 2].copy_from_slice(&want.from.1.to_be_bytes());
    out[l4 + 2..l4 + 4].copy_from_slice(&want.to.1.to_be_bytes());
    finish(&mut out, &layout);
    out
}

/// The frame as it should leave when it is routed but not translated.
pub fn routed(frame: &[u8], from_mac: Mac, to_mac: Mac) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[0..6].copy_from_slice(&to_mac);
    out[6..12].copy_from_slice(&from_mac);
    let layout = Layout::of(frame);
    out[layout.ttl()] -= 1;
    finish_header(&mut out, &layout);
    out
}

fn finish_header(out: &mut [u8], layout: &Layout) {
    let l3 = layout.l3;
    if !layout.v6 {
        out[l3 + 10..l3 + 12].fill(0);
        let header = checksum(sum(&out[l3..layout.l4]));
        out[l3 + 10..l3 + 12].copy_from_slice(&header);
    }
}

/// Recomputes IP and transport checksums in place.
fn finish(out: &mut [u8], layout: &Layout) {
    finish_header(out, layout);
    let udp = layout.proto == 17;
    let at = layout.l4 + if udp { 6 } else { 16 };
    if udp && out[at..at + 2] == [0, 0] {
        return;
    }
    out[at..at + 2].fill(0);
    let mut transport = checksum(layout.pseudo(out) + sum(&out[layout.l4..layout.end]));
    if udp && transport == [0, 0] {
        transport = [0xff, 0xff];
    }
    out[at..at + 2].copy_from_slice(&transport);
}

/// (source, destination) of a TCP or UDP frame.
pub fn ends(frame: &[u8]) -> (End, End) {
    let layout = Layout::of(frame);
    let addresses = &frame[layout.addresses()];
    let (from, to) = addresses.split_at(addresses.len() / 2);
    let addr = |bytes: &[u8]| -> std::net::IpAddr {
        match <[u8; 4]>::try_from(bytes) {
            Ok(four) => four.into(),
            Err(_) => <[u8; 16]>::try_from(bytes).expect("sixteen").into(),
        }
    };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    (
        End(addr(from), port(layout.l4)),
        End(addr(to), port(layout.l4 + 2)),
    )
}

/// True if the IP header checksum and the TCP, UDP or ICMP checksum verify.
pub fn verifies(frame: &[u8]) -> bool {
    let layout = Layout::of(frame);
    let l4 = layout.l4;
    if checksum(layout.header_sum(frame)) != [0, 0] {
        return false;
    }
    if layout.proto == 17 && !layout.v6 && frame[l4 + 6..l4 + 8] == [0, 0] {
        return true;
    }
    checksum(layout.pseudo(frame) + sum(&frame[l4..layout.end])) == [0, 0]
}

/// An ICMP error: who tells whom, by which MACs, what, and the packet it quotes.
#[derive(Clone, Debug)]
pub struct Report {
    pub from_mac: Mac,
    pub to_mac: Mac,
    pub from: std::net::IpAddr,
    pub to: std::net::IpAddr,
    pub ttl: u8,
    pub kind: u8,
    pub code: u8,
    pub rest: [u8; 4],
    /// IP packet, cut as the reporter does.
    pub quote: Vec<u8>,
}

impl Report {
    /// The frame, every checksum made from nothing.
    pub fn build(&self) -> Vec<u8> {
        let mut out = [&self.to_mac[..], &self.from_mac].concat();
        let v6 = self.from.is_ipv6();
        let payload = u16::try_from(8 + self.quote.len()).expect("short");
        if v6 {
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend(payload.to_be_bytes());
            out.extend([58, self.ttl]);
        } else {
            out.extend([8, 0, 0x45, 0xc0]);
            out.extend((payload + 20).to_be_bytes());
            out.extend([0, 7, 0, 0, self.ttl, 1, 0, 0]);
        }
        out.extend(octets(self.from));
        out.extend(octets(self.to));
        out.extend([self.kind, self.code, 0, 0]);
        out.extend(self.rest);
        out.extend(&self.quote);
        let layout = Layout::of(&out);
        finish_header(&mut out, &layout);
        let message = checksum(layout.pseudo(&out) + sum(&out[layout.l4..layout.end]));
        out[layout.l4 + 2..layout.l4 + 4].copy_from_slice(&message);
        out
    }
}

/// The IP packet of a frame, with the TTL its copy `seen` on the way had, as far as `bytes` of its transport.
pub fn quoted(frame: &[u8], seen: &[u8], bytes: usize) -> Vec<u8> {
    let layout = Layout::of(frame);
    let mut copy = frame.to_vec();
    copy[layout.ttl()] = seen[layout.ttl()];
    finish_header(&mut copy, &layout);
    copy[layout.l3..layout.end.min(layout.l4 + bytes)].to_vec()
}

/// Writes an IPv4 identification.
pub fn identify(frame: &mut [u8], id: u16) {
    let layout = Layout::of(frame);
    frame[layout.l3 + 4..layout.l3 + 6].copy_from_slice(&id.to_be_bytes());
    finish_header(frame, &layout);
}

/// The frame with an identification and without "do not fragment"; IPv6 has neither.
pub fn unfragmented(frame: &[u8], id: u32) -> Vec<u8> {
    let mut out = frame.to_vec();
    let layout = Layout::of(frame);
    if !layout.v6 {
        let id = u16::try_from(id).expect("16 bits").to_be_bytes();
        out[layout.l3 + 4..layout.l3 + 6].copy_from_slice(&id);
        out[layout.l3 + 6..layout.l3 + 8].fill(0);
        finish_header(&mut out, &layout);
    }
    out
}

/// The frame in fragments of `part` bytes, a multiple of eight; without extension headers.
pub fn fragments(frame: &[u8], id: u32, part: usize) -> Vec<Vec<u8>> {
    let layout = Layout::of(frame);
    let payload = &frame[layout.l4..layout.end];
    let piece = |(n, bytes): (usize, &[u8])| {
        let offset = u16::try_from(n * part).expect("16 bits");
        let more = n * part + bytes.len() < payload.len();
        let mut out = frame[..layout.l4].to_vec();
        let l3 = layout.l3;
        if layout.v6 {
            let len = u16::try_from(bytes.len() + 8).expect("16 bits");
            out[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
            out[l3 + 6] = 44;
            out.extend([layout.proto, 0]);
            out.extend((offset | u16::from(more)).to_be_bytes());
            out.extend(id.to_be_bytes());
        } else {
            let len = u16::try_from(layout.l4 - l3 + bytes.len()).expect("16 bits");
            let word = (offset / 8) | (u16::from(more) << 13);
            out[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
            out[l3 + 4..l3 + 6].copy_from_slice(&u16::try_from(id).expect("16 bits").to_be_bytes());
            out[l3 + 6..l3 + 8].copy_from_slice(&word.to_be_bytes());
            finish_header(&mut out, &layout);
        }
        out.extend(bytes);
        out
    };
    payload.chunks(part).enumerate().map(piece).collect()
}

/// The frame its fragments make, in any order, and their identification. Panics unless their headers verify and agree.
pub fn reassembled(pieces: &[Vec<u8>]) -> (Vec<u8>, u32) {
    let (mut head, mut payload, mut ids) = (Vec::new(), std::collections::BTreeMap::new(), Vec::new());
    for piece in pieces {
        let layout = Layout::of(piece);
        let l3 = layout.l3;
        assert_eq!(checksum(layout.header_sum(piece)), [0, 0], "header checksum");
        let word = |at: usize| u16::from_be_bytes([piece[at], piece[at + 1]]);
        let mut bare = piece[..layout.l4].to_vec();
        let (offset, at) = if layout.v6 {
            assert_eq!(bare[l3 + 6], 44);
            ids.push(u32::from(word(layout.l4 + 4)) << 16 | u32::from(word(layout.l4 + 6)));
            bare[l3 + 6] = piece[layout.l4];
            (word(layout.l4 + 2) & 0xfff8, layout.l4 + 8)
        } else {
            ids.push(u32::from(word(l3 + 4)));
            let offset = (word(l3 + 6) & 0x1fff) * 8;
            bare[l3 + 6..l3 + 8].fill(0);
            bare[l3 + 10..l3 + 12].fill(0);
            (offset, layout.l4)
        };
        let len_at = l3 + if layout.v6 { 4 } else { 2 };
        bare[len_at..len_at + 2].fill(0);
        assert!(head.is_empty() || head == bare, "headers agree");
        head = bare;
        payload.insert(offset, piece[at..layout.end].to_vec());
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "one identification: {ids:x?}");
    let mut out = head.clone();
    for (offset, bytes) in payload {
        assert_eq!(usize::from(offset), out.len() - head.len(), "no gap");
        out.extend(bytes);
    }
    let l3 = l3(&out);
    let v6 = out[l3] >> 4 == 6;
    let (at, len) = if v6 {
        (l3 + 4, out.len() - l3 - 40)
    } else {
        (l3 + 2, out.len() - l3)
    };
    out[at..at + 2].copy_from_slice(&u16::try_from(len).expect("16 bits").to_be_bytes());
    let layout = Layout::of(&out);
    finish_header(&mut out, &layout);
    (out, ids[0])
}

/// A frame with outer headers before its IP packet: type of service, "do not fragment" and identification of the inner one,
/// hop limit 64, no UDP checksum. `udp`: ports; `label`: flow label of an IPv6 header.
pub fn outer(
    frame: &[u8],
    from: std::net::IpAddr,
    to: std::net::IpAddr,
    udp: Option<(u16, u16)>,
    label: u16,
) -> Vec<u8> {
    let layout = Layout::of(frame);
    let inner = u16::try_from(layout.end - layout.l3).expect("short");
    let datagram: Vec<u8> = udp.map_or(Vec::new(), |(source, port)| {
        [source, port, inner + 8, 0]
            .iter()
            .flat_map(|w| w.to_be_bytes())
            .collect()
    });
    let payload = inner + u16::try_from(datagram.len()).expect("short");
    let protocol = match (udp, layout.v6) {
        (Some(_), _) => 17,
        (None, true) => 41,
        (None, false) => 4,
    };
    let head = &frame[layout.l3..];
    let mut ip;
    if layout.v6 {
        ip = vec![0x60 | head[0] & 15, head[1] & 0xf0, 0, 0];
        ip[2..4].copy_from_slice(&label.to_be_bytes());
        ip.extend(payload.to_be_bytes());
        ip.extend([protocol, 64]);
        ip.extend(octets(from).into_iter().chain(octets(to)));
    } else {
        ip = vec![0x45, head[1]];
        ip.extend((payload + 20).to_be_bytes());
        ip.extend([head[4], head[5], head[6] & 0x40, 0, 64, protocol, 0, 0]);
        ip.extend(octets(from).into_iter().chain(octets(to)));
        let header = checksum(sum(&ip));
        ip[10..12].copy_from_slice(&header);
    }
    [&frame[..layout.l3], &ip, &datagram, head].concat()
}
