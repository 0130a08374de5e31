//! What must hold of tables before anything is built from them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use onearm_dataplane_common::maps;

use super::ports::blocks;
use super::{Hairpin, Mode, Protocol, ServerNetwork, ServiceSpec, Tables, TablesError};

pub(super) type Result<T> = std::result::Result<T, TablesError>;

/// Ticks of the flow clock in a duration, rounded up; at least 1.
pub(super) fn ticks(timeout: Duration) -> Option<u32> {
    let ticks = timeout.as_nanos().div_ceil(1 << maps::TICK_SHIFT);
    // Half the clock's range, so that differences keep their sign.
    u32::try_from(ticks)
        .ok()
        .filter(|ticks| (1..1 << 31).contains(ticks))
}

pub(super) fn tables(tables: &Tables) -> Result<()> {
    at_most("owned addresses", tables.owned.len(), maps::MAX_OWNED)?;
    at_most("services", tables.services.len(), maps::MAX_SERVICES)?;
    at_most(
        "servers",
        tables.services.iter().map(|s| s.servers.len()).sum(),
        maps::MAX_SERVERS,
    )?;
    at_most(
        "SNAT pools",
        tables.services.iter().map(|s| s.snat.len()).sum(),
        maps::MAX_SNAT_POOLS,
    )?;
    // Both slots share a trie.
    at_most(
        "connected prefixes",
        tables.connected.len(),
        // Each with its first and last address.
        maps::MAX_PREFIXES / maps::SLOTS / 3,
    )?;
    at_most(
        "server networks",
        tables.server_networks.len(),
        maps::MAX_PREFIXES / maps::SLOTS,
    )?;
    at_most(
        "direct prefixes",
        tables.direct.len(),
        maps::MAX_PREFIXES / maps::SLOTS,
    )?;
    let listed = tables.services.iter().map(|s| match &s.hairpin {
        Hairpin::Listed(prefixes) => prefixes.len(),
        Hairpin::Off | Hairpin::Auto => 0,
    });
    at_most(
        "hairpin prefixes",
        listed.sum(),
        maps::MAX_HAIRPIN_PREFIXES / maps::SLOTS,
    )?;

    at_most(
        "client prefixes",
        tables
            .services
            .iter()
            .map(|s| s.limits.allow.len() + s.limits.deny.len())
            .sum(),
        maps::MAX_CLIENT_PREFIXES / maps::SLOTS,
    )?;
    at_most(
        "prefixes of clients with a mode of their own",
        tables.services.iter().map(|s| s.mode_for.len()).sum(),
        maps::MAX_HAIRPIN_PREFIXES / maps::SLOTS,
    )?;

    // A range of ports takes several prefixes of the trie.
    let prefixes = tables
        .services
        .iter()
        .flat_map(|s| &s.ports)
        .map(|range| blocks(range).len());
    at_most(
        "prefixes of service ports",
        prefixes.sum(),
        maps::MAX_SERVICE_KEYS / maps::SLOTS,
    )?;

    once("owned address", tables.owned.iter().map(|o| o.addr))?;
    once("SNAT range of", tables.snat_ranges.iter().map(|r| r.addr))?;
    prefixes_once("connected prefix", tables.connected.iter())?;
    prefixes_once("direct prefix", tables.direct.iter())?;
    prefixes_once(
        "server network",
        tables.server_networks.iter().map(|n| &n.network),
    )?;

    let owned: BTreeSet<IpAddr> = tables.owned.iter().map(|o| o.addr).collect();
    let is_owned = |what, addr| {
        if owned.contains(&addr) {
            Ok(())
        } else {
            Err(TablesError::NotOwned { what, addr })
        }
    };
    for range in &tables.snat_ranges {
        is_owned("SNAT range", range.addr)?;
        source_ports(range.addr, range.first, range.last)?;
    }
    for network in &tables.server_networks {
        is_owned("gateway", network.gateway)?;
        of_its_network(network)?;
    }
    let mut names = BTreeSet::new();
    for service in &tables.services {
        if !names.insert(service.name.as_str()) {
            return Err(TablesError::DuplicateService {
                name: service.name.clone(),
            });
        }
        is_owned("service VIP", service.vip)?;
        for pool in &service.snat {
            is_owned("SNAT source", pool.addr)?;
            source_ports(pool.addr, pool.first, pool.last)?;
        }
        self::service(service)?;
    }
    ports_apart(&tables.services)?;
    sources_apart(tables)
}

fn of_its_network(network: &ServerNetwork) -> Result<()> {
    if network.gateway.is_ipv4() == network.network.addr().is_ipv4() {
        Ok(())
    } else {
        Err(TablesError::GatewayFamily {
            network: network.network,
            gateway: network.gateway,
        })
    }
}

/// Packets are translated within their family.
fn one_family(service: &ServiceSpec) -> Result<()> {
    let servers = service.servers.iter().map(|server| ("server", server.id.addr));
    let sources = service.snat.iter().map(|pool| ("SNAT source", pool.addr));
    match servers
        .chain(sources)
        .find(|(_, addr)| addr.is_ipv4() != service.vip.is_ipv4())
    {
        Some((what, addr)) => Err(TablesError::MixedFamilies {
            service: service.name.clone(),
            vip: service.vip,
            what,
            addr,
        }),
        None => Ok(()),
    }
}

/// No source port of an address is a port that clients call there: a reply would be taken for a call.
fn sources_apart(tables: &Tables) -> Result<()> {
    for service in &tables.services {
        let ranges = tables
            .snat_ranges
            .iter()
            .filter(|range| range.addr == service.vip);
        let pools = tables.services.iter().flat_map(|other| &other.snat);
        let pools = pools.filter(|pool| pool.addr == service.vip);
        let sources = ranges
            .map(|range| (range.first, range.last))
            .chain(pools.map(|pool| (pool.first, pool.last)));
        for (first, last) in sources {
            if let Some(ports) = service
                .ports
                .iter()
                .find(|ports| *ports.start() <= last && first <= *ports.end())
            {
                return Err(TablesError::SourceIsServicePort {
                    service: service.name.clone(),
                    addr: service.vip,
                    port: *ports.start().max(&first),
                });
            }
        }
    }
    Ok(())
}

fn at_most(what: &'static str, count: usize, max: u32) -> Result<()> {
    let max = max as usize;
    if count > max {
        Err(TablesError::TooMany { what, count, max })
    } else {
        Ok(())
    }
}

fn once(what: &'static str, addresses: impl Iterator<Item = IpAddr>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for addr in addresses {
        if !seen.insert(addr) {
            return Err(TablesError::DuplicateAddress { what, addr });
        }
    }
    Ok(())
}

fn prefixes_once<'a>(list: &'static str, prefixes: impl Iterator<Item = &'a IpNet>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for prefix in prefixes {
        if !seen.insert(prefix.trunc()) {
            return Err(TablesError::DuplicatePrefix {
                list,
                prefix: *prefix,
            });
        }
    }
    Ok(())
}

fn source_ports(addr: IpAddr, first: u16, last: u16) -> Result<()> {
    if first == 0 || first > last {
        return Err(TablesError::BadSourcePorts { addr, first, last });
    }
    Ok(())
}

fn service(service: &ServiceSpec) -> Result<()> {
    at_most(
        "servers of one service",
        service.servers.len(),
        maps::MAX_SERVERS_PER_SERVICE,
    )?;
    if service.ports.is_empty() {
        return Err(TablesError::BadPorts {
            service: service.name.clone(),
            first: 0,
            last: 0,
        });
    }
    for range in &service.ports {
        let (first, last) = (*range.start(), *range.end());
        if first == 0 || first > last {
            return Err(TablesError::BadPorts {
                service: service.name.clone(),
                first,
                last,
            });
        }
    }
    let time = service.persistence.time;
    if ticks(service.idle_timeout).is_none() || time.is_some_and(|time| ticks(time).is_none()) {
        return Err(TablesError::BadTimeout {
            service: service.name.clone(),
        });
    }
    one_family(service)?;
    let limits = service.limits.value() != maps::Limits::default();
    if service.per_packet
        && (service.protocol != Protocol::Udp || limits || !service.modes().all(Mode::is_direct))
    {
        return Err(TablesError::PerPacket {
            service: service.name.clone(),
        });
    }
    if let Hairpin::Listed(prefixes) = &service.hairpin {
        prefixes_once("hairpin prefix", prefixes.iter())?;
    }
    let (allow, deny) = (&service.limits.allow, &service.limits.deny);
    prefixes_once("client prefix", allow.iter().chain(deny))?;
    direct(service)?;
    let mut seen = BTreeSet::new();
    for server in &service.servers {
        if !seen.insert(server.id) {
            return Err(TablesError::DuplicateServer {
                service: service.name.clone(),
                server: server.id,
            });
        }
    }
    Ok(())
}

/// What servers need that hold the VIP themselves.
fn direct(service: &ServiceSpec) -> Result<()> {
    prefixes_once("client prefix", service.mode_for.iter().map(|(prefix, _)| prefix))?;
    let name = || service.name.clone();
    if !service.modes().any(Mode::is_direct) {
        return Ok(());
    }
    for server in &service.servers {
        if server.id.port != 0 && service.modes().all(Mode::is_direct) {
            return Err(TablesError::DirectPort {
                service: name(),
                server: server.id,
            });
        }
    }
    let translates = service.modes().any(|mode| match mode {
        Mode::BothNat => true,
        Mode::Dnat => service.hairpin != Hairpin::Off,
        Mode::Dsr | Mode::L3Dsr => false,
    });
    if translates && service.snat.iter().any(|pool| pool.addr == service.vip) {
        return Err(TablesError::DirectSource {
            service: name(),
            addr: service.vip,
        });
    }
    let fits = service.tunnel.sources.is_none_or(|sources| {
        sources.addr().is_ipv4() == service.vip.is_ipv4()
            && sources.max_prefix_len() - sources.prefix_len() <= 32
    });
    if service.tunnel.gue_port == Some(0) || !fits {
        return Err(TablesError::BadTunnel { service: name() });
    }
    Ok(())
}

/// No port of a VIP and protocol is wanted twice.
fn ports_apart(services: &[ServiceSpec]) -> Result<()> {
    let mut by_vip: BTreeMap<_, Vec<(u16, u16, &str)>> = BTreeMap::new();
    for service in services {
        let ranges = by_vip.entry((service.vip, service.protocol)).or_default();
        ranges.extend(
            service
                .ports
                .iter()
                .map(|r| (*r.start(), *r.end(), service.name.as_str())),
        );
    }
    for ((vip, protocol), mut ranges) in by_vip {
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            let ((_, last, one), (port, _, other)) = (pair[0], pair[1]);
            if port <= last {
                let (one, other) = (one.to_owned(), other.to_owned());
                return Err(TablesError::PortTaken {
                    one,
                    other,
                    vip,
                    protocol,
                    port,
                });
            }
        }
    }
    Ok(())
}
