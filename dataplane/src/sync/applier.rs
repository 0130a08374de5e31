//! The other side: does to its table what the owner says, and tells what it has.

use super::content::{Content, class, is_flow};
use super::session::Sync;
use super::shadow::{ClassSet, Classes, PlaceSet, Shadow};
use super::wire::{
    Ack, At, Body, DIGESTS, Judgement, LAYOUT, Malformed, Opening, Refusal, SMALL, Said, records,
};
use super::{Because, Place, Record, Refused, Table, Verdict};

/// An unproved flow that this node does not own goes after so long, ns: it can only be a leftover, and the peer's flows do not
/// age here.
const UNPROVED: u64 = 30_000_000_000;
/// What the owner judged holds for so long, ns.
const JUDGED: u64 = 2_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Applier {
    incoming: Option<Incoming>,
    /// The owner's layout cannot be read.
    unreadable: bool,
    /// When this node ceased to own flows.
    pub(crate) since: u64,
    /// Ask for a stream.
    pub(crate) ask: bool,
    refuse: Option<(u32, Refusal)>,
    digests: Option<(At, Classes)>,
    acknowledge: bool,
}

/// The stream that is applied.
#[derive(Debug)]
struct Incoming {
    stream: u32,
    /// Number of the next body.
    next: u64,
    repair: Option<Repair>,
    /// Flows of the last repair, or since, for which there was no room.
    full: u32,
    judgement: Option<(u64, Judgement)>,
    /// At the last judgement this table was as the owner's, and it has not changed by itself since.
    agrees: bool,
}

/// A repair under way.
#[derive(Debug)]
struct Repair {
    set: ClassSet,
    named: PlaceSet,
    /// Something the owner named could not be read or done: nothing is removed for not having been named.
    flawed: bool,
    /// What was not named is removed: next bucket.
    removing: Option<u32>,
}

impl Applier {
    pub(crate) fn end_stream(&mut self) {
        *self = Self {
            since: self.since,
            ask: self.ask,
            ..Self::default()
        };
    }

    /// Says how far it is.
    pub(crate) fn acknowledge(&mut self) {
        self.acknowledge = self.incoming.is_some();
    }

    pub(crate) fn is_removing(&self) -> bool {
        let repair = self
            .incoming
            .as_ref()
            .and_then(|incoming| incoming.repair.as_ref());
        repair.is_some_and(|repair| repair.removing.is_some())
    }
}

impl<T: Table> Sync<T> {
    pub(super) fn is_applying(&self) -> bool {
        self.applier.incoming.is_some()
    }

    pub(super) fn on_opening(&mut self, _now: u64, at: At, opening: &Opening) -> Result<(), Malformed> {
        if opening.node != self.node.other().get() || at.number != 0 {
            return Err(Malformed);
        }
        if self.owned != 0 {
            self.teller.peer_tells = true;
            self.applier.refuse = Some((at.stream, Refusal::Owner));
            return Ok(());
        }
        self.applier.end_stream();
        if opening.readable_by > LAYOUT {
            self.applier.unreadable = true;
            self.applier.refuse = Some((at.stream, Refusal::Layout));
            return Ok(());
        }
        self.applier.incoming = Some(Incoming {
            stream: at.stream,
            next: 1,
            repair: None,
            full: 0,
            judgement: None,
            agrees: false,
        });
        self.applier.ask = false;
        self.applier.acknowledge();
        self.counters.streams += 1;
        if opening.key != self.key {
            self.key = opening.key;
            self.shadow = Shadow::new(self.table.places(false), self.table.places(true));
            self.settling = Some(0);
        }
        Ok(())
    }

    /// The stream, if this body is the next of it, or a later one.
    fn next_of_stream(&mut self, at: At) -> Option<&mut Incoming> {
        let incoming = self.applier.incoming.as_mut();
        let Some(incoming) = incoming.filter(|incoming| incoming.stream == at.stream) else {
            self.counters.stale += 1;
            return None;
        };
        self.applier.acknowledge = true;
        if at.number < incoming.next {
            self.counters.repeated += 1;
            return None;
        }
        incoming.catch_up(at.number, &mut self.counters.gaps);
        incoming.next = at.number + 1;
        Some(incoming)
    }

    pub(super) fn on_batch(&mut self, now: u64, at: At, batch: &[u8]) -> Result<(), Malformed> {
        if self.next_of_stream(at).is_some() {
            for said in records(batch) {
                self.apply(now, said?);
            }
        }
        Ok(())
    }

    fn apply(&mut self, now: u64, said: Said) {
        match said {
            Said::Flow(record) => self.put(now, &record),
            Said::End(key, incarnation) => {
                if let Some(place) = self.table.end(&key, incarnation) {
                    self.shadow.set(place, 0);
                    self.counters.ends_applied += 1;
                } else {
                    self.counters.ends_unknown += 1;
                }
            }
            Said::Unknown => self.counters.unknown += 1,
            Said::Short => self.refuse(Refused::Invalid("length")),
        }
    }

    fn put(&mut self, now: u64, record: &Record) {
        let coarse = match (record.check(), record.coarse()) {
            (Ok(()), Some(coarse)) => coarse,
            (Err(why), _) => return self.refuse(Refused::Invalid(why)),
            (Ok(()), None) => return self.refuse(Refused::Invalid("state")),
        };
        let put = match self.table.put(record, now) {
            Ok(put) => put,
            Err(why) => return self.refuse(why),
        };
        for (place, _) in put.displaced.into_iter().flatten() {
            self.shadow.set(place, 0);
            self.counters.displaced += 1;
        }
        let word = Content::of(self.key, record).word(coarse);
        self.shadow.set(put.place, word);
        self.counters.applied += 1;
        let incoming = self.applier.incoming.as_mut();
        if let Some(repair) = incoming.and_then(|incoming| incoming.repair.as_mut()) {
            repair.named.insert(put.place);
        }
    }

    fn refuse(&mut self, why: Refused) {
        self.counters.refused(why);
        let Some(incoming) = &mut self.applier.incoming else {
            return;
        };
        match why {
            Refused::Full => incoming.full = incoming.full.saturating_add(1),
            Refused::Invalid(_) | Refused::Contended => incoming.spoil(),
            Refused::Older | Refused::LiveHere => {}
        }
    }

    pub(super) fn on_mark(&mut self, at: At) {
        if self.next_of_stream(at).is_some() && self.known_total().is_some() {
            self.applier.digests = Some((at, self.shadow.classes().clone()));
        }
    }

    pub(super) fn on_repair_begin(&mut self, at: At, set: ClassSet) {
        let named = PlaceSet::new(&self.shadow);
        if let Some(incoming) = self.next_of_stream(at) {
            incoming.full = 0;
            incoming.repair = Some(Repair {
                set,
                named,
                flawed: false,
                removing: None,
            });
        }
    }

    pub(super) fn on_repair_end(&mut self, at: At) {
        if let Some(incoming) = self.next_of_stream(at) {
            incoming.repair = incoming.repair.take().filter(|repair| !repair.flawed);
            if let Some(repair) = &mut incoming.repair {
                repair.removing = Some(0);
            }
        }
    }

    /// Removes what was not named in a repair; true while there is more.
    pub(super) fn remove_unnamed(&mut self, now: u64, budget: &mut u32) -> bool {
        let incoming = self.applier.incoming.as_mut();
        let Some(mut repair) =
            incoming.and_then(|incoming| incoming.repair.take_if(|r| r.removing.is_some()))
        else {
            return false;
        };
        let next = repair.removing.unwrap_or(0);
        let end = self.buckets().min(next.saturating_add(*budget));
        *budget -= end - next;
        for bucket in next..end {
            for place in self.row(bucket).places() {
                let class = self.class_at(place).filter(|_| !self.is_kept(now, place));
                if !repair.named.has(place) && class.is_some_and(|class| repair.set.has(class)) {
                    self.remove(place);
                }
            }
        }
        if end < self.buckets() {
            repair.removing = Some(end);
            if let Some(incoming) = &mut self.applier.incoming {
                incoming.repair = Some(repair);
            }
            return true;
        }
        self.applier.acknowledge();
        false
    }

    /// Class of what is at a place: also of an unproved flow, which may be in the way of one that was named.
    fn class_at(&self, place: Place) -> Option<usize> {
        let word = self.shadow.get(place);
        if is_flow(word) {
            return Some(class(word));
        }
        let record = self.table.read(place)?;
        Some(Content::of(self.key, &record).class())
    }

    fn remove(&mut self, place: Place) {
        if let Some(record) = self.table.read(place)
            && self.table.end(&record.key, record.incarnation).is_some()
        {
            self.counters.unnamed += 1;
        }
        self.note(place);
    }

    pub(super) fn on_judgement(&mut self, now: u64, judgement: &Judgement) {
        let total = self.known_total();
        let incoming = self.applier.incoming.as_mut();
        let Some(incoming) = incoming.filter(|incoming| incoming.stream == judgement.at.stream) else {
            self.counters.stale += 1;
            return;
        };
        if judgement.at.number > incoming.next {
            incoming.catch_up(judgement.at.number, &mut self.counters.gaps);
            self.applier.acknowledge = true;
        }
        incoming.agrees = total == Some(judgement.total);
        incoming.judgement = Some((now, *judgement));
    }

    /// Takes a place as it is, of a flow that may have changed by itself.
    pub(super) fn note_applied(&mut self, now: u64, place: Place) {
        if self.is_kept(now, place) {
            return;
        }
        if let Some(incoming) = &self.applier.incoming
            && incoming.judgement.is_some()
            && now >= self.applier.since + UNPROVED
            && let Some(record) = self.table.read(place)
            && record.coarse().is_none()
            && self.table.end(&record.key, record.incarnation).is_some()
        {
            self.counters.unproved += 1;
        }
        if self.note(place)
            && let Some(incoming) = &mut self.applier.incoming
        {
            incoming.agrees = false;
            self.applier.acknowledge = true;
        }
    }

    /// A flow is there that this node made while it acted, and that the owner never told of.
    fn is_kept(&self, now: u64, place: Place) -> bool {
        let is_own = |record: Record| record.incarnation >> 56 == u64::from(self.node.get());
        self.owned == 0
            && self.has_acted(now)
            && !is_flow(self.shadow.get(place))
            && self.table.read(place).is_some_and(is_own)
    }

    pub(super) fn next_answer(&mut self, most: usize) -> Option<Vec<u8>> {
        if most < SMALL {
            return None;
        }
        let total = self.known_total();
        let applier = &mut self.applier;
        if std::mem::take(&mut applier.ask) {
            return Some(Body::Ask.emit());
        }
        if let Some((stream, refusal)) = applier.refuse.take() {
            return Some(Body::Refuse(stream, refusal).emit());
        }
        if std::mem::take(&mut applier.acknowledge)
            && let Some(incoming) = &applier.incoming
        {
            let at = At {
                stream: incoming.stream,
                number: incoming.next - 1,
            };
            let full = incoming.full;
            return Some(Body::Ack(Ack { at, total, full }).emit());
        }
        if most < DIGESTS {
            return None;
        }
        let (at, classes) = applier.digests.take()?;
        Some(Body::Digests(at, classes).emit())
    }

    pub(super) fn applier_verdict(&self, now: u64) -> Verdict {
        let Some(incoming) = &self.applier.incoming else {
            return Verdict::NotSyncing {
                because: if self.applier.unreadable {
                    Because::OtherLayout
                } else {
                    Because::NobodyTells
                },
            };
        };
        let because = if self.settling.is_some() {
            Because::LookingThrough
        } else if self.audit.is_behind() {
            Because::EventsLost
        } else if self.applier.is_removing() {
            Because::Repairing
        } else {
            match &incoming.judgement {
                None => Because::NotCompared,
                Some((at, _)) if now >= at + JUDGED => Because::PeerSilent,
                Some((_, judgement)) => match judgement.code {
                    0 if incoming.agrees => return Verdict::Equal,
                    0 => Because::Comparing,
                    1 => {
                        return Verdict::Behind {
                            records: judgement.records,
                            oldest_ms: judgement.oldest_ms,
                        };
                    }
                    code => Because::of_code(code),
                },
            }
        };
        Verdict::NotSyncing { because }
    }
}

impl Incoming {
    /// Bodies up to this one went missing: what they said is found by comparison.
    fn catch_up(&mut self, number: u64, gaps: &mut u64) {
        if number > self.next {
            *gaps += 1;
            self.next = number;
            self.spoil();
        }
    }

    /// What the owner named is not known in full.
    fn spoil(&mut self) {
        if let Some(repair) = &mut self.repair {
            repair.flawed = true;
        }
    }
}
