//! The maps, and `Tables` over them. Their meaning is in `onearm_dataplane_common::maps`.

use crate::frame;
use aya_ebpf::{
    bindings::xdp_action,
    helpers::{bpf_get_prandom_u32, bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_loop},
    macros::map,
    maps::{
        Array, DevMap, HashMap, LpmTrie, LruHashMap, PerCpuArray, ProgramArray, Queue, RingBuf, lpm_trie::Key,
    },
    programs::XdpContext,
};
use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg, atomic_xadd};
use onearm_dataplane_common::{
    addr::Address,
    counter::{COUNTERS as COUNTER_TABLE, Counter},
    event::{Event, PACE_NS, PACE_SLOTS},
    flow::{Bucket, Bucket4, Bucket6},
    header::Header,
    maps::{
        Addr, EndpointKey, FRAGMENT_IDS as ID_COUNTERS, FragmentKey, LAST_HOP_ALLOWANCE, LEG_SLOTS, LastHop,
        Leg, LegKey, LegSlot, Limits, MAX_CLIENT_PREFIXES, MAX_FLOW_BUCKETS, MAX_FRAGMENTS, MAX_GROUPS,
        MAX_HAIRPIN_PREFIXES, MAX_LAST_HOPS, MAX_LEGS, MAX_NEXT_HOPS, MAX_OWNED, MAX_PREFIXES, MAX_ROUTES,
        MAX_SERVERS, MAX_SERVICE_KEYS, MAX_SERVICES, MAX_SNAT_POOLS, NeighbourKey, NextHop, Node, Owned,
        OwnedKey, Refusals, Remembered, Route, SCHED_WORDS, SERVER_INDEXES, SLOTS, SOURCES_ROW, ScopedPrefix,
        Server, Service, ServiceKey, SnatPool, SnatRange, Stats, Tunnel, WRR_COUNTERS,
    },
    persistence::{self, Rule},
    phase::{FAMILY_PHASES, Phase},
    refusal::{METERS, Meter, Rate},
    search,
    table::FlowMemory,
    tables::Tables,
    work::Work,
};

const MMAPABLE: u32 = 1 << 10;
/// Buckets until the loader says otherwise.
const DEFAULT_BUCKETS: u32 = 1 << 10;
const _: () = assert!(DEFAULT_BUCKETS <= MAX_FLOW_BUCKETS);
const EVENT_BYTES: u32 = 1 << 18;

#[map]
static NODE: Array<Node> = Array::with_max_entries(1, MMAPABLE);
#[map]
static LEASE: Array<u64> = Array::with_max_entries(MAX_GROUPS, MMAPABLE);
#[map]
static GENERATION: Array<u32> = Array::with_max_entries(1, MMAPABLE);
#[map]
static LEGS: Array<LegSlot> = Array::with_max_entries(LEG_SLOTS, MMAPABLE);
#[map]
static TX_PORTS: DevMap = DevMap::with_max_entries(MAX_LEGS, 0);
#[map]
static OWNED: HashMap<OwnedKey, Owned> = HashMap::with_max_entries(SLOTS * MAX_OWNED, 0);
#[map]
static SNAT_RANGES: HashMap<OwnedKey, SnatRange> = HashMap::with_max_entries(SLOTS * MAX_OWNED, 0);
#[map]
static SERVICES: LpmTrie<ServiceKey, u32> = LpmTrie::with_max_entries(MAX_SERVICE_KEYS, 0);
#[map]
static SERVICE: Array<Service> = Array::with_max_entries(SLOTS * MAX_SERVICES, MMAPABLE);
#[map]
static LIMITS: Array<Limits> = Array::with_max_entries(SLOTS * MAX_SERVICES, 0);
#[map]
static OPEN: Array<u64> = Array::with_max_entries(MAX_SERVICES, MMAPABLE);
#[map]
static OPEN_SERVERS: Array<u64> = Array::with_max_entries(SERVER_INDEXES, MMAPABLE);
#[map]
static SOURCES: Array<u64> = Array::with_max_entries(2 * SOURCES_ROW, MMAPABLE);
#[map]
static PERSISTENCE: Array<u64> = Array::with_max_entries(MAX_SERVICES, MMAPABLE);
#[map]
static CLIENT_SERVERS: Array<persistence::Bucket> = Array::with_max_entries(DEFAULT_BUCKETS, MMAPABLE);
#[map]
static CLIENTS: LpmTrie<ScopedPrefix, u32> = LpmTrie::with_max_entries(MAX_CLIENT_PREFIXES, 0);
#[map]
static SERVICE_REFUSALS: PerCpuArray<Refusals> = PerCpuArray::with_max_entries(MAX_SERVICES, 0);
#[map]
static SCHED: Array<u64> = Array::with_max_entries(SCHED_WORDS, MMAPABLE);
#[map]
static WRR: Array<u64> = Array::with_max_entries(WRR_COUNTERS, 0);
#[map]
static SERVERS: Array<Server> = Array::with_max_entries(SERVER_INDEXES, MMAPABLE);
#[map]
static SNAT_POOLS: Array<SnatPool> = Array::with_max_entries(SLOTS * MAX_SNAT_POOLS, 0);
#[map]
static CONNECTED: LpmTrie<ScopedPrefix, u32> = LpmTrie::with_max_entries(MAX_PREFIXES, 0);
#[map]
static SERVER_NETS: LpmTrie<ScopedPrefix, Addr> = LpmTrie::with_max_entries(MAX_PREFIXES, 0);
#[map]
static DIRECT: LpmTrie<ScopedPrefix, u32> = LpmTrie::with_max_entries(MAX_PREFIXES, 0);
#[map]
static HAIRPIN: LpmTrie<ScopedPrefix, u32> = LpmTrie::with_max_entries(MAX_HAIRPIN_PREFIXES, 0);
#[map]
static MODE_RULES: LpmTrie<ScopedPrefix, u32> = LpmTrie::with_max_entries(MAX_HAIRPIN_PREFIXES, 0);
#[map]
static TUNNELS: Array<Tunnel> = Array::with_max_entries(SLOTS * MAX_SERVICES, 0);
#[map]
static SERVER_ENDPOINTS: HashMap<EndpointKey, u32> =
    HashMap::with_max_entries(SLOTS * 4 * MAX_SERVERS, NO_PREALLOC);
#[map]
static NEXT_HOPS: Array<NextHop> = Array::with_max_entries(MAX_NEXT_HOPS, MMAPABLE);
#[map]
static NEIGHBOURS: HashMap<NeighbourKey, u32> = HashMap::with_max_entries(MAX_NEXT_HOPS, NO_PREALLOC);
#[map]
static ROUTES: LpmTrie<Addr, Route> = LpmTrie::with_max_entries(MAX_ROUTES, 0);
#[map]
static LAST_HOPS: Array<LastHop> = Array::with_max_entries(MAX_LAST_HOPS, MMAPABLE);
#[map]
static LAST_HOP_INDEX: HashMap<LastHop, u32> = HashMap::with_max_entries(MAX_LAST_HOPS, NO_PREALLOC);
#[map]
static LAST_HOP_FREE: Queue<u32> = Queue::with_max_entries(LAST_HOP_ALLOWANCE, 0);
#[map]
static FRAGMENTS: LruHashMap<FragmentKey, Remembered> = LruHashMap::with_max_entries(MAX_FRAGMENTS, 0);
#[map]
static FRAGMENT_IDS: Array<u64> = Array::with_max_entries(ID_COUNTERS, 0);
#[map]
static HALF_OPEN: Array<u64> = Array::with_max_entries(1, MMAPABLE);
#[map]
static INCARNATION: Array<u64> = Array::with_max_entries(1, MMAPABLE);
#[map]
static FLOWS4: Array<Bucket4> = Array::with_max_entries(DEFAULT_BUCKETS, MMAPABLE);
#[map]
static FLOWS6: Array<Bucket6> = Array::with_max_entries(DEFAULT_BUCKETS, MMAPABLE);
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTER_TABLE.len() as u32, 0);
#[map]
static SERVICE_STATS: PerCpuArray<Stats> = PerCpuArray::with_max_entries(MAX_SERVICES, 0);
#[map]
static SERVER_STATS: PerCpuArray<Stats> = PerCpuArray::with_max_entries(SERVER_INDEXES, 0);
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(EVENT_BYTES, 0);
#[map]
static EVENT_PACE: Array<u64> = Array::with_max_entries(PACE_SLOTS, 0);
#[map]
static REFUSALS: Array<Meter> = Array::with_max_entries(METERS, 0);
#[map]
static WORK: PerCpuArray<Work> = PerCpuArray::with_max_entries(1, 0);
#[map]
static PHASES: ProgramArray = ProgramArray::with_max_entries(2 * FAMILY_PHASES, 0);

/// `BPF_F_NO_PREALLOC`: these are mostly empty.
const NO_PREALLOC: u32 = 1;

/// What the phase before left on this CPU.
#[inline(always)]
pub fn work() -> Option<&'static mut Work> {
    // SAFETY: programs of one CPU do not interrupt each other between two phases of a packet.
    WORK.get_ptr_mut(0).map(|work| unsafe { &mut *work })
}

/// Sends through a leg's interface; one that is not in the map is an error of the loader. User space, if it runs the
/// program, sends itself.
#[inline(always)]
pub fn redirect(ctx: &XdpContext, leg: u32) -> u32 {
    if let Some(note) = frame::note(ctx) {
        // SAFETY: four bytes before the frame, which the verifier has seen checked.
        unsafe { *note = leg.wrapping_add(1) };
    }
    TX_PORTS.redirect(leg, 0).unwrap_or_else(|_| {
        Kernel.count(Counter::Internal);
        xdp_action::XDP_DROP
    })
}

/// Goes on with a phase; returns only if it is missing.
#[inline(always)]
pub fn go_on(ctx: &XdpContext, phase: Phase, v6: bool) -> u32 {
    // SAFETY: a valid context; a missing program is no error for the kernel.
    unsafe { PHASES.tail_call(ctx, phase.index(v6)) };
    Kernel.count(Counter::Internal);
    xdp_action::XDP_DROP
}

/// Looks at so many source ports, or until one is free.
#[inline(always)]
pub fn repeat<A: Header>(times: u32) {
    if times != 0 {
        // SAFETY: the function has the signature the helper asks for and needs no context.
        unsafe { bpf_loop(times, look::<A> as *mut c_void, core::ptr::null_mut(), 0) };
    }
}

#[inline(never)]
unsafe extern "C" fn look<A: Header>(index: u64, _context: *mut c_void) -> i64 {
    match work() {
        Some(work) => i64::from(search::look::<A, Kernel>(work, &Kernel, index as u32)) & 1,
        None => 1,
    }
}

/// The maps of this kernel.
pub struct Kernel;

// SAFETY: map values stay where they are; atomics of the BPF instruction set.
unsafe impl FlowMemory for Kernel {
    const MORTAL: bool = false;

    #[inline(always)]
    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>> {
        if A::V6 {
            FLOWS6.get_ptr_mut(index).map(<*mut Bucket6>::cast)
        } else {
            FLOWS4.get_ptr_mut(index).map(<*mut Bucket4>::cast)
        }
    }

    #[inline(always)]
    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64 {
        // SAFETY: by contract an aligned word of a bucket.
        unsafe { atomic_cxchg::<u64, { SeqCst }, { SeqCst }>(word, expected, new).0 }
    }

    #[inline(always)]
    unsafe fn add(&self, word: *mut u64, n: u64) {
        // SAFETY: by contract an aligned word of a bucket.
        unsafe { fetch_add(word, n) };
    }
}

/// # Safety
/// `word` is an aligned word of a map value.
#[inline(always)]
unsafe fn fetch_add(word: *mut u64, n: u64) -> u64 {
    // SAFETY: by contract.
    unsafe { atomic_xadd::<u64, u64, { SeqCst }>(word, n) }
}

#[inline(always)]
fn advance(map: &Array<u64>, index: u32, n: u64) -> u64 {
    match map.get_ptr_mut(index) {
        // SAFETY: an aligned word of a map value.
        Some(word) => unsafe { fetch_add(word, n) },
        None => 0,
    }
}

#[inline(always)]
fn counted(map: &Array<u64>, index: u32) -> u64 {
    // SAFETY: a map value; one aligned word.
    map.get_ptr(index)
        .map_or(0, |count| unsafe { count.read_volatile() })
}

#[inline(always)]
fn add_to<T>(value: Option<*mut T>, add: impl FnOnce(&mut T)) {
    if let Some(value) = value {
        // SAFETY: a per-CPU map value.
        add(unsafe { &mut *value });
    }
}

#[inline(always)]
fn scoped<V: Copy>(map: &LpmTrie<ScopedPrefix, V>, scope: u32, addr: Addr) -> Option<V> {
    let data = ScopedPrefix {
        scope: scope.to_be_bytes(),
        addr: addr.bytes(),
    };
    map.get(Key::new(160, data)).copied()
}

impl Tables for Kernel {
    #[inline(always)]
    fn node(&self) -> Option<&Node> {
        NODE.get(0)
    }

    #[inline(always)]
    fn slot(&self) -> u32 {
        // SAFETY: a map value; one aligned word.
        GENERATION
            .get_ptr(0)
            .map_or(0, |slot| unsafe { slot.read_volatile() })
    }

    #[inline(always)]
    fn lease(&self, group: u8) -> u64 {
        // SAFETY: a map value; one aligned word.
        LEASE
            .get_ptr(u32::from(group))
            .map_or(0, |deadline| unsafe { deadline.read_volatile() })
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: no arguments.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn leg(&self, key: &LegKey) -> Option<&Leg> {
        for index in key.slots() {
            let slot = LEGS.get_ptr(index)?;
            // SAFETY: a map value, written by whole words.
            if unsafe { (&raw const (*slot).key).read_volatile() } == key.word() {
                // SAFETY: as above.
                return Some(unsafe { &(*slot).leg });
            }
        }
        None
    }

    #[inline(always)]
    fn owned(&self, slot: u32, addr: Addr) -> Option<Owned> {
        // SAFETY: a slot in force does not change.
        unsafe { OWNED.get(OwnedKey { addr, slot }) }.copied()
    }

    #[inline(always)]
    fn snat_range(&self, slot: u32, addr: Addr) -> Option<SnatRange> {
        // SAFETY: a slot in force does not change.
        unsafe { SNAT_RANGES.get(OwnedKey { addr, slot }) }.copied()
    }

    #[inline(always)]
    fn service_index(&self, key: &ServiceKey) -> Option<u32> {
        SERVICES.get(Key::new(160, *key)).copied()
    }

    #[inline(always)]
    fn service(&self, slot: u32, index: u32) -> Option<&Service> {
        SERVICE.get(slot.wrapping_mul(MAX_SERVICES).wrapping_add(index))
    }

    #[inline(always)]
    fn tunnel(&self, slot: u32, index: u32) -> Option<&Tunnel> {
        TUNNELS.get(slot.wrapping_mul(MAX_SERVICES).wrapping_add(index))
    }

    #[inline(always)]
    fn mode_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32> {
        scoped(&MODE_RULES, slot << 24 | service, addr)
    }

    #[inline(always)]
    fn sched_word(&self, word: u32) -> u64 {
        SCHED.get(word).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn wrr_next(&self, stats: u32) -> u64 {
        advance(&WRR, stats, 1)
    }

    #[inline(always)]
    fn server(&self, index: u32) -> Option<&Server> {
        SERVERS.get(index)
    }

    #[inline(always)]
    fn snat_pool(&self, slot: u32, index: u32) -> Option<SnatPool> {
        SNAT_POOLS
            .get(slot.wrapping_mul(MAX_SNAT_POOLS).wrapping_add(index))
            .copied()
    }

    #[inline(always)]
    fn connected(&self, slot: u32, addr: Addr) -> u32 {
        scoped(&CONNECTED, slot, addr).unwrap_or(0)
    }

    #[inline(always)]
    fn server_net(&self, slot: u32, addr: Addr) -> Option<Addr> {
        scoped(&SERVER_NETS, slot, addr)
    }

    #[inline(always)]
    fn direct(&self, slot: u32, addr: Addr) -> bool {
        scoped(&DIRECT, slot, addr).is_some()
    }

    #[inline(always)]
    fn hairpin(&self, slot: u32, service: u32, addr: Addr) -> bool {
        scoped(&HAIRPIN, slot << 24 | service, addr).is_some()
    }

    #[inline(always)]
    fn endpoint(&self, key: &EndpointKey) -> bool {
        // SAFETY: only presence is asked.
        unsafe { SERVER_ENDPOINTS.get(key) }.is_some()
    }

    #[inline(always)]
    fn next_hop(&self, index: u32) -> Option<NextHop> {
        let words = NEXT_HOPS.get_ptr(index)?.cast::<u64>();
        // SAFETY: two aligned words of a map value, each written whole; same size, no invalid bit pattern.
        unsafe {
            Some(core::mem::transmute::<[u64; 2], NextHop>([
                words.read_volatile(),
                words.add(1).read_volatile(),
            ]))
        }
    }

    #[inline(always)]
    fn neighbour(&self, key: &NeighbourKey) -> Option<u32> {
        // SAFETY: one word.
        unsafe { NEIGHBOURS.get(key) }.copied()
    }

    #[inline(always)]
    fn route(&self, addr: Addr) -> Option<Route> {
        ROUTES.get(Key::new(128, addr)).copied()
    }

    #[inline(always)]
    fn last_hop(&self, index: u32) -> Option<LastHop> {
        let words = LAST_HOPS.get_ptr(index)?.cast::<u64>();
        // SAFETY: two aligned words of a map value, each written whole; same size, no invalid bit pattern.
        unsafe {
            Some(core::mem::transmute::<[u64; 2], LastHop>([
                words.read_volatile(),
                words.add(1).read_volatile(),
            ]))
        }
    }

    #[inline(always)]
    fn last_hop_index(&self, hop: &LastHop) -> Option<u32> {
        // SAFETY: one word.
        unsafe { LAST_HOP_INDEX.get(hop) }.copied()
    }

    #[inline(always)]
    fn learn_last_hop(&self, hop: &LastHop) -> Option<u32> {
        let index = LAST_HOP_FREE.pop().ok()??;
        LAST_HOPS.set(index, hop, 0).ok()?;
        LAST_HOP_INDEX.insert(hop, index, 0).ok()?;
        Some(index)
    }

    #[inline(always)]
    fn fragment(&self, key: &FragmentKey) -> Option<Remembered> {
        // SAFETY: replaced whole; one torn by another CPU is that of the same datagram.
        unsafe { FRAGMENTS.get(key) }.copied()
    }

    #[inline(always)]
    fn remember_fragment(&self, key: &FragmentKey, value: &Remembered) {
        if FRAGMENTS.insert(key, value, 0).is_err() {
            self.count(Counter::Internal);
        }
    }

    #[inline(always)]
    fn next_fragment_id(&self, index: u32) -> u64 {
        advance(&FRAGMENT_IDS, index, 1)
    }

    #[inline(always)]
    fn half_open(&self) -> u64 {
        // SAFETY: a map value; one aligned word.
        HALF_OPEN
            .get_ptr(0)
            .map_or(0, |count| unsafe { count.read_volatile() })
    }

    #[inline(always)]
    fn add_half_open(&self, n: u64) {
        advance(&HALF_OPEN, 0, n);
    }

    #[inline(always)]
    fn next_incarnation(&self) -> u64 {
        advance(&INCARNATION, 0, 1)
    }

    #[inline(always)]
    fn count(&self, counter: Counter) {
        add_to(COUNTERS.get_ptr_mut(counter.index()), |n| *n = n.wrapping_add(1));
    }

    #[inline(always)]
    fn tally(&self, stats: u16, server: u16, reply: bool, bytes: u64) {
        let add = |s: &mut Stats| {
            if reply {
                s.packets_out = s.packets_out.wrapping_add(1);
                s.bytes_out = s.bytes_out.wrapping_add(bytes);
            } else {
                s.packets_in = s.packets_in.wrapping_add(1);
                s.bytes_in = s.bytes_in.wrapping_add(bytes);
            }
        };
        add_to(SERVICE_STATS.get_ptr_mut(u32::from(stats)), add);
        add_to(SERVER_STATS.get_ptr_mut(u32::from(server)), add);
    }

    #[inline(always)]
    fn tally_flow(&self, stats: u16, server: u16) {
        add_to(SERVICE_STATS.get_ptr_mut(u32::from(stats)), |s| {
            s.flows = s.flows.wrapping_add(1)
        });
        add_to(SERVER_STATS.get_ptr_mut(u32::from(server)), |s| {
            s.flows = s.flows.wrapping_add(1)
        });
    }

    #[inline(always)]
    fn tally_refused(&self, stats: u32, reason: Counter) {
        add_to(SERVICE_STATS.get_ptr_mut(stats), |s| {
            s.refused = s.refused.wrapping_add(1)
        });
        add_to(SERVICE_REFUSALS.get_ptr_mut(stats), |r| r.add(reason));
    }

    #[inline(always)]
    fn limits(&self, slot: u32, service: u32) -> Option<Limits> {
        LIMITS
            .get(slot.wrapping_mul(MAX_SERVICES).wrapping_add(service))
            .copied()
    }

    #[inline(always)]
    fn client_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32> {
        scoped(&CLIENTS, slot << 24 | service, addr)
    }

    #[inline(always)]
    fn open_of_service(&self, stats: u32) -> u64 {
        counted(&OPEN, stats)
    }

    #[inline(always)]
    fn open_of_server(&self, server: u32) -> u64 {
        counted(&OPEN_SERVERS, server)
    }

    #[inline(always)]
    fn add_open(&self, stats: u16, server: u16, n: u64) {
        advance(&OPEN, u32::from(stats), n);
        advance(&OPEN_SERVERS, u32::from(server), n);
    }

    #[inline(always)]
    fn source(&self, slot: u32) -> u64 {
        counted(&SOURCES, slot)
    }

    #[inline(always)]
    fn add_source(&self, slot: u32, n: u64) {
        advance(&SOURCES, slot, n);
    }

    #[inline(always)]
    fn persistence(&self, stats: u32) -> Rule {
        Rule(counted(&PERSISTENCE, stats))
    }

    #[inline(always)]
    fn client_servers(&self, bucket: u32) -> Option<*const persistence::Bucket> {
        CLIENT_SERVERS.get_ptr(bucket)
    }

    #[inline(always)]
    fn event_due(&self, slot: u32, now: u64) -> bool {
        let Some(last) = EVENT_PACE.get_ptr_mut(slot) else {
            return false;
        };
        // SAFETY: a map value; one aligned word. Two CPUs at once may both find it due.
        unsafe {
            let before = last.read_volatile();
            let due = before == 0 || now.wrapping_sub(before) >= PACE_NS;
            if due {
                last.write_volatile(now);
            }
            due
        }
    }

    #[inline(always)]
    fn emit(&self, event: &Event) {
        // In place: the stack is short.
        let Some(mut entry) = EVENTS.reserve::<Event>(0) else {
            self.count(Counter::EventLost);
            return;
        };
        entry.write(*event);
        entry.submit(0);
    }

    #[inline(always)]
    fn charge(&self, meter: u32, now: u64, rate: Rate) -> bool {
        let Some(meter) = REFUSALS.get_ptr_mut(meter) else {
            return false;
        };
        // SAFETY: a map value; one aligned word. Two CPUs at once may both be let pass.
        unsafe {
            match meter.read_volatile().charge(now, rate) {
                Some(charged) => {
                    meter.write_volatile(charged);
                    true
                }
                None => false,
            }
        }
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        // SAFETY: no arguments.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn lock_owner(&self) -> u64 {
        // SAFETY: no arguments.
        u64::from(unsafe { bpf_get_smp_processor_id() }) + 1
    }

    #[inline(always)]
    fn leave(&self, write: impl FnOnce(&mut Work)) -> bool {
        work().map(write).is_some()
    }
}
