//! VLAN tags: none, a priority alone, one, two.

use super::{Case, balanced::outside, case, case4, direct, expect, expect_pass, forwarded};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Redirect, Transmit},
    frames::{Body, Frame, arp_request, echo, end, ip, tcp, v6},
    model::{ends, verifies},
    setup::{OTHER_MAC, OUR_ADDR, OUR_MAC, ROUTER, ROUTER_MAC, S1_MAC, S3, ServiceSpec, VIP},
};
use onearm_dataplane_common::counter::Counter;

/// The frame behind tags (type, control information), the outer one first.
fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let tags: Vec<u8> = tags
        .iter()
        .flat_map(|(kind, tci)| [kind.to_be_bytes(), tci.to_be_bytes()].concat())
        .collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// 802.1Q, and 802.1ad.
const Q: u16 = 0x8100;
const AD: u16 = 0x88a8;
/// Priority 5 and no VLAN.
const PRIORITY: u16 = 5 << 13;

fn service() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

fn syn() -> Frame {
    outside().request(Body::Tcp("S", 1, 0))
}

/// A tag that says a priority alone is no VLAN (802.1Q §6.9.1): the leg's frame, which keeps it.
fn priority<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = forwarded(e, &syn(), talk.server, S1_MAC);
    let reply = talk.reply(source, Body::Tcp("SA", 7, 2)).build();
    for frame in [syn().build(), reply] {
        let plain = expect(e, &frame, Transmit);
        let out = expect(e, &tagged(&frame, &[(Q, PRIORITY)]), Transmit);
        assert_eq!(out, tagged(&plain, &[(Q, PRIORITY)]));
    }
    let ping = echo("192.168.10.50", VIP).build();
    let out = expect(e, &tagged(&ping, &[(Q, PRIORITY)]), Transmit);
    assert_eq!(out[12..16], [0x81, 0, 0xa0, 0]);
    assert!(verifies(&out));
    // What is made anew says no VLAN either.
    for frame in [
        tcp("192.168.10.50:1", "192.168.100.100:9", "S", 1, 0),
        syn().ttl(1),
    ] {
        let out = expect(e, &tagged(&frame.build(), &[(Q, PRIORITY)]), Transmit);
        assert_eq!((&out[12..14], out[14] & 0x1f, out[15]), (&[0x81, 0][..], 0, 0));
        assert!(verifies(&out));
    }
    assert_eq!(e.counter(Counter::RefusedTcp), 1);
}

/// Whoever resolves an owned address with a priority gets it back.
fn priority_of_a_question<E: Engine>(e: &mut E) {
    let question = arp_request(ROUTER_MAC, ip(ROUTER), ip(VIP), [0xff; 6]);
    let plain = expect(e, &question, Transmit);
    let out = expect(e, &tagged(&question, &[(Q, PRIORITY)]), Transmit);
    assert_eq!(out, tagged(&plain, &[(Q, PRIORITY)]));
    expect_pass(e, &tagged(&question, &[(AD, 0), (Q, 0)]));
}

/// To a leg without the tag, it goes; to one of another VLAN, it is that one's.
fn priority_to_other_legs<E: Engine>(e: &mut E) {
    let frame = tagged(&syn().build(), &[(Q, PRIORITY)]);
    let out = expect(e, &frame, Transmit);
    assert_eq!(out[12..16], [0x81, 0, 0, 10]);
    assert!(verifies(&out));
    let other = super::Talk {
        client: end("192.168.10.51:1"),
        ..outside()
    };
    let frame = tagged(&other.request(Body::Tcp("S", 1, 0)).build(), &[(Q, PRIORITY)]);
    let out = expect(e, &frame, Redirect);
    assert_eq!(
        (&out[6..12], out[14] >> 4),
        (&OTHER_MAC[..], if v6() { 6 } else { 4 })
    );
    assert!(verifies(&out));
}

/// Frames of VLANs that are no leg's, and frames with more than one tag, are the kernel's, whatever is in them.
fn others<E: Engine>(e: &mut E) {
    let own = format!("{OUR_ADDR}:22");
    let inside = [
        syn().build(),
        tcp("192.168.100.10:4000", "198.51.100.7:443", "A", 1, 2)
            .via(S1_MAC)
            .build(),
        tcp("192.168.10.50:4000", &own, "S", 1, 0).build(),
        echo("192.168.10.50", VIP).build(),
    ];
    for frame in &inside {
        for vlan in [1, 99, 4_094, 4_095, PRIORITY + 99] {
            expect_pass(e, &tagged(frame, &[(Q, vlan)]));
        }
    }
    assert_eq!(e.counter(Counter::StackedTags), 0);
    let stacks: [&[(u16, u16)]; 7] = [
        &[(AD, 10)],
        &[(AD, 10), (Q, 10)],
        &[(Q, 10), (Q, 10)],
        &[(Q, 0), (Q, 0)],
        &[(Q, PRIORITY), (AD, 10)],
        &[(AD, 0), (AD, 0)],
        &[(AD, 7), (Q, 8), (Q, 9)],
    ];
    for frame in &inside {
        for tags in stacks {
            expect_pass(e, &tagged(frame, tags));
        }
    }
    assert_eq!(e.counter(Counter::StackedTags), 4 * 7);
    assert_eq!(e.counter(Counter::Passed), 4 * 12);
    assert!(e.entries().is_empty());
}

/// A frame that ends within or behind its tags.
fn cut_short<E: Engine>(e: &mut E) {
    let frame = tagged(&syn().build(), &[(Q, 10)]);
    for len in 14..18 {
        expect_pass(e, &frame[..len]);
    }
    for len in 18..frame.len() {
        expect(e, &frame[..len], Drop);
    }
    assert_eq!(
        e.counter(Counter::Malformed),
        u64::try_from(frame.len() - 18).expect("short")
    );
    let stacked = tagged(&syn().build(), &[(AD, 10), (Q, 10)]);
    for len in 14..stacked.len() {
        expect_pass(e, &stacked[..len]);
    }
    assert!(e.entries().is_empty());
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case("a priority alone is no VLAN", service, priority),
        case(
            "a priority is lost on the way to other legs",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[4, 5],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            priority_to_other_legs,
        ),
        case4("a priority asks for an address", service, priority_of_a_question),
        case("a priority is no VLAN, dsr", direct::dsr, |e| {
            let frame = tagged(&syn().build(), &[(Q, PRIORITY)]);
            assert_eq!(
                expect(e, &frame, Transmit),
                direct::handed(&frame, OUR_MAC, S1_MAC)
            );
        }),
        case("a priority is lost before a tunnel", direct::ipip, |e| {
            let plain = expect(e, &syn().build(), Transmit);
            let out = expect(e, &tagged(&syn().build(), &[(Q, PRIORITY)]), Transmit);
            // The same outer packet, but for its fresh identification.
            assert_eq!((out.len(), &out[..14]), (plain.len(), &plain[..14]));
            assert_eq!(out[..6], ROUTER_MAC);
            assert_eq!(ends(&out).1.0, ip(S3));
        }),
        case("other VLANs and stacked tags pass untouched", service, others),
        case("tags that break off lead nowhere", service, cut_short),
    ]
}
