//! What a process left that died while it wrote.

#![expect(
    unsafe_code,
    reason = "shared memory; every pointer comes from FlowMemory::bucket"
)]

use super::{
    CLAIMED, FlowMemory, Geometry, MARKED, entry_at, is_published,
    line::{lane, tag_word},
    removal::{free_claimed, free_way, unpublish},
    way,
};
use crate::{
    addr::Address,
    flow::{Bucket, lock},
    maps::WAYS,
};
use core::ptr::{addr_of_mut, read_volatile};

/// What was found and put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Locks that were held.
    pub locks: u32,
    /// Entries of flows that were half made or half removed, and ways that were claimed.
    pub entries: u32,
}

/// Undoes what a process that died began to make, ends what it began to remove, and frees its locks. For the process that
/// writes from then on, before it does; programs may run meanwhile. A sweep of the whole table.
///
/// A whole flow stays, whether the dead process returned from making it or not. What may remain is a count of
/// [`Bucket::overflow`] that is one too high: some look-ups read a second tag line in vain.
pub fn recover<A: Address, M: FlowMemory>(memory: &M, geometry: &Geometry) -> Recovered {
    let mut recovered = Recovered::default();
    for index in 0..geometry.buckets {
        let Some(bucket) = memory.bucket::<A>(index) else {
            continue;
        };
        for n in 0..WAYS as u32 {
            recovered.entries += u32::from(recover_way(memory, geometry, bucket, index << 4 | n));
        }
    }
    // Last: as long as a key's bucket is locked, nobody judges what is left of it.
    for index in 0..geometry.buckets {
        if let Some(bucket) = memory.bucket::<A>(index) {
            recovered.locks += u32::from(break_lock(memory, bucket));
        }
    }
    recovered
}

fn recover_way<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    bucket: *mut Bucket<A>,
    at: u32,
) -> bool {
    // SAFETY: a word of a live bucket.
    let tag = unsafe { read_volatile(tag_word(bucket, at)) } & lane(u16::MAX, at);
    if tag == lane(CLAIMED, at) {
        free_claimed(memory, bucket, at);
        return true;
    }
    let entry = way(bucket, at);
    if tag == 0 || entry.incarnation() & MARKED == 0 {
        return false;
    }
    // The other direction, if it was published, or not yet unpublished. Only of the same flow it can name this entry.
    if let Some(partner) = entry_at::<A, M>(memory, entry.partner())
        && is_published(partner.incarnation())
        && partner.partner() == at
        && unpublish(memory, partner, partner.incarnation())
    {
        free_way::<A, M>(memory, entry.partner(), geometry.place(&partner.key()));
    }
    free_way::<A, M>(memory, at, geometry.place(&entry.key()));
    true
}

fn break_lock<A: Address, M: FlowMemory>(memory: &M, bucket: *mut Bucket<A>) -> bool {
    // SAFETY: a word of a live bucket.
    unsafe {
        let word = addr_of_mut!((*bucket).lock);
        let owner = read_volatile(word);
        owner & lock::USER != 0 && memory.exchange(word, owner, 0) == owner
    }
}
