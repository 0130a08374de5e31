//! Fragments of one datagram stay together: in every mode, in every order, and when they have to be divided once more.

use super::{
    Case, case, case4,
    direct::{DSR, from, l3, per_packet},
    expect, expect_asked,
};
use crate::support::{
    Engine, Setup,
    Verdict::{Pass, Transmit},
    frames::{Body, Frame, v6},
    model::{Layout, ends, fragments, reassembled, routed, unfragmented, verifies},
    setup::{OUR_MAC, S1_MAC, S2_MAC, ServiceSpec},
};
use onearm_dataplane_common::{
    counter::Counter,
    help::{note, wanted},
    maps::{Tunnel, proto, scheduler, service},
};
use std::collections::HashSet;

/// Orders of three fragments.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn datagram(client: u32) -> Frame {
    let payload: Vec<u8> = (0..3_500_u32).map(|n| n.to_le_bytes()[0]).collect();
    from(&format!("192.168.10.51:{client}"))
        .request(Body::Udp(true))
        .payload(&payload)
}

fn pieces(frame: &Frame, id: u32, part: usize) -> Vec<Vec<u8>> {
    fragments(&unfragmented(&frame.build(), id), id, part)
}

/// The packet without a tunnel's headers of `outer` bytes.
fn inside(frame: &[u8], outer: usize) -> Vec<u8> {
    [&frame[..14], &frame[14 + outer..]].concat()
}

/// New flows one after the other, in every order; what waits is tried again after each that was sent, as user space does.
fn in_any_order<E: Engine>(e: &mut E, outer: usize, translates: bool) {
    let mut met = HashSet::new();
    for n in 0..24 {
        let (client, frame) = (1_000 + n, datagram(1_000 + n));
        let parts = pieces(&frame, 500 + n, 1_200);
        let (mut waiting, mut sent) = (Vec::new(), Vec::new());
        for at in ORDERS[n as usize % 6] {
            let (verdict, out) = e.run(&parts[at]);
            if verdict == Pass {
                waiting.push(&parts[at]);
                continue;
            }
            assert_eq!(verdict, Transmit, "{:?}", e.counters());
            sent.push(out);
            for piece in std::mem::take(&mut waiting) {
                let (verdict, out, _) = e.run_again(piece, note::AGAIN);
                assert_eq!(verdict, Transmit, "{:?}", e.counters());
                sent.push(out);
            }
        }
        let macs: HashSet<[u8; 6]> = sent.iter().map(|out| out[..6].try_into().expect("six")).collect();
        assert_eq!(
            macs.len(),
            1,
            "client {client}, order {:?}",
            ORDERS[n as usize % 6]
        );
        met.extend(macs);
        let sent: Vec<_> = sent.iter().map(|out| inside(out, outer)).collect();
        let (whole, _) = reassembled(&sent);
        assert!(verifies(&whole));
        let at = Layout::of(&whole).l4 + 8;
        assert_eq!(whole[at..], frame.payload);
        assert_eq!(ends(&whole).0 == frame.from, !translates);
    }
    assert_eq!(met, HashSet::from([S1_MAC, S2_MAC]), "both servers have clients");
}

fn spec(mode: &ServiceSpec<'static>, scheduler: u8) -> Setup {
    Setup::service(&ServiceSpec {
        proto: proto::UDP,
        servers: &[1, 2],
        scheduler,
        ..mode.clone()
    })
}

fn outer_len() -> usize {
    if v6() { 40 } else { 20 }
}

fn tunnels(scheduler: u8, options: u32) -> Setup {
    let mut setup = l3(1, proto::UDP, Tunnel::default());
    let two = spec(&DSR, scheduler);
    setup.sched = two.sched;
    setup.service[0].1.table = two.service[0].1.table;
    setup.service[0].1.scheduler = scheduler;
    setup.service[0].1.options = options;
    setup
}

/// Too long for the tunnel, and may be fragmented: user space does that (RFC 2003 §3.1 leaves it to the tunnel's entry), and
/// each piece goes in a packet of its own, to one server.
fn divided<E: Engine>(e: &mut E, known: bool) {
    let overhead = u16::try_from(outer_len()).expect("short");
    for n in 0..12 {
        let client = 2_000 + n;
        let call = || from(&format!("192.168.10.51:{client}")).request(Body::Udp(true));
        if known {
            expect(e, &call().build(), Transmit);
        }
        let payload: Vec<u8> = (0..1_472_u32).map(|n| n.to_le_bytes()[0]).collect();
        let frame = unfragmented(&call().payload(&payload).build(), client);
        expect_asked(e, &frame, wanted::DIVIDE, 1_500 - overhead);
        whole_of(e, &frame, &fragments(&frame, client, 1_456));
    }
}

/// The pieces of a frame that user space has divided arrive, whole and at one server.
#[track_caller]
fn whole_of<E: Engine>(e: &mut E, frame: &[u8], pieces: &[Vec<u8>]) {
    let mut macs = HashSet::new();
    let sent: Vec<_> = pieces
        .iter()
        .map(|piece| {
            let (verdict, out, _) = e.run_again(piece, note::AGAIN);
            assert_eq!(verdict, Transmit, "{:?}", e.counters());
            assert!(out.len() <= 1_514);
            macs.insert(out[..6].to_vec());
            inside(&out, outer_len())
        })
        .collect();
    assert_eq!(macs.len(), 1);
    let mac = macs.into_iter().next().expect("one").try_into().expect("six");
    let (whole, id) = reassembled(&sent);
    assert_eq!(whole, unfragmented(&routed(frame, OUR_MAC, mac), id));
}

/// Fragments as long as the link, each too long for the tunnel: divided once more, and put together as one datagram.
fn divided_fragments<E: Engine>(e: &mut E) {
    let frame = unfragmented(&datagram(9).build(), 77);
    let parts = fragments(&frame, 77, 1_480);
    let most = 1_500 - u16::try_from(outer_len()).expect("short");
    let mut again = Vec::new();
    for part in &parts[..2] {
        expect_asked(e, part, wanted::DIVIDE, most);
        // In two, each with its place in the datagram.
        let offset = usize::from(u16::from_be_bytes([part[20], part[21]]) & 0x1fff);
        for (at, len) in [(0, 1_456), (1_456, 24)] {
            let mut piece = [&part[..34], &part[34 + at..34 + at + len]].concat();
            let total = u16::try_from(20 + len).expect("short");
            let word = 0x2000 | u16::try_from(offset + at / 8).expect("13 bits");
            piece[16..18].copy_from_slice(&total.to_be_bytes());
            piece[20..22].copy_from_slice(&word.to_be_bytes());
            piece[24..26].fill(0);
            let sum = crate::support::model::checksum_of(&piece[14..34]);
            piece[24..26].copy_from_slice(&sum);
            again.push(piece);
        }
    }
    // The last one fits, and may be quicker than what user space works on.
    let last = expect(e, &parts[2], Transmit);
    let mut sent = vec![inside(&last, outer_len())];
    for piece in &again {
        let (verdict, out, _) = e.run_again(piece, note::AGAIN);
        assert_eq!(verdict, Transmit, "{:?}", e.counters());
        assert_eq!(out[..6], last[..6]);
        sent.push(inside(&out, outer_len()));
    }
    let (whole, id) = reassembled(&sent);
    let mac = last[..6].try_into().expect("six");
    assert_eq!(whole, unfragmented(&routed(&frame, OUR_MAC, mac), id));
    assert_eq!(e.counter(Counter::Divided), 2);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "fragments of a first datagram in any order, both-nat",
            || spec(&ServiceSpec::BOTH_NAT, scheduler::WRR),
            |e| in_any_order(e, 0, true),
        ),
        case(
            "fragments of a first datagram in any order, both-nat by hash",
            || spec(&ServiceSpec::BOTH_NAT, scheduler::MAGLEV),
            |e| in_any_order(e, 0, true),
        ),
        case(
            "fragments of a first datagram in any order, dnat",
            || spec(&ServiceSpec::DNAT, scheduler::WLC),
            |e| in_any_order(e, 0, false),
        ),
        case(
            "fragments of a first datagram in any order, dsr",
            || spec(&DSR, scheduler::WRR),
            |e| in_any_order(e, 0, false),
        ),
        case(
            "fragments of a first datagram in any order, dsr one by one",
            || per_packet(scheduler::WRR),
            |e| in_any_order(e, 0, false),
        ),
        case(
            "fragments of a first datagram in any order, l3-dsr",
            || tunnels(scheduler::WRR, 0),
            |e| in_any_order(e, outer_len(), false),
        ),
        case(
            "fragments of a first datagram in any order, l3-dsr one by one",
            || tunnels(scheduler::MAGLEV, service::PER_PACKET),
            |e| in_any_order(e, outer_len(), false),
        ),
        case4(
            "b71 a first datagram too long for its tunnel is divided",
            || tunnels(scheduler::WRR, 0),
            |e| divided(e, false),
        ),
        case4(
            "b71 a datagram of a flow too long for its tunnel is divided",
            || tunnels(scheduler::WRR, 0),
            |e| divided(e, true),
        ),
        case4(
            "b71 a datagram too long for its tunnel is divided, one by one",
            || tunnels(scheduler::WRR, service::PER_PACKET),
            |e| divided(e, true),
        ),
        case4(
            "b71 fragments too long for their tunnel are divided again",
            || tunnels(scheduler::WRR, 0),
            divided_fragments,
        ),
    ]
}
