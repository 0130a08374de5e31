//! ARP: owned addresses are answered by the program, on their own leg, while the lease is valid.

use crate::{
    addr::Addr,
    counter::Counter,
    event::{Event, kind},
    packet::{Packet, is_group, mac_number},
    tables::{Tables, discard, pass, report},
    transmit::send_back,
    wire::arp,
    work::{Step, Work},
};

/// [`crate::phase::Phase::Neighbour`]: an ARP packet to us or to everybody.
#[inline(always)]
pub fn arp<P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T) -> Step {
    let arrival = &work.arrival;
    let Some(request) = packet.window::<{ arp::LEN }>(arrival.l3 as usize) else {
        return pass(tables);
    };
    if request.u32::<{ arp::TYPES }>() != arp::ETHERNET_IPV4
        || request.u16::<{ arp::LENGTHS }>() != arp::SIX_FOUR
    {
        return pass(tables);
    }
    let sender_addr = request.u32::<{ arp::SPA }>();
    let sender = Addr::v4(sender_addr);
    let sender_mac = request.mac::<{ arp::SHA }>();
    let target_addr = request.u32::<{ arp::TPA }>();
    let target = Addr::v4(target_addr);
    if let Some(owned) = tables.owned(arrival.slot, sender) {
        let now = tables.now();
        let reflected = mac_number(sender_mac) == mac_number(work.leg.mac);
        if reflected || now >= tables.lease(owned.group) {
            return pass(tables); // Our own announcement come back, or the owner's.
        }
        let conflict = Event {
            kind: kind::ADDRESS_CONFLICT,
            leg: u32::from(work.leg.id),
            addr: sender,
            mac: sender_mac,
            time: now,
            ..Event::default()
        };
        report(tables, &conflict);
        return discard(tables, Counter::ArpConflict);
    }
    if request.u16::<{ arp::OP }>() != arp::REQUEST {
        return pass(tables);
    }
    let Some(owned) = tables.owned(arrival.slot, target) else {
        return pass(tables);
    };
    if owned.leg != work.leg.id {
        return pass(tables);
    }
    if is_group(sender_mac) || (sender.is_special() && sender_addr != 0) {
        return discard(tables, Counter::BadSource);
    }
    if tables.now() >= tables.lease(owned.group) {
        tables.count(Counter::ArpNotOwner);
        return pass(tables);
    }
    request.set_u16::<{ arp::OP }>(arp::REPLY);
    request.set_mac::<{ arp::SHA }>(work.leg.mac);
    request.set_u32::<{ arp::SPA }>(target_addr);
    request.set_mac::<{ arp::THA }>(sender_mac);
    request.set_u32::<{ arp::TPA }>(sender_addr);
    tables.count(Counter::ArpAnswered);
    send_back(packet, work.leg.mac, arrival.src_mac, tables)
}
