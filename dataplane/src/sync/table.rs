//! What flow sync asks of a flow table.

use std::ops::Range;
use std::time::Duration;

use onearm_dataplane_common::flow::FlowKey;

use super::{Place, Record};

/// A flow table as flow sync sees it. Programs write it at the same time; nobody else does.
pub trait Table {
    /// How far [`Place::at`] goes in the table of one family, exclusive: 16 for each bucket.
    fn places(&self, v6: bool) -> u32;
    /// The flow whose forward entry is published there, whole, with what its partner knows.
    fn read(&self, place: Place) -> Option<Record>;
    /// How long the flow there must have carried traffic before the peer is told of it; zero = it is told at once,
    /// `None` = never.
    fn sync_after(&self, place: Place) -> Option<Duration>;
    /// Where forward entries are in these buckets; those of IPv4 come first, those of IPv6 are counted on from there.
    fn forward_places(&self, buckets: Range<u32>) -> impl Iterator<Item = Place>;
    /// Makes the flow, or brings the one of the same incarnation up to date. `now_ns` is CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// [`Refused`]: the table is as it was; but a flow that was beaten is gone, should there then be no room, or a program in the way.
    fn put(&self, record: &Record, now_ns: u64) -> Result<Put, Refused>;
    /// Removes the flow if it is of this incarnation; where it was.
    fn end(&self, key: &FlowKey, incarnation: u64) -> Option<Place>;
    /// From now on no flow counts as silent since before this time (CLOCK_MONOTONIC, ns).
    fn set_floor(&self, now_ns: u64);
}

/// What [`Table::put`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Where the flow is.
    pub place: Place,
    /// Flows that had its keys, or its place, and are gone.
    pub displaced: [Option<(Place, Record)>; 2],
    /// It was not there before.
    pub fresh: bool,
}

/// Why [`Table::put`] did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room.
    Full,
    /// The one here is newer.
    Older,
    /// A fresher one here beats it.
    LiveHere,
    /// A program was in the way for too long.
    Contended,
    /// It contradicts itself.
    Invalid(&'static str),
}
