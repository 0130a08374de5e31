use std::sync::Arc;

use onearm_dataplane_common::limits::source_slots;

use super::*;
use crate::flows::tests::{CLOSING, HALF_OPEN, IDLE, at, flow_table, flow_table_of};
use crate::flows::{Expiry, FlowCounts};
use crate::sync::Tell;
use crate::sync::directory::tests::{directory, own, record};

/// A time at which every put is made.
const NOW: u32 = 100;

fn table() -> Arc<FlowTable> {
    let table = flow_table();
    table.know(directory(&[]));
    table
}

fn put(table: &FlowTable, record: &Record) -> Result<Put, Refused> {
    table.put(record, at(NOW))
}

/// Flows that count for the service and the server of a record, and half-open ones.
fn open(table: &FlowTable, record: &Record) -> (u64, u64, u64) {
    let indexes = table.directory().indexes(record);
    (
        table.tallies.open.load(u32::from(indexes.stats), 0),
        table.tallies.open_servers.load(u32::from(indexes.server), 0),
        table.half_open(),
    )
}

/// Ways that are taken in both tables.
fn ways(table: &FlowTable) -> usize {
    let count =
        |bucket| table.memory.taken::<Addr4>(bucket).count() + table.memory.taken::<Addr>(bucket).count();
    (0..table.four.buckets).map(count).sum()
}

fn closing(mut record: Record) -> Record {
    record.server |= seen::RST;
    record
}

/// The same flow, later in the life of the pair.
fn later(mut record: Record) -> Record {
    record.incarnation += 1 << 40;
    record
}

/// A flow as a program makes it.
fn make(table: &FlowTable, record: &Record) -> Place {
    let (mut forward, mut reply) = (record.forward(), record.reply());
    let indexes = table.directory().indexes(record);
    for entry in [&mut forward, &mut reply] {
        (entry.stats, entry.server, entry.last_seen) = (indexes.stats, indexes.server, NOW);
    }
    let made = if record.is_v6() {
        table::insert_pair::<Addr, _>(&table.memory, &table.six, 1, &forward, &reply)
    } else {
        table::insert_pair::<Addr4, _>(&table.memory, &table.four, 1, &forward, &reply)
    };
    table.count_in(&forward, 1);
    if forward.state() == State::HalfOpen {
        table.tallies.half_open.add(0, 0, 1);
    }
    Place {
        v6: record.is_v6(),
        at: made.unwrap(),
    }
}

#[test]
fn a_flow_that_is_put_is_read_as_it_was_told_counts_and_ends() {
    for v6 in [false, true] {
        for port in [80, 53, 81, 82, 83, 84] {
            let (table, mut record) = (table(), record(v6, 5, port));
            let done = put(&table, &record).unwrap();
            assert!(done.fresh && done.displaced == [None, None]);
            if port == 81 {
                record.client |= seen::COUNTED;
            }
            if !record.is_direct() {
                // By the router's index of last hops, of which the maps of a test say nothing.
                assert_eq!(table.read(done.place).map(|r| r.leg), Some(Record::NO_LEG));
            }
            assert_eq!(table.read(done.place), Some(record), "{port}");
            assert_eq!(open(&table, &record), (1, 1, 0));
            assert_eq!(ways(&table), if record.is_direct() { 1 } else { 2 });
            let slots = source_slots(
                table.four.key,
                u32::from(table.directory().indexes(&record).stats),
                record.key.saddr,
            );
            let counted = u64::from(port == 81);
            assert_eq!(
                slots.map(|slot| table.tallies.sources.load(slot, 0)),
                [counted; 2]
            );
            assert_eq!(
                table.forward_places(0..table.buckets()).collect::<Vec<_>>(),
                [done.place]
            );
            assert_eq!(table.end(&record.key, record.incarnation + 1), None);
            assert_eq!(table.end(&record.key, record.incarnation), Some(done.place));
            assert_eq!(table.end(&record.key, record.incarnation), None);
            assert_eq!((open(&table, &record), ways(&table)), ((0, 0, 0), 0));
            assert_eq!(slots.map(|slot| table.tallies.sources.load(slot, 0)), [0; 2]);
        }
    }
}

#[test]
fn what_is_told_again_is_brought_up_to_date_where_it_is() {
    for (v6, port) in [(false, 80), (true, 80), (false, 81), (false, 82)] {
        let (table, record) = (table(), record(v6, 5, port));
        let first = put(&table, &record).unwrap();
        let mut states = vec![
            (closing(record), 0),
            (record, 1),
            (record, 1),
            (closing(record), 0),
        ];
        if record.is_direct() {
            states.truncate(2);
        }
        for (told, count) in states {
            let again = Put {
                fresh: false,
                ..first
            };
            assert_eq!(put(&table, &told), Ok(again));
            let read = table.read(first.place).unwrap();
            assert_eq!((read.coarse(), read.server), (told.coarse(), told.server));
            assert_eq!(open(&table, &told), (count, count, 0));
        }
    }
}

#[test]
fn b41_clashes_are_decided_by_state_first_then_by_epoch_and_counter_then_by_node() {
    let half_open = |mut r: Record| {
        r.client = seen::OPENED;
        r
    };
    let by_node = |mut r: Record| {
        r.incarnation ^= 3 << 56;
        r
    };
    let unanswered = |mut r: Record| {
        r.server = 0;
        r
    };
    let told = record(false, 5, 80);
    let datagram = record(false, 5, 53);
    let rows: [(&str, Record, Record, Option<Refused>); 10] = [
        ("half-open", later(half_open(told)), told, None),
        ("unanswered", later(unanswered(datagram)), datagram, None),
        ("newer", later(told), told, Some(Refused::Older)),
        ("older", told, later(told), None),
        ("of the other node", told, by_node(told), None),
        ("of the other node", by_node(told), told, Some(Refused::Older)),
        ("closing and newer", later(closing(told)), told, None),
        (
            "established, told is closing",
            told,
            later(closing(told)),
            Some(Refused::LiveHere),
        ),
        (
            "half-open, told is closing",
            half_open(told),
            later(closing(told)),
            Some(Refused::LiveHere),
        ),
        ("closing, both", closing(told), later(closing(told)), None),
    ];
    for (name, mut here, told, refused) in rows {
        for by_reply in [false, true] {
            let table = table();
            if by_reply {
                // Another client, the same source and server.
                here.key.saddr.0[3] ^= 1 << 16;
            }
            let place = make(&table, &here);
            let result = put(&table, &told);
            if let Some(refused) = refused {
                assert_eq!(result, Err(refused), "{name} {by_reply}");
                assert_eq!(table.read(place).map(|r| r.incarnation), Some(here.incarnation));
            } else {
                let done = result.unwrap();
                let gone = done.displaced.map(|gone| gone.map(|(at, r)| (at, r.incarnation)));
                assert_eq!(gone, [Some((place, here.incarnation)), None], "{name} {by_reply}");
                assert!(done.fresh);
                assert_eq!(
                    table.read(done.place).map(|r| r.incarnation),
                    Some(told.incarnation)
                );
                let count = u64::from(told.coarse() == Some(Coarse::Established));
                assert_eq!(open(&table, &told), (count, count, 0), "{name} {by_reply}");
            }
            assert_eq!(ways(&table), 2, "{name} {by_reply}");
        }
    }
}

#[test]
fn two_flows_in_the_way_both_go_or_neither() {
    let (one, mut other, told) = (
        record(false, 5, 80),
        record(false, 6, 80),
        later(record(false, 5, 80)),
    );
    other.new_sport = told.new_sport;
    let mut elsewhere = one;
    elsewhere.new_sport = 9;
    let table = table();
    let places = [make(&table, &elsewhere), make(&table, &other)];
    let done = put(&table, &told).unwrap();
    assert_eq!(
        done.displaced.map(|gone| gone.map(|(at, _)| at)),
        places.map(Some)
    );
    assert_eq!(ways(&table), 2);
    let table = self::table();
    let (one, other) = (elsewhere, later(later(other)));
    let places = [make(&table, &one), make(&table, &other)];
    assert_eq!(put(&table, &told), Err(Refused::Older));
    assert!(places.iter().all(|place| table.read(*place).is_some()));
}

#[test]
fn an_altered_translation_of_the_same_flow_is_replaced() {
    let (table, record) = (table(), record(false, 5, 80));
    let altered = Record {
        new_sport: 9,
        ..record
    };
    let first = put(&table, &altered).unwrap();
    let done = put(&table, &record).unwrap();
    assert_eq!(
        done.displaced[0].map(|(place, r)| (place, r.new_sport)),
        Some((first.place, 9))
    );
    assert_eq!(table.read(done.place), Some(record));
    assert_eq!((ways(&table), open(&table, &record)), (2, (1, 1, 0)));
}

#[test]
fn a_flow_of_a_service_that_is_not_here_goes_by_the_route_until_the_sweep_finds_it_one() {
    let table = flow_table();
    table.know(directory(&[80]));
    let told = record(false, 5, 80);
    let done = put(&table, &told).unwrap();
    let entry = table.memory.published::<Addr4>(done.place.at).unwrap();
    assert_eq!(
        (entry.stats, entry.server, entry.hop),
        (STRAY_SERVICE, STRAY_SERVER, hop::ROUTE)
    );
    assert_eq!(table.read(done.place), Some(told));
    assert_eq!(table.tallies.open.load(u32::from(STRAY_SERVICE), 0), 1);
    let mut expiry = Expiry::new(Arc::clone(&table));
    expiry.expire(at(NOW), table.buckets(), |_| ());
    assert!(is_stray(&table.memory.published::<Addr4>(done.place.at).unwrap()));
    table.know(directory(&[]));
    expiry.expire(at(NOW), table.buckets(), |_| ());
    let indexes = table.directory().indexes(&told);
    let entry = table.memory.published::<Addr4>(done.place.at).unwrap();
    let reply = table.memory.published::<Addr4>(entry.partner).unwrap();
    assert_eq!(
        (entry.stats, entry.server, entry.hop),
        (indexes.stats, indexes.server, indexes.hop)
    );
    assert_eq!((reply.stats, reply.server), (indexes.stats, indexes.server));
    assert_eq!(table.tallies.open.load(u32::from(STRAY_SERVICE), 0), 0);
    assert_eq!(open(&table, &told), (1, 1, 0));
    assert_eq!(table.end(&told.key, told.incarnation), Some(done.place));
    assert_eq!(open(&table, &told), (0, 0, 0));
}

#[test]
fn an_affinity_takes_the_place_of_another_and_says_so() {
    let table = flow_table_of(1);
    table.know(directory(&[]));
    let records = [1, 2, 3].map(|n| record(false, n, 82));
    let places = [0, 1].map(|n| put(&table, &records[n]).unwrap().place);
    let done = put(&table, &records[2]).unwrap();
    let gone = done.displaced[0].unwrap();
    assert!(places.contains(&gone.0) && done.displaced[1].is_none());
    let which = places.iter().position(|place| *place == gone.0).unwrap();
    assert_eq!(gone.1.incarnation, records[which].incarnation);
    assert_eq!((ways(&table), open(&table, &records[0])), (2, (2, 2, 0)));
}

#[test]
fn a_tunnel_begins_at_this_nodes_own_address() {
    for v6 in [false, true] {
        let (table, record) = (table(), record(v6, 5, 83));
        let done = put(&table, &record).unwrap();
        let entry = if v6 {
            table.memory.published::<Addr>(done.place.at)
        } else {
            table.memory.published::<Addr4>(done.place.at)
        };
        assert_eq!(entry.map(|entry| entry.new_saddr), Some(own(v6)));
        let nowhere = flow_table();
        assert!(matches!(put(&nowhere, &record), Err(Refused::Invalid(_))));
    }
}

#[test]
fn what_contradicts_itself_is_not_put() {
    let (table, mut bad) = (table(), record(false, 5, 80));
    bad.incarnation = 0;
    assert_eq!(put(&table, &bad), Err(Refused::Invalid("incarnation")));
    assert_eq!(ways(&table), 0);
}

#[test]
fn a_full_table_refuses_and_keeps_what_it_has() {
    let table = flow_table_of(2);
    table.know(directory(&[]));
    let mut kept = Vec::new();
    let refused = (1..100).find(|n| match put(&table, &record(false, *n, 80)) {
        Ok(done) => {
            kept.push((done.place, record(false, *n, 80)));
            false
        }
        Err(refused) => {
            assert_eq!(refused, Refused::Full);
            true
        }
    });
    assert!(refused.is_some() && kept.len() > 10);
    for (place, record) in &kept {
        assert_eq!(table.read(*place).as_ref(), Some(record));
    }
    assert_eq!(
        (ways(&table), open(&table, &kept[0].1).0),
        (2 * kept.len(), kept.len() as u64)
    );
}

#[test]
fn b38_a_flow_is_not_silent_before_the_floor_and_its_end_is_told() {
    let table = table();
    let told = [record(false, 1, 80), closing(record(true, 2, 80))];
    let places = told.map(|record| put(&table, &record).unwrap().place);
    let half_open = Record {
        client: seen::OPENED,
        ..record(false, 3, 80)
    };
    make(&table, &half_open);
    table.set_floor(at(2 * IDLE));
    let mut expiry = Expiry::new(Arc::clone(&table));
    let mut ended = Vec::new();
    let mut sweep = |now| {
        let progress = expiry.expire(at(now), table.buckets(), |tell| ended.push(tell));
        progress.removed
    };
    assert_eq!(
        [2 * IDLE, 2 * IDLE + HALF_OPEN, 2 * IDLE + HALF_OPEN + 1].map(&mut sweep),
        [0, 0, 1]
    );
    assert_eq!(
        [2 * IDLE + CLOSING, 2 * IDLE + CLOSING + 1].map(&mut sweep),
        [0, 1]
    );
    assert_eq!([3 * IDLE, 3 * IDLE + 1].map(&mut sweep), [0, 1]);
    let tells: Vec<_> = [1, 0]
        .into_iter()
        .map(|n| Tell::Ended {
            place: places[n],
            record: Record {
                server_ack: 0,
                ..told[n]
            },
        })
        .collect();
    assert_eq!(ended, tells, "nobody was told of the half-open one");
    assert_eq!(table.count(), FlowCounts::default());
}

#[test]
fn places_of_both_families_are_walked_in_slices() {
    let table = table();
    let mut want: Vec<Place> = (0..40)
        .flat_map(|n| [false, true].map(|v6| put(&table, &record(v6, n, 80)).unwrap().place))
        .collect();
    want.sort_unstable();
    let buckets = table.buckets();
    for slice in [1, 7, buckets] {
        let mut walked: Vec<Place> = (0..buckets)
            .step_by(slice as usize)
            .flat_map(|first| {
                table
                    .forward_places(first..(first + slice).min(buckets))
                    .collect::<Vec<_>>()
            })
            .collect();
        walked.sort_unstable();
        assert_eq!(walked, want);
    }
    assert!(want.iter().all(|place| place.at < table.places(place.v6)));
    assert_eq!(
        table.read(Place {
            v6: false,
            at: table.places(false)
        }),
        None
    );
}

/// One of millions, whose source stays.
pub(super) fn many(n: u32, v6: bool) -> Record {
    let mut record = record(v6, 0, 80);
    record.key.saddr.0[3] = (0x0b00_0000 | n >> 2).to_be();
    record.key.sport = (30_000 + u16::try_from(n & 3).unwrap()).to_be();
    record.flags = mode::DNAT << flags::MODE_SHIFT;
    (record.new_saddr, record.new_sport) = (record.key.saddr, record.key.sport);
    record.incarnation += u64::from(n);
    record
}

/// Prints how many flows of the peer can be put, looked at and ended in a second.
#[test]
#[ignore = "release build, 1 GB"]
#[expect(clippy::disallowed_methods, reason = "measures")]
fn two_million_flows_are_put_within_seconds() {
    use std::time::Instant;
    for (v6, flows) in [(false, 2_000_000_u32), (true, 500_000)] {
        let table = flow_table_of(flows / 7);
        table.know(directory(&[]));
        let rate = |what: &str, since: Instant, n: u32| {
            let ns = u32::try_from(since.elapsed().as_nanos() / u128::from(n)).unwrap();
            println!(
                "{what} (IPv6: {v6}): {ns} ns a flow, {} a second",
                1_000_000_000 / ns.max(1)
            );
        };
        // Pages of a map are there when it is mapped, those of a test's memory when they are first written.
        for bucket in 0..flows / 7 {
            if v6 {
                entry_at::<Addr, _>(&table.memory, bucket << 4)
                    .unwrap()
                    .set_packets(0);
            } else {
                entry_at::<Addr4, _>(&table.memory, bucket << 4)
                    .unwrap()
                    .set_packets(0);
            }
        }
        let since = Instant::now();
        for n in 0..flows {
            table.put(&many(n, v6), at(NOW)).unwrap();
        }
        rate("put", since, flows);
        let since = Instant::now();
        for n in 0..flows {
            table.put(&many(n, v6), at(NOW)).unwrap();
        }
        rate("put again", since, flows);
        let since = Instant::now();
        let mut read = 0;
        for place in table.forward_places(0..table.buckets()) {
            read += u32::from(table.read(place).is_some());
        }
        assert_eq!(read, flows);
        rate("walked and read", since, flows);
        let since = Instant::now();
        for n in 0..flows {
            let record = many(n, v6);
            assert!(table.end(&record.key, record.incarnation).is_some());
        }
        rate("ended", since, flows);
    }
}

#[test]
fn a_client_on_a_leg_is_wanted_as_long_as_its_flow_goes_by_the_route() {
    let table = table();
    let of = |addr: [u8; 4], n| {
        let mut record = record(false, n, 80);
        record.key.saddr = crate::tables::wide(IpAddr::from(addr));
        record
    };
    let wanted = |table: &FlowTable| table.take_wanted().into_iter().collect::<Vec<_>>();
    let (on_leg, resolved, behind) = (
        of([10, 1, 0, 8], 1),
        of([10, 1, 0, 7], 2),
        of([203, 0, 113, 9], 3),
    );
    let place = put(&table, &on_leg).unwrap().place;
    put(&table, &resolved).unwrap();
    put(&table, &behind).unwrap();
    let client = (1, IpAddr::from([10, 1, 0, 8]));
    assert_eq!(wanted(&table), [client]);
    assert_eq!(wanted(&table), []);
    table.read(place).unwrap();
    assert_eq!(wanted(&table), [client], "an audit wants it again");
    for n in 0..2 * MOST_WANTED {
        let host = u16::try_from(n).unwrap().to_be_bytes();
        put(&table, &of([10, 1, host[0] + 2, host[1]], 9)).ok();
    }
    assert!(table.take_wanted().len() <= MOST_WANTED);
}

mod races;
