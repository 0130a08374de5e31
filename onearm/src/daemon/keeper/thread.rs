//! Its loop: whatever is to be done is done in small parts, and all of them have their turn.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::EventFd;
use nix::sys::time::TimeSpec;
use onearm_dataplane::FlowTable;

use crate::daemon::board::Board;
use crate::daemon::clock;
use crate::stream::port::Wharf;

use super::sweep::Sweep;
use super::syncing::{self, Syncing};

/// What the thread works with; it outlives a panic.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) table: Arc<FlowTable>,
    pub(super) board: Arc<Board>,
    pub(super) wharf: Wharf,
    pub(super) wake: Arc<EventFd>,
    pub(super) stop: Arc<AtomicBool>,
    /// Where there may be a peer to tell.
    pub(super) sync: Option<syncing::Parts>,
}

impl Parts {
    /// Works until `stop` is set.
    ///
    /// # Errors
    /// When it cannot wait, or the ring of the programs cannot be read.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        self.board.warn(super::SOURCE, Vec::new());
        let begun = clock::monotonic_ns();
        let mut sweep = Sweep::new(Arc::clone(&self.table), begun);
        let mut syncing = self
            .sync
            .as_mut()
            .map(|parts| Syncing::new(parts, Arc::clone(&self.table), begun))
            .transpose()?;
        while !self.stop.load(Ordering::Relaxed) {
            let now = clock::monotonic_ns();
            while let Some(carried) = self.wharf.take() {
                if let Some(syncing) = &mut syncing {
                    syncing.carried(now, carried);
                }
            }
            let swept = sweep.step(now, |tell| {
                if let Some(syncing) = &mut syncing {
                    syncing.told(now, tell);
                }
            });
            if let Some(flows) = swept {
                self.board.facts().flows = flows;
            }
            let mut due = sweep.due_ns();
            if let Some(syncing) = &mut syncing {
                let more = syncing
                    .turn(now)
                    .context("the ring of the flows cannot be read")?;
                due = if more { 0 } else { due.min(syncing.deadline(now)) };
            }
            wait(&self.wake, syncing.as_ref(), due)?;
        }
        Ok(())
    }
}

/// Until something comes, or `until` on CLOCK_MONOTONIC, ns.
fn wait(wake: &EventFd, syncing: Option<&Syncing<'_>>, until: u64) -> anyhow::Result<()> {
    let now = clock::monotonic_ns();
    let span = Duration::from_nanos(until.saturating_sub(now));
    let ring = syncing.and_then(|syncing| syncing.ring(now));
    let ring = ring.map_or(wake.as_fd(), |ring| ring.as_fd());
    let mut fds = [wake.as_fd(), ring].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match ppoll(&mut fds, Some(TimeSpec::from_duration(span)), None) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error).context("waiting for flows"),
    }
    // Nothing has come where it cannot be read.
    wake.read().unwrap_or_default();
    Ok(())
}
