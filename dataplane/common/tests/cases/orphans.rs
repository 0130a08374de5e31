//! Addresses that only the former owner's configuration has: what is there goes on, and nothing begins.

use super::{Case, balanced::outside, case, expect, expect_drop};
use crate::support::{Engine, Setup, Verdict::Transmit, frames::Body, setup::ServiceSpec};
use onearm_dataplane_common::{counter::Counter, maps::owned};

fn service() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

/// The classic node; its VIP is an orphan.
pub fn classic() -> Setup {
    let mut setup = Setup::classic();
    setup.owned[0].1.kinds = owned::ORPHAN;
    setup
}

/// The same node without the service, whose VIP is an orphan.
fn without_service() -> Setup {
    let mut setup = service();
    setup.services.clear();
    setup.owned[0].1.kinds = owned::ORPHAN;
    setup
}

fn goes_on<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    e.change(&without_service());
    expect(e, &talk.request(Body::Tcp("A", 3, 3)).build(), Transmit);
    talk.server_sends(e, source, Body::Tcp("A", 3, 4));
    assert_eq!(e.counter(Counter::OrphanWithoutFlow), 0);
}

fn begins_not<E: Engine>(e: &mut E) {
    e.change(&without_service());
    let talk = outside();
    let frames = [
        talk.request(Body::Tcp("S", 1, 0)).build(),
        talk.request(Body::Tcp("A", 1, 1)).build(),
        talk.request(Body::Tcp("SA", 1, 1)).build(),
        talk.request(Body::Udp(true)).build(),
    ];
    for frame in &frames {
        expect_drop(e, frame, Counter::OrphanWithoutFlow);
    }
    assert!(e.entries().is_empty());
    assert_eq!(e.counter(Counter::Transmitted), 0);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case("a flow of an orphan goes on", service, goes_on),
        case(
            "nothing begins at an orphan, and nothing is refused",
            service,
            begins_not,
        ),
    ]
}
