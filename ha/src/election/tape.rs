//! What an election was given and what became of it, so that it can be run again.

use serde::{Deserialize, Serialize};

use super::{Election, Input, Output, Settings, Transition};
use crate::units::MonoTime;

/// Most entries kept until they are taken; what comes after is lost, and told.
const MOST: usize = 4_096;

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// A machine was made.
    Began {
        /// When.
        at: MonoTime,
        /// With what.
        settings: Settings,
        /// Highest epoch known.
        epoch: u64,
    },
    /// It was given this.
    Given {
        /// When.
        at: MonoTime,
        /// What.
        input: Input,
    },
    /// Its role changed.
    Became(Transition),
    /// The recording had grown to its limit: nothing follows.
    Full {
        /// Bytes.
        limit: u64,
    },
    /// Entries are missing here: there was no room.
    Gap {
        /// How many.
        lost: u64,
    },
}

/// Entries not taken yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Tape {
    entries: Vec<Entry>,
    lost: u64,
}

impl Tape {
    pub(super) fn add(&mut self, entry: Entry) {
        if self.entries.len() < MOST {
            self.entries.push(entry);
        } else {
            self.lost += 1;
        }
    }

    pub(super) fn take(&mut self) -> Vec<Entry> {
        let mut entries = std::mem::take(&mut self.entries);
        if self.lost > 0 {
            entries.push(Entry::Gap { lost: self.lost });
            self.lost = 0;
        }
        entries
    }
}

/// A recording that is run again, entry by entry.
#[derive(Debug, Default)]
pub struct Replay {
    election: Option<Election>,
    /// Transitions of the machine that runs now which the recording has not told yet.
    pending: std::collections::VecDeque<Transition>,
}

/// What an entry led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// Nothing to tell.
    Quiet,
    /// The machine did something, in this order.
    Did(Vec<Output>),
    /// The recording tells a transition that the machine made as well.
    Same(Transition),
    /// The recording tells this transition; the machine made the other one, or none.
    Differs {
        /// As recorded.
        recorded: Transition,
        /// As made now.
        made: Option<Transition>,
    },
    /// There is no machine: the recording begins in the middle, or entries are missing.
    Skipped,
}

impl Replay {
    /// Changes of role that were made and that the recording, at its end, has not told.
    pub fn end(self) -> Vec<Transition> {
        self.pending.into()
    }

    /// The next entry.
    pub fn play(&mut self, entry: &Entry) -> Replayed {
        match entry {
            Entry::Began { at, settings, epoch } => {
                self.election = Some(Election::new(*at, *settings, *epoch));
                self.pending.clear();
                Replayed::Quiet
            }
            Entry::Gap { .. } | Entry::Full { .. } => {
                self.election = None;
                self.pending.clear();
                Replayed::Skipped
            }
            Entry::Given { at, input } => {
                let Some(election) = &mut self.election else {
                    return Replayed::Skipped;
                };
                election.handle(*at, *input);
                let done: Vec<_> = std::iter::from_fn(|| election.poll_output()).collect();
                self.pending.extend(done.iter().filter_map(|output| match output {
                    Output::ReportTransition(transition) => Some(*transition),
                    _ => None,
                }));
                if done.is_empty() {
                    Replayed::Quiet
                } else {
                    Replayed::Did(done)
                }
            }
            Entry::Became(recorded) => match (&self.election, self.pending.pop_front()) {
                (None, _) => Replayed::Skipped,
                (Some(_), Some(made)) if made == *recorded => Replayed::Same(made),
                (Some(_), made) => Replayed::Differs {
                    recorded: *recorded,
                    made,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::election::{LegFault, PairMessage, Role};
    use crate::units::{Centiseconds, Priority};

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 12));

    fn recorded() -> Vec<Entry> {
        let settings = Settings {
            priority: Priority::configured(150).unwrap(),
            interval: Centiseconds::new(10).unwrap(),
            preempt: false,
            preferred: true,
            address: Ipv4Addr::new(192, 0, 2, 11).into(),
            peer: PEER,
            authenticated: false,
            stance: crate::election::Stance::Normal,
        };
        let at = |ms: u64| MonoTime::from_nanos(ms * 1_000_000);
        let mut election = Election::new(at(0), settings, 7);
        election.record(at(0));
        election.handle(at(1), Input::LegBecameUsable);
        for ms in 2..1_500 {
            election.handle(at(ms), Input::DeadlineReached);
            while let Some(output) = election.poll_output() {
                if let Output::SendAdvert { kind, decided_at, .. } = output {
                    election.handle(at(ms), Input::AdvertLeft { kind, decided_at });
                }
            }
        }
        let worse = PairMessage::plain(at(1_500), PEER, Priority::from_wire(100), settings.interval);
        election.handle(at(1_500), Input::Received(worse));
        election.handle(at(1_600), Input::LegFailed(LegFault::NoCarrier));
        assert_eq!(election.role(), Role::Initialize);
        election.take_recorded()
    }

    #[test]
    fn a_recording_run_again_as_text_gives_the_same_transitions() {
        let lines: Vec<_> = recorded()
            .iter()
            .map(|entry| serde_json::to_string(entry).unwrap())
            .collect();
        let mut replay = Replay::default();
        let mut same = 0;
        for line in &lines {
            match replay.play(&serde_json::from_str(line).unwrap()) {
                Replayed::Same(_) => same += 1,
                Replayed::Quiet | Replayed::Did(_) => {}
                other => panic!("{line}: {other:?}"),
            }
        }
        assert_eq!(same, 3);
    }

    #[test]
    fn a_changed_or_missing_entry_is_noticed() {
        let entries = recorded();
        let mut replay = Replay::default();
        let without_leg = entries.iter().filter(|entry| {
            !matches!(
                entry,
                Entry::Given {
                    input: Input::LegBecameUsable,
                    ..
                }
            )
        });
        let differs = without_leg
            .map(|entry| replay.play(entry))
            .filter(|played| matches!(played, Replayed::Differs { made: None, .. }))
            .count();
        assert_eq!(differs, 3);
        let mut replay = Replay::default();
        assert_eq!(replay.play(&entries[1]), Replayed::Skipped, "no beginning");
        replay.play(&entries[0]);
        assert_eq!(replay.play(&Entry::Gap { lost: 1 }), Replayed::Skipped);
        assert_eq!(replay.play(&entries[1]), Replayed::Skipped);
    }

    #[test]
    fn what_is_not_taken_in_time_is_told_as_a_gap() {
        let mut tape = Tape::default();
        let entry = Entry::Gap { lost: 0 };
        for _ in 0..MOST + 5 {
            tape.add(entry.clone());
        }
        let taken = tape.take();
        assert_eq!(taken.len(), MOST + 1);
        assert_eq!(taken.last(), Some(&Entry::Gap { lost: 5 }));
        assert_eq!(tape.take(), []);
    }
}
