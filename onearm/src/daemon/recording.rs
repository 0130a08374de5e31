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
    /// Opens `path` for appending; a new file is for its owner alone. At `limit` bytes it ends, and says so.
    ///
    /// # Errors
    /// When the file cannot be opened, or there is no thread.
    pub(crate) fn open(path: &Path, limit: u64) -> anyhow::Result<Self> {
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
            .spawn(move || match write(file, &waiting, limit) {
                Ok(true) => tracing::warn!(
                    file = name,
                    limit,
                    "the recording is full: nothing more is recorded"
                ),
                Ok(false) => {}
                Err(error) => tracing::error!(%error, file = name, "nothing more is recorded"),
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

/// Whether its last line says that nothing comes after it.
fn says_full(file: &File) -> io::Result<bool> {
    let longest = line(&Entry::Full { limit: u64::MAX })?.len();
    let length = file.metadata()?.len();
    let from = length.saturating_sub(longest as u64);
    let mut end = vec![0; usize::try_from(length - from).unwrap_or(longest)];
    file.read_exact_at(&mut end, from)?;
    let last = end.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
    Ok(last.is_some_and(|last| matches!(serde_json::from_slice(last), Ok(Entry::Full { .. }))))
}

/// Writes until nobody records any more, or `limit` is reached; whether that was it.
fn write(file: File, waiting: &Receiver<Vec<Entry>>, limit: u64) -> io::Result<bool> {
    let mut length = file.metadata()?.len();
    // Perhaps it was written with another limit.
    if length >= limit || says_full(&file)? {
        return Ok(true);
    }
    let mut file = BufWriter::new(file);
    while let Ok(batch) = waiting.recv() {
        for entry in batch {
            let line = line(&entry)?;
            length += line.len() as u64;
            if length > limit {
                file.write_all(&self::line(&Entry::Full { limit })?)?;
                file.flush()?;
                return Ok(true);
            }
            file.write_all(&line)?;
        }
        file.flush()?;
    }
    Ok(false)
}

fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_got_lost_on_the_way_is_a_gap_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        std::fs::write(&path, "{\"gap\":{\"los").unwrap();
        let mut recording = Recording::open(&path, 1 << 20).unwrap();
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

    #[test]
    fn a_recording_ends_at_its_limit_and_says_so_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        let file = || {
            OpenOptions::new()
                .append(true)
                .read(true)
                .create(true)
                .open(&path)
                .unwrap()
        };
        let entries = || {
            let (lines, waiting) = mpsc::sync_channel(BATCHES);
            lines.send(vec![Entry::Gap { lost: 1 }; 3]).unwrap();
            waiting
        };
        // Two lines of 19 bytes.
        assert!(write(file(), &entries(), 40).unwrap());
        let one = "{\"gap\":{\"lost\":1}}\n";
        let wanted = format!("{one}{one}{{\"full\":{{\"limit\":40}}}}\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
        for limit in [40, 1 << 20] {
            assert!(write(file(), &entries(), limit).unwrap());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
        }
    }
}
