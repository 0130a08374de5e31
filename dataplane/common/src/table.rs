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
mod insert;
mod line;
mod lookup;
mod place;
mod recovery;
mod removal;
mod single;
mod tags;
#[cfg(test)]
mod tests;

pub use entry::Entry;
pub use insert::{Reserved, insert_forward, insert_pair, release, reserve_reply};
pub use line::LOCK_TRIES;
pub use lookup::{Found, find, find_at, found_at};
pub use place::{Geometry, Place};
pub use recovery::{Recovered, recover};
pub use removal::{Ended, remove};
pub use single::{Scan, insert_single};
use tags::Tags;

use crate::{
    addr::Address,
    flow::{Bucket, FlowEntry},
};
use core::ptr::{addr_of_mut, read_volatile};

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
    /// A flow was removed: its entries are published no more, and their ways are not free yet. `entry`: the client's.
    #[inline(always)]
    fn removed<A: Address>(&self, _at: u32, _entry: Entry<A>, _incarnation: u64) {}
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

/// The ways of one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Ways<A: Address>(*mut Bucket<A>);

impl<A: Address> Ways<A> {
    /// Entry of a way (modulo 16), published or not.
    #[inline(always)]
    pub fn entry(self, way: u32) -> Entry<A> {
        self::way(self.0, way)
    }

    /// Owner of the bucket's lock, 0 = nobody ([`crate::flow::lock`]). Stands beside the tags.
    #[inline(always)]
    pub fn lock(self) -> u64 {
        // SAFETY: the word lies in a live bucket.
        unsafe { read_volatile(addr_of_mut!((*self.0).lock)) }
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
