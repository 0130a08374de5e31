//! Legs that go, come back, are renamed or come late.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::echo_target;
use crate::{
    clock::{self, MS, ms, nanos},
    measure::{
        owners::Sampler,
        stalls::{self, StallMonitor},
    },
    node::{Pair, Role},
    scenario::{Run, failover, stage},
    service::{Mode, PairSpec},
    topology::{OneArm, Options, SERVERS, VIP},
    traffic,
};

pub(super) fn leg_replaced(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    let lab = OneArm::build(Options::default())?;
    let mut lab = Some(lab);
    let outcome = leg_story(run, &spec, lab.as_mut().context("just made")?);
    if let Some(lab) = &lab {
        if outcome.is_err() {
            run.keep(lab, "leg")?;
        } else {
            run.keep_if_needed(lab, "leg")?;
        }
    }
    outcome
}

fn leg_story(run: &mut Run, spec: &PairSpec, lab: &mut OneArm) -> Result<()> {
    let _servers = traffic::start_servers(lab, &SERVERS)?;
    let mut pair = stage(run, lab, spec)?;
    let pids = pair.nodes[0].pids();
    let patience = pair.patience();
    lab.remove_leg("lb1")?;
    pair.nodes[1].wait_role(Role::Active, patience)?;
    run.report
        .check("the other node takes over when the leg goes", true, "");
    for i in 0..250 {
        let ns = lab.ns("lb1");
        ns.run(&format!("ip link add x{i} type veth peer name y{i}"))?;
        ns.run(&format!("ip link del x{i}"))?;
    }
    lab.new_leg("lb1")?;
    lab.ns("lb1").run("ip link set eth0 up")?;
    lab.address_leg("lb1")?;
    usable(run, lab, &mut pair, "made anew", &pids)?;
    for name in ["eth9", "eth0"] {
        let ns = lab.ns("lb1");
        let old = if name == "eth9" { "eth0" } else { "eth9" };
        ns.run(&format!("ip link set {old} down"))?;
        ns.run(&format!("ip link set {old} name {name}"))?;
        ns.run(&format!("ip link set {name} up"))?;
        clock::observe(Duration::from_secs(1));
    }
    lab.default_route("lb1")?;
    usable(run, lab, &mut pair, "renamed and back", &pids)?;
    pair.scrap()
}

/// lb1 is a usable Standby without a restart of its main process: it takes over when lb2's cable is cut.
fn usable(run: &mut Run, lab: &OneArm, pair: &mut Pair, what: &str, pids: &[i32]) -> Result<()> {
    let patience = pair.patience();
    if pair.nodes[0].role()? == Role::Active {
        run.report.note("lb1 is Active again by itself");
    } else {
        pair.nodes[0].wait_role(Role::Standby, patience)?;
        lab.switch().cut("lb2")?;
        pair.nodes[0].wait_role(Role::Active, patience)?;
    }
    let served = failover::wait_served(lab, echo_target());
    run.report.check(
        format!("leg {what}: lb1 serves again without a restart"),
        served.is_ok() && pair.nodes[0].pids().first() == pids.first(),
        served.err().map(|e| format!("{e:#}")).unwrap_or_default(),
    );
    lab.switch().mend("lb2")?;
    lab.default_route("lb2")?;
    pair.nodes[1].wait_role(Role::Standby, patience)
}

pub(super) fn leg_comes_late(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    for order in ["up, then address", "address, then up"] {
        let mut lab = OneArm::build(Options::default())?;
        let outcome = late_story(run, &spec, &mut lab, order);
        if outcome.is_err() {
            run.keep(&lab, "late")?;
        } else {
            run.keep_if_needed(&lab, "late")?;
        }
        outcome?;
    }
    Ok(())
}

/// Links of strangers come and go while adverts are fast: the kernel's link lock must not delay the election.
pub(super) fn foreign_links(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(
        Mode::Dnat,
        run.wanted.interval.unwrap_or(Duration::from_millis(10)),
    );
    run.with_lab("links", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let stall_monitor = StallMonitor::start()?;
        let sampler = Sampler::start(lab, VIP, MS)?;
        // A slow process that changes links, on a busy machine: it holds the kernel's link lock while it waits for a CPU.
        let stranger = lab.lab().namespace("stranger")?;
        let log = lab.lab().dir().join("strangers.log");
        let add = "ip link add x type veth peer name y; ip link set x up; ip link del x";
        let mut strangers = vec![stranger.spawn(
            &["nice", "-n", "19", "sh", "-c", &format!("while :; do {add}; done")],
            &[],
            &log,
        )?];
        for _ in 0..4 {
            strangers.push(stranger.spawn(&["sh", "-c", "while :; do :; done"], &[], &log)?);
        }
        let begun = clock::now();
        clock::observe(Duration::from_secs(10));
        let end = clock::now();
        drop(strangers);
        let (owners, stall_list) = (sampler.stop()?, stall_monitor.stop()?);
        let changes = owners.changes(begun, end);
        let stall = stalls::longest(&stall_list, begun, end);
        run.report.count("ownership_changes", changes);
        run.report.figure("machine_stall_ms", ms(stall));
        run.report
            .figure("ownerless_ms", ms(owners.longest_silence(begun, end)));
        if let Some(node) = pair.nodes[0].as_onearm() {
            let counters = node
                .ask(&["status"])?
                .pointer("/ha/counters")
                .cloned()
                .unwrap_or_default();
            let gap = counters
                .get("thread_longest_gap_nanos")
                .and_then(serde_json::Value::as_u64)
                .unwrap_or(0);
            run.report.figure("longest_gap_of_renewals_ms", ms(gap));
        }
        run.report.check(
            "ownership stays while links of strangers come and go (stalls of the machine over two intervals excuse)",
            changes == 0 || stall > 2 * nanos(spec.interval),
            format!(
                "{changes} changes in 10 s, machine stall {} ms",
                ms(stall)
            ),
        );
        pair.scrap()
    })
}

fn late_story(run: &mut Run, spec: &PairSpec, lab: &mut OneArm, order: &str) -> Result<()> {
    let _servers = traffic::start_servers(lab, &SERVERS)?;
    lab.remove_leg("lb1")?;
    let mut pair = Pair::prepare(run.wanted.kind, lab, spec, &run.wanted.bin_dir)?;
    pair.nodes[0].start()?;
    let pause = Duration::from_secs(1);
    clock::observe(pause);
    lab.new_leg("lb1")?;
    clock::observe(pause);
    let up = "ip link set eth0 up";
    if order.starts_with("up") {
        lab.ns("lb1").run(up)?;
        clock::observe(pause);
        lab.address_leg("lb1")?;
    } else {
        lab.ns("lb1").run("ip addr add 192.168.100.2/24 dev eth0")?;
        clock::observe(pause);
        lab.ns("lb1").run(up)?;
        lab.default_route("lb1")?;
    }
    let patience = pair.patience();
    let ready = pair.nodes[0].wait_role(Role::Active, patience);
    run.report.check(
        format!("leg made, {order}: it becomes usable without a restart"),
        ready.is_ok(),
        ready.err().map(|e| format!("{e:#}")).unwrap_or_default(),
    );
    let served = failover::wait_served(lab, echo_target());
    run.report.check(
        format!("leg made, {order}: it serves"),
        served.is_ok(),
        served.err().map(|e| format!("{e:#}")).unwrap_or_default(),
    );
    pair.scrap()
}
