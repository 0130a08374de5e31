//! The maps: names, keys and values shared by the eBPF programs and user space.
//!
//! Every type is `#[repr(C)]`, fixed-width, explicitly padded and free of invalid bit patterns. Addresses, ports and
//! MACs stand as they do in the packet (**network byte order**: [`Addr`], [`Port`]); everything else is native.
//!
//! What depends on the configuration exists in two *slots*; map `GENERATION` names the one in force and is
//! read once per packet. Flows, servers, next hops and counters outlive generations and are not doubled.
//!
//! Only the flow tables are kept by family, since only they are read for every packet. All other maps hold both families in
//! one form ([`Addr`], IPv4 as mapped addresses), prefixes of IPv4 with 96 bits more.
//!
//! | map | type | key → value |
//! |---|---|---|
//! | `NODE` | array, mmapable | 0 → [`Node`] |
//! | `LEASE` | array, mmapable | group and more → moment, CLOCK_MONOTONIC ns; see [`crate::permission`] |
//! | `GENERATION` | array, mmapable | 0 → `u32` slot in force |
//! | `LEGS` | array, mmapable | one of [`LegKey::slots`] → [`LegSlot`] |
//! | `TX_PORTS` | devmap | leg id → ifindex |
//! | `OWNED`, `SNAT_RANGES` | hash | [`OwnedKey`] → [`Owned`], [`SnatRange`] |
//! | `SERVICES` | LPM | [`ServiceKey`] → `u32` service index without slot |
//! | `SERVICE`, `LIMITS` | array | slot × [`MAX_SERVICES`] + service index → [`Service`], [`Limits`] |
//! | `TUNNELS` | array | slot × [`MAX_SERVICES`] + service index → [`Tunnel`] |
//! | `SCHED` | array, mmapable | word → four server indexes |
//! | `WRR` | array | stats index → counter |
//! | `SERVERS` | array | server index → [`Server`] |
//! | `SNAT_POOLS` | array | slot × [`MAX_SNAT_POOLS`] + n → [`SnatPool`] |
//! | `CONNECTED`, `SERVER_NETS`, `DIRECT`, `HAIRPIN`, `CLIENTS`, `MODE_RULES` | LPM | [`ScopedPrefix`] → `u32` |
//! | `SERVER_ENDPOINTS` | hash | [`EndpointKey`] → `u32` (1) |
//! | `NEXT_HOPS`, `LAST_HOPS` | array | index → [`NextHop`], [`LastHop`] |
//! | `LAST_HOP_INDEX` | hash | [`LastHop`] → `u32` |
//! | `LAST_HOP_FREE` | queue | `u32` indexes into `LAST_HOPS` |
//! | `FRAGMENTS` | LRU hash | [`FragmentKey`] → [`Remembered`] |
//! | `FRAGMENT_IDS` | array | [`crate::fragment::identification`] → `u64`, advanced by atomic add |
//! | `HALF_OPEN`, `INCARNATION` | array | 0 → `u64`, advanced by atomic add |
//! | `OPEN`, `OPEN_SERVERS` | array, mmapable | stats index, server index → `u64` flows not closing, by atomic add |
//! | `SOURCES` | array, mmapable | [`crate::limits::source_slots`] → `u64` flows, by atomic add |
//! | `PERSISTENCE` | array, mmapable | stats index → `u64` [`crate::persistence::Rule`]; written by user space only |
//! | `CLIENT_SERVERS` | array, mmapable | bucket → [`crate::persistence::Bucket`]; written by user space only, `max_entries` set by the loader |
//! | `NEIGHBOURS` | hash | [`NeighbourKey`] → `u32` index into `NEXT_HOPS` |
//! | `ROUTES` | LPM | [`Addr`] → [`Route`] |
//! | `FLOWS4`, `FLOWS6` | array, mmapable | bucket → [`crate::flow::Bucket4`], [`crate::flow::Bucket6`]; `max_entries` set by the loader |
//! | `COUNTERS` | per-CPU array | [`crate::counter::Counter`] → `u64` |
//! | `SERVICE_STATS`, `SERVER_STATS` | per-CPU array | stats index, server index → [`Stats`] |
//! | `SERVICE_REFUSALS` | per-CPU array | stats index → [`Refusals`] |
//! | `FLOW_SYNC` | array, mmapable | word of [`crate::tell`] → `u64`; written by user space only |
//! | `FLOW_TELLS` | ring buffer | words of [`crate::tell`]; size set by the loader |
//! | `EVENTS` | ring buffer | [`crate::event::Event`] |
//! | `EVENT_PACE` | array | slot → `u64`, ns |
//! | `REFUSALS` | array | [`crate::refusal`] → [`crate::refusal::Meter`] |
//! | `PHASES` | program array | [`crate::phase::PHASES`] |

mod address;
mod datagram;
mod node;
mod servers;
mod services;
mod stats;
mod way;

pub use self::address::{Owned, OwnedKey, ScopedPrefix, SnatRange, owned};
pub use self::datagram::{FragmentKey, Remembered};
pub use self::node::{Leg, LegKey, LegSlot, Node};
pub use self::servers::{EndpointKey, Server, server};
pub use self::services::{Limits, Service, ServiceKey, SnatPool, Tunnel, hairpin, mode, scheduler, service};
pub use self::stats::{Refusals, Stats};
pub use self::way::{LastHop, NeighbourKey, NextHop, Route};
pub use crate::addr::Addr;

/// Port or ICMP echo identifier as it stands in the packet (network byte order).
pub type Port = u16;
/// Ethernet address.
pub type Mac = [u8; 6];

/// Copies of every configuration-dependent table.
pub const SLOTS: u32 = 2;
/// Most owned addresses (service VIPs, gateways, SNAT sources) of a pair.
pub const MAX_OWNED: u32 = 8_192;
/// Most services.
pub const MAX_SERVICES: u32 = 4_096;
/// Stats index of flows of services that are not configured here: they are forwarded, and count nowhere.
pub const STRAY_SERVICE: u16 = MAX_SERVICES as u16;
/// Server index of flows of servers that are not configured here, as of one that was removed.
pub const STRAY_SERVER: u16 = 0;
/// Most servers configured at one time.
pub const MAX_SERVERS: u32 = 16_384;
/// Server indexes: twice [`MAX_SERVERS`], because an index is not reused while a flow may refer to it.
pub const SERVER_INDEXES: u32 = 32_768;
/// Most servers of one service; an entry of a scheduler table is one byte.
pub const MAX_SERVERS_PER_SERVICE: u32 = 256;
/// Most legs (interface and VLAN).
pub const MAX_LEGS: u32 = 64;
/// Entries of map `LEGS`; a power of two.
pub const LEG_SLOTS: u32 = 4_096;
/// Places where one leg may stand.
pub const LEG_PROBES: usize = 4;
/// Next hops kept resolved by user space.
pub const MAX_NEXT_HOPS: u32 = 32_768;
/// Client-side last hops (leg, VLAN, MAC).
pub const MAX_LAST_HOPS: u32 = 65_536;
/// Indexes that programs may give to new last hops before user space has judged those given before.
pub const LAST_HOP_ALLOWANCE: u32 = 4_096;
/// Fragmented datagrams remembered at one time; the oldest give way to new ones.
pub const MAX_FRAGMENTS: u32 = 65_536;
/// Counters of identifications; a power of two.
pub const FRAGMENT_IDS: u32 = 4_096;
/// Ownership groups; only group 0 is used in this build.
pub const MAX_GROUPS: u32 = 16;
/// SNAT pool entries of all services of one slot.
pub const MAX_SNAT_POOLS: u32 = 8_192;
/// Flow clock: one tick is 2^26 ns (67.1 ms), so that 32 bits last nine years.
pub const TICK_SHIFT: u32 = 26;
/// Entries of one flow-table bucket.
pub const WAYS: usize = 16;
/// Most buckets of `FLOWS4` and of `FLOWS6`: a location has 28 bits for the bucket.
pub const MAX_FLOW_BUCKETS: u32 = 1 << 25;
/// Entries of map `SCHED` (array of `u64`, mmapable): each holds four server indexes, 16 bits each, the first in the
/// lowest bits. [`Service::table`] counts single indexes: entry `e` is bits `16 * (e % 4)` of word `e / 4`.
pub const SCHED_WORDS: u32 = 1 << 21;
/// Entries of the value of map `WRR` (array of `u64`, counters of weighted round robin, by [`Service::stats`]).
pub const WRR_COUNTERS: u32 = MAX_SERVICES;
/// Most prefixes of the LPM tries `SERVER_NETS`, `CONNECTED` and `DIRECT`, both slots together.
pub const MAX_PREFIXES: u32 = 8_192;
/// Most prefixes of `HAIRPIN`, both slots together.
pub const MAX_HAIRPIN_PREFIXES: u32 = 65_536;
/// Most prefixes of `CLIENTS`, both slots together.
pub const MAX_CLIENT_PREFIXES: u32 = 65_536;
/// Counters in each of the two rows of `SOURCES`; a power of two.
pub const SOURCES_ROW: u32 = 1 << 18;
/// Most entries of `SERVICES`, both slots together (a port range takes several).
pub const MAX_SERVICE_KEYS: u32 = 131_072;
/// Most routes mirrored from the kernel.
pub const MAX_ROUTES: u32 = 65_536;
/// Value of `CONNECTED` for the first and last address of a prefix (network, directed broadcast): nobody sends from there.
pub const NOT_A_HOST: u32 = u32::MAX;
/// [`Route::leg`] of an address of this node: packets to it are the kernel's.
pub const LOCAL_LEG: u32 = u32::MAX;

/// IP protocols.
pub mod proto {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP.
    pub const IPIP: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 in IP.
    pub const IPV6: u8 = 41;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// VRRP.
    pub const VRRP: u8 = 112;
}

#[cfg(test)]
mod tests;
