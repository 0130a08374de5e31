//! `Tables` over the maps.

use super::*;

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

    #[inline(always)]
    fn removed<A: Address>(&self, at: u32, entry: Entry<A>, incarnation: u64) {
        tell::ended(self, at, entry, incarnation);
    }
}

/// A record of `N` words: the place, and an entry.
#[inline(always)]
fn tell_ended<A: Address, const N: usize>(place: u64, entry: Entry<A>, incarnation: u64) {
    let Some(mut record) = FLOW_TELLS.reserve::<[u64; N]>(0) else {
        Kernel.count(Counter::TellsLost);
        return;
    };
    let words = record.as_mut_ptr().cast::<u64>();
    // SAFETY: `N` words, all of which are written.
    unsafe {
        words.write(place);
        for n in 0..N - 1 {
            words.add(n + 1).write(entry.word(n));
        }
        words.add(tell::incarnation_word::<A>() + 1).write(incarnation);
    }
    record.submit(0);
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
        counted(&LEASE, u32::from(group))
    }

    #[inline(always)]
    fn armed(&self, group: u8) -> u64 {
        counted(&LEASE, ARMED_BASE + u32::from(group))
    }

    #[inline(always)]
    fn relaying(&self, group: u8) -> u64 {
        counted(&LEASE, RELAYING_BASE + u32::from(group))
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
    fn is_listening(&self) -> bool {
        counted(&FLOW_SYNC, tell::LISTENING) != 0
    }

    #[inline(always)]
    fn floor(&self) -> u32 {
        counted(&FLOW_SYNC, tell::FLOOR) as u32
    }

    #[inline(always)]
    fn tell_look(&self, place: u64) {
        if FLOW_TELLS.output::<u64>(place, 0).is_err() {
            self.count(Counter::TellsLost);
        }
    }

    #[inline(always)]
    fn tell_ended<A: Address>(&self, place: u64, entry: Entry<A>, incarnation: u64) {
        if A::V6 {
            tell_ended::<A, { tell::ENDED6 }>(place, entry, incarnation);
        } else {
            tell_ended::<A, { tell::ENDED4 }>(place, entry, incarnation);
        }
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
