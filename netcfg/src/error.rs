//! The one error of the crate.

use std::{io, path::PathBuf};

use crate::{diff::Change, name::IfName};

/// Why something could not be read from or written to the kernel or the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A netlink socket could not be made or used.
    #[error("netlink: cannot {operation}")]
    Netlink {
        /// What was tried.
        operation: &'static str,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The kernel did not list objects of a kind.
    #[error("cannot list {what}")]
    List {
        /// Kind of the objects.
        what: &'static str,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A change was refused by the kernel.
    #[error("cannot apply {change:?}")]
    Apply {
        /// The change.
        change: Box<Change>,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A setting could not be read or written.
    #[error("cannot {operation} {key}")]
    Sysctl {
        /// `read` or `write`.
        operation: &'static str,
        /// Full key, with slashes.
        key: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The offload features or the link of a device could not be read or switched.
    #[error("cannot {operation} of {ifname}")]
    Ethtool {
        /// What was tried.
        operation: &'static str,
        /// Interface.
        ifname: IfName,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// The journal could not be read or written; nothing that needs it has been changed.
    #[error("cannot {operation} {}", path.display())]
    Journal {
        /// What was tried.
        operation: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// Another process holds the state directory: a daemon runs.
    #[error("{} is in use by a running daemon", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread {
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// Not everything was as desired after the last attempt.
    #[error(
        "{} changes still outstanding after {attempts} attempts, first {first:?}",
        outstanding
    )]
    NotVerified {
        /// How often it was tried.
        attempts: u32,
        /// How many changes are outstanding.
        outstanding: usize,
        /// The first of them.
        first: Box<Change>,
    },
}

impl Error {
    /// Whether the same call may succeed when tried again soon, without anybody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Netlink { source, .. }
            | Self::List { source, .. }
            | Self::Apply { source, .. }
            | Self::Ethtool { source, .. }
            | Self::Sysctl { source, .. }
            | Self::Thread { source } => is_transient(source),
            Self::NotVerified { .. } => true,
            Self::Journal { .. } | Self::InUse { .. } => false,
        }
    }
}

/// Busy, interrupted, out of buffers, or a device or address that is about to come or go.
fn is_transient(source: &io::Error) -> bool {
    matches!(
        source.raw_os_error(),
        Some(
            libc::EAGAIN
                | libc::EINTR
                | libc::EBUSY
                | libc::ENOBUFS
                | libc::ENOMEM
                | libc::ENODEV
                | libc::ENXIO
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::ETIMEDOUT
        )
    )
}
