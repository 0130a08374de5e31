//! The main program: parse, for us?, flow? Everything but an established flow is handed on.

use crate::{
    counter::Counter,
    established,
    flow::FlowKey4,
    maps::{Leg, LegKey, proto},
    packet::{Packet, is_group, mac_number},
    phase::Phase,
    table,
    tables::{Tables, discard, geometry, pass},
    wire::{eth, ip, tcp, udp},
    work::{Arrival, Step, Work, shape},
};

/// Leaves the packet to a later phase.
#[inline(always)]
pub fn hand_over<T: Tables>(tables: &T, arrival: &Arrival, leg: &Leg, phase: Phase) -> Step {
    hand_over_with(tables, arrival, leg, phase, |_| {})
}

/// Leaves the packet, and more, to a later phase.
#[inline(always)]
pub fn hand_over_with<T: Tables>(
    tables: &T,
    arrival: &Arrival,
    leg: &Leg,
    phase: Phase,
    more: impl FnOnce(&mut Work),
) -> Step {
    let left = tables.leave(|work| {
        work.arrival = *arrival;
        work.leg = *leg;
        work.now = 0;
        work.old_incarnation = 0;
        work.reopen = 0;
        work.evicted = 0;
        work.waited = 0;
        work.reusing = 0;
        work.chosen = 0;
        more(work);
    });
    if left {
        Step::Next(phase)
    } else {
        discard(tables, Counter::Internal)
    }
}

/// A frame has arrived on an interface.
#[inline(always)]
pub fn receive<P: Packet, T: Tables>(packet: &mut P, ifindex: u32, tables: &T) -> Step {
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return pass(tables);
    };
    let dst = header.mac::<{ eth::DST }>();
    let mut ethertype = header.u16::<{ eth::TYPE }>();
    let mut arrival = Arrival {
        ifindex,
        src_mac: header.mac::<{ eth::SRC }>(),
        l3: eth::LEN as u16,
        ..Arrival::default()
    };
    if ethertype == eth::VLAN {
        let Some(header) = packet.window::<{ eth::LEN + eth::TAG_LEN }>(0) else {
            return pass(tables);
        };
        arrival.vlan = u16::from_be(header.u16::<{ eth::TCI }>()) & 0xfff;
        ethertype = header.u16::<{ eth::TAGGED_TYPE }>();
        arrival.l3 = (eth::LEN + eth::TAG_LEN) as u16;
    }
    if ethertype != eth::IPV4 && ethertype != eth::ARP {
        return pass(tables);
    }
    let Some(leg) = tables.leg(&LegKey {
        ifindex,
        vlan: arrival.vlan,
        _pad: 0,
    }) else {
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
        return hand_over(tables, &arrival, leg, Phase::Arp);
    }
    if !ours {
        return pass(tables);
    }
    receive_ip(packet, arrival, leg, tables)
}

#[inline(always)]
fn receive_ip<P: Packet, T: Tables>(packet: &mut P, mut arrival: Arrival, leg: &Leg, tables: &T) -> Step {
    let l3 = arrival.l3 as usize;
    let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
        return discard(tables, Counter::Malformed);
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
    arrival.key = FlowKey4::new(protocol, saddr, 0, daddr, 0);
    if header.u16::<{ ip::FRAGMENT }>() & ip::FRAGMENT_MASK != 0 {
        arrival.shape = shape::FRAGMENT;
        return hand_over(tables, &arrival, leg, Phase::Miss);
    }
    if protocol == proto::TCP {
        match packet.window::<{ tcp::LEN }>(l3 + ihl) {
            Some(segment) if total >= ihl + tcp::LEN => {
                arrival.key.sport = segment.u16::<{ tcp::SPORT }>();
                arrival.key.dport = segment.u16::<{ tcp::DPORT }>();
                arrival.tcp_flags = segment.u8::<{ tcp::FLAGS }>();
                arrival.shape = shape::PORTS;
            }
            _ => arrival.shape = shape::SHORT,
        }
    } else if protocol == proto::UDP {
        match packet.window::<{ udp::LEN }>(l3 + ihl) {
            Some(datagram) if total >= ihl + udp::LEN => {
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
        if let Some(found) = table::find(tables, &geometry(node), &arrival.key) {
            return established::forward::<P, T, false>(packet, &arrival, leg, tables, &found, tables.now());
        }
    }
    hand_over(tables, &arrival, leg, Phase::Miss)
}
