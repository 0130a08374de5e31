//! Making a flow: both entries or none.

#![expect(
    unsafe_code,
    reason = "shared memory; every pointer comes from FlowMemory::bucket"
)]

use super::{
    CLAIMED, Entry, FlowMemory, Geometry, MARKED, NotInserted, Place,
    line::{add_overflow, lane, lock, overflow, tag_word, unlock},
    lookup::is_present,
    removal::free_way,
    tags::{self, Tags},
    way,
};
use crate::{
    addr::Address,
    flow::{Bucket, FlowEntry},
    maps::WAYS,
};
use core::ptr::read_volatile;

/// Tries to take a way in a bucket whose tags others change at the same time.
const WAY_TRIES: u32 = 4;
/// The first bucket is used until this many ways are taken, so that most look-ups touch one tag line; then the emptier of two.
/// With more, the first refusal of a large table comes at a load below 86 %; with fewer, more flows live in their second
/// bucket (10: 5 % of a table half full, 8: 12 %).
const FIRST_ENOUGH: u32 = 10;

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

/// Takes a way for `place` in the emptier of its buckets and fills it. The caller holds the lock of the first one.
#[inline(always)]
pub(super) fn take_and_fill<A: Address, M: FlowMemory>(
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

/// Takes a way for `place` in the emptier of its buckets; of two equals in the one in the lower half of the table, which puts the first
/// refusal off (always go left: Vöcking, JACM 2003).
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
        let second = place.second();
        let there = memory.bucket(second).ok_or(NotInserted::Full)?;
        let free_there = Tags::read(there).free();
        let (here, more) = (tags::count(free) << 1, tags::count(free_there) << 1);
        if more | u32::from(second < index) > here {
            (bucket, index) = (there, second);
        }
        if here | more == 0 {
            index = place.third();
            bucket = memory.bucket(index).ok_or(NotInserted::Full)?;
        }
    }
    let beyond = place.beyond(index);
    if beyond != 0 {
        // Before the way is taken: rather one too many than one too few, which would hide an entry.
        add_overflow(memory, first, beyond);
    }
    let mut reason = NotInserted::Contended;
    for _ in 0..WAY_TRIES {
        let free = Tags::read(bucket).free();
        if free == 0 {
            reason = NotInserted::Full;
            break;
        }
        let chosen = place
            .likely_ways()
            .into_iter()
            .find(|likely| free >> likely & 1 != 0)
            .unwrap_or_else(|| tags::lowest(free));
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
    if beyond != 0 {
        add_overflow(memory, first, beyond.wrapping_neg());
    }
    Err(reason)
}

/// Asks for the two lines of a bucket that a new entry mostly takes at once: taking the lock, and then the next one, waits for
/// every line asked for before.
#[inline(always)]
fn fetch<A: Address>(bucket: *mut Bucket<A>, place: Place) {
    let [likely, _] = place.likely_ways();
    let _wanted = (overflow(bucket), way(bucket, likely).incarnation());
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
    fetch(first, place);
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

/// Gives a reserved way back.
#[inline(always)]
pub fn release<A: Address, M: FlowMemory>(memory: &M, reserved: Reserved<A>) {
    free_way::<A, M>(memory, reserved.at, reserved.place);
}

/// Inserts the forward entry at its place and publishes both under `forward.incarnation`. On failure the reply stays reserved.
///
/// # Errors
/// [`NotInserted`], all but `ReplyTaken`.
#[inline(always)]
pub fn insert_forward<A: Address, M: FlowMemory>(
    memory: &M,
    place: Place,
    owner: u64,
    forward: &FlowEntry,
    reply: Reserved<A>,
) -> Result<u32, NotInserted> {
    let key = forward.key().narrow::<A>();
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
    let place = geometry.place(&forward.key().narrow::<A>());
    insert_forward(memory, place, owner, forward, reserved).inspect_err(|_| release(memory, reserved))
}
