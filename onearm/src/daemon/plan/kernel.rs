//! From the configuration to the kernel state it needs. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use onearm_netcfg::{self as netcfg, Desired, IfName, LegSysctl, Picture, offload};

use crate::config::{Leg, NodeConfig, PairConfig};

use super::election::election_leg;
use super::mirror;

/// What is known of a leg's program when the kernel state is planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LegUse {
    /// The program is attached in generic mode: frames merged by the kernel must not reach it.
    pub(crate) generic: bool,
}

/// Guard rules, settings and neighbours of all legs. `refuse_own`: this node is the Active.
pub(crate) fn desired(
    node: &NodeConfig,
    pair: &PairConfig,
    picture: &Picture,
    uses: impl Fn(&Leg) -> LegUse,
    refuse_own: bool,
) -> Desired {
    let mut legs = BTreeMap::new();
    for leg in &node.legs {
        // The check has refused names the kernel would refuse.
        let Ok(name) = IfName::new(&leg.interface) else {
            continue;
        };
        let state = leg_state(leg, node, pair, picture, uses(leg));
        // Frames are merged where they arrive, before the VLAN device has them.
        if let Some(parent) = leg.parent.as_deref().and_then(|parent| IfName::new(parent).ok()) {
            let carrier: &mut netcfg::Leg = legs.entry(parent).or_default();
            carrier.offloads.extend(state.offloads.clone());
        }
        legs.insert(name, state);
    }
    Desired {
        legs,
        // A link-local address may be another host's on another leg; the kernel forwards nothing to it anyway.
        owned: pair
            .owned_addresses()
            .into_iter()
            .filter(|address| !mirror::is_link_local(*address))
            .collect(),
        refuse_own,
    }
}

fn leg_state(
    leg: &Leg,
    node: &NodeConfig,
    pair: &PairConfig,
    picture: &Picture,
    used: LegUse,
) -> netcfg::Leg {
    let connected: Vec<IpNet> = mirror::leg_picture(leg, picture)
        .into_iter()
        .flat_map(netcfg::LegPicture::connected)
        .collect();
    let servers = pair.services.iter().flat_map(|s| &s.servers).map(|s| s.address);
    // The peer too: frames it relays are known by its MAC. A link-local one is sought where adverts go.
    let peer = Some(node.peer.address).filter(|peer| {
        !mirror::is_link_local(*peer)
            || election_leg(node, picture).is_some_and(|election| election.name == leg.name)
    });
    let neighbours: BTreeSet<IpAddr> = servers
        .chain(peer)
        .filter(|address| connected.iter().any(|net| net.contains(address)))
        .collect();
    let gateways = pair.gateways.iter().filter(|g| g.leg == leg.name);
    let mut offloads = BTreeMap::new();
    if used.generic {
        offloads.extend(offload::for_generic_attach());
    }
    // A VLAN's device gets no other VLAN's frames.
    if leg.role.carries_traffic() && leg.parent.is_none() {
        offloads.extend(offload::for_tags());
    }
    netcfg::Leg {
        guarded: gateways.map(|g| g.network).collect(),
        sysctls: BTreeMap::from([(LegSysctl::send_redirects(), "0".to_owned())]),
        offloads,
        neighbours,
    }
}

#[cfg(test)]
mod tests {
    use super::{LegUse, desired};
    use crate::config::{Source, parse_node, parse_pair};
    use onearm_netcfg::{IfName, Picture, offload};

    const NODE: &str = include_str!("../../../../etc/examples/node-lb1.toml");
    const PAIR: &str = include_str!("../../../../etc/examples/pair.toml");

    #[test]
    fn a_leg_without_a_vlan_sees_the_tags_of_its_frames() {
        let node = parse_node(Source::new("node.toml", NODE)).config;
        let pair = parse_pair(Source::new("pair.toml", PAIR)).parsed.config;
        let of = |generic| {
            let legs = desired(&node, &pair, &Picture::default(), |_| LegUse { generic }, false).legs;
            legs[&IfName::new("eth0").unwrap()].offloads.clone()
        };
        assert_eq!(of(false), offload::for_tags());
        let mut both = offload::for_generic_attach();
        both.extend(offload::for_tags());
        assert_eq!(of(true), both);
    }

    #[test]
    fn of_a_vlan_leg_the_interface_below_merges_no_frames_and_keeps_the_rest() {
        let node = NODE.replace("interface = \"eth0\"", "vlan = 100\ninterface = \"eth0\"");
        let node = parse_node(Source::new("node.toml", node)).config;
        let pair = parse_pair(Source::new("pair.toml", PAIR)).parsed.config;
        let uses = |_: &_| LegUse { generic: true };
        let legs = desired(&node, &pair, &Picture::default(), uses, false).legs;
        let of = |name: &str| &legs[&IfName::new(name).unwrap()];
        assert_eq!(legs.len(), 2);
        assert_eq!(of("eth0").offloads, offload::for_generic_attach());
        assert!(of("eth0").sysctls.is_empty() && of("eth0").guarded.is_empty());
        assert_eq!(of("eth0.100").offloads, offload::for_generic_attach());
        assert!(!of("eth0.100").guarded.is_empty());
    }
}
