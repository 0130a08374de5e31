//! Clients that are the server's neighbours, in dnat.

use super::{Case, Talk, balanced::outside, case};
use crate::support::{
    Engine, Setup,
    frames::{end, ip},
    setup::{ROUTER_MAC, S1_MAC, S2_MAC, ServiceSpec, VIP, prefix},
};
use onearm_dataplane_common::{flow::flags, maps::hairpin};

/// Server 2 calls the VIP and gets server 1.
fn neighbour() -> Talk {
    Talk {
        client: end("192.168.100.11:40000"),
        client_mac: S2_MAC,
        ..outside()
    }
}

/// Server 1 calls the VIP and gets itself.
fn itself() -> Talk {
    Talk {
        client: end("192.168.100.10:40000"),
        client_mac: S1_MAC,
        ..outside()
    }
}

fn is_ours<E: Engine>(e: &mut E, talk: Talk) {
    let source = talk.handshake(e, 1, 2);
    assert_eq!(source.0, ip(VIP), "the server must answer us");
    assert!(
        e.entries()
            .iter()
            .all(|x| x.flags & flags::HAIRPIN != 0 && x.mode() == 0)
    );
}

fn is_kept<E: Engine>(e: &mut E, talk: Talk) {
    let source = talk.handshake(e, 1, 2);
    assert_eq!(source, talk.client, "the server must see the client");
    assert!(
        e.entries()
            .iter()
            .all(|x| x.flags & flags::HAIRPIN == 0 && x.mode() == 1)
    );
}

fn with(hairpin: u8) -> Setup {
    Setup::service(&ServiceSpec {
        hairpin,
        ..ServiceSpec::DNAT
    })
}

fn listed() -> Setup {
    let mut setup = with(hairpin::LISTED);
    setup.hairpin.push(prefix(0, "192.168.100.0", 24, 1));
    setup.hairpin.push(prefix(1, "192.168.10.0", 24, 1));
    setup
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let auto = || with(hairpin::AUTO);
    let off = || with(hairpin::OFF);
    vec![
        case(
            "b59 auto: a client in the server's prefix gets source translation",
            auto,
            |e| {
                is_ours(e, neighbour());
            },
        ),
        case("b61 auto: an outside client keeps its address", auto, |e| {
            is_kept(e, outside());
        }),
        case(
            "auto: a server balanced to itself gets source translation",
            auto,
            |e| is_ours(e, itself()),
        ),
        case(
            "auto: a server behind a router sees its clients",
            || {
                Setup::service(&ServiceSpec {
                    servers: &[3],
                    ..ServiceSpec::DNAT
                })
            },
            |e| {
                is_kept(
                    e,
                    Talk {
                        server: end("10.20.30.40:80"),
                        server_mac: ROUTER_MAC,
                        ..neighbour()
                    },
                );
            },
        ),
        case(
            "off: a client in the server's prefix keeps its address",
            off,
            |e| is_kept(e, neighbour()),
        ),
        case(
            "off: a server balanced to itself gets source translation all the same",
            off,
            |e| {
                is_ours(e, itself());
            },
        ),
        case(
            "listed: a client in the list gets source translation",
            listed,
            |e| is_ours(e, neighbour()),
        ),
        case(
            "b61 listed: a client outside the list keeps its address",
            listed,
            |e| is_kept(e, outside()),
        ),
    ]
}
