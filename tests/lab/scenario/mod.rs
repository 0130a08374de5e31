//! The runs of `onearm-lab`.

mod attack;
mod authentication;
pub mod basic;
mod budgets;
mod capacity;
mod chaos;
mod compare;
mod cost;
mod dead_node;
mod devices;
mod drawing;
pub mod failover;
mod field;
mod flood;
mod flows;
mod handover;
mod instruments;
mod interop;
mod ipv6;
mod metrics;
mod modes;
mod owned_set;
mod paths;
mod persistence;
mod promiscuous;
mod restore;
mod scale;
mod sessions;
mod smoke;
mod soak;
mod stream;
mod tracking;
mod two_arms;
mod vm;

use std::{
    net::SocketAddrV4,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    Lab, clock,
    measure::echo,
    node::{Kind, Pair},
    report::Report,
    service::PairSpec,
    topology::{OneArm, VIP},
};

/// What the command line says about a run.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Seed of everything random.
    pub seed: u64,
    /// Runs of each case; none: the scenario's own number.
    pub runs: Option<u32>,
    /// Advert interval; none: the scenario's own.
    pub interval: Option<Duration>,
    /// What runs in the nodes' place.
    pub kind: Kind,
    /// Folder of `onearmd` and `onearm`.
    pub bin_dir: PathBuf,
    /// Parts of the scenario, by name; empty: all.
    pub only: Vec<String>,
    /// Products to compare, by name; empty: all.
    pub peers: Vec<String>,
    /// Packets a second of the traffic; none: the scenario's own.
    pub rate: Option<u32>,
    /// Do not wait until flows are shared before something happens.
    pub unsynced: bool,
    /// Keep logs and captures of a run that passed, too.
    pub keep: bool,
}

/// Those of `all` that are named in `wanted`, all of them when it names none.
///
/// # Errors
/// When it names something else; the text shows what there is.
pub fn named<T: Copy, N: AsRef<str>>(all: &[T], name: impl Fn(T) -> N, wanted: &[String]) -> Result<Vec<T>> {
    let names: Vec<N> = all.iter().map(|one| name(*one)).collect();
    let is_one = |word: &String| names.iter().any(|name| name.as_ref() == word);
    if let Some(unknown) = wanted.iter().find(|word| !is_one(word)) {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        anyhow::bail!("there is no {unknown}; there are {}", names.join(", "));
    }
    let is_wanted = |name: &N| wanted.is_empty() || wanted.iter().any(|word| word == name.as_ref());
    let both = all.iter().zip(&names);
    Ok(both
        .filter(|(_, name)| is_wanted(name))
        .map(|(one, _)| *one)
        .collect())
}

/// A run with its report under way.
#[derive(Debug)]
pub struct Run {
    /// What was asked for.
    pub wanted: Wanted,
    /// What was found so far.
    pub report: Report,
    random: u64,
    folder: PathBuf,
}

/// A named run.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Whether it makes sense with a peer in the nodes' place.
    pub for_peers: bool,
    /// The run itself. An error is a failed run.
    pub run: fn(&mut Run) -> Result<()>,
}

/// All scenarios, in the order they are listed.
pub fn all() -> Vec<Scenario> {
    let mut list = Vec::new();
    list.push(basic::scenario());
    list.extend(failover::scenarios());
    list.push(dead_node::scenario());
    list.extend(chaos::scenarios());
    list.push(compare::scenario());
    list.push(soak::scenario());
    list.push(attack::scenario());
    list.push(interop::scenario());
    list.push(modes::scenario());
    list.push(authentication::scenario());
    list.push(handover::scenario());
    list.extend(stream::scenarios());
    list.push(owned_set::scenario());
    list.push(tracking::scenario());
    list.push(paths::scenario());
    list.push(two_arms::scenario());
    list.push(ipv6::scenario());
    list.push(devices::scenario());
    list.push(metrics::scenario());
    list.push(persistence::scenario());
    list.push(flood::scenario());
    list.push(cost::scenario());
    list.push(flows::scenario());
    list.push(promiscuous::scenario());
    list.push(scale::scenario());
    list.push(sessions::scenario());
    list.push(capacity::scenario());
    list.extend(restore::scenarios());
    list.push(budgets::scenario());
    list.extend(field::scenarios());
    list.push(smoke::scenario());
    list.extend(vm::scenarios());
    list
}

/// Starts a pair and waits until it serves an outside client.
///
/// # Errors
/// When it does not come up.
pub fn stage(run: &Run, lab: &OneArm, spec: &PairSpec) -> Result<Pair> {
    let mut pair = Pair::prepare(run.wanted.kind, lab, spec, &run.wanted.bin_dir)?;
    pair.start()?;
    lab.forget_neighbours()?;
    failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
    Ok(pair)
}

impl Run {
    /// A run of `scenario` that has not begun. With `aloud` checks are printed as they are made.
    pub fn new(scenario: &str, wanted: Wanted, aloud: bool) -> Self {
        let report = Report::new(scenario, &wanted.kind.to_string(), wanted.seed, aloud);
        let folder = Path::new("lab-runs").join(format!("{scenario}-{}", clock::wall_seconds()));
        Self {
            random: wanted.seed ^ 0x9e37_79b9_7f4a_7c15,
            wanted,
            report,
            folder,
        }
    }

    /// Advert interval where it is not what is tested: a lease of 2.25 × 300 ms outlives the stalls of a busy machine.
    pub fn interval(&self) -> Duration {
        self.wanted.interval.unwrap_or(Duration::from_millis(300))
    }

    /// The next random number (xorshift64*).
    pub fn random(&mut self) -> u64 {
        let mut x = self.random.max(1);
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A random time below `limit`.
    pub fn random_span(&mut self, limit: Duration) -> Duration {
        let limit = clock::nanos(limit).max(1);
        Duration::from_nanos(self.random() % limit)
    }

    /// Keeps the files of `lab` under `lab-runs/SCENARIO-TIME/PART` if the run has failed so far or it was asked for.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn keep_if_needed(&mut self, lab: &OneArm, part: &str) -> Result<()> {
        if self.report.passed && !self.wanted.keep {
            return Ok(());
        }
        self.keep(lab, part)
    }

    /// Keeps the files of `lab`.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn keep(&mut self, lab: &OneArm, part: &str) -> Result<()> {
        self.keep_files(lab.lab(), part)
    }

    /// Keeps the files of a lab that is no one-arm drawing.
    ///
    /// # Errors
    /// When they cannot be copied.
    pub fn keep_files(&mut self, lab: &Lab, part: &str) -> Result<()> {
        lab.keep_files(&self.folder.join(part))?;
        // What runs leave behind is nothing for a repository.
        std::fs::write("lab-runs/.gitignore", "*\n")?;
        self.report.kept = Some(self.folder.display().to_string());
        Ok(())
    }

    /// Builds a lab, lets `work` use it, and keeps its files if `work` fails or a check did not hold.
    ///
    /// # Errors
    /// When the lab cannot be built, or the error of `work`.
    pub fn with_lab(
        &mut self,
        part: &str,
        options: crate::topology::Options,
        work: impl FnOnce(&mut Self, &OneArm) -> Result<()>,
    ) -> Result<()> {
        let lab = OneArm::build(options).context("cannot build the lab")?;
        let outcome = work(self, &lab);
        if outcome.is_err() {
            self.keep(&lab, part)?;
        } else {
            self.keep_if_needed(&lab, part)?;
        }
        outcome
    }

    /// Runs the scenario and turns an error into a failed check.
    pub fn finish(mut self, scenario: Scenario) -> Report {
        if let Err(error) = (scenario.run)(&mut self) {
            self.report
                .check("the run reached its end", false, format!("{error:#}"));
        }
        if self.report.checks.is_empty() {
            self.report
                .check("something was checked", false, "the run made no check");
        }
        self.report
    }
}
