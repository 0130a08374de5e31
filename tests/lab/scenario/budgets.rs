//! Budgets: memory without maps, idle CPU, size of the binary, the time to be ready.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};

use super::{Run, Scenario, stage};
use crate::{
    clock,
    node::{Node as _, Pair},
    process,
    service::{Mode, PairSpec, Service},
    topology::{Options, SERVERS},
    traffic,
};

/// Most resident memory without maps, in kB.
const MEMORY_KB: u64 = 40 * 1024;
/// Largest stripped binary, in bytes.
const BINARY: u64 = 15 * 1024 * 1024;
/// How long idleness is watched.
const WATCH: Duration = Duration::from_secs(20);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "budgets",
        about: "memory at 100 services, idle CPU at 1 s and 10 ms, ready with 1 M flows, size of the binary",
        for_peers: false,
        run,
    }
}

fn spec(interval: Duration) -> PairSpec {
    let mut spec = PairSpec::web_and_echo(Mode::Dnat, interval);
    for i in 0..98_u16 {
        let mut service = Service::new(&format!("idle{i}"), "tcp", 2000 + i, Mode::Dnat, &SERVERS);
        service.checked = false;
        spec.services.push(service);
    }
    spec.max_flows = 1_000_000;
    spec.check_interval = Duration::from_secs(2);
    spec
}

fn run(run: &mut Run) -> Result<()> {
    for (interval, share) in [(Duration::from_secs(1), 1.0), (Duration::from_millis(10), 3.0)] {
        let spec = spec(interval);
        let label = format!("{}ms", interval.as_millis());
        run.with_lab(&label, Options::default(), |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let mut pair = stage(run, lab, &spec)?;
            idle(run, &pair, &label, share);
            if share < 2.0 {
                memory(run, &pair)?;
                said_at_start(run, &pair)?;
            }
            pair.scrap()
        })?;
    }
    ready(run)?;
    let binary = run.wanted.bin_dir.join("onearmd");
    let size = stripped_size(&binary)?;
    run.report.count("binary_bytes", usize::try_from(size)?);
    run.report.check(
        "the stripped binary is at most 15 MB",
        size <= BINARY,
        format!("{size} bytes"),
    );
    Ok(())
}

/// CPU of both nodes while nothing happens; the main process is the older one.
fn idle(run: &mut Run, pair: &Pair, label: &str, share: f64) {
    let cpu = |pids: Vec<i32>| -> Vec<u64> { pids.iter().filter_map(|p| process::cpu_ms(*p)).collect() };
    let before = pair.pids().map(cpu);
    let begun = clock::now();
    clock::observe(WATCH);
    let span = clock::ms(clock::now() - begun);
    let after = pair.pids().map(cpu);
    for (name, (old, new)) in ["active", "standby"].iter().zip(before.iter().zip(after)) {
        let mut sum = 0.0;
        for (part, (old, new)) in ["main", "ha"].iter().zip(old.iter().zip(&new)) {
            let percent = clock::ms(new.saturating_sub(*old) * clock::MS) / span * 100.0;
            run.report
                .figure(format!("idle_cpu_percent_{name}_{part}_{label}"), percent);
            sum += percent;
        }
        run.report.figure(format!("idle_cpu_percent_{name}_{label}"), sum);
        run.report.check(
            format!("{label}: the idle {name} node uses at most {share} % of a core"),
            sum <= share && sum > 0.0 && new.len() == 2,
            format!("{sum:.2} %"),
        );
    }
}

/// Resident memory of all processes of a node, less what is mapped from BPF maps.
fn memory(run: &mut Run, pair: &Pair) -> Result<()> {
    for (name, pids) in ["active", "standby"].iter().zip(pair.pids()) {
        let mut sum = 0;
        for pid in &pids {
            sum += resident_without_maps(*pid)?;
        }
        run.report
            .count(format!("rss_without_maps_kb_{name}"), usize::try_from(sum)?);
        run.report.check(
            format!("the {name} node keeps at most 40 MB resident, maps aside"),
            sum <= MEMORY_KB && sum > 0 && pids.len() == 2,
            format!("{sum} kB in {} processes", pids.len()),
        );
    }
    Ok(())
}

fn resident_without_maps(pid: i32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).with_context(|| format!("smaps of {pid}"))?;
    let mut counted = true;
    let mut sum = 0;
    for line in text.lines() {
        // A mapping begins with its addresses, in lower-case hexadecimal.
        if line.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase()) {
            counted = !line.contains("bpf-map");
        } else if counted && let Some(rest) = line.strip_prefix("Rss:") {
            sum += rest
                .split_whitespace()
                .next()
                .and_then(|n| n.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Ok(sum)
}

/// Map memory is printed at start.
fn said_at_start(run: &mut Run, pair: &Pair) -> Result<()> {
    let Some(node) = pair.nodes[0].as_onearm() else {
        return Ok(());
    };
    let log = fs::read_to_string(node.dir().join("onearmd.log"))?;
    let line = log
        .lines()
        .find(|l| l.contains("map_bytes") || l.contains("map memory"))
        .unwrap_or_default();
    run.report
        .check("map memory is printed at start", !line.is_empty(), line);
    let status = node.ask(&["status"])?;
    let bytes = status
        .pointer("/dataplane/map_bytes")
        .and_then(serde_json::Value::as_u64)
        .unwrap_or(0);
    run.report.count("map_bytes", usize::try_from(bytes)?);
    Ok(())
}

/// READY=1 within 2 s with a table for a million flows.
fn ready(run: &mut Run) -> Result<()> {
    let spec = spec(Duration::from_secs(1));
    run.with_lab("ready", Options::default(), |run, lab| {
        let mut node = crate::node::onearm::OnearmNode::prepare(lab, 0, &spec, &run.wanted.bin_dir)?;
        node.start()?;
        let took = clock::ms(node.wait_ready(Duration::from_secs(30))?);
        run.report.figure("ready_ms", took);
        run.report.check(
            "ready within 2 s with a table for 1 M flows",
            took <= 2000.0,
            format!("{took} ms"),
        );
        node.ask_to_stop();
        node.reap(Duration::from_secs(10))
    })
}

/// Size of a program without symbols.
fn stripped_size(program: &std::path::Path) -> Result<u64> {
    let copy = std::env::temp_dir().join(format!("onearm-lab-stripped-{}", std::process::id()));
    crate::netns::run(
        std::process::Command::new("strip")
            .arg("-o")
            .arg(&copy)
            .arg(program),
    )?;
    let size = fs::metadata(&copy)?.len();
    fs::remove_file(&copy)?;
    Ok(size)
}
