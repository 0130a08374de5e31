//! What goes along with flows of servers that answer their clients themselves: fragments, ICMP errors, packets too long.

use super::{
    Case, case,
    direct::{
        DSR, GUE_PORT, ack, call, carried, dsr, dsr_hash, dsr_two, dsr_udp, from, gue, handed, ipip, l3,
        per_packet, server_of, syn, tunnelled,
    },
    expect, expect_asked, expect_drop,
    icmp_errors::errors,
    too_big::{sized, told},
};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Transmit},
    frames::{Body, Frame, ip, v6},
    model::{Report, fragments, quoted, unfragmented},
    setup::{OUR_ADDR, OUR_MAC, ROUTER, ROUTER_MAC, S1_MAC, S2_MAC, S3, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    help::{note, wanted},
    maps::{Tunnel, proto, scheduler, server},
};
use std::collections::HashSet;

fn datagram(client: &str, size: usize) -> Frame {
    from(client).request(Body::Udp(true)).payload(&vec![7; size])
}

fn pieces(frame: &Frame, id: u32, part: usize) -> Vec<Vec<u8>> {
    fragments(&unfragmented(&frame.build(), id), id, part)
}

/// Two servers for datagrams, by turns or by hash.
fn two_for_datagrams(scheduler: u8, ways: u32) -> Setup {
    let mut setup = Setup::service(&ServiceSpec {
        proto: proto::UDP,
        servers: &[1, 2],
        scheduler,
        ..DSR
    });
    setup.node.dsr_ways = ways;
    setup
}

fn dsr_udp_two() -> Setup {
    two_for_datagrams(scheduler::WRR, 4)
}

fn nat_udp_two() -> Setup {
    Setup::service(&ServiceSpec {
        proto: proto::UDP,
        servers: &[1, 2],
        ..ServiceSpec::BOTH_NAT
    })
}

/// All fragments of a datagram go where its first one goes.
fn together<E: Engine>(e: &mut E) {
    let mut met = HashSet::new();
    for port in 1..30 {
        let frame = datagram(&format!("192.168.10.51:{port}"), 4_000);
        let mut macs = HashSet::new();
        for piece in pieces(&frame, port, 1_480) {
            let out = expect(e, &piece, Transmit);
            let mac = if out[..6] == S1_MAC { S1_MAC } else { S2_MAC };
            assert_eq!(out, handed(&piece, OUR_MAC, mac));
            macs.insert(mac);
        }
        assert_eq!(macs.len(), 1);
        met.extend(macs);
    }
    assert_eq!(met.len(), 2, "both servers have clients");
    assert_eq!(e.counter(Counter::FragmentFollowed), 2 * 29);
}

fn fragments_in_a_tunnel<E: Engine>(e: &mut E) {
    let mut ids = HashSet::new();
    for piece in pieces(&call(Body::Udp(true)).payload(&[7; 4_000]), 77, 1_400) {
        let (id, _) = carried(e, &piece, OUR_ADDR, S3, ROUTER_MAC, None);
        ids.insert(id);
    }
    if !v6() {
        assert_eq!(
            ids.len(),
            3,
            "outer packets that may be fragmented have identifications of their own"
        );
    }
    assert_eq!(e.entries().len(), 1);
}

fn segments_in_fragments<E: Engine>(e: &mut E) {
    server_of(e, &syn());
    for piece in pieces(&ack().payload(&[7; 3_000]), 5, 1_480) {
        let out = expect(e, &piece, Transmit);
        assert_eq!(out, handed(&piece, OUR_MAC, S1_MAC));
    }
    assert_eq!(e.entries()[0].packets, 1 + 3);
}

fn leave_a_dead_server<E: Engine>(e: &mut E, mut setup: Setup) {
    let frame = datagram("192.168.10.51:9", 2_000);
    let before = expect(e, &pieces(&frame, 1, 1_480)[0], Transmit)[..6].to_vec();
    let at = usize::from(before != S1_MAC);
    setup.servers[at].1.flags = server::USED | server::RESETS;
    setup.sched[0] = if at == 0 { 2 << 16 | 2 } else { 1 << 16 | 1 };
    e.change(&setup);
    for piece in pieces(&frame, 2, 1_480) {
        let out = expect(e, &piece, Transmit);
        assert_ne!(out[..6], before, "the dead server gets nothing");
    }
}

/// An error about what a server sent its client: by whom it is told, and where it goes.
fn about(client: &str, number: usize) -> Report {
    let talk = from(client);
    let answer = talk.reply(talk.client, Body::Tcp("A", 9, 2)).payload(&[5; 600]);
    let answer = Frame {
        from: talk.vip,
        ..answer
    }
    .build();
    let all = errors();
    let (kind, code, rest) = all[number % all.len()];
    Report {
        from_mac: ROUTER_MAC,
        to_mac: OUR_MAC,
        from: ip(ROUTER),
        to: ip(VIP),
        ttl: 64,
        kind,
        code,
        rest,
        quote: quoted(&answer, &answer, 8 + number % 100),
    }
}

/// Forty connections: every error reaches the server that has the connection, as it is.
fn to_the_owner<E: Engine>(e: &mut E, remembered: bool) {
    let client = |n: usize| format!("192.168.10.51:{}", 1_000 + n);
    let body = if remembered {
        Body::Tcp("S", 1, 0)
    } else {
        Body::Tcp("A", 1, 9)
    };
    let owners: Vec<_> = (0..40)
        .map(|n| server_of(e, &from(&client(n)).request(body.clone())))
        .collect();
    assert!(owners.contains(&S1_MAC) && owners.contains(&S2_MAC));
    let entries = e.entries();
    for n in (0..40).rev() {
        for error in [
            about(&client(n), n),
            Report {
                ttl: 1,
                ..about(&client(n), n)
            },
        ] {
            let frame = error.build();
            let out = expect(e, &frame, Transmit);
            assert_eq!(out, handed(&frame, OUR_MAC, owners[n]), "{error:?}");
        }
    }
    assert_eq!(e.counter(Counter::IcmpErrorTranslated), 80);
    assert_eq!(e.entries(), entries, "an error makes and changes no flow");
}

fn through_the_tunnel<E: Engine>(e: &mut E, port: Option<u16>) {
    for known in [false, true] {
        for n in 0..6 {
            let error = about("192.168.10.50:40000", n);
            carried(e, &error.build(), OUR_ADDR, S3, ROUTER_MAC, port);
            expect_drop(e, &Report { ttl: 1, ..error }.build(), Counter::TtlExpired);
        }
        assert_eq!(e.entries().len(), usize::from(known));
        tunnelled(e, &syn(), OUR_ADDR, S3, ROUTER_MAC, port);
    }
}

fn of_strangers<E: Engine>(e: &mut E) {
    let good = about("192.168.10.50:40000", 0);
    let (_, port) = if v6() { (40, 41) } else { (20, 21) };
    let mut other_port = good.clone();
    other_port.quote[port] ^= 1;
    expect_drop(e, &other_port.build(), Counter::IcmpErrorWithoutFlow);
    let mut cut = good.clone();
    cut.quote.truncate(port);
    expect_drop(e, &cut.build(), Counter::IcmpErrorWithoutFlow);
    let ours = Report {
        from: ip(VIP),
        ..good.clone()
    };
    expect_drop(e, &ours.build(), Counter::BadSource);
    e.lease(false);
    expect_drop(e, &good.build(), Counter::NoLease);
    assert_eq!(e.entries().len(), 0);
}

/// Bytes that tunnels leave of 1,500.
fn most(port: Option<u16>) -> u16 {
    let overhead = if v6() { 40 } else { 20 };
    1_500 - overhead - if port.is_some() { 8 } else { 0 }
}

fn too_big_for_the_tunnel<E: Engine>(e: &mut E, port: Option<u16>) {
    let most = most(port);
    let sizes = (most + 1..=1_500).step_by(13);
    // A flow that is remembered, and one that is not.
    for options in [&[][..], &[1; 8]] {
        for first in [Body::Tcp("A", 2, 9), Body::Tcp("S", 1, 0)] {
            for total in sizes.clone() {
                let frame = sized(ack().options(options), usize::from(total)).build();
                told(e, &frame, ip(VIP), most);
            }
            let fits = sized(ack().options(options), usize::from(most));
            tunnelled(e, &fits, OUR_ADDR, S3, ROUTER_MAC, port);
            tunnelled(e, &call(first), OUR_ADDR, S3, ROUTER_MAC, port);
        }
        let sent = 2 * sizes.clone().count() as u64;
        let done = if options.is_empty() { 1 } else { 2 };
        assert_eq!(e.counter(Counter::TooBigSent), sent * done);
    }
}

fn flood_of_big_ones<E: Engine>(e: &mut E) {
    let frame = sized(ack(), 1_500).build();
    let sent = (0..1_000).filter(|_| e.run(&frame).0 != Drop).count();
    assert!((20..=200).contains(&sent), "{sent} of 1,000");
    let mut error = about("192.168.10.50:40000", 0);
    error.quote.resize(usize::from(most(None)), 1);
    expect_drop(e, &error.build(), Counter::TooBig);
}

fn first_datagram_too_big<E: Engine>(e: &mut E) {
    let frame = sized(call(Body::Udp(true)), 1_500).build();
    told(e, &frame, ip(VIP), most(None));
    assert_eq!(expect(e, &call(Body::Udp(true)).build(), Transmit)[..6], S1_MAC);
}

/// IPv6 hosts may always send 1,280 bytes: a way that takes less beside the tunnel's header takes nothing longer.
fn below_the_least<E: Engine>(e: &mut E) {
    let frame = sized(ack(), 1_290).build();
    if v6() {
        expect_drop(e, &frame, Counter::TooBig);
    } else {
        told(e, &frame, ip(VIP), 1_280);
    }
}

fn too_big_for_the_server<E: Engine>(e: &mut E) {
    let whole = sized(ack(), 1_400).build();
    assert_eq!(expect(e, &whole, Transmit), handed(&whole, OUR_MAC, S1_MAC));
    told(e, &sized(ack(), 1_401).build(), ip(VIP), 1_400);
}

fn early<E: Engine>(e: &mut E) {
    let pieces = pieces(&datagram("192.168.10.51:9", 3_000), 0x7e57, 1_480);
    expect_asked(e, &pieces[1], wanted::KEEP, 0);
    assert_eq!(e.run_again(&pieces[1], note::LAST).0, Drop);
    assert_eq!(e.counter(Counter::FragmentEarly), 1);
    expect(e, &pieces[0], Transmit);
    let (verdict, out, _) = e.run_again(&pieces[1], note::AGAIN);
    assert_eq!((verdict, &out[..6]), (Transmit, &S1_MAC[..]));
}

fn narrow(mut setup: Setup, hop: usize, mtu: u16) -> Setup {
    setup.next_hops[hop].1.mtu = mtu;
    setup
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case("fragments stay together, dsr by turns", dsr_udp_two, together),
        case(
            "fragments stay together, dsr by hash",
            || two_for_datagrams(scheduler::MAGLEV, 4),
            together,
        ),
        case(
            "fragments stay together, datagrams one by one by turns",
            || per_packet(scheduler::WRR),
            together,
        ),
        case(
            "fragments stay together, datagrams one by one at random",
            || per_packet(scheduler::MAGLEV),
            together,
        ),
        case(
            "fragments stay together, dsr without affinities",
            || two_for_datagrams(scheduler::WRR, 0),
            together,
        ),
        case(
            "fragments in a tunnel",
            || l3(3, proto::UDP, Tunnel::default()),
            fragments_in_a_tunnel,
        ),
        case("a TCP segment in fragments, dsr", dsr, segments_in_fragments),
        case(
            "fragmented datagrams leave a server that is down, dsr",
            dsr_udp_two,
            |e| leave_a_dead_server(e, dsr_udp_two()),
        ),
        case(
            "fragmented datagrams leave a server that is down, both-nat",
            nat_udp_two,
            |e| leave_a_dead_server(e, nat_udp_two()),
        ),
        case("a later fragment before its first one, dsr", dsr_udp, early),
        case(
            "b75 an ICMP error reaches the server of the connection, dsr",
            dsr_two,
            |e| {
                to_the_owner(e, true);
            },
        ),
        case(
            "b75 an ICMP error reaches the server of the connection after a fail-over, dsr",
            || {
                let mut setup = dsr_hash();
                setup.node.dsr_ways = 0;
                setup
            },
            |e| to_the_owner(e, false),
        ),
        case(
            "b75 an ICMP error reaches the server of the connection, IPIP",
            ipip,
            |e| {
                through_the_tunnel(e, None);
            },
        ),
        case(
            "b75 an ICMP error reaches the server of the connection, GUE",
            gue,
            |e| {
                through_the_tunnel(e, Some(GUE_PORT));
            },
        ),
        case("b55 ICMP errors of strangers, dsr", dsr, of_strangers),
        case("b55 echo replies make no state, dsr", dsr, |e| {
            let mut frame = call(Body::Echo(7, 1)).build();
            let l4 = if v6() { 54 } else { 34 };
            frame[l4] = if v6() { 129 } else { 0 };
            expect_drop(e, &frame, Counter::IcmpUnhandled);
            assert_eq!(e.entries().len(), 0);
        }),
        case("b71 b72 a packet too big for its tunnel, IPIP", ipip, |e| {
            too_big_for_the_tunnel(e, None);
        }),
        case("b71 b72 a packet too big for its tunnel, GUE", gue, |e| {
            too_big_for_the_tunnel(e, Some(GUE_PORT));
        }),
        case(
            "b72 senders are told of tunnels at a limited rate",
            ipip,
            flood_of_big_ones,
        ),
        case(
            "b71 a first datagram too big for its tunnel",
            || l3(1, proto::UDP, Tunnel::default()),
            first_datagram_too_big,
        ),
        case(
            "b71 IPv6 is never told of less than 1,280 bytes",
            || narrow(ipip(), 2, 1_300),
            below_the_least,
        ),
        case(
            "a packet too big for the server's leg, dsr",
            || narrow(dsr(), 0, 1_400),
            too_big_for_the_server,
        ),
    ]
}
