//! The stream as the rest of the daemon sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::end::End;
use super::owned::OwnedSet;
use super::session::Agreed;
use super::wire::Profile;

/// What is known of the stream. Receivers are woken by everything but the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The session, while there is one.
    pub(crate) session: Option<Open>,
    /// What the peer tells of itself; none without a session.
    pub(crate) profile: Option<Profile>,
    /// What the peer owns, by its own word; none while it owns nothing, and without a session.
    pub(crate) owned: Option<Arc<OwnedSet>>,
    /// Why the last session ended, or the last attempt failed; none before the first one.
    pub(crate) last: Option<End>,
    /// Times the stream was started anew after a fault of its own.
    pub(crate) crashes: u64,
    /// Sessions that have been open.
    pub(crate) sessions: u64,
    /// How sessions ended, by cause.
    pub(crate) ended: BTreeMap<&'static str, u64>,
    /// Why none came about, by cause; `stranger` and `flood`: closed unheard.
    pub(crate) failed: BTreeMap<&'static str, u64>,
    /// Messages that were lost because the session had just ended, or the peer reads too slowly.
    pub(crate) unsaid: u64,
    /// Messages of the peer that were lost because this node does not take them.
    pub(crate) untaken: u64,
    /// What went each way, over all sessions.
    pub(crate) traffic: Traffic,
}

/// An open session.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    /// Who it is with, and what was agreed on.
    pub(crate) agreed: Agreed,
    /// Since when.
    pub(crate) since: Instant,
}

/// What went each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Frames received.
    pub(crate) frames_in: u64,
    /// Frames sent.
    pub(crate) frames_out: u64,
    /// Bytes received, frames of handshakes and lengths included.
    pub(crate) bytes_in: u64,
    /// Bytes sent.
    pub(crate) bytes_out: u64,
    /// Records received of a kind that is not known.
    pub(crate) unknown: u64,
}

impl Traffic {
    /// Both together.
    pub(crate) const fn add(&mut self, other: Self) {
        self.frames_in += other.frames_in;
        self.frames_out += other.frames_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.unknown += other.unknown;
    }
}
