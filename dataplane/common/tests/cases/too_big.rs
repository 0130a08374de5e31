//! Packets that are too long for their way: their sender is told how long they may be.

use super::{Case, Talk, balanced::outside, case, case4, expect, expect_asked, expect_drop};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Pass, Transmit},
    frames::{Body, End, Frame, end, ip, raw, tcp, udp, v6},
    model::{Layout, Report, ends, fragments, quoted, reassembled, unfragmented, verifies},
    setup::{GATEWAY, OUR_MAC, ROUTER, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    help::{note, wanted},
    maps::proto,
};
use std::net::IpAddr;

/// What the way to server 1 takes.
const NARROW: u16 = 1_400;

/// Headers of a TCP or UDP packet without options.
fn headers(body: &Body) -> usize {
    let transport = match body {
        Body::Tcp(flags, ..) if flags.contains('S') => 24,
        Body::Tcp(..) => 20,
        Body::Udp(_) | Body::Echo(..) => 8,
    };
    transport + if v6() { 40 } else { 20 }
}

/// A packet of `total` bytes.
pub fn sized(frame: Frame, total: usize) -> Frame {
    let payload = vec![0x5a; total - headers(&frame.body) - extensions(&frame)];
    frame.payload(&payload)
}

fn extensions(frame: &Frame) -> usize {
    match (frame.options.is_empty(), v6()) {
        (true, _) => 0,
        (false, true) => 24,
        (false, false) => frame.options.len(),
    }
}

/// The packet is answered by the error, from `from`, and goes nowhere.
#[track_caller]
pub fn told<E: Engine>(e: &mut E, frame: &[u8], from: IpAddr, most: u16) {
    let out = expect(e, frame, Transmit);
    let (kind, code) = if v6() { (2, 0) } else { (3, 4) };
    let mut sender: [u8; 6] = [0; 6];
    sender.copy_from_slice(&frame[6..12]);
    let [high, low] = most.to_be_bytes();
    let want = Report {
        from_mac: OUR_MAC,
        to_mac: sender,
        from,
        to: ends(frame).0.0,
        ttl: 64,
        kind,
        code,
        rest: [0, 0, high, low],
        quote: quoted(frame, frame, 8),
    }
    .build();
    let (got, wanted) = (Layout::of(&out), Layout::of(&want));
    assert!(verifies(&out));
    assert_eq!(ends(&out).0.0, from);
    assert_eq!(ends(&out).1.0, ends(frame).0.0);
    assert_eq!(out[0..12], want[0..12]);
    assert_eq!(out[got.ttl()], 64);
    assert_eq!(out[got.l4..], want[wanted.l4..], "message and quote");
    if !v6() {
        assert_eq!(out[got.l3 + 6..got.l3 + 8], [0x40, 0], "no fragment itself");
    }
}

fn requests<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1_000, 9_000);
    let segment = || talk.request(Body::Tcp("A", 1_001, 9_001));
    let entries = e.entries();
    for (n, options) in [vec![], vec![1; 8]].into_iter().enumerate() {
        let mut before = sized(segment().options(&options), usize::from(NARROW)).build();
        let out = expect(e, &before, Transmit);
        assert_eq!(ends(&out).0, source);
        for total in [1_401, 1_472, 1_500] {
            before = sized(segment().options(&options), total).build();
            told(e, &before, ip(VIP), NARROW);
        }
        assert_eq!(e.counter(Counter::TooBigSent), 3 * (n as u64 + 1));
    }
    let unchanged = |x: &onearm_dataplane_common::flow::FlowEntry| (x.own, x.other, x.expected_ack);
    assert!(
        e.entries()
            .iter()
            .zip(&entries)
            .all(|(a, b)| unchanged(a) == unchanged(b))
    );
}

/// The first packet of a flow.
fn first<E: Engine>(e: &mut E) {
    let talk = Talk {
        vip: end("192.168.100.100:53"),
        server: end("192.168.100.10:53"),
        ..outside()
    };
    told(
        e,
        &sized(talk.request(Body::Udp(true)), 1_500).build(),
        ip(VIP),
        NARROW,
    );
    expect(e, &sized(talk.request(Body::Udp(true)), 1_400).build(), Transmit);
}

/// Two legs: the server's takes 9,000 bytes, the client's 1,500.
fn replies<E: Engine>(e: &mut E, both_nat: bool) {
    let (server, mac) = (end("172.16.10.20:80"), [2, 0, 0, 0, 1, 4]);
    let talk = outside();
    let out = expect(e, &talk.request(Body::Tcp("S", 1, 0)).build(), Transmit);
    let source = ends(&out).0;
    let reply = |total| sized(Frame::new(server, source, Body::Tcp("A", 7, 2)).via(mac), total).vlan(10);
    expect(e, &reply(1_500).build(), Transmit);
    let teller = if both_nat { ip(VIP) } else { ip("172.16.10.2") };
    told(e, &reply(1_501).build(), teller, 1_500);
    told(e, &reply(9_000).build(), teller, 1_500);
}

fn in_transit<E: Engine>(e: &mut E) {
    for body in [Body::Tcp("A", 1, 2), Body::Udp(true), Body::Echo(1, 2)] {
        let frame = |total| {
            let from = End(ip("192.168.100.10"), 4_000);
            let to = End(ip("198.51.100.7"), 443);
            sized(Frame::new(from, to, body.clone()).via(S1_MAC), total).build()
        };
        expect(e, &frame(1_300), Transmit);
        told(e, &frame(1_301), ip(GATEWAY), 1_300);
    }
    assert_eq!(e.counter(Counter::Transit), 3);
}

/// Nobody is told of an error, nor of a packet that may be fragmented: user space does that.
fn untold<E: Engine>(e: &mut E) {
    let kind = if v6() { 1 } else { 3 };
    let error = Report {
        from_mac: S1_MAC,
        to_mac: OUR_MAC,
        from: ip("192.168.100.10"),
        to: ip("198.51.100.7"),
        ttl: 64,
        kind,
        code: 1,
        rest: [0; 4],
        quote: vec![0x45; 1_400],
    };
    let transit = udp("192.168.100.10:4000", "198.51.100.7:53").via(S1_MAC);
    let pieces = fragments(
        &unfragmented(&transit.clone().payload(&[1; 3_000]).build(), 9),
        9,
        1_448,
    );
    let long = pieces.iter().filter(|piece| piece.len() > 1_314);
    if v6() {
        expect_drop(e, &error.build(), Counter::TooBig);
        for piece in long {
            expect(e, piece, Transmit);
        }
        assert_eq!(e.counter(Counter::TooBigSent), 2);
        return;
    }
    let divisible = unfragmented(&sized(transit, 1_500).build(), 9);
    for frame in [&error.build(), &divisible].into_iter().chain(long) {
        expect_asked(e, frame, wanted::DIVIDE, 1_300);
        assert_eq!(e.run_again(frame, note::AGAIN).0, Pass);
        assert_eq!(e.run_again(frame, note::LAST).0, Drop);
    }
    assert_eq!(e.counter(Counter::TooBig), 4);
    let mut told = error.build();
    told[20] = 0x40;
    told[24..26].fill(0);
    let sum: u32 = told[14..34]
        .chunks(2)
        .map(|c| u32::from(c[0]) << 8 | u32::from(c[1]))
        .sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("16 bits");
    told[24..26].copy_from_slice(&(!folded).to_be_bytes());
    expect_drop(e, &told, Counter::TooBig);
    assert_eq!(e.counter(Counter::TooBigSent), 0);
}

/// A datagram of a flow that may be fragmented: its pieces go the flow's way.
fn divided<E: Engine>(e: &mut E) {
    let talk = Talk {
        vip: end("192.168.100.100:53"),
        server: end("192.168.100.10:53"),
        ..outside()
    };
    let frame = unfragmented(&sized(talk.request(Body::Udp(true)), 1_500).build(), 77);
    expect_asked(e, &frame, wanted::DIVIDE, NARROW);
    let pieces = fragments(&frame, 77, 1_376);
    let out: Vec<_> = pieces
        .iter()
        .map(|piece| {
            let (verdict, out, _) = e.run_again(piece, note::AGAIN);
            assert_eq!(verdict, Transmit);
            out
        })
        .collect();
    let (whole, _) = reassembled(&out);
    assert!(verifies(&whole));
    assert_eq!(ends(&whole).1, talk.server);
}

fn limited<E: Engine>(e: &mut E) {
    let talk = outside();
    talk.handshake(e, 1_000, 9_000);
    let frame = sized(talk.request(Body::Tcp("A", 1_001, 9_001)), 1_500).build();
    let sent = (0..1_000).filter(|_| e.run(&frame).0 != Drop).count();
    assert!((20..=200).contains(&sent), "{sent} of 1,000");
    assert_eq!(
        e.counter(Counter::TooBigSent) + e.counter(Counter::RefusalLimited),
        1_000
    );
    assert_eq!(e.counter(Counter::TooBigSent), sent as u64);
}

/// What a network card has put together is longer than its leg: its segments fit where the leg's do.
fn super_packets<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1_000, 9_000);
    let reply = talk.reply(source, Body::Tcp("A", 9_001, 1_001));
    expect(e, &sized(reply, 4_000).build(), Transmit);
    let request = sized(talk.request(Body::Tcp("A", 1_001, 9_001)), 4_000);
    told(e, &request.build(), ip(VIP), NARROW);
}

/// A client's last hop has the leg's MTU; that of a route towards it counts only where the route leads. Whoever on the way
/// takes less says so, and the server hears it.
fn route_to_the_client<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1_000, 9_000);
    let reply = sized(talk.reply(source, Body::Tcp("A", 9_001, 1_001)), 1_500).build();
    let sent = expect(e, &reply, Transmit);
    let (kind, code) = if v6() { (2, 0) } else { (3, 4) };
    let error = Report {
        from_mac: ROUTER_MAC,
        to_mac: OUR_MAC,
        from: ip("10.99.0.1"),
        to: ip(VIP),
        ttl: 64,
        kind,
        code,
        rest: [0, 0, 5, 20],
        quote: quoted(&sent, &sent, 8),
    };
    let want = Report {
        from_mac: OUR_MAC,
        to_mac: S1_MAC,
        from: ip("10.99.0.1"),
        to: talk.server.0,
        ttl: 63,
        quote: quoted(&reply, &sent, 8),
        ..error.clone()
    };
    let out = expect(e, &error.build(), Transmit);
    assert_eq!(Layout::of(&out).l4, Layout::of(&want.build()).l4);
    assert_eq!(ends(&out).1.0, talk.server.0);
    assert!(verifies(&out));
    // By the route, because nothing is known of another way.
    e.use_up_last_hops();
    let other = Talk {
        client: end("192.168.10.51:7"),
        client_mac: [2, 0, 0, 0, 0, 0x66],
        ..talk
    };
    let source = ends(&expect(e, &other.request(Body::Tcp("S", 1, 0)).build(), Transmit)).0;
    let reply = |total| sized(other.reply(source, Body::Tcp("A", 9, 2)), total).build();
    expect(e, &reply(1_300), Transmit);
    told(e, &reply(1_301), ip(VIP), 1_300);
}

fn relayed<E: Engine>(e: &mut E) {
    let talk = outside();
    talk.handshake(e, 1_000, 9_000);
    e.lease(false);
    let frame = sized(talk.request(Body::Tcp("A", 1_001, 9_001)), 1_500).build();
    expect_drop(e, &frame, Counter::NoLease);
}

fn narrow(spec: &ServiceSpec<'_>) -> Setup {
    let mut setup = Setup::service(spec).with(&ServiceSpec {
        port: 53,
        proto: proto::UDP,
        ..spec.clone()
    });
    setup.next_hops[0].1.mtu = NARROW;
    setup
}

fn wide_servers(spec: &ServiceSpec<'_>) -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        servers: &[4],
        ..spec.clone()
    });
    setup.legs[1].1.mtu = 9_000;
    setup.next_hops[3].1.mtu = 9_000;
    setup
}

/// The default route takes 1,300 bytes.
fn narrow_uplink() -> Setup {
    narrow_way_to_clients(&ServiceSpec::DNAT)
}

fn narrow_way_to_clients(spec: &ServiceSpec<'_>) -> Setup {
    let mut setup = Setup::service(spec);
    for (_, _, route) in &mut setup.routes {
        if route.gateway == raw(ip(ROUTER)) {
            route.mtu = 1_300;
        }
    }
    setup
}

fn smaller_route<E: Engine>(e: &mut E) {
    // A segment with "do not fragment" through a route that takes less than the neighbour's leg.
    let frame = sized(
        tcp("192.168.100.10:40000", "198.51.100.7:443", "A", 1, 2).via(S1_MAC),
        1_500,
    );
    told(e, &frame.build(), ip(GATEWAY), 1_300);
    let neighbour = sized(
        tcp("192.168.100.10:40000", "192.168.100.11:443", "A", 1, 2).via(S1_MAC),
        1_500,
    );
    expect(e, &neighbour.build(), Transmit);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "b72 a request too big for the way to its server, both-nat",
            || narrow(&ServiceSpec::BOTH_NAT),
            requests,
        ),
        case(
            "b72 a request too big for the way to its server, dnat",
            || narrow(&ServiceSpec::DNAT),
            requests,
        ),
        case(
            "a first datagram too big for the way to its server",
            || narrow(&ServiceSpec::BOTH_NAT),
            first,
        ),
        case4(
            "an answer too big for the client's leg, both-nat",
            || wide_servers(&ServiceSpec::BOTH_NAT),
            |e| replies(e, true),
        ),
        case4(
            "an answer too big for the client's leg, dnat",
            || wide_servers(&ServiceSpec::DNAT),
            |e| replies(e, false),
        ),
        case(
            "packets in transit too big for their route",
            narrow_uplink,
            in_transit,
        ),
        case(
            "only the route's own packets are too big",
            narrow_uplink,
            smaller_route,
        ),
        case(
            "nobody is told of an ICMP error or of what may be fragmented",
            narrow_uplink,
            untold,
        ),
        case4(
            "b71 a datagram that may be fragmented goes on in pieces",
            || narrow(&ServiceSpec::BOTH_NAT),
            divided,
        ),
        case(
            "b72 senders are told at a limited rate",
            || narrow(&ServiceSpec::BOTH_NAT),
            limited,
        ),
        case(
            "b136 a packet that a network card put together is as long as its segments",
            || narrow(&ServiceSpec::BOTH_NAT),
            super_packets,
        ),
        case(
            "a route's smaller packets count only by the route",
            || narrow_way_to_clients(&ServiceSpec::BOTH_NAT),
            route_to_the_client,
        ),
        case(
            "without a lease nobody is told",
            || narrow(&ServiceSpec::BOTH_NAT),
            relayed,
        ),
    ]
}
