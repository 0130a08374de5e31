//! What is in the maps, what should be, and the fewest writes from one to the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use onearm_dataplane_common::maps::{
    self, Addr, LastHop, Leg, LegKey, MAX_NEXT_HOPS, MAX_ROUTES, NeighbourKey, NextHop, Route,
};

use super::last_hops::{self, LastHops};
use super::{LegSpec, Mac, NextHops, NextHopsReport, RouteSpec, Via};
use crate::error::Result;
use crate::identity::Identities;
use crate::tables::wide;

/// MACs of neighbours by leg and address.
type Neighbours = BTreeMap<(u8, IpAddr), Option<Mac>>;

/// What an entry of `NEXT_HOPS` leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HopKey {
    /// A server, by whatever way the routes say.
    Server(IpAddr),
    /// A neighbour on a leg.
    Neighbour(u8, IpAddr),
}

/// The maps, as far as next hops need them.
pub(crate) trait Sink {
    /// Writes one 8-byte word of entry `index` of `NEXT_HOPS`.
    fn next_hop_word(&mut self, index: u32, word: usize, value: u64);
    fn set_neighbour(&mut self, key: NeighbourKey, index: u32) -> Result<()>;
    fn remove_neighbour(&mut self, key: NeighbourKey) -> Result<()>;
    fn set_route(&mut self, prefix: IpNet, route: Route) -> Result<()>;
    fn remove_route(&mut self, prefix: IpNet) -> Result<()>;
    fn set_leg(&mut self, key: LegKey, leg: Leg) -> Result<()>;
    fn remove_leg(&mut self, key: LegKey) -> Result<()>;
    fn set_port(&mut self, leg: u8, ifindex: u32) -> Result<()>;
    fn remove_port(&mut self, leg: u8) -> Result<()>;
    /// Replaces every entry of `LAST_HOPS` by what `repaired` makes of it; returns how many changed.
    fn repair_last_hops(&mut self, repaired: &dyn Fn(LastHop) -> LastHop) -> Result<usize>;
}

/// The mirror: what is wanted, and exactly what has been written. A call that fails half-way leaves the two apart, and the
/// next one goes on from there.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) ids: Identities<HopKey>,
    legs: BTreeMap<u8, LegSpec>,
    /// Interface, VLAN and MTU each leg had last.
    legs_known: BTreeMap<u8, (u32, u16, u16)>,
    neighbours: Neighbours,
    /// MAC each address had last, also while it is not resolved.
    macs_known: BTreeMap<(u8, IpAddr), Mac>,
    routes: BTreeMap<IpNet, RouteSpec>,
    /// Prefix lengths that occur in `routes`.
    lengths: BTreeSet<u8>,
    in_hops: BTreeMap<u32, NextHop>,
    in_neighbours: BTreeMap<(u8, IpAddr), u32>,
    in_routes: BTreeMap<IpNet, Route>,
    in_legs: BTreeMap<(u32, u16), Leg>,
    in_ports: BTreeMap<u8, u32>,
    /// What is still to be done to the last hops of clients, in order.
    repairs: Vec<Repair>,
    pub(crate) last_hops: LastHops,
    /// Set when neighbours or legs are others than `last_hops` was told.
    untold: bool,
}

/// A change that flows to clients must follow.
#[derive(Clone, Copy, Debug)]
enum Repair {
    /// A neighbour has another MAC.
    Mac { leg: u8, old: Mac, new: Mac },
    /// A leg has another interface, VLAN or MTU.
    Leg {
        leg: u8,
        ifindex: u32,
        vlan: u16,
        mtu: u16,
    },
}

impl Repair {
    fn apply(self, hop: LastHop) -> LastHop {
        match self {
            Self::Mac { leg, old, new } if hop.leg == u16::from(leg) && hop.mac == old => {
                LastHop { mac: new, ..hop }
            }
            Self::Leg {
                leg,
                ifindex,
                vlan,
                mtu,
            } if hop.leg == u16::from(leg) && hop.ifindex != 0 => LastHop {
                ifindex,
                vlan,
                mtu,
                ..hop
            },
            Self::Mac { .. } | Self::Leg { .. } => hop,
        }
    }
}

/// Entry 0 is never valid, so that an index nobody has set leads nowhere.
const FIRST_HOP: u32 = 1;
/// `MAX_ROUTES` as a count.
const ROUTES: usize = MAX_ROUTES as usize;

impl Mirror {
    pub(crate) fn new() -> Self {
        Self {
            ids: Identities::new(FIRST_HOP, MAX_NEXT_HOPS),
            legs: BTreeMap::new(),
            legs_known: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            macs_known: BTreeMap::new(),
            routes: BTreeMap::new(),
            lengths: BTreeSet::new(),
            in_hops: BTreeMap::new(),
            in_neighbours: BTreeMap::new(),
            in_routes: BTreeMap::new(),
            in_legs: BTreeMap::new(),
            in_ports: BTreeMap::new(),
            repairs: Vec::new(),
            last_hops: LastHops::new(),
            untold: true,
        }
    }

    /// Takes over new routes and neighbours and writes what differs.
    pub(crate) fn set(&mut self, wanted: &NextHops, sink: &mut impl Sink) -> Result<NextHopsReport> {
        let neighbours: Neighbours = wanted
            .neighbours
            .iter()
            .map(|n| ((n.leg, n.addr), n.mac))
            .collect();
        self.notice_moves(&neighbours);
        self.untold = true;
        self.neighbours = neighbours;
        self.routes = wanted
            .routes
            .iter()
            .map(|r: &RouteSpec| (r.prefix.trunc(), *r))
            .collect();
        self.lengths = self.routes.keys().map(IpNet::prefix_len).collect();
        self.ids.retain(|key| match key {
            HopKey::Server(_) => true,
            HopKey::Neighbour(leg, addr) => self.neighbours.contains_key(&(*leg, *addr)),
        });
        self.write(sink)
    }

    /// Notes which neighbours have another MAC than before. A MAC that another address of the leg still has is left
    /// alone: that neighbour has not moved.
    fn notice_moves(&mut self, now: &Neighbours) {
        let kept: BTreeSet<(u8, Mac)> = now
            .iter()
            .filter_map(|((leg, _), mac)| mac.map(|mac| (*leg, mac)))
            .collect();
        if self.macs_known.len() > MAX_NEXT_HOPS as usize {
            self.macs_known.retain(|key, _| now.contains_key(key));
        }
        for (key, new) in now.iter().filter_map(|(key, mac)| mac.map(|mac| (*key, mac))) {
            let old = self.macs_known.insert(key, new);
            if let Some(old) = old.filter(|old| *old != new && !kept.contains(&(key.0, *old))) {
                self.repairs.push(Repair::Mac { leg: key.0, old, new });
            }
        }
    }

    /// Takes over legs and writes what differs, next hops over them included.
    pub(crate) fn set_legs(&mut self, legs: &[LegSpec], sink: &mut impl Sink) -> Result<NextHopsReport> {
        let legs_now: BTreeMap<u8, LegSpec> = legs.iter().map(|leg| (leg.id, *leg)).collect();
        for leg in legs {
            // Also one that was away for a while: its flows still name what it was.
            let now @ (ifindex, vlan, mtu) = (leg.ifindex, leg.vlan.unwrap_or_default(), longest(leg.mtu));
            if self.legs_known.insert(leg.id, now).is_some_and(|old| old != now) {
                self.repairs.push(Repair::Leg {
                    leg: leg.id,
                    ifindex,
                    vlan,
                    mtu,
                });
            }
        }
        self.legs = legs_now;
        self.untold = true;
        let wanted: BTreeMap<(u32, u16), Leg> = legs.iter().map(leg_entry).collect();
        let mut writes = 0;
        for leg in legs {
            if self.in_ports.get(&leg.id) != Some(&leg.ifindex) {
                sink.set_port(leg.id, leg.ifindex)?;
                self.in_ports.insert(leg.id, leg.ifindex);
                writes += 1;
            }
        }
        for (key, leg) in &wanted {
            if self.in_legs.get(key) != Some(leg) {
                sink.set_leg(leg_key(*key), *leg)?;
                self.in_legs.insert(*key, *leg);
                writes += 1;
            }
        }
        // Next hops before the ports of legs that are gone.
        let mut report = self.write(sink)?;
        for key in surplus(&self.in_legs, &wanted) {
            sink.remove_leg(leg_key(key))?;
            self.in_legs.remove(&key);
            writes += 1;
        }
        let gone: Vec<u8> = self
            .in_ports
            .keys()
            .filter(|id| !self.legs.contains_key(id))
            .copied()
            .collect();
        for id in gone {
            sink.remove_port(id)?;
            self.in_ports.remove(&id);
            writes += 1;
        }
        report.writes += writes;
        Ok(report)
    }

    /// Judges the neighbours that packets of clients came from.
    ///
    /// True if the resolved ones are others than at the last call.
    pub(crate) fn judge_last_hops(&mut self, now: Instant, sink: &mut impl last_hops::Sink) -> Result<bool> {
        let resolved = self.untold.then(|| {
            let resolved = self
                .neighbours
                .iter()
                .filter_map(|((leg, _), mac)| Some(last_hop(self.legs.get(leg)?, (*mac)?)));
            resolved.collect()
        });
        self.last_hops.judge(now, resolved, sink)?;
        Ok(std::mem::take(&mut self.untold))
    }

    /// Routes as set last.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (IpNet, Via)> {
        self.routes.iter().map(|(prefix, spec)| (*prefix, spec.via))
    }

    /// Resolved neighbours that have an index of `LAST_HOPS`: leg, address, index.
    pub(crate) fn believed(&self) -> impl Iterator<Item = (u8, IpAddr, u32)> {
        self.neighbours.iter().filter_map(|((id, addr), mac)| {
            let hop = last_hop(self.legs.get(id)?, (*mac)?);
            Some((*id, *addr, self.last_hops.believed(&hop)?))
        })
    }

    /// Legs as set last.
    pub(crate) fn legs(&self) -> impl Iterator<Item = &LegSpec> {
        self.legs.values()
    }

    /// Writes what differs: next hops first, then what leads to them; what no longer should goes in the reverse order.
    pub(crate) fn write(&mut self, sink: &mut impl Sink) -> Result<NextHopsReport> {
        let mut report = NextHopsReport::default();
        let mut leading: BTreeMap<(u8, IpAddr), u32> = BTreeMap::new();
        for key in self.neighbours.keys() {
            match self.ids.take(&HopKey::Neighbour(key.0, key.1)) {
                Some(index) => drop(leading.insert(*key, index)),
                None => report.neighbours_left_out += 1,
            }
        }
        // Those of removed servers too: their flows go on.
        let hops: BTreeMap<u32, NextHop> = self
            .ids
            .known()
            .map(|(key, index)| (index, self.hop(*key)))
            .collect();
        for (index, hop) in &hops {
            report.writes += self.write_hop(*index, *hop, sink);
        }
        for (key, index) in &leading {
            if self.in_neighbours.get(key) != Some(index) {
                sink.set_neighbour(neighbour_key(*key), *index)?;
                self.in_neighbours.insert(*key, *index);
                report.writes += 1;
            }
        }
        let routes: BTreeMap<IpNet, Route> = self
            .routes
            .iter()
            .take(ROUTES)
            .map(|(prefix, spec)| (*prefix, route(spec)))
            .collect();
        report.routes_left_out = self.routes.len() - routes.len();
        for prefix in surplus(&self.in_routes, &routes) {
            sink.remove_route(prefix)?;
            self.in_routes.remove(&prefix);
            report.writes += 1;
        }
        for (prefix, route) in &routes {
            if self.in_routes.get(prefix) != Some(route) {
                sink.set_route(*prefix, *route)?;
                self.in_routes.insert(*prefix, *route);
                report.writes += 1;
            }
        }
        for key in surplus(&self.in_neighbours, &leading) {
            sink.remove_neighbour(neighbour_key(key))?;
            self.in_neighbours.remove(&key);
            report.writes += 1;
        }
        for index in surplus(&self.in_hops, &hops) {
            report.writes += self.write_hop(index, NextHop::default(), sink);
        }
        if !self.repairs.is_empty() {
            let repairs = &self.repairs;
            report.writes +=
                sink.repair_last_hops(&|hop| repairs.iter().fold(hop, |hop, repair| repair.apply(hop)))?;
            self.repairs.clear();
        }
        Ok(report)
    }

    /// Brings one entry of `NEXT_HOPS` to `hop`, at no moment a mixture of two ways; returns the words written.
    fn write_hop(&mut self, index: u32, hop: NextHop, sink: &mut impl Sink) -> usize {
        let old = self.in_hops.get(&index).copied().unwrap_or_default();
        if old == hop {
            return 0;
        }
        let (old_words, words) = (words(&old), words(&hop));
        let mut writes = 0;
        let mut store = |word: usize, value: u64| {
            sink.next_hop_word(index, word, value);
            writes += 1;
        };
        if old_words[1] == words[1] {
            store(0, words[0]);
        } else {
            if old.valid != 0 {
                // Another way, or none: nobody may see the new MAC with the old interface.
                store(1, self::words(&NextHop { valid: 0, ..old })[1]);
            }
            if old_words[0] != words[0] {
                store(0, words[0]);
            }
            store(1, words[1]);
        }
        if hop == NextHop::default() {
            self.in_hops.remove(&index);
        } else {
            self.in_hops.insert(index, hop);
        }
        writes
    }

    /// The entry a next hop should have.
    fn hop(&self, key: HopKey) -> NextHop {
        let (leg, addr, mtu) = match key {
            HopKey::Neighbour(leg, addr) => (leg, addr, None),
            HopKey::Server(server) => {
                let route = self.route_to(server);
                let mtu = route.and_then(|route| route.mtu);
                match route.map(|route| route.via) {
                    Some(Via::OnLink { leg }) => (leg, server, mtu),
                    Some(Via::Gateway { leg, addr }) => (leg, addr, mtu),
                    Some(Via::Local) | None => return NextHop::default(),
                }
            }
        };
        let mac = self.neighbours.get(&(leg, addr)).copied().flatten();
        match (self.legs.get(&leg), mac) {
            (Some(leg), Some(mac)) => NextHop {
                mac,
                vlan: leg.vlan.unwrap_or_default(),
                ifindex: leg.ifindex,
                leg: leg.id,
                valid: 1,
                mtu: longest(mtu.map_or(leg.mtu, |mtu| mtu.min(leg.mtu))),
            },
            _ => NextHop::default(),
        }
    }

    /// The longest prefix an address is in.
    fn route_to(&self, addr: IpAddr) -> Option<RouteSpec> {
        self.lengths.iter().rev().find_map(|len| {
            let prefix = IpNet::new(addr, *len).ok()?.trunc();
            self.routes.get(&prefix).copied()
        })
    }
}

fn surplus<K: Ord + Copy, A, B>(have: &BTreeMap<K, A>, want: &BTreeMap<K, B>) -> Vec<K> {
    have.keys()
        .filter(|key| !want.contains_key(key))
        .copied()
        .collect()
}

/// The two words of an entry: MAC and VLAN, then interface, leg, validity and MTU.
fn words(hop: &NextHop) -> [u64; 2] {
    [crate::mapping::word_of(hop, 0), crate::mapping::word_of(hop, 1)]
}

fn route(spec: &RouteSpec) -> Route {
    let (gateway, leg) = match spec.via {
        Via::OnLink { leg } => (Addr::NONE, u32::from(leg)),
        Via::Gateway { leg, addr } => (wide(addr), u32::from(leg)),
        Via::Local => (Addr::NONE, maps::LOCAL_LEG),
    };
    Route {
        gateway,
        leg,
        mtu: spec.mtu.unwrap_or(0),
    }
}

/// What a packet by this neighbour is remembered by.
fn last_hop(leg: &LegSpec, mac: Mac) -> LastHop {
    LastHop {
        mac,
        vlan: leg.vlan.unwrap_or_default(),
        ifindex: leg.ifindex,
        leg: u16::from(leg.id),
        mtu: longest(leg.mtu),
    }
}

/// An MTU as the maps hold it.
fn longest(mtu: u32) -> u16 {
    u16::try_from(mtu).unwrap_or(u16::MAX)
}

fn neighbour_key((leg, addr): (u8, IpAddr)) -> NeighbourKey {
    NeighbourKey {
        addr: wide(addr),
        leg: u32::from(leg),
    }
}

fn leg_key((ifindex, vlan): (u32, u16)) -> LegKey {
    LegKey {
        ifindex,
        vlan,
        _pad: 0,
    }
}

fn leg_entry(leg: &LegSpec) -> ((u32, u16), Leg) {
    let value = Leg {
        mac: leg.mac,
        id: leg.id,
        group: u8::try_from(leg.group.index()).unwrap_or_default(),
        addr: leg.addr.map_or(Addr::NONE, |addr| wide(addr.into())),
        addr6: leg.addr6.map_or(Addr::NONE, |addr| wide(addr.into())),
        link_local: leg.link_local.map_or(Addr::NONE, |addr| wide(addr.into())),
        peer_mac: leg.peer_mac.unwrap_or_default(),
        mtu: longest(leg.mtu),
    };
    ((leg.ifindex, leg.vlan.unwrap_or_default()), value)
}
