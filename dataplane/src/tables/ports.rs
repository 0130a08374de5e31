//! Ranges of ports as aligned blocks, each one prefix of the LPM trie `SERVICES`.

use std::ops::RangeInclusive;

/// An aligned block of ports: `first` and the number of leading bits (0 to 16) all its ports share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) first: u16,
    pub(crate) bits: u32,
}

/// The fewest aligned blocks that make up the range, ascending. At most 30.
pub(crate) fn blocks(range: &RangeInclusive<u16>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut at, end) = (u32::from(*range.start()), u32::from(*range.end()));
    while at <= end {
        let aligned = if at == 0 { 16 } else { at.trailing_zeros().min(16) };
        let fits = (end - at + 1).ilog2();
        let zeros = aligned.min(fits);
        blocks.push(Block {
            first: u16::try_from(at).unwrap_or(u16::MAX),
            bits: 16 - zeros,
        });
        at += 1 << zeros;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::{Block, blocks};
    use proptest::prelude::*;

    #[test]
    fn a_single_port_is_one_block_of_sixteen_bits() {
        assert_eq!(blocks(&(80..=80)), [Block { first: 80, bits: 16 }]);
        assert_eq!(
            blocks(&(65_535..=65_535)),
            [Block {
                first: 65_535,
                bits: 16
            }]
        );
        assert_eq!(blocks(&(0..=65_535)), [Block { first: 0, bits: 0 }]);
        assert_eq!(blocks(&(1..=65_535)).len(), 16);
    }

    proptest! {
        #[test]
        fn blocks_are_aligned_apart_and_cover_exactly_the_range(a in any::<u16>(), b in any::<u16>()) {
            let range = a.min(b)..=a.max(b);
            let mut next = u32::from(*range.start());
            let blocks = blocks(&range);
            prop_assert!(blocks.len() <= 30);
            for block in blocks {
                let size = 1_u32 << (16 - block.bits);
                prop_assert_eq!(u32::from(block.first), next);
                prop_assert_eq!(u32::from(block.first) % size, 0);
                next += size;
            }
            prop_assert_eq!(next, u32::from(*range.end()) + 1);
        }
    }
}
