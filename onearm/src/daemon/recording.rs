//! What the election was given, written to a file as lines of JSON: `onearmd --record`, for `onearm replay`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use anyhow::Context as _;
use onearm_ha::election::Entry;

/// Batches that wait for the disk; what does not fit is missing from the recording, which says so.
const BATCHES: usize = 256;

/// An open recording. Writing happens in a thread of its own: a slow disk delays nobody.
#[derive(Debug)]
pub(crate) struct Recording {
    lines: SyncSender<Vec<Entry>>,
    /// Number of the entry that comes next.
    next: u64,
    lost: u64,
}

impl Recording {
    /// Opens `path` for appending; a new file is for its owner alone.
    ///
    /// # Errors
    /// When the file cannot be opened, or there is no thread.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .read(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("cannot record into {}", path.display()))?;
        end_last_line(&file).with_context(|| format!("cannot record into {}", path.display()))?;
        let (lines, waiting) = mpsc::sync_channel(BATCHES);
        let name = path.display().to_string();
        thread::Builder::new()
            .name("recording".to_owned())
            .spawn(move || {
                if let Err(error) = write(file, &waiting) {
                    tracing::error!(%error, file = name, "nothing more is recorded");
                }
            })
            .context("no thread for the recording")?;
        Ok(Self {
            lines,
            next: 0,
            lost: 0,
        })
    }

    /// Takes entries, the first of which is number `from` of its router.
    pub(crate) fn take(&mut self, from: u64, entries: Vec<Entry>) {
        // A smaller number: the HA process, or its router, began anew.
        let missing = from.checked_sub(self.next).unwrap_or(from);
        self.next = from + entries.len() as u64;
        let lost = self.lost + missing;
        let gap = (lost > 0).then_some(Entry::Gap { lost });
        let told = entries.len() as u64;
        let batch = gap.into_iter().chain(entries).collect();
        self.lost = match self.lines.try_send(batch) {
            Ok(()) => 0,
            Err(_) => lost + told,
        };
    }
}

/// What the daemon was killed in the middle of stays a line of its own.
fn end_last_line(mut file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    if last == [b'\n'] {
        Ok(())
    } else {
        file.write_all(b"\n")
    }
}

fn write(file: File, waiting: &Receiver<Vec<Entry>>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    while let Ok(batch) = waiting.recv() {
        for entry in batch {
            serde_json::to_writer(&mut file, &entry)?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_got_lost_on_the_way_is_a_gap_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        std::fs::write(&path, "{\"gap\":{\"los").unwrap();
        let mut recording = Recording::open(&path).unwrap();
        let entry = || Entry::Gap { lost: 1 };
        recording.take(0, vec![entry(), entry()]);
        recording.take(2, vec![entry()]);
        recording.take(7, vec![entry()]);
        // The HA process began anew.
        recording.take(0, vec![entry()]);
        // And again, and what it told first got lost.
        recording.take(0, vec![entry(), entry()]);
        recording.take(1, vec![entry()]);
        drop(recording);
        let wanted = [1, 1, 1, 4, 1, 1, 1, 1, 1, 1]
            .map(|lost| format!("{{\"gap\":{{\"lost\":{lost}}}}}\n"))
            .concat();
        let wanted = format!("{{\"gap\":{{\"los\n{wanted}");
        for _ in 0..1_000 {
            if std::fs::read_to_string(&path).unwrap() == wanted {
                return;
            }
            thread::yield_now();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
    }
}
