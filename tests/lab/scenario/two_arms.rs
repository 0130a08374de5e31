//! A pair between two networks: clients outside, servers inside, both families, both NAT modes, a dead Active, frames that
//! went astray, a cut cable inside.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Run, Scenario, failover, stage};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{echo, echo::Echo, udp::UdpProber},
    node::{Pair, Role},
    service::{Mode, PairSpec},
    topology::{
        self, Arms, Family, INSIDE_GATEWAY, INSIDE_GATEWAY6, NODES, OUTSIDE, OneArm, Options, SERVERS, VIP,
        VIP6, colons, inside_mac,
    },
    traffic::{self, DIRECT_PORT, Web},
};

/// Requests of the outside client before and after the change of the Active.
const REQUESTS: usize = 300;
/// What a cut cable inside may cost above an advert interval.
const ALLOWANCE: Nanos = 100 * MS;
/// Both families.
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "two-arms",
        about: "VIPs outside, servers inside, IPv4 and IPv6: curl and nginx, a dead Active, strays, a cut cable inside",
        for_peers: false,
        run: |run| {
            both_nat(run, None)?;
            dnat(run, None)
        },
    }
}

/// Both-NAT, and a killed Active.
pub(super) fn both_nat(run: &mut Run, vlan: Option<u16>) -> Result<()> {
    let part = Part::of(Mode::BothNat, vlan);
    part.with_pair(run, |run, lab, web, pair| {
        part.serves(run, lab, web, "first")?;
        part.gateways(run, lab, 0)?;
        pair.nodes[0].sigkill_all();
        for family in FAMILIES {
            failover::wait_served(lab, target(family))?;
        }
        part.serves(run, lab, web, "second")?;
        part.gateways(run, lab, 1)
    })
}

/// DNAT with strict reverse-path filters on both legs: frames that went astray, and an Active that loses its inside.
pub(super) fn dnat(run: &mut Run, vlan: Option<u16>) -> Result<()> {
    let part = Part::of(Mode::Dnat, vlan);
    part.with_pair(run, |run, lab, web, pair| {
        part.outgoing(run, lab)?;
        // What the programs carry no filter of the kernel sees.
        for node in NODES {
            lab.ns(node).sysctl("net.ipv4.conf.all.rp_filter", "1")?;
        }
        part.serves(run, lab, web, "first")?;
        part.gateways(run, lab, 0)?;
        part.strays(run, lab, pair)?;
        part.inside_cut(run, lab, pair)?;
        part.serves(run, lab, web, "second")?;
        part.gateways(run, lab, 1)
    })
}

fn target(family: Family) -> SocketAddr {
    (vip(family), echo::PORT).into()
}

fn vip(family: Family) -> IpAddr {
    match family {
        Family::V4 => VIP.into(),
        Family::V6 => VIP6.into(),
    }
}

fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => INSIDE_GATEWAY.into(),
        Family::V6 => INSIDE_GATEWAY6.into(),
    }
}

/// One mode, tagged or not.
#[derive(Clone, Debug)]
struct Part {
    mode: Mode,
    vlan: Option<u16>,
    name: String,
}

impl Part {
    fn of(mode: Mode, vlan: Option<u16>) -> Self {
        let tag = if vlan.is_some() { "-vlan" } else { "" };
        Self {
            mode,
            vlan,
            name: format!("{}{tag}", mode.word()),
        }
    }

    fn with_pair(
        &self,
        run: &mut Run,
        work: impl FnOnce(&mut Run, &OneArm, &[Web], &mut Pair) -> Result<()>,
    ) -> Result<()> {
        let options = Options {
            arms: Arms::Two,
            ipv6: true,
            vlan: self.vlan,
            ..Options::default()
        };
        let spec = PairSpec {
            vlan: self.vlan,
            ..PairSpec::web_and_echo(self.mode, run.interval())
                .in_both_families()
                .with_two_arms()
        };
        run.with_lab(&self.name, options, |run, lab| {
            let web = traffic::start_servers(lab, &SERVERS)?;
            let mut echoes = Vec::new();
            for (server, tag) in SERVERS.into_iter().zip(1..) {
                let address = (topology::inside_address6(server), echo::PORT).into();
                echoes.push(Echo::bound(lab.ns(server), address, tag)?);
            }
            let mut pair = stage(run, lab, &spec)?;
            failover::wait_served(lab, target(Family::V6))?;
            work(run, lab, &web, &mut pair)?;
            pair.scrap()
        })
    }

    /// Requests by TCP and UDP in both families, and whom the servers saw.
    fn serves(&self, run: &mut Run, lab: &OneArm, web: &[Web], active: &str) -> Result<()> {
        for family in FAMILIES {
            let (part, word) = (&self.name, family.word());
            let mark = format!("{active}-{word}");
            self.requests(run, lab, family, &mark, &format!("{active} Active"))?;
            let wanted = match (self.mode, family) {
                (Mode::Dnat, Family::V4) => OUTSIDE.into(),
                (Mode::Dnat, Family::V6) => topology::address6("out").into(),
                _ => vip(family),
            };
            let mut strangers = 0;
            for server in web {
                let lines = server.log()?;
                let others = |line: &&traffic::LogLine| line.path.contains(&mark) && line.client != wanted;
                strangers += lines.iter().filter(others).count();
            }
            run.report.check(
                format!("{part}: {active} Active: servers see {wanted}"),
                strangers == 0,
                format!("{strangers} lines of other clients"),
            );
            let prober = UdpProber::start(lab.ns("out"), target(family), 2 * MS)?;
            clock::observe(Duration::from_millis(400));
            let series = prober.stop()?;
            run.report.check(
                format!("{part}: {active} Active: every {word} datagram is answered"),
                series.lost(0, Nanos::MAX) == 0,
                format!("{} of {} lost", series.lost(0, Nanos::MAX), series.attempts.len()),
            );
        }
        Ok(())
    }

    fn requests(&self, run: &mut Run, lab: &OneArm, family: Family, mark: &str, when: &str) -> Result<()> {
        let host = match vip(family) {
            IpAddr::V4(vip) => vip.to_string(),
            IpAddr::V6(vip) => format!("[{vip}]"),
        };
        let answers = traffic::curl(lab, "out", &host, REQUESTS, mark)?;
        run.report.check(
            format!(
                "{}: {when}: {REQUESTS} of {REQUESTS} {} requests, by all servers",
                self.name,
                family.word()
            ),
            answers.good() == REQUESTS && answers.by_server.len() == SERVERS.len(),
            format!(
                "{:?}, {} failed {}",
                answers.by_server, answers.failed, answers.complaint
            ),
        );
        Ok(())
    }

    /// Every server knows the gateway addresses at the inside MAC of node `index`.
    fn gateways(&self, run: &mut Run, lab: &OneArm, index: usize) -> Result<()> {
        let wanted = colons(inside_mac(NODES[index]));
        let mut wrong = Vec::new();
        for family in FAMILIES {
            for server in SERVERS {
                let known = lab
                    .ns(server)
                    .run(&format!("ip neigh show {}", gateway(family)))?;
                if !known.contains(&wanted) {
                    wrong.push(format!("{server}: {}", known.trim()));
                }
            }
        }
        run.report.check(
            format!("{}: servers have {} as gateway", self.name, NODES[index]),
            wrong.is_empty(),
            wrong.join("; "),
        );
        Ok(())
    }

    /// What a server opens outside goes through the gateway with its own address; answers come by way of a node's kernel, if it
    /// and the router are told so, and no reverse-path filter asks for the way back, which guard rules close.
    fn outgoing(&self, run: &mut Run, lab: &OneArm) -> Result<()> {
        let outside = Web::start(lab, "out")?;
        let (node, server) = (topology::address(NODES[0]), topology::inside_address("s1"));
        lab.ns(NODES[0]).sysctl("net.ipv4.ip_forward", "1")?;
        lab.ns("rt").run(&format!("ip route add {server} via {node}"))?;
        let answers = traffic::curl(
            lab,
            "s1",
            &format!("{OUTSIDE}:{DIRECT_PORT}"),
            REQUESTS,
            "outgoing",
        )?;
        lab.ns("rt").run(&format!("ip route del {server} via {node}"))?;
        let seen = outside.log()?;
        run.report.check(
            format!(
                "{}: a server opens {REQUESTS} connections to the outside",
                self.name
            ),
            answers.good() == REQUESTS && seen.iter().all(|line| line.client == server),
            format!("{} failed {}", answers.failed, answers.complaint),
        );
        Ok(())
    }

    /// The router and a server send to the Standby what is the pair's: it passes it on, on either leg.
    fn strays(&self, run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
        let before = relayed(pair)?;
        let standby = [topology::mac(NODES[1]), inside_mac(NODES[1])].map(colons);
        for family in FAMILIES {
            let hosts = [
                ("rt", vip(family), &standby[0]),
                ("s1", gateway(family), &standby[1]),
            ];
            let mut counts = Vec::new();
            for (host, address, mac) in hosts {
                let entry = format!("{address} lladdr {mac} dev eth0 nud");
                lab.ns(host).run(&format!("ip neigh replace {entry} permanent"))?;
                let (mark, when) = (
                    format!("stray-{host}-{}", family.word()),
                    format!("{host} sends to the Standby"),
                );
                self.requests(run, lab, family, &mark, &when)?;
                counts.push(relayed(pair)?);
                lab.ns(host).run(&format!("ip neigh del {address} dev eth0"))?;
            }
            let grown = [counts[0] > before, counts[1] > counts[0]];
            run.report.check(
                format!("{}: {} strays of both legs are relayed", self.name, family.word()),
                grown == [true; 2],
                format!("{before}, then {counts:?}"),
            );
        }
        Ok(())
    }

    /// The Active's cable inside is cut, its adverts go on: the Standby, which has both, owns instead.
    fn inside_cut(&self, run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
        let inside = lab.inside().context("two arms have an inside")?;
        let mut probers = Vec::new();
        for family in FAMILIES {
            probers.push(UdpProber::start(lab.ns("out"), target(family), MS)?);
        }
        let begun = clock::now();
        clock::observe(Duration::from_millis(300));
        inside.cut("lb1")?;
        pair.nodes[1].wait_role(Role::Active, pair.spec().interval * 20)?;
        clock::observe(Duration::from_millis(700));
        let end = clock::now();
        let limit = clock::nanos(pair.spec().interval) + ALLOWANCE;
        for (prober, family) in probers.into_iter().zip(FAMILIES) {
            let series = prober.stop()?;
            let (longest, lost) = (
                series.longest_gap(begun, end),
                series.lost(end - 300 * MS, end - 50 * MS),
            );
            run.report.figure(
                format!("outage_ms_{}_inside_cut_{}", self.name, family.word()),
                ms(longest),
            );
            run.report.check(
                format!(
                    "{}: {} is back within {} ms of the cut of the Active's inside",
                    self.name,
                    family.word(),
                    ms(limit)
                ),
                longest <= limit && lost == 0,
                format!("{} ms, {lost} lost at the end", ms(longest)),
            );
        }
        let status = pair.nodes[0]
            .as_onearm()
            .context("not onearm")?
            .ask(&["status"])?;
        let priority = status.pointer("/ha/effective_priority").and_then(Value::as_u64);
        let warned = status["warnings"].to_string().contains("no carrier");
        run.report.check(
            format!("{}: the node without its inside says so and stands by", self.name),
            priority == Some(2) && warned && status["state"] == "standby",
            format!("{} {priority:?} {}", status["state"], status["warnings"]),
        );
        inside.mend("lb1")
    }
}

/// Packets the Standby has passed on.
fn relayed(pair: &Pair) -> Result<u64> {
    let status = pair.nodes[1]
        .as_onearm()
        .context("not onearm")?
        .ask(&["status"])?;
    let count = status.pointer("/dataplane/counters/relayed");
    count
        .and_then(Value::as_u64)
        .context("no counter of relayed packets")
}
