//! The loaded programs against the same code in user space: frames nobody would send, with the same state on both sides.
//!
//! Verdict, bytes, counters and flow table must be the same after each frame. Where chance decides (a source port, the server
//! of a datagram that is scheduled on its own) what the kernel did is held against the naive reference instead, and the
//! other side goes on from there. Clocks differ by microseconds: a history in which a tick or a rate's credit fell between the
//! two is given up.

use crate::{
    fuzz::{
        draw::{Op, op},
        expect::expect,
        judge::{Event, Judge, Outcome},
        script,
        setups::{Family, SETUPS, setup},
    },
    host::Counted,
    kernel::Kernel,
    support::{Engine, Verdict, setup::IFINDEX},
};
use onearm_dataplane_common::{
    counter::{COUNTERS, Counter},
    flow::FlowEntry,
    help,
    maps::TICK_SHIFT,
    tables::tick,
};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};
use std::{cell::RefCell, collections::HashMap, time::Duration};

/// Frames shorter than an Ethernet header never get to a program.
const SHORTEST: usize = 14;
/// Whether a test run of the egress gate takes a frame: in one page, something behind the Ethernet header, and of IP the whole
/// header (net/bpf/test_run.c, `bpf_prog_test_run_skb`).
fn gate_takes(frame: &[u8]) -> bool {
    let least = match frame.get(12..SHORTEST) {
        Some([0x08, 0x00]) => SHORTEST + 20,
        Some([0x86, 0xdd]) => SHORTEST + 40,
        _ => SHORTEST + 1,
    };
    (least..3_000).contains(&frame.len())
}
/// Operations of one history.
const MOST_OPS: usize = 150;

/// Why a history ends early.
enum End {
    Wrong(String),
    /// The clocks told different times.
    Clock,
}

type Step = Result<(), End>;

macro_rules! same {
    ($kernel:expr, $user:expr, $what:expr) => {
        if $kernel != $user {
            return Err(End::Wrong(format!(
                "{}:\nkernel     {:?}\nuser space {:?}",
                $what, $kernel, $user
            )));
        }
    };
}

fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    u64::try_from(Duration::from(time).as_nanos()).expect("since boot")
}

/// A node in the kernel, and one in user space.
struct Both<'k> {
    kernel: &'k mut Kernel,
    judge: Judge,
    /// By how much flows were made older.
    aged: u32,
    frames: u64,
}

impl<'k> Both<'k> {
    fn new(kernel: &'k mut Kernel, name: &str, family: Family, ids: &[u32]) -> Self {
        let setup = setup(name, family);
        kernel.load(&setup);
        kernel.forget_flows(setup.buckets, ids);
        let judge = Judge::new(&setup);
        judge.host.incarnation.set(kernel.incarnation());
        Self {
            kernel,
            judge,
            aged: 0,
            frames: 0,
        }
    }

    fn happen(&mut self, event: &Event) -> Step {
        self.judge.history.push(event.clone());
        match event {
            Event::Frame(ifindex, frame) => return self.arrive(*ifindex, frame, 0),
            Event::Again(note, ifindex, frame) => return self.arrive(*ifindex, frame, *note),
            Event::Leaves(frame) if gate_takes(frame) => {
                same!(
                    self.kernel.leaves(frame),
                    self.judge.host.leaves(frame),
                    "a frame leaves"
                );
            }
            Event::Leaves(_) => {}
            Event::Ticks(ticks) => self.age(*ticks),
            Event::Sweep => {
                self.judge.host.now = now();
                self.judge.host.sweep();
                self.copy_to_kernel();
            }
            Event::Judged(n, believed) => {
                if let Some(hop) = self.judge.host.numbered_last_hop(*n) {
                    Engine::judge(self.kernel, hop, *believed);
                    Engine::judge(&mut self.judge.host, hop, *believed);
                }
            }
            Event::Lease(held) => {
                self.kernel.lease(*held);
                self.judge.happen(event).map_err(End::Wrong)?;
                self.judge.history.pop();
            }
            Event::Server(..) | Event::Change(_) => {
                self.judge.happen(event).map_err(End::Wrong)?;
                self.judge.history.pop();
                if matches!(event, Event::Change(_)) {
                    self.kernel.change(&self.judge.host.setup);
                } else {
                    self.kernel.set_servers(&self.judge.host.setup);
                }
            }
        }
        Ok(())
    }

    /// All that is remembered gets older: nobody waits for time to pass.
    fn age(&mut self, ticks: u32) {
        if self.aged + ticks > tick(now()) / 2 {
            return;
        }
        self.aged += ticks;
        let ns = u64::from(ticks) << TICK_SHIFT;
        let host = &mut self.judge.host;
        for bucket in &mut host.buckets {
            for entry in &mut bucket.get_mut().entries {
                entry.last_seen = entry.last_seen.saturating_sub(ticks);
            }
        }
        for bucket in &mut host.buckets6 {
            for entry in &mut bucket.get_mut().entries {
                entry.last_seen = entry.last_seen.saturating_sub(ticks);
            }
        }
        for first in host.fragments.borrow_mut().values_mut() {
            first.time = first.time.saturating_sub(ns);
        }
        self.kernel.age_fragments(ns);
        self.copy_to_kernel();
    }

    /// Flow table and counts.
    fn copy_to_kernel(&mut self) {
        let host = &mut self.judge.host;
        let table = (
            host.buckets.iter_mut().map(|b| *b.get_mut()).collect(),
            host.buckets6.iter_mut().map(|b| *b.get_mut()).collect(),
        );
        let mut counts = [Vec::new(), Vec::new(), Vec::new()];
        for (what, n) in host.counts.borrow().iter() {
            match what {
                Counted::Service(index) => counts[0].push((*index, *n)),
                Counted::Server(index) => counts[1].push((*index, *n)),
                Counted::Source(index) => counts[2].push((*index, *n)),
            }
        }
        self.kernel.set_table(&table);
        self.kernel.set_counts(host.half_open.get(), counts);
    }

    fn copy_from_kernel(&mut self) {
        let host = &mut self.judge.host;
        let (four, six) = self.kernel.table();
        for (bucket, new) in host.buckets.iter_mut().zip(four) {
            *bucket.get_mut() = new;
        }
        for (bucket, new) in host.buckets6.iter_mut().zip(six) {
            *bucket.get_mut() = new;
        }
        host.half_open.set(self.kernel.half_open());
        host.incarnation.set(self.kernel.incarnation());
    }

    fn arrive(&mut self, ifindex: u32, frame: &[u8], note: u32) -> Step {
        if ifindex != IFINDEX || frame.len() < SHORTEST {
            return Ok(());
        }
        self.frames += 1;
        let before = self.judge.host.entries();
        let counted = (counters(self.kernel), counters(&self.judge.host));
        let drawn = self.judge.host.drawn.get();
        self.judge.host.now = now();
        let began = self.judge.host.now;
        let node = (&self.judge.host, self.judge.leased, &before[..]);
        let want = expect(node, (ifindex, frame, note));
        let (verdict, out, _) = self.judge.host.pass_through(frame, ifindex, note);
        let kernel = if note == 0 {
            self.kernel.run(frame)
        } else {
            let (verdict, out, _) = self.kernel.run_again(frame, note);
            (verdict, out)
        };
        let moved = (
            difference(&counted.0, self.kernel),
            difference(&counted.1, &self.judge.host),
        );
        let late = tick(began) != tick(now())
            || [&moved.0, &moved.1].iter().any(|m| {
                [Counter::RefusalLimited, Counter::HelpLimited, Counter::MaxNew]
                    .iter()
                    .any(|c| m.contains_key(c))
            });
        let by_chance = self.judge.host.drawn.get() != drawn;
        let outcome = if by_chance {
            self.copy_from_kernel();
            self.holds(&want, (ifindex, frame, note), &before, &kernel, &moved.0)
        } else {
            self.is_same(&kernel, &(verdict, out), &moved)
        };
        if let Err(End::Wrong(wrong)) = outcome {
            return Err(if late { End::Clock } else { End::Wrong(wrong) });
        }
        // Another port, another number of tries, another server: what else differs is not known.
        if by_chance && moved.0 != moved.1 {
            return Err(End::Clock);
        }
        self.copy_from_kernel();
        let (verdict, out) = kernel;
        if note == 0 && verdict == Verdict::Pass && out.len() == frame.len() + help::LEN {
            let most = u16::from_be_bytes([out[help::MOST], out[help::MOST + 1]]);
            let most = (out[help::WHAT] == help::wanted::DIVIDE).then_some(most);
            self.judge.given.push((ifindex, out[help::LEN..].to_vec(), most));
        }
        Ok(())
    }

    fn is_same(
        &mut self,
        kernel: &(Verdict, Vec<u8>),
        user: &(Verdict, Vec<u8>),
        moved: &(HashMap<Counter, u64>, HashMap<Counter, u64>),
    ) -> Step {
        same!(kernel.0, user.0, "verdict");
        // What is dropped is nobody's.
        if kernel.0 != Verdict::Drop {
            same!(script::hex(&kernel.1), script::hex(&user.1), "frame");
        }
        same!(moved.0, moved.1, "counters");
        same!(
            timeless(self.kernel.entries()),
            timeless(self.judge.host.entries()),
            "flows"
        );
        same!(
            self.kernel.half_open(),
            self.judge.host.half_open.get(),
            "half-open flows"
        );
        Ok(())
    }

    fn holds(
        &self,
        want: &crate::fuzz::expect::Want,
        (ifindex, frame, note): (u32, &[u8], u32),
        before: &[FlowEntry],
        (verdict, out): &(Verdict, Vec<u8>),
        moved: &HashMap<Counter, u64>,
    ) -> Step {
        let outcome = Outcome {
            ifindex,
            frame,
            note,
            verdict: *verdict,
            out,
            before,
            after: &self.judge.host.entries(),
            moved,
        };
        self.judge.check(want, &outcome).map_err(End::Wrong)
    }
}

/// Without the time of their last packet.
fn timeless(mut flows: Vec<FlowEntry>) -> Vec<FlowEntry> {
    for flow in &mut flows {
        flow.last_seen = 0;
    }
    flows
}

fn counters<E: Engine>(engine: &E) -> Vec<u64> {
    COUNTERS
        .iter()
        .map(|(counter, _)| engine.counter(*counter))
        .collect()
}

/// By how much counters moved. Nobody reads the kernel's events.
fn difference<E: Engine>(before: &[u64], engine: &E) -> HashMap<Counter, u64> {
    COUNTERS
        .iter()
        .zip(before.iter().zip(counters(engine)))
        .filter(|((counter, _), (was, is))| *was != is && *counter != Counter::EventLost)
        .map(|((counter, _), (was, is))| (*counter, is - was))
        .collect()
}

#[derive(Default)]
struct Tally {
    frames: u64,
    histories: u64,
    given_up: u64,
    /// Identifications given in the history before.
    ids: Vec<u32>,
}

fn run(kernel: &mut Kernel, name: &str, family: Family, ops: &[Op], tally: &mut Tally) -> Result<(), String> {
    let mut both = Both::new(kernel, name, family, &tally.ids);
    let outcome = ops.iter().try_for_each(|op| {
        (0..op.steps()).try_for_each(|step| {
            let events = op.events(step, family, &both.judge.host.entries(), &both.judge.given);
            events.iter().try_for_each(|event| both.happen(event))
        })
    });
    tally.frames += both.frames;
    tally.histories += 1;
    tally.ids = both.judge.host.fragment_ids.borrow().keys().copied().collect();
    match outcome {
        Ok(()) => Ok(()),
        Err(End::Clock) => {
            tally.given_up += 1;
            Ok(())
        }
        Err(End::Wrong(wrong)) => Err(format!(
            "{wrong}\n\n{}",
            script::print(name, family, &both.judge.history)
        )),
    }
}

/// For `ONEARM_FUZZ_SECONDS`, else a few seconds; `ONEARM_FUZZ_SEED` repeats a run.
#[test]
#[ignore = "needs root"]
fn the_kernel_makes_of_arbitrary_frames_what_user_space_makes_of_them() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    // A run of a given length looks for what is new, any other sees that what held still holds.
    let fresh = || {
        if number("ONEARM_FUZZ_SECONDS").is_some() {
            now()
        } else {
            1
        }
    };
    let mut seed = number("ONEARM_FUZZ_SEED").unwrap_or_else(fresh);
    println!("seeds from {seed}");
    let kernel = RefCell::new(Kernel::new());
    let end = now() + number("ONEARM_FUZZ_SECONDS").unwrap_or(15) * 1_000_000_000;
    let tally = RefCell::new(Tally::default());
    while now() < end {
        let config = Config {
            cases: 16,
            failure_persistence: None,
            max_shrink_iters: 400,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let strategy = (
            0..SETUPS.len(),
            0..Family::ALL.len(),
            prop::collection::vec(op(), 1..MOST_OPS),
        );
        let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |(name, family, ops)| {
            run(
                &mut kernel.borrow_mut(),
                SETUPS[name],
                Family::ALL[family],
                &ops,
                &mut tally.borrow_mut(),
            )
            .map_err(TestCaseError::fail)
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, _)) => panic!("seed {seed}: {reason}"),
            Err(abort) => panic!("seed {seed}: {abort}"),
        }
        seed += 1;
    }
    let tally = tally.borrow();
    println!(
        "{} frames in {} histories, {} given up",
        tally.frames, tally.histories, tally.given_up
    );
    assert!(
        tally.given_up * 2 < tally.histories,
        "the clocks spoil most histories"
    );
}

#[test]
#[ignore = "needs root"]
fn what_was_wrong_once_stays_right_in_the_kernel() {
    let mut kernel = Kernel::new();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("common/tests/corpus");
    let mut ids = Vec::new();
    for file in std::fs::read_dir(&folder).expect("the corpus") {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let (name, family, events) = script::parse(&text).expect("a script");
        let mut both = Both::new(&mut kernel, &name, family, &ids);
        for event in &events {
            match both.happen(event) {
                Ok(()) | Err(End::Clock) => {}
                Err(End::Wrong(wrong)) => panic!("{}: {wrong}", path.display()),
            }
        }
        ids = both.judge.host.fragment_ids.borrow().keys().copied().collect();
    }
}
