use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A state changed as it should.
    Info,
    /// An operator may act.
    Warning,
    /// An operator should act.
    Error,
}

impl Severity {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number in the daemon's life, from 1, without gaps.
    pub sequence: u64,
    /// Wall clock, milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// How much it matters.
    pub severity: Severity,
    /// Fixed name: `state-changed`, `server-down`, `leg-missing`…
    pub kind: String,
    /// One sentence.
    pub message: String,
    /// What to do; empty when nothing is to be done.
    pub remedy: String,
    /// Of a `took-over`: how it went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// How a node took the addresses over. Times in microseconds since it learnt of the cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Of the new term.
    pub epoch: u64,
    /// Why, in words.
    pub cause: String,
    /// What the peer said last that it is or wants: `owner`, `release`, `standby`, …; `None` = it was never heard.
    pub peer_said: Option<String>,
    /// It was heard last so long before the cause was known.
    pub peer_heard_before_us: Option<u64>,
    /// When it was decided.
    pub decided_us: u64,
    /// When the lease was written.
    pub lease_us: Option<u64>,
    /// When the first announcement had left.
    pub first_announced_us: Option<u64>,
    /// When as many had left as there are owned addresses.
    pub all_announced_us: Option<u64>,
    /// Announcements that had left when this was told.
    pub announced: u64,
    /// When a packet that was sent on as the owner was seen first.
    pub first_packet_us: Option<u64>,
    /// It may have been sent so much sooner.
    pub first_packet_resolution_us: u64,
}

/// An event before it has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// How much it matters.
    pub severity: Severity,
    /// Fixed name.
    pub kind: &'static str,
    /// One sentence.
    pub message: String,
    /// What to do; empty when nothing is to be done.
    pub remedy: String,
}

impl NewEvent {
    /// An event; `remedy` is empty when nothing is to be done.
    pub fn new(severity: Severity, kind: &'static str, message: String, remedy: &str) -> Self {
        Self {
            severity,
            kind,
            message,
            remedy: remedy.to_owned(),
        }
    }
}

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// Those with a greater sequence; 0 = all that are kept.
    pub since: u64,
}

/// Events, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventList {
    /// The events.
    pub events: Vec<Event>,
    /// Events after `since` that are no longer kept.
    pub lost: u64,
    /// Sequence of the last event so far: the `since` of the next query.
    pub last: u64,
}

/// The last events of the daemon's life: a ring.
#[derive(Clone, Debug)]
pub struct EventLog {
    ring: VecDeque<Event>,
    capacity: usize,
    last: u64,
}

impl EventLog {
    /// Events kept by default; older ones are lost, and the loss is counted in [`EventList::lost`].
    pub const DEFAULT_CAPACITY: usize = 1_024;

    /// An empty log for `capacity` events (at least one).
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            capacity: capacity.max(1),
            last: 0,
        }
    }

    /// Adds an event that happened at `time_ms` (wall clock, milliseconds since 1970) and returns its number.
    pub fn record(&mut self, time_ms: u64, event: NewEvent, timeline: Option<Timeline>) -> u64 {
        if self.ring.len() == self.capacity {
            self.ring.pop_front();
        }
        self.last += 1;
        self.ring.push_back(Event {
            sequence: self.last,
            time_ms,
            severity: event.severity,
            kind: event.kind.to_owned(),
            message: event.message,
            remedy: event.remedy,
            timeline,
        });
        self.last
    }

    /// What happened after event number `query.since`.
    pub fn list(&self, query: EventQuery) -> EventList {
        let kept = self.ring.front().map_or(self.last, |e| e.sequence - 1);
        EventList {
            events: self
                .ring
                .iter()
                .filter(|e| e.sequence > query.since)
                .cloned()
                .collect(),
            lost: kept.saturating_sub(query.since),
            last: self.last,
        }
    }
}

impl Default for EventLog {
    fn default() -> Self {
        Self::new(Self::DEFAULT_CAPACITY)
    }
}
