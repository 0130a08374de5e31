//! Servers that answer their clients themselves: `dsr` (only the frame changes) and `l3-dsr` (an IP tunnel).
//!
//! Flows are an affinity cache here: one entry, and a packet without one follows the scheduler's hash of its client, so
//! that connections survive a node that knows nothing of them.

use crate::{
    counter::Counter,
    established::{age, next_hop, time_exceeded, too_big},
    evict::uncount,
    flow::{self, State, flags, seen},
    fragment::identification,
    hash,
    maps::{Leg, LegKey, Server, Service, mode, proto, server},
    mss,
    packet::Packet,
    permission::may_act,
    phase::Phase,
    receive::{hand_over, hand_over_with, leg_of},
    table::{self, Entry, Found, NotInserted},
    tables::{Tables, discard, geometry, tick},
    tcp::is_opening,
    tell,
    transmit::{self, excess, write_header},
    tunnel::{self, Ends, Outer},
    wire::{eth, tcp},
    work::{Answer, Arrival, Step, Work, shape},
};

/// Every IPv6 link takes that many bytes (RFC 8200 §5).
const LEAST_MTU6: u16 = 1_280;

/// How a packet gets to its server.
#[derive(Clone, Copy, Debug)]
struct Way<A> {
    ends: Ends<A>,
    tunnel: bool,
    hop: u32,
    server: u16,
    stats: u16,
}

/// True for modes in which servers answer their clients themselves.
#[inline(always)]
pub const fn is_direct(mode: u8) -> bool {
    mode >= mode::DSR
}

/// Mode of a service for a client: that of the longest listed prefix, else the service's.
#[inline(always)]
pub fn mode_for<T: Tables>(tables: &T, service: &Service, index: u32, arrival: &Arrival) -> u8 {
    if service.mode & mode::RULES != 0
        && let Some(mode) = tables.mode_rule(arrival.slot, index, arrival.key.saddr)
    {
        return mode as u8 & mode::MASK;
    }
    service.mode & mode::MASK
}

/// [`Phase::DirectForward`]: forwards by the flow an earlier phase found; that phase has read the clock.
#[inline(always)]
pub fn direct_forward<A: Outer, P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T) -> Step {
    let (arrival, now) = (work.arrival.narrow::<A>(), work.now);
    let Some(leg) = leg_of(&arrival, tables) else {
        return discard(tables, Counter::Internal);
    };
    let Some(node) = tables.node() else {
        return discard(tables, Counter::Internal);
    };
    let Some(found) = table::find(tables, &geometry::<A>(node), &arrival.key) else {
        return discard(tables, Counter::LockContended);
    };
    let entry_flags = found.entry().flags();
    if entry_flags & flags::DIRECT == 0 {
        // It was another flow when this phase was chosen.
        return discard(tables, Counter::LockContended);
    }
    if !may_act(tables, entry_flags >> flags::GROUP_SHIFT, now, &arrival, leg) {
        return hand_over(tables, &arrival, leg, Phase::Relay);
    }
    established::<A, P, T, true>(packet, &arrival, leg, tables, &found, now)
}

/// A packet of a known flow. The lease is valid.
#[inline(always)]
pub fn established<A: Outer, P: Packet, T: Tables, const ROUTED: bool>(
    packet: &mut P,
    arrival: &Arrival<A>,
    leg: &Leg,
    tables: &T,
    found: &Found<A>,
    now: u64,
) -> Step {
    let entry = found.entry();
    let (entry_flags, own) = (entry.flags(), entry.own());
    let is_tcp = arrival.key.proto == proto::TCP;
    let opening = is_tcp && is_opening(arrival.tcp_flags);
    let state = entry.state();
    let server = entry.server();
    let tunnel = entry_flags & flags::MODE_MASK == mode::L3_DSR << flags::MODE_SHIFT;
    if tunnel && arrival.ttl <= 1 {
        return time_exceeded(tables, arrival, leg, now);
    }
    if !ROUTED {
        let up = tables
            .server(u32::from(server))
            .is_some_and(|s| s.flags & server::UP != 0);
        if !up || (opening && is_over(tables, entry, state, now)) {
            return hand_over_with(tables, arrival, leg, Phase::Miss, |work| {
                work.old_at = found.at;
                work.old_incarnation = found.incarnation;
                work.reopen = 1;
                work.now = now;
            });
        }
        if mss::limit(tables, arrival, entry.stats()) != 0 {
            return hand_over_with(tables, arrival, leg, Phase::Forward, |work| work.now = now);
        }
    }
    let way = Way {
        ends: Ends {
            from: entry.new_saddr(),
            to: entry.new_daddr(),
            spread: entry.new_sport(),
            port: entry.new_dport(),
        },
        tunnel,
        hop: entry.hop(),
        server,
        stats: entry.stats(),
    };
    if !found.intact() {
        return discard(tables, Counter::LockContended);
    }
    let error = arrival.shape & shape::ERROR != 0;
    let packets = entry.packets();
    let mut tells = packets == 1;
    if opening && state == State::Closing {
        entry.set_own(own | seen::AGAIN);
    }
    if is_tcp && !opening && !error {
        let own = if own & seen::AGAIN == 0 {
            own
        } else {
            own & !(seen::AGAIN | seen::RST | seen::FIN)
        };
        let after = if arrival.tcp_flags & tcp::RST != 0 {
            own | seen::RST
        } else if arrival.tcp_flags & tcp::FIN != 0 {
            (own | seen::FIN) & !seen::RST
        } else {
            own & !seen::RST
        };
        if after != entry.own() {
            // The server's side is never seen: it is taken to close with the client.
            entry.set_own(after);
            let other = seen::OPENED | after & seen::FIN;
            entry.set_other(other);
            let is_closing = flow::state(proto::TCP, after, other) == State::Closing;
            if is_closing != (state == State::Closing) {
                tells = true;
                let n = if is_closing { u64::MAX } else { 1 };
                tables.add_open(entry.stats(), server, n);
            }
        }
    }
    // A SYN on an established flow may be anybody's; it does not keep the flow alive.
    if !opening && !error {
        entry.set_last_seen(tick(now));
        entry.set_packets(packets.wrapping_add(1));
        if tells {
            tell::look::<A, T>(tables, found.at);
        }
    }
    match send(packet, arrival, leg, tables, &way, now) {
        Ok(step) => step,
        Err(most) => too_big(tables, arrival, leg, now, most),
    }
}

/// Whether a SYN begins a connection that may go to another server. A FIN or RST of the client alone proves nothing, as in
/// translated flows: until its time is over the SYN goes where the flow goes, and what follows it decides.
#[inline(always)]
fn is_over<A: Outer, T: Tables>(tables: &T, entry: Entry<A>, state: State, now: u64) -> bool {
    let most = if state == State::Closing {
        match tables.node() {
            Some(node) => node.closing_ticks,
            None => 0,
        }
    } else {
        entry.idle_ticks()
    };
    age(tables, entry, tick(now)) > most
}

/// Writes the new flow, for [`Phase::Direct`].
///
/// # Errors
/// The counter that says why the server cannot be reached as its mode asks for.
#[inline(always)]
pub fn fill<T: Tables>(
    work: &mut Work,
    tables: &T,
    service: &Service,
    mode: u8,
    index: u16,
    server: &Server,
) -> Result<(), Counter> {
    let key = work.arrival.key;
    let flow = &mut work.forward;
    if mode == mode::L3_DSR {
        let Some(tunnel) = tables.tunnel(work.arrival.slot, work.service) else {
            return Err(Counter::Internal);
        };
        let hash = hash::client([0x7370_7265, 0x6164], &key);
        let mut from = tunnel.source;
        if from.is_none() {
            from = if key.daddr.is_v4() {
                work.leg.addr
            } else {
                work.leg.addr6
            };
        }
        from.0[3] ^= (hash >> 32) as u32 & tunnel.spread;
        if from.is_none() {
            return Err(Counter::TunnelWithoutSource);
        }
        flow.new_saddr = from;
        flow.new_sport = tunnel::spread(hash);
        flow.new_dport = tunnel.port;
    } else {
        if server.net == 0 {
            return Err(Counter::DsrOffLink);
        }
        flow.new_saddr = key.saddr;
        flow.new_sport = key.sport;
        flow.new_dport = key.dport;
    }
    flow.saddr = key.saddr;
    flow.daddr = key.daddr;
    flow.sport = key.sport;
    flow.dport = key.dport;
    flow.proto = key.proto;
    flow.flags = service.group << flags::GROUP_SHIFT | mode << flags::MODE_SHIFT;
    // One direction shows nothing of a handshake.
    flow.own = seen::OPENED | seen::CONFIRMED;
    flow.other = seen::OPENED;
    flow.new_daddr = server.addr;
    flow.hop = server.next_hop;
    flow.partner = 0;
    flow.last_seen = tick(work.now);
    flow.idle_ticks = service.idle_ticks;
    flow.expected_ack = 0;
    flow.server = index;
    flow.stats = service.stats as u16;
    flow.packets = 1;
    flow.incarnation = 0;
    Ok(())
}

/// [`Phase::Direct`]: remembers the server of a new flow and sends. What cannot be remembered is sent all the same.
#[inline(always)]
pub fn direct<A: Outer, P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    let Some(node) = tables.node() else {
        return discard(tables, Counter::Internal);
    };
    let geometry = geometry::<A>(node);
    if work.old_incarnation != 0
        && let Some(ended) = table::remove::<A, T>(tables, &geometry, work.old_at, work.old_incarnation)
    {
        tables.count(Counter::FlowReopened);
        uncount(tables, node, &ended);
    }
    let forgets = work.forgets != 0 || work.arrival.shape & shape::ERROR != 0;
    if node.dsr_ways == 0 && !forgets {
        tables.count(Counter::AffinityMissed);
    } else if !forgets {
        let serial = tables.next_incarnation().wrapping_add(1) & 0xff_ffff_ffff;
        work.forward.incarnation = node.incarnation_base | serial;
        let owner = tables.lock_owner();
        match table::insert_single::<A, T>(
            tables,
            &geometry,
            owner,
            &work.forward,
            node.dsr_ways,
            &mut work.scan,
        ) {
            Ok(()) => {
                tables.count(Counter::FlowCreated);
                tables.tally_flow(work.forward.stats, work.forward.server);
                tables.add_open(work.forward.stats, work.forward.server, 1);
            }
            Err(NotInserted::ForwardExists | NotInserted::ReplyTaken) => {
                tables.count(Counter::FlowRaceLost);
                work.old_incarnation = 0;
                return Step::Next(Phase::Forward);
            }
            Err(NotInserted::Full | NotInserted::Contended) => tables.count(Counter::AffinityMissed),
        }
        if let Some((open, stats, server)) = work.scan.gave_way() {
            tables.count(Counter::AffinityEvicted);
            if open {
                tables.add_open(stats, server, u64::MAX);
            }
        }
    }
    let flow = &work.forward;
    let way = Way {
        ends: Ends {
            from: A::narrow(flow.new_saddr),
            to: A::narrow(flow.new_daddr),
            spread: flow.new_sport,
            port: flow.new_dport,
        },
        tunnel: flow.flags & flags::MODE_MASK == mode::L3_DSR << flags::MODE_SHIFT,
        hop: flow.hop,
        server: flow.server,
        stats: flow.stats,
    };
    let (arrival, now) = (work.arrival.narrow::<A>(), work.now);
    if way.tunnel && arrival.ttl <= 1 {
        work.answer = Answer::TimeExceeded as u8;
        return Step::Next(Phase::Answer);
    }
    match send(packet, &arrival, &work.leg, tables, &way, now) {
        Ok(step) => step,
        Err(most) => {
            work.answer = Answer::TooBig as u8;
            work.most = most;
            Step::Next(Phase::Answer)
        }
    }
}

/// Sends to the server.
///
/// # Errors
/// Bytes the packet may have, if it is too long.
#[inline(always)]
fn send<A: Outer, P: Packet, T: Tables>(
    packet: &mut P,
    arrival: &Arrival<A>,
    leg: &Leg,
    tables: &T,
    way: &Way<A>,
    now: u64,
) -> Result<Step, u16> {
    let Some(to) = next_hop(tables, way.hop, way.ends.to.wide(), now) else {
        return Ok(discard(tables, Counter::NoNeighbour));
    };
    let overhead = if way.tunnel {
        tunnel::overhead::<A>(way.ends.port)
    } else {
        0
    };
    // What an interface has put together would be one packet in the tunnel.
    let merged = way.tunnel && arrival.total > leg.mtu;
    let most = match excess(arrival, leg, &to, overhead as u16) {
        None if merged => Some(leg.mtu),
        most => most,
    };
    if let Some(most) = most {
        // Nobody need take less than the least (RFC 8200 §5), and no error is sent about another.
        if arrival.shape & shape::ERROR != 0 || (A::V6 && most < LEAST_MTU6) {
            return Ok(discard(tables, Counter::TooBig));
        }
        return Err(most);
    }
    if arrival.shape & shape::ERROR != 0 {
        tables.count(Counter::IcmpErrorTranslated);
    }
    if arrival.shape & shape::LATER != 0 {
        tables.count(Counter::FragmentFollowed);
    }
    let bytes = u64::from(arrival.l3) + u64::from(arrival.total);
    if !way.tunnel {
        tables.tally(way.stats, way.server, false, bytes);
        return Ok(transmit::send(packet, arrival, leg, tables, &to));
    }
    let mut from = leg.mac;
    if to.ifindex != arrival.ifindex || to.vlan != arrival.vlan {
        let Some(out) = tables.leg(&LegKey {
            ifindex: to.ifindex,
            vlan: to.vlan,
            _pad: 0,
        }) else {
            return Ok(discard(tables, Counter::Internal));
        };
        from = out.mac;
    }
    let l3 = arrival.l3 as usize;
    let Some(mut copied) = A::copied(packet, l3) else {
        return Ok(discard(tables, Counter::Internal));
    };
    if !A::V6 && copied.df == 0 {
        // All senders' packets have one source now.
        copied.id = (identification(tables, way.ends.from, way.ends.to) as u16).to_be();
    }
    if !A::set_ttl(packet, l3, arrival.ttl.wrapping_sub(1)) {
        return Ok(discard(tables, Counter::Internal));
    }
    let new_l3 = if to.vlan == 0 {
        eth::LEN
    } else {
        eth::LEN + eth::TAG_LEN
    };
    let room = overhead + new_l3;
    let grow = room.cast_signed() - l3.cast_signed();
    let vlan = (to.vlan != 0).then_some(to.vlan);
    if !packet.move_start(grow)
        || !write_header(packet, from, to.mac, vlan, A::ETHERTYPE)
        || !tunnel::write(packet, new_l3, &way.ends, arrival.total as usize, copied)
    {
        return Ok(discard(tables, Counter::Internal));
    }
    tables.tally(way.stats, way.server, false, bytes);
    if to.ifindex == arrival.ifindex {
        tables.count(Counter::Transmitted);
        Ok(Step::Transmit)
    } else {
        tables.count(Counter::Redirected);
        Ok(Step::Redirect(to.leg))
    }
}
