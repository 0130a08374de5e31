//! Outages: gaps in a regular series of attempts.

use crate::clock::Nanos;

/// One attempt of a prober.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// When it began.
    pub at: Nanos,
    /// How long its answer took; none if it never came.
    pub took: Option<Nanos>,
    /// Tag of the server that answered, 0 if unknown.
    pub server: u8,
    /// Answers beyond the first.
    pub extra: u16,
}

/// A series of attempts at a regular distance.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Distance between two attempts.
    pub spacing: Nanos,
    /// In the order they began.
    pub attempts: Vec<Attempt>,
}

/// A time without service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When the last attempt that succeeded before it began.
    pub from: Nanos,
    /// When the first one that succeeded after it began; none if service did not come back.
    pub to: Option<Nanos>,
    /// Its length, less the distance of two attempts.
    pub length: Nanos,
}

impl Series {
    /// Gaps in which at least one attempt failed, in the window.
    pub fn gaps(&self, from: Nanos, to: Nanos) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let mut good: Option<Nanos> = None;
        let mut failed = false;
        let mut last = from;
        for attempt in self.window(from, to) {
            last = attempt.at;
            if attempt.took.is_some() {
                if failed {
                    let start = good.unwrap_or(from);
                    let length = (attempt.at - start).saturating_sub(self.spacing);
                    gaps.push(Gap {
                        from: start,
                        to: Some(attempt.at),
                        length,
                    });
                }
                good = Some(attempt.at);
                failed = false;
            } else {
                failed = true;
            }
        }
        if failed {
            let start = good.unwrap_or(from);
            gaps.push(Gap {
                from: start,
                to: None,
                length: last - start,
            });
        }
        gaps
    }

    /// The longest of them; 0 when there is none.
    pub fn longest_gap(&self, from: Nanos, to: Nanos) -> Nanos {
        self.gaps(from, to).iter().map(|g| g.length).max().unwrap_or(0)
    }

    /// Attempts without answer in the window.
    pub fn lost(&self, from: Nanos, to: Nanos) -> usize {
        self.window(from, to).filter(|a| a.took.is_none()).count()
    }

    /// Answers too many in the window.
    pub fn duplicates(&self, from: Nanos, to: Nanos) -> u64 {
        self.window(from, to).map(|a| u64::from(a.extra)).sum()
    }

    /// Attempts of the window.
    pub fn window(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(move |a| (from..=to).contains(&a.at))
    }

    /// Median time an answer took in the window.
    pub fn median_answer(&self, from: Nanos, to: Nanos) -> Option<Nanos> {
        let mut times: Vec<Nanos> = self.window(from, to).filter_map(|a| a.took).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn series(marks: &[bool]) -> Series {
        let attempts = marks
            .iter()
            .zip(0..)
            .map(|(ok, i)| Attempt {
                at: 1000 + i * 10,
                took: ok.then_some(1),
                server: 0,
                extra: 0,
            })
            .collect();
        Series {
            spacing: 10,
            attempts,
        }
    }

    #[test]
    fn a_series_without_loss_has_no_gap() {
        assert!(series(&[true; 9]).gaps(0, 9999).is_empty());
    }

    #[test]
    fn one_lost_attempt_is_a_gap_of_one_distance() {
        let gaps = series(&[true, false, true]).gaps(0, 9999);
        assert_eq!(
            gaps,
            [Gap {
                from: 1000,
                to: Some(1020),
                length: 10
            }]
        );
    }

    #[test]
    fn service_that_stays_away_is_a_gap_without_end() {
        let gaps = series(&[true, true, false, false]).gaps(0, 9999);
        assert_eq!(
            gaps,
            [Gap {
                from: 1010,
                to: None,
                length: 20
            }]
        );
    }

    proptest! {
        #[test]
        fn gaps_never_sum_to_more_than_the_window_and_cover_every_loss(marks in prop::collection::vec(any::<bool>(), 0..200)) {
            let s = series(&marks);
            let gaps = s.gaps(1000, 1000 + 2000);
            let sum: u64 = gaps.iter().map(|g| g.length).sum();
            prop_assert!(sum <= 2000);
            prop_assert_eq!(gaps.is_empty(), marks.iter().all(|m| *m));
        }
    }
}
