//! Which leg an owned address lives on, and which leg is which to the HA process. Pure.

use std::net::IpAddr;

use onearm_ha::announce::OwnedAddress;
use onearm_netcfg::Picture;

use crate::config::{Leg, NamedLegs, NodeConfig, PairConfig};

use super::{election, mirror};
use crate::daemon::owned::Split;

/// Index of an owned address's leg in `node.toml`: the one `pair.toml` names, else the one whose connected prefix holds the
/// address, else the only one that VIPs can be on, else the first.
pub(crate) fn leg_of(node: &NodeConfig, named: &NamedLegs<'_>, picture: &Picture, address: IpAddr) -> usize {
    let of_name = |name: &str| node.legs.iter().position(|leg| leg.name == name);
    let holds = |leg: &Leg| {
        leg.role.carries_traffic()
            && mirror::leg_picture(leg, picture)
                .is_some_and(|seen| seen.connected().any(|net| net.contains(&address)))
    };
    named
        .of(address)
        .and_then(of_name)
        .or_else(|| node.legs.iter().position(holds))
        .or_else(|| node.only_vip_leg().and_then(|leg| of_name(&leg.name)))
        .unwrap_or(0)
}

/// Legs on which owned addresses may be announced beside that of the election, in the order of `node.toml`.
pub(crate) fn other_legs<'a>(node: &'a NodeConfig, election: &Leg) -> Vec<&'a Leg> {
    let traffic = node.legs.iter().filter(|leg| leg.role.carries_traffic());
    traffic.filter(|leg| leg.name != election.name).collect()
}

/// The owned set in the order it is announced in: orphans come last.
pub(crate) fn owned(
    node: &NodeConfig,
    pair: &PairConfig,
    picture: &Picture,
    split: &Split,
) -> Vec<OwnedAddress> {
    let is_gateway = |address: &IpAddr| pair.gateways.iter().any(|g| g.address.addr() == *address);
    let named = pair.named_legs();
    let others = election::election_leg(node, picture).map_or_else(Vec::new, |leg| other_legs(node, leg));
    let number_of = |index: usize| {
        let name = node.legs.get(index).map(|leg| &leg.name);
        let at = others.iter().position(|leg| Some(&leg.name) == name);
        at.map_or(0, |at| mirror::leg_id(at + 1))
    };
    let mut owned = pair
        .owned_addresses()
        .into_iter()
        .map(|address| OwnedAddress {
            router: is_gateway(&address),
            leg: number_of(leg_of(node, &named, picture, address)),
            address,
        })
        .collect();
    split.announce(&mut owned, number_of);
    owned
}

#[cfg(test)]
mod tests {
    use super::{other_legs, owned};
    use crate::config::{Source, parse_node, parse_pair};
    use crate::daemon::owned::Split;
    use crate::daemon::plan::election_leg;
    use onearm_netcfg::{IfName, LegPicture, Picture};

    const NODE: &str = include_str!("../../../../etc/examples/node-two-arm-lb1.toml");
    const PAIR: &str = include_str!("../../../../etc/examples/pair-two-arm.toml");

    #[test]
    fn of_two_arms_vips_are_outside_gateways_and_what_their_network_holds_inside() {
        let node = parse_node(Source::new("node.toml", NODE)).config;
        let pair = PAIR.replacen(
            "mode = \"both-nat\"",
            "mode = \"both-nat\"\nsnat = [\"10.1.0.9\"]",
            1,
        );
        let pair = parse_pair(Source::new("pair.toml", pair)).parsed.config;
        let mut picture = Picture::default();
        let addresses = ["192.0.2.2/24", "10.1.0.2/24", "10.77.0.1/24"];
        for (leg, address) in node.legs.iter().zip(addresses) {
            let seen = LegPicture {
                addresses: [address.parse().unwrap()].into(),
                ..LegPicture::default()
            };
            picture.legs.insert(IfName::new(&leg.interface).unwrap(), seen);
        }
        let election = election_leg(&node, &picture).unwrap();
        let others: Vec<_> = other_legs(&node, election).iter().map(|leg| &*leg.name).collect();
        assert_eq!((&*election.name, others), ("wan", vec!["lan"]));
        let told: Vec<_> = owned(&node, &pair, &picture, &Split::default())
            .iter()
            .map(|owned| (owned.address.to_string(), owned.leg, owned.router))
            .collect();
        let expected = [
            ("10.1.0.1", 1, true),
            ("10.1.0.9", 1, false),
            ("192.0.2.100", 0, false),
        ];
        assert_eq!(
            told,
            expected.map(|(address, leg, router)| (address.to_owned(), leg, router))
        );
    }
}
