//! What a pair is to serve, said once for onearm and its peers alike.

use std::{net::Ipv4Addr, time::Duration};

use crate::topology::{self, GATEWAY, VIP};

/// How a service's packets are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Source and destination.
    BothNat,
    /// Destination; the server answers through the gateway address.
    Dnat,
}

impl Mode {
    /// The word in `pair.toml`.
    pub fn word(self) -> &'static str {
        match self {
            Self::BothNat => "both-nat",
            Self::Dnat => "dnat",
        }
    }
}

/// A balanced target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name in the configuration.
    pub name: String,
    /// Address.
    pub address: Ipv4Addr,
    /// Port; none: the port the client called.
    pub port: Option<u16>,
    /// Share of new flows.
    pub weight: u32,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Name in the configuration.
    pub name: String,
    /// Address clients call.
    pub vip: Ipv4Addr,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Ports clients call.
    pub ports: Vec<u16>,
    /// How packets are rewritten.
    pub mode: Mode,
    /// `maglev` or `wrr`.
    pub scheduler: &'static str,
    /// Whether servers are checked by a TCP connect.
    pub checked: bool,
    /// Balanced targets.
    pub servers: Vec<Server>,
}

/// A pair: what `pair.toml` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSpec {
    /// Advert interval.
    pub interval: Duration,
    /// Priority of lb1 and lb2.
    pub priorities: [u8; 2],
    /// Gateway addresses, all on the one leg, /24.
    pub gateways: Vec<Ipv4Addr>,
    /// Services.
    pub services: Vec<Service>,
    /// Addresses named in adverts.
    pub announce: Vec<Ipv4Addr>,
    /// Whether the peer is reached over `eth1` instead of the leg.
    pub peer_link: bool,
    /// Flow-table size.
    pub max_flows: u32,
    /// Interval of health checks.
    pub check_interval: Duration,
    /// Announcements a second; none: the product's default.
    pub announce_rate: Option<u32>,
}

/// Servers of the segment by short name, all of weight 1.
pub fn servers(names: &[&str]) -> Vec<Server> {
    names
        .iter()
        .map(|name| Server {
            name: (*name).to_owned(),
            address: topology::address(name),
            port: None,
            weight: 1,
        })
        .collect()
}

impl Service {
    /// A service of the VIP over `names`.
    pub fn new(name: &str, protocol: &'static str, port: u16, mode: Mode, names: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            vip: VIP,
            protocol,
            ports: vec![port],
            mode,
            scheduler: "maglev",
            checked: protocol == "tcp",
            servers: servers(names),
        }
    }
}

impl PairSpec {
    /// A pair with the gateway address of the drawing, a web service on port 80 and the UDP echo, both in `mode`.
    pub fn web_and_echo(mode: Mode, interval: Duration) -> Self {
        let all = ["s1", "s2", "s3"];
        Self {
            interval,
            priorities: [150, 100],
            gateways: vec![GATEWAY],
            services: vec![
                Service::new("web", "tcp", 80, mode, &all),
                Service::new("echo", "udp", crate::measure::echo::PORT, mode, &all),
            ],
            announce: vec![VIP],
            peer_link: false,
            max_flows: 65_536,
            check_interval: Duration::from_millis(500),
            announce_rate: None,
        }
    }

    /// RFC 9568 §6.1: three intervals and the skew of node `index`, in ns.
    pub fn active_down(&self, index: usize) -> crate::clock::Nanos {
        let interval = crate::clock::nanos(self.interval);
        let priority = u64::from(self.priorities.get(index).copied().unwrap_or(100));
        3 * interval + interval * (256 - priority) / 256
    }

    /// All addresses that belong to the pair, without repetition.
    pub fn owned(&self) -> Vec<Ipv4Addr> {
        let mut all: Vec<_> = self
            .services
            .iter()
            .map(|s| s.vip)
            .chain(self.gateways.iter().copied())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
