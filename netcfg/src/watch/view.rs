//! The kernel's tables as told by lists and events: pure.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::IpAddr,
    ops::BitOrAssign,
};

use ipnet::IpNet;

use super::picture::{LegPicture, LinkPicture, MirrorRoute, NextHop, Picture};
use crate::{
    marks,
    name::IfName,
    netlink::{
        address::{self, AddressMessage},
        link::{self, LinkMessage},
        neighbour::{self, NeighbourMessage},
        route::{self, RouteMessage},
        wire::Frame,
    },
};

/// Destinations the mirror holds at most.
const MAX_ROUTES: usize = 65_536;

const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// What an event touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Touched(u8);

impl Touched {
    /// The picture has to be drawn anew.
    pub(super) const PICTURE: Self = Self(1);
    /// Links: legs may have come, gone, changed name or carrier.
    pub(super) const LINKS: Self = Self(2);
    /// Rules, or routes of our tables.
    pub(super) const TABLES: Self = Self(4);
    /// Neighbours came, went, or changed between usable and not.
    pub(super) const NEIGHBOURS: Self = Self(8);
    /// Routes of the main table: they have to be listed.
    pub(super) const MAIN_ROUTES: Self = Self(16);
    /// Events were lost: everything has to be listed.
    pub(super) const LOST: Self = Self(32);
    /// Everything, as after a complete list.
    pub(super) const ALL: Self = Self(31);

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Touched {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Links, addresses, neighbours and main routes.
#[derive(Debug, Default)]
pub(super) struct View {
    links: BTreeMap<u32, LinkMessage>,
    addresses: BTreeSet<(u32, IpNet)>,
    neighbours: BTreeMap<(u32, IpAddr), NeighbourMessage>,
    routes: Vec<RouteMessage>,
}

impl View {
    /// Takes complete lists in place of everything known.
    pub(super) fn replace(
        &mut self,
        links: Vec<LinkMessage>,
        addresses: Vec<AddressMessage>,
        neighbours: Vec<NeighbourMessage>,
    ) {
        self.links = links.into_iter().map(|link| (link.ifindex, link)).collect();
        let usable = addresses.into_iter().filter(|address| !address.tentative);
        self.addresses = usable.map(|address| (address.ifindex, address.network)).collect();
        let key = |n: NeighbourMessage| ((n.ifindex, n.address), n);
        self.neighbours = neighbours.into_iter().map(key).collect();
    }

    /// Takes a complete list of the main table.
    pub(super) fn replace_routes(&mut self, routes: Vec<RouteMessage>) {
        self.routes = routes;
    }

    /// An event was received.
    pub(super) fn handle(&mut self, frame: Frame<'_>) -> Touched {
        match frame.kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => {
                link::read(frame).map_or(Touched::default(), |link| self.link(link, frame.kind))
            }
            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                address::read(frame).map_or(Touched::default(), |address| {
                    let key = (address.ifindex, address.network);
                    let changed = if frame.kind == libc::RTM_NEWADDR && !address.tentative {
                        self.addresses.insert(key)
                    } else {
                        self.addresses.remove(&key)
                    };
                    if changed {
                        Touched::PICTURE
                    } else {
                        Touched::default()
                    }
                })
            }
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => neighbour::read(frame)
                .map_or(Touched::default(), |neighbour| {
                    self.neighbour(neighbour, frame.kind)
                }),
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => match route::read(frame) {
                Some(route) if route.table == MAIN => Touched::MAIN_ROUTES,
                Some(route) if marks::TABLES.contains(&route.table) => Touched::TABLES,
                _ => Touched::default(),
            },
            libc::RTM_NEWRULE | libc::RTM_DELRULE => Touched::TABLES,
            _ => Touched::default(),
        }
    }

    fn link(&mut self, link: LinkMessage, kind: u16) -> Touched {
        let index = link.ifindex;
        if kind == libc::RTM_DELLINK {
            // What was on it goes without events of its own, or with some that come late.
            self.addresses.retain(|(ifindex, _)| *ifindex != index);
            self.neighbours.retain(|(ifindex, _), _| *ifindex != index);
            self.links.remove(&index);
            return Touched::PICTURE.with(Touched::LINKS).with(Touched::MAIN_ROUTES);
        }
        let news = self.links.get(&index) != Some(&link);
        self.links.insert(index, link);
        if !news {
            return Touched::default();
        }
        // Carrier and switching on or off change which next hops live, without an event per route.
        Touched::PICTURE.with(Touched::LINKS).with(Touched::MAIN_ROUTES)
    }

    fn neighbour(&mut self, neighbour: NeighbourMessage, kind: u16) -> Touched {
        let aspect = |n: &NeighbourMessage| (n.usable(), n.failed(), n.holding());
        let entry = self.neighbours.entry((neighbour.ifindex, neighbour.address));
        let (before, after) = match (kind, entry) {
            (libc::RTM_NEWNEIGH, Entry::Occupied(mut known)) => {
                let after = aspect(&neighbour);
                (Some(aspect(&known.insert(neighbour))), Some(after))
            }
            (libc::RTM_NEWNEIGH, Entry::Vacant(unknown)) => (None, Some(aspect(unknown.insert(neighbour)))),
            (_, Entry::Occupied(known)) => (Some(aspect(&known.remove())), None),
            (_, Entry::Vacant(_)) => (None, None),
        };
        let usable = |aspect: Option<(Option<_>, _, _)>| aspect.and_then(|(mac, _, _)| mac);
        if before == after {
            Touched::default()
        } else if usable(before) == usable(after) {
            Touched::NEIGHBOURS
        } else {
            Touched::NEIGHBOURS.with(Touched::PICTURE)
        }
    }

    /// The picture for some legs.
    pub(super) fn picture<'a>(&self, legs: impl Iterator<Item = &'a IfName>, overruns: u64) -> Picture {
        let mut picture = Picture {
            overruns,
            ..Picture::default()
        };
        let mut names = BTreeMap::new();
        for name in legs {
            let leg = picture.legs.entry(name.clone()).or_default();
            let Some(link) = self.links.values().find(|link| link.name == *name) else {
                continue;
            };
            names.insert(link.ifindex, name);
            let &LinkMessage {
                ifindex,
                mac,
                mtu,
                up,
                carrier,
                ..
            } = link;
            leg.link = Some(LinkPicture {
                ifindex,
                mac,
                mtu,
                up,
                carrier,
            });
        }
        for (ifindex, network) in &self.addresses {
            if let Some(leg) = names.get(ifindex).and_then(|name| picture.legs.get_mut(*name)) {
                leg.addresses.insert(*network);
            } else if !network.addr().is_loopback() {
                picture.elsewhere.insert(network.addr());
            }
        }
        for ((ifindex, address), neighbour) in &self.neighbours {
            if let (Some(name), Some(mac)) = (names.get(ifindex), neighbour.usable()) {
                let leg: &mut LegPicture = picture.legs.entry((*name).clone()).or_default();
                leg.neighbours.insert(*address, mac);
            }
        }
        self.mirror(&names, &mut picture);
        picture
    }

    fn mirror(&self, names: &BTreeMap<u32, &IfName>, picture: &mut Picture) {
        let mut metrics: BTreeMap<IpNet, u32> = BTreeMap::new();
        for route in self.routes.iter().filter(|route| !route.selective) {
            let Some(mirrored) = mirrored(route, names) else {
                continue;
            };
            match metrics.get(&route.to) {
                Some(metric) if *metric < route.metric => continue,
                // IPv6 tells the hops of one route one by one.
                Some(metric) if *metric == route.metric => {
                    if let (Some(MirrorRoute::Hops(known)), MirrorRoute::Hops(more)) =
                        (picture.routes.get_mut(&route.to), mirrored)
                    {
                        known.extend(more);
                        known.sort_unstable();
                        known.dedup();
                    }
                    continue;
                }
                None if picture.routes.len() >= MAX_ROUTES => {
                    picture.routes_left_out += 1;
                    continue;
                }
                _ => {}
            }
            metrics.insert(route.to, route.metric);
            picture.routes.insert(route.to, mirrored);
        }
    }
}

fn mirrored(route: &RouteMessage, names: &BTreeMap<u32, &IfName>) -> Option<MirrorRoute> {
    match route.kind {
        libc::RTN_UNICAST => {
            let hop = |hop: &route::Hop| NextHop {
                leg: names.get(&hop.ifindex).map(|name| (*name).clone()),
                gateway: hop.gateway,
                mtu: hop.mtu,
            };
            let mut hops: Vec<_> = route.hops.iter().map(hop).collect();
            hops.sort_unstable();
            hops.dedup();
            Some(MirrorRoute::Hops(hops))
        }
        libc::RTN_BLACKHOLE | libc::RTN_UNREACHABLE | libc::RTN_PROHIBIT => Some(MirrorRoute::Refused),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
