//! The Active dies, hangs, loses its link or is stopped, while an outside client is served in DNAT.

use std::{
    net::{SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::Result;
use nix::sys::signal::Signal;

use super::{Run, Scenario};
use crate::{
    clock::{self, MS, Nanos, ms, nanos},
    measure::{
        echo,
        http::HttpProber,
        lease::{self, LeaseSampler},
        owners::Sampler,
        stalls::{self, StallMonitor},
        udp::UdpProber,
    },
    node::{Kind, Node, Pair, Role},
    process,
    report::median,
    service::{Mode, PairSpec},
    switch::Variant,
    topology::{OneArm, Options, VIP, colons},
    traffic,
};

/// A stall of the machine above this excuses the run from the maximum.
const STALL: Nanos = 10 * MS;
/// What a fault may cost above three intervals and skew.
const ALLOWANCE: Nanos = 20 * MS;
/// What an orderly stop may cost.
const CLEAN_STOP: Nanos = 50 * MS;
/// How long a hung node hangs.
const HANG: Duration = Duration::from_secs(10);

/// What happens to the Active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL of every process.
    Kill,
    /// Its cable is cut.
    Cut,
    /// SIGSTOP of every process, resumed after 10 s.
    Hang,
    /// SIGTERM.
    Stop,
    /// SIGKILL of its oldest process alone.
    KillMain,
    /// SIGKILL of its youngest process alone.
    KillChild,
}

/// The scenarios.
pub(super) fn scenarios() -> [Scenario; 6] {
    [
        Scenario {
            name: "failover-kill9",
            about: "SIGKILL of every process of the Active, at 1 s and 10 ms adverts",
            for_peers: true,
            run: |run| all_intervals(run, Fault::Kill),
        },
        Scenario {
            name: "failover-link-cut",
            about: "the Active's cable is cut and mended, at 1 s and 10 ms adverts",
            for_peers: true,
            run: |run| all_intervals(run, Fault::Cut),
        },
        Scenario {
            name: "failover-hang",
            about: "SIGSTOP of every process of the Active, resumed after 10 s, at 1 s and 10 ms adverts",
            for_peers: true,
            run: |run| all_intervals(run, Fault::Hang),
        },
        Scenario {
            name: "stop-clean",
            about: "SIGTERM of the Active, at 1 s and 10 ms adverts",
            for_peers: true,
            run: |run| all_intervals(run, Fault::Stop),
        },
        Scenario {
            name: "failover-one-process",
            about: "SIGKILL of the main process alone, and of the HA process alone, at 1 s and 10 ms adverts",
            for_peers: false,
            run: |run| {
                all_intervals(run, Fault::KillMain)?;
                all_intervals(run, Fault::KillChild)
            },
        },
        Scenario {
            name: "failover-snooping",
            about: "SIGKILL of the Active on a switch with multicast snooping, at 300 ms adverts",
            for_peers: true,
            run: |run| {
                let interval = run.interval();
                let spec = PairSpec::web_and_echo(Mode::Dnat, interval);
                let runs = run.wanted.runs.unwrap_or(2);
                repeat(run, Fault::Kill, &spec, runs, Variant::Snooping)
            },
        },
    ]
}

/// What one run found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Longest time without an answer to the 1 ms UDP prober.
    pub udp: Nanos,
    /// Longest time without an answer to the HTTP prober.
    pub http: Nanos,
    /// Longest time in which nobody answered ARP for the VIP.
    pub ownerless: Nanos,
    /// Most MACs that answered one ARP request.
    pub owners: usize,
    /// Questions answered by two.
    pub disputed: usize,
    /// Readings in which both leases were valid; none where there is no lease.
    pub double_leases: Option<usize>,
    /// Longest stall of the machine around the fault.
    pub stall: Nanos,
    /// How long it took to inject the fault.
    pub injected_in: Nanos,
    /// How often ownership had changed before the fault.
    pub flaps: usize,
    /// Whether the other node answered at the end.
    pub moved: bool,
    /// Whether service was there at the end.
    pub served: bool,
}

fn all_intervals(run: &mut Run, fault: Fault) -> Result<()> {
    let intervals = match run.wanted.interval {
        Some(one) => vec![one],
        None => vec![Duration::from_secs(1), Duration::from_millis(10)],
    };
    for interval in intervals {
        let spec = PairSpec::web_and_echo(Mode::Dnat, interval);
        let runs = run.wanted.runs.unwrap_or(5);
        repeat(run, fault, &spec, runs, Variant::Learning)?;
    }
    Ok(())
}

/// Repeats the fault and judges the whole.
///
/// # Errors
/// When the lab or the pair does not come up.
pub fn repeat(run: &mut Run, fault: Fault, spec: &PairSpec, runs: u32, variant: Variant) -> Result<()> {
    let label = match fault {
        Fault::KillMain => format!("main_{}ms", spec.interval.as_millis()),
        Fault::KillChild => format!("ha_{}ms", spec.interval.as_millis()),
        Fault::Kill | Fault::Cut | Fault::Hang | Fault::Stop => format!("{}ms", spec.interval.as_millis()),
    };
    let mut outcomes = Vec::new();
    run.with_lab(&label, Options { forwarding: true, variant, ..Options::default() }, |run, lab| {
        let _servers = traffic::start_servers(lab, &["s1", "s2", "s3"])?;
        // When the machine stalls in every run the maximum has no witness: up to twice as many runs are made.
        let mut made = 0;
        while made < runs || (made < 3 * runs && !outcomes.iter().any(|o: &Outcome| o.stall <= STALL)) {
            let outcome = once(run, lab, fault, spec, made)?;
            run.report.note(format!(
                "{fault:?} {label} #{made}: udp {} ms, http {} ms, no ARP owner {} ms, owners {}, disputed {}, double leases {:?}, stall {} ms",
                ms(outcome.udp), ms(outcome.http), ms(outcome.ownerless), outcome.owners, outcome.disputed,
                outcome.double_leases, ms(outcome.stall)
            ));
            outcomes.push(outcome);
            made += 1;
        }
        judge(run, fault, spec, &label, &outcomes);
        Ok(())
    })
}

fn judge(run: &mut Run, fault: Fault, spec: &PairSpec, label: &str, outcomes: &[Outcome]) {
    let bound = match fault {
        Fault::Stop => CLEAN_STOP,
        Fault::Kill | Fault::Cut | Fault::Hang | Fault::KillMain | Fault::KillChild => {
            spec.active_down(1).max(spec.active_down(0)) + ALLOWANCE
        }
    };
    let report = &mut run.report;
    let series = |pick: fn(&Outcome) -> Nanos| -> Vec<f64> { outcomes.iter().map(|o| ms(pick(o))).collect() };
    report.spread(&format!("outage_ms_{label}"), &series(|o| o.udp));
    report.spread(&format!("http_outage_ms_{label}"), &series(|o| o.http));
    report.spread(&format!("ownerless_ms_{label}"), &series(|o| o.ownerless));
    report.spread(&format!("machine_stall_ms_{label}"), &series(|o| o.stall));
    report.spread(&format!("inject_ms_{label}"), &series(|o| o.injected_in));
    let quiet: Vec<f64> = outcomes
        .iter()
        .filter(|o| o.stall <= STALL)
        .map(|o| ms(o.udp))
        .collect();
    report.spread(&format!("outage_ms_{label}_quiet"), &quiet);
    report.count(format!("runs_{label}"), outcomes.len());
    report.count(format!("runs_{label}_quiet"), quiet.len());
    let most = outcomes.iter().map(|o| o.owners).max().unwrap_or(0);
    report.count(format!("owners_max_{label}"), most);
    report.count(
        format!("flaps_before_fault_{label}"),
        outcomes.iter().map(|o| o.flaps).sum(),
    );
    let mut sorted = series(|o| o.udp);
    sorted.sort_by(f64::total_cmp);
    let middle = median(&sorted).unwrap_or(f64::MAX);
    let limit = ms(bound);
    report.check(
        format!("{label}: median outage within {limit} ms"),
        middle <= limit,
        format!("{middle:.3} ms over {} runs", outcomes.len()),
    );
    let worst = quiet.iter().copied().fold(f64::NAN, f64::max);
    report.check(
        format!("{label}: longest outage within {limit} ms in runs without a machine stall over 10 ms"),
        worst <= limit,
        format!("{worst} ms over {} runs", quiet.len()),
    );
    report.check(
        format!("{label}: never two owners answer one ARP request"),
        most <= 1,
        format!(
            "{} answers disputed",
            outcomes.iter().map(|o| o.disputed).sum::<usize>()
        ),
    );
    if outcomes.iter().any(|o| o.double_leases.is_some()) {
        let doubles: usize = outcomes.iter().filter_map(|o| o.double_leases).sum();
        report.check(
            format!("{label}: never two valid leases"),
            doubles == 0,
            format!("{doubles} readings of both"),
        );
    }
    let moved = outcomes.iter().filter(|o| o.moved).count();
    report.check(
        format!("{label}: the other node owns the VIP afterwards"),
        moved == outcomes.len(),
        format!("{moved} of {}", outcomes.len()),
    );
    let served = outcomes.iter().filter(|o| o.served).count();
    report.check(
        format!("{label}: service is back at the end"),
        served == outcomes.len(),
        format!("{served} of {}", outcomes.len()),
    );
}

/// One run: a fresh pair, all instruments on, the fault, its end.
///
/// # Errors
/// When the pair does not come up or an instrument fails.
pub fn once(run: &mut Run, lab: &OneArm, fault: Fault, spec: &PairSpec, number: u32) -> Result<Outcome> {
    let mut pair = Pair::prepare(run.wanted.kind, lab, spec, &run.wanted.bin_dir)?;
    pair.start()?;
    lab.forget_neighbours()?;
    let target = SocketAddrV4::new(VIP, echo::PORT);
    wait_served(lab, target)?;
    let leases = if pair.kind() == Kind::Onearm {
        Some(LeaseSampler::start(pair.pids())?)
    } else {
        None
    };
    let stall_monitor = StallMonitor::start()?;
    let sampler = Sampler::start(lab, VIP, MS)?;
    let udp = UdpProber::start(lab.ns("out"), target, MS)?;
    let http = HttpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, 80), 5 * MS)?;
    let begun = clock::now();
    let jitter = run.random_span(spec.interval);
    clock::observe(Duration::from_millis(500) + jitter);

    // At a short interval a stall of the machine may have moved ownership already: the fault is for who owns now.
    let active = usize::from(pair.nodes[0].role()? != Role::Active && pair.nodes[1].role()? == Role::Active);
    let before = clock::now();
    inject(lab, pair.nodes[active].as_ref(), fault)?;
    let after = clock::now();
    let mut window = Duration::from_nanos(spec.active_down(1)) + Duration::from_secs(1);
    if run.wanted.kind == Kind::Ucarp {
        window += Duration::from_secs(4);
    }
    clock::observe(if fault == Fault::Hang {
        window.max(HANG)
    } else {
        window
    });
    let patience = pair.patience();
    heal(lab, pair.nodes[active].as_mut(), fault, patience)?;
    clock::observe(Duration::from_millis(1500));

    let end = clock::now();
    let udp = udp.stop()?;
    let http = http.stop()?;
    let owners = sampler.stop()?;
    let stall_list = stall_monitor.stop()?;
    let readings = leases.map(LeaseSampler::stop).transpose()?;
    owners.record.write_pcap(
        &lab.lab()
            .dir()
            .join(format!("ownership-{}ms-{number}.pcap", spec.interval.as_millis())),
    )?;
    for (at, them) in owners.disputed(begun, end).iter().take(3) {
        let names: Vec<String> = them
            .iter()
            .map(|(port, mac)| format!("{} on {port}", colons(*mac)))
            .collect();
        run.report.note(format!(
            "two owners {} ms after the fault: {}",
            ms(at.saturating_sub(before)),
            names.join(" ")
        ));
    }
    let longest = udp.gaps(begun, end).into_iter().max_by_key(|g| g.length);
    let back = longest.map_or(before, |g| g.to.unwrap_or(end));
    let first = owners.owner_at(before);
    let last = owners.owner_at(end);
    let served = udp.lost(end.saturating_sub(300 * MS), end.saturating_sub(50 * MS)) == 0;
    let outcome = Outcome {
        udp: udp.longest_gap(begun, end),
        http: http.longest_gap(begun, end),
        ownerless: owners.longest_silence(begun, end),
        owners: owners.most_at_once(begun, end),
        disputed: owners.disputed(begun, end).len(),
        double_leases: readings.as_deref().map(lease::doubles),
        stall: stalls::longest(
            &stall_list,
            before.saturating_sub(50 * MS),
            back.max(before) + 50 * MS,
        ),
        injected_in: after - before,
        flaps: owners.changes(begun, before),
        moved: last.is_some() && last != first,
        served,
    };
    pair.scrap()?;
    Ok(outcome)
}

fn inject(lab: &OneArm, active: &dyn Node, fault: Fault) -> Result<()> {
    let pids = active.pids();
    let kill = |pid: Option<&i32>| pid.iter().for_each(|p| process::signal(**p, Signal::SIGKILL));
    match fault {
        Fault::Kill => active.sigkill_all(),
        Fault::KillMain => kill(pids.first()),
        Fault::KillChild => kill(pids.last()),
        Fault::Cut => lab.switch().cut(active.short())?,
        Fault::Hang => active.sigstop_all(),
        Fault::Stop => active.ask_to_stop(),
    }
    Ok(())
}

fn heal(lab: &OneArm, failed: &mut dyn Node, fault: Fault, patience: Duration) -> Result<()> {
    match fault {
        Fault::Kill => failed.reap(Duration::from_secs(5))?,
        Fault::Stop => failed.reap(patience)?,
        Fault::Cut => lab.switch().mend(failed.short())?,
        Fault::Hang => failed.sigcont_all(),
        // What the survivor does then is its own affair; a service manager would start it anew.
        Fault::KillMain | Fault::KillChild => {}
    }
    Ok(())
}

/// Waits until the echo answers through the pair and for as long again nothing was lost.
///
/// # Errors
/// When it does not within 10 s.
pub fn wait_served(lab: &OneArm, target: impl Into<SocketAddr>) -> Result<()> {
    let target = target.into();
    let end = clock::now() + nanos(Duration::from_secs(10));
    loop {
        let prober = UdpProber::start(lab.ns("out"), target, 2 * MS)?;
        clock::observe(Duration::from_millis(100));
        let series = prober.stop()?;
        if series.lost(0, Nanos::MAX) == 0 {
            return Ok(());
        }
        if clock::now() > end {
            anyhow::bail!(
                "{target} does not answer an outside client: {} of {} lost",
                series.lost(0, Nanos::MAX),
                series.attempts.len()
            );
        }
    }
}
