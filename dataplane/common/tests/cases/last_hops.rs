//! Which neighbour the replies to a client go to, whatever MAC a stranger sends with.

use super::{Case, Talk, balanced::outside, case, ends, expect, expect_drop, forwarded};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, End, Mac, end, ip, raw},
    setup::{IFINDEX, PEER_MAC, ServiceSpec},
};
use onearm_dataplane_common::{
    counter::Counter,
    maps::{LastHop, NeighbourKey, NextHop, proto},
};

const STRANGER: Mac = [2, 0, 0, 0, 9, 9];
const NEIGHBOUR: Mac = [2, 0, 0, 0, 5, 5];

fn service() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

/// A client on the leg's own network, which the kernel has not resolved.
fn on_link() -> Talk {
    Talk {
        client: end("192.168.100.77:40000"),
        client_mac: NEIGHBOUR,
        ..outside()
    }
}

fn by(talk: &Talk, mac: Mac) -> Talk {
    Talk {
        client_mac: mac,
        ..*talk
    }
}

fn last_hop(setup: &Setup, mac: Mac) -> LastHop {
    LastHop {
        mac,
        vlan: 0,
        ifindex: IFINDEX,
        leg: 0,
        mtu: setup.legs[0].1.mtu,
    }
}

/// The stranger is the first to send, with a client's address from behind the router.
fn not_by_a_stranger<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = by(&talk, STRANGER).syn(e, 1);
    talk.server_sends(e, source, Body::Tcp("SA", 2, 2));
    assert_eq!(e.counter(Counter::LastHopDoubted), 1);
    by(&talk, STRANGER).client_sends(e, source, Body::Tcp("A", 2, 3));
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
}

fn datagram_of_a_stranger<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = forwarded(
        e,
        &by(&talk, STRANGER).request(Body::Udp(true)),
        talk.server,
        talk.server_mac,
    );
    for _ in 0..3 {
        talk.server_sends(e, source, Body::Udp(true));
        by(&talk, STRANGER).client_sends(e, source, Body::Udp(true));
    }
}

/// Replies leave by the router the requests came by, once that is known to be one.
fn b95_by_the_router_it_came_by<E: Engine>(e: &mut E) {
    e.judge(last_hop(&service(), NEIGHBOUR), true);
    let talk = by(&outside(), NEIGHBOUR);
    talk.handshake(e, 1, 2);
    assert_eq!(e.counter(Counter::LastHopDoubted), 0);
}

/// Nothing steers an established flow: neither segments nor SYNs of strangers; a SYN by the resolved next hop does.
fn not_steered<E: Engine>(e: &mut E) {
    e.judge(last_hop(&service(), NEIGHBOUR), true);
    let talk = by(&outside(), NEIGHBOUR);
    let source = talk.handshake(e, 1, 2);
    for flags in ["A", "S", "R", "FA", "A"] {
        by(&talk, STRANGER).client_sends(e, source, Body::Tcp(flags, 9_000_000, 3));
        talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    }
    let router = outside();
    router.client_sends(e, source, Body::Tcp("S", 70_000, 0));
    router.server_sends(e, source, Body::Tcp("A", 3, 2));
    by(&talk, STRANGER).client_sends(e, source, Body::Tcp("S", 70_000, 0));
    router.server_sends(e, source, Body::Tcp("A", 3, 2));
}

/// Nothing is known of the way to the client yet: the neighbour is believed, until user space finds it is none.
fn until_it_is_known_better<E: Engine>(e: &mut E) {
    let talk = on_link();
    let source = by(&talk, STRANGER).syn(e, 1);
    by(&talk, STRANGER).server_sends(e, source, Body::Tcp("SA", 2, 2));
    let mut setup = service();
    e.judge(last_hop(&setup, STRANGER), false);
    expect_drop(
        e,
        &talk.reply(source, Body::Tcp("SA", 2, 2)).build(),
        Counter::NoNeighbour,
    );
    setup.next_hops.push((
        7,
        NextHop {
            mac: NEIGHBOUR,
            ..setup.next_hops[0].1
        },
    ));
    let addr = raw(ip("192.168.100.77"));
    setup.neighbours.push((NeighbourKey { addr, leg: 0 }, 7));
    e.change(&setup);
    talk.server_sends(e, source, Body::Tcp("SA", 2, 2));
    // Another flow by the same stranger goes there from the start.
    let next = Talk {
        client: End(talk.client.0, 40_001),
        ..talk
    };
    let source = by(&next, STRANGER).syn(e, 1);
    next.server_sends(e, source, Body::Tcp("SA", 2, 2));
    assert_eq!(e.counter(Counter::LastHopsFull), 0);
}

/// A stranger with a new MAC in each frame uses up what may be learned: known neighbours do not suffer.
fn b153_a_flood_of_macs<E: Engine>(e: &mut E) {
    e.judge(last_hop(&service(), NEIGHBOUR), true);
    for n in 0..200u8 {
        let talk = Talk {
            client: end(&format!("192.168.100.78:{}", 1_000 + u16::from(n))),
            client_mac: [2, 0, 0, 0, 8, n],
            ..outside()
        };
        talk.syn(e, 1);
    }
    assert!((130..200).contains(&e.counter(Counter::LastHopsFull)));
    by(&outside(), NEIGHBOUR).handshake(e, 1, 2);
    let other = Talk {
        client: end("192.168.10.51:40000"),
        ..outside()
    };
    other.handshake(e, 1, 2);
    // By the route, in vain until it is resolved.
    let late = by(&on_link(), STRANGER);
    let frame = late.request(Body::Tcp("S", 1, 0)).build();
    let (source, _) = ends(&expect(e, &frame, Transmit));
    expect_drop(
        e,
        &late.reply(source, Body::Tcp("SA", 2, 2)).build(),
        Counter::NoNeighbour,
    );
}

/// The peer passes a frame on: it is no neighbour of the client's, even where nothing is known of the way.
fn not_by_the_peer<E: Engine>(e: &mut E) {
    let talk = by(&on_link(), PEER_MAC);
    let source = talk.syn(e, 1);
    expect_drop(
        e,
        &talk.reply(source, Body::Tcp("SA", 2, 2)).build(),
        Counter::NoNeighbour,
    );
}

/// The router's MAC, from a leg that does not lead to the client.
fn not_by_another_leg<E: Engine>(e: &mut E) {
    let talk = outside();
    let frame = talk.request(Body::Tcp("S", 1, 0)).vlan(10).build();
    let (source, _) = ends(&expect(e, &frame, Transmit));
    assert_eq!(e.counter(Counter::LastHopDoubted), 1);
    talk.server_sends(e, source, Body::Tcp("SA", 2, 2));
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "a stranger who is first gets no replies of a client behind the router",
            service,
            not_by_a_stranger,
        ),
        case(
            "a stranger's datagrams get no replies",
            || {
                Setup::service(&ServiceSpec {
                    proto: proto::UDP,
                    ..ServiceSpec::BOTH_NAT
                })
            },
            datagram_of_a_stranger,
        ),
        case(
            "b95 replies leave by the router the requests came by",
            service,
            b95_by_the_router_it_came_by,
        ),
        case("no stranger steers an established flow", service, not_steered),
        case(
            "a neighbour found to be none gets no more replies",
            service,
            until_it_is_known_better,
        ),
        case(
            "b153 a flood of MACs harms no known neighbour",
            service,
            b153_a_flood_of_macs,
        ),
        case("the peer is nobody's neighbour", service, not_by_the_peer),
        case(
            "a neighbour's MAC on another leg gets no replies",
            service,
            not_by_another_leg,
        ),
    ]
}
