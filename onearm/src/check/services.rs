//! Services among themselves, and each with its servers.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::findings::Findings;
use crate::config::{Hairpin, Mode, PairFile, PortRange, Protocol, Scheduler, ServiceConfig};

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    let pair = &file.parsed.config;
    let networks: Vec<IpNet> = pair.gateways.iter().map(|g| g.network).collect();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, service) in pair.services.iter().enumerate() {
        let path = file.service_path(index);
        if let Some(first) = names.insert(&service.name, index) {
            let message = format!("{} has the same name", file.service_path(first));
            findings.error(
                "duplicate-service",
                format!("{path}.name"),
                message,
                "give each service a name of its own",
            );
        }
        servers(file, index, service, findings);
        check(&path, service, findings);
        if let Hairpin::Listed(prefixes) = &service.hairpin {
            for (place, prefix) in prefixes
                .iter()
                .enumerate()
                .filter(|(at, prefix)| prefixes[..*at].contains(prefix))
            {
                let field = format!("{path}.hairpin[{place}]");
                findings.error(
                    "duplicate-prefix",
                    field,
                    format!("{prefix} is listed twice"),
                    "remove one",
                );
            }
        }
        if service.has_mode(Mode::Dnat) {
            dnat(file, index, service, &networks, findings);
        } else if file.parsed.says(&format!("{path}.hairpin")) {
            let message = "has no effect: only dnat makes a difference between clients";
            findings.warn("no-effect", format!("{path}.hairpin"), message, "remove the key");
        }
        if !service.translates_source() && file.parsed.says(&format!("{path}.snat")) {
            let message = "has no effect: nothing gets another source in this mode";
            findings.warn("no-effect", format!("{path}.snat"), message, "remove the key");
        }
        datagrams(file, index, service, findings);
        source_hash(file, index, service, findings);
        if service.protocol == Protocol::Udp && file.parsed.says(&format!("{path}.mss_clamp")) {
            let message = "has no effect: UDP has no segments";
            findings.warn(
                "no-effect",
                format!("{path}.mss_clamp"),
                message,
                "remove the key",
            );
        }
    }
    ports(file, findings);
}

/// `udp`.
fn datagrams(file: &PairFile, index: usize, service: &ServiceConfig, findings: &mut Findings) {
    let path = file.service_path(index);
    let field = format!("{path}.udp");
    if service.protocol != Protocol::Udp && file.parsed.says(&field) {
        let message = "has no effect: the service is none of UDP";
        findings.warn("no-effect", field, message, "remove the key");
        return;
    }
    if !service.per_packet {
        return;
    }
    if !service.modes().all(Mode::is_direct) {
        let message = "where packets are translated, answers find their clients by flows alone";
        let remedy = "write \"flow\", or use \"dsr\" or \"l3-dsr\" for all clients";
        findings.error("packet-mode", field, message, remedy);
    }
    for key in ["max_connections", "max_new_per_second", "max_per_source"] {
        let limit = format!("{path}.{key}");
        if file.parsed.says(&limit) {
            let message = "counts flows, and udp = \"packet\" keeps none";
            findings.error(
                "packet-limits",
                limit,
                message,
                "remove the key, or write udp = \"flow\"",
            );
        }
    }
}

/// `persistence` and `source_prefix`.
fn source_hash(file: &PairFile, index: usize, service: &ServiceConfig, findings: &mut Findings) {
    let path = file.service_path(index);
    let field = format!("{path}.persistence");
    if service.scheduler != Scheduler::SourceHash {
        if file.parsed.says(&field) {
            let message =
                "clients stay with their server where they are led there by a hash of their address";
            findings.error("persistence", field, message, "write scheduler = \"source-hash\"");
        }
        let field = format!("{path}.source_prefix");
        if file.parsed.says(&field) {
            let message = "has no effect: only source-hash looks at addresses alone";
            findings.warn("no-effect", field, message, "remove the key");
        }
        return;
    }
    if service.persistence.is_none() {
        return;
    }
    if service.per_packet {
        let message = "clients are known by their flows, and udp = \"packet\" keeps none";
        let remedy = "remove the key, or write udp = \"flow\"";
        findings.error("persistence", field, message, remedy);
    } else if service.is_direct() && file.parsed.config.limits.dsr_flows == 0 {
        let message = "clients are known by their flows, and limits.dsr_flows = 0 keeps none of servers that answer clients themselves";
        findings.error("persistence", field, message, "write a greater limits.dsr_flows");
    }
}

fn servers(file: &PairFile, index: usize, service: &ServiceConfig, findings: &mut Findings) {
    let path = file.service_path(index);
    let mut names = HashSet::new();
    let mut endpoints = HashSet::new();
    for (place, server) in service.servers.iter().enumerate() {
        let path = file.server_path(index, place);
        if !names.insert(&server.name) {
            let message = format!("\"{}\" is already a server of this service", server.name);
            findings.error(
                "duplicate-server",
                format!("{path}.name"),
                message,
                "give each server a name of its own",
            );
        }
        if !endpoints.insert((server.address, server.port)) {
            let message = format!("{} is already a server of this service", server.address);
            findings.error(
                "duplicate-server",
                format!("{path}.address"),
                message,
                "use `weight` for a greater share",
            );
        }
        if server.port.is_some() && service.ports.iter().map(|range| range.count()).sum::<u32>() > 1 {
            let message = "the service has several ports, and all of them go to this one";
            findings.warn(
                "one-port",
                format!("{path}.port"),
                message,
                "without `port` a server is called at the port the client called",
            );
        }
    }
    if !service.servers.is_empty() && service.servers.iter().all(|server| server.weight == 0) {
        let message = format!(
            "every server of \"{}\" has weight 0: new connections are refused",
            service.name
        );
        findings.warn(
            "no-weight",
            format!("{path}.server"),
            message,
            "give one of them a weight",
        );
    }
}

fn check(path: &str, service: &ServiceConfig, findings: &mut Findings) {
    let Some(check) = &service.check else { return };
    if check.timeout > check.interval {
        let message = format!("longer than the interval ({:?})", check.interval);
        findings.error(
            "check-timeout",
            format!("{path}.check.timeout"),
            message,
            "write at most the interval",
        );
    }
    if service.protocol == Protocol::Udp && check.port.is_none() {
        let message =
            "a TCP connection to a UDP service's port: servers look dead unless they listen there too";
        findings.warn(
            "check-udp",
            format!("{path}.check.type"),
            message,
            "write `port` of something that listens on TCP, or no check",
        );
    }
}

/// In dnat a server must send its replies to the pair, and a client next to its server must be translated.
fn dnat(file: &PairFile, index: usize, service: &ServiceConfig, networks: &[IpNet], findings: &mut Findings) {
    let path = file.service_path(index);
    let network_of = |address: IpAddr| {
        networks
            .iter()
            .find(|network| network.contains(&address))
            .copied()
    };
    if !file.parsed.is_draft() {
        for (place, server) in service.servers.iter().enumerate() {
            if network_of(server.address).is_none() {
                let message = format!(
                    "no [[gateway]] is in the network of {}: its replies would not come back through the pair",
                    server.address
                );
                let remedy =
                    "add a [[gateway]] of its network as its default route, or use mode = \"both-nat\"";
                findings.error(
                    "server-without-gateway",
                    format!("{}.address", file.server_path(index, place)),
                    message,
                    remedy,
                );
            }
        }
    }
    let next_to_vip = service
        .servers
        .iter()
        .find(|s| network_of(s.address).is_some_and(|network| network.contains(&service.vip)));
    match &service.hairpin {
        Hairpin::Auto => {}
        Hairpin::Off => {
            if let Some(server) = next_to_vip {
                let message = format!(
                    "clients in the network of server {} will not reach \"{}\": it answers them directly, from an address they never called",
                    server.address, service.name
                );
                findings.warn(
                    "hairpin-off",
                    format!("{path}.hairpin"),
                    message,
                    "write hairpin = \"auto\"",
                );
            }
        }
        Hairpin::Listed(prefixes) => {
            let left_out = service
                .servers
                .iter()
                .find(|s| !prefixes.iter().any(|p| p.contains(&s.address)));
            if let Some(server) = left_out {
                let message = format!(
                    "server {} is in none of these: clients next to it get its answer from an address they never called",
                    server.address
                );
                findings.warn(
                    "hairpin-list",
                    format!("{path}.hairpin"),
                    message,
                    "add its network, or write \"auto\"",
                );
            }
        }
    }
}

/// A range, the service that lists it, and its place in the list.
type Taken = (PortRange, usize, usize);

/// A port of a VIP belongs to one service.
fn ports(file: &PairFile, findings: &mut Findings) {
    let services = &file.parsed.config.services;
    let mut taken: HashMap<(IpAddr, Protocol), Vec<Taken>> = HashMap::new();
    for (index, service) in services.iter().enumerate() {
        let ranges = taken.entry((service.vip, service.protocol)).or_default();
        ranges.extend(
            service
                .ports
                .iter()
                .enumerate()
                .map(|(place, range)| (*range, index, place)),
        );
    }
    for ((vip, protocol), mut ranges) in taken {
        ranges.sort_unstable();
        // The one that reaches furthest so far: whatever starts before its end overlaps it.
        let mut furthest: Option<Taken> = None;
        for range in ranges {
            if let Some(other) = furthest.filter(|(other, ..)| other.overlaps(range.0)) {
                let (first, second) = if (other.1, other.2) < (range.1, range.2) {
                    (other, range)
                } else {
                    (range, other)
                };
                let owner = if first.1 == second.1 {
                    "this service lists it already".to_owned()
                } else {
                    format!(
                        "{} (\"{}\") has it already",
                        file.service_path(first.1),
                        services[first.1].name
                    )
                };
                let shared = if second.0.count() == 1 {
                    "port"
                } else {
                    "range with ports"
                };
                let message = format!("{shared} taken on {vip} {}: {owner}", protocol.as_str());
                let field = format!("{}.ports[{}]", file.service_path(second.1), second.2);
                findings.error(
                    "duplicate-port",
                    field,
                    message,
                    "a port of a VIP belongs to one service",
                );
            }
            if furthest.is_none_or(|(other, ..)| range.0.last() > other.last()) {
                furthest = Some(range);
            }
        }
    }
}
