//! The table when the process that writes it is killed at any instruction, and programs go on.
#![expect(
    unsafe_code,
    reason = "a process of its own, run step by step; memory shared with it"
)]

use std::collections::BTreeSet;
use std::mem::size_of;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use onearm_dataplane_common::addr::{Addr, Addr4, Address};
use onearm_dataplane_common::flow::{Bucket, Bucket4, Bucket6, FlowEntry, FlowKey, lock};
use onearm_dataplane_common::maps::{WAYS, proto};
use onearm_dataplane_common::table::{self, FlowMemory, Geometry, NotInserted, Recovered};

use super::FlowState;
use super::memory::Memory;
use super::tests::{pair, six};
use crate::mapping::Mapping;

type Pair = (FlowEntry, FlowEntry);

/// Memory of both families, which a forked process shares.
struct Shared {
    memory: Memory,
    geometry: Geometry,
}

impl Shared {
    fn new(buckets: u32) -> Self {
        let mapping = |size: usize| {
            let len = buckets as usize * size;
            let fd = memfd_create(c"killed", MFdFlags::MFD_CLOEXEC).unwrap();
            ftruncate(&fd, i64::try_from(len).unwrap()).unwrap();
            Mapping::new(fd.as_fd(), len).unwrap()
        };
        Self {
            memory: Memory::new(mapping(size_of::<Bucket4>()), mapping(size_of::<Bucket6>())),
            geometry: Geometry { key: [5, 6], buckets },
        }
    }

    /// The bytes of one family's table.
    fn bytes<A: Address>(&self) -> Vec<u8> {
        // SAFETY: the whole mapping; nobody writes it while its only writer is stopped.
        unsafe { std::slice::from_raw_parts(self.base::<A>(), self.len::<A>()) }.to_vec()
    }

    fn restore<A: Address>(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len::<A>());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base::<A>(), bytes.len()) };
    }

    fn base<A: Address>(&self) -> *mut u8 {
        self.memory.bucket::<A>(0).unwrap().cast()
    }

    fn len<A: Address>(&self) -> usize {
        self.geometry.buckets as usize * size_of::<Bucket<A>>()
    }

    fn write<A: Address>(&self, pair: &Pair) -> Result<u32, NotInserted> {
        let owner = lock::USER | 0x4d;
        table::insert_pair::<A, _>(&self.memory, &self.geometry, owner, &pair.0, &pair.1)
    }

    fn program(&self) -> Program<'_> {
        Program(&self.memory)
    }

    fn recover<A: Address>(&self) -> Recovered {
        table::recover::<A, _>(&self.memory, &self.geometry)
    }

    fn find<A: Address>(&self, key: &FlowKey) -> Option<(u32, u64)> {
        let found = table::find(&self.memory, &self.geometry, &key.narrow::<A>())?;
        Some((found.at, found.incarnation))
    }

    /// Incarnations of the flows in the table, after everything a table must be was found true.
    fn flows<A: Address>(&self) -> BTreeSet<u64> {
        let (mut flows, mut beyond, mut overflow) = (BTreeSet::new(), 0, 0);
        for index in 0..self.geometry.buckets {
            let bucket = self.memory.bucket::<A>(index).unwrap();
            // SAFETY: a live bucket, which nobody writes now.
            let bucket = unsafe { &*bucket };
            assert_eq!(bucket.lock, 0, "a lock");
            overflow += bucket.overflow;
            for way in 0..WAYS {
                let tag = u16::try_from(bucket.tags[way / 4] >> (16 * (way % 4)) & 0xffff).unwrap();
                let (entry, at) = (bucket.entries[way], index << 4 | u32::try_from(way).unwrap());
                if tag == 0 {
                    assert_eq!(entry.incarnation, 0, "published in a free way");
                    continue;
                }
                assert!(table::is_published(entry.incarnation), "a leaked way");
                let place = self.geometry.place(&entry.key());
                assert!(tag == place.tag && [place.first, place.second(), place.third()].contains(&index));
                beyond += place.beyond(index);
                let key = entry.wide().key();
                assert_eq!(
                    self.find::<A>(&key),
                    Some((at, entry.incarnation)),
                    "lost or twice"
                );
                let partner = table::entry_at::<A, _>(&self.memory, entry.partner).unwrap();
                assert_eq!(
                    (partner.partner(), partner.incarnation(), partner.is_reply()),
                    (at, entry.incarnation, !entry.is_reply()),
                    "one direction alone"
                );
                flows.insert(entry.incarnation);
            }
        }
        assert!(
            [0, 1, 1 << 32].contains(&(overflow - beyond)),
            "{overflow} for {beyond}"
        );
        flows
    }
}

/// The same memory as a program has it.
pub(super) struct Program<'a>(pub(super) &'a Memory);

// SAFETY: the same memory and operations.
unsafe impl FlowMemory for Program<'_> {
    const MORTAL: bool = false;

    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>> {
        self.0.bucket(index)
    }

    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64 {
        // SAFETY: by contract.
        unsafe { self.0.exchange(word, expected, new) }
    }

    unsafe fn add(&self, word: *mut u64, n: u64) {
        // SAFETY: by contract.
        unsafe { self.0.add(word, n) };
    }
}

/// Starts `act`, which must not allocate, in a process of its own that stops before it.
fn stopped(act: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child does nothing but `act`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: plain system calls.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            act();
            libc::_exit(0);
        }
    }
    assert!(has_stopped(child));
    child
}

/// False if it has come to its end.
fn has_stopped(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFEXITED(status) {
        assert_eq!(libc::WEXITSTATUS(status), 0);
        return false;
    }
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    true
}

/// One instruction more; false if there is none.
fn step(child: libc::pid_t) -> bool {
    // SAFETY: our own child, which is stopped.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0) }, 0);
    has_stopped(child)
}

/// Shows each state the memory is in while `act` runs: what it would be in had the process been killed there. Returns the
/// number of instructions.
fn at_every_instruction(act: impl FnOnce(), mut show: impl FnMut()) -> u32 {
    let child = stopped(act);
    let mut steps = 0;
    loop {
        show();
        if !step(child) {
            return steps;
        }
        steps += 1;
    }
}

/// What programs may do before anybody puts right what the dead process left.
const MEANWHILE: [fn(&Shared, &Pair, bool); 4] = [
    |_, _, _| {},
    // The same flow, and one that wants its source port.
    |shared, wanted, v6| {
        let other = (
            FlowEntry {
                incarnation: 900,
                ..wanted.0
            },
            wanted.1,
        );
        insert(&shared.program(), &shared.geometry, &other, v6).ok();
        let (forward, _) = of(77, v6);
        let rival = (
            FlowEntry {
                incarnation: 901,
                ..forward
            },
            wanted.1,
        );
        insert(&shared.program(), &shared.geometry, &rival, v6).ok();
    },
    // Both directions are looked up, and the flow is removed by whichever is found.
    |shared, wanted, v6| {
        let incarnation = wanted.0.incarnation;
        for key in [wanted.0.key(), wanted.1.key()] {
            let found = if v6 {
                shared.find::<Addr>(&key)
            } else {
                shared.find::<Addr4>(&key)
            };
            if let Some((at, _)) = found.filter(|(_, found)| *found == incarnation) {
                remove(&shared.program(), &shared.geometry, at, incarnation, v6);
            }
        }
    },
    // The table fills up and empties again.
    |shared, _, v6| {
        let program = shared.program();
        let made: Vec<(u32, u64)> = (500..530)
            .map(|n| of(n, v6))
            .filter_map(|pair| {
                Some((
                    insert(&program, &shared.geometry, &pair, v6).ok()?,
                    pair.0.incarnation,
                ))
            })
            .collect();
        for (at, incarnation) in made {
            assert!(remove(&program, &shared.geometry, at, incarnation, v6));
        }
    },
];

fn of(n: u16, v6: bool) -> Pair {
    let pair = pair(n, proto::TCP, FlowState::Established, (0, 0));
    if v6 { six(pair) } else { pair }
}

fn insert(program: &Program<'_>, geometry: &Geometry, pair: &Pair, v6: bool) -> Result<u32, NotInserted> {
    if v6 {
        table::insert_pair::<Addr, _>(program, geometry, 1, &pair.0, &pair.1)
    } else {
        table::insert_pair::<Addr4, _>(program, geometry, 1, &pair.0, &pair.1)
    }
}

fn remove(program: &Program<'_>, geometry: &Geometry, at: u32, incarnation: u64, v6: bool) -> bool {
    if v6 {
        table::remove::<Addr, _>(program, geometry, at, incarnation).is_some()
    } else {
        table::remove::<Addr4, _>(program, geometry, at, incarnation).is_some()
    }
}

/// What the process is about when it is killed.
#[derive(Clone, Copy, Debug)]
enum Act {
    Insert,
    Remove { by_reply: bool },
}

/// `others` flows are there before.
fn killed_anywhere<A: Address>(act: Act, others: u16, wanted: &Pair) {
    let shared = Shared::new(2);
    let mut before: BTreeSet<u64> = BTreeSet::new();
    for n in 100..100 + others {
        let pair = of(n, A::V6);
        if shared.write::<A>(&pair).is_ok() {
            before.insert(pair.0.incarnation);
        }
    }
    if matches!(act, Act::Remove { .. }) {
        shared.write::<A>(wanted).unwrap();
    }
    let (scratch, mut last, mut states) = (Shared::new(2), Vec::new(), 0);
    let run = || match act {
        Act::Insert => shared.write::<A>(wanted).map_or((), |_| ()),
        Act::Remove { by_reply } => {
            let key = if by_reply { wanted.1.key() } else { wanted.0.key() };
            if let Some((at, incarnation)) = shared.find::<A>(&key) {
                table::remove::<A, _>(&shared.memory, &shared.geometry, at, incarnation);
            }
        }
    };
    at_every_instruction(run, || {
        let state = shared.bytes::<A>();
        if state == last {
            return;
        }
        states += 1;
        for (number, meanwhile) in MEANWHILE.into_iter().enumerate() {
            scratch.restore::<A>(&state);
            let whole = [wanted.0.key(), wanted.1.key()].iter().all(|key| {
                scratch
                    .find::<A>(key)
                    .is_some_and(|(_, i)| i == wanted.0.incarnation)
            });
            meanwhile(&scratch, wanted, A::V6);
            scratch.recover::<A>();
            let mut flows = scratch.flows::<A>();
            assert!(flows.is_superset(&before), "{act:?}: others are lost");
            if number == 0 {
                assert_eq!(flows.contains(&wanted.0.incarnation), whole, "{act:?} {states}");
            }
            assert_eq!(scratch.recover::<A>(), Recovered::default());
            flows.retain(|flow| !before.contains(flow) && *flow != wanted.0.incarnation);
            assert!(flows.iter().all(|flow| *flow >= 900), "{flows:?}");
        }
        last = state;
    });
    assert!(states >= 3, "{act:?}: {states} states");
}

fn killed_in_every_act<A: Address>() {
    for others in [0, 9, 13] {
        let wanted = of(7, A::V6);
        killed_anywhere::<A>(Act::Insert, others, &wanted);
        for by_reply in [false, true] {
            killed_anywhere::<A>(Act::Remove { by_reply }, others, &wanted);
        }
    }
    // Its source port is taken: nothing is made. It exists: the reply entry is given back. The table is full.
    let (forward, _) = of(7, A::V6);
    killed_anywhere::<A>(Act::Insert, 3, &(forward, of(101, A::V6).1));
    let (existing, _) = of(101, A::V6);
    let again = FlowEntry {
        incarnation: 8,
        ..existing
    };
    killed_anywhere::<A>(Act::Insert, 3, &(again, of(7, A::V6).1));
    killed_anywhere::<A>(Act::Insert, 30, &of(7, A::V6));
}

#[test]
fn a_writer_killed_at_any_instruction_leaves_both_directions_or_neither() {
    killed_in_every_act::<Addr4>();
}

#[test]
fn a_writer_of_ipv6_killed_at_any_instruction_leaves_both_directions_or_neither() {
    killed_in_every_act::<Addr>();
}

/// A program that loses its processor anywhere while another one works, or a process puts right what another one left: it
/// goes on where it was.
fn stalled_anywhere<A: Address>(act: Act, wanted: &Pair, points: u32) {
    let start = || {
        let shared = Shared::new(2);
        for n in 100..109 {
            shared.write::<A>(&of(n, A::V6)).unwrap();
        }
        if matches!(act, Act::Remove { .. }) {
            shared.write::<A>(wanted).unwrap();
        }
        shared
    };
    let run = |shared: &Shared| match act {
        Act::Insert => {
            insert(&shared.program(), &shared.geometry, wanted, A::V6).ok();
        }
        Act::Remove { by_reply } => {
            let key = if by_reply { wanted.1.key() } else { wanted.0.key() };
            if let Some((at, incarnation)) = shared.find::<A>(&key) {
                remove(&shared.program(), &shared.geometry, at, incarnation, A::V6);
            }
        }
    };
    let shared = start();
    let steps = at_every_instruction(|| run(&shared), || ());
    for point in 0..points {
        let shared = start();
        let child = stopped(|| run(&shared));
        for _ in 0..steps / points * point {
            assert!(step(child));
        }
        MEANWHILE[point as usize % MEANWHILE.len()](&shared, wanted, A::V6);
        shared.recover::<A>();
        // SAFETY: our own child, which is stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_CONT, child, 0, 0) }, 0);
        assert!(!has_stopped(child));
        let flows = shared.flows::<A>();
        assert!(
            (100..109).all(|n| flows.contains(&(n + 1))),
            "{act:?} {point}: others are lost"
        );
    }
}

#[test]
fn a_program_stalled_anywhere_while_another_works_leaves_both_directions_or_neither() {
    for act in [
        Act::Insert,
        Act::Remove { by_reply: false },
        Act::Remove { by_reply: true },
    ] {
        stalled_anywhere::<Addr4>(act, &of(7, false), 12);
    }
}

/// A process that inserts and removes until it is killed; programs that do the same, and readers that check what they see.
#[test]
fn programs_and_a_writer_killed_again_and_again_lose_tear_and_double_nothing() {
    let shared = Shared::new(4);
    let (stop, torn, round) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(1_000));
    std::thread::scope(|scope| {
        for thread in 0..3_u16 {
            let (shared, stop, torn, round) = (&shared, &stop, &torn, &round);
            scope.spawn(move || churn(shared, &shared.program(), thread, stop, torn, round));
        }
        for kill in 0..60_u64 {
            // SAFETY: the child allocates nothing.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                let (never, seen, own) = (
                    AtomicBool::new(false),
                    AtomicU64::new(0),
                    AtomicU64::new((kill + 1) << 40),
                );
                churn(&shared, &shared.memory, 3, &never, &seen, &own);
            }
            let work = round.load(Ordering::Relaxed) + 200 + kill * 37 % 400;
            while round.load(Ordering::Relaxed) < work {
                std::thread::yield_now();
            }
            let mut status = 0;
            // SAFETY: our own child.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &raw mut status, 0);
            }
            assert!(libc::WIFSIGNALED(status), "{status:#x}");
            shared.recover::<Addr4>();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(torn.load(Ordering::Relaxed), 0, "entries of two flows at once");
    shared_is_whole(&shared);
}

fn shared_is_whole(shared: &Shared) {
    // What 60 deaths may have left in `overflow` is not judged here.
    for index in 0..shared.geometry.buckets {
        let bucket = shared.memory.bucket::<Addr4>(index).unwrap();
        // SAFETY: a live bucket, which nobody writes now.
        let overflow = unsafe { (*bucket).overflow };
        let beyond = (0..shared.geometry.buckets << 4)
            .filter_map(|at| shared.memory.published::<Addr4>(at).map(|entry| (at, entry)))
            .map(|(at, entry)| (at, shared.geometry.place(&entry.key().narrow::<Addr4>())))
            .filter(|(_, place)| place.first == index)
            .map(|(at, place)| place.beyond(at >> 4))
            .sum::<u64>();
        let leaked = overflow.wrapping_sub(beyond);
        assert!(
            leaked & 0xffff_ffff <= 60 && leaked >> 32 <= 60,
            "{overflow} for {beyond}"
        );
        // SAFETY: as above.
        unsafe { (*bucket).overflow = beyond };
    }
    shared.flows::<Addr4>();
}

/// Makes, looks up and removes a few flows by turns, until told to stop.
fn churn<M: FlowMemory>(
    shared: &Shared,
    memory: &M,
    thread: u16,
    stop: &AtomicBool,
    torn: &AtomicU64,
    round: &AtomicU64,
) {
    while !stop.load(Ordering::Relaxed) {
        let incarnation = round.fetch_add(1, Ordering::Relaxed) << 3 | u64::from(thread) | 1 << 32;
        let n = u16::try_from(incarnation >> 3 & 0xffff).unwrap() % 23;
        let (mut forward, reply) = pair(n, proto::TCP, FlowState::Established, (0, 0));
        forward.incarnation = incarnation;
        let owner = if M::MORTAL {
            lock::USER | 1
        } else {
            u64::from(thread) + 1
        };
        table::insert_pair::<Addr4, _>(memory, &shared.geometry, owner, &forward, &reply).ok();
        for key in [forward.key(), reply.key()] {
            let Some(found) = table::find(memory, &shared.geometry, &key.narrow::<Addr4>()) else {
                continue;
            };
            if let Some(copy) = found.read() {
                let copy = copy.wide();
                let of_one = if copy.is_reply() { reply } else { forward };
                let whole = copy.key() == key
                    && copy.new_saddr == of_one.new_saddr
                    && copy.new_dport == of_one.new_dport;
                torn.fetch_add(u64::from(!whole), Ordering::Relaxed);
            }
            if incarnation >> 3 & 1 == 0 {
                table::remove::<Addr4, _>(memory, &shared.geometry, found.at, found.incarnation);
            }
        }
    }
}
