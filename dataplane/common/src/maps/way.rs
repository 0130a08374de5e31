//! Ways to servers, to clients and back.

use super::{Addr, Mac};

/// Value of map `NEXT_HOPS` (array), kept by user space from the kernel's neighbours. Two 8-byte words, each written whole.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHop {
    /// Destination MAC.
    pub mac: Mac,
    /// VLAN id, native order; 0 = untagged.
    pub vlan: u16,
    /// Interface to leave by.
    pub ifindex: u32,
    /// Leg id.
    pub leg: u8,
    /// 1 = resolved and usable.
    pub valid: u8,
    /// Largest IP packet, bytes: that of the leg or, on the way to a server, of the route.
    pub mtu: u16,
}

/// Key of map `NEIGHBOURS` (hash) → index into `NEXT_HOPS`: on-link addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NeighbourKey {
    /// The address.
    pub addr: Addr,
    /// Leg id.
    pub leg: u32,
}

/// Value of the LPM trie `ROUTES` (key data: the [`Addr`], 16 bytes): the kernel's main table as mirrored by user space.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Router on the leg; none = on-link.
    pub gateway: Addr,
    /// Leg id, or [`LOCAL_LEG`](super::LOCAL_LEG).
    pub leg: u32,
    /// Largest IP packet, bytes; 0 = that of the leg.
    pub mtu: u32,
}

/// Value of map `LAST_HOPS` (array) and key of `LAST_HOP_INDEX` (hash → index): a client-side neighbour seen in traffic.
///
/// Programs take indexes from the queue `LAST_HOP_FREE`; when it is empty no new last hop is learned. An index means the
/// same neighbour until user space, sure that no flow uses it, gives it to another. As a value, interface 0: the neighbour
/// is not believed, and flows that name it go by the route. User space finds resolved neighbours an index at once, and
/// judges the others.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LastHop {
    /// Its MAC.
    pub mac: Mac,
    /// VLAN id, native order; 0 = untagged.
    pub vlan: u16,
    /// Interface it was seen on.
    pub ifindex: u32,
    /// Leg id.
    pub leg: u16,
    /// Largest IP packet of the leg, bytes.
    pub mtu: u16,
}
