//! SNAT sources and their ports.

use std::collections::HashMap;
use std::net::IpAddr;

use super::findings::Findings;
use crate::config::{PairFile, PortRange, SnatSource};

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    let services = &file.parsed.config.services;
    // Address → its range and the service that said so first.
    let mut pools: HashMap<IpAddr, (PortRange, usize)> = HashMap::new();
    for (index, service) in services
        .iter()
        .enumerate()
        .filter(|(_, service)| service.translates_source())
    {
        let path = file.service_path(index);
        if service.snat.is_empty() {
            let message = format!("\"{}\" has no address to translate to", service.name);
            findings.error(
                "snat-missing",
                format!("{path}.snat"),
                message,
                "name one, or remove the key: then it is the VIP",
            );
        }
        let mut here = std::collections::HashSet::new();
        for (place, SnatSource { address, ports }) in service.snat.iter().enumerate() {
            if !here.insert(address) {
                let message = format!("{address} is listed twice");
                findings.error(
                    "duplicate-snat",
                    format!("{path}.snat[{place}]"),
                    message,
                    "remove one",
                );
                continue;
            }
            let (range, first) = *pools.entry(*address).or_insert((*ports, index));
            if range != *ports {
                let message = format!(
                    "{address} is used with ports {range} by {} (\"{}\"), here with {ports}",
                    file.service_path(first),
                    services[first].name,
                );
                let written = format!("{path}.snat_ports");
                let field = if file.parsed.says(&written) {
                    written
                } else {
                    format!("{path}.snat[{place}]")
                };
                findings.error(
                    "snat-ports-differ",
                    field,
                    message,
                    "an address has one range: write the same everywhere",
                );
            }
        }
    }
    for (index, service) in services.iter().enumerate() {
        let Some((range, user)) = pools.get(&service.vip) else {
            continue;
        };
        for (place, ports) in service
            .ports
            .iter()
            .enumerate()
            .filter(|(_, ports)| ports.overlaps(*range))
        {
            let message = format!(
                "{} {ports} lies in the SNAT ports {range} of {} (\"{}\")",
                service.vip,
                file.service_path(*user),
                services[*user].name
            );
            let field = format!("{}.ports[{place}]", file.service_path(index));
            findings.error(
                "snat-overlap",
                field,
                message,
                "give the SNAT source a range without service ports (\"address:first-last\" or snat_ports), or use another address",
            );
        }
    }
}
