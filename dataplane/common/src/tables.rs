//! What the packet logic asks the maps.

use crate::{
    addr::Address,
    counter::Counter,
    event::Event,
    hash,
    maps::{
        Addr, EndpointKey, FragmentKey, LastHop, Leg, LegKey, Limits, NeighbourKey, NextHop, Node, Owned,
        Remembered, Route, Server, Service, ServiceKey, SnatPool, SnatRange, TICK_SHIFT, Tunnel,
    },
    persistence::{self, Rule},
    refusal::{self, Rate},
    table::{Entry, FlowMemory, Geometry},
    work::{Step, Work},
};

/// The maps of one node, and what else the kernel lends: clock, random numbers, CPU number.
///
/// One method a map; see the table in [`crate::maps`]. Slots are passed in: `GENERATION` is read once per packet.
pub trait Tables: FlowMemory {
    /// Map `NODE`.
    fn node(&self) -> Option<&Node>;
    /// Map `GENERATION`.
    fn slot(&self) -> u32;
    /// Map `LEASE`: deadline of the group's lease, 0 = none; see [`crate::permission`].
    fn lease(&self, group: u8) -> u64;
    /// Map `LEASE`: until when this node acts on what the owner passes on, 0 = it does not.
    fn armed(&self, group: u8) -> u64;
    /// Map `LEASE`: until when this node passes on whatever the main process knows of the peer, 0 = it does not.
    fn relaying(&self, group: u8) -> u64;
    /// CLOCK_MONOTONIC, ns.
    fn now(&self) -> u64;
    /// Map `LEGS`.
    fn leg(&self, key: &LegKey) -> Option<&Leg>;
    /// Map `OWNED`.
    fn owned(&self, slot: u32, addr: Addr) -> Option<Owned>;
    /// Map `SNAT_RANGES`.
    fn snat_range(&self, slot: u32, addr: Addr) -> Option<SnatRange>;
    /// Map `SERVICES`.
    fn service_index(&self, key: &ServiceKey) -> Option<u32>;
    /// Map `SERVICE`.
    fn service(&self, slot: u32, index: u32) -> Option<&Service>;
    /// Map `TUNNELS`.
    fn tunnel(&self, slot: u32, index: u32) -> Option<&Tunnel>;
    /// Map `MODE_RULES`.
    fn mode_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32>;
    /// Map `SCHED`.
    fn sched_word(&self, word: u32) -> u64;
    /// Map `WRR`: the counter before it was advanced.
    fn wrr_next(&self, stats: u32) -> u64;
    /// Map `SERVERS`.
    fn server(&self, index: u32) -> Option<&Server>;
    /// Map `SNAT_POOLS`.
    fn snat_pool(&self, slot: u32, index: u32) -> Option<SnatPool>;
    /// Map `CONNECTED`; 0 = none.
    fn connected(&self, slot: u32, addr: Addr) -> u32;
    /// Map `SERVER_NETS`: the network's gateway address, if `addr` is in one.
    fn server_net(&self, slot: u32, addr: Addr) -> Option<Addr>;
    /// Map `DIRECT`.
    fn direct(&self, slot: u32, addr: Addr) -> bool;
    /// Map `HAIRPIN`.
    fn hairpin(&self, slot: u32, service: u32, addr: Addr) -> bool;
    /// Map `SERVER_ENDPOINTS`.
    fn endpoint(&self, key: &EndpointKey) -> bool;
    /// Map `NEXT_HOPS`.
    fn next_hop(&self, index: u32) -> Option<NextHop>;
    /// Map `NEIGHBOURS`.
    fn neighbour(&self, key: &NeighbourKey) -> Option<u32>;
    /// Map `ROUTES`.
    fn route(&self, addr: Addr) -> Option<Route>;
    /// Map `LAST_HOPS`.
    fn last_hop(&self, index: u32) -> Option<LastHop>;
    /// Map `LAST_HOP_INDEX`.
    fn last_hop_index(&self, hop: &LastHop) -> Option<u32>;
    /// Maps `LAST_HOP_FREE`, `LAST_HOPS`, `LAST_HOP_INDEX`: gives a new last hop an index, if one is left.
    fn learn_last_hop(&self, hop: &LastHop) -> Option<u32>;
    /// Map `FRAGMENTS`.
    fn fragment(&self, key: &FragmentKey) -> Option<Remembered>;
    /// Map `FRAGMENTS`: the oldest give way.
    fn remember_fragment(&self, key: &FragmentKey, value: &Remembered);
    /// Map `FRAGMENT_IDS`: the counter before it was advanced.
    fn next_fragment_id(&self, index: u32) -> u64;
    /// Map `HALF_OPEN`.
    fn half_open(&self) -> u64;
    /// Map `HALF_OPEN`: wrapping add.
    fn add_half_open(&self, n: u64);
    /// Map `INCARNATION`: a number never given before since the map was made.
    fn next_incarnation(&self) -> u64;
    /// Map `COUNTERS`.
    fn count(&self, counter: Counter);
    /// Maps `SERVICE_STATS`, `SERVER_STATS`: a packet was forwarded.
    fn tally(&self, stats: u16, server: u16, reply: bool, bytes: u64);
    /// Maps `SERVICE_STATS`, `SERVER_STATS`: a flow was made.
    fn tally_flow(&self, stats: u16, server: u16);
    /// Maps `SERVICE_STATS`, `SERVICE_REFUSALS`: a new flow was refused.
    fn tally_refused(&self, stats: u32, reason: Counter);
    /// Map `LIMITS`.
    fn limits(&self, slot: u32, service: u32) -> Option<Limits>;
    /// Map `CLIENTS`: [`crate::maps::service::ALLOW`] or `DENY`.
    fn client_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32>;
    /// Map `OPEN`.
    fn open_of_service(&self, stats: u32) -> u64;
    /// Map `OPEN_SERVERS`.
    fn open_of_server(&self, server: u32) -> u64;
    /// Maps `OPEN`, `OPEN_SERVERS`: wrapping add.
    fn add_open(&self, stats: u16, server: u16, n: u64);
    /// Map `SOURCES`.
    fn source(&self, slot: u32) -> u64;
    /// Map `SOURCES`: wrapping add.
    fn add_source(&self, slot: u32, n: u64);
    /// Map `PERSISTENCE`.
    fn persistence(&self, stats: u32) -> Rule;
    /// Map `CLIENT_SERVERS`: valid for as long as the map is.
    fn client_servers(&self, bucket: u32) -> Option<*const persistence::Bucket>;
    /// Map `EVENT_PACE`: true, and `now` stored, if the slot's last record is at least `event::PACE_NS` old.
    fn event_due(&self, slot: u32, now: u64) -> bool;
    /// Map `EVENTS`.
    fn emit(&self, event: &Event);
    /// Map `FLOW_SYNC`: somebody reads `FLOW_TELLS`.
    fn is_listening(&self) -> bool;
    /// Map `FLOW_SYNC`: [`crate::tell::FLOOR`].
    fn floor(&self) -> u32;
    /// Map `FLOW_TELLS`: a record of one word.
    fn tell_look(&self, place: u64);
    /// Map `FLOW_TELLS`: a record of a flow that was removed. `entry` lacks its incarnation.
    fn tell_ended<A: Address>(&self, place: u64, entry: Entry<A>, incarnation: u64);
    /// Map `REFUSALS`: charges one message.
    fn charge(&self, meter: u32, now: u64, rate: Rate) -> bool;
    /// A random number.
    fn random(&self) -> u32;
    /// Owner id for locks: CPU number + 1.
    fn lock_owner(&self) -> u64;
    /// Map `WORK`: lets one phase write what the next one on this CPU needs. False if there is no such map.
    fn leave(&self, write: impl FnOnce(&mut Work)) -> bool;
}

/// Hash key and size of the flow table.
#[inline(always)]
pub const fn geometry<A: Address>(node: &Node) -> Geometry {
    Geometry {
        key: node.flow_hash_key,
        buckets: if A::V6 {
            node.flow6_buckets
        } else {
            node.flow_buckets
        },
    }
}

/// Flow clock.
#[inline(always)]
pub const fn tick(now: u64) -> u32 {
    (now >> TICK_SHIFT) as u32
}

/// Ticks from `then` to `now`; 0 if `then` is later (another CPU's clock).
#[inline(always)]
pub const fn ticks_since(now: u32, then: u32) -> u32 {
    let age = now.wrapping_sub(then);
    if age > u32::MAX / 2 { 0 } else { age }
}

/// True if no half-open flow may be added. The count is corrected by user space while packets change it: it may be below
/// zero for a moment.
#[inline(always)]
pub fn half_open_full<T: Tables>(tables: &T, node: &Node) -> bool {
    tables.half_open().cast_signed() >= i64::from(node.half_open_budget)
}

/// Drops the packet for a reason.
#[inline(always)]
pub fn discard<T: Tables>(tables: &T, reason: Counter) -> Step {
    tables.count(reason);
    Step::Drop
}

/// Leaves the packet to the kernel.
#[inline(always)]
pub fn pass<T: Tables>(tables: &T) -> Step {
    tables.count(Counter::Passed);
    Step::Pass
}

/// Emits an event unless one with the same kind, address and detail was emitted in the last second.
#[inline(always)]
pub fn report<T: Tables>(tables: &T, event: &Event) {
    let about = u64::from(event.kind) | u64::from(event.detail) << 32;
    let hash = hash::sip13_wide([0x6f6e_6561, 0x726d], event.addr, Addr::NONE, about);
    let slot = hash::below(hash, crate::event::PACE_SLOTS);
    if tables.event_due(slot, event.time) {
        tables.emit(event);
    }
}

/// True if one more message may be sent to `addr`.
#[inline(always)]
pub fn may_send<T: Tables>(tables: &T, all: u32, addr: Addr, now: u64) -> bool {
    tables.charge(refusal::SOURCE_BASE + source_slot(addr), now, refusal::SOURCE)
        && tables.charge(all, now, refusal::ALL)
}

/// Slot of the network that an address is in, below [`refusal::SOURCE_SLOTS`].
#[inline(always)]
pub const fn source_slot(addr: Addr) -> u32 {
    hash::sip13([0x736f_7572, 0x6365], addr.network(), 0) as u32 & (refusal::SOURCE_SLOTS - 1)
}
