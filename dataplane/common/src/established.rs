//! A packet of a known flow: gate by the lease, track, translate, send.

use crate::{
    addr::Address,
    counter::Counter,
    direct,
    event::{Event, kind},
    flow::{State, flags, hop, is_reset_by_client, seen},
    fragment::Fragmented,
    header::Header,
    limits::add_source,
    maps::{Addr, LastHop, Leg, NeighbourKey, proto, server},
    mss,
    packet::{Packet, mac_number},
    permission::may_act,
    phase::Phase,
    receive::{hand_over, hand_over_with},
    table::{Entry, Found, entry_at},
    tables::{Tables, discard, report, tick, ticks_since},
    tcp::{Knowledge, Segment, is_believable, is_opening},
    tell,
    transmit::{Hop, excess, send},
    tunnel::Outer,
    wire::{tcp, udp},
    work::{Answer, Arrival, Step},
};

/// Translates and sends. With `ROUTED` the flow was made or confirmed by an earlier phase: nothing is handed back to one,
/// and a flow without a known hop looks its route up. `now`: CLOCK_MONOTONIC, ns, read for this packet. `fresh_id`:
/// identification of a first fragment, should its source be rewritten; 0 = none.
#[inline(always)]
pub fn forward<A: Outer + Fragmented, P: Packet, T: Tables, const ROUTED: bool>(
    packet: &mut P,
    arrival: &Arrival<A>,
    leg: &Leg,
    tables: &T,
    found: &Found<A>,
    now: u64,
    fresh_id: u32,
) -> Step {
    let entry = found.entry();
    let entry_flags = entry.flags();
    let reply = entry_flags & flags::REPLY != 0;
    if !may_act(tables, entry_flags >> flags::GROUP_SHIFT, now, arrival, leg) {
        return hand_over(tables, arrival, leg, Phase::Relay);
    }
    if entry_flags & flags::DIRECT != 0 {
        if ROUTED {
            // It was another flow when this phase was chosen.
            return discard(tables, Counter::LockContended);
        }
        return direct::established::<A, P, T, false>(packet, arrival, leg, tables, found, now);
    }
    if arrival.ttl <= 1 {
        return time_exceeded(tables, arrival, leg, now);
    }
    let is_tcp = arrival.key.proto == proto::TCP;
    let before = Knowledge {
        own: entry.own(),
        other: entry.other(),
        expected_ack: entry.expected_ack(),
    };
    let opening = is_tcp && !reply && is_opening(arrival.tcp_flags);
    let gone = !ROUTED && !reply && is_gone(tables, entry.server(), is_tcp);
    if opening && !ROUTED {
        return reconsider(tables, arrival, leg, found, now, before, gone);
    }
    if gone && (!is_tcp || arrival.tcp_flags & tcp::RST == 0) {
        return server_is_gone(tables, arrival, leg, found, now, before);
    }
    let (new_saddr, new_daddr) = (entry.new_saddr(), entry.new_daddr());
    let (new_sport, new_dport) = (entry.new_sport(), entry.new_dport());
    let (server, stats) = (entry.server(), entry.stats());
    let hop_index = entry.hop();
    if !found.intact() {
        return discard(tables, Counter::LockContended);
    }
    if !ROUTED && mss::limit(tables, arrival, stats) != 0 {
        return hand_over_with(tables, arrival, leg, Phase::Forward, |work| work.now = now);
    }
    let to = match resolve::<T, ROUTED>(tables, hop_index, new_daddr.wide(), leg, now) {
        Way::To(to) => to,
        Way::ByRoute => {
            return hand_over_with(tables, arrival, leg, Phase::Forward, |work| work.now = now);
        }
        Way::None => return discard(tables, Counter::NoNeighbour),
    };
    if let Some(most) = excess(arrival, leg, &to, 0) {
        return too_big(tables, arrival, leg, now, most);
    }

    let l4 = arrival.l4 as usize;
    // Not before: what is passed on to the Active, divided, or quoted to its sender keeps the one it came with.
    if fresh_id != 0
        && new_saddr != arrival.key.saddr
        && !A::set_id(packet, arrival.l3 as usize, l4, fresh_id)
    {
        return discard(tables, Counter::Internal);
    }
    let old = (arrival.key.saddr, arrival.key.daddr);
    let new = (new_saddr, new_daddr);
    let addresses = A::change(old, new);
    let change = addresses
        .u16(arrival.key.sport, new_sport)
        .u16(arrival.key.dport, new_dport);
    if is_tcp {
        let Some(segment) = packet.window::<{ tcp::LEN }>(l4) else {
            return discard(tables, Counter::Internal);
        };
        let seq = u32::from_be(segment.u32::<{ tcp::SEQ }>());
        let ack = u32::from_be(segment.u32::<{ tcp::ACK_SEQ }>());
        track(tables, found, reply, before, arrival.tcp_flags, seq, ack);
        segment.set_u16::<{ tcp::SPORT }>(new_sport);
        segment.set_u16::<{ tcp::DPORT }>(new_dport);
        segment.set_u16::<{ tcp::CHECKSUM }>(change.apply(segment.u16::<{ tcp::CHECKSUM }>()));
    } else {
        let Some(datagram) = packet.window::<{ udp::LEN }>(l4) else {
            return discard(tables, Counter::Internal);
        };
        datagram.set_u16::<{ tcp::SPORT }>(new_sport);
        datagram.set_u16::<{ tcp::DPORT }>(new_dport);
        datagram.set_u16::<{ udp::CHECKSUM }>(change.apply_udp(datagram.u16::<{ udp::CHECKSUM }>()));
        if reply && before.own & seen::OPENED == 0 {
            answered(tables, found, before);
        }
    }
    if !A::rewrite(packet, arrival.l3 as usize, old, new, arrival.ttl.wrapping_sub(1)) {
        return discard(tables, Counter::Internal);
    }

    // A SYN on an established flow may be anybody's; it does not keep the flow alive.
    if !opening || before.state(false) != State::Established {
        entry.set_last_seen(tick(now));
    }
    entry.set_packets(entry.packets().wrapping_add(1));
    tables.tally(
        stats,
        server,
        reply,
        u64::from(arrival.l3) + u64::from(arrival.total),
    );
    send(packet, arrival, leg, tables, &to)
}

/// Hands the packet over to be answered by "time exceeded".
#[inline(always)]
pub fn time_exceeded<A: Header, T: Tables>(tables: &T, arrival: &Arrival<A>, leg: &Leg, now: u64) -> Step {
    hand_over_with(tables, arrival, leg, Phase::Answer, |work| {
        work.answer = Answer::TimeExceeded as u8;
        work.now = now;
    })
}

/// Hands over a packet that is too long for its way: its sender is told that it may have `most` bytes.
#[inline(always)]
pub fn too_big<A: Header, T: Tables>(
    tables: &T,
    arrival: &Arrival<A>,
    leg: &Leg,
    now: u64,
    most: u16,
) -> Step {
    hand_over_with(tables, arrival, leg, Phase::Answer, |work| {
        work.answer = Answer::TooBig as u8;
        work.most = most;
        work.now = now;
    })
}

/// A server that went down, or for datagrams was removed, whose flows are not to stay.
#[inline(always)]
fn is_gone<T: Tables>(tables: &T, server: u16, is_tcp: bool) -> bool {
    let gone = if is_tcp {
        server::RESETS
    } else {
        server::RESETS | server::MOVES
    };
    tables
        .server(u32::from(server))
        .is_some_and(|server| server.flags & gone != 0)
}

/// A client's packet to a server that is gone: TCP is reset, a datagram gets a new flow.
#[inline(always)]
fn server_is_gone<A: Header, T: Tables>(
    tables: &T,
    arrival: &Arrival<A>,
    leg: &Leg,
    found: &Found<A>,
    now: u64,
    before: Knowledge,
) -> Step {
    if arrival.key.proto != proto::TCP {
        tables.count(Counter::ServerDownMoved);
        return hand_over_with(tables, arrival, leg, Phase::Miss, |work| {
            work.old_at = found.at;
            work.old_incarnation = found.incarnation;
            work.reopen = 1;
            work.now = now;
        });
    }
    // As if the server had sent it.
    let after = Knowledge {
        other: before.other | seen::RST,
        ..before
    };
    if after != before {
        learn(tables, found, false, before, after, 0);
    }
    hand_over_with(tables, arrival, leg, Phase::Answer, |work| {
        work.answer = Answer::ServerGone as u8;
        work.now = now;
    })
}

/// An opening SYN meets a flow: an established one keeps it, unless it is overdue; any other may give way. A RST of the
/// client alone proves nothing: the SYN goes to the same server, which answers it if its connection is gone and lifts the
/// RST if not.
#[inline(always)]
fn reconsider<A: Header, T: Tables>(
    tables: &T,
    arrival: &Arrival<A>,
    leg: &Leg,
    found: &Found<A>,
    now: u64,
    before: Knowledge,
    gone: bool,
) -> Step {
    let state = before.state(false);
    let overdue = age(tables, found.entry(), tick(now)) > found.entry().idle_ticks();
    let keep = state == State::Established && !overdue && !gone;
    let phase = if keep { Phase::Forward } else { Phase::Miss };
    hand_over_with(tables, arrival, leg, phase, |work| {
        work.old_at = found.at;
        work.old_incarnation = found.incarnation;
        let over = state == State::Closing && !is_reset_by_client(before.own, before.other);
        work.reopen = u8::from(overdue || over || gone);
        work.now = now;
    })
}

/// Ticks since the last packet of either direction, or since what this node knows of packets ([`tell::FLOOR`]).
#[inline(always)]
pub fn age<A: Header, T: Tables>(tables: &T, entry: Entry<A>, now: u32) -> u32 {
    let (own, floor) = (
        ticks_since(now, entry.last_seen()),
        ticks_since(now, tables.floor()),
    );
    let own = if floor < own { floor } else { own };
    match entry_at::<A, T>(tables, entry.partner()) {
        Some(partner) => {
            let other = ticks_since(now, partner.last_seen());
            if other < own { other } else { own }
        }
        None => own,
    }
}

/// Takes note of what a TCP segment shows; numbers in native order.
#[inline(always)]
fn track<A: Header, T: Tables>(
    tables: &T,
    found: &Found<A>,
    reply: bool,
    before: Knowledge,
    flags: u8,
    seq: u32,
    ack: u32,
) {
    let entry = found.entry();
    let believable = flags & tcp::RST != 0
        && entry_at::<A, T>(tables, entry.partner()).is_some_and(|p| is_believable(seq, p.expected_ack()));
    let segment = Segment {
        flags,
        seq,
        ack,
        believable,
    };
    let after = before.after(reply, segment);
    if after != before {
        learn(tables, found, reply, before, after, seq);
    }
    if after.is_confirmed(reply) {
        if flags & (tcp::RST | tcp::SYN | tcp::ACK) == tcp::ACK {
            entry.set_expected_ack(ack);
        } else if flags & tcp::RST != 0 && !believable {
            tables.count(Counter::RstDoubted);
        }
    }
}

/// The first answer to datagrams: the flow gets its long time-out, and gives way to none.
#[inline(always)]
fn answered<A: Header, T: Tables>(tables: &T, found: &Found<A>, before: Knowledge) {
    let own = before.own | seen::OPENED;
    found.entry().set_own(own);
    if let Some(partner) = entry_at::<A, T>(tables, found.entry().partner())
        && partner.incarnation() == found.incarnation
    {
        partner.set_other(own);
        tell::look::<A, T>(tables, found.entry().partner());
    }
}

/// Writes new knowledge into both entries and keeps the number of half-open flows. `seq`: of the segment it comes from.
#[inline(always)]
fn learn<A: Header, T: Tables>(
    tables: &T,
    found: &Found<A>,
    reply: bool,
    before: Knowledge,
    after: Knowledge,
    seq: u32,
) {
    let entry = found.entry();
    let Some(partner) = entry_at::<A, T>(tables, entry.partner()) else {
        return;
    };
    if partner.incarnation() != found.incarnation || !found.intact() {
        return;
    }
    entry.set_own(after.own);
    partner.set_other(after.own);
    if after.other != before.other {
        entry.set_other(after.other);
        partner.set_own(after.other);
    }
    if after.expected_ack != before.expected_ack {
        entry.set_expected_ack(after.expected_ack);
        partner.set_expected_ack(after.expected_ack);
    }
    if !reply && after.is_confirmed(false) && !before.is_confirmed(false) {
        // What the server acknowledged with its SYN-ACK.
        partner.set_expected_ack(seq);
    }
    let (was, is) = (before.state(reply), after.state(reply));
    if was == is {
        return;
    }
    if after.is_confirmed(reply) {
        tell::look::<A, T>(tables, if reply { entry.partner() } else { found.at });
    }
    if was == State::HalfOpen {
        tables.add_half_open(u64::MAX);
    } else if is == State::HalfOpen {
        tables.add_half_open(1);
    }
    if was != State::Closing && is != State::Closing {
        return;
    }
    let n = if is == State::Closing { u64::MAX } else { 1 };
    tables.add_open(entry.stats(), entry.server(), n);
    let (client, forward) = if reply {
        (after.other, partner)
    } else {
        (after.own, entry)
    };
    if client & seen::COUNTED != 0
        && let Some(node) = tables.node()
    {
        let stats = u32::from(entry.stats());
        add_source(tables, node.flow_hash_key, stats, forward.saddr().wide(), n);
    }
}

/// Where an entry leads.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// There.
    To(Hop),
    /// Whoever may look routes up has to.
    ByRoute,
    /// Nowhere now.
    None,
}

/// The hop of an entry towards `addr`; with `ROUTED` one whose hop is not known, or not believed, looks its route up.
#[inline(always)]
pub fn resolve<T: Tables, const ROUTED: bool>(
    tables: &T,
    index: u32,
    addr: Addr,
    leg: &Leg,
    now: u64,
) -> Way {
    let hop = if index & hop::LAST == 0 {
        next_hop(tables, index, addr, now)
    } else {
        let known = if index == hop::ROUTE {
            None
        } else {
            tables
                .last_hop(index & !hop::LAST)
                .filter(|last| last.ifindex != 0)
        };
        match known {
            Some(last) => Some(Hop {
                mac: last.mac,
                vlan: last.vlan,
                ifindex: last.ifindex,
                leg: u32::from(last.leg),
                mtu: last.mtu,
            }),
            None if ROUTED => route(tables, addr, leg, now),
            None => return Way::ByRoute,
        }
    };
    hop.map_or(Way::None, Way::To)
}

/// A resolved entry of `NEXT_HOPS`, or an event that one is wanted.
#[inline(always)]
pub fn next_hop<T: Tables>(tables: &T, index: u32, addr: Addr, now: u64) -> Option<Hop> {
    let next = tables.next_hop(index)?;
    if next.valid == 0 {
        let wanted = Event {
            kind: kind::NEXT_HOP_WANTED,
            leg: u32::from(next.leg),
            addr,
            detail: index,
            time: now,
            ..Event::default()
        };
        report(tables, &wanted);
        return None;
    }
    Some(Hop {
        mac: next.mac,
        vlan: next.vlan,
        ifindex: next.ifindex,
        leg: u32::from(next.leg),
        mtu: next.mtu,
    })
}

/// The resolved next hop towards an address, or an event that one is wanted. Without a route: on-link on `leg`.
#[inline(always)]
pub fn route<T: Tables>(tables: &T, addr: Addr, leg: &Leg, now: u64) -> Option<Hop> {
    let (gateway, leg, mtu) = match tables.route(addr) {
        Some(route) => (route.gateway, route.leg, route.mtu),
        None => (Addr::NONE, u32::from(leg.id), 0),
    };
    let neighbour = if gateway.is_none() { addr } else { gateway };
    if let Some(index) = tables.neighbour(&NeighbourKey { addr: neighbour, leg }) {
        let mut hop = next_hop(tables, index, neighbour, now)?;
        if mtu != 0 && mtu < u32::from(hop.mtu) {
            hop.mtu = mtu as u16;
        }
        return Some(hop);
    }
    let wanted = Event {
        kind: kind::NEIGHBOUR_WANTED,
        leg,
        addr: neighbour,
        time: now,
        ..Event::default()
    };
    report(tables, &wanted);
    None
}

/// The hop to store for the client's side of a new flow: the neighbour the packet came from, unless that is the peer
/// passing a stray frame on.
///
/// Anybody on the segment can send with any address. A neighbour that user space has judged is taken or not as it says; one
/// that nobody has judged is believed for now only if nothing is known of the way to the client.
#[inline(always)]
pub fn client_hop<A: Address, T: Tables>(tables: &T, arrival: &Arrival<A>, leg: &Leg, now: u64) -> u32 {
    if mac_number(arrival.src_mac) == mac_number(leg.peer_mac) {
        return hop::ROUTE;
    }
    let last = LastHop {
        mac: arrival.src_mac,
        vlan: arrival.vlan,
        ifindex: arrival.ifindex,
        leg: u16::from(leg.id),
        mtu: leg.mtu,
    };
    if let Some(index) = tables.last_hop_index(&last) {
        return hop::LAST | (index & !hop::LAST);
    }
    if let Some(to) = route(tables, arrival.key.saddr.wide(), leg, now)
        && (mac_number(to.mac) != mac_number(last.mac) || to.leg != u32::from(last.leg))
    {
        tables.count(Counter::LastHopDoubted);
        return hop::ROUTE;
    }
    if let Some(index) = tables.learn_last_hop(&last) {
        return hop::LAST | (index & !hop::LAST);
    }
    tables.count(Counter::LastHopsFull);
    hop::ROUTE
}

/// A client's SYN came from another neighbour than the flow's: it is believed only if that is the resolved next hop
/// towards the client; everything else on the segment could be a stranger.
#[inline(always)]
pub fn follow_client<A: Header, T: Tables>(
    tables: &T,
    arrival: &Arrival<A>,
    leg: &Leg,
    found: &Found<A>,
    now: u64,
) {
    if mac_number(arrival.src_mac) == mac_number(leg.peer_mac) {
        return;
    }
    let Some(partner) = entry_at::<A, T>(tables, found.entry().partner()) else {
        return;
    };
    let stored = partner.hop();
    if stored != hop::ROUTE {
        let Some(last) = tables.last_hop(stored & !hop::LAST) else {
            return;
        };
        if last.ifindex != 0 && mac_number(last.mac) == mac_number(arrival.src_mac) {
            return;
        }
    }
    let Some(to) = route(tables, arrival.key.saddr.wide(), leg, now) else {
        return;
    };
    if mac_number(to.mac) == mac_number(arrival.src_mac) && to.leg == u32::from(leg.id) {
        let new = client_hop(tables, arrival, leg, now);
        if partner.incarnation() == found.incarnation {
            partner.set_hop(new);
        }
    }
}
