//! Which neighbours the kernel is asked to resolve at a time: pure.
//!
//! The kernel asks three times for each managed neighbour that does not answer, every five seconds, without end: a
//! thousand absent hosts are 570 broadcasts a second. So only [`MAX_TRYING`] unresolved ones are in the kernel's care
//! at a time; when there are more they take turns.
//!
//! ```text
//!                  +------- slot free ------+
//!                  |                        v
//!  wanted --> waiting <--- turn over --- trying --- resolved --> resolved
//!                  ^                                                |
//!                  +------------------- lost -----------------------+
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::name::IfName;

/// Unresolved neighbours in the kernel's care at a time: at most three broadcasts each in [`TURN`], 96 a
/// second in all (142 while there are some that were never asked before).
pub(super) const MAX_TRYING: usize = 128;

/// How long an absent neighbour keeps its place while others wait: three questions, one second apart, and an answer.
pub(super) const TURN: Duration = Duration::from_secs(4);

/// The same for one never asked before: one question, so that those present are found soon among many absent.
pub(super) const FIRST_TURN: Duration = Duration::from_millis(900);

/// A suspected neighbour is asked at most once in this time.
pub(super) const SUSPECT_PAUSE: Duration = Duration::from_secs(5);

/// A neighbour on a leg.
pub(super) type Key = (IfName, IpAddr);

/// How a neighbour stands with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Frames may be sent to it, or an operator has decided on it.
    Usable,
    /// The kernel gave up for now.
    Failed,
    /// Not known, or being asked for.
    Unresolved,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    /// To be in the kernel's care.
    pub(super) admitted: BTreeSet<Key>,
    /// Just lost: to be asked for by broadcast at once instead of at the kernel's next round.
    pub(super) retry: BTreeSet<Key>,
}

/// Decides who is asked for.
#[derive(Debug, Default)]
pub(super) struct Pace {
    resolved: BTreeSet<Key>,
    /// With the end of their turn.
    trying: BTreeMap<Key, Instant>,
    /// Did not answer in their first turn, or were there before.
    known: BTreeSet<Key>,
    waiting: VecDeque<Key>,
    queued: BTreeSet<Key>,
    suspected: BTreeMap<Key, Instant>,
}

impl Pace {
    /// The state of things was observed.
    pub(super) fn select(
        &mut self,
        now: Instant,
        wanted: &BTreeSet<Key>,
        standing: impl Fn(&Key) -> Standing,
    ) -> Selection {
        self.resolved.retain(|key| wanted.contains(key));
        self.trying.retain(|key, _| wanted.contains(key));
        self.waiting.retain(|key| wanted.contains(key));
        self.queued.retain(|key| wanted.contains(key));
        self.known.retain(|key| wanted.contains(key));
        self.suspected.retain(|_, since| now < *since + SUSPECT_PAUSE);
        let mut selection = Selection::default();
        for key in wanted {
            match standing(key) {
                Standing::Usable => {
                    self.resolved.insert(key.clone());
                    self.known.insert(key.clone());
                    self.trying.remove(key);
                    self.queued.remove(key);
                }
                standing @ (Standing::Failed | Standing::Unresolved) => {
                    let lost = self.resolved.remove(key);
                    if lost && standing == Standing::Failed {
                        selection.retry.insert(key.clone());
                    }
                    if !self.trying.contains_key(key) && self.queued.insert(key.clone()) {
                        // One that was there a moment ago is more likely to answer than one that never was.
                        if lost {
                            self.waiting.push_front(key.clone());
                        } else {
                            self.waiting.push_back(key.clone());
                        }
                    }
                }
            }
        }
        self.waiting.retain(|key| self.queued.contains(key));
        self.rotate(now);
        while self.trying.len() < MAX_TRYING
            && let Some(key) = self.waiting.pop_front()
        {
            self.queued.remove(&key);
            let turn = if self.known.insert(key.clone()) {
                FIRST_TURN
            } else {
                TURN
            };
            self.trying.insert(key, now + turn);
        }
        selection.admitted = self.resolved.iter().chain(self.trying.keys()).cloned().collect();
        selection.retry.retain(|key| selection.admitted.contains(key));
        selection
    }

    /// Those whose turn is over make room, the longest first, for as many as wait.
    fn rotate(&mut self, now: Instant) {
        let free = MAX_TRYING.saturating_sub(self.trying.len());
        let over = self.trying.iter().filter(|(_, until)| now >= **until);
        let mut over: Vec<_> = over.map(|(key, until)| (*until, key.clone())).collect();
        over.sort_unstable();
        for (_, key) in over.into_iter().take(self.waiting.len().saturating_sub(free)) {
            self.trying.remove(&key);
            self.queued.insert(key.clone());
            self.waiting.push_back(key);
        }
    }

    /// Somebody doubts that a neighbour still is where it was; whether it is to be asked now.
    pub(super) fn suspect(&mut self, now: Instant, key: &Key) -> bool {
        let known = self.resolved.contains(key);
        let asked = self
            .suspected
            .get(key)
            .is_some_and(|since| now < *since + SUSPECT_PAUSE);
        if known && !asked {
            self.suspected.insert(key.clone(), now);
        }
        known && !asked
    }

    /// When to look again although nothing happened: the next turn ends and somebody waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.trying
            .values()
            .min()
            .copied()
            .filter(|_| !self.waiting.is_empty())
    }

    /// Neighbours wanted that are not usable.
    pub(super) fn unresolved(&self) -> usize {
        self.trying.len() + self.waiting.len()
    }
}

#[cfg(test)]
mod tests;
