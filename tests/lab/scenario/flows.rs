//! Four million flows: what they take, how long a question about some of them lasts, and whether they end in time.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Run, Scenario};
use crate::{
    clock::{self, MS},
    measure::live::{Generator, Template},
    node::{Node as _, Role, onearm::OnearmNode},
    process,
    service::{Mode, PairSpec, Service},
    switch::Switch,
    topology::{OneArm, Options, SERVERS, VIP},
};

const PORT: u16 = 5_300;
/// Flows.
const FLOWS: u64 = 4_000_000;
/// Flows are made in portions, so that each can be seen in the counters.
const PORTION: u32 = 250_000;
/// How long a flow lives without packets.
const IDLE: Duration = Duration::from_mins(1);
/// The longest a filtered question may take.
const QUESTION: f64 = 2_000.0;
/// How late the last flow may end: a sweep of the table takes five seconds, and the clock of flows goes in fifteenths of a second, of which
/// there are not quite fifteen.
const LATE: Duration = Duration::from_secs(6);
/// Bytes of the table a flow may take.
const BYTES: f64 = 160.0;
/// How often the frames of flows that were not made are sent.
const ROUNDS: u32 = 5;
/// Counters of new flows that are refused.
const REFUSALS: [&str; 4] = [
    "table_full",
    "no_snat_source",
    "lock_contended",
    "unanswered_evicted",
];

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "flows-4m",
        about: "4,000,000 flows: memory, a filtered `onearm flows` within 2 s, the end of all of them in time",
        for_peers: false,
        run,
    }
}

fn spec() -> PairSpec {
    let mut service = Service::new("many", "udp", PORT, Mode::Dnat, &SERVERS);
    service.idle_timeout = Some(IDLE);
    let mut spec = PairSpec::web_and_echo(Mode::Dnat, Duration::from_secs(1));
    spec.services = vec![service];
    spec.max_flows = u32::try_from(FLOWS).unwrap_or(u32::MAX);
    spec
}

fn run(run: &mut Run) -> Result<()> {
    let options = Options {
        sink: true,
        ..Options::default()
    };
    run.with_lab("flows", options, |run, lab| {
        let mut node = OnearmNode::prepare(lab, 0, &spec(), &run.wanted.bin_dir)?;
        node.start()?;
        run.report
            .figure("ready_ms", clock::ms(node.wait_ready(Duration::from_mins(1))?));
        node.wait_role(Role::Active, Duration::from_secs(30))?;
        filled(run, lab, &node)?;
        asked(run, &node)?;
        ended(run, &node)?;
        node.ask_to_stop();
        node.reap(Duration::from_secs(20))
    })
}

fn number(status: &Value, name: &str) -> Result<u64> {
    let value = status.pointer(&format!("/dataplane/{name}"));
    value
        .and_then(Value::as_u64)
        .with_context(|| format!("no {name} in the status"))
}

/// Makes the flows.
fn filled(run: &mut Run, lab: &OneArm, node: &OnearmNode) -> Result<()> {
    let mut generator = Generator::new(lab.switch().ns(), &Switch::port("lb1"), 0)?;
    let template = Template::of_clients((VIP, PORT));
    generator.reach(&template, || lab.sunk())?;
    let begun = clock::now();
    let (mut rounds, mut counters) = (0, Value::Null);
    // A frame may be lost on its way: those that made no flow come again.
    while rounds < ROUNDS && count(&counters, "flow_created") < FLOWS {
        rounds += 1;
        generator.restart(0);
        while generator.next() < FLOWS {
            generator.send(&template, true, PORTION)?;
        }
        counters = node
            .ask(&["status"])?
            .pointer("/dataplane/counters")
            .cloned()
            .context("no counters in the status")?;
        run.report.count(
            format!("made_after_round_{rounds}"),
            usize::try_from(count(&counters, "flow_created"))?,
        );
    }
    run.report.figure("filled_in_ms", clock::ms(clock::now() - begun));
    let refused = REFUSALS.map(|name| count(&counters, name));
    run.report.check(
        "four million flows are in the table, and none was refused",
        count(&counters, "flow_created") >= FLOWS && refused == [0; REFUSALS.len()],
        format!("after {rounds} rounds; {}", counted(&counters)),
    );
    let status = node.ask(&["status"])?;
    let bytes = number(&status, "map_bytes")?;
    let resident = fs::read_to_string(format!("/proc/{}/statm", node.main_pid()))?;
    let pages: u64 = resident.split_whitespace().nth(1).context("statm")?.parse()?;
    let table = largest_map(node.main_pid())?;
    #[expect(clippy::cast_precision_loss, reason = "bytes of a machine")]
    let (each, megabytes) = (table as f64 / FLOWS as f64, |bytes: u64| bytes as f64 / 1e6);
    run.report.figure("map_mb", megabytes(bytes));
    run.report.figure("resident_mb", megabytes(pages * 4_096));
    run.report.check(
        "a flow takes at most 160 bytes of its table",
        each <= BYTES,
        format!("{each:.1}: {table} bytes"),
    );
    Ok(())
}

/// A counter of the status; 0 if it is not there.
fn count(counters: &Value, name: &str) -> u64 {
    counters.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// The counters that are not 0.
fn counted(counters: &Value) -> String {
    let counters = counters.as_object().into_iter().flatten();
    let counted = counters.filter(|(_, n)| n.as_u64() != Some(0));
    let words: Vec<String> = counted.map(|(name, n)| format!("{name} {n}")).collect();
    words.join(", ")
}

/// Bytes of the largest map that a process has mapped: that of the flows.
fn largest_map(pid: i32) -> Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let sizes = maps.lines().filter(|line| line.ends_with("bpf-map")).map(|line| {
        let range = line.split_whitespace().next()?;
        let (start, end) = range.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some(address(end)? - address(start)?)
    });
    sizes.flatten().max().context("no map is mapped")
}

/// Asks for the flows of one client, of one server, of nobody.
fn asked(run: &mut Run, node: &OnearmNode) -> Result<()> {
    let server = crate::topology::address("s1").to_string();
    let questions: [(&str, [&str; 2]); 3] = [
        ("of_a_client", ["--client", "100.65.0.1"]),
        ("of_a_server", ["--server", &server]),
        ("of_nobody", ["--client", "203.0.113.1"]),
    ];
    for (name, [option, value]) in questions {
        let begun = clock::now();
        let found = node.ask(&["flows", option, value])?;
        let took = clock::ms(clock::now() - begun);
        let matched = found
            .get("matched")
            .and_then(Value::as_u64)
            .context("no number of matches")?;
        let right = match name {
            "of_a_client" => (1..=4).contains(&matched),
            "of_a_server" => matched > FLOWS / 5,
            _ => matched == 0,
        };
        run.report.figure(format!("flows_{name}_ms"), took);
        run.report.check(
            format!("`onearm flows {option} {value}` is right and answers within 2 s"),
            took <= QUESTION && right,
            format!("{took:.0} ms, {matched} matched"),
        );
    }
    Ok(())
}

/// Waits until the flows have ended by themselves.
fn ended(run: &mut Run, node: &OnearmNode) -> Result<()> {
    let cpu = || process::cpu_ms(node.main_pid()).context("the daemon's CPU");
    let (begun, spent) = (clock::now(), cpu()?);
    let mut left = u64::MAX;
    // The last of them was made before this began.
    let limit = IDLE + LATE;
    let outcome = clock::wait_for(
        "the end of all flows",
        limit + LATE * 4,
        Duration::from_millis(200),
        || {
            left = number(&node.ask(&["status"])?, "flows")?;
            Ok((left == 0).then_some(()))
        },
    );
    let took = clock::now() - begun;
    run.report.figure("ended_after_ms", clock::ms(took));
    run.report.figure(
        "daemon_cpu_percent_meanwhile",
        clock::ms((cpu()? - spent) * MS) / clock::ms(took) * 100.0,
    );
    run.report.check(
        "all flows end within 6 s of their idle time",
        outcome.is_ok() && took <= clock::nanos(limit),
        format!("{left} left after {:.1} s", clock::ms(took) / 1000.0),
    );
    Ok(())
}
