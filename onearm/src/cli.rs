//! The `onearm` command: arguments, tables, exit codes. What it knows it has from [`crate::check`] or over
//! [`crate::control`].

mod check;
mod events;
mod exit;
mod flows;
mod ha;
mod key;
mod metrics;
mod output;
mod probe;
mod replay;
mod services;
mod status;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::control::{ClientError, ControlClient, DEFAULT_RUN_DIR};
pub use exit::Exit;

/// One L4 switch out of two Linux machines: look into it and check its configuration.
#[derive(Debug, Parser)]
#[command(
    name = "onearm",
    version,
    after_help = "Exit codes: 0 ok, 1 unhealthy or failed check, 2 usage, 3 bad configuration,\n4 refused by state, 5 no daemon or permission, 70 internal."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Are these files good? Needs neither root nor daemon
    Check(check::CheckArgs),
    /// Who is Active, the lease, the legs, what to worry about
    Status(Daemon),
    /// Services and servers: health, weight, counters
    Services(Daemon),
    /// Connections with their translation
    Flows(flows::FlowArgs),
    /// Who is to own: move ownership, keep it where it is, take a node out of service
    Ha(ha::HaArgs),
    /// What happened: transitions, faults, repairs
    Events(events::EventArgs),
    /// The pair's key: make, change, compare
    Key(key::KeyArgs),
    /// Run again what `onearmd --record` wrote: who became what, and why
    Replay(replay::ReplayArgs),
    /// Is a VIP reachable? Asked by the Standby as a client
    Probe(probe::ProbeArgs),
    /// What a scraper reads: everything of status and services, as metrics
    Metrics(Daemon),
}

/// How to ask the daemon.
#[derive(Debug, Args)]
struct Daemon {
    /// Run directory of the daemon
    #[arg(long, value_name = "DIR", default_value = DEFAULT_RUN_DIR)]
    run_dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Daemon {
    fn connect(&self) -> Result<ControlClient, ClientError> {
        ControlClient::connect(&self.run_dir)
    }
}

/// Runs the command with the arguments of the process.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Services(args) => services::run(&args),
        Command::Flows(args) => flows::run(&args),
        Command::Ha(args) => ha::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Metrics(args) => metrics::run(&args),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::failure(&failure);
            Exit::of(&failure).into()
        }
    }
}
