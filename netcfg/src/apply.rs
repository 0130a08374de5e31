//! Changes made, checked, and made again where needed.

use std::{io, net::IpAddr};

use crate::{
    diff::{Change, diff},
    error::Error,
    journal::{Device, Entry, Lent, StateDir},
    kernel::Kernel,
    marks,
    netlink::{neighbour, route, rule, wire::Message},
    query::{Found, is_gone},
    state::{Desired, Holding},
    sysctl,
};

/// How often a desired state is applied and checked before what is left is reported.
const ATTEMPTS: u32 = 3;

impl Kernel {
    /// Brings the kernel to the desired state: journal first, then each change, then checks, again if needed.
    ///
    /// One refused change does not stop the others. Returns what was found in the end, with its faults.
    ///
    /// # Errors
    /// Every error of the last attempt, [`Error::NotVerified`] if something is still outstanding.
    pub fn apply(&mut self, state_dir: &mut StateDir, desired: &Desired) -> Result<Found, Vec<Error>> {
        let mut errors = Vec::new();
        for _ in 0..ATTEMPTS {
            let found = self.query(desired).map_err(|error| vec![error])?;
            let changes = diff(&found.reachable(desired.state()), &found.state);
            if changes.is_empty() {
                return Ok(found);
            }
            errors = self.perform(state_dir, &found, changes);
        }
        let found = self.query(desired).map_err(|error| vec![error])?;
        let mut changes = diff(&found.reachable(desired.state()), &found.state);
        if changes.is_empty() {
            return Ok(found);
        }
        let outstanding = changes.len();
        let first = Box::new(changes.swap_remove(0));
        errors.push(Error::NotVerified {
            attempts: ATTEMPTS,
            outstanding,
            first,
        });
        Err(errors)
    }

    /// Makes changes in order and returns the errors. What has an old value is written down before.
    ///
    /// Without a journal the changes that need one are left out; guards, which are known by their marks, are not: a
    /// full disk must not open the way past them.
    pub(crate) fn perform(
        &mut self,
        state_dir: &mut StateDir,
        found: &Found,
        mut changes: Vec<Change>,
    ) -> Vec<Error> {
        let mut errors = Vec::new();
        if let Err(error) = state_dir.record(entries(state_dir, found, &changes)) {
            errors.push(error);
            changes.retain(|change| !matches!(change, Change::SetSysctl { .. } | Change::SetOffload { .. }));
        }
        let mut messages = Vec::new();
        for change in changes {
            match self.message(found, &change) {
                Some(message) => messages.push((change, message)),
                None => errors.extend(self.perform_setting(found, &change)),
            }
        }
        let (changes, messages): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
        match self.requests.change(messages) {
            Err(source) => errors.push(Error::Netlink {
                operation: "send changes",
                source,
            }),
            Ok(outcomes) => {
                let failed = changes.into_iter().zip(outcomes).filter_map(|(change, outcome)| {
                    let source = outcome.err().filter(|error| !is_done_already(&change, error))?;
                    Some(Error::Apply {
                        change: Box::new(change),
                        source,
                    })
                });
                errors.extend(failed);
            }
        }
        errors
    }

    /// The message for a change by rtnetlink; none for another or one that has become pointless.
    fn message(&mut self, found: &Found, change: &Change) -> Option<Message> {
        let ifindex_of = |leg| {
            let listed = found.devices.get(leg).map(|device| device.ifindex);
            listed.or_else(|| {
                found
                    .links
                    .iter()
                    .find(|link| link.name == *leg)
                    .map(|link| link.ifindex)
            })
        };
        match change {
            Change::AddRoute(route) => Some(route::add(route)),
            Change::AddRule(rule) => Some(rule::add(rule)),
            Change::RemoveRule(rule) => Some(rule::remove(rule, marks::PROTOCOL)),
            Change::RemoveRoute(route) => Some(route::remove(route, marks::PROTOCOL)),
            Change::SetSysctl { .. } | Change::SetOffload { .. } => None,
            Change::RemoveNeighbour { leg, address } | Change::ForgetNeighbour { leg, address } => {
                ifindex_of(leg).map(|ifindex| neighbour::remove(ifindex, *address))
            }
            Change::AddNeighbour {
                leg,
                address,
                replace,
            } => {
                let ifindex = ifindex_of(leg)?;
                let foreign = *replace && self.is_foreign(ifindex, *address);
                (!foreign).then(|| neighbour::add(ifindex, *address, *replace))
            }
        }
    }

    /// Looks once more before an entry is replaced: an operator may have made it permanent since.
    fn is_foreign(&mut self, ifindex: u32, address: IpAddr) -> bool {
        let entry = self
            .requests
            .get(neighbour::get(ifindex, address), neighbour::read);
        matches!(entry, Ok(Some(entry)) if entry.holding() == Holding::Foreign)
    }

    fn perform_setting(&mut self, found: &Found, change: &Change) -> Option<Error> {
        match change {
            Change::SetSysctl { leg, key, new, .. } => sysctl::write(leg, key, new).err(),
            Change::SetOffload {
                leg, feature, new, ..
            } => {
                let device = found.devices.get(leg)?;
                let outcome = self
                    .ethtool()
                    .map(|ethtool| ethtool.set_feature(device.ifindex, feature, *new));
                match outcome {
                    Ok(Ok(())) => None,
                    Ok(Err(source)) if is_gone(&source) => None,
                    Ok(Err(source)) => Some(Error::Apply {
                        change: Box::new(change.clone()),
                        source,
                    }),
                    Err(error) => Some(error),
                }
            }
            _ => None,
        }
    }
}

/// What has to be written down before the changes are made and is not there yet.
fn entries(state_dir: &StateDir, found: &Found, changes: &[Change]) -> Vec<Entry> {
    let place = state_dir.place();
    let entry = |device: Option<&Device>, lent| Entry {
        place: place.clone(),
        device: device.cloned(),
        lent,
    };
    let mut entries = Vec::new();
    let known = |lent: &Lent| {
        state_dir
            .entries()
            .iter()
            .any(|e| e.place == *place && e.lent == *lent)
    };
    if !known(&Lent::marks()) {
        entries.push(entry(None, Lent::marks()));
    }
    // A value that somebody changes again and again is the same debt each time.
    let owed = |entry: &Entry| {
        let same = |e: &&Entry| {
            e.place == entry.place
                && e.lent.is_about_the_same(&entry.lent)
                && matches!((&e.device, &entry.device), (Some(a), Some(b)) if a.is_same(b))
        };
        let last = state_dir.entries().iter().rev().find(same);
        last.is_some_and(|last| last.lent == entry.lent)
    };
    let settings = changes.iter().filter_map(|change| match change {
        Change::SetSysctl { leg, key, old, new } => {
            let lent = Lent::Sysctl {
                key: key.clone(),
                old: old.clone(),
                written: new.clone(),
            };
            Some(entry(Some(found.devices.get(leg)?), lent))
        }
        Change::SetOffload {
            leg,
            feature,
            old,
            new,
        } => {
            let lent = Lent::Offload {
                feature: feature.clone(),
                old: *old,
                written: *new,
            };
            Some(entry(Some(found.devices.get(leg)?), lent))
        }
        _ => None,
    });
    entries.extend(settings.filter(|entry| !owed(entry)));
    entries
}

/// Refusals that say that the change is not needed any more, or that the next check will see better.
fn is_done_already(change: &Change, error: &io::Error) -> bool {
    let code = error.raw_os_error().unwrap_or(0);
    match change {
        Change::AddRoute(_) | Change::AddRule(_) | Change::AddNeighbour { .. } => code == libc::EEXIST,
        Change::RemoveRule(_) | Change::RemoveRoute(_) => matches!(code, libc::ENOENT | libc::ESRCH),
        Change::RemoveNeighbour { .. } | Change::ForgetNeighbour { .. } => {
            matches!(code, libc::ENOENT | libc::ESRCH) || is_gone(error)
        }
        Change::SetSysctl { .. } | Change::SetOffload { .. } => false,
    }
}
