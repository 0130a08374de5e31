//! Neighbours that are to stay resolved.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    driver::Reconciler,
    pace::{Key, Selection, Standing},
};
use crate::{
    name::IfName,
    netlink::neighbour::{self, NeighbourMessage},
    query::Found,
    state::{Desired, Holding},
    watch::{MirrorRoute, Picture, now},
};

/// A neighbour somebody doubts.
pub(crate) type Suspect = Key;

/// Routers of the mirrored routes: the dataplane needs them resolved.
pub(super) fn gateways(picture: &Picture) -> BTreeSet<Key> {
    let hops = picture.routes.values().filter_map(|route| match route {
        MirrorRoute::Hops(hops) => Some(hops),
        MirrorRoute::Refused => None,
    });
    hops.flatten()
        .filter_map(|hop| Some((hop.leg.clone()?, hop.gateway?)))
        .collect()
}

impl Reconciler {
    /// Which neighbours the kernel is to care for now.
    pub(super) fn select_neighbours(
        &mut self,
        desired: &Desired,
        gateways: &BTreeSet<Key>,
        found: &Found,
    ) -> Selection {
        let carrier: BTreeSet<_> = found
            .links
            .iter()
            .filter(|link| link.carrier)
            .map(|link| &link.name)
            .collect();
        let named = desired
            .legs
            .iter()
            .flat_map(|(leg, wants)| wants.neighbours.iter().map(move |a| (leg.clone(), *a)));
        // Without a carrier the kernel forgets them as fast as they are added; an owned address is not to be sought.
        let wanted: BTreeSet<Key> = named
            .chain(gateways.iter().cloned())
            .filter(|(leg, address)| carrier.contains(leg) && !desired.owned.contains(address))
            .collect();
        let seen = seen(found);
        self.memory
            .pace
            .select(now(), &wanted, |key| match seen.get(key) {
                Some(entry) if entry.holding() == Holding::Foreign || entry.usable().is_some() => {
                    Standing::Usable
                }
                Some(entry) if entry.failed() => Standing::Failed,
                Some(_) | None => Standing::Unresolved,
            })
    }

    /// Has the kernel ask at once for neighbours that were just lost, and again for those that are doubted.
    pub(super) fn ask(&mut self, found: &Found, lost: &BTreeSet<Key>, suspects: &BTreeSet<Suspect>) {
        let seen = seen(found);
        let mut questions = Vec::new();
        for key in lost.iter().chain(suspects) {
            let Some(entry) = seen.get(key).filter(|entry| entry.holding() == Holding::Ours) else {
                continue;
            };
            match entry.usable() {
                None if lost.contains(key) => questions.push(neighbour::add(entry.ifindex, key.1, true)),
                Some(mac) if self.memory.pace.suspect(now(), key) => {
                    questions.extend(neighbour::probe(entry.ifindex, key.1, mac));
                }
                _ => {}
            }
        }
        match self.kernel.requests.change(questions) {
            Err(error) => tracing::warn!(%error, "neighbours cannot be asked"),
            Ok(outcomes) => {
                for error in outcomes.into_iter().filter_map(Result::err) {
                    // The entry or its leg went away meanwhile; the next event tells.
                    tracing::debug!(%error, "neighbour not asked");
                }
            }
        }
    }
}

fn seen(found: &Found) -> BTreeMap<Key, &NeighbourMessage> {
    let names: BTreeMap<u32, &IfName> = found
        .devices
        .iter()
        .map(|(name, device)| (device.ifindex, name))
        .collect();
    let key = |n: &NeighbourMessage| Some(((*names.get(&n.ifindex)?).clone(), n.address));
    found
        .neighbours
        .iter()
        .filter_map(|neighbour| Some((key(neighbour)?, neighbour)))
        .collect()
}
