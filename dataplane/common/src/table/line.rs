//! The first line of a bucket: its tags, its lock, how many entries live elsewhere.

#![expect(
    unsafe_code,
    reason = "shared memory; every pointer comes from FlowMemory::bucket"
)]

use super::FlowMemory;
use crate::{addr::Address, flow::Bucket};
use core::ptr::{addr_of_mut, read_volatile, write_volatile};

/// Tries to take a bucket's lock before a new flow is given up: a few microseconds, longer than any holder but a
/// suspended process needs.
pub const LOCK_TRIES: u32 = 128;

#[inline(always)]
pub(super) fn overflow<A: Address>(bucket: *mut Bucket<A>) -> u64 {
    // SAFETY: the word lies in a live bucket.
    unsafe { read_volatile(addr_of_mut!((*bucket).overflow)) }
}

#[inline(always)]
pub(super) fn lock<A: Address, M: FlowMemory>(memory: &M, bucket: *mut Bucket<A>, owner: u64) -> bool {
    for _ in 0..LOCK_TRIES {
        // SAFETY: the word lies in a live bucket.
        if unsafe { memory.exchange(addr_of_mut!((*bucket).lock), 0, owner) } == 0 {
            return true;
        }
    }
    false
}

#[inline(always)]
pub(super) fn unlock<A: Address>(bucket: *mut Bucket<A>) {
    // SAFETY: the word lies in a live bucket.
    unsafe { write_volatile(addr_of_mut!((*bucket).lock), 0) };
}

/// The word of the tag line that holds the tag of a way.
#[inline(always)]
pub(super) fn tag_word<A: Address>(bucket: *mut Bucket<A>, way: u32) -> *mut u64 {
    // SAFETY: the tag words lie in a live bucket; the index is below 4.
    unsafe {
        addr_of_mut!((*bucket).tags)
            .cast::<u64>()
            .add((way as usize >> 2) & 3)
    }
}

/// A tag in the lane of a way.
#[inline(always)]
pub(super) const fn lane(tag: u16, way: u32) -> u64 {
    (tag as u64) << ((way & 3) << 4)
}

#[inline(always)]
pub(super) fn add_overflow<A: Address, M: FlowMemory>(memory: &M, bucket: *mut Bucket<A>, n: u64) {
    // SAFETY: the word lies in a live bucket.
    unsafe { memory.add(addr_of_mut!((*bucket).overflow), n) };
}
