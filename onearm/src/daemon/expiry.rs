//! The sweep that ends silent flows, a slice at a time, so that nothing waits long for it.

use std::sync::Arc;
use std::time::Duration;

use onearm_dataplane::{Expiry, FlowTable};
use tokio::time::{MissedTickBehavior, interval};

use super::board::Board;
use super::clock;

/// Time for a pass over the whole table, and so how late a flow may end: the shortest time-out (half-open, ten seconds).
/// Half-open flows beyond their budget do not wait for it: new ones evict them. Looking at a table for a million flows
/// costs 20 ms a pass even when it is empty.
const PASS: Duration = Duration::from_secs(10);
/// Slices of a pass.
const SLICES: u32 = 50;

/// Sweeps for as long as it is polled. Cancel-safe: a slice is never interrupted.
pub(crate) async fn sweep(table: Arc<FlowTable>, board: Arc<Board>) {
    let budget = table.buckets().div_ceil(SLICES);
    let mut expiry = Expiry::new(table);
    let mut tick = interval(PASS / SLICES);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if let Some(left) = expiry.expire(clock::monotonic_ns(), budget).pass_ended {
            board.facts().flows = left.total();
        }
    }
}
