//! The maps. Their meaning is in `onearm_dataplane_common::maps`.

mod kernel;

pub use self::kernel::Kernel;

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
    evict,
    flow::{Bucket, Bucket4, Bucket6},
    header::Header,
    maps::{
        Addr, EndpointKey, FRAGMENT_IDS as ID_COUNTERS, FragmentKey, LAST_HOP_ALLOWANCE, LEG_SLOTS, LastHop,
        Leg, LegKey, LegSlot, Limits, MAX_CLIENT_PREFIXES, MAX_FLOW_BUCKETS, MAX_FRAGMENTS,
        MAX_HAIRPIN_PREFIXES, MAX_LAST_HOPS, MAX_LEGS, MAX_NEXT_HOPS, MAX_OWNED, MAX_PREFIXES, MAX_ROUTES,
        MAX_SERVERS, MAX_SERVICE_KEYS, MAX_SERVICES, MAX_SNAT_POOLS, NeighbourKey, NextHop, Node, Owned,
        OwnedKey, Refusals, Remembered, Route, SCHED_WORDS, SERVER_INDEXES, SLOTS, SOURCES_ROW, ScopedPrefix,
        Server, Service, ServiceKey, SnatPool, SnatRange, Stats, Tunnel, WRR_COUNTERS,
    },
    permission::{ARMED_BASE, LEASE_WORDS, RELAYING_BASE},
    persistence::{self, Rule},
    phase::{FAMILY_PHASES, Phase},
    refusal::{METERS, Meter, Rate},
    search,
    table::{Entry, FlowMemory},
    tables::Tables,
    tell,
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
static LEASE: Array<u64> = Array::with_max_entries(LEASE_WORDS, MMAPABLE);
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
static OPEN: Array<u64> = Array::with_max_entries(MAX_SERVICES + 1, MMAPABLE);
#[map]
static OPEN_SERVERS: Array<u64> = Array::with_max_entries(SERVER_INDEXES, MMAPABLE);
#[map]
static SOURCES: Array<u64> = Array::with_max_entries(2 * SOURCES_ROW, MMAPABLE);
#[map]
static PERSISTENCE: Array<u64> = Array::with_max_entries(MAX_SERVICES + 1, MMAPABLE);
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
static FLOW_SYNC: Array<u64> = Array::with_max_entries(tell::WORDS, MMAPABLE);
#[map]
static FLOW_TELLS: RingBuf = RingBuf::with_byte_size(EVENT_BYTES, 0);
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

/// What `bpf_loop` calls: 1 ends the loop.
type Look = unsafe extern "C" fn(u64, *mut c_void) -> i64;

/// Looks at so many, or until one will do.
#[inline(always)]
pub fn repeat(times: u32, look: Look) {
    if times != 0 {
        // SAFETY: the function has the signature the helper asks for and needs no context.
        unsafe { bpf_loop(times, look as *mut c_void, core::ptr::null_mut(), 0) };
    }
}

/// See `search::look`.
#[inline(never)]
pub unsafe extern "C" fn look_for_port<A: Header>(index: u64, _context: *mut c_void) -> i64 {
    match work() {
        Some(work) => i64::from(search::look::<A, Kernel>(work, &Kernel, index as u32)) & 1,
        None => 1,
    }
}

/// See `evict::look`.
#[inline(never)]
pub unsafe extern "C" fn look_for_room<A: Header>(index: u64, _context: *mut c_void) -> i64 {
    match work() {
        Some(work) => i64::from(evict::look::<A, Kernel>(work, &Kernel, index as u32)) & 1,
        None => 1,
    }
}
