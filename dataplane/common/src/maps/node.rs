//! The node and its legs.

use super::{Addr, LEG_PROBES, LEG_SLOTS, Mac};

/// Map `NODE`, one entry: what the programs must know of this node. Written by user space only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Key of the flow table's hash, random per boot.
    pub flow_hash_key: [u64; 2],
    /// Key of the Maglev hash, the same on both nodes of a pair.
    pub pair_hash_key: [u64; 2],
    /// Buckets of `FLOWS4`.
    pub flow_buckets: u32,
    /// Buckets of `FLOWS6`.
    pub flow6_buckets: u32,
    /// Most half-open flows at one time.
    pub half_open_budget: u32,
    /// 1 while the peer is known to be the Active: stray frames are relayed to it. 0: they are dropped, unless
    /// [`crate::permission`] says otherwise.
    ///
    /// Map `HALF_OPEN` (array of one `u64`) counts the half-open flows; user space may correct it at a sweep.
    pub relay_to_peer: u32,
    /// Half-open time-out in ticks.
    pub half_open_ticks: u32,
    /// Time-out after FIN of both sides or RST, in ticks.
    pub closing_ticks: u32,
    /// Most entries of a bucket that are affinities of servers which answer their clients themselves; 0 = none is kept.
    pub dsr_ways: u32,
    /// Buckets of `CLIENT_SERVERS` minus one; the number of buckets is a power of two.
    pub client_bucket_mask: u32,
    /// Incarnation of flows made here: node id << 56 | epoch << 40; the program adds a counter.
    pub incarnation_base: u64,
    /// Where the search for a source port starts in this node's half: moved at each epoch. Any number.
    pub snat_shift: u64,
}

/// Where a frame came from: decides where its leg may stand in map `LEGS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LegKey {
    /// Kernel interface index.
    pub ifindex: u32,
    /// VLAN id, native order; 0 = untagged.
    pub vlan: u16,
    /// Explicit padding, zero.
    pub _pad: u16,
}

impl LegKey {
    /// Indexes into `LEGS` where the leg may stand. Legs without tags, whose interfaces have numbers near each other, stand
    /// at the first.
    #[inline(always)]
    pub const fn slots(&self) -> [u32; LEG_PROBES] {
        let first = self.ifindex.wrapping_add((self.vlan as u32).wrapping_mul(67));
        let mask = LEG_SLOTS - 1;
        [
            first & mask,
            first.wrapping_add(1) & mask,
            first.wrapping_add(2) & mask,
            first.wrapping_add(3) & mask,
        ]
    }

    /// As one word.
    #[inline(always)]
    pub const fn word(&self) -> u64 {
        self.ifindex as u64 | (self.vlan as u64) << 32
    }
}

/// Value of map `LEGS` (array). Words are written whole: first those of the leg, then that of the key.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegSlot {
    /// The leg.
    pub leg: Leg,
    /// [`LegKey::word`] of it; 0 = none stands here.
    pub key: u64,
    /// Explicit padding, zero.
    pub _pad: [u64; 7],
}

/// A leg, as [`LegSlot`] holds it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leg {
    /// MAC of the interface: source of every frame sent here.
    pub mac: Mac,
    /// Index of the leg in the node's configuration, 0-based.
    pub id: u8,
    /// Ownership group whose lease guards the leg; 0 in this build.
    pub group: u8,
    /// The node's own IPv4 address on the leg; none: [`Addr::NONE`].
    pub addr: Addr,
    /// The node's own global or unique local IPv6 address on the leg; none: [`Addr::NONE`].
    pub addr6: Addr,
    /// The link-local address of the interface; none: [`Addr::NONE`].
    pub link_local: Addr,
    /// MAC of the peer's leg, learned from the stream or its adverts; all zero = unknown.
    pub peer_mac: Mac,
    /// Largest IP packet, bytes; 65,535 for anything above.
    pub mtu: u16,
}
