use serde::{Deserialize, Serialize};

use super::NodeState;

/// What an operator wants of the pair's ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum HaRequest {
    /// The Standby becomes the Active; asked of either node.
    Switchover {
        /// Even if the peer cannot take over; of the Active only.
        force: bool,
    },
    /// Ownership stays where it is, unless its holder dies.
    Hold {
        /// `false`: no more.
        on: bool,
    },
    /// This node owns nothing, even if nobody does.
    Maintenance {
        /// `false`: no more.
        on: bool,
        /// Even if the peer cannot take over.
        force: bool,
    },
}

/// What came of it. It is done when this is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaAnswer {
    /// Name of the node that answers.
    pub node: String,
    /// What it is now.
    pub state: NodeState,
    /// Who owns the addresses, if that is known.
    pub owner: Option<String>,
    /// From the order to the change of ownership, milliseconds; `None` = ownership did not move.
    pub took_ms: Option<u64>,
    /// Of that, how long it waited until the new owner had the connections, milliseconds; `None` = not at all.
    #[serde(default)]
    pub waited_ms: Option<u64>,
    /// What has been done, one sentence.
    pub message: String,
}
