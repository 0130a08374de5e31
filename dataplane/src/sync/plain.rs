//! A flow table for tests, without memory shared with anybody, and flows to fill it with.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::{FlowKey, flags, seen};
use onearm_dataplane_common::maps::{mode, proto};

use super::{Coarse, Place, Put, Record, Refused, Table};
use crate::tables::wide;

/// An established flow of client n.
pub(super) fn record(n: u16, incarnation: u64) -> Record {
    let [high, low] = n.to_be_bytes();
    let vip = wide([192, 168, 100, 100].into());
    Record {
        key: FlowKey::new(
            proto::TCP,
            wide([10, 0, high, low].into()),
            (40_000 + n % 1_000).to_be(),
            vip,
            80_u16.to_be(),
        ),
        new_saddr: vip,
        new_daddr: wide([192, 168, 100, 10].into()),
        new_sport: (20_000 + n).to_be(),
        new_dport: 8_080_u16.to_be(),
        flags: mode::DNAT << flags::MODE_SHIFT,
        client: seen::OPENED | seen::CONFIRMED,
        server: seen::OPENED,
        client_ack: 11,
        server_ack: 12,
        idle_ticks: 13_411,
        packets: 5,
        leg: Record::NO_LEG,
        vlan: 0,
        incarnation,
    }
}

/// The same of IPv6.
pub(super) fn six(record: &Record) -> Record {
    let six = |addr: Addr| Addr([0x2001_0db8_u32.to_be(), 0, 0, addr.0[3]]);
    let key = &record.key;
    Record {
        key: FlowKey::new(key.proto, six(key.saddr), key.sport, six(key.daddr), key.dport),
        new_saddr: six(record.new_saddr),
        new_daddr: six(record.new_daddr),
        ..*record
    }
}

#[derive(Debug)]
pub(super) struct PlainTable {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By family.
    places: [Vec<Option<Record>>; 2],
    by_key: HashMap<FlowKey, Place>,
    sync_after: HashMap<u16, Option<Duration>>,
    /// Puts and ends of the session that changed something.
    written: u64,
    floor: u64,
}

impl PlainTable {
    /// With so many buckets a family.
    pub(super) fn new(buckets: u32) -> Self {
        let places = || vec![None; buckets as usize * 16];
        Self {
            inner: Mutex::new(Inner {
                places: [places(), places()],
                ..Inner::default()
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Flows that call this port are told after so long.
    pub(super) fn sync_port_after(&self, port: u16, after: Option<Duration>) {
        self.inner().sync_after.insert(port, after);
    }

    /// A program makes or changes a flow; what went for it.
    pub(super) fn make(&self, record: &Record) -> Option<(Place, Vec<(Place, Record)>)> {
        let mut inner = self.inner();
        let gone = inner.clashes(record);
        for (place, _) in &gone {
            inner.remove(*place);
        }
        let place = inner.free(record)?;
        inner.insert(place, *record);
        Some((place, gone))
    }

    /// A program, or the sweep, removes a flow.
    pub(super) fn unmake(&self, place: Place) -> Option<Record> {
        self.inner().remove(place)
    }

    /// A program changes a flow.
    pub(super) fn change(&self, place: Place, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.inner().slot(place) {
            change(record);
        }
    }

    /// All flows, the unproved ones, too.
    pub(super) fn all(&self) -> Vec<(Place, Record)> {
        let inner = self.inner();
        let mut all = Vec::new();
        for v6 in [false, true] {
            for (at, record) in (0..).zip(&inner.places[usize::from(v6)]) {
                all.extend(record.map(|record| (Place { v6, at }, record)));
            }
        }
        all
    }

    /// Where the flow with this forward key is.
    pub(super) fn find(&self, key: &FlowKey) -> Option<Place> {
        let mut inner = self.inner();
        let place = *inner.by_key.get(key)?;
        inner
            .slot(place)
            .is_some_and(|record| record.key == *key)
            .then_some(place)
    }

    pub(super) fn written(&self) -> u64 {
        self.inner().written
    }

    pub(super) fn floor(&self) -> u64 {
        self.inner().floor
    }
}

impl Inner {
    fn slot(&mut self, place: Place) -> Option<&mut Record> {
        self.places[usize::from(place.v6)]
            .get_mut(place.at as usize)?
            .as_mut()
    }

    fn insert(&mut self, place: Place, record: Record) {
        self.by_key.insert(record.key, place);
        self.by_key.insert(record.reply_key(), place);
        self.places[usize::from(place.v6)][place.at as usize] = Some(record);
    }

    fn remove(&mut self, place: Place) -> Option<Record> {
        let record = self.places[usize::from(place.v6)][place.at as usize].take()?;
        self.by_key.remove(&record.key);
        self.by_key.remove(&record.reply_key());
        Some(record)
    }

    /// Flows with one of the keys.
    fn clashes(&self, record: &Record) -> Vec<(Place, Record)> {
        let mut places: Vec<Place> = [record.key, record.reply_key()]
            .iter()
            .filter_map(|key| self.by_key.get(key).copied())
            .collect();
        places.dedup();
        let read = |place: Place| self.places[usize::from(place.v6)][place.at as usize];
        places
            .into_iter()
            .filter_map(|place| Some((place, read(place)?)))
            .collect()
    }

    /// One of sixteen places of two buckets.
    fn free(&self, record: &Record) -> Option<Place> {
        let v6 = record.is_v6();
        let places = &self.places[usize::from(v6)];
        let buckets = places.len() / 16;
        let hash = usize::try_from(record.key.hash([7, 8]) >> 1).unwrap();
        [hash % buckets, (hash >> 20) % buckets]
            .into_iter()
            .flat_map(|bucket| bucket * 16..bucket * 16 + 16)
            .find(|at| places[*at].is_none())
            .map(|at| Place {
                v6,
                at: u32::try_from(at).unwrap(),
            })
    }
}

impl Table for PlainTable {
    fn places(&self, v6: bool) -> u32 {
        u32::try_from(self.inner().places[usize::from(v6)].len()).unwrap()
    }

    fn read(&self, place: Place) -> Option<Record> {
        self.inner().slot(place).copied()
    }

    fn sync_after(&self, place: Place) -> Option<Duration> {
        let mut inner = self.inner();
        let port = u16::from_be(inner.slot(place)?.key.dport);
        inner
            .sync_after
            .get(&port)
            .copied()
            .unwrap_or(Some(Duration::ZERO))
    }

    fn forward_places(&self, buckets: Range<u32>) -> impl Iterator<Item = Place> {
        let inner = self.inner();
        let four = u32::try_from(inner.places[0].len()).unwrap() / 16;
        let mut places = Vec::new();
        for bucket in buckets {
            let (v6, base) = if bucket < four {
                (false, bucket * 16)
            } else {
                (true, (bucket - four) * 16)
            };
            for at in base..base + 16 {
                if inner.places[usize::from(v6)][at as usize].is_some() {
                    places.push(Place { v6, at });
                }
            }
        }
        places.into_iter()
    }

    fn put(&self, record: &Record, _now_ns: u64) -> Result<Put, Refused> {
        let mut inner = self.inner();
        let clashes = inner.clashes(record);
        if let [(place, here)] = clashes[..]
            && here.incarnation == record.incarnation
            && here.key == record.key
            && here.reply_key() == record.reply_key()
        {
            inner.written += 1;
            inner.insert(place, *record);
            return Ok(Put {
                place,
                displaced: [None; 2],
                fresh: false,
            });
        }
        for (_, here) in &clashes {
            let order = |r: &Record| (r.incarnation & ((1 << 56) - 1), r.incarnation >> 56);
            match (here.coarse(), record.coarse()) {
                (None, _) | (Some(Coarse::Closing), Some(Coarse::Established)) => {}
                (Some(Coarse::Established), Some(Coarse::Closing)) => return Err(Refused::LiveHere),
                _ if order(here) > order(record) => return Err(Refused::Older),
                _ => {}
            }
        }
        for (place, _) in &clashes {
            inner.remove(*place);
        }
        let Some(place) = inner.free(record) else {
            for (place, here) in clashes {
                inner.insert(place, here);
            }
            return Err(Refused::Full);
        };
        inner.written += 1;
        inner.insert(place, *record);
        let mut displaced = [None; 2];
        for (slot, gone) in displaced.iter_mut().zip(clashes) {
            *slot = Some(gone);
        }
        Ok(Put {
            place,
            displaced,
            fresh: true,
        })
    }

    fn end(&self, key: &FlowKey, incarnation: u64) -> Option<Place> {
        let mut inner = self.inner();
        let place = *inner.by_key.get(key)?;
        let here = *inner.slot(place)?;
        if here.key != *key || here.incarnation != incarnation {
            return None;
        }
        inner.written += 1;
        inner.remove(place)?;
        Some(place)
    }

    fn set_floor(&self, now_ns: u64) {
        self.inner().floor = now_ns;
    }
}
