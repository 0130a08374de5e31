//! Balanced traffic: both modes, both directions, both protocols.

use super::{Case, Talk, case, case4, forwarded, forwarded_from};
use crate::support::{
    Engine, Setup,
    frames::{Body, end, ip},
    setup::{HALF, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{flow::State, maps::proto};

pub fn outside() -> Talk {
    Talk {
        client: end("192.168.10.50:40000"),
        client_mac: ROUTER_MAC,
        vip: end("192.168.100.100:80"),
        server: end("192.168.100.10:80"),
        server_mac: S1_MAC,
    }
}

/// Handshake, data both ways, close: every frame compared with the model.
fn tcp_conversation<E: Engine>(e: &mut E, source_is_ours: bool) {
    let talk = outside();
    let source = talk.syn(e, 1_000);
    if source_is_ours {
        assert_eq!(source.0, ip(VIP));
        assert!(
            (HALF.0..=HALF.1).contains(&source.1),
            "port {} is not of this node's half",
            source.1
        );
    } else {
        assert_eq!(source, talk.client);
    }
    assert_eq!(e.half_open(), 1);
    talk.server_sends(e, source, Body::Tcp("SA", 9_000, 1_001));
    talk.client_sends(e, source, Body::Tcp("A", 1_001, 9_001));
    assert_eq!(e.half_open(), 0);
    assert!(e.entries().iter().all(|x| x.state() == State::Established));
    for payload in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"x", &[0xff; 1_400]] {
        let request = talk.request(Body::Tcp("A", 1_001, 9_001)).payload(payload);
        forwarded_from(e, &request, source, talk.server, S1_MAC);
        let reply = talk.reply(source, Body::Tcp("A", 9_001, 1_001)).payload(payload);
        forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
    }
    talk.client_sends(e, source, Body::Tcp("FA", 2_000, 9_001));
    talk.server_sends(e, source, Body::Tcp("FA", 9_001, 2_001));
    assert!(e.entries().iter().all(|x| x.state() == State::Closing));
    talk.client_sends(e, source, Body::Tcp("A", 2_001, 9_002));
    assert_eq!(e.entries().len(), 2);
    assert_eq!(e.counters(), [("transmitted", 12), ("flow_created", 1)]);
}

fn udp_exchange<E: Engine>(e: &mut E, checksum: bool) {
    let talk = Talk {
        vip: end("192.168.100.100:53"),
        server: end("192.168.100.10:53"),
        ..outside()
    };
    let mut sources = Vec::new();
    for payload in [b"question".as_slice(), b"", b"odd"] {
        let request = talk.request(Body::Udp(checksum)).payload(payload);
        let source = forwarded(e, &request, talk.server, S1_MAC);
        let reply = talk.reply(source, Body::Udp(checksum)).payload(payload);
        forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
        sources.push(source);
    }
    sources.dedup();
    assert_eq!(sources.len(), 1, "one flow a 5-tuple");
    assert_eq!(e.counters(), [("transmitted", 6), ("flow_created", 1)]);
    assert_eq!(e.half_open(), 0);
}

/// Every payload length of the field case, with addresses and ports that make the sums wrap.
fn b48<E: Engine>(e: &mut E) {
    let talk = Talk {
        client: end("255.254.255.253:65535"),
        ..outside()
    };
    let talk = Talk {
        client: end("223.255.255.255:65535"),
        ..talk
    };
    let source = talk.handshake(e, u32::MAX, u32::MAX);
    for len in (0..=130).chain([1_459, 1_460]) {
        for fill in [0u8, 0xff, 0x5a] {
            let payload = vec![fill; len];
            let request = talk.request(Body::Tcp("A", 0, 0)).payload(&payload);
            forwarded_from(e, &request, source, talk.server, S1_MAC);
            let reply = talk.reply(source, Body::Tcp("A", 0, 0)).payload(&payload);
            forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
        }
    }
}

fn udp(spec: &ServiceSpec<'_>) -> Setup {
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
            tcp_conversation(e, true);
        }),
        case("a TCP conversation in dnat", dnat, |e| tcp_conversation(e, false)),
        case(
            "a UDP exchange in both-nat",
            || udp(&ServiceSpec::BOTH_NAT),
            |e| udp_exchange(e, true),
        ),
        case(
            "a UDP exchange in dnat",
            || udp(&ServiceSpec::DNAT),
            |e| udp_exchange(e, true),
        ),
        case4(
            "b46 no UDP checksum stays none, both-nat",
            || udp(&ServiceSpec::BOTH_NAT),
            |e| {
                udp_exchange(e, false);
            },
        ),
        case4(
            "b46 no UDP checksum stays none, dnat",
            || udp(&ServiceSpec::DNAT),
            |e| udp_exchange(e, false),
        ),
        case("b48 every length, sums that wrap, both-nat", both, b48),
        case("b48 every length, sums that wrap, dnat", dnat, b48),
    ]
}
