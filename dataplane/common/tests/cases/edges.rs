//! For us, or not; well formed, or not.

use super::{
    Case, balanced::outside, case, case4, expect, expect_drop, expect_pass, forwarded, forwarded_from,
};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, Frame, echo, end, tcp, udp},
    model::{ends, verifies},
    setup::{BROADCAST, OUR_ADDR, OUR_MAC, PEER_MAC, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::counter::Counter;

fn service() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

fn syn() -> Frame {
    outside().request(Body::Tcp("S", 1, 0))
}

/// Changes one byte of a built frame.
fn with(frame: &Frame, at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = frame.build();
    bytes[at] = byte;
    bytes
}

fn not_for_us<E: Engine>(e: &mut E) {
    expect_pass(e, &syn().onto(PEER_MAC).build());
    expect_pass(e, &syn().onto(BROADCAST).build());
    expect_pass(e, &syn().onto([1, 0, 0x5e, 0, 0, 18]).build());
    expect_pass(e, &syn().vlan(99).build());
    expect_pass(e, &with(&syn(), 12, 0x86));
    expect_pass(e, &syn().via([3, 0, 0, 0, 0, 1]).build());
    expect_pass(e, &[0; 14]);
    assert_eq!(e.counters(), [("passed", 7)]);
}

fn own_traffic<E: Engine>(e: &mut E) {
    let ssh = format!("{OUR_ADDR}:22");
    expect_pass(e, &tcp("192.168.10.50:4000", &ssh, "S", 1, 0).build());
    expect_pass(e, &tcp("192.168.100.10:80", &ssh, "SA", 1, 1).build());
    expect_pass(e, &udp("192.168.100.3:5405", &ssh).build());
    expect_pass(e, &echo("192.168.100.254", OUR_ADDR).build());
    expect_pass(e, &with(&udp("192.168.100.3:1", &ssh), 20, 0x20));
    expect_pass(
        e,
        &tcp("192.168.10.50:4000", "198.51.100.7:80", "S", 1, 0).build(),
    );
    assert_eq!(e.counters(), [("passed", 6)]);
}

fn bad_sources<E: Engine>(e: &mut E) {
    for addr in [
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.5",
        "240.1.1.1",
        "255.255.255.255",
        OUR_ADDR,
        VIP,
    ] {
        let from = format!("{addr}:40000");
        expect_drop(
            e,
            &tcp(&from, "192.168.100.100:80", "S", 1, 0).build(),
            Counter::BadSource,
        );
        expect_drop(e, &udp(&from, "192.168.100.100:9").build(), Counter::BadSource);
        expect_drop(e, &echo(addr, VIP).build(), Counter::BadSource);
    }
    assert!(e.entries().is_empty());
}

fn malformed<E: Engine>(e: &mut E) {
    let frame = syn();
    for (at, byte) in [(14, 0x44), (14, 0x65), (14, 0x4f), (16, 0xff), (17, 19)] {
        expect_drop(e, &with(&frame, at, byte), Counter::Malformed);
    }
    let mut short = frame.build();
    short[17] = 39;
    expect_drop(e, &short, Counter::Malformed);
    expect_drop(e, &frame.build()[..30], Counter::Malformed);
    expect_drop(e, &frame.build()[..40], Counter::Malformed);
    let mut echo = echo("192.168.10.50", VIP).build();
    echo[17] = 27;
    expect_drop(e, &echo, Counter::Malformed);
}

fn unsupported<E: Engine>(e: &mut E) {
    for protocol in [2, 4, 47, 50, 112, 132] {
        expect_drop(e, &with(&syn(), 23, protocol), Counter::UnsupportedProtocol);
    }
    let mut reply = echo("192.168.10.50", VIP).build();
    for kind in [0u8, 5, 13, 14] {
        reply[34] = kind;
        expect_drop(e, &reply, Counter::IcmpUnhandled);
    }
}

fn b22_padding<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    for padding in [1, 2, 6, 20] {
        let request = talk.request(Body::Tcp("A", 2, 3)).padding(padding);
        forwarded_from(e, &request, source, talk.server, S1_MAC);
        let reply = talk.reply(source, Body::Tcp("A", 3, 2)).padding(padding);
        forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
    }
}

fn ip_options<E: Engine>(e: &mut E) {
    let talk = outside();
    for words in [1, 4, 10] {
        let options = vec![1; words * 4];
        let request = talk.request(Body::Tcp("S", 1, 0)).options(&options);
        let source = forwarded(e, &request, talk.server, S1_MAC);
        let reply = talk
            .reply(source, Body::Tcp("A", 3, 2))
            .options(&options)
            .payload(b"data");
        forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
    }
}

/// An ICMP error about `frame` from `from`: type, code, quote, checksums, addresses, MACs.
#[track_caller]
pub fn check_icmp_error(out: &[u8], frame: &[u8], from: &str, kind: u8, code: u8) {
    let l3 = crate::support::model::l3(frame);
    let ihl = usize::from(frame[l3] & 15) * 4;
    assert_eq!(out[0..6], frame[6..12]);
    assert_eq!(out[6..12], OUR_MAC);
    assert_eq!(out[12..l3], frame[12..l3]);
    let (source, to) = ends(out);
    assert_eq!((source.0.to_string().as_str(), to.0), (from, ends(frame).0.0));
    assert_eq!(out[l3 + 9], 1);
    assert_eq!(out[l3 + 20..l3 + 22], [kind, code]);
    assert_eq!(
        out[l3 + 28..],
        frame[l3..l3 + ihl + 8],
        "quotes the packet as it came"
    );
    assert_eq!(
        usize::from(out[l3 + 2]) << 8 | usize::from(out[l3 + 3]),
        out.len() - l3
    );
    assert!(verifies(out));
}

fn b77_ttl<E: Engine>(e: &mut E) {
    let talk = outside();
    for ttl in [0, 1] {
        for frame in [
            syn().ttl(ttl),
            syn().ttl(ttl).options(&[1; 8]),
            syn().ttl(ttl).payload(b"tfo data"),
        ] {
            let frame = frame.build();
            let out = expect(e, &frame, Transmit);
            check_icmp_error(&out, &frame, VIP, 11, 0);
        }
    }
    assert!(
        e.entries().is_empty(),
        "nothing is made for a packet that goes no further"
    );
    let source = forwarded(e, &syn().ttl(2), talk.server, S1_MAC);
    let reply = talk.reply(source, Body::Tcp("SA", 7, 2)).ttl(1).build();
    let out = expect(e, &reply, Transmit);
    check_icmp_error(&out, &reply, VIP, 11, 0);
    assert_eq!(e.counter(Counter::TimeExceededSent), 7);
}

fn vlan_echo<E: Engine>(e: &mut E) {
    let frame = echo("192.168.10.50", VIP).vlan(10).payload(b"0123456789").build();
    let out = expect(e, &frame, Transmit);
    assert_eq!(out[12..18], frame[12..18], "the tag stays");
    assert!(verifies(&out));
}

fn pings<E: Engine>(e: &mut E) {
    for (options, payload) in [
        (vec![], vec![7; 56]),
        (vec![1; 12], vec![]),
        (vec![], vec![0xff; 1_472]),
    ] {
        let frame = echo("192.168.10.50", VIP)
            .ttl(1)
            .options(&options)
            .payload(&payload)
            .build();
        let out = expect(e, &frame, Transmit);
        assert_eq!((&out[0..6], &out[6..12]), (&ROUTER_MAC[..], &OUR_MAC[..]));
        let (from, to) = ends(&out);
        assert_eq!(
            (from.0, to.0),
            (end("192.168.100.100:0").0, end("192.168.10.50:0").0)
        );
        let l4 = 34 + options.len();
        assert_eq!(out[l4..l4 + 2], [0, 0], "echo reply");
        assert_eq!(out[l4 + 4..], frame[l4 + 4..]);
        assert_eq!(out[22], 64);
        assert!(verifies(&out));
    }
    assert_eq!(e.counters(), [("transmitted", 3), ("echo_answered", 3)]);
}

fn bit_errors_stay<E: Engine>(e: &mut E) {
    let mut frame = syn().payload(b"damaged on the way").build();
    let last = frame.len() - 1;
    frame[last] ^= 1;
    let out = expect(e, &frame, Transmit);
    assert!(!verifies(&out), "a wrong checksum is not made right");
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case4("frames that are not for us pass untouched", service, not_for_us),
        case("the node's own traffic passes untouched", service, own_traffic),
        case("impossible sources are dropped", service, bad_sources),
        case4("malformed packets are dropped", service, malformed),
        case4(
            "other protocols to an owned address are dropped",
            service,
            unsupported,
        ),
        case(
            "b22 padding after the IP length is no part of the packet",
            service,
            b22_padding,
        ),
        case("IP options are tolerated", service, ip_options),
        case4(
            "b77 TTL 1 is answered by time exceeded, TTL 2 is forwarded",
            service,
            b77_ttl,
        ),
        case4("a ping of an owned address is answered in place", service, pings),
        case("a tagged ping is answered with its tag", service, vlan_echo),
        case("a damaged packet stays damaged", service, bit_errors_stay),
    ]
}
