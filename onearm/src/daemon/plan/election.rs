//! From the configuration to the HA process's settings. Pure.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;
use onearm_ha::announce;
use onearm_ha::config::{Config, MAX_LISTED, Transport};
use onearm_ha::units::{Centiseconds, Priority, RangeError, Vrid};
use onearm_ha::wire::advert::ChecksumForm;
use onearm_netcfg::Picture;

use crate::config::{Leg, NodeConfig, PairConfig, Role};

use super::mirror;

/// The leg on which adverts travel: the one whose network holds the peer's address, else the first service leg.
pub(crate) fn election_leg<'a>(node: &'a NodeConfig, picture: &Picture) -> Option<&'a Leg> {
    let peer = IpAddr::V4(node.peer.address);
    let holds = |leg: &&Leg| {
        mirror::leg_picture(leg, picture).is_some_and(|seen| seen.connected().any(|net| net.contains(&peer)))
    };
    // Adverts prove the leg that serves: one of role `peer` proves nothing of it.
    let serving = node.legs.iter().filter(|leg| leg.role != Role::Peer);
    serving.clone().find(holds).or_else(|| node.only_service_leg())
}

/// The node's own address towards the peer; `None` while the leg has no IPv4 address.
pub(crate) fn own_address(node: &NodeConfig, leg: &Leg, picture: &Picture) -> Option<Ipv4Addr> {
    let seen = mirror::leg_picture(leg, picture)?;
    let peer = IpAddr::V4(node.peer.address);
    let beside_peer = seen.addresses.iter().find_map(|net| match net {
        IpNet::V4(own) if net.contains(&peer) => Some(own.addr()),
        _ => None,
    });
    beside_peer.or_else(|| mirror::address(seen))
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
    let hundredths = u16::try_from(pair.ha.advert_interval.as_millis() / 10).unwrap_or(u16::MAX);
    Ok(Some(Config {
        ifname: leg.interface.clone(),
        vrid: Vrid::new(pair.ha.vrid)?,
        priority: Priority::configured(node.priority)?,
        advert_interval: Centiseconds::new(hundredths)?,
        preempt: pair.ha.preempt,
        preferred: node.id.get() == 1,
        address,
        peer: node.peer.address,
        transport: Transport::Multicast,
        checksum: ChecksumForm::PseudoHeader,
        announce: pair.ha.announce.iter().copied().take(MAX_LISTED).collect(),
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
        assert_eq!(ha_config(&node, &pair, &picture).unwrap().unwrap().address, own);
        assert!(
            ha_config(&node, &pair, &with_addresses(interface, &[]))
                .unwrap()
                .is_none(),
            "nothing to send from yet"
        );
    }
}
