//! Balanced traffic: both modes, both directions, both protocols.

use super::{Case, Talk, case, forwarded, forwarded_from};
use crate::support::{
    Engine, Setup,
    frames::{Body, end, ip},
    setup::{HALF, ROUTER_MAC, S1_MAC, S2, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::State,
    maps::{proto, scheduler},
};

pub fn outside() -> Talk {
    Talk {
        client: end("192.168.10.50:40000"),
        client_mac: ROUTER_MAC,
        vip: end("192.168.100.100:80"),
        server: end("192.168.100.10:80"),
        server_mac: S1_MAC,
    }
}

/// Handshake, data both ways, close: every frame compared with the model.
fn tcp_conversation<E: Engine>(e: &mut E, source_is_ours: bool) {
    let talk = outside();
    let source = talk.syn(e, 1_000);
    if source_is_ours {
        assert_eq!(source.0, ip(VIP));
        assert!(
            (HALF.0..=HALF.1).contains(&source.1),
            "port {} is not of this node's half",
            source.1
        );
    } else {
        assert_eq!(source, talk.client);
    }
    assert_eq!(e.half_open(), 1);
    talk.server_sends(e, source, Body::Tcp("SA", 9_000, 1_001));
    talk.client_sends(e, source, Body::Tcp("A", 1_001, 9_001));
    assert_eq!(e.half_open(), 0);
    assert!(e.entries().iter().all(|x| x.state() == State::Established));
    for payload in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"x", &[0xff; 1_400]] {
        let request = talk.request(Body::Tcp("A", 1_001, 9_001)).payload(payload);
        forwarded_from(e, &request, source, talk.server, S1_MAC);
        let reply = talk.reply(source, Body::Tcp("A", 9_001, 1_001)).payload(payload);
        forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
    }
    talk.client_sends(e, source, Body::Tcp("FA", 2_000, 9_001));
    talk.server_sends(e, source, Body::Tcp("FA", 9_001, 2_001));
    assert!(e.entries().iter().all(|x| x.state() == State::Closing));
    talk.client_sends(e, source, Body::Tcp("A", 2_001, 9_002));
    assert_eq!(e.entries().len(), 2);
    assert_eq!(e.counters(), [("transmitted", 12), ("flow_created", 1)]);
}

fn udp_exchange<E: Engine>(e: &mut E, checksum: bool) {
    let talk = Talk {
        vip: end("192.168.100.100:53"),
        server: end("192.168.100.10:53"),
        ..outside()
    };
    let mut sources = Vec::new();
    for payload in [b"question".as_slice(), b"", b"odd"] {
        let request = talk.request(Body::Udp(checksum)).payload(payload);
        let source = forwarded(e, &request, talk.server, S1_MAC);
        let reply = talk.reply(source, Body::Udp(checksum)).payload(payload);
        forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
        sources.push(source);
    }
    sources.dedup();
    assert_eq!(sources.len(), 1, "one flow a 5-tuple");
    assert_eq!(e.counters(), [("transmitted", 6), ("flow_created", 1)]);
    assert_eq!(e.half_open(), 0);
}

/// Every payload length of the field case, with addresses and ports that make the sums wrap.
fn b48<E: Engine>(e: &mut E) {
    let talk = Talk {
        client: end("255.254.255.253:65535"),
        ..outside()
    };
    let talk = Talk {
        client: end("223.255.255.255:65535"),
        ..talk
    };
    let source = talk.handshake(e, u32::MAX, u32::MAX);
    for len in (0..=130).chain([1_459, 1_460]) {
        for fill in [0u8, 0xff, 0x5a] {
            let payload = vec![fill; len];
            let request = talk.request(Body::Tcp("A", 0, 0)).payload(&payload);
            forwarded_from(e, &request, source, talk.server, S1_MAC);
            let reply = talk.reply(source, Body::Tcp("A", 0, 0)).payload(&payload);
            forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
        }
    }
}

fn udp(spec: &ServiceSpec<'_>) -> Setup {
    Setup::service(&ServiceSpec {
        port: 53,
        proto: proto::UDP,
        ..spec.clone()
    })
}

/// Two servers by turns: the third connection is the first server's again.
fn round_robin<E: Engine>(e: &mut E) {
    let mut servers = Vec::new();
    for port in 40_000..40_008 {
        let frame = crate::support::frames::tcp("192.168.10.50:1", "192.168.100.100:80", "S", 1, 0);
        let frame = crate::support::frames::Frame {
            from: super::End(frame.from.0, port),
            ..frame
        }
        .build();
        let out = super::expect(e, &frame, crate::support::Verdict::Transmit);
        servers.push(super::ends(&out).1.0);
    }
    let [first, second] = [ip("192.168.100.10"), ip(S2)];
    assert_eq!(
        servers,
        [first, first, first, second, first, first, first, second]
    );
}

/// The same client comes to the same server again, whatever port of the VIP it calls.
fn maglev<E: Engine>(e: &mut E) {
    let mut chosen = std::collections::HashMap::<_, std::collections::HashSet<_>>::new();
    for host in 1..=60 {
        for vip in ["192.168.100.100:80", "192.168.100.100:81"] {
            let from = format!("192.168.10.{host}:4711");
            let out = super::expect(
                e,
                &crate::support::frames::tcp(&from, vip, "S", 1, 0).build(),
                crate::support::Verdict::Transmit,
            );
            chosen.entry(host).or_default().insert(super::ends(&out).1.0);
        }
    }
    assert!(
        chosen.values().all(|servers| servers.len() == 1),
        "one client, one server"
    );
    let first = chosen
        .values()
        .filter(|s| s.contains(&ip("192.168.100.10")))
        .count();
    assert!(
        (15..=45).contains(&first),
        "{first} of 60 clients on one of two servers"
    );
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let both = || Setup::service(&ServiceSpec::BOTH_NAT);
    let dnat = || Setup::service(&ServiceSpec::DNAT);
    vec![
        case("a TCP conversation in both-nat", both, |e| {
            tcp_conversation(e, true);
        }),
        case("a TCP conversation in dnat", dnat, |e| tcp_conversation(e, false)),
        case(
            "a UDP exchange in both-nat",
            || udp(&ServiceSpec::BOTH_NAT),
            |e| udp_exchange(e, true),
        ),
        case(
            "a UDP exchange in dnat",
            || udp(&ServiceSpec::DNAT),
            |e| udp_exchange(e, true),
        ),
        case(
            "b46 no UDP checksum stays none, both-nat",
            || udp(&ServiceSpec::BOTH_NAT),
            |e| {
                udp_exchange(e, false);
            },
        ),
        case(
            "b46 no UDP checksum stays none, dnat",
            || udp(&ServiceSpec::DNAT),
            |e| udp_exchange(e, false),
        ),
        case("b48 every length, sums that wrap, both-nat", both, b48),
        case("b48 every length, sums that wrap, dnat", dnat, b48),
        case(
            "weighted round robin follows its sequence",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[1, 1, 1, 2],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            round_robin,
        ),
        case(
            "maglev keeps a client on its server over all ports",
            || {
                let spec = ServiceSpec {
                    scheduler: scheduler::MAGLEV,
                    servers: &[1, 2, 2, 1, 1, 2],
                    ..ServiceSpec::BOTH_NAT
                };
                let mut setup = Setup::service(&spec).with(&ServiceSpec {
                    port: 81,
                    ..spec.clone()
                });
                setup.service[1].1.table = setup.service[0].1.table;
                setup
            },
            maglev,
        ),
        case(
            "a port of its own on the server, both-nat",
            || {
                let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
                setup.servers[0].1.port = 8080u16.to_be();
                setup
            },
            |e| {
                let talk = Talk {
                    server: end("192.168.100.10:8080"),
                    ..outside()
                };
                talk.handshake(e, 5, 6);
                assert_eq!(e.counter(Counter::FlowCreated), 1);
            },
        ),
        case(
            "a server behind a router gets it by the router's MAC",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[3],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            |e| {
                let talk = Talk {
                    server: end("10.20.30.40:80"),
                    server_mac: ROUTER_MAC,
                    ..outside()
                };
                talk.handshake(e, 5, 6);
            },
        ),
    ]
}
