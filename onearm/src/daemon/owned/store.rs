//! What the last owner told, kept across restarts: `owned.json` in the state directory.
//!
//! Written whole or not at all, in a task of its own: nothing waits for the disk. A file that is lost or damaged counts as none, as at
//! the first start.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::daemon::board::Board;
use crate::daemon::kept;
use crate::on_disk;
use crate::stream::owned::OwnedSet;

const FILE: &str = "owned.json";
const FORMAT: u32 = 1;
/// Longest file, bytes: more than any set takes.
const LONGEST: u64 = 4 << 20;

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
        tokio::spawn(kept::keep(path, asked, Arc::clone(board), drop));
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
    let Some(text) = on_disk::read(path, LONGEST)? else {
        return Ok(None);
    };
    let kept: Kept = serde_json::from_slice(&text)?;
    if kept.format != FORMAT {
        return Err(wrong("of another format"));
    }
    if kept.set.as_ref().is_some_and(|set| !set.is_fit()) {
        return Err(wrong("no set of addresses"));
    }
    Ok(kept.set)
}

impl kept::Kept for Option<OwnedSet> {
    const SOURCE: &'static str = "owned-file";
    const LOST: &'static str = "what the owner told is not kept";

    fn text(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Kept {
            format: FORMAT,
            set: self.clone(),
        })
    }
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
