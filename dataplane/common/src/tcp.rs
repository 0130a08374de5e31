//! TCP as far as a flow must know it: loose, since nothing is ever dropped or deleted for its state.
//!
//! ```text
//!            SYN            SYN-ACK, ACK of it      FIN of both, believed RST
//!   (none) ──────► half-open ──────────────► established ──────────────► closing
//!                                                ▲                          │
//!                                                └── segment after the RST ─┤
//!                                            SYN: replaced by a new flow ◄──┘
//! ```
//!
//! Strangers who know the addresses and ports, but not the sequence numbers, can shorten no life: what was established
//! stays so whatever SYN or SYN-ACK comes, and a RST on it is believed only next to what the other side has
//! acknowledged ([`is_believable`]). Every segment goes on to its receiver, who judges it by the RFCs.

use crate::{
    flow::{State, seen, state},
    maps::proto::TCP,
    wire::tcp::{ACK, FIN, RST, SYN},
};

/// What tracking needs of a segment; numbers in native order.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Flags.
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Of a RST: see [`is_believable`].
    pub believable: bool,
}

/// What the flow knew, and knows after a segment, from the sender's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knowledge {
    /// [`seen`] bits of the sender's direction.
    pub own: u8,
    /// [`seen`] bits of the other direction.
    pub other: u8,
    /// See [`crate::flow::FlowEntry4::expected_ack`].
    pub expected_ack: u32,
}

/// How far ahead of the other side's last acknowledgement the sequence number of a RST may be: a few segments may be on
/// their way. A blind one is believed once in 2^18.
pub const RST_WINDOW: u32 = 1 << 14;

/// True if a RST with this sequence number may end an established connection. `acknowledged`: the last acknowledgement of
/// the side it is sent to ([`crate::flow::FlowEntry4::expected_ack`] of its entry). RFC 5961 §3.2 asks for equality, which
/// the receiver judges by what has reached it; here that may still be on its way.
#[inline(always)]
pub const fn is_believable(seq: u32, acknowledged: u32) -> bool {
    seq.wrapping_sub(acknowledged) < RST_WINDOW
}

/// True if an acknowledgement is beyond another.
#[inline(always)]
const fn is_ahead(ack: u32, of: u32) -> bool {
    ack.wrapping_sub(of).cast_signed() > 0
}

/// A client's opening SYN.
#[inline(always)]
pub const fn is_opening(flags: u8) -> bool {
    flags & (SYN | ACK | RST | FIN) == SYN
}

impl Knowledge {
    /// Coarse state.
    #[inline(always)]
    pub const fn state(&self, reply: bool) -> State {
        if reply {
            state(TCP, self.other, self.own)
        } else {
            state(TCP, self.own, self.other)
        }
    }

    /// The client has once acknowledged the server's SYN-ACK.
    #[inline(always)]
    pub const fn is_confirmed(&self, reply: bool) -> bool {
        let client = if reply { self.other } else { self.own };
        client & seen::CONFIRMED != 0
    }

    /// Knowledge after a segment. An opening SYN changes nothing: see [`is_opening`].
    #[inline(always)]
    #[must_use]
    pub const fn after(self, reply: bool, segment: Segment) -> Self {
        let Self {
            mut own,
            mut other,
            mut expected_ack,
        } = self;
        let flags = segment.flags;
        if flags & RST != 0 {
            if segment.believable || !self.is_confirmed(reply) {
                own |= seen::RST;
            }
        } else if !reply && flags & (SYN | ACK) == SYN {
            // The server's SYN-ACK decides.
        } else if reply && flags & (SYN | ACK) == SYN | ACK {
            let expected = segment.seq.wrapping_add(1);
            if self.is_confirmed(true) {
                // Repeated, or the server has begun anew. The flow is not half-open again: a forged SYN-ACK would take
                // the long time-out away.
                if own & other & seen::FIN == 0 {
                    own = seen::OPENED;
                    other = seen::OPENED | seen::CONFIRMED | other & seen::COUNTED;
                }
            } else if own & seen::OPENED == 0 || expected != expected_ack {
                own = seen::OPENED;
                other = seen::OPENED | other & seen::COUNTED;
                expected_ack = expected;
            }
        } else {
            own &= !seen::RST;
            other &= !seen::RST;
            if !reply && flags & ACK != 0 && other & seen::OPENED != 0 && segment.ack == expected_ack {
                own |= seen::CONFIRMED;
            }
            if flags & FIN != 0 && own & seen::FIN == 0 {
                own |= if other & seen::FIN == 0 {
                    seen::FIN | seen::FIN_FIRST
                } else {
                    seen::FIN
                };
            } else if own & other & seen::FIN != 0 && is_ahead(segment.ack, expected_ack) {
                // It acknowledges more than its FIN did: the FINs have met on the way, and this side keeps TIME-WAIT, too.
                own |= seen::FIN_FIRST;
            }
        }
        Self {
            own,
            other,
            expected_ack,
        }
    }
}

#[cfg(test)]
mod tests;
