//! onearm beside keepalived and FRR in one pair, in both roles, and a pair that moves from keepalived to onearm under traffic.
//!
//! IPv4; both families of the protocol are tested in the tests of `onearm-ha`.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Run, Scenario, failover, named};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{echo, http::HttpProber, owners::Sampler, udp::UdpProber},
    node::{
        Node, Role,
        frr::FrrNode,
        keepalived::KeepalivedNode,
        onearm::{OnearmNode, pair_toml},
    },
    service::{Mode, PairSpec},
    topology::{NODES, OneArm, Options, SERVERS, VIP},
    traffic,
};

/// How long a daemon may take to be in its role.
const LIMIT: Duration = Duration::from_mins(1);
/// What a step may cost above its bound: announcements on their way, the machine.
const ALLOWANCE: Nanos = 30 * MS;
/// How long a step is looked at beyond the wait.
const AFTERMATH: Duration = Duration::from_millis(1_500);

/// Parts of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// keepalived and onearm.
    Keepalived,
    /// FRR's vrrpd and onearm.
    Frr,
    /// From keepalived to onearm.
    Migration,
}

impl Part {
    const ALL: [Self; 3] = [Self::Keepalived, Self::Frr, Self::Migration];

    fn name(self) -> &'static str {
        match self {
            Self::Keepalived => "keepalived",
            Self::Frr => "frr",
            Self::Migration => "migration",
        }
    }
}

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "interop",
        about: "one pair of onearm and keepalived or FRR, in both roles; a pair that moves from keepalived to onearm (--only: parts)",
        for_peers: false,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    let interval = run.wanted.interval.unwrap_or(Duration::from_millis(100));
    let mut spec = PairSpec::web_and_echo(Mode::Dnat, interval).without_authentication();
    // keepalived takes no advert that lists other addresses than its own.
    spec.announce = spec.owned().into_iter().map(Into::into).collect();
    for part in named(&Part::ALL, Part::name, &run.wanted.only)? {
        let options = Options {
            forwarding: true,
            ..Options::default()
        };
        run.with_lab(part.name(), options, |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            match part {
                Part::Keepalived | Part::Frr => {
                    mixed(run, lab, &spec, part, 0)?;
                    mixed(run, lab, &spec, part, 1)
                }
                Part::Migration => migration(run, lab, &spec),
            }
        })?;
    }
    Ok(())
}

/// What a step cost.
struct Cost {
    outage: Nanos,
    lost: usize,
    connections: Nanos,
    two_owners: usize,
}

/// Looks on while `step` is made, and for a while after it.
fn watched(lab: &OneArm, spec: &PairSpec, step: impl FnOnce() -> Result<()>) -> Result<Cost> {
    let sampler = Sampler::start(lab, VIP, MS)?;
    let udp = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
    let http = HttpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, 80), 5 * MS)?;
    clock::observe(Duration::from_millis(300));
    let begun = clock::now();
    step()?;
    clock::observe(Duration::from_nanos(spec.active_down(0).max(spec.active_down(1))) + AFTERMATH);
    let over = clock::now();
    let (udp, http, owners) = (udp.stop()?, http.stop()?, sampler.stop()?);
    Ok(Cost {
        outage: udp.longest_gap(begun - 2 * MS, over),
        lost: udp.lost(begun - 2 * MS, over),
        connections: http.longest_gap(begun - 10 * MS, over - 5 * MS),
        two_owners: owners.disputed(begun, over).len(),
    })
}

/// Checks a step: how long service was away, and that two owned at most while an advert was on its way.
fn judge(run: &mut Run, name: &str, cost: &Cost, bound: Nanos, spec: &PairSpec) {
    judge_outage(run, name, cost, bound);
    run.report.check(
        format!("{name}: two owners for one interval at most"),
        u128::try_from(cost.two_owners).unwrap_or(u128::MAX) <= spec.interval.as_millis(),
        format!("{} ms", cost.two_owners),
    );
}

fn judge_outage(run: &mut Run, name: &str, cost: &Cost, bound: Nanos) {
    let figure = name.replace(", ", "_").replace(' ', "_");
    run.report.figure(format!("{figure}_outage_ms"), ms(cost.outage));
    run.report
        .count(format!("{figure}_two_owners_ms"), cost.two_owners);
    let text = format!(
        "{:.1} ms, {} packets of 1,000 a second lost, new connections away {:.0} ms",
        ms(cost.outage),
        cost.lost,
        ms(cost.connections)
    );
    run.report.check(
        format!("{name}: service is away for {:.0} ms at most", ms(bound)),
        cost.outage <= bound + ALLOWANCE,
        text,
    );
}

/// onearm with priority to take over from a worse owner, as the others do.
fn onearm(run: &Run, lab: &OneArm, index: usize, spec: &PairSpec, preempt: bool) -> Result<OnearmNode> {
    let node = OnearmNode::prepare(lab, index, spec, &run.wanted.bin_dir)?;
    let word = format!("preempt = {preempt}");
    node.write_pair(&pair_toml(spec).replacen("preempt = false", &word, 1))?;
    Ok(node)
}

/// One pair, in which onearm is node `index`.
fn mixed(run: &mut Run, lab: &OneArm, spec: &PairSpec, part: Part, index: usize) -> Result<()> {
    let other: Box<dyn Node> = match part {
        Part::Keepalived | Part::Migration => Box::new(KeepalivedNode::prepare(lab, 1 - index, spec, false)?),
        Part::Frr => Box::new(FrrNode::prepare(lab, 1 - index, spec)?),
    };
    let ours: Box<dyn Node> = Box::new(onearm(run, lab, index, spec, true)?);
    let mut nodes = if index == 0 { [ours, other] } else { [other, ours] };
    let names = if index == 0 {
        ["onearm", part.name()]
    } else {
        [part.name(), "onearm"]
    };
    for (node, role) in nodes.iter_mut().zip([Role::Active, Role::Standby]) {
        node.start()?;
        node.wait_role(role, LIMIT)?;
        node.wait_checked(LIMIT)?;
    }
    lab.forget_neighbours()?;
    failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
    let silence = spec.active_down(1);
    let pair = format!("{} before {}", names[0], names[1]);
    let steps: [(&str, Nanos); 4] = [
        // The skew, and what the daemon does before it says that it goes.
        ("clean stop", clock::nanos(spec.interval) * 2),
        ("return with greater priority", 100 * MS),
        ("death", silence),
        ("return from death", 100 * MS),
    ];
    for (what, bound) in steps {
        let [first, second] = &mut nodes;
        let cost = watched(lab, spec, || match what {
            "clean stop" => {
                first.ask_to_stop();
                second.wait_role(Role::Active, LIMIT)
            }
            "death" => {
                die(lab, first.as_mut(), index == 0)?;
                second.wait_role(Role::Active, LIMIT)
            }
            _ => {
                first.reap(LIMIT)?;
                if index == 1 {
                    first.clean_up()?;
                    lab.switch().mend(first.short())?;
                    lab.default_route(first.short())?;
                }
                first.start()?;
                first.wait_role(Role::Active, LIMIT)?;
                second.wait_role(Role::Standby, LIMIT)
            }
        })?;
        let name = format!("{pair}, {what}");
        if part == Part::Frr && index == 1 {
            // zebra leaves the addresses up when it is stopped, and has them before vrrpd knows that it waits: also beside
            // a vrrpd.
            judge_outage(run, &name, &cost, bound);
        } else {
            judge(run, &name, &cost, bound, spec);
        }
    }
    for node in &mut nodes {
        node.sigkill_all();
        node.reap(LIMIT)?;
        node.clean_up()?;
    }
    Ok(())
}

/// SIGKILL of onearm. A killed peer's addresses stay in its kernel, so that two would own: there it is the machine that dies.
fn die(lab: &OneArm, node: &mut dyn Node, is_onearm: bool) -> Result<()> {
    if !is_onearm {
        lab.switch().cut(node.short())?;
    }
    node.sigkill_all();
    Ok(())
}

/// A pair of keepalived nodes becomes one of onearm nodes, which then learn to authenticate each other.
fn migration(run: &mut Run, lab: &OneArm, spec: &PairSpec) -> Result<()> {
    let [mut old_a, mut old_b] = [
        KeepalivedNode::prepare(lab, 0, spec, false)?,
        KeepalivedNode::prepare(lab, 1, spec, false)?,
    ];
    old_a.start()?;
    old_a.wait_role(Role::Active, LIMIT)?;
    old_b.start()?;
    old_b.wait_role(Role::Standby, LIMIT)?;
    lab.forget_neighbours()?;
    failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
    let mut a = onearm(run, lab, 0, spec, false)?;
    let mut b = onearm(run, lab, 1, spec, false)?;
    let handed_over = clock::nanos(spec.interval) * 2;

    let cost = watched(lab, spec, || {
        retire(&mut old_b)?;
        ready(&mut b, Role::Standby)
    })?;
    judge(run, "migration 1, the Standby runs onearm", &cost, 0, spec);
    let cost = watched(lab, spec, || {
        old_a.ask_to_stop();
        b.wait_role(Role::Active, LIMIT)
    })?;
    judge(
        run,
        "migration 2, keepalived is stopped on the Active",
        &cost,
        handed_over,
        spec,
    );
    let cost = watched(lab, spec, || {
        retire(&mut old_a)?;
        ready(&mut a, Role::Standby)
    })?;
    judge(run, "migration 3, the other node runs onearm", &cost, 0, spec);

    let signed = |rollout: &str| {
        let auth = format!("auth = \"hmac\", rollout = \"{rollout}\"");
        pair_toml(spec).replacen("auth = \"none\"", &auth, 1)
    };
    for node in [&a, &b] {
        node.write_pair(&signed("accept"))?;
    }
    let cost = watched(lab, spec, || {
        a.ask_to_stop();
        a.reap(LIMIT)?;
        ready(&mut a, Role::Standby)
    })?;
    judge(
        run,
        "migration 4, authentication on the Standby, accept",
        &cost,
        0,
        spec,
    );
    let cost = watched(lab, spec, || {
        b.ask_to_stop();
        b.reap(LIMIT)?;
        a.wait_role(Role::Active, LIMIT)?;
        ready(&mut b, Role::Standby)
    })?;
    judge(
        run,
        "migration 5, authentication on the Active, accept",
        &cost,
        handed_over,
        spec,
    );
    for (number, rollout) in [(6, "prefer"), (7, "enforce")] {
        let cost = watched(lab, spec, || {
            for node in [&a, &b] {
                node.write_pair(&signed(rollout))?;
                kill(Pid::from_raw(node.main_pid()), Signal::SIGHUP)?;
            }
            for node in [&a, &b] {
                wait_status(node, "/ha/authentication/rollout", |found| found == rollout)?;
            }
            Ok(())
        })?;
        judge(run, &format!("migration {number}, {rollout}"), &cost, 0, spec);
    }
    for node in [&a, &b] {
        wait_status(
            node,
            "/ha/authentication/peer_since_ms",
            serde_json::Value::is_u64,
        )?;
    }
    run.report.check(
        "migration: both nodes are authenticated at the end",
        a.role()? == Role::Active && b.role()? == Role::Standby,
        format!("{} {:?}, {} {:?}", NODES[0], a.role()?, NODES[1], b.role()?),
    );
    for node in [&mut a, &mut b] {
        node.ask_to_stop();
        node.reap(LIMIT)?;
    }
    Ok(())
}

/// Stops a peer and takes what it left from the kernel.
fn retire(node: &mut KeepalivedNode) -> Result<()> {
    node.ask_to_stop();
    node.reap(LIMIT)?;
    node.clean_up()
}

fn ready(node: &mut OnearmNode, role: Role) -> Result<()> {
    node.start()?;
    node.wait_role(role, LIMIT)?;
    node.wait_checked(LIMIT)
}

fn wait_status(
    node: &OnearmNode,
    pointer: &str,
    is_right: impl Fn(&serde_json::Value) -> bool,
) -> Result<()> {
    clock::wait_for(pointer, LIMIT, Duration::from_millis(50), || {
        let status = node.ask(&["status"])?;
        let found = status.pointer(pointer).context("not in the status")?;
        Ok(is_right(found).then_some(()))
    })
}
