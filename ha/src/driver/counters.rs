//! Counters of received frames and of the thread itself.

use serde::{Deserialize, Serialize};

use crate::wire::ParseError;

/// Frames that were received and not used, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireCounters {
    /// Shorter than they claim (B22), or not the kind of frame the socket asked for.
    pub malformed: u64,
    /// Wrong IPv4 header checksum, or a fragment.
    pub bad_ip: u64,
    /// Wrong VRRP or ICMPv6 checksum (B21).
    pub bad_checksum: u64,
    /// TTL or hop limit other than 255: from beyond a router, or forged there.
    pub bad_ttl: u64,
    /// VRRP version other than 3.
    pub bad_version: u64,
    /// Packet type, router id, interval or number of addresses outside the protocol.
    pub bad_field: u64,
    /// Of another virtual router, or of a family this node sends no adverts in; no fault.
    pub other_vrid: u64,
    /// Addressed neither to the group nor to this node.
    pub misdirected: u64,
    /// Adverts of the peer lost because the socket's buffer was full.
    pub peer_frames_lost: u64,
    /// Other frames lost because the socket's buffer was full.
    pub other_frames_lost: u64,
}

impl WireCounters {
    pub(super) fn count(&mut self, error: ParseError) {
        let counter = match error {
            ParseError::Truncated { .. }
            | ParseError::EtherType(_)
            | ParseError::NotIpv4(_)
            | ParseError::NotIpv6(_)
            | ParseError::Protocol(_)
            | ParseError::ArpKind
            | ParseError::NdKind(_)
            | ParseError::NdField => &mut self.malformed,
            ParseError::HeaderChecksum | ParseError::Fragment => &mut self.bad_ip,
            ParseError::Checksum => &mut self.bad_checksum,
            ParseError::Ttl(_) => &mut self.bad_ttl,
            ParseError::Version(_) => &mut self.bad_version,
            ParseError::PacketType(_) | ParseError::Vrid | ParseError::Interval | ParseError::NoAddress => {
                &mut self.bad_field
            }
        };
        *counter += 1;
    }
}

/// What the thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCounters {
    /// Turns of the loop.
    pub turns: u64,
    /// Longest time between two turns, nanoseconds. At most about 20 ms unless the machine stalled.
    pub longest_gap_nanos: u64,
    /// Writes into the lease cell.
    pub lease_writes: u64,
    /// Messages to the main process that did not fit.
    pub messages_dropped: u64,
    /// Packets from the main process that were none of ours.
    pub messages_not_understood: u64,
    /// Announcements held back because the lease had ended by the time of sending.
    pub announcements_held_back: u64,
    /// ARP and ND questions for the peer that could not be sent (unicast).
    pub questions_failed: u64,
    /// Times the leg's sockets were opened.
    pub legs_opened: u64,
    /// Errors of reading the leg's sockets.
    pub read_errors: u64,
}
