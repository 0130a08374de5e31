//! Addresses that cannot be what they are said to be.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::findings::Findings;
use crate::config::{NodeConfig, PairFile, Parsed};

pub(super) fn judge(
    node: &Parsed<NodeConfig>,
    file: &PairFile,
    of_node: &mut Findings,
    of_pair: &mut Findings,
) {
    let pair = &file.parsed.config;
    let owned = pair.owned_addresses();
    let peer = node.config.peer.address;
    for (key, _) in node.config.peer.addresses().filter(|(_, a)| owned.contains(a)) {
        let remedy = "write the other node's own address, one the pair does not own";
        let message = "it is an owned address of the pair";
        of_node.error("peer-is-owned", key, message, remedy);
    }
    if !file.parsed.is_draft() {
        adverts(node, &owned, of_node);
    }
    if let Some(witness) = pair.ha.witness {
        let what = if owned.contains(&witness) {
            Some("it is an owned address of the pair")
        } else if node.config.peer.addresses().any(|(_, peer)| peer == witness) && !node.is_draft() {
            Some("it is a node of the pair")
        } else if !node.is_draft()
            && !node
                .config
                .peer
                .addresses()
                .any(|(_, peer)| peer.is_ipv4() == witness.is_ipv4())
        {
            Some("it is of a family in which the nodes have no addresses of each other")
        } else {
            None
        };
        if let Some(what) = what {
            let remedy = "name a host that neither node is: the router on the leg of the adverts";
            of_pair.error("witness", "ha.witness", what, remedy);
        }
    }
    let networks: Vec<IpNet> = pair.gateways.iter().map(|g| g.network).collect();
    let mut not_a_host = |field: String, address: IpAddr| {
        if let Some((network, what)) = reserved(&networks, address) {
            let message = format!("{address} is the {what} address of {network}");
            of_pair.error(
                "network-or-broadcast",
                field,
                message,
                "write the address of a host",
            );
        }
    };
    for (index, gateway) in pair.gateways.iter().enumerate() {
        not_a_host(
            format!("{}.address", file.gateway_path(index)),
            gateway.address.addr(),
        );
    }
    for (index, service) in pair.services.iter().enumerate() {
        let path = file.service_path(index);
        not_a_host(format!("{path}.vip"), service.vip);
        for (place, source) in service
            .snat
            .iter()
            .enumerate()
            .filter(|(_, source)| source.address != service.vip)
        {
            not_a_host(format!("{path}.snat[{place}]"), source.address);
        }
        for (place, server) in service.servers.iter().enumerate() {
            not_a_host(
                format!("{}.address", file.server_path(index, place)),
                server.address,
            );
        }
    }
    for (index, service) in pair.services.iter().enumerate() {
        for (place, server) in service.servers.iter().enumerate() {
            let field = || format!("{}.address", file.server_path(index, place));
            let address = server.address;
            if owned.contains(&address) {
                let message = format!("the pair owns {address}; a server needs an address of its own");
                of_pair.error(
                    "server-is-owned",
                    field(),
                    message,
                    "write the server's own address",
                );
            }
            if address == peer && !node.is_draft() {
                let message = format!(
                    "{address} is the other node (peer.address of {})",
                    node.source.name()
                );
                of_pair.error(
                    "server-is-node",
                    field(),
                    message,
                    "a node of the pair cannot be a server of it",
                );
            }
        }
    }
    gateways(file, of_pair);
    direct(file, of_pair);
}

/// Adverts are of the family of `peer.address`. Over IPv6 they need no owned address: the first is link-local.
fn adverts(node: &Parsed<NodeConfig>, owned: &BTreeSet<IpAddr>, findings: &mut Findings) {
    if node.is_draft() {
        return;
    }
    if node.config.peer.address.is_ipv4() && !owned.is_empty() && owned.iter().all(IpAddr::is_ipv6) {
        findings.error(
            "peer-family",
            "peer.address",
            "adverts over IPv4 carry an owned IPv4 address, and the pair owns none",
            "write the other node's IPv6 address on the service leg",
        );
    }
}

/// The network an address is the first or last of.
fn reserved(networks: &[IpNet], address: IpAddr) -> Option<(IpNet, &'static str)> {
    let first = |network: &&IpNet| network.network() == address;
    // The last address of an IPv6 network is one like others.
    let last = |network: &&IpNet| address.is_ipv4() && network.broadcast() == address;
    if let Some(network) = networks.iter().find(first) {
        let what = if address.is_ipv4() {
            "network"
        } else {
            "subnet-router anycast"
        };
        return Some((*network, what));
    }
    networks.iter().find(last).map(|network| (*network, "broadcast"))
}

fn gateways(file: &PairFile, findings: &mut Findings) {
    let gateways = &file.parsed.config.gateways;
    let mut seen: HashMap<IpAddr, usize> = HashMap::new();
    for (index, gateway) in gateways.iter().enumerate() {
        let field = format!("{}.address", file.gateway_path(index));
        let address = gateway.address;
        if let Some(first) = seen.insert(address.addr(), index) {
            let message = format!("the same address as {}", file.gateway_path(first));
            findings.error("duplicate-gateway", field, message, "remove one of them");
            continue;
        }
        let clash = gateways[..index].iter().position(|other| {
            let same = other.network == gateway.network;
            same || other.leg != gateway.leg && overlap(other.network, gateway.network)
        });
        if let Some(other) = clash {
            let path = file.gateway_path(other);
            let message = format!(
                "{path} (leg \"{}\") has its network or a part of it",
                gateways[other].leg
            );
            let remedy = "a network has one gateway address and one leg; correct the length, or remove one";
            findings.error("gateway-overlap", field, message, remedy);
        }
    }
}

/// A host or network is listed as direct once.
fn direct(file: &PairFile, findings: &mut Findings) {
    let mut seen: HashMap<IpNet, String> = HashMap::new();
    for (index, gateway) in file.parsed.config.gateways.iter().enumerate() {
        for (place, prefix) in gateway.direct.iter().enumerate() {
            let field = format!("{}.direct[{place}]", file.gateway_path(index));
            if let Some(first) = seen.get(prefix) {
                let message = format!("{prefix} stands in {first} already");
                findings.error(
                    "duplicate-prefix",
                    field,
                    message,
                    "remove one; the list is for the whole pair",
                );
            } else {
                seen.insert(*prefix, field);
            }
        }
    }
}

fn overlap(a: IpNet, b: IpNet) -> bool {
    a.trunc().contains(&b.trunc()) || b.trunc().contains(&a.trunc())
}
