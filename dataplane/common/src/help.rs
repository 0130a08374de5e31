//! Packets that need more than a program can do: a fragment whose first one is still to come must wait, and one packet
//! too big for its way must become several. User space gets such a packet behind a header of its own, does its part,
//! and runs the program on the result again.
//!
//! ```text
//!  0      6      12     14     15      16     18     20
//!  +------+------+------+------+-------+------+------+---------
//!  | leg's MAC ×2 | type | what | zero  | most | zero | frame …
//!  +------+------+------+------+-------+------+------+---------
//! ```
//!
//! A frame of this type from outside is dropped: nobody else asks.

use crate::{
    addr::Addr,
    counter::Counter,
    miss::is_bad_source,
    packet::Packet,
    permission::may_act,
    phase::Phase,
    refusal,
    tables::{Tables, discard, source_slot},
    wire::eth,
    work::{Step, Work},
};

/// Type of frames for user space, as it stands in the frame: for local experiments (IEEE Std 802, §9.2.3).
pub const ETHERTYPE: u16 = 0x88b5u16.to_be();
/// Length of the header, bytes.
pub const LEN: usize = 20;
/// Where the header says what is wanted, one byte: [`wanted`].
pub const WHAT: usize = 14;
/// Where it says how many bytes a packet may have, two bytes in network byte order.
pub const MOST: usize = 16;

/// What user space is asked for.
pub mod wanted {
    /// Keep a fragment until its first one has come.
    pub const KEEP: u8 = 1;
    /// Fragment an IPv4 packet.
    pub const DIVIDE: u8 = 2;
}

/// What a frame that user space runs the program on carries before it, four bytes in native order. The program leaves
/// the leg to send it by there: its id + 1.
pub mod note {
    /// User space has had it.
    pub const AGAIN: u32 = 1;
    /// And will not have it any more.
    pub const LAST: u32 = 2;
}

/// Hands the packet to user space, unless that has it or has had it for too long. `what`, `most`: see [`wanted`], [`MOST`]. `counted`: if it does; `given_up`: if
/// it may not.
#[inline(always)]
pub fn ask<P: Packet, T: Tables>(
    packet: &mut P,
    work: &Work,
    tables: &T,
    (what, most): (u8, u16),
    counted: Counter,
    given_up: Counter,
) -> Step {
    match packet.note() {
        0 => {}
        note::AGAIN => return Step::Pass,
        _ => return discard(tables, given_up),
    }
    if is_bad_source(work, tables) {
        return discard(tables, Counter::BadSource);
    }
    // One that yields asks as well: its own flows need help as ever, and what waits in vain goes where its first one goes.
    if !may_act(tables, work.leg.group, work.now, &work.arrival, &work.leg) {
        return Step::Next(Phase::Relay);
    }
    if !may_ask(tables, work.arrival.key.saddr, work.now) {
        return discard(tables, Counter::HelpLimited);
    }
    if !packet.move_start(LEN.cast_signed()) {
        return discard(tables, Counter::Internal);
    }
    let Some(header) = packet.window::<LEN>(0) else {
        return discard(tables, Counter::Internal);
    };
    header.set_mac::<{ eth::DST }>(work.leg.mac);
    header.set_mac::<{ eth::SRC }>(work.leg.mac);
    header.set_u16::<{ eth::TYPE }>(ETHERTYPE);
    header.set_u16::<WHAT>(u16::from_ne_bytes([what, 0]));
    header.set_u16::<MOST>(most.to_be());
    header.set_u16::<{ MOST + 2 }>(0);
    tables.count(counted);
    Step::Pass
}

/// True if user space may be asked about one more packet of this sender.
#[inline(always)]
fn may_ask<T: Tables>(tables: &T, addr: Addr, now: u64) -> bool {
    tables.charge(refusal::HELP_BASE + source_slot(addr), now, refusal::HELP_SOURCE)
        && tables.charge(refusal::HELP_ALL, now, refusal::HELP)
}
