//! The sweep that ends silent flows, a slice at a time, so that nothing waits long for it.

use std::sync::Arc;
use std::time::Duration;

use onearm_dataplane::{Expiry, FlowTable};
use tokio::time::{MissedTickBehavior, interval};

use super::board::Board;
use super::clock;

/// Time for a pass over the whole table: half of the shortest time-out (half-open, ten seconds).
const PASS: Duration = Duration::from_secs(5);
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
