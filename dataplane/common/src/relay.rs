//! A packet of the pair on the node without a lease: a stray frame (stale ARP cache after a switchover) goes on to the
//! Active, once; everything else is dropped. The kernel never sees it.

use crate::{
    checksum::Change,
    counter::Counter,
    packet::{Packet, mac_number},
    tables::{Tables, discard},
    transmit::send_back,
    wire::ip,
    work::{Step, Work},
};

/// [`crate::phase::Phase::Relay`].
#[inline(always)]
pub fn relay<P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T) -> Step {
    let peer = work.leg.peer_mac;
    if mac_number(work.arrival.src_mac) == mac_number(peer) {
        return discard(tables, Counter::RelayLoop);
    }
    let known = mac_number(peer) != 0 && tables.node().is_some_and(|node| node.relay_to_peer != 0);
    if !known {
        return discard(tables, Counter::NoLease);
    }
    if !decrement_ttl(packet, work) {
        return discard(tables, Counter::TtlExpired);
    }
    tables.count(Counter::Relayed);
    send_back(packet, work.leg.mac, peer, tables)
}

/// TTL − 1 with its checksum; false if the packet must not be forwarded.
#[inline(always)]
pub fn decrement_ttl<P: Packet>(packet: &P, work: &Work) -> bool {
    let Some(header) = packet.window::<{ ip::LEN }>(work.arrival.l3 as usize) else {
        return false;
    };
    let ttl = header.u8::<{ ip::TTL }>();
    if ttl <= 1 {
        return false;
    }
    let old = header.u16::<{ ip::TTL_PROTO }>();
    header.set_u8::<{ ip::TTL }>(ttl - 1);
    let change = Change::new().u16(old, header.u16::<{ ip::TTL_PROTO }>());
    header.set_u16::<{ ip::CHECKSUM }>(change.apply(header.u16::<{ ip::CHECKSUM }>()));
    true
}
