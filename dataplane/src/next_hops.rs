//! Legs, routes and neighbours as the daemon sees them in the kernel, mirrored into the maps.
//!
//! `NEXT_HOPS` has an entry for each neighbour and one for each server address. Flows refer to entries, so an entry
//! stays what it is for as long as a flow may name it, and is *repaired* when a route or a MAC changes: the flows follow.

mod last_hops;
mod mirror;

#[cfg(test)]
pub(crate) use last_hops::tests::Fake as LastHopFake;
pub(crate) use last_hops::{Sink as LastHopSink, last_hop};
pub(crate) use mirror::{HopKey, Mirror, Sink};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use onearm_types::GroupId;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A leg as it is now. Changes when the interface is made anew (its index), or the peer is heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegSpec {
    /// Index of the leg in the node's configuration, 0 to 63.
    pub id: u8,
    /// Kernel interface index.
    pub ifindex: u32,
    /// VLAN id, 1 to 4,094; `None` = untagged.
    pub vlan: Option<u16>,
    /// MAC of the interface.
    pub mac: Mac,
    /// Largest IP packet of the interface, bytes.
    pub mtu: u32,
    /// The node's own IPv4 address on the leg.
    pub addr: Option<Ipv4Addr>,
    /// The node's own global or unique local IPv6 address on the leg.
    pub addr6: Option<Ipv6Addr>,
    /// The link-local address of the interface.
    pub link_local: Option<Ipv6Addr>,
    /// Ownership group whose lease guards the leg.
    pub group: GroupId,
    /// MAC of the peer's leg, once it has been heard.
    pub peer_mac: Option<Mac>,
}

/// Routes and neighbours of all legs: always the whole of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextHops {
    /// On-link addresses.
    pub neighbours: Vec<Neighbour>,
    /// Routes over legs, and the node's own addresses.
    pub routes: Vec<RouteSpec>,
}

/// An on-link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Leg.
    pub leg: u8,
    /// Address.
    pub addr: IpAddr,
    /// MAC in any state that has one (STALE too); `None` = not resolved.
    pub mac: Option<Mac>,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// Destination; each once.
    pub prefix: IpNet,
    /// How to get there.
    pub via: Via,
    /// Largest IP packet by this route, bytes; `None` = as the leg says.
    pub mtu: Option<u32>,
}

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// It is a neighbour on the leg.
    OnLink {
        /// Leg.
        leg: u8,
    },
    /// Through a router on the leg.
    Gateway {
        /// Leg.
        leg: u8,
        /// The router's address.
        addr: IpAddr,
    },
    /// It is an address of this node: its packets are the kernel's.
    Local,
}

/// What did not fit when next hops were mirrored. All zero: everything is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHopsReport {
    /// Neighbours left out because no index was free.
    pub neighbours_left_out: usize,
    /// Routes left out because the map is full.
    pub routes_left_out: usize,
    /// Words and entries written.
    pub writes: usize,
}

#[cfg(test)]
pub(crate) mod tests;
