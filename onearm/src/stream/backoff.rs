//! When to connect again. Pure.

use std::time::Duration;

use super::end::End;
use super::wire::Refusal;

/// First pause.
const FIRST: Duration = Duration::from_millis(50);
/// Longest pause while nothing is wrong that a person must mend.
const MOST: Duration = Duration::from_secs(1);
/// Pause where a person must mend something.
const MENDED_BY_HAND: Duration = Duration::from_secs(5);
/// Pause where a release must be installed.
const BY_RELEASE: Duration = Duration::from_secs(30);

/// Pauses between attempts: they double up to a second, and lie anywhere in their upper half, so that two nodes or many pairs do
/// not keep step.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    random: u64,
}

impl Backoff {
    pub(super) const fn new(seed: u64) -> Self {
        // Of zero the generator makes zero for ever.
        Self {
            failures: 0,
            random: seed | 1,
        }
    }

    /// A session was open.
    pub(super) const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How long to wait after this end.
    pub(super) fn after(&mut self, end: &End) -> Duration {
        let whole = match end {
            End::NoCommonVersion { .. } | End::NotUnderstood | End::Refused(Refusal::NotUnderstood) => {
                BY_RELEASE
            }
            End::SameId | End::SameName | End::OtherVrid(_) => MENDED_BY_HAND,
            End::WrongKey | End::KeyUnknown(_) | End::Refused(Refusal::KeyUnknown | Refusal::WrongKey) => {
                MENDED_BY_HAND.min(MOST * (self.failures + 1))
            }
            End::Unreachable(_)
            | End::Late
            | End::Crowded
            | End::Closed
            | End::Reset
            | End::Failed(_)
            | End::Silent
            | End::NotRead
            | End::TooMuch
            | End::Forged
            | End::Malformed
            | End::Crashed
            | End::KeyRemoved
            | End::Replaced
            | End::Moved
            | End::Stopping
            | End::Left(_) => MOST.min(FIRST * 2_u32.saturating_pow(self.failures)),
        };
        self.failures = self.failures.saturating_add(1).min(16);
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = u32::try_from(self.random % 500).unwrap_or(0);
        whole / 2 + whole * share / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_are_longer_where_somebody_must_mend_something() {
        let mut backoff = Backoff::new(7);
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.after(&End::Reset)).collect();
        assert!(pauses[0] <= FIRST && pauses[0] >= FIRST / 2, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= MOST));
        assert!(pauses[20..].iter().all(|pause| *pause >= MOST / 2));
        assert!(pauses[20..].windows(2).any(|two| two[0] != two[1]), "jitter");
        backoff.succeeded();
        assert!(backoff.after(&End::Closed) <= FIRST);
        let versions = End::NoCommonVersion {
            own: (1, 1),
            peer: (2, 2),
        };
        assert!(backoff.after(&versions) >= BY_RELEASE / 2);
        assert!(backoff.after(&End::SameId) >= MENDED_BY_HAND / 2);
    }
}
