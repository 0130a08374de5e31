//! From the picture of the kernel to the dataplane's legs, routes and neighbours. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use onearm_dataplane::{LegSpec, Neighbour, NextHops, RouteSpec, Via};
use onearm_netcfg::{IfName, LegPicture, MirrorRoute, Picture};
use onearm_types::GroupId;

use crate::config::{Leg, PairConfig};

/// MACs of legs that carry traffic, by name, for the peer.
pub(crate) fn leg_macs(configured: &[Leg], picture: &Picture) -> BTreeMap<String, [u8; 6]> {
    let traffic = configured.iter().filter(|leg| leg.role.carries_traffic());
    let mac = |leg: &Leg| Some((leg.name.clone(), leg_picture(leg, picture)?.link?.mac?.0));
    traffic.filter_map(mac).collect()
}

/// Legs that exist, in the order of `node.toml`; `peer_mac` is the peer's MAC on a leg, once known.
pub(crate) fn legs(
    configured: &[Leg],
    picture: &Picture,
    peer_mac: impl Fn(&Leg) -> Option<[u8; 6]>,
) -> Vec<LegSpec> {
    let spec = |(index, leg): (usize, &Leg)| {
        let seen = leg_picture(leg, picture)?;
        let link = seen.link?;
        Some(LegSpec {
            id: leg_id(index),
            ifindex: link.ifindex,
            // The kernel's VLAN device has taken the tag off.
            vlan: None,
            mac: link.mac?.0,
            mtu: link.mtu,
            addr: v4(seen).next(),
            addr6: v6(seen).find(|addr| !addr.is_unicast_link_local()),
            link_local: v6(seen).find(Ipv6Addr::is_unicast_link_local),
            group: GroupId::FIRST,
            peer_mac: peer_mac(leg),
        })
    };
    configured.iter().enumerate().filter_map(spec).collect()
}

/// Id of a leg in the maps: its index in `node.toml`, of which there are at most 64.
pub(crate) fn leg_id(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// A leg's entry in the picture.
pub(crate) fn leg_picture<'a>(leg: &Leg, picture: &'a Picture) -> Option<&'a LegPicture> {
    picture.legs.get(&IfName::new(&leg.interface).ok()?)
}

/// The node's own addresses on a leg: the first one of IPv4, of IPv6, and of its link.
pub(crate) fn addresses(leg: &LegPicture) -> Vec<IpAddr> {
    let six = |of_link| {
        v6(leg)
            .find(|addr| addr.is_unicast_link_local() == of_link)
            .map(IpAddr::V6)
    };
    let four = v4(leg).next().map(IpAddr::V4);
    four.into_iter().chain(six(false)).chain(six(true)).collect()
}

/// Known on its link only.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// A warning for each owned address that this machine's kernel has, too: what the kernel answers or sends with it knows
/// nothing of the lease.
pub(crate) fn held_by_the_kernel(pair: &PairConfig, picture: &Picture) -> Vec<String> {
    let owned = pair.owned_addresses();
    let on_legs = picture
        .legs
        .values()
        .flat_map(|seen| seen.addresses.iter().map(IpNet::addr));
    let held: BTreeSet<IpAddr> = on_legs.chain(picture.elsewhere.iter().copied()).collect();
    held.iter()
        .filter(|address| owned.contains(*address))
        .map(|address| {
            format!("{address} belongs to the pair and is configured on this machine: remove it with `ip addr del`")
        })
        .collect()
}

fn v4(leg: &LegPicture) -> impl Iterator<Item = Ipv4Addr> {
    leg.addresses.iter().filter_map(|net| match net {
        IpNet::V4(net) => Some(net.addr()),
        IpNet::V6(_) => None,
    })
}

fn v6(leg: &LegPicture) -> impl Iterator<Item = Ipv6Addr> {
    leg.addresses.iter().filter_map(|net| match net {
        IpNet::V6(net) => Some(net.addr()),
        IpNet::V4(_) => None,
    })
}

/// MAC of a host on a leg as the kernel has resolved it.
pub(crate) fn neighbour_mac(leg: &Leg, picture: &Picture, addr: IpAddr) -> Option<[u8; 6]> {
    leg_picture(leg, picture)?.neighbours.get(&addr).map(|mac| mac.0)
}

/// Networks connected to any leg, but for that of link-local addresses, which is on all of them.
pub(crate) fn connected(configured: &[Leg], picture: &Picture) -> Vec<IpNet> {
    let legs = configured.iter().filter_map(|leg| leg_picture(leg, picture));
    let networks = legs.flat_map(LegPicture::connected);
    let mut networks: Vec<IpNet> = networks.filter(|net| !is_link_local(net.addr())).collect();
    networks.sort_unstable();
    networks.dedup();
    networks
}

/// Routes and neighbours of all legs. What the kernel routes elsewhere, or nowhere, is left to the kernel, whose guard
/// rules decide.
pub(crate) fn next_hops(configured: &[Leg], picture: &Picture) -> NextHops {
    let id_of = |name: &IfName| {
        configured
            .iter()
            .position(|l| l.interface == name.as_str())
            .map(leg_id)
    };
    let mut routes: Vec<RouteSpec> = picture
        .routes
        .iter()
        .map(|(prefix, route)| {
            let (via, mtu) = way(route, id_of);
            RouteSpec {
                prefix: *prefix,
                via,
                mtu,
            }
        })
        .collect();
    let elsewhere = picture.elsewhere.iter().copied();
    let own = picture
        .legs
        .values()
        .flat_map(|leg| leg.addresses.iter().map(IpNet::addr));
    for prefix in own.chain(elsewhere).map(IpNet::from) {
        routes.retain(|r| r.prefix != prefix);
        routes.push(RouteSpec {
            prefix,
            via: Via::Local,
            mtu: None,
        });
    }
    let neighbours = picture
        .legs
        .iter()
        .filter_map(|(name, leg)| Some((id_of(name)?, leg)))
        .flat_map(|(id, leg)| {
            leg.neighbours.iter().map(move |(addr, mac)| Neighbour {
                leg: id,
                addr: *addr,
                mac: Some(mac.0),
            })
        });
    NextHops {
        neighbours: neighbours.collect(),
        routes,
    }
}

/// How a route leads, and the largest packet by it if it says so.
fn way(route: &MirrorRoute, id_of: impl Fn(&IfName) -> Option<u8>) -> (Via, Option<u32>) {
    let MirrorRoute::Hops(hops) = route else {
        return (Via::Local, None);
    };
    // Of equally good ways the first over a leg: one flow must not change its way with each packet.
    let over_leg = hops.iter().find_map(|hop| Some((id_of(hop.leg.as_ref()?)?, hop)));
    match over_leg {
        Some((leg, hop)) => {
            let via = hop
                .gateway
                .map_or(Via::OnLink { leg }, |addr| Via::Gateway { leg, addr });
            (via, hop.mtu)
        }
        None => (Via::Local, None),
    }
}

#[cfg(test)]
mod tests {
    use super::{addresses, connected, held_by_the_kernel, next_hops};
    use crate::config::{Source, parse_node, parse_pair};
    use ipnet::IpNet;
    use onearm_dataplane::{RouteSpec, Via};
    use onearm_netcfg::{IfName, LegPicture, MirrorRoute, NextHop, Picture};

    const NODE: &str = include_str!("../../../../etc/examples/node-lb1.toml");
    const PAIR: &str = include_str!("../../../../etc/examples/pair.toml");

    #[test]
    fn an_owned_address_in_the_kernel_is_warned_of() {
        let legs = parse_node(Source::new("node.toml", NODE)).config.legs;
        let pair = parse_pair(Source::new("pair.toml", PAIR)).parsed.config;
        let leg = IfName::new(&legs[0].interface).unwrap();
        let mut picture = Picture::default();
        let own = LegPicture {
            addresses: ["192.168.100.2/24".parse().unwrap()].into(),
            ..LegPicture::default()
        };
        picture.legs.insert(leg.clone(), own);
        assert!(held_by_the_kernel(&pair, &picture).is_empty());
        picture.elsewhere = ["192.168.100.101".parse().unwrap()].into();
        let there = &mut picture.legs.get_mut(&leg).unwrap().addresses;
        there.insert("192.168.100.100/32".parse().unwrap());
        let warnings = held_by_the_kernel(&pair, &picture);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("192.168.100.100 "));
    }

    #[test]
    fn the_network_of_link_local_addresses_makes_nobody_a_neighbour() {
        let legs = parse_node(Source::new("node.toml", NODE)).config.legs;
        let leg = IfName::new(&legs[0].interface).unwrap();
        let mut picture = Picture::default();
        let own = ["fe80::2/64", "2001:db8:100::2/64", "2001:db8:100::3/128"];
        let there = LegPicture {
            addresses: own.map(|a| a.parse().unwrap()).into(),
            link: Some(onearm_netcfg::LinkPicture {
                ifindex: 7,
                mac: Some(onearm_netcfg::Mac([2, 0, 0, 0, 0, 1])),
                mtu: 1_500,
                up: true,
                carrier: true,
            }),
            ..LegPicture::default()
        };
        let shown: [std::net::IpAddr; 2] = ["2001:db8:100::2", "fe80::2"].map(|a| a.parse().unwrap());
        assert_eq!(addresses(&there), shown);
        picture.legs.insert(leg, there);
        assert_eq!(connected(&legs, &picture), ["2001:db8:100::/64".parse().unwrap()]);
        let spec = super::legs(&legs, &picture, |_| None).remove(0);
        assert_eq!(spec.addr, None);
        assert_eq!(spec.addr6, Some("2001:db8:100::2".parse().unwrap()));
        assert_eq!(spec.link_local, Some("fe80::2".parse().unwrap()));
    }

    #[test]
    fn packets_to_the_node_itself_never_follow_the_default_route() {
        let legs = parse_node(Source::new("node.toml", NODE)).config.legs;
        let leg = IfName::new(&legs[0].interface).unwrap();
        let mut picture = Picture::default();
        let there = LegPicture {
            addresses: ["192.168.100.2/24".parse().unwrap()].into(),
            ..LegPicture::default()
        };
        picture.legs.insert(leg.clone(), there);
        picture.elsewhere = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()].into();
        let hop = NextHop {
            leg: Some(leg),
            gateway: Some("192.168.100.254".parse().unwrap()),
            mtu: Some(1_400),
        };
        let default: IpNet = "0.0.0.0/0".parse().unwrap();
        picture.routes.insert(default, MirrorRoute::Hops(vec![hop]));
        let routes = next_hops(&legs, &picture).routes;
        let via = |prefix: &str| {
            let prefix: IpNet = prefix.parse().unwrap();
            routes
                .iter()
                .find(|r: &&RouteSpec| r.prefix == prefix)
                .map(|r| r.via)
        };
        assert_eq!(via("192.168.100.2/32"), Some(Via::Local));
        assert_eq!(via("192.0.2.1/32"), Some(Via::Local));
        assert!(matches!(via("0.0.0.0/0"), Some(Via::Gateway { leg: 0, .. })));
        let narrow: Vec<_> = routes.iter().filter_map(|r| Some((r.prefix, r.mtu?))).collect();
        assert_eq!(narrow, [(default, 1_400)]);
        assert_eq!(routes.len(), 4);
    }
}
