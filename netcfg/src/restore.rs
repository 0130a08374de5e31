//! What was lent goes back, what was added goes away.

use std::{fmt, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    journal::{Device, Entry, Lent, StateDir},
    kernel::Kernel,
    name::{IfName, LegSysctl},
    netlink::{link::LinkMessage, neighbour, route, rule},
    query::is_our_rule,
    sysctl,
};

/// What became of one thing that was lent or added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    /// Interface it belongs to, by its name now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg: Option<IfName>,
    /// The thing.
    pub what: Thing,
    /// What became of it.
    pub outcome: Outcome,
}

/// Something that was lent or added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thing {
    /// A setting of a leg.
    Setting(LegSysctl),
    /// An offload feature of a leg.
    Offload(String),
    /// Policy rules with our mark.
    Rules,
    /// Routes with our mark in our tables.
    Routes,
    /// Neighbours with our mark.
    Neighbours,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Has its old value again.
    PutBack {
        /// That value.
        value: String,
    },
    /// Removed.
    Removed {
        /// How many.
        count: usize,
    },
    /// Left alone: it has not the value onearm wrote, so somebody else's word stands (or onearm died before writing).
    LeftChanged {
        /// Value found.
        value: String,
    },
    /// Left alone: the device is gone, or another one has its name.
    LeftDeviceGone,
    /// Left alone: it belongs to another network namespace.
    LeftElsewhere,
    /// Could not be put back or removed; it stays in the journal.
    Failed {
        /// The error with its cause.
        error: String,
    },
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(leg) = &self.leg {
            write!(f, "{leg}: ")?;
        }
        match &self.what {
            Thing::Setting(key) => write!(f, "{key}")?,
            Thing::Offload(feature) => write!(f, "{feature}")?,
            Thing::Rules => f.write_str("policy rules")?,
            Thing::Routes => f.write_str("guard routes")?,
            Thing::Neighbours => f.write_str("neighbours")?,
        }
        match &self.outcome {
            Outcome::PutBack { value } => write!(f, " put back to {value}"),
            Outcome::Removed { count } => write!(f, " removed ({count})"),
            Outcome::LeftChanged { value } => {
                write!(f, " left alone: is {value}, which onearm did not write")
            }
            Outcome::LeftDeviceGone => f.write_str(" left alone: the device is gone"),
            Outcome::LeftElsewhere => f.write_str(" left alone: of another network namespace"),
            Outcome::Failed { error } => write!(f, " failed: {error}"),
        }
    }
}

/// What was put back, removed and left alone, and every error on the way.
#[derive(Debug, Default)]
pub struct Restored {
    /// One line each.
    pub lines: Vec<Returned>,
    /// Errors; what they concern stays in the journal.
    pub errors: Vec<Error>,
    /// Journal entries of an earlier boot that were discarded.
    pub discarded: usize,
}

/// Puts everything back: `onearmd --restore`.
///
/// # Errors
/// [`Error::InUse`] while a daemon runs; [`Error::Journal`], [`Error::Netlink`] if nothing could be done at all. Errors
/// with single things are in the result: the rest is put back all the same.
pub fn restore(state_dir: &Path) -> Result<Restored, Error> {
    let mut state_dir = StateDir::acquire(state_dir)?;
    Ok(Kernel::open()?.undo(&mut state_dir))
}

/// Things of one device that are about the same, oldest first.
struct Chain<'a> {
    device: &'a Device,
    entries: Vec<&'a Entry>,
}

impl Kernel {
    /// Puts back everything lent and removes everything marked: a clean stop.
    ///
    /// Goes on after failures.
    pub fn undo(&mut self, state_dir: &mut StateDir) -> Restored {
        let mut restored = Restored {
            discarded: state_dir.discarded(),
            ..Restored::default()
        };
        let mut kept = self.put_back(state_dir, |_, _| true, &mut restored);
        let ours = Lent::marks();
        let earlier = state_dir
            .entries()
            .iter()
            .map(|entry| entry.lent.clone())
            .filter(|lent| *lent != ours);
        let marks: Vec<_> = std::iter::once(ours.clone()).chain(earlier).collect();
        for lent in &marks {
            if let Lent::Marks {
                protocol,
                tables,
                priorities,
            } = lent
            {
                self.remove_marked(*protocol, tables, priorities, &mut restored);
            }
        }
        if restored.errors.is_empty() {
            let place = state_dir.place();
            kept.retain(|entry| entry.place != *place || entry.device.is_some());
        }
        if kept != state_dir.entries()
            && let Err(error) = state_dir.replace(kept)
        {
            restored.errors.push(error);
        }
        restored
    }

    /// Puts back what is lent and selected; returns what is to stay in the journal.
    pub(crate) fn put_back(
        &mut self,
        state_dir: &StateDir,
        selected: impl Fn(&Device, &Lent) -> bool,
        restored: &mut Restored,
    ) -> Vec<Entry> {
        let links = match self.links() {
            Ok(links) => links,
            Err(error) => {
                restored.errors.push(error);
                return state_dir.entries().to_vec();
            }
        };
        let mut kept = Vec::new();
        let mut chains: Vec<Chain<'_>> = Vec::new();
        for entry in state_dir.entries() {
            let Some(device) = entry
                .device
                .as_ref()
                .filter(|device| selected(device, &entry.lent))
            else {
                kept.push(entry.clone());
                continue;
            };
            if entry.place != *state_dir.place() {
                kept.push(entry.clone());
                restored.note(Some(device.name.clone()), &entry.lent, Outcome::LeftElsewhere);
                continue;
            }
            let same = |chain: &&mut Chain<'_>| {
                chain.device.is_same(device) && chain.entries[0].lent.is_about_the_same(&entry.lent)
            };
            match chains.iter_mut().find(same) {
                Some(chain) => chain.entries.push(entry),
                None => chains.push(Chain {
                    device,
                    entries: vec![entry],
                }),
            }
        }
        for chain in chains {
            let now = links.iter().find(|link| chain.device.is_same(&device_of(link)));
            let outcome = match now {
                None => Ok(Outcome::LeftDeviceGone),
                Some(link) => self.put_back_chain(link, &chain.entries),
            };
            let leg = now.map_or(&chain.device.name, |link| &link.name).clone();
            let outcome = outcome.unwrap_or_else(|error| {
                kept.extend(chain.entries.iter().map(|entry| (*entry).clone()));
                let text = text_of(&error);
                restored.errors.push(error);
                Outcome::Failed { error: text }
            });
            restored.note(Some(leg), &chain.entries[0].lent, outcome);
        }
        kept
    }

    /// Goes back through what was written, newest first, as far as each value found is the one written.
    fn put_back_chain(&mut self, link: &LinkMessage, entries: &[&Entry]) -> Result<Outcome, Error> {
        match &entries[0].lent {
            Lent::Sysctl { key, .. } => {
                let Some(found) = sysctl::read(&link.name, key)? else {
                    return Ok(Outcome::LeftDeviceGone);
                };
                let value = entries
                    .iter()
                    .rev()
                    .fold(found.clone(), |value, entry| match &entry.lent {
                        Lent::Sysctl { old, written, .. } if *written == value => old.clone(),
                        _ => value,
                    });
                if value == found {
                    return Ok(Outcome::LeftChanged { value });
                }
                sysctl::write(&link.name, key, &value)?;
                Ok(Outcome::PutBack { value })
            }
            Lent::Offload { feature, .. } => {
                let failed = |operation| {
                    move |source| Error::Ethtool {
                        operation,
                        ifname: link.name.clone(),
                        source,
                    }
                };
                let ethtool = self.ethtool()?;
                let sets = ethtool
                    .features(link.ifindex)
                    .map_err(failed("read the offloads"))?;
                let found = sets.wanted.contains(feature);
                let value = entries
                    .iter()
                    .rev()
                    .fold(found, |value, entry| match &entry.lent {
                        Lent::Offload { old, written, .. } if *written == value => *old,
                        _ => value,
                    });
                let name = |on: bool| if on { "on" } else { "off" }.to_owned();
                if value == found {
                    return Ok(Outcome::LeftChanged { value: name(value) });
                }
                ethtool
                    .set_feature(link.ifindex, feature, value)
                    .map_err(failed("switch an offload"))?;
                Ok(Outcome::PutBack { value: name(value) })
            }
            Lent::Marks { .. } => Ok(Outcome::Removed { count: 0 }),
        }
    }

    /// Removes rules, then routes, then neighbours that carry marks.
    fn remove_marked(&mut self, protocol: u8, tables: &[u32], priorities: &[u32], restored: &mut Restored) {
        let rules = self.rules().map(|rules| {
            let ours = rules
                .into_iter()
                .filter(|rule| is_our_rule(rule, protocol, priorities));
            ours.map(|message| rule::remove(&message.rule, protocol))
                .collect()
        });
        self.remove(Thing::Rules, rules, restored);
        let routes = tables.iter().try_fold(Vec::new(), |mut all, table| {
            let ours = self
                .routes(*table)?
                .into_iter()
                .filter(|route| route.protocol == protocol);
            all.extend(ours.map(|message| route::remove(&message.ours(), protocol)));
            Ok(all)
        });
        self.remove(Thing::Routes, routes, restored);
        let neighbours = self.neighbours().map(|neighbours| {
            let ours = neighbours
                .into_iter()
                .filter(|neighbour| neighbour.is_ours(protocol));
            ours.map(|neighbour| neighbour::remove(neighbour.ifindex, neighbour.address))
                .collect()
        });
        self.remove(Thing::Neighbours, neighbours, restored);
    }

    fn remove(
        &mut self,
        what: Thing,
        messages: Result<Vec<crate::netlink::wire::Message>, Error>,
        restored: &mut Restored,
    ) {
        let outcomes = messages.and_then(|messages| {
            self.requests.change(messages).map_err(|source| Error::Netlink {
                operation: "send removals",
                source,
            })
        });
        let mut failed = |error: Error| {
            let outcome = Outcome::Failed {
                error: text_of(&error),
            };
            restored.lines.push(Returned {
                leg: None,
                what: what.clone(),
                outcome,
            });
            restored.errors.push(error);
        };
        let mut count = 0;
        match outcomes {
            Err(error) => failed(error),
            Ok(outcomes) => {
                for outcome in outcomes {
                    match outcome {
                        Ok(()) => count += 1,
                        // Gone by itself meanwhile, alone or with its device.
                        Err(error)
                            if matches!(
                                error.raw_os_error(),
                                Some(libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::ENXIO)
                            ) => {}
                        Err(source) => failed(Error::Netlink {
                            operation: "remove what is marked",
                            source,
                        }),
                    }
                }
            }
        }
        if count > 0 {
            restored.lines.push(Returned {
                leg: None,
                what,
                outcome: Outcome::Removed { count },
            });
        }
    }
}

impl Restored {
    fn note(&mut self, leg: Option<IfName>, lent: &Lent, outcome: Outcome) {
        let what = match lent {
            Lent::Sysctl { key, .. } => Thing::Setting(key.clone()),
            Lent::Offload { feature, .. } => Thing::Offload(feature.clone()),
            Lent::Marks { .. } => return,
        };
        self.lines.push(Returned { leg, what, outcome });
    }
}

fn device_of(link: &LinkMessage) -> Device {
    Device {
        ifindex: link.ifindex,
        name: link.name.clone(),
        mac: link.mac,
    }
}

/// An error with its causes, in one line.
pub(crate) fn text_of(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
