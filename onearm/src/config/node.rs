use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use onearm_types::NodeId;

/// `node.toml`: what is this node's alone and never copied to the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Name for people, at most 63 characters.
    pub name: String,
    /// Which of the two nodes; decides the half of the SNAT ports.
    pub id: NodeId,
    /// VRRP priority, 3–254; the greater one owns when nothing else decides.
    pub priority: u8,
    /// The other node.
    pub peer: Peer,
    /// Group that may use the control socket; `None` = the daemon's own group.
    pub control_group: Option<String>,
    /// Where metrics are served, an address of the loopback; `None` = nowhere.
    pub metrics: Option<SocketAddr>,
    /// The interfaces onearm works on; no other one is ever touched.
    pub legs: Vec<Leg>,
}

impl NodeConfig {
    /// The leg of that name.
    pub fn leg(&self, name: &str) -> Option<&Leg> {
        self.legs.iter().find(|leg| leg.name == name)
    }

    /// The only leg that VIPs can be on without being named, where there is exactly one.
    pub fn only_vip_leg(&self) -> Option<&Leg> {
        let mut legs = self.legs.iter().filter(|leg| leg.role.holds_vips());
        legs.next().filter(|_| legs.next().is_none())
    }
}

impl NodeConfig {
    /// Whether no program may be attached natively: a frame that a native program sends by another leg is lost there unless
    /// that leg is native, too, and a VLAN device never is.
    pub fn is_generic(&self) -> bool {
        let mut traffic = self.legs.iter().filter(|leg| leg.role.carries_traffic());
        traffic.any(|leg| leg.vlan.is_some() || leg.attach == Attach::Generic)
    }
}

/// The other node of the pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its own address on the leg of the adverts.
    pub address: IpAddr,
    /// Beside an IPv4 [`Self::address`]: its link-local address there; adverts then go over both families.
    pub address6: Option<Ipv6Addr>,
    /// Interface of the peer link; `None` = there is none beside the leg.
    pub interface: Option<String>,
    /// The nodes' own addresses on the peer link, where HA datagrams go between them as well.
    pub link: Option<PeerLink>,
    /// File of the pair's key; not read while `ha.auth` is `none`.
    pub key_file: PathBuf,
}

/// The nodes' addresses on the peer link, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLink {
    /// This node's.
    pub own: IpAddr,
    /// The other node's.
    pub peer: IpAddr,
}

impl NodeConfig {
    /// The other node's address that the stream goes to: that on the peer link where there is one.
    pub fn stream_peer(&self) -> IpAddr {
        self.peer.link.map_or(self.peer.address, |link| link.peer)
    }
}

impl Peer {
    /// Every address adverts go to, with the key it is written under.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, IpAddr)> {
        let six = self.address6.map(|address| ("peer.address6", address.into()));
        [("peer.address", self.address)].into_iter().chain(six)
    }
}

/// One interface, or one VLAN of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// Name, the same on both nodes.
    pub name: String,
    /// Kernel interface the leg works on, at most 15 bytes; may differ between the nodes. Of a VLAN it is the VLAN device,
    /// `eth0.100`.
    pub interface: String,
    /// VLAN id 1–4094; `None` = `interface` is no VLAN that the file knows of.
    pub vlan: Option<u16>,
    /// Interface that carries the VLAN.
    pub parent: Option<String>,
    /// What it is for.
    pub role: Role,
    /// How the program is attached.
    pub attach: Attach,
}

/// What a leg is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// VIPs, clients and servers.
    Service,
    /// Servers, and what else has the pair as its way out.
    Inside,
    /// VIPs and clients.
    Outside,
    /// The link to the other node.
    Peer,
}

impl Role {
    /// As written in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Inside => "inside",
            Self::Outside => "outside",
            Self::Peer => "peer",
        }
    }

    /// Whether VIPs live there unless `pair.toml` says otherwise, and adverts prove it.
    pub const fn holds_vips(self) -> bool {
        matches!(self, Self::Service | Self::Outside)
    }

    /// Whether it has a program: balanced traffic comes and goes by it.
    pub const fn carries_traffic(self) -> bool {
        !matches!(self, Self::Peer)
    }
}

/// How the program is attached to a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// Native, else generic with a warning.
    Auto,
    /// Native or not at all.
    Native,
    /// Generic.
    Generic,
}

impl Attach {
    /// As written in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}
