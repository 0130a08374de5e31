//! The session with the peer: what it holds, and what comes in and goes out.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use onearm_dataplane_common::hash::sip13;
use onearm_dataplane_common::maps::WAYS;
use onearm_types::NodeId;

use super::applier::Applier;
use super::audit::Audit;
use super::content::{Content, is_flow};
use super::counters::Counters;
use super::lag::Lags;
use super::looks::Looks;
use super::shadow::Shadow;
use super::teller::Teller;
use super::wire::{Body, Malformed};
use super::{Because, Place, Record, Table, Tell, Verdict};

/// How often flows of the peer are kept from ageing, ns.
const FLOOR: u64 = 1_000_000_000;
/// How long they are kept so after the session has ended, ns.
const KEPT: u64 = 3_600_000_000_000;
/// How long this node keeps what it made while it acted for a group, ns.
const ACTED: u64 = 30_000_000_000;
/// Ways of a bucket.
const ROW: u32 = 16;
const _: () = assert!(ROW as usize == WAYS);

/// What may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time in which an audit goes through the whole table.
    pub audit: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            audit: Duration::from_secs(5),
        }
    }
}

/// A point in what is told to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub(super) stream: u32,
    pub(super) tell: u64,
}

/// Flow sync of one node: without clock, threads and sockets. Times are CLOCK_MONOTONIC, ns.
///
/// The owner of flows tells, its peer applies. Whatever happens to a place of the table, one function compares what is there
/// with what the peer was told and says the difference; what is lost on the way costs time, never truth.
///
/// ```text
///                 owns nothing: applies ◄─────────► owns a group: tells
///
/// tells    table gone through ─► opening ─► (totals agree?) ─► told, ended ─► batches ─► acknowledged, with the total there
///                                    no ─► mark ─► digests ─► repair of the classes that differ ─► (totals agree?)
/// applies  opening ─► (other key: table gone through) ─► batches applied ─► acknowledgement with the total of all words
/// ```
///
/// A total is the XOR of the words of all flows. Each acknowledgement carries it, so that two tables that differ are known to
/// differ as soon as the next record has made its way, and are never taken for equal.
///
/// One node tells at a time: if both own groups, both refuse, and say so.
#[derive(Debug)]
pub struct Sync<T> {
    pub(super) table: Arc<T>,
    pub(super) node: NodeId,
    settings: Settings,
    pub(super) key: [u64; 2],
    pub(super) boot: u64,
    pub(super) shadow: Shadow,
    /// Bit n: this node owns group n.
    pub(super) owned: u16,
    pub(super) connected: bool,
    /// The whole table is gone through, since what was known of it may not hold: next bucket.
    pub(super) settling: Option<u32>,
    pub(super) audit: Audit,
    pub(super) looks: Looks,
    /// Events lost so far, as last told.
    lost: u64,
    pub(super) teller: Teller,
    pub(super) applier: Applier,
    floor_at: u64,
    /// When this node was told of flows last, and when it acted for a group last though it owns none.
    applied_at: Option<u64>,
    acted_at: Option<u64>,
    pub(super) counters: Counters,
    pub(super) lags: Lags,
}

/// Places of a bucket that hold a flow or a word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    v6: bool,
    base: u32,
    ways: u16,
}

impl Row {
    pub(super) fn places(self) -> impl Iterator<Item = Place> {
        (0..ROW)
            .filter(move |way| self.ways >> way & 1 != 0)
            .map(move |way| Place {
                v6: self.v6,
                at: self.base + way,
            })
    }
}

impl<T: Table> Sync<T> {
    /// A session that owns nothing and has no peer. `key_seed` is random; nobody else may know it.
    pub fn new(table: Arc<T>, node: NodeId, key_seed: [u64; 2], settings: Settings) -> Self {
        let draw = |n| sip13(key_seed, n, u64::from(node.get()));
        let shadow = Shadow::new(table.places(false), table.places(true));
        Self {
            table,
            node,
            settings,
            key: [draw(1), draw(2)],
            boot: draw(3),
            shadow,
            owned: 0,
            connected: false,
            settling: Some(0),
            audit: Audit::new(),
            looks: Looks::default(),
            lost: 0,
            teller: Teller::new(draw(4)),
            applier: Applier::default(),
            floor_at: 0,
            applied_at: None,
            acted_at: None,
            counters: Counters::default(),
            lags: Lags::new(),
        }
    }

    /// Something happened to the table: from the programs' ring and from the sweep, in the order they came.
    pub fn told(&mut self, now: u64, tell: Tell) {
        self.looks.tell();
        match tell {
            Tell::Look(place) => self.look_soon(now, place),
            Tell::Ended { place, record } => self.ended(now, place, &record),
        }
    }

    /// The ring was empty once. `lost`: records it had no room for, since it was made.
    pub fn drained(&mut self, now: u64, lost: u64) {
        if lost > self.lost {
            self.counters.events_lost += lost - self.lost;
            self.audit.lose();
        }
        self.lost = lost;
        self.looks.drained();
        self.look_again(now);
    }

    /// This node owns these groups now: bit n stands for group n.
    pub fn owned(&mut self, now: u64, groups: u16) {
        if groups == self.owned {
            return;
        }
        let told = self.owned != 0;
        self.owned = groups;
        self.looks.clear();
        self.teller.end_stream();
        self.applier.end_stream();
        self.settling = Some(0);
        if groups != 0 {
            // What was silent with the old owner is not silent here: nobody knows.
            self.table.set_floor(now);
        } else {
            self.applier.since = now;
            self.applier.ask |= told && self.connected;
        }
    }

    /// This node acts for a group at this time: it is armed, or holds a lease. To be called again as long as it does. What it makes
    /// then, before it knows that it owns, is not the peer's to remove.
    pub fn acts(&mut self, now: u64) {
        self.acted_at = Some(now);
    }

    /// What this node made may be its own still.
    pub(super) fn has_acted(&self, now: u64) -> bool {
        self.acted_at.is_some_and(|at| now < at + ACTED)
    }

    /// A session with the peer has begun.
    pub fn connected(&mut self, now: u64) {
        self.disconnected(now);
        self.connected = true;
        if self.owned != 0 && self.settling.is_none() {
            self.begin_stream(now);
        }
    }

    /// The session with the peer is over.
    pub fn disconnected(&mut self, _now: u64) {
        self.connected = false;
        if self.teller.end_stream() {
            // What waited to be told is found by the audit.
            self.looks.clear();
            self.audit.lose();
        }
        self.teller.peer_tells = false;
        self.applier.end_stream();
        self.applier.ask = false;
    }

    /// The peer says this.
    ///
    /// # Errors
    /// [`Malformed`] if it makes no sense: the session should be ended. What could be read of it is applied.
    pub fn heard(&mut self, now: u64, body: &[u8]) -> Result<(), Malformed> {
        let body = Body::parse(body)?;
        if !self.connected {
            self.counters.stale += 1;
            return Ok(());
        }
        match body {
            Body::Opening(at, opening) => self.on_opening(now, at, &opening)?,
            Body::Batch(at, records) => self.on_batch(now, at, records)?,
            Body::Mark(at) => self.on_mark(at),
            Body::RepairBegin(at, set) => self.on_repair_begin(at, set),
            Body::RepairEnd(at) => self.on_repair_end(at),
            Body::Judgement(judgement) => self.on_judgement(now, &judgement),
            Body::Ack(ack) => self.on_ack(now, &ack),
            Body::Digests(at, classes) => self.on_digests(now, at, &classes),
            Body::Ask => self.on_ask(now),
            Body::Refuse(stream, refusal) => self.on_refusal(stream, refusal),
            Body::Unknown(_) => self.counters.unknown += 1,
        }
        Ok(())
    }

    /// The next message to the peer, if there is one, it is allowed to go, and it is no longer than `most` bytes. None is
    /// longer than 60,000.
    pub fn next_body(&mut self, now: u64, most: usize) -> Option<Vec<u8>> {
        if !self.connected {
            return None;
        }
        let body = self.next_answer(most).or_else(|| self.next_told(now, most))?;
        self.counters.bodies += 1;
        self.counters.bytes += body.len() as u64;
        Some(body)
    }

    /// Goes on with whatever takes long: `budget` buckets of the table. True if more is to be done at once.
    pub fn work(&mut self, now: u64, budget: u32) -> bool {
        self.keep_from_ageing(now);
        let mut budget = budget;
        if self.settle(now, &mut budget) || self.remove_unnamed(now, &mut budget) {
            return true;
        }
        self.look_at_ripe(now);
        let more = self.go_on_telling(now, &mut budget);
        self.go_on_auditing(now, budget) || more
    }

    /// When [`Sync::work`] and [`Sync::next_body`] should be called though nothing happens.
    pub fn deadline(&self) -> Option<u64> {
        if self.settling.is_some() || self.applier.is_removing() {
            return Some(0);
        }
        let is_held_back = self.teller.is_telling() && !self.teller.has_room();
        [
            (!is_held_back).then(|| self.audit.due_at()),
            self.keeps_from_ageing(self.floor_at).then_some(self.floor_at),
            self.looks.ripe_at().filter(|_| !is_held_back),
            self.teller_due_at(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Everything told so far is before this position.
    pub fn flush(&mut self, _now: u64) -> Position {
        Position {
            stream: self.teller.stream(),
            tell: self.looks.tells(),
        }
    }

    /// The peer has applied everything before this position. False for good if the stream it was of is over.
    pub fn is_acknowledged(&self, position: Position) -> bool {
        !self.audit.is_behind()
            && self.looks.done() >= position.tell
            && self.teller.is_acknowledged(position.stream, position.tell)
    }

    /// How far the two tables are alike.
    pub fn verdict(&self, now: u64) -> Verdict {
        let because = if !self.connected {
            Because::NoSession
        } else if self.owned == 0 {
            return self.applier_verdict(now);
        } else if self.settling.is_some() {
            Because::LookingThrough
        } else {
            return self.teller_verdict(now);
        };
        Verdict::NotSyncing { because }
    }

    /// Repairs begun.
    pub fn repairs(&self) -> u64 {
        self.counters.repairs
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        Counters {
            flows: self.shadow.flows(),
            lag: self.lags.lag(),
            ..self.counters
        }
    }

    /// Buckets of both families.
    pub(super) fn buckets(&self) -> u32 {
        (self.table.places(false) + self.table.places(true)) / ROW
    }

    /// What of a bucket has to be looked at. Those of IPv6 come after those of IPv4.
    pub(super) fn row(&self, bucket: u32) -> Row {
        let four = self.table.places(false) / ROW;
        let v6 = bucket >= four;
        let base = (if v6 { bucket - four } else { bucket }) * ROW;
        let words = self.shadow.words(v6).iter().skip(base as usize);
        let mut ways = 0;
        for (way, word) in words.take(WAYS).enumerate() {
            ways |= u16::from(*word != 0) << way;
        }
        for place in self.table.forward_places(bucket..bucket + 1) {
            ways |= 1 << (place.at % ROW);
        }
        Row { v6, base, ways }
    }

    /// The total of all words, unless it is not known whether it is right.
    pub(super) fn known_total(&self) -> Option<u64> {
        let known = self.settling.is_none() && !self.audit.is_behind() && !self.applier.is_removing();
        known.then(|| self.shadow.total())
    }

    /// The flow is one that this node's shadow is of: its own if it owns any, else all of the peer's.
    pub(super) fn minds(&self, record: &Record) -> bool {
        self.owned == 0 || self.owned >> record.group() & 1 != 0
    }

    /// Takes a place as it is, without telling of it; true if that is news.
    pub(super) fn note(&mut self, place: Place) -> bool {
        let word = self.word_there(place).unwrap_or(0);
        let before = self.shadow.set(place, word);
        before != word && (is_flow(before) || is_flow(word))
    }

    fn word_there(&self, place: Place) -> Option<u64> {
        let record = self.table.read(place)?;
        let coarse = record.coarse()?;
        if !self.minds(&record) || (self.owned != 0 && self.table.sync_after(place).is_none()) {
            return None;
        }
        Some(Content::of(self.key, &record).word(coarse))
    }

    /// Goes through the table without telling of it; true while there is more.
    fn settle(&mut self, now: u64, budget: &mut u32) -> bool {
        let Some(next) = self.settling else {
            return false;
        };
        let slice = next..self.buckets().min(next.saturating_add(*budget));
        *budget -= slice.end - next;
        for bucket in slice.clone() {
            for place in self.row(bucket).places() {
                self.note(place);
            }
        }
        if slice.end < self.buckets() {
            self.settling = Some(slice.end);
            return true;
        }
        self.settling = None;
        self.audit.forgive(now);
        self.counters.audits += 1;
        self.applier.acknowledge();
        if self.owned != 0 && self.connected {
            self.begin_stream(now);
        }
        false
    }

    fn go_on_auditing(&mut self, now: u64, budget: u32) -> bool {
        if self.teller.is_telling() && !self.teller.has_room() {
            return false;
        }
        let all = self.buckets();
        let pass = u64::try_from(self.settings.audit.as_nanos()).unwrap_or(u64::MAX);
        let slice: Range<u32> = self.audit.slice(now, budget, all, pass);
        if slice.is_empty() && now < self.audit.due_at() {
            return false;
        }
        let was_behind = self.audit.is_behind();
        for bucket in slice.clone() {
            for place in self.row(bucket).places() {
                self.audit_place(now, place);
            }
        }
        if self.audit.done(now, slice.end, all) {
            self.counters.audits += 1;
            if was_behind {
                self.applier.acknowledge();
            }
        }
        self.audit.is_behind()
    }

    fn audit_place(&mut self, now: u64, place: Place) {
        if self.teller.is_telling() {
            self.look(now, place, now);
        } else if self.owned != 0 {
            self.note(place);
        } else {
            self.note_applied(now, place);
        }
    }

    fn keep_from_ageing(&mut self, now: u64) {
        if self.is_applying() {
            self.applied_at = Some(now);
        }
        if self.keeps_from_ageing(now) && now >= self.floor_at {
            self.table.set_floor(now);
            self.floor_at = now + FLOOR;
        }
    }

    /// What happens to the flows of the owner is not known here. Without a session that lasts for a while: they may be needed.
    fn keeps_from_ageing(&self, now: u64) -> bool {
        self.owned == 0 && self.applied_at.is_some_and(|at| now < at + KEPT)
    }
}
