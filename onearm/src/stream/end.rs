//! Why there is no session, or no longer one.

use onearm_ha::auth::KeyId;

use super::wire::{Farewell, Refusal};

/// Why a session ended or did not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer could not be reached; how the system calls it.
    Unreachable(String),
    /// What came first is no opening or answer of a known form.
    NotUnderstood,
    /// The peer's opening names a key this node does not hold.
    KeyUnknown(KeyId),
    /// The key of that number is another one on the other side.
    WrongKey,
    /// The peer says that it does not go on.
    Refused(Refusal),
    /// The other side has this node's id.
    SameId,
    /// The other side has this node's name.
    SameName,
    /// The other side is in another group of routers.
    OtherVrid(u8),
    /// No version of the protocol is spoken by both: (lowest, highest) here and there.
    NoCommonVersion { own: (u16, u16), peer: (u16, u16) },
    /// The handshake took too long.
    Late,
    /// Others came before this handshake was done.
    Crowded,
    /// The peer closed the connection without a word.
    Closed,
    /// The connection was reset: by the peer's system, by something between, or by a forger.
    Reset,
    /// The connection failed otherwise; how the system calls it.
    Failed(String),
    /// Nothing was heard for too long.
    Silent,
    /// The peer does not read what it is sent.
    NotRead,
    /// The peer sends more than was agreed on.
    TooMuch,
    /// A frame was altered, repeated or made up.
    Forged,
    /// A frame is none by its own contents.
    Malformed,
    /// The key the session was made with is no longer in this node's file.
    KeyRemoved,
    /// A newer session is there.
    Replaced,
    /// This node's address, or the peer's, is another one now.
    Moved,
    /// This node stops.
    Stopping,
    /// The thread of the stream panicked.
    Crashed,
    /// The peer left in order.
    Left(Farewell),
}

impl End {
    /// Name of the counter.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::NotUnderstood => "not_understood",
            Self::KeyUnknown(_) => "key_unknown",
            Self::WrongKey => "wrong_key",
            Self::Refused(Refusal::KeyUnknown) => "refused_key_unknown",
            Self::Refused(Refusal::WrongKey) => "refused_wrong_key",
            Self::Refused(Refusal::NotUnderstood) => "refused_not_understood",
            Self::SameId => "same_id",
            Self::SameName => "same_name",
            Self::OtherVrid(_) => "other_vrid",
            Self::NoCommonVersion { .. } => "no_common_version",
            Self::Late => "late",
            Self::Crowded => "crowded",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Failed(_) => "failed",
            Self::Silent => "silent",
            Self::NotRead => "not_read",
            Self::TooMuch => "too_much",
            Self::Forged => "forged",
            Self::Malformed => "malformed",
            Self::KeyRemoved => "key_removed",
            Self::Replaced => "replaced",
            Self::Moved => "moved",
            Self::Stopping => "stopping",
            Self::Crashed => "crashed",
            Self::Left(Farewell::Stopping) => "peer_stopped",
            Self::Left(Farewell::KeyRemoved) => "peer_removed_key",
            Self::Left(Farewell::Replaced) => "peer_replaced",
            Self::Left(Farewell::Other) => "peer_left",
        }
    }

    /// What an operator can do about it; empty where it mends itself.
    pub(crate) const fn remedy(&self) -> &'static str {
        match self {
            Self::Unreachable(_) | Self::Late | Self::Silent => {
                "see whether onearmd runs on the other node, and whether a packet filter lets TCP through to ha.stream_port on both"
            }
            Self::KeyUnknown(_) | Self::WrongKey | Self::Refused(Refusal::KeyUnknown | Refusal::WrongKey) => {
                "compare `onearm key show` on both nodes; if they show the same, somebody else speaks here"
            }
            Self::NotUnderstood
            | Self::Refused(Refusal::NotUnderstood)
            | Self::NoCommonVersion { .. }
            | Self::Malformed => "install the same release on both nodes",
            Self::SameId => {
                "give the nodes different ids (node.toml); a copy of this node must not run beside it"
            }
            Self::SameName => "give each node a name of its own (node.toml)",
            Self::OtherVrid(_) => {
                "write the same ha.vrid into pair.toml of both nodes, or another key file for another pair"
            }
            Self::NotRead => "see whether onearmd hangs on the other node",
            Self::Crashed => "report it with what the log says just before",
            Self::Reset | Self::Forged => "if it happens again, find who is on the way between the nodes",
            Self::Crowded
            | Self::TooMuch
            | Self::Closed
            | Self::Failed(_)
            | Self::KeyRemoved
            | Self::Replaced
            | Self::Moved
            | Self::Stopping
            | Self::Left(_) => "",
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Unreachable(error) => return write!(f, "the peer cannot be reached: {error}"),
            Self::NotUnderstood => "what the other side says is of no known form",
            Self::KeyUnknown(key) => {
                return write!(f, "the peer uses key {}, which this node does not hold", key.0);
            }
            Self::WrongKey => "wrong key: the other side holds another secret of that number",
            Self::Refused(Refusal::KeyUnknown) => "the peer does not hold the key this node uses",
            Self::Refused(Refusal::WrongKey) => "wrong key: the peer holds another secret of that number",
            Self::Refused(Refusal::NotUnderstood) => "the peer does not understand this release",
            Self::SameId => "the other side has this node's id",
            Self::SameName => "the other side has this node's name",
            Self::OtherVrid(vrid) => return write!(f, "the other side has vrid {vrid}"),
            Self::NoCommonVersion { own, peer } => {
                return write!(
                    f,
                    "no version of the protocol in common: {} to {} here, {} to {} there",
                    own.0, own.1, peer.0, peer.1
                );
            }
            Self::Late => "the handshake took too long",
            Self::Crowded => "other connections came before the handshake was done",
            Self::Closed => "the peer closed the connection",
            Self::Reset => "the connection was reset",
            Self::Failed(error) => return write!(f, "the connection failed: {error}"),
            Self::Silent => "nothing is heard of the peer any more",
            Self::NotRead => "the peer does not read what it is sent",
            Self::TooMuch => "the peer sends more than was agreed on",
            Self::Forged => "a frame was altered, repeated or made up",
            Self::Malformed => "a frame is malformed",
            Self::KeyRemoved => "the key of the session was removed",
            Self::Replaced => "a newer session took its place",
            Self::Moved => "this node's address or the peer's changed",
            Self::Stopping => "this node stops",
            Self::Crashed => "its thread crashed and is started again",
            Self::Left(Farewell::Stopping) => "the peer stops",
            Self::Left(Farewell::KeyRemoved) => "the peer removed the key of the session",
            Self::Left(Farewell::Replaced) => "the peer has a newer session",
            Self::Left(Farewell::Other) => "the peer left",
        };
        f.write_str(text)
    }
}
