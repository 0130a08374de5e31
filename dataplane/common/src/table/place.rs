//! Where a key may live: in three buckets, of which the second is needed when the first is well filled, the third when both are full.

use crate::{addr::Address, flow::FlowKey, hash::below};

/// Hash key and size of the table, from [`crate::maps::Node`].
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// [`crate::maps::Node::flow_hash_key`].
    pub key: [u64; 2],
    /// Any number from 1 to [`crate::maps::MAX_FLOW_BUCKETS`]: [`crate::maps::Node::flow_buckets`] or
    /// [`crate::maps::Node::flow6_buckets`].
    pub buckets: u32,
}

/// Where a key may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First candidate bucket; its lock guards the key.
    pub first: u32,
    /// Tag, 1 to 2^15.
    pub tag: u16,
    /// Hash of the key, from which the rest follows.
    pub hash: u64,
    buckets: u32,
}

impl Place {
    /// The ways of which an entry takes the first that is free. Nearly all entries are there, and a look-up that starts
    /// there does without the tags.
    #[inline(always)]
    pub const fn likely_ways(&self) -> [u32; 2] {
        let first = self.tag as u32 & 15;
        [first, first ^ 1]
    }

    /// Second candidate bucket: in the half of the table in which the first one is not, so that it differs from it if
    /// there is more than one.
    #[inline(always)]
    pub const fn second(&self) -> u32 {
        let half = self.buckets >> 1;
        if self.first < half {
            half + below(self.hash, self.buckets - half)
        } else {
            below(self.hash, half)
        }
    }

    /// Third candidate bucket: anywhere, possibly one of the others.
    #[inline(always)]
    pub const fn third(&self) -> u32 {
        below(self.hash.wrapping_mul(0x9e37_79b9_7f4a_7c15), self.buckets)
    }

    /// What an entry in `bucket`, which is a candidate, adds to [`crate::flow::Bucket::overflow`] of the first.
    #[inline(always)]
    pub const fn beyond(&self, bucket: u32) -> u64 {
        if bucket == self.first {
            0
        } else if bucket == self.second() {
            1
        } else {
            1 << 32
        }
    }
}

impl Geometry {
    /// Candidates of a key.
    #[inline(always)]
    pub fn place<A: Address>(&self, key: &FlowKey<A>) -> Place {
        self.of_hash(key.hash(self.key))
    }

    /// Candidates of a key whose [`Place::hash`] is known.
    #[inline(always)]
    pub const fn of_hash(&self, hash: u64) -> Place {
        Place {
            first: below(hash << 32, self.buckets),
            // Of bits that decide about no candidate alone.
            tag: ((hash ^ hash >> 32) as u16 & 0x7fff) + 1,
            hash,
            buckets: self.buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use std::vec;

    fn place(buckets: u32, n: u32) -> Place {
        let geometry = Geometry { key: [1, 2], buckets };
        geometry.place(&FlowKey::new(6, Addr::v4(n), 1, Addr::v4(2), 3))
    }

    #[test]
    fn candidates_lie_in_the_table_and_the_first_two_differ() {
        for buckets in [
            1,
            2,
            3,
            146,
            7_353,
            65_536,
            588_235,
            crate::maps::MAX_FLOW_BUCKETS,
        ] {
            for n in 0..10_000 {
                let place = place(buckets, n);
                assert!(place.first < buckets && place.second() < buckets && place.third() < buckets);
                assert!(place.first != place.second() || buckets == 1);
                assert!((1..=1 << 15).contains(&place.tag));
            }
        }
    }

    /// Four standard deviations of 1,000 or of 100 a cell.
    #[test]
    fn keys_spread_evenly_and_the_candidates_of_one_bucket_over_all_of_the_other_half() {
        let buckets = 1_001;
        let (mut first, mut second, mut third) = (vec![0; 1_001], vec![0; 1_001], vec![0; 1_001]);
        let (mut partner, mut tags) = (vec![0; 1_001], vec![0; 16]);
        for n in 0..1_001_000 {
            let place = place(buckets, n);
            first[place.first as usize] += 1;
            second[place.second() as usize] += 1;
            third[place.third() as usize] += 1;
            if place.first < 50 {
                partner[place.second() as usize] += 1;
            }
            if place.first == 7 {
                tags[place.likely_ways()[0] as usize] += 1;
            }
        }
        for spread in [first, second, third] {
            assert!(spread.iter().all(|n| (850..1_150).contains(n)), "{spread:?}");
        }
        assert!(
            partner[500..].iter().all(|n| (55..150).contains(n)),
            "{partner:?}"
        );
        assert!(partner[..500].iter().all(|n| *n == 0));
        assert!(tags.iter().all(|n| (30..100).contains(n)), "{tags:?}");
    }
}
