//! Options in the IPv4 header: source routes are refused, everything else goes on as it came.

use super::{
    Case, Talk,
    balanced::outside,
    case4,
    direct::{GUE_PORT, dsr, gue, ipip, to_server, tunnelled},
    expect, expect_drop, expect_pass, forwarded_from,
};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, Frame, echo, end, tcp, udp},
    model::{fragments, reassembled, routed, unfragmented, verifies},
    setup::{OUR_ADDR, OUR_MAC, ROUTER_MAC, S1_MAC, S3, ServiceSpec, VIP},
};
use onearm_dataplane_common::{counter::Counter, help::wanted, maps::proto};

/// Loose and strict source routes by way of 192.0.2.9: still to be followed, followed, behind another option, padded.
const ROUTES: [&[u8]; 5] = [
    &[131, 7, 4, 192, 0, 2, 9, 0],
    &[137, 7, 4, 192, 0, 2, 9, 0],
    &[131, 7, 8, 192, 0, 2, 9, 0],
    &[1, 148, 4, 0, 0, 137, 7, 4, 192, 0, 2, 9],
    &[131, 3, 4, 0],
];

/// Record route with addresses that look like source routes, time stamps, router alert, stream id, security, an option nobody
/// knows, a list that ends before a source route that is none.
const HARMLESS: [&[u8]; 8] = [
    &[7, 11, 4, 131, 7, 4, 137, 0, 0, 0, 131, 0],
    &[
        7, 39, 8, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 1,
    ],
    &[68, 12, 5, 0, 0, 0, 0, 131, 0, 0, 0, 137],
    &[148, 4, 0, 0],
    &[136, 4, 0, 9],
    &[130, 11, 131, 7, 4, 192, 0, 2, 9, 0, 0, 1],
    &[222, 2, 1, 1],
    &[1, 1, 0, 131],
];

/// Lengths of nothing, of one, past the header; a kind without room for a length.
const BROKEN: [&[u8]; 5] = [
    &[7, 0, 4, 0],
    &[148, 1, 0, 0],
    &[68, 9, 5, 0, 0, 0, 0, 0],
    &[1, 1, 1, 7],
    &[1, 1, 131, 3],
];

/// What may not have come that way: to the service, its flow's packets both ways, in transit, to nobody, a ping, pieces.
fn refused<E: Engine>(e: &mut E, options: &[u8], reason: Counter) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    let entries = e.entries();
    let from_server = |to: &str| tcp("192.168.100.10:4000", to, "A", 1, 2).via(S1_MAC);
    let dropped = [
        talk.request(Body::Tcp("A", 2, 3)),
        Talk {
            client: end("192.168.10.51:1"),
            ..talk
        }
        .request(Body::Tcp("S", 1, 0)),
        talk.reply(source, Body::Tcp("A", 3, 2)),
        from_server("198.51.100.7:443"),
        udp("192.168.10.50:1", "192.168.100.100:9"),
        echo("192.168.10.50", VIP),
    ];
    for frame in dropped {
        for payload in [&[][..], &[7; 40]] {
            let frame = frame.clone().options(options).payload(payload);
            expect_drop(e, &frame.build(), reason);
            expect_drop(e, &frame.padding(10).build(), reason);
        }
    }
    let unfragmented = unfragmented(
        &talk
            .request(Body::Udp(true))
            .options(options)
            .payload(&[1; 900])
            .build(),
        9,
    );
    for piece in fragments(&unfragmented, 9, 400) {
        expect_drop(e, &piece, reason);
    }
    assert_eq!(e.entries(), entries, "no flow is made or kept alive by it");
    // The node's own is the kernel's to judge, and what only passes by.
    let own = format!("{OUR_ADDR}:22");
    for frame in [
        tcp("192.168.10.50:4000", &own, "S", 1, 0),
        from_server(&own),
        tcp("192.168.10.50:4000", "198.51.100.7:80", "S", 1, 0),
    ] {
        expect_pass(e, &frame.options(options).build());
    }
}

/// Whether translated or only routed: every byte but what must change stays.
fn carried<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    for options in HARMLESS {
        for payload in [&[][..], &[7; 41]] {
            let request = talk
                .request(Body::Tcp("A", 2, 3))
                .options(options)
                .payload(payload);
            forwarded_from(e, &request, source, talk.server, S1_MAC);
            let reply = talk
                .reply(source, Body::Tcp("A", 3, 2))
                .options(options)
                .payload(payload);
            forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
        }
        let on = tcp("192.168.100.10:4000", "198.51.100.7:443", "A", 1, 2)
            .via(S1_MAC)
            .options(options)
            .build();
        assert_eq!(expect(e, &on, Transmit), routed(&on, OUR_MAC, ROUTER_MAC));
        let out = expect(e, &echo("192.168.10.50", VIP).options(options).build(), Transmit);
        assert_eq!(out[34..34 + options.len()], *options);
        assert!(verifies(&out));
    }
    assert_eq!(
        e.counter(Counter::Malformed) + e.counter(Counter::SourceRouted),
        0
    );
}

fn new_flows<E: Engine>(e: &mut E) {
    for (n, options) in HARMLESS.into_iter().enumerate() {
        let talk = Talk {
            client: end(&format!("192.168.10.50:{}", 5_000 + n)),
            ..outside()
        };
        let syn = talk.request(Body::Tcp("S", 1, 0)).options(options);
        super::forwarded(e, &syn, talk.server, S1_MAC);
    }
}

/// Fragments of packets with options, which stay in each.
fn pieces<E: Engine>(e: &mut E) {
    let talk = Talk {
        vip: end("192.168.100.100:53"),
        server: end("192.168.100.10:53"),
        ..outside()
    };
    for (n, options) in HARMLESS.into_iter().enumerate() {
        let id = 100 + u32::try_from(n).expect("few");
        let request = talk
            .request(Body::Udp(true))
            .options(options)
            .payload(&[3; 1_000]);
        let whole = unfragmented(&request.build(), id);
        let out: Vec<_> = fragments(&whole, id, 400)
            .iter()
            .map(|piece| expect(e, piece, Transmit))
            .collect();
        let (joined, _) = reassembled(&out);
        assert_eq!(joined[34..34 + options.len()], *options);
        assert!(verifies(&joined));
        let early = fragments(&whole, id + 100, 400).swap_remove(1);
        super::expect_asked(e, &early, wanted::KEEP, 0);
    }
}

fn with_options(frame: &Frame) -> impl Iterator<Item = Frame> {
    HARMLESS.into_iter().map(|options| frame.clone().options(options))
}

fn udp_service() -> Setup {
    Setup::service(&ServiceSpec {
        port: 53,
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    })
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let both = || Setup::service(&ServiceSpec::BOTH_NAT);
    let dnat = || Setup::service(&ServiceSpec::DNAT);
    vec![
        case4("source routes are refused, both-nat", both, |e| {
            for options in ROUTES {
                e.load(&Setup::service(&ServiceSpec::BOTH_NAT));
                refused(e, options, Counter::SourceRouted);
            }
        }),
        case4("source routes are refused, dnat", dnat, |e| {
            for options in ROUTES {
                e.load(&Setup::service(&ServiceSpec::DNAT));
                refused(e, options, Counter::SourceRouted);
            }
        }),
        case4("options that break off are refused", both, |e| {
            for options in BROKEN {
                e.load(&Setup::service(&ServiceSpec::BOTH_NAT));
                refused(e, options, Counter::Malformed);
            }
        }),
        case4(
            "source routes to servers that answer themselves are refused",
            dsr,
            |e| {
                let syn = outside().request(Body::Tcp("S", 1, 0));
                to_server(e, &syn, S1_MAC);
                for options in ROUTES {
                    expect_drop(e, &syn.clone().options(options).build(), Counter::SourceRouted);
                    let segment = outside().request(Body::Tcp("A", 2, 9)).options(options);
                    expect_drop(e, &segment.build(), Counter::SourceRouted);
                }
            },
        ),
        case4("other options stay, both-nat", both, carried),
        case4("other options stay, dnat", dnat, carried),
        case4("other options stay in first packets", both, new_flows),
        case4("other options stay in fragments", udp_service, pieces),
        case4("other options stay, dsr", dsr, |e| {
            for body in [Body::Tcp("S", 1, 0), Body::Tcp("A", 2, 9)] {
                for frame in with_options(&outside().request(body)) {
                    to_server(e, &frame, S1_MAC);
                }
            }
        }),
        case4("other options stay inside, l3-dsr", ipip, |e| {
            for frame in with_options(&outside().request(Body::Tcp("S", 1, 0))) {
                tunnelled(e, &frame, OUR_ADDR, S3, ROUTER_MAC, None);
            }
        }),
        case4("other options stay inside, l3-dsr by GUE", gue, |e| {
            for frame in with_options(&outside().request(Body::Tcp("A", 1, 9))) {
                tunnelled(e, &frame, OUR_ADDR, S3, ROUTER_MAC, Some(GUE_PORT));
            }
        }),
    ]
}
