//! Ending flows that have been silent for too long, a slice of the table at a time.

use std::sync::Arc;

use super::{FlowCounts, FlowTable, idle, tick};

/// Passes that must agree before a count is corrected.
const PASSES: usize = 4;

/// What one slice did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Flows removed.
    pub removed: u32,
    /// Set when the slice ended a pass over the whole table: the flows that pass left.
    pub pass_ended: Option<FlowCounts>,
}

/// The sweep: it goes round the table, as far as it is let each time.
///
/// To bound how late a flow ends, let it finish a pass in a fraction of the shortest time-out (ten seconds): for
/// instance a hundredth of the buckets every 20 ms, 0.6 ms each with a million flows.
#[derive(Debug)]
pub struct Expiry {
    table: Arc<FlowTable>,
    next: u32,
    counts: FlowCounts,
    /// By how much the programs' count of half-open flows was above the counted at the end of the last passes.
    drifts: [i64; PASSES - 1],
}

impl Expiry {
    /// A sweep that starts at the first bucket.
    pub fn new(table: Arc<FlowTable>) -> Self {
        Self {
            table,
            next: 0,
            counts: FlowCounts::default(),
            drifts: [0; PASSES - 1],
        }
    }

    /// Examines up to `budget` buckets, never beyond the end of a pass. `now_ns` is CLOCK_MONOTONIC.
    pub fn expire(&mut self, now_ns: u64, budget: u32) -> Progress {
        let now = tick(now_ns);
        let end = self.table.buckets().min(self.next.saturating_add(budget));
        let mut removed = 0;
        let (table, counts) = (&self.table, &mut self.counts);
        table.visit(self.next..end, |seen| {
            let timeout = table.timeout(&seen.forward);
            let silent = idle(&seen.forward, now) > timeout
                && table
                    .reply(&seen.forward)
                    .is_none_or(|reply| idle(&reply, now) > timeout);
            if silent && table.remove(seen.at, seen.forward.incarnation).is_some() {
                removed += 1;
            } else {
                counts.add(seen.forward.state());
            }
        });
        self.next = end;
        let pass_ended = (end == self.table.buckets()).then(|| self.end_pass());
        Progress { removed, pass_ended }
    }

    fn end_pass(&mut self) -> FlowCounts {
        self.next = 0;
        let counts = std::mem::take(&mut self.counts);
        self.correct(counts.half_open);
        counts
    }

    /// Takes the lasting part of a wrong count of half-open flows away.
    ///
    /// Flows come and go during a pass, so one difference proves nothing; what some passes in a row agree on in sign and
    /// at least in size is taken for an error (a program that was interrupted between a flow and its count leaves one).
    /// Should it be none, because the number rose through all of them, the next passes take the correction back.
    fn correct(&mut self, counted: u64) {
        let programs = self.table.half_open.load(0, 0).cast_signed();
        let drift = programs.saturating_sub_unsigned(counted);
        let all = || self.drifts.iter().copied().chain([drift]);
        let lasting = if all().all(|d| d > 0) {
            all().min().unwrap_or_default()
        } else if all().all(|d| d < 0) {
            all().max().unwrap_or_default()
        } else {
            0
        };
        if lasting == 0 {
            self.drifts.rotate_left(1);
            self.drifts[PASSES - 2] = drift;
        } else {
            self.table
                .half_open
                .add(0, 0, lasting.wrapping_neg().cast_unsigned());
            self.drifts = [0; PASSES - 1];
        }
    }
}
