//! Rate limits of what the program sends unasked: refusals, time exceeded, too big.
//!
//! Map `REFUSALS` is an array of [`Meter`]: [`REFUSALS_ALL`], [`TIME_EXCEEDED_ALL`], [`TOO_BIG_ALL`], then [`SOURCE_SLOTS`] slots for the
//! /24 networks of sources, by hash, then those of the exact search for ports ([`crate::search`])
//! and those of the services' `max_new_per_second`, by stats index, then [`HELP_ALL`] and those of source networks from [`HELP_BASE`] on.

/// Generic cell rate: the time at which the meter will be empty again, CLOCK_MONOTONIC ns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// See the type.
    pub empty_at: u64,
}

/// Index of the meter of all refusals.
pub const REFUSALS_ALL: u32 = 0;
/// Index of the meter of all time-exceeded messages.
pub const TIME_EXCEEDED_ALL: u32 = 1;
/// Index of the meter of all messages that a packet is too big.
pub const TOO_BIG_ALL: u32 = 2;
/// Index of the first meter of a source network.
pub const SOURCE_BASE: u32 = 3;
/// Meters of source networks; a power of two.
pub const SOURCE_SLOTS: u32 = 4_096;
/// Index of the meter of all searches for a port.
pub const SEARCH_ALL: u32 = SOURCE_BASE + SOURCE_SLOTS;
/// Index of the first meter of the searches for one server.
pub const SEARCH_BASE: u32 = SEARCH_ALL + 1;
/// Meters of servers, by index; a power of two.
pub const SEARCH_SLOTS: u32 = 1_024;
/// Index of the first meter of a service's new flows.
pub const SERVICE_BASE: u32 = SEARCH_BASE + SEARCH_SLOTS;
/// Index of the meter of all packets that user space is asked about ([`crate::help`]).
pub const HELP_ALL: u32 = SERVICE_BASE + crate::maps::MAX_SERVICES;
/// Index of the first meter of a source network's packets of that kind; [`SOURCE_SLOTS`] of them.
pub const HELP_BASE: u32 = HELP_ALL + 1;
/// Entries of the map.
pub const METERS: u32 = HELP_BASE + SOURCE_SLOTS;

/// A rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Time one message costs, ns.
    pub cost_ns: u64,
    /// Credit that may be used at once, ns.
    pub burst_ns: u64,
}

impl Rate {
    /// `per_second` messages a second, `burst` at once. Both at least 1.
    pub const fn new(per_second: u64, burst: u64) -> Self {
        let cost_ns = 1_000_000_000 / per_second;
        Self {
            cost_ns,
            burst_ns: cost_ns * burst,
        }
    }
}

/// All sources together: 1,000 a second.
pub const ALL: Rate = Rate::new(1_000, 200);
/// User space is asked about 4,000 packets a second.
pub const HELP: Rate = Rate::new(4_000, 1_000);
/// About those of one source network 1,000.
pub const HELP_SOURCE: Rate = Rate::new(1_000, 300);
/// One source network: 50 a second.
pub const SOURCE: Rate = Rate::new(50, 20);

impl Meter {
    /// The meter after one more message, or `None` if that would exceed the rate.
    #[inline(always)]
    #[must_use]
    pub const fn charge(self, now: u64, rate: Rate) -> Option<Self> {
        let from = if self.empty_at > now { self.empty_at } else { now };
        let empty_at = from.wrapping_add(rate.cost_ns);
        if empty_at.wrapping_sub(now) > rate.burst_ns {
            None
        } else {
            Some(Self { empty_at })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate_holds() {
        let (mut meter, mut sent, rate) = (Meter::default(), 0u32, Rate::new(50, 20));
        for ms in 0..2_000u64 {
            for _ in 0..3 {
                if let Some(next) = meter.charge(5_000_000_000 + ms * 1_000_000, rate) {
                    meter = next;
                    sent += 1;
                }
            }
        }
        assert!((119..=121).contains(&sent), "{sent}");
    }
}
