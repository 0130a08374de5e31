//! TCP as far as a flow must know it: loose, since nothing is ever dropped or deleted for its state.
//!
//! ```text
//!            SYN            SYN-ACK, ACK of it          FIN of both, RST
//!   (none) ──────► half-open ──────────────► established ──────────────► closing
//!                     ▲                          ▲   │                      │
//!                     └── SYN-ACK with a new ────┼───┘      segment after RST
//!                         sequence               └─────────────────────────┤
//!                                            SYN: replaced by a new flow ◄─┘
//! ```

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
            own |= seen::RST;
        } else if !reply && flags & (SYN | ACK) == SYN {
            // The server's SYN-ACK decides.
        } else if reply && flags & (SYN | ACK) == SYN | ACK {
            let expected = segment.seq.wrapping_add(1);
            if own & seen::OPENED == 0 || expected != expected_ack {
                own = seen::OPENED;
                other = seen::OPENED;
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
