//! What this node has for what records name: services, servers, and the ways to clients.
//!
//! Only what is in force is in it. A flow of anything else is a *stray*: it is forwarded by what it carries, its packets by the
//! route, and counts nowhere ([`STRAY_SERVICE`], [`STRAY_SERVER`]) until its service and server are configured here.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::hop;
use onearm_dataplane_common::maps::{Limits, MAX_SERVICES, Port, STRAY_SERVER, STRAY_SERVICE};

use super::Record;
use crate::next_hops::{HopKey, LegSpec, Mirror, Via};
use crate::tables::{Registry, ServiceState, bits, wide};

/// A hash for keys that are this node's own: nobody else chooses what is in the tables.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mixed>>;

/// An address as two words.
type Key = (u64, u64);

const fn key(addr: Addr) -> Key {
    let [a, b, c, d] = addr.0;
    (a as u64 | (b as u64) << 32, c as u64 | (d as u64) << 32)
}

/// A service in force.
#[derive(Debug)]
struct Service {
    index: u16,
    limited: bool,
    /// Index and next hop of each server, by address and port; port 0 = the one the client called.
    servers: Map<(Key, Port), (u16, u32)>,
    /// The first of an address.
    addresses: Map<Key, (u16, u32)>,
}

/// First and last port of a range, and which of the services has it.
type Ports = (u16, u16, usize);

/// Where a prefix leads: leg and, unless the client is on it, router.
type Route = (u8, Option<Addr>);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    services: Vec<Service>,
    /// In their order, by protocol and VIP.
    ports: Map<(u8, Key), Vec<Ports>>,
    /// By stats index.
    sync_after: Vec<Option<Duration>>,
    /// By prefix length, the longest first.
    routes: Vec<(u32, Map<Key, Route>)>,
    /// [`hop`] of resolved neighbours.
    neighbours: Map<(u8, Key), u32>,
    /// Id and addresses of both families.
    legs: Vec<(u8, [Addr; 2])>,
}

/// What this node has for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Indexes {
    pub(crate) stats: u16,
    pub(crate) server: u16,
    /// Way to the server.
    pub(crate) hop: u32,
    /// The service counts its flows by client.
    pub(crate) limited: bool,
}

impl Directory {
    /// Of what is in force.
    pub(crate) fn of(registry: &Registry, mirror: &Mirror) -> Self {
        let mut directory = Self {
            sync_after: vec![Some(Duration::ZERO); MAX_SERVICES as usize + 1],
            ..Self::default()
        };
        for state in registry.services().values() {
            directory.add_service(state, mirror);
        }
        for ranges in directory.ports.values_mut() {
            ranges.sort_unstable();
        }
        directory.legs = mirror.legs().map(|leg| (leg.id, addresses(leg))).collect();
        let mut routes: BTreeMap<u32, Map<Key, Route>> = BTreeMap::new();
        for (prefix, via) in mirror.routes() {
            let route = match via {
                Via::OnLink { leg } => (leg, None),
                Via::Gateway { leg, addr } => (leg, Some(wide(addr))),
                Via::Local => continue,
            };
            let (len, prefix) = bits(prefix);
            routes.entry(len).or_default().insert(key(prefix), route);
        }
        directory.routes = routes.into_iter().rev().collect();
        directory.neighbours = mirror
            .believed()
            .map(|(leg, addr, index)| ((leg, key(wide(addr))), hop::LAST | index))
            .collect();
        directory
    }

    fn add_service(&mut self, state: &ServiceState, mirror: &Mirror) {
        let Ok(index) = u16::try_from(state.index) else {
            return;
        };
        if let Some(after) = self.sync_after.get_mut(usize::from(index)) {
            *after = state.spec.sync_after;
        }
        let way = |server: &crate::tables::ServerSpec| mirror.ids.get(&HopKey::Server(server.id.addr));
        let servers: Vec<_> = state
            .spec
            .servers
            .iter()
            .zip(&state.servers)
            .filter_map(|(server, at)| {
                let indexes = (u16::try_from(*at).ok()?, way(server)?);
                Some((key(wide(server.id.addr)), server.id.port.to_be(), indexes))
            })
            .collect();
        let vip = (state.spec.protocol.number(), key(wide(state.spec.vip)));
        let ranges = self.ports.entry(vip).or_default();
        let ports = state.spec.ports.iter();
        ranges.extend(ports.map(|ports| (*ports.start(), *ports.end(), self.services.len())));
        self.services.push(Service {
            index,
            limited: state.spec.limits.value() != Limits::default(),
            servers: servers
                .iter()
                .map(|(addr, port, at)| ((*addr, *port), *at))
                .collect(),
            // Backwards, so that the first stays.
            addresses: servers.iter().rev().map(|(addr, _, at)| (*addr, *at)).collect(),
        });
    }

    /// Indexes for a flow; those of a stray for what is not in force here.
    pub(crate) fn indexes(&self, record: &Record) -> Indexes {
        let port = u16::from_be(record.key.dport);
        let service = self
            .ports
            .get(&(record.key.proto, key(record.key.daddr)))
            .and_then(|ranges| {
                let after = ranges.partition_point(|(first, ..)| *first <= port);
                let (_, last, service) = ranges.get(after.checked_sub(1)?)?;
                (port <= *last).then(|| &self.services[*service])
            });
        let server = service.and_then(|service| {
            let addr = key(record.new_daddr);
            if record.is_direct() {
                return service.addresses.get(&addr);
            }
            let servers = &service.servers;
            let named = servers.get(&(addr, record.new_dport));
            named.or_else(|| {
                let same = record.new_dport == record.key.dport;
                same.then(|| servers.get(&(addr, 0))).flatten()
            })
        });
        let (server, hop) = server.copied().unwrap_or((STRAY_SERVER, hop::ROUTE));
        Indexes {
            stats: service.map_or(STRAY_SERVICE, |service| service.index),
            server,
            hop,
            limited: service.is_some_and(|service| service.limited),
        }
    }

    /// The leg that a client is on, if no router is between.
    pub(crate) fn leg_with(&self, client: Addr) -> Option<u8> {
        let (leg, router) = self.route(client)?;
        router.is_none().then_some(leg)
    }

    fn route(&self, client: Addr) -> Option<Route> {
        let mut routes = self.routes.iter();
        routes
            .find_map(|(len, routes)| routes.get(&key(masked(client, *len))))
            .copied()
    }

    /// Way to a client: what a packet of it by the resolved neighbour towards it would have been remembered by.
    pub(crate) fn client_hop(&self, client: Addr) -> u32 {
        let Some((leg, router)) = self.route(client) else {
            return hop::ROUTE;
        };
        let neighbour = (leg, key(router.unwrap_or(client)));
        self.neighbours.get(&neighbour).copied().unwrap_or(hop::ROUTE)
    }

    /// The leg whose own address this is.
    pub(crate) fn leg_of(&self, addr: Addr) -> Option<u8> {
        let mut legs = self.legs.iter();
        legs.find(|(_, addresses)| addresses.contains(&addr))
            .map(|(id, _)| *id)
    }

    /// This node's own address on a leg, or on any other that has one.
    pub(crate) fn own_address(&self, leg: u8, v6: bool) -> Option<Addr> {
        let of = |(id, addresses): &(u8, [Addr; 2])| {
            let addr = addresses[usize::from(v6)];
            (!addr.is_none()).then_some((*id != leg, addr))
        };
        self.legs
            .iter()
            .filter_map(of)
            .min_by_key(|(other, _)| *other)
            .map(|(_, addr)| addr)
    }

    /// See [`super::Table::sync_after`].
    pub(crate) fn sync_after(&self, stats: u16) -> Option<Duration> {
        let of = self.sync_after.get(usize::from(stats)).copied();
        of.unwrap_or(Some(Duration::ZERO))
    }
}

fn addresses(leg: &LegSpec) -> [Addr; 2] {
    [
        leg.addr.map_or(Addr::NONE, |addr| wide(addr.into())),
        leg.addr6.map_or(Addr::NONE, |addr| wide(addr.into())),
    ]
}

/// The first bits of an address.
fn masked(addr: Addr, len: u32) -> Addr {
    let whole = u128::from_be_bytes(addr.bytes());
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    Addr::from_bytes((whole & mask).to_be_bytes())
}

#[cfg(test)]
pub(crate) mod tests;
