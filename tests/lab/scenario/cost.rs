//! What a packet costs from end to end, beside nftables on the same drawing: live frames come out of the node's port of
//! the switch and end there once the node has sent them on. CPU of everything between, the generator's own included; what is
//! left of it without a balancer is measured too.

use std::{fs, net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result};
use nix::time::{ClockId, clock_gettime};
use onearm_dataplane_common::bench::ports;

use super::{Run, Scenario};
use crate::{
    clock,
    measure::live::{Generator, Template},
    node::{Node as _, Role, nat, onearm::OnearmNode},
    process,
    report::median,
    service::{Mode, PairSpec, Service},
    switch::Switch,
    topology::{OneArm, Options, SERVERS, VIP},
    xdp::PassThrough,
};

/// Of packets of known flows.
const PORT: u16 = 5_300;
/// Sizes of the table, in flows.
const FLOWS: [u64; 2] = [1, 100_000];
/// Frames of one measurement.
const FRAMES: u32 = 1_000_000;
/// First packets: how many at once, to which port, and from how many addresses the pair sends them: as few as hold them. Each
/// of the three servers may have 16,384 flows of one address, a node's half of the ports.
const NEW: [(u32, u16, u8); 2] = [(20_000, 5_301, 1), (100_000, 5_302, SOURCES)];
/// Source addresses for 100,000 flows.
const SOURCES: u8 = 3;
/// Which ports the clients have.
const PATTERNS: [(&str, u64); 3] = [
    ("apart", ports::APART),
    ("ephemeral", ports::EPHEMERAL),
    ("four", ports::FOUR),
];
/// How long a new flow lives: its ports are needed again.
const IDLE: Duration = Duration::from_secs(1);
/// Measurements of each.
const ROUNDS: usize = 3;
/// Of new flows, before each of which those of the last must have ended.
const NEW_ROUNDS: usize = 2;
/// How many times less a packet must cost at 100,000 flows, and a new flow.
const GOALS: (f64, f64) = (4.0, 5.0);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "cost",
        about: "CPU of a delivered packet at 1 and 100,000 flows, and of new flows, beside nftables DNAT and masquerade",
        for_peers: false,
        run,
    }
}

/// Who is between generator and sink.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Onearm,
    Nftables,
    /// A program that sends every frame back.
    Nobody,
}

impl Between {
    fn word(self) -> &'static str {
        match self {
            Self::Onearm => "onearm",
            Self::Nftables => "nftables",
            Self::Nobody => "floor",
        }
    }
}

/// Medians, ns of CPU.
#[derive(Default)]
struct Cost {
    /// A packet, at each number of flows.
    packet: Vec<f64>,
    /// The first packet of a flow, of each pattern at each number.
    new: Vec<Vec<Share>>,
}

/// What one measurement has found.
#[derive(Clone, Copy)]
struct Share {
    /// ns of CPU for each frame that came through.
    cost: f64,
    /// Of the frames sent, in percent.
    delivered: f64,
}

fn run(run: &mut Run) -> Result<()> {
    let ours = measured(run, Between::Onearm)?;
    let theirs = measured(run, Between::Nftables)?;
    let floor = measured(run, Between::Nobody)?.packet[0];
    for (pattern, (name, _)) in PATTERNS.iter().enumerate() {
        for (n, (count, ..)) in NEW.iter().enumerate() {
            let (own, other) = (ours.new[pattern][n], theirs.new[pattern][n]);
            let named = |what: &str| format!("{what}_new_flow_{name}_{count}");
            run.report.figure(named("own_ns_above_floor"), own.cost - floor);
            run.report.figure(named("ratio"), other.cost / own.cost);
        }
    }
    let packet = theirs.packet[1] / ours.packet[1];
    run.report.figure("ratio_packet_100000_flows", packet);
    run.report
        .figure("ratio_packet_1_flow", theirs.packet[0] / ours.packet[0]);
    run.report.check(
        "a packet costs at most a fourth of nftables' at 100,000 flows",
        packet >= GOALS.0,
        format!("{:.0} ns to {:.0} ns", ours.packet[1], theirs.packet[1]),
    );
    let (own, other) = (ours.new[2][1], theirs.new[2][1]);
    run.report.check(
        "a new flow costs at most a fifth of nftables' where every client has the same four ports, 100,000 flows",
        other.cost / own.cost >= GOALS.1,
        format!(
            "{:.0} ns to {:.0} ns, {:.1} % and {:.1} % delivered; {floor:.0} ns without a balancer",
            own.cost, other.cost, own.delivered, other.delivered
        ),
    );
    let (few, many) = (NEW[0].2, NEW[1].2);
    run.report.note(format!(
        "source addresses of the pair: {few} for {} flows, {many} for {}",
        NEW[0].0, NEW[1].0
    ));
    run.report.check(
        "every new flow is made, whatever ports clients have",
        ours.new.iter().flatten().all(|share| share.delivered >= 99.9),
        ours.new
            .iter()
            .flatten()
            .map(|share| format!("{:.2} %", share.delivered))
            .collect::<Vec<_>>()
            .join(", "),
    );
    Ok(())
}

fn spec() -> PairSpec {
    let mut first = 200;
    let mut service = |name: &str, port, sources: u8, idle| {
        let mut service = Service::new(name, "udp", port, Mode::BothNat, &SERVERS);
        service.snat = (first..first + sources)
            .map(|n| Ipv4Addr::new(192, 168, 100, n).into())
            .collect();
        service.idle_timeout = idle;
        first += sources;
        service
    };
    let mut spec = PairSpec::web_and_echo(Mode::BothNat, Duration::from_secs(1));
    spec.services = vec![service("cost", PORT, SOURCES, None)];
    for (count, port, sources) in NEW {
        spec.services
            .push(service(&format!("new-{count}"), port, sources, Some(IDLE)));
    }
    spec.max_flows = 1_000_000;
    spec
}

/// Starts what is to be measured. The second is kept for as long as it is to work.
fn start(run: &Run, lab: &OneArm, between: Between) -> Result<(Option<OnearmNode>, Option<PassThrough>)> {
    let ns = lab.ns("lb1");
    match between {
        Between::Onearm => {
            let mut node = OnearmNode::prepare(lab, 0, &spec(), &run.wanted.bin_dir)?;
            node.start()?;
            node.wait_ready(Duration::from_secs(30))?;
            node.wait_role(Role::Active, Duration::from_secs(30))?;
            Ok((Some(node), None))
        }
        Between::Nftables => {
            // Frames come from an XDP program; without one here the interface must be able to take them.
            ns.run("ethtool -K eth0 gro on")?;
            nat::install(ns, &spec(), lab.lab().dir())?;
            Ok((None, None))
        }
        Between::Nobody => {
            let mut turn = PassThrough::load_turn()?;
            turn.attach(ns, &["eth0".to_owned()])?;
            Ok((None, Some(turn)))
        }
    }
}

fn measured(run: &mut Run, between: Between) -> Result<Cost> {
    let options = Options {
        sink: true,
        ..Options::default()
    };
    let mut cost = Cost::default();
    run.with_lab(between.word(), options, |run, lab| {
        let (node, _turn) = start(run, lab, between)?;
        let mut generator = Generator::new(lab.switch().ns(), &Switch::port("lb1"), 0)?;
        let template = Template {
            flows: 64,
            ..Template::of_clients((VIP, PORT))
        };
        generator.reach(&template, || lab.sunk())?;
        if between != Between::Nobody {
            cost.new = new_flows(run, lab, between, node.as_ref(), &mut generator, template)?;
        }
        cost.packet = packets(run, lab, between, &mut generator, template)?;
        if let Some(mut node) = node {
            node.ask_to_stop();
            node.reap(Duration::from_secs(10))?;
        }
        Ok(())
    })?;
    Ok(cost)
}

/// First packets: of each pattern, at each number.
fn new_flows(
    run: &mut Run,
    lab: &OneArm,
    between: Between,
    node: Option<&OnearmNode>,
    generator: &mut Generator,
    mut template: Template,
) -> Result<Vec<Vec<Share>>> {
    template.flows = 1 << 24;
    let mut found = Vec::new();
    for (pattern, kind) in PATTERNS {
        let mut of_pattern = Vec::new();
        for (count, port, _) in NEW {
            (template.ports, template.to.1) = (kind, port);
            let mut rounds = Vec::new();
            for round in 0..NEW_ROUNDS {
                // Addresses nobody had before.
                template.base = Ipv4Addr::new(101, 64 + u8::try_from(round)?, 0, 0);
                generator.restart(0);
                forget(lab, node)?;
                rounds.push(of_a_packet(lab, generator, &template, true, count)?);
            }
            let name = format!("{}_new_flow_{pattern}_{count}", between.word());
            of_pattern.push(spread(run, &name, &rounds));
        }
        found.push(of_pattern);
    }
    forget(lab, node)?;
    Ok(found)
}

/// No flow is known any more.
fn forget(lab: &OneArm, node: Option<&OnearmNode>) -> Result<()> {
    let Some(node) = node else {
        return lab.ns("lb1").run("conntrack -F").map(drop);
    };
    let (limit, pause) = (Duration::from_secs(30), Duration::from_millis(100));
    clock::wait_for("the end of all new flows", limit, pause, || {
        let status = node.ask(&["status"])?;
        let left = status
            .pointer("/dataplane/flows")
            .and_then(serde_json::Value::as_u64);
        // Those that showed the way is open are of the other service.
        Ok((left.context("no flows in the status")? <= 64).then_some(()))
    })?;
    Ok(())
}

/// Packets of known flows, at each number.
fn packets(
    run: &mut Run,
    lab: &OneArm,
    between: Between,
    generator: &mut Generator,
    mut template: Template,
) -> Result<Vec<f64>> {
    let mut found = Vec::new();
    for flows in FLOWS {
        template.flows = flows;
        // Each flow has had a packet.
        generator.restart(0);
        for _ in 0..2 {
            generator.send(&template, true, u32::try_from(flows)?)?;
        }
        generator.restart(88_172_645_463_325_252);
        let rounds: Vec<Share> = (0..ROUNDS)
            .map(|_| of_a_packet(lab, generator, &template, false, FRAMES))
            .collect::<Result<_>>()?;
        let name = format!("{}_packet_{flows}_flows", between.word());
        found.push(spread(run, &name, &rounds).cost);
    }
    Ok(found)
}

/// Reports rounds; returns their medians.
fn spread(run: &mut Run, name: &str, rounds: &[Share]) -> Share {
    let costs: Vec<f64> = rounds.iter().map(|share| share.cost).collect();
    let delivered = middle(rounds.iter().map(|share| share.delivered).collect());
    run.report.spread(&format!("{name}_cpu_ns"), &costs);
    run.report.figure(format!("{name}_delivered_percent"), delivered);
    Share {
        cost: middle(costs),
        delivered,
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    median(&values).unwrap_or(f64::NAN)
}

/// ns of CPU for each frame that came through: of this process, which moves frames while it makes them, and of the kernel's
/// threads that move on what was left.
#[expect(clippy::cast_precision_loss, reason = "times and frames of seconds")]
fn of_a_packet(
    lab: &OneArm,
    generator: &mut Generator,
    template: &Template,
    sequential: bool,
    frames: u32,
) -> Result<Share> {
    let softirq = softirq_threads()?;
    let spent = || -> Result<u64> {
        let own = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
        let kernel: u64 = softirq.iter().filter_map(|pid| process::cpu_ms(*pid)).sum();
        Ok(clock::nanos(Duration::from(own)) + kernel * clock::MS)
    };
    let (before, came) = (spent()?, lab.sunk()?);
    generator.send(template, sequential, frames)?;
    clock::observe(Duration::from_millis(50));
    let (after, through) = (spent()?, lab.sunk()? - came);
    anyhow::ensure!(through > 0, "none of {frames} frames came through");
    Ok(Share {
        cost: (after - before) as f64 / through as f64,
        delivered: through as f64 * 100.0 / f64::from(frames),
    })
}

/// Pids of the kernel's threads that do what interrupts leave.
fn softirq_threads() -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc")? {
        let path = entry?.path();
        let pid = path
            .file_name()
            .and_then(|name| name.to_str()?.parse::<i32>().ok());
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if let Some(pid) = pid
            && name.starts_with("ksoftirqd")
        {
            found.push(pid);
        }
    }
    Ok(found)
}
