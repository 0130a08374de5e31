//! SYNs that meet a flow.

use super::{Case, Talk, balanced::outside, case, expect, forwarded};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, end},
    model::ends,
    setup::{S1_MAC, S2_MAC, ServiceSpec},
};
use onearm_dataplane_common::{counter::Counter, flow::State};

/// Two servers by turns, so that a new choice shows.
fn two_servers() -> Setup {
    Setup::service(&ServiceSpec {
        servers: &[1, 2],
        ..ServiceSpec::BOTH_NAT
    })
}

fn two_servers_dnat() -> Setup {
    Setup::service(&ServiceSpec {
        servers: &[1, 2],
        ..ServiceSpec::DNAT
    })
}

fn second() -> Talk {
    Talk {
        server: end("192.168.100.11:80"),
        server_mac: S2_MAC,
        ..outside()
    }
}

/// Closes a conversation one way, then connects again from the same port: the first SYN works, the server is chosen anew.
fn b50<E: Engine>(e: &mut E, close: fn(&mut E, &Talk, super::End)) {
    let first = outside();
    let source = first.handshake(e, 1, 2);
    close(e, &first, source);
    let source = second().handshake(e, 70_000, 80_000);
    assert!(
        e.entries()
            .iter()
            .all(|x| x.state() == State::Established && x.idle_ticks == 13_500)
    );
    assert_eq!((e.entries().len(), e.half_open()), (2, 0));
    assert_eq!(e.counter(Counter::FlowReopened), 1);
    second().server_sends(e, source, Body::Tcp("A", 80_001, 70_001));
}

fn client_first<E: Engine>(e: &mut E, talk: &Talk, source: super::End) {
    talk.client_sends(e, source, Body::Tcp("FA", 2, 3));
    talk.server_sends(e, source, Body::Tcp("FA", 3, 3));
    talk.client_sends(e, source, Body::Tcp("A", 3, 4));
}

fn server_first<E: Engine>(e: &mut E, talk: &Talk, source: super::End) {
    talk.server_sends(e, source, Body::Tcp("FA", 3, 2));
    talk.client_sends(e, source, Body::Tcp("FA", 2, 4));
    talk.server_sends(e, source, Body::Tcp("A", 4, 3));
}

fn client_resets<E: Engine>(e: &mut E, talk: &Talk, source: super::End) {
    talk.client_sends(e, source, Body::Tcp("R", 2, 0));
}

/// Anybody can send the client's RST: the SYN after it goes to the same server, whose answer tells what is true.
fn syn_after_the_clients_rst<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    client_resets(e, &talk, source);
    talk.client_sends(e, source, Body::Tcp("S", 70_000, 0));
    talk.server_sends(e, source, Body::Tcp("SA", 80_000, 70_001));
    talk.client_sends(e, source, Body::Tcp("A", 70_001, 80_001));
    assert!(e.entries().iter().all(|x| x.state() == State::Established));
    assert_eq!((e.entries().len(), e.half_open()), (2, 0));
    assert_eq!(e.counter(Counter::FlowReopened), 0);
}

fn forged_rst_and_syn<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    for seq in [900_000, 5] {
        talk.client_sends(e, source, Body::Tcp("R", seq, 0));
        talk.client_sends(e, source, Body::Tcp("S", seq, 0));
    }
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    assert!(
        e.entries().iter().all(|x| x.state() == State::Established),
        "a challenge ACK lifts the RST"
    );
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    assert_eq!((e.entries().len(), e.counter(Counter::FlowReopened)), (2, 0));
}

fn rst_after_both_fins<E: Engine>(e: &mut E) {
    b50(e, |e, talk, source| {
        client_first(e, talk, source);
        client_resets(e, talk, source);
    });
}

fn server_resets<E: Engine>(e: &mut E, talk: &Talk, source: super::End) {
    talk.server_sends(e, source, Body::Tcp("R", 3, 0));
}

fn syn_again<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.syn(e, 1);
    for _ in 0..3 {
        assert_eq!(talk.syn(e, 1), source, "a SYN sent again stays with its server");
    }
    talk.server_sends(e, source, Body::Tcp("SA", 2, 2));
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    assert_eq!((e.counter(Counter::FlowCreated), e.half_open()), (1, 0));
}

fn syn_on_established<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    let before = e.entries();
    talk.client_sends(e, source, Body::Tcp("S", 900, 0));
    let after = e.entries();
    for (a, b) in before.iter().zip(&after) {
        assert_eq!(
            (a.own, a.other, a.expected_ack, a.server),
            (b.own, b.other, b.expected_ack, b.server)
        );
    }
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    assert!(
        e.entries().iter().all(|x| x.state() == State::Established),
        "a challenge ACK changes nothing"
    );
    talk.server_sends(e, source, Body::Tcp("SA", 5_000, 901));
    assert_eq!(e.half_open(), 0, "it is a connection, old or new");
    talk.client_sends(e, source, Body::Tcp("A", 901, 5_001));
    assert_eq!(e.half_open(), 0);
}

/// Knows addresses and ports, guesses numbers: the connection keeps its long time-out.
fn blind_strangers<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    talk.client_sends(e, source, Body::Tcp("A", 2, 3));
    talk.server_sends(e, source, Body::Tcp("A", 3, 200));
    let established = |e: &E| e.entries().iter().all(|x| x.state() == State::Established);
    for (seq, ack) in [(1_000_000, 7), (3_000_000_000, 0), (100_000, 9)] {
        for flags in ["R", "RA", "S", "FA", "A", "SA", "R"] {
            talk.client_sends(e, source, Body::Tcp(flags, seq, ack));
            assert!(established(e), "{flags} {seq} of the client");
        }
    }
    assert_eq!(e.counter(Counter::RstDoubted), 9);
    for flags in ["R", "RA", "SA", "A", "R"] {
        talk.server_sends(e, source, Body::Tcp(flags, 1_000_000, 200));
        assert!(established(e), "{flags} of the server");
    }
    assert_eq!(e.counter(Counter::RstDoubted), 12);
    assert_eq!((e.entries().len(), e.half_open()), (2, 0));
    talk.client_sends(e, source, Body::Tcp("R", 200, 0));
    assert!(
        e.entries().iter().all(|x| x.state() == State::Closing),
        "its own is believed"
    );
}

/// Strangers meet a half-open flow: none makes it established.
fn blind_strangers_half_open<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.syn(e, 1);
    for (flags, seq, ack) in [("A", 2, 3), ("A", 2, 0), ("FA", 2, 0), ("A", 2, u32::MAX)] {
        talk.client_sends(e, source, Body::Tcp(flags, seq, ack));
    }
    talk.server_sends(e, source, Body::Tcp("SA", 100, 2));
    talk.client_sends(e, source, Body::Tcp("A", 2, 100));
    assert_eq!(e.half_open(), 1);
    assert!(e.entries().iter().all(|x| x.state() == State::HalfOpen));
    talk.client_sends(e, source, Body::Tcp("A", 2, 101));
    assert_eq!(e.half_open(), 0);
}

fn refused_by_server<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.syn(e, 1);
    talk.server_sends(e, source, Body::Tcp("RA", 0, 2));
    assert_eq!(e.half_open(), 0);
    second().handshake(e, 10, 20);
}

fn after_service_is_gone<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    client_resets(e, &talk, source);
    talk.server_sends(e, source, Body::Tcp("A", 3, 2));
    assert!(
        e.entries().iter().all(|x| x.state() == State::Established),
        "a segment after RST lifts it"
    );
    let out = expect(e, &talk.request(Body::Tcp("A", 2, 3)).build(), Transmit);
    assert_eq!(ends(&out).1, talk.server);
}

fn replaced_port_is_free<E: Engine>(e: &mut E) {
    // Closed by the server first, then the same client again: the old tuple goes with the old flow.
    let talk = outside();
    for round in 0..5u32 {
        let talk = if round % 2 == 0 { talk } else { second() };
        let source = forwarded(
            e,
            &talk.request(Body::Tcp("S", round, 0)),
            talk.server,
            talk.server_mac,
        );
        talk.server_sends(e, source, Body::Tcp("SA", 100, round + 1));
        talk.client_sends(e, source, Body::Tcp("A", round + 1, 101));
        server_first(e, &talk, source);
    }
    assert_eq!(e.entries().len(), 2);
    assert_ne!(S1_MAC, S2_MAC);
}

/// What a SYN-ACK acknowledges makes no RST more believable.
fn forged_syn_ack_and_rst<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    talk.server_sends(e, source, Body::Tcp("SA", 5, 9_000_000));
    talk.client_sends(e, source, Body::Tcp("R", 9_000_000, 0));
    assert_eq!(e.counter(Counter::RstDoubted), 1);
    assert!(e.entries().iter().all(|x| x.state() == State::Established));
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case("b50 fresh SYN after the client closed first", two_servers, |e| {
            b50(e, client_first);
        }),
        case("b50 fresh SYN after the server closed first", two_servers, |e| {
            b50(e, server_first);
        }),
        case(
            "b50 fresh SYN after the client's RST",
            two_servers,
            syn_after_the_clients_rst,
        ),
        case(
            "b50 fresh SYN after the client's RST, dnat",
            two_servers_dnat,
            syn_after_the_clients_rst,
        ),
        case(
            "b50 fresh SYN after both sides' FIN and a RST",
            two_servers,
            rst_after_both_fins,
        ),
        case(
            "a stranger's RST and SYN end no connection",
            two_servers,
            forged_rst_and_syn,
        ),
        case("b50 fresh SYN after the server's RST", two_servers, |e| {
            b50(e, server_resets);
        }),
        case(
            "b50 fresh SYN after the client closed first, dnat",
            two_servers_dnat,
            |e| b50(e, client_first),
        ),
        case(
            "b50 fresh SYN after the server's RST, dnat",
            two_servers_dnat,
            |e| b50(e, server_resets),
        ),
        case(
            "a SYN sent again stays with its half-open flow",
            two_servers,
            syn_again,
        ),
        case(
            "a SYN on an established flow changes nothing until the SYN-ACK",
            two_servers,
            syn_on_established,
        ),
        case(
            "a refused SYN is over and the next may go elsewhere",
            two_servers,
            refused_by_server,
        ),
        case(
            "blind segments take no time from a connection",
            two_servers,
            blind_strangers,
        ),
        case(
            "blind segments take no time from a connection, dnat",
            two_servers_dnat,
            blind_strangers,
        ),
        case(
            "blind segments promote no half-open flow",
            two_servers,
            blind_strangers_half_open,
        ),
        case(
            "a forged SYN-ACK makes no RST believable",
            two_servers,
            forged_syn_ack_and_rst,
        ),
        case("RST never deletes", two_servers, after_service_is_gone),
        case(
            "a client may use one port again and again",
            two_servers,
            replaced_port_is_free,
        ),
    ]
}
