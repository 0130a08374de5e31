//! Services: how they treat their packets.

use super::{Addr, Port};

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

/// Value of map `SERVICE` (array of [`SLOTS`](super::SLOTS) × [`MAX_SERVICES`](super::MAX_SERVICES)); the value of `SERVICES` is the index without slot.
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

/// Value of map `LIMITS` (array of [`SLOTS`](super::SLOTS) × [`MAX_SERVICES`](super::MAX_SERVICES)); 0 = no limit.
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

/// Value of map `TUNNELS` (array of [`SLOTS`](super::SLOTS) × [`MAX_SERVICES`](super::MAX_SERVICES)): the outer header of a service's packets (`l3-dsr`).
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

/// Value of map `SNAT_POOLS` (array of [`SLOTS`](super::SLOTS) × [`MAX_SNAT_POOLS`](super::MAX_SNAT_POOLS)): one source address and **this node's** half of its ports.
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
