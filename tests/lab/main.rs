//! `onearm-lab`: runs scenarios, or a shell in a running lab.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use onearm_lab::{
    lab,
    node::Kind,
    scenario::{self, Run, Scenario, Wanted},
};

/// Labs in network namespaces: scenarios that check the pair, and a shell for people.
#[derive(Debug, Parser)]
#[command(name = "onearm-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios
    List,
    /// Run one scenario and check it
    Run(RunArguments),
}

#[derive(Debug, clap::Args)]
struct RunArguments {
    /// Name of a scenario (see `list`)
    name: String,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs of each case
    #[arg(long)]
    runs: Option<u32>,
    /// Advert interval, for example 1s or 10ms
    #[arg(long, value_parser = interval)]
    interval: Option<Duration>,
    /// What runs in the nodes' place: onearm, keepalived, frr or ucarp
    #[arg(long, default_value = "onearm")]
    peer: Kind,
    /// Folder of onearmd and onearm; default: the folder of this program
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    /// Keep logs and captures also when all checks held
    #[arg(long)]
    keep: bool,
}

/// Reads `1s`, `10ms`.
fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no interval; write for example 1s or 10ms");
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s').ok_or_else(wrong)?, 1000),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let span = number
        .checked_mul(unit)
        .filter(|ms| (10..=40_950).contains(ms))
        .ok_or_else(wrong)?;
    Ok(Duration::from_millis(span))
}

fn find(name: &str) -> Result<Scenario> {
    scenario::all()
        .into_iter()
        .find(|s| s.name == name)
        .with_context(|| format!("no scenario of the name {name}; `onearm-lab list` shows them"))
}

fn run(arguments: RunArguments) -> Result<ExitCode> {
    let scenario = match find(&arguments.name) {
        Ok(scenario) => scenario,
        Err(error) => {
            eprintln!("onearm-lab: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    if arguments.peer != Kind::Onearm && !scenario.for_peers {
        eprintln!(
            "onearm-lab: {} asks for what only onearm has; it cannot run with {}",
            scenario.name, arguments.peer
        );
        return Ok(ExitCode::from(2));
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("onearm-lab: needs root, because it makes network namespaces");
        return Ok(ExitCode::from(2));
    }
    lab::tear_down_on_signals(false)?;
    let bin_dir = match arguments.bin_dir {
        Some(dir) => dir,
        None => std::env::current_exe()?
            .parent()
            .context("this program lies in no folder")?
            .to_owned(),
    };
    let wanted = Wanted {
        seed: arguments.seed,
        runs: arguments.runs,
        interval: arguments.interval,
        kind: arguments.peer,
        bin_dir,
        keep: arguments.keep,
    };
    let report = Run::new(scenario.name, wanted, !arguments.json).finish(scenario);
    if lab::is_stopping() {
        // The signal thread ends the process.
        bail!("stopped by a signal");
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        let failed = report.checks.iter().filter(|c| !c.passed).count();
        println!(
            "{}: {} checks, {failed} failed",
            report.scenario,
            report.checks.len()
        );
        if let Some(kept) = &report.kept {
            println!("logs and captures: {kept}");
        }
    }
    Ok(if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::List => {
            for scenario in scenario::all() {
                println!("{:20} {}", scenario.name, scenario.about);
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(arguments) => run(arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("onearm-lab: {error:#}");
        ExitCode::from(1)
    })
}
