//! What is left of connections that are gone makes no state.

use super::{Case, Talk, balanced::outside, case, direct, expect, expect_drop};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, end, ip, tcp},
    model::ends,
    setup::{S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::counter::Counter;

/// The table is emptied as time does it; both sides then say their last words; the client calls again from the same port.
fn late_words<E: Engine>(e: &mut E, spec: &ServiceSpec<'_>, reason: Counter) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    e.load(&Setup::service(spec));
    for body in [
        Body::Tcp("FA", 3, 2),
        Body::Tcp("A", 3, 2),
        Body::Tcp("R", 3, 0),
        Body::Tcp("SA", 3, 2),
    ] {
        let late = talk.reply(source, body).build();
        expect_drop(e, &late, reason);
    }
    expect_drop(
        e,
        &talk.request(Body::Tcp("FA", 2, 3)).build(),
        Counter::TcpWithoutFlow,
    );
    assert_eq!(e.entries().len(), 0, "strays make no state");
    let again = talk.handshake(e, 7, 8);
    assert_eq!(
        again.0, source.0,
        "and the next flow is translated as the first was"
    );
    talk.server_sends(e, again, Body::Tcp("A", 9, 8));
}

/// Segments in transit: routed, by no state, and never the reason that later ones are.
fn transit<E: Engine>(e: &mut E) {
    let far = "198.51.100.7:443";
    for flags in ["FA", "R", "SA", "A"] {
        expect(
            e,
            &tcp("192.168.100.10:4000", far, flags, 1, 2).via(S1_MAC).build(),
            Transmit,
        );
    }
    assert_eq!(e.entries().len(), 0);
    let talk = Talk {
        client: end("192.168.10.50:4000"),
        ..outside()
    };
    let out = expect(e, &talk.request(Body::Tcp("S", 1, 0)).build(), Transmit);
    assert_eq!(ends(&out).0.0, ip(VIP));
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "b53 last words of a connection that is gone make no state, both-nat",
            || Setup::service(&ServiceSpec::BOTH_NAT),
            |e| late_words(e, &ServiceSpec::BOTH_NAT, Counter::SnatRangeWithoutFlow),
        ),
        case(
            "b53 last words of a connection that is gone make no state, dnat",
            || Setup::service(&ServiceSpec::DNAT),
            |e| late_words(e, &ServiceSpec::DNAT, Counter::DnatReplyWithoutFlow),
        ),
        case(
            "b53 segments in transit make no state",
            || Setup::service(&ServiceSpec::BOTH_NAT),
            transit,
        ),
        case(
            "b53 last words of a connection that is gone go to a server by hash, dsr",
            direct::dsr_two,
            |e| {
                let frame = outside().request(Body::Tcp("FA", 9, 9));
                let server = direct::server_of(e, &frame);
                for _ in 0..3 {
                    assert_eq!(direct::server_of(e, &frame), server);
                }
            },
        ),
    ]
}
