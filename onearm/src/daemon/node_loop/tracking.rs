//! What is tracked, and what is run when the role changes.

use onearm_ha::auth::Health;
use onearm_ha::units::MonoTime;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Running, at};
use crate::control::{NodeState, Severity, TrackedKind};
use crate::daemon::clock;
use crate::daemon::node::RETRY;
use crate::daemon::scripts::{Said, hook_of};
use crate::health::ServerKey;
use crate::track::{Input, Output};

/// What the tracking waits for.
#[derive(Debug)]
pub(super) enum Tracked {
    /// A program has ended.
    Said(Said),
    /// A deadline has come.
    Due,
}

/// Waits for the next. Cancel-safe: a channel and a clock lose nothing.
pub(super) async fn next(said: &mut mpsc::Receiver<Said>, due: Option<Instant>) -> Tracked {
    tokio::select! {
        Some(said) = said.recv() => Tracked::Said(said),
        () = at(due) => Tracked::Due,
    }
}

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

impl Running {
    /// What this node can do, as far as the HA process does not see it itself. That runs only while every leg has its program.
    pub(super) fn health(&self) -> Health {
        Health::DATAPLANE.with(self.tracking.health())
    }

    /// Tells the HA process; again with the next pass if it has no room.
    pub(super) fn tell_health(&mut self) {
        let health = self.health();
        if let Some((ha, _)) = &mut self.ha
            && !ha.health(health)
        {
            self.again_by(Instant::now() + RETRY);
        }
    }

    /// When the tracking has something to do.
    pub(super) fn tracking_due(&self) -> Option<Instant> {
        let due = self.tracking.deadline()?;
        Some(Instant::now() + std::time::Duration::from_nanos(due.since(now())))
    }

    pub(super) fn tracked(&mut self, tracked: Tracked) {
        match tracked {
            Tracked::Due => self.track(Input::TimePassed),
            Tracked::Said(Said::Script(script, ended)) => {
                let (good, detail) = (ended.is_good(), ended.to_string());
                self.track(Input::ScriptEnded { script, good, detail });
            }
            Tracked::Said(Said::Hook(name, ended)) => {
                let text = format!("hook {name}: {ended}");
                let board = &self.node.board;
                if ended.is_good() {
                    board.record(Severity::Info, "hook-ended", text, "");
                } else {
                    let remedy = "look at the program; nothing else depends on it";
                    board.record(Severity::Warning, "hook-failed", text, remedy);
                }
            }
        }
    }

    /// Looks at the servers of every quorum.
    pub(super) fn look_at_quorums(&mut self) {
        let loaded = std::sync::Arc::clone(&self.node.loaded);
        for (quorum, wanted) in loaded.pair.ha.track.quorum.iter().enumerate() {
            let services = &loaded.pair.services;
            let Some(service) = services.iter().find(|service| service.name == wanted.service) else {
                continue;
            };
            let views = service
                .servers
                .iter()
                .map(|server| self.node.health.view(&ServerKey::of(service, server)));
            let (mut up, mut pending) = (0, 0);
            for view in views.flatten() {
                up += usize::from(view.in_rotation);
                pending += usize::from(view.health == crate::control::ServerHealth::Pending);
            }
            let of = service.servers.len();
            self.track(Input::ServersSeen {
                quorum,
                up,
                pending,
                of,
            });
        }
    }

    fn track(&mut self, input: Input) {
        self.tracking.handle(now(), input);
        while let Some(output) = self.tracking.poll_output() {
            match output {
                Output::RunScript(place) => {
                    let loaded = &self.node.loaded;
                    if let Some(script) = loaded.pair.ha.track.scripts.get(place) {
                        let mut environment = self.environment();
                        environment.push(("ONEARM_SCRIPT".to_owned(), script.name.clone()));
                        self.scripts.start(place, script, environment);
                    }
                }
                Output::Report {
                    kind,
                    name,
                    good,
                    detail,
                } => self.report_tracked(kind, &name, good, &detail),
            }
        }
        self.node.board.facts().tracking = Some(self.tracking.clone());
        self.tell_health();
    }

    fn report_tracked(&self, kind: TrackedKind, name: &str, good: bool, detail: &str) {
        let (what, remedy) = match kind {
            TrackedKind::Script => (
                format!("script {name}"),
                "look at what it checks; a node that has more owns the addresses",
            ),
            TrackedKind::Servers => (
                format!("servers of service {name}"),
                "look at the servers, and at the way from this node to them; a node that has more owns the addresses",
            ),
        };
        let board = &self.node.board;
        if good {
            let text = format!("{what}: as it should be again: {detail}");
            board.record(Severity::Info, "track-recovered", text, "");
        } else {
            board.record(
                Severity::Warning,
                "track-failed",
                format!("{what}: {detail}"),
                remedy,
            );
        }
    }

    /// The role changed from `before`: what is tracked counts otherwise now, and a hook is to run.
    pub(super) fn role_changed(&mut self, before: NodeState, reason: &str) {
        let state = self.node.ownership.state;
        self.track(Input::OwnershipChanged(state == NodeState::Active));
        if let Some(sync) = &self.flow_sync {
            sync.own(state == NodeState::Active);
        }
        let loaded = std::sync::Arc::clone(&self.node.loaded);
        let ha = &loaded.pair.ha;
        let (name, Some(command)) = hook_of(ha, state) else {
            return;
        };
        let mut environment = self.environment();
        environment.extend(
            [
                ("ONEARM_HOOK", name),
                ("ONEARM_PREVIOUS", before.as_str()),
                ("ONEARM_REASON", reason),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        if let Err(why) = self.scripts.hook(name, command, environment, ha.hooks.timeout) {
            let text = format!("hook {name} was not run: {why}");
            let remedy = "look at the hooks before it, and at ha.script_user; nothing else depends on them";
            self.node
                .board
                .record(Severity::Warning, "hook-failed", text, remedy);
        }
    }

    /// What every program of the operator's is told.
    fn environment(&self) -> Vec<(String, String)> {
        let loaded = &self.node.loaded;
        let ownership = &self.node.ownership;
        [
            ("ONEARM_NODE", loaded.node.name.clone()),
            ("ONEARM_NODE_ID", loaded.node.id.get().to_string()),
            ("ONEARM_VRID", loaded.pair.ha.vrid.to_string()),
            ("ONEARM_STATE", ownership.state.as_str().to_owned()),
            ("ONEARM_EPOCH", ownership.epoch.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}
