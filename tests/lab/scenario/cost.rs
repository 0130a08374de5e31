//! What a packet costs from end to end, beside nftables on the same drawing: live frames come out of the node's port of
//! the switch and end there once the node has sent them on. CPU of everything between, the generator's own included.

use std::{fs, net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result};
use nix::time::{ClockId, clock_gettime};

use super::{Run, Scenario};
use crate::{
    clock,
    measure::live::{Generator, Template},
    node::{Node as _, Role, nat, onearm::OnearmNode},
    process,
    report::median,
    service::{Mode, PairSpec, Service},
    switch::Switch,
    topology::{OneArm, Options, SERVERS, VIP, mac},
};

const PORT: u16 = 5_300;
/// Sizes of the table, in flows.
const FLOWS: [u64; 2] = [1, 100_000];
/// Frames of one measurement.
const FRAMES: u32 = 1_000_000;
/// First packets of one measurement: with all other flows fewer than nftables has ports.
const NEW: u32 = 20_000;
/// Measurements of each.
const ROUNDS: usize = 3;
/// Source addresses of the pair, so that ports do not run out.
const SOURCES: u8 = 16;
/// How many times less a packet must cost at 100,000 flows, and a new flow.
const GOALS: (f64, f64) = (4.0, 5.0);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "cost",
        about: "CPU of a delivered packet at 1 and 100,000 flows, and of a new flow, beside nftables DNAT and masquerade",
        for_peers: false,
        run,
    }
}

/// Medians, ns of CPU.
struct Cost {
    /// A packet, at each number of flows.
    packet: Vec<f64>,
    /// The first packet of a flow.
    new: f64,
}

fn run(run: &mut Run) -> Result<()> {
    let ours = measured(run, "onearm", |run, lab, spec| {
        let mut node = OnearmNode::prepare(lab, 0, spec, &run.wanted.bin_dir)?;
        node.start()?;
        node.wait_ready(Duration::from_secs(30))?;
        node.wait_role(Role::Active, Duration::from_secs(30))?;
        Ok(Some(node))
    })?;
    let theirs = measured(run, "nftables", |_, lab, spec| {
        let ns = lab.ns("lb1");
        // Frames come from an XDP program; without one here the interface must be able to take them.
        ns.run("ethtool -K eth0 gro on")?;
        nat::install(ns, spec, lab.lab().dir())?;
        Ok(None)
    })?;
    let (packet, new) = (theirs.packet[1] / ours.packet[1], theirs.new / ours.new);
    run.report.figure("ratio_packet_100000_flows", packet);
    run.report
        .figure("ratio_packet_1_flow", theirs.packet[0] / ours.packet[0]);
    run.report.figure("ratio_new_flow", new);
    run.report.check(
        "a packet costs at most a fourth of nftables' at 100,000 flows",
        packet >= GOALS.0,
        format!("{:.0} ns to {:.0} ns", ours.packet[1], theirs.packet[1]),
    );
    run.report.check(
        "a new flow costs at most a fifth of nftables'",
        new >= GOALS.1,
        format!("{:.0} ns to {:.0} ns", ours.new, theirs.new),
    );
    Ok(())
}

fn spec() -> PairSpec {
    let mut service = Service::new("cost", "udp", PORT, Mode::BothNat, &SERVERS);
    service.snat = (0..SOURCES)
        .map(|n| Ipv4Addr::new(192, 168, 100, 200 + n).into())
        .collect();
    let mut spec = PairSpec::web_and_echo(Mode::BothNat, Duration::from_secs(1));
    spec.services = vec![service];
    spec.max_flows = 1_000_000;
    spec
}

fn measured(
    run: &mut Run,
    name: &str,
    start: impl FnOnce(&Run, &OneArm, &PairSpec) -> Result<Option<OnearmNode>>,
) -> Result<Cost> {
    let options = Options {
        sink: true,
        ..Options::default()
    };
    let mut cost = Cost {
        packet: Vec::new(),
        new: 0.0,
    };
    run.with_lab(name, options, |run, lab| {
        let node = start(run, lab, &spec())?;
        let mut generator = Generator::new(lab.switch().ns(), &Switch::port("lb1"), 0)?;
        let mut template = Template {
            to_mac: mac("lb1"),
            from_mac: mac("rt"),
            base: Ipv4Addr::new(100, 64, 0, 0),
            flows: 64,
            to: (VIP, PORT),
            flags: None,
            blind: false,
            rate: None,
        };
        generator.reach(&template, || lab.sunk())?;
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            // Addresses nobody had before.
            template.base = Ipv4Addr::new(101, 64 + u8::try_from(round)?, 0, 0);
            template.flows = 1 << 24;
            generator.restart(0);
            rounds.push(of_a_packet(lab, &mut generator, &template, true, NEW)?);
        }
        run.report.spread(&format!("{name}_new_flow_cpu_ns"), &rounds);
        cost.new = middle(rounds);
        run.report
            .figure(format!("{name}_new_flows_per_cpu_s"), 1e9 / cost.new);
        template.base = Ipv4Addr::new(100, 64, 0, 0);
        for flows in FLOWS {
            template.flows = flows;
            // Each flow has had a packet.
            generator.restart(0);
            for _ in 0..2 {
                generator.send(&template, true, u32::try_from(flows)?)?;
            }
            generator.restart(88_172_645_463_325_252);
            let rounds: Vec<f64> = (0..ROUNDS)
                .map(|_| of_a_packet(lab, &mut generator, &template, false, FRAMES))
                .collect::<Result<_>>()?;
            run.report
                .spread(&format!("{name}_packet_cpu_ns_{flows}_flows"), &rounds);
            cost.packet.push(middle(rounds));
        }
        if let Some(mut node) = node {
            node.ask_to_stop();
            node.reap(Duration::from_secs(10))?;
        }
        Ok(())
    })?;
    Ok(cost)
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
) -> Result<f64> {
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
    anyhow::ensure!(
        through * 2 >= u64::from(frames),
        "{through} of {frames} frames came through"
    );
    Ok((after - before) as f64 / through as f64)
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
