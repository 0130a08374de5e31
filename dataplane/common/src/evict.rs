//! Room for a new flow: the flow it replaces, and the oldest half-open one near by when the budget is full; when the table
//! is, datagrams nobody has answered and affinities give way as well, and before all of them what has closed and waits for the
//! sweep. An established flow of two directions is never removed.
//!
//! In three parts, because the kernel runs the middle one as often as it is told (`bpf_loop`): [`begin`] says how often,
//! [`look`] looks at one bucket, [`end`] decides.

use crate::{
    addr::Address,
    counter::Counter,
    create::{refuse, told},
    event::kind,
    flow::{State, flags, is_closing, is_half_open, is_unanswered},
    header::Header,
    limits::add_source,
    maps::{Node, WAYS, proto},
    phase::Phase,
    table::{self, Ended, Entry},
    tables::{Tables, discard, geometry, half_open_full, report, tick, ticks_since},
    work::{Memory, Step, Work},
};

/// Candidates of both new entries: where room in the table is looked for.
const CANDIDATES: u32 = 6;
/// Buckets in which half-open flows are looked for: the candidates, then those after the first.
const BUCKETS: u32 = 10;

/// What is looked for, where, and what was found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Buckets in the order in which they are looked at.
    buckets: [u32; BUCKETS as usize],
    /// 1 = only half-open flows give way.
    budget: u32,
    /// Location of the flow found.
    at: u32,
    /// Its incarnation; 0 = none.
    incarnation: u64,
    /// Age and way of the one found so far in a bucket.
    oldest: Memory,
}

/// [`Phase::Evict`], before the buckets: how many are to be looked at.
#[inline(always)]
pub fn begin<A: Header, T: Tables>(work: &mut Work, tables: &T) -> u32 {
    let Some(node) = tables.node() else {
        return 0;
    };
    work.room.incarnation = 0;
    if work.old_incarnation != 0 {
        return 0;
    }
    let geometry = geometry::<A>(node);
    let budget = work.forward.proto == proto::TCP && half_open_full(tables, node);
    let mut places = [
        geometry.place(&work.arrival.key.narrow::<A>()),
        geometry.place(&work.reply.key().narrow::<A>()),
    ];
    // First where there was no room.
    if work.cramped_reply != 0 {
        places.swap(0, 1);
    }
    let room = &mut work.room;
    room.budget = u32::from(budget);
    for (n, place) in places.iter().enumerate() {
        room.buckets[3 * n] = place.first;
        room.buckets[3 * n + 1] = place.second();
        room.buckets[3 * n + 2] = place.third();
    }
    for n in CANDIDATES..BUCKETS {
        room.buckets[n as usize] = after(places[0].first, n, geometry.buckets);
    }
    if budget { BUCKETS } else { CANDIDATES }
}

/// Looks at one bucket; true ends the search: it has a flow that gives way, the oldest such there.
#[inline(always)]
pub fn look<A: Header, T: Tables>(work: &mut Work, tables: &T, index: u32) -> bool {
    let now = tick(work.now);
    let room = &mut work.room;
    let Some(bucket) = room.buckets.get(index as usize).copied() else {
        return true;
    };
    let budget = room.budget != 0;
    (room.at, room.incarnation) = oldest_in::<A, T>(&mut room.oldest, tables, bucket, now, budget);
    room.incarnation != 0
}

/// [`Phase::Evict`], after the buckets.
#[inline(always)]
pub fn end<A: Header, T: Tables>(work: &mut Work, tables: &T) -> Step {
    let Some(node) = tables.node() else {
        return discard(tables, Counter::Internal);
    };
    let geometry = geometry::<A>(node);
    let (mut at, mut incarnation, mut counter) = (work.old_at, work.old_incarnation, Counter::FlowReopened);
    work.old_incarnation = 0;
    let replacing = incarnation != 0;
    if work.reusing != 0 {
        counter = Counter::PortReused;
    }
    if !replacing {
        work.evicted += 1;
        let budget = work.room.budget != 0;
        (at, incarnation) = (work.room.at, work.room.incarnation);
        if incarnation == 0 {
            return if budget {
                refuse(work, tables, kind::HALF_OPEN_FULL, Counter::HalfOpenFull)
            } else {
                refuse(work, tables, kind::TABLE_FULL, Counter::TableFull)
            };
        }
    }
    if let Some(last) = table::remove::<A, T>(tables, &geometry, at, incarnation) {
        if !replacing {
            counter = if last.state == State::HalfOpen {
                report(tables, &told(work, kind::HALF_OPEN_EVICTED));
                Counter::HalfOpenEvicted
            } else if last.direct {
                Counter::AffinityEvicted
            } else if last.state == State::Closing {
                Counter::ClosedEvicted
            } else {
                Counter::UnansweredEvicted
            };
        }
        tables.count(counter);
        uncount(tables, node, &last);
    }
    if replacing && work.forward.proto == proto::TCP && half_open_full(tables, node) {
        return Step::Next(Phase::Evict);
    }
    Step::Next(Phase::Create)
}

/// A flow that was removed counts nowhere any more.
#[inline(always)]
pub fn uncount<T: Tables>(tables: &T, node: &Node, ended: &Ended) {
    if ended.state == State::HalfOpen {
        tables.add_half_open(u64::MAX);
    }
    if ended.state != State::Closing {
        tables.add_open(ended.stats, ended.server, u64::MAX);
    }
    if let Some(client) = ended.counted {
        add_source(
            tables,
            node.flow_hash_key,
            u32::from(ended.stats),
            client,
            u64::MAX,
        );
    }
}

/// The bucket `n` after one, round the table.
#[inline(always)]
const fn after(bucket: u32, n: u32, buckets: u32) -> u32 {
    let next = bucket.wrapping_add(n);
    if next >= buckets {
        next.wrapping_sub(buckets)
    } else {
        next
    }
}

/// Location and incarnation of the oldest flow of a bucket that gives way; incarnation 0 = none. `budget`: only half-open
/// ones do.
#[inline(always)]
fn oldest_in<A: Header, T: Tables>(
    best: &mut Memory,
    tables: &T,
    bucket: u32,
    now: u32,
    budget: bool,
) -> (u32, u64) {
    let Some(ways) = table::ways::<A, T>(tables, bucket) else {
        return (0, 0);
    };
    best.set(0);
    // Nothing is over before this node knows that it was silent.
    let mut patience = tables.node().map_or(u32::MAX, |node| node.closing_ticks);
    if ticks_since(now, tables.floor()) <= patience {
        patience = u32::MAX;
    }
    for way in 0..WAYS as u32 {
        let entry = ways.entry(way);
        let score = score(&entry, way, now, patience, budget);
        if table::is_published(entry.incarnation()) && score > best.get() {
            best.set(score);
        }
    }
    let best = best.get();
    let way = best as u32 & 15;
    let entry = ways.entry(way);
    // Judged once more under the incarnation that is named: another flow may have come to its place.
    let incarnation = entry.incarnation();
    if best == 0 || !table::is_published(incarnation) || score(&entry, way, now, patience, budget) != best {
        return (0, 0);
    }
    (bucket << 4 | way, incarnation)
}

/// Whether a flow is over, its age and its way in one number, so that there is one thing to remember; 0 = it does not give way.
#[inline(always)]
fn score<A: Address>(entry: &Entry<A>, way: u32, now: u32, patience: u32, budget: bool) -> u64 {
    let (proto, of_entry, own, other) = (entry.proto(), entry.flags(), entry.own(), entry.other());
    let least = is_unanswered(proto, of_entry, own, other) || of_entry & flags::DIRECT != 0;
    let age = ticks_since(now, entry.last_seen());
    let over = is_closing(own, other) && age > patience;
    let yields = is_half_open(proto, of_entry, own, other) || (!budget && (least || over));
    u64::from(yields) * (u64::from(over) << 40 | (u64::from(age) + 1) << 4 | u64::from(way))
}
