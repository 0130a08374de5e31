//! Servers that answer their clients themselves: `dsr`, `l3-dsr`, and modes by client.

use super::{Case, Talk, balanced::outside, case, expect, expect_drop};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Redirect, Transmit},
    frames::{Body, End, Frame, Mac, end, ip, raw, v6},
    model::{Layout, ends, identify, outer, routed},
    setup::{
        OTHER_MAC, OUR_ADDR, OUR_MAC, PEER_MAC, ROUTER_MAC, S1, S1_MAC, S2, S2_MAC, S3, ServiceSpec, VIP,
        prefix,
    },
};
use onearm_dataplane_common::{
    addr::Addr,
    counter::Counter,
    flow::State,
    maps::{Tunnel, mode, proto, scheduler, server, service},
};

pub const DSR: ServiceSpec<'static> = ServiceSpec {
    mode: mode::DSR,
    ..ServiceSpec::BOTH_NAT
};
pub const GUE_PORT: u16 = 6080;

pub fn dsr() -> Setup {
    Setup::service(&DSR)
}

pub fn dsr_udp() -> Setup {
    Setup::service(&ServiceSpec {
        proto: proto::UDP,
        ..DSR
    })
}

/// Two servers, by turns for new connections.
pub fn dsr_two() -> Setup {
    Setup::service(&ServiceSpec {
        servers: &[1, 2],
        ..DSR
    })
}

/// Two servers, by hash.
pub fn dsr_hash() -> Setup {
    Setup::service(&ServiceSpec {
        servers: &[1, 2],
        scheduler: scheduler::MAGLEV,
        ..DSR
    })
}

pub fn l3(server: u16, proto: u8, tunnel: Tunnel) -> Setup {
    let servers = [server];
    let mut setup = Setup::service(&ServiceSpec {
        mode: mode::L3_DSR,
        servers: &servers,
        proto,
        ..DSR
    });
    setup.tunnels.push((0, tunnel));
    setup
}

pub fn ipip() -> Setup {
    l3(3, proto::TCP, Tunnel::default())
}

pub fn gue() -> Setup {
    let tunnel = Tunnel {
        port: GUE_PORT.to_be(),
        ..Tunnel::default()
    };
    l3(3, proto::TCP, tunnel)
}

/// The frame as a `dsr` server gets it: other MACs, nothing else.
pub fn handed(frame: &[u8], from: Mac, to: Mac) -> Vec<u8> {
    [&to[..], &from[..], &frame[12..]].concat()
}

pub fn call(body: Body) -> Frame {
    outside().request(body)
}

pub fn syn() -> Frame {
    call(Body::Tcp("S", 1, 0))
}

pub fn ack() -> Frame {
    call(Body::Tcp("A", 2, 9))
}

#[track_caller]
pub fn to_server<E: Engine>(e: &mut E, frame: &Frame, mac: Mac) {
    let frame = frame.build();
    assert_eq!(expect(e, &frame, Transmit), handed(&frame, OUR_MAC, mac));
}

/// Datagrams of one client, none of which needs the server of the one before.
pub fn per_packet(scheduler: u8) -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        servers: &[1, 2],
        proto: proto::UDP,
        scheduler,
        ..DSR
    });
    setup.service[0].1.options = service::PER_PACKET;
    setup
}

/// Each datagram is scheduled on its own; `alike`: by something that is the same for all of them.
fn one_by_one<E: Engine>(e: &mut E, alike: bool) {
    let mut of_first = 0;
    for _ in 0..40 {
        of_first += u32::from(server_of(e, &call(Body::Udp(true))) == S1_MAC);
    }
    if alike {
        assert!(of_first == 0 || of_first == 40, "{of_first}");
    } else {
        assert!((8..=32).contains(&of_first), "{of_first} of 40");
    }
    assert_eq!((e.entries().len(), e.counter(Counter::FlowCreated)), (0, 0));
    assert_eq!(e.counter(Counter::AffinityMissed), 0);
}

/// The server a packet went to.
#[track_caller]
pub fn server_of<E: Engine>(e: &mut E, frame: &Frame) -> Mac {
    let out = expect(e, &frame.build(), Transmit);
    out[..6].try_into().expect("six bytes")
}

/// Every byte of a packet in a tunnel, the UDP source port apart, which is returned.
#[track_caller]
pub fn tunnelled<E: Engine>(
    e: &mut E,
    frame: &Frame,
    from: &str,
    to: &str,
    mac: Mac,
    port: Option<u16>,
) -> u16 {
    let (_, spread) = carried(e, &frame.build(), from, to, mac, port);
    spread
}

/// The same for any frame; returns its IPv4 identification, too, which is fresh unless it must not be fragmented.
#[track_caller]
pub fn carried<E: Engine>(
    e: &mut E,
    frame: &[u8],
    from: &str,
    to: &str,
    mac: Mac,
    port: Option<u16>,
) -> (u16, u16) {
    let out = expect(e, frame, Transmit);
    let id = u16::from_be_bytes([out[18], out[19]]);
    let l4 = 14 + if v6() { 40 } else { 20 };
    let spread = if port.is_some() {
        u16::from_be_bytes([out[l4], out[l4 + 1]])
    } else if v6() {
        u16::from_be_bytes([out[16], out[17]])
    } else {
        0
    };
    let inner = routed(frame, OUR_MAC, mac);
    let mut want = outer(&inner, ip(from), ip(to), port.map(|port| (spread, port)), spread);
    if !v6() && frame[20] & 0x40 == 0 {
        identify(&mut want, id);
    }
    assert_eq!(out, want);
    (id, spread)
}

fn drained(e_setup: fn() -> Setup, index: usize) -> Setup {
    let mut setup = e_setup();
    setup.servers[index].1.flags &= !server::UP;
    setup
}

/// Outside clients in `dnat`, the rest of the world in `dsr`.
fn by_client() -> Setup {
    let mut setup = dsr();
    setup.service[0].1.mode |= mode::RULES;
    setup
        .mode_rules
        .push(prefix(0, "192.168.10.0", 24, u32::from(mode::DNAT)));
    setup
        .mode_rules
        .push(prefix(0, "192.168.10.50", 32, u32::from(mode::BOTH_NAT)));
    // Another slot's and another service's rules.
    setup
        .mode_rules
        .push(prefix(1 << 24, "10.0.0.0", 8, u32::from(mode::BOTH_NAT)));
    setup
        .mode_rules
        .push(prefix(1, "10.0.0.0", 8, u32::from(mode::BOTH_NAT)));
    setup
}

pub fn from(client: &str) -> Talk {
    Talk {
        client: end(client),
        ..outside()
    }
}

/// Calls until both servers have been met; returns a client of each.
fn clients_of_both<E: Engine>(e: &mut E) -> [End; 2] {
    let mut of = [None, None];
    for port in 40_000..40_200 {
        let client = End(ip("192.168.10.50"), port);
        let frame = Talk { client, ..outside() }.request(Body::Tcp("A", 2, 9));
        of[usize::from(server_of(e, &frame) == S2_MAC)] = Some(client);
    }
    of.map(|client| client.expect("200 clients meet both servers"))
}

pub fn per_packet_cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "datagrams one by one, by turns",
            || per_packet(scheduler::WRR),
            |e| one_by_one(e, false),
        ),
        case(
            "datagrams one by one, at random",
            || per_packet(scheduler::MAGLEV),
            |e| one_by_one(e, false),
        ),
        case(
            "datagrams one by one, by source",
            || per_packet(scheduler::SOURCE_HASH),
            |e| one_by_one(e, true),
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case("dsr: only the MACs change, and one entry is made", dsr, |e| {
            to_server(e, &syn(), S1_MAC);
            to_server(e, &ack(), S1_MAC);
            to_server(e, &call(Body::Tcp("FA", 2, 9)).payload(b"bye"), S1_MAC);
            assert_eq!((e.entries().len(), e.half_open()), (1, 0));
            assert_eq!(e.counter(Counter::FlowCreated), 1);
        }),
        case("b46 dsr: a datagram keeps its checksum", dsr_udp, |e| {
            for checksum in [true, v6()] {
                to_server(e, &call(Body::Udp(checksum)).payload(b"q"), S1_MAC);
            }
        }),
        case("dsr: the time to live stays, at its end too", dsr, |e| {
            to_server(e, &syn().ttl(1), S1_MAC);
            to_server(e, &ack().ttl(1), S1_MAC);
        }),
        case("dsr: VLAN tag and padding stay", dsr, |e| {
            to_server(e, &syn().padding(6), S1_MAC);
        }),
        case(
            "b95 dsr: a server on another leg gets that leg's MAC and tag",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[4, 5],
                    ..DSR
                })
            },
            |e| {
                let frame = syn().build();
                let out = expect(e, &frame, Transmit);
                assert_eq!(
                    out[..18],
                    [
                        &[2, 0, 0, 0, 1, 4][..],
                        &OUR_MAC,
                        &[0x81, 0, 0, 10],
                        &frame[12..14]
                    ]
                    .concat()
                );
                assert_eq!(out[18..], frame[14..]);
                let frame = from("192.168.10.51:1").request(Body::Tcp("S", 1, 0)).build();
                let out = expect(e, &frame, Redirect);
                assert_eq!(out, handed(&frame, OTHER_MAC, [2, 0, 0, 0, 1, 5]));
            },
        ),
        case(
            "b103 dsr: a server behind a router is never sent to, the router would send it back",
            || Setup::service(&ServiceSpec { servers: &[3], ..DSR }),
            |e| expect_drop(e, &syn().build(), Counter::DsrOffLink),
        ),
        case(
            "b66 dsr: what the peer sends to this node without a lease goes nowhere",
            dsr,
            |e| {
                e.lease(false);
                expect_drop(e, &syn().via(PEER_MAC).build(), Counter::RelayLoop);
            },
        ),
        case("dsr: an echo request is answered here", dsr, |e| {
            let out = expect(e, &call(Body::Echo(7, 1)).build(), Transmit);
            assert_eq!(out[..6], ROUTER_MAC);
        }),
        case(
            "dsr: without an entry a segment follows the client's hash, and is not counted as lost",
            dsr_hash,
            |e| {
                let [one, two] = clients_of_both(e);
                for (client, mac) in [(one, S1_MAC), (two, S2_MAC)] {
                    let talk = Talk { client, ..outside() };
                    to_server(e, &talk.request(Body::Tcp("A", 3, 9)), mac);
                }
                assert_eq!(e.counter(Counter::TcpWithoutFlow), 0);
            },
        ),
        case(
            "dsr: a connection stays with its server whatever the turn is",
            dsr_two,
            |e| {
                let first = server_of(e, &syn());
                for port in 1..6 {
                    server_of(
                        e,
                        &from(&format!("192.168.10.51:{port}")).request(Body::Tcp("S", 1, 0)),
                    );
                }
                for body in [
                    Body::Tcp("S", 1, 0),
                    Body::Tcp("A", 2, 9),
                    Body::Tcp("FA", 2, 9),
                    Body::Tcp("A", 3, 9),
                ] {
                    assert_eq!(server_of(e, &call(body)), first);
                }
            },
        ),
        case(
            "b50 dsr: a SYN after FIN or RST goes to the same server and makes an open flow",
            dsr_two,
            |e| {
                let first = server_of(e, &syn());
                for close in ["FA", "R", "RA"] {
                    assert_eq!(server_of(e, &call(Body::Tcp(close, 2, 9))), first);
                    assert_eq!(e.entries()[0].state(), State::Closing);
                    assert_eq!(server_of(e, &syn()), first);
                    assert_eq!(e.entries()[0].state(), State::Closing, "the SYN may be anybody's");
                    assert_eq!(server_of(e, &ack()), first);
                    assert_eq!(e.entries()[0].state(), State::Established);
                }
                assert_eq!((e.entries().len(), e.counter(Counter::FlowCreated)), (1, 1));
            },
        ),
        case(
            "dsr: a stranger's FIN, RST and SYN take no connection from its server",
            dsr_two,
            |e| {
                let first = server_of(e, &syn());
                server_of(e, &ack());
                for forged in [
                    &["FA", "S"][..],
                    &["R", "S"],
                    &["RA", "S", "S"],
                    &["S", "FA", "S", "R", "S"],
                ] {
                    for flags in forged {
                        assert_eq!(server_of(e, &call(Body::Tcp(flags, 77, 99))), first);
                    }
                    assert_eq!(server_of(e, &ack()), first);
                    assert_eq!(e.entries()[0].state(), State::Established, "{forged:?}");
                }
                assert_eq!(e.counter(Counter::FlowReopened), 0);
            },
        ),
        case("dsr: a segment after a RST lifts it", dsr_two, |e| {
            let first = server_of(e, &syn());
            server_of(e, &call(Body::Tcp("R", 2, 9)));
            server_of(e, &ack());
            assert_eq!(server_of(e, &syn()), first);
        }),
        case(
            "dsr: the entry of a server that is down is ignored",
            || drained(dsr_two, 0),
            |e| {
                assert_eq!(server_of(e, &syn()), S1_MAC, "the table still names it");
                // By hash now, and again by hash: never refused.
                server_of(e, &ack());
                assert_eq!(e.counter(Counter::TcpWithoutFlow), 0);
            },
        ),
        case(
            "dsr: without room for affinities everything goes by the client's hash",
            || {
                let mut setup = dsr_two();
                setup.node.dsr_ways = 0;
                setup
            },
            |e| {
                let first = server_of(e, &syn());
                for body in [Body::Tcp("A", 2, 9), Body::Tcp("S", 1, 0), Body::Tcp("FA", 2, 9)] {
                    assert_eq!(server_of(e, &call(body)), first);
                }
                assert_eq!((e.entries().len(), e.counter(Counter::AffinityMissed)), (0, 4));
            },
        ),
        case(
            "dsr: affinities give way to newer ones, translated flows to none",
            || {
                let mut setup = dsr().with(&ServiceSpec {
                    port: 81,
                    ..ServiceSpec::BOTH_NAT
                });
                setup.buckets = 1;
                setup.node.flow_buckets = 1;
                setup.node.flow6_buckets = 1;
                setup
            },
            |e| {
                let nat = Talk {
                    vip: End(ip(VIP), 81),
                    server: end("192.168.100.10:81"),
                    ..outside()
                };
                nat.handshake(e, 1, 2);
                // This one has proved itself by a second packet.
                to_server(e, &syn(), S1_MAC);
                to_server(e, &ack(), S1_MAC);
                for port in 1..50 {
                    to_server(
                        e,
                        &from(&format!("192.168.10.51:{port}")).request(Body::Tcp("S", 1, 0)),
                        S1_MAC,
                    );
                }
                assert_eq!(e.entries().len(), 2 + 4);
                assert_eq!(e.counter(Counter::AffinityEvicted), 50 - 4);
                assert!(
                    e.entries()
                        .iter()
                        .any(|x| x.saddr == raw(ip("192.168.10.50")) && x.mode() == mode::DSR)
                );
                let translated = |e: &E| e.entries().iter().filter(|x| x.mode() == mode::BOTH_NAT).count();
                assert_eq!(translated(e), 2);
                // Nor does an affinity keep a translated flow out of a full table.
                let next = |port| Talk {
                    client: End(ip("192.168.10.52"), port),
                    ..nat
                };
                for port in 1..8 {
                    next(port).handshake(e, 1, 2);
                }
                assert_eq!((e.entries().len(), translated(e)), (16, 16));
                assert_eq!(e.counter(Counter::AffinityEvicted), 50);
                let frame = next(8).request(Body::Tcp("S", 1, 0));
                expect_drop(e, &frame.build(), Counter::TableFull);
            },
        ),
        case("l3-dsr: IPIP, or IP6IP6, from the leg's address", ipip, |e| {
            for frame in [syn(), ack().payload(b"data"), call(Body::Tcp("FA", 2, 9))] {
                tunnelled(e, &frame, OUR_ADDR, S3, ROUTER_MAC, None);
            }
            assert_eq!((e.entries().len(), e.half_open()), (1, 0));
        }),
        case("l3-dsr: GUE, one source port a connection", gue, |e| {
            let port = tunnelled(e, &syn(), OUR_ADDR, S3, ROUTER_MAC, Some(GUE_PORT));
            assert!(port >= 0xc000);
            assert_eq!(
                tunnelled(e, &ack(), OUR_ADDR, S3, ROUTER_MAC, Some(GUE_PORT)),
                port
            );
            let mut ports = std::collections::HashSet::new();
            for client in 1..20 {
                let frame = from(&format!("192.168.10.51:{client}")).request(Body::Tcp("S", 1, 0));
                ports.insert(tunnelled(e, &frame, OUR_ADDR, S3, ROUTER_MAC, Some(GUE_PORT)));
            }
            assert!(ports.len() > 15, "{ports:?}");
        }),
        case(
            "l3-dsr: the outer source varies where the configuration says so",
            || {
                let tunnel = Tunnel {
                    source: raw(ip("172.31.0.0")),
                    spread: 0xff_u32.to_be(),
                    ..Tunnel::default()
                };
                l3(3, proto::TCP, tunnel)
            },
            |e| {
                let mut sources = std::collections::HashSet::new();
                for port in 1..40 {
                    let frame = from(&format!("192.168.10.51:{port}"))
                        .request(Body::Tcp("S", 1, 0))
                        .build();
                    let out = expect(e, &frame, Transmit);
                    let at = if v6() { 14 + 8 + 12 } else { 14 + 12 };
                    assert_eq!(out[at..at + 3], [172, 31, 0]);
                    sources.insert(out[at + 3]);
                }
                assert!(sources.len() > 20);
            },
        ),
        case(
            "b48 l3-dsr: datagrams of all lengths",
            || l3(1, proto::UDP, Tunnel::default()),
            |e| {
                let most = if v6() { 1_412 } else { 1_452 };
                for len in (0..131).chain([most - 1, most]) {
                    tunnelled(
                        e,
                        &call(Body::Udp(true)).payload(&vec![0xff; len]),
                        OUR_ADDR,
                        S1,
                        S1_MAC,
                        None,
                    );
                }
            },
        ),
        case("l3-dsr: a used-up time to live is told", ipip, |e| {
            tunnelled(e, &syn(), OUR_ADDR, S3, ROUTER_MAC, None);
            for frame in [
                ack().ttl(1),
                from("192.168.10.51:9").request(Body::Tcp("A", 1, 1)).ttl(1),
            ] {
                let out = expect(e, &frame.build(), Transmit);
                assert_eq!(Layout::of(&out).proto, if v6() { 58 } else { 1 });
            }
            assert_eq!(e.counter(Counter::TimeExceededSent), 2);
        }),
        case("l3-dsr: IP options stay inside", ipip, |e| {
            if !v6() {
                tunnelled(e, &syn().options(&[1, 1, 1, 1]), OUR_ADDR, S3, ROUTER_MAC, None);
            }
        }),
        case(
            "l3-dsr: a leg without an address sends no tunnel packet",
            || {
                let mut setup = ipip();
                setup.legs[0].1.addr = Addr::NONE;
                setup.legs[0].1.addr6 = Addr::NONE;
                setup
            },
            |e| expect_drop(e, &syn().build(), Counter::TunnelWithoutSource),
        ),
        case(
            "l3-dsr: to another VLAN the frame gets its tag",
            || l3(4, proto::TCP, Tunnel::default()),
            |e| {
                let out = expect(e, &syn().build(), Transmit);
                assert_eq!(out[12..16], [0x81, 0, 0, 10]);
                assert_eq!(Layout::of(&out).l3, 18);
            },
        ),
        case("b61 a client's longest prefix decides its mode", by_client, |e| {
            // Both-NAT for one, DNAT for its network, DSR for everybody else.
            let source = outside().handshake(e, 1, 2);
            assert_eq!(source.0, ip(VIP));
            let talk = from("192.168.10.51:40000");
            assert_eq!(talk.handshake(e, 1, 2), talk.client);
            to_server(e, &from("10.1.1.1:5").request(Body::Tcp("S", 1, 0)), S1_MAC);
            to_server(e, &from("10.1.1.1:6").request(Body::Tcp("A", 1, 7)), S1_MAC);
            // Only the translated ones need a flow.
            expect_drop(
                e,
                &from("192.168.10.52:6").request(Body::Tcp("A", 1, 7)).build(),
                Counter::TcpWithoutFlow,
            );
        }),
        case(
            "b51 no state is kept for a port without a service",
            || {
                let mut setup = dsr();
                setup.services.clear();
                setup
            },
            |e| {
                expect(e, &syn().build(), Transmit);
                expect(e, &ack().build(), Drop);
                assert_eq!(e.entries().len(), 0);
            },
        ),
        case(
            "dsr: a server is its own client's neighbour without harm",
            dsr_two,
            |e| {
                // Hairpin is no matter here: the answer never needs to come back.
                let talk = Talk {
                    client: End(ip(S2), 5),
                    client_mac: S2_MAC,
                    ..outside()
                };
                to_server(e, &talk.request(Body::Tcp("S", 1, 0)), S1_MAC);
                assert_eq!(ends(&syn().build()).1, outside().vip);
            },
        ),
    ]
}
