//! Who may act for a group on a packet: who holds its lease, or whom the owner lets, for a moment, during a hand-over.
//!
//! Map `LEASE` has three words a group, each a moment of CLOCK_MONOTONIC that is over when it is reached, so that whatever
//! dies, everything ends by itself:
//!
//! | index | until then this node |
//! |---|---|
//! | group | owns; bit [`YIELDING`]: makes no flows, what would make one goes to the peer |
//! | [`MAX_GROUPS`] + group | is *armed*: acts on what the owner passes on to it, and on nothing else |
//! | 2 × [`MAX_GROUPS`] + group | passes on what is not its own to the peer, whatever the main process knows of it |

use crate::{
    maps::{Leg, MAX_GROUPS, Mac},
    packet::mac_number,
    tables::Tables,
    work::Arrival,
};

/// Words of map `LEASE`.
pub const LEASE_WORDS: u32 = 3 * MAX_GROUPS;
/// First word of those that arm.
pub const ARMED_BASE: u32 = MAX_GROUPS;
/// First word of those that relay.
pub const RELAYING_BASE: u32 = 2 * MAX_GROUPS;
/// Bit of a lease's deadline: its holder makes no flows. One nanosecond is nothing to a deadline.
pub const YIELDING: u64 = 1;

/// Whether this node may act on a packet of the group.
#[inline(always)]
pub fn may_act<A, T: Tables>(tables: &T, group: u8, now: u64, arrival: &Arrival<A>, leg: &Leg) -> bool {
    now < tables.lease(group) || is_granted(tables, group, now, arrival.src_mac, leg)
}

/// Whether this node owns, but leaves to the peer what it has no flow for; not what the peer passed on itself.
#[inline(always)]
pub fn yields<T: Tables>(tables: &T, group: u8, now: u64, src_mac: Mac, leg: &Leg) -> bool {
    let lease = tables.lease(group);
    lease & YIELDING != 0 && now < lease && !is_of_peer(src_mac, leg)
}

/// Whether the packet is from the peer, the owner that armed this node for the moment.
#[inline(always)]
pub fn is_granted<T: Tables>(tables: &T, group: u8, now: u64, src_mac: Mac, leg: &Leg) -> bool {
    is_of_peer(src_mac, leg) && now < tables.armed(group)
}

/// Whether the peer sent the frame, as far as that can be told.
#[inline(always)]
pub const fn is_of_peer(src_mac: Mac, leg: &Leg) -> bool {
    let peer = mac_number(leg.peer_mac);
    peer != 0 && mac_number(src_mac) == peer
}
