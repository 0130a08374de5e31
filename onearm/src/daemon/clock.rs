//! The daemon's clocks, read here only.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds: the clock of leases and flows.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux kernel has CLOCK_MONOTONIC");
    u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX)
}

/// Wall clock in milliseconds since 1970, for events only.
pub(crate) fn wall_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("every Linux kernel has CLOCK_REALTIME");
    u64::try_from(Duration::from(now).as_millis()).unwrap_or(u64::MAX)
}
