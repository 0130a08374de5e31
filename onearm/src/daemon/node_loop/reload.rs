//! SIGHUP: the files are read again, and what can change while the node runs is taken.

use std::path::PathBuf;

use super::Running;
use crate::config::{self, Loaded};
use crate::control::Severity;
use crate::daemon::authentication::{self, Authentication};

/// The files the node was started with.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// `node.toml`.
    pub(crate) node: PathBuf,
    /// `pair.toml`.
    pub(crate) pair: PathBuf,
}

impl Running {
    /// Takes other keys of the same pair and another `ha.rollout`; says what else needs a restart.
    pub(super) async fn reload(&mut self) {
        let Files { node, pair } = self.files.clone();
        // The files may lie on a disk that hangs.
        let read = tokio::task::spawn_blocking(move || config::load(&node, &pair)).await;
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
        self.show_authentication();
        self.settle().await;
    }
}
