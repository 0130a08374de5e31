//! The sweep that ends silent flows, a slice at a time, so that nothing waits long for it.

use std::sync::Arc;
use std::time::Duration;

use onearm_dataplane::{Expiry, FlowTable};
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval};

use super::board::Board;
use super::clock;

/// Time for a pass over the whole table, and so how late a flow may end. Half-open flows beyond their budget do not wait
/// for it: new ones evict them. A pass over a table for a million flows takes 6 ms when it is empty, 50 ms when it is full.
const PASS: Duration = Duration::from_secs(5);
/// Slices of a pass.
const SLICES: u32 = 25;
/// Buckets after which a slice lets others run: with flows, half a millisecond; 5 ms should all of them end at once.
const BITE: u32 = 1_024;

/// Sweeps for as long as it is polled. Cancel-safe: a bite is never interrupted.
pub(crate) async fn sweep(table: Arc<FlowTable>, board: Arc<Board>) {
    let slice = table.buckets().div_ceil(SLICES);
    let mut expiry = Expiry::new(table);
    let mut flows = [0; SLICES as usize];
    let mut tick = interval(PASS / SLICES);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        for n in 0..flows.len() {
            tick.tick().await;
            let (mut left, mut looked_at, mut ended) = (0, 0, false);
            while looked_at < slice && !ended {
                let bite = BITE.min(slice - looked_at);
                let progress = expiry.expire(clock::monotonic_ns(), bite, |_| ());
                left += progress.left;
                looked_at += bite;
                ended = progress.pass_ended.is_some();
                yield_now().await;
            }
            // What each slice held when it was last looked at: no part is older than a pass.
            flows[n] = left;
            board.facts().flows = flows.iter().sum();
            if ended {
                break;
            }
        }
    }
}
