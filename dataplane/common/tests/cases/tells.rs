//! What the peer is to know of flows, and what not.

use super::{
    Case,
    balanced::outside,
    case,
    direct::{DSR, ack, dsr, syn, to_server},
};
use crate::support::{
    Engine, Setup,
    frames::{Body, End, end, ip, v6},
    setup::{S1_MAC, ServiceSpec},
};
use onearm_dataplane_common::{
    addr::{Addr, Addr4},
    flow::FlowEntry,
    maps::{proto, server},
    tell::{ENDED4, ENDED6, incarnation_word, place},
};

/// Records since the last time.
#[track_caller]
fn told<E: Engine>(e: &mut E, want: &[&[u64]]) {
    let told = e.tells();
    let told: Vec<&[u64]> = told.iter().map(Vec::as_slice).collect();
    assert_eq!(told, want);
}

/// The only flow's client's entry, and its place.
fn only<E: Engine>(e: &E) -> (FlowEntry, u64) {
    let entries = e.entries();
    assert!(entries.len() <= 2, "{entries:?}");
    let forward = entries.iter().find(|x| !x.is_reply()).expect("a flow");
    let at = entries.iter().find(|x| x.is_reply()).unwrap_or(forward).partner;
    (*forward, place(v6(), at))
}

/// One record, of this flow's end.
#[track_caller]
fn told_its_end<E: Engine>(e: &mut E, (entry, place): &(FlowEntry, u64)) {
    let told = e.tells();
    let [record] = &told[..] else { panic!("{told:x?}") };
    let (len, at, addresses) = if v6() {
        (ENDED6, incarnation_word::<Addr>(), 4)
    } else {
        (ENDED4, incarnation_word::<Addr4>(), 1)
    };
    assert_eq!(
        (record.len(), record[0], record[1 + at]),
        (len, *place, entry.incarnation)
    );
    // Ports, protocol and what was seen of both sides follow the addresses of the key.
    let [sport, dport] = [entry.sport, entry.dport].map(u64::from);
    let bits = [entry.proto, entry.flags, entry.own, entry.other];
    let bits = u64::from(u32::from_ne_bytes(bits));
    assert_eq!(record[1 + addresses], sport | dport << 16 | bits << 32);
}

fn connection<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.syn(e, 1);
    talk.server_sends(e, source, Body::Tcp("SA", 2, 2));
    told(e, &[]);
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    let (_, place) = only(e);
    told(e, &[&[place]]);
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    talk.client_sends(e, source, Body::Tcp("S", 900, 0));
    talk.client_sends(e, source, Body::Tcp("FA", 2, 3));
    told(e, &[]);
    talk.server_sends(e, source, Body::Tcp("FA", 3, 3));
    told(e, &[&[place]]);
    let closed = only(e);
    talk.syn(e, 70_000);
    told_its_end(e, &closed);
}

fn reset_and_lifted<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    let (_, place) = only(e);
    told(e, &[&[place]]);
    talk.server_sends(e, source, Body::Tcp("R", 900_000, 0));
    told(e, &[]);
    talk.server_sends(e, source, Body::Tcp("R", 3, 0));
    told(e, &[&[place]]);
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    told(e, &[&[place]]);
}

fn never_established<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.syn(e, 1);
    talk.server_sends(e, source, Body::Tcp("RA", 0, 2));
    talk.syn(e, 10);
    talk.client_sends(e, source, Body::Tcp("R", 11, 0));
    talk.syn(e, 20);
    told(e, &[]);
}

fn datagrams<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = super::forwarded(e, &talk.request(Body::Udp(true)), talk.server, talk.server_mac);
    talk.client_sends(e, source, Body::Udp(true));
    told(e, &[]);
    talk.server_sends(e, source, Body::Udp(true));
    let (_, place) = only(e);
    told(e, &[&[place]]);
    talk.server_sends(e, source, Body::Udp(true));
    talk.client_sends(e, source, Body::Udp(true));
    told(e, &[]);
}

fn datagrams_setup() -> Setup {
    Setup::service(&ServiceSpec {
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    })
}

fn affinity<E: Engine>(e: &mut E) {
    to_server(e, &syn(), S1_MAC);
    to_server(e, &syn(), S1_MAC);
    told(e, &[]);
    to_server(e, &ack(), S1_MAC);
    let (_, place) = only(e);
    told(e, &[&[place]]);
    let call = |body| outside().request(body);
    to_server(e, &ack(), S1_MAC);
    told(e, &[]);
    to_server(e, &call(Body::Tcp("FA", 2, 9)), S1_MAC);
    told(e, &[&[place]]);
    to_server(e, &call(Body::Tcp("R", 2, 0)), S1_MAC);
    told(e, &[]);
    to_server(e, &syn(), S1_MAC);
    told(e, &[]);
    to_server(e, &ack(), S1_MAC);
    told(e, &[&[place]]);
}

fn affinities_give_way<E: Engine>(e: &mut E) {
    to_server(e, &syn(), S1_MAC);
    to_server(e, &ack(), S1_MAC);
    let first = only(e);
    told(e, &[&[first.1]]);
    // One of which is known that it lives gives way to a newer one when no other is left.
    for port in 1..5 {
        let talk = super::Talk {
            client: End(ip("192.168.10.51"), port),
            ..outside()
        };
        for body in [Body::Tcp("S", 1, 0), Body::Tcp("A", 2, 9)] {
            to_server(e, &talk.request(body), S1_MAC);
        }
    }
    let lengths: Vec<usize> = e.tells().iter().map(Vec::len).collect();
    let ended = if v6() { ENDED6 } else { ENDED4 };
    assert_eq!(lengths, [1, 1, 1, ended, 1]);
}

fn one_bucket() -> Setup {
    let mut setup = Setup::service(&DSR);
    setup.buckets = 1;
    setup.node.flow_buckets = 1;
    setup.node.flow6_buckets = 1;
    setup
}

fn server_is_gone<E: Engine>(e: &mut E, setup: fn() -> Setup, body: Body, flag: u32) {
    let talk = outside();
    let is_tcp = matches!(body, Body::Tcp(..));
    if is_tcp {
        talk.handshake(e, 1, 2);
    } else {
        let source = super::forwarded(e, &talk.request(body.clone()), talk.server, talk.server_mac);
        talk.server_sends(e, source, body.clone());
    }
    let flow = only(e);
    told(e, &[&[flow.1]]);
    let mut setup = setup();
    setup.servers[0].1.flags = server::USED | flag;
    e.change(&setup);
    e.run(&talk.request(body).build());
    if is_tcp {
        told(e, &[&[flow.1]]);
    } else {
        told_its_end(e, &flow);
    }
}

fn nobody_listens<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    talk.server_sends(e, source, Body::Tcp("R", 3, 0));
    talk.syn(e, 70_000);
    let talk = super::Talk {
        vip: end("192.168.100.100:81"),
        server: end("192.168.100.10:81"),
        ..outside()
    };
    for body in [Body::Tcp("S", 1, 0), Body::Tcp("A", 2, 9), Body::Tcp("R", 2, 0)] {
        to_server(e, &talk.request(body), S1_MAC);
    }
    told(e, &[]);
}

fn deaf() -> Setup {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT).with(&ServiceSpec { port: 81, ..DSR });
    setup.sync[0] = 0;
    setup
}

fn tcp() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "told: a connection is established, closed, replaced",
            tcp,
            connection,
        ),
        case("told: a connection is reset, and is not", tcp, reset_and_lifted),
        case(
            "told: nothing of what was never established",
            tcp,
            never_established,
        ),
        case(
            "told: a datagram is answered for the first time",
            datagrams_setup,
            datagrams,
        ),
        case(
            "told: an affinity by its second packet, its end, its life again",
            dsr,
            affinity,
        ),
        case(
            "told: an affinity that lived gives way",
            one_bucket,
            affinities_give_way,
        ),
        case("told: a connection whose server went down closes", tcp, |e| {
            server_is_gone(e, tcp, Body::Tcp("A", 2, 3), server::RESETS);
        }),
        case(
            "told: datagrams whose server went down are another flow",
            datagrams_setup,
            |e| {
                server_is_gone(e, datagrams_setup, Body::Udp(true), server::MOVES);
            },
        ),
        case("told: nothing if nobody listens", deaf, nobody_listens),
    ]
}
