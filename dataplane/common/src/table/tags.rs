//! The tag line: sixteen 16-bit tags compared four at a time.

#![expect(unsafe_code, reason = "shared memory")]

use crate::{addr::Address, flow::Bucket, maps::WAYS};
use core::ptr::{addr_of_mut, read_volatile};

const LOW: u64 = 0x0001_0001_0001_0001;
const ALL_BUT_HIGH: u64 = 0x7fff_7fff_7fff_7fff;

/// A copy of the tags of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tags([u64; WAYS / 4]);

impl Tags {
    /// Reads the tags of a live bucket, word by word.
    #[inline(always)]
    pub(super) fn read<A: Address>(bucket: *mut Bucket<A>) -> Self {
        // SAFETY: the bucket is live (see FlowMemory); four aligned words.
        unsafe {
            let words = addr_of_mut!((*bucket).tags).cast::<u64>();
            Self([
                read_volatile(words),
                read_volatile(words.add(1)),
                read_volatile(words.add(2)),
                read_volatile(words.add(3)),
            ])
        }
    }

    /// Bit n = way n has this tag.
    #[inline(always)]
    pub(super) const fn equal_to(self, tag: u16) -> u32 {
        let pattern = tag as u64 * LOW;
        let words = &self.0;
        zero_lanes(words[0] ^ pattern)
            | zero_lanes(words[1] ^ pattern) << 4
            | zero_lanes(words[2] ^ pattern) << 8
            | zero_lanes(words[3] ^ pattern) << 12
    }

    /// Bit n = way n is free.
    #[inline(always)]
    pub(super) const fn free(self) -> u32 {
        self.equal_to(0)
    }
}

/// Exact: bit n = lane n is zero.
#[inline(always)]
const fn zero_lanes(word: u64) -> u32 {
    let high = !(((word & ALL_BUT_HIGH) + ALL_BUT_HIGH) | word | ALL_BUT_HIGH);
    // Bits 0, 16, 32, 48 gathered into the lowest four by one multiplication.
    (((high >> 15).wrapping_mul(0x0001_0002_0004_0008) >> 48) & 0xf) as u32
}

/// Index of the lowest set bit of a non-zero 16-bit mask. Without branches: the verifier would follow each of them.
#[inline(always)]
pub(super) const fn lowest(mask: u32) -> u32 {
    count((mask & mask.wrapping_neg()).wrapping_sub(1) & 0xffff)
}

/// Number of set bits of a 16-bit mask.
#[inline(always)]
pub(super) const fn count(mask: u32) -> u32 {
    let pairs = mask - ((mask >> 1) & 0x5555);
    let nibbles = (pairs & 0x3333) + ((pairs >> 2) & 0x3333);
    let bytes = (nibbles + (nibbles >> 4)) & 0x0f0f;
    (bytes + (bytes >> 8)) & 0x1f
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn masks_equal_a_loop_over_the_ways(tags in prop::array::uniform16(0u16..4), tag in 0u16..4, high in any::<[bool; 16]>()) {
            let tags: std::vec::Vec<u16> = tags.iter().zip(high).map(|(t, h)| if h { t | 0x8000 } else { *t }).collect();
            let mut words = [0u64; 4];
            for (i, t) in tags.iter().enumerate() {
                words[i / 4] |= u64::from(*t) << (16 * (i % 4));
            }
            for tag in [tag, tag | 0x8000] {
                let want: u32 = tags.iter().enumerate().map(|(i, t)| u32::from(*t == tag) << i).sum();
                let mask = Tags(words).equal_to(tag);
                prop_assert_eq!(mask, want);
                prop_assert_eq!(count(mask), want.count_ones());
                if mask != 0 {
                    prop_assert_eq!(lowest(mask), mask.trailing_zeros());
                }
            }
        }
    }
}
