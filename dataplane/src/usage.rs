//! How full the tables are.

use onearm_dataplane_common::flow::{FlowEntry, flags};
use onearm_dataplane_common::maps::{self, mode};

use crate::counters::summed;
use crate::dataplane::Dataplane;
use crate::error::Result;
use crate::persistence::Persistent;
use crate::tables::ServerId;
use onearm_dataplane_common::counter::Counter;

/// Counters of the source ports towards one port of one server, by hash.
const PORT_SLOTS: usize = 1 << 16;

/// Flows by what they take, as the sweep last saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Flows of IPv4 and IPv6 with two entries.
    pub(crate) flows: [u64; 2],
    /// Flows of servers that answer their clients themselves.
    pub(crate) direct: u64,
    /// By server index: source ports in use towards the port of it that has most of them.
    pub(crate) ports: Vec<u32>,
}

/// A pass of the sweep that is under way.
#[derive(Debug)]
pub(crate) struct Counting {
    taken: Taken,
    /// Each shared by few ports of servers, as a rule by none.
    slots: Vec<u32>,
}

impl Counting {
    pub(crate) fn new() -> Self {
        Self {
            taken: Taken {
                ports: vec![0; maps::SERVER_INDEXES as usize],
                ..Taken::default()
            },
            slots: vec![0; PORT_SLOTS],
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
        let slot = &mut self.slots[slot(flow.server, flow.new_dport)];
        *slot += 1;
        if let Some(most) = self.taken.ports.get_mut(usize::from(flow.server)) {
            *most = (*most).max(*slot);
        }
    }

    /// Ends the pass.
    pub(crate) fn end(&mut self) -> Taken {
        self.slots.fill(0);
        let ports = vec![0; self.taken.ports.len()];
        std::mem::replace(
            &mut self.taken,
            Taken {
                ports,
                ..Taken::default()
            },
        )
    }
}

/// The upper half of a product: neighbouring ports and servers spread over all slots.
fn slot(server: u16, port: u16) -> usize {
    let word = u32::from(server) << 16 | u32::from(port);
    (word.wrapping_mul(0x9e37_79b1) >> 16) as usize
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
}

/// What a service takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceUsage {
    /// Name.
    pub name: String,
    /// Flows that are not closing.
    pub open: u64,
    /// Source ports that this node has for translated connections to one port of one server; 0 = sources are not translated.
    pub ports: u64,
    /// Each server, in configured order, and the source ports in use towards the port of it that has most of them.
    pub servers: Vec<(ServerId, u64)>,
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
        let services = self.registry.services().values().map(|service| {
            let pools = service.spec.snat.iter();
            let ports = pools.map(|pool| u64::from(pool.last - pool.first) + 1).sum();
            let used = |index: u32| taken.ports.get(index as usize).copied().unwrap_or(0).into();
            let servers = service.spec.servers.iter().zip(&service.servers);
            ServiceUsage {
                name: service.spec.name.clone(),
                open: self.flows.open_of(service.index),
                ports,
                servers: servers.map(|(server, index)| (server.id, used(*index))).collect(),
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Counting, Taken};
    use onearm_dataplane_common::flow::{FlowEntry, flags};
    use onearm_dataplane_common::maps::mode;

    fn flow(of: u8, server: u16, port: u16) -> FlowEntry {
        FlowEntry {
            flags: of << flags::MODE_SHIFT,
            server,
            new_dport: port.to_be(),
            ..FlowEntry::default()
        }
    }

    #[test]
    fn b153_source_ports_count_for_each_server_by_its_busiest_port() {
        let mut counting = Counting::new();
        for n in 0..100 {
            counting.add(&flow(mode::BOTH_NAT, 1, 80), false);
            counting.add(&flow(mode::BOTH_NAT, 1, 443), n % 2 == 0);
            counting.add(&flow(mode::BOTH_NAT, 2, 1_000 + n), false);
            counting.add(&flow(mode::DNAT, 3, 80), false);
            counting.add(&flow(mode::DSR, 4, 80), false);
        }
        counting.add(&flow(mode::BOTH_NAT, 1, 443), false);
        let taken = counting.end();
        assert_eq!((taken.flows, taken.direct), ([351, 50], 100));
        assert_eq!(taken.ports[..6], [0, 101, 1, 0, 0, 0]);
        let empty = Counting::new().taken;
        assert_eq!(counting.end(), empty, "the next pass begins with nothing");
        assert_ne!(empty, Taken::default());
    }

    #[test]
    fn ports_of_many_servers_hardly_share_a_counter() {
        let mut slots = std::collections::HashSet::new();
        for server in 1..=256 {
            for port in [80_u16, 443, 8_080, 8_443] {
                slots.insert(super::slot(server, port.to_be()));
            }
        }
        assert!(slots.len() > 990, "{} counters for 1,024", slots.len());
    }
}
