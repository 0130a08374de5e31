//! A pair that serves IPv6, alone and beside IPv4: who answers solicitations, both NAT modes, a link-local gateway, an Active
//! that dies, stops, hangs or loses its cable, a snooping switch whose memberships end unless they are renewed.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Result, ensure};

use super::{
    Run, Scenario,
    failover::{self, Fault},
};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{echo, echo::Echo, udp::UdpProber},
    node::{Pair, Role},
    service::{Mode, PairSpec},
    switch::{MEMBERSHIP, Variant},
    topology::{Family, GATEWAY6, NODES, OneArm, Options, SERVERS, VIP, VIP6, address6, colons, mac},
    traffic::{self, DIRECT_PORT, Web},
};

/// Requests of each client before and after the change of the Active.
const REQUESTS: usize = 300;
/// What a fault may cost above three intervals and skew.
const ALLOWANCE: Nanos = 20 * MS;
/// What an orderly stop may cost.
const CLEAN_STOP: Nanos = 50 * MS;
/// Gateway address that is the same on every network.
const LINK_LOCAL_GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Group of everybody whose address ends as the VIP does.
const VIP_GROUP: Ipv6Addr = {
    let [.., a, b] = VIP6.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a & 0xff, b)
};

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "ipv6",
        about: "IPv6 alone and beside IPv4: curl and nginx in both NAT modes, solicitations, a lost Active, MLD snooping",
        for_peers: false,
        run: |run| {
            let plain = Alone {
                part: "both-nat",
                mode: Mode::BothNat,
                variant: Variant::Learning,
                gateway: GATEWAY6,
                fault: Fault::Kill,
            };
            alone(run, plain)?;
            alone(
                run,
                Alone {
                    part: "dnat-link-local-gateway",
                    mode: Mode::Dnat,
                    gateway: LINK_LOCAL_GATEWAY,
                    fault: Fault::Stop,
                    ..plain
                },
            )?;
            alone(
                run,
                Alone {
                    part: "dnat-snooping",
                    mode: Mode::Dnat,
                    variant: Variant::Snooping,
                    fault: Fault::Cut,
                    ..plain
                },
            )?;
            beside_ipv4(run)
        },
    }
}

/// What a part without IPv4 is made of.
#[derive(Clone, Copy, Debug)]
struct Alone {
    part: &'static str,
    mode: Mode,
    variant: Variant,
    gateway: Ipv6Addr,
    fault: Fault,
}

/// Nodes without any IPv4 address.
fn alone(run: &mut Run, of: Alone) -> Result<()> {
    let Alone { part, mode, .. } = of;
    let options = Options {
        ipv6: true,
        variant: of.variant,
        ..Options::default()
    };
    let mut spec = PairSpec::web_and_echo(mode, run.interval()).of_family(Family::V6);
    spec.gateways = vec![of.gateway.into()];
    run.with_lab(part, options, |run, lab| {
        for node in NODES {
            // The routes go with it.
            lab.ns(node).run("ip -4 addr flush dev eth0")?;
        }
        for server in SERVERS {
            lab.ns(server).run(&format!(
                "ip -6 route replace default via {} dev eth0",
                of.gateway
            ))?;
        }
        let web = traffic::start_servers(lab, &["s1", "s2", "s3", "out"])?;
        let _echoes = echoes(lab)?;
        let mut pair = Pair::prepare(run.wanted.kind, lab, &spec, &run.wanted.bin_dir)?;
        pair.start()?;
        lab.forget_neighbours()?;
        failover::wait_served(lab, target6())?;
        let snooped = if of.variant == Variant::Snooping {
            members(run, lab, "are members");
            Some(Snooped::begin(lab)?)
        } else {
            None
        };
        serves(run, lab, &web, part, mode, "first")?;
        owner(run, lab, part, of.gateway, 0)?;
        small_things(run, lab, part)?;
        gateway(run, lab, &web, part)?;
        let outage = lose(lab, &mut pair, &[target6()], of.fault)?;
        judge(run, &spec, part, "IPv6", of.fault, &outage[0]);
        serves(run, lab, &web, part, mode, "second")?;
        owner(run, lab, part, of.gateway, 1)?;
        returns(run, lab, &mut pair, part, of.fault)?;
        if let Some(snooped) = snooped {
            snooped.end(run, lab)?;
            owner(run, lab, part, of.gateway, 1)?;
        }
        pair.scrap()
    })
}

/// One election, over both families, for addresses of both.
fn beside_ipv4(run: &mut Run) -> Result<()> {
    let mode = Mode::Dnat;
    let options = Options {
        ipv6: true,
        ..Options::default()
    };
    let spec = PairSpec::web_and_echo(mode, run.interval()).in_both_families();
    run.with_lab("beside-ipv4", options, |run, lab| {
        let web = traffic::start_servers(lab, &["s1", "s2", "s3", "out"])?;
        let _echoes = echoes(lab)?;
        let mut pair = super::stage(run, lab, &spec)?;
        failover::wait_served(lab, target6())?;
        serves(run, lab, &web, "beside-ipv4", mode, "first")?;
        let targets = [SocketAddr::from((VIP, echo::PORT)), target6()];
        let outages = lose(lab, &mut pair, &targets, Fault::Hang)?;
        for (outage, family) in outages.iter().zip(["IPv4", "IPv6"]) {
            judge(run, &spec, "beside-ipv4", family, Fault::Hang, outage);
        }
        serves(run, lab, &web, "beside-ipv4", mode, "second")?;
        returns(run, lab, &mut pair, "beside-ipv4", Fault::Hang)?;
        owner(run, lab, "beside-ipv4", GATEWAY6, 1)?;
        let answers = traffic::curl(lab, "out", &VIP.to_string(), REQUESTS, "four")?;
        run.report.check(
            format!("beside-ipv4: IPv4 goes on: {REQUESTS} of {REQUESTS} requests"),
            answers.good() == REQUESTS,
            format!("{} failed {}", answers.failed, answers.complaint),
        );
        pair.scrap()
    })
}

fn target6() -> SocketAddr {
    (VIP6, echo::PORT).into()
}

/// The echo at the servers' IPv6 addresses.
fn echoes(lab: &OneArm) -> Result<Vec<Echo>> {
    let start = |(server, tag)| Echo::bound(lab.ns(server), (address6(server), echo::PORT).into(), tag);
    SERVERS.into_iter().zip(1..).map(start).collect()
}

/// Requests of the outside client, of a LAN client and of a server, and whom the servers saw.
fn serves(run: &mut Run, lab: &OneArm, web: &[Web], part: &str, mode: Mode, active: &str) -> Result<()> {
    for asker in ["out", "cl", "s1"] {
        let mark = format!("{active}-{asker}");
        let answers = traffic::curl(lab, asker, &format!("[{VIP6}]"), REQUESTS, &mark)?;
        run.report.check(
            format!("{part}: {active} Active: {REQUESTS} of {REQUESTS} requests of {asker}, by all servers"),
            answers.good() == REQUESTS && answers.by_server.len() == SERVERS.len(),
            format!(
                "{:?}, {} failed {}",
                answers.by_server, answers.failed, answers.complaint
            ),
        );
        let wanted = if mode == Mode::Dnat && asker == "out" {
            address6("out")
        } else {
            VIP6
        };
        let mut seen = Vec::new();
        for server in web {
            let lines = server.log()?;
            seen.extend(
                lines
                    .iter()
                    .filter(|line| line.path.contains(&mark))
                    .map(|line| line.client),
            );
        }
        run.report.check(
            format!("{part}: {active} Active: servers see {wanted} for {asker}"),
            seen.len() == REQUESTS && seen.iter().all(|client| *client == wanted),
            format!("{} lines, one of {:?}", seen.len(), seen.last()),
        );
    }
    let prober = UdpProber::start(lab.ns("out"), target6(), 2 * MS)?;
    clock::observe(Duration::from_millis(400));
    let series = prober.stop()?;
    run.report.check(
        format!("{part}: {active} Active: every datagram is answered"),
        series.lost(0, Nanos::MAX) == 0,
        format!("{} of {} lost", series.lost(0, Nanos::MAX), series.attempts.len()),
    );
    Ok(())
}

/// Node `index` alone answers for VIP and gateway, the gateway as a router; learned caches are not asked.
fn owner(run: &mut Run, lab: &OneArm, part: &str, gateway: Ipv6Addr, index: usize) -> Result<()> {
    let wanted = colons(mac(NODES[index]));
    let mut wrong = Vec::new();
    for (host, address, is_router) in [("rt", VIP6, false), ("cl", VIP6, false), ("s1", gateway, true)] {
        // What announcements made of the cache of who knew the other node.
        let announced = neighbour(lab, host, address)?;
        lab.ns(host).run("ip -6 neigh flush dev eth0")?;
        let patience = if host == "rt" { "5" } else { "2" };
        // A link-local address is somebody on this link.
        let ping = [
            "ping",
            "-q",
            "-I",
            "eth0",
            "-c",
            "1",
            "-W",
            patience,
            &address.to_string(),
        ];
        let answered = lab.ns(host).output(&ping)?.status.success();
        let solicited = neighbour(lab, host, address)?;
        for (how, entry) in [("before", &announced), ("after", &solicited)] {
            // A host may have had no reason to know it.
            let unknown = how == "before" && !entry.contains("lladdr");
            if !unknown && (!entry.contains(&wanted) || entry.contains("router") != is_router) {
                wrong.push(format!("{host} {how} {}", entry.trim()));
            }
        }
        if !answered {
            wrong.push(format!("{host}: no ping of {address}"));
        }
    }
    run.report.check(
        format!(
            "{part}: {} answers for VIP and gateway, as a router for the gateway alone",
            NODES[index]
        ),
        wrong.is_empty(),
        wrong.join("; "),
    );
    Ok(())
}

fn neighbour(lab: &OneArm, host: &str, address: Ipv6Addr) -> Result<String> {
    lab.ns(host).run(&format!("ip -6 neigh show {address} dev eth0"))
}

/// A closed port.
fn small_things(run: &mut Run, lab: &OneArm, part: &str) -> Result<()> {
    let begun = clock::now();
    let url = format!("http://[{VIP6}]:9");
    let refused = lab
        .ns("out")
        .output(&["curl", "-s", "-S", "-g", "--max-time", "3", &url])?;
    let took = ms(clock::now() - begun);
    run.report.check(
        format!("{part}: a closed port of the VIP is refused at once"),
        refused.status.code() == Some(7) && took < 500.0,
        format!("{took} ms: {}", String::from_utf8_lossy(&refused.stderr).trim()),
    );
    Ok(())
}

/// Connections of a server to the outside through the gateway address keep the server's address.
fn gateway(run: &mut Run, lab: &OneArm, web: &[Web], part: &str) -> Result<()> {
    let target = format!("[{}]:{DIRECT_PORT}", address6("out"));
    let answers = traffic::curl(lab, "s1", &target, REQUESTS, "transit")?;
    let mut clients: Vec<IpAddr> = Vec::new();
    for host in web.iter().filter(|host| host.short() == "out") {
        let lines = host.log()?;
        let of_these = lines.iter().filter(|line| line.path.contains("transit"));
        clients.extend(of_these.map(|line| line.client));
    }
    run.report.check(
        format!("{part}: a server opens {REQUESTS} connections to the outside through the gateway"),
        answers.good() == REQUESTS
            && clients.len() == REQUESTS
            && clients.iter().all(|client| *client == address6("s1")),
        format!("{} failed {}", answers.failed, answers.complaint),
    );
    Ok(())
}

/// The switch knows both nodes as members of the VIP's solicited-node group, each for a time that is about to end.
fn members(run: &mut Run, lab: &OneArm, what: &str) {
    let mut table = String::new();
    let joined = clock::wait_for(
        "both nodes' membership",
        Duration::from_secs(10),
        Duration::from_millis(50),
        || {
            table = lab.switch().ns().run("bridge -s mdb show dev br0")?;
            let on = |port: &str| {
                table.lines().any(|line| {
                    let left = line
                        .split_whitespace()
                        .next_back()
                        .and_then(|s| s.parse::<f64>().ok());
                    line.contains(&format!("port {port} "))
                        && line.contains(&format!("grp {VIP_GROUP} "))
                        && left.is_some_and(|left| left > 0.0 && left <= MEMBERSHIP.as_secs_f64())
                })
            };
            Ok((on("p-lb1") && on("p-lb2")).then_some(()))
        },
    );
    run.report.check(
        format!("dnat-snooping: both nodes {what} of {VIP_GROUP}"),
        joined.is_ok(),
        joined.err().map(|_| table).unwrap_or_default(),
    );
}

/// What reaches a port whose host is in no group of the pair's.
#[derive(Clone, Copy, Debug)]
struct Snooped {
    since: Nanos,
}

impl Snooped {
    fn begin(lab: &OneArm) -> Result<Self> {
        let rules = format!(
            "table netdev seen {{\n chain c {{\n type filter hook ingress device eth0 priority 0;\n ip6 daddr {VIP_GROUP} counter\n }}\n}}"
        );
        lab.ns("mon").exec(&["nft", &rules])?;
        Ok(Self { since: clock::now() })
    }

    /// Memberships have ended several times since, had nobody renewed them.
    fn end(self, run: &mut Run, lab: &OneArm) -> Result<()> {
        let end = self.since + 3 * clock::nanos(MEMBERSHIP);
        clock::observe(Duration::from_nanos(end.saturating_sub(clock::now())));
        members(
            run,
            lab,
            "are still members, after three times the life of a membership,",
        );
        let seen = lab.ns("mon").run("nft list chain netdev seen c")?;
        run.report.check(
            "dnat-snooping: no solicitation for the VIP reaches a port that did not join",
            seen.contains("counter packets 0 bytes 0"),
            seen.trim(),
        );
        Ok(())
    }
}

/// The Active is lost; longest time without an answer of each target.
fn lose(lab: &OneArm, pair: &mut Pair, targets: &[SocketAddr], fault: Fault) -> Result<Vec<Outage>> {
    let mut probers = Vec::new();
    for target in targets {
        probers.push(UdpProber::start(lab.ns("out"), *target, MS)?);
    }
    let begun = clock::now();
    clock::observe(Duration::from_millis(300));
    match fault {
        Fault::Stop => pair.nodes[0].ask_to_stop(),
        Fault::Cut => lab.switch().cut("lb1")?,
        Fault::Hang => pair.nodes[0].sigstop_all(),
        Fault::Kill | Fault::KillMain | Fault::KillChild => pair.nodes[0].sigkill_all(),
    }
    clock::observe(Duration::from_nanos(pair.spec().active_down(1)) + Duration::from_millis(1_500));
    let end = clock::now();
    let mut outages = Vec::new();
    for prober in probers {
        let series = prober.stop()?;
        outages.push(Outage {
            longest: series.longest_gap(begun, end),
            lost_at_the_end: series.lost(end - 300 * MS, end - 50 * MS),
        });
    }
    ensure!(outages.len() == targets.len(), "a prober is missing");
    match fault {
        Fault::Cut | Fault::Hang => {}
        Fault::Stop | Fault::Kill | Fault::KillMain | Fault::KillChild => {
            pair.nodes[0].reap(Duration::from_secs(5))?;
        }
    }
    Ok(outages)
}

/// A node that hung or was cut off comes back: it stands by, and no datagram is lost.
fn returns(run: &mut Run, lab: &OneArm, pair: &mut Pair, part: &str, fault: Fault) -> Result<()> {
    if !matches!(fault, Fault::Cut | Fault::Hang) {
        return Ok(());
    }
    let prober = UdpProber::start(lab.ns("out"), target6(), MS)?;
    if fault == Fault::Cut {
        lab.switch().mend("lb1")?;
    } else {
        pair.nodes[0].sigcont_all();
    }
    let stands_by = pair.nodes[0].wait_role(Role::Standby, Duration::from_secs(10));
    clock::observe(Duration::from_millis(500));
    let owns = pair.nodes[1].role()? == Role::Active;
    let series = prober.stop()?;
    let lost = series.lost(0, Nanos::MAX);
    run.report.check(
        format!("{part}: the node that comes back stands by, and no datagram is lost"),
        stands_by.is_ok() && owns && lost == 0,
        format!("{stands_by:?}, {lost} of {} lost", series.attempts.len()),
    );
    Ok(())
}

/// What a prober saw of a fault.
struct Outage {
    longest: Nanos,
    lost_at_the_end: usize,
}

fn judge(run: &mut Run, spec: &PairSpec, part: &str, family: &str, fault: Fault, outage: &Outage) {
    let limit = if fault == Fault::Stop {
        CLEAN_STOP
    } else {
        spec.active_down(1) + ALLOWANCE
    };
    run.report
        .figure(format!("outage_ms_{part}_{family}"), ms(outage.longest));
    run.report.check(
        format!("{part}: {family} is back within {} ms ({fault:?})", ms(limit)),
        outage.longest <= limit && outage.lost_at_the_end == 0,
        format!("{} ms", ms(outage.longest)),
    );
}
