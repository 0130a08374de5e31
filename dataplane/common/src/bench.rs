//! What the measuring programs and `onearm-bench` share.

use crate::addr::Addr4;

/// Length of the template in 8-byte words.
pub const TEMPLATE_WORDS: usize = 8;

/// Map `BENCH`, one entry: the frame to build for each run of the program under test.
///
/// Which address and port frame n has: see [`flow`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bench {
    /// The frame with both fields zero and both checksums unfinished.
    pub template: [u64; TEMPLATE_WORDS],
    /// Number of flows.
    pub flows: u64,
    /// 0 = at random, 1 = one after the other from `next`.
    pub sequential: u64,
    /// Next frame, or state of the random sequence.
    pub next: u64,
    /// First address, native order.
    pub base: u32,
    /// Length of the frame, at most 64.
    pub len: u32,
    /// 1 = destination varies (packets of servers), 0 = source (packets of clients).
    pub vary_destination: u32,
    /// Sum of the IP header without the address.
    pub ip_sum: u32,
    /// Sum of pseudo header and TCP segment without address and port.
    pub tcp_sum: u32,
    /// 1 = UDP, 0 = TCP.
    pub datagrams: u32,
    /// 1 = every fourth frame is an ACK with any number, of the flow before it; 0 = none is.
    pub blind: u32,
    /// `tcp_sum` of those, without the number acknowledged.
    pub blind_sum: u32,
    /// Frames so far.
    pub count: u64,
    /// Time that sixteen frames take at least, ns; 0 = as fast as may be.
    pub pace: u64,
    /// CLOCK_MONOTONIC before which the next sixteen do not go, ns.
    pub due: u64,
    /// Which ports clients have: see [`ports`].
    pub ports: u64,
}

/// Type of service of frames that a generator sends; tunnels copy it.
pub const MARK: u8 = 0x5c;

/// Which ports clients have. Values of [`Bench::ports`].
pub mod ports {
    /// From 1,024 up, 64,512 flows one after the other all different ones.
    pub const APART: u64 = 0;
    /// As Linux chooses them: pseudo-random ones of `ip_local_port_range`, 32,768 to 60,999.
    pub const EPHEMERAL: u64 = 1;
    /// The same four for every address.
    pub const FOUR: u64 = 2;
}

/// Address (as in the packet) and port (native order) of flow `n`: four flows an address.
#[inline(always)]
pub const fn flow(pattern: u64, base: u32, n: u64) -> (Addr4, u16) {
    let port = match pattern {
        ports::EPHEMERAL => 32_768 + (mixed(n) >> 32) % 28_232,
        ports::FOUR => 20_000 + (n & 3) * 4_099,
        _ => 1_024 + (n.wrapping_mul(40_503) & 0xffff) % 64_512,
    };
    (base.wrapping_add((n >> 2) as u32).to_be(), port as u16)
}

/// SplitMix64's scramble of a number.
#[inline(always)]
const fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// Next number of the sequence that picks flows at random.
#[inline(always)]
pub const fn random(state: u64) -> u64 {
    state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}
