use std::net::IpAddr;

use serde::Serialize;

use crate::config::{PairConfig, ServiceConfig};

/// What a configuration can carry and what it costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// IPv4 flows; 0 where the pair owns no IPv4 address.
    pub max_flows: u32,
    /// IPv6 flows; 0 where the pair owns no IPv6 address.
    pub max_flows6: u32,
    /// Memory of the flow tables in bytes, taken when the daemon starts.
    pub flow_table_bytes: u64,
    /// Different VIPs.
    pub vips: usize,
    /// Servers of all services.
    pub servers: usize,
    /// Each service.
    pub services: Vec<ServiceCapacity>,
}

/// What a service can carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceCapacity {
    /// Its name.
    pub name: String,
    /// Its VIP.
    pub vip: IpAddr,
    /// Its servers.
    pub servers: usize,
    /// Most translated connections to one port of one server at a time, both nodes together: SNAT ports × addresses. One
    /// node has half of them. `None` = sources are not translated.
    pub per_server: Option<u64>,
}

impl Capacity {
    /// Of a configuration.
    pub fn of(pair: &PairConfig) -> Self {
        let vips: std::collections::HashSet<_> = pair.services.iter().map(|s| s.vip).collect();
        let limits = pair.table_limits();
        Self {
            max_flows: limits.max_flows,
            max_flows6: limits.max_flows6,
            flow_table_bytes: limits.table_bytes().into_iter().sum(),
            vips: vips.len(),
            servers: pair.services.iter().map(|s| s.servers.len()).sum(),
            services: pair.services.iter().map(service).collect(),
        }
    }
}

fn service(service: &ServiceConfig) -> ServiceCapacity {
    let per_server = service
        .snat
        .iter()
        .map(|source| u64::from(source.ports.count()))
        .sum();
    ServiceCapacity {
        name: service.name.clone(),
        vip: service.vip,
        servers: service.servers.len(),
        per_server: service.translates_source().then_some(per_server),
    }
}
