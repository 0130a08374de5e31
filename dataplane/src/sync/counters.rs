//! What flow sync counts since its process started.

use serde::{Deserialize, Serialize};

use super::{Lag, Refused};

/// Counters of flow sync; they only grow, except where said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Flows both nodes are known to have, now.
    pub flows: u64,
    /// Flows, and changes of them, the peer was told.
    pub told: u64,
    /// Ends the peer was told.
    pub ends_told: u64,
    /// Bodies sent.
    pub bodies: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Events the programs had no room for; an audit found what they meant.
    pub events_lost: u64,
    /// Looks for which the queue had no room; an audit found what they meant.
    pub looks_dropped: u64,
    /// Ends for which the queue had no room; a repair tells of them.
    pub ends_dropped: u64,
    /// Ends that never came: a flow was gone, or another in its place. A repair tells of them.
    pub ends_missed: u64,
    /// Comparisons of all classes.
    pub comparisons: u64,
    /// Repairs begun.
    pub repairs: u64,
    /// Classes they were of.
    pub repaired_classes: u64,
    /// Flows they named.
    pub repaired: u64,
    /// Walks over the whole table.
    pub audits: u64,
    /// Streams begun, here or by the peer.
    pub streams: u64,
    /// The peer's flows and changes of them, applied.
    pub applied: u64,
    /// The peer's ends, applied.
    pub ends_applied: u64,
    /// The peer's ends of flows that were not here.
    pub ends_unknown: u64,
    /// Flows that had to go for the peer's.
    pub displaced: u64,
    /// Flows removed by a repair, since their owner did not name them.
    pub unnamed: u64,
    /// Unproved flows ended, since they are not this node's.
    pub unproved: u64,
    /// Records that make no sense.
    pub malformed: u64,
    /// Records and bodies of kinds this release does not know.
    pub unknown: u64,
    /// Bodies of another stream, or of one that is not listened to.
    pub stale: u64,
    /// Bodies that came again.
    pub repeated: u64,
    /// Times that bodies of a stream were missing.
    pub gaps: u64,
    /// Flows there was no room for.
    pub full: u64,
    /// Flows that are newer here.
    pub older: u64,
    /// Flows that a fresher one here beats.
    pub live_here: u64,
    /// Flows that a program was in the way of.
    pub contended: u64,
    /// From the event to the acknowledgement.
    pub lag: Lag,
}

impl Counters {
    pub(crate) fn refused(&mut self, why: Refused) {
        match why {
            Refused::Full => self.full += 1,
            Refused::Older => self.older += 1,
            Refused::LiveHere => self.live_here += 1,
            Refused::Contended => self.contended += 1,
            Refused::Invalid(_) => self.malformed += 1,
        }
    }
}
