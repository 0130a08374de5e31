//! New flows: choose server, mode and hops.

use crate::{
    counter::Counter,
    direct::{self, is_direct},
    established::client_hop,
    event::{Event, kind},
    flow::{flags, seen},
    hash, limits,
    maps::{Node, Server, Service, hairpin, mode, proto, scheduler, server, service},
    mss, persistence,
    phase::Phase,
    search::Search,
    tables::{Tables, discard, half_open_full, report, tick},
    tcp::is_opening,
    work::{Step, Work, shape},
};

/// Entries of the sequence that weighted least connections compare: with up to four servers of one weight that is all.
const CANDIDATES: u32 = 4;

/// Entry of a service's scheduler table for a packet; the table must not be empty.
///
/// `hash` is [`hash::client`] or [`hash::source`], `counter` the service's round-robin counter.
#[inline(always)]
pub const fn table_entry(scheduler: u8, length: u32, hash: u64, counter: u64) -> u32 {
    if scheduler == scheduler::WRR || scheduler == scheduler::WLC {
        match counter.checked_rem(length as u64) {
            Some(entry) => entry as u32,
            None => 0,
        }
    } else {
        hash::below(hash, length)
    }
}

/// Server index in entry `entry` of `SCHED`, given the word `entry / 4`.
#[inline(always)]
pub const fn server_in(word: u64, entry: u32) -> u16 {
    (word >> ((entry & 3) << 4)) as u16
}

/// [`Phase::Schedule`].
#[inline(always)]
pub fn schedule<T: Tables>(work: &mut Work, tables: &T) -> Step {
    let slot = work.arrival.slot;
    let Some(node) = tables.node() else {
        return discard(tables, Counter::Internal);
    };
    let Some(service) = tables.service(slot, work.service) else {
        return discard(tables, Counter::Internal);
    };
    let per_packet = is_direct(work.mode) && service.options & service::PER_PACKET != 0;
    work.forgets = u8::from(per_packet);
    let opens_nothing = joins(work) || per_packet;
    if let Some(reason) = limits::refused(work, tables, service, node.flow_hash_key, opens_nothing) {
        return refuse(tables, service, reason);
    }
    let Some((index, server)) = choose(work, tables, service, node) else {
        let none = Event {
            kind: kind::NO_SERVER,
            leg: u32::from(work.leg.id),
            addr: work.arrival.key.daddr,
            detail: service.stats,
            time: work.now,
            ..Event::default()
        };
        report(tables, &none);
        return refuse(tables, service, Counter::NoServer);
    };
    if is_direct(work.mode) {
        if let Err(reason) = direct::fill(work, tables, service, work.mode, index, server) {
            return refuse(tables, service, reason);
        }
        if service.mss != 0 && mss::tells(&work.arrival) {
            mss::note(work, service.mss, Phase::Direct);
            return Step::Next(Phase::Mss);
        }
        return Step::Next(Phase::Direct);
    }
    let hairpin = work.mode == mode::DNAT && is_hairpin(work, tables, service, server);
    let both = work.mode == mode::BOTH_NAT || hairpin;
    if both && service.snat_len == 0 {
        return refuse(tables, service, Counter::NoSnatSource);
    }
    work.pools = if both { u32::from(service.snat_len) } else { 0 };
    work.pool_base = u32::from(service.snat_base);
    work.attempt = 0;
    work.search = Search::default();
    work.resting_incarnation = 0;
    work.resting_score = 0;
    work.seed = tables.random();
    fill(work, tables, service, index, server, both, hairpin);
    let half_open_full = work.arrival.key.proto == proto::TCP && half_open_full(tables, node);
    if work.old_incarnation != 0 || half_open_full {
        Step::Next(Phase::Evict)
    } else {
        Step::Next(Phase::Create)
    }
}

/// What opens nothing: it comes this far only where flows are but remembered.
#[inline(always)]
fn joins(work: &Work) -> bool {
    let arrival = &work.arrival;
    arrival.shape & shape::JOINED != 0 || (arrival.key.proto == proto::TCP && !is_opening(arrival.tcp_flags))
}

/// Drops the packet of a flow that could not be made.
#[inline(always)]
fn refuse<T: Tables>(tables: &T, service: &Service, reason: Counter) -> Step {
    tables.tally_refused(service.stats, reason);
    discard(tables, reason)
}

#[inline(always)]
fn choose<'t, T: Tables>(
    work: &Work,
    tables: &'t T,
    service: &Service,
    node: &Node,
) -> Option<(u16, &'t Server)> {
    let (base, length) = (service.table as u32, (service.table >> 32) as u32);
    if length == 0 {
        return None;
    }
    // Without a flow, packets of one connection must find the same server, and fragments of one datagram.
    let alone = work.forgets != 0 && work.arrival.shape & (shape::FRAGMENT | shape::JOINED) == 0;
    let by_hash = is_direct(work.mode) && !alone && (joins(work) || node.dsr_ways == 0 || work.forgets != 0);
    let scheduler = if by_hash && service.scheduler != scheduler::SOURCE_HASH {
        scheduler::MAGLEV
    } else {
        service.scheduler
    };
    let by_turn = scheduler == scheduler::WRR || scheduler == scheduler::WLC;
    let counter = if by_turn {
        tables.wrr_next(service.stats)
    } else {
        0
    };
    let hash = if scheduler == scheduler::SOURCE_HASH {
        let rule = tables.persistence(service.stats);
        let network = rule.network(work.arrival.key.saddr);
        if let Some(stays) = persistence::server(tables, node, rule, service.stats, network, tick(work.now)) {
            tables.count(Counter::ClientStayed);
            return Some(stays);
        }
        hash::source(node.pair_hash_key, network)
    } else if alone {
        u64::from(tables.random()) << 32
    } else {
        hash::client(node.pair_hash_key, &work.arrival.key)
    };
    let first = table_entry(scheduler, length, hash, counter);
    let (index, server) = in_table(tables, base.wrapping_add(first))?;
    if scheduler != scheduler::WLC {
        return Some((index, server));
    }
    let mut best = (index, server);
    let mut fewest = Load::of(tables, index, server);
    for n in 1..CANDIDATES {
        let entry = first.wrapping_add(n).checked_rem(length).unwrap_or(0);
        let (index, server) = in_table(tables, base.wrapping_add(entry))?;
        let load = Load::of(tables, index, server);
        if load.is_below(fewest) {
            (best, fewest) = ((index, server), load);
        }
    }
    Some(best)
}

#[inline(always)]
fn in_table<T: Tables>(tables: &T, entry: u32) -> Option<(u16, &Server)> {
    let index = server_in(tables.sched_word(entry >> 2), entry);
    let server = tables.server(u32::from(index))?;
    (server.flags & server::USED != 0).then_some((index, server))
}

/// Flows of a server, and its weight.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Flows that are not closing.
    pub open: u64,
    /// Weight.
    pub weight: u32,
}

impl Load {
    #[inline(always)]
    fn of<T: Tables>(tables: &T, index: u16, server: &Server) -> Self {
        // Below zero for a moment when a removal is counted before the making.
        let open = tables.open_of_server(u32::from(index)) & 0xffff_ffff;
        Self {
            open: if open >> 31 == 0 { open } else { 0 },
            weight: server.flags >> server::WEIGHT_SHIFT,
        }
    }

    /// Fewer flows for its weight, with one more.
    #[inline(always)]
    pub const fn is_below(self, other: Self) -> bool {
        (self.open + 1).wrapping_mul(other.weight as u64) < (other.open + 1).wrapping_mul(self.weight as u64)
    }
}

/// Whether the server would answer the client directly, past the pair.
#[inline(always)]
fn is_hairpin<T: Tables>(work: &Work, tables: &T, service: &Service, server: &Server) -> bool {
    let (client, slot) = (work.arrival.key.saddr, work.arrival.slot);
    if server.addr == client {
        return true;
    }
    match service.hairpin {
        hairpin::AUTO => server.net != 0 && tables.connected(slot, client) == u32::from(server.net),
        hairpin::LISTED => tables.hairpin(slot, work.service, client),
        _ => false,
    }
}

/// Writes both entries; a source port is found in [`Phase::Create`].
#[inline(always)]
fn fill<T: Tables>(
    work: &mut Work,
    tables: &T,
    service: &Service,
    index: u16,
    server: &Server,
    both: bool,
    hairpin: bool,
) {
    let key = work.arrival.key;
    let common = service.group << flags::GROUP_SHIFT
        | if both { mode::BOTH_NAT } else { mode::DNAT } << flags::MODE_SHIFT
        | if hairpin { flags::HAIRPIN } else { 0 };
    let server_port = if server.port == 0 { key.dport } else { server.port };
    let last_seen = tick(work.now);
    let counted = if service.options & service::LIMITED != 0 {
        seen::COUNTED
    } else {
        0
    };
    // Field by field: a whole entry on the stack is too much for the compiler's back end.
    let hop = client_hop(tables, &work.arrival, &work.leg, work.now);
    let forward = &mut work.forward;
    forward.saddr = key.saddr;
    forward.daddr = key.daddr;
    forward.sport = key.sport;
    forward.dport = key.dport;
    forward.proto = key.proto;
    forward.flags = common;
    forward.own = seen::OPENED | counted;
    forward.other = 0;
    forward.new_saddr = key.saddr;
    forward.new_daddr = server.addr;
    forward.new_sport = key.sport;
    forward.new_dport = server_port;
    forward.hop = server.next_hop;
    let reply = &mut work.reply;
    reply.saddr = server.addr;
    reply.daddr = key.saddr;
    reply.sport = server_port;
    reply.dport = key.sport;
    reply.proto = key.proto;
    reply.flags = common | flags::REPLY;
    reply.own = 0;
    reply.other = seen::OPENED | counted;
    reply.new_saddr = key.daddr;
    reply.new_daddr = key.saddr;
    reply.new_sport = key.dport;
    reply.new_dport = key.sport;
    reply.hop = hop;
    for entry in [&mut work.forward, &mut work.reply] {
        entry.partner = 0;
        entry.last_seen = last_seen;
        entry.idle_ticks = service.idle_ticks;
        entry.expected_ack = 0;
        entry.server = index;
        entry.stats = service.stats as u16;
        entry.packets = 0;
        entry.incarnation = 0;
    }
}
