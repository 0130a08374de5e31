//! Who may open a new flow: prefixes, connections and rates of a service, connections of one client.

use crate::{
    counter::Counter,
    event::{Event, kind},
    hash,
    maps::{Addr, Limits, SOURCES_ROW, Service, service},
    refusal::{self, Rate},
    tables::{Tables, report},
    work::Work,
};

/// The two counters of map `SOURCES` that count a client's connections to a service.
#[inline(always)]
pub const fn source_slots(key: [u64; 2], stats: u32, client: Addr) -> [u32; 2] {
    let hash = hash::sip13_wide(key, client, Addr::NONE, stats as u64 | 0x736f_7572 << 32);
    let mask = SOURCES_ROW - 1;
    [hash as u32 & mask, SOURCES_ROW | ((hash >> 32) as u32 & mask)]
}

/// Connections of a client to a service: at least as many as there are, and as a rule no more (the smaller of two
/// counters, each shared with few others).
#[inline(always)]
pub fn of_source<T: Tables>(tables: &T, key: [u64; 2], stats: u32, client: Addr) -> u64 {
    let [one, other] = source_slots(key, stats, client);
    let (one, other) = (tables.source(one), tables.source(other));
    if one < other { one } else { other }
}

/// Adds to a client's connections, wrapping.
#[inline(always)]
pub fn add_source<T: Tables>(tables: &T, key: [u64; 2], stats: u32, client: Addr, n: u64) {
    for slot in source_slots(key, stats, client) {
        tables.add_source(slot, n);
    }
}

/// Why a new flow is refused, if it is. Takes one connection of the rate if it is not. A segment that `joins` a connection
/// which is not remembered opens nothing: only its client counts.
#[inline(always)]
pub fn refused<T: Tables>(
    work: &Work,
    tables: &T,
    service: &Service,
    key: [u64; 2],
    joins: bool,
) -> Option<Counter> {
    let (slot, client) = (work.arrival.slot, work.arrival.key.saddr);
    if service.options & service::CLIENTS != 0 {
        let allowed = match tables.client_rule(slot, work.service, client) {
            Some(rule) => rule != service::DENY,
            None => service.options & service::ALLOWED_ONLY == 0,
        };
        if !allowed {
            return Some(Counter::ClientDenied);
        }
    }
    if joins || service.options & service::LIMITED == 0 {
        return None;
    }
    let Limits {
        max_connections,
        max_per_source,
        new_cost_ns,
        new_burst_ns,
    } = tables.limits(slot, work.service)?;
    // Both counts may be below zero for a moment: a removal may be counted before the making.
    let is_full = |count: u64, most: u32| most != 0 && count.cast_signed() >= i64::from(most);
    if is_full(tables.open_of_service(service.stats), max_connections) {
        reached(work, tables, service);
        return Some(Counter::MaxConnections);
    }
    if is_full(of_source(tables, key, service.stats, client), max_per_source) {
        return Some(Counter::MaxPerSource);
    }
    let rate = Rate {
        cost_ns: new_cost_ns,
        burst_ns: new_burst_ns,
    };
    if new_cost_ns != 0 && !tables.charge(refusal::SERVICE_BASE + service.stats, work.now, rate) {
        reached(work, tables, service);
        return Some(Counter::MaxNew);
    }
    None
}

fn reached<T: Tables>(work: &Work, tables: &T, service: &Service) {
    let event = Event {
        kind: kind::LIMIT_REACHED,
        leg: u32::from(work.leg.id),
        addr: work.arrival.key.daddr,
        detail: service.stats,
        time: work.now,
        ..Event::default()
    };
    report(tables, &event);
}
