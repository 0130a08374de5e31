//! What operators order of the pair's ownership: given to the HA process, answered when it is done.

use std::io;
use std::time::Duration;

use onearm_ha::auth::Health;
use onearm_ha::election::{Refused, Stance, Transition, Unable};
use onearm_ha::process::ToHa;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Running;
use super::election::node_state;
use crate::control::{HaAnswer, HaRequest, NodeState, Refusal, Severity};
use crate::daemon::stance;

/// An order that has not come to an end by then has failed: the HA process waits up to 5 s for the connections to be shared.
const PATIENCE: Duration = Duration::from_secs(7);

/// An order with the ways back to all who gave it.
#[derive(Debug)]
pub(crate) struct Order {
    request: HaRequest,
    answers: Vec<oneshot::Sender<Result<HaAnswer, Refusal>>>,
}

impl Order {
    pub(crate) fn new(request: HaRequest, answer: oneshot::Sender<Result<HaAnswer, Refusal>>) -> Self {
        Self {
            request,
            answers: vec![answer],
        }
    }
}

/// An order that is being carried out.
#[derive(Debug)]
pub(super) struct Pending {
    order: Order,
    begun: Instant,
    /// What this node was then.
    begun_as: NodeState,
    /// This node owned, and does not any more.
    let_go: bool,
    /// It waited so long until the new owner had the connections, and does so since then.
    waited: Duration,
    waits_since: Option<Instant>,
}

/// What a further order means for one under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Further {
    /// The same: both are answered.
    Joins,
    /// The same, whatever the peer is.
    Forces,
    /// It ends one that waits.
    EndsIt,
    Refused,
}

/// What a change of this node's role means for an order under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It goes on.
    GoesOn,
    /// This node was to own, and does.
    TookOver,
    /// This node was to own no more whatever the peer does, and owns no more.
    LetGo,
    /// This node owns again what the peer was to own.
    TookBack,
}

impl Pending {
    pub(super) fn due(&self) -> Instant {
        self.begun + PATIENCE
    }

    fn further(&self, request: HaRequest) -> Further {
        let forced = match self.order.request {
            HaRequest::Switchover { .. } => Some(HaRequest::Switchover { force: true }),
            HaRequest::Maintenance { on: true, .. } => Some(HaRequest::Maintenance {
                on: true,
                force: true,
            }),
            HaRequest::Maintenance { on: false, .. } | HaRequest::Hold { .. } => None,
        };
        if request == self.order.request {
            Further::Joins
        } else if forced == Some(request) && self.begun_as == NodeState::Active && !self.let_go {
            Further::Forces
        } else if request == (HaRequest::Hold { on: true }) && self.waits_since.is_some() {
            Further::EndsIt
        } else {
            Further::Refused
        }
    }

    fn times(&self, now: Instant) -> Times {
        let waits = self.waits_since.map(|since| now.saturating_duration_since(since));
        Times {
            took: now.saturating_duration_since(self.begun),
            waited: self.waited + waits.unwrap_or_default(),
        }
    }

    /// The HA process says whether it waits for the connections to be shared.
    fn note_waiting(&mut self, waits: bool, now: Instant) {
        if let Some(since) = self.waits_since.take() {
            self.waited += now.saturating_duration_since(since);
        }
        self.waits_since = waits.then_some(now);
    }

    fn turn(&mut self, prev: NodeState, next: NodeState) -> Turn {
        match (prev, next) {
            (_, NodeState::Active) if self.begun_as == NodeState::Standby => Turn::TookOver,
            (_, NodeState::Active) => Turn::TookBack,
            (NodeState::Active, _) => {
                self.let_go = true;
                let forced = HaRequest::Maintenance {
                    on: true,
                    force: true,
                };
                if self.order.request == forced {
                    Turn::LetGo
                } else {
                    Turn::GoesOn
                }
            }
            _ => Turn::GoesOn,
        }
    }
}

impl Running {
    pub(super) async fn order(&mut self, order: Order) {
        let Some(order) = self.join(order) else { return };
        let state = self.node.ownership.state;
        let peer_owns = self.node.ownership.peer_is_active;
        match (order.request, state) {
            (
                HaRequest::Maintenance {
                    on: true,
                    force: false,
                },
                NodeState::Active,
            ) if self.auth.is_none() => {
                let text = format!(
                    "without authentication nothing tells whether {} can take over: with this node in maintenance perhaps nobody \
                     would serve; look at it with onearm status there, and use --force",
                    self.peer_name()
                );
                answer(order, Err(Refusal::state(text)));
            }
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
            (HaRequest::Maintenance { on: false, .. }, _) if self.stance != Stance::Maintenance => {
                let message = format!(
                    "nothing has changed: {} is not in maintenance",
                    self.node.loaded.node.name
                );
                let reply = self.reply(message, None);
                answer(order, Ok(reply));
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

    /// Joins an order to one under way, or refuses it for that; `None`: nothing is left to be done with it.
    fn join(&mut self, order: Order) -> Option<Order> {
        let Some(pending) = &mut self.pending else {
            return Some(order);
        };
        let sent = match (pending.further(order.request), &self.ha) {
            (Further::EndsIt, _) => return Some(order),
            (Further::Joins, _) => Ok(()),
            (Further::Forces, Some((ha, _))) => ha.order(&ToHa::HandOver { force: true }),
            (Further::Forces, None) | (Further::Refused, _) => {
                let text = "another order is being carried out: try again in a moment";
                answer(order, Err(Refusal::state(text)));
                return None;
            }
        };
        match sent {
            Ok(()) => {
                pending.order.request = order.request;
                pending.order.answers.extend(order.answers);
            }
            Err(error) => answer(order, Err(takes_none(&format!("{error:#}")))),
        }
        None
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
                    begun_as: self.node.ownership.state,
                    let_go: false,
                    waited: Duration::ZERO,
                    waits_since: None,
                });
            }
            Err(error) => {
                answer(order, Err(takes_none(&error)));
            }
        }
    }

    /// The role changed: part of an order that is being carried out, perhaps.
    pub(super) async fn ordered_transition(&mut self, transition: &Transition) {
        let Some(pending) = &mut self.pending else { return };
        match pending.turn(node_state(transition.prev), node_state(transition.next)) {
            Turn::GoesOn => {}
            Turn::TookOver => {
                let Some(pending) = self.pending.take() else {
                    return;
                };
                let name = self.node.loaded.node.name.clone();
                self.done(pending, &format!("{name} owns since now"));
            }
            // Before it could own again.
            Turn::LetGo => {
                if let Some(pending) = self.pending.take() {
                    let took = pending.times(Instant::now());
                    self.take_stance(pending.order, Stance::Maintenance, Some(took))
                        .await;
                }
            }
            Turn::TookBack => self.give_order_up("it did not take over"),
        }
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
        let peer = self.peer_name();
        if let HaRequest::Maintenance { .. } = pending.order.request {
            let took = pending.times(Instant::now());
            self.take_stance(pending.order, Stance::Maintenance, Some(took))
                .await;
            return;
        }
        let how = if self.auth.is_some() {
            ""
        } else {
            " (without authentication the peer could not be armed: packets were lost until it announced)"
        };
        self.done(pending, &format!("{peer} owns since now{how}"));
    }

    fn done(&self, pending: Pending, what: &str) {
        let times = pending.times(Instant::now());
        let text = format!("{what}, {}", times.told());
        self.node
            .board
            .record(Severity::Info, "switched-over", text.clone(), "");
        let reply = self.reply(text, Some(times));
        answer(pending.order, Ok(reply));
    }

    /// The HA process waits with a hand-over, or waits no more.
    pub(super) fn hand_over_waits(&mut self, waits: bool) {
        if let Some(pending) = &mut self.pending {
            pending.note_waiting(waits, Instant::now());
        }
        if waits {
            let text = self.waiting();
            self.node.board.record(
                Severity::Info,
                "hand-over-waits",
                text,
                "see the flow sync in onearm status",
            );
        }
        self.show_waiting(waits);
    }

    /// What the status shows while a hand-over waits.
    pub(super) fn show_waiting(&self, waits: bool) {
        let text = waits.then(|| self.waiting());
        self.node.board.warn("hand-over", text.into_iter().collect());
    }

    fn waiting(&self) -> String {
        let (own, peer) = (&self.node.loaded.node.name, self.peer_name());
        let (from, to) = match self.node.ownership.state {
            NodeState::Active => (own, &peer),
            NodeState::Standby | NodeState::Initialize => (&peer, own),
        };
        format!("a hand-over waits until {to} has the connections of {from}, for 4 s at most")
    }

    fn reply(&self, message: String, times: Option<Times>) -> HaAnswer {
        let name = &self.node.loaded.node.name;
        let owner = match self.node.ownership.state {
            NodeState::Active => Some(name.clone()),
            NodeState::Standby | NodeState::Initialize if self.node.ownership.peer_is_active => {
                Some(self.peer_name())
            }
            NodeState::Standby | NodeState::Initialize => None,
        };
        HaAnswer {
            node: name.clone(),
            state: self.node.ownership.state,
            owner,
            took_ms: times.map(|times| millis(times.took)),
            waited_ms: times
                .filter(|times| !times.waited.is_zero())
                .map(|times| millis(times.waited)),
            message,
        }
    }

    /// The HA process did nothing of what it was ordered, or of what the peer asked for.
    pub(super) fn refused(&mut self, unable: Unable) {
        let (cause, remedy) = why(unable, &self.node.loaded.node.name, &self.peer_name());
        if let Some(pending) = self.pending.take() {
            let waited = match pending.times(Instant::now()).waited {
                Duration::ZERO => String::new(),
                waited => format!(" (waited for {} ms)", millis(waited)),
            };
            let text = format!("nothing has changed: {cause}{waited}; {remedy}");
            answer(pending.order, Err(Refusal::state(text)));
        } else {
            let text = format!("nothing is handed over: {cause}");
            self.node
                .board
                .record(Severity::Warning, "hand-over-refused", text, remedy);
        }
    }

    /// Time is up, or the HA process is gone.
    pub(super) fn give_order_up(&mut self, reason: &str) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let names = (self.node.loaded.node.name.as_str(), self.peer_name());
        let text = came_to_nothing(&pending, self.node.ownership.state, names, reason);
        answer(pending.order, Err(Refusal::internal(text)));
    }

    async fn take_stance(&mut self, order: Order, wanted: Stance, took: Option<Times>) {
        let kept = self.set_stance(wanted).await;
        let name = &self.node.loaded.node.name;
        let what = match wanted {
            Stance::Normal => format!("{name} takes part as configured"),
            Stance::Hold => format!(
                "ownership stays where it is; {name} takes over only from a peer that is dead or has let go (onearm ha hold --off ends this)"
            ),
            Stance::Maintenance => format!("{name} owns nothing until onearm ha maintenance --off"),
        };
        self.node
            .board
            .record(Severity::Info, "stance-changed", what.clone(), "");
        let message = match took.filter(|times| !times.waited.is_zero()) {
            Some(times) => format!("{what}; {}", times.told()),
            None => what.clone(),
        };
        let reply = kept.map(|()| self.reply(message, took)).map_err(|error| {
            Refusal::internal(format!(
                "{what}; but this could not be kept across a restart of onearmd: {error}"
            ))
        });
        answer(order, reply);
    }

    /// Changes it now and for good; if it cannot be kept, only until onearmd ends.
    async fn set_stance(&mut self, wanted: Stance) -> io::Result<()> {
        self.stance = wanted;
        self.keep_ha().await;
        if self.ha.is_none() {
            self.show_stances(wanted, None);
        }
        let directory = self.files.state_dir.clone();
        let kept = spawn_blocking(move || stance::store(&directory, wanted)).await;
        kept.map_err(io::Error::other).flatten()
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

/// Clients may have gone.
fn answer(order: Order, reply: Result<HaAnswer, Refusal>) {
    let mut answers = order.answers.into_iter();
    let first = answers.next();
    for answer in answers {
        answer.send(reply.clone()).unwrap_or_default();
    }
    if let Some(answer) = first {
        answer.send(reply).unwrap_or_default();
    }
}

fn takes_none(error: &str) -> Refusal {
    Refusal::internal(format!(
        "the HA process takes no orders: {error}; see onearm status"
    ))
}

/// How long an order took, and how much of that it waited.
#[derive(Clone, Copy, Debug)]
struct Times {
    took: Duration,
    waited: Duration,
}

impl Times {
    fn told(self) -> String {
        let took = format!("{} ms after the order", millis(self.took));
        match self.waited {
            Duration::ZERO => took,
            waited => format!(
                "{took}, of which it waited {} ms for the connections",
                millis(waited)
            ),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is told of an order that was given up.
fn came_to_nothing(pending: &Pending, state: NodeState, (own, peer): (&str, String), reason: &str) -> String {
    let look = "see onearm status on both nodes";
    match (pending.let_go, state) {
        (true, NodeState::Active) => {
            format!("{own} let go, but {peer} did not take over, and {own} owns again: {look}")
        }
        (true, _) => format!("{own} has let go, but {peer} is not known to own yet: {look} ({reason})"),
        (false, state) if state == pending.begun_as => format!("nothing has changed: {reason}"),
        (false, state) => format!(
            "{own} was {} and is {state} now: {reason}; {look}",
            pending.begun_as
        ),
    }
}

/// Cause and remedy.
fn why(unable: Unable, own: &str, peer: &str) -> (String, String) {
    match unable {
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
        Unable::PeerLacksFlows => (
            format!("{peer} does not have the connections of {own}: they would be lost"),
            format!("see the flow sync in onearm status, and try again when it is equal{FORCE}"),
        ),
        Unable::Held => (
            "ownership is to stay where it is".to_owned(),
            "onearm ha hold --off ends that, on the node that holds".to_owned(),
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
        // The same, seen from there.
        Unable::PeerRefuses(Refused::LegsUnknown) => why(Unable::PeerLegsUnknown, peer, own),
        Unable::PeerRefuses(Refused::LacksFlows) => why(Unable::PeerLacksFlows, peer, own),
        Unable::PeerRefuses(Refused::Held) => why(Unable::Held, peer, own),
        Unable::PeerRefuses(Refused::Unfit) => (
            format!("{peer} sees that {own} could not serve"),
            format!("onearm status says why{FORCE}"),
        ),
        Unable::PeerRefuses(Refused::NoAnswer | Refused::Other) => (
            format!("{peer} does not hand over"),
            format!("onearm events there says why{FORCE}"),
        ),
        Unable::NoAnswer => (
            format!("{peer} did not do its part in time"),
            format!("try again; onearm events there may say more{FORCE}"),
        ),
    }
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
    use std::time::Duration;

    use super::{Further, Order, Pending, Turn, came_to_nothing, lacks, why};
    use crate::control::HaRequest;
    use crate::control::NodeState;
    use crate::control::NodeState::{Active, Initialize, Standby};
    use onearm_ha::auth::Health;
    use onearm_ha::election::{Refused, Unable};
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    #[test]
    fn every_refusal_names_a_cause_and_what_to_do() {
        let unfit = Health::RECEIVES.with(Health::LEGS);
        for unable in [
            Unable::NotActive,
            Unable::NotStandby,
            Unable::NotAuthenticated,
            Unable::InMaintenance,
            Unable::PeerLegsUnknown,
            Unable::PeerLacksFlows,
            Unable::PeerSilent,
            Unable::PeerNotStandby,
            Unable::PeerNotActive,
            Unable::PeerInMaintenance,
            Unable::PeerUnfit(unfit),
            Unable::Held,
            Unable::PeerRefuses(Refused::Held),
            Unable::NoAnswer,
            Unable::PeerRefuses(Refused::LegsUnknown),
            Unable::PeerRefuses(Refused::LacksFlows),
            Unable::PeerRefuses(Refused::Unfit),
            Unable::PeerRefuses(Refused::Other),
        ] {
            let (cause, remedy) = why(unable, "lb1", "lb2");
            assert!(!cause.is_empty() && !remedy.is_empty(), "{unable:?}");
        }
        assert_eq!(lacks(unfit), "a leg has no program");
    }

    fn pending(request: HaRequest, begun_as: NodeState) -> Pending {
        Pending {
            order: Order::new(request, oneshot::channel().0),
            begun: Instant::now(),
            begun_as,
            let_go: false,
            waited: Duration::ZERO,
            waits_since: None,
        }
    }

    const SWITCHOVER: HaRequest = HaRequest::Switchover { force: false };

    const fn maintenance(force: bool) -> HaRequest {
        HaRequest::Maintenance { on: true, force }
    }

    #[test]
    fn an_owner_that_owns_again_has_not_done_what_it_was_ordered() {
        for request in [SWITCHOVER, maintenance(false)] {
            let mut order = pending(request, Active);
            assert_eq!(order.turn(Active, Standby), Turn::GoesOn, "{request:?}");
            assert_eq!(order.turn(Standby, Active), Turn::TookBack, "{request:?}");
            let text = came_to_nothing(&order, Active, ("lb1", "lb2".to_owned()), "it did not take over");
            assert_eq!(
                text,
                "lb1 let go, but lb2 did not take over, and lb1 owns again: see onearm status on both nodes"
            );
        }
        let mut order = pending(SWITCHOVER, Standby);
        assert_eq!(order.turn(Standby, Active), Turn::TookOver);
    }

    #[test]
    fn the_same_order_joins_one_that_is_under_way_force_takes_effect_and_hold_goes_through() {
        let hold = HaRequest::Hold { on: true };
        let force = HaRequest::Switchover { force: true };
        for (given, begun_as, further, expected) in [
            (SWITCHOVER, Active, SWITCHOVER, Further::Joins),
            (SWITCHOVER, Standby, SWITCHOVER, Further::Joins),
            (SWITCHOVER, Active, force, Further::Forces),
            (SWITCHOVER, Standby, force, Further::Refused),
            (SWITCHOVER, Active, maintenance(false), Further::Refused),
            (SWITCHOVER, Active, hold, Further::EndsIt),
            (SWITCHOVER, Standby, hold, Further::EndsIt),
            (maintenance(false), Active, maintenance(false), Further::Joins),
            (maintenance(false), Active, maintenance(true), Further::Forces),
            (maintenance(true), Active, maintenance(false), Further::Refused),
            (maintenance(false), Active, force, Further::Refused),
        ] {
            let mut order = pending(given, begun_as);
            order.note_waiting(true, order.begun);
            assert_eq!(order.further(further), expected, "{given:?} {further:?}");
            // What waits no more cannot be stopped for sure: a hold is not said to be done.
            order.note_waiting(false, order.begun);
            let is_hold = further == hold;
            let expected = if is_hold { Further::Refused } else { expected };
            assert_eq!(order.further(further), expected, "{given:?} {further:?}");
        }
        let mut let_go = pending(SWITCHOVER, Active);
        let_go.turn(Active, Standby);
        assert_eq!(let_go.further(force), Further::Refused);
    }

    #[test]
    fn an_answer_tells_how_much_of_its_time_was_waited() {
        let mut order = pending(SWITCHOVER, Active);
        let mut now = order.begun;
        assert_eq!(order.times(now).told(), "0 ms after the order");
        for (waits, ms) in [(true, 700), (false, 100), (true, 300), (true, 200), (false, 50)] {
            order.note_waiting(waits, now);
            now += Duration::from_millis(ms);
        }
        assert_eq!(
            order.times(now).told(),
            "1350 ms after the order, of which it waited 1200 ms for the connections"
        );
    }

    #[test]
    fn a_node_is_in_maintenance_by_force_once_it_owns_nothing_and_else_once_the_peer_owns() {
        for next in [Standby, Initialize] {
            assert_eq!(pending(maintenance(true), Active).turn(Active, next), Turn::LetGo);
            assert_eq!(
                pending(maintenance(false), Active).turn(Active, next),
                Turn::GoesOn
            );
        }
    }

    #[test]
    fn who_is_told_that_nothing_has_changed_finds_it_so() {
        let told = |let_go, begun_as, state| {
            let order = Pending {
                let_go,
                ..pending(SWITCHOVER, begun_as)
            };
            came_to_nothing(&order, state, ("lb1", "lb2".to_owned()), "the HA process died")
        };
        for same in [Active, Standby] {
            assert_eq!(
                told(false, same, same),
                "nothing has changed: the HA process died"
            );
        }
        for (let_go, begun_as, state, beginning) in [
            (false, Active, Initialize, "lb1 was active and is initialize now"),
            (
                false,
                Standby,
                Initialize,
                "lb1 was standby and is initialize now",
            ),
            (true, Active, Initialize, "lb1 has let go"),
            (true, Active, Standby, "lb1 has let go"),
        ] {
            let text = told(let_go, begun_as, state);
            assert!(
                text.starts_with(beginning) && text.contains("onearm status"),
                "{text}"
            );
        }
    }
}
