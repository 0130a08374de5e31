//! The largest segment that both sides are told of.

use super::{Case, Talk, balanced::outside, case, expect, forwarded, forwarded_from};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Body, Frame},
    model::{Layout, fragments, reassembled, unfragmented, verifies},
    setup::{ROUTER_MAC, S1_MAC, ServiceSpec},
};
use onearm_dataplane_common::{
    counter::Counter,
    maps::{Tunnel, mode},
};

const LIMIT: u16 = 1_400;

fn limited(spec: &ServiceSpec<'_>) -> Setup {
    let mut setup = Setup::service(spec);
    setup.service[0].1.mss = LIMIT;
    setup
}

fn direct(mode: u8) -> Setup {
    let mut setup = limited(&ServiceSpec {
        mode,
        ..ServiceSpec::BOTH_NAT
    });
    setup.tunnels = vec![(0, Tunnel::default())];
    setup
}

/// MSS option.
fn option(mss: u16) -> [u8; 4] {
    let [high, low] = mss.to_be_bytes();
    [2, 4, high, low]
}

/// (options as they come, as they leave): every place the option can be at, odd ones too, and what is left alone.
fn lists() -> Vec<(Vec<u8>, Vec<u8>)> {
    let (over, under) = (option(1_460), option(LIMIT));
    let mut lists = Vec::new();
    for before in [
        &[][..],
        &[1],
        &[1, 1],
        &[1; 5],
        &[3, 3, 7],
        &[4, 2],
        &[8, 10, 1, 2, 3, 4, 5, 6, 7, 8],
        &[1; 36],
        &[
            254, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0,
        ],
    ] {
        let padded = |option: [u8; 4]| {
            let mut list = [before, &option].concat();
            list.resize(list.len().div_ceil(4) * 4, 0);
            list
        };
        lists.push((padded(over), padded(under)));
        for small in [LIMIT, 536, 0] {
            lists.push((padded(option(small)), padded(option(small))));
        }
        lists.push((padded(option(u16::MAX)), padded(under)));
    }
    // Behind the end of the list, cut off, of another length, of length 0 or 1: nobody reads it.
    for list in [
        [0, 0, 0, 0, 2, 4, 5, 0xb4],
        [1, 1, 1, 1, 1, 1, 2, 4],
        [2, 5, 5, 0xb4, 1, 1, 1, 1],
        [2, 3, 0xff, 0, 2, 4, 0xff, 0],
        [3, 0, 2, 4, 5, 0xb4, 1, 1],
        [3, 1, 2, 4, 5, 0xb4, 1, 1],
        [3, 9, 2, 4, 5, 0xb4, 1, 1],
        [3, 3, 7, 4, 2, 1, 1, 0],
    ] {
        lists.push((list.to_vec(), list.to_vec()));
    }
    lists
}

/// Sends `frame` with options; it must leave as if it had come with others.
#[track_caller]
fn lowered<E: Engine>(e: &mut E, frame: &Frame, came: &[u8], leaves: &[u8]) -> Vec<u8> {
    let out = expect(e, &frame.clone().tcp_options(came).build(), Transmit);
    let want = expect(e, &frame.clone().tcp_options(leaves).build(), Transmit);
    assert_eq!(out, want, "{came:?}");
    assert!(verifies(&out));
    out
}

/// Data, so that the checksum covers something odd.
const DATA: &[u8] = b"early";

fn both_ways<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = forwarded(
        e,
        &talk.request(Body::Tcp("S", 7, 0)).tcp_options(&option(900)),
        talk.server,
        S1_MAC,
    );
    for (came, leaves) in lists() {
        let syn = talk.request(Body::Tcp("S", 7, 0)).payload(DATA);
        let out = lowered(e, &syn, &came, &leaves);
        let l4 = Layout::of(&out).l4;
        assert_eq!(out[l4 + 20..l4 + 20 + leaves.len()], leaves);
        let syn_ack = talk.reply(source, Body::Tcp("SA", 9, 8)).payload(DATA);
        let out = lowered(e, &syn_ack, &came, &leaves);
        assert_eq!(out[l4 + 20..l4 + 20 + leaves.len()], leaves);
    }
    let changed = lists().iter().filter(|(came, leaves)| came != leaves).count() as u64;
    assert_eq!(e.counter(Counter::MssLowered), 2 * changed);
    // Nothing else is touched.
    let data = talk.request(Body::Tcp("A", 8, 10)).tcp_options(&option(1_460));
    forwarded_from(e, &data, source, talk.server, S1_MAC);
    let reply = talk
        .reply(source, Body::Tcp("A", 10, 8))
        .tcp_options(&option(1_460));
    forwarded_from(e, &reply, talk.vip, talk.client, ROUTER_MAC);
}

/// A SYN that makes the flow, one that comes again, one on an established flow.
fn at_any_time<E: Engine>(e: &mut E) {
    let talk = outside();
    let syn = talk.request(Body::Tcp("S", 7, 0));
    let source = forwarded(e, &syn.clone().tcp_options(&option(1_000)), talk.server, S1_MAC);
    lowered(e, &syn, &option(1_460), &option(LIMIT));
    talk.server_sends(e, source, Body::Tcp("A", 9, 8));
    let syn_ack = talk.reply(source, Body::Tcp("SA", 9, 8));
    lowered(e, &syn_ack, &option(1_460), &option(LIMIT));
    talk.client_sends(e, source, Body::Tcp("A", 8, 10));
    lowered(e, &syn, &option(1_460), &option(LIMIT));
    lowered(e, &syn_ack, &option(1_460), &option(LIMIT));
    let other = Talk {
        client: crate::support::frames::end("192.168.10.51:40001"),
        ..talk
    };
    let first = other.request(Body::Tcp("S", 7, 0)).tcp_options(&option(1_460));
    let out = expect(e, &first.build(), Transmit);
    let l4 = Layout::of(&out).l4;
    assert_eq!(out[l4 + 20..l4 + 24], option(LIMIT));
    assert!(verifies(&out));
}

fn servers_that_answer_themselves<E: Engine>(e: &mut E) {
    let talk = outside();
    for (client, n) in [("192.168.10.50:40000", 1), ("192.168.10.51:40000", 2)] {
        let talk = Talk {
            client: crate::support::frames::end(client),
            ..talk
        };
        let syn = talk.request(Body::Tcp("S", 7, 0));
        lowered(e, &syn, &option(1_460), &option(LIMIT));
        lowered(
            e,
            &syn,
            &[1, 2, 4, 5, 0xb4, 0, 0, 0],
            &[1, 2, 4, 5, 0x78, 0, 0, 0],
        );
        assert_eq!(e.counter(Counter::MssLowered), 2 * n);
    }
}

fn fragmented<E: Engine>(e: &mut E) {
    let talk = outside();
    let cut = |mss| {
        let syn = talk
            .request(Body::Tcp("S", 7, 0))
            .tcp_options(&option(mss))
            .payload(&[7; 200]);
        fragments(&unfragmented(&syn.build(), 9), 9, 104)
    };
    let whole = |e: &mut E, mss| {
        let pieces: Vec<_> = cut(mss).iter().map(|piece| expect(e, piece, Transmit)).collect();
        let (whole, _) = reassembled(&pieces);
        assert!(verifies(&whole));
        unfragmented(&whole, 0)
    };
    assert_eq!(whole(e, 1_460), whole(e, LIMIT));
}

fn unlimited<E: Engine>(e: &mut E) {
    let talk = outside();
    let source = talk.handshake(e, 1, 2);
    talk.client_sends(e, source, Body::Tcp("S", 1, 0));
    assert_eq!(e.counter(Counter::MssLowered), 0);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "b76 segments are limited both ways, both-nat",
            || limited(&ServiceSpec::BOTH_NAT),
            both_ways,
        ),
        case(
            "b76 segments are limited both ways, dnat",
            || limited(&ServiceSpec::DNAT),
            both_ways,
        ),
        case(
            "b76 segments are limited whenever a SYN comes",
            || limited(&ServiceSpec::BOTH_NAT),
            at_any_time,
        ),
        case(
            "b76 segments of clients of dsr servers are limited",
            || direct(mode::DSR),
            servers_that_answer_themselves,
        ),
        case(
            "b76 segments are limited in fragments, too",
            || limited(&ServiceSpec::BOTH_NAT),
            fragmented,
        ),
        case(
            "without a limit nothing is touched",
            || Setup::service(&ServiceSpec::DNAT),
            unlimited,
        ),
    ]
}
