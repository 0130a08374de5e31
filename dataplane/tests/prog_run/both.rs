//! The loaded programs, and the same code in user space, with the same state on both sides.
//!
//! Verdict, bytes, counters and flow table must be the same after each frame. Where chance decides (a source port, the server
//! of a datagram that is scheduled on its own) what the kernel did is held against the naive reference instead, and the
//! other side goes on from there. Clocks differ by microseconds: a history in which a tick or a rate's credit fell between the
//! two is given up.

use crate::{
    fuzz::{
        expect::{Want, expect},
        judge::{Event, Judge, Outcome},
        script,
    },
    host::Counted,
    kernel::Kernel,
    support::{Engine, Setup, Verdict, setup::IFINDEX},
};
use onearm_dataplane_common::{
    addr::Addr4,
    counter::{COUNTERS, Counter},
    flow::FlowEntry,
    fragment::identification,
    help,
    maps::TICK_SHIFT,
    tables::tick,
    tell::{ENDED4, ENDED6},
};
use std::{collections::HashMap, mem::offset_of, time::Duration};

/// Frames shorter than an Ethernet header never get to a program.
const SHORTEST: usize = 14;
/// Addresses of an IPv4 packet in an untagged frame.
const ENDS: std::ops::Range<usize> = 26..34;
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
/// Why a history ends early.
pub enum End {
    Wrong(String),
    /// The clocks told different times.
    Clock,
}

pub type Step = Result<(), End>;

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

/// CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    u64::try_from(Duration::from(time).as_nanos()).expect("since boot")
}

/// A node in the kernel, and one in user space.
pub struct Both<'k> {
    kernel: &'k mut Kernel,
    pub judge: Judge,
    /// By how much flows were made older.
    aged: u32,
    pub frames: u64,
}

impl<'k> Both<'k> {
    /// `ids`: [`Both::ids`] of who used the kernel before.
    pub fn new(kernel: &'k mut Kernel, setup: &Setup, ids: &[u32]) -> Self {
        kernel.load(setup);
        kernel.forget_flows(setup.buckets, ids);
        let judge = Judge::new(setup);
        judge.host.incarnation.set(kernel.incarnation());
        Self {
            kernel,
            judge,
            aged: 0,
            frames: 0,
        }
    }

    /// Lets something happen to both.
    pub fn happen(&mut self, event: &Event) -> Step {
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
                self.judge.host.tells.get_mut().clear();
                self.copy_to_kernel();
            }
            Event::Noted => {
                self.judge.host.now = now();
                self.judge.clients.note(&mut self.judge.host);
                self.kernel.set_clients(&self.judge.host.setup);
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

    /// Identifications that were given.
    pub fn ids(&self) -> Vec<u32> {
        self.judge.host.fragment_ids.borrow().keys().copied().collect()
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
        for (_, noted) in &mut self.judge.clients.0 {
            noted.seen = noted.seen.saturating_sub(ticks);
        }
        self.judge.clients.write(&mut self.judge.host.setup);
        self.kernel.set_clients(&self.judge.host.setup);
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

    /// By chance another server got the packet, and so another counter of identifications went on. `ids`: as they were before.
    fn count_as_kernel(&self, ids: HashMap<u32, u64>, kernel: &[u8], user: &[u8]) {
        let host = &self.judge.host;
        let counted = *host.fragment_ids.borrow() != ids;
        if let (true, Some(ends)) = (counted, kernel.get(ENDS))
            && user.get(ENDS) != Some(ends)
        {
            *host.fragment_ids.borrow_mut() = ids;
            let [from, to] =
                [&ends[..4], &ends[4..]].map(|end| u32::from_ne_bytes(end.try_into().expect("four bytes")));
            identification::<Addr4, _>(host, from, to);
        }
    }

    fn arrive(&mut self, ifindex: u32, frame: &[u8], note: u32) -> Step {
        if ifindex != IFINDEX || frame.len() < SHORTEST {
            return Ok(());
        }
        self.frames += 1;
        let before = self.judge.host.entries();
        let counted = (counters(self.kernel), counters(&self.judge.host));
        let drawn = self.judge.host.drawn.get();
        let ids = self.judge.host.fragment_ids.borrow().clone();
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
        let told = (timeless_tells(self.kernel), timeless_tells(&mut self.judge.host));
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
            self.count_as_kernel(ids, &kernel.1, &out);
            self.holds(
                &want,
                (ifindex, frame, note),
                &before,
                &kernel,
                (&moved.0, &told.0),
            )
        } else {
            self.is_same(&kernel, &(verdict, out), &moved, &told)
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
        told: &(Tells, Tells),
    ) -> Step {
        same!(kernel.0, user.0, "verdict");
        // What is dropped is nobody's.
        if kernel.0 != Verdict::Drop {
            same!(script::hex(&kernel.1), script::hex(&user.1), "frame");
        }
        same!(moved.0, moved.1, "counters");
        same!(told.0, told.1, "what the peer is to know");
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
        want: &Want,
        (ifindex, frame, note): (u32, &[u8], u32),
        before: &[FlowEntry],
        (verdict, out): &(Verdict, Vec<u8>),
        (moved, told): (&HashMap<Counter, u64>, &[Vec<u64>]),
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
            told,
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

/// Records of `FLOW_TELLS`.
type Tells = Vec<Vec<u64>>;

/// The same of what the peer is to know.
fn timeless_tells<E: Engine>(engine: &mut E) -> Tells {
    let mut tells = engine.tells();
    for tell in &mut tells {
        let at = match tell.len() {
            ENDED4 => offset_of!(FlowEntry<Addr4>, last_seen) / 8,
            ENDED6 => offset_of!(FlowEntry, last_seen) / 8,
            _ => continue,
        };
        tell[1 + at] = 0;
    }
    tells
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
