//! Signs of life from the leg's network: what is asked when, and what silence means. Pure.
//!
//! The witness, as a rule the gateway, is asked all the time. Once something looks wrong (an answer or the peer is overdue,
//! the peer says that it can do less, the election asks) it is asked again and again, and other hosts with it: three
//! questions without an answer, and the witness is silent. How fast that goes depends on the advertisement interval alone.

use crate::units::MonoTime;

/// Least and most time between two questions while nothing looks wrong. Nanoseconds.
const REGULAR_NANOS: (u64, u64) = (50_000_000, 1_000_000_000);
/// Least and most time between two questions while something does. Nanoseconds.
const URGENT_NANOS: (u64, u64) = (1_000_000, 100_000_000);
/// Urgent questions are a tenth of an interval apart.
const URGENT_PART: u64 = 10;
/// Unanswered questions after which the witness counts as silent.
const QUESTIONS: u8 = 3;

/// What the witness says by answering or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It answered the last question.
    Answers,
    /// A question is open, and something looks wrong.
    Doubtful,
    /// It has left three questions unanswered.
    Silent,
}

/// Asks the witness, or those that are it together. Without any nothing is asked unless [`Self::doubt`] wants other hosts' signs
/// of life.
#[derive(Clone, Debug)]
pub(super) struct Witness {
    interval_nanos: u64,
    /// There is one.
    is_there: bool,
    next_at: MonoTime,
    asked_at: MonoTime,
    /// When the last question was asked that was not answered in time.
    unanswered_at: MonoTime,
    /// Questions since the last answer.
    open: u8,
    doubted: bool,
    verdict: Verdict,
    /// When the peer, heard on the leg, will be overdue; `None`: it is not heard there.
    peer_overdue_at: Option<MonoTime>,
}

impl Witness {
    /// Of a leg that has just become usable. Until a question has been answered the verdict is doubtful.
    pub(super) fn new(now: MonoTime, interval_nanos: u64, is_there: bool) -> Self {
        Self {
            interval_nanos,
            is_there,
            next_at: now,
            asked_at: now,
            unanswered_at: MonoTime::ZERO,
            open: 0,
            doubted: true,
            verdict: if is_there {
                Verdict::Doubtful
            } else {
                Verdict::Answers
            },
            peer_overdue_at: None,
        }
    }

    pub(super) const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether a question is open.
    pub(super) const fn awaits_answer(&self) -> bool {
        self.open > 0 && (self.is_there || self.doubted)
    }

    /// When [`Self::ask`] may have something to ask.
    pub(super) fn deadline(&self) -> Option<MonoTime> {
        let next = (self.is_there || self.doubted).then_some(self.next_at);
        next.into_iter().chain(self.peer_overdue_at).min()
    }

    /// The peer was heard on the leg at `at`, and should be again within `gap_nanos`.
    pub(super) fn peer_heard(&mut self, at: MonoTime, gap_nanos: u64) {
        self.peer_overdue_at = Some(at.plus(gap_nanos + gap_nanos / 4 + URGENT_NANOS.0 / 2));
    }

    /// Something looks wrong: ask now.
    pub(super) fn doubt(&mut self, now: MonoTime) {
        if !self.doubted {
            self.doubted = true;
            self.open = 0;
            self.next_at = now;
            if self.verdict == Verdict::Answers && self.is_there {
                self.verdict = Verdict::Doubtful;
            }
        }
    }

    /// A silent witness may speak again: ask now.
    pub(super) fn look(&mut self, now: MonoTime) {
        if self.verdict == Verdict::Silent {
            self.open = 0;
            self.next_at = now;
        }
    }

    /// When the last question was asked that was not answered in time.
    pub(super) const fn unanswered_at(&self) -> MonoTime {
        self.unanswered_at
    }

    /// The witness answered.
    pub(super) fn answered(&mut self, now: MonoTime) {
        self.doubted = false;
        self.open = 0;
        self.verdict = Verdict::Answers;
        self.next_at = now.plus(self.regular_nanos());
    }

    /// Time has passed: what is to be asked now.
    pub(super) fn ask(&mut self, now: MonoTime) -> Option<Question> {
        if self.peer_overdue_at.is_some_and(|overdue| overdue <= now) {
            self.peer_overdue_at = None;
            self.doubt(now);
        }
        if now < self.next_at || !(self.is_there || self.doubted) {
            return None;
        }
        if self.open > 0 && self.is_there {
            // The last answer is overdue.
            self.unanswered_at = self.asked_at;
            self.doubted = true;
            if self.verdict == Verdict::Answers {
                self.verdict = Verdict::Doubtful;
            }
        }
        if self.open >= QUESTIONS {
            if self.is_there {
                self.verdict = Verdict::Silent;
            } else {
                self.doubted = false;
                return None;
            }
        }
        self.asked_at = now;
        self.open = self.open.saturating_add(1);
        let is_urgent = self.open <= QUESTIONS;
        self.next_at = now.plus(if is_urgent {
            self.urgent_nanos()
        } else {
            self.regular_nanos()
        });
        Some(Question {
            to_all: self.doubted,
            repeated: self.open > 1,
        })
    }

    fn urgent_nanos(&self) -> u64 {
        (self.interval_nanos / URGENT_PART).clamp(URGENT_NANOS.0, URGENT_NANOS.1)
    }

    /// A peer that is heard is a sign of life too; without it the answers alone show that the leg receives.
    fn regular_nanos(&self) -> u64 {
        let (least, most) = REGULAR_NANOS;
        let least = if self.peer_overdue_at.is_some() { least } else { 0 };
        self.interval_nanos.clamp(least, most)
    }
}

/// Who is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// The other hosts as well.
    pub(super) to_all: bool,
    /// The last one was not answered: the witness may have another Ethernet address.
    pub(super) repeated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(1_000 * MS + ms * MS)
    }

    /// One at 10 ms adverts that has answered at 0 ms, with a peer heard then on the leg.
    fn settled() -> Witness {
        let mut witness = Witness::new(at(0), 10 * MS, true);
        witness.peer_heard(at(0), 10 * MS);
        assert!(witness.ask(at(0)).is_some());
        witness.answered(at(0));
        assert_eq!(witness.verdict(), Verdict::Answers);
        witness
    }

    #[test]
    fn a_witness_that_answers_is_asked_every_50_ms_alone() {
        let mut witness = settled();
        let alone = Some(Question {
            to_all: false,
            repeated: false,
        });
        for round in 1..5 {
            witness.peer_heard(at(50 * round - 1), 10 * MS);
            assert_eq!(witness.ask(at(50 * round - 1)), None);
            assert_eq!(witness.deadline(), Some(at(50 * round)));
            assert!(!witness.awaits_answer(), "answers nobody asked for wake nobody");
            assert_eq!(witness.ask(at(50 * round)), alone);
            assert!(witness.awaits_answer());
            witness.answered(at(50 * round));
        }
    }

    #[test]
    fn three_questions_without_an_answer_are_silence_and_one_answer_ends_it() {
        let mut witness = settled();
        witness.peer_heard(at(49), 10 * MS);
        assert!(witness.ask(at(50)).is_some());
        assert_eq!(witness.verdict(), Verdict::Answers, "it has a moment to answer");
        let everybody = Some(Question {
            to_all: true,
            repeated: true,
        });
        for ms in [51, 52] {
            assert_eq!(witness.ask(at(ms)), everybody);
            assert_eq!(witness.verdict(), Verdict::Doubtful);
        }
        assert_eq!(witness.ask(at(53)), everybody);
        assert_eq!(witness.verdict(), Verdict::Silent);
        assert_eq!(witness.ask(at(54)), None, "who is silent is not flooded");
        witness.answered(at(60));
        assert_eq!(witness.verdict(), Verdict::Answers);
    }

    #[test]
    fn a_peer_that_is_overdue_on_the_leg_brings_the_question_forward() {
        let mut witness = settled();
        assert_eq!(
            witness.deadline(),
            Some(at(13)),
            "a gap, a quarter of it, half a millisecond"
        );
        assert_eq!(witness.ask(at(12)), None);
        assert!(witness.ask(at(13)).is_some_and(|question| question.to_all));
        assert_eq!(witness.verdict(), Verdict::Doubtful);
        witness.answered(at(14));
        assert_eq!(
            witness.deadline(),
            Some(at(24)),
            "without the peer every interval"
        );
    }

    #[test]
    fn without_a_witness_only_doubt_asks_and_others_are_asked_three_times() {
        let mut witness = Witness::new(at(0), 100 * MS, false);
        let asked = |witness: &mut Witness| (0..1_000).filter(|ms| witness.ask(at(*ms)).is_some()).count();
        assert_eq!(asked(&mut witness), 3, "after the start");
        assert_eq!((witness.deadline(), witness.verdict()), (None, Verdict::Answers));
        witness.doubt(at(0));
        assert_eq!(asked(&mut witness), 3);
    }

    #[test]
    fn doubt_of_a_silent_witness_asks_at_once_and_ends_nothing() {
        let mut witness = settled();
        for ms in 50..60 {
            witness.ask(at(ms));
        }
        assert_eq!(witness.verdict(), Verdict::Silent);
        witness.doubt(at(60));
        assert_eq!(witness.verdict(), Verdict::Silent);
    }
}
