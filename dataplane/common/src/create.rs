//! New flows: find a source port whose reply tuple is free, and insert.

use crate::{
    counter::Counter,
    established::age,
    event::{Event, kind},
    flow::{State, seen},
    header::Header,
    limits::add_source,
    maps::{Node, SnatPool, proto},
    phase::Phase,
    table::{self, Found, NotInserted},
    tables::{Tables, discard, geometry, report, tick},
    work::{Step, Work},
};

/// Source ports guessed for one flow, the client's own included; then all are searched.
pub const PORTS_GUESSED: u32 = 17;
/// Tried in one run of the program; the next run goes on.
const PORTS_A_RUN: u32 = 4;
/// Runs spent on waiting for a lock, [`table::LOCK_TRIES`] each: some ten microseconds in all. Who holds one longer has lost
/// its virtual CPU.
const RUNS_WAITED: u8 = 8;
/// How often room is made in a full table: for either entry, and once more should one take the other's.
const ROOM_MADE: u8 = 3;
/// Ports a DNAT flow may take if the client's own is in use towards the same server (two VIPs sharing it).
const ANY_PORT: (u16, u16) = (1_024, u16::MAX);

/// Source port number `attempt` (0 = first) for a client that came from `own` (native order).
///
/// The client's own if it lies in the pool, then pseudo-random ones from `seed`.
#[inline(always)]
pub const fn candidate(pool: &SnatPool, own: u16, seed: u32, attempt: u32) -> u16 {
    if attempt == 0 && own >= pool.first && own <= pool.last {
        return own;
    }
    let span = (pool.last as u32).wrapping_sub(pool.first as u32).wrapping_add(1) & 0x1_ffff;
    let random = seed.wrapping_add(attempt.wrapping_mul(0x9e37_79b1));
    (pool.first as u32).wrapping_add(((random as u64 * span as u64) >> 32) as u32) as u16
}

/// [`Phase::Create`].
#[inline(always)]
pub fn create<A: Header, T: Tables>(work: &mut Work, tables: &T) -> Step {
    let Some(node) = tables.node() else {
        return discard(tables, Counter::Internal);
    };
    let geometry = geometry::<A>(node);
    let owner = tables.lock_owner();
    for _ in 0..PORTS_A_RUN {
        let willing = work.attempt >= PORTS_A_RUN && work.resting_score == u32::MAX;
        if willing && work.reusing == 0 && work.chosen == 0 {
            return reuse(work);
        }
        if work.attempt >= PORTS_GUESSED && work.chosen == 0 {
            return Step::Next(Phase::Search);
        }
        if work.chosen == 0 && !set_source(work, tables, node) {
            return refuse(work, tables, kind::NO_PORT, Counter::NoSnatSource);
        }
        match table::reserve_reply::<A, T>(tables, &geometry, owner, &work.reply) {
            Ok(reserved) => {
                let serial = tables.next_incarnation().wrapping_add(1) & 0xff_ffff_ffff;
                work.forward.incarnation = node.incarnation_base | serial;
                let hash = if work.hash == 0 {
                    work.forward.key().narrow::<A>().hash(geometry.key)
                } else {
                    work.hash
                };
                let place = geometry.of_hash(hash);
                let result = table::insert_forward(tables, place, owner, &work.forward, reserved);
                if result.is_err() {
                    table::release(tables, reserved);
                }
                return finish(work, tables, node, result);
            }
            Err(NotInserted::Full) => return no_room(work, tables, true),
            Err(NotInserted::Contended) => return contended(work, tables),
            Err(NotInserted::ReplyTaken | NotInserted::ForwardExists) => {
                if work.chosen != 0 {
                    // Somebody was faster.
                    work.chosen = 0;
                    return Step::Next(Phase::Search);
                }
                if let Some(found) = table::find(tables, &geometry, &work.reply.key().narrow::<A>()) {
                    note_resting(work, tables, &found);
                }
                work.attempt += 1;
            }
        }
    }
    Step::Next(Phase::Create)
}

/// A port rests after its connection was closed, but only if the server closed first: it alone keeps TIME-WAIT. Remembers
/// the best closed flow met so far.
#[inline(always)]
pub fn note_resting<A: Header, T: Tables>(work: &mut Work, tables: &T, found: &Found<A>) {
    let entry = found.entry();
    if entry.state() != State::Closing {
        return;
    }
    let server_first = (entry.own() | entry.other()) & seen::RST == 0 && entry.own() & seen::FIN_FIRST != 0;
    let score = if server_first {
        age(tables, entry, tick(work.now)).saturating_add(1)
    } else {
        u32::MAX
    };
    if score > work.resting_score {
        work.resting_score = score;
        work.resting_at = found.at;
        work.resting_incarnation = found.incarnation;
        work.resting_addr = work.reply.daddr;
        work.resting_port = work.reply.dport;
    }
}

/// Replaces the closed flow that was remembered, once.
#[inline(always)]
pub const fn reuse(work: &mut Work) -> Step {
    work.reusing = 1;
    work.chosen = 1;
    work.reply.daddr = work.resting_addr;
    work.reply.dport = work.resting_port;
    work.forward.new_saddr = work.resting_addr;
    work.forward.new_sport = work.resting_port;
    work.old_at = work.resting_at;
    work.old_incarnation = work.resting_incarnation;
    Step::Next(Phase::Evict)
}

/// A source by turn; without sources the client's address.
#[inline(always)]
pub fn pool<T: Tables>(work: &Work, tables: &T, turn: u32) -> Option<SnatPool> {
    if work.pools == 0 {
        let (first, last) = ANY_PORT;
        return Some(SnatPool {
            addr: work.forward.saddr,
            first,
            last,
        });
    }
    let index = turn.checked_rem(work.pools).unwrap_or(0);
    let pool = tables.snat_pool(work.arrival.slot, work.pool_base.wrapping_add(index))?;
    (pool.last >= pool.first).then_some(pool)
}

/// Writes the source of this attempt into both entries.
#[inline(always)]
fn set_source<T: Tables>(work: &mut Work, tables: &T, node: &Node) -> bool {
    let own = u16::from_be(work.forward.sport);
    // A client keeps its source address while ports last.
    let turn = work.forward.saddr.0[3].swap_bytes().wrapping_add(work.attempt);
    let Some(mut pool) = pool(work, tables, turn) else {
        return false;
    };
    if work.pools == 0 && work.attempt == 0 {
        (pool.first, pool.last) = (own, own);
    }
    let seed = work.seed.wrapping_add(node.snat_shift as u32);
    let port = candidate(&pool, own, seed, work.attempt).to_be();
    work.forward.new_saddr = pool.addr;
    work.forward.new_sport = port;
    work.reply.daddr = pool.addr;
    work.reply.dport = port;
    true
}

#[inline(always)]
fn finish<T: Tables>(work: &mut Work, tables: &T, node: &Node, result: Result<u32, NotInserted>) -> Step {
    match result {
        Ok(at) => {
            work.made_at = at;
            work.made_incarnation = work.forward.incarnation;
            if work.forward.proto == proto::TCP {
                tables.add_half_open(1);
            }
            if work.forward.own & seen::COUNTED != 0 {
                let (key, stats) = (node.flow_hash_key, u32::from(work.forward.stats));
                add_source(tables, key, stats, work.forward.saddr, 1);
            }
            tables.add_open(work.forward.stats, work.forward.server, 1);
            tables.count(Counter::FlowCreated);
            tables.tally_flow(work.forward.stats, work.forward.server);
            Step::Next(Phase::Forward)
        }
        Err(NotInserted::ForwardExists | NotInserted::ReplyTaken) => {
            tables.count(Counter::FlowRaceLost);
            Step::Next(Phase::Forward)
        }
        Err(NotInserted::Full) => no_room(work, tables, false),
        Err(NotInserted::Contended) => contended(work, tables),
    }
}

/// A lock was not to be had: once more, some times.
#[inline(always)]
fn contended<T: Tables>(work: &mut Work, tables: &T) -> Step {
    if work.waited < RUNS_WAITED {
        work.waited += 1;
        return Step::Next(Phase::Create);
    }
    tables.tally_refused(u32::from(work.forward.stats), Counter::LockContended);
    discard(tables, Counter::LockContended)
}

#[inline(always)]
fn no_room<T: Tables>(work: &mut Work, tables: &T, reply: bool) -> Step {
    if work.evicted < ROOM_MADE {
        work.cramped_reply = u8::from(reply);
        return Step::Next(Phase::Evict);
    }
    refuse(work, tables, kind::TABLE_FULL, Counter::TableFull)
}

/// An event about the new flow.
#[inline(always)]
pub fn told(work: &Work, kind: u32) -> Event {
    Event {
        kind,
        leg: u32::from(work.leg.id),
        addr: work.forward.new_daddr,
        detail: u32::from(work.forward.stats),
        time: work.now,
        ..Event::default()
    }
}

/// Drops the packet of a flow that could not be made, with an event.
#[inline(always)]
pub fn refuse<T: Tables>(work: &Work, tables: &T, kind: u32, reason: Counter) -> Step {
    report(tables, &told(work, kind));
    tables.tally_refused(u32::from(work.forward.stats), reason);
    discard(tables, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_candidate_lies_in_this_nodes_half(first: u16, len: u16, own: u16, seed: u32, attempt in 0..PORTS_GUESSED) {
            let pool = SnatPool { addr: Addr::v4(1), first, last: first.saturating_add(len) };
            let port = candidate(&pool, own, seed, attempt);
            prop_assert!(port >= pool.first && port <= pool.last);
            if attempt == 0 && own >= pool.first && own <= pool.last {
                prop_assert_eq!(port, own);
            }
        }

        #[test]
        fn candidates_of_one_search_hardly_repeat(seed: u32) {
            let pool = SnatPool { addr: Addr::v4(1), first: 1_024, last: 33_279 };
            let ports: std::collections::HashSet<u16> = (1..PORTS_GUESSED).map(|a| candidate(&pool, 0, seed, a)).collect();
            prop_assert!(ports.len() >= 15);
        }
    }
}
