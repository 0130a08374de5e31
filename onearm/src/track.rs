//! What makes this node better or worse than the other, beside what the HA process sees itself: scripts of the operator's
//! and servers that are up. Pure.
//!
//! Two kinds of hysteresis. Results in a row decide a *verdict* (`rise`, `fall`): one of another kind begins anew. And a
//! verdict *counts* for the election only when the other node has had the time to come to the same one:
//!
//! ```text
//!                  Active                              not Active
//!   turned bad     counts after one more round         counts at once
//!   turned good    counts at once                      counts after `hold`, at least one more round
//! ```
//!
//! So what both nodes lose or get back moves nothing, whoever of them sees it first; and what a node loses and gets back
//! over and over moves ownership to the other once, and never back.

use std::collections::VecDeque;
use std::time::Duration;

use onearm_ha::auth::Health;
use onearm_ha::units::MonoTime;

use crate::config::{Check, PairConfig};
use crate::control::{TrackedKind, TrackedState, TrackedStatus};

/// A round of the other node's is heard of so much later, besides.
const MARGIN: Duration = Duration::from_secs(1);
/// Longest text of a script that is shown, in characters.
const DETAIL_CHARS: usize = 200;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A script that was started has ended.
    ScriptEnded {
        /// Its place in the file.
        script: usize,
        /// It said yes.
        good: bool,
        /// What it said, or why not.
        detail: String,
    },
    /// The servers of a quorum's service were looked at.
    ServersSeen {
        /// The quorum's place in the file.
        quorum: usize,
        /// So many are up.
        up: usize,
        /// Of so many nothing is known yet.
        pending: usize,
        /// So many there are.
        of: usize,
    },
    /// This node owns the addresses, or does not any more.
    OwnershipChanged(bool),
    /// Time passed; [`Tracking::deadline`] has come, perhaps.
    TimePassed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Run the script at this place of the file, and report with [`Input::ScriptEnded`].
    RunScript(usize),
    /// Tell the operator.
    Report {
        /// Of what.
        kind: TrackedKind,
        /// Its name.
        name: String,
        /// It is as it should be.
        good: bool,
        /// Why.
        detail: String,
    },
}

#[derive(Clone, Debug)]
struct Thing {
    kind: TrackedKind,
    name: String,
    /// Results in a row that change the verdict.
    rise: u32,
    fall: u32,
    interval: u64,
    /// A bad verdict counts against an Active after so long.
    patience: u64,
    /// A good one counts for another node after so long.
    hold: u64,
    /// Servers that must be up.
    least: usize,
    verdict: Option<bool>,
    /// Of the last kind.
    in_a_row: (bool, u32),
    since: MonoTime,
    /// It is missing, as far as the election is told.
    missing: bool,
    detail: String,
    /// A script is run then; `None` while it runs.
    due: Option<MonoTime>,
    started: MonoTime,
}

/// Everything that is tracked.
#[derive(Clone, Debug)]
pub struct Tracking {
    things: Vec<Thing>,
    /// The first so many are scripts, the others quorums.
    scripts: usize,
    active: bool,
    outputs: VecDeque<Output>,
}

impl Tracking {
    /// Nothing is known yet: everything is missing until its first result.
    pub fn new(now: MonoTime, pair: &PairConfig) -> Self {
        let track = &pair.ha.track;
        let blank = Thing {
            kind: TrackedKind::Script,
            name: String::new(),
            rise: 1,
            fall: 1,
            interval: 0,
            patience: 0,
            hold: 0,
            least: 0,
            verdict: None,
            in_a_row: (false, 0),
            since: now,
            missing: true,
            detail: "no result yet".to_owned(),
            due: None,
            started: now,
        };
        let scripts = track.scripts.iter().map(|script| {
            let round = script.interval + script.timeout + MARGIN;
            Thing {
                name: script.name.clone(),
                rise: script.rise,
                fall: script.fall,
                interval: nanos(script.interval),
                patience: nanos(round),
                hold: nanos(track.hold.max(round)),
                due: Some(now),
                ..blank.clone()
            }
        });
        let check = |name: &str| -> Option<Check> {
            let service = pair.services.iter().find(|service| service.name == name);
            service.and_then(|service| service.check)
        };
        let quorums = track.quorum.iter().map(|quorum| {
            // The checks' own distance varies by a tenth to both sides.
            let round = check(&quorum.service).map_or(Duration::ZERO, |check| {
                check.interval + check.timeout + check.interval * check.rise.max(check.fall) / 5 + MARGIN
            });
            Thing {
                kind: TrackedKind::Servers,
                name: quorum.service.clone(),
                least: quorum.servers as usize,
                patience: nanos(round),
                hold: nanos(track.hold.max(round)),
                ..blank.clone()
            }
        });
        Self {
            things: scripts.chain(quorums).collect(),
            scripts: track.scripts.len(),
            active: false,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: MonoTime, input: Input) {
        match input {
            Input::ScriptEnded { script, good, detail } => {
                if let Some(thing) = self.things[..self.scripts].get_mut(script) {
                    thing.due = Some(thing.started.plus(thing.interval).max(now));
                    thing.detail = detail.chars().take(DETAIL_CHARS).collect();
                    let report = thing.judge(now, good);
                    self.outputs.extend(report);
                }
            }
            Input::ServersSeen {
                quorum,
                up,
                pending,
                of,
            } => {
                if let Some(thing) = self.things[self.scripts..].get_mut(quorum) {
                    let good = up >= thing.least;
                    if good || up + pending < thing.least {
                        thing.detail = format!("{up} of {of} servers are up, {} must be", thing.least);
                        let report = thing.judge(now, good);
                        self.outputs.extend(report);
                    }
                }
            }
            Input::OwnershipChanged(active) => self.active = active,
            Input::TimePassed => {}
        }
        for (place, thing) in self.things.iter_mut().enumerate() {
            thing.count(now, self.active);
            if thing.due.is_some_and(|due| due <= now) {
                thing.due = None;
                thing.started = now;
                self.outputs.push_back(Output::RunScript(place));
            }
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::TimePassed`] is wanted; `None` = only after another input.
    pub fn deadline(&self) -> Option<MonoTime> {
        let counts = |thing: &Thing| {
            let wait = match thing.verdict? {
                true if thing.missing => thing.hold,
                false if !thing.missing => thing.patience,
                _ => return None,
            };
            Some(thing.since.plus(wait))
        };
        let things = self.things.iter();
        things
            .flat_map(|thing| counts(thing).into_iter().chain(thing.due))
            .min()
    }

    /// What the election is told: [`Health::SERVERS`] and [`Health::SCRIPTS`], each where nothing of its kind is missing.
    pub fn health(&self) -> Health {
        let none_missing = |kind| {
            !self
                .things
                .iter()
                .any(|thing| thing.kind == kind && thing.missing)
        };
        let bit = |kind, bit| {
            if none_missing(kind) {
                bit
            } else {
                Health::default()
            }
        };
        bit(TrackedKind::Servers, Health::SERVERS).with(bit(TrackedKind::Script, Health::SCRIPTS))
    }

    /// For people and tools.
    pub fn view(&self, now: MonoTime) -> Vec<TrackedStatus> {
        let view = |thing: &Thing| TrackedStatus {
            kind: thing.kind,
            name: thing.name.clone(),
            state: match thing.verdict {
                None => TrackedState::Pending,
                Some(true) => TrackedState::Good,
                Some(false) => TrackedState::Failed,
            },
            counts: thing.missing == (thing.verdict != Some(true)),
            since_ms: now.since(thing.since) / 1_000_000,
            detail: thing.detail.clone(),
        };
        self.things.iter().map(view).collect()
    }
}

impl Thing {
    /// Takes a result.
    fn judge(&mut self, now: MonoTime, good: bool) -> Option<Output> {
        let (last, count) = self.in_a_row;
        self.in_a_row = (good, if last == good { count.saturating_add(1) } else { 1 });
        let needed = if good { self.rise } else { self.fall };
        let turns = match self.verdict {
            None => true,
            Some(before) => before != good && self.in_a_row.1 >= needed,
        };
        if !turns {
            return None;
        }
        let first = self.verdict.replace(good).is_none();
        self.since = now;
        if first && good {
            // Nothing was lost.
            self.missing = false;
            return None;
        }
        Some(Output::Report {
            kind: self.kind,
            name: self.name.clone(),
            good,
            detail: self.detail.clone(),
        })
    }

    /// Lets the verdict count when its time has come.
    fn count(&mut self, now: MonoTime, active: bool) {
        let stood = now.since(self.since);
        match self.verdict {
            Some(true) if active || stood >= self.hold => self.missing = false,
            Some(false) if !active || stood >= self.patience => self.missing = true,
            Some(_) | None => {}
        }
    }
}

/// Durations of the file are at most hours.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
