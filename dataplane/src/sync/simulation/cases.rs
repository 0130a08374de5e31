//! What is expected of single sequences of events.

use std::time::Duration;

use super::*;
use crate::sync::wire::At;

fn pair() -> Pair<PlainTable> {
    Pair::new(|| Arc::new(PlainTable::new(64)), 7)
}

fn fill(pair: &mut Pair<PlainTable>, index: usize, clients: u16) {
    for n in 0..clients {
        assert!(pair.open(index, n, false));
    }
}

fn because(pair: &Pair<PlainTable>, index: usize) -> Option<Because> {
    match pair.verdict(index) {
        Verdict::NotSyncing { because } => Some(because),
        Verdict::Equal | Verdict::Behind { .. } => None,
    }
}

#[test]
fn a_flow_is_at_the_peer_one_way_after_it_was_established_and_gone_one_way_after_its_end() {
    let mut pair = pair();
    pair.settle(1_000);
    pair.open(0, 1, true);
    pair.run(5);
    assert!(pair.table(1).all().is_empty(), "half-open flows are never told");
    pair.change(0, 1, false);
    pair.run(2);
    assert_eq!(proved(&**pair.table(1)).len(), 1);
    assert!(matches!(
        pair.verdict(0),
        Verdict::Behind { records: 1, .. } | Verdict::Equal
    ));
    pair.settle(1_000);
    pair.change(0, 1, true);
    pair.run(2);
    assert_eq!(pair.table(1).all()[0].1.coarse(), Some(Coarse::Closing));
    pair.end(0, 1);
    pair.run(2);
    assert!(pair.table(1).all().is_empty());
    pair.settle(1_000);
    let counters = pair.counters(0);
    assert_eq!((counters.told, counters.ends_told, counters.repairs), (2, 1, 0));
    assert!(
        counters.lag.records == 3 && counters.lag.p99_us <= 3_000,
        "{counters:?}"
    );
}

#[test]
fn b41_a_node_that_joins_gets_the_idle_flows_too() {
    let mut pair = pair();
    fill(&mut pair, 0, 300);
    pair.settle(1_000);
    let before = pair.counters(0).repaired;
    pair.restart(1, true);
    pair.run(60);
    assert_eq!(because(&pair, 0), Some(Because::NoSession));
    pair.connect();
    let took = pair.settle(2_000);
    assert!(took < 1_000, "{took} ms");
    assert_eq!(proved(&**pair.table(1)).len(), 300);
    assert_eq!(pair.counters(0).repaired - before, 300);
}

#[test]
fn after_a_short_cut_only_what_differs_is_told() {
    let mut pair = pair();
    fill(&mut pair, 0, 300);
    pair.settle(1_000);
    let before = pair.counters(0);
    pair.cut();
    pair.open(0, 300, false);
    pair.end(0, 5);
    pair.run(100);
    pair.connect();
    pair.settle(1_000);
    let counters = pair.counters(0);
    assert_eq!(counters.repairs - before.repairs, 1);
    assert_eq!(counters.repaired_classes - before.repaired_classes, 2);
    assert!(counters.repaired - before.repaired <= 3, "{counters:?}");
    assert_eq!(pair.counters(1).unnamed, 1);
}

#[test]
fn a_process_that_begins_anew_tells_nothing_the_peer_has() {
    let mut pair = pair();
    fill(&mut pair, 0, 300);
    pair.settle(1_000);
    let applied = pair.counters(1).applied;
    pair.restart(0, false);
    pair.own(0, true);
    pair.connect();
    pair.settle(1_000);
    assert_eq!(pair.counters(0).repairs, 0);
    assert_eq!(pair.counters(1).applied, applied);
}

#[test]
fn b42_a_session_that_flaps_during_a_snapshot_ends_in_sync() {
    let mut pair = pair();
    fill(&mut pair, 0, 900);
    for _ in 0..13 {
        pair.connect();
        pair.run(9);
    }
    assert!(pair.settle(10_000) < 3_000);
    assert_eq!(proved(&**pair.table(1)).len(), 900);
}

#[test]
fn b37_whoever_takes_over_has_the_flows_and_its_peer_gets_them_back() {
    let mut pair = pair();
    fill(&mut pair, 0, 200);
    pair.settle(1_000);
    pair.restart(0, true);
    pair.own(1, true);
    assert_eq!(proved(&**pair.table(1)).len(), 200);
    assert!(pair.sync(1).table.floor() > 0, "idle timers start anew");
    pair.run(500);
    pair.connect();
    assert_ne!(pair.verdict(0), Verdict::Equal);
    pair.run(1);
    assert_ne!(pair.verdict(0), Verdict::Equal);
    pair.settle(1_000);
    assert_eq!(proved(&**pair.table(0)).len(), 200);
    // And back.
    pair.own(1, false);
    pair.own(0, true);
    fill(&mut pair, 0, 20);
    pair.settle(1_000);
}

#[test]
fn b38_a_stalled_peer_delays_nothing_and_bounds_hold_and_what_was_not_told_is_found() {
    let mut pair = pair();
    fill(&mut pair, 0, 100);
    pair.settle(1_000);
    pair.stalled = true;
    for round in 0..3_000_u64 {
        for n in 0..100 {
            let n = u16::try_from(n).unwrap();
            if (round + u64::from(n)) % 2 == 0 {
                pair.open(0, n, false);
            } else {
                pair.change(0, n, round % 3 == 0);
            }
        }
        pair.drain(0);
        if round % 50 == 0 {
            pair.tick();
        }
    }
    assert!(!pair.sync(0).teller.has_room());
    let counters = pair.counters(0);
    assert!(counters.looks_dropped > 0, "{counters:?}");
    assert_eq!(because(&pair, 0), Some(Because::EventsLost));
    for index in 0..2 {
        pair.run(100 * index);
        assert_ne!(pair.verdict(0), Verdict::Equal);
    }
    pair.stalled = false;
    assert!(pair.settle(10_000) < 5_000);
    pair.compare();
}

#[test]
fn the_window_holds_bodies_back_until_they_are_acknowledged() {
    let mut pair = pair();
    pair.settle(1_000);
    pair.stalled = true;
    let mut told = 0;
    for n in 0..200 {
        pair.open(0, n, false);
        pair.drain(0);
        let now = pair.now;
        while let Some(body) = pair.sync(0).next_body(now, 60_000) {
            told += u32::from(matches!(Body::parse(&body), Ok(Body::Batch(..))));
        }
    }
    assert_eq!(told, 64);
    let position = {
        let now = pair.now;
        pair.sync(0).flush(now)
    };
    assert!(!pair.sync(0).is_acknowledged(position));
}

#[test]
fn a_position_is_acknowledged_when_the_peer_has_all_before_it() {
    let mut pair = pair();
    pair.settle(1_000);
    fill(&mut pair, 0, 50);
    pair.drain(0);
    let now = pair.now;
    let position = pair.sync(0).flush(now);
    assert!(!pair.sync(0).is_acknowledged(position));
    pair.tick();
    assert!(!pair.sync(0).is_acknowledged(position));
    pair.run(3);
    assert!(pair.sync(0).is_acknowledged(position));
    assert_eq!(proved(&**pair.table(1)).len(), 50);
    pair.connect();
    assert!(!pair.sync(0).is_acknowledged(position), "of another stream");
}

#[test]
fn lost_events_are_found_by_the_audit_that_begins_at_once() {
    let mut pair = pair();
    fill(&mut pair, 0, 100);
    pair.settle(1_000);
    pair.lose(0, 30);
    for n in 0..10 {
        pair.end(0, n);
        pair.change(0, n + 10, true);
        pair.open(0, n + 200, false);
    }
    pair.tick();
    assert_ne!(pair.verdict(0), Verdict::Equal);
    // A pass takes 5 s; the Standby hears a verdict every 100 ms.
    let took = pair.settle(1_000);
    assert!(took < 300, "{took} ms");
    let counters = pair.counters(0);
    assert_eq!((counters.events_lost, counters.ends_missed), (30, 10));
}

#[test]
fn both_nodes_may_claim_for_a_while_and_touch_nothing_of_each_other() {
    let mut pair = pair();
    fill(&mut pair, 0, 50);
    pair.settle(1_000);
    pair.own(1, true);
    for n in 40..70 {
        pair.open(1, n, false);
        pair.open(0, n + 60, false);
    }
    pair.run(300);
    assert_eq!(because(&pair, 0), Some(Because::BothOwn));
    assert_eq!(because(&pair, 1), Some(Because::BothOwn));
    pair.own(0, false);
    // What node 0 made in the meantime goes: its peer is the owner and does not know it.
    pair.settle(2_000);
    assert_eq!(proved(&**pair.table(0)).len(), 70);
}

#[test]
fn an_owner_that_ceases_to_be_one_leaves_no_verdict_behind() {
    let mut pair = pair();
    fill(&mut pair, 0, 5);
    pair.settle(1_000);
    pair.own(0, false);
    pair.run(2);
    assert_eq!(because(&pair, 0), Some(Because::NobodyTells));
    assert_eq!(because(&pair, 1), Some(Because::NobodyTells));
}

#[test]
fn a_flow_is_told_when_it_is_old_enough_and_never_if_its_service_says_so() {
    let mut pair = pair();
    pair.settle(1_000);
    let table = pair.table(0).clone();
    table.sync_port_after(80, Some(Duration::from_secs(2)));
    pair.has_young = true;
    fill(&mut pair, 0, 40);
    pair.run(1_000);
    for n in 0..20 {
        pair.end(0, n);
    }
    assert_eq!(pair.verdict(0), Verdict::Equal);
    pair.run(990);
    assert!(pair.table(1).all().is_empty());
    // Stamps have steps of 0.27 s and are rounded up.
    pair.run(600);
    assert_eq!(proved(&**pair.table(1)).len(), 20);
    assert_eq!(pair.counters(0).ends_told, 0);
    table.sync_port_after(80, None);
    pair.open(0, 50, false);
    pair.run(6_000);
    assert_eq!(proved(&**pair.table(1)).len(), 20);
}

#[test]
fn a_peer_without_room_is_named_and_filled_when_there_is_room() {
    let mut pair = pair();
    fill(&mut pair, 0, 100);
    pair.settle(1_000);
    pair.cut();
    pair.make_table = || Arc::new(PlainTable::new(2));
    pair.restart(1, true);
    pair.connect();
    pair.run(1_000);
    assert_eq!(because(&pair, 0), Some(Because::PeerFull));
    assert_eq!(because(&pair, 1), Some(Because::PeerFull));
    let repairs = pair.counters(0).repairs;
    pair.run(10_000);
    assert!(
        pair.counters(0).repairs - repairs <= 4,
        "repairs that do not help are rare"
    );
    for n in 20..100 {
        pair.end(0, n);
    }
    pair.settle(10_000);
}

#[test]
fn a_later_release_that_cannot_be_read_is_refused_with_its_name() {
    let mut pair = pair();
    pair.settle(1_000);
    let now = pair.now;
    let opening = crate::sync::wire::Opening {
        layout: 9,
        readable_by: 9,
        node: 1,
        boot: 1,
        key: [1, 2],
        places: [16, 16],
    };
    let body = Body::Opening(At { stream: 5, number: 0 }, opening).emit();
    pair.sync(1).heard(now, &body).unwrap();
    assert_eq!(because(&pair, 1), Some(Because::OtherLayout));
    let refusal = Body::Refuse(5, crate::sync::wire::Refusal::Layout);
    assert_eq!(pair.sync(1).next_body(now, 60_000), Some(refusal.emit()));
    // One that can be is read.
    let opening = crate::sync::wire::Opening {
        readable_by: 1,
        ..opening
    };
    let body = Body::Opening(At { stream: 6, number: 0 }, opening).emit();
    pair.sync(1).heard(now, &body).unwrap();
    assert_ne!(because(&pair, 1), Some(Because::OtherLayout));
    // Nobody tells of flows under this node's own number.
    let opening = crate::sync::wire::Opening { node: 2, ..opening };
    let body = Body::Opening(At { stream: 7, number: 0 }, opening).emit();
    assert!(pair.sync(1).heard(now, &body).is_err());
}

#[test]
fn leftovers_that_were_never_proved_do_not_stay_for_ever() {
    let mut pair = pair();
    for n in 0..10 {
        pair.open(0, n, true);
    }
    pair.settle(1_000);
    pair.own(0, false);
    pair.own(1, true);
    pair.run(20_000);
    assert_eq!(pair.table(0).all().len(), 10);
    pair.run(20_000);
    assert_eq!(pair.table(0).all().len(), 0);
    assert_eq!(pair.counters(0).unproved, 10);
}

#[test]
fn records_that_make_no_sense_are_counted_and_what_they_meant_is_repaired() {
    let mut pair = pair();
    pair.settle(1_000);
    pair.open(0, 1, false);
    pair.drain(0);
    let now = pair.now;
    let sync = pair.sync(0);
    let bodies: Vec<Vec<u8>> = std::iter::from_fn(|| sync.next_body(now, 60_000)).collect();
    let batch = bodies.iter().find_map(|body| match Body::parse(body) {
        Ok(Body::Batch(at, batch)) => Some((at, batch)),
        _ => None,
    });
    let (at, batch) = batch.unwrap();
    let Some(Ok(Said::Flow(flow))) = records(batch).next() else {
        panic!("no flow");
    };
    let bad = [
        Record {
            incarnation: 0,
            ..flow
        },
        Record { client: 0, ..flow },
        Record { vlan: 5_000, ..flow },
    ];
    let mut bytes = Vec::new();
    begin_batch(&mut bytes, at);
    for bad in &bad {
        push_flow(&mut bytes, bad);
    }
    pair.sync(1).heard(now, &bytes).unwrap();
    assert_eq!(pair.counters(1).malformed, 3);
    assert!(pair.settle(1_000) < 1_000);
    assert_eq!(proved(&**pair.table(1)).len(), 1);
}

mod bytes {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_message_harms_a_session(
            bodies in proptest::collection::vec(
                (0_u8..12, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..80)), 0..40,
            ),
        ) {
            let mut pair = pair();
            fill(&mut pair, 0, 20);
            pair.settle(1_000);
            let streams = [0, 1].map(|index| pair.sync(index).teller.stream());
            for (kind, is_known, rest) in bodies {
                for index in 0..2 {
                    let now = pair.now;
                    let mut body = vec![kind];
                    if is_known {
                        body.extend(streams[1 - index].to_be_bytes());
                    }
                    body.extend(&rest);
                    // Either is fine; what it says is as it would be had the peer said it.
                    let _understood = pair.sync(index).heard(now, &body);
                    let _said = pair.sync(index).next_body(now, 60_000);
                }
                pair.run(1);
            }
        }
    }
}

#[test]
fn what_a_node_makes_while_it_is_armed_is_not_the_owners_to_remove() {
    let mut pair = pair();
    fill(&mut pair, 0, 50);
    pair.settle(1_000);
    let act = |pair: &mut Pair<PlainTable>, ticks: u64| {
        for _ in 0..ticks {
            let now = pair.now;
            pair.sync(1).acts(now);
            pair.tick();
        }
    };
    act(&mut pair, 2);
    // Proved, and not yet.
    pair.open(1, 60, false);
    pair.open(1, 61, true);
    // Meanwhile the owner has something repaired.
    pair.lose(0, 5);
    for n in 0..5 {
        pair.end(0, n);
    }
    act(&mut pair, 3_000);
    pair.settle(1_000);
    assert_eq!(pair.table(1).all().len(), 45 + 2);
    pair.run(20_000);
    assert_eq!(pair.table(1).all().len(), 45 + 2, "it may still become the owner");
    pair.run(40_000);
    pair.settle(1_000);
    assert_eq!(pair.table(1).all().len(), 45, "it did not");
}

#[test]
fn a_flush_of_one_flow_waits_for_it() {
    let mut pair = pair();
    pair.settle(1_000);
    pair.open(0, 1, false);
    pair.drain(0);
    let now = pair.now;
    let position = pair.sync(0).flush(now);
    assert!(!pair.sync(0).is_acknowledged(position));
    pair.run(3);
    assert!(pair.sync(0).is_acknowledged(position));
    assert_eq!(proved(&**pair.table(1)).len(), 1);
}

#[test]
fn flows_do_not_age_at_a_standby_whose_session_broke_off() {
    let mut pair = pair();
    fill(&mut pair, 0, 5);
    pair.settle(1_000);
    pair.cut();
    pair.run(5_000);
    let due = pair.sync(1).deadline();
    assert!(due.is_some_and(|due| due < pair.now + 2_000_000_000), "{due:?}");
}

#[test]
fn what_a_new_owner_makes_while_it_goes_through_its_table_is_told_with_the_rest() {
    let mut pair = pair();
    fill(&mut pair, 0, 50);
    pair.settle(1_000);
    pair.restart(0, true);
    let now = pair.now;
    pair.sync(1).acts(now);
    pair.own(1, true);
    // The table has been gone through in part.
    assert!(pair.sync(1).work(now, 100));
    for n in 100..160 {
        pair.open(1, n, false);
    }
    pair.drain(1);
    pair.connect();
    pair.settle(2_000);
    assert_eq!(proved(&**pair.table(0)).len(), 50 + 60);
}
