//! Where a packet leaves, and as what.

use super::{Scene, Want, address, fragment::rename, is_direct};
use crate::{
    fuzz::{
        read::{Ip, Link, Piece, be16},
        write::{Draft, Way, pseudo, sum},
    },
    host::Host,
    support::{frames::raw, model::outer},
};
use onearm_dataplane_common::{
    flow::{FlowEntry, hop},
    maps::{Addr, Leg, LegKey, NeighbourKey, mode},
    tables::Tables,
};
use std::net::IpAddr;

/// The way of a flow's packets, or none while the neighbour is not known.
pub fn way(host: &Host, leg: &Leg, stored: u32, to: IpAddr) -> Option<Way> {
    let found = |mac, vlan, ifindex, mtu| {
        let key = LegKey {
            ifindex,
            vlan,
            _pad: 0,
        };
        Way {
            from: host.leg(&key).expect("a leg").mac,
            to: mac,
            vlan,
            ifindex,
            mtu,
        }
    };
    let mut index = stored;
    let mut limit = u16::MAX;
    if stored == hop::ROUTE {
        let (gateway, leg) = match host.route(raw(to)) {
            Some(route) => {
                if route.mtu != 0 {
                    limit = u16::try_from(route.mtu).unwrap_or(u16::MAX);
                }
                (route.gateway, route.leg)
            }
            None => (Addr::NONE, u32::from(leg.id)),
        };
        let addr = if gateway.is_none() { raw(to) } else { gateway };
        index = host.neighbour(&NeighbourKey { addr, leg })?;
    } else if stored & hop::LAST != 0 {
        let last = host.last_hop(stored & !hop::LAST).expect("learned");
        if last.ifindex == 0 {
            // Not believed.
            return self::way(host, leg, hop::ROUTE, to);
        }
        return Some(found(last.mac, last.vlan, last.ifindex, last.mtu));
    }
    let next = host.next_hop(index).filter(|next| next.valid != 0)?;
    Some(found(next.mac, next.vlan, next.ifindex, next.mtu.min(limit)))
}

/// What a packet is of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has ports: a whole packet or a first fragment.
    First,
    /// A fragment after that.
    Later,
    /// An ICMP error about the flow.
    Error,
}

/// Bytes every IPv6 link takes (RFC 8200 §5).
const LEAST_MTU6: usize = 1_280;
/// Nothing further from the start of the frame is looked at.
const DEEPEST_OPTION: usize = 255;

impl Scene<'_> {
    /// Bytes the packet may have, if it is too long for a way that takes less than the leg it came by.
    pub(super) fn excess(&self, ip: &Ip, way: &Way, overhead: usize) -> Option<usize> {
        let most = usize::from(way.mtu).saturating_sub(overhead);
        (ip.end - ip.l3 > most && most < usize::from(self.leg.mtu)).then_some(most)
    }

    /// What a flow makes of the packet. `id`: another identification, at a fragment.
    pub fn by_flow(&self, ip: &Ip, flow: &FlowEntry, role: Role, id: Option<(Piece, u32)>) -> Want {
        let Some(way) = way(self.host, &self.leg, flow.hop, address(flow.new_daddr)) else {
            return Want::Drop;
        };
        let mut draft = Draft::new(self.frame.to_vec());
        if role == Role::First && ip.proto == 6 {
            let limit = self
                .host
                .service(0, u32::from(flow.stats))
                .map_or(0, |service| service.mss);
            clamp(&mut draft, ip, limit);
        }
        if is_direct(flow) {
            return self.carried(draft, ip, flow, role, &way);
        }
        if let Some(most) = self.excess(ip, &way, 0) {
            return self.too_big(ip, most, &draft.bytes);
        }
        let new = (address(flow.new_saddr), address(flow.new_daddr));
        if let Some((piece, id)) = id {
            rename(&mut draft, ip, &piece, id);
        }
        if role == Role::First {
            let ports = (u16::from_be(flow.new_sport), u16::from_be(flow.new_dport));
            draft.renumber(ip, ip.l4, ports, new);
        }
        draft.readdress(ip, new, ip.ttl - 1);
        Want::Sent(draft.leave(&self.link, &way))
    }

    /// The frame as a server gets it that answers its client itself: as it is, or in a tunnel.
    fn carried(&self, mut draft: Draft, ip: &Ip, flow: &FlowEntry, role: Role, way: &Way) -> Want {
        let (spread, port) = (u16::from_be(flow.new_sport), u16::from_be(flow.new_dport));
        let tunnel = flow.mode() != mode::DSR;
        let udp = (port != 0).then_some((spread, port));
        let header = if ip.v6 { 40 } else { 20 };
        let overhead = match (tunnel, udp) {
            (false, _) => 0,
            (true, None) => header,
            (true, Some(_)) => header + 8,
        };
        let leg = usize::from(self.leg.mtu);
        let merged = tunnel && ip.end - ip.l3 > leg;
        if let Some(most) = self.excess(ip, way, overhead).or(merged.then_some(leg)) {
            if role == Role::Error || (ip.v6 && most < LEAST_MTU6) {
                return Want::Drop;
            }
            return self.too_big(ip, most, &draft.bytes);
        }
        if !tunnel {
            return Want::Sent(draft.leave(&self.link, way));
        }
        draft.readdress(ip, (ip.from, ip.to), ip.ttl - 1);
        // The outer header begins anew: no tag but the way's.
        let nowhere = Link {
            ifindex: u32::MAX,
            ..self.link
        };
        let mut sent = draft.leave(&nowhere, way);
        let inner = sent.bytes.len();
        sent.bytes = outer(
            &sent.bytes,
            address(flow.new_saddr),
            address(flow.new_daddr),
            udp,
            spread,
        );
        let grown = sent.bytes.len() - inner;
        sent.loose.iter_mut().for_each(|at| *at += grown);
        let l3 = inner - (self.frame.len() - self.link.l3);
        // Its identification is ours unless it may not be fragmented.
        sent.renamed = (!ip.v6 && sent.bytes[l3 + 6] & 0x40 == 0).then_some(l3);
        sent.redirect = way.ifindex != self.link.ifindex;
        Want::Sent(sent)
    }
}

/// The largest segment a SYN or SYN-ACK asks for, lowered to `limit`; 0: none.
fn clamp(draft: &mut Draft, ip: &Ip, limit: u16) {
    let segment = draft.bytes[ip.l4..ip.end].to_vec();
    if limit == 0 || segment[13] & 2 == 0 {
        return;
    }
    let end = segment.len().min(usize::from(segment[12] >> 4) * 4);
    let mut at = 20;
    while at + 1 < end && ip.l4 + at <= DEEPEST_OPTION {
        match (segment[at], usize::from(segment[at + 1])) {
            (0, _) => return,
            (1, _) => at += 1,
            (2, 4) if at + 4 <= end => {
                if be16(&segment, at + 2) > limit {
                    let covered =
                        |bytes: &[u8]| pseudo(ip.from, ip.to, 6, ip.end - ip.l4) + sum(&bytes[ip.l4..ip.end]);
                    let before = covered(&draft.bytes);
                    draft.write(ip.l4 + at + 2, &limit.to_be_bytes());
                    let after = covered(&draft.bytes);
                    draft.seal(ip.l4 + 16, before, after);
                }
                return;
            }
            (_, len) if len >= 2 && at + len <= end => at += len,
            _ => return,
        }
    }
}
