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

/// Offset of the IP header.
pub fn l3(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0] { 18 } else { 14 }
}

/// The frame as it should leave: translated, TTL − 1, all checksums made anew. A UDP checksum of 0 stays 0.
pub fn translated(frame: &[u8], want: &Expected) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[0..6].copy_from_slice(&want.to_mac);
    out[6..12].copy_from_slice(&want.from_mac);
    let l3 = l3(frame);
    let ihl = usize::from(frame[l3] & 15) * 4;
    let total = usize::from(frame[l3 + 2]) << 8 | usize::from(frame[l3 + 3]);
    let (udp, l4) = (frame[l3 + 9] == 17, l3 + ihl);
    out[l3 + 8] -= 1;
    out[l3 + 12..l3 + 16].copy_from_slice(&want.from.0.octets());
    out[l3 + 16..l3 + 20].copy_from_slice(&want.to.0.octets());
    out[l4..l4 + 2].copy_from_slice(&want.from.1.to_be_bytes());
    out[l4 + 2..l4 + 4].copy_from_slice(&want.to.1.to_be_bytes());
    finish(&mut out, l3, l4, l3 + total, udp);
    out
}

/// The frame as it should leave when it is routed but not translated.
pub fn routed(frame: &[u8], from_mac: Mac, to_mac: Mac) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[0..6].copy_from_slice(&to_mac);
    out[6..12].copy_from_slice(&from_mac);
    let l3 = l3(frame);
    let l4 = l3 + usize::from(frame[l3] & 15) * 4;
    out[l3 + 8] -= 1;
    out[l3 + 10..l3 + 12].fill(0);
    let header = checksum(sum(&out[l3..l4]));
    out[l3 + 10..l3 + 12].copy_from_slice(&header);
    out
}

/// Recomputes IP and transport checksums in place.
fn finish(out: &mut [u8], l3: usize, l4: usize, end: usize, udp: bool) {
    out[l3 + 10..l3 + 12].fill(0);
    let header = checksum(sum(&out[l3..l4]));
    out[l3 + 10..l3 + 12].copy_from_slice(&header);
    let at = l4 + if udp { 6 } else { 16 };
    if udp && out[at..at + 2] == [0, 0] {
        return;
    }
    out[at..at + 2].fill(0);
    let pseudo = sum(&out[l3 + 12..l3 + 20]) + u64::from(out[l3 + 9]) + (end - l4) as u64;
    let mut transport = checksum(pseudo + sum(&out[l4..end]));
    if udp && transport == [0, 0] {
        transport = [0xff, 0xff];
    }
    out[at..at + 2].copy_from_slice(&transport);
}

/// (source, destination) of a TCP or UDP frame.
pub fn ends(frame: &[u8]) -> (End, End) {
    let l3 = l3(frame);
    let l4 = l3 + usize::from(frame[l3] & 15) * 4;
    let addr = |at: usize| std::net::Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    (End(addr(l3 + 12), port(l4)), End(addr(l3 + 16), port(l4 + 2)))
}

/// True if the IP header checksum and the TCP, UDP or ICMP checksum verify.
pub fn verifies(frame: &[u8]) -> bool {
    let l3 = l3(frame);
    let ihl = usize::from(frame[l3] & 15) * 4;
    let end = l3 + (usize::from(frame[l3 + 2]) << 8 | usize::from(frame[l3 + 3]));
    let l4 = l3 + ihl;
    let pseudo = match frame[l3 + 9] {
        1 => 0,
        17 if frame[l4 + 6..l4 + 8] == [0, 0] => return checksum(sum(&frame[l3..l4])) == [0, 0],
        proto => sum(&frame[l3 + 12..l3 + 20]) + u64::from(proto) + (end - l4) as u64,
    };
    checksum(sum(&frame[l3..l4])) == [0, 0] && checksum(pseudo + sum(&frame[l4..end])) == [0, 0]
}
