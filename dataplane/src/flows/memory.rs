//! The mapped buckets as `onearm_dataplane_common::table` wants them.
#![expect(unsafe_code, reason = "the table's shared memory")]

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use onearm_dataplane_common::flow::{Bucket4, FlowEntry4};
use onearm_dataplane_common::maps::WAYS;
use onearm_dataplane_common::table::{FlowMemory, taken_ways};

use crate::mapping::Mapping;

const BUCKET: usize = size_of::<Bucket4>();
const ENTRY: usize = size_of::<FlowEntry4>();
const ENTRIES: usize = offset_of!(Bucket4, entries);
const _: () = assert!(WAYS == 16, "a location has four bits for the way");
const INCARNATION: usize = offset_of!(FlowEntry4, incarnation);

#[derive(Debug)]
pub(super) struct Memory(Mapping);

impl Memory {
    pub(super) fn new(buckets: Mapping) -> Self {
        Self(buckets)
    }

    fn len(&self) -> u32 {
        u32::try_from(self.0.len() / BUCKET).unwrap_or(u32::MAX)
    }

    /// Locations of the ways of a bucket that are not free.
    pub(super) fn taken(&self, bucket: u32) -> impl Iterator<Item = u32> + use<> {
        let taken = taken_ways(self, bucket).unwrap_or_default();
        (0..16_u32)
            .filter(move |way| taken & 1 << way != 0)
            .map(move |way| bucket << 4 | way)
    }

    fn offset(&self, at: u32) -> Option<usize> {
        let (bucket, way) = (at >> 4, at as usize & (WAYS - 1));
        (bucket < self.len()).then(|| bucket as usize * BUCKET + ENTRIES + way * ENTRY)
    }

    /// A copy of an entry, word by word; possibly of a flow that ended meanwhile.
    pub(super) fn raw(&self, at: u32) -> Option<FlowEntry4> {
        let offset = self.offset(at)?;
        let mut words = [0_u64; ENTRY / 8];
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.0.u64(offset + n * 8).load(Ordering::Relaxed);
        }
        // SAFETY: an entry has exactly these eight words, no padding and no invalid bit pattern (`Pod`).
        Some(unsafe { std::mem::transmute::<[u64; ENTRY / 8], FlowEntry4>(words) })
    }

    /// A whole copy of a published entry: the same flow before and after the copying.
    pub(super) fn published(&self, at: u32) -> Option<FlowEntry4> {
        let incarnation = self.0.u64(self.offset(at)? + INCARNATION);
        let before = incarnation.load(Ordering::Acquire);
        let copy = self.raw(at)?;
        fence(Ordering::Acquire);
        let after = incarnation.load(Ordering::Relaxed);
        (before != 0 && before == copy.incarnation && before == after).then_some(copy)
    }
}

// SAFETY: buckets lie in the mapping, which lives as long as `self`; the two operations are sequentially consistent
// atomics on x86-64, where they pair with the programs' own.
unsafe impl FlowMemory for Memory {
    fn bucket(&self, index: u32) -> Option<*mut Bucket4> {
        (index < self.len()).then(|| self.0.slice_ptr(index as usize * BUCKET, BUCKET).cast())
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
