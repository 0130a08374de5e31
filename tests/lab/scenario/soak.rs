//! A long time of adverts while the machine has more to do than it can: who took over, and what stall made them.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::Result;

use super::{Run, Scenario, stage};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{
        echo,
        lease::{self, LeaseSampler, Reading},
        stalls::{Stall, StallMonitor},
        udp::UdpProber,
    },
    process::Process,
    service::{Mode, PairSpec},
    topology::{OneArm, Options, SERVERS, VIP},
    traffic,
};

/// How long, where the command line names no number.
const MINUTES: u32 = 60;
/// The client's pace.
const PACE: Nanos = 5 * MS;
/// A stall of the machine that can have ended a lease of 22.5 ms, together with a turn of the HA process.
const STALL: Nanos = 10 * MS;
/// How long before a change of owner the stall that caused it has ended at the latest.
const CAUSE: Nanos = 100 * MS;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "soak",
        about: "an hour (--runs: minutes) of 10 ms adverts with two busy loops on each CPU: no take-over without a machine stall",
        for_peers: false,
        run,
    }
}

/// Another node began to own, or nobody did.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: Nanos,
    from: Option<usize>,
    to: Option<usize>,
}

fn run(run: &mut Run) -> Result<()> {
    let interval = run.wanted.interval.unwrap_or(Duration::from_millis(10));
    let time = Duration::from_mins(1) * run.wanted.runs.unwrap_or(MINUTES);
    let spec = PairSpec {
        peer_link: true,
        record: true,
        ..PairSpec::web_and_echo(Mode::Dnat, interval)
    };
    let options = Options {
        peer_link: true,
        ..Options::default()
    };
    run.with_lab("soak", options, |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let pair = stage(run, lab, &spec)?;
        let loops = busy_loops(lab)?;
        let stalls = StallMonitor::start()?;
        let leases = LeaseSampler::start(pair.pids())?;
        let client = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), PACE)?;
        let begun = clock::now();
        let end = begun + clock::nanos(time);
        while clock::now() < end {
            clock::observe(
                Duration::from_mins(1).min(Duration::from_nanos(end.saturating_sub(clock::now()))),
            );
            run.report.note(format!(
                "{:.0} of {:.0} s",
                ms(clock::now() - begun) / 1e3,
                time.as_secs_f64()
            ));
        }
        let end = clock::now();
        let series = client.stop()?;
        let readings = leases.stop()?;
        let stalls = stalls.stop()?;
        drop(loops);
        let changes = changes(&readings);
        run.report.figure("minutes", ms(end - begun) / 60e3);
        run.report.count("asked", series.window(begun, end).count());
        run.report.count("lost", series.lost(begun, end));
        run.report
            .figure("outage_ms_max", ms(series.longest_gap(begun, end)));
        run.report.count(
            "stalls_over_10_ms",
            stalls.iter().filter(|s| s.length() >= STALL).count(),
        );
        run.report.figure(
            "stall_ms_max",
            ms(stalls.iter().map(Stall::length).max().unwrap_or(0)),
        );
        run.report.count("changes", changes.len());
        for change in &changes {
            run.report.note(format!(
                "at {:.3} s from {:?} to {:?}: {}",
                ms(change.at - begun) / 1e3,
                change.from,
                change.to,
                cause(&stalls, *change).map_or("no stall".to_owned(), |s| format!(
                    "CPU {} stood still for {:.1} ms until {:.1} ms before",
                    s.cpu,
                    ms(s.length()),
                    ms(change.at.saturating_sub(s.to))
                ))
            ));
        }
        let without: Vec<_> = changes.iter().filter(|c| cause(&stalls, **c).is_none()).collect();
        run.report.check(
            "no change of owner without a stall of the machine that caused it",
            without.is_empty(),
            format!(
                "{} changes, {} without a stall: {:?}",
                changes.len(),
                without.len(),
                without
                    .iter()
                    .map(|c| format!(
                        "at {:.3} s from {:?} to {:?}",
                        ms(c.at - begun) / 1e3,
                        c.from,
                        c.to
                    ))
                    .collect::<Vec<_>>()
            ),
        );
        let doubles = lease::doubles(&readings);
        run.report.check(
            "never two leases",
            doubles == 0,
            format!("{doubles} of {} readings", readings.len()),
        );
        Ok(())
    })
}

/// Owner after owner, as the cells tell.
fn changes(readings: &[Reading]) -> Vec<Change> {
    let owner = |r: &Reading| r.valid().iter().position(|valid| *valid);
    readings
        .windows(2)
        .map(|pair| (&pair[0], &pair[1]))
        .filter(|(a, b)| owner(a) != owner(b))
        .map(|(a, b)| Change {
            at: b.at,
            from: owner(a),
            to: owner(b),
        })
        .collect()
}

/// The longest stall that can have caused it.
fn cause(stalls: &[Stall], change: Change) -> Option<Stall> {
    stalls
        .iter()
        .filter(|s| s.length() >= STALL && s.from <= change.at && s.to + CAUSE >= change.at)
        .max_by_key(|s| s.length())
        .copied()
}

/// Two on each CPU. Nice, so that whoever shares the machine can go on; the nodes compete with what is not.
fn busy_loops(lab: &OneArm) -> Result<Vec<Process>> {
    let log = lab.lab().dir().join("loops.log");
    let cpus = std::thread::available_parallelism()?.get();
    (0..2 * cpus)
        .map(|_| {
            lab.ns("mon").spawn(
                &["nice", "-n", "19", "sh", "-c", "while :; do :; done"],
                &[],
                &log,
            )
        })
        .collect()
}
