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
        legs.insert(name, leg_state(leg, node, pair, picture, uses(leg)));
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
    if leg.vlan.is_some() {
        offloads.extend(offload::for_vlan_tags());
    }
    netcfg::Leg {
        guarded: gateways.map(|g| g.network).collect(),
        sysctls: BTreeMap::from([(LegSysctl::send_redirects(), "0".to_owned())]),
        offloads,
        neighbours,
    }
}
