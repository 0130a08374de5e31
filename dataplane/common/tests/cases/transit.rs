//! Servers' own traffic through the gateway address.

use super::{Case, case, case4, edges::check_icmp_error, expect, expect_drop, expect_pass};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Frame, echo, tcp, udp},
    model,
    setup::{GATEWAY, OUR_MAC, ROUTER_MAC, S1_MAC, S2_MAC, ServiceSpec, prefix},
};
use onearm_dataplane_common::{addr::Addr, counter::Counter};

fn dnat() -> Setup {
    let mut setup = Setup::service(&ServiceSpec::DNAT);
    setup.direct.push(prefix(0, "203.0.113.0", 24, 1));
    setup
}

#[track_caller]
fn routed<E: Engine>(e: &mut E, frame: &Frame, mac: [u8; 6]) {
    let built = frame.build();
    let want = model::routed(&built, OUR_MAC, mac);
    assert_eq!(expect(e, &built, Transmit), want, "not translated, TTL - 1");
}

fn outgoing<E: Engine>(e: &mut E) {
    routed(
        e,
        &tcp("192.168.100.10:40000", "198.51.100.7:443", "S", 1, 0).via(S1_MAC),
        ROUTER_MAC,
    );
    routed(
        e,
        &tcp("192.168.100.10:40000", "198.51.100.7:443", "A", 2, 3).via(S1_MAC),
        ROUTER_MAC,
    );
    routed(
        e,
        &udp("192.168.100.10:40000", "198.51.100.7:53").via(S1_MAC),
        ROUTER_MAC,
    );
    routed(
        e,
        &echo("192.168.100.10", "198.51.100.7")
            .via(S1_MAC)
            .payload(b"ping"),
        ROUTER_MAC,
    );
    routed(
        e,
        &tcp("192.168.100.10:22", "198.51.100.7:4000", "SA", 1, 2)
            .via(S1_MAC)
            .options(&[1; 4]),
        ROUTER_MAC,
    );
    routed(
        e,
        &udp("192.168.100.10:4000", "192.168.100.11:53").via(S1_MAC),
        S2_MAC,
    );
    assert_eq!(e.counters(), [("transmitted", 6), ("transit", 6)]);
    assert!(e.entries().is_empty());
}

fn leaked_replies<E: Engine>(e: &mut E) {
    for flags in ["SA", "A", "FA", "R"] {
        let frame = tcp("192.168.100.10:80", "192.168.10.50:40000", flags, 1, 2).via(S1_MAC);
        expect_drop(e, &frame.build(), Counter::DnatReplyWithoutFlow);
    }
    routed(
        e,
        &tcp("192.168.100.10:80", "192.168.10.50:40000", "S", 1, 2).via(S1_MAC),
        ROUTER_MAC,
    );
    routed(
        e,
        &tcp("192.168.100.10:80", "203.0.113.9:40000", "SA", 1, 2).via(S1_MAC),
        ROUTER_MAC,
    );
    routed(
        e,
        &tcp("192.168.100.10:81", "192.168.10.50:40000", "SA", 1, 2).via(S1_MAC),
        ROUTER_MAC,
    );
    routed(
        e,
        &udp("192.168.100.10:80", "192.168.10.50:40000").via(S1_MAC),
        ROUTER_MAC,
    );
    routed(
        e,
        &tcp("192.168.100.11:80", "192.168.10.50:40000", "SA", 1, 2).via(S2_MAC),
        ROUTER_MAC,
    );
}

fn ttl<E: Engine>(e: &mut E) {
    for frame in [
        udp("192.168.100.10:40000", "198.51.100.7:33434")
            .ttl(1)
            .via(S1_MAC),
        echo("192.168.100.10", "198.51.100.7")
            .ttl(1)
            .via(S1_MAC)
            .payload(b"trace"),
    ] {
        let frame = frame.build();
        check_icmp_error(&expect(e, &frame, Transmit), &frame, GATEWAY, 11, 0);
    }
    let mut error = echo("192.168.100.10", "198.51.100.7")
        .ttl(1)
        .via(S1_MAC)
        .payload(&[0; 28])
        .build();
    error[34] = 3;
    expect_drop(e, &error, Counter::TtlExpired);
}

fn not_transit<E: Engine>(e: &mut E) {
    // From elsewhere, to the node's address on another leg, to groups: the kernel's.
    expect_pass(
        e,
        &tcp("192.168.10.50:40000", "192.168.100.10:22", "S", 1, 0).build(),
    );
    expect_pass(
        e,
        &tcp("192.168.100.10:40000", "172.16.77.2:22", "S", 1, 0)
            .via(S1_MAC)
            .build(),
    );
    expect_pass(
        e,
        &udp("192.168.100.10:40000", "224.0.0.251:5353")
            .via(S1_MAC)
            .build(),
    );
    expect_pass(
        e,
        &udp("192.168.100.10:40000", "255.255.255.255:67")
            .via(S1_MAC)
            .build(),
    );
    assert_eq!(e.counters(), [("passed", 4)]);
    expect_drop(
        e,
        &udp("192.168.100.2:4000", "198.51.100.7:53").via(S1_MAC).build(),
        Counter::BadSource,
    );
    expect_drop(
        e,
        &udp("192.168.100.1:4000", "198.51.100.7:53").via(S1_MAC).build(),
        Counter::BadSource,
    );
}

fn unresolved<E: Engine>(e: &mut E) {
    let to = |addr: &str| udp("192.168.100.10:40000", addr).via(S1_MAC).build();
    expect_drop(e, &to("192.168.100.55:53"), Counter::NoNeighbour);
    expect_drop(e, &to("192.168.100.66:53"), Counter::NoNeighbour);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "servers reach the outside and each other through the gateway",
            dnat,
            outgoing,
        ),
        case(
            "answers of dnat servers without a flow do not leak",
            dnat,
            leaked_replies,
        ),
        case4("TTL 1 is answered from the gateway address", dnat, ttl),
        case(
            "TTL 1 without an address to answer from",
            || {
                let mut setup = dnat();
                setup.server_nets[0].2 = Addr::NONE;
                setup.legs[0].1.addr = Addr::NONE;
                setup.legs[0].1.addr6 = Addr::NONE;
                setup
            },
            |e| {
                let frame = udp("192.168.100.10:40000", "198.51.100.7:33434")
                    .ttl(1)
                    .via(S1_MAC)
                    .build();
                expect_drop(e, &frame, Counter::TtlExpired);
            },
        ),
        case4("what is no transit", dnat, not_transit),
        case("neighbours that are not resolved", dnat, unresolved),
        case(
            "no route",
            || {
                let mut setup = dnat();
                setup.routes.remove(0);
                setup
            },
            |e| {
                let frame = udp("192.168.100.10:40000", "198.51.100.7:53").via(S1_MAC).build();
                expect_drop(e, &frame, Counter::NoRoute);
            },
        ),
    ]
}
