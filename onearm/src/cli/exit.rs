use std::process::ExitCode;

use crate::control::{ClientError, RefusalKind};
use crate::key::{RotationError, StoreError};

/// What the exit code says. The numbers are a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All is well.
    Ok = 0,
    /// It was found, and it is not healthy.
    Unhealthy = 1,
    /// The command makes no sense.
    Usage = 2,
    /// The configuration is refused.
    BadConfiguration = 3,
    /// Not in the present state.
    Refused = 4,
    /// No daemon, or not allowed to ask it.
    NoDaemon = 5,
    /// A fault of onearm.
    Internal = 70,
}

impl Exit {
    /// The code for a command that failed.
    pub(super) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Client(ClientError::Connect { .. } | ClientError::Exchange(_)) => Self::NoDaemon,
            Failure::Client(ClientError::Refused(refusal)) => match refusal.kind {
                RefusalKind::Usage => Self::Usage,
                RefusalKind::Refused => Self::Refused,
                RefusalKind::Busy => Self::NoDaemon,
                RefusalKind::Internal => Self::Internal,
            },
            Failure::Client(ClientError::Answer(_) | ClientError::AnswerTooLong)
            | Failure::Output(_)
            | Failure::Interfaces(_)
            | Failure::Rotation(RotationError::Random(_)) => Self::Internal,
            Failure::RecordingUnread { .. } | Failure::NoRecording { .. } => Self::Usage,
            Failure::Rotation(
                RotationError::UnderWay { .. }
                | RotationError::NotUnderWay { .. }
                | RotationError::LastNumber { .. },
            )
            | Failure::Key(StoreError::Exists(_))
            | Failure::PeerLacksKey { .. } => Self::Refused,
            Failure::Key(StoreError::Write { source, .. }) => match source.kind() {
                std::io::ErrorKind::PermissionDenied => Self::NoDaemon,
                _ => Self::Internal,
            },
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command came to no end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The daemon could not be asked, or said no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The answer could not be printed.
    #[error("cannot write the answer")]
    Output(#[from] std::io::Error),
    /// The interfaces of this machine could not be listed.
    #[error("cannot list the interfaces of this machine")]
    Interfaces(#[source] nix::Error),
    /// The key file could not be written.
    #[error(transparent)]
    Key(#[from] StoreError),
    /// The other node would not understand this one.
    #[error(
        "the other node does not hold key {key} yet, as far as this node's daemon knows: copy the file to it and reload both \
         daemons, then try again (--force does not ask)"
    )]
    PeerLacksKey {
        /// Number of the key that is to stay.
        key: u16,
    },
    /// The key file cannot take that step.
    #[error(transparent)]
    Rotation(#[from] RotationError),
    /// A recording could not be read.
    #[error("cannot read {file}")]
    RecordingUnread {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line of a recording is none.
    #[error(
        "{file}, line {line}: no line that this version of `onearmd --record` writes; replay it with the version that wrote it"
    )]
    NoRecording {
        /// The file.
        file: String,
        /// Its line.
        line: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}
