//! A pair between two networks: clients outside, servers inside, both NAT modes, a change of the Active.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::Result;

use super::{Run, Scenario, failover, stage};
use crate::{
    clock::{self, MS, Nanos},
    measure::{echo, udp::UdpProber},
    netns::Namespace,
    service::{Mode, PairSpec},
    topology::{Arms, INSIDE_GATEWAY, NODES, OUTSIDE, OneArm, Options, SERVERS, VIP, colons, inside_mac},
    traffic::{self, Web},
};

/// Requests of the outside client before and after the change of the Active.
const REQUESTS: usize = 300;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "two-arms",
        about: "VIPs outside, servers inside: both NAT modes with curl and nginx, addresses seen, a dead Active",
        for_peers: false,
        run: |run| {
            for mode in [Mode::BothNat, Mode::Dnat] {
                one_mode(run, mode)?;
            }
            Ok(())
        },
    }
}

fn one_mode(run: &mut Run, mode: Mode) -> Result<()> {
    let options = Options {
        arms: Arms::Two,
        ..Options::default()
    };
    let spec = PairSpec::web_and_echo(mode, run.interval()).with_two_arms();
    run.with_lab(mode.word(), options, |run, lab| {
        let web = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        serves(run, lab, &web, mode, "first")?;
        gateway(run, lab, mode, 0)?;
        pair.nodes[0].sigkill_all();
        failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
        serves(run, lab, &web, mode, "second")?;
        gateway(run, lab, mode, 1)?;
        pair.scrap()
    })
}

/// Requests by TCP and UDP, and whom the servers saw.
fn serves(run: &mut Run, lab: &OneArm, web: &[Web], mode: Mode, mark: &str) -> Result<()> {
    let word = mode.word();
    let answers = traffic::curl(lab, "out", &VIP.to_string(), REQUESTS, mark)?;
    run.report.check(
        format!("{word}: {mark} Active: {REQUESTS} of {REQUESTS} requests, by all servers"),
        answers.good() == REQUESTS && answers.by_server.len() == SERVERS.len(),
        format!(
            "{:?}, {} failed {}",
            answers.by_server, answers.failed, answers.complaint
        ),
    );
    let wanted = if mode == Mode::Dnat { OUTSIDE } else { VIP };
    let mut strangers = 0;
    for server in web {
        let lines = server.log()?;
        strangers += lines
            .iter()
            .filter(|line| line.path.contains(mark) && line.client != wanted)
            .count();
    }
    run.report.check(
        format!("{word}: {mark} Active: servers see {wanted}"),
        strangers == 0,
        format!("{strangers} lines of other clients"),
    );
    let target = SocketAddrV4::new(VIP, echo::PORT);
    let prober = UdpProber::start(lab.ns("out"), target, 2 * MS)?;
    clock::observe(Duration::from_millis(400));
    let series = prober.stop()?;
    run.report.check(
        format!("{word}: {mark} Active: every datagram is answered"),
        series.lost(0, Nanos::MAX) == 0,
        format!("{} of {} lost", series.lost(0, Nanos::MAX), series.attempts.len()),
    );
    Ok(())
}

/// Every server knows the gateway address at the inside MAC of node `index`.
fn gateway(run: &mut Run, lab: &OneArm, mode: Mode, index: usize) -> Result<()> {
    let wanted = colons(inside_mac(NODES[index]));
    let mut wrong = Vec::new();
    for server in SERVERS {
        let known = neighbour(lab.ns(server))?;
        if !known.contains(&wanted) {
            wrong.push(format!("{server}: {}", known.trim()));
        }
    }
    run.report.check(
        format!("{}: servers have {} as gateway", mode.word(), NODES[index]),
        wrong.is_empty(),
        wrong.join("; "),
    );
    Ok(())
}

fn neighbour(ns: &Namespace) -> Result<String> {
    ns.run(&format!("ip neigh show {INSIDE_GATEWAY}"))
}
