//! Two nodes, their programs and the stream between them, with simulated time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

use onearm_dataplane_common::flow::{FlowKey, seen};
use onearm_types::NodeId;

use super::plain::{PlainTable, record, six};
use super::wire::{Body, Said, begin_batch, push_end, push_flow, records};
use super::{Because, Coarse, Counters, Place, Record, Settings, Sync, Table, Tell, Verdict};

mod cases;
mod properties;

pub(crate) use properties::{op, play};

/// A step of simulated time, ns.
const TICK: u64 = 1_000_000;
/// Bytes that fit between the nodes.
const PIPE: usize = 256 << 10;
/// Slices of work a node gets in a tick, and their size.
const SLICES: u32 = 64;
const BUDGET: u32 = 16;

/// A table that programs can write, too.
pub(crate) trait Stage: Table + Debug {
    /// A program makes a flow; where, and what went for it.
    fn make(&self, record: &Record) -> Option<(Place, Vec<(Place, Record)>)>;
    /// A program removes a flow.
    fn unmake(&self, place: Place) -> Option<Record>;
    /// A program changes the [`seen`] bits of a flow.
    fn change(&self, place: Place, client: u8, server: u8);
    /// All flows.
    fn all(&self) -> Vec<(Place, Record)>;
    /// Where the flow with this forward key is.
    fn find(&self, key: &FlowKey) -> Option<Place>;
    /// Changes made by the session so far.
    fn written(&self) -> u64;
}

/// What flows are like for the peer, by incarnation.
fn proved<S: Stage>(table: &S) -> HashMap<u64, (FlowKey, FlowKey, Coarse)> {
    let all = table.all().into_iter();
    all.filter_map(|(_, r)| Some((r.incarnation, (r.key, r.reply_key(), r.coarse()?))))
        .collect()
}

/// What is done to records between a session and its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Drop,
    Alter,
    Duplicate,
    Swap,
    /// The whole body.
    DropBody,
    DuplicateBody,
}

#[derive(Debug)]
struct Side<S> {
    table: Arc<S>,
    sync: Sync<S>,
    ring: VecDeque<Tell>,
    /// So many events are lost next.
    losing: u64,
    lost: u64,
    owns: bool,
    /// Changes the session made while this node owned nothing.
    written: u64,
    /// Bodies under way to this node.
    pipe: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    faults: VecDeque<Fault>,
}

/// The pair.
#[derive(Debug)]
pub(super) struct Pair<S> {
    sides: [Side<S>; 2],
    make_table: fn() -> Arc<S>,
    pub(super) now: u64,
    connected: bool,
    /// Nothing arrives.
    pub(super) stalled: bool,
    latency: u64,
    /// Changes of the tables by programs and sessions, when they were last found equal.
    found_equal_at: u64,
    /// There are flows that are too young to be told.
    has_young: bool,
    epoch: u64,
    counter: u64,
    random: u64,
    /// Changes by programs, and restarts.
    changes: u64,
    /// Incarnations that were in no table when the verdict was equal: they never come back.
    dead: HashSet<u64>,
    born: HashSet<u64>,
}

impl<S: Stage> Pair<S> {
    /// Connected; node 0 owns the flows.
    pub(super) fn new(make_table: fn() -> Arc<S>, seed: u64) -> Self {
        let side = |index: u64| Side {
            table: make_table(),
            sync: session(make_table(), index, seed),
            ring: VecDeque::new(),
            losing: 0,
            lost: 0,
            owns: false,
            written: 0,
            pipe: VecDeque::new(),
            bytes: 0,
            faults: VecDeque::new(),
        };
        let mut pair = Self {
            sides: [side(0), side(1)],
            make_table,
            now: 1 << 30,
            connected: false,
            stalled: false,
            latency: 300_000,
            found_equal_at: 0,
            has_young: false,
            epoch: 1,
            counter: 0,
            random: seed | 1,
            changes: 1,
            dead: HashSet::new(),
            born: HashSet::new(),
        };
        for index in 0..2 {
            pair.restart(index, true);
        }
        pair.own(0, true);
        pair.connect();
        pair
    }

    pub(super) fn table(&self, index: usize) -> &Arc<S> {
        &self.sides[index].table
    }

    pub(super) fn sync(&mut self, index: usize) -> &mut Sync<S> {
        &mut self.sides[index].sync
    }

    pub(super) fn verdict(&self, index: usize) -> Verdict {
        self.sides[index].sync.verdict(self.now)
    }

    pub(super) fn counters(&self, index: usize) -> Counters {
        self.sides[index].sync.counters()
    }

    pub(super) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    pub(super) fn connect(&mut self) {
        self.cut();
        self.connected = true;
        for side in &mut self.sides {
            side.sync.connected(self.now);
        }
    }

    /// What is under way is lost.
    pub(super) fn cut(&mut self) {
        self.connected = false;
        for side in &mut self.sides {
            side.pipe.clear();
            side.bytes = 0;
            side.sync.disconnected(self.now);
        }
    }

    /// The process of a node ends and begins anew; with a fresh table, or with what it had.
    pub(super) fn restart(&mut self, index: usize, fresh: bool) {
        if self.connected {
            self.cut();
        }
        let seed = self.random();
        self.changes += 1 << 32;
        let table = if fresh {
            (self.make_table)()
        } else {
            self.sides[index].table.clone()
        };
        let side = &mut self.sides[index];
        side.sync = session(table.clone(), index as u64, seed);
        side.written = table.written();
        side.table = table;
        side.ring.clear();
        (side.owns, side.lost, side.losing) = (false, 0, 0);
    }

    pub(super) fn own(&mut self, index: usize, owns: bool) {
        self.epoch += u64::from(owns);
        let now = self.now;
        let side = &mut self.sides[index];
        if owns && !side.owns {
            side.written = side.table.written();
        }
        side.owns = owns;
        side.sync.owned(now, u16::from(owns));
    }

    pub(super) fn owns(&self, index: usize) -> bool {
        self.sides[index].owns
    }

    /// The next events of a node are lost.
    pub(super) fn lose(&mut self, index: usize, events: u64) {
        self.sides[index].losing += events;
    }

    /// Something goes wrong with the next batches to a node.
    pub(super) fn fault(&mut self, index: usize, faults: &[Fault]) {
        self.sides[index].faults.extend(faults);
    }

    pub(super) fn forget_faults(&mut self) {
        for side in &mut self.sides {
            side.faults.clear();
            side.losing = 0;
        }
    }

    fn tell(&mut self, index: usize, tell: Tell) {
        let side = &mut self.sides[index];
        if side.losing > 0 {
            side.losing -= 1;
            side.lost += 1;
        } else {
            side.ring.push_back(tell);
        }
    }

    /// Client n, as programs know it in a table.
    fn client(n: u16, incarnation: u64) -> Record {
        let flow = record(n, incarnation);
        if n.is_multiple_of(3) { six(&flow) } else { flow }
    }

    /// A program of a node makes a flow of client n, whatever it had; false if there is no room.
    pub(super) fn open(&mut self, index: usize, n: u16, half_open: bool) -> bool {
        self.counter += 1;
        self.changes += 1 << 32;
        let node = index as u64 + 1;
        let mut flow = Self::client(n, node << 56 | self.epoch << 40 | self.counter);
        if half_open {
            (flow.client, flow.server) = (seen::OPENED, 0);
        }
        self.born.insert(flow.incarnation);
        let Some((place, gone)) = self.sides[index].table.make(&flow) else {
            return false;
        };
        for (place, record) in gone {
            self.tell(index, Tell::Ended { place, record });
        }
        if !half_open {
            self.tell(index, Tell::Look(place));
        }
        true
    }

    /// Client n's flow is established again, or closing.
    pub(super) fn change(&mut self, index: usize, n: u16, closing: bool) {
        self.changes += 1 << 32;
        let table = &self.sides[index].table;
        let Some(place) = table.find(&Self::client(n, 1).key) else {
            return;
        };
        let fin = if closing { seen::FIN } else { 0 };
        table.change(place, seen::OPENED | seen::CONFIRMED | fin, seen::OPENED | fin);
        self.tell(index, Tell::Look(place));
    }

    /// Client n's flow is removed.
    pub(super) fn end(&mut self, index: usize, n: u16) {
        self.changes += 1 << 32;
        let table = &self.sides[index].table;
        let place = table.find(&Self::client(n, 1).key);
        if let Some(place) = place
            && let Some(record) = table.unmake(place)
        {
            self.tell(index, Tell::Ended { place, record });
        }
    }

    /// Something of client n happens on a node.
    pub(super) fn happen(&mut self, index: usize, n: u16) {
        match self.random() % 8 {
            0 => drop(self.open(index, n, true)),
            1..=3 => drop(self.open(index, n, false)),
            4 => self.change(index, n, true),
            5 => self.change(index, n, false),
            _ => self.end(index, n),
        }
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.tick();
        }
    }

    /// Lets time pass until both nodes say equal; how many milliseconds that took.
    ///
    /// # Panics
    /// If it takes longer than `most` ticks.
    pub(super) fn settle(&mut self, most: u64) -> u64 {
        for tick in 1..=most {
            self.tick();
            if (0..2).all(|index| self.verdict(index) == Verdict::Equal) {
                return tick;
            }
        }
        panic!(
            "not equal: {} / {}\n{:#?}\n{:#?}",
            self.verdict(0),
            self.verdict(1),
            self.counters(0),
            self.counters(1)
        );
    }

    pub(super) fn tick(&mut self) {
        self.now += TICK;
        for index in 0..2 {
            self.drain(index);
            self.hear(index);
            self.work(index);
            self.speak(index);
        }
        self.check();
    }

    fn drain(&mut self, index: usize) {
        let side = &mut self.sides[index];
        while let Some(tell) = side.ring.pop_front() {
            side.sync.told(self.now, tell);
        }
        side.sync.drained(self.now, side.lost);
    }

    fn hear(&mut self, index: usize) {
        let side = &mut self.sides[index];
        while !self.stalled
            && let Some((_, body)) = side.pipe.pop_front_if(|(at, _)| *at <= self.now)
        {
            side.bytes -= body.len();
            side.sync.heard(self.now, &body).unwrap();
        }
    }

    fn work(&mut self, index: usize) {
        let side = &mut self.sides[index];
        for _ in 0..SLICES {
            let is_due = side.sync.deadline().is_some_and(|at| at <= self.now);
            if !is_due || !side.sync.work(self.now, BUDGET) {
                break;
            }
        }
    }

    fn speak(&mut self, index: usize) {
        let at = self.now + self.latency;
        while self.connected && self.sides[1 - index].bytes < PIPE {
            let Some(body) = self.sides[index].sync.next_body(self.now, 60_000) else {
                break;
            };
            assert!(body.len() <= 60_000);
            let random = self.random();
            let peer = &mut self.sides[1 - index];
            let is_batch = matches!(Body::parse(&body), Ok(Body::Batch(..)));
            let fault = if is_batch { peer.faults.pop_front() } else { None };
            let bodies = match fault {
                None => vec![body],
                Some(Fault::DropBody) => Vec::new(),
                Some(Fault::DuplicateBody) => vec![body.clone(), body],
                Some(fault) => vec![mangle(&body, fault, random)],
            };
            for body in bodies {
                peer.bytes += body.len();
                peer.pipe.push_back((at, body));
            }
        }
    }

    /// What must hold at any time.
    fn check(&mut self) {
        for side in &self.sides {
            if side.owns {
                assert_eq!(
                    side.table.written(),
                    side.written,
                    "an owner's flows were touched"
                );
            }
        }
        let is_still = self
            .sides
            .iter()
            .all(|side| side.pipe.is_empty() && side.ring.is_empty());
        for index in 0..2 {
            let changes = self.changes + self.table(0).written() + self.table(1).written();
            if is_still && changes != self.found_equal_at && self.verdict(index) == Verdict::Equal {
                self.compare();
                self.bury();
                self.found_equal_at = changes;
            }
        }
    }

    fn compare(&self) {
        let [one, other] = [0, 1].map(|index| proved(&**self.table(index)));
        let differing: Vec<String> = one
            .keys()
            .chain(other.keys())
            .filter(|incarnation| one.get(incarnation) != other.get(incarnation))
            .filter(|incarnation| !self.is_kept(**incarnation))
            .map(|incarnation| format!("{incarnation:x}"))
            .collect();
        assert!(
            differing.is_empty() || self.has_young,
            "said to be equal, but {differing:?}"
        );
    }

    /// Made by a node that was armed, and its own for a while.
    fn is_kept(&self, incarnation: u64) -> bool {
        let sides = self.sides.iter().zip(1..);
        sides
            .filter(|(side, _)| !side.owns && side.sync.has_acted(self.now))
            .any(|(_, node)| incarnation >> 56 == node)
    }

    fn bury(&mut self) {
        let alive: HashSet<u64> = [0, 1]
            .iter()
            .flat_map(|index| self.table(*index).all())
            .map(|(_, record)| record.incarnation)
            .collect();
        let risen: Vec<_> = self.dead.intersection(&alive).collect();
        assert!(risen.is_empty(), "came back: {risen:x?}");
        self.dead
            .extend(self.born.extract_if(|incarnation| !alive.contains(incarnation)));
    }

    /// Faults and flows end, one node owns: the tables become equal within ten seconds.
    pub(super) fn heal(&mut self) -> u64 {
        self.forget_faults();
        self.stalled = false;
        if self.owns(0) && self.owns(1) {
            self.own(1, false);
        } else if !self.owns(0) && !self.owns(1) {
            self.own(0, true);
        }
        if !self.connected {
            self.connect();
        }
        let took = self.settle(10_000);
        self.compare();
        took
    }
}

fn session<S: Stage>(table: Arc<S>, index: u64, seed: u64) -> Sync<S> {
    let node = NodeId::new(u8::try_from(index + 1).unwrap()).unwrap();
    Sync::new(table, node, [seed, index], Settings::default())
}

/// Does something to the records of a batch.
fn mangle(body: &[u8], fault: Fault, random: u64) -> Vec<u8> {
    let Ok(Body::Batch(at, batch)) = Body::parse(body) else {
        panic!("no batch");
    };
    let mut said: Vec<Said> = records(batch).map(Result::unwrap).collect();
    let n = usize::try_from(random % said.len() as u64).unwrap();
    let other = usize::try_from((random >> 32) % said.len() as u64).unwrap();
    match fault {
        Fault::Drop => drop(said.remove(n)),
        Fault::Duplicate => said.push(said[n]),
        Fault::Swap => said.swap(n, other),
        Fault::Alter => match &mut said[n] {
            Said::Flow(record) => match random >> 60 {
                0..4 => record.new_dport ^= 0x0100,
                4..8 => record.incarnation ^= 1 << 20,
                8..12 => record.client ^= seen::RST,
                _ => record.key.sport ^= 0x0100,
            },
            Said::End(_, incarnation) => *incarnation ^= 1 << 20,
            Said::Unknown | Said::Short => {}
        },
        Fault::DropBody | Fault::DuplicateBody => {}
    }
    let mut bytes = Vec::new();
    begin_batch(&mut bytes, at);
    for said in said {
        match said {
            Said::Flow(record) => push_flow(&mut bytes, &record),
            Said::End(key, incarnation) => push_end(&mut bytes, &key, incarnation),
            Said::Unknown | Said::Short => {}
        }
    }
    bytes
}

impl Stage for PlainTable {
    fn make(&self, record: &Record) -> Option<(Place, Vec<(Place, Record)>)> {
        self.make(record)
    }

    fn unmake(&self, place: Place) -> Option<Record> {
        self.unmake(place)
    }

    fn change(&self, place: Place, client: u8, server: u8) {
        self.change(place, |record| (record.client, record.server) = (client, server));
    }

    fn all(&self) -> Vec<(Place, Record)> {
        self.all()
    }

    fn find(&self, key: &FlowKey) -> Option<Place> {
        self.find(key)
    }

    fn written(&self) -> u64 {
        self.written()
    }
}
