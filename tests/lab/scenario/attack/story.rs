//! One attack: before, during, after.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};

use super::{ATTACKER, DATAGRAMS, forge};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{
        capture::{Capture, Captured, Direction, Filter, Record},
        lease::{self, Reading},
        stalls,
    },
    node::Pair,
    process,
    report::Report,
    scenario::{
        Run,
        instruments::{Found, Instruments},
    },
    switch::Switch,
    topology::{NODES, OneArm, mac as mac_of},
};

/// A stall of the machine above this may have lost packets.
const STALL: Nanos = 10 * MS;
/// So many frames a second are a flood.
const FLOOD: u64 = 10_000;
/// From so many frames on it can be told what they cost.
const LONG: u64 = 1_000;
/// Announcements of both nodes in a while without an attack: refreshes, and what an attack before is still owed.
const REFRESHES: usize = 10;
/// An Active answers a strange advert at once, so many times an interval at most.
const ANSWERS: usize = 8;
/// How long the pair is looked at before.
const BEFORE: Duration = Duration::from_secs(1);

/// What an attack may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Announcements of both nodes because of it.
    pub announcements: usize,
    /// Time without service.
    pub outage: Duration,
    /// Time after it in which something may come of it, beyond the usual.
    pub aftermath: Duration,
}

impl Bounds {
    pub(super) const NOTHING: Self = Self {
        announcements: 0,
        outage: Duration::ZERO,
        aftermath: Duration::ZERO,
    };
}

/// An attack.
#[derive(Clone, Debug)]
pub(super) struct Attack {
    pub name: String,
    pub frames: Vec<Vec<u8>>,
    /// Frames in all, in turn.
    pub count: u64,
    pub a_second: u64,
    /// Beginnings of counters of which one must rise on some node; empty: none is asked for.
    pub counters: &'static [&'static str],
    pub bounds: Bounds,
}

type Counters = BTreeMap<String, u64>;

fn counters(pair: &Pair, index: usize) -> Result<Counters> {
    let node = pair.nodes[index].as_onearm().context("this is about onearm")?;
    let status = node.ask(&["status"])?;
    let all = status.pointer("/ha/counters").cloned().unwrap_or_default();
    Ok(serde_json::from_value(all)?)
}

/// CPU time of the HA process of node `index`.
fn cpu(pair: &Pair, index: usize) -> u64 {
    let pids = pair.nodes[index].pids();
    pids.last().and_then(|pid| process::cpu_ms(*pid)).unwrap_or(0)
}

/// What rose, without what rises all the time.
fn risen(before: &Counters, after: &Counters) -> Counters {
    after
        .iter()
        .filter(|(name, _)| {
            name.starts_with("wire_")
                || name.starts_with("authentication_")
                || name.starts_with("announce_")
                || name.starts_with("election_")
        })
        .filter_map(|(name, now)| {
            let rise = now.saturating_sub(before.get(name).copied().unwrap_or(0));
            (rise > 0).then(|| (name.clone(), rise))
        })
        .collect()
}

/// What was seen from the attack until nothing more can come of it.
struct Seen {
    begun: Nanos,
    over: Nanos,
    /// How long sending took.
    took: Nanos,
    found: Found,
    readings: Vec<Reading>,
    /// HA datagrams.
    said: Record,
    /// Counters that rose.
    rose: [Counters; 2],
    /// CPU time of the HA processes while frames were sent, ms.
    cpu: [u64; 2],
}

/// Attacks a settled pair and checks that nothing came of it.
///
/// # Errors
/// When an instrument fails or a node does not answer.
pub(super) fn tell(run: &mut Run, lab: &OneArm, pair: &mut Pair, attack: &Attack) -> Result<()> {
    let seen = look_on(lab, pair, attack)?;
    let report = &mut run.report;
    effort(report, attack, &seen);
    ownership(report, attack, &seen);
    service(report, attack, &seen);
    amplification(report, attack, &seen, clock::nanos(pair.spec().interval));
    let rose = &seen.rose;
    let counted = attack.counters.is_empty()
        || rose
            .iter()
            .flat_map(BTreeMap::keys)
            .any(|name| attack.counters.iter().any(|begin| name.starts_with(begin)));
    report.check(
        format!("{}: counted by its kind", attack.name),
        counted,
        format!("lb1 {:?}, lb2 {:?}", rose[0], rose[1]),
    );
    Ok(())
}

fn look_on(lab: &OneArm, pair: &Pair, attack: &Attack) -> Result<Seen> {
    let silence = pair.spec().active_down(0).max(pair.spec().active_down(1));
    let aftermath = Duration::from_nanos(silence * 2) + Duration::from_secs(1) + attack.bounds.aftermath;
    let before = [counters(pair, 0)?, counters(pair, 1)?];
    let instruments = Instruments::start(lab, pair)?;
    let said = Capture::start(lab.switch().ns(), None, Filter::UdpTo(DATAGRAMS))?;
    clock::observe(BEFORE);
    let cpu_before = [cpu(pair, 0), cpu(pair, 1)];
    let begun = clock::now();
    let took = forge::send_all(lab.ns(ATTACKER), &attack.frames, attack.count, attack.a_second)?;
    let cpu = [0, 1].map(|index| cpu(pair, index).saturating_sub(cpu_before[index]));
    clock::observe(aftermath);
    let over = clock::now();
    let readings = instruments.readings()?;
    let said = said.stop()?;
    let found = instruments.stop()?;
    let after = [counters(pair, 0)?, counters(pair, 1)?];
    let rose = [0, 1].map(|index| risen(&before[index], &after[index]));
    Ok(Seen {
        begun,
        over,
        took,
        found,
        readings,
        said,
        rose,
        cpu,
    })
}

/// Whether the attack was one: at the speed that was meant; and what it cost the HA processes.
fn effort(report: &mut Report, attack: &Attack, seen: &Seen) {
    let name = &attack.name;
    let seconds = ms(seen.took) / 1_000.0;
    report.note(format!("{name}: {} frames in {seconds:.2} s", attack.count));
    if attack.a_second >= FLOOD {
        report.check(
            format!("{name}: {FLOOD} a second or more"),
            seen.took * FLOOD <= attack.count * 1_000 * MS * 21 / 20,
            format!("{} frames in {seconds:.2} s", attack.count),
        );
    }
    if attack.count >= LONG {
        for (short, spent) in NODES.iter().zip(seen.cpu) {
            report.note(format!(
                "{name}: the HA process of {short} used {spent} ms of CPU in {seconds:.2} s"
            ));
        }
    }
}

fn ownership(report: &mut Report, attack: &Attack, seen: &Seen) {
    let (name, owners) = (&attack.name, &seen.found.owners);
    let stall = stalls::longest(&seen.found.stalls, seen.begun, seen.over);
    let from = seen.begun.saturating_sub(clock::nanos(BEFORE) / 2);
    let changes = owners.changes(from, seen.over);
    let [first, last] = [seen.begun, seen.over].map(|at| owners.owner_at(at));
    report.check(
        format!("{name}: no take-over"),
        changes == 0 && first.is_some() && first == last,
        format!("{changes} changes of owner, machine stall {:.1} ms", ms(stall)),
    );
    let frames = owners.disputed(seen.begun, seen.over).len();
    let leases = lease::doubles(&seen.readings);
    report.check(
        format!("{name}: never two owners"),
        frames == 0 && leases == 0,
        format!("{frames} ms by frames, {leases} ms by leases"),
    );
    let without = seen
        .readings
        .iter()
        .filter(|r| (seen.begun..seen.over).contains(&r.at) && r.valid() == [false, false])
        .count();
    report.check(
        format!("{name}: the lease holds all the time"),
        without == 0 || stall > STALL,
        format!("{without} ms without, machine stall {:.1} ms", ms(stall)),
    );
}

fn service(report: &mut Report, attack: &Attack, seen: &Seen) {
    let udp = &seen.found.udp;
    let stall = stalls::longest(&seen.found.stalls, seen.begun, seen.over);
    let (outage, lost) = (
        udp.longest_gap(seen.begun, seen.over),
        udp.lost(seen.begun, seen.over),
    );
    let most = clock::nanos(attack.bounds.outage);
    let what = if most == 0 {
        "no outage"
    } else {
        "the outage is bounded"
    };
    report.check(
        format!("{}: {what}", attack.name),
        outage <= most || (stall > STALL && outage <= 2 * stall),
        format!(
            "{:.1} ms, {lost} packets lost, machine stall {:.1} ms",
            ms(outage),
            ms(stall)
        ),
    );
}

/// What the nodes sent: announcements, adverts, datagrams.
fn amplification(report: &mut Report, attack: &Attack, seen: &Seen, interval: Nanos) {
    let by_nodes = |port: &str| NODES.iter().any(|short| port == Switch::port(short));
    let owners = &seen.found.owners;
    let announced = owners
        .announcements
        .iter()
        .filter(|(at, mac, port, _)| *at >= seen.begun && by_nodes(port) && *mac != mac_of(ATTACKER))
        .count();
    let adverts = owners
        .adverts
        .iter()
        .filter(|(at, port, ..)| *at >= seen.begun && by_nodes(port))
        .count();
    let said = |from: Nanos, to: Nanos| {
        let by_node = |f: &&Captured| f.direction == Direction::In && by_nodes(&f.port);
        let frames = seen.said.frames.iter().filter(by_node);
        frames.filter(|f| (from..to).contains(&f.at)).count()
    };
    let before = clock::nanos(BEFORE);
    let usual = said(seen.begun.saturating_sub(before), seen.begun);
    let datagrams = said(seen.begun, seen.over);
    let span = seen.over - seen.begun;
    let times = |span: Nanos, every: Nanos| usize::try_from(span / every + 1).unwrap_or(usize::MAX);
    let most_datagrams = usual * times(span, before) * 3 / 2;
    report.check(
        format!("{}: the nodes send no more for it", attack.name),
        announced <= attack.bounds.announcements + REFRESHES
            && adverts <= ANSWERS * 2 * times(span, interval)
            && datagrams <= most_datagrams,
        format!(
            "in {:.1} s {announced} announcements, {adverts} adverts, {datagrams} datagrams ({usual} in a second before)",
            ms(span) / 1_000.0
        ),
    );
}
