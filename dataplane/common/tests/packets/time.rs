//! What depends on time, on a change of configuration, or is told to user space.

use crate::{
    cases::{Talk, expect, expect_drop},
    host::Host,
    support::{
        Engine, Setup,
        Verdict::{self, Transmit},
        frames::{Body, End, arp, end, ip, raw, udp},
        model::ends,
        setup::{BROADCAST, OUR_MAC, ROUTER, S1_MAC, S2_MAC, ServiceSpec, VIP},
    },
    talk,
};
use etherparse::ArpOperation;
use onearm_dataplane_common::{
    counter::Counter,
    event::kind,
    flow::State,
    maps::{SnatPool, proto, server},
    tables::tick,
    tell::FLOOR,
};
use std::collections::HashSet;

fn second() -> Talk {
    Talk {
        server: end("192.168.100.11:80"),
        server_mac: S2_MAC,
        ..talk(40_000)
    }
}

fn two_servers() -> Host {
    Host::new(&Setup::service(&ServiceSpec {
        servers: &[1, 2],
        ..ServiceSpec::BOTH_NAT
    }))
}

#[test]
fn an_established_flow_past_its_idle_time_gives_way_to_a_syn() {
    let mut host = two_servers();
    talk(40_000).handshake(&mut host, 1, 2);
    host.pass_ticks(13_500);
    talk(40_000).syn(&mut host, 5);
    host.pass_ticks(1);
    second().handshake(&mut host, 9, 10);
    assert_eq!(host.counter(Counter::FlowReopened), 1);
    assert_eq!((host.entries().len(), host.half_open()), (2, 0));
}

#[test]
fn b38_no_flow_is_overdue_before_this_node_knows_that_it_was_silent() {
    let mut host = two_servers();
    talk(40_000).handshake(&mut host, 1, 2);
    host.pass_ticks(100_000);
    let now = u64::from(tick(host.now));
    host.edit(|setup| setup.sync[FLOOR as usize] = now);
    host.pass_ticks(13_500);
    talk(40_000).syn(&mut host, 5);
    assert_eq!(host.counter(Counter::FlowReopened), 0);
    host.pass_ticks(1);
    second().syn(&mut host, 9);
    assert_eq!(host.counter(Counter::FlowReopened), 1);
}

#[test]
fn a_syn_does_not_keep_an_established_flow_alive() {
    let mut host = two_servers();
    talk(40_000).handshake(&mut host, 1, 2);
    for _ in 0..5 {
        host.pass_ticks(2_700);
        talk(40_000).syn(&mut host, 5);
    }
    host.pass_ticks(1);
    second().syn(&mut host, 9);
}

#[test]
fn a_late_segment_of_an_overdue_flow_is_still_translated() {
    let mut host = two_servers();
    let source = talk(40_000).handshake(&mut host, 1, 2);
    host.pass_ticks(100_000);
    talk(40_000).client_sends(&mut host, source, Body::Tcp("A", 2, 3));
    talk(40_000).server_sends(&mut host, source, Body::Tcp("A", 3, 2));
}

#[test]
fn a_half_open_flow_past_its_time_or_with_a_dead_server_gives_way() {
    let mut host = two_servers();
    talk(40_000).syn(&mut host, 1);
    host.pass_ticks(76);
    second().syn(&mut host, 1);
    host.edit(|s| s.servers[1].1.flags = server::USED);
    talk(40_000).syn(&mut host, 1);
    assert_eq!(host.counter(Counter::FlowReopened), 2);
    assert_eq!((host.entries().len(), host.half_open()), (2, 1));
}

#[test]
fn flows_outlive_the_service_and_the_generation() {
    let mut host = two_servers();
    let source = talk(40_000).handshake(&mut host, 1, 2);
    host.slot = 1;
    talk(40_000).client_sends(&mut host, source, Body::Tcp("A", 2, 3));
    talk(40_000).server_sends(&mut host, source, Body::Tcp("A", 3, 2));
    let frame = udp("192.168.10.50:1", "192.168.100.100:80").build();
    assert_eq!(
        expect(&mut host, &frame, Verdict::Pass),
        frame,
        "slot 1 owns nothing"
    );
    host.slot = 0;
    host.edit(|s| s.services.clear());
    talk(40_000).client_sends(&mut host, source, Body::Tcp("FA", 2, 3));
    talk(40_000).server_sends(&mut host, source, Body::Tcp("FA", 3, 3));
    let refused = expect(
        &mut host,
        &talk(40_000).request(Body::Tcp("S", 9, 0)).build(),
        Transmit,
    );
    assert_eq!(
        ends(&refused),
        (talk(40_000).vip, talk(40_000).client),
        "a SYN for a service that is gone is reset"
    );
}

#[test]
fn a_change_of_the_prefix_list_takes_effect_for_new_flows_only() {
    // Field case B61.
    let mut host = Host::new(&Setup::service(&ServiceSpec::DNAT));
    let kept = talk(40_000).handshake(&mut host, 1, 2);
    assert_eq!(kept, talk(40_000).client);
    host.edit(|s| {
        s.connected
            .push(crate::support::setup::prefix(0, "192.168.10.0", 24, 1));
    });
    talk(40_000).client_sends(&mut host, kept, Body::Tcp("A", 2, 3));
    talk(40_000).server_sends(&mut host, kept, Body::Tcp("A", 3, 2));
    let new = Talk {
        client: end("192.168.10.50:40001"),
        ..talk(40_000)
    };
    assert_eq!(new.handshake(&mut host, 1, 2).0, ip(VIP));
}

#[test]
fn every_forwarded_packet_is_counted_for_its_service_and_server() {
    let mut host = two_servers();
    let source = talk(40_000).handshake(&mut host, 1, 2);
    talk(40_000).server_sends(&mut host, source, Body::Tcp("A", 3, 2));
    let tallied = host.tallied.borrow().clone();
    assert_eq!(
        tallied,
        [
            (0, 1, false, 58),
            (0, 1, true, 58),
            (0, 1, false, 54),
            (0, 1, true, 54)
        ]
    );
    let entries = host.entries();
    assert_eq!(entries.iter().map(|e| e.packets).collect::<Vec<_>>(), [2, 2]);
    assert!(
        entries
            .iter()
            .all(|e| e.incarnation == (1 << 56 | 7 << 40 | 1) && e.state() == State::Established)
    );
}

#[test]
fn events_say_what_is_wanted_once_a_second() {
    let mut host = Host::new(&Setup::service(&ServiceSpec {
        servers: &[],
        ..ServiceSpec::BOTH_NAT
    }));
    let out = |addr: &str| udp("192.168.100.10:1", addr).via(S1_MAC).build();
    let stranger = [2, 0, 0, 0, 9, 9];
    let conflict = arp(
        ArpOperation::REPLY,
        (stranger, ip(VIP)),
        ([0; 6], ip(VIP)),
        BROADCAST,
    );
    for _ in 0..3 {
        expect_drop(&mut host, &out("192.168.100.55:9"), Counter::NoNeighbour);
        expect_drop(&mut host, &out("192.168.100.66:9"), Counter::NoNeighbour);
        expect_drop(
            &mut host,
            &talk(40_000).request(Body::Tcp("S", 1, 0)).build(),
            Counter::NoServer,
        );
        expect_drop(&mut host, &conflict, Counter::ArpConflict);
    }
    let events = host.events.borrow().clone();
    let told: Vec<_> = events.iter().map(|e| (e.kind, e.addr, e.detail)).collect();
    assert_eq!(
        told,
        [
            (kind::NEIGHBOUR_WANTED, raw(ip("192.168.100.55")), 0),
            (kind::NEXT_HOP_WANTED, raw(ip("192.168.100.66")), 6),
            (kind::NO_SERVER, raw(ip(VIP)), 0),
            (kind::ADDRESS_CONFLICT, raw(ip(VIP)), 0),
        ]
    );
    assert_eq!(events[3].mac, stranger);
    host.pass_ticks(15);
    expect_drop(&mut host, &out("192.168.100.55:9"), Counter::NoNeighbour);
    assert_eq!(host.events.borrow().len(), 5);
}

#[test]
fn what_a_legs_interface_does_to_packets_is_told_once_a_second() {
    let mut host = two_servers();
    let segment = talk(40_000)
        .request(Body::Tcp("S", 1, 0))
        .payload(&[7; 100])
        .build();
    for first_piece in 14..segment.len() {
        host.first_piece = first_piece;
        let whole = first_piece >= 14 + 20 + 20;
        let verdict = host.run(&segment).0;
        assert_eq!(
            verdict == Transmit,
            whole,
            "{first_piece} bytes in the first piece"
        );
    }
    assert_eq!(host.counter(Counter::HeadersInPieces), 40);
    assert_eq!(host.counter(Counter::Malformed), 0);
    host.first_piece = usize::MAX;
    host.edit(|setup| setup.next_hops[0].1.mtu = 1_400);
    host.edit(|setup| setup.next_hops[1].1.mtu = 1_400);
    for _ in 0..3 {
        let merged = talk(40_000).request(Body::Tcp("A", 2, 3)).payload(&[7; 4_000]);
        expect(&mut host, &merged.build(), Transmit);
    }
    assert_eq!(host.counter(Counter::SuperPacket), 3);
    let told: Vec<u32> = host.events.borrow().iter().map(|event| event.kind).collect();
    assert_eq!(told, [kind::HEADERS_IN_PIECES, kind::SUPER_PACKET]);
}

#[test]
fn b64_who_answers_for_a_vip_is_named() {
    let mut host = Host::new(&crate::cases::direct::dsr());
    let claim = |operation, to_mac| arp(operation, (S1_MAC, ip(VIP)), ([0; 6], ip(ROUTER)), to_mac);
    for _ in 0..3 {
        expect_drop(
            &mut host,
            &claim(ArpOperation::REQUEST, BROADCAST),
            Counter::ArpConflict,
        );
        expect_drop(
            &mut host,
            &claim(ArpOperation::REPLY, OUR_MAC),
            Counter::ArpConflict,
        );
    }
    let told = host.events.borrow().clone();
    assert_eq!(told.len(), 1, "once a second");
    assert_eq!(
        (told[0].kind, told[0].addr, told[0].mac),
        (kind::ADDRESS_CONFLICT, raw(ip(VIP)), S1_MAC)
    );
}

#[test]
fn a_count_of_half_open_flows_below_zero_refuses_nobody() {
    let mut host = two_servers();
    onearm_dataplane_common::tables::Tables::add_half_open(&host, u64::MAX);
    talk(40_000).syn(&mut host, 1);
    assert_eq!(
        host.counter(Counter::HalfOpenFull) + host.counter(Counter::HalfOpenEvicted),
        0
    );
}

#[test]
fn refusals_keep_their_rate() {
    let mut host = Host::new(&Setup::classic());
    for (network, want) in [(0, 20), (1, 20)] {
        for _ in 0..100 {
            host.run(&udp(&format!("10.0.{network}.1:1"), "192.168.100.100:9").build());
        }
        assert_eq!(
            host.counter(Counter::RefusedUdp),
            want * (network + 1),
            "a burst for each source network"
        );
    }
    for network in 2..500 {
        host.run(
            &udp(
                &format!("10.{}.{}.1:1", network / 250, network % 250),
                "192.168.100.100:9",
            )
            .build(),
        );
    }
    assert_eq!(host.counter(Counter::RefusedUdp), 200, "and one for all");
    host.pass_ticks(15);
    for _ in 0..100 {
        host.run(&udp("10.0.0.1:1", "192.168.100.100:9").build());
    }
    assert_eq!(host.counter(Counter::RefusedUdp), 220);
}

/// Three sources towards one port of one server, more flows than an address has ports.
#[test]
fn b131_several_sources_carry_more_than_65_536_flows_to_one_port_of_a_server() {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
    setup.pools = (0..3)
        .zip(["192.168.100.100", "192.168.100.101", "192.168.100.102"])
        .map(|(n, source)| {
            let addr = raw(ip(source));
            (
                n,
                SnatPool {
                    addr,
                    first: 20_000,
                    last: 44_999,
                },
            )
        })
        .collect();
    setup.service[0].1.snat_len = 3;
    setup.buckets = 1 << 14;
    setup.node.flow_buckets = 1 << 14;
    setup.node.half_open_budget = 100_000;
    let mut host = Host::new(&setup);
    let mut sources = HashSet::new();
    for n in 0..70_000_u32 {
        let [_, b, c, d] = n.to_be_bytes();
        let client = End([10, b, c, d].into(), 40_000);
        let (verdict, out) = host.run(
            &Talk {
                client,
                ..talk(40_000)
            }
            .request(Body::Tcp("S", 1, 0))
            .build(),
        );
        assert_eq!(verdict, Transmit, "flow {n}");
        let (source, to) = ends(&out);
        assert_eq!(to, talk(40_000).server);
        assert!(
            (20_000..45_000).contains(&source.1) && sources.insert(source),
            "{source:?} twice"
        );
        // Time for the share of a processor that an exact search may take.
        host.now += 100_000;
    }
    let addresses: HashSet<_> = sources.iter().map(|source| source.0).collect();
    assert_eq!((addresses.len(), host.entries().len()), (3, 140_000));
}

#[test]
fn a_datagram_flow_stays_with_its_server() {
    let mut host = Host::new(&Setup::service(&ServiceSpec {
        proto: proto::UDP,
        servers: &[1, 2],
        ..ServiceSpec::BOTH_NAT
    }));
    for _ in 0..4 {
        talk(40_000).request(Body::Udp(true));
        let out = expect(
            &mut host,
            &talk(40_000).request(Body::Udp(true)).build(),
            Transmit,
        );
        assert_eq!(ends(&out).1, talk(40_000).server);
        host.pass_ticks(20_000);
    }
}
