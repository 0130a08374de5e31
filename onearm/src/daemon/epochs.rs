//! The numbers of terms of ownership, kept across reboots: `epoch.json` in the state directory.
//!
//! The file holds the highest number this node may have used, which is one more than the highest it knows of: so the number of
//! a term is on the disk before anybody can own under it, and the election never waits for a disk. A lost or older file opens
//! no door: that a message is new is proved by challenge, and the peer tells the number it knows. Each start skips one.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use super::board::Board;
use super::kept;
use crate::on_disk;

const FILE: &str = "epoch.json";
const FORMAT: u32 = 1;
/// Longest file, bytes: more than it takes.
const LONGEST: u64 = 4_096;
/// The election begins after so long whatever the disk does.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    epoch: u64,
}

/// The highest number this node may have used, here and on the disk.
#[derive(Debug)]
pub(crate) struct Epochs {
    wanted: watch::Sender<u64>,
    stored: watch::Receiver<u64>,
}

impl Epochs {
    /// Reads the file, and keeps it from now on, in a task of its own. What cannot be read counts as 0.
    pub(crate) fn open(state_dir: &Path, board: &Arc<Board>) -> Self {
        let path = state_dir.join(FILE);
        let kept = read(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "the last epoch is not known: the peer tells it");
            0
        });
        let (wanted, asked) = watch::channel(kept);
        let (done, stored) = watch::channel(kept);
        tokio::spawn(kept::keep(path, asked, Arc::clone(board), move |epoch| {
            done.send_replace(epoch);
        }));
        Self { wanted, stored }
    }

    /// The election begins: gives the highest number that may have been used, with the next one on the disk, unless the disk
    /// takes longer than a second.
    pub(crate) async fn begin(&mut self) -> u64 {
        let epoch = *self.wanted.borrow();
        self.know(epoch);
        if timeout(PATIENCE, self.stored.wait_for(|stored| *stored > epoch))
            .await
            .is_err()
        {
            tracing::warn!(epoch, "the election begins before its epoch is on the disk");
        }
        epoch
    }

    /// The election knows of this number.
    pub(crate) fn know(&self, epoch: u64) {
        let next = epoch.saturating_add(1);
        self.wanted.send_if_modified(|wanted| {
            let is_new = next > *wanted;
            *wanted = next.max(*wanted);
            is_new
        });
    }
}

fn read(path: &Path) -> io::Result<u64> {
    let Some(text) = on_disk::read(path, LONGEST)? else {
        return Ok(0);
    };
    let kept: Kept = serde_json::from_slice(&text)?;
    if kept.format == FORMAT {
        Ok(kept.epoch)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "of another format"))
    }
}

impl kept::Kept for u64 {
    const SOURCE: &'static str = "epoch";
    const LOST: &'static str = "the last epoch is not kept";

    fn text(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Kept {
            format: FORMAT,
            epoch: *self,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Epochs, FILE, read};
    use crate::daemon::board::Board;
    use std::fs;
    use std::sync::Arc;

    fn board() -> Arc<Board> {
        Arc::new(Board::new(100, "192.0.2.1".parse().unwrap()))
    }

    #[tokio::test]
    async fn a_number_is_on_the_disk_before_it_can_be_used_and_none_is_used_twice() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let mut epochs = Epochs::open(directory.path(), &board());
        assert_eq!(epochs.begin().await, 0);
        // 1 may be used from now on.
        assert_eq!(read(&path).unwrap(), 1);
        epochs.know(1);
        epochs.know(7);
        epochs.know(3);
        epochs.stored.wait_for(|stored| *stored == 8).await.unwrap();
        assert_eq!(read(&path).unwrap(), 8);
        // A process that died may have used 8.
        assert_eq!(epochs.begin().await, 8);
        drop(epochs);
        let mut again = Epochs::open(directory.path(), &board());
        assert_eq!(again.begin().await, 9);
        assert_eq!(read(&path).unwrap(), 10);
    }

    #[tokio::test]
    async fn a_damaged_file_counts_as_none_and_a_disk_that_takes_nothing_stops_nobody() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["{\"format\":1,\"epoch\":", "{\"format\":2,\"epoch\":7}", ""] {
            fs::write(directory.path().join(FILE), text).unwrap();
            let mut epochs = Epochs::open(directory.path(), &board());
            assert_eq!(epochs.begin().await, 0, "{text}");
        }
        let board = board();
        let mut epochs = Epochs::open(&directory.path().join("gone"), &board);
        assert_eq!(epochs.begin().await, 0);
        let facts = board.facts();
        assert!(
            facts.warnings["epoch"][0].contains("epoch.json"),
            "{:?}",
            facts.warnings
        );
    }
}
