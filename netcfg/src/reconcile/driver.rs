//! The reconciling task: looks, compares, repairs, reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    time::sleep_until,
};

use super::{
    neighbours::{Suspect, gateways},
    pace::{Key, Pace},
    report::{Event, Report, Status},
};
use crate::{
    diff::{Change, diff},
    error::Error,
    journal::{Device, Lent, StateDir},
    kernel::Kernel,
    name::IfName,
    query::{Fault, Found, Parts},
    restore::Restored,
    state::{Desired, Holding, State, guard_rules},
    watch::{Picture, Wake, now},
};

/// Everything is compared after this, whatever events told: settings and offloads have none.
const QUIET: Duration = Duration::from_secs(10);
/// What could not be set right is tried again after this.
const RETRY: Duration = Duration::from_secs(2);
/// Rest between two passes; at least [`REST_SHARE`] times as long as the pass took.
const REST: Duration = Duration::from_millis(20);
const REST_SHARE: u32 = 4;
/// How often a pass applies and looks again before it leaves the rest to the next one.
const ATTEMPTS: u32 = 3;

/// A desired state and its number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Counts up with each one; 0 is "nothing asked for yet".
    pub(crate) revision: u64,
    pub(crate) desired: Desired,
}

/// Owns the desired state and keeps the kernel at it.
pub(crate) struct Reconciler {
    pub(crate) kernel: Kernel,
    pub(crate) state_dir: StateDir,
    pub(crate) wanted: watch::Receiver<Wanted>,
    pub(crate) picture: watch::Receiver<Picture>,
    pub(crate) wake: watch::Receiver<Wake>,
    pub(crate) suspects: mpsc::Receiver<Suspect>,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) memory: Memory,
}

/// What is remembered from pass to pass.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(super) pace: Pace,
    /// The state last verified: what differs from it was changed by somebody else.
    settled: Option<State>,
    /// Index each leg had then: a leg made anew owes nothing.
    settled_on: BTreeMap<IfName, u32>,
    /// Index each leg had when it was last seen under its name.
    seen: BTreeMap<IfName, u32>,
    /// Counters of the last wake-up.
    woken: Wake,
    /// Revision of the last pass over everything.
    revision: u64,
}

/// Why a pass is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Neighbours only.
    Neighbours,
    /// Everything.
    Everything,
}

impl Reconciler {
    /// Runs until told to stop; then puts everything back if told so (`true`), or leaves everything as it is.
    ///
    /// Cancel-safe at each wait: `changed`, `recv` and `sleep_until` lose nothing when dropped.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Option<Restored> {
        let mut everything_at = now();
        let mut not_before = now();
        let mut pass_at: Option<Instant> = None;
        let mut suspects = BTreeSet::new();
        loop {
            if self.wanted.borrow().revision == 0 {
                // Guards of a predecessor that crashed stand until it is known what is wanted.
                tokio::select! {
                    _ = stop.changed() => return None,
                    changed = self.wanted.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return None,
                    },
                }
            }
            let asked = self.wanted.borrow().revision != self.memory.revision;
            let due = if asked {
                now()
            } else {
                pass_at
                    .map_or(everything_at, |at| at.min(everything_at))
                    .max(not_before)
            };
            tokio::select! {
                stopped = stop.changed() => {
                    let put_back = stopped.is_ok() && *stop.borrow();
                    return put_back.then(|| self.kernel.undo(&mut self.state_dir));
                }
                Ok(()) = self.wanted.changed() => { everything_at = now(); continue }
                Ok(()) = self.picture.changed() => { pass_at = Some(now()); continue }
                Ok(()) = self.wake.changed() => { pass_at = Some(now()); continue }
                Some(suspect) = self.suspects.recv() => {
                    suspects.insert(suspect);
                    pass_at = Some(now());
                    continue;
                }
                () = sleep_until(due.into()) => {}
            }
            let start = now();
            let wake = *self.wake.borrow_and_update();
            let tables = (wake.links, wake.tables) != (self.memory.woken.links, self.memory.woken.tables);
            self.memory.woken = wake;
            let asked = self.wanted.borrow().revision != self.memory.revision;
            let full = asked || tables || start >= everything_at;
            let reach = if full {
                Reach::Everything
            } else {
                Reach::Neighbours
            };
            let settled = self.pass(reach, &std::mem::take(&mut suspects));
            if reach == Reach::Everything {
                everything_at = now() + if settled { QUIET } else { RETRY };
            }
            pass_at = self.memory.pace.deadline();
            not_before = now() + REST.max((now() - start) * REST_SHARE);
        }
    }

    /// One look at the kernel and what follows from it; whether everything is as desired.
    fn pass(&mut self, reach: Reach, suspects: &BTreeSet<Suspect>) -> bool {
        let wanted = self.wanted.borrow_and_update().clone();
        let gateways = gateways(&self.picture.borrow_and_update());
        let mut errors = Vec::new();
        let mut faults = BTreeSet::new();
        let mut repaired = BTreeSet::new();
        let mut outstanding = true;
        let mut guards_missing = true;
        for attempt in 0..=ATTEMPTS {
            let parts = match reach {
                Reach::Everything => Parts::ALL,
                Reach::Neighbours => Parts {
                    tables: false,
                    settings: false,
                },
            };
            let found = match self.kernel.query_parts(&wanted.desired, parts) {
                Ok(found) => found,
                Err(error) => {
                    errors = vec![error];
                    break;
                }
            };
            faults.clone_from(&found.faults);
            let target = self.target(&wanted.desired, &gateways, &found, reach, &mut faults, suspects);
            let changes = diff(&target, &found.state);
            repaired.extend(self.repairs(reach, &wanted, &found, &changes));
            guards_missing = changes
                .iter()
                .any(|change| matches!(change, Change::AddRoute(_) | Change::AddRule(_)));
            if changes.is_empty() {
                self.remember(reach, target, &found);
                outstanding = false;
                errors.clear();
                break;
            }
            if attempt == ATTEMPTS {
                break;
            }
            errors = self.kernel.perform(&mut self.state_dir, &found, changes);
        }
        if reach == Reach::Everything && wanted.revision != self.memory.revision {
            errors.extend(self.give_back(&wanted.desired));
            self.memory.revision = wanted.revision;
        }
        faults.extend(errors.iter().map(Fault::refused));
        let full = reach == Reach::Everything;
        self.report(Report {
            verified: (!outstanding && full).then_some(wanted.revision),
            guarded: (!guards_missing && full).then_some(wanted.revision),
            faults: full.then_some(faults),
            repaired: repaired.into_iter().collect(),
        });
        !outstanding
    }

    /// The kernel state to reach in this pass.
    fn target(
        &mut self,
        desired: &Desired,
        gateways: &BTreeSet<Key>,
        found: &Found,
        reach: Reach,
        faults: &mut BTreeSet<Fault>,
        suspects: &BTreeSet<Suspect>,
    ) -> State {
        let mut target = desired.state();
        let selection = self.select_neighbours(desired, gateways, found);
        for (name, leg) in &mut target.legs {
            leg.neighbours.retain(|_, holding| *holding == Holding::Forgotten);
            let admitted = selection.admitted.iter().filter(|(leg, _)| leg == name);
            leg.neighbours
                .extend(admitted.map(|(_, address)| (*address, Holding::Ours)));
        }
        self.ask(found, &selection.retry, suspects);
        match reach {
            Reach::Everything => {
                for (leg, now) in self.renamed(desired, found) {
                    target.rules.extend(guard_rules(&now, &desired.legs[&leg]));
                    faults.remove(&Fault::LegMissing { leg: leg.clone() });
                    faults.insert(Fault::LegRenamed { leg, now });
                }
            }
            Reach::Neighbours => {
                target.rules.clear();
                target.routes.clear();
                for leg in target.legs.values_mut() {
                    leg.sysctls.clear();
                    leg.offloads.clear();
                }
            }
        }
        found.reachable(target)
    }

    /// Legs that are there under another name.
    fn renamed(&mut self, desired: &Desired, found: &Found) -> Vec<(IfName, IfName)> {
        self.memory.seen.retain(|leg, _| desired.legs.contains_key(leg));
        self.memory.seen.extend(
            found
                .devices
                .iter()
                .map(|(leg, device)| (leg.clone(), device.ifindex)),
        );
        let missing = self
            .memory
            .seen
            .iter()
            .filter(|(leg, _)| !found.devices.contains_key(*leg));
        let alive = missing.filter_map(|(leg, ifindex)| {
            let link = found.links.iter().find(|link| link.ifindex == *ifindex)?;
            // Another leg of ours took it over: it is guarded as that.
            (!desired.legs.contains_key(&link.name)).then(|| (leg.clone(), link.name.clone()))
        });
        alive.collect()
    }

    /// Changes that are needed because somebody else changed what was settled.
    fn repairs(&self, reach: Reach, wanted: &Wanted, found: &Found, changes: &[Change]) -> Vec<Change> {
        let Some(mut settled) = self.memory.settled.clone() else {
            return Vec::new();
        };
        if wanted.revision != self.memory.revision {
            return Vec::new();
        }
        if reach == Reach::Neighbours {
            settled.rules.clear();
            settled.routes.clear();
        }
        let undone: BTreeSet<_> = diff(&settled, &found.state).into_iter().collect();
        let index = |leg: &IfName| found.devices.get(leg).map(|device| device.ifindex);
        let same_device = |change: &Change| {
            change
                .leg()
                .is_none_or(|leg| index(leg) == self.memory.settled_on.get(leg).copied())
        };
        changes
            .iter()
            .filter(|change| undone.contains(*change) && same_device(change))
            .cloned()
            .collect()
    }

    fn remember(&mut self, reach: Reach, target: State, found: &Found) {
        match (reach, &mut self.memory.settled) {
            (Reach::Everything, settled) => {
                *settled = Some(target);
                let devices = found.devices.iter();
                self.memory.settled_on = devices
                    .map(|(leg, device)| (leg.clone(), device.ifindex))
                    .collect();
            }
            (Reach::Neighbours, Some(settled)) => {
                for (name, leg) in target.legs {
                    if let Some(known) = settled.legs.get_mut(&name) {
                        known.neighbours = leg.neighbours;
                    }
                }
            }
            (Reach::Neighbours, None) => {}
        }
    }

    /// Puts back settings and offloads that are no longer asked for.
    fn give_back(&mut self, desired: &Desired) -> Vec<Error> {
        let released = |device: &Device, lent: &Lent| {
            let leg = desired.legs.get(&device.name);
            match lent {
                Lent::Sysctl { key, .. } => leg.is_none_or(|leg| !leg.sysctls.contains_key(key)),
                Lent::Offload { feature, .. } => leg.is_none_or(|leg| !leg.offloads.contains_key(feature)),
                Lent::Marks { .. } => false,
            }
        };
        let mut restored = Restored::default();
        let kept = self.kernel.put_back(&self.state_dir, released, &mut restored);
        if kept != self.state_dir.entries()
            && let Err(error) = self.state_dir.replace(kept)
        {
            restored.errors.push(error);
        }
        for line in restored.lines {
            tracing::info!(event = %line, "no longer asked for");
        }
        restored.errors
    }
}
