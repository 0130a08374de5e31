//! What flow sync costs, without the stream.
#![expect(clippy::disallowed_methods, reason = "measures")]

use std::time::Instant;

use onearm_types::NodeId;

use super::tests::many;
use super::*;
use crate::flows::tests::{at, flow_table_of};
use crate::sync::directory::tests::directory;
use crate::sync::{Settings, Sync, Tell, Verdict};

const FLOWS: u32 = 1_000_000;
const LONGEST: usize = 60_000;

/// Bodies of one to the other until neither says more.
fn exchange(now: u64, one: &mut Sync<FlowTable>, other: &mut Sync<FlowTable>) {
    let mut quiet = 0;
    while quiet < 2 {
        let works = [one.work(now, 4_096), other.work(now, 4_096)];
        let mut is_quiet = works == [false, false];
        while let Some(body) = one.next_body(now, LONGEST) {
            other.heard(now, &body).unwrap();
            is_quiet = false;
        }
        while let Some(body) = other.next_body(now, LONGEST) {
            one.heard(now, &body).unwrap();
            is_quiet = false;
        }
        quiet = if is_quiet { quiet + 1 } else { 0 };
    }
}

/// Prints what a flow costs at the owner and at its peer, and how long a snapshot takes.
#[test]
#[ignore = "release build, 1 GB"]
fn a_million_flows_are_told_compared_and_repaired() {
    let table = || {
        let table = flow_table_of(FLOWS / 5);
        table.know(directory(&[]));
        table
    };
    let now = at(100);
    let session = |table: &std::sync::Arc<FlowTable>, node| {
        let mut sync = Sync::new(
            table.clone(),
            NodeId::new(node).unwrap(),
            [7, 8],
            Settings::default(),
        );
        sync.owned(now, u16::from(node == 1));
        sync
    };
    let (ours, theirs) = (table(), table());
    let (mut one, mut other) = (session(&ours, 1), session(&theirs, 2));
    while one.work(now, u32::MAX) || other.work(now, u32::MAX) {}
    one.connected(now);
    other.connected(now);
    exchange(now, &mut one, &mut other);
    let rate = |what: &str, ns: u128| println!("{what}: {} ns a flow", ns / u128::from(FLOWS));
    let places: Vec<Place> = (0..FLOWS)
        .map(|n| ours.put(&many(n, false), now).unwrap().place)
        .collect();
    let (mut telling, mut applying) = (0, 0);
    for places in places.chunks(512) {
        let since = Instant::now();
        for place in places {
            one.told(now, Tell::Look(*place));
        }
        one.drained(now, 0);
        let bodies: Vec<Vec<u8>> = std::iter::from_fn(|| one.next_body(now, LONGEST)).collect();
        telling += since.elapsed().as_nanos();
        let since = Instant::now();
        for body in bodies {
            other.heard(now, &body).unwrap();
        }
        let answer = other.next_body(now, LONGEST).unwrap();
        applying += since.elapsed().as_nanos();
        one.heard(now, &answer).unwrap();
    }
    rate("looked at and told", telling);
    rate("applied (with what putting costs)", applying);
    exchange(now, &mut one, &mut other);
    assert_eq!(one.verdict(now), Verdict::Equal);
    let since = Instant::now();
    for place in &places {
        one.told(now, Tell::Look(*place));
    }
    rate("looked at, nothing new", since.elapsed().as_nanos());
    let since = Instant::now();
    for _ in 0..FLOWS / 500 {
        for place in &places[..500] {
            one.told(now, Tell::Look(*place));
        }
    }
    rate("looked at, nothing new, in cache", since.elapsed().as_nanos());
    let fresh = table();
    let mut other = session(&fresh, 2);
    while other.work(now, u32::MAX) {}
    let since = Instant::now();
    one.connected(now);
    other.connected(now);
    exchange(now, &mut one, &mut other);
    println!(
        "a snapshot to a fresh node, both on one core: {:?}",
        since.elapsed()
    );
    let last = now + 1_000_000_000;
    exchange(last, &mut one, &mut other);
    assert_eq!(one.counters().repaired, u64::from(FLOWS));
    assert_eq!(
        (one.verdict(last), other.verdict(last)),
        (Verdict::Equal, Verdict::Equal)
    );
    assert_eq!(fresh.count().established, u64::from(FLOWS));
}
