//! A flood of SYNs and blind ACKs from millions of addresses, in every mode: connections that were there before go on.
//!
//! The flood comes out of the node's port of the switch, as from a wire, and ends there once the node has sent it on: what
//! servers make of a flood is their kernel's affair.

use std::{collections::BTreeMap, net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result};

use super::{Run, Scenario, modes, stage};
use crate::{
    clock,
    measure::{
        live::{Generator, Template},
        talk::{self, Talker, Talks},
    },
    node::{Pair, onearm::OnearmNode},
    service::{Mode, PairSpec, Service},
    switch::Switch,
    topology::{OneArm, Options, SERVERS, VIP},
    traffic,
};

/// Connections that must go on.
const CONNECTIONS: usize = 1_000;
/// How often each says something.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the flood lasts.
const LASTS: Duration = Duration::from_secs(30);
/// Frames of the flood a second.
const RATE: u64 = 420_000;
/// The least that must have come to the node, a second.
const LEAST: f64 = 300_000.0;
/// Sources: four ports of each address of 100.64.0.0/10.
const SOURCES: u64 = 1 << 24;
const SYN: u8 = 2;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "flood",
        about: "SYN flood with blind ACKs, over 300,000 a second for 30 s: of 1,000 connections none breaks, in each mode",
        for_peers: false,
        run: |run| {
            for mode in Mode::ALL {
                if let Err(error) = one(run, mode) {
                    run.report.check(
                        format!("{}: the flood was run", mode.word()),
                        false,
                        format!("{error:#}"),
                    );
                }
            }
            Ok(())
        },
    }
}

fn one(run: &mut Run, mode: Mode) -> Result<()> {
    let options = Options {
        sink: true,
        ..Options::default()
    };
    run.with_lab(mode.word(), options, |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        modes::prepare_hosts(lab, mode)?;
        let _tunnel_ends = if mode == Mode::L3Dsr {
            modes::end_tunnels(run, lab)?
        } else {
            Vec::new()
        };
        let _talkers = SERVERS
            .iter()
            .map(|server| Talker::start(lab.ns(server)))
            .collect::<Result<Vec<_>>>()?;
        let mut spec = PairSpec::web_and_echo(mode, run.wanted.interval.unwrap_or(Duration::from_secs(1)));
        spec.services
            .push(Service::new("talk", "tcp", talk::PORT, mode, &SERVERS));
        spec.max_flows = 262_144;
        let mut pair = stage(run, lab, &spec)?;
        pair.nodes[0].wait_checked(Duration::from_secs(20))?;
        flooded(run, lab, &pair, mode)?;
        pair.scrap()
    })
}

fn flooded(run: &mut Run, lab: &OneArm, pair: &Pair, mode: Mode) -> Result<()> {
    let word = mode.word();
    let node = pair.nodes[0].as_onearm().context("a node of onearm")?;
    let target = SocketAddrV4::new(VIP, talk::PORT);
    let talks = Talks::open(lab.ns("out"), target, CONNECTIONS, PERIOD)?;
    // Each has said something before anything happens.
    clock::observe(PERIOD + PERIOD / 2);
    let (before, sunk) = (counters(node)?, lab.sunk()?);
    let seed = run.random() >> 8;
    let mut generator = Generator::new(lab.switch().ns(), &Switch::port("lb1"), seed)?;
    let template = Template {
        flows: SOURCES,
        flags: Some(SYN),
        blind: true,
        rate: Some(RATE),
        ..Template::of_clients((VIP, talk::PORT))
    };
    let (begun, mut sent) = (clock::now(), 0_u64);
    while clock::now() < begun + clock::nanos(LASTS) {
        generator.send(&template, false, u32::try_from(RATE)?)?;
        sent += RATE;
    }
    let seconds = clock::ms(clock::now() - begun) / 1000.0;
    let (after, sunk) = (counters(node)?, lab.sunk()? - sunk);
    let talked = talks.finish()?;
    #[expect(clippy::cast_precision_loss, reason = "frames of half a minute")]
    let per_second = |n: u64| n as f64 / seconds;
    let moved: BTreeMap<&String, f64> = after
        .iter()
        .map(|(name, n)| (name, per_second(n - before.get(name).copied().unwrap_or(0))))
        .filter(|(_, rate)| *rate > 100.0)
        .collect();
    for (name, rate) in &moved {
        run.report.figure(format!("{word}_{name}_per_s"), *rate);
    }
    run.report.figure(format!("{word}_sent_per_s"), per_second(sent));
    run.report
        .figure(format!("{word}_to_servers_per_s"), per_second(sunk));
    // What the node did something with: sent on to a server, or dropped for a reason.
    let dropped: f64 = DROPS
        .iter()
        .filter_map(|name| moved.get(&(*name).to_owned()))
        .sum();
    let came = per_second(sunk) + dropped;
    run.report.count(format!("{word}_answers"), talked.answers);
    run.report
        .figure(format!("{word}_slowest_answer_ms"), clock::ms(talked.longest));
    run.report.figure(
        format!("{word}_slowest_answer_of_half_ms"),
        clock::ms(talked.median_longest),
    );
    run.report.check(
        format!("{word}: at least 300,000 frames of the flood come to the node in a second"),
        came >= LEAST,
        format!("{came:.0} a second for {seconds:.1} s"),
    );
    run.report.check(
        format!("{word}: of {CONNECTIONS} connections none breaks"),
        talked.broken.is_empty() && talked.connections == CONNECTIONS,
        match talked.broken.first() {
            None => format!("{} words came back", talked.answers),
            Some(first) => format!("{} broke; the first: {first}", talked.broken.len()),
        },
    );
    Ok(())
}

/// What a flood's frames may be dropped for.
const DROPS: [&str; 4] = ["tcp_without_flow", "half_open_full", "no_port", "table_full"];

/// Counters of the node's programs.
fn counters(node: &OnearmNode) -> Result<BTreeMap<String, u64>> {
    let status = node.ask(&["status"])?;
    let counters = status.pointer("/dataplane/counters").context("counters")?;
    Ok(serde_json::from_value(counters.clone())?)
}
