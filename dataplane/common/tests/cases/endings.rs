//! Ways for a program to end that no other case needs: with each, [`super::run_all`] has met every one there is.

use super::{Case, balanced::outside, case, expect, expect_asked, expect_drop, expect_pass};
use crate::support::{
    Engine, Setup,
    Verdict::{Redirect, Transmit},
    frames::{Body, Frame, end, ip, v6},
    model::{Report, ends, fragments, quoted, unfragmented, verifies},
    setup::{OTHER_MAC, OUR_MAC, PEER_MAC, ROUTER_MAC, S1, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    help::wanted,
    maps::{Tunnel, mode, proto},
};

/// The server on the other interface.
const FAR: ServiceSpec<'static> = ServiceSpec {
    servers: &[5],
    ..ServiceSpec::BOTH_NAT
};
const DIRECT: ServiceSpec<'static> = ServiceSpec {
    mode: mode::DSR,
    ..ServiceSpec::BOTH_NAT
};

fn with_relay(mut setup: Setup) -> Setup {
    setup.node.relay_to_peer = 1;
    setup
}

fn segment(flags: &'static str) -> Frame {
    outside().request(Body::Tcp(flags, 1, 1))
}

/// The first fragment of a segment with data.
fn first_fragment() -> Vec<u8> {
    fragments(&segment("A").payload(&[7; 40]).build(), 9, 32).swap_remove(0)
}

#[track_caller]
fn relayed<E: Engine>(e: &mut E, frame: &[u8]) {
    let out = expect(e, frame, Transmit);
    assert_eq!(out[..12], [PEER_MAC, OUR_MAC].concat());
    assert_eq!(e.counter(Counter::Relayed), 1);
}

/// Packets of a known flow, with or without options.
fn far<E: Engine>(e: &mut E, options: &[u8]) {
    expect(e, &segment("S").options(options).build(), Redirect);
    let out = expect(e, &segment("A").options(options).build(), Redirect);
    assert_eq!(out[6..12], OTHER_MAC);
    assert!(verifies(&out));
}

fn behind_options<E: Engine>(e: &mut E) {
    let talk = outside();
    talk.handshake(e, 1, 2);
    expect(e, &segment("S").options(&[1; 8]).build(), Transmit);
    e.lease(false);
    relayed(e, &segment("A").options(&[1; 8]).build());
}

/// The next hop of a flow's server is lost.
fn unresolved<E: Engine>(e: &mut E, mut setup: Setup) {
    expect(e, &segment("S").build(), Transmit);
    setup.next_hops[0].1.valid = 0;
    e.change(&setup);
    expect_drop(e, &segment("A").options(&[1; 8]).build(), Counter::NoNeighbour);
    expect_drop(e, &segment("A").build(), Counter::NoNeighbour);
    expect_drop(e, &first_fragment(), Counter::NoNeighbour);
}

fn nowhere() -> Setup {
    let mut setup = Setup::service(&DIRECT);
    setup.next_hops[0].1.valid = 0;
    setup
}

fn in_fragments<E: Engine>(e: &mut E) {
    expect(e, &segment("S").build(), Transmit);
    e.lease(false);
    relayed(e, &first_fragment());
}

fn in_fragments_far<E: Engine>(e: &mut E) {
    expect(e, &segment("S").build(), Redirect);
    assert_eq!(expect(e, &first_fragment(), Redirect)[6..12], OTHER_MAC);
}

fn tunnel() -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        mode: mode::L3_DSR,
        ..ServiceSpec::BOTH_NAT
    });
    setup.tunnels.push((0, Tunnel::default()));
    setup
}

fn in_fragments_at_the_end<E: Engine>(e: &mut E) {
    expect(e, &segment("S").build(), Transmit);
    let last = fragments(&segment("A").ttl(1).payload(&[7; 40]).build(), 9, 32).swap_remove(0);
    let out = expect(e, &last, Transmit);
    assert_eq!(ends(&out).0.0, ip(VIP));
    assert_eq!(e.counter(Counter::TimeExceededSent), 1);
}

/// A closed connection's SYN finds the budget of half-open flows used up by others.
fn reopened_when_full<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    talk.server_sends(e, source, Body::Tcp("FA", 3, 2));
    talk.client_sends(e, source, Body::Tcp("FA", 2, 4));
    let mut other = outside();
    other.client.1 = 40_001;
    other.syn(e, 1);
    talk.syn(e, 9);
    assert_eq!(e.counter(Counter::FlowReopened), 1);
    assert_eq!(e.counter(Counter::HalfOpenEvicted), 1);
    assert_eq!(e.half_open(), 1);
}

fn one_half_open() -> Setup {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
    setup.node.half_open_budget = 1;
    setup.buckets = 1;
    (setup.node.flow_buckets, setup.node.flow6_buckets) = (1, 1);
    setup
}

fn narrow() -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    });
    setup.next_hops[0].1.mtu = 1_300;
    setup
}

/// A later fragment may be too big where the first one was not.
fn later_too_big<E: Engine>(e: &mut E) {
    let datagram = outside().request(Body::Udp(true)).payload(&[7; 1_400]).build();
    let datagram = unfragmented(&datagram, 9);
    let first = fragments(&datagram, 9, 64).swap_remove(0);
    // All but the first 64 bytes in one.
    let later = {
        let mut pieces = fragments(&datagram, 9, 1_400);
        let mut later = pieces.swap_remove(0);
        let offset = if v6() { 14 + 40 + 2 } else { 14 + 6 };
        let word: u16 = if v6() { 1_408 } else { 176 };
        later[offset..offset + 2].copy_from_slice(&word.to_be_bytes());
        later
    };
    expect(e, &first, Transmit);
    if v6() {
        let out = expect(e, &later, Transmit);
        assert_eq!(ends(&out).0.0, ip(VIP));
        assert_eq!(e.counter(Counter::TooBigSent), 1);
    } else {
        expect_asked(e, &later, wanted::DIVIDE, 1_300);
    }
}

/// A first fragment sent twice is one datagram's, and so it leaves.
fn sent_twice<E: Engine>(e: &mut E) {
    expect(e, &segment("S").build(), Transmit);
    let out = expect(e, &first_fragment(), Transmit);
    assert_eq!(expect(e, &first_fragment(), Transmit), out);
}

/// The client's host tells of an answer it got.
fn error_of_the_client() -> Vec<u8> {
    let talk = outside();
    let answer = Frame::new(talk.vip, talk.client, Body::Tcp("A", 1, 1)).build();
    Report {
        from_mac: ROUTER_MAC,
        to_mac: OUR_MAC,
        from: ip("192.168.10.50"),
        to: ip(VIP),
        ttl: 64,
        kind: if v6() { 1 } else { 3 },
        code: if v6() { 4 } else { 3 },
        rest: [0; 4],
        quote: quoted(&answer, &answer, 8),
    }
    .build()
}

fn error_from_the_client<E: Engine>(e: &mut E) {
    expect(e, &segment("S").build(), Redirect);
    let out = expect(e, &error_of_the_client(), Redirect);
    assert_eq!(out[6..12], OTHER_MAC);
    assert!(verifies(&out));
}

/// The server's host tells the client, by the node that is its gateway, of a request.
fn error_without_lease<E: Engine>(e: &mut E) {
    let request = expect(e, &segment("S").build(), Transmit);
    e.lease(false);
    let error = Report {
        from_mac: S1_MAC,
        to_mac: OUR_MAC,
        from: ip(S1),
        to: ip("192.168.10.50"),
        ttl: 64,
        kind: if v6() { 1 } else { 3 },
        code: if v6() { 4 } else { 3 },
        rest: [0; 4],
        quote: quoted(&request, &request, 8),
    };
    relayed(e, &error.build());
}

fn transit<E: Engine>(e: &mut E) {
    let to = |text| Frame::new(end("192.168.100.10:1"), end(text), Body::Udp(true)).via(S1_MAC);
    let out = expect(e, &to("172.16.77.20:9").build(), Redirect);
    assert_eq!(out[6..12], OTHER_MAC);
    expect_pass(e, &to("172.16.77.2:9").build());
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let plain = || Setup::service(&ServiceSpec::BOTH_NAT);
    let far_direct = || {
        Setup::service(&ServiceSpec {
            servers: &[5],
            ..DIRECT
        })
    };
    vec![
        case(
            "a known flow's packet leaves by another interface",
            || Setup::service(&FAR),
            |e| {
                far(e, &[]);
            },
        ),
        case(
            "a known flow's packet with options leaves by another interface",
            || Setup::service(&FAR),
            |e| far(e, &[1; 8]),
        ),
        case(
            "behind options a SYN meets its flow, and a packet without a lease goes on to the Active",
            || with_relay(Setup::service(&ServiceSpec::BOTH_NAT)),
            behind_options,
        ),
        case(
            "packets of a flow whose next hop is lost are dropped",
            plain,
            |e| {
                unresolved(e, Setup::service(&ServiceSpec::BOTH_NAT));
            },
        ),
        case(
            "packets of a remembered flow whose next hop is lost are dropped",
            || Setup::service(&DIRECT),
            |e| unresolved(e, Setup::service(&DIRECT)),
        ),
        case(
            "a new flow to a server that answers itself and has no next hop is dropped",
            nowhere,
            |e| {
                expect_drop(e, &segment("S").build(), Counter::NoNeighbour);
            },
        ),
        case(
            "a first fragment of a remembered flow goes on to the Active without a lease",
            || with_relay(Setup::service(&DIRECT)),
            in_fragments,
        ),
        case(
            "a first fragment of a remembered flow leaves by another interface",
            far_direct,
            in_fragments_far,
        ),
        case(
            "a first fragment for a tunnel whose time is over is told of",
            tunnel,
            in_fragments_at_the_end,
        ),
        case(
            "a connection that begins anew takes the place of a half-open one, too, when there are too many",
            one_half_open,
            reopened_when_full,
        ),
        case(
            "a first fragment that comes twice leaves twice as the same",
            plain,
            sent_twice,
        ),
        case(
            "a later fragment too big for its way is told of or divided",
            narrow,
            later_too_big,
        ),
        case(
            "an error about an answer goes to a server on another interface",
            || Setup::service(&FAR),
            error_from_the_client,
        ),
        case(
            "an error about a flow goes on to the Active without a lease",
            || with_relay(Setup::service(&ServiceSpec::DNAT)),
            error_without_lease,
        ),
        case(
            "transit leaves by another interface, or stays if it is for the node there",
            Setup::classic,
            transit,
        ),
    ]
}
