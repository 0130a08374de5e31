//! From the configuration to the HA process's settings. Pure.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use onearm_ha::announce;
use onearm_ha::config::{Config, MAX_LISTED, Transport, Wire};
use onearm_ha::units::{Centiseconds, Priority, RangeError, Vrid};
use onearm_ha::wire::advert::ChecksumForm;
use onearm_netcfg::Picture;

use crate::config::{self, Leg, NodeConfig, PairConfig};

use super::{mirror, places};

/// The leg on which adverts travel: the one whose network holds the peer's address, else the only one that VIPs can be on.
pub(crate) fn election_leg<'a>(node: &'a NodeConfig, picture: &Picture) -> Option<&'a Leg> {
    let peer = node.peer.address;
    // The network of link-local addresses is on every leg: it tells nothing.
    let holds = |leg: &&Leg| {
        !mirror::is_link_local(peer)
            && mirror::leg_picture(leg, picture)
                .is_some_and(|seen| seen.connected().any(|net| net.contains(&peer)))
    };
    // Adverts prove the leg that serves: one of role `peer` proves nothing of it.
    let serving = node.legs.iter().filter(|leg| leg.role.carries_traffic());
    serving.clone().find(holds).or_else(|| node.only_vip_leg())
}

/// The node's own address towards the peer; `None` while the leg has none of the peer's family.
pub(crate) fn own_address(node: &NodeConfig, leg: &Leg, picture: &Picture) -> Option<IpAddr> {
    let seen = mirror::leg_picture(leg, picture)?;
    let peer = node.peer.address;
    let beside_peer = seen.addresses.iter().find(|net| net.contains(&peer));
    let of_family = || {
        let own = seen.addresses.iter().map(ipnet::IpNet::addr);
        let mut own = own.filter(|own| own.is_ipv4() == peer.is_ipv4());
        own.find(|own| mirror::is_link_local(*own) == mirror::is_link_local(peer))
    };
    beside_peer.map(ipnet::IpNet::addr).or_else(of_family)
}

/// An address of the leg for a socket: a link-local one says which link it is of.
pub(crate) fn socket_address(leg: &Leg, picture: &Picture, address: IpAddr, port: u16) -> Option<SocketAddr> {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            let scope = mirror::leg_picture(leg, picture)?.link?.ifindex;
            Some(SocketAddrV6::new(address, port, 0, scope).into())
        }
        address => Some(SocketAddr::new(address, port)),
    }
}

/// Settings of the HA process; `None` while the own address is not there yet.
///
/// # Errors
/// [`RangeError`] for a value the check should have refused.
pub(crate) fn ha_config(
    node: &NodeConfig,
    pair: &PairConfig,
    picture: &Picture,
) -> Result<Option<Config>, RangeError> {
    let Some(leg) = election_leg(node, picture) else {
        return Ok(None);
    };
    let Some(address) = own_address(node, leg, picture) else {
        return Ok(None);
    };
    let (IpAddr::V4(address), IpAddr::V4(peer)) = (address, node.peer.address) else {
        return Ok(None);
    };
    let hundredths = u16::try_from(pair.ha.advert_interval.as_millis() / 10).unwrap_or(u16::MAX);
    Ok(Some(Config {
        ifname: leg.interface.clone(),
        other_legs: places::other_legs(node, leg)
            .iter()
            .map(|other| other.interface.clone())
            .collect(),
        vrid: Vrid::new(pair.ha.vrid)?,
        priority: Priority::configured(node.priority)?,
        advert_interval: Centiseconds::new(hundredths)?,
        preempt: pair.ha.preempt,
        preferred: node.id.get() == 1,
        ipv4: Some(Wire {
            address,
            peer,
            announce: pair
                .ha
                .announce
                .iter()
                .filter_map(|address| match address {
                    IpAddr::V4(address) => Some(*address),
                    IpAddr::V6(_) => None,
                })
                .take(MAX_LISTED)
                .collect(),
        }),
        ipv6: None,
        transport: match pair.ha.transport {
            config::Transport::Multicast => Transport::Multicast,
            config::Transport::Unicast => Transport::Unicast,
        },
        checksum: ChecksumForm::PseudoHeader,
        announce_rate: pair.ha.announce_rate.min(announce::Settings::MOST_RATE),
        announce_rounds: Config::ANNOUNCE_ROUNDS,
        announce_refresh: pair.ha.announce_refresh.unwrap_or(Duration::ZERO),
        main_silence: Config::MAIN_SILENCE,
    }))
}

#[cfg(test)]
mod tests {
    use super::{election_leg, ha_config, own_address};
    use crate::config::{Source, parse_node, parse_pair};
    use onearm_netcfg::{IfName, LegPicture, Picture};

    const NODE: &str = include_str!("../../../../etc/examples/node-lb1.toml");
    const PAIR: &str = include_str!("../../../../etc/examples/pair.toml");

    fn with_addresses(interface: &str, addresses: &[&str]) -> Picture {
        let leg = LegPicture {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            ..LegPicture::default()
        };
        let mut picture = Picture::default();
        picture.legs.insert(IfName::new(interface).unwrap(), leg);
        picture
    }

    #[test]
    fn of_several_addresses_the_one_beside_the_peer_speaks_to_it() {
        let node = parse_node(Source::new("node.toml", NODE)).config;
        let pair = parse_pair(Source::new("pair.toml", PAIR)).parsed.config;
        let interface = &node.legs[0].interface;
        let picture = with_addresses(interface, &["10.0.0.9/8", "192.168.100.2/24"]);
        let leg = election_leg(&node, &picture).unwrap();
        let own = own_address(&node, leg, &picture).unwrap();
        assert_eq!(own.to_string(), "192.168.100.2");
        let wire = ha_config(&node, &pair, &picture).unwrap().unwrap().ipv4.unwrap();
        assert_eq!(wire.address, own);
        assert!(
            ha_config(&node, &pair, &with_addresses(interface, &[]))
                .unwrap()
                .is_none(),
            "nothing to send from yet"
        );
    }
}
