//! What has another form in IPv6: extension headers, ICMPv6, checksums that must be there.

use super::{Case, case, expect, expect_drop, expect_pass, forwarded};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, echo, end, tcp, udp},
    model::{Layout, ends, verifies},
    setup::{GATEWAY, OUR_MAC, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::counter::Counter;

const CLIENT: &str = "192.168.10.50:40000";
const SERVICE: &str = "192.168.100.100:80";
/// First byte of the IPv6 header of an untagged frame.
const L3: usize = 14;

fn service() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

/// A SYN whose transport header stands behind `headers`; `first` is the number of the first of them.
fn behind(first: u8, headers: &[u8]) -> Vec<u8> {
    let mut frame = tcp(CLIENT, SERVICE, "S", 1, 0).build();
    frame.splice(L3 + 40..L3 + 40, headers.iter().copied());
    let payload = u16::try_from(frame.len() - L3 - 40).expect("short");
    frame[L3 + 4..L3 + 6].copy_from_slice(&payload.to_be_bytes());
    frame[L3 + 6] = first;
    frame
}

/// An ICMPv6 error about `frame`: type, code, quote, checksum, addresses, MACs (RFC 4443 §3).
#[track_caller]
fn check_error(out: &[u8], frame: &[u8], from: &str, kind: u8, code: u8) {
    let (layout, told) = (Layout::of(frame), Layout::of(out));
    assert_eq!((&out[0..6], &out[6..12]), (&frame[6..12], &OUR_MAC[..]));
    let (source, to) = ends(out);
    assert_eq!((source.0, to.0), (end(&format!("{from}:0")).0, ends(frame).0.0));
    assert_eq!((told.proto, told.l4, told.end), (58, L3 + 40, out.len()));
    assert_eq!(out[told.l4..told.l4 + 2], [kind, code]);
    assert_eq!(
        out[told.l4 + 8..],
        frame[layout.l3..layout.l4 + 8],
        "quotes the packet as it came"
    );
    assert!(verifies(out));
}

fn hop_limit_1_is_told<E: Engine>(e: &mut E) {
    for frame in [
        tcp(CLIENT, SERVICE, "S", 1, 0).ttl(1),
        tcp(CLIENT, SERVICE, "S", 1, 0).ttl(0).options(&[1]),
        tcp(CLIENT, SERVICE, "S", 1, 0).ttl(1).payload(b"tfo data"),
    ] {
        let frame = frame.build();
        let out = expect(e, &frame, Transmit);
        check_error(&out, &frame, VIP, 3, 0);
    }
    let out_bound = tcp("192.168.100.10:40000", "198.51.100.7:443", "S", 1, 0)
        .via(S1_MAC)
        .ttl(1)
        .build();
    let out = expect(e, &out_bound, Transmit);
    check_error(&out, &out_bound, GATEWAY, 3, 0);
    assert_eq!(e.counter(Counter::TimeExceededSent), 4);
    assert!(e.entries().is_empty());
}

fn refusals<E: Engine>(e: &mut E) {
    let syn = tcp(CLIENT, "192.168.100.100:81", "S", 7, 0)
        .payload(b"abc")
        .build();
    let out = expect(e, &syn, Transmit);
    assert_eq!(out.len(), L3 + 40 + 20);
    assert_eq!(ends(&out), (end("192.168.100.100:81"), end(CLIENT)));
    assert_eq!(
        out[L3 + 48..L3 + 52],
        11_u32.to_be_bytes(),
        "the SYN and three bytes are acknowledged"
    );
    assert_eq!(out[L3 + 53], 0x14, "RST, ACK");
    assert!(verifies(&out));
    let datagram = udp(CLIENT, "192.168.100.100:9").payload(&[5; 40]).build();
    let out = expect(e, &datagram, Transmit);
    check_error(&out, &datagram, VIP, 1, 4);
}

fn pings<E: Engine>(e: &mut E) {
    for (options, payload) in [
        (vec![], vec![7; 56]),
        (vec![1], vec![]),
        (vec![], vec![0xff; 1_432]),
    ] {
        let frame = echo("192.168.10.50", VIP)
            .ttl(1)
            .options(&options)
            .payload(&payload)
            .build();
        let out = expect(e, &frame, Transmit);
        let layout = Layout::of(&out);
        assert_eq!((&out[0..6], &out[6..12]), (&ROUTER_MAC[..], &OUR_MAC[..]));
        assert_eq!(out[layout.l4..layout.l4 + 2], [129, 0], "echo reply");
        assert_eq!(out[layout.l4 + 4..], frame[layout.l4 + 4..]);
        assert_eq!(out[layout.ttl()], 64);
        assert!(verifies(&out));
    }
    assert_eq!(e.counter(Counter::EchoAnswered), 3);
}

fn extension_headers_are_walked<E: Engine>(e: &mut E) {
    let pad = |next| [next, 0, 1, 4, 0, 0, 0, 0];
    // Authentication: its length counts words of four bytes, minus two.
    let auth = [6, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    let routed = [6, 0, 4, 0, 0, 0, 0, 0];
    for (first, headers) in [
        (0, [&pad(60)[..], &pad(6)].concat()),
        (60, [&pad(51)[..], &auth].concat()),
        (43, routed.to_vec()),
    ] {
        let frame = behind(first, &headers);
        let out = expect(e, &frame, Transmit);
        assert_eq!(out[L3 + 40..L3 + 40 + headers.len()], headers, "headers stay");
        assert!(verifies(&out));
    }
    assert_eq!(e.counter(Counter::FlowCreated), 1);
    let endless = [pad(60); 7].concat();
    expect_drop(e, &behind(60, &endless), Counter::Malformed);
    let long = [&[6, 26][..], &[0; 214]].concat();
    expect_drop(e, &behind(60, &long), Counter::Malformed);
    let by_way_of_others = [
        6, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
    ];
    expect_drop(e, &behind(43, &by_way_of_others), Counter::SourceRouted);
    let beyond = [6, 20, 1, 4, 0, 0, 0, 0];
    expect_drop(e, &behind(60, &beyond), Counter::Malformed);
}

fn a_missing_udp_checksum_is_dropped<E: Engine>(e: &mut E) {
    let mut datagram = udp(CLIENT, "192.168.100.100:53").payload(b"x").build();
    let at = L3 + 40 + 6;
    datagram[at..at + 2].fill(0);
    expect_drop(e, &datagram, Counter::UdpChecksumMissing);
}

fn nonsense_is_dropped<E: Engine>(e: &mut E) {
    let good = tcp(CLIENT, SERVICE, "S", 1, 0).build();
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        frame
    };
    expect_drop(e, &with(L3, 0x40), Counter::Malformed);
    expect_drop(e, &with(L3 + 4, 0xff), Counter::Malformed);
    expect_drop(e, &with(L3 + 5, 19), Counter::Malformed);
    expect_drop(e, &good[..L3 + 30], Counter::Malformed);
    expect_drop(e, &good[..L3 + 50], Counter::Malformed);
    for protocol in [1, 2, 4, 41, 47, 50, 112, 132] {
        expect_drop(e, &with(L3 + 6, protocol), Counter::UnsupportedProtocol);
    }
    // A mapped IPv4 address never travels (RFC 4291 §2.5.5.2).
    let mut mapped = good.clone();
    mapped[L3 + 8..L3 + 20].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    expect_drop(e, &mapped, Counter::Malformed);
}

fn link_local_packets_are_never_routed<E: Engine>(e: &mut E) {
    let mut frame = tcp("192.168.100.10:40000", "198.51.100.7:443", "S", 1, 0)
        .via(S1_MAC)
        .build();
    frame[L3 + 24..L3 + 28].copy_from_slice(&[0xfe, 0x80, 0, 0]);
    expect_pass(e, &frame);
    let out = tcp("192.168.100.10:40000", "198.51.100.7:443", "S", 1, 0)
        .via(S1_MAC)
        .build();
    expect(e, &out, Transmit);
}

fn a_promiscuous_leg_duplicates_nothing<E: Engine>(e: &mut E) {
    for mac in [
        [0x33, 0x33, 0xff, 0xa8, 0x64, 0x64],
        [0x33, 0x33, 0, 0, 0, 1],
        S1_MAC,
    ] {
        expect_pass(e, &tcp(CLIENT, SERVICE, "S", 1, 0).onto(mac).build());
        expect_pass(e, &echo("192.168.10.50", VIP).onto(mac).build());
    }
    let talk = tcp(CLIENT, SERVICE, "S", 1, 0);
    forwarded(e, &talk, end("192.168.100.10:80"), S1_MAC);
}

/// A checksum that comes out as 0 is sent as 0xffff (RFC 8200 §8.1), both ways; one that is not there is never made up.
fn b89<E: Engine>(e: &mut E) {
    let checksum = |frame: &[u8]| {
        let at = Layout::of(frame).l4 + 6;
        [frame[at], frame[at + 1]]
    };
    let talk = super::Talk {
        vip: end("192.168.100.100:80"),
        ..super::balanced::outside()
    };
    let request = talk.request(Body::Udp(true));
    let source = forwarded(e, &request.clone().payload(&[0, 0]), talk.server, talk.server_mac);
    let reply = talk.reply(source, Body::Udp(true));
    for frame in [request, reply] {
        let out = expect(e, &frame.clone().payload(&[0, 0]).build(), Transmit);
        // What is missing to a sum of 0xffff, whose complement is 0.
        let out = expect(e, &frame.payload(&checksum(&out)).build(), Transmit);
        assert_eq!(checksum(&out), [0xff, 0xff]);
        assert!(verifies(&out));
    }
    let mut without = talk.reply(source, Body::Udp(true)).payload(&[1, 2]).build();
    let at = Layout::of(&without).l4 + 6;
    without[at..at + 2].fill(0);
    expect_drop(e, &without, Counter::UdpChecksumMissing);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "b77 hop limit 1 is answered by time exceeded",
            service,
            hop_limit_1_is_told,
        ),
        case("a port that is no service is refused", service, refusals),
        case("a ping of an owned address is answered in place", service, pings),
        case(
            "extension headers are walked, and not for ever",
            service,
            extension_headers_are_walked,
        ),
        case(
            "b89 a checksum of 0 is sent as 0xffff",
            || {
                Setup::service(&ServiceSpec {
                    proto: onearm_dataplane_common::maps::proto::UDP,
                    ..ServiceSpec::BOTH_NAT
                })
            },
            b89,
        ),
        case(
            "b46 a datagram without a checksum is dropped",
            service,
            a_missing_udp_checksum_is_dropped,
        ),
        case(
            "malformed packets and other protocols are dropped",
            service,
            nonsense_is_dropped,
        ),
        case(
            "link-local packets are never routed",
            service,
            link_local_packets_are_never_routed,
        ),
        case(
            "frames that are not for us pass untouched",
            service,
            a_promiscuous_leg_duplicates_nothing,
        ),
    ]
}
