//! A packet of the pair on the node without a lease: a stray frame (stale ARP cache after a switchover) goes on to the
//! Active, once; everything else is dropped. The kernel never sees it. An Active that yields passes on what has no flow.

use crate::{
    counter::Counter,
    header::Header,
    packet::{Packet, mac_number},
    tables::{Tables, discard},
    transmit::send_back,
    work::{Step, Work},
};

/// [`crate::phase::Phase::Relay`].
#[inline(always)]
pub fn relay<A: Header, P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T) -> Step {
    let peer = work.leg.peer_mac;
    if mac_number(work.arrival.src_mac) == mac_number(peer) {
        return discard(tables, Counter::RelayLoop);
    }
    let owns = tables.node().is_some_and(|node| node.relay_to_peer != 0)
        || tables.now() < tables.relaying(work.leg.group);
    if mac_number(peer) == 0 || !owns {
        return discard(tables, Counter::NoLease);
    }
    if !decrement_ttl::<A, P>(packet, work) {
        return discard(tables, Counter::TtlExpired);
    }
    tables.count(Counter::Relayed);
    send_back(packet, work.leg.mac, peer, tables)
}

/// Hop limit − 1; false if the packet must not be forwarded.
#[inline(always)]
pub fn decrement_ttl<A: Header, P: Packet>(packet: &P, work: &Work) -> bool {
    let ttl = work.arrival.ttl;
    ttl > 1 && A::set_ttl(packet, work.arrival.l3 as usize, ttl - 1)
}
