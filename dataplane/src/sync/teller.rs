//! The owner's side: says what differs from what the peer was told.

use super::content::{Content, STAMP_SHIFT, STAMPS, class, is_flow};
use super::outbox::Outbox;
use super::session::Sync;
use super::shadow::{ClassSet, Classes};
use super::wire::{Ack, At, Body, Judgement, LAYOUT, Opening, READABLE_BY, Refusal, SMALL};
use super::{Because, Place, Record, Table, Verdict};

/// A mark that is not answered for so long is put again, ns.
const ANSWER: u64 = 5_000_000_000;
/// Pause after a repair that did not help, ns; it doubles up to the most.
const PAUSE: u64 = 1_000_000_000;
const MOST_PAUSE: u64 = 8_000_000_000;
/// A repair that did not help comes again after so many times the time it took, at the earliest.
const SHARE: u64 = 4;
/// How often the peer hears the verdict, at least and at most, ns.
const JUDGE_LATEST: u64 = 500_000_000;
const JUDGE_EARLIEST: u64 = 100_000_000;
/// Places of the queue looked at in one go.
const GO: usize = 1_024;
/// Longest time that a flow may be too young, as stamps of it come round, ns.
const MOST_YOUTH: u64 = 1_000 << 30;

#[derive(Debug)]
pub(crate) struct Teller {
    /// The stream, from its opening to the end of the session or of this node's ownership.
    outbox: Option<Outbox>,
    /// Streams begun; starts anywhere.
    streams: u32,
    comparison: Comparison,
    /// What the last total of the peer said.
    peer: Peer,
    /// No comparison before this.
    not_before: u64,
    pause: u64,
    /// The peer applies nothing.
    refused: Option<Refusal>,
    /// Flows of the last repair, or since, that the peer had no room for.
    peer_full: u32,
    /// The peer says that it owns flows.
    pub(crate) peer_tells: bool,
    judged_at: u64,
    judged: u8,
}

#[derive(Debug)]
enum Comparison {
    None,
    /// The peer was asked for its digests at a mark.
    Marked {
        number: u64,
        classes: Classes,
        at: u64,
    },
    /// What is of these classes is told.
    Repairing {
        set: ClassSet,
        next: u32,
        begun: u64,
    },
    /// The peer removes what it was not told.
    Removing {
        number: u64,
        begun: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Unknown,
    Equal,
    Differs,
}

impl Teller {
    pub(crate) fn new(seed: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "any start will do")]
        let streams = seed as u32;
        Self {
            outbox: None,
            streams,
            comparison: Comparison::None,
            peer: Peer::Unknown,
            not_before: 0,
            pause: PAUSE,
            refused: None,
            peer_full: 0,
            peer_tells: false,
            judged_at: 0,
            judged: u8::MAX,
        }
    }

    pub(crate) fn is_telling(&self) -> bool {
        self.outbox.is_some()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.outbox.as_ref().is_some_and(Outbox::has_room)
    }

    pub(crate) fn stream(&self) -> u32 {
        self.streams
    }

    pub(crate) fn is_acknowledged(&self, stream: u32, tell: u64) -> bool {
        let outbox = self.outbox.as_ref();
        outbox.is_some_and(|outbox| outbox.stream() == stream && outbox.is_acknowledged(tell))
    }

    /// True if there was one.
    pub(crate) fn end_stream(&mut self) -> bool {
        self.comparison = Comparison::None;
        self.outbox.take().is_some()
    }
}

impl<T: Table> Sync<T> {
    pub(super) fn begin_stream(&mut self, now: u64) {
        let teller = &mut self.teller;
        teller.streams = teller.streams.wrapping_add(1);
        let opening = Opening {
            layout: LAYOUT,
            readable_by: READABLE_BY,
            node: self.node.get(),
            boot: self.boot,
            key: self.key,
            places: [false, true].map(|v6| self.table.places(v6)),
        };
        let mut outbox = Outbox::new(teller.streams);
        let (total, after) = (self.shadow.total(), self.looks.done());
        outbox.body(total, after, |at| Body::Opening(at, opening));
        *teller = Teller {
            outbox: Some(outbox),
            peer_tells: teller.peer_tells,
            judged_at: now,
            ..Teller::new(u64::from(teller.streams))
        };
        self.counters.streams += 1;
    }

    /// Looks at a place as soon as there is room.
    pub(super) fn look_soon(&mut self, now: u64, place: Place) {
        if !self.teller.is_telling() {
            self.note_applied(now, place);
        } else if self.teller.has_room() && !self.looks.is_queued() {
            self.look(now, place, now);
        } else if !self.looks.queue(now, place) {
            self.counters.looks_dropped += 1;
            self.audit.lose();
        }
    }

    /// Says what differs at a place from what the peer was told, if anything. Something happened there at `since`.
    pub(super) fn look(&mut self, now: u64, place: Place, since: u64) {
        let shadow = self.shadow.get(place);
        let Some((record, content, word)) = self.flow_there(place) else {
            if is_flow(shadow) {
                self.looks.again(now, place, shadow);
            } else {
                self.shadow.set(place, 0);
            }
            return;
        };
        if word == shadow {
            return;
        }
        if is_flow(shadow) {
            if !content.has(shadow) {
                // Another flow was here, and its end has not come yet.
                self.looks.again(now, place, shadow);
                return;
            }
        } else if !self.is_ripe(now, place, shadow) {
            return;
        }
        self.tell(place, &record, word, since);
    }

    fn flow_there(&self, place: Place) -> Option<(Record, Content, u64)> {
        let record = self.table.read(place)?;
        let coarse = record.coarse()?;
        if !self.minds(&record) {
            return None;
        }
        let content = Content::of(self.key, &record);
        Some((record, content, content.word(coarse)))
    }

    /// True if a flow that the peer does not know is old enough to be told; else it is looked at when it is.
    fn is_ripe(&mut self, now: u64, place: Place, stamp: u64) -> bool {
        let Some(after) = self.table.sync_after(place) else {
            return false;
        };
        let after = u64::try_from(after.as_nanos()).map_or(MOST_YOUTH, |after| after.min(MOST_YOUTH));
        if after == 0 {
            return true;
        }
        let step = now >> STAMP_SHIFT;
        if stamp != 0 {
            // Stamps are rounded up: one of the future is of this step.
            let steps = (step + STAMPS - (stamp - 1)) % STAMPS;
            return steps < STAMPS - 1 && steps << STAMP_SHIFT >= after;
        }
        let start = step + 1;
        self.shadow.set(place, start % STAMPS + 1);
        let steps = after.div_ceil(1 << STAMP_SHIFT);
        self.looks.ripen((start + steps) << STAMP_SHIFT, place);
        false
    }

    fn tell(&mut self, place: Place, record: &Record, word: u64, since: u64) {
        self.shadow.set(place, word);
        if let Some(outbox) = &mut self.teller.outbox {
            outbox.flow(record, since, self.looks.done());
            outbox.close_if_full(self.shadow.total());
            self.counters.told += 1;
        }
    }

    /// A flow was removed from a place.
    pub(super) fn ended(&mut self, now: u64, place: Place, record: &Record) {
        if !self.teller.is_telling() {
            self.note_applied(now, place);
            return;
        }
        let shadow = self.shadow.get(place);
        if is_flow(shadow) && !Content::of(self.key, record).has(shadow) {
            return;
        }
        self.shadow.set(place, 0);
        let Some(outbox) = self.teller.outbox.as_mut().filter(|_| is_flow(shadow)) else {
            return;
        };
        if outbox.has_room_for_ends() {
            outbox.end(&record.key, record.incarnation, now, self.looks.done());
            outbox.close_if_full(self.shadow.total());
            self.counters.ends_told += 1;
        } else {
            self.counters.ends_dropped += 1;
        }
    }

    /// Looks at places whose end has had its time and did not come.
    pub(super) fn look_again(&mut self, now: u64) {
        while self.teller.has_room()
            && let Some(again) = self.looks.next_again()
        {
            let place = again.place;
            if self.shadow.get(place) != again.word {
                continue;
            }
            match self.flow_there(place) {
                Some((_, content, _)) if content.has(again.word) => {}
                found => {
                    // The peer still has the flow that went: its total tells.
                    self.shadow.set(place, 0);
                    self.counters.ends_missed += 1;
                    if found.is_some() {
                        self.look(now, place, now);
                    }
                }
            }
        }
    }

    pub(super) fn look_at_ripe(&mut self, now: u64) {
        while self.teller.has_room()
            && let Some(place) = self.looks.next_ripe(now)
        {
            self.look(now, place, now);
        }
    }

    fn look_at_queued(&mut self, now: u64) {
        for _ in 0..GO {
            if !self.teller.has_room() {
                break;
            }
            let Some(queued) = self.looks.next_queued() else {
                break;
            };
            self.look(now, queued.place, queued.at);
        }
    }

    /// The verdict if it is time for it, else what waits.
    pub(super) fn next_told(&mut self, now: u64, most: usize) -> Option<Vec<u8>> {
        self.look_at_queued(now);
        if let Some(body) = self.next_judgement(now, most) {
            return Some(body);
        }
        self.teller.outbox.as_mut()?.next_body(self.shadow.total(), most)
    }

    fn next_judgement(&mut self, now: u64, most: usize) -> Option<Vec<u8>> {
        let outbox = self.teller.outbox.as_ref()?;
        // The opening goes first. What is equal no longer is told at once.
        let is_early = self.teller.judged != 0 && now < self.teller.judged_at + JUDGE_EARLIEST;
        if is_early || outbox.handed_out() == 0 || most < SMALL {
            return None;
        }
        let at = At {
            stream: outbox.stream(),
            number: outbox.handed_out(),
        };
        let (code, records, oldest_ms) = match self.verdict(now) {
            Verdict::Equal => (0, 0, 0),
            Verdict::Behind { records, oldest_ms } => (1, records, oldest_ms),
            Verdict::NotSyncing { because } => (because.code(), 0, 0),
        };
        if code == self.teller.judged && now < self.teller.judged_at + JUDGE_LATEST {
            return None;
        }
        (self.teller.judged, self.teller.judged_at) = (code, now);
        let total = self.shadow.total();
        let judgement = Judgement {
            at,
            code,
            total,
            records,
            oldest_ms,
        };
        Some(Body::Judgement(judgement).emit())
    }

    pub(super) fn teller_due_at(&self) -> Option<u64> {
        let teller = &self.teller;
        teller.outbox.as_ref()?;
        let comparison = match &teller.comparison {
            Comparison::None if teller.peer == Peer::Differs => Some(teller.not_before),
            Comparison::Marked { at, .. } => Some(at + ANSWER),
            Comparison::Repairing { .. } if self.can_repair() => Some(0),
            Comparison::None | Comparison::Repairing { .. } | Comparison::Removing { .. } => None,
        };
        let judge = if teller.judged == 0 {
            JUDGE_LATEST
        } else {
            JUDGE_EARLIEST
        };
        comparison.into_iter().chain([teller.judged_at + judge]).min()
    }

    fn can_repair(&self) -> bool {
        let outbox = self.teller.outbox.as_ref();
        !self.looks.is_queued() && outbox.is_some_and(Outbox::has_room_for_repair)
    }

    /// Looks at what waits, compares and repairs; true if more is to be done at once.
    pub(super) fn go_on_telling(&mut self, now: u64, budget: &mut u32) -> bool {
        self.look_at_queued(now);
        self.look_again(now);
        let Some(outbox) = &self.teller.outbox else {
            return false;
        };
        if let Comparison::Marked { at, .. } = self.teller.comparison
            && now >= at + ANSWER
        {
            self.teller.comparison = Comparison::None;
        }
        let is_idle = matches!(self.teller.comparison, Comparison::None);
        if is_idle && outbox.is_empty() && self.teller.peer == Peer::Equal {
            let agreed = outbox.acknowledged_total() == Some(self.shadow.total());
            if !agreed {
                self.teller.peer = Peer::Differs;
            }
        }
        if is_idle && self.teller.peer == Peer::Differs && now >= self.teller.not_before {
            self.mark(now);
        }
        self.repair(now, budget);
        let is_repairing = matches!(self.teller.comparison, Comparison::Repairing { .. });
        is_repairing && self.can_repair() || self.looks.is_queued() && self.teller.has_room()
    }

    /// Asks the peer for its digests at this point.
    fn mark(&mut self, now: u64) {
        if let Some(outbox) = &mut self.teller.outbox {
            let number = outbox.body(self.shadow.total(), self.looks.done(), Body::Mark);
            self.counters.comparisons += 1;
            self.teller.comparison = Comparison::Marked {
                number,
                classes: self.shadow.classes().clone(),
                at: now,
            };
        }
    }

    pub(super) fn on_digests(&mut self, now: u64, at: At, theirs: &Classes) {
        let Teller {
            outbox: Some(outbox),
            comparison: Comparison::Marked { number, classes, .. },
            ..
        } = &mut self.teller
        else {
            self.counters.stale += 1;
            return;
        };
        if (outbox.stream(), *number) != (at.stream, at.number) {
            self.counters.stale += 1;
            return;
        }
        let set = ClassSet::of_difference(classes, theirs);
        if set.is_empty() {
            // What differed has come right. The last total tells.
            self.teller.comparison = Comparison::None;
            return;
        }
        let total = self.shadow.total();
        outbox.body(total, self.looks.done(), |at| Body::RepairBegin(at, set.clone()));
        self.counters.repairs += 1;
        self.counters.repaired_classes += u64::from(set.len());
        self.teller.peer_full = 0;
        self.teller.comparison = Comparison::Repairing {
            set,
            next: 0,
            begun: now,
        };
    }

    /// Names all flows of the classes that differ, as far as budget and room go.
    fn repair(&mut self, now: u64, budget: &mut u32) {
        let comparison = std::mem::replace(&mut self.teller.comparison, Comparison::None);
        let Comparison::Repairing { set, mut next, begun } = comparison else {
            self.teller.comparison = comparison;
            return;
        };
        while *budget > 0 && next < self.buckets() && self.can_repair() {
            for place in self.row(next).places() {
                let word = self.shadow.get(place);
                if is_flow(word) && set.has(class(word)) {
                    self.name(now, place, word);
                }
            }
            *budget -= 1;
            next += 1;
        }
        let (total, is_whole) = (self.shadow.total(), next == self.buckets());
        self.teller.comparison = match &mut self.teller.outbox {
            Some(outbox) if is_whole => Comparison::Removing {
                number: outbox.body(total, self.looks.done(), Body::RepairEnd),
                begun,
            },
            _ => Comparison::Repairing { set, next, begun },
        };
    }

    fn name(&mut self, now: u64, place: Place, word: u64) {
        match self.flow_there(place) {
            Some((record, _, there)) if there == word => {
                if let Some(outbox) = &mut self.teller.outbox {
                    outbox.repeat(&record, self.looks.done());
                    outbox.close_if_full(self.shadow.total());
                    self.counters.repaired += 1;
                }
            }
            _ => self.look(now, place, now),
        }
    }

    pub(super) fn on_ack(&mut self, now: u64, ack: &Ack) {
        let teller = &mut self.teller;
        let acknowledged = teller
            .outbox
            .as_mut()
            .filter(|outbox| outbox.stream() == ack.at.stream)
            .and_then(|outbox| outbox.acknowledge(now, ack.at.number, &mut self.lags));
        let Some(acknowledged) = acknowledged else {
            self.counters.stale += 1;
            return;
        };
        teller.peer_tells = false;
        teller.peer_full = ack.full;
        let Some(total) = ack.total else {
            teller.peer = Peer::Unknown;
            return;
        };
        let is_equal = total == acknowledged.expected;
        teller.peer = if is_equal { Peer::Equal } else { Peer::Differs };
        if let Comparison::Removing { number, begun } = teller.comparison
            && acknowledged.number >= number
        {
            teller.comparison = Comparison::None;
            let pause = teller.pause.max(SHARE * now.saturating_sub(begun));
            teller.not_before = now + pause;
            teller.pause = MOST_PAUSE.min(2 * teller.pause);
        }
        if is_equal && matches!(teller.comparison, Comparison::None) {
            (teller.pause, teller.not_before) = (PAUSE, 0);
        }
    }

    pub(super) fn on_ask(&mut self, now: u64) {
        self.teller.peer_tells = false;
        // Who asks tells nothing any more.
        self.applier.end_stream();
        if self.owned != 0 && self.settling.is_none() {
            self.looks.clear();
            self.audit.lose();
            self.begin_stream(now);
        }
    }

    pub(super) fn on_refusal(&mut self, stream: u32, refusal: Refusal) {
        if self.teller.is_telling() && stream == self.teller.stream() {
            self.teller.refused = Some(refusal);
        } else {
            self.counters.stale += 1;
        }
    }

    pub(super) fn teller_verdict(&self, now: u64) -> Verdict {
        let teller = &self.teller;
        let differs = |otherwise| {
            if teller.peer_full > 0 {
                Because::PeerFull
            } else {
                otherwise
            }
        };
        let because = match (&teller.outbox, teller.refused, &teller.comparison, teller.peer) {
            _ if teller.peer_tells => Because::BothOwn,
            (None, ..) => Because::NoSession,
            (_, Some(Refusal::Owner), ..) => Because::BothOwn,
            (_, Some(Refusal::Layout), ..) => Because::OtherLayout,
            (_, Some(Refusal::Other(_)), ..) => Because::Unknown,
            _ if self.audit.is_behind() => Because::EventsLost,
            (_, _, Comparison::Repairing { .. } | Comparison::Removing { .. }, _) => {
                differs(Because::Repairing)
            }
            (_, _, Comparison::Marked { .. }, _) | (_, _, _, Peer::Differs) => differs(Because::Comparing),
            (_, _, _, Peer::Unknown) => Because::NotCompared,
            (Some(outbox), _, _, Peer::Equal) => return self.compared(now, outbox),
        };
        Verdict::NotSyncing { because }
    }

    /// Once the tables have been found equal at some point.
    fn compared(&self, now: u64, outbox: &Outbox) -> Verdict {
        let (told, told_at) = outbox.outstanding();
        let (looks, look_at) = self.looks.outstanding();
        if !outbox.is_empty() || looks > 0 {
            let oldest = [told_at, look_at].into_iter().flatten().min().unwrap_or(now);
            return Verdict::Behind {
                records: told + looks,
                oldest_ms: now.saturating_sub(oldest) / 1_000_000,
            };
        }
        if outbox.acknowledged_total() == Some(self.shadow.total()) {
            return Verdict::Equal;
        }
        Verdict::NotSyncing {
            because: Because::Comparing,
        }
    }
}
