use std::time::Duration;

/// Clock slew between the nodes, in thousandths.
const SLEW: u128 = 90;
/// Reading and rounding, nanoseconds.
const SLACK_NS: u128 = 1_000_000;

/// Times of the lease for one advert interval (docs/design.md, "Lease").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Length of the lease.
    pub length: Duration,
    /// The latest end of a lease by the peer's clock, measured from the advert that justified it.
    pub latest_end: Duration,
    /// The earliest moment the peer may claim.
    pub earliest_claim: Duration,
}

impl Lease {
    /// The times for an interval.
    pub fn of(interval: Duration) -> Self {
        let ns = interval.as_nanos();
        let time = |ns: u128| Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        let length = ns * 9 / 4;
        Self {
            length: time(length),
            latest_end: time(length * 1000 / (1000 - SLEW) + SLACK_NS),
            earliest_claim: time(3 * ns * 1000 / (1000 + SLEW)),
        }
    }
}

/// Whether adverts at this interval would let the peer claim before the lease has ended for certain:
/// L / (1 − ρ) + e ≥ 3 × interval / (1 + ρ) with L = 2.25 × interval, ρ = 0.09, e = 1 ms.
pub fn undercuts_lease(interval: Duration) -> bool {
    let lease = Lease::of(interval);
    lease.latest_end >= lease.earliest_claim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_interval_that_keeps_the_lease_is_between_3_and_4_ms() {
        assert!(undercuts_lease(Duration::from_millis(3)));
        for ms in [4, 10, 100, 1_000, 40_950] {
            assert!(!undercuts_lease(Duration::from_millis(ms)), "{ms}");
        }
        let lease = Lease::of(Duration::from_millis(100));
        assert_eq!(lease.length, Duration::from_millis(225));
        assert_eq!(lease.latest_end.as_micros(), 248_252);
        assert_eq!(lease.earliest_claim.as_micros(), 275_229);
    }
}
