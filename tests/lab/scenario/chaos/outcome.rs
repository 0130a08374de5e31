//! What one fault did.

use std::fmt;

use super::fault::{Fault, Target};
use crate::{
    clock::{MS, Nanos, ms},
    measure::{
        lease::{self, Reading},
        stalls,
    },
    scenario::instruments::Found,
};

/// One fault and what it cost.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) fault: Fault,
    pub(super) target: Target,
    /// Longest time without an answer to a 1 ms prober.
    pub(super) outage: Nanos,
    /// Requests without answer.
    pub(super) lost: usize,
    /// ARP questions answered by two.
    pub(super) disputed: usize,
    /// Readings of both lease cells valid, a millisecond apart.
    pub(super) doubles: usize,
    /// Longest stall of the machine from the fault until service was back.
    pub(super) stall: Nanos,
    /// Whether the client was served at the end.
    pub(super) served: bool,
}

impl Outcome {
    /// Of a fault at `before`, with instruments on from `begun` to `end`.
    pub(super) fn read(
        (fault, target): (Fault, Target),
        found: &Found,
        leases: &[Reading],
        (begun, before, end): (Nanos, Nanos, Nanos),
    ) -> Self {
        let longest = found
            .udp
            .gaps(begun, end)
            .into_iter()
            .max_by_key(|gap| gap.length);
        let back = longest.map_or(before, |gap| gap.to.unwrap_or(end));
        Self {
            fault,
            target,
            outage: found.udp.longest_gap(begun, end),
            lost: found.udp.lost(begun, end),
            disputed: found.owners.disputed(begun, end).len(),
            doubles: lease::doubles(leases),
            stall: stalls::longest(
                &found.stalls,
                before.saturating_sub(50 * MS),
                back.max(before) + 50 * MS,
            ),
            served: found
                .udp
                .lost(end.saturating_sub(80 * MS), end.saturating_sub(20 * MS))
                == 0,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} of the {:?}: outage {:.1} ms, {} lost, two owners {} ms by leases and {} by frames, machine stall {:.1} ms",
            self.fault,
            self.target,
            ms(self.outage),
            self.lost,
            self.doubles,
            self.disputed,
            ms(self.stall)
        )
    }
}
