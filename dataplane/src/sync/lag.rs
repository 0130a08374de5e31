//! How long after something happened the peer had it.

use serde::{Deserialize, Serialize};

/// Steps of one doubling.
const STEPS: u64 = 1 << STEP_BITS;
const STEP_BITS: u32 = 2;
/// Up to 2^40 ns, about 18 minutes.
const BUCKETS: usize = 40 << STEP_BITS;
/// What is told is of the last one to two of these, ns.
const TURN: u64 = 60_000_000_000;

/// Times from the tell to its acknowledgement, over the last minute or two, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Records acknowledged.
    pub records: u64,
    /// Half of them were faster than this, to a quarter of a doubling.
    pub p50_us: u64,
    /// 99 of 100 were.
    pub p99_us: u64,
    /// The slowest.
    pub most_us: u64,
}

#[derive(Clone, Debug)]
struct Histogram {
    counts: [u64; BUCKETS],
    records: u64,
    most: u64,
}

impl Histogram {
    const EMPTY: Self = Self {
        counts: [0; BUCKETS],
        records: 0,
        most: 0,
    };
}

/// Two histograms, the older of which is forgotten in turn.
#[derive(Debug)]
pub(crate) struct Lags {
    now: Histogram,
    before: Histogram,
    turn_at: u64,
}

impl Lags {
    pub(crate) fn new() -> Self {
        Self {
            now: Histogram::EMPTY,
            before: Histogram::EMPTY,
            turn_at: 0,
        }
    }

    /// `records` took at most `ns`.
    pub(crate) fn add(&mut self, now: u64, ns: u64, records: u64) {
        if records == 0 {
            return;
        }
        if now >= self.turn_at {
            let fresh = if now >= self.turn_at.saturating_add(TURN) {
                Histogram::EMPTY
            } else {
                self.now.clone()
            };
            self.before = fresh;
            self.now = Histogram::EMPTY;
            self.turn_at = now + TURN;
        }
        self.now.counts[bucket(ns)] += records;
        self.now.records += records;
        self.now.most = self.now.most.max(ns);
    }

    pub(crate) fn lag(&self) -> Lag {
        let records = self.now.records + self.before.records;
        let most = self.now.most.max(self.before.most);
        let percentile = |percent: u64| {
            let rank = (records * percent).div_ceil(100);
            let mut below = 0;
            let counts = self.now.counts.iter().zip(&self.before.counts);
            for (bucket, (now, before)) in counts.enumerate() {
                below += now + before;
                if below >= rank {
                    return end(bucket).min(most);
                }
            }
            most
        };
        if records == 0 {
            return Lag::default();
        }
        Lag {
            records,
            p50_us: percentile(50) / 1_000,
            p99_us: percentile(99) / 1_000,
            most_us: most / 1_000,
        }
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(STEPS);
    let doubling = ns.ilog2();
    let step = (ns >> (doubling - STEP_BITS)) - STEPS;
    usize::try_from(u64::from(doubling) * STEPS + step)
        .unwrap_or(BUCKETS)
        .min(BUCKETS - 1)
}

/// First time that is beyond a bucket, ns.
fn end(bucket: usize) -> u64 {
    let (doubling, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    (STEPS + step + 1) << (doubling.max(2) - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_below_the_end_of_its_bucket_and_not_of_the_one_before() {
        for ns in (4..5_000).chain([1 << 30, (1 << 30) - 1, (1 << 39) + 7]) {
            let bucket = bucket(ns);
            assert!(ns < end(bucket), "{ns}");
            assert!(bucket == 8 || ns >= end(bucket - 1), "{ns}");
        }
        assert_eq!(bucket(0), 8);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_last_minutes() {
        let mut lags = Lags::new();
        assert_eq!(lags.lag(), Lag::default());
        lags.add(1, 1_000_000, 98);
        lags.add(2, 50_000_000, 2);
        let lag = lags.lag();
        assert_eq!(lag.records, 100);
        assert!((1_000..1_250).contains(&lag.p50_us), "{lag:?}");
        assert!((50_000..=50_000).contains(&lag.p99_us), "{lag:?}");
        assert_eq!(lag.most_us, 50_000);
        lags.add(TURN + 5, 2_000, 1);
        assert_eq!(lags.lag().records, 101);
        lags.add(2 * TURN + 9, 2_000, 1);
        assert_eq!((lags.lag().records, lags.lag().most_us), (2, 2));
        lags.add(9 * TURN, 3_000, 1);
        assert_eq!(lags.lag().records, 1);
    }
}
