//! Where a key may live.

use crate::{addr::Address, flow::FlowKey};

/// Hash key and size of the table, from [`crate::maps::Node`].
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// [`crate::maps::Node::flow_hash_key`].
    pub key: [u64; 2],
    /// [`crate::maps::Node::flow_bucket_mask`] or [`crate::maps::Node::flow6_bucket_mask`].
    pub mask: u32,
}

/// Where a key may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First candidate bucket; its lock guards the key.
    pub first: u32,
    /// Second candidate bucket; differs from the first if there is more than one.
    pub second: u32,
    /// Tag, 1 to 2^15.
    pub tag: u16,
}

impl Place {
    /// The way an entry takes if it is free. Most entries are there, and a look-up that starts there touches one line.
    #[inline(always)]
    pub const fn likely_way(&self) -> u32 {
        self.tag as u32 & 15
    }
}

impl Geometry {
    /// Candidates of a key.
    #[inline(always)]
    pub fn place<A: Address>(&self, key: &FlowKey<A>) -> Place {
        let hash = key.hash(self.key);
        let first = hash as u32 & self.mask;
        let second = (hash >> 24) as u32 & self.mask;
        let second = if second == first {
            (second ^ 1) & self.mask
        } else {
            second
        };
        Place {
            first,
            second,
            tag: (hash >> 49) as u16 + 1,
        }
    }
}
