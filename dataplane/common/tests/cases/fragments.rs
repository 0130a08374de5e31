//! Fragments: later ones follow their first one.

use super::{Case, Talk, balanced::outside, case, expect, expect_asked, expect_drop, expect_pass};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Pass, Redirect, Transmit},
    frames::{Body, End, Frame, end, ip, tcp, udp, v6},
    model::{Expected, ends, fragments, reassembled, routed, translated, unfragmented, verifies},
    setup::{OUR_MAC, ROUTER_MAC, S1_MAC, S2_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::{
    counter::Counter,
    help::{note, wanted},
    maps::{proto, server},
};

fn udp_talk() -> Talk {
    Talk {
        vip: end("192.168.100.100:53"),
        server: end("192.168.100.10:53"),
        ..outside()
    }
}

/// Sends a packet in fragments of `part` bytes; what leaves, put together, must be the packet translated. Returns its
/// source and its identification.
#[track_caller]
fn carried<E: Engine>(e: &mut E, frame: &Frame, id: u32, part: usize, to: End, mac: [u8; 6]) -> (End, u32) {
    let whole = unfragmented(&frame.build(), id);
    let pieces: Vec<Vec<u8>> = fragments(&whole, id, part)
        .iter()
        .map(|piece| expect(e, piece, Transmit))
        .collect();
    let (got, got_id) = reassembled(&pieces);
    let from = ends(&got).0;
    let expected = Expected {
        from_mac: OUR_MAC,
        to_mac: mac,
        from,
        to,
    };
    assert_eq!(got, unfragmented(&translated(&whole, &expected), got_id));
    assert!(verifies(&got));
    (from, got_id)
}

fn datagrams<E: Engine>(e: &mut E, both_nat: bool) {
    let talk = udp_talk();
    for (n, (size, part)) in [(4_000, 1_480), (60_000, 1_480), (100, 8), (1_481, 1_480), (9, 8)]
        .into_iter()
        .enumerate()
    {
        let id = 0x4000 + u32::try_from(n).expect("few");
        let payload: Vec<u8> = (0..size).map(|b: usize| b.to_le_bytes()[0]).collect();
        let request = talk.request(Body::Udp(true)).payload(&payload);
        let (source, _) = carried(e, &request, id, part, talk.server, S1_MAC);
        assert_eq!(source.0 == ip(VIP), both_nat);
        let reply = talk.reply(source, Body::Udp(true)).payload(&payload);
        let (from, _) = carried(e, &reply, id, part, talk.client, ROUTER_MAC);
        assert_eq!(from, talk.vip);
    }
    assert_eq!(e.entries().len(), 2, "one flow");
}

fn b82_tiny_last<E: Engine>(e: &mut E) {
    let talk = udp_talk();
    for size in 1_470..=1_485 {
        let request = talk.request(Body::Udp(true)).payload(&vec![0x5a; size]);
        let (source, _) = carried(e, &request, 0x100, 1_480, talk.server, S1_MAC);
        let reply = talk.reply(source, Body::Udp(true)).payload(&vec![0xa5; size]);
        carried(e, &reply, 0x100, 1_480, talk.client, ROUTER_MAC);
    }
}

fn segments<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1_000, 9_000);
    let request = talk.request(Body::Tcp("A", 1_001, 9_001)).payload(&[7; 3_000]);
    let (from, _) = carried(e, &request, 5, 1_480, talk.server, S1_MAC);
    assert_eq!(from, source);
    let reply = talk
        .reply(source, Body::Tcp("A", 9_001, 1_001))
        .payload(&[9; 3_000]);
    carried(e, &reply, 5, 1_480, talk.client, ROUTER_MAC);
}

/// Two clients behind one source, and two servers behind one VIP, with the same identification at the same time.
fn one_id_twice<E: Engine>(e: &mut E, both_nat: bool) {
    let first = udp_talk();
    let second = Talk {
        client: end("192.168.10.51:40000"),
        ..first
    };
    let cut = |talk: &Talk| {
        fragments(
            &unfragmented(&talk.request(Body::Udp(true)).payload(&[1; 3_000]).build(), 7),
            7,
            1_480,
        )
    };
    let (a, b) = (cut(&first), cut(&second));
    let mut out = (Vec::new(), Vec::new());
    for (x, y) in a.iter().zip(&b) {
        out.0.push(expect(e, x, Transmit));
        out.1.push(expect(e, y, Transmit));
    }
    let ((_, one), (_, two)) = (reassembled(&out.0), reassembled(&out.1));
    if both_nat {
        assert_ne!(one, two, "both come from one address");
    } else {
        assert_eq!((one, two), (7, 7), "both keep their address");
    }
}

fn servers_with_one_id<E: Engine>(e: &mut E) {
    let first = udp_talk();
    let second = Talk {
        client: end("192.168.10.50:40001"),
        server: end("192.168.100.11:53"),
        server_mac: S2_MAC,
        ..first
    };
    let mut ids = Vec::new();
    for talk in [first, second] {
        let request = talk.request(Body::Udp(true)).payload(b"q").build();
        let source = ends(&expect(e, &request, Transmit)).0;
        let reply = talk.reply(source, Body::Udp(true)).payload(&[1; 3_000]);
        ids.push(carried(e, &reply, 7, 1_480, talk.client, ROUTER_MAC).1);
    }
    assert_ne!(ids[0], ids[1], "the client gets both from the VIP");
}

/// A fragment that comes before its first one waits in user space, which asks again.
fn early<E: Engine>(e: &mut E) {
    let request = udp_talk().request(Body::Udp(true)).payload(&[3; 4_000]);
    let whole = unfragmented(&request.build(), 9);
    let pieces = fragments(&whole, 9, 1_480);
    for piece in &pieces[1..] {
        expect_asked(e, piece, wanted::KEEP, 0);
        let counters = e.counters();
        assert_eq!(
            e.run_again(piece, note::AGAIN),
            (Pass, piece.clone(), note::AGAIN)
        );
        assert_eq!(e.counters(), counters, "asking again is no packet");
    }
    let mut out = vec![expect(e, &pieces[0], Transmit)];
    for (piece, word) in [(&pieces[2], note::AGAIN), (&pieces[1], note::LAST)] {
        let (verdict, frame, _) = e.run_again(piece, word);
        assert_eq!(verdict, Transmit);
        out.push(frame);
    }
    assert_eq!(reassembled(&out).0.len(), whole.len());
    assert!(verifies(&reassembled(&out).0));
    assert_eq!(e.counter(Counter::FragmentFollowed), 2);
    let other = &fragments(&unfragmented(&request.build(), 10), 10, 1_480)[1];
    let (verdict, _, _) = e.run_again(other, note::LAST);
    assert_eq!(verdict, Drop);
    assert_eq!(e.counter(Counter::FragmentEarly), 1);
}

/// User space is told the leg.
fn early_elsewhere<E: Engine>(e: &mut E) {
    let request = udp_talk().request(Body::Udp(true)).payload(&[3; 2_000]);
    let pieces = fragments(&unfragmented(&request.build(), 9), 9, 1_480);
    expect_asked(e, &pieces[1], wanted::KEEP, 0);
    let first = expect(e, &pieces[0], Redirect);
    let (verdict, out, left) = e.run_again(&pieces[1], note::AGAIN);
    assert_eq!((verdict, left), (Redirect, 3));
    assert_eq!(out[..12], first[..12]);
}

/// Nobody fills user space with fragments, nor asks it from outside.
fn flood<E: Engine>(e: &mut E) {
    let request = udp_talk().request(Body::Udp(true)).payload(&[3; 2_000]);
    #[expect(
        clippy::disallowed_methods,
        reason = "the programs go by the kernel's clock, and a slow machine takes its time"
    )]
    let begun = std::time::Instant::now();
    let kept = (0..2_000)
        .filter(|id| {
            e.run(&fragments(&unfragmented(&request.build(), *id), *id, 1_480)[1])
                .0
                == Pass
        })
        .count() as u64;
    // A thousand a second beyond what is given at once.
    let most = 1_500 + begun.elapsed().as_millis();
    assert!((300..=most).contains(&u128::from(kept)), "{kept} of 2,000");
    assert_eq!(e.counter(Counter::FragmentKept), kept);
    assert_eq!(e.counter(Counter::HelpLimited), 2_000 - kept);
    assert!(e.entries().is_empty());
    let mut forged = request.build();
    forged[12..14].copy_from_slice(&[0x88, 0xb5]);
    expect_drop(e, &forged, Counter::Malformed);
    expect_drop(
        e,
        &request.vlan(10).build()[..]
            .iter()
            .copied()
            .enumerate()
            .map(|(at, byte)| match at {
                16 => 0x88,
                17 => 0xb5,
                _ => byte,
            })
            .collect::<Vec<u8>>(),
        Counter::Malformed,
    );
}

fn early_and_forged<E: Engine>(e: &mut E) {
    let forged = udp("127.0.0.1:1", "192.168.100.100:53").payload(&[1; 2_000]);
    let pieces = fragments(&unfragmented(&forged.build(), 9), 9, 1_480);
    expect_drop(e, &pieces[1], Counter::BadSource);
    e.lease(false);
    let honest = udp_talk().request(Body::Udp(true)).payload(&[3; 2_000]);
    let pieces = fragments(&unfragmented(&honest.build(), 9), 9, 1_480);
    expect_drop(e, &pieces[1], Counter::NoLease);
}

fn refused<E: Engine>(e: &mut E) {
    let datagram = udp_talk().request(Body::Udp(true)).payload(&[3; 100]);
    let segment = outside().request(Body::Tcp("A", 1, 1)).payload(&[3; 100]);
    let cut = |frame: &Frame, part| fragments(&unfragmented(&frame.build(), 9), 9, part);
    let refused = Counter::FragmentRefused;
    for part in [8, 16] {
        expect_drop(e, &cut(&segment, part)[0], refused);
    }
    // What overlaps the header of the first one.
    expect(e, &cut(&datagram, 8)[0], Transmit);
    let tcp = outside().request(Body::Tcp("S", 1, 0)).payload(&[3; 100]);
    expect(e, &cut(&tcp, 24)[0], Transmit);
    for n in [1, 2] {
        expect_drop(e, &cut(&tcp, 8)[n], refused);
    }
    // Inside a unit of eight bytes; beyond the longest datagram.
    let mut ragged = cut(&datagram, 16).swap_remove(1);
    let (len_at, offset_at) = if v6() { (19, 56) } else { (17, 20) };
    ragged[len_at] -= 1;
    expect_drop(e, &ragged, refused);
    let mut far = cut(&datagram, 16).swap_remove(1);
    if v6() {
        far[offset_at..offset_at + 2].copy_from_slice(&[0xff, 0xf9]);
    } else {
        far[offset_at..offset_at + 2].copy_from_slice(&[0x3f, 0xff]);
    }
    expect_drop(e, &far, refused);
    assert!(!e.counters().iter().any(|(name, _)| *name == "internal"));
}

fn other_protocols<E: Engine>(e: &mut E) {
    let ping = crate::support::frames::echo("192.168.10.50", VIP)
        .payload(&[7; 2_000])
        .build();
    for piece in fragments(&unfragmented(&ping, 9), 9, 1_480) {
        expect_drop(e, &piece, Counter::Fragment);
    }
}

/// Fragments of the node's own traffic are the kernel's, in any order.
fn own<E: Engine>(e: &mut E) {
    let own = udp("192.168.100.3:5405", "192.168.100.2:5405")
        .payload(&[1; 3_000])
        .build();
    for piece in fragments(&unfragmented(&own, 9), 9, 1_480).iter().rev() {
        expect_pass(e, piece);
    }
    let elsewhere = udp("192.168.10.50:1", "198.51.100.7:2")
        .payload(&[1; 3_000])
        .build();
    for piece in fragments(&unfragmented(&elsewhere, 9), 9, 1_480).iter().rev() {
        expect_pass(e, piece);
    }
}

fn transit<E: Engine>(e: &mut E) {
    for frame in [
        udp("192.168.100.10:40000", "192.168.10.50:53")
            .via(S1_MAC)
            .payload(&[1; 3_000]),
        tcp("192.168.100.10:40000", "192.168.10.50:443", "A", 1, 1)
            .via(S1_MAC)
            .payload(&[1; 3_000]),
    ] {
        for piece in fragments(&unfragmented(&frame.build(), 9), 9, 1_480) {
            let out = expect(e, &piece, Transmit);
            assert_eq!(out, routed(&piece, OUR_MAC, ROUTER_MAC));
        }
    }
    let leak = udp("192.168.100.10:53", "192.168.10.50:40000")
        .via(S1_MAC)
        .payload(&[1; 3_000]);
    let pieces = fragments(&unfragmented(&leak.build(), 10), 10, 1_480);
    for piece in &pieces {
        expect_drop(e, piece, Counter::DnatReplyWithoutFlow);
    }
}

fn without_a_lease<E: Engine>(e: &mut E) {
    let request = udp_talk().request(Body::Udp(true)).payload(&[3; 4_000]);
    let pieces = fragments(&unfragmented(&request.build(), 9), 9, 1_480);
    expect(e, &pieces[0], Transmit);
    e.lease(false);
    for piece in &pieces {
        expect_drop(e, piece, Counter::NoLease);
    }
}

fn udp_service(spec: &ServiceSpec<'_>) -> Setup {
    Setup::service(&ServiceSpec {
        port: 53,
        proto: proto::UDP,
        ..spec.clone()
    })
}

fn both_services() -> Setup {
    udp_service(&ServiceSpec::BOTH_NAT).with(&ServiceSpec::BOTH_NAT)
}

/// A later fragment at the end of its time: nobody is told (RFC 1122 §3.2.2).
fn later_and_too_old<E: Engine>(e: &mut E) {
    let request = udp_talk().request(Body::Udp(true)).payload(&[7; 100]);
    let pieces = |ttl| {
        let whole = unfragmented(&request.clone().ttl(ttl).build(), 9);
        fragments(&whole, 9, 64)
    };
    expect(e, &pieces(64)[0], Transmit);
    expect_drop(e, &pieces(1)[1], Counter::TtlExpired);
}

/// The server of a flow is configured no more: its datagrams go elsewhere, in fragments, too.
fn of_a_removed_server<E: Engine>(e: &mut E) {
    let talk = udp_talk();
    let request = talk.request(Body::Udp(true)).payload(&[7; 100]);
    carried(e, &request, 1, 64, talk.server, S1_MAC);
    let mut setup = udp_service(&ServiceSpec {
        servers: &[2],
        ..ServiceSpec::BOTH_NAT
    });
    setup.servers[0].1.flags = server::USED | server::MOVES;
    e.change(&setup);
    carried(e, &request, 2, 64, end("192.168.100.11:53"), S2_MAC);
    assert_eq!((e.counter(Counter::ServerDownMoved), e.entries().len()), (1, 2));
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    let both = || udp_service(&ServiceSpec::BOTH_NAT);
    let dnat = || udp_service(&ServiceSpec::DNAT);
    let two_servers = || {
        udp_service(&ServiceSpec {
            servers: &[1, 2],
            ..ServiceSpec::DNAT
        })
    };
    vec![
        case("b79 large datagrams both ways, both-nat", both, |e| {
            datagrams(e, true);
        }),
        case("b79 large datagrams both ways, dnat", dnat, |e| {
            datagrams(e, false);
        }),
        case(
            "b82 a last fragment of a few bytes, both-nat",
            both,
            b82_tiny_last,
        ),
        case("b82 a last fragment of a few bytes, dnat", dnat, b82_tiny_last),
        case("fragmented TCP segments, both-nat", both_services, segments),
        case("two clients with one identification, both-nat", both, |e| {
            one_id_twice(e, true);
        }),
        case("two clients with one identification, dnat", dnat, |e| {
            one_id_twice(e, false);
        }),
        case(
            "two servers with one identification",
            two_servers,
            servers_with_one_id,
        ),
        case("b82 fragments before their first one wait, both-nat", both, early),
        case("b82 fragments before their first one wait, dnat", dnat, early),
        case(
            "fragments that waited leave by another leg",
            || {
                udp_service(&ServiceSpec {
                    servers: &[5],
                    ..ServiceSpec::BOTH_NAT
                })
            },
            early_elsewhere,
        ),
        case("few fragments wait for each sender", both, flood),
        case(
            "impossible fragments do not wait, nor any without a lease",
            both,
            early_and_forged,
        ),
        case(
            "tiny, overlapping and impossible fragments are dropped",
            both_services,
            refused,
        ),
        case(
            "fragments of what is neither TCP nor UDP are dropped",
            both,
            other_protocols,
        ),
        case("fragments of the node's own traffic are the kernel's", both, own),
        case("fragments in transit are routed", dnat, transit),
        case("fragments follow the lease", both, without_a_lease),
        case(
            "a later fragment whose time is over is dropped",
            both,
            later_and_too_old,
        ),
        case("fragments leave a removed server", both, of_a_removed_server),
    ]
}
