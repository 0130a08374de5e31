//! Balanced traffic: both modes, both directions, both protocols.

use super::{Case, case, expect};
use crate::support::{
    Engine, Setup,
    Verdict::{self, Transmit},
    frames::{End, Frame, end, ip, tcp, udp},
    model::{Expected, ends, translated, verifies},
    setup::{CLIENT, HALF, OUR_MAC, ROUTER_MAC, S1, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{counter::Counter, flow::State, maps::proto};

/// Sends a frame of the client and checks every byte of what goes to the server. Returns the source the server sees.
#[track_caller]
pub fn to_server<E: Engine>(engine: &mut E, frame: &Frame, server: End, mac: [u8; 6]) -> End {
    let frame = frame.build();
    let out = expect(engine, &frame, Transmit);
    let (source, _) = ends(&out);
    let want = Expected {
        from_mac: OUR_MAC,
        to_mac: mac,
        from: source,
        to: server,
    };
    assert_eq!(out, translated(&frame, &want));
    assert!(verifies(&out));
    source
}

/// Sends a frame of the server and checks every byte of what goes to the client.
#[track_caller]
pub fn to_client<E: Engine>(engine: &mut E, frame: &Frame, vip: End, client: End, mac: [u8; 6]) {
    let frame = frame.build();
    let out = expect(engine, &frame, Transmit);
    assert_eq!(
        out,
        translated(
            &frame,
            &Expected {
                from_mac: OUR_MAC,
                to_mac: mac,
                from: vip,
                to: client
            }
        )
    );
    assert!(verifies(&out));
}

/// Handshake, data both ways, close: every frame compared with the model.
fn tcp_conversation<E: Engine>(engine: &mut E, source_is_ours: bool) {
    let (client, vip, server) = (
        end("192.168.10.50:40000"),
        end("192.168.100.100:80"),
        end("192.168.100.10:80"),
    );
    let from_client =
        |flags, seq, ack| Frame::new(client, vip, crate::support::frames::Body::Tcp(flags, seq, ack));
    let source = to_server(engine, &from_client("S", 1_000, 0), server, S1_MAC);
    if source_is_ours {
        assert_eq!(source.0, ip(VIP));
        assert!(
            (HALF.0..=HALF.1).contains(&source.1),
            "port {} is not of this node's half",
            source.1
        );
    } else {
        assert_eq!(source, client);
    }
    assert_eq!(engine.half_open(), 1);
    let from_server = |flags, seq, ack| {
        Frame::new(server, source, crate::support::frames::Body::Tcp(flags, seq, ack)).via(S1_MAC)
    };
    to_client(engine, &from_server("SA", 9_000, 1_001), vip, client, ROUTER_MAC);
    assert_eq!(
        to_server(engine, &from_client("A", 1_001, 9_001), server, S1_MAC),
        source
    );
    assert_eq!(engine.half_open(), 0);
    assert!(engine.entries().iter().all(|e| e.state() == State::Established));
    for payload in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"x", &[0xff; 1_400]] {
        to_server(
            engine,
            &from_client("A", 1_001, 9_001).payload(payload),
            server,
            S1_MAC,
        );
        to_client(
            engine,
            &from_server("A", 9_001, 1_001).payload(payload),
            vip,
            client,
            ROUTER_MAC,
        );
    }
    to_server(engine, &from_client("FA", 2_000, 9_001), server, S1_MAC);
    to_client(engine, &from_server("FA", 9_001, 2_001), vip, client, ROUTER_MAC);
    assert!(engine.entries().iter().all(|e| e.state() == State::Closing));
    to_server(engine, &from_client("A", 2_001, 9_002), server, S1_MAC);
    assert_eq!(engine.entries().len(), 2);
    assert_eq!(engine.counter(Counter::FlowCreated), 1);
    assert_eq!(engine.counter(Counter::Transmitted), 12);
}

fn udp_exchange<E: Engine>(engine: &mut E, checksum: bool) {
    let (client, vip, server) = (
        end("192.168.10.50:5353"),
        end("192.168.100.100:53"),
        end("192.168.100.10:53"),
    );
    let body = crate::support::frames::Body::Udp(checksum);
    for payload in [b"question".as_slice(), b"", b"odd"] {
        let frame = Frame::new(client, vip, body.clone()).payload(payload);
        let source = to_server(engine, &frame, server, S1_MAC);
        let frame = Frame::new(server, source, body.clone())
            .via(S1_MAC)
            .payload(payload);
        to_client(engine, &frame, vip, client, ROUTER_MAC);
    }
    assert_eq!(engine.counter(Counter::FlowCreated), 1);
    assert_eq!(engine.half_open(), 0);
}

fn udp_service(spec: &ServiceSpec<'_>) -> Setup {
    Setup::service(&ServiceSpec {
        port: 53,
        proto: proto::UDP,
        ..spec.clone()
    })
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let both = || Setup::service(&ServiceSpec::BOTH_NAT);
    let dnat = || Setup::service(&ServiceSpec::DNAT);
    vec![
        case("a TCP conversation in both-nat", both, |e| {
            tcp_conversation(e, true)
        }),
        case("a TCP conversation in dnat", dnat, |e| tcp_conversation(e, false)),
        case(
            "a UDP exchange in both-nat",
            || udp_service(&ServiceSpec::BOTH_NAT),
            |e| udp_exchange(e, true),
        ),
        case(
            "a UDP exchange in dnat",
            || udp_service(&ServiceSpec::DNAT),
            |e| udp_exchange(e, true),
        ),
        case(
            "b46 no UDP checksum stays none, both-nat",
            || udp_service(&ServiceSpec::BOTH_NAT),
            |e| {
                udp_exchange(e, false);
            },
        ),
        case(
            "b46 no UDP checksum stays none, dnat",
            || udp_service(&ServiceSpec::DNAT),
            |e| udp_exchange(e, false),
        ),
    ]
}
