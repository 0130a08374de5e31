//! The legs: attaching the program when an interface is there, and again when it was made anew (B130, B144).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onearm_dataplane::{AttachMode, Attached, AttachedMode, Dataplane, Error, LegAttach, egress_gate};
use onearm_netcfg::Picture;

use crate::config::{Attach, Leg};
use crate::control::LegStatus;

use super::gates::Gates;
use super::plan;

/// How a leg's program is attached now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Interface it is attached to.
    pub(crate) ifindex: u32,
    /// In the kernel's stack, not in the driver.
    pub(crate) generic: bool,
    /// Why not natively, or empty.
    pub(crate) reason: String,
}

impl Bound {
    fn of(attached: &Attached) -> Self {
        Self {
            ifindex: attached.ifindex,
            generic: attached.mode == AttachedMode::Generic,
            reason: attached
                .reason
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
        }
    }
}

/// Legs by name, and what stands in the way of those that are not bound.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    bound: BTreeMap<String, Bound>,
    faults: BTreeMap<String, String>,
}

/// What a pass over the legs changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The set of attached programs.
    pub(crate) links: bool,
}

/// Blocking calls into the dataplane lock it; a panic elsewhere leaves the kernel's maps as they are.
pub(crate) fn lock(dataplane: &Mutex<Dataplane>) -> MutexGuard<'_, Dataplane> {
    dataplane.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Legs {
    /// How a leg is bound.
    pub(crate) fn bound(&self, leg: &Leg) -> Option<&Bound> {
        self.bound.get(&leg.name)
    }

    /// Whether every leg that carries traffic is bound.
    pub(crate) fn all_bound(&self, configured: &[Leg]) -> bool {
        configured
            .iter()
            .filter(|l| l.role.carries_traffic())
            .all(|l| self.bound.contains_key(&l.name))
    }

    /// Legs that are there and not bound, or bound to an interface that is no more.
    pub(crate) fn unbound<'a>(&self, configured: &'a [Leg], picture: &Picture) -> Vec<(&'a Leg, u32)> {
        let present = |leg: &'a Leg| Some((leg, plan::leg_picture(leg, picture)?.link?.ifindex));
        let traffic = configured.iter().filter(|l| l.role.carries_traffic());
        traffic
            .filter_map(present)
            .filter(|(leg, ifindex)| self.bound(leg).is_none_or(|b| b.ifindex != *ifindex))
            .collect()
    }

    /// Forgets legs whose interface is gone: their program went with it.
    pub(crate) async fn release(
        &mut self,
        configured: &[Leg],
        picture: &Picture,
        dataplane: &Arc<Mutex<Dataplane>>,
    ) -> Changed {
        let mut changed = Changed::default();
        for leg in configured {
            let present = plan::leg_picture(leg, picture)
                .and_then(|l| l.link)
                .map(|l| l.ifindex);
            let Some(bound) = self.bound.get(&leg.name) else {
                continue;
            };
            if present == Some(bound.ifindex) {
                continue;
            }
            let ifindex = bound.ifindex;
            self.unbind(leg, ifindex, dataplane).await;
            changed.links = true;
        }
        changed
    }

    /// Whether a leg's program is attached generically.
    pub(crate) fn has_generic(&self) -> bool {
        self.bound.values().any(|bound| bound.generic)
    }

    /// Detaches native programs where another leg could not have one: what they send by that leg would be lost. Not those
    /// the file asks for.
    pub(crate) async fn release_unfit(
        &mut self,
        configured: &[Leg],
        dataplane: &Arc<Mutex<Dataplane>>,
    ) -> Changed {
        let mut changed = Changed::default();
        if !self.has_generic() {
            return changed;
        }
        for leg in configured.iter().filter(|leg| leg.attach == Attach::Auto) {
            if let Some(ifindex) = self.bound(leg).filter(|b| !b.generic).map(|b| b.ifindex) {
                self.unbind(leg, ifindex, dataplane).await;
                changed.links = true;
            }
        }
        changed
    }

    async fn unbind(&mut self, leg: &Leg, ifindex: u32, dataplane: &Arc<Mutex<Dataplane>>) {
        self.bound.remove(&leg.name);
        let dataplane = Arc::clone(dataplane);
        let detached = tokio::task::spawn_blocking(move || lock(&dataplane).detach(ifindex)).await;
        if let Ok(Err(error)) = detached {
            tracing::warn!(ifname = %leg.interface, %error, "program not detached");
        }
    }

    /// Attaches the program and the egress gate to one leg, generically if `generic` and the leg may be. Its guards must be
    /// in place.
    pub(crate) async fn bind(
        &mut self,
        leg: &Leg,
        ifindex: u32,
        generic: bool,
        dataplane: &Arc<Mutex<Dataplane>>,
        gates: &Arc<Mutex<Gates>>,
    ) -> Changed {
        let wanted = LegAttach {
            ifindex,
            name: leg.interface.clone(),
            mode: match leg.attach {
                Attach::Auto if generic => AttachMode::Generic,
                Attach::Auto => AttachMode::Auto,
                Attach::Native => AttachMode::Native,
                Attach::Generic => AttachMode::Generic,
            },
        };
        let (dataplane, gates) = (Arc::clone(dataplane), Arc::clone(gates));
        let attached = tokio::task::spawn_blocking(move || {
            let mut gates = gates.lock().unwrap_or_else(PoisonError::into_inner);
            attach(&mut lock(&dataplane), &mut gates, &wanted)
        });
        match attached.await.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(bound) => {
                tracing::info!(ifname = %leg.interface, ifindex, generic = bound.generic, reason = %bound.reason, "leg attached");
                self.faults.remove(&leg.name);
                self.bound.insert(leg.name.clone(), bound);
                Changed { links: true }
            }
            Err(error) => {
                tracing::warn!(ifname = %leg.interface, ifindex, %error, "leg not attached");
                self.faults.insert(leg.name.clone(), error);
                Changed::default()
            }
        }
    }

    /// Puts gates back that somebody else took away. Names of the interfaces that were without one, and what failed.
    pub(crate) async fn restore_gates(
        &self,
        configured: &[Leg],
        dataplane: &Arc<Mutex<Dataplane>>,
        gates: &Arc<Mutex<Gates>>,
    ) -> Vec<(String, Result<(), String>)> {
        let bound: Vec<(String, u32)> = configured
            .iter()
            .filter_map(|leg| Some((leg.interface.clone(), self.bound(leg)?.ifindex)))
            .collect();
        let (dataplane, gates) = (Arc::clone(dataplane), Arc::clone(gates));
        let look = move || {
            let missing = bound
                .into_iter()
                .filter(|(name, ifindex)| matches!(egress_gate::is_present(*ifindex, name), Ok(false)));
            let mut restored = Vec::new();
            for (name, ifindex) in missing {
                let mut gates = gates.lock().unwrap_or_else(PoisonError::into_inner);
                let put = put_gate(&mut lock(&dataplane), &mut gates, ifindex, &name);
                restored.push((name, put));
            }
            restored
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    /// Notes why a leg is not bound.
    pub(crate) fn fault(&mut self, leg: &Leg, why: String) {
        self.faults.insert(leg.name.clone(), why);
    }

    /// The legs for status.
    pub(crate) fn status(&self, configured: &[Leg], picture: &Picture) -> Vec<LegStatus> {
        configured
            .iter()
            .map(|leg| self.leg_status(leg, picture))
            .collect()
    }

    fn leg_status(&self, leg: &Leg, picture: &Picture) -> LegStatus {
        let seen = plan::leg_picture(leg, picture);
        let link = seen.and_then(|s| s.link);
        let bound = self.bound(leg);
        let reason = match (link, bound) {
            (None, _) => format!("there is no interface {}", leg.interface),
            (Some(_), Some(bound)) => bound.reason.clone(),
            (Some(_), None) => self.faults.get(&leg.name).cloned().unwrap_or_default(),
        };
        LegStatus {
            name: leg.name.clone(),
            interface: leg.interface.clone(),
            vlan: leg.vlan,
            role: leg.role.as_str().to_owned(),
            attach: leg.attach.as_str().to_owned(),
            mode: bound
                .map_or("none", |b| if b.generic { "generic" } else { "native" })
                .to_owned(),
            reason,
            mac: link.and_then(|l| l.mac).map(|mac| mac.to_string()),
            addresses: seen.map(plan::addresses).unwrap_or_default(),
            carrier: link.is_some_and(|l| l.carrier),
        }
    }
}

/// The gate first: from the moment the program answers for addresses, nothing may announce them without the lease.
fn attach(dataplane: &mut Dataplane, gates: &mut Gates, wanted: &LegAttach) -> Result<Bound, String> {
    put_gate(dataplane, gates, wanted.ifindex, &wanted.name)?;
    // An earlier pass has been here.
    if let Some(attached) = dataplane.attached().iter().find(|a| a.ifindex == wanted.ifindex) {
        return Ok(Bound::of(attached));
    }
    dataplane
        .attach(wanted)
        .map(Bound::of)
        .map_err(|error| told(&error))
}

/// Written down before and after.
fn put_gate(dataplane: &mut Dataplane, gates: &mut Gates, ifindex: u32, name: &str) -> Result<(), String> {
    let unwritten = |error: std::io::Error| format!("the journal of egress gates cannot be written: {error}");
    let intent = egress_gate::intended(ifindex, name).map_err(|error| told(&error))?;
    gates.record(intent).map_err(unwritten)?;
    let gate = dataplane
        .add_egress_gate(ifindex, name)
        .map_err(|error| told(&error))?;
    gates.record(gate).map_err(unwritten)
}

/// An error with its causes.
fn told(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
