//! One pair, many faults, one after the other: what each costs an outside client, and whether two nodes ever own.

mod deaths;
mod fault;
mod outcome;

use std::{net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result};

use self::{
    fault::{Fault, Target},
    outcome::Outcome,
};
use super::{Run, Scenario, failover, instruments::Instruments, named, stage};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::echo,
    node::{Node as _, Pair, Role},
    process::Process,
    service::{Mode, PairSpec},
    topology::{OneArm, Options, ROUTER, SERVERS, VIP},
    traffic,
};

/// Faults of a run where the command line names no number: every one twice in turn, then at random.
const FAULTS: u32 = 200;
/// What a fault may cost above the silence bound.
const ALLOWANCE: Nanos = 25 * MS;
/// A stall of the machine above this excuses a fault from its bound.
const STALL: Nanos = 10 * MS;

/// The scenarios.
pub(super) fn scenarios() -> [Scenario; 2] {
    [chaos(), deaths::scenario()]
}

fn chaos() -> Scenario {
    Scenario {
        name: "chaos",
        about: "faults of every kind in turn and at random at 100 ms adverts (--runs: how many, --only: which), with traffic",
        for_peers: false,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    let interval = run.wanted.interval.unwrap_or(Duration::from_millis(100));
    let wanted = usize::try_from(run.wanted.runs.unwrap_or(FAULTS))?;
    let faults = named(Fault::ALL, Fault::name, &run.wanted.only)?;
    let plan: Vec<(Fault, Target)> = faults.iter().flat_map(|f| f.targets().map(|t| (*f, t))).collect();
    for (paths, linked) in [("leg", false), ("leg_and_link", true)] {
        let mut plan = plan.clone();
        plan.retain(|(fault, _)| fault.is_possible(linked));
        let count = if linked { wanted / 2 } else { wanted.div_ceil(2) };
        plan.truncate(count);
        if !faults.iter().any(|fault| fault.is_possible(linked)) {
            continue;
        }
        plan.extend((plan.len()..count).map(|_| any(run, &faults, linked)));
        let spec = PairSpec {
            record: true,
            witness: Some(ROUTER),
            peer_link: linked,
            ..PairSpec::web_and_echo(Mode::Dnat, interval)
        };
        let options = Options {
            forwarding: true,
            peer_link: linked,
            ..Options::default()
        };
        let mut lab = OneArm::build(options).context("cannot build the lab")?;
        let outcome = story(run, &mut lab, &spec, paths, &plan);
        if outcome.is_err() {
            run.keep(&lab, paths)?;
        } else {
            run.keep_if_needed(&lab, paths)?;
        }
        outcome?;
    }
    Ok(())
}

/// Any of the faults of any node.
fn any(run: &mut Run, faults: &[Fault], linked: bool) -> (Fault, Target) {
    let possible: Vec<Fault> = faults
        .iter()
        .copied()
        .filter(|fault| fault.is_possible(linked))
        .collect();
    let number = run.random() >> 33;
    let fault = possible[usize::try_from(number).unwrap_or(0) % possible.len()];
    let targets: Vec<Target> = fault.targets().collect();
    let number = run.random() >> 33;
    (
        fault,
        targets[usize::try_from(number).unwrap_or(0) % targets.len()],
    )
}

fn story(
    run: &mut Run,
    lab: &mut OneArm,
    spec: &PairSpec,
    paths: &str,
    plan: &[(Fault, Target)],
) -> Result<()> {
    let _servers = traffic::start_servers(lab, &SERVERS)?;
    let mut pair = stage(run, lab, spec)?;
    let mut outcomes = Vec::new();
    for (number, (fault, target)) in plan.iter().enumerate() {
        let outcome = once(run, lab, &mut pair, spec, (*fault, *target), Vec::new()).with_context(|| {
            format!(
                "fault {} of {}: {fault:?} of the {target:?}",
                number + 1,
                plan.len()
            )
        })?;
        run.report
            .note(format!("{paths}, {} of {}: {outcome}", number + 1, plan.len()));
        outcomes.push(outcome);
    }
    judge(run, spec, paths, &outcomes);
    pair.scrap()?;
    for node in pair.nodes.iter().filter_map(|node| node.as_onearm()) {
        let replayed = node.replay();
        let told = |what: &str| replayed.as_ref().ok().and_then(|told| told.get(what)?.as_u64());
        run.report.check(
            format!(
                "{paths}: {}: what its elections were given, run again, gives the same changes of role",
                node.short()
            ),
            told("differences") == Some(0) && told("parts") >= Some(1),
            match &replayed {
                Ok(_) => format!(
                    "{:?} entries, {:?} missing, {:?} not run",
                    told("entries"),
                    told("lost"),
                    told("skipped")
                ),
                Err(error) => format!("{error:#}"),
            },
        );
    }
    Ok(())
}

/// One fault of a settled pair, from before it until the pair is settled again. What goes on around it ends before it is
/// healed.
fn once(
    run: &mut Run,
    lab: &mut OneArm,
    pair: &mut Pair,
    spec: &PairSpec,
    (fault, target): (Fault, Target),
    around: Vec<Process>,
) -> Result<Outcome> {
    let active = usize::from(pair.nodes[1].role()? == Role::Active);
    let index = match target {
        Target::Active => active,
        Target::Standby => 1 - active,
    };
    let instruments = Instruments::start(lab, pair)?;
    let jitter = run.random_span(spec.interval);
    clock::observe(Duration::from_millis(200) + jitter);
    let (begun, before) = (instruments.begun, clock::now());
    let load = fault.inject(lab, pair, index)?;
    let silence = spec.active_down(0).max(spec.active_down(1));
    clock::observe(fault.length(silence));
    // A cell that is there is read on; the one of a new process is not among those.
    let leases = instruments.readings()?;
    drop((load, around));
    fault.heal(lab, pair, index)?;
    settle(lab, pair)?;
    let end = clock::now();
    let found = instruments.stop()?;
    Ok(Outcome::read(
        (fault, target),
        &found,
        &leases,
        (begun, before, end),
    ))
}

/// Waits until one node is Active, the other Standby, and the client is served.
fn settle(lab: &OneArm, pair: &mut Pair) -> Result<()> {
    let patience = Duration::from_secs(30);
    clock::wait_for(
        "one Active and one Standby",
        patience,
        Duration::from_millis(20),
        || {
            let roles = [pair.nodes[0].role()?, pair.nodes[1].role()?];
            Ok(matches!(
                roles,
                [Role::Active, Role::Standby] | [Role::Standby, Role::Active]
            )
            .then_some(()))
        },
    )?;
    for node in &mut pair.nodes {
        node.wait_checked(patience)?;
    }
    failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))
}

fn judge(run: &mut Run, spec: &PairSpec, paths: &str, outcomes: &[Outcome]) {
    let silence = spec.active_down(0).max(spec.active_down(1));
    let report = &mut run.report;
    report.count(format!("faults_{paths}"), outcomes.len());
    for fault in Fault::ALL {
        for target in fault.targets() {
            let of: Vec<&Outcome> = outcomes
                .iter()
                .filter(|o| o.fault == *fault && o.target == target)
                .collect();
            if of.is_empty() {
                continue;
            }
            let name = format!("{fault:?}_{target:?}_{paths}").to_lowercase();
            let all: Vec<f64> = of.iter().map(|o| ms(o.outage)).collect();
            report.spread(&format!("outage_ms_{name}"), &all);
            report.count(format!("lost_{name}"), of.iter().map(|o| o.lost).sum());
            let bound = fault.bound(target, silence) + ALLOWANCE;
            let quiet = of.iter().filter(|o| o.stall <= STALL);
            let worst = quiet.clone().map(|o| o.outage).max();
            if let Some(worst) = worst {
                report.check(
                    format!(
                        "{paths}: {fault:?} of the {target:?}: service is back within {} ms",
                        ms(bound)
                    ),
                    worst <= bound,
                    format!(
                        "{} ms at most, {} of {} faults without a machine stall over 10 ms",
                        ms(worst),
                        quiet.count(),
                        of.len()
                    ),
                );
            }
        }
    }
    let two_by_frames: usize = outcomes
        .iter()
        .filter(|o| o.fault.leaves_a_path(spec.peer_link))
        .map(|o| o.disputed)
        .sum();
    let two_by_leases: usize = outcomes
        .iter()
        .filter(|o| o.fault.leaves_a_path(spec.peer_link))
        .map(|o| o.doubles)
        .sum();
    report.check(
        format!("{paths}: never two owners while the nodes have any path: by frames"),
        two_by_frames == 0,
        format!("{two_by_frames} questions answered by both"),
    );
    report.check(
        format!("{paths}: never two owners while the nodes have any path: by lease cells"),
        two_by_leases == 0,
        format!("{two_by_leases} readings of both, a millisecond apart"),
    );
    let parted: Vec<f64> = outcomes
        .iter()
        .filter(|o| !o.fault.leaves_a_path(spec.peer_link))
        .map(|o| f64::from(u32::try_from(o.doubles).unwrap_or(u32::MAX)))
        .collect();
    report.spread(&format!("double_leases_ms_without_a_path_{paths}"), &parted);
    let served = outcomes.iter().filter(|o| o.served).count();
    report.check(
        format!("{paths}: service is back after each fault"),
        served == outcomes.len(),
        format!("{served} of {}", outcomes.len()),
    );
}
