//! Places that must be looked at, but not at once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Place;

/// Places that wait for room in the stream.
const QUEUE: usize = 1 << 16;
/// Places whose flow went without an end.
const AGAIN: usize = 1 << 12;
/// Places of flows that are too young.
const RIPENING: usize = 1 << 16;
/// Drains of the ring an end may take to come.
const DRAINS: u64 = 2;

/// A place that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) place: Place,
    /// When it was told, ns.
    pub(crate) at: u64,
    tell: u64,
}

/// A place whose word stands for a flow that is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) place: Place,
    /// The word.
    pub(crate) word: u64,
    at: u64,
    drain: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Looks {
    queue: VecDeque<Queued>,
    again: VecDeque<Again>,
    ripening: BinaryHeap<Reverse<(u64, Place)>>,
    /// Tells so far.
    tells: u64,
    drains: u64,
}

impl Looks {
    /// Counts a tell.
    pub(crate) fn tell(&mut self) {
        self.tells += 1;
    }

    /// Tells so far.
    pub(crate) fn tells(&self) -> u64 {
        self.tells
    }

    /// The tell up to which all has been looked at.
    pub(crate) fn done(&self) -> u64 {
        self.queue.front().map_or(self.tells, |queued| queued.tell - 1)
    }

    /// Puts the place of the last tell into the queue; false if it is full.
    pub(crate) fn queue(&mut self, now: u64, place: Place) -> bool {
        let has_room = self.queue.len() < QUEUE;
        if has_room {
            self.queue.push_back(Queued {
                place,
                at: now,
                tell: self.tells,
            });
        }
        has_room
    }

    pub(crate) fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(crate) fn next_queued(&mut self) -> Option<Queued> {
        self.queue.pop_front()
    }

    /// Looks again at a place later: its word stands for a flow that is gone, and its end may still come. If there are too
    /// many, an audit will find it.
    pub(crate) fn again(&mut self, now: u64, place: Place, word: u64) {
        let is_known = |again: &Again| again.place == place && again.word == word;
        if self.again.len() < AGAIN && !self.again.back().is_some_and(is_known) {
            self.again.push_back(Again {
                place,
                word,
                at: now,
                drain: self.drains,
            });
        }
    }

    /// The ring was empty once.
    pub(crate) fn drained(&mut self) {
        self.drains += 1;
    }

    /// A place whose end has had its time.
    pub(crate) fn next_again(&mut self) -> Option<Again> {
        let drains = self.drains;
        self.again.pop_front_if(|again| again.drain + DRAINS <= drains)
    }

    /// Looks at a place when its flow is old enough.
    pub(crate) fn ripen(&mut self, due: u64, place: Place) {
        // An audit finds the others.
        if self.ripening.len() < RIPENING {
            self.ripening.push(Reverse((due, place)));
        }
    }

    /// A place whose flow may be old enough.
    pub(crate) fn next_ripe(&mut self, now: u64) -> Option<Place> {
        if self.ripe_at()? > now {
            return None;
        }
        self.ripening.pop().map(|Reverse((_, place))| place)
    }

    /// When the next one is.
    pub(crate) fn ripe_at(&self) -> Option<u64> {
        self.ripening.peek().map(|Reverse((due, _))| *due)
    }

    /// Places that the peer should be told of now, and since when the oldest.
    pub(crate) fn outstanding(&self) -> (u64, Option<u64>) {
        let oldest = [
            self.queue.front().map(|queued| queued.at),
            self.again.front().map(|again| again.at),
        ];
        (
            (self.queue.len() + self.again.len()) as u64,
            oldest.into_iter().flatten().min(),
        )
    }

    /// Forgets them all.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.again.clear();
        self.ripening.clear();
    }
}
