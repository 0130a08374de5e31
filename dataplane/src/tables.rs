//! The desired state in dataplane terms: plain data, compiled into the slot of the maps that is not in force.

mod address;
mod check;
mod compile;
mod error;
mod image;
mod ports;

pub use error::TablesError;

pub(crate) use address::{bits, narrow, wide};
pub(crate) use compile::{Compiled, Registry, Rescheduled, ServiceState, compile};
pub(crate) use image::{Entry, Image};

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use onearm_dataplane_common::maps::Limits;
use onearm_dataplane_common::refusal::Rate;
use onearm_types::GroupId;
use serde::{Deserialize, Serialize};

/// Everything one generation of the configuration asks of the dataplane. Legs, routes and neighbours are not in here:
/// they belong to the node (`Dataplane::set_legs`, `Dataplane::set_next_hops`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Addresses the pair owns: service VIPs, gateway addresses, SNAT sources. Each once, kinds or-ed.
    pub owned: Vec<OwnedAddress>,
    /// Services. At most 4,096.
    pub services: Vec<ServiceSpec>,
    /// Networks whose hosts use a gateway address as default route: frames from them are transit.
    pub server_networks: Vec<ServerNetwork>,
    /// Hosts that talk to servers directly: their traffic with servers is not treated as leaked replies.
    pub direct: Vec<IpNet>,
    /// Prefixes connected to a leg: two addresses in the same one reach each other without a router (hairpin).
    pub connected: Vec<IpNet>,
    /// Ports of owned addresses that **either** node may use as source: never refused. Each address once.
    pub snat_ranges: Vec<SnatRangeSpec>,
}

/// What an owned address is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "an address may be several of them")]
pub struct OwnedKinds {
    /// A service VIP.
    pub service: bool,
    /// A gateway address.
    pub gateway: bool,
    /// A source of translated requests.
    pub snat: bool,
    /// The other node's alone: answered for and announced, and flows that are there go on, but none begins.
    pub orphan: bool,
}

/// An address of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedAddress {
    /// The address.
    pub addr: IpAddr,
    /// Uses.
    pub kinds: OwnedKinds,
    /// Leg on which ARP for it is answered.
    pub leg: u8,
    /// Ownership group.
    pub group: GroupId,
}

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// How packets of a service are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Source and destination rewritten.
    BothNat,
    /// Destination rewritten; servers answer through the gateway address.
    Dnat,
    /// The frame goes to the server, the packet stays as it is; the server holds the VIP and answers its client itself.
    Dsr,
    /// The packet goes to the server in an IP tunnel; the server holds the VIP and answers its client itself.
    L3Dsr,
}

impl Mode {
    /// As configuration and status write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BothNat => "both-nat",
            Self::Dnat => "dnat",
            Self::Dsr => "dsr",
            Self::L3Dsr => "l3-dsr",
        }
    }

    /// Servers answer their clients themselves, past the pair, with the VIP as their own address.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Dsr | Self::L3Dsr)
    }
}

/// The outer header of [`Mode::L3Dsr`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelSpec {
    /// UDP port of GUE variant 1, not 0; `None` = IPIP, or IP6IP6 for IPv6.
    pub gue_port: Option<u16>,
    /// Outer sources: a flow keeps one of them. At most 32 bits of the prefix may vary. `None` = the leg's own address.
    pub sources: Option<IpNet>,
}

/// How a server is chosen for a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Weighted Maglev hashing of client and VIP.
    Maglev,
    /// Weighted round robin.
    Wrr,
    /// Weighted least connections: of four servers in turn the one with the fewest for its weight.
    Wlc,
    /// Weighted Maglev hashing of the client's address alone.
    SourceHash,
}

/// When a `dnat` service treats a flow as Both-NAT because the server would answer the client directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hairpin {
    /// Never.
    Off,
    /// When client and chosen server are in the same connected prefix, or are the same address.
    Auto,
    /// When the client is in one of these prefixes.
    Listed(Vec<IpNet>),
}

/// A service. Its identity over generations is its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Identity: unique, kept while the service is the same to its users (its counters and flows follow the name).
    pub name: String,
    /// The address clients call.
    pub vip: IpAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Ports, 1 to 65,535; ranges are inclusive. All of them are one affinity.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Rewriting.
    pub mode: Mode,
    /// Clients with another mode; the longest prefix counts. Each prefix once.
    pub mode_for: Vec<(IpNet, Mode)>,
    /// Outer header where a mode is [`Mode::L3Dsr`].
    pub tunnel: TunnelSpec,
    /// Scheduler.
    pub scheduler: Scheduler,
    /// How long clients stay with their server; looked at for [`Scheduler::SourceHash`] only.
    pub persistence: Persistence,
    /// Hairpin; looked at for [`Mode::Dnat`] only.
    pub hairpin: Hairpin,
    /// Ownership group.
    pub group: GroupId,
    /// Source addresses with **this node's** half of their ports. Needed for Both-NAT and hairpin.
    pub snat: Vec<SnatPoolSpec>,
    /// Idle time-out of established flows (TCP) or of flows with replies (UDP). At most nine years.
    pub idle_timeout: Duration,
    /// Largest TCP segment, bytes, that both sides are told of; `None` = as they say.
    pub mss_clamp: Option<u16>,
    /// Each datagram is scheduled on its own, and no flow is kept of it. UDP in direct modes only, without limits.
    pub per_packet: bool,
    /// Who may open a flow.
    pub limits: LimitsSpec,
    /// What becomes of the flows of a server that goes down while another is up.
    pub on_server_down: OnServerDown,
    /// How long a flow must have carried traffic before the peer is told of it; zero = at once, `None` = it never is.
    pub sync_after: Option<Duration>,
    /// Servers, at most 256.
    pub servers: Vec<ServerSpec>,
}

/// Which clients are one client to [`Scheduler::SourceHash`], and how long they stay with their server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Persistence {
    /// After their last flow; `None` = they follow their hash alone. At most nine years.
    pub time: Option<Duration>,
    /// Length of the prefix that the addresses of one client have in common; `None` = the whole address.
    pub prefix: Option<u8>,
}

/// Limits of a service's new flows; `None` = no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsSpec {
    /// Most flows at a time, closing ones not counted; at least 1.
    pub max_connections: Option<u32>,
    /// Most new flows a second, at least 1; a tenth of them at once.
    pub max_new_per_second: Option<u32>,
    /// Most flows of one client address at a time; at least 1.
    pub max_per_source: Option<u32>,
    /// Only clients in these prefixes, if there is one.
    pub allow: Vec<IpNet>,
    /// No client in these, unless a longer prefix allows it.
    pub deny: Vec<IpNet>,
}

impl LimitsSpec {
    /// As the programs read it.
    pub(crate) fn value(&self) -> Limits {
        let rate = self
            .max_new_per_second
            .map(|n| Rate::new(u64::from(n.max(1)), u64::from(n / 10).max(1)));
        Limits {
            max_connections: self.max_connections.unwrap_or(0),
            max_per_source: self.max_per_source.unwrap_or(0),
            new_cost_ns: rate.map_or(0, |rate| rate.cost_ns),
            new_burst_ns: rate.map_or(0, |rate| rate.burst_ns),
        }
    }
}

/// What becomes of the flows of a server that goes down while another is up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnServerDown {
    /// TCP: reset in answer to the client's next segment. UDP: the next datagram goes to another server.
    #[default]
    Reset,
    /// They stay.
    Keep,
}

impl ServiceSpec {
    /// Every mode that some client of the service has.
    pub fn modes(&self) -> impl Iterator<Item = Mode> {
        std::iter::once(self.mode).chain(self.mode_for.iter().map(|(_, mode)| *mode))
    }
}

/// A server of a service. Its identity within the service is address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    /// Identity.
    pub id: ServerId,
    /// Share of new flows relative to the service's other servers; 0 = drained.
    pub weight: u16,
    /// Healthy: takes new flows.
    pub up: bool,
}

/// Identity of a server within its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerId {
    /// Address.
    pub addr: IpAddr,
    /// Port; 0 = the port the client called.
    pub port: u16,
}

/// A source address with a range of ports, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatPoolSpec {
    /// The address; owned.
    pub addr: IpAddr,
    /// First port, at least 1.
    pub first: u16,
    /// Last port, at least `first`.
    pub last: u16,
}

/// Ports of an owned address that either node may use as source, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatRangeSpec {
    /// The address; owned.
    pub addr: IpAddr,
    /// First port, at least 1.
    pub first: u16,
    /// Last port, at least `first`.
    pub last: u16,
}

/// A network of servers behind a gateway address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerNetwork {
    /// The network.
    pub network: IpNet,
    /// The gateway address its hosts use: source of ICMP errors to them.
    pub gateway: IpAddr,
}

/// A change of one server between two generations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerChange {
    /// Service by name.
    pub service: String,
    /// Server.
    pub server: ServerId,
    /// New weight, if it changes.
    pub weight: Option<u16>,
    /// New health, if it changes.
    pub up: Option<bool>,
}

#[cfg(test)]
pub(crate) mod tests;
