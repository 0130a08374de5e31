//! A packet without a flow: to an owned address, transit, or none of our business.

use crate::{
    addr::Addr,
    counter::Counter,
    direct::{is_direct, mode_for},
    established::follow_client,
    event::{Event, kind},
    flow::{FlowKey, State, flags, is_reset_by_client},
    fragment::Fragmented,
    header::Header,
    icmp_error::{is_error, reports_one},
    maps::{Leg, NOT_A_HOST, ServiceKey, mode, owned, proto, server},
    mss,
    packet::{Packet, unreadable},
    permission::{may_act, yields},
    phase::Phase,
    receive::leg_of,
    table,
    tables::{Tables, discard, geometry, pass, report, tick},
    tcp::is_opening,
    tunnel::Outer,
    wire::{icmp, tcp, udp},
    work::{Answer, Arrival, Step, Work, shape},
};

/// [`Phase::Miss`].
#[inline(always)]
pub fn miss<A: Header, P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    if work.old_incarnation != 0
        && let Some(step) = keep_half_open::<A, T>(work, tables)
    {
        return step;
    }
    let FlowKey { saddr, daddr, .. } = work.arrival.key;
    let slot = work.arrival.slot;
    let Some(ours) = tables.owned(slot, daddr) else {
        let stays = stays_here(&work.leg, saddr, daddr);
        if !stays && work.judged == 0 && reports_one::<A, P>(packet, &work.arrival) {
            return Step::Next(Phase::IcmpError);
        }
        if stays || tables.server_net(slot, saddr).is_none() {
            return pass(tables);
        }
        return Step::Next(Phase::Transit);
    };

    if is_bad_source(work, tables) {
        return discard(tables, Counter::BadSource);
    }
    if work.now == 0 {
        work.now = tables.now();
    }
    let from = work.arrival.src_mac;
    if !may_act(tables, ours.group, work.now, &work.arrival, &work.leg) {
        return Step::Next(Phase::Relay);
    }
    // Not what replaces a flow, which the peer knows nothing of, nor what the peer passed on itself.
    let yields = work.old_incarnation == 0 && yields(tables, ours.group, work.now, from, &work.leg);
    let orphan = ours.kinds & owned::ORPHAN != 0;
    to_owned::<A, P, T>(packet, work, tables, (yields, orphan))
}

/// To the node itself, a group, or of the link: nothing of the pair's, unless the destination is owned.
#[inline(always)]
pub fn stays_here(leg: &Leg, saddr: Addr, daddr: Addr) -> bool {
    is_own(leg, daddr) || daddr.is_special() || is_of_the_link(saddr, daddr)
}

/// An address of this node's own on the leg.
#[inline(always)]
fn is_own(leg: &Leg, addr: Addr) -> bool {
    addr == leg.addr || addr == leg.addr6 || addr == leg.link_local
}

/// Link-local packets are never routed (RFC 4291 §2.5.6).
#[inline(always)]
const fn is_of_the_link(saddr: Addr, daddr: Addr) -> bool {
    saddr.is_link_local() || daddr.is_link_local()
}

/// Group, loopback, broadcast and own addresses are no sources.
#[inline(always)]
pub fn is_bad_source<T: Tables>(work: &Work, tables: &T) -> bool {
    let saddr = work.arrival.key.saddr;
    saddr.is_special()
        || is_own(&work.leg, saddr)
        || tables.owned(work.arrival.slot, saddr).is_some()
        || tables.connected(work.arrival.slot, saddr) == NOT_A_HOST
}

/// A SYN sent again stays with its half-open flow while the server is up, and one after the client's RST with the flow it
/// may not end.
#[inline(always)]
fn keep_half_open<A: Header, T: Tables>(work: &Work, tables: &T) -> Option<Step> {
    if work.reopen != 0 {
        return None;
    }
    let node = tables.node()?;
    let found = table::find(tables, &geometry::<A>(node), &work.arrival.key.narrow::<A>())?;
    let entry = found.entry();
    let age = crate::established::age(tables, entry, tick(work.now));
    let up = tables.server(u32::from(entry.server()))?.flags & server::UP != 0;
    let stays = entry.state() == State::HalfOpen || is_reset_by_client(entry.own(), entry.other());
    if !up || age > node.half_open_ticks || !stays {
        return None;
    }
    Some(Step::Next(Phase::Forward))
}

#[inline(always)]
fn to_owned<A: Header, P: Packet, T: Tables>(
    packet: &P,
    work: &mut Work,
    tables: &T,
    (yields, orphan): (bool, bool),
) -> Step {
    let arrival = &work.arrival;
    let key = &arrival.key;
    if arrival.shape == shape::FRAGMENT {
        return discard(tables, Counter::Fragment);
    }
    if arrival.shape == shape::SHORT {
        return cut_short(packet, work, tables);
    }
    if arrival.shape == shape::ROUTED {
        return discard(tables, Counter::SourceRouted);
    }
    if key.proto == A::ICMP {
        let Some(header) = packet.window::<{ icmp::LEN }>(arrival.l4 as usize) else {
            return discard(tables, unreadable(packet, arrival.l4 as usize, icmp::LEN));
        };
        if (arrival.total as usize) < (arrival.l4 - arrival.l3) as usize + icmp::LEN {
            return discard(tables, Counter::Malformed);
        }
        if is_error(A::V6, header.u8::<{ icmp::TYPE }>()) {
            return Step::Next(Phase::IcmpError);
        }
        if header.u16::<{ icmp::TYPE_CODE }>() != u16::from_ne_bytes([A::MESSAGES.echo, 0]) {
            return discard(tables, Counter::IcmpUnhandled);
        }
        work.answer = Answer::Echo as u8;
        return Step::Next(Phase::Answer);
    }
    if yields {
        return Step::Next(Phase::Relay);
    }
    if orphan {
        return discard(tables, Counter::OrphanWithoutFlow);
    }
    let is_tcp = key.proto == proto::TCP;
    if !is_tcp && key.proto != proto::UDP {
        return discard(tables, Counter::UnsupportedProtocol);
    }
    let joins = arrival.shape & shape::JOINED != 0;
    let opening = !joins && (!is_tcp || is_opening(arrival.tcp_flags));
    let service = ServiceKey {
        slot: arrival.slot as u8,
        proto: key.proto,
        addr: key.daddr.bytes(),
        port: key.dport.to_ne_bytes(),
    };
    if let Some(index) = tables.service_index(&service) {
        let Some(found) = tables.service(arrival.slot, index) else {
            return discard(tables, Counter::Internal);
        };
        let mode = mode_for(tables, found, index, arrival);
        if !opening && !is_direct(mode) {
            return without_flow(tables, arrival);
        }
        if arrival.ttl <= 1 && mode != mode::DSR {
            if arrival.shape & shape::ERROR != 0 {
                return discard(tables, Counter::TtlExpired);
            }
            work.answer = Answer::TimeExceeded as u8;
            return Step::Next(Phase::Answer);
        }
        work.service = index;
        work.mode = mode;
        return Step::Next(Phase::Schedule);
    }
    if joins {
        return without_flow(tables, arrival);
    }
    if let Some(range) = tables.snat_range(arrival.slot, key.daddr) {
        let port = u16::from_be(key.dport);
        if port >= range.first && port <= range.last {
            return discard(tables, Counter::SnatRangeWithoutFlow);
        }
    }
    if !opening {
        return without_flow(tables, arrival);
    }
    work.answer = if is_tcp {
        Answer::Reset as u8
    } else {
        Answer::PortUnreachable as u8
    };
    Step::Next(Phase::Answer)
}

/// Drops a packet whose transport header was not read.
#[inline(always)]
pub fn cut_short<P: Packet, T: Tables>(packet: &P, work: &Work, tables: &T) -> Step {
    let arrival = &work.arrival;
    let len = match arrival.key.proto {
        proto::TCP => tcp::LEN,
        proto::UDP => udp::LEN,
        _ => return discard(tables, Counter::Malformed),
    };
    let reason = unreadable(packet, arrival.l4 as usize, len);
    if matches!(reason, Counter::HeadersInPieces) {
        tell_of_leg(work, tables, kind::HEADERS_IN_PIECES);
    }
    discard(tables, reason)
}

/// Tells user space what the interface of the packet's leg does.
#[inline(always)]
pub fn tell_of_leg<T: Tables>(work: &Work, tables: &T, kind: u32) {
    let event = Event {
        kind,
        leg: u32::from(work.leg.id),
        time: work.now,
        ..Event::default()
    };
    report(tables, &event);
}

#[inline(always)]
fn without_flow<T: Tables>(tables: &T, arrival: &Arrival) -> Step {
    let reason = if arrival.shape & shape::ERROR != 0 {
        Counter::IcmpErrorWithoutFlow
    } else if arrival.shape & shape::LATER != 0 {
        Counter::Fragment
    } else if arrival.tcp_flags & (tcp::SYN | tcp::ACK) == tcp::SYN | tcp::ACK {
        Counter::SynAckWithoutFlow
    } else {
        Counter::TcpWithoutFlow
    };
    discard(tables, reason)
}

/// [`Phase::Forward`]: forwards by the flow an earlier phase made or found; that phase has read the clock.
#[inline(always)]
pub fn forward<A: Fragmented + Outer, P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T) -> Step {
    // Copies: a phase after this one gets its own `Work`. The leg is looked up, because the stack is short.
    let (arrival, now) = (work.arrival.narrow::<A>(), work.now);
    let (old_incarnation, fresh_id) = (work.old_incarnation, work.fresh_id);
    let Some(leg) = leg_of(&arrival, tables) else {
        return discard(tables, Counter::Internal);
    };
    let Some(node) = tables.node() else {
        return discard(tables, Counter::Internal);
    };
    let (mut at, mut incarnation) = (work.made_at, work.made_incarnation);
    if incarnation == 0 {
        let Some(found) = table::find(tables, &geometry::<A>(node), &arrival.key) else {
            return discard(tables, Counter::LockContended);
        };
        (at, incarnation) = (found.at, found.incarnation);
    }
    let Some(found) = table::found_at::<A, T>(tables, at, incarnation) else {
        return discard(tables, Counter::LockContended);
    };
    let limit = mss::limit(tables, &arrival, found.entry().stats());
    // What is passed on to the Active stays as it came.
    let group = found.entry().flags() >> flags::GROUP_SHIFT;
    if limit != 0 && work.clamped == 0 && may_act(tables, group, now, &arrival, leg) {
        tables.leave(|work| mss::note(work, limit, Phase::Forward));
        return Step::Next(Phase::Mss);
    }
    if found.entry().flags() & flags::DIRECT != 0 {
        return Step::Next(Phase::DirectForward);
    }
    if old_incarnation == found.incarnation {
        follow_client(tables, &arrival, leg, &found, now);
    }
    crate::established::forward::<A, P, T, true>(packet, &arrival, leg, tables, &found, now, fresh_id)
}
