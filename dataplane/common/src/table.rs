//! What is done with the flow table: look up, insert a pair, remove a pair.
//!
//! Used by the eBPF programs and by user space through its mapping, at the same time:
//!
//! - A way is taken by exchanging its tag from 0 and given back by subtracting it, both atomic on the tag word.
//! - `incarnation` publishes: written last, zeroed first (by compare-exchange, so that one remover wins). A reader takes
//!   it before the key and again after what it used ([`Found::intact`]).
//! - Insert-if-absent: only who holds the lock of a key's *first* bucket may write that key into either bucket. No one
//!   holds two locks. The reply entry is reserved first (its uniqueness proves the source port), then, under the lock of
//!   the forward key, the forward entry; then the reply is published, then the forward entry; or neither.
//! - A removed flow is unpublished at the forward entry first; whoever does that frees both.
//! - Who can be killed at any instruction ([`FlowMemory::MORTAL`]) marks what it works on: a way has a tag that no key has while
//!   its content means nothing, and an entry a negative incarnation while it is not, or no longer, part of a flow. A
//!   program does neither, so that [`recover`] knows exactly what a dead process left, whatever programs do meanwhile.

#![expect(
    unsafe_code,
    reason = "shared memory; every pointer comes from FlowMemory::bucket"
)]

mod entry;
mod recovery;
mod single;
mod tags;
#[cfg(test)]
mod tests;

pub use entry::Entry;
pub use recovery::{Recovered, recover};
pub use single::{Scan, insert_single};
use tags::Tags;

use crate::{
    addr::Address,
    flow::{Bucket, FlowEntry, FlowKey, State, seen},
    maps::{Addr, WAYS},
};
use core::ptr::{addr_of_mut, read_volatile, write_volatile};

/// Tries to take a bucket's lock before a new flow is given up: a few microseconds, longer than any holder but a
/// suspended process needs.
pub const LOCK_TRIES: u32 = 128;
/// Tries to take a way in a bucket whose tags others change at the same time.
const WAY_TRIES: u32 = 4;
/// The first bucket is used until this many ways are taken, so that most look-ups touch one tag line; then the emptier. With more than ten the
/// first refusal comes below a load of 85 % (12: 81 %), with fewer more flows live in their second bucket (10: 5 % of a table
/// half full, 8: 12 %).
const FIRST_ENOUGH: u32 = 10;

/// Tag of a way that a process has claimed and not yet filled, or is giving back. No key has it.
const CLAIMED: u16 = u16::MAX;
/// Set in the incarnation of an entry that a process is making or removing.
const MARKED: u64 = 1 << 63;

/// True for the incarnation of an entry that is part of a flow, both directions of which are there or will be at once.
#[inline(always)]
pub const fn is_published(incarnation: u64) -> bool {
    incarnation.cast_signed() > 0
}

/// Memory of the flow table and the atomic operations on it.
///
/// # Safety
/// `bucket` returns pointers to live, shared buckets, the same for the same index; `exchange` and `add` are atomic and
/// sequentially consistent. Callers of the two pass pointers into such a bucket.
pub unsafe trait FlowMemory {
    /// True if who works on it can be killed at any instruction, as a process can and a program cannot.
    const MORTAL: bool;
    /// Bucket of a family's table by number.
    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>>;
    /// Compare-exchange; returns the value found.
    ///
    /// # Safety
    /// `word` lies in a bucket.
    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64;
    /// Wrapping add.
    ///
    /// # Safety
    /// `word` lies in a bucket.
    unsafe fn add(&self, word: *mut u64, n: u64);
}

/// Hash key and size of the table, from [`crate::maps::Node`].
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// [`crate::maps::Node::flow_hash_key`].
    pub key: [u64; 2],
    /// [`crate::maps::Node::flow_bucket_mask`] or [`crate::maps::Node::flow6_bucket_mask`].
    pub mask: u32,
}

/// Where a key may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First candidate bucket; its lock guards the key.
    pub first: u32,
    /// Second candidate bucket; differs from the first if there is more than one.
    pub second: u32,
    /// Tag, 1 to 2^15.
    pub tag: u16,
}

impl Place {
    /// The way an entry takes if it is free. Most entries are there, and a look-up that starts there touches one line.
    #[inline(always)]
    pub const fn likely_way(&self) -> u32 {
        self.tag as u32 & 15
    }
}

impl Geometry {
    /// Candidates of a key.
    #[inline(always)]
    pub fn place<A: Address>(&self, key: &FlowKey<A>) -> Place {
        let hash = key.hash(self.key);
        let first = hash as u32 & self.mask;
        let second = (hash >> 24) as u32 & self.mask;
        let second = if second == first {
            (second ^ 1) & self.mask
        } else {
            second
        };
        Place {
            first,
            second,
            tag: (hash >> 49) as u16 + 1,
        }
    }
}

/// A published entry.
#[derive(Clone, Copy, Debug)]
pub struct Found<A: Address> {
    /// bucket << 4 | way.
    pub at: u32,
    /// Which flow it was when found.
    pub incarnation: u64,
    entry: Entry<A>,
}

impl<A: Address> Found<A> {
    /// The entry, shared with everybody else: read and write it by whole fields only.
    #[inline(always)]
    pub const fn entry(&self) -> Entry<A> {
        self.entry
    }

    /// True while the entry still is the flow that was found. To be asked after reading what is used.
    #[inline(always)]
    pub fn intact(&self) -> bool {
        self.entry.incarnation() == self.incarnation
    }

    /// A copy, or `None` if the flow ended meanwhile.
    #[inline(always)]
    pub fn read(&self) -> Option<FlowEntry<A>> {
        let copy = self.entry.copy();
        if copy.incarnation == self.incarnation && self.intact() {
            Some(copy)
        } else {
            None
        }
    }
}

/// Why a pair could not be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInserted {
    /// The reply key is taken: choose another source port.
    ReplyTaken,
    /// The forward key is there already: use it.
    ForwardExists,
    /// No free way in either bucket.
    Full,
    /// A lock or way was not to be had in bounded time.
    Contended,
}

/// A way taken but not published. Must be published or released.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct Reserved<A: Address> {
    /// bucket << 4 | way.
    pub at: u32,
    place: Place,
    entry: Entry<A>,
}

impl<A: Address> Reserved<A> {
    /// The entry to fill. All fields but `incarnation`.
    #[inline(always)]
    pub const fn entry(&self) -> Entry<A> {
        self.entry
    }
}

/// The ways of one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Ways<A: Address>(*mut Bucket<A>);

impl<A: Address> Ways<A> {
    /// Entry of a way (modulo 16), published or not.
    #[inline(always)]
    pub fn entry(self, way: u32) -> Entry<A> {
        self::way(self.0, way)
    }
}

/// The ways of a bucket.
#[inline(always)]
pub fn ways<A: Address, M: FlowMemory>(memory: &M, bucket: u32) -> Option<Ways<A>> {
    memory.bucket(bucket).map(Ways)
}

/// The entry at a location, published or not.
#[inline(always)]
pub fn entry_at<A: Address, M: FlowMemory>(memory: &M, at: u32) -> Option<Entry<A>> {
    let bucket = memory.bucket(at >> 4)?;
    Some(way(bucket, at))
}

/// Ways of a bucket that are taken (published or pending): bit n = way n. For sweeps from user space.
pub fn taken_ways<A: Address, M: FlowMemory>(memory: &M, bucket: u32) -> Option<u32> {
    memory.bucket::<A>(bucket).map(|b| Tags::read(b).free() ^ 0xffff)
}

#[inline(always)]
fn way<A: Address>(bucket: *mut Bucket<A>, way: u32) -> Entry<A> {
    // SAFETY: the bucket is live.
    let entries = unsafe { addr_of_mut!((*bucket).entries) }.cast::<FlowEntry<A>>();
    // SAFETY: in bounds by the mask.
    Entry(unsafe { entries.add((way & 15) as usize) })
}

/// Looks a published flow up.
#[inline(always)]
pub fn find<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    key: &FlowKey<A>,
) -> Option<Found<A>> {
    let place = geometry.place(key);
    let first = memory.bucket(place.first)?;
    let likely = way(first, place.likely_way());
    let incarnation = likely.incarnation();
    if is_published(incarnation) && likely.key() == *key {
        return Some(Found {
            at: place.first << 4 | place.likely_way(),
            incarnation,
            entry: likely,
        });
    }
    if let Some(found) = find_in(first, place.first, place.tag, key, true) {
        return Some(found);
    }
    if overflow(first) == 0 {
        return None;
    }
    let second = memory.bucket(place.second)?;
    find_in(second, place.second, place.tag, key, true)
}

/// The flow at a location, if it still is this one.
#[inline(always)]
pub fn found_at<A: Address, M: FlowMemory>(memory: &M, at: u32, incarnation: u64) -> Option<Found<A>> {
    let found = Found {
        at,
        incarnation,
        entry: entry_at::<A, M>(memory, at)?,
    };
    found.intact().then_some(found)
}

#[inline(always)]
fn find_in<A: Address>(
    bucket: *mut Bucket<A>,
    index: u32,
    tag: u16,
    key: &FlowKey<A>,
    published: bool,
) -> Option<Found<A>> {
    let mut candidates = Tags::read(bucket).equal_to(tag);
    for _ in 0..WAYS {
        if candidates == 0 {
            return None;
        }
        let lowest = tags::lowest(candidates);
        let entry = way(bucket, lowest);
        let incarnation = entry.incarnation();
        if (is_published(incarnation) || !published) && entry.key() == *key {
            return Some(Found {
                at: index << 4 | lowest,
                incarnation,
                entry,
            });
        }
        candidates &= candidates - 1;
    }
    None
}

#[inline(always)]
fn overflow<A: Address>(bucket: *mut Bucket<A>) -> u64 {
    // SAFETY: the word lies in a live bucket.
    unsafe { read_volatile(addr_of_mut!((*bucket).overflow)) }
}

#[inline(always)]
fn lock<A: Address, M: FlowMemory>(memory: &M, bucket: *mut Bucket<A>, owner: u64) -> bool {
    for _ in 0..LOCK_TRIES {
        // SAFETY: the word lies in a live bucket.
        if unsafe { memory.exchange(addr_of_mut!((*bucket).lock), 0, owner) } == 0 {
            return true;
        }
    }
    false
}

#[inline(always)]
fn unlock<A: Address>(bucket: *mut Bucket<A>) {
    // SAFETY: the word lies in a live bucket.
    unsafe { write_volatile(addr_of_mut!((*bucket).lock), 0) };
}

/// The word of the tag line that holds the tag of a way.
#[inline(always)]
fn tag_word<A: Address>(bucket: *mut Bucket<A>, way: u32) -> *mut u64 {
    // SAFETY: the tag words lie in a live bucket; the index is below 4.
    unsafe {
        addr_of_mut!((*bucket).tags)
            .cast::<u64>()
            .add((way as usize >> 2) & 3)
    }
}

/// A tag in the lane of a way.
#[inline(always)]
const fn lane(tag: u16, way: u32) -> u64 {
    (tag as u64) << ((way & 3) << 4)
}

#[inline(always)]
fn add_overflow<A: Address, M: FlowMemory>(memory: &M, bucket: *mut Bucket<A>, n: u64) {
    // SAFETY: the word lies in a live bucket.
    unsafe { memory.add(addr_of_mut!((*bucket).overflow), n) };
}

/// Takes a way for `place` in the emptier of its buckets and fills it. The caller holds the lock of the first one.
#[inline(always)]
fn take_and_fill<A: Address, M: FlowMemory>(
    memory: &M,
    place: Place,
    first: *mut Bucket<A>,
    content: &FlowEntry,
) -> Result<Reserved<A>, NotInserted> {
    let reserved = take_way(memory, place, first)?;
    reserved.entry.fill(content);
    if M::MORTAL
        && let Some(bucket) = memory.bucket::<A>(reserved.at >> 4)
    {
        reserved.entry.publish(MARKED);
        let less = lane(CLAIMED, reserved.at) - lane(place.tag, reserved.at);
        // SAFETY: a word of a live bucket. The lane holds exactly `CLAIMED`, so that nothing is borrowed from the next.
        unsafe { memory.add(tag_word(bucket, reserved.at), less.wrapping_neg()) };
    }
    Ok(reserved)
}

/// Takes a way for `place` in the emptier of its buckets.
#[inline(always)]
fn take_way<A: Address, M: FlowMemory>(
    memory: &M,
    place: Place,
    first: *mut Bucket<A>,
) -> Result<Reserved<A>, NotInserted> {
    let free = Tags::read(first).free();
    let mut bucket = first;
    let mut index = place.first;
    if tags::count(free) <= WAYS as u32 - FIRST_ENOUGH {
        let second = memory.bucket(place.second).ok_or(NotInserted::Full)?;
        let free_there = Tags::read(second).free();
        if tags::count(free_there) > tags::count(free) {
            bucket = second;
            index = place.second;
        } else if free == 0 {
            return Err(NotInserted::Full);
        }
    }
    let beyond = index != place.first;
    if beyond {
        // Before the way is taken: rather one too many than one too few, which would hide an entry.
        add_overflow(memory, first, 1);
    }
    let mut reason = NotInserted::Contended;
    for _ in 0..WAY_TRIES {
        let free = Tags::read(bucket).free();
        if free == 0 {
            reason = NotInserted::Full;
            break;
        }
        let likely = place.likely_way();
        let chosen = if free >> likely & 1 != 0 {
            likely
        } else {
            tags::lowest(free)
        };
        let word = tag_word(bucket, chosen);
        // SAFETY: the word lies in a live bucket.
        let old = unsafe { read_volatile(word) };
        let new = old | lane(if M::MORTAL { CLAIMED } else { place.tag }, chosen);
        let is_free = old & lane(u16::MAX, chosen) == 0;
        // SAFETY: as above.
        if is_free && unsafe { memory.exchange(word, old, new) } == old {
            return Ok(Reserved {
                at: index << 4 | chosen,
                place,
                entry: way(bucket, chosen),
            });
        }
    }
    if beyond {
        add_overflow(memory, first, u64::MAX);
    }
    Err(reason)
}

/// Gives a way back whose entry is published no more.
#[inline(always)]
fn free_way<A: Address, M: FlowMemory>(memory: &M, at: u32, place: Place) {
    let Some(bucket) = memory.bucket::<A>(at >> 4) else {
        return;
    };
    let word = tag_word(bucket, at);
    if M::MORTAL {
        // SAFETY: a word of a live bucket. The lane holds exactly this tag: nothing is carried into the next.
        unsafe { memory.add(word, lane(CLAIMED, at) - lane(place.tag, at)) };
        free_claimed(memory, bucket, at);
    } else {
        // SAFETY: as above.
        unsafe { memory.add(word, lane(place.tag, at).wrapping_neg()) };
    }
    if at >> 4 != place.first
        && let Some(first) = memory.bucket::<A>(place.first)
    {
        add_overflow(memory, first, u64::MAX);
    }
}

/// Gives a way back that only this process knows.
#[inline(always)]
fn free_claimed<A: Address, M: FlowMemory>(memory: &M, bucket: *mut Bucket<A>, at: u32) {
    way(bucket, at).publish(0);
    // SAFETY: a word of a live bucket, whose lane holds exactly `CLAIMED`.
    unsafe { memory.add(tag_word(bucket, at), lane(CLAIMED, at).wrapping_neg()) };
}

/// Reserves the reply entry of a new flow. `owner`: see [`crate::flow::lock`].
///
/// # Errors
/// [`NotInserted`], all but `ForwardExists`.
#[inline(always)]
pub fn reserve_reply<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    owner: u64,
    reply: &FlowEntry,
) -> Result<Reserved<A>, NotInserted> {
    let key = reply.key().narrow::<A>();
    let place = geometry.place(&key);
    let first = memory.bucket(place.first).ok_or(NotInserted::Full)?;
    if !lock(memory, first, owner) {
        return Err(NotInserted::Contended);
    }
    let result = if is_present(memory, place, first, &key) {
        Err(NotInserted::ReplyTaken)
    } else {
        take_and_fill(memory, place, first, reply)
    };
    unlock(first);
    result
}

/// Published or pending.
#[inline(always)]
fn is_present<A: Address, M: FlowMemory>(
    memory: &M,
    place: Place,
    first: *mut Bucket<A>,
    key: &FlowKey<A>,
) -> bool {
    if find_in(first, place.first, place.tag, key, false).is_some() {
        return true;
    }
    if overflow(first) == 0 {
        return false;
    }
    let Some(second) = memory.bucket(place.second) else {
        return false;
    };
    find_in(second, place.second, place.tag, key, false).is_some()
}

/// Gives a reserved way back.
#[inline(always)]
pub fn release<A: Address, M: FlowMemory>(memory: &M, reserved: Reserved<A>) {
    free_way::<A, M>(memory, reserved.at, reserved.place);
}

/// Inserts the forward entry and publishes both under `forward.incarnation`. On failure the reply stays reserved.
///
/// # Errors
/// [`NotInserted`], all but `ReplyTaken`.
#[inline(always)]
pub fn insert_forward<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    owner: u64,
    forward: &FlowEntry,
    reply: Reserved<A>,
) -> Result<u32, NotInserted> {
    let key = forward.key().narrow::<A>();
    let place = geometry.place(&key);
    let first = memory.bucket(place.first).ok_or(NotInserted::Full)?;
    if !lock(memory, first, owner) {
        return Err(NotInserted::Contended);
    }
    let result = if is_present(memory, place, first, &key) {
        Err(NotInserted::ForwardExists)
    } else {
        take_and_fill(memory, place, first, forward)
    };
    if let Ok(reserved) = &result {
        reserved.entry.set_partner(reply.at);
        reply.entry.set_partner(reserved.at);
        reply.entry.publish(forward.incarnation);
        reserved.entry.publish(forward.incarnation);
    }
    unlock(first);
    result.map(|reserved| reserved.at)
}

/// Inserts a flow: both entries or none. Returns the forward entry's location. Both carry `forward.incarnation`, not 0.
///
/// # Errors
/// [`NotInserted`].
pub fn insert_pair<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    owner: u64,
    forward: &FlowEntry,
    reply: &FlowEntry,
) -> Result<u32, NotInserted> {
    let reserved = reserve_reply::<A, M>(memory, geometry, owner, reply)?;
    insert_forward(memory, geometry, owner, forward, reserved).inspect_err(|_| release(memory, reserved))
}

/// What a flow was when it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its last state.
    pub state: State,
    /// [`crate::flow::FlowEntry::server`].
    pub server: u16,
    /// [`crate::flow::FlowEntry::stats`].
    pub stats: u16,
    /// The client, if the flow counted towards its `max_per_source` to the end.
    pub counted: Option<Addr>,
}

/// Removes the flow that has an entry (of either direction) at `at`, if it still is `incarnation`. Tells the one caller
/// that removed it what it was.
#[inline(always)]
pub fn remove<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    at: u32,
    incarnation: u64,
) -> Option<Ended> {
    if !is_published(incarnation) {
        return None;
    }
    let here = entry_at::<A, M>(memory, at)?;
    let partner = here.partner();
    let reply_here = here.flags() & crate::flow::flags::REPLY != 0;
    let (forward_at, reply_at) = if reply_here { (partner, at) } else { (at, partner) };
    let forward = entry_at::<A, M>(memory, forward_at)?;
    let reply = entry_at::<A, M>(memory, reply_at)?;
    if !unpublish(memory, forward, incarnation) {
        return None;
    }
    let (client, server) = (forward.own(), forward.other());
    let (key, reply_key) = (forward.key(), reply.key());
    let (of_server, stats) = (forward.server(), forward.stats());
    if unpublish(memory, reply, incarnation) {
        free_way::<A, M>(memory, reply_at, geometry.place(&reply_key));
    }
    free_way::<A, M>(memory, forward_at, geometry.place(&key));
    let state = crate::flow::state(key.proto, client, server);
    let counted = client & seen::COUNTED != 0 && state != State::Closing;
    Some(Ended {
        state,
        server: of_server,
        stats,
        counted: counted.then_some(key.saddr.wide()),
    })
}

#[inline(always)]
fn unpublish<A: Address, M: FlowMemory>(memory: &M, entry: Entry<A>, incarnation: u64) -> bool {
    let after = if M::MORTAL { incarnation | MARKED } else { 0 };
    // SAFETY: the word lies in a live bucket.
    unsafe { memory.exchange(entry.incarnation_word(), incarnation, after) == incarnation }
}
