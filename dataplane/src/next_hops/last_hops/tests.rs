use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use onearm_dataplane_common::maps::{LAST_HOP_ALLOWANCE, LastHop};
use proptest::prelude::*;

use super::{LastHops, Sink, WAIT, hop, key};
use crate::error::{Error, Result};
use crate::identity::IndexSet;

#[expect(clippy::disallowed_methods, reason = "any time will do")]
fn start() -> Instant {
    Instant::now()
}

/// Maps in memory, and a program that uses them.
#[derive(Default)]
pub(crate) struct Fake {
    hops: BTreeMap<u32, LastHop>,
    index: BTreeMap<super::LastHopKey, u32>,
    free: VecDeque<u32>,
}

impl Sink for Fake {
    fn last_hop(&self, index: u32) -> LastHop {
        self.hops.get(&index).copied().unwrap_or_default()
    }
    fn set_last_hop(&mut self, index: u32, hop: LastHop) {
        self.hops.insert(index, hop);
    }
    fn last_hop_indexes(&self) -> Result<Vec<(LastHop, u32)>> {
        Ok(self.index.iter().map(|(k, index)| (hop(*k), *index)).collect())
    }
    fn insert_last_hop(&mut self, hop: LastHop, index: u32) -> Result<()> {
        self.index.insert(key(&hop), index);
        Ok(())
    }
    fn remove_last_hop(&mut self, hop: LastHop) -> Result<()> {
        self.index.remove(&key(&hop));
        Ok(())
    }
    fn offer_last_hop(&mut self, index: u32) -> Result<()> {
        if self.free.len() == LAST_HOP_ALLOWANCE as usize {
            let source = std::io::Error::from_raw_os_error(libc::E2BIG);
            return Err(Error::Map { map: "FAKE", source });
        }
        self.free.push_back(index);
        Ok(())
    }
}

impl Fake {
    /// A packet of a new flow came by a neighbour: the index its flow names.
    fn learn(&mut self, by: LastHop) -> Option<u32> {
        if let Some(index) = self.index.get(&key(&by)) {
            return Some(*index);
        }
        let index = self.free.pop_front()?;
        self.hops.insert(index, by);
        self.index.insert(key(&by), index);
        Some(index)
    }
}

fn of(n: u8) -> LastHop {
    LastHop {
        mac: [2, 0, 0, 0, 0, n],
        vlan: 0,
        ifindex: 3,
        leg: 0,
        mtu: 1_500,
    }
}

fn refused(n: u8) -> LastHop {
    LastHop { ifindex: 0, ..of(n) }
}

fn in_use(indexes: &[u32]) -> IndexSet {
    let mut set = IndexSet::new();
    for index in indexes {
        set.insert(u16::try_from(*index).unwrap());
    }
    set
}

#[test]
fn resolved_neighbours_are_known_before_a_packet_comes() {
    let (mut hops, mut maps, now) = (LastHops::new(), Fake::default(), start());
    hops.judge(now, Some(vec![of(1), of(2)]), &mut maps).unwrap();
    let [one, two] = [1, 2].map(|n| maps.learn(of(n)).unwrap());
    assert_eq!((maps.last_hop(one), maps.last_hop(two)), (of(1), of(2)));
    assert_eq!(maps.free.len(), LAST_HOP_ALLOWANCE as usize, "nothing was taken");
}

#[test]
fn a_neighbour_nobody_resolves_is_refused_after_a_while_and_believed_again_when_it_is() {
    let (mut hops, mut maps, now) = (LastHops::new(), Fake::default(), start());
    hops.judge(now, Some(vec![]), &mut maps).unwrap();
    let [one, two] = [1, 2].map(|n| maps.learn(of(n)).unwrap());
    hops.judge(now, None, &mut maps).unwrap();
    hops.judge(now + WAIT / 2, Some(vec![of(2)]), &mut maps).unwrap();
    assert_eq!((maps.last_hop(one), maps.last_hop(two)), (of(1), of(2)));
    hops.judge(now + WAIT, None, &mut maps).unwrap();
    assert_eq!((maps.last_hop(one), maps.last_hop(two)), (refused(1), of(2)));
    assert_eq!(maps.learn(of(1)), Some(one), "and no other index is found for it");
    hops.judge(now + 2 * WAIT, Some(vec![of(1), of(2)]), &mut maps)
        .unwrap();
    assert_eq!(maps.last_hop(one), of(1));
    // Once believed, an entry that the kernel forgets changes nothing for the flows.
    hops.judge(now + 3 * WAIT, Some(vec![]), &mut maps).unwrap();
    hops.judge(now + 9 * WAIT, None, &mut maps).unwrap();
    assert_eq!((maps.last_hop(one), maps.last_hop(two)), (of(1), of(2)));
}

#[test]
fn b153_invented_neighbours_use_up_no_index_for_good() {
    let (mut hops, mut maps, mut now) = (LastHops::new(), Fake::default(), start());
    hops.judge(now, Some(vec![of(1)]), &mut maps).unwrap();
    let mut invented = 0_u32;
    for _ in 0..60 {
        while let Some(hop) = invented_hop(&mut invented, &mut maps) {
            assert!(hop < 65_536);
        }
        now += Duration::from_secs(1);
        hops.judge(now, None, &mut maps).unwrap();
    }
    assert!(maps.learn(of(9)).is_none(), "all are taken");
    for _ in 0..3 {
        hops.reclaim(&in_use(&[]), &mut maps).unwrap();
    }
    hops.judge(now, Some(vec![of(1), of(2)]), &mut maps).unwrap();
    assert!(maps.learn(of(9)).is_some() && maps.learn(of(2)).is_some());
    assert_eq!(maps.index.len(), 3, "two that are resolved, one that is new");
}

fn invented_hop(number: &mut u32, maps: &mut Fake) -> Option<u32> {
    *number += 1;
    let [_, _, m0, m1, m2, m3, m4, m5] = (u64::from(*number) | 6 << 40).to_be_bytes();
    maps.learn(LastHop {
        mac: [m0, m1, m2, m3, m4, m5],
        ..of(0)
    })
}

#[derive(Clone, Debug)]
enum Op {
    /// A flow by a neighbour; true: another CPU learns the same neighbour at the same time.
    Flow(u8, bool),
    End(usize),
    Resolve(Vec<u8>),
    Judge,
    Reclaim,
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0_u8..12, prop::bool::weighted(0.2)).prop_map(|(n, race)| Op::Flow(n, race)),
        3 => any::<usize>().prop_map(Op::End),
        1 => prop::collection::vec(0_u8..12, 0..6).prop_map(Op::Resolve),
        2 => Just(Op::Judge),
        2 => Just(Op::Reclaim),
        1 => Just(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_index_leads_to_the_neighbour_its_flows_came_by_or_nowhere(ops in prop::collection::vec(op(), 1..150)) {
        let (mut hops, mut maps, mut now) = (LastHops::new(), Fake::default(), start());
        let mut flows: Vec<(u32, u8)> = Vec::new();
        hops.judge(now, Some(vec![]), &mut maps).unwrap();
        for op in ops {
            match op {
                Op::Flow(n, race) => {
                    if race && !maps.index.contains_key(&key(&of(n))) {
                        let lost = maps.free.pop_front().unwrap();
                        maps.hops.insert(lost, of(n));
                        flows.push((lost, n));
                    }
                    flows.extend(maps.learn(of(n)).map(|index| (index, n)));
                }
                Op::End(n) => {
                    if !flows.is_empty() {
                        flows.swap_remove(n % flows.len());
                    }
                }
                Op::Resolve(list) => hops.judge(now, Some(list.into_iter().map(of).collect()), &mut maps).unwrap(),
                Op::Judge => hops.judge(now, None, &mut maps).unwrap(),
                Op::Reclaim => {
                    let named: Vec<u32> = flows.iter().map(|(index, _)| *index).collect();
                    hops.reclaim(&in_use(&named), &mut maps).unwrap();
                }
                Op::Wait => now += WAIT,
            }
            for (index, n) in &flows {
                let leads = maps.last_hop(*index);
                prop_assert!(leads == of(*n) || leads == refused(*n), "{leads:?} for {n}");
            }
        }
        // Everything ends: all but what is resolved is free again.
        now += WAIT;
        hops.judge(now, None, &mut maps).unwrap();
        for _ in 0..3 {
            hops.reclaim(&in_use(&[]), &mut maps).unwrap();
        }
        hops.judge(now, None, &mut maps).unwrap();
        prop_assert_eq!(maps.index.len(), hops.resolved.len());
        prop_assert_eq!(hops.retired.len(), 0);
        let out = hops.known.len() + hops.offered.len() + hops.free.len();
        prop_assert_eq!(out, hops.fresh as usize);
    }
}
