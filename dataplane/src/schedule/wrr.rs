//! Smooth weighted round robin: the sequence a service's new flows run through in turn.
//!
//! Each live server appears exactly `weight / gcd` times and as evenly spread as its weight allows: each turn every
//! server gains its weight, the richest is chosen and pays the sum of all.

use super::{Candidate, entry};

/// Longest sequence. Weights whose reduced sum is above are scaled down, each to at least 1.
pub const MAX_SEQUENCE: usize = 4_096;

/// Builds the sequence; empty if no server is live.
///
/// # Panics
/// If there are more than 256 servers.
pub fn sequence(servers: &[Candidate]) -> Vec<u8> {
    let live: Vec<usize> = (0..servers.len()).filter(|at| servers[*at].is_live()).collect();
    let weights = reduced(
        &live
            .iter()
            .map(|at| u64::from(servers[*at].weight))
            .collect::<Vec<_>>(),
    );
    let total: i64 = weights.iter().sum();
    let mut wealth = vec![0_i64; live.len()];
    let mut sequence = Vec::new();
    for _ in 0..total {
        for (wealth, weight) in wealth.iter_mut().zip(&weights) {
            *wealth += weight;
        }
        // The first of the richest, so that the order is a function of the set alone.
        let Some(richest) = (0..wealth.len()).max_by_key(|at| (wealth[*at], std::cmp::Reverse(*at))) else {
            break;
        };
        wealth[richest] -= total;
        sequence.push(entry(live[richest]));
    }
    sequence
}

/// Weights divided by their greatest common divisor, and scaled so that their sum is at most [`MAX_SEQUENCE`].
fn reduced(weights: &[u64]) -> Vec<i64> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let sum: u64 = weights.iter().map(|w| w / divisor).sum();
    let cap = MAX_SEQUENCE as u64;
    weights
        .iter()
        .map(|weight| {
            let weight = weight / divisor;
            let scaled = if sum > cap {
                (weight * (cap - weights.len() as u64) / sum).max(1)
            } else {
                weight
            };
            i64::try_from(scaled).unwrap_or(1)
        })
        .collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
