//! A service is of one family: nothing is translated between IPv4 and IPv6.

use std::net::IpAddr;

use ipnet::IpNet;

use super::findings::Findings;
use crate::config::{Hairpin, PairFile, ServiceConfig};

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    for (index, service) in file.parsed.config.services.iter().enumerate() {
        let path = file.service_path(index);
        let servers = service.servers.iter().enumerate();
        let servers =
            servers.map(|(place, s)| (format!("{}.address", file.server_path(index, place)), s.address));
        let sources = service.snat.iter().enumerate();
        let sources = sources.map(|(place, source)| (format!("{path}.snat[{place}]"), source.address));
        for (field, address) in servers.chain(sources) {
            if address.is_ipv4() != service.vip.is_ipv4() {
                let message = format!(
                    "{} under a VIP of {}: nothing is translated between the two",
                    name(address),
                    name(service.vip)
                );
                let remedy = "give each family a service of its own, with a VIP, servers and SNAT sources of that family";
                findings.error("family", field, message, remedy);
            }
        }
        prefixes(&path, service, findings);
    }
}

/// Lists may serve services of both families; one without a prefix of this family says something else than was meant.
fn prefixes(path: &str, service: &ServiceConfig, findings: &mut Findings) {
    let vip = service.vip;
    let none = |list: &[IpNet]| {
        !list.is_empty() && list.iter().all(|prefix| prefix.addr().is_ipv4() != vip.is_ipv4())
    };
    let family = name(vip);
    if none(&service.limits.allow) {
        let message = format!("none of these is {family}, as the VIP is: nobody could connect");
        let remedy = format!("add an {family} prefix, or remove the key");
        findings.error("family", format!("{path}.allow"), message, remedy);
    }
    let hairpin = match &service.hairpin {
        Hairpin::Listed(prefixes) => &**prefixes,
        Hairpin::Auto | Hairpin::Off => &[],
    };
    for (place, rule) in service.mode_for.iter().enumerate() {
        if none(&rule.clients) {
            let message = format!("has no effect: none of these is {family}, as the VIP is");
            let remedy = format!("add an {family} prefix, or remove the rule");
            findings.warn(
                "no-effect",
                format!("{path}.mode_for[{place}].clients"),
                message,
                remedy,
            );
        }
    }
    for (key, list) in [("deny", &*service.limits.deny), ("hairpin", hairpin)] {
        if none(list) {
            let message = format!("has no effect: none of these is {family}, as the VIP is");
            let remedy = format!("add an {family} prefix, or remove the key");
            findings.warn("no-effect", format!("{path}.{key}"), message, remedy);
        }
    }
}

/// What a family is called.
pub(super) fn name(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
