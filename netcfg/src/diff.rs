//! From what is to what is wanted: pure, ordered.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use crate::{
    name::{IfName, LegSysctl},
    state::{Holding, LegState, Route, Rule, State},
};

/// One step towards the desired state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Adds a route to a table of ours.
    AddRoute(Route),
    /// Adds a policy rule.
    AddRule(Rule),
    /// Removes a policy rule of ours.
    RemoveRule(Rule),
    /// Removes a route of ours.
    RemoveRoute(Route),
    /// Writes a setting of a leg.
    SetSysctl {
        /// Leg.
        leg: IfName,
        /// Setting.
        key: LegSysctl,
        /// Value found, for the journal.
        old: String,
        /// Value to write.
        new: String,
    },
    /// Switches an offload feature of a leg.
    SetOffload {
        /// Leg.
        leg: IfName,
        /// The kernel's name of the feature.
        feature: String,
        /// Value found, for the journal.
        old: bool,
        /// Value to write.
        new: bool,
    },
    /// Removes a neighbour of ours.
    RemoveNeighbour {
        /// Leg.
        leg: IfName,
        /// The host's address.
        address: IpAddr,
    },
    /// Drops what the kernel remembers of a neighbour by itself.
    ForgetNeighbour {
        /// Leg.
        leg: IfName,
        /// The host's address.
        address: IpAddr,
    },
    /// Has the kernel resolve a neighbour and keep it resolved.
    AddNeighbour {
        /// Leg.
        leg: IfName,
        /// The host's address.
        address: IpAddr,
        /// An entry the kernel made by itself is there and is taken over.
        replace: bool,
    },
}

impl Change {
    /// The leg it is made on; `None` = it is of the whole node.
    pub(crate) fn leg(&self) -> Option<&IfName> {
        match self {
            Self::AddRoute(_) | Self::AddRule(_) | Self::RemoveRule(_) | Self::RemoveRoute(_) => None,
            Self::SetSysctl { leg, .. }
            | Self::SetOffload { leg, .. }
            | Self::RemoveNeighbour { leg, .. }
            | Self::ForgetNeighbour { leg, .. }
            | Self::AddNeighbour { leg, .. } => Some(leg),
        }
    }
}

/// The changes that lead from `current` to `desired`, in the order in which they are to be made.
///
/// Guards are added before others are removed, tables filled before a rule asks them, so that no packet slips through
/// between two steps. What `current` does not have (a leg that does not exist, a setting this kernel does not know)
/// cannot be changed and is left out; `diff(x, x)` is empty.
pub fn diff(desired: &State, current: &State) -> Vec<Change> {
    let mut changes = Vec::new();
    changes.extend(
        desired
            .routes
            .difference(&current.routes)
            .copied()
            .map(Change::AddRoute),
    );
    changes.extend(
        desired
            .rules
            .difference(&current.rules)
            .cloned()
            .map(Change::AddRule),
    );
    changes.extend(
        current
            .rules
            .difference(&desired.rules)
            .cloned()
            .map(Change::RemoveRule),
    );
    changes.extend(
        current
            .routes
            .difference(&desired.routes)
            .copied()
            .map(Change::RemoveRoute),
    );
    let nothing = LegState::default();
    for (leg, found) in &current.legs {
        let wanted = desired.legs.get(leg).unwrap_or(&nothing);
        diff_sysctls(leg, wanted, found, &mut changes);
        diff_offloads(leg, wanted, found, &mut changes);
        diff_neighbours(leg, &wanted.neighbours, &found.neighbours, &mut changes);
    }
    changes
}

fn diff_sysctls(leg: &IfName, wanted: &LegState, found: &LegState, changes: &mut Vec<Change>) {
    for (key, new) in &wanted.sysctls {
        if let Some(old) = found.sysctls.get(key).filter(|old| *old != new) {
            changes.push(Change::SetSysctl {
                leg: leg.clone(),
                key: key.clone(),
                old: old.clone(),
                new: new.clone(),
            });
        }
    }
}

fn diff_offloads(leg: &IfName, wanted: &LegState, found: &LegState, changes: &mut Vec<Change>) {
    for (feature, &new) in &wanted.offloads {
        if let Some(&old) = found.offloads.get(feature).filter(|old| **old != new) {
            changes.push(Change::SetOffload {
                leg: leg.clone(),
                feature: feature.clone(),
                old,
                new,
            });
        }
    }
}

fn diff_neighbours(
    leg: &IfName,
    wanted: &BTreeMap<IpAddr, Holding>,
    found: &BTreeMap<IpAddr, Holding>,
    changes: &mut Vec<Change>,
) {
    let wants = |address: &IpAddr| wanted.get(address) == Some(&Holding::Ours);
    for (&address, holding) in found {
        let leg = leg.clone();
        if *holding == Holding::Ours && !wants(&address) {
            changes.push(Change::RemoveNeighbour { leg, address });
        } else if *holding == Holding::Cached && wanted.get(&address) == Some(&Holding::Forgotten) {
            changes.push(Change::ForgetNeighbour { leg, address });
        }
    }
    for &address in wanted.keys().filter(|address| wants(address)) {
        let replace = match found.get(&address) {
            None | Some(Holding::Forgotten) => false,
            Some(Holding::Cached | Holding::Unresolved) => true,
            Some(Holding::Ours | Holding::Foreign) => continue,
        };
        changes.push(Change::AddNeighbour {
            leg: leg.clone(),
            address,
            replace,
        });
    }
}

#[cfg(test)]
mod tests;
