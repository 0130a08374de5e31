//! What the last owner told, kept across restarts: `owned.json` in the state directory.
//!
//! Written whole or not at all, in a task of its own: nothing waits for the disk. A file that is lost or damaged counts as none, as at
//! the first start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::daemon::board::Board;
use crate::daemon::node::RETRY;
use crate::on_disk::{self, Access};
use crate::stream::owned::OwnedSet;

const FILE: &str = "owned.json";
const FORMAT: u32 = 1;
/// Longest file, bytes: more than any set takes.
const LONGEST: u64 = 4 << 20;
/// Readable to those who may look into the state directory.
const ACCESS: Access = Access {
    mode: 0o640,
    owner: None,
};

#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    set: Option<OwnedSet>,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Store {
    wanted: watch::Sender<Option<OwnedSet>>,
}

impl Store {
    /// Reads the file, and keeps it from now on. What cannot be read counts as none.
    pub(crate) fn open(state_dir: &Path, board: &Arc<Board>) -> (Self, Option<OwnedSet>) {
        let path = state_dir.join(FILE);
        let kept = read(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "what the last owner told is not known any more: the file is ignored");
            None
        });
        let (wanted, asked) = watch::channel(kept.clone());
        tokio::spawn(keep(path, asked, Arc::clone(board)));
        (Self { wanted }, kept)
    }

    /// Keeps this from now on.
    pub(crate) fn keep(&self, set: Option<&OwnedSet>) {
        self.wanted.send_if_modified(|wanted| {
            let is_new = wanted.as_ref() != set;
            if is_new {
                *wanted = set.cloned();
            }
            is_new
        });
    }
}

fn read(path: &Path) -> io::Result<Option<OwnedSet>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(file) if file.len() > LONGEST => return Err(wrong("too long")),
        Ok(_) => {}
    }
    let kept: Kept = serde_json::from_slice(&std::fs::read(path)?)?;
    if kept.format != FORMAT {
        return Err(wrong("of another format"));
    }
    if kept.set.as_ref().is_some_and(|set| !set.is_fit()) {
        return Err(wrong("no set of addresses"));
    }
    Ok(kept.set)
}

/// Writes the latest set; again and again while it cannot be written.
async fn keep(path: PathBuf, mut wanted: watch::Receiver<Option<OwnedSet>>, board: Arc<Board>) {
    // Cancel-safe: nothing is lost when the runtime ends; a write that has begun ends by itself.
    while wanted.changed().await.is_ok() {
        while let Err(error) = write(&path, &mut wanted).await {
            let text = format!("{}: {error}: what the owner told is not kept", path.display());
            board.warn("owned-file", vec![text]);
            sleep(RETRY).await;
        }
        board.warn("owned-file", Vec::new());
    }
}

async fn write(path: &Path, wanted: &mut watch::Receiver<Option<OwnedSet>>) -> io::Result<()> {
    let set = wanted.borrow_and_update().clone();
    let text = serde_json::to_vec(&Kept { format: FORMAT, set })?;
    let path = path.to_owned();
    spawn_blocking(move || on_disk::replace(&path, &text, ACCESS)).await?
}

#[cfg(test)]
mod tests {
    use super::{FILE, Store, read};
    use crate::daemon::board::Board;
    use crate::stream::owned::{OwnedSet, Place};
    use std::sync::Arc;
    use std::time::Duration;

    fn board() -> Arc<Board> {
        Arc::new(Board::new(100, "192.0.2.1".parse().unwrap()))
    }

    fn set() -> OwnedSet {
        let place = Place {
            leg: "lan".to_owned(),
            vlan: Some(7),
            group: 0,
            router: true,
        };
        OwnedSet {
            digest: "ab".to_owned(),
            addresses: [("192.0.2.1".parse().unwrap(), place)].into(),
        }
    }

    #[tokio::test]
    async fn a_set_outlives_the_process_and_so_does_that_there_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        for wanted in [Some(set()), None] {
            let (store, _) = Store::open(directory.path(), &board());
            store.keep(wanted.as_ref());
            let is_there = async {
                while !path.exists() || read(&path).unwrap() != wanted {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), is_there)
                .await
                .unwrap();
            assert_eq!(Store::open(directory.path(), &board()).1, wanted);
        }
    }

    #[tokio::test]
    async fn a_bad_file_counts_as_none() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Store::open(directory.path(), &board()).1, None);
        let good = serde_json::to_string(&set()).unwrap();
        for text in [
            "",
            "{\"format\":1,\"set\":{",
            &format!("{{\"format\":2,\"set\":{good}}}"),
            &format!("{{\"format\":1,\"set\":{}}}", good.replace("lan", "l\\u001bn")),
            &format!("{{\"format\":1,\"set\":{}}}", good.replace(":7", ":4095")),
        ] {
            std::fs::write(directory.path().join(FILE), text).unwrap();
            assert!(read(&directory.path().join(FILE)).is_err(), "{text}");
            assert_eq!(Store::open(directory.path(), &board()).1, None, "{text}");
        }
    }
}
