//! ICMP errors about packets of flows.

use super::{
    Scene, Want, address, flow_of, is_direct, mode_for,
    way::{Role, way},
};
use crate::{
    fuzz::{
        read::{Content, Ip},
        write::{Draft, octets, pseudo, sum},
    },
    support::frames::raw,
};
use onearm_dataplane_common::{
    maps::{ServiceKey, mode},
    tables::Tables,
};
use std::net::IpAddr;

impl Scene<'_> {
    /// An ICMP error that may be about a flow's packet.
    pub(super) fn error(&self, ip: &Ip) -> Want {
        let Some(quote) = ip.quote(self.frame).filter(|quote| quote.from == ip.to) else {
            return self.about_nothing(ip, None);
        };
        let Content::Ports(from, to) = quote.content else {
            unreachable!("a quote has ports")
        };
        let Some(flow) = flow_of(self.flows, quote.proto, quote.to, quote.from, (to, from)) else {
            if self.owned(ip.to).is_some() && !self.is_bad_source(ip) && self.leased {
                let mut client = *ip;
                client.from = quote.to;
                if self.is_bad_source(&client) {
                    return Want::Drop;
                }
                return self.join(ip, quote.proto, (quote.to, to), from, false);
            }
            return self.about_nothing(ip, Some((quote.proto, quote.to, to)));
        };
        if self.is_bad_source(ip) {
            return Want::Drop;
        }
        if !self.leased {
            return self.relay(ip);
        }
        if ip.ttl <= 1 && flow.mode() != mode::DSR {
            return Want::Drop;
        }
        if is_direct(&flow) {
            return self.by_flow(ip, &flow, Role::Error, None);
        }
        let Some(way) = way(self.host, &self.leg, flow.hop, address(flow.new_daddr)) else {
            return Want::Drop;
        };
        if self.excess(ip, &way, 0).is_some() {
            return Want::Drop;
        }
        let (source, target) = (address(flow.new_daddr), address(flow.new_saddr));
        let mut draft = Draft::new(self.frame.to_vec());
        let whole = |bytes: &[u8], from, to| {
            sum(&bytes[ip.l4..ip.end])
                + if ip.v6 {
                    pseudo(from, to, 58, ip.end - ip.l4)
                } else {
                    0
                }
        };
        let before = whole(&draft.bytes, ip.from, ip.to);
        requote(
            &mut draft,
            &quote,
            (source, target),
            (flow.new_dport, flow.new_sport),
        );
        let from = if flow.new_saddr == flow.saddr {
            ip.from
        } else {
            target
        };
        draft.readdress(ip, (from, source), ip.ttl - 1);
        let covered = whole(&draft.bytes, from, source);
        draft.seal(ip.l4 + 2, before, covered);
        Want::Sent(draft.leave(&self.link, &way))
    }

    fn about_nothing(&self, ip: &Ip, sender: Option<(u8, IpAddr, u16)>) -> Want {
        let balanced = sender.is_some_and(|(protocol, addr, port)| self.is_endpoint(protocol, addr, port));
        let owned = self.owned(ip.to).is_some();
        if owned && !self.leased && !self.is_bad_source(ip) {
            return self.relay(ip);
        }
        if balanced || owned {
            return Want::Drop;
        }
        self.miss(ip, false, None)
    }

    /// To an owned address and about a connection that is not remembered: servers that answer themselves get it all the
    /// same.
    pub(super) fn join(&self, ip: &Ip, protocol: u8, client: (IpAddr, u16), port: u16, told: bool) -> Want {
        let key = ServiceKey {
            slot: 0,
            proto: protocol,
            addr: raw(ip.to).bytes(),
            port: port.to_be_bytes(),
        };
        match self
            .host
            .service_index(&key)
            .map(|index| mode_for(self.host, index, client.0))
        {
            Some(mode::L3_DSR) if ip.ttl <= 1 && told => self.time_exceeded(ip),
            Some(mode::L3_DSR) if ip.ttl <= 1 => Want::Drop,
            Some(mode) if mode >= mode::DSR => Want::Joined(*ip, protocol, client, port),
            _ => Want::Drop,
        }
    }
}

/// The quoted packet of an ICMP error between other ends; ports as they stand in the packet.
fn requote(draft: &mut Draft, quote: &Ip, (from, to): (IpAddr, IpAddr), ports: (u16, u16)) {
    let (l3, l4) = (quote.l3, quote.l4);
    let at = l4 + if quote.proto == 17 { 6 } else { 16 };
    let there = at + 2 <= quote.end;
    let part = |bytes: &[u8], from, to| {
        pseudo(from, to, 0, 0) + sum(&bytes[l4..l4 + 4]) + if there { sum(&bytes[at..at + 2]) } else { 0 }
    };
    let before = part(&draft.bytes, quote.from, quote.to);
    let addresses = [octets(from), octets(to)].concat();
    if quote.v6 {
        draft.write(l3 + 8, &addresses);
    } else {
        let head = |bytes: &[u8]| sum(&bytes[l3..l4]);
        let before = head(&draft.bytes);
        draft.write(l3 + 12, &addresses);
        draft.seal(l3 + 10, before, head(&draft.bytes));
    }
    draft.write(l4, &ports.0.to_ne_bytes());
    draft.write(l4 + 2, &ports.1.to_ne_bytes());
    if there {
        let covered = part(&draft.bytes, from, to);
        if quote.proto == 17 {
            draft.seal_udp(at, before, covered);
        } else {
            draft.seal(at, before, covered);
        }
    }
}
