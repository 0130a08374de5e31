//! Clients that stay with their server while servers come and go and while they are silent, by curl and nginx; and what status and
//! events say when connections and source ports run out.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Run, Scenario, stage};
use crate::{
    clock,
    node::{Pair, onearm::OnearmNode},
    process::Process,
    service::{Mode, PairSpec, Service},
    topology::{OneArm, Options, SERVERS, VIP},
    traffic::{self, Web},
};

/// Networks of clients behind the router, by their third byte: each is one client.
const NETWORKS: std::ops::Range<u8> = 20..28;
/// Clients of one network, by their last byte.
const CLIENTS: [u8; 4] = [1, 77, 130, 254];
/// Ports of the services.
const STICKY: u16 = 80;
const FEW: u16 = 8_080;
const NARROW: u16 = 8_081;
/// Most connections of one service, and source ports of the other towards its one server.
const MOST: usize = 20;
/// A source that has so many ports for each node.
const SOURCE: &str = "192.168.100.90:20000-20039";
/// How long status may lag: usage is looked at every five seconds, after a sweep of as many.
const LAG: Duration = Duration::from_secs(15);
/// What a closed connection rests, and a sweep.
const REST: Duration = Duration::from_secs(40);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "persistence",
        about: "clients of one network stay with their server while servers come and go; usage at 50, 85 and 100 %",
        for_peers: false,
        run,
    }
}

fn spec(run: &Run) -> PairSpec {
    let service = |name, port, servers: &[&str], more: &str| Service {
        more: more.to_owned(),
        ..Service::new(name, "tcp", port, Mode::BothNat, servers)
    };
    let mut spec = PairSpec::web_and_echo(Mode::BothNat, run.interval());
    spec.services.retain(|service| service.name == "echo");
    spec.check_interval = Duration::from_millis(300);
    spec.services.extend([
        Service {
            scheduler: "source-hash",
            ..service(
                "sticky",
                STICKY,
                &SERVERS,
                "persistence = \"2m\"\nsource_prefix = 24\n",
            )
        },
        service("few", FEW, &SERVERS, &format!("max_connections = {MOST}\n")),
        service("narrow", NARROW, &["s1"], &format!("snat = [\"{SOURCE}\"]\n")),
    ]);
    spec
}

fn run(run: &mut Run) -> Result<()> {
    let spec = spec(run);
    run.with_lab("persistence", Options::default(), |run, lab| {
        for network in NETWORKS {
            for client in CLIENTS {
                lab.ns("out")
                    .run(&format!("ip addr add 10.9.{network}.{client}/32 dev lo"))?;
            }
        }
        lab.ns("rt").run(&format!(
            "ip route add 10.9.0.0/16 via {}",
            crate::topology::OUTSIDE
        ))?;
        let mut web = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        stays(run, lab, &pair, &mut web)?;
        runs_out(run, lab, &pair)?;
        pair.scrap()
    })
}

fn active(pair: &Pair) -> Result<&OnearmNode> {
    pair.nodes[0].as_onearm().context("a node of onearm")
}

/// Servers that clients of a network come to, one request each.
fn servers_of(lab: &OneArm, network: u8) -> Result<BTreeSet<String>> {
    let mut servers = BTreeSet::new();
    for client in CLIENTS {
        let source = format!("10.9.{network}.{client}");
        let url = format!("http://{VIP}:{STICKY}/who");
        let argv = [
            "curl",
            "-s",
            "-S",
            "--max-time",
            "5",
            "--interface",
            &source,
            &url,
        ];
        let output = lab.ns("out").output(&argv)?;
        ensure!(
            output.status.success(),
            "{source}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        servers.insert(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Ok(servers)
}

/// Who serves each network, if one server serves all its clients.
fn served(lab: &OneArm) -> Result<Vec<BTreeSet<String>>> {
    NETWORKS.map(|network| servers_of(lab, network)).collect()
}

fn stays(run: &mut Run, lab: &OneArm, pair: &Pair, web: &mut Vec<Web>) -> Result<()> {
    let node = active(pair)?;
    let limit = Duration::from_secs(10);
    node.wait_health("sticky", &["up"; SERVERS.len()], limit)?;
    let first = served(lab)?;
    let met: BTreeSet<_> = first.iter().flatten().collect();
    run.report.check(
        "clients of one network have one server, those of others another",
        first.iter().all(|servers| servers.len() == 1) && met.len() > 1,
        format!("{first:?}"),
    );

    // The server of the first network goes, and its clients with it.
    let gone = first[0].first().context("a server")?.clone();
    let at = web
        .iter()
        .position(|web| web.short() == gone)
        .context("a server of ours")?;
    drop(web.remove(at));
    let down: Vec<&str> = SERVERS
        .iter()
        .map(|s| if *s == gone { "down" } else { "up" })
        .collect();
    let health = node.wait_health("sticky", &down, limit)?;
    ensure!(health == down, "health is {health:?}");
    let without = served(lab)?;
    let stayed = |before: &[BTreeSet<String>], after: &[BTreeSet<String>]| {
        before
            .iter()
            .zip(after)
            .all(|(before, after)| before.contains(&gone) || before == after)
    };
    run.report.check(
        format!("{gone} is down: its clients go elsewhere, the others stay"),
        stayed(&first, &without)
            && without
                .iter()
                .all(|servers| servers.len() == 1 && !servers.contains(&gone)),
        format!("{without:?}"),
    );

    // It comes back at once: who has just gone elsewhere stays there.
    web.push(Web::start(lab, &gone)?);
    let health = node.wait_health("sticky", &["up"; SERVERS.len()], limit)?;
    ensure!(health == ["up"; SERVERS.len()], "health is {health:?}");
    let back = served(lab)?;
    run.report.check(
        format!("{gone} is back: everyone stays"),
        without == back,
        format!("{back:?}"),
    );

    // Nobody says anything until every flow is forgotten.
    let end = format!(":{STICKY}");
    let flows = || -> Result<usize> {
        let list = node.ask(&["flows", "--limit", "1000"])?;
        let flows = list["flows"].as_array().context("no flows")?;
        let of = |flow: &&Value| flow["vip"].as_str().is_some_and(|vip| vip.ends_with(&end));
        Ok(flows.iter().filter(of).count())
    };
    clock::wait_for("the end of all flows", REST, Duration::from_millis(500), || {
        Ok((flows()? == 0).then_some(()))
    })?;
    let idle = served(lab)?;
    run.report.check(
        "after a silence without flows everyone stays",
        back == idle,
        format!("{idle:?}"),
    );
    let known = used(node, "clients that stay with their server")?;
    run.report.check(
        "status counts the clients",
        known == Some(u64::from(NETWORKS.end - NETWORKS.start)),
        format!("{known:?}"),
    );
    Ok(())
}

/// How much of something is in use, as status shows it.
fn used(node: &OnearmNode, name: &str) -> Result<Option<u64>> {
    let status = node.ask(&["status"])?;
    let usage = status.pointer("/dataplane/usage").and_then(Value::as_array);
    let found = usage
        .context("no usage in the status")?
        .iter()
        .find(|of| of["name"].as_str().is_some_and(|said| said.starts_with(name)));
    Ok(found.and_then(|of| of["used"].as_u64()))
}

/// Opens so many connections to a port of the VIP, and holds them.
fn hold(lab: &OneArm, port: u16, count: usize) -> Result<Process> {
    const SCRIPT: &str = "
import socket, sys, time
held = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) for _ in range(int(sys.argv[3]))]
print('held', flush=True)
time.sleep(600)
";
    let argv = [
        "python3",
        "-c",
        SCRIPT,
        &VIP.to_string(),
        &port.to_string(),
        &count.to_string(),
    ];
    let log = lab.lab().dir().join(format!("hold-{port}-{}.log", clock::now()));
    let mut holder = lab.ns("out").spawn(&argv, &[], &log)?;
    clock::wait_for(
        "connections",
        Duration::from_secs(10),
        Duration::from_millis(10),
        || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            ensure!(holder.is_running()?, "connections to port {port}: {said}");
            Ok(said.starts_with("held").then_some(()))
        },
    )?;
    Ok(holder)
}

/// Connections and source ports at half of what there is, at 85 % and at all of it, and when they are free again.
fn runs_out(run: &mut Run, lab: &OneArm, pair: &Pair) -> Result<()> {
    let node = active(pair)?;
    let names = [
        "connections of service few",
        "SNAT ports of 192.168.100.90 to 192.168.100.",
    ];
    let mut held = Vec::new();
    for (percent, count) in [(50, 10), (85, 17), (100, MOST)] {
        for port in [FEW, NARROW] {
            let more = count
                - held
                    .iter()
                    .filter(|(of, _, _)| *of == port)
                    .map(|(_, n, _)| n)
                    .sum::<usize>();
            held.push((port, more, hold(lab, port, more)?));
        }
        for name in names {
            let said = wait_told(node, "usage-high", &format!("{percent} % in use: "), name, LAG)?;
            let shown = used(node, name)?;
            run.report.check(
                format!("{name} at {percent} % are told and shown"),
                said && shown == Some(count as u64),
                format!("told: {said}, shown: {shown:?} of {MOST}"),
            );
        }
    }
    let warnings = node.ask(&["status"])?["warnings"].to_string();
    run.report.check(
        "full ones are warned of",
        names.iter().all(|name| warnings.contains(name)),
        warnings,
    );
    for port in [FEW, NARROW] {
        let url = format!("http://{VIP}:{port}/who");
        let output = lab.ns("out").output(&["curl", "-s", "--max-time", "1", &url])?;
        run.report.check(
            format!("port {port}: one more is refused"),
            !output.status.success(),
            String::from_utf8_lossy(&output.stdout),
        );
    }
    drop(held);
    for name in names {
        // A port rests with its connection.
        let said = wait_told(node, "usage-fell", "less in use: ", name, REST + LAG)?;
        run.report
            .check(format!("{name}: free again, and told"), said, "");
    }
    Ok(())
}

/// Whether an event of a kind comes whose text begins so and has the name in it.
fn wait_told(node: &OnearmNode, kind: &str, begin: &str, name: &str, limit: Duration) -> Result<bool> {
    let end = clock::now() + clock::nanos(limit);
    loop {
        let list = node.ask(&["events"])?;
        let events = list["events"].as_array().context("no events")?;
        let told = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["kind"] == kind && message.starts_with(begin) && message.contains(name)
        };
        if events.iter().any(told) {
            return Ok(true);
        }
        if clock::now() >= end {
            return Ok(false);
        }
        clock::observe(Duration::from_millis(200));
    }
}
