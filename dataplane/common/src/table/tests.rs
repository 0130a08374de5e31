#![expect(
    clippy::many_single_char_names,
    reason = "memory, geometry, forward, reply, number"
)]
#![expect(unsafe_code, reason = "the memory under test")]

use super::*;
use crate::flow::{flags, seen};
use std::{
    boxed::Box,
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    vec::Vec,
};

struct Memory(*mut Bucket4, u32);

// SAFETY: all access goes through atomics and whole-field volatile operations, as in production.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(buckets: u32) -> Self {
        let boxed = std::vec![Bucket4::default(); buckets as usize].into_boxed_slice();
        Self(Box::into_raw(boxed).cast(), buckets)
    }
    fn geometry(&self) -> Geometry {
        Geometry {
            key: [7, 9],
            mask: self.1 - 1,
        }
    }
    fn used(&self) -> u32 {
        (0..self.1)
            .map(|b| taken_ways(self, b).unwrap().count_ones())
            .sum()
    }
    fn overflow(&self) -> u64 {
        (0..self.1).map(|b| overflow(self.bucket(b).unwrap())).sum()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw in `new`.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(self.0, self.1 as usize)) });
    }
}

// SAFETY: pointers into the boxed slice; std atomics.
unsafe impl FlowMemory for Memory {
    fn bucket(&self, index: u32) -> Option<*mut Bucket4> {
        // SAFETY: in bounds.
        (index < self.1).then(|| unsafe { self.0.add(index as usize) })
    }
    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64 {
        // SAFETY: an aligned word of a live bucket.
        match unsafe { AtomicU64::from_ptr(word) }.compare_exchange(expected, new, SeqCst, SeqCst) {
            Ok(v) | Err(v) => v,
        }
    }
    unsafe fn add(&self, word: *mut u64, n: u64) {
        // SAFETY: an aligned word of a live bucket.
        unsafe { AtomicU64::from_ptr(word) }.fetch_add(n, SeqCst);
    }
}

fn pair(n: u32, port: u16) -> (FlowEntry4, FlowEntry4) {
    let forward = FlowEntry4 {
        saddr: n,
        daddr: 1,
        sport: 2,
        dport: 80,
        proto: 6,
        own: seen::OPENED,
        new_saddr: 3,
        new_daddr: 4,
        new_sport: port,
        new_dport: 80,
        incarnation: u64::from(n) + 1,
        ..FlowEntry4::default()
    };
    let key = forward.reply_key();
    let reply = FlowEntry4 {
        saddr: key.saddr,
        daddr: key.daddr,
        sport: key.sport,
        dport: key.dport,
        proto: 6,
        flags: flags::REPLY,
        other: seen::OPENED,
        new_saddr: 1,
        new_daddr: n,
        new_sport: 80,
        new_dport: 2,
        ..FlowEntry4::default()
    };
    (forward, reply)
}

#[test]
fn a_pair_is_found_from_both_sides_and_gone_from_both_after_removal() {
    let m = Memory::new(4);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    let at = insert_pair(&m, &g, 1, &f, &r).unwrap();
    let forward = find(&m, &g, &f.key()).unwrap();
    let reply = find(&m, &g, &r.key()).unwrap();
    assert_eq!(forward.at, at);
    assert_eq!(reply.entry().partner(), at);
    assert_eq!(forward.entry().partner(), reply.at);
    assert_eq!(
        forward.read(),
        Some(FlowEntry4 {
            partner: reply.at,
            ..f
        })
    );
    assert_eq!(
        remove(&m, &g, reply.at, f.incarnation + 1),
        None,
        "another incarnation is not removed"
    );
    let ended = remove(&m, &g, reply.at, f.incarnation).expect("it was there");
    assert_eq!(
        (ended.state, ended.server, ended.counted),
        (State::HalfOpen, f.server, None)
    );
    assert_eq!(
        remove(&m, &g, at, f.incarnation),
        None,
        "only one caller removes a flow"
    );
    assert!(!forward.intact() && !reply.intact());
    assert!(find(&m, &g, &f.key()).is_none() && find(&m, &g, &r.key()).is_none());
    assert_eq!((m.used(), m.overflow()), (0, 0));
}

#[test]
fn b58_a_reply_tuple_in_use_is_refused_and_leaves_nothing_behind() {
    let m = Memory::new(4);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    insert_pair(&m, &g, 1, &f, &r).unwrap();
    let (f2, r2) = pair(6, 99);
    assert_eq!(insert_pair(&m, &g, 1, &f2, &r2), Err(NotInserted::ReplyTaken));
    let (f3, r3) = pair(5, 100);
    assert_eq!(insert_pair(&m, &g, 1, &f3, &r3), Err(NotInserted::ForwardExists));
    assert_eq!(m.used(), 2);
}

#[test]
fn a_locked_bucket_refuses_new_flows_but_not_lookups_until_the_lock_is_broken() {
    let m = Memory::new(1);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    insert_pair(&m, &g, 1, &f, &r).unwrap();
    let owner = crate::flow::lock::USER | 0x1267;
    assert!(lock(&m, m.bucket(0).unwrap(), owner));
    let (f2, r2) = pair(6, 98);
    assert_eq!(insert_pair(&m, &g, 1, &f2, &r2), Err(NotInserted::Contended));
    assert!(find(&m, &g, &f.key()).is_some());
    assert!(!break_lock(&m, 0, owner + 1) && break_lock(&m, 0, owner));
    assert!(insert_pair(&m, &g, 1, &f2, &r2).is_ok());
}

#[test]
fn a_pending_entry_is_invisible_to_readers_and_taken_for_inserters() {
    let m = Memory::new(4);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    let reserved = reserve_reply(&m, &g, 1, &r).unwrap();
    assert!(find(&m, &g, &r.key()).is_none());
    assert_eq!(
        reserve_reply(&m, &g, 2, &r).map(|r| r.at),
        Err(NotInserted::ReplyTaken)
    );
    release(&m, reserved);
    assert!(insert_pair(&m, &g, 2, &f, &r).is_ok());
}

#[test]
fn the_first_refusal_comes_above_85_percent_and_a_full_table_keeps_every_flow() {
    let m = Memory::new(4096);
    let g = m.geometry();
    let mut inserted = Vec::new();
    for n in 0.. {
        let (f, r) = pair(n, n as u16);
        let (f, r) = (
            FlowEntry4 {
                new_saddr: n | 1 << 31,
                ..f
            },
            FlowEntry4 {
                daddr: n | 1 << 31,
                ..r
            },
        );
        match insert_pair(&m, &g, 1, &f, &r) {
            Ok(at) => inserted.push((at, f)),
            Err(e) => {
                assert_eq!(e, NotInserted::Full);
                break;
            }
        }
    }
    let load = f64::from(m.used()) / f64::from(4096 * 16);
    assert!(load > 0.85, "first refusal at {load}");
    for (at, f) in &inserted {
        assert_eq!(find(&m, &g, &f.key()).map(|f| f.at), Some(*at));
        assert!(find(&m, &g, &f.reply_key()).is_some());
    }
    for (at, f) in &inserted {
        assert!(remove(&m, &g, *at, f.incarnation).is_some());
    }
    assert_eq!((m.used(), m.overflow()), (0, 0));
}

#[test]
fn half_full_almost_every_flow_is_in_its_first_bucket() {
    let m = Memory::new(4096);
    let g = m.geometry();
    for n in 0..4096 * 4 {
        let (f, r) = pair(n, n as u16);
        let (f, r) = (
            FlowEntry4 {
                new_saddr: n | 1 << 31,
                ..f
            },
            FlowEntry4 {
                daddr: n | 1 << 31,
                ..r
            },
        );
        insert_pair(&m, &g, 1, &f, &r).unwrap();
    }
    assert!(
        m.overflow() < 4096 * 8 / 20,
        "{} of {} overflow",
        m.overflow(),
        m.used()
    );
}

#[test]
fn b54_racing_inserters_and_removers_never_leave_two_flows_for_one_key() {
    let m = Memory::new(2);
    let g = m.geometry();
    let wins = AtomicU64::new(0);
    let live: Vec<HashMap<u32, u64>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let (m, wins) = (&m, &wins);
                s.spawn(move || {
                    let mut mine = HashMap::new();
                    for round in 0..20_000u64 {
                        let n = (round % 7) as u32;
                        let (mut f, r) = pair(n, (n % 5) as u16);
                        f.incarnation = t << 56 | (round + 1);
                        if insert_pair(m, &g, t + 1, &f, &r).is_ok() {
                            mine.insert(n, f.incarnation);
                        }
                        if round % 3 == 0
                            && let Some(found) = find(m, &g, &f.key())
                            && remove(m, &g, found.at, found.incarnation).is_some()
                        {
                            wins.fetch_add(1, SeqCst);
                        }
                    }
                    mine
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(wins.load(SeqCst) > 0 && live.iter().any(|l| !l.is_empty()));
    for n in 0..7 {
        let (f, _) = pair(n, (n % 5) as u16);
        if let Some(found) = find(&m, &g, &f.key()) {
            assert!(remove(&m, &g, found.at, found.incarnation).is_some());
        }
        assert!(find(&m, &g, &f.key()).is_none(), "a second entry for one key");
    }
    assert_eq!((m.used(), m.overflow()), (0, 0));
}
