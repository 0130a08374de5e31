use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use onearm_dataplane_common::addr::{Addr, Addr4};
use onearm_dataplane_common::flow::{Bucket4, Bucket6, FlowEntry, flags, hop, lock, seen};
use onearm_dataplane_common::limits::source_slots;
use onearm_dataplane_common::maps::{MAX_SERVICES, Node, SOURCES_ROW, TICK_SHIFT, mode, proto};
use onearm_dataplane_common::{table, tell};
use proptest::prelude::*;

use super::{Expiry, FlowCounts, FlowFilter, FlowState, FlowTable, Tallies};
use crate::kernel_maps::FlowMaps;
use crate::loader::LOAD_PERCENT;
use crate::mapping::{Mapping, Words};
use crate::persistence::tests::client_maps;
use crate::tables::wide;

/// Buckets of each table.
const BUCKETS: u32 = 64;
/// A whole pass.
const WHOLE: u32 = 2 * BUCKETS;
pub(crate) const HALF_OPEN: u32 = 149;
pub(crate) const CLOSING: u32 = 447;
pub(crate) const IDLE: u32 = 13_411;
const UDP_UNREPLIED: u32 = 900;

pub(crate) fn flow_table() -> Arc<FlowTable> {
    flow_table_of(BUCKETS)
}

/// With so many buckets for each family.
pub(crate) fn flow_table_of(buckets: u32) -> Arc<FlowTable> {
    let memory = |len: usize| {
        let fd = memfd_create(c"flows", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&fd, i64::try_from(len).unwrap()).unwrap();
        fd
    };
    let words = |len: u32| Words::new(memory(8 * len as usize).as_fd(), len).unwrap();
    let mapping = |bucket: usize| {
        let len = buckets as usize * bucket;
        Mapping::new(memory(len).as_fd(), len).unwrap()
    };
    let maps = FlowMaps {
        buckets: mapping(size_of::<Bucket4>()),
        buckets6: mapping(size_of::<Bucket6>()),
        tallies: Tallies {
            half_open: words(1),
            open: words(MAX_SERVICES + 1),
            open_servers: words(64),
            sources: words(2 * SOURCES_ROW),
        },
        sync: words(tell::WORDS),
        last_hops: Words::new(memory(16 * 8).as_fd(), 8).unwrap(),
        clients: client_maps(1),
    };
    let node = Node {
        flow_hash_key: [3, 4],
        flow_buckets: buckets,
        flow6_buckets: buckets,
        half_open_ticks: HALF_OPEN,
        closing_ticks: CLOSING,
        dsr_ways: 2,
        ..Node::default()
    };
    Arc::new(FlowTable::new(maps, &node))
}

/// Time at the start of a tick, ns.
pub(crate) fn at(tick: u32) -> u64 {
    u64::from(tick) << TICK_SHIFT
}

fn net(addr: [u8; 4]) -> Addr {
    wide(addr.into())
}

/// The pair with IPv6 addresses.
pub(crate) fn six(pair: (FlowEntry, FlowEntry)) -> (FlowEntry, FlowEntry) {
    let six = |addr: Addr| Addr([0x2001_0db8_u32.to_be(), 0, 0, addr.0[3]]);
    let entry = |e: FlowEntry| FlowEntry {
        saddr: six(e.saddr),
        daddr: six(e.daddr),
        new_saddr: six(e.new_saddr),
        new_daddr: six(e.new_daddr),
        ..e
    };
    (entry(pair.0), entry(pair.1))
}

/// A pair as the programs make it: client n, its SNAT port 20,000 + n.
pub(crate) fn pair(n: u16, proto: u8, state: FlowState, last_seen: (u32, u32)) -> (FlowEntry, FlowEntry) {
    let [high, low] = n.to_be_bytes();
    let (client, vip, server) = (
        net([10, 0, high, low]),
        net([192, 168, 100, 100]),
        net([192, 168, 100, 10]),
    );
    let (own, other) = match (proto, state) {
        (_, FlowState::Closing) => (
            seen::OPENED | seen::CONFIRMED | seen::FIN,
            seen::OPENED | seen::FIN,
        ),
        (proto::TCP, FlowState::HalfOpen) => (seen::OPENED, 0),
        _ => (seen::OPENED | seen::CONFIRMED, seen::OPENED),
    };
    let forward = FlowEntry {
        saddr: client,
        daddr: vip,
        sport: (40_000 + n % 1_000).to_be(),
        dport: 80_u16.to_be(),
        proto,
        flags: mode::DNAT << flags::MODE_SHIFT | flags::HAIRPIN,
        own,
        other,
        new_saddr: vip,
        new_daddr: server,
        new_sport: (20_000 + n).to_be(),
        new_dport: 8_080_u16.to_be(),
        hop: 7,
        last_seen: last_seen.0,
        idle_ticks: IDLE,
        server: 3,
        stats: 1,
        packets: 5,
        incarnation: u64::from(n) + 1,
        ..FlowEntry::default()
    };
    let key = forward.reply_key();
    let reply = FlowEntry {
        saddr: key.saddr,
        daddr: key.daddr,
        sport: key.sport,
        dport: key.dport,
        flags: forward.flags | flags::REPLY,
        own: other,
        other: own,
        new_saddr: vip,
        new_daddr: client,
        new_sport: forward.dport,
        new_dport: forward.sport,
        hop: hop::LAST | 2,
        last_seen: last_seen.1,
        packets: 4,
        ..forward
    };
    (forward, reply)
}

fn insert(table: &FlowTable, pair: &(FlowEntry, FlowEntry)) -> u32 {
    let owner = lock::USER | u64::from(std::process::id());
    let (memory, (forward, reply)) = (&table.memory, pair);
    let at = if forward.saddr.is_v4() {
        table::insert_pair::<Addr4, _>(memory, &table.four, owner, forward, reply)
    } else {
        table::insert_pair::<Addr, _>(memory, &table.six, owner, forward, reply)
    }
    .unwrap();
    if pair.0.state() == onearm_dataplane_common::flow::State::HalfOpen {
        table.tallies.half_open.add(0, 0, 1);
    }
    at
}

fn taken(table: &FlowTable) -> usize {
    (0..BUCKETS)
        .map(|bucket| {
            table.memory.taken::<Addr4>(bucket).count() + table.memory.taken::<Addr>(bucket).count()
        })
        .sum()
}

#[test]
fn a_flow_is_listed_with_both_its_sides() {
    let table = flow_table();
    insert(&table, &pair(7, proto::TCP, FlowState::Established, (10, 30)));
    let flows = table.list(&FlowFilter::default(), 10, at(45)).flows;
    let [flow] = flows.as_slice() else {
        panic!("{flows:?}")
    };
    let socket = |addr: [u8; 4], port| SocketAddr::new(addr.into(), port);
    assert_eq!(flow.client, socket([10, 0, 0, 7], 40_007));
    assert_eq!(flow.vip, socket([192, 168, 100, 100], 80));
    assert_eq!(flow.source, socket([192, 168, 100, 100], 20_007));
    assert_eq!(flow.server, socket([192, 168, 100, 10], 8_080));
    assert_eq!((flow.packets_in, flow.packets_out), (5, 4));
    assert_eq!(
        (flow.mode, flow.hairpin, flow.state),
        (crate::Mode::Dnat, true, FlowState::Established)
    );
    assert_eq!(flow.idle_ms, 15 * (1 << TICK_SHIFT) / 1_000_000);
}

#[test]
fn flows_are_counted_by_the_addresses_of_the_pair_they_use() {
    let table = flow_table();
    let source = net([192, 168, 100, 101]);
    for n in 0..6 {
        let (mut forward, mut reply) = pair(n, proto::TCP, FlowState::Established, (0, 0));
        if n < 2 {
            (forward.new_saddr, reply.daddr) = (source, source);
        }
        insert(&table, &(forward, reply));
    }
    let six = six(pair(6, proto::TCP, FlowState::Established, (0, 0)));
    insert(&table, &six);
    let [vip, source, vip6, unused] = [
        net([192, 168, 100, 100]),
        source,
        six.0.daddr,
        net([192, 168, 100, 9]),
    ]
    .map(crate::tables::narrow);
    let counts = table.count_of(&[vip, source, vip6, unused].into());
    assert_eq!(counts, [(vip, 6), (source, 2), (vip6, 1)].into());
    assert_eq!(table.count_of(&[source].into()), [(source, 2)].into());
}

#[test]
fn filters_select_by_each_field_and_the_limit_holds() {
    let table = flow_table();
    for n in 0..20 {
        let state = if n % 2 == 0 {
            FlowState::HalfOpen
        } else {
            FlowState::Established
        };
        insert(&table, &pair(n, proto::TCP, state, (0, 0)));
    }
    let count = |filter: FlowFilter| table.list(&filter, 100, 0).flows.len();
    let client = Some(IpAddr::from([10, 0, 0, 3]));
    let vip = Some(IpAddr::from([192, 168, 100, 100]));
    let server = Some(IpAddr::from([192, 168, 100, 10]));
    assert_eq!(count(FlowFilter::default()), 20);
    assert_eq!(
        count(FlowFilter {
            client,
            ..FlowFilter::default()
        }),
        1
    );
    assert_eq!(
        count(FlowFilter {
            vip,
            vip_port: Some(80),
            server,
            ..FlowFilter::default()
        }),
        20
    );
    assert_eq!(
        count(FlowFilter {
            vip_port: Some(81),
            ..FlowFilter::default()
        }),
        0
    );
    assert_eq!(
        count(FlowFilter {
            server: client,
            ..FlowFilter::default()
        }),
        0
    );
    assert_eq!(
        count(FlowFilter {
            source: vip,
            source_port: Some(20_004),
            ..FlowFilter::default()
        }),
        1
    );
    assert_eq!(
        count(FlowFilter {
            state: Some(FlowState::HalfOpen),
            ..FlowFilter::default()
        }),
        10
    );
    assert_eq!(table.list(&FlowFilter::default(), 3, 0).flows.len(), 3);
    assert_eq!(table.list(&FlowFilter::default(), 0, 0).flows, []);
    assert_eq!(
        table.count(),
        FlowCounts {
            half_open: 10,
            established: 10,
            closing: 0
        }
    );
    assert_eq!(table.half_open(), 10);
}

#[test]
fn each_state_has_its_time_out_counted_from_the_last_packet_of_either_side() {
    let table = [
        (proto::TCP, FlowState::HalfOpen, HALF_OPEN),
        (proto::TCP, FlowState::Closing, CLOSING),
        (proto::TCP, FlowState::Established, IDLE),
        (proto::UDP, FlowState::Established, IDLE),
    ];
    for (proto, state, timeout) in table {
        for last_seen in [(100, 40), (40, 100), (100, 100)] {
            let flows = flow_table();
            insert(&flows, &pair(1, proto, state, last_seen));
            let mut expiry = Expiry::new(Arc::clone(&flows));
            assert_eq!(
                expiry.expire(at(100 + timeout), WHOLE, |_| ()).removed,
                0,
                "{proto} {state:?}"
            );
            assert_eq!(
                expiry.expire(at(101 + timeout), WHOLE, |_| ()).removed,
                1,
                "{proto} {state:?}"
            );
            assert_eq!((taken(&flows), flows.half_open()), (0, 0));
        }
    }
}

#[test]
fn b133_an_unanswered_datagram_or_syn_ends_within_seconds() {
    let flows = flow_table();
    let (mut forward, mut reply) = pair(1, proto::UDP, FlowState::Established, (100, 100));
    (forward.own, forward.other, reply.own, reply.other) = (seen::OPENED, 0, 0, seen::OPENED);
    insert(&flows, &(forward, reply));
    insert(&flows, &pair(2, proto::TCP, FlowState::HalfOpen, (100, 100)));
    insert(&flows, &pair(3, proto::TCP, FlowState::Established, (100, 100)));
    let mut expiry = Expiry::new(Arc::clone(&flows));
    assert_eq!(expiry.expire(at(101 + HALF_OPEN), WHOLE, |_| ()).removed, 1);
    assert_eq!(expiry.expire(at(100 + UDP_UNREPLIED), WHOLE, |_| ()).removed, 0);
    assert_eq!(expiry.expire(at(101 + UDP_UNREPLIED), WHOLE, |_| ()).removed, 1);
    assert_eq!(
        flows.count(),
        FlowCounts {
            established: 1,
            ..FlowCounts::default()
        }
    );
}

#[test]
fn a_time_in_the_future_of_another_cpu_does_not_end_a_flow() {
    let flows = flow_table();
    insert(&flows, &pair(1, proto::TCP, FlowState::HalfOpen, (101, 101)));
    assert_eq!(
        Expiry::new(Arc::clone(&flows))
            .expire(at(100), WHOLE, |_| ())
            .removed,
        0
    );
}

#[test]
fn slices_go_round_the_table_and_a_pass_reports_what_it_left() {
    let flows = flow_table();
    for n in 0..100 {
        let last = if n < 40 { 0 } else { 1_000 };
        insert(&flows, &pair(n, proto::TCP, FlowState::HalfOpen, (last, last)));
    }
    let mut expiry = Expiry::new(Arc::clone(&flows));
    let (mut removed, mut slices, mut passes) = (0, 0, Vec::new());
    while passes.len() < 2 {
        let progress = expiry.expire(at(1_000), 7, |_| ());
        removed += progress.removed;
        slices += 1;
        passes.extend(progress.pass_ended);
    }
    assert_eq!((removed, slices), (40, 2 * WHOLE.div_ceil(7)));
    assert_eq!(
        passes[1],
        FlowCounts {
            half_open: 60,
            ..FlowCounts::default()
        }
    );
    assert_eq!((flows.half_open(), taken(&flows)), (60, 120));
}

#[test]
fn a_wrong_count_of_half_open_flows_is_corrected_after_four_passes() {
    for error in [5_u64, 5_u64.wrapping_neg()] {
        let flows = flow_table();
        for n in 0..10 {
            insert(&flows, &pair(n, proto::TCP, FlowState::HalfOpen, (0, 0)));
        }
        flows.tallies.half_open.add(0, 0, error);
        let mut expiry = Expiry::new(Arc::clone(&flows));
        for _ in 0..3 {
            expiry.expire(at(0), WHOLE, |_| ());
            assert_ne!(flows.half_open(), 10, "three passes prove nothing");
        }
        expiry.expire(at(0), WHOLE, |_| ());
        assert_eq!(flows.half_open(), 10);
        // A difference that comes and goes is none.
        flows.tallies.half_open.add(0, 0, 3);
        expiry.expire(at(0), WHOLE, |_| ());
        flows.tallies.half_open.add(0, 0, 6_u64.wrapping_neg());
        expiry.expire(at(0), WHOLE, |_| ());
        flows.tallies.half_open.add(0, 0, 3);
        assert_eq!(flows.half_open(), 10);
    }
}

#[test]
fn what_counts_of_a_client_follows_its_flows_and_a_wrong_count_is_corrected() {
    let flows = flow_table();
    let count = |client| {
        source_slots([3, 4], 1, client).map(|slot| flows.tallies.sources.load(slot, 0).cast_signed())
    };
    for n in 0..4 {
        let state = if n == 3 {
            FlowState::Closing
        } else {
            FlowState::Established
        };
        let (mut forward, reply) = pair(n, proto::TCP, state, (0, 0));
        forward.own |= seen::COUNTED;
        forward.saddr = net([10, 0, 0, 1]);
        let reply = FlowEntry {
            new_daddr: forward.saddr,
            ..reply
        };
        insert(&flows, &(forward, reply));
    }
    let client = net([10, 0, 0, 1]);
    // The programs lost count: a flow that is no more, and a closing one that was counted on.
    for slot in source_slots([3, 4], 1, client) {
        flows.tallies.sources.add(slot, 0, 5);
    }
    let mut expiry = Expiry::new(Arc::clone(&flows));
    for _ in 0..4 {
        assert_eq!(count(client), [5, 5]);
        expiry.expire(at(0), WHOLE, |_| ());
    }
    assert_eq!(count(client), [3, 3]);
    expiry.expire(at(IDLE + 1), WHOLE, |_| ());
    assert_eq!((count(client), taken(&flows)), ([0, 0], 0));
}

#[test]
fn a_half_open_count_below_zero_is_shown_as_none() {
    let flows = flow_table();
    flows.tallies.half_open.add(0, 0, u64::MAX);
    assert_eq!(flows.half_open(), 0);
}

#[test]
fn references_name_what_any_entry_needs() {
    let flows = flow_table();
    insert(&flows, &pair(1, proto::TCP, FlowState::Established, (0, 0)));
    let references = flows.references();
    let has = |set: &crate::identity::IndexSet, index: u32| {
        let mut ids = crate::identity::Identities::new(index, index + 1);
        ids.take(&());
        ids.retain(|()| false);
        ids.reclaim(set).is_empty()
    };
    assert!(has(&references.servers, 3) && !has(&references.servers, 4));
    assert!(has(&references.services, 1) && !has(&references.services, 3));
    // The last hop of the other direction is no next hop.
    assert!(has(&references.next_hops, 7) && !has(&references.next_hops, 2));
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, FlowState),
    Touch(u16),
    Sweep(u32),
    Wait(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let state = prop_oneof![
        Just(FlowState::HalfOpen),
        Just(FlowState::Established),
        Just(FlowState::Closing)
    ];
    prop_oneof![
        4 => (0_u16..60, state).prop_map(|(n, state)| Op::Insert(n, state)),
        2 => (0_u16..60).prop_map(Op::Touch),
        2 => (1_u32..80).prop_map(Op::Sweep),
        1 => (0_u32..200).prop_map(Op::Wait),
    ]
}

proptest! {
    /// Against a plain map from flow to the tick it was last seen: after a whole pass exactly the overdue are gone, both
    /// directions of each, and the number of half-open flows is right.
    #[test]
    fn expiry_agrees_with_a_naive_model(ops in prop::collection::vec(op(), 1..120)) {
        let flows = flow_table();
        let mut expiry = Expiry::new(Arc::clone(&flows));
        let mut model: HashMap<u16, (u32, FlowState, u32)> = HashMap::new();
        let mut now = 1_000;
        for op in ops {
            match op {
                Op::Insert(n, state) => {
                    if !flows.list(&FlowFilter { source_port: Some(20_000 + n), ..FlowFilter::default() }, 1, 0).flows.is_empty() {
                        continue;
                    }
                    let at = insert(&flows, &pair(n, proto::TCP, state, (now, now)));
                    model.insert(n, (now, state, at));
                }
                Op::Touch(n) => {
                    if let Some((last, _, at)) = model.get_mut(&n)
                        && flows.memory.published::<Addr4>(*at).is_some_and(|e| e.incarnation == u64::from(n) + 1)
                    {
                        *last = now;
                        table::entry_at::<Addr4, _>(&flows.memory, *at).unwrap().set_last_seen(now);
                    }
                }
                Op::Sweep(budget) => drop(expiry.expire(at(now), budget, |_| ())),
                Op::Wait(ticks) => now += ticks,
            }
        }
        while expiry.expire(at(now), 16, |_| ()).pass_ended.is_none() {}
        let mut counts = FlowCounts::default();
        for _ in 0..12 {
            // Quiet passes: a correction that was none is taken back.
            counts = expiry.expire(at(now), WHOLE, |_| ()).pass_ended.unwrap();
        }
        model.retain(|_, (last, state, _)| {
            let timeout = match state {
                FlowState::HalfOpen => HALF_OPEN,
                FlowState::Closing => CLOSING,
                FlowState::Established => IDLE,
            };
            now - *last <= timeout
        });
        let mut left: Vec<u16> =
            flows.list(&FlowFilter::default(), 1_000, at(now)).flows.iter().map(|f| f.source.port() - 20_000).collect();
        left.sort_unstable();
        let mut want: Vec<u16> = model.keys().copied().collect();
        want.sort_unstable();
        prop_assert_eq!(left, want);
        prop_assert_eq!(taken(&flows), 2 * model.len());
        prop_assert_eq!(counts.total(), model.len() as u64);
        let half_open = model.values().filter(|(_, state, _)| *state == FlowState::HalfOpen).count();
        prop_assert_eq!(flows.half_open(), half_open as u64);
    }
}

#[test]
fn ipv6_flows_are_listed_counted_and_ended_beside_ipv4_ones() {
    let table = flow_table();
    let (four, other) = (
        pair(7, proto::TCP, FlowState::Established, (10, 30)),
        six(pair(7, proto::TCP, FlowState::Established, (10, 20))),
    );
    insert(&table, &four);
    insert(&table, &other);
    assert_eq!(table.count().established, 2);
    let wanted = FlowFilter {
        client: Some("2001:db8::a00:7".parse().unwrap()),
        ..FlowFilter::default()
    };
    let listing = table.list(&wanted, 10, at(45));
    assert_eq!(listing.matched, 1);
    assert_eq!(
        listing.flows[0].server,
        "[2001:db8::c0a8:640a]:8080".parse().unwrap()
    );
    assert_eq!(listing.flows[0].packets_out, 4);
    let mut expiry = Expiry::new(Arc::clone(&table));
    assert_eq!(
        expiry.expire(at(20 + IDLE + 1), u32::MAX, |_| ()).removed,
        1,
        "the one silent for longer"
    );
    assert_eq!(expiry.expire(at(30 + IDLE + 1), u32::MAX, |_| ()).removed, 1);
    assert_eq!(taken(&table), 0);
}

/// Prints what a flow costs the sweep, in a table as large as the loader makes it for so many, and how long a slice lasts.
#[test]
#[ignore = "measures: release build, a quiet machine, 3 GB"]
fn expiry_costs_the_same_for_each_flow_however_many_there_are() {
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    let clock = std::time::Instant::now;
    let mut costs = Vec::new();
    for flows in [10_000_u32, 100_000, 1_000_000, 4_000_000] {
        let entries = u64::from(flows) * 2 * 100;
        let buckets = u32::try_from(entries.div_ceil(16 * LOAD_PERCENT)).unwrap();
        let table = flow_table_of(buckets);
        for n in 0..flows {
            let (mut forward, mut reply) = pair(7, proto::TCP, FlowState::Established, (100, 100));
            let (client, source) = (
                Addr::v4((0x0a00_0000 + n).to_be()),
                Addr::v4((0x6400_0000 + n).to_be()),
            );
            (forward.saddr, forward.new_saddr, forward.incarnation) = (client, source, u64::from(n) + 1);
            (reply.daddr, reply.new_daddr, reply.incarnation) = (source, client, 0);
            insert(&table, &(forward, reply));
        }
        let mut expiry = Expiry::new(Arc::clone(&table));
        let slice = 1_024.min(buckets.div_ceil(50));
        let mut pass = |now: u32| {
            let (mut removed, mut longest, mut looked_at) = (0, 0.0_f64, 0);
            let begun = clock();
            // The other family's table is empty: its buckets cost a flow nothing that it would not cost an empty table.
            while looked_at < buckets {
                let start = clock();
                removed += expiry
                    .expire(at(now), slice.min(buckets - looked_at), |_| ())
                    .removed;
                looked_at += slice.min(buckets - looked_at);
                longest = longest.max(start.elapsed().as_secs_f64());
            }
            let whole = begun.elapsed().as_secs_f64();
            while expiry.expire(at(now), u32::MAX, |_| ()).pass_ended.is_none() {}
            (removed, whole * 1e9 / f64::from(flows), longest * 1e3)
        };
        pass(101);
        let (_, kept, slice_ms) = pass(101);
        let (removed, ended, longest_ms) = pass(102 + IDLE);
        assert_eq!(removed, flows);
        println!(
            "{flows} flows in {buckets} buckets: {kept:.1} ns to look at one (slice {slice_ms:.2} ms), {ended:.1} ns to end one \
             (slice {longest_ms:.2} ms)"
        );
        costs.push(kept);
    }
    assert!(costs[3] < 3.0 * costs[1], "{costs:?}");
}
