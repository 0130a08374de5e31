//! Looking a flow up.

use super::{
    Entry, FlowMemory, Geometry, Place, entry_at, is_published,
    line::overflow,
    tags::{self, Tags},
    way,
};
use crate::{
    addr::Address,
    flow::{Bucket, FlowEntry, FlowKey},
    maps::WAYS,
};

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

/// Looks a published flow up.
#[inline(always)]
pub fn find<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    key: &FlowKey<A>,
) -> Option<Found<A>> {
    find_at(memory, geometry.place(key), key)
}

/// Looks a published flow up, whose place is known.
#[inline(always)]
pub fn find_at<A: Address, M: FlowMemory>(memory: &M, place: Place, key: &FlowKey<A>) -> Option<Found<A>> {
    let first = memory.bucket(place.first)?;
    let [likely, next] = place.likely_ways();
    let (one, two) = (way(first, likely), way(first, next));
    // Both are fetched, so that memory is waited for once.
    let (of_one, of_two) = (one.incarnation(), two.incarnation());
    if is_published(of_one) && one.difference(key) == 0 {
        return Some(Found {
            at: place.first << 4 | likely,
            incarnation: of_one,
            entry: one,
        });
    }
    if is_published(of_two) && two.difference(key) == 0 {
        return Some(Found {
            at: place.first << 4 | next,
            incarnation: of_two,
            entry: two,
        });
    }
    if let Some(found) = find_in(first, place.first, place.tag, key, true) {
        return Some(found);
    }
    find_beyond(memory, place, first, key, true)
}

/// Looks for an entry that has no way in its first bucket.
#[inline(always)]
fn find_beyond<A: Address, M: FlowMemory>(
    memory: &M,
    place: Place,
    first: *mut Bucket<A>,
    key: &FlowKey<A>,
    published: bool,
) -> Option<Found<A>> {
    let overflow = overflow(first);
    if overflow == 0 {
        return None;
    }
    let index = place.second();
    let found = find_in(memory.bucket(index)?, index, place.tag, key, published);
    if found.is_some() || overflow >> 32 == 0 {
        return found;
    }
    let index = place.third();
    find_in(memory.bucket(index)?, index, place.tag, key, published)
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

/// Published or pending.
#[inline(always)]
pub(super) fn is_present<A: Address, M: FlowMemory>(
    memory: &M,
    place: Place,
    first: *mut Bucket<A>,
    key: &FlowKey<A>,
) -> bool {
    find_in(first, place.first, place.tag, key, false).is_some()
        || find_beyond(memory, place, first, key, false).is_some()
}
