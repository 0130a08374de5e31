//! Ways out that no other case of both families takes.

use super::{Case, Talk, balanced::outside, case, expect, expect_drop};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Transmit},
    frames::{Body, End, Frame, echo, end, ip, tcp, udp},
    model::{Layout, ends},
    setup::{ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    maps::{proto, server},
};

fn service() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

fn syn(port: u16) -> Vec<u8> {
    let from = End(ip("192.168.10.51"), port);
    Frame::new(from, end("192.168.100.100:80"), Body::Tcp("S", 1, 0)).build()
}

fn one_bucket() -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    });
    setup.buckets = 1;
    setup.node.flow_buckets = 1;
    setup.node.flow6_buckets = 1;
    setup
}

fn full<E: Engine>(e: &mut E) {
    let datagram = |port: u16| udp(&format!("192.168.10.51:{port}"), "192.168.100.100:80").build();
    for port in 1..=8 {
        let (source, server) = ends(&expect(e, &datagram(port), Transmit));
        expect(e, &Frame::new(server, source, Body::Udp(true)).build(), Transmit);
    }
    expect_drop(e, &datagram(9), Counter::TableFull);
    expect(e, &datagram(1), Transmit);
}

fn one_half_open() -> Setup {
    let mut setup = service();
    setup.node.half_open_budget = 1;
    setup.buckets = 1;
    setup.node.flow_buckets = 1;
    setup.node.flow6_buckets = 1;
    setup
}

fn server_gone<E: Engine>(e: &mut E) {
    outside().handshake(e, 1, 2);
    let mut setup = service();
    setup.servers[0].1.flags = server::USED | server::RESETS;
    e.change(&setup);
    let out = expect(e, &outside().request(Body::Tcp("A", 2, 3)).build(), Transmit);
    let layout = Layout::of(&out);
    assert_eq!(out[layout.l4 + 13], 4, "RST");
    assert_eq!(e.counter(Counter::ServerDownReset), 1);
}

fn refused_too_often<E: Engine>(e: &mut E) {
    let frame = udp("192.168.10.50:1", "192.168.100.100:9").build();
    for _ in 0..30 {
        e.run(&frame);
    }
    assert!(e.counter(Counter::RefusedUdp) >= 20 && e.counter(Counter::RefusalLimited) > 0);
}

fn no_leg<E: Engine>(e: &mut E) {
    // A next hop by a leg that is not there: nothing of the frame may leave.
    expect_drop(
        e,
        &tcp("192.168.10.50:1", "192.168.100.100:80", "S", 1, 0).build(),
        Counter::Internal,
    );
}

fn locked<E: Engine>(e: &mut E) {
    let old = outside();
    let source = old.handshake(e, 1, 2);
    e.lock_table();
    expect_drop(e, &syn(1), Counter::LockContended);
    // Who has a flow needs no lock.
    old.client_sends(e, source, Body::Tcp("A", 2, 3));
    old.server_sends(e, source, Body::Tcp("A", 3, 2));
}

fn no_last_hop<E: Engine>(e: &mut E) {
    e.use_up_last_hops();
    let talk = Talk {
        client_mac: [2, 0, 0, 0, 0, 254],
        ..outside()
    };
    // Replies go by the route to the client instead.
    talk.handshake(e, 1, 2);
    assert_eq!(e.counter(Counter::LastHopsFull), 1);
}

fn sources_stay<E: Engine>(e: &mut E) {
    let frame = Frame::new(end("192.168.100.100:80"), end("192.168.10.50:9"), Body::Udp(true)).build();
    assert!(e.leaves(&frame));
    e.lease(false);
    assert!(!e.leaves(&frame));
    assert_eq!(e.counter(Counter::EgressIpBlocked), 1);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "a datagram flow the table has no room for is refused",
            one_bucket,
            full,
        ),
        case(
            "b133 the oldest half-open flow gives way when the budget is used up",
            one_half_open,
            |e| {
                for port in 1..=2 {
                    expect(e, &syn(port), Transmit);
                }
                assert_eq!((e.counter(Counter::HalfOpenEvicted), e.half_open()), (1, 1));
            },
        ),
        case(
            "a server that went down: a segment of its client is reset",
            service,
            server_gone,
        ),
        case("refusals have a rate", service, refused_too_often),
        case(
            "an ICMP message that is neither echo request nor error is dropped",
            service,
            |e| {
                let mut frame = echo("192.168.10.50", VIP).build();
                let at = Layout::of(&frame).l4;
                frame[at] = if frame[14] >> 4 == 6 { 133 } else { 13 };
                expect_drop(e, &frame, Counter::IcmpUnhandled);
            },
        ),
        case(
            "a packet for a leg that is not there goes nowhere",
            || {
                let mut setup = service();
                setup.next_hops[0].1.vlan = 99;
                setup
            },
            no_leg,
        ),
        case(
            "a table that stays locked refuses new flows alone",
            service,
            locked,
        ),
        case(
            "without room for a last hop the route is used",
            service,
            no_last_hop,
        ),
        case(
            "an owned source leaves the kernel under a lease alone",
            service,
            sources_stay,
        ),
        case("without a lease and an Active nothing goes on", service, |e| {
            e.lease(false);
            expect(e, &syn(1), Drop);
        }),
    ]
}
