//! The packet logic over ordinary memory.
#![expect(
    unsafe_code,
    reason = "implements the unsafe traits of the packet logic over a Vec"
)]

mod buffer;
mod maps;

pub use buffer::Buffer;

use crate::support::{Engine, Permission, Setup, Verdict, setup::IFINDEX};
use onearm_dataplane_common::{
    addr::{Addr, Addr4, Address},
    answer::answer,
    arp::arp,
    counter::{COUNTERS, Counter},
    create::create,
    direct::{direct, direct_forward},
    egress::may_leave,
    event::Event,
    evict::{self, uncount},
    flow::{Bucket, Bucket4, Bucket6, FlowEntry, State},
    fragment::{Fragmented, fragment},
    header::Header,
    icmp_error::{Quoted, icmp_error},
    maps::{FragmentKey, LastHop, Refusals, Remembered},
    miss::{self, miss},
    mss::mss,
    nd::nd,
    phase::Phase,
    receive::{lookup, receive, receive6, walk_extensions, walk_options},
    refusal::{METERS, Meter},
    relay::relay,
    schedule::schedule,
    search,
    table::{self, Entry, FlowMemory},
    tables::{geometry, tick},
    tell,
    transit::transit,
    tunnel::Outer,
    work::{Step, Work},
};
use std::{
    cell::{Cell, RefCell, UnsafeCell},
    collections::{BTreeMap, HashMap},
};

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
    permission: Permission,
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
    /// As they would lie in the ring.
    pub tells: RefCell<Vec<Vec<u64>>>,
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
            permission: Permission::Owner,
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
            tells: RefCell::default(),
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
        buffer.piece = self.first_piece.saturating_add(buffer::ROOM);
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
            Phase::Evict => {
                let times = evict::begin::<A, _>(&mut work, self);
                let _found = (0..times).any(|n| evict::look::<A, _>(&mut work, self, n));
                evict::end::<A, _>(&mut work, self)
            }
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
        self.tells.borrow_mut().clear();
        self.permission = Permission::Owner;
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

    fn permit(&mut self, permission: Permission) {
        self.permission = permission;
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

    fn tells(&mut self) -> Vec<Vec<u64>> {
        std::mem::take(self.tells.get_mut())
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
    fn removed<A: Address>(&self, at: u32, entry: Entry<A>, incarnation: u64) {
        tell::ended(self, at, entry, incarnation);
    }
}
