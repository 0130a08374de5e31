//! Lease arithmetic (docs/design.md, "Lease"): how long a sent advert permits its sender to act.
//!
//! Everything is nanoseconds of `CLOCK_MONOTONIC`; the wire alone rounds to centiseconds.
//!
//! The peer may claim 3 intervals (and a skew) after the last advert it *heard*; the lease ends 2.25 intervals after a
//! moment *before* that advert left. Both clocks may be slewed, in opposite directions, by ρ = 9 %. [`check`] proves
//! that the lease still ends first.

use crate::units::MonoTime;

/// Largest slew of a clock against real time, in hundredths: time daemons correct by up to 8.3 %.
const SLEW_PERCENT: u128 = 9;
/// Error of one comparison: clock reads, scheduling between read and use. Nanoseconds.
pub const ERROR_NANOS: u64 = 1_000_000;
/// A lease never reaches further than this behind the last renewal, so that a stopped HA process holds nothing after
/// it. Nanoseconds.
pub const HORIZON_NANOS: u64 = 50_000_000;
/// Time between renewals when no advert is due. Nanoseconds.
pub const RENEW_NANOS: u64 = 20_000_000;

/// Length L of the lease that one advert justifies: 2.25 × the interval its receiver goes by. Nanoseconds.
pub const fn length(interval_nanos: u64) -> u64 {
    interval_nanos.saturating_mul(9) / 4
}

/// Length L while the interval changes from one value to another and the peer may still go by either: that of the
/// shorter one.
pub fn length_during_change(old_nanos: u64, new_nanos: u64) -> u64 {
    length(old_nanos.min(new_nanos))
}

/// The deadline to write into the lease cell: the end of the credit (a moment read before the send of the last advert,
/// plus L), but at most [`HORIZON_NANOS`] from now.
///
/// A late *write* of an early result writes an expired deadline; that is what makes stalls harmless.
pub fn deadline(credit_until: MonoTime, now: MonoTime) -> MonoTime {
    credit_until.min(now.plus(HORIZON_NANOS))
}

/// The lease outlives the peer's patience: two owners would be possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a lease of {length_nanos} ns may last {lease_end_nanos} ns, but the peer may claim after {claim_nanos} ns \
     (3 intervals of {interval_nanos} ns, clocks slewed by 9 %)"
)]
pub struct LeaseTooLong {
    /// L, the lease's length by the owner's clock.
    pub length_nanos: u64,
    /// Advertisement interval the peer goes by.
    pub interval_nanos: u64,
    /// Longest real time the lease may last.
    pub lease_end_nanos: u64,
    /// Shortest real time after which the peer may claim.
    pub claim_nanos: u64,
}

/// Checks `L / (1 − ρ) + e < 3 × interval / (1 + ρ)` with ρ = 0.09 and e = 1 ms; returns the margin in nanoseconds.
///
/// With L = [`length`]`(interval)` it holds for every interval the wire can carry (10 ms and more). `onearm check` calls
/// it for the pair's configuration: `length_nanos` from the node that advertises, `interval_nanos` as the other node
/// goes by it.
///
/// # Errors
/// [`LeaseTooLong`] with both ends of the inequality.
pub fn check(length_nanos: u64, interval_nanos: u64) -> Result<u64, LeaseTooLong> {
    // Rounded against us on both sides.
    let lease_end = (u128::from(length_nanos) * 100).div_ceil(100 - SLEW_PERCENT) + u128::from(ERROR_NANOS);
    let claim = u128::from(interval_nanos) * 300 / (100 + SLEW_PERCENT);
    let narrow = |nanos: u128| u64::try_from(nanos).unwrap_or(u64::MAX);
    if lease_end < claim {
        Ok(narrow(claim - lease_end))
    } else {
        Err(LeaseTooLong {
            length_nanos,
            interval_nanos,
            lease_end_nanos: narrow(lease_end),
            claim_nanos: narrow(claim),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_rule_holds_for_every_interval_of_the_wire() {
        for hundredths in 1..=4095u64 {
            let interval = hundredths * 10 * MS;
            assert!(check(length(interval), interval).is_ok(), "{hundredths} cs");
        }
    }

    #[test]
    fn at_10_ms_a_lease_of_2_5_intervals_would_be_too_long() {
        // 24.73 + 1 < 27.52, but 27.47 + 1 > 27.52.
        let margin = check(length(10 * MS), 10 * MS).unwrap();
        assert!((1_700_000..1_900_000).contains(&margin), "{margin}");
        assert!(check(25 * MS, 10 * MS).is_err());
    }

    #[test]
    fn an_interval_the_error_eats_up_is_refused() {
        assert!(check(length(3 * MS), 3 * MS).is_err());
        assert!(check(length(4 * MS), 4 * MS).is_ok());
    }

    #[test]
    fn a_longer_own_interval_than_the_peer_goes_by_is_refused() {
        assert!(check(length(1000 * MS), 100 * MS).is_err());
        assert_eq!(length_during_change(1000 * MS, 100 * MS), length(100 * MS));
        assert!(check(length_during_change(1000 * MS, 100 * MS), 100 * MS).is_ok());
    }

    #[test]
    fn huge_values_do_not_overflow() {
        assert!(check(u64::MAX, u64::MAX).is_ok());
        assert!(check(u64::MAX, 0).is_err());
    }

    proptest! {
        #[test]
        fn a_deadline_never_exceeds_either_bound(credit: u64, now: u64) {
            let (credit, now) = (MonoTime::from_nanos(credit), MonoTime::from_nanos(now));
            let deadline = deadline(credit, now);
            prop_assert!(deadline <= credit && deadline <= now.plus(HORIZON_NANOS));
        }

        /// The inequality itself, in real time: the owner's clock runs at its slowest, the peer's at its fastest.
        #[test]
        fn what_passes_the_check_ends_before_the_claim(length in 0u64..10_000_000_000, interval in 0u64..10_000_000_000) {
            #[expect(clippy::cast_precision_loss, reason = "ten seconds of nanoseconds fit a double's mantissa")]
            if check(length, interval).is_ok() {
                prop_assert!(length as f64 / 0.91 + 1e6 < 3.0 * interval as f64 / 1.09);
            }
        }
    }
}
