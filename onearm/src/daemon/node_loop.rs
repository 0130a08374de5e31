//! The loop of the main process: waits for anything to happen, says so to the node, and stops in order.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use onearm_dataplane::{Event as Seen, EventStream, LeaseCell, Timed};
use onearm_ha::election::{Alarm, Role, Transition};
use onearm_ha::membership::Membership;
use onearm_ha::process::{HaState, ToMain};
use onearm_netcfg::Event as KernelEvent;
use onearm_types::GroupId;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::control::{NodeState, Severity};

use super::ha_link::{HaLink, News};
use super::hello::{self, Hello};
use super::legs::lock;
use super::node::{Node, RETRY, Settled};
use super::plan;

/// Indexes of removed servers and neighbours are freed this often.
const RECLAIM: Duration = Duration::from_mins(1);

/// New guests are gathered this long before the kernel is asked for them.
const GUESTS_GATHER: Duration = Duration::from_millis(5);

/// A node with its HA process.
struct Running {
    node: Node,
    lease: LeaseCell,
    /// Keeps NIC filters and snooping switches delivering adverts.
    membership: Option<Membership>,
    ha: Option<(HaLink, mpsc::Receiver<News>)>,
    /// The HA process may be started (again) from then on.
    ha_from: Instant,
    hello: Hello,
    hellos: Option<tokio::task::JoinHandle<()>>,
    heard: watch::Sender<Option<Hello>>,
    again_at: Option<Instant>,
    terms: u64,
}

/// Runs until SIGTERM or SIGINT, then stops in order: ownership first, programs next, borrowed settings last.
///
/// # Errors
/// What made going on impossible. Guards and gates are then left in place.
pub(crate) async fn run(
    node: Node,
    lease: LeaseCell,
    mut events: Option<EventStream>,
    mut kernel_events: mpsc::Receiver<KernelEvent>,
    hello: Hello,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be caught")?;
    let (heard, mut hellos) = watch::channel(None);
    let mut picture = node.picture.clone();
    let mut health = node.health.changes();
    let mut kernel_status = node.netcfg.status();
    let mut reclaim = interval(RECLAIM);
    reclaim.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut running = Running {
        node,
        lease,
        membership: None,
        ha: None,
        ha_from: Instant::now(),
        hello,
        hellos: None,
        heard,
        again_at: None,
        terms: 0,
    };
    running.settle().await;
    if let Err(error) = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]) {
        tracing::debug!(%error, "systemd could not be told");
    }
    tracing::info!("ready");
    loop {
        // Every branch is cancel-safe: each waits on a channel, signal, descriptor or clock that loses nothing when dropped.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            news = news(&mut running.ha) => running.news(news).await,
            changed = picture.changed() => {
                changed.context("nobody watches the kernel any more")?;
                picture.borrow_and_update();
                running.settle().await;
            }
            Ok(()) = health.changed() => {
                health.borrow_and_update();
                let settled = running.node.check_health().await;
                running.after(settled);
            }
            Ok(()) = kernel_status.changed() => {
                let faults = kernel_status.borrow_and_update().faults.iter().map(|f| format!("kernel: {}", told(f))).collect();
                running.node.board.warn("kernel", faults);
            }
            Some(event) = kernel_events.recv() => running.kernel_event(&event),
            seen = next_event(&mut events) => match seen {
                Some(seen) => running.seen(seen),
                None => events = None,
            },
            Ok(()) = hellos.changed() => {
                let hello = hellos.borrow_and_update().clone();
                running.hello(hello);
            }
            () = at(running.again_at) => {
                running.again_at = None;
                running.settle().await;
            }
            _ = reclaim.tick() => {
                running.node.guests.expire(Instant::now());
                if let Err(error) = running.node.ask(|d| d.reclaim().map(drop)).await {
                    tracing::warn!(%error, "indexes could not be freed");
                }
            }
        }
    }
    if let Err(error) = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]) {
        tracing::debug!(%error, "systemd could not be told");
    }
    running.stop().await
}

async fn news(ha: &mut Option<(HaLink, mpsc::Receiver<News>)>) -> News {
    match ha {
        // The sender goes only after it has sent the end.
        Some((_, heard)) => heard.recv().await.unwrap_or(News::Ended),
        None => pending().await,
    }
}

async fn next_event(events: &mut Option<EventStream>) -> Option<Timed> {
    match events {
        Some(events) => events
            .next()
            .await
            .inspect_err(|error| tracing::error!(%error, "no more dataplane events"))
            .ok(),
        None => pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// A value of another crate in words: its JSON without the punctuation of a program.
fn told(value: &impl Serialize) -> String {
    serde_json::to_string(value)
        .unwrap_or_default()
        .replace(['"', '{', '}'], "")
        .replace('_', " ")
        .replace(':', ": ")
}

impl Running {
    async fn settle(&mut self) {
        let settled = self.node.settle().await;
        self.after(settled);
        if settled.links_changed {
            self.hold_links();
        }
        self.keep_membership();
        self.keep_ha();
        self.keep_hellos();
    }

    fn keep_membership(&mut self) {
        let picture = self.node.picture.borrow();
        let Some(leg) = plan::election_leg(&self.node.loaded.node, &picture) else {
            return;
        };
        if plan::leg_picture(leg, &picture).is_none_or(|seen| seen.link.is_none()) {
            return;
        }
        let joined = match &mut self.membership {
            Some(membership) => membership.refresh(),
            none => Membership::join(&leg.interface).map(|membership| *none = Some(membership)),
        };
        if let Err(error) = joined {
            tracing::warn!(%error, ifname = %leg.interface, "adverts' group not joined");
            self.again_at = Some(Instant::now() + RETRY);
        }
    }

    fn after(&mut self, settled: Settled) {
        if settled.again {
            self.again_at = Some(Instant::now() + RETRY);
        }
    }

    fn links(&self) -> anyhow::Result<Vec<OwnedFd>> {
        Ok(lock(&self.node.dataplane).keepalive_fds()?)
    }

    fn hold_links(&mut self) {
        let Some((ha, _)) = &self.ha else { return };
        if let Err(error) = self.links().and_then(|links| ha.hold(&links)) {
            tracing::warn!(
                error = format!("{error:#}"),
                "the HA process was not given the links"
            );
            self.again_at = Some(Instant::now() + RETRY);
        }
    }

    /// Starts the HA process once there is something to own, and keeps its settings up to date.
    fn keep_ha(&mut self) {
        let picture = self.node.picture.borrow().clone();
        let loaded = Arc::clone(&self.node.loaded);
        let config = match plan::ha_config(&loaded.node, &loaded.pair, &picture) {
            Ok(Some(config)) => config,
            Ok(None) => return,
            Err(error) => {
                self.node
                    .board
                    .warn("ha", vec![format!("the election cannot be set up: {error}")]);
                return;
            }
        };
        if let Some((ha, _)) = &mut self.ha {
            if *ha.config() != config
                && let Err(error) = ha.configure(config)
            {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the HA process was not given its settings"
                );
                self.again_at = Some(Instant::now() + RETRY);
            }
            return;
        }
        if !self.node.is_ready() || Instant::now() < self.ha_from {
            return;
        }
        match self.start_ha(config) {
            Ok(ha) => {
                self.node.board.warn("ha", Vec::new());
                self.ha = Some(ha);
            }
            Err(error) => {
                let text = format!("the HA process cannot be started: {error:#}");
                tracing::error!(error = %text, "no election");
                self.node.board.warn("ha", vec![text]);
                self.ha_from = Instant::now() + RETRY;
                self.again_at = Some(self.ha_from);
            }
        }
    }

    fn start_ha(&self, config: onearm_ha::config::Config) -> anyhow::Result<(HaLink, mpsc::Receiver<News>)> {
        let owned: Vec<Ipv4Addr> = self.node.loaded.pair.owned_addresses().into_iter().collect();
        let (lease_map, cell) = {
            let dataplane = lock(&self.node.dataplane);
            (dataplane.lease_fd()?, dataplane.lease_cell(GroupId::FIRST)?)
        };
        HaLink::start(config, &owned, &lease_map, &self.links()?, cell)
    }

    /// Hellos go between the nodes' own addresses; they start when this node has one.
    fn keep_hellos(&mut self) {
        if self.hellos.is_some() {
            return;
        }
        let picture = self.node.picture.borrow();
        let node = &self.node.loaded.node;
        let Some(own) = plan::election_leg(node, &picture)
            .and_then(|leg| plan::leg_picture(leg, &picture))
            .and_then(plan::address)
        else {
            return;
        };
        let exchange = hello::exchange(own, node.peer.address, self.hello.clone(), self.heard.clone());
        self.hellos = Some(tokio::spawn(exchange));
    }

    fn hello(&self, hello: Option<Hello>) {
        let differs = hello.as_ref().filter(|h| h.digest != self.hello.digest);
        if let Some(other) = differs {
            self.node.board.record(
                Severity::Warning,
                "configuration-differs",
                format!("{} runs another pair.toml", other.name),
                "compare the two files, then restart the node whose file is wrong",
            );
        }
        self.node.board.facts().hello = hello;
    }

    async fn news(&mut self, news: News) {
        match news {
            News::Message(ToMain::Heartbeat) => {}
            News::Message(ToMain::State(state)) => self.state(&state).await,
            News::Message(ToMain::Transition(transition)) => self.transition(&transition).await,
            News::Message(ToMain::Alarm(alarm)) => self.alarm(alarm),
            News::Message(ToMain::ConfigRefused(errors)) => {
                self.node.board.warn(
                    "ha",
                    errors
                        .iter()
                        .map(|e| format!("election settings refused: {e}"))
                        .collect(),
                );
            }
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
                self.node.ownership.state = NodeState::Initialize;
                {
                    let mut facts = self.node.board.facts();
                    facts.state = NodeState::Initialize;
                    facts.since_ns = super::clock::monotonic_ns();
                    "the HA process died".clone_into(&mut facts.reason);
                }
                self.ha_from = Instant::now() + RETRY;
                self.again_at = Some(self.ha_from);
            }
        }
    }

    async fn state(&mut self, state: &HaState) {
        let Some(election) = &state.election else { return };
        let role = node_state(election.role);
        let peer_mac = state.peer_mac.map(|mac| mac.0);
        let peer_owns = election
            .peer_priority
            .is_some_and(|p| p.get() > onearm_ha::units::Priority::CLAIM.get());
        let heard_ns = election.peer_heard_at.map(onearm_ha::units::MonoTime::as_nanos);
        let fresh = heard_ns
            .is_some_and(|at| state.at.as_nanos().saturating_sub(at) < 4 * election.learned_interval_nanos);
        let peer_is_active = role == NodeState::Standby && peer_owns && fresh;
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
            facts.realtime = state.grants.realtime;
            facts.ha_counters = counters(state);
        }
        let ownership = &mut self.node.ownership;
        let before = *ownership;
        ownership.state = role;
        ownership.peer_is_active = peer_is_active;
        ownership.peer_mac = peer_mac.or(ownership.peer_mac);
        if before != *ownership {
            self.settle().await;
        }
    }

    async fn transition(&mut self, transition: &Transition) {
        let reason = told(&transition.event).replace('-', " ");
        let next = node_state(transition.next);
        if next == NodeState::Active {
            self.terms += 1;
        }
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
        self.node.ownership.epoch = self.terms;
        self.settle().await;
    }

    fn alarm(&self, alarm: Alarm) {
        let (kind, remedy) = match alarm {
            Alarm::ForeignGroup { .. } => ("foreign-group", "give one of the two groups another vrid"),
            Alarm::LoopOrDuplicateAddress => (
                "loop-or-duplicate-address",
                "look for a loop in the switch, or another host with this node's address",
            ),
            Alarm::IntervalClamped { .. } => {
                ("interval-clamped", "set the same advert_interval on both nodes")
            }
            Alarm::AddressListDiffers => ("address-list-differs", "compare pair.toml of the two nodes"),
            Alarm::SendErrors => (
                "adverts-not-sent",
                "look for a packet filter or a fault of the leg on this node",
            ),
            Alarm::LeaseLapsed => (
                "lease-lapsed",
                "this machine stalled; look for starved CPU or a paused VM",
            ),
            Alarm::Overslept => (
                "overslept",
                "this machine stalled; look for starved CPU or a paused VM",
            ),
            Alarm::Contended => (
                "contended",
                "both nodes were Active at one time: look for one-way loss between them",
            ),
        };
        self.node
            .board
            .record(Severity::Warning, kind, told(&alarm).replace('-', " "), remedy);
    }

    fn kernel_event(&self, event: &KernelEvent) {
        let (severity, kind) = match event {
            KernelEvent::Repaired(_) => (Severity::Warning, "kernel-repaired"),
            KernelEvent::FaultRaised(_) => (Severity::Warning, "kernel-fault"),
            _ => (Severity::Info, "kernel-fault-cleared"),
        };
        let remedy = if severity == Severity::Warning {
            "another program changes what onearm set; find out which"
        } else {
            ""
        };
        self.node.board.record(severity, kind, told(event), remedy);
    }

    fn seen(&mut self, seen: Timed) {
        match seen.event {
            Seen::NeighbourWanted { leg, addr } => {
                let leg = u8::try_from(leg).unwrap_or(u8::MAX);
                if self.node.guests.needed(Instant::now(), leg, addr) {
                    let soon = Instant::now() + GUESTS_GATHER;
                    self.again_at = Some(self.again_at.map_or(soon, |at| at.min(soon)));
                }
            }
            Seen::NextHopWanted { leg, addr, .. } => {
                let legs = &self.node.loaded.node.legs;
                let name = legs
                    .get(leg as usize)
                    .and_then(|l| onearm_netcfg::IfName::new(&l.interface).ok());
                if let Some(name) = name {
                    self.node.netcfg.suspect(&name, addr.into());
                }
            }
            Seen::AddressConflict { addr, mac, .. } => {
                let mac = onearm_netcfg::Mac(mac);
                self.node.board.record(
                    Severity::Error,
                    "address-conflict",
                    format!("{mac} claims the owned address {addr}"),
                    "find the host with that MAC and take the address from it",
                );
                if let Some((ha, _)) = &self.ha {
                    ha.conflict(addr);
                }
            }
            Seen::TableFull { .. } => self.refused("table-full", &seen, "raise limits.max_flows"),
            Seen::HalfOpenFull { .. } => {
                self.refused("half-open-full", &seen, "a SYN flood, or raise limits.half_open");
            }
            Seen::NoPort { .. } => self.refused(
                "no-port",
                &seen,
                "give the service more snat addresses or a wider snat_ports",
            ),
            Seen::NoServer { .. } => {
                self.refused("no-server", &seen, "look at the servers' checks: onearm services");
            }
            _ => tracing::debug!(event = told(&seen), "dataplane event"),
        }
    }

    fn refused(&self, kind: &'static str, seen: &Timed, remedy: &str) {
        self.node.board.record(
            Severity::Warning,
            kind,
            format!("new flows are refused: {}", told(&seen.event)),
            remedy,
        );
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        tracing::info!("stopping");
        if let Some((ha, mut heard)) = self.ha.take() {
            ha.stop(&mut heard).await;
        }
        self.lease.clear();
        let mut failed = Vec::new();
        if let Err(error) = self.node.ask(onearm_dataplane::Dataplane::detach_all).await {
            failed.push(error);
        }
        let gates = Arc::clone(&self.node.gates);
        let removed = tokio::task::spawn_blocking(move || {
            gates.lock().unwrap_or_else(PoisonError::into_inner).remove_all()
        });
        failed.extend(removed.await.unwrap_or_else(|panic| vec![panic.to_string()]));
        if let Some(hellos) = self.hellos.take() {
            hellos.abort();
        }
        let restored = self.node.netcfg.stop().await?;
        for line in &restored.lines {
            tracing::info!(%line, "put back");
        }
        failed.extend(restored.errors.iter().map(ToString::to_string));
        anyhow::ensure!(
            failed.is_empty(),
            "not everything could be put back: {}",
            failed.join("; ")
        );
        Ok(())
    }
}

const fn node_state(role: Role) -> NodeState {
    match role {
        Role::Initialize => NodeState::Initialize,
        Role::Standby => NodeState::Standby,
        Role::Active => NodeState::Active,
    }
}

/// All counters of the HA process by name.
fn counters(state: &HaState) -> BTreeMap<String, u64> {
    let groups = [
        serde_json::to_value(state.election_counters),
        serde_json::to_value(state.announce_counters),
        serde_json::to_value(state.wire_counters),
        serde_json::to_value(state.driver_counters),
    ];
    let prefixes = ["election", "announce", "wire", "thread"];
    let mut all = BTreeMap::new();
    for (prefix, group) in prefixes.into_iter().zip(groups) {
        let Ok(serde_json::Value::Object(group)) = group else {
            continue;
        };
        all.extend(
            group
                .into_iter()
                .filter_map(|(name, n)| Some((format!("{prefix}_{name}"), n.as_u64()?))),
        );
    }
    all
}
