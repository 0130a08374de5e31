use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `ha.track`: what makes a node better or worse than the other, beside its legs, its witness and its programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Track {
    /// What a node had lost counts again after it was there for so long, 0 to 1 h.
    pub hold: Duration,
    /// Programs of the operator's that say whether this node is fit.
    pub scripts: Vec<TrackScript>,
    /// Services that need some of their servers.
    pub quorum: Vec<Quorum>,
}

/// One element of `ha.track.scripts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackScript {
    /// Name, unique among them.
    pub name: String,
    /// Path and arguments; at least the path.
    pub command: Vec<String>,
    /// Time between the starts of two runs, 100 ms to 1 h.
    pub interval: Duration,
    /// A run that has not ended after so long fails, 10 ms to 60 s, at most `interval`.
    pub timeout: Duration,
    /// Runs in a row that must succeed after a failure, 1–100.
    pub rise: u32,
    /// Runs in a row that must fail, 1–100.
    pub fall: u32,
}

/// One element of `ha.track.quorum`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quorum {
    /// Name of a service.
    pub service: String,
    /// Servers of it that must be up, at least 1.
    pub servers: u32,
}

/// `ha.hooks`: programs that are run when the node's role changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// When this node owns the addresses; path and arguments.
    pub active: Option<Vec<String>>,
    /// When it waits.
    pub standby: Option<Vec<String>>,
    /// When it cannot take part.
    pub fault: Option<Vec<String>>,
    /// One that has not ended after so long is ended, 100 ms to 5 min.
    pub timeout: Duration,
}

impl Hooks {
    /// All of them with their key.
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let keys = [
            ("active", &self.active),
            ("standby", &self.standby),
            ("fault", &self.fault),
        ];
        keys.into_iter()
            .filter_map(|(key, command)| Some((key, command.as_deref()?)))
    }
}
