//! Room for a new flow: the flow it replaces, and the oldest half-open one near by when the budget is full; when the table
//! is, datagrams nobody has answered and affinities give way as well. An established flow of two directions is never removed.

use crate::{
    counter::Counter,
    create::{refuse, told},
    event::kind,
    flow::{State, flags, is_half_open, is_unanswered},
    header::Header,
    limits::add_source,
    maps::{Node, WAYS, proto},
    phase::Phase,
    table::{self, Ended},
    tables::{Tables, discard, geometry, half_open_full, report, tick, ticks_since},
    work::{Memory, Step, Work},
};

/// Candidates of both new entries: where room in the table is looked for.
const CANDIDATES: u32 = 4;
/// Buckets in which half-open flows are looked for: the candidates, then those after the first.
const BUCKETS: u32 = 8;

/// [`Phase::Evict`].
#[inline(always)]
pub fn evict<A: Header, T: Tables>(work: &mut Work, tables: &T) -> Step {
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
        let budget = work.forward.proto == proto::TCP && half_open_full(tables, node);
        if budget {
            report(tables, &told(work, kind::HALF_OPEN_EVICTED));
        }
        (at, incarnation) = victim::<A, T>(work, tables, &geometry, budget);
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
                Counter::HalfOpenEvicted
            } else if last.direct {
                Counter::AffinityEvicted
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

/// Location and incarnation of the oldest flow that gives way in the first bucket that has one; incarnation 0 = none.
/// `budget`: only half-open ones do.
#[inline(always)]
fn victim<A: Header, T: Tables>(
    work: &mut Work,
    tables: &T,
    geometry: &table::Geometry,
    budget: bool,
) -> (u32, u64) {
    let forward = geometry.place(&work.arrival.key.narrow::<A>());
    let reply = geometry.place(&work.reply.key().narrow::<A>());
    let now = tick(work.now);
    let buckets = if budget { BUCKETS } else { CANDIDATES };
    for n in 0..BUCKETS {
        if n >= buckets {
            break;
        }
        // First where there was no room.
        let bucket = match n ^ u32::from(work.cramped_reply & 1) << 1 {
            0 => forward.first,
            1 => forward.second(),
            2 => reply.first,
            3 => reply.second(),
            _ => after(forward.first, n, geometry.buckets),
        };
        let (at, incarnation) = oldest_in::<A, T>(&mut work.oldest, tables, bucket, now, budget);
        if incarnation != 0 {
            return (at, incarnation);
        }
    }
    (0, 0)
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
    for way in 0..WAYS as u32 {
        let entry = ways.entry(way);
        let (proto, of_entry, own, other) = (entry.proto(), entry.flags(), entry.own(), entry.other());
        let least = is_unanswered(proto, of_entry, own, other) || of_entry & flags::DIRECT != 0;
        let yields = is_half_open(proto, of_entry, own, other) || (!budget && least);
        // The age and the way in one number, so that there is one thing to remember.
        let score = (u64::from(ticks_since(now, entry.last_seen())) + 1) << 4 | u64::from(way);
        if yields && table::is_published(entry.incarnation()) && score > best.get() {
            best.set(score);
        }
    }
    let best = best.get();
    if best == 0 {
        return (0, 0);
    }
    let way = best as u32 & 15;
    (bucket << 4 | way, ways.entry(way).incarnation())
}
