//! Promiscuous legs on a switch that floods every frame to every port: nothing is doubled, looped or relayed in a circle.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddrV4,
    time::Duration,
};

use anyhow::Result;

use super::{Run, Scenario, stage};
use crate::{
    clock::{self, MS, Nanos},
    measure::{
        capture::{Capture, Captured, Direction, Filter},
        echo,
        udp::UdpProber,
    },
    service::{Mode, PairSpec},
    switch::{Switch, Variant},
    topology::{NODES, OneArm, Options, SERVERS, VIP, address, colons, mac},
    traffic::{self, DIRECT_PORT},
};

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "promiscuous",
        about: "promiscuous legs, switch ageing 0: no frame doubled, looping or relayed in a circle",
        for_peers: true,
        run: |run| {
            for mode in [Mode::BothNat, Mode::Dnat] {
                flooded(run, mode)?;
            }
            strays(run)
        },
    }
}

fn spec(run: &Run, mode: Mode) -> PairSpec {
    PairSpec::web_and_echo(mode, run.interval())
}

/// Traffic of all kinds while every frame reaches every port.
fn flooded(run: &mut Run, mode: Mode) -> Result<()> {
    let word = mode.word();
    let spec = spec(run, mode);
    let options = Options {
        variant: Variant::Flooding,
        forwarding: true,
        ..Options::default()
    };
    run.with_lab(word, options, |run, lab| {
        let _servers = traffic::start_servers(lab, &["s1", "s2", "s3", "out"])?;
        for node in NODES {
            lab.ns(node).run("ip link set eth0 promisc on")?;
        }
        let mut pair = stage(run, lab, &spec)?;
        let capture = Capture::start(lab.switch().ns(), None, Filter::All)?;
        let prober = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), 5 * MS)?;
        for asker in ["out", "s1", "s2", "cl"] {
            let answers = traffic::curl(lab, asker, &VIP.to_string(), 100, "flooded")?;
            run.report.check(
                format!("{word}: {asker} gets 100 of 100 requests"),
                answers.good() == 100,
                format!("{} failed {}", answers.failed, answers.complaint),
            );
        }
        let target = format!("{}:{DIRECT_PORT}", address("out"));
        let answers = traffic::curl(lab, "s3", &target, 50, "flooded")?;
        run.report.check(
            format!("{word}: s3 gets out through the gateway"),
            answers.good() == 50,
            answers.complaint,
        );
        let series = prober.stop()?;
        clock::observe(Duration::from_millis(50));
        let record = capture.stop()?;
        record.write_pcap(&lab.lab().dir().join(format!("flooded-{word}.pcap")))?;
        let (lost, doubled) = (series.lost(0, Nanos::MAX), series.duplicates(0, Nanos::MAX));
        run.report.check(
            format!("{word}: every datagram is answered once"),
            lost == 0 && doubled == 0,
            format!("{lost} lost, {doubled} doubled of {}", series.attempts.len()),
        );
        judge(run, word, &record.frames);
        pair.scrap()
    })
}

/// Frames that came out of a port of the switch's hosts.
fn entering(frames: &[Captured]) -> impl Iterator<Item = &Captured> {
    frames
        .iter()
        .filter(|c| c.direction == Direction::In && c.port.starts_with("p-"))
}

fn judge(run: &mut Run, word: &str, frames: &[Captured]) {
    let mut sources: BTreeMap<String, BTreeSet<[u8; 6]>> = BTreeMap::new();
    let mut seen: HashMap<(String, Vec<u8>), usize> = HashMap::new();
    let mut carriers: HashMap<Vec<u8>, BTreeSet<String>> = HashMap::new();
    let mut standby_carried = 0_usize;
    let mut counted = 0_usize;
    for captured in entering(frames) {
        let Some(frame) = captured.frame() else { continue };
        sources
            .entry(captured.port.clone())
            .or_default()
            .insert(frame.src_mac());
        let Some(ip) = frame.ip() else { continue };
        if !matches!(ip.protocol, 1 | 6 | 17) {
            continue;
        }
        counted += 1;
        let identity = frame.carried_identity();
        *seen.entry((captured.port.clone(), identity.clone())).or_default() += 1;
        if NODES.iter().any(|n| captured.port == Switch::port(n)) {
            carriers
                .entry(identity)
                .or_default()
                .insert(captured.port.clone());
        }
        if captured.port == Switch::port("lb2") && ip.src != address("lb2") {
            standby_carried += 1;
        }
    }
    let doubled = seen.values().filter(|n| **n > 1).count();
    run.report.count(format!("frames_seen_{word}"), counted);
    run.report.check(
        format!("{word}: no frame came out of one port twice"),
        doubled == 0,
        format!("{doubled} of {counted}"),
    );
    let circled = carriers.values().filter(|ports| ports.len() > 1).count();
    run.report.check(
        format!("{word}: no packet was carried by both nodes"),
        circled == 0,
        format!("{circled} packets"),
    );
    run.report.check(
        format!("{word}: the Standby sends nothing but its own traffic"),
        standby_carried == 0,
        format!("{standby_carried} frames"),
    );
    let mut strangers = Vec::new();
    for (port, macs) in &sources {
        let own = mac(port.trim_start_matches("p-"));
        strangers.extend(
            macs.iter()
                .filter(|m| **m != own)
                .map(|m| format!("{} from {port}", colons(*m))),
        );
    }
    run.report.check(
        format!("{word}: every port sends its own MAC only (the router's never comes from a node)"),
        strangers.is_empty() && sources.len() >= 6,
        format!("{} ports; {}", sources.len(), strangers.join(", ")),
    );
}

/// A client with a stale ARP entry sends to the Standby: relayed once, answered once, no MAC moves.
fn strays(run: &mut Run) -> Result<()> {
    if run.wanted.kind != crate::node::Kind::Onearm {
        return Ok(());
    }
    let spec = spec(run, Mode::BothNat);
    run.with_lab(
        "strays",
        Options {
            forwarding: true,
            ..Options::default()
        },
        |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let mut pair = stage(run, lab, &spec)?;
            lab.ns("cl").run(&format!(
                "ip neigh replace {VIP} lladdr {} dev eth0",
                colons(mac("lb2"))
            ))?;
            let capture = Capture::start(lab.switch().ns(), None, Filter::All)?;
            let prober = UdpProber::start(lab.ns("cl"), SocketAddrV4::new(VIP, echo::PORT), 5 * MS)?;
            clock::observe(Duration::from_secs(1));
            let series = prober.stop()?;
            let record = capture.stop()?;
            record.write_pcap(&lab.lab().dir().join("strays.pcap"))?;
            let (lost, doubled) = (series.lost(0, Nanos::MAX), series.duplicates(0, Nanos::MAX));
            // The Active may first have to ask for the client's MAC: it does not learn it from a relayed frame.
            let answered = series.attempts.iter().find(|a| a.took.is_some());
            let later = answered.map_or(lost, |first| series.lost(first.at, Nanos::MAX));
            run.report.check(
                "strays: what is sent to the Standby's MAC is relayed to the Active and answered once",
                later == 0 && doubled == 0 && 2 * lost < series.attempts.len(),
                format!(
                    "{lost} lost, {later} of them after the first answer, {doubled} doubled of {}",
                    series.attempts.len()
                ),
            );
            let mut relayed: HashMap<Vec<u8>, usize> = HashMap::new();
            for captured in entering(&record.frames).filter(|c| c.port == Switch::port("lb2")) {
                let Some(frame) = captured.frame() else { continue };
                if frame.ip().is_some_and(|ip| ip.dst == VIP) {
                    *relayed.entry(frame.carried_identity()).or_default() += 1;
                }
            }
            run.report.check(
                "strays: each is relayed once",
                !relayed.is_empty() && relayed.values().all(|n| *n == 1),
                format!("{} packets", relayed.len()),
            );
            learned(run, lab)?;
            pair.scrap()
        },
    )
}

/// The switch has learned each MAC where it lives.
fn learned(run: &mut Run, lab: &OneArm) -> Result<()> {
    for host in ["rt", "cl", "s1"] {
        let found = lab.switch().learned_on(&colons(mac(host)))?;
        run.report.check(
            format!("strays: the switch knows {host} on its own port"),
            found.as_deref() == Some(Switch::port(host).as_str()),
            format!("{found:?}"),
        );
    }
    Ok(())
}
