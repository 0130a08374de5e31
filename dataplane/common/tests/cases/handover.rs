//! A planned hand-over: the owner that yields makes no flows, the armed node makes them of what the owner passes on.

use super::{
    Case, balanced::outside, case, case4, expect, expect_asked, expect_drop, expect_pass, too_big::sized,
};
use crate::support::{
    Engine, Permission, Setup,
    Verdict::{Drop, Transmit},
    frames::{Body, Frame, arp_request, echo, ip, tcp, udp},
    model::{ends, fragments, reassembled, routed, unfragmented, verifies},
    setup::{BROADCAST, GATEWAY, OUR_MAC, PEER_MAC, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    help::{note, wanted},
    maps::proto,
};

/// What the way to the server takes.
const NARROW: u16 = 1_400;

fn both_nat() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

/// What has no flow: new ones, one the peer made, replies to that, and what no service takes.
fn without_flow() -> Vec<Frame> {
    vec![
        tcp("192.168.10.51:40000", "192.168.100.100:80", "S", 1, 0),
        tcp("192.168.10.51:40000", "192.168.100.100:80", "A", 2, 3),
        tcp("192.168.100.10:80", "192.168.100.100:33000", "SA", 1, 2).via(S1_MAC),
        tcp("192.168.10.51:40000", "192.168.100.100:81", "S", 1, 0),
        udp("192.168.10.51:40000", "192.168.100.100:9"),
    ]
}

fn yielding<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    e.permit(Permission::Yielding);
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    for frame in without_flow() {
        let built = frame.build();
        assert_eq!(expect(e, &built, Transmit), routed(&built, OUR_MAC, PEER_MAC));
        expect_drop(e, &frame.ttl(1).build(), Counter::TtlExpired);
    }
    assert_eq!(e.entries().len(), 2, "no flow is made");
    let ping = echo("192.168.10.50", VIP).build();
    assert_eq!(expect(e, &ping, Transmit)[..6], ROUTER_MAC, "the owner answers");
    assert_eq!(e.counter(Counter::EchoAnswered), 1);
    // The peer has no lease, and passes on what strays to it: here it ends.
    let stray = tcp("192.168.10.52:40000", "192.168.100.100:80", "S", 1, 0).via(PEER_MAC);
    assert_ne!(expect(e, &stray.build(), Transmit)[..6], PEER_MAC);
    assert_eq!(e.entries().len(), 4);
}

/// A server's answer on a connection the peer has made, on its way to the client.
fn yielding_gateway<E: Engine>(e: &mut E) {
    let answer = || tcp("192.168.100.10:80", "192.168.10.51:40000", "SA", 1, 2).via(S1_MAC);
    expect_drop(e, &answer().build(), Counter::DnatReplyWithoutFlow);
    e.permit(Permission::Yielding);
    let built = answer().build();
    assert_eq!(expect(e, &built, Transmit), routed(&built, OUR_MAC, PEER_MAC));
    expect_drop(e, &answer().via(PEER_MAC).build(), Counter::DnatReplyWithoutFlow);
}

/// A SYN on a flow that has ended, and the connection that follows: the peer could not tell it from the old one.
fn yielding_reopens<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    talk.client_sends(e, source, Body::Tcp("FA", 2, 3));
    talk.server_sends(e, source, Body::Tcp("FA", 3, 3));
    e.permit(Permission::Yielding);
    let source = talk.syn(e, 70_000);
    talk.server_sends(e, source, Body::Tcp("SA", 9, 70_001));
}

fn armed<E: Engine>(e: &mut E) {
    e.permit(Permission::Armed);
    let talk = outside();
    // As it comes from the client, from a server, and from nobody in particular.
    for frame in without_flow() {
        expect_drop(e, &frame.build(), Counter::NoLease);
    }
    assert_eq!(e.entries().len(), 0);
    // As the owner passes it on.
    let syn = talk.request(Body::Tcp("S", 1, 0)).via(PEER_MAC).build();
    let out = expect(e, &syn, Transmit);
    assert_eq!(out[..12], [talk.server_mac, OUR_MAC].concat());
    assert!(verifies(&out));
    let (source, server) = ends(&out);
    assert_eq!((e.entries().len(), server), (2, talk.server));
    let answer = talk.reply(source, Body::Tcp("SA", 2, 2)).via(PEER_MAC).build();
    let out = expect(e, &answer, Transmit);
    assert_eq!(
        out[..12],
        [talk.client_mac, OUR_MAC].concat(),
        "by the route, not back"
    );
    assert_eq!(ends(&out), (talk.vip, talk.client));
    // A flow permits no more than a miss does.
    expect_drop(e, &talk.request(Body::Tcp("A", 2, 3)).build(), Counter::NoLease);
    expect_drop(
        e,
        &talk.reply(source, Body::Tcp("A", 3, 2)).build(),
        Counter::NoLease,
    );
    let acknowledged = talk.request(Body::Tcp("A", 2, 3)).via(PEER_MAC).build();
    assert_eq!(expect(e, &acknowledged, Transmit)[..6], talk.server_mac);
    let ping = echo("192.168.10.50", VIP);
    assert_eq!(
        expect(e, &ping.clone().via(PEER_MAC).build(), Transmit)[..6],
        ROUTER_MAC
    );
    expect_drop(e, &ping.build(), Counter::NoLease);
}

fn armed_relays<E: Engine>(e: &mut E) {
    e.permit(Permission::Armed);
    let stray = tcp("192.168.10.51:40000", "192.168.100.100:80", "S", 1, 0).build();
    assert_eq!(
        expect(e, &stray, Transmit),
        routed(&stray, OUR_MAC, PEER_MAC),
        "what strays to the armed node goes to the owner"
    );
}

fn armed_too_long<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    e.permit(Permission::ArmedUntilNow);
    for frame in [
        talk.request(Body::Tcp("A", 2, 3)),
        talk.reply(source, Body::Tcp("A", 3, 2)),
        tcp("192.168.10.51:40000", "192.168.100.100:80", "S", 1, 0),
        echo("192.168.10.50", VIP),
    ] {
        expect_drop(e, &frame.via(PEER_MAC).build(), Counter::RelayLoop);
    }
    assert_eq!(e.entries().len(), 2, "no flow is made");
}

fn armed_answers_no_arp<E: Engine>(e: &mut E) {
    e.permit(Permission::Armed);
    for target in [VIP, GATEWAY] {
        for from in [ROUTER_MAC, PEER_MAC] {
            let question = arp_request(from, ip("192.168.100.254"), ip(target), BROADCAST);
            expect_pass(e, &question);
        }
    }
    assert_eq!(e.counter(Counter::ArpAnswered), 0);
}

/// The lease is given up, and the main process has not heard of it yet.
fn relaying<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    e.permit(Permission::Relaying);
    let mut frames = without_flow();
    frames.extend([
        talk.request(Body::Tcp("A", 2, 3)),
        talk.reply(source, Body::Tcp("A", 3, 2)),
        echo("192.168.10.50", VIP),
    ]);
    for frame in frames {
        let built = frame.build();
        assert_eq!(expect(e, &built, Transmit)[..12], [PEER_MAC, OUR_MAC].concat());
        expect_drop(e, &frame.via(PEER_MAC).build(), Counter::RelayLoop);
    }
}

fn udp_nat() -> Setup {
    Setup::service(&ServiceSpec {
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    })
}

fn udp_nat_narrow() -> Setup {
    let mut setup = udp_nat();
    setup.next_hops[0].1.mtu = NARROW;
    setup
}

/// The two fragments of a request, the second one first, and what leaves in the order of the datagram.
#[track_caller]
fn second_first<E: Engine>(e: &mut E, request: &Frame, id: u32) -> [Vec<u8>; 2] {
    let whole = unfragmented(&request.clone().payload(&[3; 2_000]).build(), id);
    let pieces = fragments(&whole, id, 1_480);
    expect_asked(e, &pieces[1], wanted::KEEP, 0);
    let first = expect(e, &pieces[0], Transmit);
    let (verdict, second, _) = e.run_again(&pieces[1], note::AGAIN);
    assert_eq!(verdict, Transmit, "{:?}", e.counters());
    [first, second]
}

/// Fragments of a datagram stay together, also where the second one overtakes the first.
fn yielding_fragments<E: Engine>(e: &mut E) {
    let talk = outside();
    let known = talk.request(Body::Udp(true));
    expect(e, &known.build(), Transmit);
    e.permit(Permission::Yielding);
    let own = second_first(e, &known, 7);
    assert!(own.iter().all(|piece| piece[..6] == talk.server_mac));
    assert!(verifies(&reassembled(&own).0));
    let of_peer = second_first(e, &udp("192.168.10.51:40001", "192.168.100.100:80"), 8);
    assert!(of_peer.iter().all(|piece| piece[..6] == PEER_MAC));
    assert_eq!(e.entries().len(), 2, "no flow is made");
}

fn armed_fragments<E: Engine>(e: &mut E) {
    e.permit(Permission::Armed);
    let talk = outside();
    let request = talk.request(Body::Udp(true));
    let passed_on = second_first(e, &request.clone().via(PEER_MAC), 7);
    assert!(passed_on.iter().all(|piece| piece[..6] == talk.server_mac));
    let stray = unfragmented(&request.payload(&[3; 2_000]).build(), 8);
    expect_drop(e, &fragments(&stray, 8, 1_480)[1], Counter::NoLease);
}

/// Too long for the way to the server, and may be fragmented: of the owner's own flow, and of what it passes on.
fn too_long<E: Engine>(e: &mut E, permission: Permission, mac: [u8; 6]) {
    let request = || outside().request(Body::Udp(true)).via(mac);
    if permission == Permission::Yielding {
        expect(e, &request().build(), Transmit);
    }
    e.permit(permission);
    let whole = unfragmented(&sized(request(), 1_500).build(), 7);
    expect_asked(e, &whole, wanted::DIVIDE, NARROW);
    for piece in fragments(&whole, 7, 1_184) {
        let (verdict, out, _) = e.run_again(&piece, note::AGAIN);
        assert_eq!((verdict, &out[..6]), (Transmit, &outside().server_mac[..]));
    }
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "an owner that yields makes no flows: the peer gets what has none",
            both_nat,
            yielding,
        ),
        case(
            "an owner that yields passes on what servers answer to the peer's flows",
            || Setup::service(&ServiceSpec::DNAT),
            yielding_gateway,
        ),
        case(
            "an owner that yields replaces its own flows",
            both_nat,
            yielding_reopens,
        ),
        case(
            "an armed node acts on what comes from the peer, and on nothing else",
            both_nat,
            armed,
        ),
        case(
            "without the peer's MAC an armed node acts on nothing",
            || {
                let mut setup = both_nat();
                setup.legs[0].1.peer_mac = [0; 6];
                setup
            },
            |e| {
                e.permit(Permission::Armed);
                let frame = outside().request(Body::Tcp("S", 1, 0)).via(PEER_MAC).build();
                expect_drop(e, &frame, Counter::NoLease);
                let frame = outside().request(Body::Tcp("S", 1, 0)).via([0; 6]).build();
                expect(e, &frame, Drop);
                assert_eq!(e.entries().len(), 0);
            },
        ),
        case(
            "an armed node passes strays on to the owner",
            || {
                let mut setup = both_nat();
                setup.node.relay_to_peer = 1;
                setup
            },
            armed_relays,
        ),
        case("a grant that has ended permits nothing", both_nat, armed_too_long),
        case(
            "an owner that yields keeps fragments together, its own and the peer's",
            udp_nat,
            yielding_fragments,
        ),
        case(
            "an armed node keeps fragments together that the owner passes on",
            udp_nat,
            armed_fragments,
        ),
        case4(
            "an owner that yields divides what is too long",
            udp_nat_narrow,
            |e| {
                too_long(e, Permission::Yielding, ROUTER_MAC);
            },
        ),
        case4("an armed node divides what is too long", udp_nat_narrow, |e| {
            too_long(e, Permission::Armed, PEER_MAC);
        }),
        case4("an armed node answers no arp", both_nat, armed_answers_no_arp),
        case(
            "who has just handed over passes everything on",
            both_nat,
            relaying,
        ),
    ]
}
