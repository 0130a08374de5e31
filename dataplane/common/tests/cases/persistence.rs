//! Source hash with persistence: clients that stay with their server while servers come and go.

use super::{Case, End, Talk, balanced::outside, case, direct, ends, expect, forwarded};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, ip, tcp},
    setup::{S1, S1_MAC, S2, S2_MAC, ServiceSpec},
};
use onearm_dataplane_common::{
    counter::Counter,
    maps::{mode, proto, scheduler, server},
    persistence::{Noted, Rule},
};

const CLIENT: &str = "192.168.10.50";
/// So long that no test lives through it.
const LONG: Rule = Rule::new(u32::MAX / 4, 0);
const FIRST: Noted = Noted { server: 1, seen: 0 };
const SECOND: Noted = Noted { server: 2, seen: 0 };

/// Server 2 alone is in the table, as if it were new and took every client. A second service has the same servers.
fn spec() -> ServiceSpec<'static> {
    ServiceSpec {
        scheduler: scheduler::SOURCE_HASH,
        servers: &[2],
        ..ServiceSpec::BOTH_NAT
    }
}

fn setup_of(spec: &ServiceSpec<'_>) -> Setup {
    Setup::service(spec)
        .with(&ServiceSpec {
            port: 81,
            ..spec.clone()
        })
        .persistent(0, LONG)
        .persistent(1, LONG)
}

fn both() -> Setup {
    setup_of(&spec())
}

fn of_mode(mode: u8) -> Setup {
    setup_of(&ServiceSpec { mode, ..spec() })
}

fn server_of<E: Engine>(e: &mut E, client: &str, vip: &str) -> std::net::IpAddr {
    let frame = tcp(client, vip, "S", 1, 0).build();
    ends(&expect(e, &frame, Transmit)).1.0
}

/// Every port of the service leads there; another service and another client do not.
fn stays<E: Engine>(e: &mut E) {
    for port in 1_000..1_008 {
        for vip in ["192.168.100.100:80", "192.168.100.100:82"] {
            assert_eq!(server_of(e, &format!("{CLIENT}:{port}"), vip), ip(S1));
        }
    }
    assert_eq!(e.counter(Counter::ClientStayed), 16);
    assert_eq!(server_of(e, "192.168.10.51:1", "192.168.100.100:80"), ip(S2));
    assert_eq!(server_of(e, &format!("{CLIENT}:1"), "192.168.100.100:81"), ip(S2));
    assert_eq!(e.counter(Counter::ClientStayed), 16);
}

fn two_ports() -> Setup {
    let mut setup = both().noted(0, CLIENT, FIRST);
    let (bits, mut key, index) = setup.services[0];
    key.port = 82_u16.to_be_bytes();
    setup.services.push((bits, key, index));
    setup
}

fn follows_its_hash<E: Engine>(e: &mut E) {
    outside_at(S2, S2_MAC).handshake(e, 1, 2);
    assert_eq!(e.counter(Counter::ClientStayed), 0);
}

fn outside_at(server: &str, mac: super::Mac) -> Talk {
    Talk {
        server: End(ip(server), 80),
        server_mac: mac,
        ..outside()
    }
}

/// One that is down frees its clients; when it is back they are where they were noted meanwhile.
fn dead_server<E: Engine>(e: &mut E) {
    let mut setup = both().noted(0, CLIENT, FIRST);
    setup.servers[0].1.flags = server::USED | 1 << server::WEIGHT_SHIFT;
    e.change(&setup);
    assert_eq!(server_of(e, &format!("{CLIENT}:1"), "192.168.100.100:80"), ip(S2));
    e.change(&both().noted(0, CLIENT, SECOND));
    assert_eq!(server_of(e, &format!("{CLIENT}:2"), "192.168.100.100:80"), ip(S2));
}

/// Weight 0: no client comes, those that are there stay.
fn drained_server<E: Engine>(e: &mut E) {
    let mut setup = both().noted(0, CLIENT, FIRST);
    setup.servers[0].1.flags = server::USED | server::UP;
    e.change(&setup);
    assert_eq!(server_of(e, &format!("{CLIENT}:1"), "192.168.100.100:80"), ip(S1));
    assert_eq!(server_of(e, "192.168.10.51:1", "192.168.100.100:80"), ip(S2));
}

/// A flow has its server whatever is noted of its client.
fn flows_do_not_move<E: Engine>(e: &mut E) {
    let talk = outside_at(S2, S2_MAC);
    let source = talk.handshake(e, 1, 2);
    e.change(&both().noted(0, CLIENT, FIRST));
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    assert_eq!(server_of(e, &format!("{CLIENT}:1"), "192.168.100.100:80"), ip(S1));
}

/// Without flows a segment finds the server of its connection.
fn dsr_without_flow<E: Engine>(e: &mut E) {
    direct::to_server(e, &direct::syn(), S1_MAC);
    direct::to_server(e, &direct::ack(), S1_MAC);
    let mut setup = of_mode(mode::DSR).noted(0, CLIENT, FIRST);
    setup.node.dsr_ways = 0;
    e.load(&setup);
    direct::to_server(e, &direct::ack(), S1_MAC);
    direct::to_server(e, &direct::syn(), S1_MAC);
}

fn network() -> Setup {
    Setup::service(&spec())
        .persistent(0, Rule::new(LONG.ticks(), 8))
        .noted(0, CLIENT, FIRST)
}

/// Clients of one network are one client: for persistence, and for the hash, so that both nodes agree without it.
fn networks<E: Engine>(e: &mut E) {
    for host in [1, 50, 77, 255] {
        let client = format!("192.168.10.{host}:1");
        assert_eq!(server_of(e, &client, "192.168.100.100:80"), ip(S1));
    }
    assert_eq!(server_of(e, "192.168.11.50:1", "192.168.100.100:80"), ip(S2));
    let spec = ServiceSpec {
        servers: &[1, 2, 2, 1, 1, 2, 1, 2],
        ..spec()
    };
    e.load(&Setup::service(&spec).persistent(0, Rule::new(0, 8)));
    let mut first = 0;
    for net in 1..40 {
        let of = |e: &mut E, host| server_of(e, &format!("10.7.{net}.{host}:9"), "192.168.100.100:80");
        let one = of(e, 1);
        assert!((2..6).all(|host| of(e, host * 40) == one));
        first += u32::from(one == ip(S1));
    }
    assert!(
        (8..=31).contains(&first),
        "{first} of 39 networks on one of two servers"
    );
}

fn datagrams<E: Engine>(e: &mut E) {
    let talk = outside_at(S1, S1_MAC);
    let source = forwarded(e, &talk.request(Body::Udp(true)), talk.server, talk.server_mac);
    talk.server_sends(e, source, Body::Udp(true));
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case("a client stays with its server on every port", two_ports, stays),
        case(
            "a client that nobody noted follows its hash",
            both,
            follows_its_hash,
        ),
        case(
            "a client whose time is over follows its hash",
            || {
                Setup::service(&spec())
                    .persistent(0, Rule::new(1, 0))
                    .noted(0, CLIENT, FIRST)
            },
            follows_its_hash,
        ),
        case(
            "nobody stays where no time is configured",
            || {
                let mut setup = both().noted(0, CLIENT, FIRST);
                setup.persistence[0].1 = Rule::default();
                setup
            },
            follows_its_hash,
        ),
        case("a server that is down frees its clients", both, dead_server),
        case("a drained server keeps its clients", both, drained_server),
        case(
            "flows stay where they are whatever is noted",
            both,
            flows_do_not_move,
        ),
        case("clients of one network have one server", network, networks),
        case(
            "a client stays with its server, dnat",
            || of_mode(mode::DNAT).noted(0, CLIENT, FIRST),
            |e| {
                outside_at(S1, S1_MAC).handshake(e, 1, 2);
            },
        ),
        case(
            "a client stays with its server, dsr, with a flow and without",
            || of_mode(mode::DSR).noted(0, CLIENT, FIRST),
            dsr_without_flow,
        ),
        case(
            "a client stays with its server, l3-dsr",
            || {
                let mut setup = of_mode(mode::L3_DSR).noted(0, CLIENT, FIRST);
                setup
                    .tunnels
                    .push((0, onearm_dataplane_common::maps::Tunnel::default()));
                setup
            },
            |e| assert_eq!(direct::server_of(e, &direct::syn()), S1_MAC),
        ),
        case(
            "a client stays with its server, datagrams",
            || {
                setup_of(&ServiceSpec {
                    proto: proto::UDP,
                    ..spec()
                })
                .noted(0, CLIENT, FIRST)
            },
            datagrams,
        ),
    ]
}
