//! What the reconciler tells.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::driver::Reconciler;
use crate::{diff::Change, query::Fault};

/// How things stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the last desired state that was applied and verified; 0 before the first.
    pub revision: u64,
    /// Number of the last desired state whose guards (rules and routes) were in place, whatever else was refused: from
    /// then on the kernel forwards nothing the dataplane should have seen. Never above what was asked for, and not
    /// lowered when somebody removes a guard: it is put back at once and counted in `repairs`.
    pub guarded: u64,
    /// Changes made since the start because somebody else had changed what was settled.
    pub repairs: u64,
    /// What stands against the desired state.
    pub faults: BTreeSet<Fault>,
    /// Neighbours wanted and not usable.
    pub unresolved: usize,
    /// Events nobody took.
    pub events_lost: u64,
}

/// Something an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Somebody else changed what was settled; it has been set right by these changes.
    Repaired(Vec<Change>),
    /// A fault appeared.
    FaultRaised(Fault),
    /// A fault is gone.
    FaultCleared(Fault),
}

/// Outcome of one pass.
pub(super) struct Report {
    /// The revision that was verified, if one was.
    pub(super) verified: Option<u64>,
    /// The revision whose guards stand, if they were looked at and do.
    pub(super) guarded: Option<u64>,
    /// All faults, if all were looked for.
    pub(super) faults: Option<BTreeSet<Fault>>,
    /// Changes made because of somebody else's.
    pub(super) repaired: Vec<Change>,
}

impl Reconciler {
    /// Publishes what is new.
    pub(super) fn report(&mut self, report: Report) {
        let mut status = self.status.borrow().clone();
        let mut events = Vec::new();
        status.revision = report.verified.unwrap_or(status.revision);
        status.guarded = report.guarded.unwrap_or(status.guarded);
        status.unresolved = self.memory.pace.unresolved();
        status.repairs += u64::try_from(report.repaired.len()).unwrap_or(u64::MAX);
        if let Some(first) = report.repaired.first() {
            tracing::warn!(
                count = report.repaired.len(),
                ?first,
                "set right what somebody else changed"
            );
            events.push(Event::Repaired(report.repaired));
        }
        if let Some(faults) = report.faults {
            for fault in faults.difference(&status.faults) {
                tracing::warn!(?fault, "fault");
                events.push(Event::FaultRaised(fault.clone()));
            }
            for fault in status.faults.difference(&faults) {
                tracing::info!(?fault, "fault is gone");
                events.push(Event::FaultCleared(fault.clone()));
            }
            status.faults = faults;
        }
        for event in events {
            if self.events.try_send(event).is_err() {
                status.events_lost += 1;
            }
        }
        self.status.send_if_modified(|published| {
            let changed = *published != status;
            *published = status;
            changed
        });
    }
}
