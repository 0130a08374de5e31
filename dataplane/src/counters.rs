//! Counters of the programs, summed over the CPUs.

use std::collections::BTreeMap;

use onearm_dataplane_common::counter::{COUNTERS, Counter};
use onearm_dataplane_common::maps::{self, Stats};
use serde::{Deserialize, Serialize};

use crate::dataplane::Dataplane;
use crate::error::Result;
use crate::tables::ServerId;

/// Counters of the programs by their stable names, since the programs were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What became of packets, and what the programs did.
    pub all: BTreeMap<&'static str, u64>,
    /// The names in `all` that count packets thrown away.
    pub drops: Vec<&'static str>,
}

/// Traffic of a service or a server since it was configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Flows made.
    pub flows: u64,
    /// Packets towards the server.
    pub packets_in: u64,
    /// Bytes of those frames.
    pub bytes_in: u64,
    /// Packets towards the client.
    pub packets_out: u64,
    /// Bytes of those frames.
    pub bytes_out: u64,
    /// New flows refused (no server, no port, table full, budget).
    pub refused: u64,
}

impl Traffic {
    fn sum(cpus: &[Stats]) -> Self {
        cpus.iter().fold(Self::default(), |sum, cpu| Self {
            flows: sum.flows.wrapping_add(cpu.flows),
            packets_in: sum.packets_in.wrapping_add(cpu.packets_in),
            bytes_in: sum.bytes_in.wrapping_add(cpu.bytes_in),
            packets_out: sum.packets_out.wrapping_add(cpu.packets_out),
            bytes_out: sum.bytes_out.wrapping_add(cpu.bytes_out),
            refused: sum.refused.wrapping_add(cpu.refused),
        })
    }
}

/// New flows of a service that were refused, by reason. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// The client is in no allowed prefix, or in a denied one.
    pub denied: u64,
    /// `max_connections`.
    pub max_connections: u64,
    /// `max_new_per_second`.
    pub max_new_per_second: u64,
    /// `max_per_source`.
    pub max_per_source: u64,
    /// No live server.
    pub no_server: u64,
    /// No free source port.
    pub no_port: u64,
    /// Table or half-open budget full.
    pub table_full: u64,
    /// Anything else.
    pub other: u64,
}

impl Refusals {
    fn sum(cpus: &[maps::Refusals]) -> Self {
        cpus.iter().fold(Self::default(), |sum, cpu| Self {
            denied: sum.denied.wrapping_add(cpu.denied),
            max_connections: sum.max_connections.wrapping_add(cpu.connections),
            max_new_per_second: sum.max_new_per_second.wrapping_add(cpu.rate),
            max_per_source: sum.max_per_source.wrapping_add(cpu.per_source),
            no_server: sum.no_server.wrapping_add(cpu.no_server),
            no_port: sum.no_port.wrapping_add(cpu.no_port),
            table_full: sum.table_full.wrapping_add(cpu.table),
            other: sum.other.wrapping_add(cpu.other),
        })
    }
}

/// One counter.
pub(crate) fn summed(cpus: &[u64]) -> u64 {
    cpus.iter().fold(0, |sum, n| sum.wrapping_add(*n))
}

/// A service with its traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTraffic {
    /// Name.
    pub name: String,
    /// Stats index, as events and flows give it.
    pub index: u32,
    /// Of the service.
    pub traffic: Traffic,
    /// Its flows that are not closing.
    pub open: u64,
    /// New flows refused, by reason.
    pub refusals: Refusals,
    /// Of each server, in configured order.
    pub servers: Vec<ServerTraffic>,
}

/// A server with its traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTraffic {
    /// Server.
    pub id: ServerId,
    /// Server index, as flows give it.
    pub index: u32,
    /// Takes new flows.
    pub up: bool,
    /// Weight.
    pub weight: u16,
    /// Its traffic.
    pub traffic: Traffic,
}

impl Dataplane {
    /// All counters.
    ///
    /// # Errors
    /// [`crate::Error::MapAccess`].
    pub fn counters(&self) -> Result<Counters> {
        let mut counters = Counters::default();
        for (counter, name) in COUNTERS {
            let cpus = self.maps.counters.values(counter.index())?;
            counters.all.insert(name, summed(&cpus));
            if counter.is_drop() {
                counters.drops.push(name);
            }
        }
        Ok(counters)
    }

    /// Packets sent on as the owner, or as its helper, since the programs were loaded: translated, routed, or answered, not
    /// passed on to the peer.
    ///
    /// # Errors
    /// [`crate::Error::MapAccess`].
    pub fn forwarded(&self) -> Result<u64> {
        let count =
            |counter: Counter| -> Result<u64> { Ok(summed(&self.maps.counters.values(counter.index())?)) };
        let sent = count(Counter::Transmitted)?.wrapping_add(count(Counter::Redirected)?);
        // What is passed on is transmitted.
        Ok(sent.saturating_sub(count(Counter::Relayed)?))
    }

    /// Traffic of every configured service and its servers, by name.
    ///
    /// # Errors
    /// [`crate::Error::MapAccess`].
    pub fn traffic(&self) -> Result<Vec<ServiceTraffic>> {
        self.registry
            .services()
            .values()
            .map(|service| self.service_traffic(service))
            .collect()
    }

    fn service_traffic(&self, service: &crate::tables::ServiceState) -> Result<ServiceTraffic> {
        let mut servers = Vec::with_capacity(service.servers.len());
        for (spec, index) in service.spec.servers.iter().zip(&service.servers) {
            servers.push(ServerTraffic {
                id: spec.id,
                index: *index,
                up: spec.up,
                weight: spec.weight,
                traffic: Traffic::sum(&self.maps.server_stats.values(*index)?),
            });
        }
        Ok(ServiceTraffic {
            name: service.spec.name.clone(),
            index: service.index,
            traffic: Traffic::sum(&self.maps.service_stats.values(service.index)?),
            open: self.flows.open_of(service.index),
            refusals: Refusals::sum(&self.maps.service_refusals.values(service.index)?),
            servers,
        })
    }

    /// Name of the configured service with this stats index.
    pub fn service_name(&self, index: u32) -> Option<&str> {
        self.registry.service_named(index)
    }
}

#[cfg(test)]
mod tests {
    use super::Traffic;
    use onearm_dataplane_common::maps::Stats;

    #[test]
    fn traffic_is_the_sum_over_the_cpus() {
        let cpu = |n| Stats {
            flows: n,
            packets_in: 2 * n,
            bytes_in: 3 * n,
            packets_out: 4 * n,
            bytes_out: 5 * n,
            refused: 6 * n,
        };
        let sum = Traffic::sum(&[cpu(1), cpu(10), cpu(100)]);
        let want = Traffic {
            flows: 111,
            packets_in: 222,
            bytes_in: 333,
            packets_out: 444,
            bytes_out: 555,
            refused: 666,
        };
        assert_eq!(sum, want);
    }
}
