//! Without a lease nothing that belongs to the pair is translated, answered, or given to the kernel.

use super::{Case, balanced::outside, case, expect, expect_drop, expect_pass};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, Frame, echo, end, tcp, udp},
    model::{ends, routed, verifies},
    setup::{OUR_MAC, PEER_MAC, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::counter::Counter;

fn standby() -> Setup {
    Setup::service(&ServiceSpec::DNAT)
}

fn relaying() -> Setup {
    let mut setup = standby();
    setup.node.relay_to_peer = 1;
    setup
}

/// Frames that belong to the pair, on a node that had a flow.
fn of_the_pair<E: Engine>(e: &mut E) -> Vec<Frame> {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    e.lease(false);
    vec![
        talk.request(Body::Tcp("A", 2, 3)).payload(b"more"),
        talk.reply(source, Body::Tcp("A", 3, 2)).payload(b"more"),
        tcp("192.168.10.51:40000", "192.168.100.100:80", "S", 1, 0),
        tcp("192.168.10.51:40000", "192.168.100.100:81", "S", 1, 0),
        udp("192.168.10.51:40000", "192.168.100.100:9"),
        tcp("192.168.100.10:40000", "198.51.100.7:80", "S", 1, 0).via(S1_MAC),
        tcp("192.168.100.10:80", "198.51.100.7:4000", "A", 1, 0).via(S1_MAC),
    ]
}

fn dropped<E: Engine>(e: &mut E) {
    for frame in of_the_pair(e) {
        expect_drop(e, &frame.build(), Counter::NoLease);
    }
    expect_drop(e, &echo("192.168.10.50", VIP).build(), Counter::NoLease);
    expect_pass(
        e,
        &tcp("192.168.10.51:40000", "192.168.100.2:22", "S", 1, 0).build(),
    );
    assert_eq!(e.entries().len(), 2, "no flow is made");
}

fn relayed<E: Engine>(e: &mut E) {
    let frames = of_the_pair(e);
    let before = e.counter(Counter::Transmitted);
    for frame in &frames {
        let built = frame.build();
        let want = routed(&built, OUR_MAC, PEER_MAC);
        assert_eq!(
            expect(e, &built, Transmit),
            want,
            "as it came, TTL - 1, from our MAC to the peer's"
        );
        expect_drop(e, &frame.clone().via(PEER_MAC).build(), Counter::RelayLoop);
    }
    assert_eq!(e.counter(Counter::Transmitted) - before, frames.len() as u64);
    let ping = echo("192.168.10.50", VIP).build();
    assert_eq!(expect(e, &ping, Transmit)[..12], [PEER_MAC, OUR_MAC].concat());
    expect_drop(e, &frames[2].clone().ttl(1).build(), Counter::TtlExpired);
    assert_eq!(e.entries().len(), 2, "no flow is made");
}

fn peer_unknown<E: Engine>(e: &mut E) {
    for frame in of_the_pair(e) {
        expect_drop(e, &frame.build(), Counter::NoLease);
    }
}

fn stray<E: Engine>(e: &mut E) {
    let talk = outside();
    let request = talk.request(Body::Tcp("S", 1, 0)).via(PEER_MAC).build();
    let out = expect(e, &request, Transmit);
    let (source, _) = ends(&out);
    assert_eq!(source, end("192.168.10.50:40000"));
    talk.server_sends(e, source, Body::Tcp("SA", 2, 2));
    assert_eq!(talk.client_mac, ROUTER_MAC, "by the route, not back to the peer");
}

/// Answers to what the peer passed on: the peer would drop them, so they take the route.
fn stray_answered<E: Engine>(e: &mut E) {
    let questions = [
        echo("192.168.10.50", VIP),
        tcp("192.168.10.50:40000", "192.168.100.100:81", "S", 1, 0),
        udp("192.168.10.50:40000", "192.168.100.100:9"),
        echo("192.168.100.10", VIP),
    ];
    for (question, to) in questions.iter().zip([ROUTER_MAC, ROUTER_MAC, ROUTER_MAC, S1_MAC]) {
        let out = expect(e, &question.clone().via(PEER_MAC).build(), Transmit);
        assert_eq!(out[..12], [to, OUR_MAC].concat());
        assert!(verifies(&out));
    }
    let by_vlan = echo("172.16.10.20", VIP).via(PEER_MAC).build();
    let out = expect(e, &by_vlan, Transmit);
    assert_eq!(
        out[12..16],
        [0x81, 0, 0, 10],
        "the client's network is another leg's"
    );
    let unresolved = echo("192.168.100.77", VIP).via(PEER_MAC).build();
    assert_eq!(expect(e, &unresolved, Transmit)[..6], PEER_MAC);
}

/// Only group 0 has a lease here.
fn another_group<E: Engine>(e: &mut E) {
    let talk = outside();
    expect_drop(e, &talk.request(Body::Tcp("S", 1, 0)).build(), Counter::NoLease);
    expect_drop(e, &talk.request(Body::Tcp("S", 1, 0)).build(), Counter::NoLease);
    assert!(e.entries().iter().all(|entry| entry.packets == 0));
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case("without a lease the pair's packets are dropped", standby, dropped),
        case(
            "with the Active known they are relayed to it, once",
            relaying,
            relayed,
        ),
        case(
            "without the peer's MAC they are dropped",
            || {
                let mut setup = relaying();
                setup.legs[0].1.peer_mac = [0; 6];
                setup
            },
            peer_unknown,
        ),
        case(
            "a stray frame from the peer makes a flow but no last hop",
            standby,
            stray,
        ),
        case(
            "a stray question is answered by the route",
            standby,
            stray_answered,
        ),
        case(
            "a flow is guarded by the lease of its own group",
            || {
                let mut setup = standby();
                setup.service[0].1.group = 1;
                setup
            },
            another_group,
        ),
    ]
}
