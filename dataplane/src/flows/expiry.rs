//! Ending flows that have been silent for too long, a slice of the table at a time.

use std::sync::{Arc, PoisonError};

use onearm_dataplane_common::flow::{State, seen as bits};
use onearm_dataplane_common::limits::source_slots;

use super::synced::is_stray;
use super::{FlowCounts, FlowTable, idle, tick};
use crate::mapping::Words;
use crate::sync::Tell;
use crate::usage::Counting;

/// Passes that must agree before a count is corrected.
const PASSES: usize = 4;

/// What one slice did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Flows removed.
    pub removed: u32,
    /// Flows it left.
    pub left: u64,
    /// Set when the slice ended a pass over the whole table: the flows that pass left.
    pub pass_ended: Option<FlowCounts>,
}

/// The sweep: it goes round the table, as far as it is let each time.
///
/// How late a flow ends is what a pass takes. A slice costs 30 to 50 ns for each flow it looks at, ten times that for one it
/// ends.
#[derive(Debug)]
pub struct Expiry {
    table: Arc<FlowTable>,
    next: u32,
    counts: FlowCounts,
    /// Flows not closing seen in this pass, by service and by server.
    open: [Vec<u32>; 2],
    drifts: Drift,
    /// The same for `open`.
    open_drifts: [Vec<Drift>; 2],
    sources: Sources,
    counting: Counting,
}

/// Flows of clients that `max_per_source` counts, as seen in this pass. Empty until the first one is seen.
#[derive(Debug, Default)]
struct Sources {
    counted: Vec<u32>,
    drifts: Vec<Drift>,
}

impl Sources {
    fn count(&mut self, slots: [u32; 2], len: usize) {
        if self.counted.is_empty() {
            self.counted = vec![0; len];
            self.drifts = vec![Drift::default(); len];
        }
        for slot in slots {
            if let Some(counted) = self.counted.get_mut(slot as usize) {
                *counted += 1;
            }
        }
    }

    fn correct(&mut self, words: &Words<u64>) {
        for ((slot, counted), drift) in (0..).zip(&mut self.counted).zip(&mut self.drifts) {
            correct(words, slot, drift, u64::from(std::mem::take(counted)));
        }
    }
}

/// By how much the programs' count was above the counted at the end of the last passes.
#[derive(Clone, Copy, Debug, Default)]
struct Drift([i32; PASSES - 1]);

impl Drift {
    /// Takes note of one more difference; what has lasted is to be taken away, 0 if nothing has.
    ///
    /// Flows come and go during a pass, so one difference proves nothing; what some passes in a row agree on in sign and
    /// at least in size is taken for an error (a program that was interrupted between a flow and its count leaves one).
    /// Should it be none, because the number rose through all of them, the next passes take the correction back.
    fn lasting(&mut self, drift: i32) -> i32 {
        let all = || self.0.iter().copied().chain([drift]);
        let lasting = if all().all(|d| d > 0) {
            all().min().unwrap_or_default()
        } else if all().all(|d| d < 0) {
            all().max().unwrap_or_default()
        } else {
            0
        };
        if lasting == 0 {
            self.0.rotate_left(1);
            self.0[PASSES - 2] = drift;
        } else {
            self.0 = [0; PASSES - 1];
        }
        lasting
    }
}

impl Expiry {
    /// A sweep that starts at the first bucket.
    pub fn new(table: Arc<FlowTable>) -> Self {
        let lens = [table.tallies.open.len(), table.tallies.open_servers.len()];
        Self {
            table,
            next: 0,
            counts: FlowCounts::default(),
            open: lens.map(|len| vec![0; len]),
            drifts: Drift::default(),
            open_drifts: lens.map(|len| vec![Drift::default(); len]),
            sources: Sources::default(),
            counting: Counting::new(),
        }
    }

    /// Examines up to `budget` buckets, never beyond the end of a pass. `now_ns` is CLOCK_MONOTONIC. Tells of each flow it
    /// ends that the peer may know.
    pub fn expire(&mut self, now_ns: u64, budget: u32, mut tell: impl FnMut(Tell)) -> Progress {
        let now = tick(now_ns);
        let known_for = self.table.known_for(now);
        let end = self.table.buckets().min(self.next.saturating_add(budget));
        let (mut removed, before) = (0, self.counts.total());
        let (table, counts, sources) = (&self.table, &mut self.counts, &mut self.sources);
        let counting = &mut self.counting;
        let [services, servers] = &mut self.open;
        table.visit(self.next..end, |seen| {
            let timeout = table.timeout(&seen.forward);
            let silent = known_for > timeout
                && idle(&seen.forward, now) > timeout
                && table.reply(seen).is_none_or(|reply| idle(&reply, now) > timeout);
            let gone = if silent { table.remove(seen) } else { None };
            if let Some((place, record)) = gone {
                removed += 1;
                if record.coarse().is_some() {
                    tell(Tell::Ended { place, record });
                }
            } else {
                if is_stray(&seen.forward) {
                    table.adopt(seen);
                }
                table.clients.note(&seen.forward, now);
                counting.add(&seen.forward, seen.v6);
                let state = seen.forward.state();
                counts.add(state);
                if state != State::Closing {
                    for (open, index) in [
                        (&mut *services, seen.forward.stats),
                        (servers, seen.forward.server),
                    ] {
                        if let Some(open) = open.get_mut(usize::from(index)) {
                            *open += 1;
                        }
                    }
                    if seen.forward.own & bits::COUNTED != 0 {
                        let stats = u32::from(seen.forward.stats);
                        let slots = source_slots(table.four.key, stats, seen.forward.saddr);
                        sources.count(slots, table.tallies.sources.len());
                    }
                }
            }
        });
        table.clients.sweep(end, table.buckets(), now);
        let left = self.counts.total() - before;
        self.next = end;
        let pass_ended = (end == self.table.buckets()).then(|| self.end_pass(now));
        Progress {
            removed,
            left,
            pass_ended,
        }
    }

    fn end_pass(&mut self, now: u32) -> FlowCounts {
        self.next = 0;
        self.table.keep_floor(now);
        let counts = std::mem::take(&mut self.counts);
        let tallies = &self.table.tallies;
        correct(&tallies.half_open, 0, &mut self.drifts, counts.half_open);
        let words = [&tallies.open, &tallies.open_servers];
        for ((words, open), drifts) in words.into_iter().zip(&mut self.open).zip(&mut self.open_drifts) {
            for ((index, open), drift) in (0..).zip(open).zip(drifts) {
                correct(words, index, drift, u64::from(std::mem::take(open)));
            }
        }
        self.sources.correct(&tallies.sources);
        *self.table.taken.lock().unwrap_or_else(PoisonError::into_inner) = self.counting.end();
        counts
    }
}

/// Takes the lasting part of a wrong count away.
fn correct(words: &Words<u64>, index: u32, drift: &mut Drift, counted: u64) {
    let programs = words.load(index, 0).cast_signed();
    let difference = programs.saturating_sub_unsigned(counted);
    let bounded = difference.clamp(i64::from(i32::MIN + 1), i64::from(i32::MAX));
    let lasting = drift.lasting(i32::try_from(bounded).unwrap_or_default());
    if lasting != 0 {
        words.add(index, 0, i64::from(lasting).wrapping_neg().cast_unsigned());
    }
}
