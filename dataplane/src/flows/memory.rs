//! The mapped buckets as `onearm_dataplane_common::table` wants them.
#![expect(unsafe_code, reason = "the table's shared memory")]

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use onearm_dataplane_common::addr::{Addr4, Address};
use onearm_dataplane_common::flow::{Bucket, FlowEntry};
use onearm_dataplane_common::maps::WAYS;
use onearm_dataplane_common::table::{FlowMemory, is_published, taken_ways};

use crate::mapping::Mapping;

const _: () = assert!(WAYS == 16, "a location has four bits for the way");

/// An entry of the IPv4 table as it lies in memory.
pub(crate) fn entry4(words: [u64; size_of::<FlowEntry<Addr4>>() / 8]) -> FlowEntry {
    // SAFETY: an entry has exactly these words, no padding and no invalid bit pattern (`Pod`).
    unsafe { std::mem::transmute::<[u64; 8], FlowEntry<Addr4>>(words) }.wide()
}

/// An entry of the IPv6 table as it lies in memory.
pub(crate) fn entry6(words: [u64; size_of::<FlowEntry>() / 8]) -> FlowEntry {
    // SAFETY: as above.
    unsafe { std::mem::transmute::<[u64; 16], FlowEntry>(words) }
}

/// Both tables.
#[derive(Debug)]
pub(super) struct Memory {
    four: Mapping,
    six: Mapping,
}

impl Memory {
    pub(super) fn new(four: Mapping, six: Mapping) -> Self {
        Self { four, six }
    }

    fn of<A: Address>(&self) -> &Mapping {
        if A::V6 { &self.six } else { &self.four }
    }

    fn len<A: Address>(&self) -> u32 {
        u32::try_from(self.of::<A>().len() / size_of::<Bucket<A>>()).unwrap_or(u32::MAX)
    }

    /// Locations of the ways of a bucket that are not free.
    pub(super) fn taken<A: Address>(&self, bucket: u32) -> impl Iterator<Item = u32> + use<A> {
        let taken = taken_ways::<A, Self>(self, bucket).unwrap_or_default();
        (0..16_u32)
            .filter(move |way| taken & 1 << way != 0)
            .map(move |way| bucket << 4 | way)
    }

    fn offset<A: Address>(&self, at: u32) -> Option<usize> {
        let (bucket, way) = (at >> 4, at as usize & (WAYS - 1));
        let entries = offset_of!(Bucket<A>, entries);
        (bucket < self.len::<A>())
            .then(|| bucket as usize * size_of::<Bucket<A>>() + entries + way * size_of::<FlowEntry<A>>())
    }

    /// A copy of an entry, word by word; possibly of a flow that ended meanwhile.
    pub(super) fn raw<A: Address>(&self, at: u32) -> Option<FlowEntry> {
        let offset = self.offset::<A>(at)?;
        let word = |n: usize| self.of::<A>().u64(offset + n * 8).load(Ordering::Relaxed);
        Some(if A::V6 {
            entry6(std::array::from_fn(word))
        } else {
            entry4(std::array::from_fn(word))
        })
    }

    /// A whole copy of a published entry: the same flow before and after the copying.
    pub(super) fn published<A: Address>(&self, at: u32) -> Option<FlowEntry> {
        let offset = self.offset::<A>(at)? + offset_of!(FlowEntry<A>, incarnation);
        let incarnation = self.of::<A>().u64(offset);
        let before = incarnation.load(Ordering::Acquire);
        let copy = self.raw::<A>(at)?;
        fence(Ordering::Acquire);
        let after = incarnation.load(Ordering::Relaxed);
        (is_published(before) && before == copy.incarnation && before == after).then_some(copy)
    }
}

// SAFETY: buckets lie in the mapping, which lives as long as `self`; the two operations are sequentially consistent
// atomics on x86-64, where they pair with the programs' own.
unsafe impl FlowMemory for Memory {
    const MORTAL: bool = true;

    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>> {
        let size = size_of::<Bucket<A>>();
        (index < self.len::<A>()).then(|| self.of::<A>().slice_ptr(index as usize * size, size).cast())
    }

    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64 {
        // SAFETY: the caller passes an aligned word of a bucket, which lives as long as the mapping.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|found| found)
    }

    unsafe fn add(&self, word: *mut u64, n: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(word) }.fetch_add(n, Ordering::SeqCst);
    }
}
