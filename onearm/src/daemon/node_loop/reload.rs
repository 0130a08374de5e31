//! SIGHUP: the files are read again, and what can change while the node runs is taken.

use std::future::pending;
use std::path::PathBuf;

use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use super::Running;
use crate::config::{self, Loaded, Refused};
use crate::control::Severity;
use crate::daemon::authentication::{self, Authentication};

/// The files and the directory the node was started with.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// `node.toml`.
    pub(crate) node: PathBuf,
    /// `pair.toml`.
    pub(crate) pair: PathBuf,
    /// Where what the operator wants is kept.
    pub(crate) state_dir: PathBuf,
}

/// What came of reading them again.
pub(super) type Read = Result<Result<Loaded, Refused>, JoinError>;

/// Waits until they are read; for ever if they are not being read. Cancel-safe: the reading goes on.
pub(super) async fn read(reading: &mut Option<JoinHandle<Result<Loaded, Refused>>>) -> Read {
    match reading {
        Some(reading) => reading.await,
        None => pending().await,
    }
}

impl Running {
    /// Reads the files again; what is read is taken when it is there. They may lie on a disk that hangs.
    pub(super) fn reload(&mut self) {
        if self.reading.is_some() {
            self.read_again = true;
            return;
        }
        let Files { node, pair, .. } = self.files.clone();
        self.reading = Some(spawn_blocking(move || config::load(&node, &pair)));
    }

    /// Takes other keys of the same pair and another `ha.rollout`; says what else needs a restart.
    pub(super) async fn have_read(&mut self, read: Read) {
        self.reading = None;
        if std::mem::take(&mut self.read_again) {
            self.reload();
            return;
        }
        match read {
            Ok(Ok(loaded)) => self.take(loaded).await,
            Ok(Err(refused)) => self.not_reloaded(
                format!("the files were read again and refused, nothing has changed: {refused}"),
                "see onearm check",
            ),
            Err(panic) => self.not_reloaded(format!("the files were not read again: {panic}"), "report this"),
        }
    }

    fn not_reloaded(&self, message: String, remedy: &str) {
        let board = &self.node.board;
        board.record(Severity::Warning, "reload-refused", message, remedy);
    }

    async fn take(&mut self, mut loaded: Loaded) {
        let known = &self.node.loaded;
        let mut differs = Vec::new();
        if loaded.node != known.node {
            differs.push("node.toml");
        }
        // `ha.rollout` is no part of the digest.
        if loaded.pair.digest() != known.pair.digest() {
            differs.push("pair.toml");
        }
        if !differs.is_empty() {
            let message = format!("{} changed: restart this node for that", differs.join(" and "));
            let remedy = "the Standby first; then, when it is back, the other";
            let board = &self.node.board;
            board.record(Severity::Warning, "restart-needed", message, remedy);
        }
        let (Some(auth), Some(keys)) = (&mut self.auth, loaded.keys.take()) else {
            return;
        };
        let peer = self
            .node
            .board
            .facts()
            .authentication
            .as_ref()
            .and_then(|facts| facts.peer);
        if let Some((why, remedy)) = authentication::objection(&auth.keys, &keys, peer) {
            self.not_reloaded(format!("the keys stay as they are: {why}"), remedy);
            return;
        }
        let rollout = loaded.pair.ha.rollout;
        if auth.keys == keys && auth.rollout == rollout {
            return;
        }
        let (words, before) = (authentication::in_words(&keys), auth.rollout);
        *auth = Authentication {
            keys,
            rollout,
            ..*auth
        };
        let mut text = format!("in force: {words}");
        if rollout != before {
            text = format!("{text}; rollout \"{}\"", authentication::word(rollout));
        }
        self.node
            .board
            .record(Severity::Info, "authentication-changed", text, "");
        if let (Some(streaming), Some(auth)) = (&self.streaming, &self.auth) {
            streaming.use_keys(&auth.keys);
        }
        self.show_authentication();
        self.settle().await;
    }
}
