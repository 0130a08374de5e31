//! How full the tables are.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use onearm_dataplane_common::flow::{FlowEntry, flags};
use onearm_dataplane_common::maps::{self, mode};

use crate::counters::summed;
use crate::dataplane::Dataplane;
use crate::error::Result;
use crate::persistence::Persistent;
use crate::tables::narrow;
use onearm_dataplane_common::counter::Counter;

/// Counters of the ports of one SNAT source towards one port of one server, by hash.
const PORT_SLOTS: usize = 1 << 16;

/// Flows by what they take, as the sweep last saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Flows of IPv4 and IPv6 with two entries.
    pub(crate) flows: [u64; 2],
    /// Flows of servers that answer their clients themselves.
    pub(crate) direct: u64,
    /// Of each SNAT source that has flows: the server, and its port, to which most of its ports are in use.
    pub(crate) sources: BTreeMap<IpAddr, Busiest>,
}

/// Where most ports of a source go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busiest {
    pub(crate) used: u32,
    pub(crate) server: SocketAddr,
}

/// A pass of the sweep that is under way.
#[derive(Debug)]
pub(crate) struct Counting {
    taken: Taken,
    /// Each shared by few sources and ports of servers, as a rule by none.
    slots: Vec<u32>,
    /// Slots in use, with the source and the server that were first in it.
    first: Vec<(usize, IpAddr, SocketAddr)>,
}

impl Counting {
    pub(crate) fn new() -> Self {
        Self {
            taken: Taken::default(),
            slots: vec![0; PORT_SLOTS],
            first: Vec::new(),
        }
    }

    /// A flow, by its forward entry.
    pub(crate) fn add(&mut self, flow: &FlowEntry, v6: bool) {
        if flow.flags & flags::DIRECT != 0 {
            self.taken.direct += 1;
            return;
        }
        self.taken.flows[usize::from(v6)] += 1;
        if flow.mode() != mode::BOTH_NAT {
            return;
        }
        // Whatever service it is of: its source port is free for no other flow to the same server and port.
        let at = slot(flow);
        if self.slots[at] == 0 {
            let server = SocketAddr::new(narrow(flow.new_daddr), u16::from_be(flow.new_dport));
            self.first.push((at, narrow(flow.new_saddr), server));
        }
        self.slots[at] += 1;
    }

    /// Ends the pass.
    pub(crate) fn end(&mut self) -> Taken {
        let mut taken = std::mem::take(&mut self.taken);
        for (slot, source, server) in self.first.drain(..) {
            let used = std::mem::take(&mut self.slots[slot]);
            let busiest = taken.sources.entry(source).or_insert(Busiest { used, server });
            if used > busiest.used {
                *busiest = Busiest { used, server };
            }
        }
        taken
    }
}

/// The upper half of a product: neighbouring addresses and ports spread over all slots.
fn slot(flow: &FlowEntry) -> usize {
    let FlowEntry {
        new_saddr, new_daddr, ..
    } = flow;
    let ends = u32::from(flow.proto) << 16 | u32::from(flow.new_dport);
    let words = new_saddr.0.into_iter().chain(new_daddr.0).chain([ends]);
    let mixed = words.fold(0_u32, |mixed, word| {
        (mixed.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b1)
    });
    (mixed >> 16) as usize
}

/// What is in use of everything that can run out. Flows, ports and clients as the sweep of the flow table last saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// IPv4 flows with two entries.
    pub flows: u64,
    /// IPv6 flows with two entries.
    pub flows6: u64,
    /// Half-open flows.
    pub half_open: u64,
    /// Flows of servers that answer their clients themselves.
    pub direct: u64,
    /// Clients that stay with their server.
    pub persistent: Persistent,
    /// Neighbours of clients.
    pub last_hops: u64,
    /// Servers, routers and hosts whose MAC is kept, and those that flows still name.
    pub next_hops: u64,
    /// First fragments remembered since the programs were loaded.
    pub fragments: u64,
    /// Each service.
    pub services: Vec<ServiceUsage>,
    /// Each SNAT source, by address.
    pub snat: Vec<SnatUsage>,
}

/// What a service takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceUsage {
    /// Name.
    pub name: String,
    /// Flows that are not closing.
    pub open: u64,
}

/// What is in use of a SNAT source, whichever services use it. A port is used once for each port of each server and protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnatUsage {
    /// The source.
    pub addr: IpAddr,
    /// Ports of it that this node has.
    pub ports: u64,
    /// Of them in use towards [`Self::server`].
    pub used: u64,
    /// The server, and its port, to which most are in use; `None` = none are in use.
    pub server: Option<SocketAddr>,
}

/// Most neighbours of clients.
pub const MOST_LAST_HOPS: u64 = maps::MAX_LAST_HOPS as u64;
/// Most next hops.
pub const MOST_NEXT_HOPS: u64 = maps::MAX_NEXT_HOPS as u64;
/// Fragmented datagrams remembered at a time; after five seconds one is worth nothing.
pub const MOST_FRAGMENTS: u64 = maps::MAX_FRAGMENTS as u64;

impl Dataplane {
    /// How full the tables are.
    ///
    /// # Errors
    /// [`crate::Error::MapAccess`].
    pub fn usage(&self) -> Result<Usage> {
        let taken = self.flows.taken();
        let [flows, flows6] = taken.flows;
        let services = self.registry.services().values().map(|service| ServiceUsage {
            name: service.spec.name.clone(),
            open: self.flows.open_of(service.index),
        });
        let pools = self
            .registry
            .services()
            .values()
            .flat_map(|service| &service.spec.snat);
        let ports: BTreeMap<IpAddr, u64> = pools
            .map(|pool| (pool.addr, u64::from(pool.last - pool.first) + 1))
            .collect();
        let snat = ports.into_iter().map(|(addr, ports)| {
            let busiest = taken.sources.get(&addr);
            SnatUsage {
                addr,
                ports,
                used: busiest.map_or(0, |busiest| busiest.used.into()),
                server: busiest.map(|busiest| busiest.server),
            }
        });
        Ok(Usage {
            flows,
            flows6,
            half_open: self.flows.half_open(),
            direct: taken.direct,
            persistent: self.flows.persistent(),
            last_hops: self.mirror.last_hops.len() as u64,
            next_hops: self.mirror.ids.known().count() as u64,
            fragments: summed(&self.maps.counters.values(Counter::FragmentRemembered.index())?),
            services: services.collect(),
            snat: snat.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::{Busiest, Counting, Taken};
    use crate::tables::wide;
    use onearm_dataplane_common::flow::{FlowEntry, flags};
    use onearm_dataplane_common::maps::{mode, proto};

    fn host(n: u8) -> IpAddr {
        Ipv4Addr::new(192, 168, 100, n).into()
    }

    fn flow(of: u8, source: u8, server: u8, port: u16) -> FlowEntry {
        FlowEntry {
            flags: of << flags::MODE_SHIFT,
            proto: proto::TCP,
            new_saddr: wide(host(source)),
            new_daddr: wide(host(server)),
            new_dport: port.to_be(),
            ..FlowEntry::default()
        }
    }

    #[test]
    fn b153_ports_of_a_source_count_by_the_busiest_port_of_a_server_whatever_the_service() {
        let mut counting = Counting::new();
        for n in 0..100 {
            for service in 0..2 {
                let of = |flow| FlowEntry {
                    server: service,
                    stats: service,
                    ..flow
                };
                counting.add(&of(flow(mode::BOTH_NAT, 90, 1, 80)), false);
                counting.add(&of(flow(mode::BOTH_NAT, 90, 1, 443)), n % 2 == 0);
            }
            counting.add(&flow(mode::BOTH_NAT, 90, 2, 1_000 + n), false);
            counting.add(&flow(mode::BOTH_NAT, 91, 1, 80), false);
            let datagram = FlowEntry {
                proto: proto::UDP,
                ..flow(mode::BOTH_NAT, 91, 1, 80)
            };
            counting.add(&datagram, false);
            counting.add(&flow(mode::DNAT, 92, 3, 80), false);
            counting.add(&flow(mode::DSR, 93, 4, 80), false);
        }
        counting.add(&flow(mode::BOTH_NAT, 90, 1, 443), false);
        let taken = counting.end();
        assert_eq!((taken.flows, taken.direct), ([701, 100], 100));
        let busiest = |used, port| Busiest {
            used,
            server: SocketAddr::new(host(1), port),
        };
        assert_eq!(
            taken.sources.into_iter().collect::<Vec<_>>(),
            [(host(90), busiest(201, 443)), (host(91), busiest(100, 80))]
        );
        assert_eq!(
            counting.end(),
            Taken::default(),
            "the next pass begins with nothing"
        );
    }

    #[test]
    fn ports_of_many_servers_hardly_share_a_counter() {
        for six in [false, true] {
            let mut slots = std::collections::HashSet::new();
            for server in 0..=255_u8 {
                for port in [80_u16, 443, 8_080, 8_443] {
                    let mut flow = flow(mode::BOTH_NAT, 90, server, port);
                    if six {
                        flow.new_daddr.0 = [0x2001_0db8_u32.to_be(), 0, 0, u32::from(server).to_be()];
                    }
                    slots.insert(super::slot(&flow));
                }
            }
            assert!(slots.len() > 990, "{} counters for 1,024", slots.len());
        }
    }
}
