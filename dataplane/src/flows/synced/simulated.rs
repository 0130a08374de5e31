//! Flow sync between two real tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::flows::tests::flow_table_of;
use crate::sync::simulation::{Stage, op, play};

/// A table that counts what its session does to it.
#[derive(Debug)]
struct Counted {
    table: Arc<FlowTable>,
    written: AtomicU64,
}

impl Counted {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            table: flow_table_of(32),
            written: AtomicU64::new(0),
        })
    }

    fn count(&self, changed: bool) {
        self.written.fetch_add(u64::from(changed), Ordering::Relaxed);
    }

    fn insert<A: Address>(&self, record: &Record) -> Option<u32> {
        let (forward, reply) = (record.forward(), record.reply());
        let geometry = self.table.geometry::<A>();
        table::insert_pair::<A, _>(&self.table.memory, geometry, 1, &forward, &reply).ok()
    }

    fn set<A: Address>(&self, at: u32, client: u8, server: u8) {
        let memory = &self.table.memory;
        let incarnation = memory.published::<A>(at).unwrap().incarnation;
        let found = table::found_at::<A, _>(memory, at, incarnation).unwrap();
        let partner = partner_of::<A>(memory, &found).unwrap();
        for (entry, own, other) in [(found.entry(), client, server), (partner, server, client)] {
            entry.set_own(own);
            entry.set_other(other);
        }
    }
}

impl Table for Counted {
    fn places(&self, v6: bool) -> u32 {
        self.table.places(v6)
    }

    fn read(&self, place: Place) -> Option<Record> {
        self.table.read(place)
    }

    fn sync_after(&self, _place: Place) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn forward_places(&self, buckets: Range<u32>) -> impl Iterator<Item = Place> {
        self.table.forward_places(buckets)
    }

    fn put(&self, record: &Record, now_ns: u64) -> Result<Put, Refused> {
        let put = self.table.put(record, now_ns);
        self.count(put.is_ok());
        put
    }

    fn end(&self, key: &FlowKey, incarnation: u64) -> Option<Place> {
        let place = self.table.end(key, incarnation);
        self.count(place.is_some());
        place
    }

    fn set_floor(&self, now_ns: u64) {
        self.table.set_floor(now_ns);
    }
}

impl Stage for Counted {
    fn make(&self, record: &Record) -> Option<(Place, Vec<(Place, Record)>)> {
        let clashes = |other: &Record| other.key == record.key || other.reply_key() == record.reply_key();
        let mut gone = self.all();
        gone.retain(|(_, other)| clashes(other));
        for (_, other) in &gone {
            self.table.end(&other.key, other.incarnation).unwrap();
        }
        let v6 = record.is_v6();
        let at = if v6 {
            self.insert::<Addr>(record)
        } else {
            self.insert::<Addr4>(record)
        };
        Some((Place { v6, at: at? }, gone))
    }

    fn unmake(&self, place: Place) -> Option<Record> {
        let record = self.table.read(place)?;
        self.table.end(&record.key, record.incarnation)?;
        Some(record)
    }

    fn change(&self, place: Place, client: u8, server: u8) {
        if place.v6 {
            self.set::<Addr>(place.at, client, server);
        } else {
            self.set::<Addr4>(place.at, client, server);
        }
    }

    fn all(&self) -> Vec<(Place, Record)> {
        let places = self.table.forward_places(0..self.table.buckets());
        places
            .filter_map(|place| Some((place, self.table.read(place)?)))
            .collect()
    }

    fn find(&self, key: &FlowKey) -> Option<Place> {
        let mut all = self.all().into_iter();
        all.find(|(_, record)| record.key == *key).map(|(place, _)| place)
    }

    fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn b41_whatever_happens_two_tables_become_equal_and_are_never_said_to_be_before(
        seed: u64, ops in proptest::collection::vec(op(), 1..50),
    ) {
        play(Counted::new, seed, &ops);
    }
}
