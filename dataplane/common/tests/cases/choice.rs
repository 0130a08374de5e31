//! Which server, which port.

use super::{Case, End, Frame, Talk, balanced::outside, case, direct, ends, expect};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{end, ip, tcp},
    setup::{ROUTER_MAC, S1_MAC, S2, S2_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    maps::{scheduler, server},
};
use std::collections::{HashMap, HashSet};

/// Two servers by turns: the third connection is the first server's again.
fn round_robin<E: Engine>(e: &mut E) {
    let mut servers = Vec::new();
    for port in 40_000..40_008 {
        let frame = tcp("192.168.10.50:1", "192.168.100.100:80", "S", 1, 0);
        let frame = Frame {
            from: End(frame.from.0, port),
            ..frame
        }
        .build();
        let out = expect(e, &frame, Transmit);
        servers.push(ends(&out).1.0);
    }
    let [first, second] = [ip("192.168.100.10"), ip(S2)];
    assert_eq!(
        servers,
        [first, first, first, second, first, first, first, second]
    );
}

/// The same client comes to the same server again, whatever port of the VIP it calls.
fn maglev<E: Engine>(e: &mut E) {
    let mut chosen = HashMap::<_, HashSet<_>>::new();
    for host in 1..=60 {
        for vip in ["192.168.100.100:80", "192.168.100.100:81"] {
            let from = format!("192.168.10.{host}:4711");
            let out = expect(e, &tcp(&from, vip, "S", 1, 0).build(), Transmit);
            chosen.entry(host).or_default().insert(ends(&out).1.0);
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

/// Weighed by its health, not by whether it is configured.
fn direct_server_down<E: Engine>(e: &mut E) {
    direct::to_server(e, &direct::syn(), S1_MAC);
    direct::to_server(e, &direct::ack(), S1_MAC);
    let mut setup = Setup::service(&ServiceSpec {
        servers: &[2],
        ..direct::DSR
    });
    setup.servers[0].1.flags = server::USED | 1 << server::WEIGHT_SHIFT;
    e.change(&setup);
    direct::to_server(e, &direct::ack(), S2_MAC);
    assert_eq!((e.counter(Counter::FlowReopened), e.entries().len()), (1, 1));
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "a direct flow whose server went down goes to another",
            direct::dsr,
            direct_server_down,
        ),
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
            "a range of ports is one service",
            || {
                let mut setup = Setup::service(&ServiceSpec {
                    port: 8_000,
                    ..ServiceSpec::BOTH_NAT
                });
                setup.services[0].0 = 157;
                setup
            },
            |e| {
                for port in [8_000, 8_003, 8_007] {
                    let vip = End(ip(VIP), port);
                    let server = End(ip("192.168.100.10"), port);
                    Talk {
                        vip,
                        server,
                        ..outside()
                    }
                    .handshake(e, 1, 2);
                }
                for port in [7_999, 8_008] {
                    let to = format!("{VIP}:{port}");
                    expect(e, &tcp("192.168.10.50:1", &to, "S", 1, 0).build(), Transmit);
                }
                assert_eq!(
                    (e.counter(Counter::FlowCreated), e.counter(Counter::RefusedTcp)),
                    (3, 2)
                );
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
