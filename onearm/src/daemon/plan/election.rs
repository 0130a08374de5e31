//! From the configuration to the HA process's settings. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use onearm_ha::config::{Auth, Config, DatagramPath, MAX_LISTED, MAX_NEIGHBOURS, Transport, Wire};
use onearm_ha::units::{Centiseconds, Priority, RangeError, Vrid};
use onearm_ha::wire::advert::{ChecksumForm, with_link_local};
use onearm_netcfg::Picture;

use crate::config::{self, Leg, NodeConfig, PairConfig};

use super::{mirror, places};
use crate::daemon::authentication::Authentication;
use crate::stream::driver::Ends;

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
fn own_address(node: &NodeConfig, leg: &Leg, picture: &Picture) -> Option<IpAddr> {
    own_address_towards(node.peer.address, leg, picture)
}

fn own_address_towards(peer: IpAddr, leg: &Leg, picture: &Picture) -> Option<IpAddr> {
    let seen = mirror::leg_picture(leg, picture)?;
    let beside_peer = seen.addresses.iter().find(|net| net.contains(&peer));
    let of_family = || {
        let own = seen.addresses.iter().map(ipnet::IpNet::addr);
        let mut own = own.filter(|own| own.is_ipv4() == peer.is_ipv4());
        own.find(|own| mirror::is_link_local(*own) == mirror::is_link_local(peer))
    };
    beside_peer.map(ipnet::IpNet::addr).or_else(of_family)
}

/// An address of the leg for a socket: a link-local one says which link it is of.
fn socket_address(leg: &Leg, picture: &Picture, address: IpAddr, port: u16) -> Option<SocketAddr> {
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
    auth: Option<&Authentication>,
) -> Result<Option<Config>, RangeError> {
    let Some(leg) = election_leg(node, picture) else {
        return Ok(None);
    };
    let vrid = Vrid::new(pair.ha.vrid)?;
    let (mut ipv4, mut ipv6) = (None, None);
    let mut transport = match pair.ha.transport {
        config::Transport::Multicast => Transport::Multicast,
        config::Transport::Unicast => Transport::Unicast,
    };
    for (_, peer) in node.peer.addresses() {
        match (own_address_towards(peer, leg, picture), peer) {
            (Some(IpAddr::V4(address)), IpAddr::V4(peer)) => {
                let announce = listed(pair, MAX_LISTED, v4);
                ipv4 = Some(Wire {
                    address,
                    peer,
                    announce,
                });
            }
            (Some(IpAddr::V6(address)), IpAddr::V6(peer)) => {
                let announce = with_link_local(vrid, &listed(pair, MAX_LISTED - 1, v6));
                // Adverts to the group come from link-local addresses (RFC 9568 §5.1.2.1).
                if !peer.is_unicast_link_local() {
                    transport = Transport::Unicast;
                }
                ipv6 = Some(Wire {
                    address,
                    peer,
                    announce,
                });
            }
            // Nothing to send from yet.
            (Some(IpAddr::V4(_)) | None, IpAddr::V6(_)) | (Some(IpAddr::V6(_)) | None, IpAddr::V4(_)) => {
                return Ok(None);
            }
        }
    }
    let auth = match auth {
        None => None,
        Some(auth) => {
            let Some(paths) = datagram_paths(node, pair, leg, picture) else {
                return Ok(None);
            };
            Some(Auth {
                keys: auth.keys.clone(),
                node: node.id.get(),
                rollout: auth.rollout,
                paths,
                epoch: auth.epoch,
                generation: 0,
            })
        }
    };
    let hundredths = u16::try_from(pair.ha.advert_interval.as_millis() / 10).unwrap_or(u16::MAX);
    Ok(Some(Config {
        ifname: leg.interface.clone(),
        other_legs: places::other_legs(node, leg)
            .iter()
            .map(|other| other.interface.clone())
            .collect(),
        vrid,
        priority: Priority::configured(node.priority)?,
        advert_interval: Centiseconds::new(hundredths)?,
        preempt: pair.ha.preempt,
        preferred: node.id.get() == 1,
        ipv4,
        ipv6,
        transport,
        checksum: ChecksumForm::PseudoHeader,
        announce_rate: pair.ha.announce_rate,
        announce_rounds: Config::ANNOUNCE_ROUNDS,
        announce_refresh: pair.ha.announce_refresh.unwrap_or(Duration::ZERO),
        auth,
        witness: pair
            .ha
            .witness
            .filter(|witness| is_asked(node, leg, picture, *witness)),
        neighbours: neighbours(node, pair, leg, picture),
        record: false,
        stance: onearm_ha::election::Stance::Normal,
        main_silence: Config::MAIN_SILENCE,
    }))
}

/// Whether `host` can be asked for signs of life: it is on the leg, and of a family the adverts have.
fn is_asked(node: &NodeConfig, leg: &Leg, picture: &Picture, host: IpAddr) -> bool {
    let has_wire = node
        .peer
        .addresses()
        .any(|(_, peer)| peer.is_ipv4() == host.is_ipv4());
    let on_leg =
        mirror::leg_picture(leg, picture).is_some_and(|seen| seen.connected().any(|net| net.contains(&host)));
    has_wire && on_leg
}

/// Servers on the leg, the first few: whatever they answer shows that the leg receives.
fn neighbours(node: &NodeConfig, pair: &PairConfig, leg: &Leg, picture: &Picture) -> Vec<IpAddr> {
    let servers = pair.services.iter().flat_map(|service| &service.servers);
    let mut neighbours = Vec::new();
    for address in servers.map(|server| server.address) {
        if neighbours.len() < MAX_NEIGHBOURS
            && !neighbours.contains(&address)
            && is_asked(node, leg, picture, address)
        {
            neighbours.push(address);
        }
    }
    neighbours
}

/// The ways of HA datagrams: the leg, and the peer link where there is one; `None` while the leg has no address.
fn datagram_paths(
    node: &NodeConfig,
    pair: &PairConfig,
    leg: &Leg,
    picture: &Picture,
) -> Option<Vec<DatagramPath>> {
    let peer = &node.peer;
    let end = |address| socket_address(leg, picture, address, pair.ha.datagram_port);
    let on_leg = DatagramPath {
        ifname: leg.interface.clone(),
        own: end(own_address(node, leg, picture)?)?,
        peer: end(peer.address)?,
    };
    let link = peer.interface.as_ref().zip(peer.link);
    let on_link = link.map(|(interface, link)| DatagramPath {
        ifname: interface.clone(),
        own: SocketAddr::new(link.own, pair.ha.datagram_port),
        peer: SocketAddr::new(link.peer, pair.ha.datagram_port),
    });
    Some([on_leg].into_iter().chain(on_link).collect())
}

/// The ends of the stream: on the peer link where there is one, else on the leg of the adverts; `None` while that has no
/// address.
pub(crate) fn stream_ends(node: &NodeConfig, pair: &PairConfig, picture: &Picture) -> Option<Ends> {
    let port = pair.ha.stream_port;
    if let Some(link) = node.peer.link {
        return Some(Ends {
            own: SocketAddr::new(link.own, port),
            peer: SocketAddr::new(link.peer, port),
        });
    }
    let leg = election_leg(node, picture)?;
    // The address the peer has in its file, whatever others the leg has.
    let own = own_address(node, leg, picture)?;
    let end = |address| socket_address(leg, picture, address, port);
    Some(Ends {
        own: end(own)?,
        peer: end(node.peer.address)?,
    })
}

/// The addresses of one family that adverts carry: those of `ha.announce`, else the first owned one.
fn listed<A>(pair: &PairConfig, most: usize, of_family: impl Fn(IpAddr) -> Option<A>) -> Vec<A> {
    let configured = pair.ha.announce.iter().copied().filter_map(&of_family);
    let mut listed: Vec<A> = configured.take(most).collect();
    if listed.is_empty() {
        listed.extend(pair.owned_addresses().into_iter().find_map(of_family));
    }
    listed
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn v6(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{election_leg, ha_config, own_address, stream_ends};
    use crate::config::{Source, parse_node, parse_pair};
    use crate::daemon::authentication::Authentication;
    use onearm_ha::config::{DatagramPath, Rollout, Transport};
    use onearm_netcfg::{IfName, LegPicture, LinkPicture, Picture};

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
    fn adverts_are_of_the_peers_family_and_go_to_the_group_between_link_local_addresses() {
        let pair = include_str!("../../../tests/check/both-families/pair.toml");
        let pair = parse_pair(Source::new("pair.toml", pair)).parsed.config;
        let addresses = ["192.168.100.2/24", "2001:db8:100::2/64", "fe80::2/64"];
        for (peer, own, transport, listed) in [
            (
                "192.168.100.3",
                "192.168.100.2",
                Transport::Multicast,
                "192.168.100.100",
            ),
            ("fe80::3", "fe80::2", Transport::Multicast, "2001:db8:100::100"),
            (
                "2001:db8:100::3",
                "2001:db8:100::2",
                Transport::Unicast,
                "2001:db8:100::100",
            ),
            // Behind a router: any address that is not of the link alone.
            (
                "2001:db8:200::3",
                "2001:db8:100::2",
                Transport::Unicast,
                "2001:db8:100::100",
            ),
        ] {
            let node = parse_node(Source::new("node.toml", NODE.replace("192.168.100.3", peer))).config;
            let picture = with_addresses(&node.legs[0].interface, &addresses);
            let config = ha_config(&node, &pair, &picture, None).unwrap().unwrap();
            assert_eq!(config.errors(), [], "{peer}");
            assert_eq!(config.transport, transport, "{peer}");
            let (address, last) = match (&config.ipv4, &config.ipv6) {
                (Some(four), None) => (
                    four.address.to_string(),
                    four.announce.last().unwrap().to_string(),
                ),
                (None, Some(six)) => (six.address.to_string(), six.announce.last().unwrap().to_string()),
                both_or_none => panic!("{both_or_none:?}"),
            };
            assert_eq!((&*address, &*last), (own, listed));
        }
        let both = NODE.replace("peer = {", "peer = { address6 = \"fe80::3\",");
        let both = parse_node(Source::new("node.toml", both)).config;
        let picture = with_addresses(&both.legs[0].interface, &addresses);
        let config = ha_config(&both, &pair, &picture, None).unwrap().unwrap();
        assert_eq!(config.errors(), []);
        assert_eq!(config.transport, Transport::Multicast);
        let (four, six) = (config.ipv4.unwrap(), config.ipv6.unwrap());
        assert_eq!(
            [four.address.to_string(), four.peer.to_string()],
            ["192.168.100.2", "192.168.100.3"]
        );
        assert_eq!(
            [six.address.to_string(), six.peer.to_string()],
            ["fe80::2", "fe80::3"]
        );
        let picture = with_addresses(&both.legs[0].interface, &addresses[..2]);
        assert!(
            ha_config(&both, &pair, &picture, None).unwrap().is_none(),
            "both are sent, or none"
        );
        let four_only = parse_node(Source::new("node.toml", NODE.replace("192.168.100.3", "fe80::3"))).config;
        let picture = with_addresses(&four_only.legs[0].interface, &addresses[..2]);
        assert!(
            ha_config(&four_only, &pair, &picture, None).unwrap().is_none(),
            "nothing to send from yet"
        );
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
        let wire = ha_config(&node, &pair, &picture, None)
            .unwrap()
            .unwrap()
            .ipv4
            .unwrap();
        assert_eq!(wire.address, own);
        assert!(
            ha_config(&node, &pair, &with_addresses(interface, &[]), None)
                .unwrap()
                .is_none(),
            "nothing to send from yet"
        );
    }

    fn with_links_up(interface: &str, addresses: &[&str]) -> Picture {
        let mut picture = with_addresses(interface, addresses);
        for leg in picture.legs.values_mut() {
            leg.link = Some(LinkPicture {
                ifindex: 7,
                mac: None,
                mtu: 1_500,
                up: true,
                carrier: true,
            });
        }
        picture
    }

    #[test]
    fn the_stream_goes_over_the_peer_link_where_there_is_one() {
        let mut pair = parse_pair(Source::new("pair.toml", PAIR)).parsed.config;
        pair.ha.stream_port = 9_000;
        let ends = |peer: &str, addresses: &[&str]| {
            let node = NODE.replace("peer = { address = \"192.168.100.3\" }", peer);
            let node = parse_node(Source::new("node.toml", node)).config;
            let picture = with_links_up(&node.legs[0].interface, addresses);
            let ends = stream_ends(&node, &pair, &picture)?;
            Some([ends.own.to_string(), ends.peer.to_string()])
        };
        let four = "address = \"192.168.100.3\"";
        let on_leg = format!("peer = {{ {four} }}");
        assert_eq!(
            ends(&on_leg, &["192.168.100.2/24"]).unwrap(),
            ["192.168.100.2:9000", "192.168.100.3:9000"]
        );
        assert_eq!(ends(&on_leg, &[]), None, "waits for its address");
        let link = "interface = \"eth1\", link_address = \"10.1.0.3\", own_link_address = \"10.1.0.2\"";
        assert_eq!(
            ends(&format!("peer = {{ {four}, {link} }}"), &[]).unwrap(),
            ["10.1.0.2:9000", "10.1.0.3:9000"]
        );
        assert_eq!(
            ends("peer = { address = \"fe80::3\" }", &["fe80::2/64"]).unwrap(),
            ["[fe80::2%7]:9000", "[fe80::3%7]:9000"]
        );
    }

    #[test]
    fn authenticated_nodes_exchange_datagrams_on_the_leg_and_on_the_peer_link() {
        let key = onearm_ha::auth::Key {
            id: onearm_ha::auth::KeyId(1),
            secret: [1; 32],
        };
        let auth = Authentication {
            keys: onearm_ha::auth::PairKeys::new([7; 16], vec![key]).unwrap(),
            rollout: Rollout::Prefer,
            epoch: 12,
        };
        let pair = parse_pair(Source::new("pair.toml", PAIR)).parsed.config;
        let paths = |peer: &str, addresses: &[&str]| {
            let node = NODE.replace("peer = { address = \"192.168.100.3\" }", peer);
            let node = parse_node(Source::new("node.toml", node)).config;
            let picture = with_links_up(&node.legs[0].interface, addresses);
            let config = ha_config(&node, &pair, &picture, Some(&auth)).unwrap()?;
            assert_eq!(config.errors(), []);
            let made = config.auth.unwrap();
            assert_eq!((made.node, made.rollout, made.epoch), (1, Rollout::Prefer, 12));
            let text = |path: &DatagramPath| format!("{} {} {}", path.ifname, path.own, path.peer);
            Some(made.paths.iter().map(text).collect::<Vec<_>>())
        };
        let on_leg = "eth0 192.168.100.2:8471 192.168.100.3:8471";
        let four = "address = \"192.168.100.3\"";
        let found = paths(&format!("peer = {{ {four} }}"), &["192.168.100.2/24"]);
        assert_eq!(found.unwrap(), [on_leg]);
        let link = "interface = \"eth1\", link_address = \"10.1.0.3\", own_link_address = \"10.1.0.2\"";
        let found = paths(&format!("peer = {{ {four}, {link} }}"), &["192.168.100.2/24"]);
        assert_eq!(found.unwrap(), [on_leg, "eth1 10.1.0.2:8471 10.1.0.3:8471"]);
        let found = paths("peer = { address = \"fe80::3\" }", &["fe80::2/64"]);
        assert_eq!(found.unwrap(), ["eth0 [fe80::2%7]:8471 [fe80::3%7]:8471"]);
        assert_eq!(paths(&format!("peer = {{ {four} }}"), &[]), None);
    }
}
