//! Keyed hashes: SipHash-1-3 over two words, or over five for IPv6.

use crate::{addr::Addr, flow::FlowKey, maps::Port};

/// SipHash-1-3 of the sixteen bytes `a`, `b` (the length word is left out: the length never varies).
#[inline(always)]
pub const fn sip13(key: [u64; 2], a: u64, b: u64) -> u64 {
    finish(absorb(absorb(begin(key), a), b))
}

/// SipHash-1-3 of two addresses and a word.
#[inline(always)]
pub const fn sip13_wide(key: [u64; 2], a: Addr, b: Addr, c: u64) -> u64 {
    let (a, b) = (a.0, b.0);
    let mut v = begin(key);
    v = absorb(v, a[0] as u64 | (a[1] as u64) << 32);
    v = absorb(v, a[2] as u64 | (a[3] as u64) << 32);
    v = absorb(v, b[0] as u64 | (b[1] as u64) << 32);
    v = absorb(v, b[2] as u64 | (b[3] as u64) << 32);
    finish(absorb(v, c))
}

#[inline(always)]
const fn begin(key: [u64; 2]) -> [u64; 4] {
    [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ]
}

#[inline(always)]
const fn absorb(mut v: [u64; 4], word: u64) -> [u64; 4] {
    v[3] ^= word;
    v = round(v);
    v[0] ^= word;
    v
}

#[inline(always)]
const fn finish(mut v: [u64; 4]) -> u64 {
    v[2] ^= 0xff;
    v = round(round(round(v)));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline(always)]
const fn round(v: [u64; 4]) -> [u64; 4] {
    let [v0, v1, v2, v3] = v;
    let v0 = v0.wrapping_add(v1);
    let v1 = v1.rotate_left(13) ^ v0;
    let v2 = v2.wrapping_add(v3);
    let v3 = v3.rotate_left(16) ^ v2;
    let v0 = v0.rotate_left(32).wrapping_add(v3);
    let v3 = v3.rotate_left(21) ^ v0;
    let v2 = v2.wrapping_add(v1);
    let v1 = v1.rotate_left(17) ^ v2;
    [v0, v1, v2.rotate_left(32), v3]
}

/// Ports and protocol as one word.
#[inline(always)]
pub const fn ports(sport: Port, dport: Port, proto: u8) -> u64 {
    sport as u64 | (dport as u64) << 16 | (proto as u64) << 32
}

/// Hash of a client's connection for Maglev: independent of table geometry, the same on both nodes of a pair, and the
/// same for every port of a VIP (the ports of a service are one affinity).
#[inline(always)]
pub const fn client(key: [u64; 2], flow: &FlowKey) -> u64 {
    sip13_wide(key, flow.saddr, flow.daddr, ports(flow.sport, 0, flow.proto))
}

/// Hash of a client's network (its address, unless a service is content with less), whatever it calls.
#[inline(always)]
pub const fn source(key: [u64; 2], client: Addr) -> u64 {
    sip13_wide(key, client, Addr::NONE, 0x736f_7572_6365)
}

/// Maps a hash to 0..`n` without division.
#[inline(always)]
pub const fn below(hash: u64, n: u32) -> u32 {
    (((hash >> 32) * n as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_bit_changes_about_half_of_the_output() {
        let (key, base) = ([1, 2], sip13([1, 2], 3, 4));
        for bit in 0..64 {
            for other in [
                sip13(key, 3 ^ 1 << bit, 4),
                sip13(key, 3, 4 ^ 1 << bit),
                sip13([1 ^ 1 << bit, 2], 3, 4),
            ] {
                assert!((12..=52).contains(&(base ^ other).count_ones()), "bit {bit}");
            }
        }
    }

    #[test]
    fn the_hash_of_a_client_does_not_depend_on_the_port_it_calls() {
        let mut flow = FlowKey::new(6, Addr::v4(1), 2, Addr::v4(3), 80);
        let hash = client([5, 6], &flow);
        flow.dport = 443;
        assert_eq!(client([5, 6], &flow), hash);
        flow.sport = 9;
        assert_ne!(client([5, 6], &flow), hash);
        assert!(below(u64::MAX, 7) == 6 && below(0, 7) == 0);
    }
}
