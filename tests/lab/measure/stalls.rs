//! The machine's own stalls: a 1 ms timer on every CPU, and the times it came late.

use anyhow::Result;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::{Recorder, Stop};
use crate::{
    clock::{self, MS, Nanos},
    process,
};

/// A lateness below this is not recorded.
const WORTH_NOTING: Nanos = 2 * MS;
/// Above everything else of the lab: what is late here, the machine made late.
const PRIORITY: u8 = 90;

/// A time in which a CPU did not run the most urgent thread it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// CPU number.
    pub cpu: usize,
    /// When the timer was due.
    pub from: Nanos,
    /// When the thread ran.
    pub to: Nanos,
}

impl Stall {
    /// How long it was.
    pub fn length(&self) -> Nanos {
        self.to - self.from
    }
}

/// A running monitor.
#[derive(Debug)]
pub struct StallMonitor {
    recorders: Vec<Recorder<Vec<Stall>>>,
}

impl StallMonitor {
    /// Starts one thread for each CPU.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub fn start() -> Result<Self> {
        let cpus = std::thread::available_parallelism()?.get();
        let recorders = (0..cpus)
            .map(|cpu| {
                let stop = Stop::default();
                let flag = stop.clone();
                let thread = std::thread::Builder::new()
                    .name(format!("stalls-{cpu}"))
                    .spawn(move || watch(cpu, &flag))?;
                Ok(Recorder::new(stop, thread))
            })
            .collect::<Result<_>>()?;
        Ok(Self { recorders })
    }

    /// Ends it; stalls in the order they began.
    ///
    /// # Errors
    /// When a thread could not be bound to its CPU.
    pub fn stop(self) -> Result<Vec<Stall>> {
        let mut all = Vec::new();
        for recorder in self.recorders {
            all.extend(recorder.finish()?);
        }
        all.sort_by_key(|s| s.from);
        Ok(all)
    }
}

fn watch(cpu: usize, stop: &Stop) -> Result<Vec<Stall>> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    process::prefer_this_thread(PRIORITY);
    let mut stalls = Vec::new();
    let mut next = clock::now() + MS;
    while !stop.is_set() {
        clock::sleep_until(next);
        let now = clock::now();
        if now > next + WORTH_NOTING {
            stalls.push(Stall {
                cpu,
                from: next,
                to: now,
            });
        }
        next = now.max(next) + MS;
    }
    Ok(stalls)
}

/// The longest stall of the window; 0 if there was none worth noting.
pub fn longest(stalls: &[Stall], from: Nanos, to: Nanos) -> Nanos {
    stalls
        .iter()
        .filter(|s| s.to >= from && s.from <= to)
        .map(Stall::length)
        .max()
        .unwrap_or(0)
}
