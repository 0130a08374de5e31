use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use onearm_types::NodeId;

use super::limits;
use super::node::{Attach, Leg, NodeConfig, Peer, PeerLink, Role};
use super::source::{Parsed, Source};
use super::walk::{Field, Keys, Table, Walk, walk};
use crate::key::DEFAULT_KEY_FILE;

pub(super) const ROOT: Keys = Keys {
    known: &[
        "name",
        "id",
        "priority",
        "peer",
        "control_group",
        "metrics",
        "leg",
    ],
    later: &[],
};
pub(super) const PEER: Keys = Keys {
    known: &[
        "address",
        "address6",
        "interface",
        "link_address",
        "own_link_address",
        "key_file",
    ],
    later: &[],
};
pub(super) const LEG: Keys = Keys {
    known: &["name", "interface", "vlan", "role", "attach", "return"],
    later: &[],
};

const DEFAULT_PRIORITY: u8 = 100;
/// `metrics`.
const DEFAULT_METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9812);

/// Reads a `node.toml`.
pub fn parse_node(source: Source) -> Parsed<NodeConfig> {
    walk(
        source,
        |walk, table| table.map_or_else(draft, |table| read(walk, table)),
        ROOT,
    )
}

pub(super) fn draft() -> NodeConfig {
    NodeConfig {
        name: "node".to_owned(),
        id: NodeId::new(1).expect("1 is an id"),
        priority: DEFAULT_PRIORITY,
        peer: Peer {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            address6: None,
            interface: None,
            link: None,
            key_file: PathBuf::from(DEFAULT_KEY_FILE),
        },
        control_group: None,
        metrics: Some(DEFAULT_METRICS),
        legs: Vec::new(),
    }
}

fn read(walk: &mut Walk<'_>, table: &Table<'_>) -> NodeConfig {
    let draft = draft();
    let name = walk.need(table, "name", "write name = \"lb1\"", Walk::name);
    let id = walk.need(
        table,
        "id",
        "write id = 1 on one node and id = 2 on the other",
        |walk, field| {
            let id = walk.integer(field, 1..=2)?;
            NodeId::new(u8::try_from(id).ok()?).ok()
        },
    );
    let priority = walk.or(table, "priority", DEFAULT_PRIORITY, |walk, field| {
        u8::try_from(walk.integer(field, limits::PRIORITY)?).ok()
    });
    let peer = walk.need(
        table,
        "peer",
        "write peer = { address = \"192.168.100.3\" }",
        peer,
    );
    let control_group = walk.may(table, "control_group", Walk::name);
    let metrics = walk.or(table, "metrics", draft.metrics, |walk, field| {
        let read = scraped_at(walk.text(field)?);
        read.inspect_err(|wrong| {
            let remedy = "write \"127.0.0.1:9812\", another port, or \"off\"";
            walk.error(field, "metrics", *wrong, remedy);
        })
        .ok()
    });
    let legs = walk.need(
        table,
        "leg",
        "write at least one [[leg]] with name and interface",
        |walk, field| walk.list(field, limits::LEGS, leg),
    );
    NodeConfig {
        name: name.unwrap_or(draft.name),
        id: id.unwrap_or(draft.id),
        priority,
        peer: peer.unwrap_or(draft.peer),
        control_group,
        metrics,
        legs: legs.unwrap_or_default(),
    }
}

/// Where metrics are served, if anywhere; or what is wrong.
fn scraped_at(text: &str) -> Result<Option<SocketAddr>, &'static str> {
    if text == "off" {
        return Ok(None);
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("a port nobody could know"),
        Ok(address) if address.ip().is_loopback() => Ok(Some(address)),
        Ok(_) => Err("metrics are not encrypted and know no users: they are served on the loopback only"),
        Err(_) => Err("not an address and a port"),
    }
}

fn peer(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Peer> {
    let table = walk.table(field, PEER)?;
    let remedy = "write the other node's own address on the service leg";
    let address = walk.need(&table, "address", remedy, Walk::address_on_link);
    let address6 = walk.may(&table, "address6", |walk, field| address6(walk, field, address));
    let interface = walk.may(&table, "interface", Walk::interface);
    let link = peer_link(walk, &table, interface.as_deref());
    let default = PathBuf::from(DEFAULT_KEY_FILE);
    let key_file = walk.or(&table, "key_file", default, |walk, field| {
        let path = PathBuf::from(walk.text(field)?);
        if !path.is_absolute() {
            walk.error(
                field,
                "path",
                "not an absolute path",
                "write it from /, for example \"/etc/onearm/pair.key\"",
            );
            return None;
        }
        Some(path)
    });
    Some(Peer {
        address: address?,
        address6,
        interface,
        link,
        key_file,
    })
}

/// Both addresses of the peer link, or none.
fn peer_link(walk: &mut Walk<'_>, table: &Table<'_>, interface: Option<&str>) -> Option<PeerLink> {
    const OTHERS: &str = "link_address";
    const OWN: &str = "own_link_address";
    let written = [OTHERS, OWN].map(|key| walk.optional(table, key));
    let ([Some(_), _] | [_, Some(_)]) = &written else {
        return None;
    };
    if let Some(field) = written.iter().flatten().next().filter(|_| interface.is_none()) {
        let message = "an address on the peer link, and peer.interface does not say which link that is";
        walk.error(
            field,
            "peer-link",
            message,
            "write interface = \"eth1\" beside it",
        );
    }
    let remedy = "write link_address (the other node's) and own_link_address (this node's)";
    let peer = walk.need(table, OTHERS, remedy, Walk::address);
    let own = walk.need(table, OWN, remedy, |walk, field| {
        let own = walk.address(field)?;
        let wrong = match peer {
            Some(peer) if peer == own => "the same address as link_address",
            Some(peer) if peer.is_ipv4() != own.is_ipv4() => "of another family than link_address",
            _ => return Some(own),
        };
        walk.error(field, "peer-link", wrong, remedy);
        None
    });
    Some(PeerLink {
        own: own?,
        peer: peer?,
    })
}

/// The peer's link-local address beside its IPv4 `address`.
fn address6(walk: &mut Walk<'_>, field: &Field<'_>, address: Option<IpAddr>) -> Option<Ipv6Addr> {
    if address.is_some_and(|address| address.is_ipv6()) {
        let message = "peer.address is of IPv6 already";
        walk.error(field, "address", message, "remove the key");
        return None;
    }
    match walk.address_on_link(field)? {
        IpAddr::V6(address) if address.is_unicast_link_local() => Some(address),
        _ => {
            let remedy =
                "write the address that begins with fe80, as `ip -6 addr` shows it on the other node's leg";
            walk.error(field, "address", "not a link-local IPv6 address", remedy);
            None
        }
    }
}

fn leg(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Leg> {
    let table = walk.table(field, LEG)?;
    let name = walk.need(&table, "name", "write name = \"lan\"", Walk::name);
    let interface = walk.need(&table, "interface", "write interface = \"eth0\"", Walk::interface);
    let vlan = walk.may(&table, "vlan", vlan);
    let roles = [
        ("service", Role::Service),
        ("inside", Role::Inside),
        ("outside", Role::Outside),
        ("peer", Role::Peer),
    ];
    let role = walk.or(&table, "role", Role::Service, |walk, field| {
        walk.choice(field, &roles, &[])
    });
    let kinds = [
        ("auto", Attach::Auto),
        ("native", Attach::Native),
        ("generic", Attach::Generic),
    ];
    let attach = walk.or(&table, "attach", Attach::Auto, |walk, field| {
        walk.choice(field, &kinds, &[])
    });
    walk.may(&table, "return", |walk, field| {
        let later = [(
            "route",
            "replies by route instead of by last hop are not in this build",
        )];
        walk.choice(field, &[("last-hop", ())], &later)
    });
    let (interface, parent) = match vlan {
        Some(vlan) => {
            let parent = interface?;
            (vlan_device(walk, &table, &parent, vlan)?, Some(parent))
        }
        None => (interface?, None),
    };
    Some(Leg {
        name: name?,
        interface,
        vlan,
        parent,
        role,
        attach,
    })
}

/// Name of the VLAN device.
fn vlan_device(walk: &mut Walk<'_>, table: &Table<'_>, parent: &str, vlan: u16) -> Option<String> {
    let device = format!("{parent}.{vlan}");
    if device.len() <= limits::INTERFACE_BYTES {
        return Some(device);
    }
    if let Some(field) = walk.optional(table, "vlan") {
        let message = format!(
            "the VLAN device {device} would have a name of more than {} bytes",
            limits::INTERFACE_BYTES
        );
        walk.error(&field, "range", message, "give the interface a shorter name");
    }
    None
}

/// `"none"` or a VLAN id.
fn vlan(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<u16> {
    if field.value.is_str() {
        walk.choice(field, &[("none", ())], &[]);
        return None;
    }
    u16::try_from(walk.integer(field, limits::VLAN)?).ok()
}
