#![expect(
    clippy::many_single_char_names,
    reason = "memory, geometry, forward, reply, number"
)]
#![expect(unsafe_code, reason = "the memory under test")]

use super::{
    line::{lock, overflow},
    *,
};
use crate::{
    addr::{Addr, Addr4},
    flow::{State, flags, seen},
};
use std::{
    boxed::Box,
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    vec::Vec,
};

/// A table of one family: the buckets of the other are not there.
struct Memory<A: Address>(*mut Bucket<A>, u32);

// SAFETY: all access goes through atomics and whole-field volatile operations, as in production.
unsafe impl<A: Address> Send for Memory<A> {}
// SAFETY: as above.
unsafe impl<A: Address> Sync for Memory<A> {}

impl<A: Address> Memory<A> {
    fn new(buckets: u32) -> Self {
        let boxed = std::vec![Bucket::<A>::default(); buckets as usize].into_boxed_slice();
        Self(Box::into_raw(boxed).cast(), buckets)
    }
    fn geometry(&self) -> Geometry {
        Geometry {
            key: [7, 9],
            buckets: self.1,
        }
    }
    fn used(&self) -> u32 {
        (0..self.1)
            .map(|b| taken_ways::<A, Self>(self, b).unwrap().count_ones())
            .sum()
    }
    fn overflow(&self) -> u64 {
        (0..self.1).map(|b| overflow(self.bucket::<A>(b).unwrap())).sum()
    }
}

impl<A: Address> Drop for Memory<A> {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw in `new`.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(self.0, self.1 as usize)) });
    }
}

// SAFETY: pointers into the boxed slice; std atomics.
unsafe impl<F: Address> FlowMemory for Memory<F> {
    const MORTAL: bool = false;

    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>> {
        // SAFETY: in bounds, and of the same family.
        (index < self.1 && A::V6 == F::V6).then(|| unsafe { self.0.add(index as usize) }.cast())
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

/// An address that either family's table can hold.
fn addr(n: u32) -> Addr {
    Addr::v4(n)
}

fn pair(n: u32, port: u16) -> (FlowEntry, FlowEntry) {
    let forward = FlowEntry {
        saddr: addr(n),
        daddr: addr(1),
        sport: 2,
        dport: 80,
        proto: 6,
        own: seen::OPENED,
        new_saddr: addr(3),
        new_daddr: addr(4),
        new_sport: port,
        new_dport: 80,
        incarnation: u64::from(n) + 1,
        ..FlowEntry::default()
    };
    let key = forward.reply_key();
    let reply = FlowEntry {
        saddr: key.saddr,
        daddr: key.daddr,
        sport: key.sport,
        dport: key.dport,
        proto: 6,
        flags: flags::REPLY,
        other: seen::OPENED,
        new_saddr: addr(1),
        new_daddr: addr(n),
        new_sport: 80,
        new_dport: 2,
        ..FlowEntry::default()
    };
    (forward, reply)
}

fn a_pair_is_found_from_both_sides_and_gone_from_both_after_removal_in<A: Address>() {
    let m = Memory::<A>::new(4);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    let at = insert_pair::<A, _>(&m, &g, 1, &f, &r).unwrap();
    let forward = find(&m, &g, &f.key().narrow::<A>()).unwrap();
    let reply = find(&m, &g, &r.key().narrow::<A>()).unwrap();
    assert_eq!(forward.at, at);
    assert_eq!(reply.entry().partner(), at);
    assert_eq!(forward.entry().partner(), reply.at);
    assert_eq!(
        forward.read().map(|entry| entry.wide()),
        Some(FlowEntry {
            partner: reply.at,
            ..f
        })
    );
    assert_eq!(
        remove::<A, _>(&m, &g, reply.at, f.incarnation + 1),
        None,
        "another incarnation is not removed"
    );
    let ended = remove::<A, _>(&m, &g, reply.at, f.incarnation).expect("it was there");
    assert_eq!(
        (ended.state, ended.server, ended.counted),
        (State::HalfOpen, f.server, None)
    );
    assert_eq!(
        remove::<A, _>(&m, &g, at, f.incarnation),
        None,
        "only one caller removes a flow"
    );
    assert!(!forward.intact() && !reply.intact());
    assert!(find(&m, &g, &f.key().narrow::<A>()).is_none() && find(&m, &g, &r.key().narrow::<A>()).is_none());
    assert_eq!((m.used(), m.overflow()), (0, 0));
}

fn b58_a_reply_tuple_in_use_is_refused_and_leaves_nothing_behind_in<A: Address>() {
    let m = Memory::<A>::new(4);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    insert_pair::<A, _>(&m, &g, 1, &f, &r).unwrap();
    let (f2, r2) = pair(6, 99);
    assert_eq!(
        insert_pair::<A, _>(&m, &g, 1, &f2, &r2),
        Err(NotInserted::ReplyTaken)
    );
    let (f3, r3) = pair(5, 100);
    assert_eq!(
        insert_pair::<A, _>(&m, &g, 1, &f3, &r3),
        Err(NotInserted::ForwardExists)
    );
    assert_eq!(m.used(), 2);
}

fn a_locked_bucket_refuses_new_flows_but_not_lookups_until_the_lock_is_broken_in<A: Address>() {
    let m = Memory::<A>::new(1);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    insert_pair::<A, _>(&m, &g, 1, &f, &r).unwrap();
    let owner = crate::flow::lock::USER | 0x1267;
    assert!(lock(&m, m.bucket::<A>(0).unwrap(), owner));
    let (f2, r2) = pair(6, 98);
    assert_eq!(
        insert_pair::<A, _>(&m, &g, 1, &f2, &r2),
        Err(NotInserted::Contended)
    );
    assert!(find(&m, &g, &f.key().narrow::<A>()).is_some());
    assert_eq!(recover::<A, _>(&m, &g).locks, 1);
    assert_eq!(recover::<A, _>(&m, &g), Recovered::default());
    assert!(insert_pair::<A, _>(&m, &g, 1, &f2, &r2).is_ok());
}

fn a_pending_entry_is_invisible_to_readers_and_taken_for_inserters_in<A: Address>() {
    let m = Memory::<A>::new(4);
    let g = m.geometry();
    let (f, r) = pair(5, 99);
    let reserved = reserve_reply::<A, _>(&m, &g, 1, &r).unwrap();
    assert!(find(&m, &g, &r.key().narrow::<A>()).is_none());
    assert_eq!(
        reserve_reply::<A, _>(&m, &g, 2, &r).map(|r| r.at),
        Err(NotInserted::ReplyTaken)
    );
    release(&m, reserved);
    assert!(insert_pair::<A, _>(&m, &g, 2, &f, &r).is_ok());
}

fn an_affinity_that_is_there_is_not_made_again_in<A: Address>() {
    let m = Memory::<A>::new(4);
    let g = m.geometry();
    let (mut flow, _) = pair(5, 99);
    let mut scan = Scan::default();
    let made = insert_single::<A, _>(&m, &g, 1, &flow, 4, &mut scan);
    assert_eq!(made, Ok(()));
    flow.incarnation += 1;
    let made = insert_single::<A, _>(&m, &g, 1, &flow, 4, &mut scan);
    assert_eq!(made, Err(NotInserted::ForwardExists));
    assert_eq!(m.used(), 1);
}

/// A flow of which no other number has either key.
fn nth(n: u32) -> (FlowEntry, FlowEntry) {
    let (mut forward, mut reply) = pair(n, n as u16);
    forward.new_saddr = addr(n | 1 << 31);
    reply.daddr = forward.new_saddr;
    (forward, reply)
}

/// Flows made until one was refused, with their locations.
fn filled<A: Address>(m: &Memory<A>, g: &Geometry) -> Vec<(u32, FlowEntry)> {
    let mut inserted = Vec::new();
    for n in 0.. {
        let (forward, reply) = nth(n);
        match insert_pair::<A, _>(m, g, 1, &forward, &reply) {
            Ok(at) => inserted.push((at, forward)),
            Err(refusal) => {
                assert_eq!(refusal, NotInserted::Full);
                break;
            }
        }
    }
    inserted
}

/// More than a size made for `limits.max_flows` needs, whatever the size.
fn the_first_refusal_comes_above_86_percent_and_a_full_table_keeps_every_flow_in<A: Address>() {
    for buckets in [146, 1_454, 4_096, 7_353, 14_535, 20_011] {
        let m = Memory::<A>::new(buckets);
        let g = m.geometry();
        let inserted = filled(&m, &g);
        let load = f64::from(m.used()) / f64::from(buckets * 16);
        assert!(load > 0.86, "first refusal of {buckets} buckets at {load}");
        for (at, f) in &inserted {
            assert_eq!(find(&m, &g, &f.key().narrow::<A>()).map(|f| f.at), Some(*at));
            assert!(find(&m, &g, &f.reply_key().narrow::<A>()).is_some());
        }
        for (at, f) in &inserted {
            assert!(remove::<A, _>(&m, &g, *at, f.incarnation).is_some());
        }
        assert_eq!((m.used(), m.overflow()), (0, 0));
    }
}

/// Prints what a flow takes when the first one is refused, in tables for 10,000 flows to 16 million.
#[test]
#[ignore = "release build, 3 GB"]
fn tables_of_all_sizes_take_at_most_160_bytes_a_flow_and_320_of_ipv6() {
    fn take<A: Address>(buckets: u32, most: u64) {
        let m = Memory::<A>::new(buckets);
        let flows = filled(&m, &m.geometry()).len();
        let bytes = u64::from(buckets) * size_of::<Bucket<A>>() as u64;
        let each = bytes / flows as u64 + 1;
        let load = f64::from(m.used()) / f64::from(buckets) / 16.0;
        std::println!(
            "{buckets} buckets, {flows} flows, first refusal at {load:.4}, less than {each} bytes a flow"
        );
        assert!(load > 0.86 && each <= most);
    }
    for buckets in [
        1_454, 5_003, 14_535, 65_536, 145_349, 290_699, 581_396, 1_048_576, 2_325_582,
    ] {
        take::<Addr4>(buckets, 160);
    }
    for buckets in [1_454, 5_003, 14_535, 65_536, 145_349, 290_699, 581_396] {
        take::<Addr>(buckets, 320);
    }
}

/// New flows without room, of so many while flows come and go at a load, old ones ending at random.
fn refused_at<A: Address>(buckets: u32, percent: u32, rounds: u32) -> u32 {
    let m = Memory::<A>::new(buckets);
    let g = m.geometry();
    let most = (buckets * 8 * percent / 100) as usize;
    let mut live: Vec<(u32, u64)> = Vec::new();
    let (mut refused, mut random) = (0, 1_u64);
    for n in 0..u32::MAX {
        if live.len() >= most {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (at, incarnation) = live.swap_remove((random >> 33) as usize % live.len());
            assert!(remove::<A, _>(&m, &g, at, incarnation).is_some());
        } else if n as usize > most * 6 + rounds as usize {
            break;
        }
        let (f, r) = nth(n);
        let made = insert_pair::<A, _>(&m, &g, 1, &f, &r);
        match made {
            Ok(at) => live.push((at, f.incarnation)),
            Err(_) if n as usize > most * 6 => refused += 1,
            Err(_) => {}
        }
        if n as usize > most * 6 + rounds as usize {
            break;
        }
    }
    refused
}

/// Prints how many of a million new flows find no room at which load.
#[test]
#[ignore = "release build, a minute"]
fn flows_that_come_and_go_find_room_up_to_a_load() {
    for percent in [76, 78, 80, 81, 82, 83, 84, 85, 86] {
        let refused = refused_at::<Addr4>(14_535, percent, 1_000_000);
        std::println!("{percent} %: {refused} of 1,000,000");
    }
}

/// As many new flows as old ones end: refusals are counted, nothing is lost.
fn a_table_in_which_flows_come_and_go_at_its_limit_refuses_few_in<A: Address>() {
    let m = Memory::<A>::new(1_454);
    let g = m.geometry();
    let mut live: Vec<(u32, FlowEntry)> = Vec::new();
    let (mut refused, mut random) = (0, 1_u64);
    for n in 0..60_000_u32 {
        if live.len() >= 10_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (at, f) = live.swap_remove((random >> 33) as usize % live.len());
            assert!(remove::<A, _>(&m, &g, at, f.incarnation).is_some());
        }
        let (f, r) = nth(n);
        match insert_pair::<A, _>(&m, &g, 1, &f, &r) {
            Ok(at) => live.push((at, f)),
            Err(_) => refused += 1,
        }
    }
    assert!(refused < 125, "{refused} of 50,000");
    for (at, f) in &live {
        assert_eq!(find(&m, &g, &f.key().narrow::<A>()).map(|f| f.at), Some(*at));
        assert!(remove::<A, _>(&m, &g, *at, f.incarnation).is_some());
    }
    assert_eq!((m.used(), m.overflow()), (0, 0));
}

fn half_full_almost_every_flow_is_in_its_first_bucket_in<A: Address>() {
    let m = Memory::<A>::new(4096);
    let g = m.geometry();
    for n in 0..4096 * 4 {
        let (f, r) = nth(n);
        insert_pair::<A, _>(&m, &g, 1, &f, &r).unwrap();
    }
    assert!(
        m.overflow() < 4096 * 8 / 16,
        "{} of {} overflow",
        m.overflow(),
        m.used()
    );
}

fn b54_racing_inserters_and_removers_never_leave_two_flows_for_one_key_in<A: Address>() {
    let m = Memory::<A>::new(2);
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
                        if insert_pair::<A, _>(m, &g, t + 1, &f, &r).is_ok() {
                            mine.insert(n, f.incarnation);
                        }
                        if round % 3 == 0
                            && let Some(found) = find(m, &g, &f.key().narrow::<A>())
                            && remove::<A, _>(m, &g, found.at, found.incarnation).is_some()
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
        if let Some(found) = find(&m, &g, &f.key().narrow::<A>()) {
            assert!(remove::<A, _>(&m, &g, found.at, found.incarnation).is_some());
        }
        assert!(
            find(&m, &g, &f.key().narrow::<A>()).is_none(),
            "a second entry for one key"
        );
    }
    assert_eq!((m.used(), m.overflow()), (0, 0));
}

/// Every rule for both families.
macro_rules! both {
    ($($name:ident / $rule:ident,)+) => {
        $(
            #[test]
            fn $name() {
                $rule::<Addr4>();
                $rule::<Addr>();
            }
        )+
    };
}

both! {
    a_pair_is_found_from_both_sides_and_gone_from_both_after_removal / a_pair_is_found_from_both_sides_and_gone_from_both_after_removal_in,
    b58_a_reply_tuple_in_use_is_refused_and_leaves_nothing_behind / b58_a_reply_tuple_in_use_is_refused_and_leaves_nothing_behind_in,
    an_affinity_that_is_there_is_not_made_again / an_affinity_that_is_there_is_not_made_again_in,
    a_locked_bucket_refuses_new_flows_but_not_lookups_until_the_lock_is_broken / a_locked_bucket_refuses_new_flows_but_not_lookups_until_the_lock_is_broken_in,
    a_pending_entry_is_invisible_to_readers_and_taken_for_inserters / a_pending_entry_is_invisible_to_readers_and_taken_for_inserters_in,
    the_first_refusal_comes_above_86_percent_and_a_full_table_keeps_every_flow / the_first_refusal_comes_above_86_percent_and_a_full_table_keeps_every_flow_in,
    a_table_in_which_flows_come_and_go_at_its_limit_refuses_few / a_table_in_which_flows_come_and_go_at_its_limit_refuses_few_in,
    half_full_almost_every_flow_is_in_its_first_bucket / half_full_almost_every_flow_is_in_its_first_bucket_in,
    b54_racing_inserters_and_removers_never_leave_two_flows_for_one_key / b54_racing_inserters_and_removers_never_leave_two_flows_for_one_key_in,
}
