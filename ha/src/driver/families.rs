//! Whether the peer is heard in both families. Pure.
//!
//! One is enough to know that it lives, so the loss of the other would go unnoticed until both are gone: a switch that
//! forwards one family's group and not the other's, a packet filter with rules for one.

use crate::units::MonoTime;

/// Least time between two complaints. Nanoseconds.
const COMPLAIN_NANOS: u64 = 60_000_000_000;

/// When the peer was last heard, IPv4 first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Families {
    heard: [Option<MonoTime>; 2],
    complained_at: Option<MonoTime>,
}

impl Families {
    /// An advert of the peer came, over IPv6 or not. `true`: it was not heard in the other family for longer than
    /// `patience_nanos` while it was in this one, which was not said within the last minute.
    pub(super) fn hear(&mut self, now: MonoTime, ipv6: bool, patience_nanos: u64) -> bool {
        let (this, other) = if ipv6 { (1, 0) } else { (0, 1) };
        let since = |at: Option<MonoTime>| at.map_or(u64::MAX, |at| now.since(at));
        if since(self.heard[this]) > patience_nanos {
            // It begins to speak, and the other family gets its time.
            self.heard[other] = self.heard[other]
                .filter(|at| now.since(*at) <= patience_nanos)
                .or(Some(now));
        }
        self.heard[this] = Some(now);
        let is_silent = since(self.heard[other]) > patience_nanos;
        let complains = is_silent && since(self.complained_at) >= COMPLAIN_NANOS;
        if complains {
            self.complained_at = Some(now);
        }
        complains
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PATIENCE: u64 = 1_000 * MS;

    /// Adverts every 100 ms in each family from its first moment to its last; when it was complained.
    fn play(spans: [&[(u64, u64)]; 2]) -> Vec<u64> {
        let mut families = Families::default();
        let speaks =
            |family: usize, ms: u64| spans[family].iter().any(|(from, to)| (*from..*to).contains(&ms));
        let mut complaints = Vec::new();
        for ms in (0..200_000).step_by(100) {
            for family in 0..2 {
                let now = MonoTime::from_nanos((1_000 + ms) * MS);
                if speaks(family, ms) && families.hear(now, family == 1, PATIENCE) {
                    complaints.push(ms);
                }
            }
        }
        complaints
    }

    #[test]
    fn a_peer_heard_in_both_families_or_in_none_gives_no_reason_to_complain() {
        assert!(play([&[(0, 200_000)], &[(0, 200_000)]]).is_empty());
        let now_and_then = [(0, 5_000), (50_000, 60_000), (61_500, 62_000)];
        assert!(play([&now_and_then, &now_and_then]).is_empty());
        assert!(play([&[], &[]]).is_empty());
    }

    #[test]
    fn a_silent_family_is_complained_of_once_a_minute_while_the_other_speaks() {
        let all = (0, 200_000);
        for silent in [&[][..], &[(0, 100)]] {
            assert_eq!(play([&[all], silent]), [1_100, 61_100, 121_100, 181_100]);
            assert_eq!(play([silent, &[all]]), [1_100, 61_100, 121_100, 181_100]);
        }
        assert_eq!(play([&[all], &[(0, 50_000), (80_000, 200_000)]]), [51_000]);
    }
}
