//! The sweep that ends silent flows, a bite at a time, so that nothing waits long for it. Pure, but for the table.

use std::sync::Arc;

use onearm_dataplane::sync::Tell;
use onearm_dataplane::{Expiry, FlowTable};

/// Time for a pass over the whole table, and so how late a flow may end. Half-open flows beyond their budget do not wait
/// for it: new ones evict them. A pass over a table for a million flows takes 6 ms when it is empty, 50 ms when it is full.
const PASS_NS: u64 = 5_000_000_000;
/// Slices of a pass.
const SLICES: u32 = 25;
/// Buckets after which others have their turn: with flows, half a millisecond; 5 ms should all of them end at once.
const BITE: u32 = 1_024;

/// Where the sweep is.
#[derive(Debug)]
pub(super) struct Sweep {
    expiry: Expiry,
    slice: u32,
    flows: [u64; SLICES as usize],
    /// Slice under way, buckets of it looked at, flows they hold.
    at: (usize, u32, u64),
    due_ns: u64,
}

impl Sweep {
    /// At the first bucket.
    pub(super) fn new(table: Arc<FlowTable>, now_ns: u64) -> Self {
        Self {
            slice: table.buckets().div_ceil(SLICES),
            expiry: Expiry::new(table),
            flows: [0; SLICES as usize],
            at: (0, 0, 0),
            due_ns: now_ns,
        }
    }

    /// When the next bite is due, CLOCK_MONOTONIC ns.
    pub(super) const fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Takes a bite if it is due. With the last one of a slice it tells how many flows there are: no part of that is older
    /// than a pass.
    pub(super) fn step(&mut self, now_ns: u64, tell: impl FnMut(Tell)) -> Option<u64> {
        if now_ns < self.due_ns {
            return None;
        }
        let (slice, looked_at, left) = &mut self.at;
        let bite = BITE.min(self.slice - *looked_at);
        let progress = self.expiry.expire(now_ns, bite, tell);
        *looked_at += bite;
        *left += progress.left;
        if *looked_at < self.slice && progress.pass_ended.is_none() {
            return None;
        }
        self.flows[*slice] = *left;
        let next = if progress.pass_ended.is_some() {
            self.flows[*slice + 1..].fill(0);
            0
        } else {
            (*slice + 1) % self.flows.len()
        };
        self.at = (next, 0, 0);
        // A late one is not made up for.
        let pace = PASS_NS / u64::from(SLICES);
        self.due_ns = (self.due_ns + pace).max(now_ns);
        Some(self.flows.iter().sum())
    }
}
