//! More than one leg: VLAN tags and other interfaces.

use super::{Case, balanced::outside, case, case4, expect};
use crate::support::{
    Engine, Setup,
    Verdict::{Redirect, Transmit},
    frames::{Body, Frame, end},
    model::{Expected, ends, translated, verifies},
    setup::{OTHER_MAC, OUR_MAC, ROUTER_MAC, ServiceSpec},
};
use onearm_dataplane_common::counter::Counter;

fn tag(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0, 0, 10]);
    frame
}

fn vlan<E: Engine>(e: &mut E) {
    let (talk, server, mac) = (outside(), end("172.16.10.20:80"), [2, 0, 0, 0, 1, 4]);
    let request = talk.request(Body::Tcp("S", 1, 0)).payload(b"odd").build();
    let out = expect(e, &request, Transmit);
    assert_eq!(out[12..18], [0x81, 0, 0, 10, 8, 0]);
    assert!(verifies(&out));
    let (source, _) = ends(&out);
    let want = Expected {
        from_mac: OUR_MAC,
        to_mac: mac,
        from: source,
        to: server,
    };
    assert_eq!(out, tag(translated(&request, &want)));
    let reply = Frame::new(server, source, Body::Tcp("SA", 7, 2)).via(mac);
    let untagged = reply.build();
    let out = expect(e, &reply.vlan(10).build(), Transmit);
    let want = Expected {
        from_mac: OUR_MAC,
        to_mac: ROUTER_MAC,
        from: talk.vip,
        to: talk.client,
    };
    assert_eq!(
        out,
        translated(&untagged, &want),
        "back to the client without the tag"
    );
}

fn same_vlan<E: Engine>(e: &mut E) {
    let (server, mac) = (end("172.16.10.20:80"), [2, 0, 0, 0, 1, 4]);
    let request = outside().request(Body::Tcp("S", 1, 0)).vlan(10).build();
    let out = expect(e, &request, Transmit);
    let (source, _) = ends(&out);
    let want = Expected {
        from_mac: OUR_MAC,
        to_mac: mac,
        from: source,
        to: server,
    };
    assert_eq!(out, translated(&request, &want));
}

fn other_interface<E: Engine>(e: &mut E) {
    let (server, mac) = (end("172.16.77.20:80"), [2, 0, 0, 0, 1, 5]);
    let request = outside().request(Body::Tcp("S", 1, 0)).build();
    let out = expect(e, &request, Redirect);
    let (source, _) = ends(&out);
    let want = Expected {
        from_mac: OTHER_MAC,
        to_mac: mac,
        from: source,
        to: server,
    };
    assert_eq!(
        out,
        translated(&request, &want),
        "with the MAC of the leg it leaves by"
    );
    assert_eq!(e.counter(Counter::Redirected), 1);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case4(
            "a server on a VLAN of the same interface: tag on, tag off",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[4],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            vlan,
        ),
        case(
            "client and server on one VLAN: the tag stays",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[4],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            same_vlan,
        ),
        case(
            "a server on another interface",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[5],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            other_interface,
        ),
    ]
}
