//! The exact search for a source port, when guessing has failed: every port of the sources, one after the other, until one
//! is free towards the server. Bounded a packet, and in the share of a CPU it may take: a client that tries again goes on
//! elsewhere.
//!
//! In three parts, because the kernel runs the middle one as often as it is told (`bpf_loop`): [`begin`] says how often,
//! [`look`] looks at one port, [`end`] decides.

use crate::{
    counter::Counter,
    create::{note_resting, pool, refuse, reuse},
    event::kind,
    header::Header,
    phase::Phase,
    refusal::{self, Rate},
    table,
    tables::{Tables, discard, geometry},
    work::{Step, Work},
};

/// Ports looked at for one packet at most: some three milliseconds.
const MOST_LOOKED: u32 = 32_768;
/// Runs of the program for one packet at most: sources, and races lost for a port that was free.
const MOST_RUNS: u32 = 12;
/// What a port costs one server's meter: a tenth of a CPU.
const OF_SERVER_NS: u64 = 1_000;
/// What a port costs the meter of all: a quarter of a CPU.
const OF_ALL_NS: u64 = 400;
/// Credit of both: half a second.
const BURST_NS: u64 = 500_000_000;

/// What the search has done and is to do.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Search {
    /// Runs so far.
    pub runs: u32,
    /// Sources gone through.
    pub done: u32,
    /// Ports looked at so far.
    pub looked: u32,
    /// Those of earlier runs.
    pub paid: u32,
    /// First port of the source.
    pub first: u32,
    /// Number of its ports.
    pub span: u32,
    /// Where among them the search starts.
    pub start: u32,
    /// 1 = the port looked at last is free.
    pub found: u32,
}

fn meters<T: Tables>(work: &Work, tables: &T, of_server: Rate, of_all: Rate) -> bool {
    let slot = refusal::SEARCH_BASE + (u32::from(work.forward.server) & (refusal::SEARCH_SLOTS - 1));
    tables.charge(slot, work.now, of_server) && tables.charge(refusal::SEARCH_ALL, work.now, of_all)
}

/// [`Phase::Search`], before the ports: how many are to be looked at.
#[inline(always)]
pub fn begin<T: Tables>(work: &mut Work, tables: &T) -> u32 {
    let credit = Rate {
        cost_ns: 0,
        burst_ns: BURST_NS,
    };
    work.search.found = 0;
    work.search.runs += 1;
    let left = MOST_LOOKED.saturating_sub(work.search.looked);
    if work.search.runs > MOST_RUNS || left == 0 || !meters(work, tables, credit, credit) {
        work.search.done = u32::MAX;
        return 0;
    }
    let Some(pool) = pool(work, tables, work.seed.wrapping_add(work.search.done)) else {
        return 0;
    };
    let span = u32::from(pool.last)
        .wrapping_sub(u32::from(pool.first))
        .wrapping_add(1)
        & 0x1_ffff;
    work.search.first = u32::from(pool.first);
    work.search.span = span;
    work.search.start = ((u64::from(tables.random()) * u64::from(span)) >> 32) as u32;
    work.reply.daddr = pool.addr;
    if span < left { span } else { left }
}

/// Looks at one port; true ends the search.
#[inline(always)]
pub fn look<A: Header, T: Tables>(work: &mut Work, tables: &T, index: u32) -> bool {
    let Some(node) = tables.node() else {
        return true;
    };
    let geometry = geometry::<A>(node);
    let search = &mut work.search;
    search.looked += 1;
    let offset = search.start.wrapping_add(index);
    let offset = if offset >= search.span {
        offset.wrapping_sub(search.span)
    } else {
        offset
    };
    work.reply.dport = (search.first.wrapping_add(offset) as u16).to_be();
    let Some(found) = table::find(tables, &geometry, &work.reply.key().narrow::<A>()) else {
        work.search.found = 1;
        return true;
    };
    note_resting(work, tables, &found);
    false
}

/// [`Phase::Search`], after the ports.
#[inline(always)]
pub fn end<T: Tables>(work: &mut Work, tables: &T) -> Step {
    let looked = u64::from(work.search.looked.wrapping_sub(work.search.paid));
    work.search.paid = work.search.looked;
    let cost = |of_port: u64| Rate {
        cost_ns: looked * of_port,
        burst_ns: u64::MAX,
    };
    if !meters(work, tables, cost(OF_SERVER_NS), cost(OF_ALL_NS)) {
        return discard(tables, Counter::Internal);
    }
    if work.search.found != 0 {
        work.forward.new_saddr = work.reply.daddr;
        work.forward.new_sport = work.reply.dport;
        work.chosen = 1;
        return Step::Next(Phase::Create);
    }
    work.search.done = work.search.done.saturating_add(1);
    if work.search.done < work.pools {
        return Step::Next(Phase::Search);
    }
    if work.resting_incarnation != 0 && work.reusing == 0 {
        return reuse(work);
    }
    refuse(work, tables, kind::NO_PORT, Counter::NoPort)
}
