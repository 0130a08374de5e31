//! The same faults in the same lab, for onearm and its peers.
//!
//! For each fault of the Active, and then for its end: how long an outside client was not served (datagrams of one flow, and
//! new connections), how many of its packets were lost, and how long two nodes answered for the VIP. A run in which the machine stalled, or in which ownership had
//! moved before the fault, says nothing about the product: it is counted and made again.

mod case;
mod product;
mod table;

use std::{net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result};

use self::{case::Case, product::Product, table::Row};
use super::{Run, Scenario, failover, named};
use crate::{
    clock::{self, MS, Nanos},
    measure::{
        echo,
        http::HttpProber,
        lease::{self, LeaseSampler, Reading},
        owners::Sampler,
        stalls::{self, StallMonitor},
        udp::UdpProber,
    },
    node::{Kind, Pair, Role},
    service::PairSpec,
    topology::{OneArm, SERVERS, VIP},
    traffic,
};

/// Clean runs of each fault where the command line names no number.
const RUNS: u32 = 5;
/// Runs are made at most so many times as often as clean ones are wanted.
const PATIENCE: u32 = 3;
/// Packets a second where the command line names no number.
const RATE: u32 = 10_000;
/// For so long service must be there without a break until it counts as back.
const SERVED: Duration = Duration::from_millis(400);
/// Service that is not back by then stays away.
const AWAY: Duration = Duration::from_secs(15);
/// A pair that is not whole again by then starts afresh.
const SETTLED: Duration = Duration::from_secs(40);
/// Between two questions who answers for the VIP, and two readings of the lease cells.
const QUESTION: Nanos = MS;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "compare",
        about: "onearm beside keepalived, FRR and ucarp: each fault and its end, at 1 s and 10 ms adverts (--only, --peers, --interval, --runs, --rate)",
        for_peers: false,
        run,
    }
}

/// What one fault, or its end, cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Longest time without an answer.
    outage: Nanos,
    /// Packets without answer.
    lost: usize,
    /// Longest time in which no new connection got its page.
    connections: Nanos,
    /// Questions answered by two, a millisecond apart.
    two_by_frames: usize,
    /// Readings of both leases valid, a millisecond apart; none where nothing was to be read.
    two_by_leases: Option<usize>,
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    fault: Cost,
    end: Cost,
    /// Why it says nothing about the product.
    disturbed: Option<&'static str>,
}

fn run(run: &mut Run) -> Result<()> {
    let begun = clock::now();
    let cases = named(&Case::ALL, Case::name, &run.wanted.only)?;
    let products = named(&Product::ALL, Product::name, &run.wanted.peers)?;
    let intervals = match run.wanted.interval {
        Some(one) => vec![one],
        None => vec![Duration::from_millis(10), Duration::from_secs(1)],
    };
    let mut rows = Vec::new();
    for interval in intervals {
        for product in &products {
            if product.knows(interval) {
                rows.extend(compared(run, *product, interval, &cases)?);
            } else {
                run.report.note(format!(
                    "{} advertises every second at its finest: not at {} ms",
                    product.name(),
                    interval.as_millis()
                ));
            }
        }
    }
    table::print(&run.report, &rows);
    for row in &rows {
        row.record(&mut run.report);
    }
    for row in &rows {
        row.judge(&mut run.report);
    }
    let took = clock::ms(clock::now() - begun) / 1_000.0;
    run.report.figure("took_s", took);
    Ok(())
}

/// All cases of one product.
fn compared(run: &mut Run, product: Product, interval: Duration, cases: &[Case]) -> Result<Vec<Row>> {
    let spec = product.spec(interval);
    let part = format!("{}_{}ms", product.name(), interval.as_millis());
    let mut rows = Vec::new();
    run.with_lab(&part, product.options(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = fresh(run, lab, product, &spec)?;
        for case in cases.iter().filter(|case| case.concerns(product)) {
            let mut row = Row::new(product, *case, interval);
            let wanted = run.wanted.runs.unwrap_or(RUNS);
            while row.clean() < wanted as usize && row.made() < (PATIENCE * wanted) as usize {
                if !is_settled(lab, &mut pair)? {
                    run.report.note(format!(
                        "{part}: the pair was not whole again within {} s and starts afresh",
                        SETTLED.as_secs()
                    ));
                    pair.scrap()?;
                    pair = fresh(run, lab, product, &spec)?;
                }
                let outcome = once(run, lab, &mut pair, product, *case)
                    .with_context(|| format!("{part}, {}", case.name()))?;
                let Some(outcome) = outcome else {
                    run.report
                        .note(format!("{part}: no command for {}", case.words().0));
                    break;
                };
                row.add(outcome);
                run.report.note(format!(
                    "{part}, {} #{}: {}",
                    case.name(),
                    row.made(),
                    table::line(&outcome)
                ));
            }
            if row.made() > 0 {
                run.report.check(
                    format!("{part}, {}: {wanted} clean runs", case.name()),
                    row.clean() >= wanted as usize,
                    format!("{} of {} made", row.clean(), row.made()),
                );
                rows.push(row);
            }
        }
        pair.scrap()
    })?;
    Ok(rows)
}

fn fresh(run: &Run, lab: &OneArm, product: Product, spec: &PairSpec) -> Result<Pair> {
    let mut pair = Pair::prepare(product.kind(), lab, spec, &run.wanted.bin_dir)?;
    pair.start()?;
    lab.forget_neighbours()?;
    failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
    Ok(pair)
}

/// Whether one node is Active and the other Standby, and a client is served, soon.
fn is_settled(lab: &OneArm, pair: &mut Pair) -> Result<bool> {
    let end = clock::now() + clock::nanos(SETTLED);
    loop {
        let roles = [pair.nodes[0].role(), pair.nodes[1].role()];
        if let [Ok(one), Ok(two)] = roles
            && matches!(
                (one, two),
                (Role::Active, Role::Standby) | (Role::Standby, Role::Active)
            )
        {
            for node in &mut pair.nodes {
                node.wait_checked(SETTLED)?;
            }
            return Ok(failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT)).is_ok());
        }
        if clock::now() > end {
            return Ok(false);
        }
        clock::observe(Duration::from_millis(50));
    }
}

/// The fault and its end in a settled pair; nothing if the product has no such command.
fn once(
    run: &mut Run,
    lab: &OneArm,
    pair: &mut Pair,
    product: Product,
    case: Case,
) -> Result<Option<Outcome>> {
    let spec = pair.spec().clone();
    let active = usize::from(pair.nodes[1].role()? == Role::Active);
    let leases = match pair.kind() {
        Kind::Onearm => Some(LeaseSampler::start(pair.pids())?),
        Kind::Keepalived | Kind::Conntrackd | Kind::Frr | Kind::Ucarp => None,
    };
    let monitor = StallMonitor::start()?;
    let sampler = Sampler::start(lab, VIP, QUESTION)?;
    let rate = run.wanted.rate.unwrap_or(RATE);
    let udp = UdpProber::start(
        lab.ns("out"),
        SocketAddrV4::new(VIP, echo::PORT),
        1_000 * MS / Nanos::from(rate),
    )?;
    let http = HttpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, 80), 5 * MS)?;
    clock::observe(Duration::from_millis(50));
    let begun = clock::now();
    let jitter = run.random_span(spec.interval);
    clock::observe(Duration::from_millis(250) + jitter);

    let fault_at = clock::now();
    if !case.begin(lab, pair, active)? {
        return Ok(None);
    }
    clock::observe(product.aftermath(&spec));
    udp.wait_answered(SERVED, AWAY);
    let readings = leases.map(LeaseSampler::stop).transpose()?;
    let leases = match &readings {
        Some(_) if !case.restarts() => Some(LeaseSampler::start(pair.pids())?),
        _ => None,
    };
    let end_at = clock::now();
    case.undo(lab, pair, active)?;
    clock::observe(product.aftermath(&spec));
    udp.wait_answered(SERVED, AWAY);
    let over_at = clock::now();

    let series = udp.stop()?;
    let pages = http.stop()?;
    let owners = sampler.stop()?;
    let found = monitor.stop()?;
    let later = leases.map(LeaseSampler::stop).transpose()?;
    // An answer to what was sent just before may be the first one that is lost.
    let cost = |from: Nanos, to: Nanos, leases: Option<&[Reading]>| Cost {
        outage: series.longest_gap(from - MS, to - MS),
        lost: series.lost(from - MS, to - MS),
        connections: pages.longest_gap(from - 5 * MS, to - 5 * MS),
        two_by_frames: owners.disputed(from, to).len(),
        two_by_leases: leases.map(lease::doubles),
    };
    let fault = cost(fault_at, end_at, readings.as_deref());
    let end = cost(end_at, over_at, later.as_deref());
    let tolerance = table::tolerance(spec.interval);
    let touched = |at: Nanos, outage: Nanos| {
        stalls::longest(
            &found,
            at.saturating_sub(50 * MS),
            at + outage.max(clock::nanos(spec.interval) * 4) + 50 * MS,
        ) > tolerance
    };
    let disturbed = if owners.changes(begun, fault_at) > 0 {
        Some("ownership had moved before")
    } else if touched(fault_at, fault.outage) || touched(end_at, end.outage) {
        Some("the machine stalled")
    } else {
        None
    };
    Ok(Some(Outcome {
        fault,
        end,
        disturbed,
    }))
}
