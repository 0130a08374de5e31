//! The kernel's state as it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    journal::Device,
    kernel::Kernel,
    marks,
    name::{Family, IfName, LegSysctl},
    netlink::{link::LinkMessage, neighbour::NeighbourMessage, rule::RuleMessage},
    restore::text_of,
    state::{Desired, LegState, RuleAction, State},
    sysctl,
};

/// Something that stands against the desired state and that onearm cannot or must not repair.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// A leg does not exist. Its guards are in place and catch it when it comes.
    LegMissing {
        /// Leg.
        leg: IfName,
    },
    /// A leg lost its name; it stays guarded under the new one, nothing else is done to it.
    LegRenamed {
        /// Leg.
        leg: IfName,
        /// Its name now.
        now: IfName,
    },
    /// A setting does not exist in this kernel or on this leg.
    SettingUnknown {
        /// Leg.
        leg: IfName,
        /// Setting.
        key: LegSysctl,
    },
    /// An offload should be off or on and the device cannot change it.
    OffloadFixed {
        /// Leg.
        leg: IfName,
        /// The kernel's name of the feature.
        feature: String,
        /// Whether it is on.
        active: bool,
    },
    /// Somebody's policy rule is asked before the guards and may forward what they would drop.
    RuleBeforeGuards {
        /// Family.
        family: Family,
        /// Its priority.
        priority: u32,
    },
    /// The local table is asked after the guards: packets to the node itself from guarded networks are lost.
    LocalBehindGuards {
        /// Family.
        family: Family,
    },
    /// Other than desired in spite of all attempts.
    Refused {
        /// The error with its causes.
        error: String,
    },
}

impl Fault {
    pub(crate) fn refused(error: &Error) -> Self {
        Self::Refused {
            error: text_of(error),
        }
    }
}

/// What a query found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// State within onearm's reach.
    pub state: State,
    /// The listed legs that exist.
    pub devices: BTreeMap<IfName, Device>,
    /// What cannot be repaired.
    pub faults: BTreeSet<Fault>,
    /// The kernel speaks IPv6.
    pub ipv6: bool,
    pub(crate) links: Vec<LinkMessage>,
    pub(crate) neighbours: Vec<NeighbourMessage>,
}

impl Found {
    /// The part of a desired state this kernel can have.
    pub(crate) fn reachable(&self, desired: State) -> State {
        if self.ipv6 {
            desired
        } else {
            desired.without_ipv6()
        }
    }
}

/// What to ask about besides the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Rules and our tables.
    pub(crate) tables: bool,
    /// Settings and offloads of the legs.
    pub(crate) settings: bool,
}

impl Parts {
    pub(crate) const ALL: Self = Self {
        tables: true,
        settings: true,
    };
}

impl Kernel {
    /// Reads the state of everything `desired` speaks of, and of everything that carries our marks.
    ///
    /// A setting or offload that cannot be read is a fault: it must not keep the guards from being seen.
    ///
    /// # Errors
    /// [`Error::List`]. A leg that vanishes meanwhile is no error: it is missing.
    pub fn query(&mut self, desired: &Desired) -> Result<Found, Error> {
        self.query_parts(desired, Parts::ALL)
    }

    /// [`Kernel::query`] limited to some parts; the others are left empty.
    pub(crate) fn query_parts(&mut self, desired: &Desired, parts: Parts) -> Result<Found, Error> {
        let mut found = Found {
            ipv6: Kernel::has_ipv6(),
            links: self.links()?,
            ..Found::default()
        };
        if parts.tables {
            self.query_tables(&mut found)?;
        }
        for (name, leg) in &desired.legs {
            let Some(link) = found.links.iter().find(|link| link.name == *name) else {
                found.faults.insert(Fault::LegMissing { leg: name.clone() });
                continue;
            };
            let device = Device {
                ifindex: link.ifindex,
                name: name.clone(),
                mac: link.mac,
            };
            let mut state = LegState::default();
            if parts.settings {
                for key in leg.sysctls.keys() {
                    match sysctl::read(name, key) {
                        Ok(Some(value)) => drop(state.sysctls.insert(key.clone(), value)),
                        Ok(None) => {
                            found.faults.insert(Fault::SettingUnknown {
                                leg: name.clone(),
                                key: key.clone(),
                            });
                        }
                        Err(error) => drop(found.faults.insert(Fault::refused(&error))),
                    }
                }
                let asked = self.query_offloads(&device, &leg.offloads, &mut state, &mut found.faults);
                found
                    .faults
                    .extend(asked.err().map(|error| Fault::refused(&error)));
            }
            found.state.legs.insert(name.clone(), state);
            found.devices.insert(name.clone(), device);
        }
        found.neighbours = self.neighbours()?;
        place_neighbours(&mut found);
        Ok(found)
    }

    fn query_tables(&mut self, found: &mut Found) -> Result<(), Error> {
        let rules = self.rules()?;
        found.faults.extend(rule_faults(&rules));
        let ours = rules
            .into_iter()
            .filter(|rule| is_our_rule(rule, marks::PROTOCOL, &marks::PRIORITIES));
        found.state.rules.extend(ours.map(|rule| rule.rule));
        for table in marks::TABLES {
            let routes = self.routes(table)?.into_iter();
            let ours = routes.filter(|route| route.protocol == marks::PROTOCOL);
            found.state.routes.extend(ours.map(|route| route.ours()));
        }
        Ok(())
    }

    fn query_offloads(
        &mut self,
        device: &Device,
        wanted: &BTreeMap<String, bool>,
        state: &mut LegState,
        faults: &mut BTreeSet<Fault>,
    ) -> Result<(), Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let sets = match self.ethtool()?.features(device.ifindex) {
            Ok(sets) => sets,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(source) => {
                let ifname = device.name.clone();
                return Err(Error::Ethtool {
                    operation: "read the offloads",
                    ifname,
                    source,
                });
            }
        };
        for (feature, on) in wanted {
            let active = sets.active.contains(feature);
            if sets.changeable.contains(feature) {
                state
                    .offloads
                    .insert(feature.clone(), sets.wanted.contains(feature));
            }
            let asked = sets.changeable.contains(feature) && sets.wanted.contains(feature) != *on;
            if active != *on && !asked {
                faults.insert(Fault::OffloadFixed {
                    leg: device.name.clone(),
                    feature: feature.clone(),
                    active,
                });
            }
        }
        Ok(())
    }
}

/// Whether a rule carries a mark.
pub(crate) fn is_our_rule(message: &RuleMessage, protocol: u8, priorities: &[u32]) -> bool {
    message.protocol == protocol && priorities.contains(&message.rule.priority)
}

/// The device went away between two questions.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

/// Rules of others in front of the guards, and a local table behind them.
fn rule_faults(rules: &[RuleMessage]) -> BTreeSet<Fault> {
    const LOCAL: RuleAction = RuleAction::Lookup(libc::RT_TABLE_LOCAL as u32);
    let mut faults = BTreeSet::new();
    for family in Family::BOTH {
        let mut rules = rules
            .iter()
            .filter(|rule| rule.rule.family == family)
            .map(|rule| &rule.rule);
        let before = |priority| priority < marks::PRIORITY_OWNED;
        let others = rules
            .clone()
            .filter(|rule| before(rule.priority) && rule.action != LOCAL);
        faults.extend(others.map(|rule| Fault::RuleBeforeGuards {
            family,
            priority: rule.priority,
        }));
        // A kernel without the family has no rules at all.
        let any = rules.clone().next().is_some();
        if any && !rules.any(|rule| before(rule.priority) && rule.action == LOCAL) {
            faults.insert(Fault::LocalBehindGuards { family });
        }
    }
    faults
}

/// Puts neighbours to their legs: all of a listed leg's, only marked ones of other interfaces.
fn place_neighbours(found: &mut Found) {
    let names: BTreeMap<u32, &IfName> = found
        .links
        .iter()
        .map(|link| (link.ifindex, &link.name))
        .collect();
    for neighbour in &found.neighbours {
        let Some(name) = names.get(&neighbour.ifindex) else {
            continue;
        };
        let listed = found.devices.contains_key(*name);
        if listed || neighbour.is_ours(marks::PROTOCOL) {
            let leg = found.state.legs.entry((*name).clone()).or_default();
            leg.neighbours.insert(neighbour.address, neighbour.holding());
        }
    }
}

#[cfg(test)]
mod tests;
