//! Addresses and prefixes: whose they are, and what is said of them.

use super::Addr;

/// Key of map `OWNED`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnedKey {
    /// The address.
    pub addr: Addr,
    /// Table slot, 0 or 1.
    pub slot: u32,
}

/// Value of map `OWNED` (hash): an address of the pair.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// [`owned::SERVICE`] and so on, or-ed.
    pub kinds: u8,
    /// Leg on which ARP for it is answered.
    pub leg: u8,
    /// Ownership group.
    pub group: u8,
    /// Explicit padding, zero.
    pub _pad: u8,
}

/// Bits of [`Owned::kinds`].
pub mod owned {
    /// A service VIP.
    pub const SERVICE: u8 = 1;
    /// A gateway address (servers' default route).
    pub const GATEWAY: u8 = 2;
    /// A source of translated requests.
    pub const SNAT: u8 = 4;
    /// A source of egress traffic.
    pub const EGRESS: u8 = 8;
    /// Owned for the sake of flows that are there: nothing new begins.
    pub const ORPHAN: u8 = 16;
}

/// Key data of the LPM tries `CONNECTED`, `SERVER_NETS`, `DIRECT`, `HAIRPIN` and `CLIENTS`: 32 bits of scope, then the address,
/// 160 in all.
///
/// Values are `u32`, but [`Addr`] in `SERVER_NETS`: `CONNECTED` the id of the connected prefix (≥ 1, as in [`Server::net`](super::Server::net)), or [`NOT_A_HOST`](super::NOT_A_HOST);
/// `SERVER_NETS` the gateway address of the network ([`Addr`]; source of ICMP errors; none = the leg's own); `DIRECT` and `HAIRPIN` 1 (member).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScopedPrefix {
    /// Big-endian scope: the slot; for `HAIRPIN` and `CLIENTS` slot << 24 | service index.
    pub scope: [u8; 4],
    /// Bytes of an [`Addr`]. Prefix length = 32 + bits of the address, and 96 more for IPv4.
    pub addr: [u8; 16],
}

/// Value of map `SNAT_RANGES` (hash, keyed by [`OwnedKey`]): ports of an owned address that either node may use as source.
/// Nothing addressed to them is ever refused.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnatRange {
    /// First port, native order.
    pub first: u16,
    /// Last port, native order, inclusive.
    pub last: u16,
}
