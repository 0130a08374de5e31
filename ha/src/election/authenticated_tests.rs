//! Two authenticated nodes with a leg and a peer link, each of which can be cut or lose one direction; paused, killed,
//! deafened, put back to a snapshot, and fed with recordings. Who owns is read from both lease cells every quarter of a
//! millisecond. What a node knows of its own hearing is the driver's own machine. Slewed clocks and stalls are `pair_tests`' business: the lease's arithmetic is the same.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::auth::{Health, Key, KeyId, Kind, PairKeys, Session, Signs, Stamp};
use crate::config::tests::sample;
use crate::config::{Auth, Config, DatagramPath, Rollout};
use crate::driver::reception::Reception;
use crate::units::{Centiseconds, MonoTime, Priority};
use crate::wire::Mac;

const MS: u64 = 1_000_000;
/// Time between two looks at everything. Nanoseconds.
const STEP: u64 = MS / 4;
const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 12)),
];
/// Longest time between two HA datagrams. Nanoseconds.
const DATAGRAM: u64 = 50 * MS;
/// What answers both nodes on the leg.
const WITNESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The leg carries nothing between the nodes; this node is on the side without witness, servers and clients.
    Parted(usize),
    /// What this node sends on the leg does not reach the peer; everything else does.
    LegMute(usize),
    /// This node's leg receives nothing from anybody.
    Deaf(usize),
    /// This node's leg has no carrier.
    Carrier(usize),
    /// Nobody but the nodes says anything on the leg.
    Witness,
    /// The peer link carries nothing.
    Link,
    /// What this node sends on the peer link does not arrive.
    LinkMute(usize),
    /// The virtual machine stands still, and its clock with it.
    Pause(usize),
    /// The process is gone; at the end of the fault it starts again.
    Kill(usize),
    /// At the end of the fault the node is what it was at its beginning.
    Revert(usize),
}

#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    kind: Kind,
    priority: Priority,
    epoch: u64,
    health: Health,
    hears_twins: bool,
    signs: Signs,
    stamp: Stamp,
}

/// Ways of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Leg,
    Link,
}

#[derive(Clone)]
struct Machine {
    election: Election,
    session: Session,
    reception: Reception,
    cell: MonoTime,
    yields: bool,
    armed: MonoTime,
    relays: MonoTime,
    /// When the next datagram is due.
    datagram_at: MonoTime,
}

struct Node {
    machine: Option<Box<Machine>>,
    /// When it was taken, by the clock of the node.
    snapshot: Option<(MonoTime, Box<Machine>)>,
    inbox: Vec<(Path, Message)>,
    /// Time its clock stood still.
    lag: u64,
    carrier: bool,
    /// The epoch on its disk: one more than the highest it knows of, as the daemon keeps it.
    stored: u64,
}

struct Pair {
    nodes: [Node; 2],
    settings: [Settings; 2],
    configs: [Rc<Config>; 2],
    real: u64,
    link: bool,
    targets: bool,
    faults: Vec<(u64, u64, Fault)>,
    /// When, to whom, what; sorted.
    orders: VecDeque<(u64, usize, Input)>,
    /// What was not done of them.
    refused: Vec<(usize, Unable)>,
    /// Who owned last: clients send to it.
    believed: Option<usize>,
    random: u64,
    /// Everything ever sent.
    recorded: Vec<Message>,
    /// From then on a recording is played to a node, ten messages a step.
    replay: Option<(u64, usize)>,
    /// Spans with two owners: from, until.
    doubles: Vec<(u64, u64)>,
    owners: [bool; 2],
}

impl Pair {
    fn new(interval_ms: u16, link: bool, targets: bool, faults: Vec<(u64, u64, Fault)>) -> Self {
        let settings = [0, 1].map(|index| Settings {
            priority: Priority::configured([150, 100][index]).unwrap(),
            interval: Centiseconds::new(interval_ms / 10).unwrap(),
            preempt: false,
            preferred: index == 0,
            address: ADDRESSES[index],
            peer: ADDRESSES[1 - index],
            authenticated: true,
            stance: Stance::Normal,
        });
        let key = Key {
            id: KeyId(1),
            secret: [1; 32],
        };
        let node = || Node {
            machine: None,
            snapshot: None,
            inbox: Vec::new(),
            lag: 0,
            carrier: false,
            stored: 0,
        };
        let config = |settings: Settings| Config {
            advert_interval: settings.interval,
            auth: Some(Auth {
                keys: PairKeys::new([9; 16], vec![key.clone()]).unwrap(),
                node: 1,
                rollout: Rollout::Enforce,
                paths: vec![DatagramPath {
                    ifname: sample().ifname,
                    own: (settings.address, 8471).into(),
                    peer: (settings.peer, 8471).into(),
                }],
                epoch: 0,
                generation: 0,
            }),
            witness: targets.then_some(WITNESS),
            ..sample()
        };
        let mut pair = Self {
            nodes: [node(), node()],
            configs: settings.map(|settings| Rc::new(config(settings))),
            settings,
            real: 10_000 * MS,
            link,
            targets,
            faults,
            orders: VecDeque::new(),
            refused: Vec::new(),
            believed: None,
            random: 0x2545_f491_4f6c_dd1d,
            recorded: Vec::new(),
            replay: None,
            doubles: Vec::new(),
            owners: [false; 2],
        };
        for (from, until, _) in &mut pair.faults {
            *from += 10_000 * MS;
            *until += 10_000 * MS;
        }
        pair.boot(0);
        pair.boot(1);
        pair
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn now(&self, index: usize) -> MonoTime {
        MonoTime::from_nanos(self.real - self.nodes[index].lag)
    }

    fn boot(&mut self, index: usize) {
        let now = self.now(index);
        let mut election = Election::new(now, self.settings[index], self.nodes[index].stored);
        self.nodes[index].stored += 1;
        election.handle(now, Input::ReceptionAsked(self.targets));
        let mut reception = Reception::new(now, &self.configs[index]);
        reception.set_of_main(Health::DATAPLANE);
        let session = Session::new(self.random(), self.random());
        self.nodes[index].carrier = false;
        self.nodes[index].inbox.clear();
        self.nodes[index].machine = Some(Box::new(Machine {
            election,
            session,
            reception,
            cell: MonoTime::ZERO,
            yields: false,
            armed: MonoTime::ZERO,
            relays: MonoTime::ZERO,
            datagram_at: now,
        }));
    }

    fn is(&self, wanted: Fault) -> bool {
        let active = |(from, until, fault): &(u64, u64, Fault)| {
            *fault == wanted && (*from..*until).contains(&self.real)
        };
        self.faults.iter().any(active)
    }

    /// Whether the leg takes a frame from `from` to the peer.
    fn leg_carries(&self, from: usize) -> bool {
        let to = 1 - from;
        !self.is(Fault::Parted(0))
            && !self.is(Fault::Parted(1))
            && !self.is(Fault::LegMute(from))
            && !self.is(Fault::Deaf(to))
            && !self.is(Fault::Carrier(0))
            && !self.is(Fault::Carrier(1))
    }

    fn link_carries(&self, from: usize) -> bool {
        self.link && !self.is(Fault::Link) && !self.is(Fault::LinkMute(from))
    }

    /// Whether the leg of `index` receives what others than the peer send.
    fn hears_others(&self, index: usize) -> bool {
        !self.is(Fault::Parted(index))
            && !self.is(Fault::Deaf(index))
            && !self.is(Fault::Carrier(index))
            && !self.is(Fault::Witness)
    }

    fn send(&mut self, message: Message, path: Path) {
        self.recorded.push(message);
        let (from, to) = (message.from, 1 - message.from);
        let carried = match path {
            Path::Leg => self.leg_carries(from),
            Path::Link => self.link_carries(from),
        };
        if carried {
            self.nodes[to].inbox.push((path, message));
        }
    }

    fn begin_and_end_faults(&mut self) {
        for (from, until, fault) in self.faults.clone() {
            let (begins, ends) = (from == self.real, until == self.real);
            match fault {
                Fault::Kill(index) if begins => self.nodes[index].machine = None,
                Fault::Kill(index) if ends && self.nodes[index].machine.is_none() => self.boot(index),
                Fault::Revert(index) if begins => {
                    let now = self.now(index);
                    self.nodes[index].snapshot =
                        self.nodes[index].machine.clone().map(|machine| (now, machine));
                }
                Fault::Revert(index) if ends => {
                    if let Some((taken_at, machine)) = self.nodes[index].snapshot.take() {
                        // Its clock goes on from where it was saved.
                        self.nodes[index].lag = self.real - taken_at.as_nanos();
                        self.nodes[index].machine = Some(machine);
                        self.nodes[index].inbox.clear();
                    }
                }
                _ => {}
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one turn of the driver, in its order")]
    fn turn(&mut self, index: usize) {
        let now = self.now(index);
        let Some(mut machine) = self.nodes[index].machine.take() else {
            self.nodes[index].inbox.clear();
            return;
        };
        let Machine {
            election,
            session,
            reception,
            cell,
            yields,
            armed,
            relays,
            datagram_at,
        } = machine.as_mut();
        let config = Rc::clone(&self.configs[index]);
        let carrier = !self.is(Fault::Carrier(index));
        if carrier != self.nodes[index].carrier {
            self.nodes[index].carrier = carrier;
            let fault = Input::LegFailed(LegFault::NoCarrier);
            election.handle(now, if carrier { Input::LegBecameUsable } else { fault });
            if carrier {
                reception.restart(now, &config);
            }
        }
        for (path, message) in std::mem::take(&mut self.nodes[index].inbox) {
            if path == Path::Leg {
                election.handle(now, Input::LegReceived(now));
                reception.peer_heard(now, &config, election);
            }
            if message.from == index {
                continue;
            }
            let judged = session.judge(now, &message.stamp);
            let Some(freshness) = judged.freshness else {
                election.handle(now, Input::Repeated);
                continue;
            };
            let interval = self.settings[1 - index].interval;
            election.handle(
                now,
                Input::Received(PairMessage {
                    kind: message.kind,
                    said: Some(Said {
                        freshness,
                        unheard_nanos: session.unheard(now, &message.stamp),
                        epoch: message.epoch,
                        health: message.health,
                        hears_twins: message.hears_twins,
                        signs: message.signs,
                        is_late: judged.is_late,
                    }),
                    ..PairMessage::plain(now, ADDRESSES[message.from], message.priority, interval)
                }),
            );
        }
        if carrier && !reception.questions(now, MAC, &config).is_empty() && self.hears_others(index) {
            election.handle(now, Input::LegReceived(now));
            reception.answered(now, WITNESS, MAC, &config);
        }
        if reception.judge(now, carrier, election) {
            *datagram_at = now;
        }
        while let Some((_, _, order)) = self
            .orders
            .pop_front_if(|(at, node, _)| *node == index && *at <= self.real)
        {
            election.handle(now, order);
        }
        election.handle(now, Input::DeadlineReached);
        let mut said = None;
        while let Some(output) = election.poll_output() {
            match output {
                Output::SendAdvert {
                    kind,
                    epoch,
                    decided_at,
                    ..
                } => {
                    said = Some(kind);
                    // The advert, then the datagrams.
                    let unsaid = reception.in_doubt();
                    for path in [Path::Leg, Path::Leg, Path::Link] {
                        self.speak(index, session, (election, unsaid), kind, epoch, path);
                    }
                    election.handle(now, Input::AdvertLeft { kind, decided_at });
                }
                Output::RenewLease { deadline } => *cell = deadline,
                Output::ClearLease => (*cell, *yields) = (MonoTime::ZERO, false),
                Output::Yield(yes) => *yields = yes,
                Output::Arm { until } => *armed = until,
                Output::Relay { until } => *relays = until,
                Output::Speak => *datagram_at = now,
                Output::Flush(number) => election.handle(now, Input::Flushed(number)),
                Output::RefuseHandOver(unable) => self.refused.push((index, unable)),
                Output::ShowWaiting(_)
                | Output::ReportTransition(_)
                | Output::StartAnnouncing
                | Output::AnnounceAgain
                | Output::StopAnnouncing
                | Output::RaiseAlarm(_) => {}
            }
        }
        if said.is_some() && *datagram_at > now {
            *datagram_at = now.plus(DATAGRAM.min(self.settings[index].interval.as_nanos()));
        }
        if now >= *datagram_at {
            *datagram_at = now.plus(DATAGRAM.min(self.settings[index].interval.as_nanos()));
            let kind = election.role_kind();
            let epoch = election.status().epoch;
            for path in [Path::Leg, Path::Link] {
                let unsaid = reception.in_doubt();
                self.speak(index, session, (election, unsaid), kind, epoch, path);
            }
        }
        let known = machine.election.status().epoch;
        self.nodes[index].stored = self.nodes[index].stored.max(known + 1);
        self.nodes[index].machine = Some(machine);
    }

    fn speak(
        &mut self,
        index: usize,
        session: &mut Session,
        (election, unsaid): (&Election, Health),
        kind: Kind,
        epoch: u64,
        path: Path,
    ) {
        let now = self.now(index);
        let message = Message {
            from: index,
            kind,
            priority: self.settings[index].priority,
            epoch,
            health: election.health_at(now).without(unsaid),
            hears_twins: session.hears_twins(now),
            signs: election.signs(now),
            stamp: session.stamp(now, kind),
        };
        if path == Path::Leg || self.link {
            self.send(message, path);
        }
    }

    fn holds(&self, index: usize) -> bool {
        let cell = self.nodes[index].machine.as_ref().map(|machine| machine.cell);
        !self.is(Fault::Pause(index)) && cell.is_some_and(|cell| cell > self.now(index))
    }

    fn run(&mut self, until_ms: u64) {
        let until = (10_000 + until_ms) * MS;
        while self.real < until {
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.begin_and_end_faults();
        if let Some((from, to)) = self.replay
            && self.real >= from
        {
            for _ in 0..10 {
                let nth = usize::try_from(self.random()).unwrap() % self.recorded.len();
                let message = self.recorded[nth];
                self.nodes[to].inbox.push((Path::Leg, message));
            }
        }
        for index in 0..2 {
            if self.is(Fault::Pause(index)) {
                self.nodes[index].lag += STEP;
            } else {
                self.turn(index);
            }
        }
        self.owners = [self.holds(0), self.holds(1)];
        if self.owners == [true, true] {
            match self.doubles.last_mut() {
                Some(last) if last.1 == self.real => last.1 += STEP,
                _ => self.doubles.push((self.real, self.real + STEP)),
            }
        }
        self.believed = self.owner().or(self.believed);
        self.real += STEP;
    }

    /// Whether a packet without a flow that a client sends now is served.
    fn serves(&self) -> bool {
        let Some(node) = self.believed else { return false };
        let machine = |index: usize| self.nodes[index].machine.as_ref();
        let Some(own) = machine(node) else { return false };
        let (holds, now) = (self.holds(node), self.now(node));
        if holds && !own.yields {
            return true;
        }
        let passed_on = holds || own.relays > now;
        let armed = machine(1 - node).is_some_and(|peer| peer.armed > self.now(1 - node));
        passed_on && (armed || self.holds(1 - node))
    }

    fn double_nanos(&self) -> u64 {
        self.doubles.iter().map(|(from, until)| until - from).sum()
    }

    fn owner(&self) -> Option<usize> {
        match self.owners {
            [true, false] => Some(0),
            [false, true] => Some(1),
            _ => None,
        }
    }
}

/// Runs a pair through `faults` (ms), and tells who owned at each of `looks` (ms).
fn owners(
    interval_ms: u16,
    link: bool,
    faults: &[(u64, u64, Fault)],
    looks: &[u64],
) -> (Vec<Option<usize>>, Pair) {
    let faults = faults
        .iter()
        .map(|(from, until, fault)| (from * MS, until * MS, *fault));
    let mut pair = Pair::new(interval_ms, link, true, faults.collect());
    let seen = looks
        .iter()
        .map(|look| {
            pair.run(*look);
            pair.owner()
        })
        .collect();
    (seen, pair)
}

#[test]
fn a_calm_pair_has_one_owner_with_or_without_a_link() {
    for link in [false, true] {
        for interval in [10, 100, 1000] {
            let (seen, pair) = owners(interval, link, &[], &[6_000, 9_000]);
            assert_eq!(seen, [Some(0), Some(0)], "{interval} ms, link {link}");
            assert_eq!(pair.double_nanos(), 0);
        }
    }
}

#[test]
fn without_the_leg_the_link_keeps_the_owner_and_health_decides() {
    // Node 1 is cut off from everything: the owner stays.
    let (seen, pair) = owners(
        10,
        true,
        &[(4_000, 7_000, Fault::Parted(1))],
        &[3_900, 6_900, 9_000],
    );
    assert_eq!(seen, [Some(0); 3]);
    assert_eq!(pair.double_nanos(), 0);
    // Node 0, the owner, is: the other one serves.
    let (seen, pair) = owners(
        10,
        true,
        &[(4_000, 7_000, Fault::Parted(0))],
        &[3_900, 4_100, 9_000],
    );
    assert_eq!(seen, [Some(0), Some(1), Some(1)]);
    assert_eq!(pair.double_nanos(), 0);
}

#[test]
fn an_owner_cut_off_from_the_witness_gives_way_within_a_silence_of_three_questions() {
    for start in 4_000..4_010 {
        let (seen, pair) = owners(
            10,
            true,
            &[(start, 7_000, Fault::Parted(0))],
            &[start - 1, start + 18],
        );
        assert_eq!(seen, [Some(0), Some(1)], "cut at {start}");
        assert_eq!(pair.double_nanos(), 0);
    }
}

#[test]
fn whoever_misses_the_other_on_the_leg_first_makes_both_look() {
    let mut took = Vec::new();
    // Wherever in the intervals of both nodes the cut falls.
    for (phase, cut) in (0..200).map(|n| (n / 10 * MS / 2, n % 10 * MS)) {
        let cut_at = 4_000 * MS + cut;
        let faults = vec![
            (200 * MS, 1_000 * MS + phase, Fault::Kill(1)),
            (cut_at, 7_000 * MS, Fault::Parted(0)),
        ];
        let mut pair = Pair::new(10, true, true, faults);
        pair.run(3_999);
        assert_eq!(pair.owner(), Some(0));
        while pair.owner() != Some(1) {
            pair.advance();
            assert!(pair.real < 14_100 * MS);
        }
        assert!(pair.doubles.is_empty());
        took.push(pair.real - 10_000 * MS - cut_at);
    }
    took.sort_unstable();
    assert!(took[100] <= 10 * MS, "median {} ns", took[100]);
    assert!(took[199] <= 17 * MS, "longest {} ns", took[199]);
}

#[test]
fn a_witness_that_falls_silent_for_both_moves_nothing() {
    for interval in [10, 100, 1_000] {
        for link in [false, true] {
            let (seen, pair) = owners(
                interval,
                link,
                &[(6_000, 9_000, Fault::Witness)],
                &[5_900, 8_900, 12_000],
            );
            assert_eq!(seen, [Some(0); 3], "{interval} ms, link {link}");
            let terms = |index: usize| {
                let machine = pair.nodes[index].machine.as_ref().unwrap();
                machine.election.counters().became_active
            };
            assert_eq!((terms(0), terms(1)), (1, 0), "{interval} ms, link {link}");
        }
    }
}

#[test]
fn a_deaf_owner_lets_go_and_a_deaf_standby_never_claims() {
    for link in [false, true] {
        let (seen, pair) = owners(
            10,
            link,
            &[(4_000, 9_000, Fault::Deaf(0))],
            &[3_900, 5_500, 12_000],
        );
        assert_eq!(seen, [Some(0), Some(1), Some(1)], "link {link}");
        assert_eq!(pair.double_nanos(), 0);
        let (seen, pair) = owners(
            10,
            link,
            &[(4_000, 9_000, Fault::Deaf(1))],
            &[3_900, 8_900, 12_000],
        );
        assert_eq!(seen, [Some(0); 3], "link {link}");
        assert_eq!(pair.double_nanos(), 0);
    }
}

#[test]
fn a_peer_that_does_not_hear_the_owner_asks_and_takes_over_without_two_owners() {
    // Only the owner's adverts are lost; there is no other path.
    let (seen, pair) = owners(
        10,
        false,
        &[(4_000, 7_000, Fault::LegMute(0))],
        &[3_900, 4_100, 9_000],
    );
    assert_eq!(seen, [Some(0), Some(1), Some(1)]);
    assert_eq!(pair.double_nanos(), 0);
    // With another path nothing happens at all.
    let (seen, pair) = owners(
        10,
        true,
        &[(4_000, 7_000, Fault::LegMute(0))],
        &[3_900, 6_900, 9_000],
    );
    assert_eq!(seen, [Some(0); 3]);
    assert_eq!(pair.double_nanos(), 0);
}

#[test]
fn a_healed_partition_without_a_link_leaves_the_one_of_the_higher_epoch() {
    let (seen, pair) = owners(
        10,
        false,
        &[
            (4_000, 7_000, Fault::LegMute(0)),
            (4_000, 7_000, Fault::LegMute(1)),
        ],
        &[3_900, 6_900, 7_100],
    );
    assert_eq!(seen, [Some(0), None, Some(1)]);
    let (_, until) = pair.doubles.last().unwrap();
    assert!(*until <= (10_000 + 7_000 + 15) * MS, "healing takes an advert");
}

#[test]
fn a_machine_that_was_paused_is_an_owner_for_no_longer_than_its_horizon() {
    for (interval, link) in [(10, false), (10, true), (100, false), (100, true)] {
        let (seen, pair) = owners(
            interval,
            link,
            &[(4_000, 9_000, Fault::Pause(0))],
            &[3_900, 8_900, 12_000],
        );
        assert_eq!(seen, [Some(0), Some(1), Some(1)], "{interval} ms, link {link}");
        assert!(pair.double_nanos() <= 50 * MS + 2 * STEP, "{:?}", pair.doubles);
    }
}

#[test]
fn a_node_put_back_to_a_snapshot_takes_nothing_from_the_owner_of_today() {
    for link in [false, true] {
        // The snapshot is of a time when node 0 owned; since then node 1 took over.
        let faults = [(4_000, 12_000, Fault::Revert(0)), (5_000, 6_000, Fault::Kill(0))];
        let (seen, pair) = owners(10, link, &faults, &[4_900, 11_900, 12_100, 15_000]);
        assert_eq!(seen, [Some(0), Some(1), Some(1), Some(1)], "link {link}");
        assert!(pair.double_nanos() <= 50 * MS + 2 * STEP, "{:?}", pair.doubles);
        // The owner itself goes back: it stays.
        let (seen, pair) = owners(
            10,
            link,
            &[(4_000, 8_000, Fault::Revert(0))],
            &[3_900, 9_000, 12_000],
        );
        assert_eq!(seen[0], Some(0));
        assert!(seen[2].is_some());
        assert!(pair.double_nanos() <= 50 * MS + 2 * STEP, "{:?}", pair.doubles);
    }
}

#[test]
fn an_owner_put_back_to_before_its_peer_started_anew_is_known_to_it_at_once() {
    for (interval, link) in [(10, false), (10, true), (100, false), (100, true)] {
        for after in [1, 30, 200] {
            let started = 5_627;
            let faults = [
                (5_013, started, Fault::Kill(1)),
                (3_000, started + after, Fault::Revert(0)),
            ];
            let (seen, pair) = owners(interval, link, &faults, &[started + after + 160, 9_000]);
            assert_eq!(seen, [Some(0); 2], "{interval} ms, link {link}, after {after} ms");
            assert_eq!(
                pair.double_nanos(),
                0,
                "{interval} ms, link {link}, after {after} ms"
            );
        }
    }
}

#[test]
fn two_nodes_that_were_both_put_back_know_each_other_at_once() {
    let faults = [
        (3_000, 6_342, Fault::Revert(1)),
        (3_979, 7_593, Fault::Pause(1)),
        (4_259, 8_134, Fault::Revert(0)),
    ];
    let (seen, pair) = owners(10, true, &faults, &[8_133, 8_300, 9_000]);
    assert_eq!(seen, [Some(0); 3]);
    assert_eq!(pair.double_nanos(), 0);
}

#[test]
fn recordings_of_every_life_start_no_take_over_and_keep_nobody_from_one() {
    let mut pair = Pair::new(
        10,
        false,
        true,
        vec![
            (5_000 * MS, 6_000 * MS, Fault::Kill(0)),
            (9_000 * MS, 20_000 * MS, Fault::Kill(1)),
        ],
    );
    pair.run(7_500);
    assert_eq!(pair.owner(), Some(1));
    pair.replay = Some((pair.real, 1));
    pair.run(8_500);
    assert_eq!(pair.owner(), Some(1), "no recording moves the owner");
    pair.replay = Some((pair.real, 0));
    pair.run(8_900);
    assert_eq!(pair.owner(), Some(1));
    // Its own recorded adverts are all that is left of node 1.
    pair.run(9_000 + 500);
    assert_eq!(
        pair.owner(),
        Some(0),
        "and none holds the Standby for longer than three waits"
    );
    assert_eq!(pair.double_nanos(), 0);
}

#[test]
fn a_lost_carrier_is_told_by_the_link_within_milliseconds() {
    let mut pair = Pair::new(
        1000,
        true,
        true,
        vec![(8_000 * MS, 20_000 * MS, Fault::Carrier(0))],
    );
    pair.run(7_990);
    assert_eq!(pair.owner(), Some(0));
    pair.run(8_015);
    assert_eq!(pair.owner(), Some(1));
    assert_eq!(pair.double_nanos(), 0);
}

fn fault() -> impl Strategy<Value = Fault> {
    (0_usize..10, 0_usize..2).prop_map(|(kind, node)| match kind {
        0 => Fault::Parted(node),
        1 => Fault::LegMute(node),
        2 => Fault::Deaf(node),
        3 => Fault::Carrier(node),
        4 => Fault::Link,
        5 => Fault::LinkMute(node),
        6 => Fault::Pause(node),
        7 => Fault::Kill(node),
        8 => Fault::Witness,
        _ => Fault::Revert(node),
    })
}

/// A pair in which node 0 owns, with what is ordered of whom (ms).
fn ordered(interval_ms: u16, link: bool, orders: &[(u64, usize, Input)]) -> Pair {
    let mut pair = Pair::new(interval_ms, link, true, Vec::new());
    let orders = orders
        .iter()
        .map(|(at, node, order)| ((10_000 + at) * MS, *node, *order));
    pair.orders = orders.collect();
    pair.run(3_000);
    assert_eq!(pair.owner(), Some(0));
    pair
}

const HAND_OVER: Input = Input::HandOverOrdered { force: false };

#[test]
fn a_hand_over_serves_at_every_instant_whoever_it_is_ordered_of() {
    for (interval, link) in [(10, true), (20, true), (100, true), (100, false)] {
        for first in [
            (0, HAND_OVER),
            (1, Input::TakeOverOrdered),
            (0, Input::StopOrdered),
            (0, Input::MainFellSilent),
        ] {
            let mut pair = ordered(interval, link, &[(3_000, first.0, first.1)]);
            let mut taken_at = None;
            while pair.real < 16_000 * MS {
                pair.advance();
                assert!(pair.serves(), "{interval} {link} {first:?} at {}", pair.real);
                taken_at = taken_at.or(pair.holds(1).then_some(pair.real));
            }
            assert_eq!(pair.owner(), Some(1), "{interval} {link} {first:?}");
            let took = taken_at.unwrap() - 13_000 * MS;
            assert!(took < 60 * MS, "{interval} {link} {first:?}: {took} ns");
            assert_eq!((pair.doubles.len(), pair.refused.len()), (0, 0));
        }
    }
}

#[test]
fn twenty_hand_overs_in_quick_turn_serve_at_every_instant() {
    let orders: Vec<_> = (0..20)
        .map(|n| (3_000 + 120 * n as u64, n % 2, HAND_OVER))
        .collect();
    let mut pair = ordered(100, true, &orders);
    while pair.real < 17_000 * MS {
        pair.advance();
        assert!(pair.serves(), "at {}", pair.real);
    }
    assert_eq!(
        (pair.owner(), pair.doubles.len(), pair.refused.len()),
        (Some(0), 0, 0)
    );
}

#[test]
fn hand_overs_ordered_before_the_new_owner_has_told_its_flows_wait_for_that_and_none_is_refused() {
    let mut orders = vec![(2_900, 1, Input::PeerHasFlows(false))];
    for n in 0..8_usize {
        let (at, owner) = (3_000 + 2_500 * n as u64, n % 2);
        // Asked of the Active and of the Standby in turn.
        let order = if n / 2 % 2 == 0 {
            (at, owner, HAND_OVER)
        } else {
            (at, 1 - owner, Input::TakeOverOrdered)
        };
        orders.push(order);
        orders.push((at + 1_500, owner, Input::PeerHasFlows(true)));
        orders.push((at + 2_400, owner, Input::PeerHasFlows(false)));
    }
    orders.insert(1, (2_950, 0, Input::PeerHasFlows(false)));
    let mut pair = ordered(100, true, &orders);
    for n in 0..8_usize {
        let ordered_at = (13_000 + 2_500 * n as u64) * MS;
        while pair.real < ordered_at + 2_500 * MS {
            pair.advance();
            assert!(pair.serves(), "{n}: at {}", pair.real);
            if pair.real < ordered_at + 1_400 * MS {
                assert_eq!(pair.owner(), Some(n % 2), "{n}: at {}", pair.real);
            }
        }
        assert_eq!(pair.owner(), Some(1 - n % 2), "{n}");
    }
    assert_eq!((pair.doubles.len(), pair.refused.len()), (0, 0));
}

#[test]
fn b37_a_better_node_that_returns_is_handed_everything_in_order() {
    let mut pair = Pair::new(100, true, true, vec![(3_000 * MS, 4_000 * MS, Fault::Kill(0))]);
    for settings in &mut pair.settings {
        settings.preempt = true;
    }
    pair.run(0);
    for index in 0..2 {
        pair.boot(index);
    }
    pair.run(3_900);
    assert_eq!(pair.owner(), Some(1));
    while pair.real < 18_000 * MS {
        pair.advance();
        assert!(pair.serves(), "at {}", pair.real);
    }
    assert_eq!((pair.owner(), pair.doubles.len()), (Some(0), 0));
}

#[test]
fn b30_b31_without_preemption_whoever_returns_waits() {
    for fault in [Fault::Kill(0), Fault::Carrier(0)] {
        let (seen, pair) = owners(100, true, &[(3_000, 4_000, fault)], &[2_900, 4_500, 9_000]);
        assert_eq!(seen, [Some(0), Some(1), Some(1)], "{fault:?}");
        assert!(pair.doubles.is_empty());
    }
}

#[test]
fn an_owner_that_dies_at_any_step_of_a_hand_over_leaves_one_owner() {
    for dies_at in (0..60).map(|n| 3_000 * MS + n * MS) {
        for node in 0..2 {
            let mut pair = ordered(100, true, &[(3_000, 0, HAND_OVER)]);
            pair.faults
                .push((10_000 * MS + dies_at, 40_000 * MS, Fault::Kill(node)));
            pair.run(8_000);
            assert_eq!(pair.owner(), Some(1 - node), "{node} dies at {dies_at}");
            assert!(pair.doubles.is_empty());
        }
    }
}

#[test]
fn a_peer_that_cannot_answer_is_handed_nothing() {
    // Known to be there a moment ago.
    let mut pair = ordered(100, true, &[(3_001, 0, HAND_OVER)]);
    pair.faults.push((13_000 * MS, 40_000 * MS, Fault::Kill(1)));
    pair.run(4_000);
    assert_eq!(
        (pair.owner(), pair.refused.clone()),
        (Some(0), vec![(0, Unable::NoAnswer)])
    );
    // Not any more; then by force.
    pair.orders = [(14_100 * MS, 0, HAND_OVER)].into();
    pair.run(5_000);
    assert_eq!((pair.owner(), pair.refused.len()), (Some(0), 2));
    assert_eq!(pair.refused[1], (0, Unable::PeerSilent));
    pair.orders = [(15_100 * MS, 0, Input::HandOverOrdered { force: true })].into();
    pair.run(5_200);
    assert_eq!(pair.owner(), None);
}

#[test]
fn an_owner_whose_main_process_is_silent_leaves_to_a_peer_that_can_serve_and_to_nobody_else() {
    let orders = [
        (3_000, 1, Input::MainFellSilent),
        (3_001, 0, Input::MainFellSilent),
        (6_000, 1, Input::MainSpokeAgain),
    ];
    let mut pair = ordered(100, true, &orders);
    while pair.real < 20_000 * MS {
        pair.advance();
        assert!(pair.serves(), "at {}", pair.real);
        if pair.real < 16_000 * MS {
            assert_eq!(pair.owner(), Some(0));
        }
    }
    assert_eq!((pair.owner(), pair.doubles.len()), (Some(1), 0));
    // A dead peer, too, until it is back.
    let mut pair = ordered(100, true, &[(4_000, 0, Input::MainFellSilent)]);
    pair.faults.push((13_000 * MS, 16_000 * MS, Fault::Kill(1)));
    while pair.real < 20_000 * MS {
        pair.advance();
        assert!(pair.serves(), "at {}", pair.real);
    }
    assert_eq!(pair.owner(), Some(1));
}

#[test]
fn whoever_asks_for_a_hand_over_in_vain_is_told_why() {
    let orders = [
        (3_000, 0, Input::PeerLegsKnown(false)),
        (3_001, 1, Input::TakeOverOrdered),
        (5_000, 0, Input::PeerLegsKnown(true)),
        (5_001, 0, Input::PeerHasFlows(false)),
        (5_002, 1, Input::TakeOverOrdered),
    ];
    let mut pair = ordered(100, true, &orders);
    pair.run(11_000);
    let asked: Vec<_> = pair.refused.iter().filter(|(node, _)| *node == 1).collect();
    assert_eq!(
        asked,
        [
            &(1, Unable::PeerRefuses(Refused::LegsUnknown)),
            &(1, Unable::PeerRefuses(Refused::LacksFlows)),
        ]
    );
    assert_eq!(pair.owner(), Some(0));
}

#[test]
fn a_node_that_has_just_started_is_handed_everything_in_order() {
    let mut pair = ordered(100, true, &[(7_000, 0, HAND_OVER)]);
    pair.faults.push((13_000 * MS, 14_000 * MS, Fault::Kill(1)));
    while pair.real < 18_000 * MS {
        pair.advance();
        assert!(pair.serves(), "at {}", pair.real);
    }
    assert_eq!((pair.owner(), pair.refused.len()), (Some(1), 0));
}

#[test]
fn a_node_in_maintenance_is_handed_nothing_and_owns_nothing_even_alone() {
    let mut pair = ordered(100, true, &[]);
    let settings = |pair: &Pair, index: usize, stance| {
        Input::Reconfigured(Settings {
            stance,
            ..pair.settings[index]
        })
    };
    pair.orders = [
        (13_000 * MS, 1, settings(&pair, 1, Stance::Maintenance)),
        (13_200 * MS, 0, HAND_OVER),
    ]
    .into();
    pair.faults.push((14_000 * MS, 18_000 * MS, Fault::Kill(0)));
    pair.run(3_500);
    assert_eq!(
        (pair.owner(), pair.refused.clone()),
        (Some(0), vec![(0, Unable::PeerInMaintenance)])
    );
    pair.run(7_900);
    assert_eq!(pair.owner(), None);
    pair.orders = [(18_000 * MS, 1, settings(&pair, 1, Stance::Normal))].into();
    pair.run(12_000);
    assert!(pair.owner().is_some());
}

#[test]
fn who_holds_is_neither_displaced_nor_displaces_and_takes_over_from_the_dead() {
    for holder in 0..2 {
        let mut pair = Pair::new(100, true, true, vec![(3_000 * MS, 4_000 * MS, Fault::Kill(0))]);
        for settings in &mut pair.settings {
            settings.preempt = true;
        }
        pair.settings[holder].stance = Stance::Hold;
        for index in 0..2 {
            pair.boot(index);
        }
        pair.run(8_000);
        assert_eq!(pair.owner(), Some(1), "{holder}");
        pair.faults.push((18_000 * MS, 40_000 * MS, Fault::Kill(1)));
        pair.run(10_000);
        assert_eq!(pair.owner(), Some(0), "{holder}");
    }
}

#[test]
fn a_peer_that_goes_into_maintenance_during_a_hand_over_is_handed_nothing_or_keeps_it() {
    for after in 0..60 {
        let mut pair = ordered(100, true, &[(3_000, 0, HAND_OVER)]);
        let maintenance = Input::Reconfigured(Settings {
            stance: Stance::Maintenance,
            ..pair.settings[1]
        });
        pair.orders.push_back(((13_000 + after) * MS, 1, maintenance));
        // What is ordered while the owner still yields is heard in time.
        let in_time = (1..=28).contains(&after);
        let mut unserved = 0;
        while pair.real < 14_000 * MS {
            pair.advance();
            unserved += STEP * u64::from(!pair.serves());
        }
        assert_eq!(pair.owner(), Some(0), "{after} ms");
        assert!(!in_time || unserved <= 2 * STEP, "{after} ms: {unserved} ns");
        assert!(pair.doubles.is_empty());
        if in_time {
            assert_eq!(pair.refused, [(0, Unable::PeerInMaintenance)], "{after} ms");
        }
    }
}

#[test]
fn a_peer_that_loses_its_leg_during_a_hand_over_does_not_leave_the_pair_without_owner() {
    for after in 0..60 {
        let mut pair = ordered(100, true, &[(3_000, 0, HAND_OVER)]);
        pair.faults
            .push(((13_000 + after) * MS, 40_000 * MS, Fault::Carrier(1)));
        pair.run(4_000);
        assert_eq!(pair.owner(), Some(0), "{after} ms");
        if (1..=28).contains(&after) {
            let machine = pair.nodes[0].machine.as_ref().unwrap();
            assert_eq!(
                machine.election.counters().became_active,
                1,
                "{after} ms: it never let go"
            );
        }
    }
}

fn order() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => Just(HAND_OVER),
        2 => Just(Input::TakeOverOrdered),
        1 => Just(Input::HandOverOrdered { force: true }),
        1 => Just(Input::MainFellSilent),
        1 => Just(Input::MainSpokeAgain),
        2 => any::<bool>().prop_map(Input::PeerHasFlows),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60), ..ProptestConfig::default() })]

    /// Of any faults, several at a time: while every message could take some path there are never two owners, but for the
    /// horizon of a lease that a pause or a snapshot brings back; and when all is well there is exactly one.
    #[test]
    fn never_two_owners_while_there_is_a_path_and_one_in_the_end(
        interval in prop_oneof![Just(10_u16), Just(20), Just(100)],
        link: bool,
        faults in prop::collection::vec((3_000_u64..8_000, 20_u64..4_000, fault()), 0..5),
        mut orders in prop::collection::vec((2_500_u64..8_000, 0_usize..2, order()), 0..8),
    ) {
        let faults: Vec<_> = faults.iter().map(|(from, length, fault)| (from * MS, (from + length) * MS, *fault)).collect();
        let mut pair = Pair::new(interval, link, true, faults);
        // In the end both main processes are heard.
        orders.extend((0..2).map(|node| (12_400, node, Input::MainSpokeAgain)));
        orders.sort_by_key(|(at, ..)| *at);
        pair.orders = orders.iter().map(|(at, node, order)| ((10_000 + at) * MS, *node, *order)).collect();
        let mut free_doubles = 0;
        let mut without_path = 0_u64;
        while pair.real < 10_000 * MS + 12_500 * MS {
            let path = (0..2).all(|from| pair.leg_carries(from) || pair.link_carries(from));
            let grace = 4 * u64::from(interval) * MS + 60 * MS;
            without_path = if path { without_path.saturating_sub(STEP) } else { grace };
            pair.advance();
            if pair.owners == [true, true] && without_path == 0 {
                free_doubles += STEP;
            }
        }
        let brought_back = pair.faults.iter().filter(|(.., fault)| matches!(fault, Fault::Pause(_) | Fault::Revert(_))).count() as u64;
        prop_assert!(free_doubles <= brought_back * (50 * MS + 2 * STEP), "two owners for {free_doubles} ns: {:?}", pair.doubles);
        pair.run(16_000);
        prop_assert!(pair.owner().is_some(), "owners at the end: {:?}", pair.owners);
    }
}
