//! Fragmented datagrams.

use super::{Addr, Port};

/// Key of map `FRAGMENTS` (LRU hash): what fragments of one datagram have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    /// Source address.
    pub saddr: Addr,
    /// Destination address.
    pub daddr: Addr,
    /// Identification as it stands in the packet.
    pub id: u32,
    /// IPv4: the protocol. IPv6: that of the fragment header.
    pub proto: u32,
}

/// Value of map `FRAGMENTS`: what the first fragment said, and what became of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// When it came, CLOCK_MONOTONIC ns.
    pub time: u64,
    /// Identification the datagram leaves with if its source is rewritten, as it stands in the packet; never 0.
    pub id: u32,
    /// Source port; 0 if the protocol has none.
    pub sport: Port,
    /// Destination port.
    pub dport: Port,
    /// Transport protocol.
    pub proto: u32,
    /// Explicit padding, zero.
    pub _pad: u32,
}
