//! Limits that only the whole file can break.

use std::collections::HashSet;
use std::net::IpAddr;

use super::findings::Findings;
use crate::config::{Hairpin, PairFile, limits};

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    let pair = &file.parsed.config;
    let mut most = |rule: &'static str, what: &str, count: usize, limit: usize| {
        if count > limit {
            let message = format!("{count} {what}, the limit is {limit}");
            findings.error(rule, "service", message, "use fewer, or a second pair");
        }
    };
    let vips: HashSet<_> = pair.services.iter().map(|s| s.vip).collect();
    most("limit", "different VIPs", vips.len(), limits::VIPS);
    most(
        "limit",
        "servers",
        pair.services.iter().map(|s| s.servers.len()).sum(),
        limits::SERVERS,
    );
    most(
        "limit",
        "owned addresses",
        pair.owned_addresses().len(),
        limits::OWNED,
    );
    let blocks = pair
        .services
        .iter()
        .flat_map(|s| &s.ports)
        .map(|range| range.blocks())
        .sum();
    most(
        "limit",
        "blocks of ports (a range is up to 30)",
        blocks,
        limits::PORT_BLOCKS,
    );
    most(
        "limit",
        "SNAT sources, counted per service",
        pair.services.iter().map(|s| s.snat.len()).sum(),
        limits::SNAT_SOURCES,
    );
    let listed = pair.services.iter().map(|s| match &s.hairpin {
        Hairpin::Listed(prefixes) => prefixes.len(),
        Hairpin::Auto | Hairpin::Off => 0,
    });
    most("limit", "hairpin prefixes", listed.sum(), limits::PREFIXES);
    let clients = pair.services.iter().flat_map(|s| &s.mode_for);
    most(
        "limit",
        "prefixes of clients with a mode of their own",
        clients.map(|rule| rule.clients.len()).sum(),
        limits::PREFIXES,
    );
    most(
        "limit",
        "direct prefixes",
        pair.gateways.iter().map(|g| g.direct.len()).sum(),
        limits::PREFIXES,
    );
    if file.parsed.says("limits.max_flows6") && pair.owned_addresses().iter().all(IpAddr::is_ipv4) {
        let message = "has no effect: the pair owns no IPv6 address";
        findings.warn("no-effect", "limits.max_flows6", message, "remove the key");
    }
    if file.parsed.says("limits.persistent_clients") && pair.persistent_clients() == 0 {
        let message = "has no effect: no service has persistence";
        findings.warn(
            "no-effect",
            "limits.persistent_clients",
            message,
            "remove the key",
        );
    }
    let (four, six) = pair.flow_room();
    let most = four.max(six);
    if pair.limits.half_open > most && most > 0 {
        let message = format!("more half-open flows than flows ({most})");
        findings.error(
            "half-open",
            "limits.half_open",
            message,
            "write at most max_flows",
        );
    }
    if pair.limits.dsr_flows > most && most > 0 {
        let message = format!("more affinities than flows ({most})");
        findings.error(
            "dsr-flows",
            "limits.dsr_flows",
            message,
            "write at most max_flows",
        );
    }
}
