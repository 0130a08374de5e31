//! onearm's side: what the nodes tell of themselves.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Bench, Cpu, PATIENCE, QUIET, each};
use crate::{
    clock::{self, MS, Nanos, ms},
    node::onearm::OnearmNode,
    scenario::Run,
};

/// At this rate a table is filled whose Standby is not there.
const FILLING_ALONE: u64 = 200_000;
/// Within this from the stream's opening a table has to be equal and of use, by flows, ms.
const GOALS: [(u64, u64); 2] = [(500_000, 1_000), (2_000_000, 4_000)];
/// How long the nodes are looked at before flows come.
const IDLE: Duration = Duration::from_secs(2);

impl Bench<'_> {
    fn node(&self, index: usize) -> Result<&OnearmNode> {
        self.pair.nodes[index].as_onearm().context("no node of onearm")
    }

    /// A number of the node's status.
    pub(super) fn told(&self, index: usize, at: &str) -> Result<u64> {
        number(&self.node(index)?.ask(&["status"])?, at)
    }

    /// Flows that a node has told to the other one.
    pub(super) fn sent(&self, index: usize) -> Result<u64> {
        self.told(index, "/sync/counters/told")
    }

    /// Flows that a node has of the other one.
    pub(super) fn applied(&self, index: usize) -> Result<u64> {
        self.told(index, "/sync/counters/applied")
    }

    /// Waits until the tables are equal, by the second node's word; its status then.
    pub(super) fn equal(&self) -> Result<Value> {
        let mut status = Value::Null;
        clock::wait_for(
            "the tables of flows to be equal",
            PATIENCE,
            Duration::from_millis(5),
            || {
                let output = self.node(1)?.cli(&["status", "--json"])?;
                // Until it answers there is none.
                status = serde_json::from_slice(&output.stdout).unwrap_or_default();
                Ok((status["sync"]["verdict"] == "equal").then_some(()))
            },
        )
        .with_context(|| status["sync"].to_string())?;
        Ok(status)
    }

    /// New flows at `rate`: which of them came, how late they were acknowledged, at what cost.
    pub(super) fn rate_of_onearm(&mut self, run: &mut Run, part: &str, rate: u64, count: u64) -> Result<f64> {
        self.equal()?;
        let earlier = [self.sent(0)?, self.applied(1)?];
        let idle = self.cpu();
        clock::observe(IDLE);
        let before = self.cpu();
        for who in ["active", "standby"] {
            let of = |cpu: &Cpu| cpu.get(who).copied().unwrap_or(0);
            let spent = ms((of(&before) - of(&idle)) * MS);
            run.report.figure(
                format!("{part}_cpu_share_idle_{who}"),
                spent / 1_000.0 / IDLE.as_secs_f64(),
            );
        }
        let begun = clock::now();
        let made = self.pour(rate, count)?;
        let took = made.last().map_or(1, |(at, _)| at - begun);
        let came = self.settled()?;
        let spent = self.report_cpu(run, part, &before, count);
        let there = self.sent(0)?.saturating_sub(earlier[0]);
        let arrived = came.0.saturating_sub(earlier[1]);
        let status = self.node(0)?.ask(&["status"])?;
        let report = &mut run.report;
        #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
        let (asked, real) = (rate as f64, count as f64 / (ms(took) / 1_000.0));
        report.figure(format!("{part}_flows_per_s"), real);
        report.count(format!("{part}_flows_made"), usize::try_from(there)?);
        let lost = there.saturating_sub(arrived);
        report.count(format!("{part}_flows_lost"), usize::try_from(lost)?);
        let last = came.1.saturating_sub(begun + took);
        report.figure(format!("{part}_last_came_after_ms"), ms(last));
        for word in ["p50", "p99"] {
            let us = number(&status, &format!("/sync/lag_{word}_us"))?;
            report.figure(format!("{part}_lag_{word}_ms"), ms(us * 1_000));
        }
        for name in ["events_lost", "repaired"] {
            let count = number(&status, &format!("/sync/counters/{name}"))?;
            report.count(format!("{part}_{name}"), usize::try_from(count)?);
        }
        report.note(format!("{part}: {}", status["sync"]));
        report.check(
            format!("{part}: the generator made its flows, and at that rate"),
            there >= count * 99 / 100 && real * 1.05 >= asked,
            format!("{there} of {count} in {:.0} ms", ms(took)),
        );
        report.check(
            format!("{part}: every flow comes to the Standby"),
            lost == 0,
            format!("{arrived} of {there}"),
        );
        let lost = number(&status, "/sync/counters/events_lost")?;
        report.check(
            format!("{part}: the programs had room for every event"),
            lost == 0,
            format!("{lost} had none, and an audit found them"),
        );
        Ok(each(spent, arrived))
    }

    /// Waits until nothing more comes to the Standby; how many came to it, and when the last did.
    pub(super) fn settled(&self) -> Result<(u64, Nanos)> {
        let mut came = (0, clock::now());
        let end = clock::now() + clock::nanos(PATIENCE);
        while clock::now() < (came.1 + QUIET).min(end) {
            let now = self.applied(1)?;
            if now != came.0 {
                came = (now, clock::now());
            }
            clock::observe(Duration::from_millis(200));
        }
        Ok(came)
    }

    /// A table of `flows`, sent whole to a Standby that begins with none.
    pub(super) fn snapshot_of_onearm(&mut self, run: &mut Run, part: &str, flows: u64) -> Result<()> {
        let node = &mut self.pair.nodes[1];
        node.sigkill_all();
        node.reap(PATIENCE)?;
        node.clean_up()?;
        self.pour(FILLING_ALONE, flows)?;
        // Flows are counted from time to time.
        let mut there = 0;
        clock::wait_for(
            "the flows to be made",
            PATIENCE,
            Duration::from_millis(100),
            || {
                there = self.told(0, "/dataplane/flows")?;
                Ok((there >= flows * 99 / 100).then_some(()))
            },
        )
        .with_context(|| format!("{there} of {flows}"))?;
        let active = self.cpu().get("active").copied().unwrap_or(0);
        let started = clock::now();
        self.pair.nodes[1].start()?;
        let status = self.equal()?;
        let since_start: Nanos = clock::now() - started;
        let spent = self.cpu();
        let of = |name: &str| spent.get(name).copied().unwrap_or(0);
        let arrived = number(&status, "/sync/counters/applied")?;
        let open = number(&status, "/stream/since_ms")?;
        let report = &mut run.report;
        report.count(format!("{part}_flows"), usize::try_from(there)?);
        report.count(format!("{part}_of_use_ms"), usize::try_from(open)?);
        report.figure(format!("{part}_since_start_ms"), ms(since_start));
        report.count(
            format!("{part}_cpu_ms_active"),
            usize::try_from(of("active") - active)?,
        );
        report.count(
            format!("{part}_cpu_ms_standby_with_start"),
            usize::try_from(of("standby"))?,
        );
        report.check(
            format!("{part}: the Standby has the table"),
            arrived >= there * 999 / 1_000,
            format!("{arrived} of {there}, {open} ms after the stream was opened"),
        );
        for (_, goal) in GOALS.into_iter().filter(|(of, _)| *of == flows) {
            report.check(
                format!("{part}: it is of use {goal} ms after the stream was opened"),
                open <= goal,
                format!("{open} ms"),
            );
        }
        Ok(())
    }
}

fn number(status: &Value, at: &str) -> Result<u64> {
    let found = status.pointer(at).and_then(Value::as_u64);
    found.with_context(|| format!("no {at} in the status"))
}
