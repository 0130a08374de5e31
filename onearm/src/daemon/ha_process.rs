//! The HA process: this program again, with its end of the socket pair on standard input and nothing else of the daemon.

use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use onearm_dataplane::LeaseCell;
use onearm_ha::driver::{self, Grants, LeaseSink};
use onearm_ha::process::HaEnd;
use onearm_types::GroupId;

use crate::cli::Exit;

/// How long the first message is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lease cell as the HA thread writes it: one store into a mapped page.
#[derive(Debug)]
pub(crate) struct Cell(pub LeaseCell);

impl LeaseSink for Cell {
    fn write(&mut self, deadline_ns: u64) {
        self.0.write(deadline_ns);
    }

    fn write_yielding(&mut self, deadline_ns: u64) {
        self.0.write_yielding(deadline_ns);
    }

    fn arm(&mut self, until_ns: u64) {
        self.0.arm(until_ns);
    }

    fn relay(&mut self, until_ns: u64) {
        self.0.relay(until_ns);
    }
}

/// Runs until ordered to stop or the main process ends.
pub(crate) fn run() -> ExitCode {
    // Other files are the main process's business: whoever sends SIGHUP to all processes of the name means that one.
    if let Err(error) = SigSet::from(Signal::SIGHUP).thread_block() {
        eprintln!("onearmd (HA process): SIGHUP would end it: {error}");
    }
    let grants = Grants::claim();
    let outcome = || -> anyhow::Result<driver::Exit> {
        let mut end = HaEnd::take()?;
        let begin = end.begin(PATIENCE)?;
        let cell = LeaseCell::map(&begin.lease_map, GroupId::FIRST)?;
        Ok(driver::run(end, Cell(cell), grants, begin.links)?)
    };
    match outcome() {
        Ok(driver::Exit::Ordered | driver::Exit::MainEnded) => Exit::Ok.into(),
        Err(error) => {
            eprintln!("onearmd (HA process): {error:#}");
            Exit::Internal.into()
        }
    }
}
