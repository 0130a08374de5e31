//! Time in the lab: nanoseconds of CLOCK_MONOTONIC, and waiting that always has a deadline.

use std::time::Duration;

use anyhow::{Result, bail};
use nix::{
    sys::time::{TimeSpec, TimeValLike},
    time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep},
};

/// Nanoseconds of CLOCK_MONOTONIC.
pub type Nanos = u64;

/// Nanoseconds in a millisecond.
pub const MS: Nanos = 1_000_000;

/// Reads the clock `id` in nanoseconds.
fn read(id: ClockId) -> Nanos {
    let t = clock_gettime(id).expect("the kernel has this clock");
    u64::try_from(t.num_nanoseconds()).expect("a clock after its epoch")
}

/// Now, in nanoseconds of CLOCK_MONOTONIC (the clock `bpf_ktime_get_ns` reads too).
pub fn now() -> Nanos {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Seconds since 1970, for names of folders.
pub fn wall_seconds() -> u64 {
    read(ClockId::CLOCK_REALTIME) / 1_000_000_000
}

/// What must be taken from a CLOCK_REALTIME time stamp to get CLOCK_MONOTONIC, read at this moment.
pub fn realtime_offset() -> Nanos {
    let before = now();
    let real = read(ClockId::CLOCK_REALTIME);
    let after = now();
    real.saturating_sub(before.midpoint(after))
}

/// Sleeps until `deadline` (CLOCK_MONOTONIC, ns); returns at once if it has passed.
pub fn sleep_until(deadline: Nanos) {
    let seconds = i64::try_from(deadline / 1_000_000_000).unwrap_or(i64::MAX);
    let nanos = i64::try_from(deadline % 1_000_000_000).unwrap_or(0);
    let at = TimeSpec::new(seconds, nanos);
    while clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at)
        == Err(nix::errno::Errno::EINTR)
    {}
}

/// Lets `span` pass: an observation window, not a wait for something (that is [`wait_for`]).
pub fn observe(span: Duration) {
    sleep_until(now() + nanos(span));
}

/// `span` in nanoseconds.
pub fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as milliseconds with fraction.
#[expect(
    clippy::cast_precision_loss,
    reason = "a figure for people; 53 bits of nanoseconds are 104 days"
)]
pub fn ms(span: Nanos) -> f64 {
    (span as f64 / 1e6 * 1000.0).round() / 1000.0
}

/// Asks `probe` every `pause` until it gives a value.
///
/// # Errors
/// The first error of `probe`, or a sentence naming `what` when `limit` has passed.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = now() + nanos(limit);
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if now() >= end {
            bail!("waited {} ms in vain for {what}", limit.as_millis());
        }
        observe(pause);
    }
}
