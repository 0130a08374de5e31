use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use onearm_ha::config::Rollout;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use super::mode::{Mode, ModeFor, Tunnel};
use super::port_range::PortRange;
use super::track::{Hooks, Track};

/// `pair.toml`: what both nodes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairConfig {
    /// The election.
    pub ha: HaConfig,
    /// Sizes of tables.
    pub limits: Limits,
    /// Addresses that are the servers' default route.
    pub gateways: Vec<GatewayConfig>,
    /// What is balanced.
    pub services: Vec<ServiceConfig>,
}

impl PairConfig {
    /// SHA-256 over everything the configuration means. Comments, order of keys and defaults written out do not change it.
    pub fn digest(&self) -> Digest {
        // A digest of a structure that cannot be written would be a bug of this crate: every map key is a string.
        let canonical = serde_json::to_vec(self).unwrap_or_default();
        Digest(sha2::Sha256::digest(canonical).into())
    }

    /// Every owned address once: service VIPs, gateway addresses, SNAT sources.
    pub fn owned_addresses(&self) -> BTreeSet<IpAddr> {
        let services = self
            .services
            .iter()
            .flat_map(|s| s.snat.iter().map(|source| source.address).chain([s.vip]));
        services
            .chain(self.gateways.iter().map(|g| g.address.addr()))
            .collect()
    }

    /// Flows for which the tables of IPv4 and IPv6 have room: none in a family of which the pair owns no address.
    pub fn flow_room(&self) -> (u32, u32) {
        let owned = self.owned_addresses();
        let room = |flows, owns: bool| if owns { flows } else { 0 };
        (
            room(self.limits.max_flows, owned.iter().any(IpAddr::is_ipv4)),
            room(self.limits.max_flows6, owned.iter().any(IpAddr::is_ipv6)),
        )
    }

    /// Clients there must be room for to stay with their server; 0 where no service asks for it.
    pub fn persistent_clients(&self) -> u32 {
        if self.services.iter().any(|service| service.persistence.is_some()) {
            self.limits.persistent_clients
        } else {
            0
        }
    }

    /// Sizes of the tables, as the dataplane is loaded with.
    pub fn table_limits(&self) -> onearm_dataplane::Limits {
        let (max_flows, max_flows6) = self.flow_room();
        onearm_dataplane::Limits {
            max_flows,
            max_flows6,
            half_open: self.limits.half_open,
            dsr_flows: self.limits.dsr_flows,
            persistent_clients: self.persistent_clients(),
        }
    }

    /// The legs this file names.
    pub fn named_legs(&self) -> NamedLegs<'_> {
        let vips = self.services.iter().rev();
        NamedLegs {
            vips: vips.filter_map(|s| Some((s.vip, s.leg.as_deref()?))).collect(),
            gateways: &self.gateways,
        }
    }
}

/// Legs that `pair.toml` names, found by address. To be made once for many addresses.
#[derive(Clone, Debug)]
pub struct NamedLegs<'a> {
    vips: BTreeMap<IpAddr, &'a str>,
    gateways: &'a [GatewayConfig],
}

impl<'a> NamedLegs<'a> {
    /// The leg of an address: that of the first service with this VIP that names one, else of the gateway whose network
    /// holds it. `None` = the file does not say; then it is the node's only service leg, or the one whose connected prefix
    /// holds it.
    pub fn of(&self, address: IpAddr) -> Option<&'a str> {
        let gateway = || {
            self.gateways
                .iter()
                .find(|g| g.network.contains(&address) || g.address.addr() == address)
                .map(|g| &*g.leg)
        };
        self.vips.get(&address).copied().or_else(gateway)
    }
}

/// SHA-256 of a [`PairConfig`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// `ha`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaConfig {
    /// VRRP virtual router id, 1–255.
    pub vrid: u8,
    /// Time between adverts, 10 ms to 40.95 s, whole centiseconds.
    pub advert_interval: Duration,
    /// How adverts are authenticated.
    pub auth: Auth,
    /// What becomes of messages without authentication, where [`Self::auth`] is [`Auth::Hmac`]. No part of the digest: while
    /// authentication is introduced the nodes differ in it.
    #[serde(skip)]
    pub rollout: Rollout,
    /// UDP port of HA datagrams on both nodes.
    pub datagram_port: u16,
    /// TCP port of the stream between the nodes, on both.
    pub stream_port: u16,
    /// How adverts travel.
    pub transport: Transport,
    /// Whether a node with greater priority takes over from a live Active.
    pub preempt: bool,
    /// Addresses carried in adverts; at least one, all owned.
    pub announce: Vec<IpAddr>,
    /// Most gratuitous ARP announcements a second, 1–100,000.
    pub announce_rate: u32,
    /// Time after which every owned address is announced again, 1 s to 1 day; `None` = never.
    pub announce_refresh: Option<Duration>,
    /// Host on the leg of the adverts that is asked for signs of life all the time; `None` = nobody is.
    pub witness: Option<IpAddr>,
    /// What makes a node better or worse than the other.
    pub track: Track,
    /// What is run when the role changes.
    pub hooks: Hooks,
    /// User that scripts and hooks run as.
    pub script_user: String,
}

/// How adverts are authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// By the pair's key: adverts carry a signed trailer, and the nodes exchange signed HA datagrams.
    Hmac,
    /// Not at all: anybody on the segment can move the VIPs.
    None,
}

impl Auth {
    /// As written in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hmac => "hmac",
            Self::None => "none",
        }
    }
}

/// How adverts travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// To the group of VRRP routers.
    Multicast,
    /// To the other node's address, where a network carries no groups.
    Unicast,
}

/// `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// IPv4 flows, 1,024–16,000,000. See [`PairConfig::flow_room`].
    pub max_flows: u32,
    /// IPv6 flows, 1,024–16,000,000.
    pub max_flows6: u32,
    /// Half-open flows among them, 64 to the greater of the two.
    pub half_open: u32,
    /// Affinities of `dsr` and `l3-dsr` beside them, 0 to the greater of the two; 0 = none is kept.
    pub dsr_flows: u32,
    /// Clients that may stay with their server, 1,024–1,000,000. See [`PairConfig::persistent_clients`].
    pub persistent_clients: u32,
}

/// One `[[gateway]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayConfig {
    /// The address (`addr()`).
    pub address: IpNet,
    /// The servers' network: that of the address, unless it is link-local.
    pub network: IpNet,
    /// Leg it lives on.
    pub leg: String,
    /// Traffic of the network that is not balanced is routed.
    pub transit: bool,
    /// Hosts that talk to servers directly, past the pair.
    pub direct: Vec<IpNet>,
}

/// One `[[service]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceConfig {
    /// Name, unique in the pair.
    pub name: String,
    /// Address clients call.
    pub vip: IpAddr,
    /// Leg of the VIP; `None` = see [`NamedLegs::of`].
    pub leg: Option<String>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Ports clients call; the list is one affinity.
    pub ports: Vec<PortRange>,
    /// What is rewritten.
    pub mode: Mode,
    /// Clients for which it is something else.
    pub mode_for: Vec<ModeFor>,
    /// Outer header in [`Mode::L3Dsr`].
    pub tunnel: Tunnel,
    /// Translation of clients next to their server; of use in [`Mode::Dnat`] only.
    pub hairpin: Hairpin,
    /// How a server is chosen.
    pub scheduler: Scheduler,
    /// How long after its last connection a client stays with its server, 30 s to 7 days; `None` = it follows its hash.
    /// [`Scheduler::SourceHash`] only.
    pub persistence: Option<Duration>,
    /// Length of the prefix that addresses of one client have in common; `None` = the whole address.
    /// [`Scheduler::SourceHash`] only.
    pub source_prefix: Option<u8>,
    /// SNAT sources; the VIP where the file says nothing.
    pub snat: Vec<SnatSource>,
    /// Established flows end after so long without packets, 1 s to 7 days.
    pub idle_timeout: Duration,
    /// Largest TCP segment both sides are told of, 88 to 9,000 bytes; `None` = as they say.
    pub mss_clamp: Option<u16>,
    /// Each datagram is scheduled on its own, without a flow.
    pub per_packet: bool,
    /// Who may open connections, and how many.
    pub limits: ServiceLimits,
    /// What becomes of the flows of a server that goes down while another is up.
    pub on_server_down: OnServerDown,
    /// When the peer is told of a flow.
    pub sync_after: SyncAfter,
    /// How servers are checked; `None` = every server counts as up.
    pub check: Option<Check>,
    /// The servers.
    pub servers: Vec<ServerConfig>,
}

impl ServiceConfig {
    /// Port a server is checked at: that of the check, else of the server, else the first of the service.
    pub fn check_port(&self, server: &ServerConfig) -> u16 {
        let configured = self.check.as_ref().and_then(|check| check.port).or(server.port);
        configured.unwrap_or_else(|| self.first_port())
    }

    /// Port of the VIP that a server is asked for by its tunnel: that of the check, else the first of the service.
    pub fn called_port(&self) -> u16 {
        let configured = self.check.as_ref().and_then(|check| check.port);
        configured.unwrap_or_else(|| self.first_port())
    }

    fn first_port(&self) -> u16 {
        self.ports.first().map_or(1, |range| range.first())
    }
}

/// When the peer is told of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncAfter {
    /// When it has carried traffic for so long, 0 or 1 s to 1 h.
    Time(Duration),
    /// Never.
    Never,
}

/// Limits of a service; `None` = no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceLimits {
    /// Most connections at a time, closing ones not counted.
    pub max_connections: Option<u32>,
    /// Most new ones a second.
    pub max_new_per_second: Option<u32>,
    /// Most connections of one client address at a time.
    pub max_per_source: Option<u32>,
    /// Only clients in these prefixes, if there is one.
    pub allow: Vec<IpNet>,
    /// No client in these, unless a longer prefix allows it.
    pub deny: Vec<IpNet>,
}

/// What becomes of the flows of a server that goes down while another is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnServerDown {
    /// TCP: reset in answer to the client's next segment. UDP: the next datagram goes to another server.
    Reset,
    /// They stay.
    Keep,
}

/// A source of translated requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnatSource {
    /// The address.
    pub address: IpAddr,
    /// Its ports, both nodes' halves; at least two.
    pub ports: PortRange,
}

/// Protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// As written in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// When a [`Mode::Dnat`] service translates the source as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hairpin {
    /// When client and chosen server share a connected prefix or are the same host.
    Auto,
    /// Never.
    Off,
    /// When the client is in one of these.
    Listed(Vec<IpNet>),
}

/// How a server is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// By a hash of the client that both nodes compute alike.
    Maglev,
    /// In turn, by weight.
    Wrr,
    /// The one with the fewest connections for its weight, of four in turn.
    Wlc,
    /// By a hash of the client's address alone.
    SourceHash,
}

impl Scheduler {
    /// As written in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Maglev => "maglev",
            Self::Wrr => "wrr",
            Self::Wlc => "wlc",
            Self::SourceHash => "source-hash",
        }
    }
}

/// `check`: a TCP connection is made and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Time between the starts of two checks of a server, 100 ms to 1 h.
    pub interval: Duration,
    /// A check without result fails after so long, 10 ms to 60 s, at most `interval`.
    pub timeout: Duration,
    /// Successes in a row that bring a server up, 1–100.
    pub rise: u32,
    /// Failures in a row that take it down, 1–100.
    pub fall: u32,
    /// Port to connect to; `None` = see [`ServiceConfig::check_port`].
    pub port: Option<u16>,
    /// Whether servers of [`Mode::L3Dsr`] are asked by their tunnel, for the VIP.
    pub tunnel: bool,
}

/// One server of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Name, unique in the service.
    pub name: String,
    /// Address.
    pub address: IpAddr,
    /// Port; `None` = the port the client called.
    pub port: Option<u16>,
    /// Share of new flows, 0–255; 0 = none (existing flows go on).
    pub weight: u8,
}
