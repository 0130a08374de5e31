//! A packet filter between the nodes is named by the node that misses something; a take-over is told with its times.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Run, Scenario, stage};
use crate::{
    clock::{self, MS},
    measure::{echo, udp::UdpProber},
    node::{Pair, Role},
    service::{Mode, PairSpec},
    topology::{Options, SERVERS, VIP},
    traffic,
};

const LIMIT: Duration = Duration::from_secs(15);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "paths",
        about: "nftables rules on adverts and HA datagrams are named in status and move nothing; a take-over is told with its times",
        for_peers: false,
        run,
    }
}

fn ask(pair: &Pair, index: usize, what: &str) -> Result<Value> {
    let node = pair.nodes[index].as_onearm().context("this is about onearm")?;
    node.ask(&[what])
}

fn warnings(pair: &Pair, index: usize) -> Result<Vec<String>> {
    let status = ask(pair, index, "status")?;
    let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
    Ok(warnings
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect())
}

/// Waits until a warning of the node has every word, or (`there` false) none has.
fn wait_warning(pair: &Pair, index: usize, words: &[&str], there: bool) -> Result<String> {
    let mut last = Vec::new();
    let found = clock::wait_for("the warning", LIMIT, Duration::from_millis(100), || {
        last = warnings(pair, index)?;
        let found = last
            .iter()
            .find(|text| words.iter().all(|word| text.contains(word)));
        Ok(match (found, there) {
            (Some(text), true) => Some(text.clone()),
            (None, false) => Some(String::new()),
            _ => None,
        })
    });
    found.with_context(|| format!("{words:?} in {last:?}"))
}

fn owner(pair: &Pair) -> Result<usize> {
    let active = |index| -> Result<bool> { Ok(ask(pair, index, "status")?["state"] == "active") };
    match (active(0)?, active(1)?) {
        (true, false) => Ok(0),
        (false, true) => Ok(1),
        both => anyhow::bail!("active: {both:?}"),
    }
}

fn run(run: &mut Run) -> Result<()> {
    let mut spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    spec.peer_link = true;
    let options = Options {
        peer_link: true,
        ..Options::default()
    };
    run.with_lab("paths", options, |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let prober = UdpProber::start(
            lab.ns("out"),
            std::net::SocketAddrV4::new(VIP, echo::PORT),
            MS,
        )?;
        let first = owner(&pair)?;
        let (active, standby) = (crate::topology::NODES[first], crate::topology::NODES[1 - first]);
        let filter = |node: &str, family: &str, chain: &str, rule: &str| -> Result<()> {
            let text = format!(
                "nft add table {family} lab_t; nft add chain {family} lab_t c '{{ {chain} }}'; nft add rule {family} lab_t c {rule} drop"
            );
            lab.ns(node).exec(&["sh", "-c", &text]).map(drop)
        };
        let clear = |node: &str, family: &str| lab.ns(node).run(&format!("nft delete table {family} lab_t")).map(drop);
        let input = "type filter hook input priority 0;";
        let output = "type filter hook output priority 0;";
        let mut cases = Vec::new();

        filter(standby, "inet", input, "iifname eth1 udp dport 8471")?;
        cases.push(("datagrams in, peer link", wait_warning(&pair, 1 - first, &["do not arrive on eth1", "UDP port 8471"], true)?));
        clear(standby, "inet")?;
        wait_warning(&pair, 1 - first, &["do not arrive"], false)?;

        filter(active, "inet", output, "oifname eth1 udp dport 8471")?;
        cases.push(("datagrams out, peer link", wait_warning(&pair, first, &["drops the HA datagrams it sends on eth1"], true)?));
        cases.push(("and seen from the other node", wait_warning(&pair, 1 - first, &["do not arrive on eth1"], true)?));
        clear(active, "inet")?;
        wait_warning(&pair, first, &["drops the HA datagrams"], false)?;

        filter(standby, "inet", input, "iifname eth0 udp dport 8471")?;
        cases.push(("datagrams in, leg", wait_warning(&pair, 1 - first, &["do not arrive on eth0", "UDP port 8471"], true)?));
        clear(standby, "inet")?;

        lab.switch().mute(active)?;
        cases.push(("adverts, on the way", wait_warning(&pair, 1 - first, &["adverts of the peer do not arrive on eth0", "IP protocol 112"], true)?));
        lab.switch().unmute(active)?;
        wait_warning(&pair, 1 - first, &["do not arrive"], false)?;

        for (what, sentence) in cases {
            run.report.check(format!("named: {what}"), !sentence.is_empty(), sentence);
        }
        let series = prober.stop()?;
        let lost = series.lost(0, clock::now() - 100 * MS);
        run.report.check(
            "none of it moved anything",
            owner(&pair)? == first && lost == 0,
            format!("{lost} datagrams lost"),
        );
        two_owners(run, lab, &pair)?;
        // Who released a moment ago does not believe a release at once: two could cross.
        clock::observe(Duration::from_secs(1));
        let first = owner(&pair)?;
        take_over(run, lab, &mut pair, first)?;
        pair.scrap()
    })
}

/// Nothing passes between the nodes for a while, and each is answered by everybody else.
fn two_owners(run: &mut Run, lab: &crate::topology::OneArm, pair: &Pair) -> Result<()> {
    let cut = "nft add table inet lab_t; nft add chain inet lab_t c '{ type filter hook input priority 0; }'; \
               nft add rule inet lab_t c udp dport 8471 drop";
    for node in crate::topology::NODES {
        lab.ns(node).exec(&["sh", "-c", cut])?;
        lab.switch().mute(node)?;
    }
    clock::wait_for("two owners", LIMIT, Duration::from_millis(20), || {
        let states = [ask(pair, 0, "status")?, ask(pair, 1, "status")?];
        Ok(states
            .iter()
            .all(|status| status["state"] == "active")
            .then_some(()))
    })?;
    for node in crate::topology::NODES {
        lab.switch().unmute(node)?;
        lab.ns(node).run("nft delete table inet lab_t")?;
    }
    let told = |kind: &str| -> Result<Vec<String>> {
        let mut found = Vec::new();
        for index in [0, 1] {
            let events = ask(pair, index, "events")?;
            let events = events["events"].as_array().cloned().unwrap_or_default();
            let events = events.iter().filter(|event| event["kind"] == kind);
            found.extend(events.filter_map(|event| event["message"].as_str().map(str::to_owned)));
        }
        Ok(found)
    };
    clock::wait_for(
        "the end of two owners is told",
        LIMIT,
        Duration::from_millis(100),
        || Ok((!told("two-owners-over")?.is_empty()).then_some(())),
    )?;
    let evidence = told("two-owners")?;
    let is_whole = |text: &String| {
        ["(MAC 02:", "under epoch ", "term of epoch "]
            .iter()
            .all(|word| text.contains(word))
    };
    run.report.check(
        "two owners are told with evidence",
        !evidence.is_empty() && evidence.iter().all(is_whole),
        format!("{evidence:?} {:?}", told("two-owners-over")?),
    );
    clock::wait_for("one owner again", LIMIT, Duration::from_millis(50), || {
        Ok(owner(pair).ok())
    })?;
    Ok(())
}

/// The owner stops; the other tells how it took over.
fn take_over(run: &mut Run, lab: &crate::topology::OneArm, pair: &mut Pair, first: usize) -> Result<()> {
    let prober = UdpProber::start(lab.ns("out"), std::net::SocketAddrV4::new(VIP, echo::PORT), MS)?;
    clock::observe(Duration::from_millis(200));
    let last = ask(pair, 1 - first, "events")?;
    let stopping = last["events"]
        .as_array()
        .and_then(|events| events.last()?["time_ms"].as_u64())
        .map(|ms| ms + 1);
    pair.nodes[first].ask_to_stop();
    pair.nodes[first].reap(LIMIT)?;
    let other = 1 - first;
    clock::wait_for("the other owner", LIMIT, Duration::from_millis(20), || {
        Ok((pair.nodes[other].role()? == Role::Active).then_some(()))
    })?;
    let told = clock::wait_for("the take-over is told", LIMIT, Duration::from_millis(100), || {
        let events = ask(pair, other, "events")?;
        let events = events["events"].as_array().cloned().unwrap_or_default();
        let is_new = |event: &&Value| event["kind"] == "took-over" && event["time_ms"].as_u64() >= stopping;
        Ok(events.iter().find(is_new).cloned())
    })?;
    drop(prober.stop()?);
    let timeline = &told["timeline"];
    let us = |name: &str| timeline[name].as_u64();
    let in_order = us("lease_us") <= us("first_announced_us")
        && us("first_announced_us") <= us("all_announced_us")
        && us("lease_us").is_some_and(|lease| lease < 100_000);
    run.report.check(
        "a take-over after a release is told: lease, announcements, first packet",
        in_order && us("first_packet_us").is_some() && timeline["peer_said"] == "release",
        &told["message"],
    );
    let quiet = ask(pair, other, "events")?;
    let kinds = quiet["events"].as_array().cloned().unwrap_or_default();
    let kinds: Vec<_> = kinds
        .into_iter()
        .filter(|event| event["time_ms"].as_u64() >= stopping)
        .collect();
    let two = kinds
        .iter()
        .filter(|event| event["kind"] == "two-owners" || event["kind"] == "contended");
    run.report
        .check("and nobody speaks of two owners", two.count() == 0, "");
    Ok(())
}
