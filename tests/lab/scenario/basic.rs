//! A pair serves: every kind of client, every address and MAC on the way, weights, the way out, the way straight in.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddrV4},
};

use anyhow::Result;

use super::{Run, Scenario, drawing, stage};
use crate::{
    clock::{MS, Nanos},
    measure::{echo, udp::UdpProber},
    node::{Kind, Pair},
    service::{Mode, PairSpec, Service, servers},
    topology::{OneArm, Options, REMOTE, SERVERS, VIP, address},
    traffic::{self, DIRECT_PORT, Web},
};

/// Port of the service in front of the remote server.
const REMOTE_PORT: u16 = 8082;
/// Ports of the services with weights 3:1.
const WEIGHTED: [(u16, &str); 2] = [(8080, "maglev"), (8081, "wrr")];
/// Port of iperf3.
const BULK_PORT: u16 = 5201;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "basic",
        about: "outside client and every server as client, both modes, addresses and MACs, weights, gateway",
        for_peers: true,
        run: |run| {
            for mode in [Mode::BothNat, Mode::Dnat] {
                one_mode(run, mode, 1000)?;
            }
            Ok(())
        },
    }
}

/// What the pair of this scenario serves.
pub(super) fn spec(run: &Run, mode: Mode) -> PairSpec {
    let interval = run.interval();
    let mut spec = PairSpec::web_and_echo(mode, interval);
    for (port, scheduler) in WEIGHTED {
        let mut service = Service::new(&format!("weights-{scheduler}"), "tcp", port, mode, &["s1", "s2"]);
        service.scheduler = scheduler;
        if let Some(first) = service.servers.first_mut() {
            first.weight = 3;
        }
        spec.services.push(service);
    }
    let mut bulk = Service::new("bulk", "tcp", BULK_PORT, mode, &["s1"]);
    bulk.checked = false;
    spec.services.push(bulk);
    let mut remote = Service::new("remote", "tcp", REMOTE_PORT, Mode::BothNat, &[]);
    remote.servers = servers(&["rem"]);
    remote.servers.iter_mut().for_each(|s| s.port = Some(80));
    spec.services.push(remote);
    spec
}

/// Everything in one mode, with `count` requests of each client.
///
/// # Errors
/// When lab or pair do not come up.
pub(super) fn one_mode(run: &mut Run, mode: Mode, count: usize) -> Result<()> {
    let spec = spec(run, mode);
    run.with_lab(mode.word(), Options::default(), |run, lab| {
        let web = traffic::start_servers(lab, &["s1", "s2", "s3", "rem", "out"])?;
        let mut pair = stage(run, lab, &spec)?;
        clients(run, lab, &web, mode, count)?;
        drawing::check(run, lab, mode)?;
        weights(run, lab, mode)?;
        gateway(run, lab, &web, mode)?;
        small_things(run, lab, mode)?;
        counters(run, &pair, mode)?;
        pair.scrap()
    })
}

/// Requests of every kind of client, and what the servers' logs say of them.
fn clients(run: &mut Run, lab: &OneArm, web: &[Web], mode: Mode, count: usize) -> Result<()> {
    let word = mode.word();
    let mut askers = vec!["out"];
    askers.extend(SERVERS);
    for asker in askers {
        let mark = format!("{word}-{asker}");
        let answers = traffic::curl(lab, asker, &VIP.to_string(), count, &mark)?;
        run.report.check(
            format!("{word}: {asker} gets {count} of {count} requests"),
            answers.good() == count,
            format!(
                "{} failed; {:?} {}",
                answers.failed, answers.by_server, answers.complaint
            ),
        );
        if asker != "out" {
            let own = answers.by_server.get(asker).copied().unwrap_or(0);
            run.report.check(
                format!("{word}: {asker} is served also by itself"),
                own > 0,
                format!("{own} requests balanced to itself"),
            );
        }
        check_log(run, web, mode, asker, &mark)?;
    }
    let target = format!("{VIP}:{REMOTE_PORT}");
    for asker in ["out", "s1"] {
        let mark = format!("{word}-remote-{asker}");
        let answers = traffic::curl(lab, asker, &target, count, &mark)?;
        let good = answers.by_server.get("rem").copied().unwrap_or(0);
        run.report.check(
            format!("{word}: {asker} gets {count} of {count} from the remote server in both-nat"),
            good == count,
            format!(
                "{good} from {REMOTE}; {} failed {}",
                answers.failed, answers.complaint
            ),
        );
    }
    Ok(())
}

/// The servers' logs name the outside client in DNAT, and a SNAT source in every other case.
fn check_log(run: &mut Run, web: &[Web], mode: Mode, asker: &str, mark: &str) -> Result<()> {
    let mut seen: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for server in web {
        for line in server
            .log()?
            .iter()
            .filter(|l| l.path.starts_with(&format!("/who?{mark}-")))
        {
            *seen.entry(line.client).or_default() += 1;
        }
    }
    let real = mode == Mode::Dnat && asker == "out";
    let expected = match (real, run.wanted.kind) {
        (true, _) => address("out"),
        (false, Kind::Onearm) => VIP,
        // Their masquerade takes the node's own address.
        (false, Kind::Keepalived | Kind::Conntrackd | Kind::Frr | Kind::Ucarp) => address("lb1"),
    };
    let what = if real {
        "the real client"
    } else {
        "the SNAT source"
    };
    run.report.check(
        format!("{}: the servers' logs show {what} for {asker}", mode.word()),
        !seen.is_empty() && seen.keys().all(|a| *a == expected),
        format!("expected {expected}, saw {seen:?}"),
    );
    Ok(())
}

/// Requests for the weights: a hash of fewer clients strays by more than the five points allowed.
const WEIGHED: usize = 1_000;

/// Weights 3:1.
fn weights(run: &mut Run, lab: &OneArm, mode: Mode) -> Result<()> {
    for (port, scheduler) in WEIGHTED {
        let answers = traffic::curl(lab, "out", &format!("{VIP}:{port}"), WEIGHED, "weights")?;
        let first = answers.by_server.get("s1").copied().unwrap_or(0);
        let due = WEIGHED * 3 / 4;
        let slack = if scheduler == "wrr" { 1 } else { WEIGHED / 20 };
        // The peers' hash is not a scheduler under test.
        if scheduler == "wrr" && run.wanted.kind != Kind::Onearm {
            continue;
        }
        run.report.check(
            format!("{}: weights 3:1 by {scheduler}", mode.word()),
            answers.good() == WEIGHED && first.abs_diff(due) <= slack,
            format!("{first} of {WEIGHED} to s1, due {due} ± {slack}"),
        );
    }
    Ok(())
}

/// Connections of servers to the outside through the gateway address, and connections from outside straight to them.
fn gateway(run: &mut Run, lab: &OneArm, web: &[Web], mode: Mode) -> Result<()> {
    const COUNT: usize = 100;
    let word = mode.word();
    for server in SERVERS {
        let mark = format!("{word}-out-of-{server}");
        let target = format!("{}:{DIRECT_PORT}", address("out"));
        let answers = traffic::curl(lab, server, &target, COUNT, &mark)?;
        let mut sources = Vec::new();
        for host in web.iter().filter(|w| w.short() == "out") {
            sources.extend(
                host.log()?
                    .iter()
                    .filter(|l| l.path.contains(&mark))
                    .map(|l| l.client)
                    .collect::<Vec<_>>(),
            );
        }
        let own = sources.len() == COUNT && sources.iter().all(|a| *a == address(server));
        run.report.check(
            format!("{word}: {server} opens {COUNT} connections to the outside through the gateway"),
            answers.good() == COUNT && own,
            format!(
                "{} good, source its own address: {own} {}",
                answers.good(),
                answers.complaint
            ),
        );
        let target = format!("{}:{DIRECT_PORT}", address(server));
        let answers = traffic::curl(lab, "out", &target, COUNT, &format!("{word}-straight"))?;
        run.report.check(
            format!("{word}: {server} is reached directly from outside"),
            answers.by_server.get(server) == Some(&COUNT),
            format!("{:?} {}", answers.by_server, answers.complaint),
        );
    }
    Ok(())
}

/// UDP, ping, a closed port, bulk transfer.
fn small_things(run: &mut Run, lab: &OneArm, mode: Mode) -> Result<()> {
    let word = mode.word();
    for asker in ["out", "s1", "cl"] {
        let prober = UdpProber::start(lab.ns(asker), SocketAddrV4::new(VIP, echo::PORT), MS)?;
        crate::clock::observe(std::time::Duration::from_millis(500));
        let series = prober.stop()?;
        let lost = series.lost(0, Nanos::MAX);
        run.report.check(
            format!("{word}: every UDP datagram of {asker} is answered once"),
            lost == 0 && series.duplicates(0, Nanos::MAX) == 0,
            format!(
                "{lost} of {} lost, {} doubled",
                series.attempts.len(),
                series.duplicates(0, Nanos::MAX)
            ),
        );
        if asker == "out"
            && let Some(median) = series.median_answer(0, Nanos::MAX)
        {
            run.report.figure(
                format!("udp_round_trip_us_{word}"),
                crate::clock::ms(median) * 1000.0,
            );
        }
    }
    let ping = lab
        .ns("out")
        .output(&["ping", "-c", "5", "-i", "0.05", "-W", "1", &VIP.to_string()])?;
    let text = String::from_utf8_lossy(&ping.stdout).into_owned();
    let summary = text
        .lines()
        .find(|l| l.contains("received"))
        .unwrap_or("no answer")
        .to_owned();
    run.report.check(
        format!("{word}: ping of the VIP is answered"),
        summary.contains("5 received"),
        summary,
    );
    let begun = crate::clock::now();
    let refused =
        lab.ns("out")
            .output(&["curl", "-s", "-S", "--max-time", "3", &format!("http://{VIP}:9")])?;
    let took = crate::clock::ms(crate::clock::now() - begun);
    let complaint = String::from_utf8_lossy(&refused.stderr).trim().to_owned();
    run.report.check(
        format!("{word}: a closed port of the VIP is refused at once"),
        refused.status.code() == Some(7) && took < 500.0,
        format!("{took} ms: {complaint}"),
    );
    match traffic::iperf3(lab, "out", "s1", &VIP.to_string(), BULK_PORT, 2) {
        Ok(found) => {
            run.report.check(
                format!("{word}: iperf3 runs through the VIP"),
                found.bits_per_second > 0.0,
                "",
            );
            run.report
                .figure(format!("iperf3_mbit_per_s_{word}"), found.bits_per_second / 1e6);
            run.report
                .figure(format!("iperf3_retransmits_{word}"), found.retransmits);
        }
        Err(error) => {
            run.report.check(
                format!("{word}: iperf3 runs through the VIP"),
                false,
                format!("{error:#}"),
            );
        }
    }
    Ok(())
}

/// What the pair itself counted.
fn counters(run: &mut Run, pair: &Pair, mode: Mode) -> Result<()> {
    let Some(node) = pair.nodes.first().and_then(|n| n.as_onearm()) else {
        return Ok(());
    };
    let status = node.ask(&["status"])?;
    // Connections do not survive a change of ownership yet: a failure above may only have this reason.
    run.report.check(
        format!("{}: lb1 stayed Active all the time", mode.word()),
        status.get("state").and_then(serde_json::Value::as_str) == Some("active"),
        status.get("reason").cloned().unwrap_or_default(),
    );
    let services = node.ask(&["services"])?;
    let text = services.to_string();
    run.report.check(
        format!("{}: `onearm services` lists the services", mode.word()),
        text.contains("\"web\"") && text.contains("\"remote\""),
        format!("{} bytes of JSON", text.len()),
    );
    let counters = status.pointer("/dataplane/counters").cloned().unwrap_or_default();
    run.report.note(format!("dataplane counters: {counters}"));
    Ok(())
}
