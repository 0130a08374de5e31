//! How far the peer's flows are like the owner's.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What can be said of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every flow told is at the peer, and no other: digests of all of them agree, and nothing is under way.
    Equal,
    /// As equal, but for what is under way.
    Behind {
        /// Records, and places to look at, that the peer has not acknowledged.
        records: u64,
        /// Age of the oldest, milliseconds.
        oldest_ms: u64,
    },
    /// More may be missing.
    NotSyncing {
        /// Why.
        because: Because,
    },
}

/// Why flows are not in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Because {
    /// There is no session with the peer.
    NoSession,
    /// This node owns nothing, and nobody has told it of flows since.
    NobodyTells,
    /// The owner of the flows has said nothing of them for some seconds.
    PeerSilent,
    /// Both nodes own flows.
    BothOwn,
    /// One release cannot read what the other tells.
    OtherLayout,
    /// The table is being gone through, since it is not known what changed.
    LookingThrough,
    /// Events were lost; the table is being gone through.
    EventsLost,
    /// The tables have not been compared since the session began.
    NotCompared,
    /// The tables differ; where is being found out.
    Comparing,
    /// The tables differ; what differs is being told.
    Repairing,
    /// The peer has no room for all flows.
    PeerFull,
    /// For a reason that this release does not know.
    Unknown,
}

impl Because {
    /// On the wire. 0 and 1 stand for [`Verdict::Equal`] and [`Verdict::Behind`].
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::NoSession => 2,
            Self::NobodyTells => 3,
            Self::PeerSilent => 4,
            Self::BothOwn => 5,
            Self::OtherLayout => 6,
            Self::LookingThrough => 7,
            Self::EventsLost => 8,
            Self::NotCompared => 9,
            Self::Comparing => 10,
            Self::Repairing => 11,
            Self::PeerFull => 12,
            Self::Unknown => u8::MAX,
        }
    }

    pub(crate) const fn of_code(code: u8) -> Self {
        match code {
            2 => Self::NoSession,
            3 => Self::NobodyTells,
            4 => Self::PeerSilent,
            5 => Self::BothOwn,
            6 => Self::OtherLayout,
            7 => Self::LookingThrough,
            8 => Self::EventsLost,
            9 => Self::NotCompared,
            10 => Self::Comparing,
            11 => Self::Repairing,
            12 => Self::PeerFull,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSession => "there is no session with the peer",
            Self::NobodyTells => "neither node owns the flows, or their owner has not begun to tell of them",
            Self::PeerSilent => "the owner of the flows has said nothing of them for some seconds",
            Self::BothOwn => "both nodes own flows",
            Self::OtherLayout => "one release cannot read what the other tells",
            Self::LookingThrough => "the table is being gone through after a change of roles",
            Self::EventsLost => "events were lost and the table is being gone through",
            Self::NotCompared => "the tables have not been compared since the session began",
            Self::Comparing => "the tables differ and are being compared",
            Self::Repairing => "the tables differ and what differs is being told",
            Self::PeerFull => "the Standby has no room for all flows",
            Self::Unknown => "of something that this release does not know",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("equal"),
            Self::Behind { records, oldest_ms } => {
                write!(f, "behind by {records} (oldest {oldest_ms} ms)")
            }
            Self::NotSyncing { because } => write!(f, "not syncing, because {because}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_survives_the_wire() {
        for code in 0..=u8::MAX {
            let because = Because::of_code(code);
            assert!(because == Because::Unknown || because.code() == code);
        }
        assert_eq!(
            Verdict::NotSyncing {
                because: Because::BothOwn
            }
            .to_string(),
            "not syncing, because both nodes own flows"
        );
    }
}
