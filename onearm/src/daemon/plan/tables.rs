//! From the pair's configuration to the dataplane's tables. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use onearm_dataplane::{
    Hairpin, LimitsSpec, OnServerDown, OwnedAddress, OwnedKinds, Persistence, Protocol, Scheduler, ServerId,
    ServerNetwork, ServerSpec, ServiceSpec, SnatPoolSpec, SnatRangeSpec, Tables, TunnelSpec,
};
use onearm_types::{GroupId, NodeId};

use crate::config::{self, PairConfig, ServerConfig, ServiceConfig};

/// The tables of one generation of `pair.toml` on one node.
///
/// `leg_of` gives the index of an owned address's leg, `connected` the prefixes on the legs, `is_up` the health of a
/// server (index of the service, index of the server in it).
pub(crate) fn tables(
    node: NodeId,
    pair: &PairConfig,
    leg_of: impl Fn(IpAddr) -> u8,
    connected: Vec<IpNet>,
    is_up: impl Fn(usize, usize) -> bool,
) -> Tables {
    let services = pair.services.iter().enumerate();
    Tables {
        owned: owned(pair, leg_of),
        services: services
            .map(|(i, s)| service(node, s, |server| is_up(i, server)))
            .collect(),
        server_networks: pair
            .gateways
            .iter()
            .filter(|g| g.transit)
            .map(|g| ServerNetwork {
                network: g.network,
                gateway: g.address.addr(),
            })
            .collect(),
        direct: pair
            .gateways
            .iter()
            .flat_map(|g| g.direct.iter().copied())
            .collect(),
        connected,
        snat_ranges: snat_ranges(pair),
    }
}

fn owned(pair: &PairConfig, leg_of: impl Fn(IpAddr) -> u8) -> Vec<OwnedAddress> {
    let mut kinds: BTreeMap<IpAddr, OwnedKinds> = BTreeMap::new();
    for gateway in &pair.gateways {
        kinds.entry(gateway.address.addr()).or_default().gateway = true;
    }
    for service in &pair.services {
        kinds.entry(service.vip).or_default().service = true;
        for source in service.snat.iter().filter(|_| service.translates_source()) {
            kinds.entry(source.address).or_default().snat = true;
        }
    }
    let address = |(addr, kinds): (IpAddr, _)| OwnedAddress {
        addr,
        kinds,
        leg: leg_of(addr),
        group: GroupId::FIRST,
    };
    kinds.into_iter().map(address).collect()
}

fn snat_ranges(pair: &PairConfig) -> Vec<SnatRangeSpec> {
    let mut ranges: BTreeMap<IpAddr, SnatRangeSpec> = BTreeMap::new();
    for service in pair.services.iter().filter(|s| s.translates_source()) {
        for source in &service.snat {
            let (first, last) = (source.ports.first(), source.ports.last());
            let addr = source.address;
            let range = ranges.entry(addr).or_insert(SnatRangeSpec { addr, first, last });
            range.first = range.first.min(first);
            range.last = range.last.max(last);
        }
    }
    ranges.into_values().collect()
}

fn service(node: NodeId, service: &ServiceConfig, is_up: impl Fn(usize) -> bool) -> ServiceSpec {
    let sources = service.snat.iter().filter(|_| service.translates_source());
    let pool = |source: &config::SnatSource| {
        source.ports.half(node).map(|half| SnatPoolSpec {
            addr: source.address,
            first: half.first(),
            last: half.last(),
        })
    };
    ServiceSpec {
        name: service.name.clone(),
        vip: service.vip,
        protocol: match service.protocol {
            config::Protocol::Tcp => Protocol::Tcp,
            config::Protocol::Udp => Protocol::Udp,
        },
        ports: service.ports.iter().map(|p| p.first()..=p.last()).collect(),
        mode: service.mode,
        mode_for: service
            .mode_for
            .iter()
            .flat_map(|rule| rule.clients.iter().map(|net| (*net, rule.mode)))
            .collect(),
        tunnel: TunnelSpec {
            gue_port: (service.tunnel.kind == config::TunnelKind::Gue).then_some(service.tunnel.port),
            sources: service.tunnel.sources,
        },
        scheduler: match service.scheduler {
            config::Scheduler::Maglev => Scheduler::Maglev,
            config::Scheduler::Wrr => Scheduler::Wrr,
            config::Scheduler::Wlc => Scheduler::Wlc,
            config::Scheduler::SourceHash => Scheduler::SourceHash,
        },
        persistence: Persistence {
            time: service.persistence,
            prefix: service.source_prefix,
        },
        hairpin: match &service.hairpin {
            config::Hairpin::Auto => Hairpin::Auto,
            config::Hairpin::Off => Hairpin::Off,
            config::Hairpin::Listed(prefixes) => Hairpin::Listed(prefixes.clone()),
        },
        group: GroupId::FIRST,
        snat: sources.filter_map(pool).collect(),
        idle_timeout: service.idle_timeout,
        mss_clamp: service.mss_clamp,
        per_packet: service.per_packet,
        limits: LimitsSpec {
            max_connections: service.limits.max_connections,
            max_new_per_second: service.limits.max_new_per_second,
            max_per_source: service.limits.max_per_source,
            allow: service.limits.allow.clone(),
            deny: service.limits.deny.clone(),
        },
        sync_after: match service.sync_after {
            config::SyncAfter::Time(time) => Some(time),
            config::SyncAfter::Never => None,
        },
        on_server_down: match service.on_server_down {
            config::OnServerDown::Reset => OnServerDown::Reset,
            config::OnServerDown::Keep => OnServerDown::Keep,
        },
        servers: service
            .servers
            .iter()
            .enumerate()
            .map(|(i, s)| server(s, is_up(i)))
            .collect(),
    }
}

fn server(server: &ServerConfig, up: bool) -> ServerSpec {
    ServerSpec {
        id: server_id(server),
        weight: u16::from(server.weight),
        up,
    }
}

/// Identity of a server within its service.
pub(crate) fn server_id(server: &ServerConfig) -> ServerId {
    ServerId {
        addr: server.address,
        port: server.port.unwrap_or(0),
    }
}
