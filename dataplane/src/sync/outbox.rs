//! The teller's stream: records gathered into bodies, bodies waiting, bodies under way.

use std::collections::VecDeque;

use onearm_dataplane_common::flow::FlowKey;

use super::Record;
use super::lag::Lags;
use super::wire::{At, Body, STREAM_HEAD, begin_batch, longest_record, push_end, push_flow};

/// Longest body, bytes.
pub(crate) const LONGEST: usize = 60_000;
/// Bytes waiting beyond which nothing new is looked at.
const ROOM: usize = 4 * LONGEST;
/// Bytes waiting beyond which ends are not told either.
const ENDS_ROOM: usize = 16 * LONGEST;
/// Bytes waiting, and under way, beyond which a repair pauses: what happens now goes first.
const REPAIR_ROOM: (usize, usize) = (LONGEST, 1 << 20);
/// Most bodies, and bytes, that are not acknowledged.
const WINDOW: (usize, usize) = (64, 4 << 20);

/// What is known of a body.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    bytes: usize,
    /// XOR of all words when it was closed.
    total: u64,
    /// Records of things that happened; not those of repairs.
    records: u64,
    /// Time of the first of them.
    first_at: u64,
    /// The tell up to which all had been looked at when it was begun.
    after: u64,
}

/// What an acknowledgement told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// XOR of the teller's words at this body.
    pub(crate) expected: u64,
    /// The body.
    pub(crate) number: u64,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    stream: u32,
    next: u64,
    open: Vec<u8>,
    open_records: u64,
    open_first_at: u64,
    open_after: u64,
    ready: VecDeque<(Sent, Vec<u8>)>,
    waiting: usize,
    unacknowledged: VecDeque<Sent>,
    under_way: usize,
    acknowledged: Option<Acknowledged>,
}

impl Outbox {
    pub(crate) fn new(stream: u32) -> Self {
        Self {
            stream,
            next: 0,
            open: Vec::new(),
            open_records: 0,
            open_first_at: 0,
            open_after: 0,
            ready: VecDeque::new(),
            waiting: 0,
            unacknowledged: VecDeque::new(),
            under_way: 0,
            acknowledged: None,
        }
    }

    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    /// Room for what happens.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting < ROOM
    }

    /// Room for ends.
    pub(crate) fn has_room_for_ends(&self) -> bool {
        self.waiting < ENDS_ROOM
    }

    /// Room for a repair.
    pub(crate) fn has_room_for_repair(&self) -> bool {
        self.waiting < REPAIR_ROOM.0 && self.under_way < REPAIR_ROOM.1
    }

    /// Adds a flow of which something happened at `first_at`.
    pub(crate) fn flow(&mut self, record: &Record, first_at: u64, after: u64) {
        self.happened(first_at);
        self.add(after, |w| push_flow(w, record));
    }

    /// Adds an end that happened at `first_at`.
    pub(crate) fn end(&mut self, key: &FlowKey, incarnation: u64, first_at: u64, after: u64) {
        self.happened(first_at);
        self.add(after, |w| push_end(w, key, incarnation));
    }

    /// Adds a flow that was told before.
    pub(crate) fn repeat(&mut self, record: &Record, after: u64) {
        self.add(after, |w| push_flow(w, record));
    }

    fn happened(&mut self, first_at: u64) {
        if self.open_records == 0 {
            self.open_first_at = first_at;
        }
        self.open_records += 1;
    }

    fn add(&mut self, after: u64, push: impl FnOnce(&mut Vec<u8>)) {
        if self.open.is_empty() {
            self.open_after = after;
            begin_batch(
                &mut self.open,
                At {
                    stream: self.stream,
                    number: self.next,
                },
            );
        }
        let before = self.open.len();
        push(&mut self.open);
        self.waiting += self.open.len() - before;
    }

    /// Closes the body that is being gathered if one more record might be too much; `total` is the XOR of all words now.
    pub(crate) fn close_if_full(&mut self, total: u64) {
        if self.open.len() + longest_record() > LONGEST {
            self.close(total);
        }
    }

    fn close(&mut self, total: u64) {
        if self.open.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.open);
        let sent = Sent {
            number: self.next,
            bytes: bytes.len(),
            total,
            records: std::mem::take(&mut self.open_records),
            first_at: self.open_first_at,
            after: self.open_after,
        };
        self.next += 1;
        self.waiting += STREAM_HEAD;
        self.ready.push_back((sent, bytes));
    }

    /// Adds a body that is no batch, behind all that was added before; its number.
    pub(crate) fn body(&mut self, total: u64, after: u64, body: impl FnOnce(At) -> Body<'static>) -> u64 {
        self.close(total);
        let number = self.next;
        let bytes = body(At {
            stream: self.stream,
            number,
        })
        .emit();
        self.next += 1;
        self.waiting += bytes.len();
        let sent = Sent {
            number,
            bytes: bytes.len(),
            total,
            records: 0,
            first_at: 0,
            after,
        };
        self.ready.push_back((sent, bytes));
        number
    }

    /// The next body, if there is one, the window allows and it is no longer than `most`.
    pub(crate) fn next_body(&mut self, total: u64, most: usize) -> Option<Vec<u8>> {
        if self.ready.is_empty() {
            self.close(total);
        }
        let len = self.ready.front()?.1.len();
        if len > most || self.unacknowledged.len() >= WINDOW.0 || self.under_way + len > WINDOW.1 {
            return None;
        }
        let (sent, bytes) = self.ready.pop_front()?;
        self.waiting -= len;
        self.under_way += len;
        self.unacknowledged.push_back(sent);
        Some(bytes)
    }

    /// The peer has applied all bodies up to this one. `None`: it cannot have.
    pub(crate) fn acknowledge(&mut self, now: u64, number: u64, lags: &mut Lags) -> Option<Acknowledged> {
        let last = self.unacknowledged.back().map(|sent| sent.number);
        let known = self.acknowledged.map(|acknowledged| acknowledged.number);
        if last.max(known).is_none_or(|last| number > last) {
            return None;
        }
        while let Some(sent) = self.unacknowledged.pop_front_if(|sent| sent.number <= number) {
            self.under_way -= sent.bytes;
            lags.add(now, now.saturating_sub(sent.first_at), sent.records);
            self.acknowledged = Some(Acknowledged {
                expected: sent.total,
                number: sent.number,
            });
        }
        self.acknowledged
            .filter(|acknowledged| acknowledged.number == number)
    }

    /// Nothing waits and nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.ready.is_empty() && self.unacknowledged.is_empty()
    }

    /// XOR of all words at the last body that was acknowledged.
    pub(crate) fn acknowledged_total(&self) -> Option<u64> {
        self.acknowledged.map(|acknowledged| acknowledged.expected)
    }

    /// Records of things that happened that are not acknowledged, and the time of the oldest.
    pub(crate) fn outstanding(&self) -> (u64, Option<u64>) {
        let sent = self
            .unacknowledged
            .iter()
            .chain(self.ready.iter().map(|(sent, _)| sent))
            .map(|sent| (sent.records, sent.first_at))
            .chain([(self.open_records, self.open_first_at)]);
        let mut all = (0, None);
        for (records, first_at) in sent {
            if records > 0 {
                all.0 += records;
                all.1 = Some(all.1.unwrap_or(first_at).min(first_at));
            }
        }
        all
    }

    /// True if all that was told of tells up to this one is acknowledged.
    pub(crate) fn is_acknowledged(&self, tell: u64) -> bool {
        let first = self
            .unacknowledged
            .front()
            .or(self.ready.front().map(|(sent, _)| sent));
        match first {
            // A body may begin with what was told last.
            Some(sent) => sent.after > tell,
            None => self.open.is_empty() || self.open_after > tell,
        }
    }

    /// Bodies handed out.
    pub(crate) fn handed_out(&self) -> u64 {
        self.ready.front().map_or(self.next, |(sent, _)| sent.number)
    }
}
