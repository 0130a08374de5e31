use std::net::IpAddr;

use ipnet::IpNet;

use super::families;
use super::findings::Findings;
use crate::config::{Mode, NodeConfig, PairFile, Parsed};

/// An interface of the machine the files are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// Its name.
    pub name: String,
    /// Its addresses with their networks.
    pub addresses: Vec<IpNet>,
    /// Whether its kernel takes IPv6 packets on it (`net.ipv6.conf.NAME.disable_ipv6` is 0).
    pub ipv6: bool,
}

/// Compares the files with the machine they are for. Not for the daemon's start: there a missing leg is waited for.
pub fn lint_host(node: &mut Parsed<NodeConfig>, pair: &mut PairFile, interfaces: &[HostInterface]) {
    let mut of_node = Findings::default();
    let mut of_pair = Findings::default();
    let interface = |name: &str| interfaces.iter().find(|interface| interface.name == name);
    let config = &node.config;
    for (index, leg) in config.legs.iter().enumerate() {
        let field = format!("leg[{index}].interface");
        match interface(&leg.interface) {
            None => {
                let (message, remedy) = match (&leg.parent, leg.vlan) {
                    (Some(parent), Some(vlan)) => (
                        format!("this machine has no VLAN device {}", leg.interface),
                        format!(
                            "make it: ip link add link {parent} name {} type vlan id {vlan}",
                            leg.interface
                        ),
                    ),
                    _ => (
                        "this machine has no such interface".to_owned(),
                        "see `ip link`".to_owned(),
                    ),
                };
                of_node.error("unknown-interface", field, message, remedy);
            }
            Some(found)
                if leg.role.carries_traffic()
                    && !found
                        .addresses
                        .iter()
                        .any(|net| is_usable(*net, config.peer.address)) =>
            {
                let family = families::name(config.peer.address);
                let message = format!(
                    "the interface has no {family} address, and peer.address is one; the node cannot take part without"
                );
                of_node.warn("no-address", field, message, "give it one of its own");
            }
            Some(_) => {}
        }
    }
    peer_link(node, interfaces, &mut of_node);
    let local = |address| {
        interfaces
            .iter()
            .find(|i| i.addresses.iter().any(|net| net.addr() == address))
    };
    for (key, address) in config.peer.addresses() {
        if local(address).is_some() && !node.is_draft() {
            let message = "it is this machine's own address";
            of_node.error("peer-is-local", key, message, "write the other node's address");
        }
    }
    let file = &*pair;
    let mut own = |field: String, address, what: &str| {
        if let Some(interface) = local(address) {
            let message = format!("{address} is configured on {} of this machine", interface.name);
            let remedy =
                format!("{what} lives in the dataplane, not in the kernel: remove it with `ip addr del`");
            of_pair.error("address-is-local", field, message, remedy);
        }
    };
    for (index, gateway) in file.parsed.config.gateways.iter().enumerate() {
        own(
            format!("{}.address", file.gateway_path(index)),
            gateway.address.addr(),
            "a gateway address",
        );
    }
    for (index, service) in file.parsed.config.services.iter().enumerate() {
        own(format!("{}.vip", file.service_path(index)), service.vip, "a VIP");
    }
    for (index, service) in file.parsed.config.services.iter().enumerate() {
        for (place, server) in service.servers.iter().enumerate() {
            if local(server.address).is_some() {
                let field = format!("{}.address", file.server_path(index, place));
                let message = format!("{} is this machine", server.address);
                of_pair.error(
                    "server-is-node",
                    field,
                    message,
                    "a node of the pair cannot be a server of it",
                );
            }
        }
    }
    without_ipv6(node, file, interfaces, &mut of_node);
    if !node.is_draft() {
        vips(node, file, interfaces, &mut of_pair);
        direct(node, file, interfaces, &mut of_pair);
        witness(node, file, interfaces, &mut of_pair);
    }
    of_node.file(node);
    of_pair.file(&mut pair.parsed);
}

/// The interface of the peer link, and this node's address on it.
fn peer_link(node: &Parsed<NodeConfig>, interfaces: &[HostInterface], findings: &mut Findings) {
    let peer = &node.config.peer;
    let Some(name) = &peer.interface else { return };
    if !interfaces.iter().any(|interface| interface.name == *name) {
        let message = format!("this machine has no interface {name}");
        findings.error("unknown-interface", "peer.interface", message, "see `ip link`");
    } else if let Some(link) = peer.link
        && !connected(interfaces, name).any(|net| net.addr() == link.own)
    {
        let message = format!("{name} has no such address: no HA datagram goes over it until it has");
        let remedy = format!("give it one: ip addr add {}/LENGTH dev {name}", link.own);
        findings.warn("no-address", "peer.own_link_address", message, remedy);
    }
}

/// Where the kernel has IPv6 switched off no next hop of IPv6 is known, and no solicitation is delivered.
fn without_ipv6(
    node: &Parsed<NodeConfig>,
    file: &PairFile,
    interfaces: &[HostInterface],
    findings: &mut Findings,
) {
    let pair = &file.parsed.config;
    let servers = pair.services.iter().flat_map(|service| &service.servers);
    let mut addresses = pair
        .owned_addresses()
        .into_iter()
        .chain(servers.map(|server| server.address));
    let peer = node.config.peer.addresses().any(|(_, address)| address.is_ipv6());
    if !(peer || addresses.any(|address| address.is_ipv6())) {
        return;
    }
    for (index, leg) in node.config.legs.iter().enumerate() {
        let off = interfaces.iter().any(|i| i.name == leg.interface && !i.ipv6);
        if off && leg.role.carries_traffic() {
            findings.warn(
                "ipv6-disabled",
                format!("leg[{index}].interface"),
                "the kernel has IPv6 switched off on it, and the pair serves IPv6",
                format!("sysctl -w net/ipv6/conf/{}/disable_ipv6=0", leg.interface),
            );
        }
    }
}

/// A VIP outside the network of its leg is answered, but only those ask who have a route to it over that leg.
fn vips(node: &Parsed<NodeConfig>, file: &PairFile, interfaces: &[HostInterface], findings: &mut Findings) {
    let pair = &file.parsed.config;
    let named = pair.named_legs();
    for (index, service) in pair.services.iter().enumerate() {
        let only = node.config.only_vip_leg().map(|leg| &*leg.name);
        let leg = named
            .of(service.vip)
            .or(only)
            .and_then(|name| node.config.leg(name));
        let field = format!("{}.vip", file.service_path(index));
        let Some(leg) = leg else {
            let mut vip_legs = node.config.legs.iter().filter(|leg| leg.role.holds_vips());
            if !vip_legs
                .any(|leg| connected(interfaces, &leg.interface).any(|net| net.contains(&service.vip)))
            {
                let message = "no leg for VIPs has a network with this address, and `leg` is not written";
                findings.error("vip-without-leg", field, message, "write `leg` in the service");
            }
            continue;
        };
        let of_family = || connected(interfaces, &leg.interface).filter(|net| is_usable(**net, service.vip));
        if let Some(net) = of_family().find(|net| net.contains(&service.vip)) {
            let broadcast = net.addr().is_ipv4() && net.broadcast() == service.vip;
            let last =
                net.prefix_len() + 1 < net.max_prefix_len() && (net.network() == service.vip || broadcast);
            if last {
                let message = format!("the network or broadcast address of {}", net.trunc());
                findings.error(
                    "network-or-broadcast",
                    field,
                    message,
                    "write the address of a host",
                );
            }
        } else if of_family().next().is_some() {
            let message = format!("not in a network of leg \"{}\" ({})", leg.name, leg.interface);
            findings.warn(
                "vip-off-link",
                field,
                message,
                "right only if a router sends it there",
            );
        }
    }
}

/// Only hosts of the leg's network answer ARP and Neighbour Discovery.
fn witness(
    node: &Parsed<NodeConfig>,
    file: &PairFile,
    interfaces: &[HostInterface],
    findings: &mut Findings,
) {
    let Some(witness) = file.parsed.config.ha.witness else {
        return;
    };
    let legs = node.config.legs.iter().filter(|leg| leg.role.carries_traffic());
    let leg = legs
        .clone()
        .find(|leg| connected(interfaces, &leg.interface).any(|net| net.contains(&node.config.peer.address)));
    let Some(leg) = leg.or(node.config.only_vip_leg()) else {
        return;
    };
    let mut networks = connected(interfaces, &leg.interface).peekable();
    if networks.peek().is_some() && !networks.any(|net| net.contains(&witness)) {
        findings.error(
            "witness-off-link",
            "ha.witness",
            format!(
                "in no network of leg \"{}\", which carries the adverts: it would never answer",
                leg.name
            ),
            "name the router on that leg",
        );
    }
}

/// In `dsr` a frame goes to the server as it is, and a router would send the packet back to the VIP's owner.
fn direct(node: &Parsed<NodeConfig>, file: &PairFile, interfaces: &[HostInterface], findings: &mut Findings) {
    let legs = node.config.legs.iter().filter(|leg| leg.role.carries_traffic());
    let networks: Vec<&IpNet> = legs
        .flat_map(|leg| connected(interfaces, &leg.interface))
        .collect();
    if networks.is_empty() {
        return;
    }
    for (index, service) in file.parsed.config.services.iter().enumerate() {
        if !service.has_mode(Mode::Dsr) {
            continue;
        }
        for (place, server) in service.servers.iter().enumerate() {
            if !networks.iter().any(|net| net.contains(&server.address)) {
                let message = "in no network of a leg: mode \"dsr\" reaches servers on the same segment only";
                findings.error(
                    "dsr-off-link",
                    format!("{}.address", file.server_path(index, place)),
                    message,
                    "write mode = \"l3-dsr\" for servers behind a router",
                );
            }
        }
    }
}

/// Whether an interface's address is of the family of another one, and of its link alone if that one is.
fn is_usable(net: IpNet, other: IpAddr) -> bool {
    match (net, other) {
        (IpNet::V4(_), IpAddr::V4(_)) => true,
        (IpNet::V6(net), IpAddr::V6(other)) => {
            net.addr().is_unicast_link_local() == other.is_unicast_link_local()
        }
        (IpNet::V4(_), IpAddr::V6(_)) | (IpNet::V6(_), IpAddr::V4(_)) => false,
    }
}

fn connected<'i>(interfaces: &'i [HostInterface], name: &'i str) -> impl Iterator<Item = &'i IpNet> {
    interfaces
        .iter()
        .filter(move |interface| interface.name == name)
        .flat_map(|interface| &interface.addresses)
}
