use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use onearm_dataplane_common::maps::{Addr, LOCAL_LEG, LastHop, Leg, LegKey, NeighbourKey, Route};
use onearm_types::GroupId;
use proptest::prelude::*;

use super::{HopKey, LegSpec, Mac, Mirror, Neighbour, NextHops, RouteSpec, Sink, Via};
use crate::error::{Error, Result};
use crate::tables::wide;

fn host(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
}

fn mac(n: u8) -> Mac {
    [2, 0, 0, 0, 0, n]
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(crate) fn leg(id: u8) -> LegSpec {
    LegSpec {
        id,
        ifindex: 10 + u32::from(id),
        vlan: (id > 0).then_some(100),
        mac: mac(id),
        mtu: 1_500,
        addr: None,
        addr6: None,
        link_local: None,
        group: GroupId::FIRST,
        peer_mac: None,
    }
}

/// An entry as a program reads it, in either order of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    mac: Mac,
    ifindex: u32,
    leg: u8,
}

#[derive(Default)]
pub(crate) struct Fake {
    hops: BTreeMap<u32, [u64; 2]>,
    neighbours: HashMap<(Addr, u32), u32>,
    routes: BTreeMap<IpNet, Route>,
    legs: BTreeMap<(u32, u16), Leg>,
    ports: BTreeMap<u8, u32>,
    last_hops: Vec<LastHop>,
    /// Every valid state any entry was seen in.
    seen: Vec<(u32, Way)>,
    writes: usize,
    fail_at: Option<usize>,
}

impl Fake {
    fn way(&self, index: u32) -> Option<Way> {
        let [word0, word1] = self.hops.get(&index)?.map(u64::to_ne_bytes);
        let mac: Mac = *word0.first_chunk().unwrap();
        let ifindex = u32::from_ne_bytes(*word1.first_chunk().unwrap());
        (word1[5] == 1).then_some(Way {
            mac,
            ifindex,
            leg: word1[4],
        })
    }

    fn step(&mut self) -> Result<()> {
        self.writes += 1;
        if self.fail_at == Some(self.writes) {
            let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
            return Err(Error::Map { map: "FAKE", source });
        }
        Ok(())
    }
}

impl Sink for Fake {
    fn next_hop_word(&mut self, index: u32, word: usize, value: u64) {
        self.writes += 1;
        self.hops.entry(index).or_default()[word] = value;
        if let Some(way) = self.way(index) {
            self.seen.push((index, way));
        }
    }
    fn set_neighbour(&mut self, key: NeighbourKey, index: u32) -> Result<()> {
        self.step()?;
        self.neighbours.insert((key.addr, key.leg), index);
        Ok(())
    }
    fn remove_neighbour(&mut self, key: NeighbourKey) -> Result<()> {
        self.step()?;
        self.neighbours.remove(&(key.addr, key.leg));
        Ok(())
    }
    fn set_route(&mut self, prefix: IpNet, route: Route) -> Result<()> {
        self.step()?;
        self.routes.insert(prefix, route);
        Ok(())
    }
    fn remove_route(&mut self, prefix: IpNet) -> Result<()> {
        self.step()?;
        self.routes.remove(&prefix);
        Ok(())
    }
    fn set_leg(&mut self, key: LegKey, leg: Leg) -> Result<()> {
        self.step()?;
        self.legs.insert((key.ifindex, key.vlan), leg);
        Ok(())
    }
    fn remove_leg(&mut self, key: LegKey) -> Result<()> {
        self.step()?;
        self.legs.remove(&(key.ifindex, key.vlan));
        Ok(())
    }
    fn set_port(&mut self, leg: u8, ifindex: u32) -> Result<()> {
        self.step()?;
        self.ports.insert(leg, ifindex);
        Ok(())
    }
    fn remove_port(&mut self, leg: u8) -> Result<()> {
        self.step()?;
        self.ports.remove(&leg);
        Ok(())
    }
    fn repair_last_hops(&mut self, repaired: &dyn Fn(LastHop) -> LastHop) -> Result<usize> {
        self.step()?;
        let before = self.last_hops.clone();
        for hop in &mut self.last_hops {
            *hop = repaired(*hop);
        }
        Ok(before.iter().zip(&self.last_hops).filter(|(b, a)| b != a).count())
    }
}

fn neighbours(entries: &[(u8, u8, Option<u8>)]) -> Vec<Neighbour> {
    entries
        .iter()
        .map(|(leg, addr, m)| Neighbour {
            leg: *leg,
            addr: host(*addr),
            mac: m.map(mac),
        })
        .collect()
}

#[test]
fn what_is_set_twice_is_written_once() {
    let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
    let wanted = NextHops {
        neighbours: neighbours(&[(0, 1, Some(1)), (0, 2, None)]),
        routes: vec![
            RouteSpec {
                prefix: net("10.0.0.0/24"),
                via: Via::OnLink { leg: 0 },
                mtu: None,
            },
            RouteSpec {
                prefix: net("0.0.0.0/0"),
                via: Via::Gateway {
                    leg: 0,
                    addr: host(1),
                },
                mtu: None,
            },
            RouteSpec {
                prefix: net("10.0.0.9/32"),
                via: Via::Local,
                mtu: None,
            },
        ],
    };
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    assert!(mirror.set(&wanted, &mut maps).unwrap().writes > 0);
    let writes = maps.writes;
    assert_eq!(mirror.set(&wanted, &mut maps).unwrap().writes, 0);
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    assert_eq!(maps.writes, writes);
    let gateway = wide(host(1));
    assert_eq!(
        maps.routes[&net("0.0.0.0/0")],
        Route {
            gateway,
            leg: 0,
            mtu: 0
        }
    );
    assert_eq!(
        maps.routes[&net("10.0.0.9/32")],
        Route {
            gateway: Addr::NONE,
            leg: LOCAL_LEG,
            mtu: 0
        }
    );
    let index = |addr| maps.neighbours[&(wide(host(addr)), 0)];
    assert_eq!(
        maps.way(index(1)),
        Some(Way {
            mac: mac(1),
            ifindex: 10,
            leg: 0
        })
    );
    assert_eq!(maps.way(index(2)), None);
}

#[test]
fn b67_a_new_mac_of_a_router_is_one_store_for_each_entry_behind_it() {
    let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
    let wanted = |m| NextHops {
        neighbours: neighbours(&[(0, 1, Some(m))]),
        routes: vec![RouteSpec {
            prefix: net("0.0.0.0/0"),
            via: Via::Gateway {
                leg: 0,
                addr: host(1),
            },
            mtu: None,
        }],
    };
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    mirror
        .ids
        .take(&HopKey::Server(IpAddr::V4(Ipv4Addr::new(172, 16, 0, 1))));
    mirror.set(&wanted(1), &mut maps).unwrap();
    assert_eq!(
        mirror.set(&wanted(7), &mut maps).unwrap().writes,
        2,
        "the router and the server behind it"
    );
}

#[test]
fn b130_a_leg_made_anew_moves_its_next_hops_to_the_new_index() {
    let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
    mirror.set_legs(&[leg(0), leg(1)], &mut maps).unwrap();
    mirror
        .set(
            &NextHops {
                neighbours: neighbours(&[(1, 1, Some(1))]),
                routes: vec![],
            },
            &mut maps,
        )
        .unwrap();
    let index = maps.neighbours[&(wide(host(1)), 1)];
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    assert_eq!(maps.way(index), None);
    assert_eq!((maps.ports.get(&1), maps.legs.len()), (None, 1));
    let anew = LegSpec {
        ifindex: 99,
        ..leg(1)
    };
    mirror.set_legs(&[leg(0), anew], &mut maps).unwrap();
    assert_eq!(
        maps.way(index),
        Some(Way {
            mac: mac(1),
            ifindex: 99,
            leg: 1
        })
    );
    assert_eq!(
        maps.legs.keys().copied().collect::<Vec<_>>(),
        [(10, 0), (99, 100)]
    );
    assert_eq!(maps.ports[&1], 99);
}

fn last_hop(m: u8, ifindex: u32, leg: u8) -> LastHop {
    LastHop {
        mac: mac(m),
        vlan: 0,
        ifindex,
        leg: u16::from(leg),
        mtu: 1_500,
    }
}

#[test]
fn b67_clients_behind_a_router_follow_its_new_mac() {
    let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
    let wanted = |entries: &[(u8, u8, Option<u8>)]| NextHops {
        neighbours: neighbours(entries),
        routes: vec![],
    };
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    mirror
        .set(
            &wanted(&[(0, 1, Some(1)), (0, 2, Some(2)), (0, 3, Some(2))]),
            &mut maps,
        )
        .unwrap();
    maps.last_hops = vec![
        last_hop(1, 10, 0),
        last_hop(2, 10, 0),
        last_hop(1, 10, 1),
        last_hop(9, 10, 0),
    ];
    // Router 1 has moved; address 3 has left the host that address 2 is still on.
    mirror
        .set(
            &wanted(&[(0, 1, Some(7)), (0, 2, Some(2)), (0, 3, Some(8))]),
            &mut maps,
        )
        .unwrap();
    assert_eq!(
        maps.last_hops,
        [
            last_hop(7, 10, 0),
            last_hop(2, 10, 0),
            last_hop(1, 10, 1),
            last_hop(9, 10, 0)
        ]
    );
    // Not resolved for a while, or not known: it moves when it has another MAC.
    for gone in [vec![(0, 1, None)], vec![]] {
        let before = maps.last_hops.clone();
        mirror.set(&wanted(&gone), &mut maps).unwrap();
        assert_eq!(maps.last_hops, before);
    }
    mirror.set(&wanted(&[(0, 1, Some(6))]), &mut maps).unwrap();
    assert_eq!(maps.last_hops[0], last_hop(6, 10, 0));
}

#[test]
fn b130_clients_follow_a_leg_that_was_made_anew_also_after_a_failure() {
    let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    maps.last_hops = vec![last_hop(1, 10, 0), last_hop(1, 99, 3)];
    mirror.set_legs(&[], &mut maps).unwrap();
    let anew = LegSpec {
        ifindex: 55,
        ..leg(0)
    };
    maps.writes = 0;
    maps.fail_at = Some(3);
    assert!(mirror.set_legs(&[anew], &mut maps).is_err());
    mirror.set_legs(&[anew], &mut maps).unwrap();
    assert_eq!(maps.last_hops, [last_hop(1, 55, 0), last_hop(1, 99, 3)]);
}

#[test]
fn b137_packets_are_as_long_as_leg_and_route_say_also_after_a_change() {
    let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
    let mtu = |maps: &Fake, index: u32| {
        u16::from_ne_bytes(maps.hops[&index][1].to_ne_bytes()[6..].try_into().unwrap())
    };
    let far = IpAddr::V4(Ipv4Addr::new(172, 16, 0, 1));
    let server = mirror.ids.take(&HopKey::Server(far)).unwrap();
    let wanted = |narrowest| NextHops {
        neighbours: neighbours(&[(0, 1, Some(1))]),
        routes: vec![RouteSpec {
            prefix: net("172.16.0.0/16"),
            via: Via::Gateway {
                leg: 0,
                addr: host(1),
            },
            mtu: narrowest,
        }],
    };
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    mirror.set(&wanted(Some(1_400)), &mut maps).unwrap();
    maps.last_hops = vec![last_hop(1, 10, 0)];
    let router = maps.neighbours[&(wide(host(1)), 0)];
    assert_eq!((mtu(&maps, server), mtu(&maps, router)), (1_400, 1_500));
    assert_eq!(maps.routes[&net("172.16.0.0/16")].mtu, 1_400);
    let larger = LegSpec {
        mtu: 70_000,
        ..leg(0)
    };
    mirror.set_legs(&[larger], &mut maps).unwrap();
    assert_eq!((mtu(&maps, server), mtu(&maps, router)), (1_400, u16::MAX));
    assert_eq!(maps.legs[&(10, 0)].mtu, u16::MAX);
    assert_eq!(maps.last_hops[0].mtu, u16::MAX);
    mirror.set(&wanted(Some(90_000)), &mut maps).unwrap();
    assert_eq!(mtu(&maps, server), u16::MAX);
    let smaller = LegSpec { mtu: 1_280, ..leg(0) };
    mirror.set_legs(&[smaller], &mut maps).unwrap();
    mirror.set(&wanted(None), &mut maps).unwrap();
    assert_eq!((mtu(&maps, server), mtu(&maps, router)), (1_280, 1_280));
    assert_eq!(maps.routes[&net("172.16.0.0/16")].mtu, 0);
}

#[test]
fn a_server_that_is_no_longer_configured_keeps_its_way_while_flows_may_use_it() {
    let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
    let wanted = |m| NextHops {
        neighbours: neighbours(&[(0, 5, Some(m))]),
        routes: vec![RouteSpec {
            prefix: net("10.0.0.0/24"),
            via: Via::OnLink { leg: 0 },
            mtu: None,
        }],
    };
    mirror.set_legs(&[leg(0)], &mut maps).unwrap();
    let index = mirror.ids.take(&HopKey::Server(host(5))).unwrap();
    mirror.set(&wanted(5), &mut maps).unwrap();
    mirror.ids.retain(|key| !matches!(key, HopKey::Server(_)));
    mirror.set(&wanted(6), &mut maps).unwrap();
    assert_eq!(maps.way(index).map(|w| w.mac), Some(mac(6)));
    mirror.ids.reclaim(&crate::identity::IndexSet::new());
    mirror.write(&mut maps).unwrap();
    assert_eq!(maps.way(index), None);
}

fn snapshot() -> impl Strategy<Value = (Vec<LegSpec>, NextHops)> {
    let legs = prop::collection::btree_map(0_u8..3, (1_u32..4, prop::option::of(1_u16..3)), 0..3);
    let neighbours = prop::collection::btree_map((0_u8..3, 1_u8..6), prop::option::of(1_u8..4), 0..8);
    let via = prop_oneof![
        (0_u8..3).prop_map(|leg| Via::OnLink { leg }),
        (0_u8..3, 1_u8..6).prop_map(|(leg, n)| Via::Gateway { leg, addr: host(n) }),
        Just(Via::Local),
    ];
    let routes = prop::collection::btree_map((0_u8..16, 26_u8..33), via, 0..6);
    (legs, neighbours, routes).prop_map(|(legs, neighbours, routes)| {
        let legs = legs.into_iter().map(|(id, (ifindex, vlan))| LegSpec {
            ifindex: ifindex * 10 + u32::from(id),
            vlan,
            ..leg(id)
        });
        let neighbours = neighbours
            .into_iter()
            .map(|((leg, n), m)| Neighbour {
                leg,
                addr: host(n),
                mac: m.map(mac),
            })
            .collect();
        let routes: BTreeMap<IpNet, Via> = (routes.into_iter())
            .map(|((n, len), via)| (IpNet::new(host(n), len).unwrap().trunc(), via))
            .collect();
        let routes = routes
            .into_iter()
            .map(|(prefix, via)| RouteSpec {
                prefix,
                via,
                mtu: None,
            })
            .collect();
        (legs.collect(), NextHops { neighbours, routes })
    })
}

/// Where a packet for a server goes, straight from the snapshot.
fn naive(legs: &[LegSpec], hops: &NextHops, server: IpAddr) -> Option<Way> {
    let route = hops
        .routes
        .iter()
        .filter(|r| r.prefix.contains(&server))
        .max_by_key(|r| r.prefix.prefix_len())?;
    let (leg, addr) = match route.via {
        Via::OnLink { leg } => (leg, server),
        Via::Gateway { leg, addr } => (leg, addr),
        Via::Local => return None,
    };
    let mac = hops
        .neighbours
        .iter()
        .find(|n| (n.leg, n.addr) == (leg, addr))?
        .mac?;
    let leg = legs.iter().find(|l| l.id == leg)?;
    Some(Way {
        mac,
        ifindex: leg.ifindex,
        leg: leg.id,
    })
}

proptest! {
    /// Also after failures, and no program ever sees a way that is neither the old one nor the new one.
    #[test]
    fn the_maps_follow_any_sequence_of_snapshots(
        snapshots in prop::collection::vec((snapshot(), prop::option::of(1_usize..20)), 1..8)
    ) {
        let (mut mirror, mut maps) = (Mirror::new(), Fake::default());
        let servers: Vec<IpAddr> = (1..10).map(host).collect();
        let indexes: Vec<u32> =
            servers.iter().map(|s| mirror.ids.take(&HopKey::Server(*s)).unwrap()).collect();
        for ((legs, hops), fail) in snapshots {
            if fail.is_some() {
                (maps.writes, maps.fail_at) = (0, fail);
                if mirror.set_legs(&legs, &mut maps).is_ok() {
                    drop(mirror.set(&hops, &mut maps));
                }
                maps.fail_at = None;
            }
            for step in 0..2 {
                let before: BTreeMap<u32, Option<Way>> = maps.hops.keys().map(|i| (*i, maps.way(*i))).collect();
                maps.seen.clear();
                if step == 0 {
                    mirror.set_legs(&legs, &mut maps).unwrap();
                } else {
                    mirror.set(&hops, &mut maps).unwrap();
                }
                for (index, way) in &maps.seen {
                    let old = before.get(index).copied().flatten();
                    prop_assert!(Some(*way) == maps.way(*index) || Some(*way) == old, "{:?} in {}", way, index);
                }
            }
            for (at, server) in servers.iter().enumerate() {
                prop_assert_eq!(maps.way(indexes[at]), naive(&legs, &hops, *server), "server {}", server);
            }
            for neighbour in &hops.neighbours {
                let key = (wide(neighbour.addr), u32::from(neighbour.leg));
                let leg = legs.iter().find(|l| l.id == neighbour.leg);
                let want = leg.zip(neighbour.mac).map(|(l, mac)| Way { mac, ifindex: l.ifindex, leg: l.id });
                prop_assert_eq!(maps.way(maps.neighbours[&key]), want);
            }
            prop_assert_eq!(maps.neighbours.len(), hops.neighbours.len());
            prop_assert_eq!(maps.routes.len(), hops.routes.len());
            prop_assert_eq!(maps.ports.len(), legs.len());
        }
    }
}
