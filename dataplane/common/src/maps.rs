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
//! | `LEASE` | array, mmapable | group → deadline, CLOCK_MONOTONIC ns; valid while now < deadline |
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
//! | `EVENTS` | ring buffer | [`crate::event::Event`] |
//! | `EVENT_PACE` | array | slot → `u64`, ns |
//! | `REFUSALS` | array | [`crate::refusal`] → [`crate::refusal::Meter`] |
//! | `PHASES` | program array | [`crate::phase::PHASES`] |

use crate::counter::Counter;

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

/// Map `NODE`, one entry: what the programs must know of this node. Written by user space only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Key of the flow table's hash, random per boot.
    pub flow_hash_key: [u64; 2],
    /// Key of the Maglev hash, the same on both nodes of a pair.
    pub pair_hash_key: [u64; 2],
    /// Buckets of `FLOWS4`.
    pub flow_buckets: u32,
    /// Buckets of `FLOWS6`.
    pub flow6_buckets: u32,
    /// Most half-open flows at one time.
    pub half_open_budget: u32,
    /// 1 while the peer is known to be the Active: stray frames are relayed to it. 0: they are dropped.
    ///
    /// Map `HALF_OPEN` (array of one `u64`) counts the half-open flows; user space may correct it at a sweep.
    pub relay_to_peer: u32,
    /// Half-open time-out in ticks.
    pub half_open_ticks: u32,
    /// Time-out after FIN of both sides or RST, in ticks.
    pub closing_ticks: u32,
    /// Most entries of a bucket that are affinities of servers which answer their clients themselves; 0 = none is kept.
    pub dsr_ways: u32,
    /// Buckets of `CLIENT_SERVERS` minus one; the number of buckets is a power of two.
    pub client_bucket_mask: u32,
    /// Incarnation of flows made here: node id << 56 | epoch << 40; the program adds a counter.
    pub incarnation_base: u64,
    /// Where the search for a source port starts in this node's half: moved at each epoch. Any number.
    pub snat_shift: u64,
}

/// Where a frame came from: decides where its leg may stand in map `LEGS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LegKey {
    /// Kernel interface index.
    pub ifindex: u32,
    /// VLAN id, native order; 0 = untagged.
    pub vlan: u16,
    /// Explicit padding, zero.
    pub _pad: u16,
}

impl LegKey {
    /// Indexes into `LEGS` where the leg may stand. Legs without tags, whose interfaces have numbers near each other, stand
    /// at the first.
    #[inline(always)]
    pub const fn slots(&self) -> [u32; LEG_PROBES] {
        let first = self.ifindex.wrapping_add((self.vlan as u32).wrapping_mul(67));
        let mask = LEG_SLOTS - 1;
        [
            first & mask,
            first.wrapping_add(1) & mask,
            first.wrapping_add(2) & mask,
            first.wrapping_add(3) & mask,
        ]
    }

    /// As one word.
    #[inline(always)]
    pub const fn word(&self) -> u64 {
        self.ifindex as u64 | (self.vlan as u64) << 32
    }
}

/// Value of map `LEGS` (array). Words are written whole: first those of the leg, then that of the key.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegSlot {
    /// The leg.
    pub leg: Leg,
    /// [`LegKey::word`] of it; 0 = none stands here.
    pub key: u64,
    /// Explicit padding, zero.
    pub _pad: [u64; 7],
}

/// A leg, as [`LegSlot`] holds it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leg {
    /// MAC of the interface: source of every frame sent here.
    pub mac: Mac,
    /// Index of the leg in the node's configuration, 0-based.
    pub id: u8,
    /// Ownership group whose lease guards the leg; 0 in this build.
    pub group: u8,
    /// The node's own IPv4 address on the leg; none: [`Addr::NONE`].
    pub addr: Addr,
    /// The node's own global or unique local IPv6 address on the leg; none: [`Addr::NONE`].
    pub addr6: Addr,
    /// The link-local address of the interface; none: [`Addr::NONE`].
    pub link_local: Addr,
    /// MAC of the peer's leg, learned from its authenticated hellos or adverts; all zero = unknown.
    pub peer_mac: Mac,
    /// Largest IP packet, bytes; 65,535 for anything above.
    pub mtu: u16,
}

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
}

/// Data part of the key of map `SERVICES` (LPM trie): 160 bits, compared from the left. A single port has prefix
/// length 160; a range is split into aligned blocks of ports, each with a shorter prefix.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServiceKey {
    /// Table slot, 0 or 1.
    pub slot: u8,
    /// IP protocol, 6 or 17.
    pub proto: u8,
    /// VIP, bytes of an [`Addr`] (unaligned on purpose: the key is a bit string).
    pub addr: [u8; 16],
    /// Port, network byte order.
    pub port: [u8; 2],
}

/// Value of map `SERVICE` (array of [`SLOTS`] × [`MAX_SERVICES`]); the value of `SERVICES` is the index without slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Scheduler table: base (low 32 bits) and length (high 32 bits) in entries of `SCHED`; length 0 = no live server.
    /// Replaced by one 8-byte store.
    pub table: u64,
    /// [`mode`], with [`mode::RULES`].
    pub mode: u8,
    /// [`scheduler`].
    pub scheduler: u8,
    /// [`hairpin`].
    pub hairpin: u8,
    /// Ownership group.
    pub group: u8,
    /// First entry of the service's pools in `SNAT_POOLS` of this slot.
    pub snat_base: u16,
    /// Number of pool entries; 0 = the service cannot translate sources.
    pub snat_len: u16,
    /// Idle time-out of established flows in ticks.
    pub idle_ticks: u32,
    /// Index into `SERVICE_STATS` and `WRR`: stable over generations while the service exists.
    pub stats: u32,
    /// [`service`].
    pub options: u32,
    /// Bytes a TCP segment may have, as both sides are told; 0 = as they say.
    pub mss: u16,
    /// Explicit padding, zero.
    pub _pad: u16,
}

/// Bits of [`Service::options`], and values of `CLIENTS`.
pub mod service {
    /// `LIMITS` is to be asked.
    pub const LIMITED: u32 = 1;
    /// `CLIENTS` is to be asked: the longest prefix decides.
    pub const CLIENTS: u32 = 2;
    /// Who is in no prefix is denied.
    pub const ALLOWED_ONLY: u32 = 4;
    /// Each datagram is scheduled on its own, and no flow is kept of it. In direct modes only.
    pub const PER_PACKET: u32 = 8;
    /// Value of `CLIENTS`: may call.
    pub const ALLOW: u32 = 1;
    /// Value of `CLIENTS`: may not.
    pub const DENY: u32 = 2;
}

/// Value of map `LIMITS` (array of [`SLOTS`] × [`MAX_SERVICES`]); 0 = no limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most flows that are not closing.
    pub max_connections: u32,
    /// Most flows of one client address.
    pub max_per_source: u32,
    /// Rate of new flows: see [`crate::refusal::Rate`].
    pub new_cost_ns: u64,
    /// Its burst.
    pub new_burst_ns: u64,
}

/// Value of map `TUNNELS` (array of [`SLOTS`] × [`MAX_SERVICES`]): the outer header of a service's packets (`l3-dsr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer source; none = the address of the leg the packet came by.
    pub source: Addr,
    /// Bits of the last word of the source that vary with the flow, network byte order.
    pub spread: u32,
    /// UDP port of GUE; 0 = IPIP or IP6IP6.
    pub port: Port,
    /// Explicit padding, zero.
    pub _pad: u16,
}

/// Values of [`Service::mode`].
pub mod mode {
    /// Source and destination rewritten.
    pub const BOTH_NAT: u8 = 0;
    /// Destination rewritten; servers answer through the gateway address.
    pub const DNAT: u8 = 1;
    /// The frame goes to the server, the packet stays as it is; the server answers its client itself.
    pub const DSR: u8 = 2;
    /// The packet goes to the server in an IP tunnel; the server answers its client itself.
    pub const L3_DSR: u8 = 3;
    /// The bits of a mode.
    pub const MASK: u8 = 3;
    /// Some clients have modes of their own, see map `MODE_RULES`.
    pub const RULES: u8 = 0x80;
}

/// Values of [`Service::scheduler`]. All choose an entry of the service's table.
pub mod scheduler {
    /// `table[hash(client, vip) % len]`.
    pub const MAGLEV: u8 = 0;
    /// `table[counter++ % len]`; the table is a smooth weighted sequence.
    pub const WRR: u8 = 1;
    /// Of the entries `counter..counter + 4` of the same sequence, the server with the fewest flows for its weight.
    pub const WLC: u8 = 2;
    /// `table[hash(client's network) % len]`, unless the client stays with a server: [`crate::persistence`].
    pub const SOURCE_HASH: u8 = 3;
}

/// Values of [`Service::hairpin`] (DNAT only).
pub mod hairpin {
    /// Never.
    pub const OFF: u8 = 0;
    /// Client and chosen server have the same id in `CONNECTED`, or are the same address.
    pub const AUTO: u8 = 1;
    /// The client is in one of the prefixes listed in `HAIRPIN` for the service.
    pub const LISTED: u8 = 2;
}

/// Value of map `SERVERS` (array of [`SERVER_INDEXES`]). Indexes are stable: never reused while a flow may refer to one.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Address.
    pub addr: Addr,
    /// Port; 0 = the port the client called.
    pub port: Port,
    /// Id of the connected prefix the server is in (map `CONNECTED`); 0 = none, it is behind a router.
    pub net: u16,
    /// Index into `NEXT_HOPS`.
    pub next_hop: u32,
    /// [`server`].
    pub flags: u32,
    /// Explicit padding, zero.
    pub _pad: u32,
}

/// Bits of [`Server::flags`].
pub mod server {
    /// The index is in use.
    pub const USED: u32 = 1;
    /// Healthy and wanted: new flows may choose it (the tables say so too; this bit is for status and replies).
    pub const UP: u32 = 2;
    /// It went down while others are up: its TCP flows are reset, its UDP flows go elsewhere.
    pub const RESETS: u32 = 4;
    /// It is configured no more: its UDP flows go elsewhere, its TCP flows stay.
    pub const MOVES: u32 = 8;
    /// The weight, in the upper half.
    pub const WEIGHT_SHIFT: u32 = 16;
}

/// Key data of the LPM tries `CONNECTED`, `SERVER_NETS`, `DIRECT`, `HAIRPIN` and `CLIENTS`: 32 bits of scope, then the address,
/// 160 in all.
///
/// Values are `u32`, but [`Addr`] in `SERVER_NETS`: `CONNECTED` the id of the connected prefix (≥ 1, as in [`Server::net`]), or [`NOT_A_HOST`];
/// `SERVER_NETS` the gateway address of the network ([`Addr`]; source of ICMP errors; none = the leg's own); `DIRECT` and `HAIRPIN` 1 (member).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScopedPrefix {
    /// Big-endian scope: the slot; for `HAIRPIN` and `CLIENTS` slot << 24 | service index.
    pub scope: [u8; 4],
    /// Bytes of an [`Addr`]. Prefix length = 32 + bits of the address, and 96 more for IPv4.
    pub addr: [u8; 16],
}

/// Key of map `SERVER_ENDPOINTS` (hash): where a `dnat` server answers from; a packet from there without a flow is dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointKey {
    /// Server address.
    pub addr: Addr,
    /// Server port.
    pub port: Port,
    /// IP protocol.
    pub proto: u8,
    /// Table slot.
    pub slot: u8,
}

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
    /// Leg id, or [`LOCAL_LEG`].
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

/// Value of map `SNAT_POOLS` (array of [`SLOTS`] × [`MAX_SNAT_POOLS`]): one source address and **this node's** half of its ports.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnatPool {
    /// Source address.
    pub addr: Addr,
    /// First port, native order.
    pub first: u16,
    /// Last port, native order, inclusive.
    pub last: u16,
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

/// Value of the per-CPU arrays `SERVICE_STATS` ([`MAX_SERVICES`]) and `SERVER_STATS` ([`SERVER_INDEXES`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flows made.
    pub flows: u64,
    /// Packets towards the server.
    pub packets_in: u64,
    /// Bytes of those frames, Ethernet header included, padding not.
    pub bytes_in: u64,
    /// Packets towards the client.
    pub packets_out: u64,
    /// Bytes of those frames.
    pub bytes_out: u64,
    /// New flows refused (no server, no port, table full, budget).
    pub refused: u64,
}

/// Value of the per-CPU array `SERVICE_REFUSALS` ([`MAX_SERVICES`]): new flows refused, by reason.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// The client is in no allowed prefix, or in a denied one.
    pub denied: u64,
    /// `max_connections`.
    pub connections: u64,
    /// `max_new_per_second`.
    pub rate: u64,
    /// `max_per_source`.
    pub per_source: u64,
    /// No live server.
    pub no_server: u64,
    /// No free source port.
    pub no_port: u64,
    /// Table or half-open budget full.
    pub table: u64,
    /// Anything else.
    pub other: u64,
}

impl Refusals {
    /// Counts one.
    #[inline(always)]
    pub const fn add(&mut self, reason: Counter) {
        let count = match reason {
            Counter::ClientDenied => &mut self.denied,
            Counter::MaxConnections => &mut self.connections,
            Counter::MaxNew => &mut self.rate,
            Counter::MaxPerSource => &mut self.per_source,
            Counter::NoServer => &mut self.no_server,
            Counter::NoPort => &mut self.no_port,
            Counter::TableFull | Counter::HalfOpenFull => &mut self.table,
            _ => &mut self.other,
        };
        *count = count.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests;
