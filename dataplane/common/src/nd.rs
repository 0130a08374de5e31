//! Neighbour Discovery: solicitations for owned IPv6 addresses are answered by the program, on their own leg, while the lease
//! is valid (RFC 4861).

use crate::{
    checksum::{fold, halves},
    counter::Counter,
    event::{Event, kind},
    header::{Header, pseudo},
    maps::{Addr, Mac, Owned, owned, proto},
    packet::{Packet, is_group, mac_number},
    tables::{Tables, discard, pass, report},
    transmit::{send_back, write_header},
    wire::{eth, icmp, nd},
    work::{Arrival, Step, Work},
};

/// All nodes, `ff02::1`.
const ALL_NODES: Addr = Addr([0xff02_0000_u32.to_be(), 0, 0, 1_u32.to_be()]);
/// First three words of a solicited-node group, `ff02::1:ff00:0/104`.
const SOLICITED_NODE: [u32; 3] = [0xff02_0000_u32.to_be(), 0, 1_u32.to_be()];
/// Longest message that is looked at, bytes, a multiple of eight.
const LONGEST: usize = 64;

/// [`crate::phase::Phase::Neighbour`]: a solicitation or advertisement without extension headers.
#[inline(always)]
pub fn nd<P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T) -> Step {
    let arrival = &work.arrival;
    let Some(message) = packet.window::<{ nd::LEN }>(arrival.l4 as usize) else {
        return pass(tables);
    };
    let target = message.addr::<{ nd::TARGET }>();
    let is_solicitation = message.u8::<{ icmp::TYPE }>() == nd::SOLICITATION;
    let ours = tables.owned(arrival.slot, arrival.key.saddr);
    if let Some(owner) = ours.or(if is_solicitation {
        None
    } else {
        tables.owned(arrival.slot, target)
    }) {
        // From beyond the link it claims nothing (RFC 4861 §7.1).
        if arrival.ttl != nd::HOP_LIMIT {
            return discard(tables, Counter::NdInvalid);
        }
        let claimed = if ours.is_some() { arrival.key.saddr } else { target };
        return claim(work, tables, owner, claimed);
    }
    let Some(owner) = tables.owned(arrival.slot, target) else {
        return pass(tables);
    };
    if !is_solicitation || owner.leg != work.leg.id {
        return pass(tables);
    }
    let to_group = is_group_of(arrival.key.daddr, target);
    if !to_group && arrival.key.daddr != target {
        return pass(tables);
    }
    if !is_valid(packet, arrival, to_group) {
        return discard(tables, Counter::NdInvalid);
    }
    if tables.now() >= tables.lease(owner.group) {
        tables.count(Counter::ArpNotOwner);
        return pass(tables);
    }
    advertise(packet, work, tables, owner, target)
}

/// Somebody sends from, or advertises, an owned address.
#[inline(always)]
fn claim<T: Tables>(work: &Work, tables: &T, owner: Owned, addr: Addr) -> Step {
    let now = tables.now();
    let reflected = mac_number(work.arrival.src_mac) == mac_number(work.leg.mac);
    if reflected || now >= tables.lease(owner.group) {
        return pass(tables); // Our own announcement come back, or the owner's.
    }
    let conflict = Event {
        kind: kind::ADDRESS_CONFLICT,
        leg: u32::from(work.leg.id),
        addr,
        mac: work.arrival.src_mac,
        time: now,
        ..Event::default()
    };
    report(tables, &conflict);
    discard(tables, Counter::ArpConflict)
}

/// The solicited-node group of `target` (RFC 4291 §2.7.1).
#[inline(always)]
fn is_group_of(group: Addr, target: Addr) -> bool {
    let low = target.0[3] | u32::from_ne_bytes([0xff, 0, 0, 0]);
    group == Addr([SOLICITED_NODE[0], SOLICITED_NODE[1], SOLICITED_NODE[2], low])
}

/// RFC 4861 §7.1.1, and §7.2.3 for the source of what is answered.
#[inline(always)]
fn is_valid<P: Packet>(packet: &P, arrival: &Arrival, to_group: bool) -> bool {
    let l4 = arrival.l4 as usize;
    let len = (arrival.total as usize).wrapping_sub((arrival.l4 - arrival.l3) as usize);
    if arrival.ttl != nd::HOP_LIMIT || !(nd::LEN..=LONGEST).contains(&len) || len & 7 != 0 {
        return false;
    }
    let Some(message) = packet.window::<{ nd::LEN }>(l4) else {
        return false;
    };
    if message.u16::<{ icmp::TYPE_CODE }>() != u16::from_ne_bytes([nd::SOLICITATION, 0]) {
        return false;
    }
    let saddr = arrival.key.saddr;
    let probe = saddr.is_none();
    if (probe && !to_group) || (!probe && saddr.is_special()) {
        return false;
    }
    let mut sum = pseudo(saddr, arrival.key.daddr, proto::ICMPV6, len);
    // Options: the length of each is looked at in the word that would begin it.
    let mut next = nd::OPTIONS;
    let mut offset = 0;
    while offset < LONGEST {
        if offset >= len {
            break;
        }
        let Some(word) = packet.window::<8>(l4 + offset) else {
            return false;
        };
        sum += halves(word.u32::<0>()) + halves(word.u32::<4>());
        if offset == next {
            let units = word.u8::<1>() as usize;
            if units == 0 || (probe && word.u8::<0>() == nd::SOURCE_ADDRESS) {
                return false;
            }
            next += units << 3;
        }
        offset += 8;
    }
    next == len && fold(sum) == 0xffff
}

/// The advertisement (RFC 4861 §7.2.4), written over the solicitation.
#[inline(always)]
fn advertise<P: Packet, T: Tables>(
    packet: &mut P,
    work: &Work,
    tables: &T,
    owner: Owned,
    target: Addr,
) -> Step {
    let arrival = &work.arrival;
    let (l3, l4) = (arrival.l3 as usize, arrival.l4 as usize);
    let probe = arrival.key.saddr.is_none();
    let to = if probe { ALL_NODES } else { arrival.key.saddr };
    if is_group(arrival.src_mac) || !packet.set_len(l4 + nd::LEN_WITH_ADDRESS) {
        return discard(tables, Counter::Internal);
    }
    if !Addr::write(packet, l3, target, to, proto::ICMPV6, nd::LEN_WITH_ADDRESS)
        || !Addr::set_ttl(packet, l3, nd::HOP_LIMIT)
    {
        return discard(tables, Counter::Internal);
    }
    let Some(message) = packet.window::<{ nd::LEN_WITH_ADDRESS }>(l4) else {
        return discard(tables, Counter::Internal);
    };
    let router = if owner.kinds & owned::GATEWAY != 0 {
        nd::ROUTER
    } else {
        0
    };
    let solicited = if probe { 0 } else { nd::SOLICITED };
    let type_code = u16::from_ne_bytes([nd::ADVERTISEMENT, 0]);
    let flags = router | solicited | nd::OVERRIDE;
    message.set_u16::<{ icmp::TYPE_CODE }>(type_code);
    message.set_u32::<{ nd::FLAGS }>(flags);
    message.set_addr::<{ nd::TARGET }>(target);
    let option = u16::from_ne_bytes([nd::TARGET_ADDRESS, 1]);
    message.set_u16::<{ nd::OPTIONS }>(option);
    message.set_mac::<{ nd::OPTIONS + 2 }>(work.leg.mac);
    let sum = pseudo(target, to, proto::ICMPV6, nd::LEN_WITH_ADDRESS)
        + u32::from(type_code)
        + halves(flags)
        + target.halves()
        + u32::from(option)
        + mac_halves(work.leg.mac);
    message.set_u16::<{ icmp::CHECKSUM }>(!fold(sum));
    tables.count(Counter::ArpAnswered);
    if !probe {
        return send_back(packet, work.leg.mac, arrival.src_mac, tables);
    }
    let vlan = if l3 == eth::LEN { None } else { Some(arrival.vlan) };
    if !write_header(packet, work.leg.mac, [0x33, 0x33, 0, 0, 0, 1], vlan, eth::IPV6) {
        return discard(tables, Counter::Internal);
    }
    tables.count(Counter::Transmitted);
    Step::Transmit
}

#[inline(always)]
const fn mac_halves(mac: Mac) -> u32 {
    let number = mac_number(mac);
    halves(number as u32) + halves((number >> 32) as u32)
}
