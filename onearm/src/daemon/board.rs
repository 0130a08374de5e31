//! What the daemon knows at this moment, for status and events: written by the main loop, read by the control API.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onearm_ha::auth::Health;
use onearm_ha::config::Rollout;
use onearm_ha::driver::PeerVoice;
use onearm_ha::election::Stance;

use crate::control::{
    EventList, EventLog, EventQuery, KeyStatus, LegStatus, NewEvent, NodeState, OwnedStatus, PeerStatus,
    Severity, Timeline, UsageStatus,
};

use crate::track::Tracking;

use super::clock;
use super::stance;

/// The board. Locked for moments only, never across a wait.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Facts>);

/// What stands on the board.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Role as the HA process told last; `Initialize` while it does not run.
    pub(crate) state: NodeState,
    /// When that role began, CLOCK_MONOTONIC ns.
    pub(crate) since_ns: u64,
    /// What brought it there.
    pub(crate) reason: String,
    /// Term of ownership.
    pub(crate) epoch: u64,
    /// The peer as its adverts show it, and when the last one came (CLOCK_MONOTONIC ns).
    pub(crate) peer: PeerStatus,
    /// When the last advert of the peer came, CLOCK_MONOTONIC ns.
    pub(crate) peer_heard_ns: Option<u64>,
    /// Priority in use.
    pub(crate) effective_priority: u8,
    /// What this node and its peer can do.
    pub(crate) health: Option<(Health, Option<Health>)>,
    /// Scripts and quorums.
    pub(crate) tracking: Option<Tracking>,
    /// Real-time priority was granted to the HA process.
    pub(crate) realtime: bool,
    /// What the operator wants of this node.
    pub(crate) stance: &'static str,
    /// What is wanted of the peer, where that is known.
    pub(crate) peer_stance: Option<&'static str>,
    /// Counters of the HA process.
    pub(crate) ha_counters: BTreeMap<String, u64>,
    /// With authentication: keys and the peer's speech.
    pub(crate) authentication: Option<AuthenticationFacts>,
    /// Where the nodes' files differ in what is owned.
    pub(crate) owned: OwnedStatus,
    /// When orphans end at the latest, CLOCK_MONOTONIC ns.
    pub(crate) orphans_until_ns: Option<u64>,
    /// Legs in the order of `node.toml`.
    pub(crate) legs: Vec<LegStatus>,
    /// Flows at the end of the last pass over the table.
    pub(crate) flows: u64,
    /// How often the thread that helps the programs ended and was started again.
    pub(crate) helper_restarts: u64,
    /// How full the tables are.
    pub(crate) usage: Vec<UsageStatus>,
    /// What an operator should know, by source, so that each can be taken back: `leg:lan`, `netcfg`, `config`.
    pub(crate) warnings: BTreeMap<String, Vec<String>>,
    /// The last events.
    pub(crate) events: EventLog,
}

/// How the election is authenticated.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticationFacts {
    /// What becomes of messages without it.
    pub(crate) rollout: Rollout,
    /// Every key as it may be shown.
    pub(crate) keys: Vec<KeyStatus>,
    /// The key the last message was signed with.
    pub(crate) signing_key: Option<u16>,
    /// The peer's speech.
    pub(crate) peer: Option<PeerVoice>,
}

impl Board {
    /// A board on which nothing has happened yet.
    pub(crate) fn new(priority: u8, peer: IpAddr) -> Self {
        Self(Mutex::new(Facts {
            state: NodeState::Initialize,
            since_ns: clock::monotonic_ns(),
            reason: "starting".to_owned(),
            epoch: 0,
            peer: PeerStatus {
                address: Some(peer),
                ..PeerStatus::default()
            },
            peer_heard_ns: None,
            effective_priority: priority,
            health: None,
            tracking: None,
            realtime: false,
            stance: stance::word(Stance::Normal),
            peer_stance: None,
            ha_counters: BTreeMap::new(),
            authentication: None,
            owned: OwnedStatus::default(),
            orphans_until_ns: None,
            legs: Vec::new(),
            flows: 0,
            helper_restarts: 0,
            usage: Vec::new(),
            warnings: BTreeMap::new(),
            events: EventLog::default(),
        }))
    }

    /// The facts. A panic of another holder left them whole: every writer assigns complete values.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the warnings of one source; none takes them back.
    pub(crate) fn warn(&self, source: &str, warnings: Vec<String>) {
        let mut facts = self.facts();
        if warnings.is_empty() {
            facts.warnings.remove(source);
        } else {
            facts.warnings.insert(source.to_owned(), warnings);
        }
    }

    /// Records an event and logs it.
    pub(crate) fn record(
        &self,
        severity: Severity,
        kind: &'static str,
        message: String,
        remedy: impl Into<String>,
    ) {
        self.tell(NewEvent {
            severity,
            kind,
            message,
            remedy: remedy.into(),
        });
    }

    /// [`Self::record`] for an event that is ready.
    pub(crate) fn tell(&self, event: NewEvent) {
        self.tell_with(event, None);
    }

    /// [`Self::tell`], with times.
    pub(crate) fn tell_with(&self, event: NewEvent, timeline: Option<Timeline>) {
        let NewEvent {
            kind,
            message,
            remedy,
            ..
        } = &event;
        match event.severity {
            Severity::Info => tracing::info!(kind, %message, "event"),
            Severity::Warning => tracing::warn!(kind, %message, %remedy, "event"),
            Severity::Error => tracing::error!(kind, %message, %remedy, "event"),
        }
        self.facts().events.record(clock::wall_ms(), event, timeline);
    }

    /// Events after `query.since`.
    pub(crate) fn events(&self, query: EventQuery) -> EventList {
        self.facts().events.list(query)
    }
}
