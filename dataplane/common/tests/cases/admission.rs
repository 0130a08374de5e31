//! Who may open a flow, which server gets it, and what a server that goes down leaves.

use super::{
    Case, End, Frame, Talk, balanced::outside, case, case4, direct, ends, expect, expect_drop, forwarded,
};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, echo, end, ip, raw, tcp},
    model::verifies,
    setup::{OUR_MAC, ROUTER_MAC, S1, S1_MAC, S2, S2_MAC, ServiceSpec, prefix},
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::State,
    maps::{Limits, NOT_A_HOST, proto, scheduler, server, service},
};
use std::collections::HashMap;

fn talk(host: &str, port: u16) -> Talk {
    Talk {
        client: End(ip(host), port),
        ..outside()
    }
}

fn with_limits(limits: Limits) -> Setup {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
    setup.limits.push((0, limits));
    setup.service[0].1.options = service::LIMITED;
    setup
}

fn syn(host: &str, port: u16) -> Vec<u8> {
    talk(host, port).request(Body::Tcp("S", 1, 0)).build()
}

fn syn_to_nothing(from: &str) -> Vec<u8> {
    tcp(&format!("{from}:1"), "192.168.100.100:81", "S", 1, 0).build()
}

fn most_connections<E: Engine>(e: &mut E) {
    let kept = talk("192.168.10.50", 1).handshake(e, 1, 2);
    talk("192.168.10.51", 1).handshake(e, 1, 2);
    talk("192.168.10.52", 1).syn(e, 1);
    for n in 0..3 {
        expect_drop(e, &syn("192.168.10.53", 1 + n), Counter::MaxConnections);
    }
    let one = talk("192.168.10.50", 1);
    one.client_sends(e, kept, Body::Tcp("FA", 2, 3));
    expect_drop(e, &syn("192.168.10.53", 9), Counter::MaxConnections);
    one.server_sends(e, kept, Body::Tcp("FA", 3, 3));
    talk("192.168.10.53", 1).handshake(e, 1, 2);
    expect_drop(e, &syn("192.168.10.54", 1), Counter::MaxConnections);
    assert_eq!(e.counter(Counter::MaxConnections), 5);
}

fn most_of_one_source<E: Engine>(e: &mut E) {
    for host in ["192.168.10.50", "192.168.10.51"] {
        talk(host, 1).handshake(e, 1, 2);
        talk(host, 2).syn(e, 1);
        for port in 3..6 {
            expect_drop(e, &syn(host, port), Counter::MaxPerSource);
        }
    }
    // A SYN sent again is no new flow, and one that takes a closed flow's place counts once.
    talk("192.168.10.50", 2).syn(e, 1);
    assert_eq!(e.counter(Counter::FlowCreated), 4);
}

/// What opens nothing goes to its server, though no more connections may be opened.
fn segments_are_no_connections<E: Engine>(e: &mut E) {
    direct::to_server(e, &talk("192.168.10.50", 1).request(Body::Tcp("S", 1, 0)), S1_MAC);
    expect_drop(e, &syn("192.168.10.51", 1), Counter::MaxConnections);
    direct::to_server(e, &talk("192.168.10.51", 2).request(Body::Tcp("A", 2, 9)), S1_MAC);
}

/// Whoever closes a connection may open another.
fn closed_ones_count_no_more<E: Engine>(e: &mut E) {
    for port in 1..40 {
        let one = talk("192.168.10.50", port);
        let source = one.handshake(e, 1, 2);
        match port % 3 {
            0 => one.client_sends(e, source, Body::Tcp("R", 2, 0)),
            1 => one.server_sends(e, source, Body::Tcp("RA", 3, 2)),
            _ => {
                one.client_sends(e, source, Body::Tcp("FA", 2, 3));
                one.server_sends(e, source, Body::Tcp("FA", 3, 3));
            }
        }
    }
    // A RST that was not the end: the connection counts again.
    let one = talk("192.168.10.50", 50);
    let source = one.handshake(e, 1, 2);
    one.client_sends(e, source, Body::Tcp("R", 2, 0));
    one.server_sends(e, source, Body::Tcp("A", 3, 2));
    talk("192.168.10.50", 51).handshake(e, 1, 2);
    expect_drop(e, &syn("192.168.10.50", 52), Counter::MaxPerSource);
    // A flow that takes the place of a closed one, and evicted ones, leave the count right.
    one.client_sends(e, source, Body::Tcp("FA", 2, 3));
    one.server_sends(e, source, Body::Tcp("FA", 3, 3));
    one.handshake(e, 70_000, 80_000);
    expect_drop(e, &syn("192.168.10.50", 52), Counter::MaxPerSource);
}

fn rate<E: Engine>(e: &mut E) {
    let mut made = 0;
    for port in 1..=50 {
        let (verdict, _) = e.run(&syn("192.168.10.50", port));
        made += u64::from(verdict == Transmit);
    }
    assert_eq!(made, 2, "a burst");
    assert_eq!(e.counter(Counter::MaxNew), 48);
}

/// 10.0.0.0/8 may, 10.1.0.0/16 may not, 10.1.1.1 may.
fn listed<E: Engine>(e: &mut E, others: bool) {
    for (host, may) in [
        ("10.9.9.9", true),
        ("10.1.2.3", false),
        ("10.1.1.1", true),
        ("11.1.1.1", others),
    ] {
        if may {
            talk(host, 1).handshake(e, 1, 2);
        } else {
            expect_drop(e, &syn(host, 1), Counter::ClientDenied);
        }
    }
}

fn lists(options: u32) -> Setup {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
    setup.service[0].1.options = options;
    setup.clients = vec![
        prefix(0, "10.0.0.0", 8, service::ALLOW),
        prefix(0, "10.1.0.0", 16, service::DENY),
        prefix(0, "10.1.1.1", 32, service::ALLOW),
    ];
    setup
}

/// Flows by server of new connections from `hosts`, none of which end.
fn shares<E: Engine>(e: &mut E, ports: std::ops::Range<u16>) -> HashMap<std::net::IpAddr, u32> {
    let mut shares = HashMap::new();
    for port in ports {
        let out = expect(e, &syn("192.168.10.50", port), Transmit);
        *shares.entry(ends(&out).1.0).or_default() += 1;
    }
    shares
}

/// Server 1 is busy: server 2, which weighs three times as much, gets all until it has three times as many.
fn least_connections<E: Engine>(e: &mut E) {
    let (one, two) = (ip(S1), ip(S2));
    let all = shares(e, 1_000..1_040);
    assert_eq!((all[&one], all[&two]), (10, 30));
    // Twenty of server 2's end.
    let ended: Vec<_> = e
        .entries()
        .iter()
        .filter(|x| x.is_reply() && x.saddr == raw(two))
        .take(20)
        .map(|x| u16::from_be(x.dport))
        .collect();
    for port in ended {
        let reset = Frame::new(
            end("192.168.100.11:80"),
            End(ip("192.168.100.100"), port),
            Body::Tcp("RA", 0, 2),
        );
        expect(e, &reset.via(S2_MAC).build(), Transmit);
    }
    let next = shares(e, 2_000..2_020);
    assert_eq!(
        (next.get(&one), next[&two]),
        (None, 20),
        "those with room get the new ones"
    );
}

/// One client, one server, whatever port it calls from and whatever VIP.
fn by_source<E: Engine>(e: &mut E) {
    let mut of_first = 0;
    for host in 1..=60 {
        let client = format!("192.168.10.{host}");
        let mut chosen = Vec::new();
        for port in 1_000..1_005 {
            let out = expect(e, &syn(&client, port), Transmit);
            chosen.push(ends(&out).1.0);
        }
        let out = expect(
            e,
            &tcp(&format!("{client}:9"), "192.168.100.100:81", "S", 1, 0).build(),
            Transmit,
        );
        chosen.push(ends(&out).1.0);
        assert!(chosen.iter().all(|server| *server == chosen[0]), "{chosen:?}");
        of_first += u32::from(chosen[0] == ip(S1));
    }
    assert!((15..=45).contains(&of_first), "{of_first} of 60 clients");
}

/// The setup with server 1 gone down.
fn down(spec: &ServiceSpec<'_>) -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        servers: &[2],
        ..spec.clone()
    });
    setup.servers[0].1.flags = server::USED | server::RESETS;
    setup
}

fn flow_of_a_dead_server<E: Engine>(e: &mut E, talk: &Talk) -> End {
    let source = talk.handshake(e, 1, 2);
    e.change(&down(&ServiceSpec::BOTH_NAT));
    source
}

fn reset_by_us<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = flow_of_a_dead_server(e, &talk);
    // What the server still sends arrives.
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    for (flags, want) in [("A", [0x50, 0x04]), ("FA", [0x50, 0x04]), ("F", [0x50, 0x14])] {
        let out = expect(
            e,
            &talk.request(Body::Tcp(flags, 2, 77)).payload(b"data").build(),
            Transmit,
        );
        assert_eq!((&out[0..6], &out[6..12]), (&ROUTER_MAC[..], &OUR_MAC[..]));
        assert_eq!(ends(&out), (talk.vip, talk.client));
        let (seq, ack) = if flags.contains('A') {
            (77u32, 0u32)
        } else {
            (0, 2 + 4 + 1)
        };
        assert_eq!(out[38..42], seq.to_be_bytes(), "{flags}");
        assert_eq!(out[42..46], ack.to_be_bytes(), "{flags}");
        assert_eq!(out[46..48], want, "{flags}");
        assert!(verifies(&out));
    }
    assert_eq!(e.counter(Counter::ServerDownReset), 3);
    assert!(e.entries().iter().all(|x| x.state() == State::Closing));
    talk.client_sends(e, source, Body::Tcp("R", 2, 0));
    let second = Talk {
        server: end("192.168.100.11:80"),
        server_mac: S2_MAC,
        ..talk
    };
    second.handshake(e, 10, 20);
}

/// A SYN at once, without a segment before.
fn syn_goes_elsewhere<E: Engine>(e: &mut E) {
    let talk = outside();
    flow_of_a_dead_server(e, &talk);
    let second = Talk {
        server: end("192.168.100.11:80"),
        server_mac: S2_MAC,
        ..talk
    };
    second.handshake(e, 10, 20);
    assert_eq!(e.entries().len(), 2);
}

fn kept<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    let mut setup = down(&ServiceSpec::BOTH_NAT);
    setup.servers[0].1.flags = server::USED;
    e.change(&setup);
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
}

/// Weight 0: out of the table, still up.
fn drained<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    let half_open = Talk {
        client: end("192.168.10.50:40001"),
        ..talk
    };
    let other = half_open.syn(e, 1);
    let mut setup = down(&ServiceSpec::BOTH_NAT);
    setup.servers[0].1.flags = server::USED | server::UP;
    e.change(&setup);
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    assert_eq!(half_open.syn(e, 1), other, "its handshake ends where it began");
    Talk {
        client: end("192.168.10.50:40002"),
        server: end("192.168.100.11:80"),
        server_mac: S2_MAC,
        ..talk
    }
    .handshake(e, 1, 2);
}

/// Another table, with other shares: new flows go by it, those that are there stay.
fn weights_change<E: Engine>(e: &mut E) {
    let ports = 40_000..40_008;
    let of = |port, server: &str, mac| Talk {
        client: End(ip("192.168.10.50"), port),
        server: End(ip(server), 80),
        server_mac: mac,
        ..outside()
    };
    let talks: Vec<(Talk, End)> = ports
        .map(|port| {
            let out = expect(e, &syn("192.168.10.50", port), Transmit);
            let first = ends(&out).1.0 == ip(S1);
            let talk = if first {
                of(port, S1, S1_MAC)
            } else {
                of(port, S2, S2_MAC)
            };
            (talk, talk.handshake(e, 1, 2))
        })
        .collect();
    assert_eq!(
        talks.iter().filter(|(talk, _)| talk.server_mac == S1_MAC).count(),
        4
    );
    for servers in [&[2, 2, 2, 1][..], &[2], &[1]] {
        e.change(&Setup::service(&ServiceSpec {
            servers,
            ..ServiceSpec::BOTH_NAT
        }));
        for (talk, source) in &talks {
            talk.client_sends(e, *source, Body::Tcp("A", 2, 3));
            talk.server_sends(e, *source, Body::Tcp("A", 3, 2));
        }
    }
    let out = expect(e, &syn("192.168.10.50", 50_000), Transmit);
    assert_eq!(ends(&out).1.0, ip(S1));
}

fn datagrams_move<E: Engine>(e: &mut E) {
    let spec = ServiceSpec {
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    };
    let talk = outside();
    let datagram = talk.request(Body::Udp(true));
    forwarded(e, &datagram, talk.server, talk.server_mac);
    e.change(&down(&spec));
    for _ in 0..2 {
        forwarded(e, &datagram, end("192.168.100.11:80"), S2_MAC);
    }
    assert_eq!((e.counter(Counter::ServerDownMoved), e.entries().len()), (1, 2));
}

/// The server is configured no more, or its service was and is again: the sender never pauses, so the flow would not end.
fn b123_datagrams_leave_a_removed_server<E: Engine>(e: &mut E) {
    let spec = ServiceSpec {
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    };
    let talk = outside();
    let datagram = talk.request(Body::Udp(true));
    forwarded(e, &datagram, talk.server, talk.server_mac);
    let mut removed = down(&spec);
    removed.servers[0].1.flags = server::USED | server::MOVES;
    e.change(&removed);
    forwarded(e, &datagram, end("192.168.100.11:80"), S2_MAC);
    let mut gone = removed.clone();
    gone.services.clear();
    gone.servers[1].1.flags = server::USED | server::MOVES;
    e.change(&gone);
    expect(e, &datagram.build(), Transmit);
    assert_eq!(
        e.counter(Counter::RefusedUdp),
        1,
        "port unreachable: there is no service"
    );
    e.change(&Setup::service(&spec));
    forwarded(e, &datagram, end("192.168.100.11:80"), S2_MAC);
    assert_eq!(
        e.entries().len(),
        2,
        "it stays with the server it has, which is back"
    );
}

/// TCP connections to a removed server stay.
fn connections_stay_with_a_removed_server<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    let mut setup = down(&ServiceSpec::BOTH_NAT);
    setup.servers[0].1.flags = server::USED | server::MOVES;
    e.change(&setup);
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
}

/// Nothing is kept of calls to ports where there is no service.
fn b51<E: Engine>(e: &mut E) {
    for _ in 0..3 {
        expect(e, &syn("192.168.10.50", 4_000), Transmit);
    }
    assert_eq!((e.counter(Counter::RefusedTcp), e.entries().len()), (3, 0));
    e.change(&Setup::service(&ServiceSpec::BOTH_NAT));
    talk("192.168.10.50", 4_000).handshake(e, 1, 2);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let mut cases = limits();
    cases.extend(servers());
    cases
}

fn limits<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "a segment that opens nothing counts for no limit",
            direct_limits,
            segments_are_no_connections,
        ),
        case(
            "max_connections counts what is not closing",
            || {
                with_limits(Limits {
                    max_connections: 3,
                    ..Limits::default()
                })
            },
            most_connections,
        ),
        case(
            "max_per_source counts each client's flows",
            || {
                with_limits(Limits {
                    max_per_source: 2,
                    ..Limits::default()
                })
            },
            most_of_one_source,
        ),
        case(
            "max_per_source counts no closed connection",
            || {
                with_limits(Limits {
                    max_per_source: 2,
                    ..Limits::default()
                })
            },
            closed_ones_count_no_more,
        ),
        case(
            "max_new_per_second lets a burst pass",
            || {
                with_limits(Limits {
                    new_cost_ns: 60_000_000_000,
                    new_burst_ns: 120_000_000_000,
                    ..Limits::default()
                })
            },
            rate,
        ),
        case(
            "the longest prefix decides who may call",
            || lists(service::CLIENTS),
            |e| listed(e, true),
        ),
        case(
            "with an allow list the others may not",
            || lists(service::CLIENTS | service::ALLOWED_ONLY),
            |e| listed(e, false),
        ),
        case(
            "a directed broadcast address is no source: not translated, not answered",
            || {
                let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
                for addr in ["192.168.100.0", "192.168.100.255"] {
                    setup.connected.push(prefix(0, addr, 32, NOT_A_HOST));
                }
                setup
            },
            |e| {
                for from in ["192.168.100.0", "192.168.100.255"] {
                    expect_drop(e, &syn(from, 1), Counter::BadSource);
                    expect_drop(e, &syn_to_nothing(from), Counter::BadSource);
                    expect_drop(e, &echo(from, "192.168.100.100").build(), Counter::BadSource);
                }
                assert!(e.entries().is_empty());
            },
        ),
        case(
            "b51 nothing is remembered of a port without a service",
            Setup::classic,
            b51,
        ),
    ]
}

fn direct_limits() -> Setup {
    let mut setup = direct::dsr();
    let limits = Limits {
        max_connections: 1,
        ..Limits::default()
    };
    setup.limits.push((0, limits));
    setup.service[0].1.options = service::LIMITED;
    setup
}

fn servers<E: Engine>() -> Vec<Case<E>> {
    let one = || Setup::service(&ServiceSpec::BOTH_NAT);
    vec![
        case(
            "least connections fill up who has fewest for its weight",
            || {
                let mut setup = Setup::service(&ServiceSpec {
                    scheduler: scheduler::WLC,
                    servers: &[2, 1, 2, 2],
                    ..ServiceSpec::BOTH_NAT
                });
                setup.servers[1].1.flags = server::USED | server::UP | 3 << server::WEIGHT_SHIFT;
                setup
            },
            least_connections,
        ),
        case(
            "source hash looks at the client's address alone",
            || {
                let spec = ServiceSpec {
                    scheduler: scheduler::SOURCE_HASH,
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
            by_source,
        ),
        case4("a server that went down: the client is told", one, reset_by_us),
        case(
            "a server that went down: a SYN goes elsewhere",
            one,
            syn_goes_elsewhere,
        ),
        case("a server that went down: flows may stay", one, kept),
        case(
            "a change of weights moves no flow",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[1, 2],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            weights_change,
        ),
        case(
            "a drained server keeps its flows and gets no new one",
            one,
            drained,
        ),
        case(
            "a server that went down: datagrams go elsewhere",
            || {
                Setup::service(&ServiceSpec {
                    proto: proto::UDP,
                    ..ServiceSpec::BOTH_NAT
                })
            },
            datagrams_move,
        ),
        case(
            "b123 datagrams leave a server that was removed",
            || {
                Setup::service(&ServiceSpec {
                    proto: proto::UDP,
                    ..ServiceSpec::BOTH_NAT
                })
            },
            b123_datagrams_leave_a_removed_server,
        ),
        case(
            "connections stay with a server that was removed",
            one,
            connections_stay_with_a_removed_server,
        ),
    ]
}
