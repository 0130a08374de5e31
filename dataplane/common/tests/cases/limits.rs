//! What runs out: servers, ports, table, half-open budget, neighbours.

use super::{Case, Talk, balanced::outside, case, case4, expect, expect_drop, forwarded};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Transmit},
    frames::{Body, End, Frame, end, ip, of_family, raw, tcp},
    setup::{S1_MAC, ServiceSpec},
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::State,
    maps::{SnatPool, owned, proto},
};
use std::collections::HashSet;

fn syn_from(client: &str) -> Vec<u8> {
    tcp(client, "192.168.100.100:80", "S", 1, 0).build()
}

fn two_vips(spec: &ServiceSpec<'_>) -> Setup {
    let mut setup = Setup::service(spec).with(&ServiceSpec {
        vip: "192.168.100.101",
        ..spec.clone()
    });
    let (mut key, value) = setup.owned[0];
    key.addr = raw(ip("192.168.100.101"));
    setup.owned.push((
        key,
        onearm_dataplane_common::maps::Owned {
            kinds: owned::SERVICE,
            ..value
        },
    ));
    setup
}

/// One client port, two VIPs, one server.
fn b58<E: Engine>(e: &mut E) {
    let first = Talk {
        client: end("192.168.10.50:40000"),
        ..outside()
    };
    let second = Talk {
        vip: end("192.168.100.101:80"),
        ..first
    };
    let one = first.handshake(e, 1, 2);
    let two = second.handshake(e, 10, 20);
    assert_ne!(one, two, "the server must be able to tell them apart");
    first.server_sends(e, one, Body::Tcp("A", 3, 2));
    second.server_sends(e, two, Body::Tcp("A", 21, 11));
    assert_eq!(e.entries().len(), 4);
}

fn unique_sources<E: Engine>(e: &mut E) {
    let mut sources = HashSet::new();
    for host in 1..=4 {
        for port in (32_760..32_780).chain([1, 65_535]) {
            let client = End(ip(&format!("192.168.10.{host}")), port);
            let source = Talk { client, ..outside() }.syn(e, 1);
            assert!((32_768..=49_151).contains(&source.1));
            if host == 1 && (32_768..49_152).contains(&port) {
                assert_eq!(source.1, port, "the client's own port if it is free");
            }
            assert!(sources.insert(source), "{source:?} twice");
        }
    }
}

fn no_port<E: Engine>(e: &mut E) {
    let mut made = 0;
    for port in 40_000..40_012 {
        let (verdict, _) = e.run(&syn_from(&format!("192.168.10.50:{port}")));
        made += u64::from(verdict == Transmit);
    }
    assert_eq!(made, 8, "as many as there are ports");
    assert_eq!(e.counter(Counter::NoPort), 4);
    assert_eq!(e.entries().len(), 16);
}

/// A range of 1,000 ports, of which this node has them all here, and one remote end.
fn b131<E: Engine>(e: &mut E) {
    let call = |e: &mut E, port, to: &str| {
        let frame = tcp(&format!("192.168.10.50:{port}"), to, "S", 1, 0).build();
        let (verdict, out) = e.run(&frame);
        (verdict == Transmit).then(|| super::ends(&out).0)
    };
    let mut sources = HashSet::new();
    let mut last = None;
    for port in 10_000..11_000 {
        let source = call(e, port, "192.168.100.100:80").expect("1,000 of 1,000");
        assert!((20_000..21_000).contains(&source.1) && sources.insert(source));
        last = Some((port, source));
    }
    assert_eq!(e.counter(Counter::NoPort), 0);
    for port in 11_000..11_003 {
        assert_eq!(call(e, port, "192.168.100.100:80"), None, "the 1,001st");
    }
    assert_eq!(e.counter(Counter::NoPort), 3);
    assert_eq!(e.entries().len(), 2_000);
    let (port, source) = last.expect("some");
    let talk = Talk {
        client: End(ip("192.168.10.50"), port),
        ..outside()
    };
    talk.server_sends(e, source, Body::Tcp("RA", 0, 2));
    assert_eq!(
        call(e, 11_001, "192.168.100.100:80"),
        Some(source),
        "a port that became free is found"
    );
    assert_eq!(call(e, 11_002, "192.168.100.100:80"), None);
    for port in 10_000..11_000 {
        let other = call(e, port, "192.168.100.100:81");
        assert!(other.is_some(), "the same ports to another server");
    }
    assert_eq!(e.entries().len(), 4_000);
}

/// Two servers on ports of their own, and sources of 600 and 400 ports.
fn a_thousand_ports() -> Setup {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT).with(&ServiceSpec {
        port: 81,
        servers: &[2],
        ..ServiceSpec::BOTH_NAT
    });
    let pool = setup.pools[0].1;
    let of = |first, last| SnatPool { first, last, ..pool };
    setup.pools = vec![(0, of(20_000, 20_599)), (1, of(20_600, 20_999))];
    for (_, service) in &mut setup.service {
        service.snat_len = 2;
    }
    setup.node.half_open_budget = 10_000;
    setup
}

/// Eight ports, all of closed flows.
fn ports_rest<E: Engine>(e: &mut E, server_first: bool) {
    let talk = |port| Talk {
        client: End(ip("192.168.10.50"), port),
        ..outside()
    };
    for port in 40_000..40_008 {
        let source = talk(port).handshake(e, 1, 2);
        if server_first {
            talk(port).server_sends(e, source, Body::Tcp("FA", 3, 2));
            talk(port).client_sends(e, source, Body::Tcp("FA", 2, 4));
        } else {
            talk(port).client_sends(e, source, Body::Tcp("FA", 2, 3));
            talk(port).server_sends(e, source, Body::Tcp("FA", 3, 3));
        }
    }
    let kept = talk(40_100).handshake(e, 1, 2);
    for port in 40_101..40_104 {
        talk(port).handshake(e, 1, 2);
    }
    let reused = usize::try_from(e.counter(Counter::PortReused)).expect("few");
    assert!(reused >= 4, "four ports at least were not free");
    assert_eq!(e.entries().len(), 2 * (12 - reused));
    talk(40_100).server_sends(e, kept, Body::Tcp("A", 3, 2));
    let open = e
        .entries()
        .iter()
        .filter(|x| x.state() == State::Established)
        .count();
    assert_eq!(open, 8, "only closed flows gave way");
}

/// Both sides close at the same time, and the server keeps TIME-WAIT: its port goes to nobody while another is free, and
/// the oldest of them when none is. Nobody waits, and who finds no port at all is refused and counted.
fn b56<E: Engine>(e: &mut E) {
    let talk = |port| Talk {
        client: End(ip("192.168.10.50"), port),
        ..outside()
    };
    let closed = talk(40_000);
    let resting = closed.handshake(e, 1, 2);
    closed.client_sends(e, resting, Body::Tcp("FA", 2, 3));
    closed.server_sends(e, resting, Body::Tcp("FA", 3, 2));
    closed.client_sends(e, resting, Body::Tcp("A", 3, 4));
    closed.server_sends(e, resting, Body::Tcp("A", 4, 3));
    for port in 40_001..40_004 {
        assert_ne!(talk(port).handshake(e, 1, 2), resting, "three ports are free");
    }
    assert_eq!(e.counter(Counter::PortReused), 0);
    // Its end is still carried while nobody else needs the port.
    closed.server_sends(e, resting, Body::Tcp("FA", 3, 3));
    assert_eq!(talk(40_004).handshake(e, 1, 2), resting, "it has rested longest");
    assert_eq!((e.counter(Counter::PortReused), e.entries().len()), (1, 8));
    expect_drop(e, &syn_from("192.168.10.50:40005"), Counter::NoPort);
}

/// A port whose client closed first is free at once, however long others have rested.
fn closed_by_the_client<E: Engine>(e: &mut E) {
    let talk = |port| Talk {
        client: End(ip("192.168.10.50"), port),
        ..outside()
    };
    for port in 40_000..40_003 {
        let source = talk(port).handshake(e, 1, 2);
        talk(port).server_sends(e, source, Body::Tcp("FA", 3, 2));
        talk(port).client_sends(e, source, Body::Tcp("FA", 2, 4));
    }
    let free = talk(40_003).handshake(e, 1, 2);
    talk(40_003).client_sends(e, free, Body::Tcp("FA", 2, 3));
    talk(40_003).server_sends(e, free, Body::Tcp("FA", 3, 3));
    assert_eq!(talk(40_004).handshake(e, 1, 2), free);
    assert_eq!((e.counter(Counter::PortReused), e.entries().len()), (1, 8));
}

fn four_ports() -> Setup {
    let mut setup = eight_ports();
    setup.pools[0].1.last = 33_003;
    setup
}

fn eight_ports() -> Setup {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
    setup.pools[0].1.first = 33_000;
    setup.pools[0].1.last = 33_007;
    setup
}

fn no_server<E: Engine>(e: &mut E) {
    expect_drop(e, &syn_from("192.168.10.50:1"), Counter::NoServer);
    assert!(e.entries().is_empty());
}

/// A table of one bucket: eight flows.
fn full<E: Engine>(e: &mut E) {
    let talk = |port| Talk {
        client: End(ip("192.168.10.50"), port),
        ..outside()
    };
    let kept: Vec<_> = (0..7).map(|n| talk(40_000 + n).handshake(e, 1, 2)).collect();
    talk(50_000).syn(e, 1);
    assert_eq!((e.entries().len(), e.half_open()), (16, 1));
    talk(50_001).syn(e, 1);
    assert_eq!((e.counter(Counter::HalfOpenEvicted), e.half_open()), (1, 1));
    let eighth = talk(50_002).handshake(e, 1, 2);
    for n in 0..5 {
        expect_drop(e, &syn_from(&format!("192.168.10.51:{n}")), Counter::TableFull);
    }
    for (n, source) in (0..).zip(&kept) {
        talk(40_000 + n).client_sends(e, *source, Body::Tcp("A", 2, 3));
        talk(40_000 + n).server_sends(e, *source, Body::Tcp("A", 3, 2));
    }
    talk(50_002).server_sends(e, eighth, Body::Tcp("A", 3, 2));
    assert_eq!((e.entries().len(), e.half_open()), (16, 0));
}

fn full_for_udp<E: Engine>(e: &mut E) {
    let talk = |port| Talk {
        client: End(ip("192.168.10.50"), port),
        ..outside()
    };
    let datagram = |port| talk(port).request(Body::Udp(true));
    let ask = |e: &mut E, port| forwarded(e, &datagram(port), end("192.168.100.10:80"), S1_MAC);
    for n in 0..7 {
        let source = ask(e, 1_000 + n);
        talk(1_000 + n).server_sends(e, source, Body::Udp(true));
    }
    // Nobody answers the rest: they give way to each other, and to one that is answered.
    for n in 0..20 {
        ask(e, 2_000 + n);
    }
    assert_eq!(e.counter(Counter::UnansweredEvicted), 19);
    let source = ask(e, 3_000);
    talk(3_000).server_sends(e, source, Body::Udp(true));
    for n in 0..3 {
        expect_drop(e, &datagram(4_000 + n).build(), Counter::TableFull);
        ask(e, 1_000 + n);
    }
    ask(e, 3_000);
    assert_eq!((e.entries().len(), e.counter(Counter::HalfOpenEvicted)), (16, 0));
}

/// Datagrams from addresses a stranger invents fill the table: honest clients find room all the same, of both protocols.
fn b133_invented_datagrams<E: Engine>(e: &mut E) {
    let service = |client: End, vip: &str| Talk {
        client,
        vip: end(vip),
        ..outside()
    };
    let mut answered = Vec::new();
    for n in 0..4_000u32 {
        let stranger = End(of_family((0x0b00_0000 + n * 7_919).into()), 1_024);
        e.run(
            &service(stranger, "192.168.100.100:53")
                .request(Body::Udp(true))
                .build(),
        );
        if n % 40 == 0 {
            let client = End(ip("10.9.9.9"), 1_024 + u16::try_from(n).expect("small"));
            let udp = Talk {
                server: end("192.168.100.10:53"),
                ..service(client, "192.168.100.100:53")
            };
            let source = forwarded(e, &udp.request(Body::Udp(true)), udp.server, udp.server_mac);
            udp.server_sends(e, source, Body::Udp(true));
            answered.push((udp, source));
            service(client, "192.168.100.100:80").handshake(e, 1, 2);
        }
    }
    assert!(e.counter(Counter::UnansweredEvicted) > 3_000);
    for (udp, source) in answered {
        udp.server_sends(e, source, Body::Udp(true));
    }
    let tcp = |x: &&onearm_dataplane_common::flow::FlowEntry| x.proto == proto::TCP;
    assert_eq!(e.entries().iter().filter(tcp).count(), 200);
}

/// A flood of SYNs that nobody completes, with honest clients and an established flow in between.
fn b133<E: Engine>(e: &mut E) {
    let old = Talk {
        client: end("10.0.0.1:1"),
        ..outside()
    };
    let old_source = old.handshake(e, 1, 2);
    for n in 0..2_000u32 {
        let client = End(of_family((0x0b00_0000 + n * 7_919).into()), 1_024);
        e.run(&Frame::new(client, end("192.168.100.100:80"), Body::Tcp("S", n, 0)).build());
        assert!(e.half_open() <= 64, "budget");
        if n % 10 == 0 {
            let honest = Talk {
                client: End(ip("10.9.9.9"), 1_024 + u16::try_from(n).expect("small")),
                ..outside()
            };
            honest.handshake(e, 1, 2);
        }
    }
    old.client_sends(e, old_source, Body::Tcp("A", 2, 3));
    let established = e
        .entries()
        .iter()
        .filter(|x| x.state() == State::Established)
        .count();
    assert_eq!(
        established,
        2 * 201,
        "no established flow is removed for a half-open one"
    );
    assert!(e.counter(Counter::HalfOpenEvicted) > 1_500);
}

fn no_budget<E: Engine>(e: &mut E) {
    expect_drop(e, &syn_from("192.168.10.50:1"), Counter::HalfOpenFull);
}

fn not_resolved<E: Engine>(e: &mut E) {
    let frame = syn_from("192.168.10.50:1");
    expect_drop(e, &frame, Counter::NoNeighbour);
    assert_eq!(expect(e, &frame, Drop), frame, "unchanged");
}

fn mapless<E: Engine>(e: &mut E, reason: Counter) {
    expect_drop(e, &syn_from("192.168.10.50:1"), reason);
    assert!(e.entries().is_empty());
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let mut cases = ports_and_servers();
    cases.extend(table_and_budget());
    cases
}

fn ports_and_servers<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "b58 two VIPs share server and source, both-nat",
            || two_vips(&ServiceSpec::BOTH_NAT),
            b58,
        ),
        case(
            "b58 two VIPs share a server, dnat",
            || two_vips(&ServiceSpec::DNAT),
            b58,
        ),
        case(
            "source ports are unique, of this node's half, the client's own if free",
            || Setup::service(&ServiceSpec::BOTH_NAT),
            unique_sources,
        ),
        case("no free source port", eight_ports, no_port),
        case(
            "b131 every port of two sources is found, and no one more",
            a_thousand_ports,
            b131,
        ),
        case(
            "b56 a port rests after both sides closed at once",
            four_ports,
            b56,
        ),
        case(
            "ports of flows closed by the client are free at once",
            eight_ports,
            |e| ports_rest(e, false),
        ),
        case(
            "a port whose client closed first is reused before those that rest",
            four_ports,
            closed_by_the_client,
        ),
        case(
            "ports of flows closed by the server are reused when all rest",
            eight_ports,
            |e| {
                ports_rest(e, true);
            },
        ),
        case(
            "no live server",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            no_server,
        ),
        case(
            "a server index that is not in use",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[9],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            no_server,
        ),
        case4(
            "a full table refuses new flows and keeps the old",
            || one_bucket(proto::TCP),
            full,
        ),
        case4(
            "a full table refuses datagrams and keeps the old flows",
            || one_bucket(proto::UDP),
            full_for_udp,
        ),
    ]
}

fn table_and_budget<E: Engine>() -> Vec<Case<E>> {
    vec![
        case4(
            "b133 a SYN flood evicts half-open flows only",
            || {
                let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
                setup.node.half_open_budget = 64;
                setup.buckets = 64;
                setup.node.flow_buckets = 64;
                setup
            },
            b133,
        ),
        case(
            "b133 invented datagrams give way",
            || {
                let mut setup = Setup::service(&ServiceSpec::BOTH_NAT).with(&ServiceSpec {
                    proto: proto::UDP,
                    port: 53,
                    ..ServiceSpec::BOTH_NAT
                });
                setup.buckets = 64;
                setup.node.flow_buckets = 64;
                setup.node.flow6_buckets = 64;
                setup
            },
            b133_invented_datagrams,
        ),
        case(
            "no half-open budget at all",
            || {
                let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
                setup.node.half_open_budget = 0;
                setup
            },
            no_budget,
        ),
        case(
            "a server whose next hop is not resolved",
            || {
                let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
                setup.servers[0].1.next_hop = 6;
                setup
            },
            not_resolved,
        ),
        case(
            "a service without a source address",
            || {
                let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
                setup.service[0].1.snat_len = 0;
                setup
            },
            |e| mapless(e, Counter::NoSnatSource),
        ),
    ]
}

fn one_bucket(proto: u8) -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        proto,
        ..ServiceSpec::BOTH_NAT
    });
    setup.buckets = 1;
    setup.node.flow_buckets = 1;
    setup
}
