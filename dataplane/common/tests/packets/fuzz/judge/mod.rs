//! Runs frames, holds what becomes of them against the reference, and checks what must always be true.

use super::{
    changes,
    clients::Clients,
    expect::{Scene, Want, expect, is_of_the_pair},
    read::be16,
};
use crate::{
    host::Host,
    support::{Engine, Setup, Verdict},
};
use onearm_dataplane_common::{
    counter::{COUNTERS, Counter},
    flow::FlowEntry,
    help,
    maps::server,
};
use std::collections::{BTreeMap, HashMap};

/// What is done to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame comes by an interface.
    Frame(u32, Vec<u8>),
    /// Time passes: ticks of 67 ms.
    Ticks(u32),
    Lease(bool),
    /// A server's flags change.
    Server(u32, u32),
    /// User space runs the programs on a frame, with this before it.
    Again(u32, u32, Vec<u8>),
    /// The kernel sends a frame.
    Leaves(Vec<u8>),
    /// User space removes flows that were silent for too long.
    Sweep,
    /// User space notes which servers clients have.
    Noted,
    /// User space finds a last hop, by number, believable or not.
    Judged(u32, bool),
    /// One of [`changes::CHANGES`].
    Change(&'static str),
}

/// What never happens to a program that is alone.
const NEVER: [Counter; 3] = [Counter::Internal, Counter::LockContended, Counter::FlowRaceLost];

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

mod compare;
mod made;
mod refused;
mod settle;
mod sound;
mod told;

/// A frame user space was given: its interface, the frame, and the bytes its fragments may have, if it is to be fragmented.
pub type Given = (u32, Vec<u8>, Option<u16>);

/// A node and what happened to it.
pub struct Judge {
    pub host: Host,
    pub leased: bool,
    pub history: Vec<Event>,
    pub met: BTreeMap<&'static str, u64>,
    pub given: Vec<Given>,
    pub clients: Clients,
    credits: refused::Credits,
}

/// A frame and what became of it.
pub struct Outcome<'o> {
    pub ifindex: u32,
    pub frame: &'o [u8],
    pub note: u32,
    pub verdict: Verdict,
    pub out: &'o [u8],
    pub before: &'o [FlowEntry],
    pub after: &'o [FlowEntry],
    /// By how much counters moved.
    pub moved: &'o HashMap<Counter, u64>,
    /// Records of `FLOW_TELLS`.
    pub told: &'o [Vec<u64>],
}

impl Outcome<'_> {
    fn counted(&self, counter: Counter) -> bool {
        self.moved.contains_key(&counter)
    }
}

impl Judge {
    pub fn new(setup: &Setup) -> Self {
        Self {
            host: Host::new(setup),
            leased: true,
            history: Vec::new(),
            met: BTreeMap::new(),
            given: Vec::new(),
            clients: Clients::default(),
            credits: refused::Credits::default(),
        }
    }

    /// Lets something happen; what is wrong about it.
    pub fn happen(&mut self, event: &Event) -> Result<(), String> {
        self.history.push(event.clone());
        match event {
            Event::Frame(ifindex, frame) => return self.arrive(*ifindex, frame, 0),
            Event::Again(note, ifindex, frame) => return self.arrive(*ifindex, frame, *note),
            Event::Leaves(frame) => return self.leave(frame),
            Event::Ticks(ticks) => self.host.pass_ticks(*ticks),
            Event::Sweep => self.host.sweep(),
            Event::Noted => self.clients.note(&mut self.host),
            Event::Judged(n, believed) => {
                if let Some(hop) = self.host.numbered_last_hop(*n) {
                    Engine::judge(&mut self.host, hop, *believed);
                }
            }
            Event::Change(name) => self.host.edit(changes::named(name).ok_or("a change")?),
            Event::Lease(held) => {
                self.leased = *held;
                Engine::lease(&mut self.host, *held);
            }
            Event::Server(index, flags) => self.host.edit(|setup| {
                let found = setup.servers.iter_mut().find(|(i, _)| i == index);
                if let Some((_, server)) = found {
                    let weight = server.flags >> server::WEIGHT_SHIFT << server::WEIGHT_SHIFT;
                    server.flags = *flags | server::USED | weight;
                }
            }),
        }
        Ok(())
    }

    fn counters(&self) -> Vec<u64> {
        COUNTERS.iter().map(|(c, _)| self.host.counter(*c)).collect()
    }

    fn leave(&mut self, frame: &[u8]) -> Result<(), String> {
        let counted = self.counters();
        let may = self.leased || !is_of_the_pair(&self.host, frame);
        ensure!(self.host.leaves(frame) == may, "it may leave: {may}");
        let moved = self.moved(&counted);
        ensure!(may == moved.is_empty(), "{moved:?}");
        Ok(())
    }

    /// By how much counters moved since.
    fn moved(&mut self, counted: &[u64]) -> HashMap<Counter, u64> {
        let moved: HashMap<Counter, u64> = COUNTERS
            .iter()
            .zip(counted.iter().zip(self.counters()))
            .filter(|(_, (was, is))| *was != is)
            .map(|((counter, _), (was, is))| (*counter, is - was))
            .collect();
        for (counter, n) in &moved {
            *self.met.entry(counter.name()).or_default() += n;
        }
        moved
    }

    fn arrive(&mut self, ifindex: u32, frame: &[u8], note: u32) -> Result<(), String> {
        let before = self.host.entries();
        let counted = self.counters();
        self.host.tells.get_mut().clear();
        let want = expect((&self.host, self.leased, &before), (ifindex, frame, note));
        let (verdict, out, _) = self.host.pass_through(frame, ifindex, note);
        let moved = self.moved(&counted);
        let outcome = Outcome {
            ifindex,
            frame,
            note,
            verdict,
            out: &out,
            before: &before,
            after: &self.host.entries(),
            moved: &moved,
            told: &self.host.tells(),
        };
        self.check(&want, &outcome)?;
        if let Want::NewFlow { fresh } = &want {
            let scene = self.scene(&outcome)?;
            let ip = scene.opener(*fresh).ok_or("a packet")?;
            self.rated_well(&ip, be16(frame, ip.l4 + 2), &outcome)?;
        }
        if note == 0 && verdict == Verdict::Pass && out.len() == frame.len() + help::LEN {
            let most = be16(&out, help::MOST);
            let most = (out[help::WHAT] == help::wanted::DIVIDE).then_some(most);
            self.given.push((ifindex, out[help::LEN..].to_vec(), most));
        }
        Ok(())
    }

    /// Holds an outcome against what was wanted, and what is always true.
    pub fn check(&self, want: &Want, outcome: &Outcome<'_>) -> Result<(), String> {
        sound::accounted(outcome)
            .and_then(|()| told::right(outcome))
            .and_then(|()| self.compare(want, outcome))
            .and_then(|()| self.sound(outcome))
            .map_err(|wrong| format!("{wrong}; {:?}, {:?}", outcome.verdict, outcome.moved))
    }

    fn scene<'o>(&'o self, o: &Outcome<'o>) -> Result<Scene<'o>, String> {
        let node = (&self.host, self.leased, o.before);
        Ok(Scene::read(node, (o.ifindex, o.frame, o.note)).ok_or("a leg")?)
    }
}
