//! The latest value of something on the disk, by a task of its own: nothing waits for the disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::board::Board;
use super::node::RETRY;
use crate::on_disk::{self, Access};

/// What becomes of a value on the disk.
pub(crate) trait Kept: Clone + Send + Sync + 'static {
    /// Whose warning it is on the board while it cannot be written.
    const SOURCE: &'static str;
    /// What that means.
    const LOST: &'static str;

    /// What the file is to hold.
    fn text(&self) -> serde_json::Result<Vec<u8>>;
}

/// Writes each value that differs from the one before, the latest one; again and again while it cannot be written. `done` is called with
/// what is on the disk.
pub(crate) async fn keep<T: Kept>(
    path: PathBuf,
    mut wanted: watch::Receiver<T>,
    board: Arc<Board>,
    mut done: impl FnMut(T),
) {
    // Cancel-safe: nothing is lost when the runtime ends; a write that has begun ends by itself.
    while wanted.changed().await.is_ok() {
        loop {
            let value = wanted.borrow_and_update().clone();
            match write(&path, &value).await {
                Ok(()) => {
                    done(value);
                    break;
                }
                Err(error) => {
                    let text = format!("{}: {error}: {}", path.display(), T::LOST);
                    board.warn(T::SOURCE, vec![text]);
                    sleep(RETRY).await;
                }
            }
        }
        board.warn(T::SOURCE, Vec::new());
    }
}

async fn write<T: Kept>(path: &Path, value: &T) -> io::Result<()> {
    let (path, text) = (path.to_owned(), value.text()?);
    spawn_blocking(move || on_disk::replace(&path, &text, Access::STATE)).await?
}
