//! Many long-lived connections, TCP and UDP, whose every word is checked from end to end: who loses one, whose words go
//! astray, and how long the others wait.
//!
//! Each word names its connection and its place in it; the server adds who it is. A client knows by that that the answer
//! is its own and that it still talks to the server it began with; a server knows that nobody else speaks on a connection.

mod client;
mod record;
mod server;
mod short;
mod word;

use std::fs;

use anyhow::{Context as _, Result};
use nix::{
    sched::{CloneFlags, unshare},
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::close,
};

pub use self::{
    client::{Protocol, Sessions, Wanted},
    record::{Record, Seen, Why},
    server::{Served, Server},
    short::{Briefly, Short},
};

/// TCP and UDP port of the service.
pub const PORT: u16 = 9_200;

/// Gives the calling thread a descriptor table of its own, empty but for the standard ones and as large as may be: a table
/// may not be large enough for both ends of all connections, and it is searched from the start for each new one.
///
/// # Errors
/// When the kernel refuses.
fn own_descriptors() -> Result<()> {
    unshare(CloneFlags::CLONE_FILES).context("a descriptor table of its own")?;
    let open: Vec<i32> = fs::read_dir("/proc/thread-self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The folder's own descriptor is gone already.
        close(fd).ok();
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
