//! The packet logic over ordinary memory.
#![expect(
    unsafe_code,
    reason = "implements the unsafe traits of the packet logic over a Vec"
)]

use crate::support::{Engine, Setup, Verdict, setup::IFINDEX};
use onearm_dataplane_common::{
    addr::{Addr, Addr4, Address},
    answer::answer,
    arp::arp,
    counter::{COUNTERS, Counter},
    create::create,
    direct::{direct, direct_forward},
    egress::may_leave,
    event::{Event, PACE_NS},
    evict::{evict, uncount},
    flow::{Bucket, Bucket4, Bucket6, FlowEntry, State},
    fragment::{Fragmented, fragment},
    header::Header,
    icmp_error::{Quoted, icmp_error},
    maps::{
        EndpointKey, FragmentKey, LastHop, Leg, LegKey, Limits, NeighbourKey, NextHop, Node, Owned, OwnedKey,
        Refusals, Remembered, Route, Server, Service, ServiceKey, SnatPool, SnatRange, Tunnel,
    },
    miss::{self, miss},
    mss::mss,
    nd::nd,
    packet::Packet,
    persistence::{self, Rule},
    phase::Phase,
    receive::{lookup, receive, receive6, walk_extensions, walk_options},
    refusal::{METERS, Meter, Rate},
    relay::relay,
    schedule::schedule,
    search,
    table::{self, FlowMemory},
    tables::{Tables, geometry, tick},
    transit::transit,
    tunnel::Outer,
    work::{Step, Work},
};
use std::{
    cell::{Cell, RefCell, UnsafeCell},
    collections::{BTreeMap, HashMap},
};

/// A frame in a buffer with room on both sides.
pub struct Buffer {
    bytes: UnsafeCell<Vec<u8>>,
    start: usize,
    end: usize,
    note: u32,
    /// Where the first piece of its memory ends.
    piece: usize,
}

const ROOM: usize = 256;

impl Buffer {
    pub fn new(frame: &[u8]) -> Self {
        let mut bytes = vec![0x5a; ROOM];
        bytes.extend_from_slice(frame);
        bytes.resize(2 * ROOM + frame.len(), 0x5a);
        Self {
            bytes: UnsafeCell::new(bytes),
            start: ROOM,
            end: ROOM + frame.len(),
            note: 0,
            piece: usize::MAX,
        }
    }

    pub fn into_frame(self) -> Vec<u8> {
        self.bytes.into_inner()[self.start..self.end].to_vec()
    }
}

// SAFETY: the vector is never resized after construction; bounds are checked against the frame.
unsafe impl Packet for Buffer {
    fn note(&self) -> u32 {
        self.note
    }
    fn len(&self) -> usize {
        self.end - self.start
    }
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        assert!(
            offset <= onearm_dataplane_common::packet::MAX_OFFSET,
            "offset {offset}"
        );
        // SAFETY: one thread, no other reference to the vector alive.
        (self.start + offset + len <= self.end.min(self.piece))
            .then(|| unsafe { (*self.bytes.get()).as_mut_ptr().add(self.start + offset) })
    }
    fn move_start(&mut self, by: isize) -> bool {
        let start = self.start.cast_signed() - by;
        if start < 0 || start > self.end.cast_signed() {
            return false;
        }
        self.start = start.cast_unsigned();
        true
    }
    fn set_len(&mut self, len: usize) -> bool {
        if self.start + len > self.bytes.get_mut().len() {
            return false;
        }
        self.end = self.start + len;
        true
    }
}

/// What flows are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counted {
    Service(u32),
    Server(u32),
    Source(u32),
}

/// Maps in memory.
pub struct Host {
    pub setup: Setup,
    pub buckets: Vec<UnsafeCell<Bucket4>>,
    pub buckets6: Vec<UnsafeCell<Bucket6>>,
    held: bool,
    pub now: u64,
    pub slot: u32,
    /// Bytes of each frame that lie in the first piece of its memory.
    pub first_piece: usize,
    counters: RefCell<Vec<u64>>,
    wrr: RefCell<HashMap<u32, u64>>,
    /// As learned, and as judged.
    last_hops: RefCell<Vec<(LastHop, LastHop)>>,
    pub half_open: Cell<u64>,
    pub fragments: RefCell<HashMap<FragmentKey, Remembered>>,
    pub fragment_ids: RefCell<HashMap<u32, u64>>,
    pub incarnation: Cell<u64>,
    pace: RefCell<HashMap<u32, u64>>,
    meters: RefCell<Vec<Meter>>,
    random: Cell<u32>,
    /// Random numbers drawn so far.
    pub drawn: Cell<u64>,
    work: RefCell<Work>,
    pub counts: RefCell<HashMap<Counted, u64>>,
    pub refusals: RefCell<HashMap<u32, Refusals>>,
    pub events: RefCell<Vec<Event>>,
    pub tallied: RefCell<Vec<(u16, u16, bool, u64)>>,
    /// How often which program (IPv6 or not, its phase or the entry) ended in what. Loading a setup forgets nothing of it.
    pub endings: RefCell<BTreeMap<(bool, &'static str, &'static str), u64>>,
}

/// A phase's name, also for those that lead to it.
const fn name_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Neighbour => "Neighbour",
        Phase::Miss => "Miss",
        Phase::Schedule => "Schedule",
        Phase::Evict => "Evict",
        Phase::Create => "Create",
        Phase::Forward => "Forward",
        Phase::Answer => "Answer",
        Phase::Transit => "Transit",
        Phase::Relay => "Relay",
        Phase::Search => "Search",
        Phase::IcmpError => "IcmpError",
        Phase::Fragment => "Fragment",
        Phase::Receive6 => "Receive6",
        Phase::Extensions => "Extensions",
        Phase::Lookup => "Lookup",
        Phase::Direct => "Direct",
        Phase::Mss => "Mss",
        Phase::DirectForward => "DirectForward",
    }
}

impl Host {
    pub fn new(setup: &Setup) -> Self {
        let mut host = Self {
            setup: Setup::default(),
            buckets: Vec::new(),
            buckets6: Vec::new(),
            held: true,
            now: 1 << 40,
            slot: 0,
            first_piece: usize::MAX,
            counters: RefCell::default(),
            wrr: RefCell::default(),
            last_hops: RefCell::default(),
            half_open: Cell::default(),
            fragments: RefCell::default(),
            fragment_ids: RefCell::default(),
            incarnation: Cell::default(),
            pace: RefCell::default(),
            meters: RefCell::default(),
            random: Cell::new(1),
            drawn: Cell::default(),
            work: RefCell::default(),
            counts: RefCell::default(),
            refusals: RefCell::default(),
            events: RefCell::default(),
            tallied: RefCell::default(),
            endings: RefCell::default(),
        };
        host.load(setup);
        host
    }

    /// Changes the configuration in place; flows stay.
    pub fn edit(&mut self, change: impl FnOnce(&mut Setup)) {
        change(&mut self.setup);
    }

    /// Lets time pass.
    pub fn pass_ticks(&mut self, ticks: u32) {
        self.now += u64::from(ticks) << onearm_dataplane_common::maps::TICK_SHIFT;
    }

    /// One frame in by an interface, verdict and frame out.
    pub fn arrive(&mut self, frame: &[u8], ifindex: u32) -> (Verdict, Vec<u8>) {
        let (verdict, out, _) = self.pass_through(frame, ifindex, 0);
        (verdict, out)
    }

    /// With what user space puts before the frame; returns what the program left there.
    pub fn pass_through(&mut self, frame: &[u8], ifindex: u32, note: u32) -> (Verdict, Vec<u8>, u32) {
        let mut buffer = Buffer::new(frame);
        buffer.note = note;
        buffer.piece = self.first_piece.saturating_add(ROOM);
        let mut step = receive(&mut buffer, ifindex, self);
        self.ended(false, "Receive", step);
        let v6 = step == Step::Next(Phase::Receive6);
        if v6 {
            step = receive6(&mut buffer, ifindex, self);
            self.ended(true, name_of(Phase::Receive6), step);
        }
        for _ in 0..33 {
            let verdict = match step {
                Step::Next(phase) => {
                    step = if v6 {
                        self.phase::<Addr>(phase, &mut buffer)
                    } else {
                        self.phase::<Addr4>(phase, &mut buffer)
                    };
                    self.ended(v6, name_of(phase), step);
                    continue;
                }
                Step::Pass => Verdict::Pass,
                Step::Drop => Verdict::Drop,
                Step::Transmit => Verdict::Transmit,
                Step::Redirect(leg) => {
                    buffer.note = leg + 1;
                    Verdict::Redirect
                }
            };
            let note = buffer.note;
            return (verdict, buffer.into_frame(), note);
        }
        panic!("more than 33 tail calls");
    }

    /// Indexes of all servers.
    pub fn server_indexes(&self) -> Vec<u32> {
        self.setup.servers.iter().map(|(index, _)| *index).collect()
    }

    /// Indexes of all services.
    pub fn service_indexes(&self) -> Vec<u32> {
        self.setup.service.iter().map(|(index, _)| *index).collect()
    }

    /// A last hop that was learned, by number.
    pub fn numbered_last_hop(&self, number: u32) -> Option<LastHop> {
        let hops = self.last_hops.borrow();
        let which = (number as usize).checked_rem(hops.len())?;
        Some(hops[which].0)
    }

    /// What user space does from time to time: flows that were silent for too long go.
    pub fn sweep(&mut self) {
        let mut seen = std::collections::HashSet::new();
        for entry in self.entries() {
            if seen.insert(entry.incarnation) && self.is_overdue(&entry) {
                if entry.saddr.is_v4() {
                    self.end::<Addr4>(&entry);
                } else {
                    self.end::<Addr>(&entry);
                }
            }
        }
    }

    fn is_overdue(&self, entry: &FlowEntry) -> bool {
        let both = self
            .entries()
            .into_iter()
            .filter(|e| e.incarnation == entry.incarnation);
        let last = both.map(|e| e.last_seen).max().unwrap_or_default();
        let allowed = match entry.state() {
            State::HalfOpen => self.setup.node.half_open_ticks,
            State::Closing => self.setup.node.closing_ticks,
            State::Established => entry.idle_ticks,
        };
        tick(self.now) - last > allowed
    }

    fn end<A: Header>(&self, entry: &FlowEntry) {
        let geometry = geometry::<A>(&self.setup.node);
        let found = table::find(self, &geometry, &entry.key().narrow::<A>()).expect("an entry");
        let ended = table::remove::<A, _>(self, &geometry, found.at, found.incarnation).expect("a flow");
        uncount(self, &self.setup.node, &ended);
    }

    fn ended(&self, v6: bool, program: &'static str, step: Step) {
        let ending = match step {
            Step::Pass => "PASS",
            Step::Drop => "DROP",
            Step::Transmit => "TX",
            Step::Redirect(_) => "REDIRECT",
            Step::Next(phase) => name_of(phase),
        };
        *self
            .endings
            .borrow_mut()
            .entry((v6, program, ending))
            .or_default() += 1;
    }

    fn count_of(&self, what: Counted) -> u64 {
        self.counts.borrow().get(&what).copied().unwrap_or(0)
    }

    fn add_to(&self, what: Counted, n: u64) {
        let mut counts = self.counts.borrow_mut();
        let count = counts.entry(what).or_default();
        *count = count.wrapping_add(n);
    }

    fn phase<A: Quoted + Fragmented + Outer>(&self, phase: Phase, frame: &mut Buffer) -> Step {
        // A copy, as the phases of the kernel share one value by turns.
        let mut work = *self.work.borrow();
        let step = match phase {
            Phase::Neighbour if A::V6 => nd(frame, &work, self),
            Phase::Neighbour => arp(frame, &work, self),
            Phase::Miss => miss::<A, _, _>(frame, &mut work, self),
            Phase::Schedule => schedule(&mut work, self),
            Phase::Evict => evict::<A, _>(&mut work, self),
            Phase::Create => create::<A, _>(&mut work, self),
            Phase::Forward => return miss::forward::<A, _, _>(frame, &work, self),
            Phase::Answer => answer::<A, _, _>(frame, &mut work, self),
            Phase::Transit => transit::<A, _, _>(frame, &mut work, self),
            Phase::Fragment => fragment::<A, _, _>(frame, &mut work, self),
            Phase::Direct => direct::<A, _, _>(frame, &mut work, self),
            Phase::DirectForward => return direct_forward::<A, _, _>(frame, &work, self),
            Phase::Relay => relay::<A, _, _>(frame, &work, self),
            Phase::IcmpError => icmp_error::<A, _, _>(frame, &mut work, self),
            Phase::Mss => mss::<A, _, _>(frame, &mut work, self),
            Phase::Search => {
                let times = search::begin(&mut work, self);
                let _found = (0..times).any(|n| search::look::<A, _>(&mut work, self, n));
                search::end(&mut work, self)
            }
            Phase::Extensions if A::V6 => walk_extensions(frame, &mut work),
            Phase::Extensions => walk_options(frame, &mut work),
            Phase::Lookup => return lookup::<A, _, _>(frame, &work, self),
            Phase::Receive6 => panic!("a phase of its own"),
        };
        *self.work.borrow_mut() = work;
        step
    }
}

impl Engine for Host {
    fn load(&mut self, setup: &Setup) {
        self.setup = setup.clone();
        self.buckets = (0..setup.buckets)
            .map(|_| UnsafeCell::new(Bucket4::default()))
            .collect();
        self.buckets6 = (0..setup.buckets)
            .map(|_| UnsafeCell::new(Bucket6::default()))
            .collect();
        self.counters = RefCell::new(vec![0; COUNTERS.len()]);
        self.meters = RefCell::new(vec![Meter::default(); METERS as usize]);
        self.half_open.set(0);
        self.fragments.borrow_mut().clear();
        self.fragment_ids.borrow_mut().clear();
        self.wrr.borrow_mut().clear();
        self.incarnation.set(0);
        self.counts.borrow_mut().clear();
        self.refusals.borrow_mut().clear();
        self.last_hops.borrow_mut().clear();
        self.events.borrow_mut().clear();
        self.pace.borrow_mut().clear();
        self.tallied.borrow_mut().clear();
        self.held = true;
    }

    fn change(&mut self, setup: &Setup) {
        self.setup = setup.clone();
    }

    fn run(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        self.arrive(frame, IFINDEX)
    }

    fn run_again(&mut self, frame: &[u8], note: u32) -> (Verdict, Vec<u8>, u32) {
        self.pass_through(frame, IFINDEX, note)
    }

    fn lease(&mut self, held: bool) {
        self.held = held;
    }

    fn leaves(&mut self, frame: &[u8]) -> bool {
        may_leave(&Buffer::new(frame), self)
    }

    fn lock_table(&mut self) {
        self.buckets
            .iter_mut()
            .for_each(|bucket| bucket.get_mut().lock = 99);
        self.buckets6
            .iter_mut()
            .for_each(|bucket| bucket.get_mut().lock = 99);
    }

    fn use_up_last_hops(&mut self) {
        self.setup.free_last_hops = 0;
    }

    fn judge(&mut self, hop: LastHop, believed: bool) {
        let ifindex = if believed { hop.ifindex } else { 0 };
        let judged = LastHop { ifindex, ..hop };
        let mut hops = self.last_hops.borrow_mut();
        match hops.iter_mut().find(|(learned, _)| *learned == hop) {
            Some((_, value)) => *value = judged,
            None => hops.push((hop, judged)),
        }
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.counters.borrow()[counter.index() as usize]
    }

    fn entries(&self) -> Vec<FlowEntry> {
        // SAFETY: one thread.
        let four = self.buckets.iter().map(|b| unsafe { &*b.get() });
        // SAFETY: as above.
        let six = self.buckets6.iter().map(|b| unsafe { &*b.get() });
        four.flat_map(|b| b.entries.map(|e| e.wide()))
            .chain(six.flat_map(|b| b.entries))
            .filter(|e| e.incarnation != 0)
            .collect()
    }

    fn half_open(&self) -> u64 {
        self.half_open.get()
    }
}

// SAFETY: pointers into the boxed buckets; one thread.
unsafe impl FlowMemory for Host {
    const MORTAL: bool = false;

    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>> {
        if A::V6 {
            self.buckets6.get(index as usize).map(|b| b.get().cast())
        } else {
            self.buckets.get(index as usize).map(|b| b.get().cast())
        }
    }
    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64 {
        // SAFETY: an aligned word of a bucket.
        unsafe {
            let found = word.read();
            if found == expected {
                word.write(new);
            }
            found
        }
    }
    unsafe fn add(&self, word: *mut u64, n: u64) {
        // SAFETY: an aligned word of a bucket.
        unsafe { word.write(word.read().wrapping_add(n)) };
    }
}

fn of<K: PartialEq, V>(list: &[(K, V)], key: &K) -> Option<V>
where
    V: Copy,
{
    list.iter().rev().find(|(k, _)| k == key).map(|(_, v)| *v)
}

/// Longest match of `bits` (most significant first) among (length, bits, value).
fn longest<const N: usize, V: Copy>(
    list: impl Iterator<Item = (u32, [u8; N], V)>,
    bits: [u8; N],
) -> Option<V> {
    let same = |len: u32, want: &[u8; N]| {
        (0..len as usize).all(|n| (bits[n / 8] ^ want[n / 8]) & (0x80 >> (n % 8)) == 0)
    };
    list.filter(|(len, want, _)| same(*len, want))
        .max_by_key(|(len, _, _)| *len)
        .map(|(_, _, v)| v)
}

fn scoped<V: Copy>(
    list: &[(u32, onearm_dataplane_common::maps::ScopedPrefix, V)],
    scope: u32,
    addr: Addr,
) -> Option<V> {
    let bits = |scope: [u8; 4], addr: [u8; 16]| -> [u8; 20] {
        std::array::from_fn(|n| if n < 4 { scope[n] } else { addr[n - 4] })
    };
    longest(
        list.iter().map(|(len, p, v)| (*len, bits(p.scope, p.addr), *v)),
        bits(scope.to_be_bytes(), addr.bytes()),
    )
}

impl Tables for Host {
    fn node(&self) -> Option<&Node> {
        Some(&self.setup.node)
    }
    fn slot(&self) -> u32 {
        self.slot
    }
    fn lease(&self, group: u8) -> u64 {
        if self.held && group == 0 { self.now + 1 } else { 0 }
    }
    fn now(&self) -> u64 {
        self.now
    }
    fn leg(&self, key: &LegKey) -> Option<&Leg> {
        self.setup.legs.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }
    fn owned(&self, slot: u32, addr: Addr) -> Option<Owned> {
        of(&self.setup.owned, &OwnedKey { addr, slot })
    }
    fn snat_range(&self, slot: u32, addr: Addr) -> Option<SnatRange> {
        of(&self.setup.snat_ranges, &OwnedKey { addr, slot })
    }
    fn service_index(&self, key: &ServiceKey) -> Option<u32> {
        let bits = |k: &ServiceKey| -> [u8; 20] {
            let all = [&[k.slot, k.proto], &k.addr[..], &k.port].concat();
            all.try_into().expect("twenty bytes")
        };
        longest(
            self.setup.services.iter().map(|(len, k, v)| (*len, bits(k), *v)),
            bits(key),
        )
    }
    fn service(&self, slot: u32, index: u32) -> Option<&Service> {
        self.setup
            .service
            .iter()
            .find(|(i, _)| slot == 0 && *i == index)
            .map(|(_, v)| v)
    }
    fn tunnel(&self, slot: u32, index: u32) -> Option<&Tunnel> {
        let mut all = self.setup.tunnels.iter();
        all.find(|(i, _)| slot == 0 && *i == index).map(|(_, v)| v)
    }
    fn mode_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32> {
        scoped(&self.setup.mode_rules, slot << 24 | service, addr)
    }
    fn sched_word(&self, word: u32) -> u64 {
        self.setup.sched.get(word as usize).copied().unwrap_or(0)
    }
    fn wrr_next(&self, stats: u32) -> u64 {
        let mut wrr = self.wrr.borrow_mut();
        let counter = wrr.entry(stats).or_default();
        *counter += 1;
        *counter - 1
    }
    fn server(&self, index: u32) -> Option<&Server> {
        self.setup
            .servers
            .iter()
            .find(|(i, _)| *i == index)
            .map(|(_, v)| v)
    }
    fn snat_pool(&self, slot: u32, index: u32) -> Option<SnatPool> {
        if slot == 0 {
            of(&self.setup.pools, &index)
        } else {
            None
        }
    }
    fn connected(&self, slot: u32, addr: Addr) -> u32 {
        scoped(&self.setup.connected, slot, addr).unwrap_or(0)
    }
    fn server_net(&self, slot: u32, addr: Addr) -> Option<Addr> {
        scoped(&self.setup.server_nets, slot, addr)
    }
    fn direct(&self, slot: u32, addr: Addr) -> bool {
        scoped(&self.setup.direct, slot, addr).is_some()
    }
    fn hairpin(&self, slot: u32, service: u32, addr: Addr) -> bool {
        scoped(&self.setup.hairpin, slot << 24 | service, addr).is_some()
    }
    fn endpoint(&self, key: &EndpointKey) -> bool {
        self.setup.endpoints.contains(key)
    }
    fn next_hop(&self, index: u32) -> Option<NextHop> {
        of(&self.setup.next_hops, &index)
    }
    fn neighbour(&self, key: &NeighbourKey) -> Option<u32> {
        of(&self.setup.neighbours, key)
    }
    fn route(&self, addr: Addr) -> Option<Route> {
        longest(
            self.setup.routes.iter().map(|(len, a, r)| (*len, a.bytes(), *r)),
            addr.bytes(),
        )
    }
    fn last_hop(&self, index: u32) -> Option<LastHop> {
        self.last_hops.borrow().get(index as usize).map(|(_, hop)| *hop)
    }
    fn last_hop_index(&self, hop: &LastHop) -> Option<u32> {
        let hops = self.last_hops.borrow();
        let index = hops.iter().position(|(learned, _)| learned == hop)?;
        u32::try_from(index).ok()
    }
    fn learn_last_hop(&self, hop: &LastHop) -> Option<u32> {
        let mut hops = self.last_hops.borrow_mut();
        let index = u32::try_from(hops.len()).ok()?;
        (index < self.setup.free_last_hops).then(|| hops.push((*hop, *hop)))?;
        Some(index)
    }
    fn fragment(&self, key: &FragmentKey) -> Option<Remembered> {
        self.fragments.borrow().get(key).copied()
    }
    fn remember_fragment(&self, key: &FragmentKey, value: &Remembered) {
        self.fragments.borrow_mut().insert(*key, *value);
    }
    fn next_fragment_id(&self, index: u32) -> u64 {
        let mut ids = self.fragment_ids.borrow_mut();
        let next = ids.entry(index).or_default();
        *next += 1;
        *next - 1
    }
    fn half_open(&self) -> u64 {
        self.half_open.get()
    }
    fn add_half_open(&self, n: u64) {
        self.half_open.set(self.half_open.get().wrapping_add(n));
    }
    fn next_incarnation(&self) -> u64 {
        self.incarnation.replace(self.incarnation.get() + 1)
    }
    fn count(&self, counter: Counter) {
        self.counters.borrow_mut()[counter.index() as usize] += 1;
    }
    fn tally(&self, stats: u16, server: u16, reply: bool, bytes: u64) {
        self.tallied.borrow_mut().push((stats, server, reply, bytes));
    }
    fn tally_flow(&self, _stats: u16, _server: u16) {}
    fn tally_refused(&self, stats: u32, reason: Counter) {
        self.refusals.borrow_mut().entry(stats).or_default().add(reason);
    }
    fn limits(&self, slot: u32, service: u32) -> Option<Limits> {
        (slot == 0).then(|| of(&self.setup.limits, &service).unwrap_or_default())
    }
    fn client_rule(&self, slot: u32, service: u32, addr: Addr) -> Option<u32> {
        scoped(&self.setup.clients, slot << 24 | service, addr)
    }
    fn open_of_service(&self, stats: u32) -> u64 {
        self.count_of(Counted::Service(stats))
    }
    fn open_of_server(&self, server: u32) -> u64 {
        self.count_of(Counted::Server(server))
    }
    fn add_open(&self, stats: u16, server: u16, n: u64) {
        self.add_to(Counted::Service(u32::from(stats)), n);
        self.add_to(Counted::Server(u32::from(server)), n);
    }
    fn source(&self, slot: u32) -> u64 {
        self.count_of(Counted::Source(slot))
    }
    fn add_source(&self, slot: u32, n: u64) {
        self.add_to(Counted::Source(slot), n);
    }
    fn persistence(&self, stats: u32) -> Rule {
        of(&self.setup.persistence, &stats).unwrap_or_default()
    }
    fn client_servers(&self, bucket: u32) -> Option<*const persistence::Bucket> {
        self.setup
            .client_servers
            .get(bucket as usize)
            .map(std::ptr::from_ref)
    }
    fn event_due(&self, slot: u32, now: u64) -> bool {
        let mut pace = self.pace.borrow_mut();
        let due = pace.get(&slot).is_none_or(|last| now - last >= PACE_NS);
        if due {
            pace.insert(slot, now);
        }
        due
    }
    fn emit(&self, event: &Event) {
        self.events.borrow_mut().push(*event);
    }
    fn charge(&self, meter: u32, now: u64, rate: Rate) -> bool {
        let mut meters = self.meters.borrow_mut();
        let meter = &mut meters[meter as usize];
        meter.charge(now, rate).map(|m| *meter = m).is_some()
    }
    fn random(&self) -> u32 {
        self.drawn.set(self.drawn.get() + 1);
        let next = self
            .random
            .get()
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.random.set(next);
        next
    }
    fn lock_owner(&self) -> u64 {
        1
    }
    fn leave(&self, write: impl FnOnce(&mut Work)) -> bool {
        write(&mut self.work.borrow_mut());
        true
    }
}
