//! A new flow is one its service allows.

use super::{Judge, Outcome};
use crate::fuzz::{
    expect::{address, is_direct, mode_for, way},
    read::{Ip, Link},
    write::Way,
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::{FlowEntry, State, hop},
    hash,
    maps::{Addr, LegKey, Service, ServiceKey, hairpin, mode, scheduler, server},
    tables::Tables,
};

impl Judge {
    /// A new flow is one its service allows.
    pub(super) fn made_well(
        &self,
        link: &Link,
        ip: &Ip,
        flow: &FlowEntry,
        o: &Outcome<'_>,
    ) -> Result<(), String> {
        let key = ServiceKey {
            slot: 0,
            proto: ip.proto,
            addr: flow.daddr.bytes(),
            port: flow.dport.to_ne_bytes(),
        };
        let index = self.host.service_index(&key).ok_or("a flow without a service")?;
        let service = self.host.service(0, index).ok_or("a service")?;
        self.chosen_well(index, service, ip, flow, o)?;
        let server = self.host.server(u32::from(flow.server)).ok_or("a server")?;
        let mode = mode_for(&self.host, index, ip.from);
        if mode >= mode::DSR {
            ensure!(
                flow.mode() == mode && flow.new_daddr == server.addr,
                "not to its server"
            );
            ensure!(flow.hop == server.next_hop, "not the server's hop");
            ensure!(
                mode != mode::DSR || server.net != 0,
                "a frame to a server behind a router"
            );
            if mode == mode::L3_DSR {
                self.tunnel_is_right(link, index, ip, flow)?;
            }
            return Ok(());
        }
        let port = if server.port == 0 { flow.dport } else { server.port };
        ensure!(
            (flow.new_daddr, flow.new_dport) == (server.addr, port),
            "not the server's address"
        );
        ensure!(flow.hop == server.next_hop, "not the server's hop");
        let near = match service.hairpin {
            hairpin::AUTO => server.net != 0 && self.host.connected(0, flow.saddr) == u32::from(server.net),
            hairpin::LISTED => self.host.hairpin(0, index, flow.saddr),
            _ => false,
        };
        let both = mode == mode::BOTH_NAT || near || server.addr == flow.saddr;
        if both {
            let source = u16::from_be(flow.new_sport);
            let pools =
                u32::from(service.snat_base)..u32::from(service.snat_base) + u32::from(service.snat_len);
            let ours = pools
                .filter_map(|n| self.host.snat_pool(0, n))
                .any(|pool| pool.addr == flow.new_saddr && (pool.first..=pool.last).contains(&source));
            ensure!(ours, "{}:{source} is no source of ours", address(flow.new_saddr));
        } else {
            ensure!(flow.new_saddr == flow.saddr, "dnat changes the client's address");
        }
        let reply = o
            .after
            .iter()
            .find(|f| f.incarnation == flow.incarnation && f.is_reply())
            .ok_or("a flow without replies")?;
        ensure!(
            (reply.new_saddr, reply.new_sport, reply.new_daddr, reply.new_dport)
                == (flow.daddr, flow.dport, flow.saddr, flow.sport),
            "replies do not lead back"
        );
        let leg = LegKey {
            ifindex: link.ifindex,
            vlan: link.vlan,
            _pad: 0,
        };
        let leg = self.host.leg(&leg).ok_or("a leg")?;
        ensure!(
            link.from != leg.peer_mac || reply.hop == hop::ROUTE,
            "the peer is taken for the client's neighbour"
        );
        if link.from != leg.peer_mac {
            let Some(back) = way(&self.host, leg, reply.hop, ip.from) else {
                // The neighbour it came by is not believed, or there was no index for it.
                let known = reply.hop != hop::ROUTE || o.counted(Counter::LastHopsFull);
                ensure!(known, "no way back");
                return Ok(());
            };
            let ends = |way: &Way| (way.to, way.vlan, way.ifindex);
            let by_route = way(&self.host, leg, hop::ROUTE, ip.from);
            ensure!(
                ends(&back) == (link.from, link.vlan, link.ifindex)
                    || by_route.is_some_and(|way| ends(&way) == ends(&back)),
                "replies go neither to whom the packet came from nor to the next hop"
            );
        }
        Ok(())
    }

    /// The server is the one its client has, or one that the scheduler may choose.
    fn chosen_well(
        &self,
        index: u32,
        service: &Service,
        ip: &Ip,
        flow: &FlowEntry,
        o: &Outcome<'_>,
    ) -> Result<(), String> {
        let stays = self.stays(index, ip.from);
        ensure!(
            stays.is_some() == o.counted(Counter::ClientStayed)
                && stays.is_none_or(|server| server == flow.server),
            "the client stays with {stays:?}"
        );
        if stays.is_some() {
            return Ok(());
        }
        let servers = self.servers_of(index);
        let chosen = servers.contains(&flow.server);
        ensure!(chosen, "server {} is none of the service's", flow.server);
        let node = self.host.node().ok_or("a node")?;
        if service.scheduler == scheduler::SOURCE_HASH {
            let network = self.host.persistence(service.stats).network(flow.saddr);
            let hash = hash::source(node.pair_hash_key, network);
            let entry = hash::below(hash, u32::try_from(servers.len()).expect("few"));
            ensure!(
                servers[entry as usize] == flow.server,
                "not where its network's hash leads"
            );
        }
        let opens = ip.proto != 6 || ip.flags(o.frame) & 0x17 == 2;
        let by_hash = is_direct(flow) && (node.dsr_ways == 0 || !opens);
        if service.scheduler != scheduler::WLC || servers.len() > 4 || by_hash {
            return Ok(());
        }
        // Flows, with this one, for its weight: nobody has fewer.
        let load = |index: u16| {
            let flows = o
                .before
                .iter()
                .filter(|f| !f.is_reply() && f.server == index && f.state() != State::Closing);
            let flags = self.host.server(u32::from(index)).map_or(0, |s| s.flags);
            (flows.count() + 1, (flags >> server::WEIGHT_SHIFT) as usize)
        };
        let (flows, weight) = load(flow.server);
        for other in servers {
            let (its, its_weight) = load(other);
            ensure!(
                flows * its_weight <= its * weight,
                "server {other} has fewer flows for its weight"
            );
        }
        Ok(())
    }

    /// The outer ends of a new flow.
    fn tunnel_is_right(&self, link: &Link, index: u32, ip: &Ip, flow: &FlowEntry) -> Result<(), String> {
        let key = LegKey {
            ifindex: link.ifindex,
            vlan: link.vlan,
            _pad: 0,
        };
        let leg = self.host.leg(&key).ok_or("a leg")?;
        let tunnel = self.host.tunnel(0, index).ok_or("a tunnel")?;
        let own = if ip.v6 { leg.addr6 } else { leg.addr };
        let want = if tunnel.source.is_none() {
            own
        } else {
            tunnel.source
        };
        let fixed = |addr: Addr| {
            let Addr([a, b, c, d]) = addr;
            [a, b, c, d & !tunnel.spread]
        };
        ensure!(
            fixed(flow.new_saddr) == fixed(want),
            "{} is no source of the tunnel",
            address(flow.new_saddr)
        );
        ensure!(flow.new_dport == tunnel.port, "not the tunnel's port");
        ensure!(u16::from_be(flow.new_sport) >= 49_152, "not a dynamic port");
        Ok(())
    }
}
