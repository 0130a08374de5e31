use std::io;

/// What can go wrong at the edges of this crate: sockets, descriptors, messages between the processes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call of the set-up failed.
    #[error("{call}")]
    System {
        /// What was tried.
        call: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A socket on the leg could not be opened.
    #[error("open packet socket on {ifname}")]
    OpenLeg {
        /// The leg's interface.
        ifname: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A frame could not be sent.
    #[error("send on {ifname}")]
    Send {
        /// The leg's interface.
        ifname: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The other process has ended.
    #[error("the other process has ended")]
    PeerEnded,
    /// The other process does not take messages any more.
    #[error("the other process did not take a message within {waited_ms} ms")]
    PeerBusy {
        /// Milliseconds waited.
        waited_ms: u128,
    },
    /// A message that is none of ours.
    #[error("message not understood")]
    Message(#[source] serde_json::Error),
    /// A message longer than [`crate::process::MESSAGE_MAX`] bytes.
    #[error("message of {length} bytes")]
    MessageTooLong {
        /// Bytes.
        length: usize,
    },
    /// The first message does not bring the descriptors.
    #[error("no descriptors came within {waited_ms} ms")]
    NoDescriptors {
        /// Milliseconds waited.
        waited_ms: u128,
    },
    /// More descriptors than one message carries.
    #[error("{count} descriptors at once")]
    TooManyDescriptors {
        /// Number asked for.
        count: usize,
    },
    /// The process could not be started.
    #[error("start HA process")]
    Spawn(#[source] io::Error),
}

impl Error {
    /// Whether trying again later may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::OpenLeg { .. } | Self::Send { .. } | Self::PeerBusy { .. } => true,
            Self::System { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                )
            }
            Self::PeerEnded
            | Self::Message(_)
            | Self::MessageTooLong { .. }
            | Self::NoDescriptors { .. }
            | Self::TooManyDescriptors { .. }
            | Self::Spawn(_) => false,
        }
    }

    pub(crate) fn system(call: &'static str) -> impl FnOnce(nix::errno::Errno) -> Self {
        move |errno| Self::System {
            call,
            source: errno.into(),
        }
    }
}
