//! The flow table from user space, through its mapping: no system call an entry.

mod expiry;
mod memory;
mod synced;

pub use expiry::{Expiry, Progress};
pub(crate) use memory::{entry4, entry6};

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use onearm_dataplane_common::addr::{Addr, Addr4, Address};
use onearm_dataplane_common::flow::{FlowEntry, State, flags, hop, seen};
use onearm_dataplane_common::limits::source_slots;
use onearm_dataplane_common::maps::{LastHop, Node, WAYS, mode, proto};
use onearm_dataplane_common::table::{Ended, Geometry};
use onearm_dataplane_common::tables::geometry;
use onearm_dataplane_common::tell;
use serde::{Deserialize, Serialize};

use crate::identity::IndexSet;
use crate::kernel_maps::FlowMaps;
use crate::loader::LOAD_PERCENT;
use crate::mapping::Words;
use crate::persistence::{Clients, Persistent};
use crate::sync::{Directory, Place, Record};
use crate::tables::{Mode, Protocol, narrow, wide};
use crate::usage::Taken;
use memory::Memory;

/// Ticks of the flow clock in a second, rounded up. One tick is 2^26 ns.
const TICKS_PER_SECOND: u32 = 15;
/// A UDP flow without an answer: sixty seconds.
const UDP_UNREPLIED_TICKS: u32 = 60 * TICKS_PER_SECOND;

/// The tables of both families in this process's memory. Share it by `Arc`; every method takes `&self` and may run beside all others and
/// beside the programs.
#[derive(Debug)]
pub struct FlowTable {
    memory: Memory,
    four: Geometry,
    six: Geometry,
    tallies: Tallies,
    /// Words of [`tell`].
    sync: Words<u64>,
    last_hops: Words<LastHop>,
    directory: RwLock<Directory>,
    clients: Clients,
    taken: Mutex<Taken>,
    wanted: Mutex<BTreeSet<(u8, IpAddr)>>,
    half_open_ticks: u32,
    closing_ticks: u32,
    dsr_ways: u32,
}

/// What the programs count as flows come and go, and user space as it ends them.
#[derive(Debug)]
pub(crate) struct Tallies {
    /// One: half-open flows.
    pub(crate) half_open: Words<u64>,
    /// Flows not closing, by stats index of the service.
    pub(crate) open: Words<u64>,
    /// Flows not closing, by server index.
    pub(crate) open_servers: Words<u64>,
    /// Flows not closing that count towards `max_per_source`, in two rows.
    pub(crate) sources: Words<u64>,
}

/// Coarse state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowState {
    /// TCP before the client has acknowledged the server's SYN-ACK.
    HalfOpen,
    /// Carrying traffic.
    Established,
    /// FIN of both sides, or a RST.
    Closing,
}

impl From<State> for FlowState {
    fn from(state: State) -> Self {
        match state {
            State::HalfOpen => Self::HalfOpen,
            State::Established => Self::Established,
            State::Closing => Self::Closing,
        }
    }
}

/// One flow as people want to see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// TCP or UDP; `None` for another IP protocol (ICMP echo).
    pub protocol: Option<Protocol>,
    /// Who called.
    pub client: SocketAddr,
    /// What it called.
    pub vip: SocketAddr,
    /// Source the server sees: the client's, or a SNAT source.
    pub source: SocketAddr,
    /// Who answers.
    pub server: SocketAddr,
    /// Rewriting.
    pub mode: Mode,
    /// Both-NAT only because client and chosen server are neighbours.
    pub hairpin: bool,
    /// State.
    pub state: FlowState,
    /// Index of the service's counters.
    pub service_index: u16,
    /// Index of the server.
    pub server_index: u16,
    /// Packets from the client; wraps at 2^32.
    pub packets_in: u32,
    /// Packets from the server; wraps at 2^32.
    pub packets_out: u32,
    /// Time since the last packet of either side, milliseconds, to the tick (67 ms).
    pub idle_ms: u64,
    /// Time until it ends if no packet comes, milliseconds, to the tick.
    pub expires_ms: u64,
    /// Which flow it is: node id << 56 | epoch << 40 | counter.
    pub incarnation: u64,
}

/// What a listing found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowListing {
    /// Matching flows in table order, as many as asked for.
    pub flows: Vec<FlowInfo>,
    /// How many match in all.
    pub matched: u64,
}

/// Which flows to list; what is `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowFilter {
    /// Client's address.
    pub client: Option<IpAddr>,
    /// VIP.
    pub vip: Option<IpAddr>,
    /// VIP's port.
    pub vip_port: Option<u16>,
    /// Server's address.
    pub server: Option<IpAddr>,
    /// Source the server sees: address.
    pub source: Option<IpAddr>,
    /// Source the server sees: port.
    pub source_port: Option<u16>,
    /// State.
    pub state: Option<FlowState>,
}

impl FlowFilter {
    fn matches(&self, flow: &FlowInfo) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, have: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == *have)
        }
        is(self.client, &flow.client.ip())
            && is(self.vip, &flow.vip.ip())
            && is(self.vip_port, &flow.vip.port())
            && is(self.server, &flow.server.ip())
            && is(self.source, &flow.source.ip())
            && is(self.source_port, &flow.source.port())
            && is(self.state, &flow.state)
    }
}

/// Flows by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCounts {
    /// TCP before the handshake is complete.
    pub half_open: u64,
    /// Carrying traffic.
    pub established: u64,
    /// FIN of both sides, or a RST.
    pub closing: u64,
}

impl FlowCounts {
    /// All flows.
    pub fn total(&self) -> u64 {
        self.half_open + self.established + self.closing
    }

    fn add(&mut self, state: State) {
        match state {
            State::HalfOpen => self.half_open += 1,
            State::Established => self.established += 1,
            State::Closing => self.closing += 1,
        }
    }
}

/// What flows refer to.
#[derive(Debug)]
pub(crate) struct References {
    pub(crate) services: IndexSet,
    pub(crate) servers: IndexSet,
    pub(crate) next_hops: IndexSet,
    pub(crate) last_hops: IndexSet,
}

/// A forward entry, its table and location. Its partner lies elsewhere in the table, and most sweeps need not look at it.
struct Seen {
    v6: bool,
    at: u32,
    forward: FlowEntry,
}

impl FlowTable {
    pub(crate) fn new(maps: FlowMaps, node: &Node) -> Self {
        Self {
            memory: Memory::new(maps.buckets, maps.buckets6),
            four: geometry::<Addr4>(node),
            six: geometry::<Addr>(node),
            tallies: maps.tallies,
            sync: maps.sync,
            last_hops: maps.last_hops,
            directory: RwLock::default(),
            clients: Clients::new(maps.clients, node.flow_hash_key, node.client_bucket_mask),
            taken: Mutex::default(),
            wanted: Mutex::default(),
            half_open_ticks: node.half_open_ticks,
            closing_ticks: node.closing_ticks,
            dsr_ways: node.dsr_ways,
        }
    }

    /// Number of buckets of both tables. Those of IPv4 come first in a sweep.
    pub fn buckets(&self) -> u32 {
        self.four.buckets + self.six.buckets
    }

    /// IPv4 flows the table is made for, two entries each.
    pub fn capacity(&self) -> u64 {
        capacity(&self.four)
    }

    /// IPv6 flows their table is made for.
    pub fn capacity6(&self) -> u64 {
        capacity(&self.six)
    }

    /// Clients that stay with their server, as the sweep knows them.
    pub fn persistent(&self) -> Persistent {
        self.clients.counts()
    }

    /// Clients there is room for to stay with their server, about.
    pub fn persistent_capacity(&self) -> u64 {
        self.clients.capacity()
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Whether the programs write what they see of flows into the ring.
    pub(crate) fn set_listening(&self, wanted: bool) {
        self.sync.store(tell::LISTENING, 0, u64::from(wanted));
    }

    /// What the last pass of the sweep met.
    pub(crate) fn taken(&self) -> Taken {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the clients of all flows, so that a change of servers that follows moves none of them.
    pub(crate) fn note_clients(&self) {
        if self.clients.is_wanted() {
            self.visit(0..self.buckets(), |seen| {
                self.clients.note(&seen.forward, seen.forward.last_seen);
            });
        }
    }

    /// Half-open flows as the programs count them.
    pub fn half_open(&self) -> u64 {
        // A removal may be counted a moment before the flow's making.
        self.tallies
            .half_open
            .load(0, 0)
            .cast_signed()
            .max(0)
            .unsigned_abs()
    }

    /// Flows of a service that are not closing, by its stats index, as the programs count them.
    pub(crate) fn open_of(&self, stats: u32) -> u64 {
        self.tallies
            .open
            .load(stats, 0)
            .cast_signed()
            .max(0)
            .unsigned_abs()
    }

    /// Counts all flows; a sweep of the whole table (about 60 ms with a million flows).
    pub fn count(&self) -> FlowCounts {
        let mut counts = FlowCounts::default();
        self.visit(0..self.buckets(), |seen| {
            counts.add(seen.forward.state());
        });
        counts
    }

    /// Flows whose VIP or whose source towards the server is one of `addresses`, by address; those without any are left out. A
    /// sweep of the whole table, as [`Self::count`].
    pub fn count_of(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, u64> {
        let wanted: HashSet<Addr> = addresses.iter().copied().map(wide).collect();
        let mut counts: HashMap<Addr, u64> = HashMap::new();
        self.visit(0..self.buckets(), |seen| {
            let flow = &seen.forward;
            let translated = flow.flags & flags::DIRECT == 0 && flow.new_saddr != flow.daddr;
            let source = translated.then_some(flow.new_saddr);
            for used in [Some(flow.daddr), source].into_iter().flatten() {
                if wanted.contains(&used) {
                    *counts.entry(used).or_default() += 1;
                }
            }
        });
        counts.into_iter().map(|(addr, n)| (narrow(addr), n)).collect()
    }

    /// Flows that match, at most `limit` of them, and how many match in all. `now_ns` is CLOCK_MONOTONIC.
    pub fn list(&self, filter: &FlowFilter, limit: usize, now_ns: u64) -> FlowListing {
        let now = tick(now_ns);
        let mut listing = FlowListing::default();
        self.visit(0..self.buckets(), |seen| {
            // The other direction is somewhere else in memory: it is looked at for those that are shown alone.
            if filter.matches(&self.info(seen, None, now)) {
                listing.matched += 1;
                if listing.flows.len() < limit {
                    listing.flows.push(self.info(seen, self.reply(seen), now));
                }
            }
        });
        listing
    }

    /// Indexes of services, servers, next hops and last hops that any entry names.
    pub(crate) fn references(&self) -> References {
        let mut references = References {
            services: IndexSet::new(),
            servers: IndexSet::new(),
            next_hops: IndexSet::new(),
            last_hops: IndexSet::new(),
        };
        self.refer::<Addr4>(&self.four, &mut references);
        self.refer::<Addr>(&self.six, &mut references);
        references
    }

    fn refer<A: Address>(&self, geometry: &Geometry, references: &mut References) {
        for bucket in 0..geometry.buckets {
            for at in self.memory.taken::<A>(bucket) {
                // Also what is reserved and not yet published.
                let Some(entry) = self.memory.raw::<A>(at) else {
                    continue;
                };
                references.services.insert(entry.stats);
                references.servers.insert(entry.server);
                if entry.hop == hop::ROUTE {
                    continue;
                }
                let of = if entry.hop & hop::LAST == 0 {
                    &mut references.next_hops
                } else {
                    &mut references.last_hops
                };
                if let Ok(index) = u16::try_from(entry.hop & !hop::LAST) {
                    of.insert(index);
                }
            }
        }
    }

    fn geometry<A: Address>(&self) -> &Geometry {
        if A::V6 { &self.six } else { &self.four }
    }

    /// Removes a flow, both directions or neither, unless it has ended meanwhile.
    fn remove(&self, seen: &Seen) -> Option<(Place, Record)> {
        let (at, incarnation) = (seen.at, seen.forward.incarnation);
        if seen.v6 {
            self.remove_at::<Addr>(at, incarnation)
        } else {
            self.remove_at::<Addr4>(at, incarnation)
        }
    }

    /// A flow that was removed counts nowhere any more.
    fn uncount(&self, ended: &Ended) {
        if ended.state == State::HalfOpen {
            self.tallies.half_open.add(0, 0, u64::MAX);
        }
        if ended.state != State::Closing {
            self.tallies.open.add(u32::from(ended.stats), 0, u64::MAX);
            self.tallies
                .open_servers
                .add(u32::from(ended.server), 0, u64::MAX);
        }
        if let Some(client) = ended.counted {
            self.add_source(ended.stats, client, u64::MAX);
        }
    }

    fn add_open(&self, flow: &FlowEntry, n: u64) {
        self.tallies.open.add(u32::from(flow.stats), 0, n);
        self.tallies.open_servers.add(u32::from(flow.server), 0, n);
    }

    fn add_source(&self, stats: u16, client: Addr, n: u64) {
        for slot in source_slots(self.four.key, u32::from(stats), client) {
            self.tallies.sources.add(slot, 0, n);
        }
    }

    fn directory(&self) -> RwLockReadGuard<'_, Directory> {
        self.directory.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is from now on for flows of the peer.
    pub(crate) fn know(&self, directory: Directory) {
        *self.directory.write().unwrap_or_else(PoisonError::into_inner) = directory;
    }

    /// The clock goes round: a floor that nobody has moved for two years is moved.
    fn keep_floor(&self, now: u32) {
        const LONGEST: u32 = 1 << 30;
        if self.known_for(now) > LONGEST {
            self.sync
                .store(tell::FLOOR, 0, u64::from(now.wrapping_sub(LONGEST)));
        }
    }

    /// Ticks since a flow may be called silent, whatever its packets say.
    fn known_for(&self, now: u32) -> u32 {
        let floor = u32::try_from(self.sync.load(tell::FLOOR, 0)).unwrap_or_default();
        onearm_dataplane_common::tables::ticks_since(now, floor)
    }

    /// Shows every published flow of some buckets once, by its forward entry.
    fn visit(&self, buckets: Range<u32>, mut show: impl FnMut(&Seen)) {
        let fours = self.four.buckets;
        self.visit_family::<Addr4>(buckets.start.min(fours)..buckets.end.min(fours), &mut show);
        let sixes = buckets.start.max(fours) - fours..buckets.end.max(fours) - fours;
        self.visit_family::<Addr>(sixes, &mut show);
    }

    fn visit_family<A: Address>(&self, buckets: Range<u32>, show: &mut impl FnMut(&Seen)) {
        for bucket in buckets {
            for at in self.memory.taken::<A>(bucket) {
                let entry = self.memory.published::<A>(at);
                let Some(forward) = entry.filter(|entry| !entry.is_reply()) else {
                    continue;
                };
                let v6 = A::V6;
                show(&Seen { v6, at, forward });
            }
        }
    }

    fn info(&self, seen: &Seen, reply: Option<FlowEntry>, now: u32) -> FlowInfo {
        let flow = &seen.forward;
        let idle = reply
            .iter()
            .map(|reply| idle(reply, now))
            .fold(idle(flow, now), u32::min);
        // A server that answers itself sees the packet as it came; the outer addresses of a tunnel are nobody's.
        let (source, server) = if flow.flags & flags::DIRECT == 0 {
            let source = socket(flow.new_saddr, flow.new_sport);
            (source, socket(flow.new_daddr, flow.new_dport))
        } else {
            let source = socket(flow.saddr, flow.sport);
            (source, socket(flow.new_daddr, flow.dport))
        };
        FlowInfo {
            protocol: match flow.proto {
                proto::TCP => Some(Protocol::Tcp),
                proto::UDP => Some(Protocol::Udp),
                _ => None,
            },
            client: socket(flow.saddr, flow.sport),
            vip: socket(flow.daddr, flow.dport),
            source,
            server,
            mode: match flow.mode() {
                mode::DNAT => Mode::Dnat,
                mode::DSR => Mode::Dsr,
                mode::L3_DSR => Mode::L3Dsr,
                _ => Mode::BothNat,
            },
            hairpin: flow.flags & flags::HAIRPIN != 0,
            state: flow.state().into(),
            service_index: flow.stats,
            server_index: flow.server,
            packets_in: flow.packets,
            packets_out: reply.filter(FlowEntry::is_reply).map_or(0, |reply| reply.packets),
            idle_ms: milliseconds(idle),
            expires_ms: milliseconds(self.timeout(flow).saturating_sub(idle.min(self.known_for(now)))),
            incarnation: flow.incarnation,
        }
    }

    /// The other direction of a flow.
    fn reply(&self, seen: &Seen) -> Option<FlowEntry> {
        let forward = &seen.forward;
        let reply = if seen.v6 {
            self.memory.published::<Addr>(forward.partner)
        } else {
            self.memory.published::<Addr4>(forward.partner)
        };
        reply.filter(|reply| reply.incarnation == forward.incarnation)
    }

    /// Ticks without a packet after which a flow ends.
    fn timeout(&self, flow: &FlowEntry) -> u32 {
        let (_, server) = flow.seen_by_side();
        match flow.state() {
            State::HalfOpen => self.half_open_ticks,
            State::Closing => self.closing_ticks,
            // A single packet proves nothing.
            State::Established if flow.flags & flags::DIRECT != 0 && flow.packets <= 1 => {
                flow.idle_ticks.min(UDP_UNREPLIED_TICKS)
            }
            State::Established if flow.proto != proto::TCP && server & seen::OPENED == 0 => {
                flow.idle_ticks.min(UDP_UNREPLIED_TICKS)
            }
            State::Established => flow.idle_ticks,
        }
    }
}

/// Flow clock of a time.
fn tick(now_ns: u64) -> u32 {
    onearm_dataplane_common::tables::tick(now_ns)
}

fn milliseconds(ticks: u32) -> u64 {
    (u64::from(ticks) << onearm_dataplane_common::maps::TICK_SHIFT) / 1_000_000
}

/// Ticks since the last packet of one direction.
fn idle(entry: &FlowEntry, now: u32) -> u32 {
    onearm_dataplane_common::tables::ticks_since(now, entry.last_seen)
}

fn socket(addr: Addr, port: u16) -> SocketAddr {
    SocketAddr::new(narrow(addr), u16::from_be(port))
}

fn capacity(geometry: &Geometry) -> u64 {
    u64::from(geometry.buckets) * WAYS as u64 * LOAD_PERCENT / 200
}

#[cfg(test)]
mod killed;
#[cfg(test)]
pub(crate) mod tests;
