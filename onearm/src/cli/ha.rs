use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::Daemon;
use super::exit::{Exit, Failure};
use super::output;
use crate::control::{ClientError, HaAnswer, HaRequest};

/// Whoever gave an order is told after this time that it waits: by then nearly every one is carried out.
const SOON: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct HaArgs {
    #[command(subcommand)]
    order: HaOrder,
}

#[derive(Debug, Subcommand)]
enum HaOrder {
    /// The Standby becomes the Active, without a packet lost; on either node
    Switchover {
        #[command(flatten)]
        daemon: Daemon,
        /// Let go even if the peer is not known to be able to take over; on the Active
        #[arg(long)]
        force: bool,
    },
    /// Ownership stays where it is: no failback, no move by health; from a dead peer this node still takes over
    Hold {
        #[command(flatten)]
        daemon: Daemon,
        /// No more
        #[arg(long)]
        off: bool,
    },
    /// This node hands over and owns nothing until --off, whatever happens, restarts included
    Maintenance {
        #[command(flatten)]
        daemon: Daemon,
        /// No more
        #[arg(long, conflicts_with = "force")]
        off: bool,
        /// Even if the peer is not known to be able to take over
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(args: &HaArgs) -> Result<Exit, Failure> {
    let (daemon, request) = match &args.order {
        HaOrder::Switchover { daemon, force } => (daemon, HaRequest::Switchover { force: *force }),
        HaOrder::Hold { daemon, off } => (daemon, HaRequest::Hold { on: !off }),
        HaOrder::Maintenance { daemon, off, force } => (
            daemon,
            HaRequest::Maintenance {
                on: !off,
                force: *force,
            },
        ),
    };
    let answer = order(daemon, request)?;
    if daemon.json {
        output::json(&answer)?;
    } else {
        output::print(&format!("{}\n", answer.message))?;
    }
    Ok(Exit::Ok)
}

/// Gives an order, and tells on standard error that it is waited for.
fn order(daemon: &Daemon, request: HaRequest) -> Result<HaAnswer, ClientError> {
    let mut client = daemon.connect()?;
    let (answered, waits) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = waits.recv_timeout(SOON) {
                let status = daemon.connect().and_then(|mut client| client.status());
                let warnings = status.map(|status| status.warnings).unwrap_or_default();
                let why = warnings
                    .into_iter()
                    .find(|warning| warning.contains("hand-over waits"));
                let why = why.as_deref().unwrap_or("the order is being carried out");
                output::complain(&format!("onearm: {why}"));
            }
        });
        let answer = client.ha(request);
        drop(answered);
        answer
    })
}
