//! Counts that are wrong for a moment, or shared, and who gives way by them.

use crate::{
    cases::{expect, expect_drop},
    host::{Counted, Host},
    support::{
        Engine, Setup,
        Verdict::Transmit,
        frames::{Body, End, ip, udp},
        setup::ServiceSpec,
    },
    talk,
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::State,
    limits::source_slots,
    maps::{Limits, proto, service},
    tables::tick,
    tell::FLOOR,
};
use std::collections::BTreeSet;

fn limited(limits: Limits) -> Host {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT);
    setup.limits.push((0, limits));
    setup.service[0].1.options = service::LIMITED;
    Host::new(&setup)
}

/// A removal may be counted before the making.
#[test]
fn a_count_below_zero_refuses_nobody() {
    let mut host = limited(Limits {
        max_connections: 1,
        ..Limits::default()
    });
    host.counts.borrow_mut().insert(Counted::Service(0), u64::MAX);
    talk(1).syn(&mut host, 1);
    talk(2).syn(&mut host, 1);
    let third = talk(3).request(Body::Tcp("S", 1, 0)).build();
    expect_drop(&mut host, &third, Counter::MaxConnections);
}

#[test]
fn a_client_that_shares_one_of_its_two_counters_is_counted_by_the_other() {
    for shared in 0..2 {
        let mut host = limited(Limits {
            max_per_source: 1,
            ..Limits::default()
        });
        let client = crate::support::frames::raw(ip("192.168.10.50"));
        let slots = source_slots(host.setup.node.flow_hash_key, 0, client);
        host.counts.borrow_mut().insert(Counted::Source(slots[shared]), 5);
        talk(1).syn(&mut host, 1);
        let second = talk(2).request(Body::Tcp("S", 1, 0)).build();
        expect_drop(&mut host, &second, Counter::MaxPerSource);
    }
}

/// One bucket, `budget` half-open flows, TCP and UDP.
fn crowded(budget: u32) -> Host {
    let mut setup = Setup::service(&ServiceSpec::BOTH_NAT).with(&ServiceSpec {
        port: 53,
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    });
    setup.node.half_open_budget = budget;
    (setup.buckets, setup.node.flow_buckets, setup.node.flow6_buckets) = (1, 1, 1);
    Host::new(&setup)
}

#[test]
fn half_open_flows_give_way_to_each_other_the_oldest_first() {
    let mut host = crowded(5);
    for port in 1..=12 {
        host.pass_ticks(1);
        talk(port).syn(&mut host, 1);
        let left: BTreeSet<u16> = (host.entries().iter())
            .filter(|entry| !entry.is_reply())
            .map(|entry| u16::from_be(entry.sport))
            .collect();
        assert_eq!(left, (port.saturating_sub(4).max(1)..=port).collect());
    }
    assert_eq!(host.counter(Counter::HalfOpenEvicted), 7);
}

#[test]
fn a_used_up_budget_takes_no_datagrams_flow() {
    let mut host = crowded(1);
    let question = udp("192.168.10.50:7", "192.168.100.100:53").build();
    expect(&mut host, &question, Transmit);
    for port in 1..=4 {
        host.pass_ticks(1);
        talk(port).syn(&mut host, 1);
    }
    let states = host
        .entries()
        .iter()
        .filter(|x| x.state() == State::HalfOpen)
        .count();
    assert_eq!((states, host.entries().len()), (2, 4));
    assert_eq!(host.counter(Counter::HalfOpenEvicted), 3);
    assert_eq!(host.counter(Counter::UnansweredEvicted), 0);
}

/// What has closed is nobody's any more, though the sweep has not come by.
#[test]
fn a_full_table_has_room_where_closed_flows_are_past_their_time() {
    let mut host = crowded(100);
    let open: Vec<End> = (1..=6)
        .map(|port| talk(port).handshake(&mut host, 1, 2))
        .collect();
    for port in 7..=8 {
        let source = talk(port).handshake(&mut host, 1, 2);
        talk(port).client_sends(&mut host, source, Body::Tcp("FA", 2, 3));
        talk(port).server_sends(&mut host, source, Body::Tcp("FA", 3, 3));
    }
    let patience = host.setup.node.closing_ticks;
    // Nothing is past its time before this node knows that it was silent.
    host.pass_ticks(2 * patience);
    let now = u64::from(tick(host.now));
    host.edit(|setup| setup.sync[FLOOR as usize] = now);
    host.pass_ticks(patience);
    let late = |port| talk(port).request(Body::Tcp("S", 1, 0)).build();
    expect_drop(&mut host, &late(9), Counter::TableFull);
    host.pass_ticks(1);
    for port in 10..=11 {
        talk(port).handshake(&mut host, 1, 2);
    }
    assert_eq!(host.counter(Counter::ClosedEvicted), 2);
    expect_drop(&mut host, &late(12), Counter::TableFull);
    for (port, source) in (1..).zip(open) {
        talk(port).server_sends(&mut host, source, Body::Tcp("A", 3, 2));
    }
    assert!(host.entries().iter().all(|x| x.state() == State::Established));
}
