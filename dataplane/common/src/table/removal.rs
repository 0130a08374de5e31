//! Ending a flow, and giving its ways back.

#![expect(
    unsafe_code,
    reason = "shared memory; every pointer comes from FlowMemory::bucket"
)]

use super::{
    CLAIMED, Entry, FlowMemory, Geometry, MARKED, Place, entry_at, is_published,
    line::{add_overflow, lane, tag_word},
    way,
};
use crate::{
    addr::Address,
    flow::{Bucket, State, seen},
    maps::Addr,
};

/// What a flow was when it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its last state.
    pub state: State,
    /// [`crate::flow::FlowEntry::server`].
    pub server: u16,
    /// [`crate::flow::FlowEntry::stats`].
    pub stats: u16,
    /// It was an affinity of a server that answers its clients itself.
    pub direct: bool,
    /// The client, if the flow counted towards its `max_per_source` to the end.
    pub counted: Option<Addr>,
}

/// Removes the flow that has an entry (of either direction) at `at`, if it still is `incarnation`. Tells the one caller
/// that removed it what it was.
#[inline(always)]
pub fn remove<A: Address, M: FlowMemory>(
    memory: &M,
    geometry: &Geometry,
    at: u32,
    incarnation: u64,
) -> Option<Ended> {
    if !is_published(incarnation) {
        return None;
    }
    let here = entry_at::<A, M>(memory, at)?;
    let partner = here.partner();
    let flags = here.flags();
    let reply_here = flags & crate::flow::flags::REPLY != 0;
    let (forward_at, reply_at) = if reply_here { (partner, at) } else { (at, partner) };
    let forward = entry_at::<A, M>(memory, forward_at)?;
    let reply = entry_at::<A, M>(memory, reply_at)?;
    if !unpublish(memory, forward, incarnation) {
        return None;
    }
    let (client, server) = (forward.own(), forward.other());
    let (key, reply_key) = (forward.key(), reply.key());
    let (of_server, stats) = (forward.server(), forward.stats());
    memory.removed(forward_at, forward, incarnation);
    if unpublish(memory, reply, incarnation) {
        free_way::<A, M>(memory, reply_at, geometry.place(&reply_key));
    }
    free_way::<A, M>(memory, forward_at, geometry.place(&key));
    let state = crate::flow::state(key.proto, client, server);
    let counted = client & seen::COUNTED != 0 && state != State::Closing;
    Some(Ended {
        state,
        server: of_server,
        stats,
        direct: flags & crate::flow::flags::DIRECT != 0,
        counted: counted.then_some(key.saddr.wide()),
    })
}

#[inline(always)]
pub(super) fn unpublish<A: Address, M: FlowMemory>(memory: &M, entry: Entry<A>, incarnation: u64) -> bool {
    let after = if M::MORTAL { incarnation | MARKED } else { 0 };
    // SAFETY: the word lies in a live bucket.
    unsafe { memory.exchange(entry.incarnation_word(), incarnation, after) == incarnation }
}

/// Gives a way back whose entry is published no more.
#[inline(always)]
pub(super) fn free_way<A: Address, M: FlowMemory>(memory: &M, at: u32, place: Place) {
    let Some(bucket) = memory.bucket::<A>(at >> 4) else {
        return;
    };
    let word = tag_word(bucket, at);
    if M::MORTAL {
        // SAFETY: a word of a live bucket. The lane holds exactly this tag: nothing is carried into the next.
        unsafe { memory.add(word, lane(CLAIMED, at) - lane(place.tag, at)) };
        free_claimed(memory, bucket, at);
    } else {
        // SAFETY: as above.
        unsafe { memory.add(word, lane(place.tag, at).wrapping_neg()) };
    }
    let beyond = place.beyond(at >> 4);
    if beyond != 0
        && let Some(first) = memory.bucket::<A>(place.first)
    {
        add_overflow(memory, first, beyond.wrapping_neg());
    }
}

/// Gives a way back that only this process knows.
#[inline(always)]
pub(super) fn free_claimed<A: Address, M: FlowMemory>(memory: &M, bucket: *mut Bucket<A>, at: u32) {
    way(bucket, at).publish(0);
    // SAFETY: a word of a live bucket, whose lane holds exactly `CLAIMED`.
    unsafe { memory.add(tag_word(bucket, at), lane(CLAIMED, at).wrapping_neg()) };
}
