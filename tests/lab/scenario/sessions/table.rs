//! The table: figures of each product, mode and stage, and the goals.

use std::time::Duration;

use nix::sys::time::TimeValLike as _;

use super::{
    many::Group,
    product::Product,
    stage::{Event, Stage},
};
use crate::{
    clock::{MS, Nanos, ms},
    report::Report,
};

/// Adverts so far apart are what the goal of a stall is about.
const GOAL_AT: Duration = Duration::from_millis(10);
/// The least time after which TCP says a word again.
const LEAST_RTO: Nanos = 200 * MS;
/// By then a flow is acknowledged, ms.
const ACKNOWLEDGED: f64 = 5.0;
/// A microsecond.
const US: Nanos = 1_000;
/// A machine's stall that excuses a connection's, ms.
const EXCUSE: f64 = 5.0;

/// A stage in one line.
pub(super) fn line(stage: &Stage) -> String {
    let (alive, broken) = stage.broken();
    let groups: Vec<String> = stage
        .seen
        .iter()
        .map(|(group, seen)| {
            let why = if seen.broken() > 0 {
                format!(" ({})", seen.reasons())
            } else {
                String::new()
            };
            format!(
                "{} {} of {} broken{why}, {} stalled {:.0}/{:.0}/{:.0} ms",
                group.name(),
                seen.broken(),
                seen.alive,
                seen.stalls.len(),
                ms(seen.stall(500)),
                ms(seen.stall(990)),
                ms(seen.stall(1_000))
            )
        })
        .collect();
    let lag = stage.lag.map_or(String::new(), |lag| {
        format!("; acknowledged p50 {} us, p99 {} us", lag.p50_us, lag.p99_us)
    });
    format!(
        "{}: {broken} of {alive} broken; {}; steady {} of {} lost, away {:.1} ms; machine {:.1} ms{lag}",
        stage.name(),
        groups.join("; "),
        stage.lost.0,
        stage.lost.1,
        ms(stage.outage),
        ms(stage.machine)
    )
}

/// The table for people, in Markdown.
pub(super) fn print(report: &Report, stages: &[Stage]) {
    report.note("");
    report.note(
        "| mode | what happens to the Active | product | connections | broken | why | stalled | stall p50 / p99 / max ms | UDP words lost | steady datagrams lost | away ms |",
    );
    report.note("|---|---|---|---|---|---|---|---|---|---|---|");
    for stage in stages {
        let (alive, broken) = stage.broken();
        let Some(tcp) = stage.of(Group::Tcp) else { continue };
        report.note(format!(
            "| {} | {}{} | {} | {alive} | {broken} | {} | {} | {:.0} / {:.0} / {:.0} | {} | {} of {} | {:.1} |",
            stage.cell.name(),
            stage.blow.name(),
            stage.event.name(),
            stage.product.name(),
            stage.reasons(),
            tcp.stalls.len(),
            ms(tcp.stall(500)),
            ms(tcp.stall(990)),
            ms(tcp.stall(1_000)),
            stage.of(Group::Udp).map_or(0, |udp| udp.lost),
            stage.lost.0,
            stage.lost.1,
            ms(stage.outage)
        ));
    }
}

/// Puts all figures into the report.
pub(super) fn record(report: &mut Report, stage: &Stage) {
    let name = stage.name();
    let (alive, broken) = stage.broken();
    report.count(format!("{name}_alive"), alive);
    report.count(format!("{name}_broken"), broken);
    report.count(format!("{name}_steady_lost"), stage.lost.0);
    report.figure(format!("{name}_outage_ms"), ms(stage.outage));
    if let Some(lag) = stage.lag {
        for (word, us) in [("p50", lag.p50_us), ("p99", lag.p99_us)] {
            report.figure(format!("{name}_acknowledged_{word}_ms"), ms(us * US));
        }
    }
    for group in [Group::Tcp, Group::Udp] {
        let Some(seen) = stage.of(group) else { continue };
        let name = format!("{name}_{}", group.name());
        report.count(format!("{name}_stalled"), seen.stalls.len());
        for (word, thousandths) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
            report.figure(format!("{name}_stall_{word}_ms"), ms(seen.stall(thousandths)));
        }
    }
}

/// Within this a word that was lost is said again, and answered in less than a tick.
///
/// The time-out counts in ticks: the least one and the round trip rounded up, from a tick that is under way, and a timer more than 63
/// ticks ahead is kept to eight of them.
fn retransmission(tick: Nanos) -> Nanos {
    let timer = if LEAST_RTO / tick < 64 { 1 } else { 8 };
    LEAST_RTO + (2 + timer) * tick
}

/// The kernel's tick, which is what its coarse clocks resolve.
fn tick() -> Nanos {
    let told = nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).ok();
    told.and_then(|tick| Nanos::try_from(tick.num_nanoseconds()).ok())
        .filter(|tick| *tick > 0)
        .unwrap_or(MS)
}

/// Checks the goals, which are onearm's.
pub(super) fn judge(report: &mut Report, stage: &Stage, interval: Duration) {
    if stage.product != Product::Onearm {
        return;
    }
    let name = stage.name();
    let (alive, broken) = stage.broken();
    report.check(
        format!("{name}: of {alive} connections none breaks"),
        broken == 0,
        line(stage),
    );
    report.check(
        format!("{name}: nothing comes from or for somebody else"),
        stage.foreign() == 0,
        format!("{} connections", stage.foreign()),
    );
    if let Some(lag) = stage.lag.filter(|lag| lag.is_steady) {
        let (late, before) = (ms(lag.p99_us * US), ms(stage.machine_before));
        report.check(
            format!("{name}: 99 of 100 flows were acknowledged within {ACKNOWLEDGED} ms"),
            late <= ACKNOWLEDGED + before,
            format!("{late:.2} ms; the machine {before:.1} ms"),
        );
    }
    let machine = ms(stage.machine);
    let is_blow = matches!(stage.event, Event::Blow | Event::Again | Event::Row(_));
    if let Some(tcp) = stage.of(Group::Tcp)
        && is_blow
        && interval == GOAL_AT
    {
        let middle = ms(tcp.stall(500));
        report.check(
            format!("{name}: half of those that stall do so for one retransmission"),
            middle <= ms(retransmission(tick())) || machine > EXCUSE,
            format!(
                "{middle:.1} ms of {} stalled; the machine {machine:.1} ms",
                tcp.stalls.len()
            ),
        );
    }
    if stage.is_planned() {
        let stalled: usize = stage.seen.iter().map(|(_, seen)| seen.stalls.len()).sum();
        report.check(
            format!("{name}: no connection stalls"),
            stalled == 0 || machine > EXCUSE,
            line(stage),
        );
        report.check(
            format!("{name}: no datagram is lost"),
            stage.lost.0 == 0,
            format!(
                "{} of {}; the machine stalled {machine:.1} ms",
                stage.lost.0, stage.lost.1
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retransmission_is_as_late_as_the_kernels_tick_makes_it() {
        assert_eq!(retransmission(MS), 210 * MS);
        assert_eq!(retransmission(4 * MS), 212 * MS);
        assert_eq!(retransmission(10 * MS), 230 * MS);
    }
}
