//! What operators order of the pair's ownership: given to the HA process, answered when it is done.

use std::time::Duration;

use onearm_ha::auth::Health;
use onearm_ha::election::{Event, Role, Stance, Transition, Unable};
use onearm_ha::process::ToHa;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Running;
use crate::control::{HaAnswer, HaRequest, NodeState, Refusal, Severity};
use crate::daemon::node::RETRY;
use crate::daemon::stance;

/// An order that has not come to an end by then has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// An order with the way back.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) request: HaRequest,
    pub(crate) answer: oneshot::Sender<Result<HaAnswer, Refusal>>,
}

/// An order that is being carried out.
#[derive(Debug)]
pub(super) struct Pending {
    order: Order,
    begun: Instant,
    /// This node owned, and does not any more.
    let_go: bool,
}

impl Pending {
    pub(super) fn due(&self) -> Instant {
        self.begun + PATIENCE
    }
}

impl Running {
    pub(super) async fn order(&mut self, order: Order) {
        if self.pending.is_some() {
            let text = "another order is being carried out: try again in a moment";
            answer(order, Err(Refusal::state(text)));
            return;
        }
        let state = self.node.ownership.state;
        let peer_owns = self.node.ownership.peer_is_active;
        match (order.request, state) {
            (
                HaRequest::Switchover { force } | HaRequest::Maintenance { on: true, force },
                NodeState::Active,
            ) => {
                self.begin(order, &ToHa::HandOver { force });
            }
            (HaRequest::Switchover { force: false }, NodeState::Standby) if self.auth.is_some() => {
                self.begin(order, &ToHa::TakeOver);
            }
            (HaRequest::Switchover { .. }, NodeState::Standby) => {
                let text = format!(
                    "{} is the Standby: run `onearm ha switchover` on {}",
                    self.node.loaded.node.name,
                    self.peer_name()
                );
                answer(order, Err(Refusal::state(text)));
            }
            (HaRequest::Switchover { .. }, NodeState::Initialize) => {
                let text = format!(
                    "{} takes no part in the election ({}): see onearm status",
                    self.node.loaded.node.name,
                    self.node.board.facts().reason
                );
                answer(order, Err(Refusal::state(text)));
            }
            (
                HaRequest::Maintenance {
                    on: true,
                    force: false,
                },
                _,
            ) if !peer_owns => {
                let text = format!(
                    "{} is not known to own the addresses: with this node in maintenance nobody would serve; look at it with \
                     onearm status there, or use --force",
                    self.peer_name()
                );
                answer(order, Err(Refusal::state(text)));
            }
            (HaRequest::Maintenance { on, .. }, _) => {
                let wanted = if on { Stance::Maintenance } else { Stance::Normal };
                self.take_stance(order, wanted, None).await;
            }
            (HaRequest::Hold { on }, _) => {
                if self.stance == Stance::Maintenance {
                    let text = "this node is in maintenance: end that first (onearm ha maintenance --off)";
                    answer(order, Err(Refusal::state(text)));
                    return;
                }
                let wanted = if on { Stance::Hold } else { Stance::Normal };
                self.take_stance(order, wanted, None).await;
            }
        }
    }

    /// Whether anything can be handed to the peer, or be taken from it.
    pub(super) fn tell_peer_legs(&mut self) {
        let known = self.node.knows_peer_legs();
        let Some((ha, _)) = &mut self.ha else { return };
        if let Err(error) = ha.tell_peer_legs(known) {
            tracing::warn!(
                error = format!("{error:#}"),
                "the HA process was not told of the peer's legs"
            );
            self.again_by(Instant::now() + RETRY);
        }
    }

    fn begin(&mut self, order: Order, message: &ToHa) {
        let sent = match &self.ha {
            Some((ha, _)) => ha.order(message).map_err(|error| format!("{error:#}")),
            None => Err("it does not run".to_owned()),
        };
        match sent {
            Ok(()) => {
                self.pending = Some(Pending {
                    order,
                    begun: Instant::now(),
                    let_go: false,
                });
            }
            Err(error) => {
                let text = format!("the HA process takes no orders: {error}; see onearm status");
                answer(order, Err(Refusal::internal(text)));
            }
        }
    }

    /// The role changed: part of an order that is being carried out, perhaps.
    pub(super) async fn ordered_transition(&mut self, transition: &Transition) {
        let Some(pending) = &mut self.pending else { return };
        match (transition.prev, transition.next) {
            (_, Role::Active) => {
                let took = pending.begun.elapsed();
                let Some(pending) = self.pending.take() else {
                    return;
                };
                let name = self.node.loaded.node.name.clone();
                let owner = (name.clone(), format!("{name} owns since now"));
                self.done(pending.order, owner, took);
            }
            (Role::Active, _) if transition.event == Event::HandOver => {
                pending.let_go = true;
                if !self.is_maintenance_pending() {
                    return;
                }
                // Before anybody could make this node own again.
                self.set_stance(Stance::Maintenance).await;
            }
            _ => {}
        }
    }

    fn is_maintenance_pending(&self) -> bool {
        let request = self.pending.as_ref().map(|pending| pending.order.request);
        matches!(request, Some(HaRequest::Maintenance { on: true, .. }))
    }

    /// What the peer is may have become known.
    pub(super) async fn ordered_state(&mut self) {
        let let_go = self.pending.as_ref().is_some_and(|pending| pending.let_go);
        if !let_go || !self.node.ownership.peer_is_active {
            return;
        }
        let Some(pending) = self.pending.take() else {
            return;
        };
        let took = pending.begun.elapsed();
        let peer = self.peer_name();
        if let HaRequest::Maintenance { .. } = pending.order.request {
            self.take_stance(pending.order, Stance::Maintenance, Some(took))
                .await;
            return;
        }
        let how = if self.auth.is_some() {
            ""
        } else {
            " (without authentication the peer could not be armed: packets were lost until it announced)"
        };
        self.done(
            pending.order,
            (peer.clone(), format!("{peer} owns since now{how}")),
            took,
        );
    }

    fn done(&self, order: Order, (owner, what): (String, String), took: Duration) {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let text = format!("{what}, {took_ms} ms after the order");
        self.node
            .board
            .record(Severity::Info, "switched-over", text.clone(), "");
        let reply = HaAnswer {
            node: self.node.loaded.node.name.clone(),
            state: self.node.ownership.state,
            owner: Some(owner),
            took_ms: Some(took_ms),
            message: text,
        };
        answer(order, Ok(reply));
    }

    /// The HA process did nothing of what it was ordered.
    pub(super) fn refused(&mut self, unable: Unable) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let text = why(unable, &self.node.loaded.node.name, &self.peer_name());
        answer(pending.order, Err(Refusal::state(text)));
    }

    /// Time is up, or the HA process is gone.
    pub(super) fn give_order_up(&mut self, reason: &str) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let what = if pending.let_go {
            format!(
                "{} has let go, but {} is not known to own yet: see onearm status on both nodes ({reason})",
                self.node.loaded.node.name,
                self.peer_name()
            )
        } else {
            format!("nothing has changed: {reason}")
        };
        answer(pending.order, Err(Refusal::internal(what)));
    }

    async fn take_stance(&mut self, order: Order, wanted: Stance, took: Option<Duration>) {
        self.set_stance(wanted).await;
        let name = self.node.loaded.node.name.clone();
        let what = match wanted {
            Stance::Normal => format!("{name} takes part as configured"),
            Stance::Hold => format!(
                "ownership stays where it is; {name} takes over only from a peer that is dead or has let go (onearm ha hold --off ends this)"
            ),
            Stance::Maintenance => format!("{name} owns nothing until onearm ha maintenance --off"),
        };
        let owner = match self.node.ownership.state {
            NodeState::Active => Some(name.clone()),
            NodeState::Standby | NodeState::Initialize if self.node.ownership.peer_is_active => {
                Some(self.peer_name())
            }
            NodeState::Standby | NodeState::Initialize => None,
        };
        self.node
            .board
            .record(Severity::Info, "stance-changed", what.clone(), "");
        let reply = HaAnswer {
            node: name,
            state: self.node.ownership.state,
            owner,
            took_ms: took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            message: what,
        };
        answer(order, Ok(reply));
    }

    async fn set_stance(&mut self, wanted: Stance) {
        self.stance = wanted;
        self.keep_ha().await;
    }

    /// What both operators want, where it is not the usual.
    pub(super) fn show_stances(&self, own: Stance, peer: Option<Stance>) {
        let peer_name = self.peer_name();
        let mut warnings = Vec::new();
        match own {
            Stance::Normal => {}
            Stance::Hold => warnings.push(
                "HOLD: ownership moves neither by priority nor by health until onearm ha hold --off"
                    .to_owned(),
            ),
            Stance::Maintenance => warnings.push(
                "MAINTENANCE: this node owns nothing, even if nobody does, until onearm ha maintenance --off"
                    .to_owned(),
            ),
        }
        match peer {
            Some(Stance::Hold) => warnings.push(format!(
                "HOLD on {peer_name}: ownership moves neither by priority nor by health"
            )),
            Some(Stance::Maintenance) => warnings.push(format!(
                "MAINTENANCE on {peer_name}: it owns nothing, even if this node dies, until onearm ha maintenance --off there"
            )),
            Some(Stance::Normal) | None => {}
        }
        self.node.board.warn("stance", warnings);
        let mut facts = self.node.board.facts();
        facts.stance = stance::word(own);
        facts.peer_stance = peer.map(stance::word);
    }

    pub(super) fn peer_name(&self) -> String {
        let view = self.streaming.as_ref().map(|streaming| streaming.view.borrow());
        let session = view.as_ref().and_then(|view| view.session.as_ref());
        session.map_or_else(|| "the peer".to_owned(), |open| open.agreed.peer.name.clone())
    }
}

/// The client may have gone.
fn answer(order: Order, reply: Result<HaAnswer, Refusal>) {
    order.answer.send(reply).unwrap_or_default();
}

/// Cause and remedy.
fn why(unable: Unable, own: &str, peer: &str) -> String {
    let (cause, remedy) = match unable {
        Unable::NotActive => (format!("{own} owns nothing"), "run it on the Active".to_owned()),
        Unable::NotStandby => (format!("{own} is no Standby"), "see onearm status".to_owned()),
        Unable::NotAuthenticated => (
            "without authentication nobody can be asked to hand over".to_owned(),
            format!("run it on {peer}"),
        ),
        Unable::InMaintenance => (
            format!("{own} is in maintenance"),
            "end that first (onearm ha maintenance --off)".to_owned(),
        ),
        Unable::PeerLegsUnknown => (
            format!("the MACs of the legs of {peer} are not known yet, so nothing can be passed on to it"),
            format!("try again in a moment; see the stream in onearm status{FORCE}"),
        ),
        Unable::PeerSilent => (
            format!("{peer} does not prove that it hears {own}"),
            format!("look whether onearmd runs there and both can reach each other (onearm status){FORCE}"),
        ),
        Unable::PeerNotStandby => (
            format!("{peer} takes no part in the election"),
            format!("onearm status there says why{FORCE}"),
        ),
        Unable::PeerNotActive => (
            format!("{peer} owns nothing"),
            "see onearm status there".to_owned(),
        ),
        Unable::PeerInMaintenance => (
            format!("{peer} is in maintenance"),
            "end that first (onearm ha maintenance --off there)".to_owned(),
        ),
        Unable::PeerUnfit(health) => (
            format!("{peer} could not serve: {}", lacks(health)),
            format!("onearm status there says more{FORCE}"),
        ),
        Unable::NoAnswer => (
            format!("{peer} did not do its part in time"),
            format!("try again; onearm events there may say more{FORCE}"),
        ),
    };
    format!("nothing has changed: {cause}; {remedy}")
}

const FORCE: &str = "; --force on the Active does not ask";

/// What a node cannot do.
fn lacks(health: Health) -> String {
    let all = [
        (Health::DATAPLANE, "a leg has no program"),
        (Health::RECEIVES, "its leg receives nothing"),
        (Health::LEGS, "a leg has no link"),
    ];
    let missing: Vec<_> = all
        .iter()
        .filter(|(bit, _)| !health.has(*bit))
        .map(|(_, text)| *text)
        .collect();
    missing.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{lacks, why};
    use onearm_ha::auth::Health;
    use onearm_ha::election::Unable;

    #[test]
    fn every_refusal_names_a_cause_and_what_to_do() {
        let unfit = Health::RECEIVES.with(Health::LEGS);
        for unable in [
            Unable::NotActive,
            Unable::NotStandby,
            Unable::NotAuthenticated,
            Unable::InMaintenance,
            Unable::PeerLegsUnknown,
            Unable::PeerSilent,
            Unable::PeerNotStandby,
            Unable::PeerNotActive,
            Unable::PeerInMaintenance,
            Unable::PeerUnfit(unfit),
            Unable::NoAnswer,
        ] {
            let text = why(unable, "lb1", "lb2");
            assert!(
                text.starts_with("nothing has changed: ") && text.contains("; "),
                "{text}"
            );
        }
        assert_eq!(lacks(unfit), "a leg has no program");
    }
}
