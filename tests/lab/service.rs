//! What a pair is to serve, said once for onearm and its peers alike.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use crate::topology::{self, Family, GATEWAY, VIP};

/// How a service's packets are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Source and destination.
    BothNat,
    /// Destination; the server answers through the gateway address.
    Dnat,
    /// Nothing but MACs; the server has the VIP on its loopback and answers the client itself.
    Dsr,
    /// Nothing inside a tunnel to the server, which has the VIP and answers the client itself.
    L3Dsr,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::BothNat, Self::Dnat, Self::Dsr, Self::L3Dsr];

    /// Whether servers answer clients past the pair, so that the VIP must be theirs, too.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Dsr | Self::L3Dsr)
    }

    /// The word in `pair.toml`.
    pub fn word(self) -> &'static str {
        match self {
            Self::BothNat => "both-nat",
            Self::Dnat => "dnat",
            Self::Dsr => "dsr",
            Self::L3Dsr => "l3-dsr",
        }
    }
}

/// A balanced target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name in the configuration.
    pub name: String,
    /// Address.
    pub address: IpAddr,
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
    pub vip: IpAddr,
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
    /// Source addresses; none: the VIP.
    pub snat: Vec<IpAddr>,
    /// How long a flow lives without packets; none: the product's default.
    pub idle_timeout: Option<Duration>,
    /// More lines of the table, as they stand in the file.
    pub more: String,
}

/// Mode of conntrackd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conntrackd {
    /// With acknowledgement and repetition.
    FtFw,
    /// Without.
    Notrack,
}

/// A pair: what `pair.toml` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSpec {
    /// Advert interval.
    pub interval: Duration,
    /// `hmac`, with a key of the lab, or `none`.
    pub auth: &'static str,
    /// Priority of lb1 and lb2.
    pub priorities: [u8; 2],
    /// Gateway addresses, all on the one leg, /24 or /64. A link-local one is that of the segment's IPv6 network.
    pub gateways: Vec<IpAddr>,
    /// Services.
    pub services: Vec<Service>,
    /// Addresses named in adverts.
    pub announce: Vec<IpAddr>,
    /// Whether `eth1` is a peer link beside the leg.
    pub peer_link: bool,
    /// Whether VIPs are on leg `wan` (`eth0`), gateways and servers on leg `lan` (`eth1`).
    pub two_arms: bool,
    /// VLAN of the nodes' leg; of two arms the inside has the next one.
    pub vlan: Option<u16>,
    /// Flow-table size.
    pub max_flows: u32,
    /// Interval of health checks.
    pub check_interval: Duration,
    /// Announcements a second; none: the product's default.
    pub announce_rate: Option<u32>,
    /// Host that the nodes ask for signs of life; none: servers of the leg.
    pub witness: Option<Ipv4Addr>,
    /// Whether the nodes record what their elections are given.
    pub record: bool,
    /// How conntrackd sends, where it runs.
    pub conntrackd: Conntrackd,
}

/// Servers of the segment by short name, all of weight 1.
pub fn servers(names: &[&str]) -> Vec<Server> {
    names
        .iter()
        .map(|name| Server {
            name: (*name).to_owned(),
            address: topology::address(name).into(),
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
            vip: VIP.into(),
            protocol,
            ports: vec![port],
            mode,
            scheduler: "maglev",
            checked: protocol == "tcp",
            servers: servers(names),
            snat: Vec::new(),
            idle_timeout: None,
            more: String::new(),
        }
    }
}

impl PairSpec {
    /// A pair with the gateway address of the drawing, a web service on port 80 and the UDP echo, both in `mode`.
    pub fn web_and_echo(mode: Mode, interval: Duration) -> Self {
        let all = ["s1", "s2", "s3"];
        Self {
            interval,
            auth: "hmac",
            priorities: [150, 100],
            gateways: vec![GATEWAY.into()],
            services: vec![
                Service::new("web", "tcp", 80, mode, &all),
                Service::new("echo", "udp", crate::measure::echo::PORT, mode, &all),
            ],
            announce: vec![VIP.into()],
            peer_link: false,
            two_arms: false,
            vlan: None,
            max_flows: 65_536,
            check_interval: Duration::from_millis(500),
            announce_rate: None,
            witness: None,
            record: false,
            conntrackd: Conntrackd::FtFw,
        }
    }

    /// The same with the addresses of `family`.
    #[must_use]
    pub fn of_family(mut self, family: Family) -> Self {
        if family == Family::V6 {
            self.gateways = vec![topology::GATEWAY6.into()];
            self.announce = vec![topology::VIP6.into()];
            for service in &mut self.services {
                service.vip = topology::VIP6.into();
                for server in &mut service.servers {
                    server.address = topology::address6(&server.name).into();
                }
            }
        }
        self
    }

    /// The same in plain VRRP.
    #[must_use]
    pub fn without_authentication(mut self) -> Self {
        self.auth = "none";
        self
    }

    /// The same with VIPs outside and servers inside.
    #[must_use]
    pub fn with_two_arms(mut self) -> Self {
        self.two_arms = true;
        for gateway in &mut self.gateways {
            *gateway = match gateway {
                IpAddr::V4(_) => topology::INSIDE_GATEWAY.into(),
                IpAddr::V6(_) => topology::INSIDE_GATEWAY6.into(),
            };
        }
        for server in self.services.iter_mut().flat_map(|service| &mut service.servers) {
            server.address = match server.address {
                IpAddr::V4(_) => topology::inside_address(&server.name).into(),
                IpAddr::V6(_) => topology::inside_address6(&server.name).into(),
            };
        }
        self
    }

    /// The same services and gateways in both families; the names of IPv6 ones end in 6.
    #[must_use]
    pub fn in_both_families(mut self) -> Self {
        let six = self.clone().of_family(Family::V6);
        self.gateways.extend(six.gateways);
        for mut service in six.services {
            service.name.push('6');
            self.services.push(service);
        }
        self
    }

    /// RFC 9568 §6.1: three intervals and the skew of node `index`, in ns.
    pub fn active_down(&self, index: usize) -> crate::clock::Nanos {
        let interval = crate::clock::nanos(self.interval);
        let priority = u64::from(self.priorities.get(index).copied().unwrap_or(100));
        3 * interval + interval * (256 - priority) / 256
    }

    /// All IPv4 addresses that belong to the pair, without repetition.
    pub fn owned(&self) -> Vec<Ipv4Addr> {
        let mut all: Vec<_> = self
            .services
            .iter()
            .map(|s| s.vip)
            .chain(self.gateways.iter().copied())
            .filter_map(|address| match address {
                IpAddr::V4(v4) => Some(v4),
                IpAddr::V6(_) => None,
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
