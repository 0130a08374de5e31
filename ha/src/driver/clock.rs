//! The one clock of the driver, and what the kernel's receive times mean on it.

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

use crate::units::MonoTime;

/// `CLOCK_MONOTONIC` now: the same clock the dataplane compares lease deadlines with. A step of the wall clock does not
/// move it (B07).
pub fn now() -> MonoTime {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(MonoTime::ZERO, |time| MonoTime::from_nanos(nanos(time)))
}

/// Nanoseconds of the wall clock.
fn wall_nanos() -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, nanos)
}

fn nanos(time: TimeSpec) -> u64 {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Turns wall-clock receive times (`SO_TIMESTAMPNS`) of one reading of the sockets into monotonic ones.
///
/// The wall clock may step between arrival and reading; a result is therefore held between the previous reading (the
/// sockets were empty then) and this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveTimes {
    monotonic: MonoTime,
    wall: u64,
    previous: MonoTime,
}

impl ReceiveTimes {
    /// For a reading that begins now; the previous one began at `previous`.
    pub(super) fn read(previous: MonoTime) -> Self {
        Self {
            monotonic: now(),
            wall: wall_nanos(),
            previous,
        }
    }

    /// The monotonic moment of `stamp`; without a stamp, the moment of reading.
    pub(super) fn of(&self, stamp: Option<TimeSpec>) -> MonoTime {
        let age = stamp.map_or(0, |stamp| self.wall.saturating_sub(nanos(stamp)));
        self.monotonic.minus(age).max(self.previous).min(self.monotonic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> ReceiveTimes {
        ReceiveTimes {
            monotonic: MonoTime::from_nanos(5_000),
            wall: 1_000_000_000_000,
            previous: MonoTime::from_nanos(3_000),
        }
    }

    #[test]
    fn a_receive_time_keeps_its_age() {
        assert_eq!(
            times().of(Some(TimeSpec::new(999, 999_999_200))),
            MonoTime::from_nanos(4_200)
        );
        assert_eq!(times().of(None), MonoTime::from_nanos(5_000));
    }

    #[test]
    fn b07_a_step_of_the_wall_clock_between_arrival_and_reading_stays_within_the_two_readings() {
        assert_eq!(
            times().of(Some(TimeSpec::new(940, 0))),
            MonoTime::from_nanos(3_000)
        );
        assert_eq!(
            times().of(Some(TimeSpec::new(1_060, 0))),
            MonoTime::from_nanos(5_000)
        );
    }

    #[test]
    fn the_clock_runs() {
        let before = now();
        assert!(before > MonoTime::ZERO && now() >= before);
    }
}
