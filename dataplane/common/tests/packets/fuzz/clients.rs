//! Clients that stay with their server, naively: a list, noted as user space does from the flows there are.

use super::expect::{address, is_direct};
use crate::{
    host::Host,
    support::{Engine, Setup, setup::CLIENT_BUCKETS},
};
use onearm_dataplane_common::{
    flow::{FlowEntry, State, seen},
    maps::server,
    persistence::{Bucket, Noted, Rule, bucket, fingerprint},
    tables::{Tables, tick},
};
use std::net::IpAddr;

/// A client, or a network of them, of a service by its stats index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    stats: u32,
    network: u128,
    v6: bool,
}

/// Who stays where, in the order in which they came.
#[derive(Debug, Default)]
pub struct Clients(pub Vec<(Client, Noted)>);

fn client_of(host: &Host, stats: u32, addr: IpAddr) -> (Client, Rule) {
    let rule = host.persistence(stats);
    let host_bits = u32::try_from(rule.0 >> 32 & 0xff).expect("a byte");
    let number = match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()),
        IpAddr::V6(addr) => addr.to_bits(),
    };
    let network = number >> host_bits << host_bits;
    let v6 = addr.is_ipv6();
    (Client { stats, network, v6 }, rule)
}

fn is_up(host: &Host, index: u16) -> bool {
    host.server(u32::from(index))
        .is_some_and(|s| s.flags & server::UP != 0)
}

/// The client has shown that it is where its packets say.
fn is_proved(flow: &FlowEntry) -> bool {
    match flow.proto {
        _ if is_direct(flow) => flow.packets > 1,
        6 => flow.own & seen::CONFIRMED != 0,
        _ => flow.other & seen::OPENED != 0,
    }
}

impl Clients {
    /// The server that a new flow of a client goes to, if it stays with one.
    pub fn server(&self, host: &Host, stats: u32, addr: IpAddr) -> Option<u16> {
        let (client, rule) = client_of(host, stats, addr);
        let (_, noted) = self.0.iter().find(|(known, _)| *known == client)?;
        let stays = rule.ticks() != 0 && tick(host.now) - noted.seen <= rule.ticks();
        (stays && is_up(host, noted.server)).then_some(noted.server)
    }

    /// User space looks at all flows.
    pub fn note(&mut self, host: &mut Host) {
        let now = tick(host.now);
        for flow in host.entries() {
            let (client, rule) = client_of(host, u32::from(flow.stats), address(flow.saddr));
            let takes_more = (host.server(u32::from(flow.server)))
                .is_some_and(|s| s.flags & server::UP != 0 && s.flags >> server::WEIGHT_SHIFT != 0);
            let last = if flow.state() == State::Closing {
                flow.last_seen
            } else {
                now
            };
            let over = now - last > rule.ticks();
            if flow.is_reply() || rule.ticks() == 0 || !is_proved(&flow) || !takes_more || over {
                continue;
            }
            let noted = Noted {
                server: flow.server,
                seen: last,
            };
            let stays_elsewhere = self.server(host, client.stats, address(flow.saddr));
            match self.0.iter_mut().find(|(known, _)| *known == client) {
                Some(_) if stays_elsewhere.is_some_and(|other| other != flow.server) => {}
                Some((_, before)) if before.server == flow.server => before.seen = before.seen.max(last),
                Some((_, before)) => *before = noted,
                None => self.0.push((client, noted)),
            }
        }
        self.write(&mut host.setup);
    }

    /// As programs find it.
    pub fn write(&mut self, setup: &mut Setup) {
        setup.client_servers = [Bucket::default(); CLIENT_BUCKETS as usize];
        let key = setup.node.flow_hash_key;
        // Whom there is no room for is forgotten.
        self.0.retain(|(client, noted)| {
            let network = if client.v6 {
                IpAddr::V6(client.network.into())
            } else {
                IpAddr::V4(u32::try_from(client.network).expect("32 bits").into())
            };
            let who = fingerprint(key, client.stats, crate::support::frames::raw(network));
            let bucket = &mut setup.client_servers[bucket(who, CLIENT_BUCKETS - 1) as usize];
            let free = bucket.clients.iter().position(|way| *way == 0);
            if let Some(way) = free {
                (bucket.clients[way], bucket.values[way]) = (who, noted.word());
            }
            free.is_some()
        });
    }
}
