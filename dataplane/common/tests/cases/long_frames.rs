//! Frames longer than a leg takes, or than a page: put together by an interface, or jumbo.

use super::{
    Case,
    balanced::outside,
    case,
    direct::{GUE_PORT, dsr, gue, ipip, l3, to_server, tunnelled},
    expect, expect_asked, forwarded_from,
    too_big::{sized, told},
};
use crate::support::{
    Engine, Setup,
    Verdict::{Pass, Transmit},
    frames::{Body, echo, ip, v6},
    model::{fragments, reassembled, unfragmented, verifies},
    setup::{OUR_ADDR, ROUTER_MAC, S1_MAC, S3, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    help::{note, wanted},
    maps::{Tunnel, proto},
};

/// In a tunnel it would be one packet: nobody takes it apart again, however much the way takes.
fn super_packets_before_tunnels<E: Engine>(e: &mut E) {
    let frame = |total| sized(outside().request(Body::Tcp("A", 2, 9)), total).build();
    expect(e, &frame(1_500), Transmit);
    for total in [1_501, 4_000, 60_000] {
        told(e, &frame(total), ip(VIP), 1_500);
    }
    assert_eq!(e.counter(Counter::SuperPacket), 3);
    assert_eq!(e.counter(Counter::TooBigSent), 3);
    if !v6() {
        let divisible = unfragmented(&frame(60_000), 9);
        expect_asked(e, &divisible, wanted::DIVIDE, 1_500);
    }
}

fn wide_tunnel(spec: Tunnel) -> Setup {
    let mut setup = l3(3, proto::TCP, spec);
    setup.next_hops[2].1.mtu = 9_000;
    setup
}

/// Frames in several pieces of memory, where a page does not hold them: every byte of them, in every mode.
fn jumbo<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1_000, 9_000);
    for total in [3_499, 3_520, 4_096, 8_999, 9_000] {
        let request = sized(talk.request(Body::Tcp("A", 1_001, 9_001)), total);
        forwarded_from(e, &request, source, talk.server, S1_MAC);
        let reply = sized(talk.reply(source, Body::Tcp("A", 9_001, 1_001)), total);
        forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
    }
    let ping = echo("192.168.10.50", VIP).payload(&[7; 8_000]).build();
    let out = expect(e, &ping, Transmit);
    assert_eq!(out[60..], ping[60..]);
    assert!(verifies(&out));
    for piece in fragments(
        &unfragmented(
            &sized(talk.request(Body::Tcp("A", 1_001, 9_001)), 20_000).build(),
            9,
        ),
        9,
        8_000,
    ) {
        expect(e, &piece, Transmit);
    }
    // One that is early waits, however long it is.
    let long = unfragmented(
        &sized(talk.request(Body::Tcp("A", 1_001, 9_001)), 20_000).build(),
        10,
    );
    let pieces = fragments(&long, 10, 8_000);
    expect_asked(e, &pieces[1], wanted::KEEP, 0);
    assert_eq!(e.run_again(&pieces[1], note::AGAIN).0, Pass);
    let first = expect(e, &pieces[0], Transmit);
    let (verdict, second, _) = e.run_again(&pieces[1], note::AGAIN);
    assert_eq!(verdict, Transmit);
    let third = expect(e, &pieces[2], Transmit);
    assert!(verifies(&reassembled(&[first, second, third]).0));
    assert_eq!(e.counter(Counter::SuperPacket), 0);
}

/// Legs and ways that take 9,000 bytes.
fn wide(mut setup: Setup) -> Setup {
    setup.legs.iter_mut().for_each(|(_, leg)| leg.mtu = 9_000);
    setup.next_hops.iter_mut().for_each(|(_, hop)| hop.mtu = 9_000);
    setup
}

fn jumbo_directly<E: Engine>(e: &mut E, tunnel: Option<u16>) {
    for total in [3_499, 3_520, 4_096, 8_900] {
        let frame = sized(outside().request(Body::Tcp("A", 1_001, 9_001)), total);
        match tunnel {
            Some(port) => {
                let port = (port != 0).then_some(port);
                tunnelled(e, &frame, OUR_ADDR, S3, ROUTER_MAC, port);
            }
            None => to_server(e, &frame, S1_MAC),
        }
    }
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "a packet that a network card put together fits no tunnel, IPIP",
            || wide_tunnel(Tunnel::default()),
            super_packets_before_tunnels,
        ),
        case(
            "a packet that a network card put together fits no tunnel, GUE",
            || {
                wide_tunnel(Tunnel {
                    port: GUE_PORT.to_be(),
                    ..Tunnel::default()
                })
            },
            super_packets_before_tunnels,
        ),
        case(
            "b137 frames longer than a page, both-nat",
            || wide(Setup::service(&ServiceSpec::BOTH_NAT)),
            jumbo,
        ),
        case(
            "b137 frames longer than a page, dnat",
            || wide(Setup::service(&ServiceSpec::DNAT)),
            jumbo,
        ),
        case(
            "b137 frames longer than a page, dsr",
            || wide(dsr()),
            |e| {
                jumbo_directly(e, None);
            },
        ),
        case(
            "b137 frames longer than a page, IPIP",
            || wide(ipip()),
            |e| {
                jumbo_directly(e, Some(0));
            },
        ),
        case(
            "b137 frames longer than a page, GUE",
            || wide(gue()),
            |e| {
                jumbo_directly(e, Some(GUE_PORT));
            },
        ),
    ]
}
