//! The node's part with the HA process: starts and stops it, hands it what it needs, and takes what it tells.

use std::collections::BTreeMap;
use std::sync::Arc;

use onearm_ha::election::{Role, Transition};
use onearm_ha::process::{HaState, ToMain};
use onearm_types::GroupId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Running;
use crate::control::{NodeState, Severity};
use crate::daemon::board::AuthenticationFacts;
use crate::daemon::ha_link::{HaLink, News};
use crate::daemon::node::RETRY;
use crate::daemon::notices::{self, told};
use crate::daemon::{clock, plan};
use crate::key::shown;

impl Running {
    /// Gives the HA process the links of programs attached anew; again with the next pass if it takes no orders.
    pub(super) async fn hold_links(&mut self) {
        if !self.links_due {
            return;
        }
        let Some((ha, _)) = &self.ha else { return };
        let links = self.node.ask(|d| d.keepalive_fds()).await;
        match links
            .map_err(anyhow::Error::msg)
            .and_then(|links| ha.hold(&links))
        {
            Ok(()) => self.links_due = false,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the HA process was not given the links"
                );
                self.again_by(Instant::now() + RETRY);
            }
        }
    }

    /// Starts the HA process once there is something to own, keeps its settings up to date, and stops it while this node
    /// could not serve what it owns.
    pub(super) async fn keep_ha(&mut self) {
        if !self.node.is_ready() {
            self.rest_ha().await;
            return;
        }
        let picture = self.node.picture.borrow().clone();
        let loaded = Arc::clone(&self.node.loaded);
        let config = match plan::ha_config(&loaded.node, &loaded.pair, &picture, self.auth.as_ref()) {
            Ok(Some(config)) => onearm_ha::config::Config {
                record: self.recording.is_some(),
                stance: self.stance,
                ..config
            },
            Ok(None) => return,
            Err(error) => {
                self.node
                    .board
                    .warn("ha", vec![format!("the election cannot be set up: {error}")]);
                return;
            }
        };
        let witness = loaded.pair.ha.witness.filter(|_| config.witness.is_none());
        let unasked = witness.map(|witness| {
            format!(
                "ha.witness {witness} is in no network of {}: it is not asked",
                config.ifname
            )
        });
        self.node.board.warn("witness", unasked.into_iter().collect());
        self.tell_health();
        if let Some((ha, _)) = &mut self.ha {
            let owned = plan::owned(&loaded.node, &loaded.pair, &picture, &self.node.split);
            if ha.has(&config) && ha.owns(&owned) {
                return;
            }
            match ha.configure(config).and_then(|()| ha.own(owned)) {
                // If they are refused again, so the HA process will say again.
                Ok(()) => self.node.board.warn("ha", Vec::new()),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "the HA process was not given its settings");
                    self.again_by(Instant::now() + RETRY);
                }
            }
            return;
        }
        if Instant::now() < self.ha_from {
            self.again_by(self.ha_from);
            return;
        }
        let mut config = config;
        if let (Some(epochs), Some(auth)) = (&mut self.epochs, &mut self.auth) {
            auth.epoch = epochs.begin().await;
            if let Some(given) = &mut config.auth {
                given.epoch = auth.epoch;
            }
        }
        match self.start_ha(config).await {
            Ok(ha) => {
                self.node.board.warn("ha", Vec::new());
                self.links_due = false;
                self.ha = Some(ha);
            }
            Err(error) => {
                let text = format!("the HA process cannot be started: {error:#}");
                tracing::error!(error = %text, "no election");
                self.node.board.warn("ha", vec![text]);
                self.ha_from = Instant::now() + RETRY;
                self.again_by(self.ha_from);
            }
        }
    }

    /// A leg without its program answers for nothing: the peer is to own.
    async fn rest_ha(&mut self) {
        let Some((ha, mut heard)) = self.ha.take() else {
            return;
        };
        // What it owns it could not serve while it hands over.
        ha.stop(&mut heard, &mut self.flow_sync, true).await;
        self.lease.clear();
        self.node.board.record(
            Severity::Warning,
            "ownership-laid-down",
            "a leg has no program: this node cannot serve and owns nothing".to_owned(),
            "see the legs in onearm status; it comes back by itself",
        );
        self.owns_nothing("a leg has no program");
        self.give_order_up("a leg has no program");
    }

    /// The election does not run: what it told last holds no more.
    fn owns_nothing(&mut self, reason: &str) {
        let before = std::mem::replace(&mut self.node.ownership.state, NodeState::Initialize);
        if before != NodeState::Initialize {
            self.role_changed(before, reason);
        }
        self.node.ownership.peer_is_active = false;
        {
            let mut facts = self.node.board.facts();
            facts.state = NodeState::Initialize;
            facts.since_ns = clock::monotonic_ns();
            reason.clone_into(&mut facts.reason);
            facts.peer.state = None;
        }
        self.other_faults.clear();
        self.node.board.warn("other-legs", Vec::new());
        self.show_stances(self.stance, None);
        self.show_waiting(false);
        self.again_by(Instant::now());
    }

    async fn start_ha(
        &self,
        config: onearm_ha::config::Config,
    ) -> anyhow::Result<(HaLink, mpsc::Receiver<News>)> {
        let loaded = &self.node.loaded;
        let picture = self.node.picture.borrow().clone();
        let owned = plan::owned(&loaded.node, &loaded.pair, &picture, &self.node.split);
        let parts = self
            .node
            .ask(|d| Ok((d.lease_fd()?, d.lease_cell(GroupId::FIRST)?, d.keepalive_fds()?)));
        let (lease_map, cell, links) = parts.await.map_err(anyhow::Error::msg)?;
        HaLink::start(config, &owned, &lease_map, &links, cell, self.health())
    }

    pub(super) async fn news(&mut self, news: News) {
        match news {
            News::Message(ToMain::State(state)) => self.state(&state).await,
            News::Message(ToMain::Transition(transition)) => self.transition(&transition).await,
            News::Message(ToMain::Alarm(alarm)) => self.node.board.tell(notices::alarm(alarm)),
            News::Message(ToMain::Recorded { from, entries }) => {
                if let Some(recording) = &mut self.recording {
                    recording.take(from, entries);
                }
            }
            News::Message(ToMain::ConfigRefused(errors)) => {
                self.node.board.warn(
                    "ha",
                    errors
                        .iter()
                        .map(|e| format!("election settings refused: {e}"))
                        .collect(),
                );
                if let Some((ha, _)) = &mut self.ha {
                    ha.refused();
                }
                self.again_by(Instant::now() + RETRY);
            }
            News::Message(ToMain::HandOverRefused(unable)) => self.refused(unable),
            News::Message(ToMain::HandOverWaits(waits)) => self.hand_over_waits(waits),
            News::Message(ToMain::Flush(number)) => self.flush(number),
            News::Ended => {
                if let Some((ha, _)) = self.ha.take() {
                    ha.kill();
                }
                self.node.board.record(
                    Severity::Error,
                    "ha-process-died",
                    "the HA process died; the lease was cleared and the peer told".to_owned(),
                    "it is started again; report this",
                );
                self.ha_from = Instant::now() + RETRY;
                self.owns_nothing("the HA process died");
                self.give_order_up("the HA process died");
            }
        }
    }

    async fn state(&mut self, state: &HaState) {
        let Some(election) = &state.election else { return };
        let role = node_state(election.role);
        if let Some(epochs) = &self.epochs {
            epochs.know(election.epoch);
        }
        let peer_mac = state.peer_mac.map(|mac| mac.0);
        let heard_ns = election.peer_heard_at.map(onearm_ha::units::MonoTime::as_nanos);
        let fresh = heard_ns
            .is_some_and(|at| state.at.as_nanos().saturating_sub(at) < 4 * election.learned_interval_nanos);
        let peer_is_active = role == NodeState::Standby && election.peer_owns && fresh;
        {
            let mut facts = self.node.board.facts();
            facts.state = role;
            facts.since_ns = election.since.as_nanos();
            if let Some(fault) = &election.leg_fault {
                facts.reason = fault.to_string();
            }
            facts.peer_heard_ns = heard_ns;
            facts.peer.priority = election.peer_priority.map(onearm_ha::units::Priority::get);
            facts.peer.advert_interval_ms = Some(election.learned_interval_nanos / 1_000_000);
            facts.peer.state = if peer_is_active {
                Some(NodeState::Active)
            } else {
                None
            };
            facts.peer.mac = state.peer_mac.map(|mac| mac.to_string());
            facts.effective_priority = election.priority.get();
            facts.health = Some((election.health, election.peer_health));
            facts.realtime = state.grants.realtime;
            facts.ha_counters = counters(state);
        }
        self.show_stances(election.stance, election.peer_stance);
        self.show_waiting(election.waits_since.is_some());
        self.other_legs(state);
        self.authentication(state);
        self.look_back(state);
        if role != NodeState::Active {
            self.count_before_term();
        }
        let ownership = &mut self.node.ownership;
        let before = *ownership;
        ownership.state = role;
        ownership.peer_is_active = peer_is_active;
        ownership.peer_mac = peer_mac.or(ownership.peer_mac);
        if before.state != role {
            // What told of the change found no room.
            self.new_term(role, election.epoch);
            self.role_changed(before.state, "the change itself was not told");
        }
        if before != self.node.ownership {
            self.settle().await;
        }
        self.ordered_state().await;
    }

    /// What the status shows of the keys.
    pub(super) fn show_authentication(&mut self) {
        let Some(auth) = &self.auth else { return };
        let mut facts = self.node.board.facts();
        let before = facts.authentication.take();
        facts.authentication = Some(AuthenticationFacts {
            rollout: auth.rollout,
            keys: shown(&auth.keys),
            signing_key: before.as_ref().and_then(|facts| facts.signing_key),
            peer: before.and_then(|facts| facts.peer),
        });
    }

    /// How the peer speaks, and what was refused.
    fn authentication(&mut self, state: &HaState) {
        if self.auth.is_none() {
            return;
        }
        let mut changed = None;
        if let Some(facts) = &mut self.node.board.facts().authentication {
            let signing_key = state.last_word.map(|spoken| spoken.key.0);
            if facts.signing_key != signing_key && facts.signing_key.is_some() {
                changed = signing_key;
            }
            facts.signing_key = signing_key;
            facts.peer = state.peer_voice;
        }
        if let Some(key) = changed {
            let text = format!("this node signs with key {key} now, the newest that both nodes hold");
            self.node.board.record(Severity::Info, "key-changed", text, "");
        }
        let now = Instant::now().into_std();
        let (warnings, events) = self.refusals.look(now, &state.voice_counters);
        self.node.board.warn("authentication", warnings);
        for event in events {
            self.node.board.tell(event);
        }
    }

    /// Legs beside that of the adverts that came and went.
    fn other_legs(&mut self, state: &HaState) {
        if state.other_faults == self.other_faults {
            return;
        }
        let board = &self.node.board;
        let is_in =
            |faults: &[(String, _)], interface: &str| faults.iter().any(|(name, _)| name == interface);
        for (interface, fault) in &state.other_faults {
            if !is_in(&self.other_faults, interface) {
                let text = format!("{interface}: {fault}; a peer with all its legs owns instead");
                board.record(
                    Severity::Warning,
                    "leg-failed",
                    text,
                    "look at the interface and its cable",
                );
            }
        }
        for (interface, _) in &self.other_faults {
            if !is_in(&state.other_faults, interface) {
                let text = format!("{interface} works again");
                board.record(Severity::Info, "leg-recovered", text, "");
            }
        }
        let told = |(interface, fault): &(String, _)| {
            format!("{interface}: {fault}: this node owns only while no better one is there")
        };
        board.warn("other-legs", state.other_faults.iter().map(told).collect());
        self.other_faults.clone_from(&state.other_faults);
    }

    async fn transition(&mut self, transition: &Transition) {
        let reason = told(&transition.event).replace('-', " ");
        let next = node_state(transition.next);
        self.new_term(next, transition.epoch);
        {
            let mut facts = self.node.board.facts();
            facts.state = next;
            facts.since_ns = transition.at.as_nanos();
            facts.reason.clone_from(&reason);
            facts.epoch = self.terms;
        }
        let text = format!("{} → {}: {reason}", transition.prev, transition.next);
        self.node.board.record(Severity::Info, "state-changed", text, "");
        self.node.ownership.state = next;
        self.role_changed(node_state(transition.prev), &reason);
        self.remember(transition, &reason);
        self.settle().await;
        self.ordered_transition(transition).await;
    }

    /// The role is `next` now; `epoch` as the election says, which counts with authentication only.
    fn new_term(&mut self, next: NodeState, epoch: u64) {
        if let Some(epochs) = &self.epochs {
            epochs.know(epoch);
            self.terms = epoch;
        } else if next == NodeState::Active {
            self.terms += 1;
        }
        self.node.ownership.epoch = self.terms;
    }
}

pub(super) const fn node_state(role: Role) -> NodeState {
    match role {
        Role::Initialize => NodeState::Initialize,
        Role::Standby => NodeState::Standby,
        Role::Active => NodeState::Active,
    }
}

/// All counters of the HA process by name.
fn counters(state: &HaState) -> BTreeMap<String, u64> {
    let with = |prefix: &'static str| move |(name, n): (String, u64)| (format!("{prefix}_{name}"), n);
    notices::counted(&state.election_counters)
        .map(with("election"))
        .chain(notices::counted(&state.announce_counters).map(with("announce")))
        .chain(notices::counted(&state.wire_counters).map(with("wire")))
        .chain(notices::counted(&state.driver_counters).map(with("thread")))
        .chain(notices::counted(&state.voice_counters).map(with("authentication")))
        .collect()
}
