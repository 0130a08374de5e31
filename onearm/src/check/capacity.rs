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
        let (max_flows, max_flows6) = pair.flow_room();
        let affinities = pair.limits.dsr_flows;
        Self {
            max_flows,
            max_flows6,
            flow_table_bytes: flow_table_bytes(max_flows, affinities, BUCKET_BYTES)
                + flow_table_bytes(max_flows6, affinities, BUCKET_BYTES6),
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

/// Bytes of a bucket of the flow table: a tag line and 16 entries of 64 bytes.
const BUCKET_BYTES: u64 = 17 * 64;
/// Bytes of a bucket of IPv6 flows: entries of 128 bytes.
const BUCKET_BYTES6: u64 = 64 + 16 * 128;
/// Entries of a bucket.
const BUCKET_ENTRIES: u64 = 16;

/// Memory of a flow table for `max_flows` and `dsr_flows` affinities: two entries a flow and one an affinity, a power of
/// two of buckets, at most 80 % full. The table of a family without flows is left out, small as it is.
pub(super) fn flow_table_bytes(max_flows: u32, dsr_flows: u32, bucket_bytes: u64) -> u64 {
    if max_flows == 0 {
        return 0;
    }
    let entries = (2 * u64::from(max_flows) + u64::from(dsr_flows.min(max_flows))) * 100 / 80;
    entries.div_ceil(BUCKET_ENTRIES).next_power_of_two() * bucket_bytes
}
