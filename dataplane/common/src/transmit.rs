//! The last step: Ethernet header and way out. Every frame sent carries the transmitting leg's own MAC.

use crate::{
    counter::Counter,
    maps::{Leg, LegKey, Mac},
    packet::Packet,
    tables::{Tables, discard},
    wire::eth,
    work::{Arrival, Step},
};

/// Where to send.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// Destination MAC.
    pub mac: Mac,
    /// VLAN id; 0 = untagged.
    pub vlan: u16,
    /// Interface.
    pub ifindex: u32,
    /// Leg id.
    pub leg: u32,
    /// Largest IP packet, bytes.
    pub mtu: u16,
}

/// Bytes the IP packet that arrived may have, if it is too long to be sent to `to` behind `overhead` bytes of outer headers.
///
/// What is longer than the leg it came by allows has been put together by that leg's interface, of segments that fit: it
/// is too long only for a way that takes less than the leg.
#[inline(always)]
pub const fn excess<A>(arrival: &Arrival<A>, leg: &Leg, to: &Hop, overhead: u16) -> Option<u16> {
    let most = to.mtu.saturating_sub(overhead);
    if arrival.total > most && most < leg.mtu {
        Some(most)
    } else {
        None
    }
}

/// Sends an IP packet to a hop.
#[inline(always)]
pub fn send<A, P: Packet, T: Tables>(
    packet: &mut P,
    arrival: &Arrival<A>,
    leg: &Leg,
    tables: &T,
    to: &Hop,
) -> Step {
    if to.ifindex == arrival.ifindex && to.vlan == arrival.vlan {
        return send_back(packet, leg.mac, to.mac, tables);
    }
    let Some(out) = tables.leg(&LegKey {
        ifindex: to.ifindex,
        vlan: to.vlan,
        _pad: 0,
    }) else {
        return discard(tables, Counter::Internal);
    };
    let Some(kind) = packet.window::<2>(arrival.l3 as usize - 2) else {
        return discard(tables, Counter::Internal);
    };
    let ethertype = kind.u16::<0>();
    let tag = eth::TAG_LEN.cast_signed();
    let tagged = arrival.l3 as usize != eth::LEN;
    let moved = match (tagged, to.vlan != 0) {
        (false, true) => packet.move_start(tag),
        (true, false) => packet.move_start(-tag),
        (true, true) | (false, false) => true,
    };
    let vlan = (to.vlan != 0).then_some(to.vlan);
    if !moved || !write_header(packet, out.mac, to.mac, vlan, ethertype) {
        return discard(tables, Counter::Internal);
    }
    if to.ifindex == arrival.ifindex {
        tables.count(Counter::Transmitted);
        Step::Transmit
    } else {
        tables.count(Counter::Redirected);
        Step::Redirect(to.leg)
    }
}

/// Sends by the leg the frame came from; a VLAN tag stays as it is.
#[inline(always)]
pub fn send_back<P: Packet, T: Tables>(packet: &mut P, from: Mac, to: Mac, tables: &T) -> Step {
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return discard(tables, Counter::Internal);
    };
    header.set_mac::<{ eth::DST }>(to);
    header.set_mac::<{ eth::SRC }>(from);
    tables.count(Counter::Transmitted);
    Step::Transmit
}

/// Writes the Ethernet header of a packet, with a tag if `vlan` is given.
#[inline(always)]
pub fn write_header<P: Packet>(packet: &P, from: Mac, to: Mac, vlan: Option<u16>, ethertype: u16) -> bool {
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return false;
    };
    header.set_mac::<{ eth::DST }>(to);
    header.set_mac::<{ eth::SRC }>(from);
    let Some(vlan) = vlan else {
        header.set_u16::<{ eth::TYPE }>(ethertype);
        return true;
    };
    header.set_u16::<{ eth::TYPE }>(eth::VLAN);
    let Some(header) = packet.window::<{ eth::LEN + eth::TAG_LEN }>(0) else {
        return false;
    };
    header.set_u16::<{ eth::TCI }>(vlan.to_be());
    header.set_u16::<{ eth::TAGGED_TYPE }>(ethertype);
    true
}
