//! What the HA process is configured with. Checked here; where it comes from is the daemon's business.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::auth::PairKeys;
use crate::election::Stance;
use crate::units::{Centiseconds, Priority, Vrid};
use crate::wire::advert::ChecksumForm;
use crate::{announce, election, lease};

/// Most addresses an advert of ours lists, in each family; all others are the dataplane's business.
pub const MAX_LISTED: usize = 16;
/// Most legs beside that of the adverts.
pub const MAX_OTHER_LEGS: usize = 63;
/// Most hosts that are asked for signs of life beside the witness.
pub const MAX_NEIGHBOURS: usize = 4;
/// Longest name of an interface.
const IFNAME_MAX: usize = 15;

/// How adverts travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// To 224.0.0.18 and ff02::12.
    #[default]
    Multicast,
    /// To the peer's address.
    Unicast,
}

/// One family's side of the protocol: the adverts of one IP version. All wires of a node speak for one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire<A> {
    /// Own address on the leg, source of the adverts. IPv6 multicast: link-local (RFC 9568 §5.1.2.1).
    pub address: A,
    /// The peer's address on the leg; adverts from any other source decide nothing. Link-local where
    /// [`Self::address`] is.
    pub peer: A,
    /// Addresses listed in adverts, 1 to [`MAX_LISTED`]. The first IPv6 one is link-local (see
    /// [`crate::wire::advert::with_link_local`]).
    pub announce: Vec<A>,
}

/// What becomes of messages without authentication while the nodes are changed over to it, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rollout {
    /// They count.
    Accept,
    /// They count until the peer has been heard with authentication.
    Prefer,
    /// They are counted and dropped.
    #[default]
    Enforce,
}

/// A way HA datagrams take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramPath {
    /// Interface they leave and arrive by.
    pub ifname: String,
    /// Own address and port; of a link-local address with its scope.
    pub own: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
}

/// Authentication of adverts and HA datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auth {
    /// The pair's keys.
    pub keys: PairKeys,
    /// This node's id, 1 or 2.
    pub node: u8,
    /// What becomes of messages without authentication.
    pub rollout: Rollout,
    /// Ways of HA datagrams: the leg, and the peer link where there is one.
    pub paths: Vec<DatagramPath>,
    /// Highest epoch this node has stored.
    pub epoch: u64,
    /// Generation of the shared configuration in force.
    pub generation: u64,
}

/// Settings of the HA process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Kernel interface the own addresses are on (of a VLAN leg: the VLAN device).
    pub ifname: String,
    /// Kernel interfaces of the other legs on which owned addresses are announced; at most [`MAX_OTHER_LEGS`]. No advert
    /// travels there; while one of them cannot be used, adverts are of priority [`Priority::IMPAIRED`] at most.
    pub other_legs: Vec<String>,
    /// Virtual router id.
    pub vrid: Vrid,
    /// Own priority, 3 to 254.
    pub priority: Priority,
    /// Own advertisement interval.
    pub advert_interval: Centiseconds,
    /// Whether a better Standby displaces a worse Active. Off by default.
    pub preempt: bool,
    /// Whether this node comes up first when both start together; true on exactly one node of a pair.
    pub preferred: bool,
    /// Adverts over IPv4.
    pub ipv4: Option<Wire<Ipv4Addr>>,
    /// Adverts over IPv6. At least one of both is there. An advert has left when it has left on both; the peer is alive
    /// when it is heard on either.
    pub ipv6: Option<Wire<Ipv6Addr>>,
    /// Multicast or unicast.
    pub transport: Transport,
    /// Checksum of adverts sent over IPv4.
    pub checksum: ChecksumForm,
    /// Announcements (gratuitous ARP, unsolicited neighbour advertisements) a second, 1 to [`announce::Settings::MOST_RATE`]; default 200.
    pub announce_rate: u32,
    /// Announcements of each address after a take-over, 1 to 10; default 3.
    pub announce_rounds: u8,
    /// Time between two refreshes of all addresses; zero: none.
    pub announce_refresh: Duration,
    /// Authentication; `None`: plain VRRP (`auth = "none"`).
    pub auth: Option<Auth>,
    /// Host of the leg's network, as a rule the gateway, that is asked all the time: a node that it does not answer is cut off
    /// itself. The same for both nodes.
    pub witness: Option<IpAddr>,
    /// Hosts of the leg's network, as a rule servers, that are asked when something looks wrong: whatever they answer shows that
    /// the leg receives. Without a witness they are it, all of them together: one that answers is enough. At most
    /// [`MAX_NEIGHBOURS`].
    pub neighbours: Vec<IpAddr>,
    /// Whether everything the election is given is told to the main process ([`crate::process::ToMain::Recorded`]); from the start
    /// of the router on.
    pub record: bool,
    /// What the operator wants of this node.
    #[serde(default)]
    pub stance: Stance,
    /// Silence of the main process after which this node hands over; 120 ms to 60 s, default 1 s.
    pub main_silence: Duration,
}

impl Config {
    /// Default of [`Self::announce_rate`].
    pub const ANNOUNCE_RATE: u32 = 200;
    /// Default of [`Self::announce_rounds`].
    pub const ANNOUNCE_ROUNDS: u8 = 3;
    /// Default of [`Self::announce_refresh`].
    pub const ANNOUNCE_REFRESH: Duration = Duration::from_mins(1);
    /// Default of [`Self::main_silence`].
    pub const MAIN_SILENCE: Duration = Duration::from_secs(1);

    /// Everything that is wrong, all at once; empty: fine.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut check = |fine: bool, error: ConfigError| {
            if !fine {
                errors.push(error);
            }
        };
        for name in std::iter::once(&self.ifname).chain(&self.other_legs) {
            let name_fine = !name.is_empty()
                && name.len() <= IFNAME_MAX
                && !name.contains(|c: char| c == '/' || c == '\0' || c.is_whitespace());
            check(name_fine, ConfigError::Ifname(name.clone()));
        }
        let others = self.other_legs.len();
        check(others <= MAX_OTHER_LEGS, ConfigError::OtherLegs(others));
        let priority = self.priority.get();
        check(
            Priority::configured(priority).is_ok(),
            ConfigError::Priority(priority),
        );
        check(self.ipv4.is_some() || self.ipv6.is_some(), ConfigError::NoWire);
        if let Some(auth) = &self.auth {
            check(matches!(auth.node, 1 | 2), ConfigError::Node(auth.node));
        }
        let neighbours = self.neighbours.len();
        check(neighbours <= MAX_NEIGHBOURS, ConfigError::Neighbours(neighbours));
        for host in self.witness.iter().chain(&self.neighbours) {
            let has_wire = if host.is_ipv4() {
                self.ipv4.is_some()
            } else {
                self.ipv6.is_some()
            };
            let is_node = self.wires().any(|(own, ..)| own == *host);
            check(
                is_host(*host) && has_wire && !is_node,
                ConfigError::NoWitness(*host),
            );
        }
        for (own, peer, announce) in self.wires() {
            for address in [own, peer] {
                check(is_host(address), ConfigError::NotAHost(address));
            }
            check(own != peer, ConfigError::PeerIsSelf(peer));
            let listed = announce.len();
            check((1..=MAX_LISTED).contains(&listed), ConfigError::Listed(listed));
            for address in announce {
                check(is_host(address), ConfigError::NotAHost(address));
                check(
                    address != own && address != peer,
                    ConfigError::ListedNode(address),
                );
            }
        }
        if let Some(wire) = &self.ipv6 {
            let local = [wire.address, wire.peer].map(|a| a.is_unicast_link_local());
            check(
                local[0] == local[1] && (local[0] || self.transport == Transport::Unicast),
                ConfigError::NotLinkLocal(wire.address, wire.peer),
            );
            let first = wire.announce.first();
            check(
                first.is_none_or(Ipv6Addr::is_unicast_link_local),
                ConfigError::FirstListed,
            );
        }
        let rate = self.announce_rate;
        check(
            (1..=announce::Settings::MOST_RATE).contains(&rate),
            ConfigError::Rate(rate),
        );
        check(
            (1..=10).contains(&self.announce_rounds),
            ConfigError::Rounds(self.announce_rounds),
        );
        let silence = Duration::from_millis(120)..=Duration::from_mins(1);
        check(
            silence.contains(&self.main_silence),
            ConfigError::MainSilence(self.main_silence),
        );
        let interval = self.advert_interval.as_nanos();
        if let Err(error) = lease::check(lease::length(interval), interval) {
            check(false, ConfigError::Lease(error));
        }
        errors
    }

    /// Own address, peer's address and listed addresses of each wire, IPv4 first.
    fn wires(&self) -> impl Iterator<Item = (IpAddr, IpAddr, Vec<IpAddr>)> {
        fn plain<A: Copy + Into<IpAddr>>(wire: &Wire<A>) -> (IpAddr, IpAddr, Vec<IpAddr>) {
            let listed = wire.announce.iter().map(|address| (*address).into());
            (wire.address.into(), wire.peer.into(), listed.collect())
        }
        let ipv4 = self.ipv4.as_ref().map(plain);
        ipv4.into_iter().chain(self.ipv6.as_ref().map(plain))
    }

    /// Own addresses that must be on the leg.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.wires().map(|(own, ..)| own).collect()
    }

    /// Whether anybody on the leg is asked for signs of life.
    pub(crate) fn asks(&self) -> bool {
        self.witness.is_some() || !self.neighbours.is_empty()
    }

    /// Whose answer counts as the witness's: without one any of the neighbours'.
    pub(crate) fn witnesses(&self) -> impl Iterator<Item = IpAddr> {
        let neighbours = self.neighbours.iter().filter(|_| self.witness.is_none());
        self.witness.into_iter().chain(neighbours.copied())
    }

    /// The peer's addresses on the leg.
    pub(crate) fn peers(&self) -> impl Iterator<Item = IpAddr> {
        self.wires().map(|(_, peer, _)| peer)
    }

    /// One listed address of each family that others on the leg would ask for.
    pub(crate) fn listed(&self) -> impl Iterator<Item = IpAddr> {
        self.wires().filter_map(|(.., listed)| {
            let mut global = listed.into_iter().filter(|address| match address {
                IpAddr::V4(_) => true,
                IpAddr::V6(address) => !address.is_unicast_link_local(),
            });
            global.next()
        })
    }

    /// Own and peer's address as the election knows them: one pair for all wires, so that both nodes order themselves
    /// alike on each (IPv4's where there is one).
    fn speakers(&self) -> (IpAddr, IpAddr) {
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.wires()
            .next()
            .map_or((nobody, nobody), |(own, peer, _)| (own, peer))
    }

    /// As whom the election knows the sender of an advert from `source`.
    pub(crate) fn speaker(&self, source: IpAddr) -> IpAddr {
        let (own, peer) = self.speakers();
        for (wire_own, wire_peer, _) in self.wires() {
            if source == wire_peer {
                return peer;
            }
            if source == wire_own {
                return own;
            }
        }
        source
    }

    pub(crate) fn election(&self) -> election::Settings {
        let (address, peer) = self.speakers();
        election::Settings {
            priority: self.priority,
            interval: self.advert_interval,
            preempt: self.preempt,
            preferred: self.preferred,
            address,
            peer,
            authenticated: self.auth.is_some(),
            stance: self.stance,
        }
    }

    pub(crate) fn announcements(&self) -> announce::Settings {
        announce::Settings {
            rate: self.announce_rate,
            rounds: self.announce_rounds,
            refresh_nanos: nanos(self.announce_refresh),
        }
    }

    pub(crate) fn main_silence_nanos(&self) -> u64 {
        nanos(self.main_silence)
    }

    /// Whether the same hosts are asked under `other`, in the same rhythm.
    pub(crate) fn asks_alike(&self, other: &Self) -> bool {
        self.witness == other.witness
            && self.neighbours == other.neighbours
            && self.advert_interval == other.advert_interval
            && self.listed().eq(other.listed())
    }

    /// Whether `other` is the same router on the same leg, so that a running election can go on with it.
    pub(crate) fn same_router(&self, other: &Self) -> bool {
        let ends = |config: &Self| -> Vec<_> { config.wires().map(|(own, peer, _)| (own, peer)).collect() };
        self.ifname == other.ifname
            && self.vrid == other.vrid
            && ends(self) == ends(other)
            && self.transport == other.transport
            && self.auth.is_some() == other.auth.is_some()
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Neither unspecified, loopback, group nor broadcast.
fn is_host(address: IpAddr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address == IpAddr::V4(Ipv4Addr::BROADCAST))
}

/// One thing wrong with a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No interface can have this name.
    #[error("{0:?} is no name of an interface")]
    Ifname(String),
    /// Too many legs.
    #[error("at most {MAX_OTHER_LEGS} legs are beside that of the adverts, not {0}")]
    OtherLegs(usize),
    /// Priority 0 to 2, or 255.
    #[error("a priority is 3 to 254, not {0}")]
    Priority(u8),
    /// Neither IPv4 nor IPv6 adverts.
    #[error("adverts need an address of this node and of the peer, IPv4 or IPv6")]
    NoWire,
    /// A node id that no pair has.
    #[error("a node's id is 1 or 2, not {0}")]
    Node(u8),
    /// IPv6 adverts from or to addresses of another scope.
    #[error(
        "IPv6 adverts travel between link-local addresses (or, unicast, between two others), not {0} and {1}"
    )]
    NotLinkLocal(Ipv6Addr, Ipv6Addr),
    /// The list of IPv6 adverts begins wrong.
    #[error("the first address IPv6 adverts list is link-local")]
    FirstListed,
    /// An address no host can have.
    #[error("{0} is no address of a host")]
    NotAHost(IpAddr),
    /// Too many neighbours.
    #[error("at most {MAX_NEIGHBOURS} hosts are asked beside the witness, not {0}")]
    Neighbours(usize),
    /// Asked in vain.
    #[error("{0} cannot be asked for signs of life: it is no other host, or of a family without adverts")]
    NoWitness(IpAddr),
    /// Own and peer address are the same.
    #[error("the peer's address {0} is this node's own")]
    PeerIsSelf(IpAddr),
    /// Too few or too many listed addresses.
    #[error("an advert lists 1 to {MAX_LISTED} addresses, not {0}")]
    Listed(usize),
    /// A node's own address is listed as floating.
    #[error("{0} belongs to a node and cannot float")]
    ListedNode(IpAddr),
    /// Announcements too slow or too fast.
    #[error("1 to {most} announcements a second are possible, not {0}", most = announce::Settings::MOST_RATE)]
    Rate(u32),
    /// Too few or too many rounds.
    #[error("1 to 10 announcements of each address are possible, not {0}")]
    Rounds(u8),
    /// Out of range.
    #[error("the main process may be silent for 120 ms to 60 s, not {0:?}")]
    MainSilence(Duration),
    /// The lease would outlive the peer's patience.
    #[error(transparent)]
    Lease(lease::LeaseTooLong),
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::advert::with_link_local;

    pub(crate) fn sample() -> Config {
        Config {
            ifname: "eth0".into(),
            other_legs: Vec::new(),
            vrid: Vrid::new(51).unwrap(),
            priority: Priority::configured(150).unwrap(),
            advert_interval: Centiseconds::new(10).unwrap(),
            preempt: false,
            preferred: true,
            ipv4: Some(Wire {
                address: Ipv4Addr::new(192, 168, 100, 2),
                peer: Ipv4Addr::new(192, 168, 100, 3),
                announce: vec![Ipv4Addr::new(192, 168, 100, 100)],
            }),
            ipv6: None,
            transport: Transport::Multicast,
            checksum: ChecksumForm::PseudoHeader,
            announce_rate: Config::ANNOUNCE_RATE,
            announce_rounds: Config::ANNOUNCE_ROUNDS,
            announce_refresh: Config::ANNOUNCE_REFRESH,
            auth: None,
            witness: None,
            neighbours: Vec::new(),
            record: false,
            stance: Stance::Normal,
            main_silence: Config::MAIN_SILENCE,
        }
    }

    #[test]
    fn the_sample_is_fine_and_survives_json() {
        let config = sample();
        assert_eq!(config.errors(), []);
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let own = Ipv4Addr::new(192, 168, 100, 2);
        let config = Config {
            ifname: "a name/with everything wrong".into(),
            priority: Priority::OWNER,
            ipv4: Some(Wire {
                address: own,
                peer: own,
                announce: vec![Ipv4Addr::new(224, 0, 0, 18), own],
            }),
            announce_rate: 0,
            announce_rounds: 11,
            auth: None,
            main_silence: Duration::ZERO,
            ..sample()
        };
        let errors = config.errors();
        assert_eq!(errors.len(), 8, "{errors:?}");
        assert!(errors.contains(&ConfigError::PeerIsSelf(own.into())));
    }

    fn wire6() -> Wire<Ipv6Addr> {
        Wire {
            address: "fe80::2".parse().unwrap(),
            peer: "fe80::3".parse().unwrap(),
            announce: with_link_local(sample().vrid, &["2001:db8::100".parse().unwrap()]),
        }
    }

    #[test]
    fn an_advert_lists_one_to_sixteen_addresses_of_each_family() {
        for (count, fine) in [(0, false), (1, true), (16, true), (17, false)] {
            let mut config = Config {
                ipv6: Some(wire6()),
                ..sample()
            };
            assert_eq!(config.errors(), []);
            config.ipv4.as_mut().unwrap().announce =
                (0..count).map(|n| Ipv4Addr::new(10, 0, 0, n + 1)).collect();
            assert_eq!(config.errors().is_empty(), fine, "{count}");
            let mut config = Config {
                ipv6: Some(wire6()),
                ..sample()
            };
            config.ipv6.as_mut().unwrap().announce = (0..u16::from(count))
                .map(|n| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, n))
                .collect();
            assert_eq!(config.errors().is_empty(), fine, "{count}");
        }
    }

    #[test]
    fn one_family_is_enough_and_none_is_not() {
        let config = |ipv4: bool, ipv6: bool| Config {
            ipv4: sample().ipv4.filter(|_| ipv4),
            ipv6: ipv6.then(wire6),
            ..sample()
        };
        assert_eq!(config(false, true).errors(), []);
        assert_eq!(config(false, false).errors(), [ConfigError::NoWire]);
        assert_eq!(config(false, true).election().peer, IpAddr::V6(wire6().peer));
    }

    #[test]
    fn b87_ipv6_adverts_of_another_scope_or_with_another_first_address_are_refused() {
        let global: [Ipv6Addr; 2] = ["2001:db8::2", "2001:db8::3"].map(|a| a.parse().unwrap());
        let of = |address, peer, transport| Config {
            ipv6: Some(Wire {
                address,
                peer,
                ..wire6()
            }),
            transport,
            ..sample()
        };
        let refused = [ConfigError::NotLinkLocal(global[0], global[1])];
        assert_eq!(of(global[0], global[1], Transport::Multicast).errors(), refused);
        assert_eq!(of(global[0], global[1], Transport::Unicast).errors(), []);
        let mixed = of(wire6().address, global[1], Transport::Unicast).errors();
        assert_eq!(mixed, [ConfigError::NotLinkLocal(wire6().address, global[1])]);
        let config = Config {
            ipv6: Some(Wire {
                announce: vec!["2001:db8::100".parse().unwrap()],
                ..wire6()
            }),
            ..sample()
        };
        assert_eq!(config.errors(), [ConfigError::FirstListed]);
    }

    #[test]
    fn other_hosts_to_ask_and_another_address_to_ask_for_are_noticed() {
        let config = sample();
        let other = |change: fn(&mut Config)| {
            let mut other = sample();
            change(&mut other);
            other
        };
        assert!(config.asks_alike(&other(|other| other.priority = Priority::LEAST)));
        for change in [
            (|other| other.witness = Some(Ipv4Addr::new(192, 168, 100, 1).into())) as fn(&mut Config),
            |other| other.neighbours.push(Ipv4Addr::new(192, 168, 100, 10).into()),
            |other| other.advert_interval = Centiseconds::new(20).unwrap(),
            |other| other.ipv4.as_mut().unwrap().announce = vec![Ipv4Addr::new(192, 168, 100, 101)],
        ] {
            assert!(!config.asks_alike(&other(change)));
        }
    }

    #[test]
    fn every_wire_speaks_for_one_pair_of_addresses() {
        let config = Config {
            ipv6: Some(wire6()),
            ..sample()
        };
        let ipv4 = config.ipv4.clone().unwrap();
        let stranger = "fe80::66".parse().unwrap();
        for (source, speaker) in [
            (wire6().peer.into(), ipv4.peer.into()),
            (ipv4.peer.into(), ipv4.peer.into()),
            (wire6().address.into(), ipv4.address.into()),
            (stranger, stranger),
        ] {
            assert_eq!(config.speaker(source), speaker);
        }
    }
}
