use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Why the daemon does not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of no it is; decides the exit code.
    pub kind: RefusalKind,
    /// One sentence that says what to do instead.
    pub message: String,
}

impl Refusal {
    /// The request makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: RefusalKind::Usage,
            message: message.into(),
        }
    }

    /// Not in the present state.
    pub fn state(message: impl Into<String>) -> Self {
        Self {
            kind: RefusalKind::Refused,
            message: message.into(),
        }
    }

    /// Something is broken in the daemon.
    pub fn internal(message: impl Into<String>) -> Self {
        Self {
            kind: RefusalKind::Internal,
            message: message.into(),
        }
    }
}

/// Kinds of [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// Bad request: unknown operation, argument out of range, other version.
    Usage,
    /// Sound, but not now: for example a probe asked of the Active.
    Refused,
    /// Too many connections at this moment.
    Busy,
    /// A fault of the daemon.
    Internal,
}

/// Why a client got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody listens, or the user may not connect.
    #[error("cannot reach onearmd at {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The connection broke or the daemon did not answer in time.
    #[error("no answer from onearmd")]
    Exchange(#[source] std::io::Error),
    /// The answer is longer than [`super::MAX_ANSWER`].
    #[error("the answer of onearmd is longer than {} bytes", super::MAX_ANSWER)]
    AnswerTooLong,
    /// The answer is not what this version of the protocol says.
    #[error("the answer of onearmd is not understood (is it another version?)")]
    Answer(#[source] serde_json::Error),
    /// The daemon said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
