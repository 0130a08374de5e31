//! Modes by client, and what servers need that answer clients themselves.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::findings::Findings;
use crate::config::{Mode, PairFile, Scheduler, ServiceConfig, TunnelKind};

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    let services = &file.parsed.config.services;
    for (index, service) in services.iter().enumerate() {
        clients_once(file, index, service, findings);
        tunnel(file, index, service, findings);
        if service.is_direct() {
            direct(file, index, service, findings);
        }
    }
    sources(file, findings);
    if file.parsed.says("limits.dsr_flows") && !services.iter().any(ServiceConfig::is_direct) {
        let message = "has no effect: no service has mode \"dsr\" or \"l3-dsr\"";
        findings.warn("no-effect", "limits.dsr_flows", message, "remove the key");
    }
}

fn clients_once(file: &PairFile, index: usize, service: &ServiceConfig, findings: &mut Findings) {
    let mut seen: HashSet<IpNet> = HashSet::new();
    for (place, rule) in service.mode_for.iter().enumerate() {
        for (at, prefix) in rule.clients.iter().enumerate() {
            if !seen.insert(*prefix) {
                let field = format!("{}.mode_for[{place}].clients[{at}]", file.service_path(index));
                let message = format!("{prefix} is listed twice");
                findings.error("duplicate-prefix", field, message, "remove one");
            }
        }
    }
}

fn tunnel(file: &PairFile, index: usize, service: &ServiceConfig, findings: &mut Findings) {
    let path = file.service_path(index);
    tunnel_sources(&path, service, findings);
    for key in ["tunnel", "tunnel_port", "tunnel_sources", "check.tunnel"] {
        let field = format!("{path}.{key}");
        if !file.parsed.says(&field) {
            continue;
        }
        if !service.has_mode(Mode::L3Dsr) {
            let message = "has no effect: no client has mode \"l3-dsr\"";
            findings.warn("no-effect", field, message, "remove the key");
        } else if key == "tunnel_port" && service.tunnel.kind != TunnelKind::Gue {
            let message = "has no effect: only GUE has a port";
            findings.warn(
                "no-effect",
                field,
                message,
                "write tunnel = \"gue\", or remove the key",
            );
        }
    }
}

/// The outer header has the family of the inner one; 32 bits of its source may vary.
fn tunnel_sources(path: &str, service: &ServiceConfig, findings: &mut Findings) {
    let fits = |net: IpNet| {
        net.addr().is_ipv4() == service.vip.is_ipv4() && net.max_prefix_len() - net.prefix_len() <= 32
    };
    if service.tunnel.sources.is_some_and(|net| !fits(net)) {
        findings.error(
            "tunnel-sources",
            format!("{path}.tunnel_sources"),
            "of another family than the VIP, or shorter than /96",
            "write a prefix of the VIP's family, in IPv6 of /96 or longer",
        );
    }
}

fn direct(file: &PairFile, index: usize, service: &ServiceConfig, findings: &mut Findings) {
    let path = file.service_path(index);
    let all = service.modes().all(Mode::is_direct);
    for (place, server) in service.servers.iter().enumerate() {
        if server.port.is_none() {
            continue;
        }
        let field = format!("{}.port", file.server_path(index, place));
        let sentence = "a server that answers clients itself gets packets as they were sent, at the port the client called";
        if all {
            findings.error("direct-port", field, sentence, "remove the key");
        } else {
            let message = format!("only translated clients come to it: {sentence}");
            findings.warn(
                "direct-port",
                field,
                message,
                "let the server listen on both, or remove the key",
            );
        }
    }
    limits(file, index, service, findings);
    if matches!(service.scheduler, Scheduler::Wrr | Scheduler::Wlc) {
        let message = "connections to servers that answer clients themselves do not survive a change of the Active: only a hash leads both nodes to the same server";
        findings.warn(
            "direct-scheduler",
            format!("{path}.scheduler"),
            message,
            "write \"maglev\" or \"source-hash\"",
        );
    }
    if service.has_mode(Mode::Dnat) {
        let message = "its servers need two ways out: answers from the VIP go to the router, answers from the server's own address to the gateway address of the pair";
        findings.warn(
            "direct-and-dnat",
            format!("{path}.mode_for"),
            message,
            "use \"both-nat\" beside \"dsr\" or \"l3-dsr\", or routes by source on the servers",
        );
    }
}

/// Connections are counted where they are remembered, and those of a client where their ends are seen.
fn limits(file: &PairFile, index: usize, service: &ServiceConfig, findings: &mut Findings) {
    let path = file.service_path(index);
    let per_source = format!("{path}.max_per_source");
    if file.parsed.says(&per_source) && !service.per_packet {
        let message = "connections of one client cannot be counted where servers answer clients themselves: the pair sees neither whether a server answered nor how a connection ended, and anybody's packets in a client's name would use up its share";
        let remedy = "remove the key and set the limit on the servers, or use \"both-nat\" or \"dnat\" for all clients";
        findings.error("direct-limits", per_source, message, remedy);
    }
    let connections = format!("{path}.max_connections");
    if file.parsed.says(&connections) && !service.per_packet && file.parsed.config.limits.dsr_flows == 0 {
        let message =
            "counts flows, and limits.dsr_flows = 0 keeps none of servers that answer clients themselves";
        findings.error(
            "direct-limits",
            connections,
            message,
            "write a greater limits.dsr_flows, or remove the key",
        );
    }
}

/// A server gets no packets that come from an address of its own.
fn sources(file: &PairFile, findings: &mut Findings) {
    let services = &file.parsed.config.services;
    // VIP and server that holds it → the service that says so.
    let mut holders: HashMap<(IpAddr, IpAddr), usize> = HashMap::new();
    for (index, service) in services.iter().enumerate().filter(|(_, s)| s.is_direct()) {
        for server in &service.servers {
            holders.entry((service.vip, server.address)).or_insert(index);
        }
    }
    for (index, service) in services.iter().enumerate().filter(|(_, s)| s.translates_source()) {
        for (place, source) in service.snat.iter().enumerate() {
            let held = service
                .servers
                .iter()
                .find_map(|server| Some((server.address, *holders.get(&(source.address, server.address))?)));
            let Some((server, holder)) = held else { continue };
            let mut field = format!("{}.snat[{place}]", file.service_path(index));
            if !file.parsed.says(&field) {
                field = format!("{}.snat", file.service_path(index));
            }
            let message = format!(
                "{} is held by server {server} itself ({} \"{}\"): it would take packets from there for its own",
                source.address,
                file.service_path(holder),
                services[holder].name
            );
            findings.error(
                "snat-held-by-server",
                field,
                message,
                "write an address that is no VIP of these servers",
            );
        }
    }
}
