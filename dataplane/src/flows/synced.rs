//! The table as flow sync works on it: flows of the peer put in beside those the programs make.
//!
//! One thread of user space does this, and the sweep. Pages need no preparing: the kernel maps a whole array at once.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use std::process;
use std::sync::PoisonError;
use std::time::Duration;

use onearm_dataplane_common::addr::{Addr, Addr4, Address};
use onearm_dataplane_common::flow::{Bucket, FlowEntry, FlowKey, State, flags, hop, lock, seen};
use onearm_dataplane_common::maps::{STRAY_SERVER, STRAY_SERVICE, mode};
use onearm_dataplane_common::table::{
    self, Entry, FlowMemory, Found, NotInserted, Scan, entry_at, find, find_at,
};
use onearm_dataplane_common::tell;

use super::memory::Memory;
use super::{FlowTable, Seen, tick};
use crate::next_hops::last_hop;
use crate::sync::{Coarse, Directory, Place, Put, Record, Refused, Table};
use crate::tables::narrow;

/// Most clients that wait to be resolved.
const MOST_WANTED: usize = 1_024;
/// How often a program may be in the way of one flow.
const TRIES: usize = 8;
/// Epoch and counter of an incarnation; the node's number is above.
const SERIAL: u64 = (1 << 56) - 1;
/// [`FlowEntry::flags`] that are part of a translation.
const TRANSLATION: u8 = flags::MODE_MASK | flags::HAIRPIN | 0xf << flags::GROUP_SHIFT;

/// The table's memory, taking note of the flow that is removed.
struct Noting<'m> {
    memory: &'m Memory,
    removed: Cell<Option<(u32, FlowEntry)>>,
}

impl<'m> Noting<'m> {
    fn new(memory: &'m Memory) -> Self {
        Self {
            memory,
            removed: Cell::new(None),
        }
    }
}

#[expect(unsafe_code, reason = "passes on to the memory")]
// SAFETY: as the memory's.
unsafe impl FlowMemory for Noting<'_> {
    const MORTAL: bool = Memory::MORTAL;

    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>> {
        self.memory.bucket(index)
    }

    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { self.memory.exchange(word, expected, new) }
    }

    unsafe fn add(&self, word: *mut u64, n: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.add(word, n) };
    }

    fn removed<A: Address>(&self, at: u32, _entry: Entry<A>, incarnation: u64) {
        let entry = self.memory.raw::<A>(at);
        self.removed
            .set(entry.map(|entry| (at, FlowEntry { incarnation, ..entry })));
    }
}

/// A flow that has one of the keys another wants.
struct Holder {
    at: u32,
    forward: FlowEntry,
}

impl Holder {
    /// Whether a flow of the peer takes its place.
    fn yields_to(&self, record: &Record) -> Result<(), Refused> {
        let here = Record::of(&self.forward, None);
        match (record.coarse(), self.forward.state()) {
            _ if here.incarnation == record.incarnation => Ok(()),
            (Some(Coarse::Established), State::HalfOpen | State::Closing) => Ok(()),
            (Some(Coarse::Established), State::Established) if here.coarse().is_none() => Ok(()),
            (Some(Coarse::Closing), State::HalfOpen | State::Established) => Err(Refused::LiveHere),
            (Some(Coarse::Established), State::Established)
            | (Some(Coarse::Closing), State::Closing)
            | (None, _) => {
                let order = |incarnation: u64| (incarnation & SERIAL, incarnation >> 56);
                if order(record.incarnation) > order(here.incarnation) {
                    Ok(())
                } else {
                    Err(Refused::Older)
                }
            }
        }
    }
}

impl FlowTable {
    fn lock_owner() -> u64 {
        lock::USER | u64::from(process::id())
    }

    /// Removes the flow that has an entry there, if it still is this one; where its client's entry was, and what it was.
    pub(super) fn remove_at<A: Address>(&self, at: u32, incarnation: u64) -> Option<(Place, Record)> {
        let noting = Noting::new(&self.memory);
        let ended = table::remove::<A, _>(&noting, self.geometry::<A>(), at, incarnation)?;
        self.uncount(&ended);
        let (at, forward) = noting.removed.take()?;
        Some((Place { v6: A::V6, at }, self.record(&forward, None)))
    }

    /// A flow without indexes of this node.
    pub(crate) fn record(&self, forward: &FlowEntry, reply: Option<&FlowEntry>) -> Record {
        let mut record = Record::of(forward, reply);
        if record.mode() == mode::L3_DSR {
            if let Some(leg) = self.directory().leg_of(record.new_saddr) {
                (record.leg, record.new_saddr) = (leg, Addr::NONE);
            }
            return record;
        }
        let by = reply.map_or(hop::ROUTE, |reply| reply.hop);
        if by == hop::ROUTE && reply.is_some() {
            self.want(&self.directory(), forward.saddr);
        }
        let index = by & !hop::LAST;
        if by != hop::ROUTE && by & hop::LAST != 0 && (index as usize) < self.last_hops.len() {
            let last = last_hop(&self.last_hops, index);
            if let Ok(leg) = u8::try_from(last.leg)
                && last.ifindex != 0
            {
                (record.leg, record.vlan) = (leg, last.vlan);
            }
        }
        record
    }

    /// Both entries of a flow of the peer as this node has them.
    fn entries<A: Address>(&self, record: &Record, now_ns: u64) -> Result<(FlowEntry, FlowEntry), Refused> {
        let directory = self.directory();
        let indexes = directory.indexes(record);
        let (mut forward, mut reply) = (record.forward(), record.reply());
        if record.new_saddr.is_none() {
            let own = directory.own_address(record.leg, A::V6);
            forward.new_saddr = own.ok_or(Refused::Invalid("a tunnel from a leg without an address"))?;
        }
        let counted = if indexes.limited && !record.is_direct() {
            seen::COUNTED
        } else {
            0
        };
        forward.own = record.client & !seen::COUNTED | counted;
        reply.other = forward.own;
        forward.hop = indexes.hop;
        if !record.is_direct() {
            reply.hop = directory.client_hop(record.key.saddr);
            if reply.hop == hop::ROUTE {
                self.want(&directory, record.key.saddr);
            }
        }
        for entry in [&mut forward, &mut reply] {
            entry.stats = indexes.stats;
            entry.server = indexes.server;
            entry.last_seen = tick(now_ns);
        }
        Ok((forward, reply))
    }

    /// Asks for the memory of a place, so that it comes while other memory is waited for.
    fn fetch<A: Address>(&self, place: table::Place) {
        if let Some(ways) = table::ways::<A, _>(&self.memory, place.first) {
            let [likely, _] = place.likely_ways();
            let _wanted = (ways.entry(likely).incarnation(), ways.lock());
        }
    }

    /// A flow is there whose client's way is looked up for each packet. If the client is on a leg, it should be resolved before
    /// the first one.
    fn want(&self, directory: &Directory, client: Addr) {
        let Some(leg) = directory.leg_with(client) else {
            return;
        };
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.len() < MOST_WANTED {
            wanted.insert((leg, narrow(client)));
        }
    }

    /// Clients on legs, by leg id, that flows are about to need resolved: those met since this was asked last, at most 1,024.
    pub fn take_wanted(&self) -> BTreeSet<(u8, IpAddr)> {
        std::mem::take(&mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The flow that has a key, in either direction.
    fn holder<A: Address>(&self, place: table::Place, key: &FlowKey) -> Option<Holder> {
        let found = find_at(&self.memory, place, &key.narrow::<A>())?;
        let entry = self.memory.published::<A>(found.at)?;
        let (at, forward) = if entry.is_reply() {
            (entry.partner, self.memory.published::<A>(entry.partner)?)
        } else {
            (found.at, entry)
        };
        (forward.incarnation == found.incarnation).then_some(Holder { at, forward })
    }

    fn put_in<A: Address>(&self, record: &Record, now_ns: u64) -> Result<Put, Refused> {
        let (forward, reply) = self.entries::<A>(record, now_ns)?;
        let place = |key: &FlowKey| self.geometry::<A>().place(&key.narrow::<A>());
        let (of_client, of_server) = (place(&record.key), place(&reply.key()));
        self.fetch::<A>(of_client);
        self.fetch::<A>(of_server);
        let mut displaced = [None, None];
        for _ in 0..TRIES {
            let holder = self.holder::<A>(of_client, &record.key);
            if let Some(holder) = &holder
                && is_same(&holder.forward, &forward)
            {
                if self.renew::<A>(holder, &forward, &reply) {
                    let place = Place {
                        v6: A::V6,
                        at: holder.at,
                    };
                    return Ok(Put {
                        place,
                        displaced,
                        fresh: false,
                    });
                }
                continue;
            }
            let other = if record.is_direct() {
                None
            } else {
                self.holder::<A>(of_server, &reply.key())
            };
            // Both are judged before either goes.
            for holder in [&holder, &other].into_iter().flatten() {
                holder.yields_to(record)?;
            }
            for holder in [holder, other].into_iter().flatten() {
                let gone = self.remove_at::<A>(holder.at, holder.forward.incarnation);
                note(&mut displaced, gone)?;
            }
            let inserted = if record.is_direct() {
                self.insert_direct::<A>(&forward, &mut displaced)?
            } else {
                let (geometry, owner) = (self.geometry::<A>(), Self::lock_owner());
                table::insert_pair::<A, _>(&self.memory, geometry, owner, &forward, &reply)
            };
            match inserted {
                Ok(at) => {
                    self.count_in(&forward, 1);
                    let place = Place { v6: A::V6, at };
                    return Ok(Put {
                        place,
                        displaced,
                        fresh: true,
                    });
                }
                // A program was faster, or makes it just now.
                Err(NotInserted::ReplyTaken | NotInserted::ForwardExists | NotInserted::Contended) => {
                    std::hint::spin_loop();
                }
                Err(NotInserted::Full) => return Err(Refused::Full),
            }
        }
        Err(Refused::Contended)
    }

    /// A flow of one entry, for which another may give way.
    fn insert_direct<A: Address>(
        &self,
        forward: &FlowEntry,
        displaced: &mut [Option<(Place, Record)>; 2],
    ) -> Result<Result<u32, NotInserted>, Refused> {
        if self.dsr_ways == 0 {
            return Err(Refused::Full);
        }
        let (geometry, noting) = (self.geometry::<A>(), Noting::new(&self.memory));
        let mut scan = Scan::default();
        let owner = Self::lock_owner();
        let inserted =
            table::insert_single::<A, _>(&noting, geometry, owner, forward, self.dsr_ways, &mut scan);
        if let Some((at, gone)) = noting.removed.take() {
            if scan.gave_way().is_some_and(|(open, ..)| open) {
                self.add_open(&gone, u64::MAX);
            }
            note(
                displaced,
                Some((Place { v6: A::V6, at }, self.record(&gone, None))),
            )?;
        }
        Ok(inserted.and_then(|()| {
            let found = find(&self.memory, geometry, &forward.key().narrow::<A>());
            found.map(|found| found.at).ok_or(NotInserted::Contended)
        }))
    }

    /// Brings a flow that is here up to date; false if it ended meanwhile.
    fn renew<A: Address>(&self, holder: &Holder, forward: &FlowEntry, reply: &FlowEntry) -> bool {
        let incarnation = holder.forward.incarnation;
        let Some(found) = table::found_at::<A, _>(&self.memory, holder.at, incarnation) else {
            return false;
        };
        let entry = found.entry();
        let was = holder.forward;
        // As it was counted when it was made.
        let own = forward.own & !seen::COUNTED | was.own & seen::COUNTED;
        entry.set_own(own);
        entry.set_other(forward.other);
        entry.set_expected_ack(forward.expected_ack);
        entry.set_idle_ticks(forward.idle_ticks);
        entry.set_packets(forward.packets);
        entry.set_last_seen(forward.last_seen);
        if was.flags & flags::DIRECT == 0 {
            let Some(partner) = partner_of::<A>(&self.memory, &found) else {
                return false;
            };
            partner.set_own(reply.own);
            partner.set_other(own);
            partner.set_expected_ack(reply.expected_ack);
            partner.set_idle_ticks(reply.idle_ticks);
            partner.set_last_seen(reply.last_seen);
        }
        if !found.intact() {
            return false;
        }
        if was.state() != forward.state() {
            self.count_in(&was, u64::MAX);
            if was.state() == State::HalfOpen {
                self.tallies.half_open.add(0, 0, u64::MAX);
            }
            let is = FlowEntry {
                own,
                stats: was.stats,
                server: was.server,
                ..*forward
            };
            self.count_in(&is, 1);
        }
        true
    }

    /// Counts a flow for its service, server and client, unless it is closing.
    fn count_in(&self, forward: &FlowEntry, n: u64) {
        if forward.state() == State::Closing {
            return;
        }
        self.add_open(forward, n);
        if forward.own & seen::COUNTED != 0 {
            self.add_source(forward.stats, forward.saddr, n);
        }
    }

    /// Gives a stray the indexes of its service and server, if they are in force by now.
    pub(super) fn adopt(&self, seen: &Seen) {
        if seen.v6 {
            self.adopt_in::<Addr>(seen);
        } else {
            self.adopt_in::<Addr4>(seen);
        }
    }

    fn adopt_in<A: Address>(&self, seen: &Seen) {
        let was = seen.forward;
        // First: the directory is not read twice at a time, which whoever waits to write it would stop.
        let record = self.record(&was, None);
        let indexes = self.directory().indexes(&record);
        if (indexes.stats, indexes.server) == (was.stats, was.server) {
            return;
        }
        let Some(found) = table::found_at::<A, _>(&self.memory, seen.at, was.incarnation) else {
            return;
        };
        let now = FlowEntry {
            stats: indexes.stats,
            server: indexes.server,
            ..was
        };
        self.count_in(&was, u64::MAX);
        self.count_in(&now, 1);
        found.entry().set_hop(indexes.hop);
        for entry in [Some(found.entry()), partner_of::<A>(&self.memory, &found)]
            .into_iter()
            .flatten()
        {
            entry.set_stats(indexes.stats);
            entry.set_server(indexes.server);
        }
    }
}

/// Whether a flow belongs to no service or server of this node.
pub(super) const fn is_stray(forward: &FlowEntry) -> bool {
    forward.stats == STRAY_SERVICE || forward.server == STRAY_SERVER
}

/// Whether two are the same flow, translated the same way.
fn is_same(here: &FlowEntry, forward: &FlowEntry) -> bool {
    here.incarnation == forward.incarnation
        && (here.flags ^ forward.flags) & TRANSLATION == 0
        && (here.new_saddr, here.new_sport) == (forward.new_saddr, forward.new_sport)
        && (here.new_daddr, here.new_dport) == (forward.new_daddr, forward.new_dport)
}

/// Takes note of a flow that is gone.
fn note(displaced: &mut [Option<(Place, Record)>; 2], gone: Option<(Place, Record)>) -> Result<(), Refused> {
    let Some(gone) = gone else { return Ok(()) };
    let free = displaced.iter_mut().find(|slot| slot.is_none());
    *free.ok_or(Refused::Contended)? = Some(gone);
    Ok(())
}

/// The other entry of a flow of two.
fn partner_of<A: Address>(memory: &Memory, found: &Found<A>) -> Option<Entry<A>> {
    let partner = entry_at::<A, _>(memory, found.entry().partner())?;
    (partner.incarnation() == found.incarnation).then_some(partner)
}

impl Table for FlowTable {
    fn places(&self, v6: bool) -> u32 {
        let geometry = if v6 { &self.six } else { &self.four };
        geometry.buckets << 4
    }

    fn read(&self, place: Place) -> Option<Record> {
        let forward = if place.v6 {
            self.memory.published::<Addr>(place.at)
        } else {
            self.memory.published::<Addr4>(place.at)
        };
        let seen = Seen {
            v6: place.v6,
            at: place.at,
            forward: forward.filter(|forward| !forward.is_reply())?,
        };
        if seen.forward.flags & flags::DIRECT != 0 {
            return Some(self.record(&seen.forward, None));
        }
        let reply = self.reply(&seen)?;
        Some(self.record(&seen.forward, Some(&reply)))
    }

    fn sync_after(&self, place: Place) -> Option<Duration> {
        let stats = if place.v6 {
            entry_at::<Addr, _>(&self.memory, place.at).map(Entry::stats)
        } else {
            entry_at::<Addr4, _>(&self.memory, place.at).map(Entry::stats)
        };
        self.directory().sync_after(stats?)
    }

    fn forward_places(&self, buckets: Range<u32>) -> impl Iterator<Item = Place> {
        let fours = self.four.buckets;
        let in_four = buckets.start.min(fours)..buckets.end.min(fours);
        let in_six = buckets.start.max(fours) - fours..buckets.end.max(fours) - fours;
        let four = in_four
            .flat_map(|bucket| self.forward_ways::<Addr4>(bucket))
            .map(|at| Place { v6: false, at });
        let six = in_six
            .flat_map(|bucket| self.forward_ways::<Addr>(bucket))
            .map(|at| Place { v6: true, at });
        four.chain(six)
    }

    fn put(&self, record: &Record, now_ns: u64) -> Result<Put, Refused> {
        record.check().map_err(Refused::Invalid)?;
        if record.is_v6() {
            self.put_in::<Addr>(record, now_ns)
        } else {
            self.put_in::<Addr4>(record, now_ns)
        }
    }

    fn end(&self, key: &FlowKey, incarnation: u64) -> Option<Place> {
        if key.saddr.is_v4() {
            self.end_in::<Addr4>(key, incarnation)
        } else {
            self.end_in::<Addr>(key, incarnation)
        }
    }

    fn set_floor(&self, now_ns: u64) {
        self.sync.store(tell::FLOOR, 0, u64::from(tick(now_ns)));
    }
}

impl FlowTable {
    fn end_in<A: Address>(&self, key: &FlowKey, incarnation: u64) -> Option<Place> {
        let found = find(&self.memory, self.geometry::<A>(), &key.narrow::<A>())?;
        if found.incarnation != incarnation || found.entry().is_reply() {
            return None;
        }
        self.remove_at::<A>(found.at, incarnation).map(|(place, _)| place)
    }

    fn forward_ways<A: Address>(&self, bucket: u32) -> impl Iterator<Item = u32> + use<'_, A> {
        self.memory.taken::<A>(bucket).filter(|at| {
            let entry = entry_at::<A, _>(&self.memory, *at);
            entry.is_some_and(|entry| table::is_published(entry.incarnation()) && !entry.is_reply())
        })
    }
}

#[cfg(test)]
mod costs;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
