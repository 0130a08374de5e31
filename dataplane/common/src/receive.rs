//! The first program of a frame: parse, for us?, flow? Everything but an established flow is handed on. IPv6 has a program
//! of its own, so that IPv4 does not pay for it.

use crate::{
    addr::{Addr, Addr4},
    counter::Counter,
    established,
    flow::FlowKey,
    fragment::Fragmented,
    header::Header,
    help,
    maps::{Leg, LegKey, Mac, proto},
    packet::{MAX_OFFSET, Packet, is_group, mac_number, unreadable},
    phase::Phase,
    table,
    tables::{Tables, discard, geometry, pass},
    tunnel::Outer,
    wire::{eth, icmp, ip, ip6, nd, tcp, udp},
    work::{Arrival, Step, Work, shape},
};

/// Extension headers of one packet that are walked.
const MOST_EXTENSIONS: usize = 6;
/// Transport headers further from the start of the frame are not looked at.
const DEEPEST_TRANSPORT: usize = MAX_OFFSET - tcp::LEN;

/// Leaves the packet to a later phase.
#[inline(always)]
pub fn hand_over<A: Header, T: Tables>(tables: &T, arrival: &Arrival<A>, leg: &Leg, phase: Phase) -> Step {
    hand_over_with(tables, arrival, leg, phase, |_| {})
}

/// Leaves the packet, and more, to a later phase.
#[inline(always)]
pub fn hand_over_with<A: Header, T: Tables>(
    tables: &T,
    arrival: &Arrival<A>,
    leg: &Leg,
    phase: Phase,
    more: impl FnOnce(&mut Work),
) -> Step {
    let left = tables.leave(|work| {
        arrival.widen_into(&mut work.arrival);
        work.leg = *leg;
        work.now = 0;
        work.hash = 0;
        work.old_incarnation = 0;
        work.made_incarnation = 0;
        work.reopen = 0;
        work.evicted = 0;
        work.waited = 0;
        work.reusing = 0;
        work.chosen = 0;
        work.judged = 0;
        work.clamped = 0;
        work.fresh_id = 0;
        more(work);
    });
    if left {
        Step::Next(phase)
    } else {
        discard(tables, Counter::Internal)
    }
}

/// Ethernet header: where the frame comes from, its destination, and what is in it. `None`: it ends before.
#[inline(always)]
fn ethernet<A: Header, P: Packet>(packet: &P, ifindex: u32) -> Option<(Arrival<A>, Mac, u16)> {
    let header = packet.window::<{ eth::LEN }>(0)?;
    let dst = header.mac::<{ eth::DST }>();
    let mut ethertype = header.u16::<{ eth::TYPE }>();
    let mut arrival = Arrival {
        ifindex,
        src_mac: header.mac::<{ eth::SRC }>(),
        l3: eth::LEN as u16,
        ..Arrival::default()
    };
    if ethertype == eth::VLAN {
        let header = packet.window::<{ eth::LEN + eth::TAG_LEN }>(0)?;
        arrival.vlan = u16::from_be(header.u16::<{ eth::TCI }>()) & 0xfff;
        ethertype = header.u16::<{ eth::TAGGED_TYPE }>();
        arrival.l3 = (eth::LEN + eth::TAG_LEN) as u16;
    }
    Some((arrival, dst, ethertype))
}

/// The leg a frame came by.
#[inline(always)]
pub fn leg_of<'t, A: Header, T: Tables>(arrival: &Arrival<A>, tables: &'t T) -> Option<&'t Leg> {
    tables.leg(&LegKey {
        ifindex: arrival.ifindex,
        vlan: arrival.vlan,
        _pad: 0,
    })
}

/// A frame has arrived on an interface.
#[inline(always)]
pub fn receive<P: Packet, T: Tables>(packet: &mut P, ifindex: u32, tables: &T) -> Step {
    let Some((mut arrival, dst, ethertype)) = ethernet::<Addr4, P>(packet, ifindex) else {
        return pass(tables);
    };
    if ethertype == eth::IPV6 {
        return Step::Next(Phase::Receive6);
    }
    if ethertype != eth::IPV4 && ethertype != eth::ARP {
        if ethertype == help::ETHERTYPE {
            return discard(tables, Counter::Malformed);
        }
        if ethertype == eth::VLAN || ethertype == eth::PROVIDER_VLAN {
            tables.count(Counter::StackedTags);
        }
        return pass(tables);
    }
    let Some(leg) = leg_of(&arrival, tables) else {
        return pass(tables);
    };
    let ours = mac_number(dst) == mac_number(leg.mac);
    if is_group(arrival.src_mac) {
        return pass(tables);
    }
    if ethertype == eth::ARP {
        if !ours && mac_number(dst) != mac_number([0xff; 6]) {
            return pass(tables);
        }
        arrival.slot = tables.slot();
        return hand_over(tables, &arrival, leg, Phase::Neighbour);
    }
    if !ours {
        return pass(tables);
    }
    receive_ip(packet, arrival, leg, tables)
}

#[inline(always)]
fn receive_ip<P: Packet, T: Tables>(
    packet: &mut P,
    mut arrival: Arrival<Addr4>,
    leg: &Leg,
    tables: &T,
) -> Step {
    let l3 = arrival.l3 as usize;
    let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
        return discard(tables, unreadable(packet, l3, ip::LEN));
    };
    let version_ihl = header.u8::<{ ip::VERSION_IHL }>();
    let ihl = (version_ihl as usize & 0xf) << 2;
    arrival.total = u16::from_be(header.u16::<{ ip::TOTAL }>());
    let total = arrival.total as usize;
    if version_ihl >> 4 != 4 || ihl < ip::LEN || total < ihl || !packet.holds(l3 + total) {
        return discard(tables, Counter::Malformed);
    }
    let protocol = header.u8::<{ ip::PROTO }>();
    arrival.ttl = header.u8::<{ ip::TTL }>();
    arrival.l4 = (l3 + ihl) as u16;
    arrival.slot = tables.slot();
    let (saddr, daddr) = (header.u32::<{ ip::SADDR }>(), header.u32::<{ ip::DADDR }>());
    arrival.key = FlowKey::new(protocol, saddr, 0, daddr, 0);
    if ihl != ip::LEN {
        return hand_over(tables, &arrival, leg, Phase::Extensions);
    }
    if header.u16::<{ ip::FRAGMENT }>() & ip::FRAGMENT_MASK != 0 {
        arrival.shape = shape::FRAGMENT;
        return hand_over(tables, &arrival, leg, Phase::Fragment);
    }
    receive_transport(packet, arrival, leg, tables)
}

/// Reads the ports and looks for the flow. `arrival.l4` is where the transport header begins.
#[inline(always)]
fn receive_transport<A: Outer + Fragmented, P: Packet, T: Tables>(
    packet: &mut P,
    mut arrival: Arrival<A>,
    leg: &Leg,
    tables: &T,
) -> Step {
    let l4 = arrival.l4 as usize;
    let headers = l4 - arrival.l3 as usize;
    let total = arrival.total as usize;
    let protocol = arrival.key.proto;
    if protocol == proto::TCP {
        match packet.window::<{ tcp::LEN }>(l4) {
            Some(segment) if total >= headers + tcp::LEN => {
                arrival.key.sport = segment.u16::<{ tcp::SPORT }>();
                arrival.key.dport = segment.u16::<{ tcp::DPORT }>();
                arrival.tcp_flags = segment.u8::<{ tcp::FLAGS }>();
                arrival.shape = shape::PORTS;
            }
            _ => arrival.shape = shape::SHORT,
        }
    } else if protocol == proto::UDP {
        match packet.window::<{ udp::LEN }>(l4) {
            Some(datagram) if total >= headers + udp::LEN => {
                if A::V6 && datagram.u16::<{ udp::CHECKSUM }>() == 0 {
                    return discard(tables, Counter::UdpChecksumMissing);
                }
                arrival.key.sport = datagram.u16::<{ tcp::SPORT }>();
                arrival.key.dport = datagram.u16::<{ tcp::DPORT }>();
                arrival.shape = shape::PORTS;
            }
            _ => arrival.shape = shape::SHORT,
        }
    }
    if arrival.shape == shape::PORTS {
        let Some(node) = tables.node() else {
            return discard(tables, Counter::Internal);
        };
        // Before the look-up: a read of the clock waits for every load before it.
        let now = tables.now();
        let place = geometry::<A>(node).place(&arrival.key);
        if let Some(found) = table::find_at(tables, place, &arrival.key) {
            return established::forward::<A, P, T, false>(packet, &arrival, leg, tables, &found, now, 0);
        }
        return hand_over_with(tables, &arrival, leg, Phase::Miss, |work| {
            work.now = now;
            work.hash = place.hash;
        });
    }
    hand_over(tables, &arrival, leg, Phase::Miss)
}

/// [`Phase::Receive6`]: an IPv6 frame has arrived on an interface.
#[inline(always)]
pub fn receive6<P: Packet, T: Tables>(packet: &mut P, ifindex: u32, tables: &T) -> Step {
    let Some((mut arrival, dst, ethertype)) = ethernet::<Addr, P>(packet, ifindex) else {
        return pass(tables);
    };
    if ethertype != eth::IPV6 {
        return discard(tables, Counter::Internal);
    }
    let Some(leg) = leg_of(&arrival, tables) else {
        return pass(tables);
    };
    if is_group(arrival.src_mac) {
        return pass(tables);
    }
    let ours = mac_number(dst) == mac_number(leg.mac);
    // Groups of solicited nodes, and all nodes for advertisements of somebody else (RFC 2464 §7).
    if !ours && (dst[0] != 0x33 || dst[1] != 0x33) {
        return pass(tables);
    }
    let l3 = arrival.l3 as usize;
    let Some(header) = packet.window::<{ ip6::LEN }>(l3) else {
        return if ours {
            discard(tables, unreadable(packet, l3, ip6::LEN))
        } else {
            pass(tables)
        };
    };
    let next = header.u8::<{ ip6::NEXT }>();
    arrival.ttl = header.u8::<{ ip6::HOP_LIMIT }>();
    let payload = u16::from_be(header.u16::<{ ip6::PAYLOAD }>());
    arrival.total = payload.saturating_add(ip6::LEN as u16);
    arrival.l4 = (l3 + ip6::LEN) as u16;
    arrival.key = FlowKey::new(
        next,
        header.addr::<{ ip6::SADDR }>(),
        0,
        header.addr::<{ ip6::DADDR }>(),
        0,
    );
    let sane = header.u8::<{ ip6::VERSION }>() >> 4 == 6 && packet.holds(l3 + arrival.total as usize);
    if sane && next == proto::ICMPV6 && payload as usize >= nd::LEN {
        let Some(message) = packet.window::<{ icmp::LEN }>(l3 + ip6::LEN) else {
            return pass(tables);
        };
        let kind = message.u8::<{ icmp::TYPE }>();
        if kind == nd::SOLICITATION || kind == nd::ADVERTISEMENT {
            arrival.slot = tables.slot();
            return hand_over(tables, &arrival, leg, Phase::Neighbour);
        }
    }
    if !ours {
        return pass(tables);
    }
    if !sane || arrival.key.saddr.is_v4() || arrival.key.daddr.is_v4() {
        return discard(tables, Counter::Malformed);
    }
    arrival.slot = tables.slot();
    if ip6::is_extension(next) {
        return hand_over(tables, &arrival, leg, Phase::Extensions);
    }
    receive_transport(packet, arrival, leg, tables)
}

/// [`Phase::Extensions`] of IPv4: options come first. A source route takes a packet past what guards the way it should
/// have come (RFC 7126 §4.3); every other option goes on as it came.
#[inline(always)]
pub fn walk_options<P: Packet>(packet: &P, work: &mut Work) -> Step {
    let Some(header) = packet.window::<{ ip::LEN }>(work.arrival.l3 as usize) else {
        work.arrival.shape = shape::SHORT;
        return Step::Next(Phase::Miss);
    };
    let fragment = header.u16::<{ ip::FRAGMENT }>() & ip::FRAGMENT_MASK != 0;
    match options(packet, work) {
        Walk::Transport if fragment => after(Walk::Fragment, work),
        walk => after(walk, work),
    }
}

/// Where a packet goes from its options or extension headers.
#[inline(always)]
fn after(walk: Walk, work: &mut Work) -> Step {
    match walk {
        Walk::Transport => return Step::Next(Phase::Lookup),
        Walk::Fragment => {
            work.arrival.shape = shape::FRAGMENT;
            return Step::Next(Phase::Fragment);
        }
        Walk::Broken => work.arrival.shape = shape::SHORT,
        Walk::Routed => work.arrival.shape = shape::ROUTED,
    }
    Step::Next(Phase::Miss)
}

/// Walks the options (RFC 791 §3.1).
#[inline(always)]
fn options<P: Packet>(packet: &P, work: &mut Work) -> Walk {
    let end = work.arrival.l4 as usize;
    // In memory, or each length an option could have would be verified on its own.
    work.cursor.set((work.arrival.l3 as usize + ip::LEN) as u64);
    for _ in 0..ip::MOST_OPTIONS {
        let at = work.cursor.get() as usize;
        if at >= end || at > MAX_OFFSET {
            break;
        }
        // With the byte before it: verifiers learn nothing of a single byte.
        let Some(option) = packet.window::<2>(at - 1) else {
            return Walk::Broken;
        };
        let kind = option.u8::<1>();
        if kind == ip::END_OF_OPTIONS {
            break;
        }
        if kind == ip::NO_OPERATION {
            work.cursor.set((at + 1) as u64);
            continue;
        }
        let Some(option) = packet.window::<2>(at) else {
            return Walk::Broken;
        };
        let len = option.u8::<1>() as usize;
        if len < 2 || at + len > end {
            return Walk::Broken;
        }
        if kind == ip::LOOSE_SOURCE_ROUTE || kind == ip::STRICT_SOURCE_ROUTE {
            return Walk::Routed;
        }
        work.cursor.set((at + len) as u64);
    }
    Walk::Transport
}

/// [`Phase::Extensions`] of IPv6: extension headers come first. In a program of its own, because each way through them would be
/// verified with everything that follows.
#[inline(always)]
pub fn walk_extensions<P: Packet>(packet: &P, work: &mut Work) -> Step {
    let walk = extensions(packet, &mut work.arrival);
    after(walk, work)
}

/// [`Phase::Lookup`]: the transport header is found.
#[inline(always)]
pub fn lookup<A: Outer + Fragmented, P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T) -> Step {
    let arrival = work.arrival.narrow::<A>();
    let Some(leg) = leg_of(&arrival, tables) else {
        return discard(tables, Counter::Internal);
    };
    receive_transport(packet, arrival, leg, tables)
}

/// What follows extension headers or options.
#[derive(Clone, Copy)]
enum Walk {
    /// A transport header, or something unknown, of `key.proto` at `l4`.
    Transport,
    /// A fragment, first or not.
    Fragment,
    /// Nothing that could be looked at: the chain leaves the packet, or is too long.
    Broken,
    /// Whatever it is, it is to go by way of others (RFC 7126 §4.3, RFC 5095).
    Routed,
}

/// Walks the extension headers (RFC 8200 §4).
#[inline(always)]
fn extensions<P: Packet>(packet: &P, arrival: &mut Arrival) -> Walk {
    let end = arrival.l3 as usize + arrival.total as usize;
    for n in 0..=MOST_EXTENSIONS {
        let next = arrival.key.proto;
        if !ip6::is_extension(next) {
            return Walk::Transport;
        }
        if next == ip6::FRAGMENT {
            return Walk::Fragment;
        }
        let l4 = arrival.l4 as usize;
        if n == MOST_EXTENSIONS || l4 > DEEPEST_TRANSPORT {
            return Walk::Broken;
        }
        let Some(header) = packet.window::<4>(l4) else {
            return Walk::Broken;
        };
        if next == ip6::ROUTING && header.u8::<3>() != 0 {
            return Walk::Routed;
        }
        let units = header.u8::<1>() as usize;
        let len = if next == ip6::AUTH {
            (units + 2) << 2
        } else {
            (units + 1) << 3
        };
        if l4 + len > end || l4 + len > DEEPEST_TRANSPORT {
            return Walk::Broken;
        }
        arrival.l4 = (l4 + len) as u16;
        arrival.key.proto = header.u8::<0>();
    }
    Walk::Broken
}
