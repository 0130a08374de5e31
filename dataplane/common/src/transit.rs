//! A gateway address is a router: traffic of servers that is not balanced is routed, not translated.

use crate::{
    counter::Counter,
    established::route,
    header::Header,
    maps::{EndpointKey, LOCAL_LEG, proto},
    miss::{cut_short, is_bad_source},
    packet::Packet,
    permission::{may_act, yields},
    phase::Phase,
    relay::decrement_ttl,
    tables::{Tables, discard, pass},
    tcp::is_opening,
    transmit::{excess, send},
    work::{Answer, Step, Work, shape},
};

/// [`Phase::Transit`]: a frame to our MAC from a server network, for neither an owned address nor the leg's own.
#[inline(always)]
pub fn transit<A: Header, P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    let arrival = &work.arrival;
    let key = &arrival.key;
    let Some(way) = tables.route(key.daddr) else {
        return discard(tables, Counter::NoRoute);
    };
    if way.leg == LOCAL_LEG {
        return pass(tables);
    }
    if is_bad_source(work, tables) {
        return discard(tables, Counter::BadSource);
    }
    work.now = tables.now();
    if !may_act(tables, work.leg.group, work.now, arrival, &work.leg) {
        return Step::Next(Phase::Relay);
    }
    if arrival.shape & shape::SHORT != 0 {
        return cut_short(packet, work, tables);
    }
    if arrival.shape & shape::ROUTED != 0 {
        return discard(tables, Counter::SourceRouted);
    }
    if arrival.shape & shape::PORTS != 0 {
        let opening = key.proto == proto::TCP && is_opening(arrival.tcp_flags);
        let endpoint = EndpointKey {
            addr: key.saddr,
            port: key.sport,
            proto: key.proto,
            slot: arrival.slot as u8,
        };
        if !opening && tables.endpoint(&endpoint) && !tables.direct(arrival.slot, key.daddr) {
            if yields(tables, work.leg.group, work.now, arrival.src_mac, &work.leg) {
                return Step::Next(Phase::Relay);
            }
            return discard(tables, Counter::DnatReplyWithoutFlow);
        }
    }
    if arrival.ttl <= 1 {
        work.answer = Answer::TimeExceeded as u8;
        return Step::Next(Phase::Answer);
    }
    let Some(to) = route(tables, key.daddr, &work.leg, work.now) else {
        return discard(tables, Counter::NoNeighbour);
    };
    if let Some(most) = excess(&work.arrival, &work.leg, &to, 0) {
        work.answer = Answer::TooBig as u8;
        work.most = most;
        return Step::Next(Phase::Answer);
    }
    if !decrement_ttl::<A, P>(packet, work) {
        return discard(tables, Counter::Internal);
    }
    tables.count(Counter::Transit);
    send(packet, &work.arrival, &work.leg, tables, &to)
}
