//! What the peer is to know: records of the ring buffer `FLOW_TELLS`, and the words of map `FLOW_SYNC`.
//!
//! A program says no more than where to look, and what a flow was that it removed. Records lie in the ring in the order in which
//! they were reserved, so that the end of a flow is read before anything about the next one in its place. Of flows that are not
//! proved ([`is_proved`]) nothing is said: anybody can make and end those.

use crate::{
    addr::Address,
    flow::{FlowEntry, is_proved},
    table::Entry,
    tables::Tables,
};
use core::mem::{offset_of, size_of};

/// Word of `FLOW_SYNC`: 1 = somebody reads the ring, 0 = nothing is written.
pub const LISTENING: u32 = 0;
/// Word of `FLOW_SYNC`: tick (see [`crate::maps::TICK_SHIFT`]) before which no flow was silent, in the lower 32 bits.
pub const FLOOR: u32 = 1;
/// Words of `FLOW_SYNC`.
pub const WORDS: u32 = 2;
/// Words of a record that says where to look: [`place`].
pub const LOOK: usize = 1;
/// Words of a record of an IPv4 flow that was removed: [`place`], then the client's entry.
pub const ENDED4: usize = 1 + size_of::<FlowEntry<u32>>() / 8;
/// The same for IPv6.
pub const ENDED6: usize = 1 + size_of::<FlowEntry>() / 8;

/// The first word of a record: family and location of the client's entry.
#[inline(always)]
pub const fn place(v6: bool, at: u32) -> u64 {
    at as u64 | (v6 as u64) << 32
}

/// Which word of an entry its incarnation is.
#[inline(always)]
pub const fn incarnation_word<A: Address>() -> usize {
    offset_of!(FlowEntry<A>, incarnation) / 8
}

/// Something has happened to a proved flow. `at`: of the client's entry. To be called when it is written.
#[inline(always)]
pub fn look<A: Address, T: Tables>(tables: &T, at: u32) {
    if tables.is_listening() {
        tables.tell_look(place(A::V6, at));
    }
}

/// A flow was removed, and its way is not free yet. `entry`: the client's, without its incarnation.
#[inline(always)]
pub fn ended<A: Address, T: Tables>(tables: &T, at: u32, entry: Entry<A>, incarnation: u64) {
    let proved = is_proved(
        entry.proto(),
        entry.flags(),
        entry.own(),
        entry.other(),
        entry.packets(),
    );
    if proved && tables.is_listening() {
        tables.tell_ended(place(A::V6, at), entry, incarnation);
    }
}
