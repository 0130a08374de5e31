//! The pairs that are sent frames to.

use crate::support::{
    Setup,
    frames::{ip, raw, use_v6, v6},
    setup::{HALF, ServiceSpec, VIP, prefix},
};
use onearm_dataplane_common::maps::{
    Addr, Limits, NOT_A_HOST, OwnedKey, SnatPool, SnatRange, Tunnel, hairpin, mode, owned, proto, scheduler,
    service,
};
use onearm_dataplane_common::persistence::Rule;

pub const SETUPS: [&str; 3] = ["roomy", "tight", "limited"];

/// Services of one family.
pub const SERVICES: u32 = 17;
/// Servers of one family have indexes from 1 to this.
pub const SERVERS: u32 = 5;
const NEXT_HOPS: u32 = 6;
const POOLS: u32 = 3;
/// Connected prefixes of one family have ids from 1 to this.
const NETS: u32 = 3;
/// More source addresses, with few ports.
pub const SOURCES: [&str; 2] = ["192.168.100.101", "192.168.100.102"];

/// What packets there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
    Both,
}

impl Family {
    pub const ALL: [Self; 3] = [Self::V4, Self::V6, Self::Both];

    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
            Self::Both => "both",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// The family of a packet that would be an IPv6 one, were there both.
    pub fn of(self, six: bool) -> bool {
        match self {
            Self::V4 => false,
            Self::V6 => true,
            Self::Both => six,
        }
    }
}

/// A setup by name.
pub fn setup(name: &str, family: Family) -> Setup {
    let one = |six| {
        use_v6(six);
        let setup = of_one_family(name);
        use_v6(false);
        setup
    };
    match family {
        Family::V4 => one(false),
        Family::V6 => one(true),
        Family::Both => joined(one(false), one(true)),
    }
}

fn services() -> Setup {
    let spec = |port, mode, hairpin, scheduler, servers| ServiceSpec {
        port,
        proto: if (53..=59).contains(&port) {
            proto::UDP
        } else {
            proto::TCP
        },
        mode,
        hairpin,
        scheduler,
        servers,
        ..ServiceSpec::DNAT
    };
    let (both, dnat, dsr, l3) = (mode::BOTH_NAT, mode::DNAT, mode::DSR, mode::L3_DSR);
    let (off, auto, listed) = (hairpin::OFF, hairpin::AUTO, hairpin::LISTED);
    let (wrr, wlc, maglev, source) = (
        scheduler::WRR,
        scheduler::WLC,
        scheduler::MAGLEV,
        scheduler::SOURCE_HASH,
    );
    [
        spec(80, both, off, wrr, &[1, 2]),
        spec(81, dnat, auto, maglev, &[1, 2, 3, 4, 5]),
        spec(53, both, off, wlc, &[1, 4, 5]),
        spec(54, dnat, off, source, &[2, 3, 4]),
        spec(443, dnat, listed, wrr, &[1, 2]),
        spec(82, dsr, off, wrr, &[1, 2, 5]),
        spec(55, dsr, off, maglev, &[1, 2, 3, 4]),
        spec(83, l3, off, wrr, &[1, 3, 4, 5]),
        spec(84, l3, off, maglev, &[1, 3]),
        spec(56, l3, off, source, &[2, 3]),
        spec(85, dsr | mode::RULES, auto, wrr, &[1, 2]),
        spec(57, dsr, off, wrr, &[1, 2, 5]),
        spec(58, l3, off, maglev, &[1, 3, 4]),
        spec(86, both, off, wrr, &[1, 3, 4]),
        spec(87, dsr, off, wlc, &[1, 2]),
        spec(88, l3 | mode::RULES, off, wrr, &[1, 2, 3]),
        spec(59, both | mode::RULES, off, wrr, &[1, 4]),
    ]
    .iter()
    .fold(Setup::classic(), Setup::with)
}

fn of_one_family(name: &str) -> Setup {
    let (both, dnat) = (mode::BOTH_NAT, mode::DNAT);
    let mut setup = services();
    for service in 0..SERVICES {
        let port = if [8, 12].contains(&service) { 6_080 } else { 0 };
        let varied = [12, 15].contains(&service);
        let tunnel = Tunnel {
            port: u16::to_be(port),
            source: if varied {
                raw(ip("192.168.100.32"))
            } else {
                Addr::NONE
            },
            spread: if varied { 15_u32.to_be() } else { 0 },
            ..Tunnel::default()
        };
        setup.tunnels.push((service, tunnel));
    }
    for (service, host, mode) in [
        (10, "192.168.10.50", both),
        (10, "192.168.10.51", dnat),
        (10, "10.9.0.7", mode::L3_DSR),
        (15, "192.168.10.50", both),
        (15, "192.168.100.66", dnat),
        (15, "10.9.0.7", mode::DSR),
        (16, "192.168.10.50", mode::DSR),
        (16, "10.9.0.7", mode::L3_DSR),
        (16, "192.168.10.51", dnat),
    ] {
        setup.mode_rules.push(prefix(service, host, 32, u32::from(mode)));
    }
    setup.hairpin.push(prefix(4, "192.168.10.0", 24, 1));
    setup.connected.push(prefix(0, "192.168.100.255", 32, NOT_A_HOST));
    setup.servers[1].1.port = 8_080_u16.to_be();
    let ports = if name == "tight" { 1 } else { 5 };
    for (n, source) in (1..).zip(SOURCES) {
        let addr = raw(ip(source));
        let key = OwnedKey { addr, slot: 0 };
        let mut kinds = setup.owned[0].1;
        kinds.kinds = owned::SNAT;
        setup.owned.push((key, kinds));
        let (first, last) = (40_000, 40_000 + ports);
        setup.snat_ranges.push((key, SnatRange { first, last }));
        setup.pools.push((n, SnatPool { addr, first, last }));
    }
    for service in [13, 16] {
        (
            setup.service[service].1.snat_base,
            setup.service[service].1.snat_len,
        ) = (1, 2);
    }
    for (service, mss) in [(13, 1_200), (14, 900), (15, 536)] {
        setup.service[service].1.mss = mss;
    }
    for service in [11, 12] {
        setup.service[service].1.options |= service::PER_PACKET;
    }
    for service in [6, 13, 14] {
        setup.service[service].1.options |= service::CLIENTS;
        let index = u32::try_from(service).expect("few");
        setup
            .clients
            .push(prefix(index, "192.168.10.51", 32, service::DENY));
        setup
            .clients
            .push(prefix(index, "192.168.10.0", 24, service::ALLOW));
    }
    setup.service[13].1.options |= service::LIMITED;
    // Three at once, then one in five seconds.
    let limits = Limits {
        new_cost_ns: 5_000_000_000,
        new_burst_ns: 15_000_000_000,
        ..Limits::default()
    };
    setup.limits.push((13, limits));
    // Server 4's leg takes less, and so does the other interface.
    setup.next_hops[3].1.mtu = 640;
    setup.next_hops[4].1.mtu = 600;
    setup.legs[2].1.mtu = 600;
    setup.node.relay_to_peer = 1;
    setup.buckets = 16;
    if name == "tight" {
        setup.node.relay_to_peer = 0;
        setup.node.half_open_budget = 2;
        setup.node.dsr_ways = 1;
        setup.buckets = 1;
        setup.free_last_hops = 1;
        setup.pools[0].1.last = setup.pools[0].1.first + 1;
        setup.service[0].1.options |= service::LIMITED;
        let limits = Limits {
            max_per_source: 2,
            max_connections: 3,
            ..Limits::default()
        };
        setup.limits.push((0, limits));
    }
    if name == "limited" {
        limit(&mut setup);
    }
    setup.node.flow_buckets = setup.buckets;
    setup.node.flow6_buckets = setup.buckets;
    debug_assert_eq!(HALF.0, setup.pools[0].1.first, "of {VIP}");
    setup
}

/// Clients that stay with their servers, alone or with their network, for long or not, and limits in every mode.
fn limit(setup: &mut Setup) {
    let network = if v6() { 64 } else { 8 };
    for (service, rule) in [
        (0, Rule::new(20_000, 0)),
        (3, Rule::new(300, network)),
        (5, Rule::new(2_000, network)),
        (9, Rule::new(5_000, 0)),
    ] {
        setup.service[service as usize].1.scheduler = scheduler::SOURCE_HASH;
        setup.persistence.push((service, rule));
    }
    for (service, max_connections, max_per_source) in [
        (0, 0, 3),
        (1, 6, 2),
        (2, 4, 0),
        (3, 0, 1),
        (5, 3, 0),
        (7, 2, 0),
        (14, 4, 0),
    ] {
        setup.service[service as usize].1.options |= service::LIMITED;
        let limits = Limits {
            max_connections,
            max_per_source,
            ..Limits::default()
        };
        setup.limits.push((service, limits));
    }
    for (service, host, bits, rule) in [
        (1, "192.168.10.50", 32, service::ALLOW),
        (1, "192.168.10.0", 24, service::DENY),
        (7, "10.9.0.7", 32, service::DENY),
    ] {
        setup.service[service as usize].1.options |= service::CLIENTS;
        setup.clients.push(prefix(service, host, bits, rule));
    }
}

/// One pair for both families.
fn joined(mut four: Setup, six: Setup) -> Setup {
    for ((_, leg), (_, other)) in four.legs.iter_mut().zip(&six.legs) {
        leg.addr6 = other.addr6;
    }
    let base = u64::try_from(four.sched.len() * 4).expect("few");
    four.owned.extend(six.owned);
    four.snat_ranges.extend(six.snat_ranges);
    four.services.extend(
        six.services
            .into_iter()
            .map(|(len, key, n)| (len, key, n + SERVICES)),
    );
    four.service
        .extend(six.service.into_iter().map(|(index, mut service)| {
            service.table += base;
            service.stats += SERVICES;
            service.snat_base += u16::try_from(POOLS).expect("few");
            (index + SERVICES, service)
        }));
    four.persistence
        .extend(six.persistence.into_iter().map(|(n, rule)| (n + SERVICES, rule)));
    four.limits
        .extend(six.limits.into_iter().map(|(n, limits)| (n + SERVICES, limits)));
    let scoped = |list: Vec<(u32, onearm_dataplane_common::maps::ScopedPrefix, u32)>| {
        list.into_iter().map(|(len, mut prefix, value)| {
            let service = u32::from_be_bytes(prefix.scope) + SERVICES;
            prefix.scope = service.to_be_bytes();
            (len, prefix, value)
        })
    };
    four.clients.extend(scoped(six.clients));
    four.hairpin.extend(scoped(six.hairpin));
    four.mode_rules.extend(scoped(six.mode_rules));
    four.tunnels
        .extend(six.tunnels.into_iter().map(|(n, tunnel)| (n + SERVICES, tunnel)));
    let servers = |word: u64| {
        (0..4).rev().fold(0, |sum, n| {
            let server = word >> (n * 16) & 0xffff;
            sum << 16
                | if server == 0 {
                    0
                } else {
                    server + u64::from(SERVERS)
                }
        })
    };
    four.sched.extend(six.sched.into_iter().map(servers));
    four.servers
        .extend(six.servers.into_iter().map(|(index, mut server)| {
            server.next_hop += NEXT_HOPS;
            if server.net != 0 {
                server.net += u16::try_from(NETS).expect("few");
            }
            (index + SERVERS, server)
        }));
    four.pools
        .extend(six.pools.into_iter().map(|(index, pool)| (index + POOLS, pool)));
    four.connected.extend(
        six.connected
            .into_iter()
            .map(|(len, net, id)| (len, net, if id == NOT_A_HOST { id } else { id + NETS })),
    );
    four.server_nets.extend(six.server_nets);
    four.direct.extend(six.direct);
    four.endpoints.extend(six.endpoints);
    four.next_hops
        .extend(six.next_hops.into_iter().map(|(n, hop)| (n + NEXT_HOPS, hop)));
    four.neighbours
        .extend(six.neighbours.into_iter().map(|(key, n)| (key, n + NEXT_HOPS)));
    four.routes.extend(six.routes);
    four
}
