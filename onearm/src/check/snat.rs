//! SNAT sources and their ports.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::findings::Findings;
use crate::config::{PairFile, PortRange};

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    let services = &file.parsed.config.services;
    // Address → its range and the service that said so first.
    let mut pools: HashMap<Ipv4Addr, (PortRange, usize)> = HashMap::new();
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
        for (place, address) in service.snat.iter().enumerate() {
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
            let (range, first) = *pools.entry(*address).or_insert((service.snat_ports, index));
            if range != service.snat_ports {
                let message = format!(
                    "{address} is used with ports {range} by {} (\"{}\"), here with {}",
                    file.service_path(first),
                    services[first].name,
                    service.snat_ports
                );
                findings.error(
                    "snat-ports-differ",
                    format!("{path}.snat_ports"),
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
                "set snat_ports to a range without service ports, or snat to another address",
            );
        }
    }
}
