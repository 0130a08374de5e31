//! ICMP errors about packets of flows, in both directions: what they quote is translated back.

use super::{Case, Talk, balanced::outside, case, expect, expect_drop, expect_pass};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Transmit},
    frames::{Body, Frame, end, ip, udp, v6},
    model::{Report, ends, quoted, verifies},
    setup::{OUR_MAC, ROUTER_MAC, S1, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{counter::Counter, maps::proto};
use std::net::IpAddr;

/// Somebody on the way.
const ROUTER: &str = "10.99.0.1";

/// (type, code, rest) of every error that is translated.
pub fn errors() -> Vec<(u8, u8, [u8; 4])> {
    if v6() {
        return vec![
            (1, 0, [0; 4]),
            (1, 4, [0; 4]),
            (2, 0, [0, 0, 5, 0]),
            (3, 0, [0; 4]),
            (4, 1, [0, 0, 0, 40]),
        ];
    }
    vec![
        (3, 1, [0; 4]),
        (3, 3, [0; 4]),
        (3, 4, [0, 0, 5, 0x14]),
        (11, 0, [0; 4]),
        (11, 1, [0; 4]),
        (12, 0, [20, 0, 0, 0]),
    ]
}

/// `frame` is forwarded; errors about it, from `reporter` by `mac`, must reach its sender as from `told_by`.
#[track_caller]
fn told<E: Engine>(e: &mut E, frame: &Frame, mac: [u8; 6], reporter: IpAddr, told_by: IpAddr) {
    let sent = frame.build();
    let seen = expect(e, &sent, Transmit);
    let entries = e.entries();
    let (source, _) = ends(&seen);
    for (kind, code, rest) in errors() {
        for bytes in [8, 16, 18, 64, 1_000] {
            let error = Report {
                from_mac: mac,
                to_mac: OUR_MAC,
                from: reporter,
                to: source.0,
                ttl: 64,
                kind,
                code,
                rest,
                quote: quoted(&seen, &seen, bytes),
            };
            let want = Report {
                from_mac: OUR_MAC,
                to_mac: frame.from_mac,
                from: told_by,
                to: frame.from.0,
                ttl: 63,
                quote: quoted(&sent, &seen, bytes),
                ..error.clone()
            };
            let out = expect(e, &error.build(), Transmit);
            assert_eq!(out, want.build(), "type {kind} code {code}, {bytes} bytes");
            assert!(verifies(&out));
            expect_drop(e, &Report { ttl: 1, ..error }.build(), Counter::TtlExpired);
        }
    }
    assert_eq!(e.entries(), entries, "an error changes nothing in a flow");
}

fn udp_talk() -> Talk {
    Talk {
        vip: end("192.168.100.100:53"),
        server: end("192.168.100.10:53"),
        ..outside()
    }
}

/// Errors about the request from the server and from a router before it, about the answer from a router before the client.
fn both_ways<E: Engine>(e: &mut E, both_nat: bool, options: &[u8]) {
    let talk = outside();
    let source = talk.handshake(e, 1_000, 9_000);
    let router = ip(ROUTER);
    let request = talk
        .request(Body::Tcp("A", 1_001, 9_001))
        .options(options)
        .payload(b"GET / HTTP/1.1\r\n\r\n");
    told(e, &request, S1_MAC, ip(S1), ip(VIP));
    told(e, &request, S1_MAC, router, ip(VIP));
    let reply = talk
        .reply(source, Body::Tcp("A", 9_001, 1_001))
        .options(options)
        .payload(&[7; 700]);
    let told_by = if both_nat { source.0 } else { router };
    told(e, &reply, ROUTER_MAC, router, told_by);
}

fn udp_both_ways<E: Engine>(e: &mut E, both_nat: bool, checksum: bool) {
    let talk = udp_talk();
    let request = talk.request(Body::Udp(checksum)).payload(b"question");
    let seen = expect(e, &request.build(), Transmit);
    let (source, _) = ends(&seen);
    told(e, &request, S1_MAC, ip(S1), ip(VIP));
    let reply = talk.reply(source, Body::Udp(checksum)).payload(b"the answer");
    let told_by = if both_nat { source.0 } else { talk.client.0 };
    told(e, &reply, ROUTER_MAC, talk.client.0, told_by);
}

/// The error a flow's packet gets, ready to be spoilt.
fn good<E: Engine>(e: &mut E) -> Report {
    let sent = udp_talk().request(Body::Udp(true)).payload(b"question").build();
    let seen = expect(e, &sent, Transmit);
    let (kind, code, rest) = errors()[0];
    Report {
        from_mac: S1_MAC,
        to_mac: OUR_MAC,
        from: ip(S1),
        to: ends(&seen).0.0,
        ttl: 64,
        kind,
        code,
        rest,
        quote: quoted(&seen, &seen, 1_000),
    }
}

fn strangers<E: Engine>(e: &mut E) {
    let good = good(e);
    let without = Counter::IcmpErrorWithoutFlow;
    let (header, port) = if v6() { (40, 41) } else { (20, 21) };
    let mut other_port = good.clone();
    other_port.quote[port] ^= 1;
    expect_drop(e, &other_port.build(), without);
    for short in [0, 3, header - 1, header, header + 7] {
        let mut cut = good.clone();
        cut.quote.truncate(short);
        expect_drop(e, &cut.build(), without);
    }
    let mut later = good.clone();
    if v6() {
        later.quote[6] = 44;
        later.quote.splice(40..40, [17, 0, 0, 8, 0, 0, 0, 1]);
    } else {
        later.quote[7] = 1;
    }
    expect_drop(e, &later.build(), without);
    let mut of_an_error = good.clone();
    of_an_error.quote[if v6() { 6 } else { 9 }] = if v6() { 58 } else { 1 };
    expect_drop(e, &of_an_error.build(), without);
    let mut wrong_version = good.clone();
    wrong_version.quote[0] = if v6() { 0x45 } else { 0x65 };
    expect_drop(e, &wrong_version.build(), without);
    let ours = Report {
        from: ip(VIP),
        ..good.clone()
    };
    expect_drop(e, &ours.build(), Counter::BadSource);
    let before = e.counter(Counter::IcmpErrorTranslated);
    expect(e, &good.build(), Transmit);
    assert_eq!(e.counter(Counter::IcmpErrorTranslated), before + 1);
    e.lease(false);
    expect(e, &good.build(), Drop);
    assert_eq!(e.counter(Counter::NoLease), 1);
}

/// An error that quotes somebody else's packet to an owned address it does not come back to.
fn about_others<E: Engine>(e: &mut E) {
    let good = good(e);
    let elsewhere = Report {
        to: ip("192.168.100.2"),
        ..good
    };
    expect_pass(e, &elsewhere.build());
}

fn of_a_dnat_server<E: Engine>(e: &mut E) {
    let client = udp("192.168.10.50:40000", "192.168.100.10:53")
        .payload(b"never balanced")
        .build();
    let (kind, code, rest) = errors()[0];
    let leak = Report {
        from_mac: S1_MAC,
        to_mac: OUR_MAC,
        from: ip(S1),
        to: ip("192.168.10.50"),
        ttl: 64,
        kind,
        code,
        rest,
        quote: quoted(&client, &client, 100),
    };
    expect_drop(e, &leak.build(), Counter::IcmpErrorWithoutFlow);
    let other = udp("192.168.10.50:40000", "192.168.100.10:54").build();
    let transit = Report {
        quote: quoted(&other, &other, 100),
        ..leak
    };
    let out = expect(e, &transit.build(), Transmit);
    let routed = Report {
        ttl: 63,
        from_mac: OUR_MAC,
        to_mac: ROUTER_MAC,
        ..transit
    };
    assert_eq!(out, routed.build(), "transit, as it came");
}

fn udp_service(spec: &ServiceSpec<'_>) -> Setup {
    Setup::service(&ServiceSpec {
        port: 53,
        proto: proto::UDP,
        ..spec.clone()
    })
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let both = || Setup::service(&ServiceSpec::BOTH_NAT);
    let dnat = || Setup::service(&ServiceSpec::DNAT);
    let udp_both = || udp_service(&ServiceSpec::BOTH_NAT);
    let udp_dnat = || udp_service(&ServiceSpec::DNAT);
    vec![
        case("ICMP errors about TCP, both ways, both-nat", both, |e| {
            both_ways(e, true, &[]);
        }),
        case("ICMP errors about TCP, both ways, dnat", dnat, |e| {
            both_ways(e, false, &[]);
        }),
        case("ICMP errors quote options or extension headers", both, |e| {
            both_ways(e, true, &[1; 12]);
        }),
        case("ICMP errors about UDP, both ways, both-nat", udp_both, |e| {
            udp_both_ways(e, true, true);
        }),
        case("ICMP errors about UDP, both ways, dnat", udp_dnat, |e| {
            udp_both_ways(e, false, true);
        }),
        case("b46 ICMP errors about UDP without a checksum", udp_both, |e| {
            if !v6() {
                udp_both_ways(e, true, false);
            }
        }),
        case("b55 ICMP errors about no flow are dropped", udp_both, strangers),
        case(
            "ICMP errors to the node itself are the kernel's",
            udp_both,
            about_others,
        ),
        case(
            "errors of a dnat server are not leaked, others are transit",
            udp_dnat,
            of_a_dnat_server,
        ),
    ]
}
