//! What was lent by the host, written down before it is changed.
//!
//! One JSON object a line in `journal.jsonl` of the state directory, synced to disk before the change it speaks of.
//! A daemon killed at any instant leaves either an entry without its change (then the value found is not the value
//! written, and is left alone) or both. Rules, routes and neighbours carry marks and need no entry of their own; one
//! entry holds the marks.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    marks,
    name::{IfName, LegSysctl, Mac},
};

const JOURNAL: &str = "journal.jsonl";
const JOURNAL_NEW: &str = "journal.jsonl.new";
const LOCK: &str = "netcfg.lock";

/// Where an entry is valid: one boot of one machine, one network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The kernel's boot id (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// Inode of the network namespace.
    pub netns: u64,
}

impl Place {
    /// The place the calling thread is in.
    ///
    /// # Errors
    /// [`Error::Journal`] if `/proc` cannot be read.
    pub fn here() -> Result<Self, Error> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        const NETNS: &str = "/proc/thread-self/ns/net";
        let boot = fs::read_to_string(BOOT).map_err(failed("read", Path::new(BOOT)))?;
        let netns = fs::metadata(NETNS)
            .map_err(failed("read", Path::new(NETNS)))?
            .ino();
        Ok(Self {
            boot: boot.trim().to_owned(),
            netns,
        })
    }
}

/// Identity of a device at the time of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Interface index; not used twice within a boot of a namespace unless asked for.
    pub ifindex: u32,
    /// Name.
    pub name: IfName,
    /// Hardware address; absent on a device without an Ethernet address.
    pub mac: Option<Mac>,
}

impl Device {
    /// Whether it is still the same device: same index, and not both renamed and with another address.
    pub fn is_same(&self, other: &Self) -> bool {
        self.ifindex == other.ifindex && (self.name == other.name || self.mac == other.mac)
    }
}

/// What was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lent {
    /// A setting of a leg.
    Sysctl {
        /// Setting.
        key: LegSysctl,
        /// Value found.
        old: String,
        /// Value written.
        written: String,
    },
    /// An offload feature of a leg.
    Offload {
        /// The kernel's name of the feature.
        feature: String,
        /// Value found.
        old: bool,
        /// Value written.
        written: bool,
    },
    /// Marks under which rules, routes and neighbours were installed.
    Marks {
        /// Protocol of rules, routes and neighbours.
        protocol: u8,
        /// Tables.
        tables: Vec<u32>,
        /// Priorities of rules.
        priorities: Vec<u32>,
    },
}

impl Lent {
    /// The marks of this build.
    pub(crate) fn marks() -> Self {
        Self::Marks {
            protocol: marks::PROTOCOL,
            tables: marks::TABLES.to_vec(),
            priorities: marks::PRIORITIES.to_vec(),
        }
    }

    /// Whether both speak of the same thing, whatever the values.
    pub(crate) fn is_about_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sysctl { key: a, .. }, Self::Sysctl { key: b, .. }) => a == b,
            (Self::Offload { feature: a, .. }, Self::Offload { feature: b, .. }) => a == b,
            (Self::Marks { .. }, Self::Marks { .. }) => self == other,
            (Self::Sysctl { .. } | Self::Offload { .. } | Self::Marks { .. }, _) => false,
        }
    }
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it is valid.
    #[serde(flatten)]
    pub place: Place,
    /// The device; absent for marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// What was changed.
    pub lent: Lent,
}

/// The state directory, held by this process alone, and its journal.
///
/// Held by `flock` on a file that stays: the lock goes with the last descriptor, whatever kills the process.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    place: Place,
    entries: Vec<Entry>,
    discarded: usize,
    damaged: usize,
    /// The last line has no end: the next one must not continue it.
    torn: bool,
    journal: File,
    lock: File,
}

impl Drop for StateDir {
    /// A process that is just being started holds a copy of every descriptor until it executes; closing ours would leave the
    /// lock to it until then.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::debug!(%error, "the lock of the state directory goes with its descriptor");
        }
    }
}

impl StateDir {
    /// Takes the state directory for this process, creates it if needed, and reads the journal.
    ///
    /// Entries of another boot are discarded: a fresh kernel owes nothing. Lines that cannot be read, such as a last
    /// one torn by a crash, are counted and dropped: a change follows its entry, so a torn entry has no change.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process holds it; [`Error::Journal`] if it cannot be made, read or rewritten.
    pub fn acquire(path: &Path) -> Result<Self, Error> {
        Self::acquire_at(path, Place::here()?)
    }

    /// [`StateDir::acquire`] for a given place.
    ///
    /// # Errors
    /// As [`StateDir::acquire`].
    pub fn acquire_at(path: &Path, place: Place) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(failed("create", path))?;
        let lock_path = path.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(failed("open", &lock_path))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::InUse {
                path: lock_path.clone(),
            },
            TryLockError::Error(source) => failed("lock", &lock_path)(source),
        })?;
        let journal_path = path.join(JOURNAL);
        let text = match fs::read(&journal_path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed("read", &journal_path)(error)),
        };
        let mut entries = Vec::new();
        let (mut discarded, mut damaged) = (0, 0);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice::<Entry>(line) {
                Ok(entry) if entry.place.boot == place.boot => entries.push(entry),
                Ok(_) => discarded += 1,
                Err(_) => damaged += 1,
            }
        }
        let torn = text.last().is_some_and(|byte| *byte != b'\n');
        let stale = torn || discarded + damaged > 0;
        let cleaned = if stale {
            rewrite(path, &entries).map(Some)
        } else {
            Ok(None)
        };
        let cleaned = cleaned.unwrap_or_else(|error| {
            // A full disk must not keep anybody from putting things back.
            tracing::warn!(error = %crate::restore::text_of(&error), "journal not cleaned");
            None
        });
        let torn = torn && cleaned.is_none();
        let journal = match cleaned {
            Some(journal) => journal,
            None => OpenOptions::new()
                .create(true)
                .append(true)
                .open(&journal_path)
                .and_then(|file| File::open(path)?.sync_all().map(|()| file))
                .map_err(failed("open", &journal_path))?,
        };
        Ok(Self {
            path: path.to_owned(),
            place,
            entries,
            discarded,
            damaged,
            torn,
            journal,
            lock,
        })
    }

    /// Where this process is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Entries of this boot, oldest first, other namespaces' included.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Number of entries of another boot found and discarded when the directory was taken.
    pub fn discarded(&self) -> usize {
        self.discarded
    }

    /// Number of lines found that could not be read.
    pub fn damaged(&self) -> usize {
        self.damaged
    }

    /// Writes entries down and waits until the disk has them. Only then may the changes be made.
    ///
    /// # Errors
    /// [`Error::Journal`]: the changes must not be made.
    pub fn record(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        let path = self.path.join(JOURNAL);
        let mut text = lines(&entries).map_err(failed("encode", &path))?;
        if self.torn {
            text.insert(0, b'\n');
        }
        let before = self.journal.metadata().map_err(failed("write", &path))?.len();
        let written = self
            .journal
            .write_all(&text)
            .and_then(|()| self.journal.sync_data());
        if let Err(error) = written {
            // Half a line must not swallow the next one.
            if let Err(error) = self.journal.set_len(before) {
                tracing::warn!(%error, "journal cannot be cut back after a failed write");
            }
            return Err(failed("write", &path)(error));
        }
        self.torn = false;
        self.entries.extend(entries);
        Ok(())
    }

    /// Replaces all entries, atomically.
    ///
    /// # Errors
    /// [`Error::Journal`]: the old journal still stands.
    pub(crate) fn replace(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        if entries.is_empty() {
            // Works on a full disk, too.
            let path = self.path.join(JOURNAL);
            let cut = self.journal.set_len(0).and_then(|()| self.journal.sync_data());
            cut.map_err(failed("empty", &path))?;
        } else {
            self.journal = rewrite(&self.path, &entries)?;
        }
        self.torn = false;
        self.entries = entries;
        Ok(())
    }
}

fn lines(entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for entry in entries {
        serde_json::to_writer(&mut text, entry)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// Writes a new journal beside the old one, syncs it, and puts it in its place.
fn rewrite(directory: &Path, entries: &[Entry]) -> Result<File, Error> {
    let (new, path) = (directory.join(JOURNAL_NEW), directory.join(JOURNAL));
    let replace = || {
        fs::write(&new, lines(entries)?)?;
        let file = OpenOptions::new().append(true).open(&new)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(directory)?.sync_all()?;
        Ok(file)
    };
    replace().map_err(failed("rewrite", &path))
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Journal {
        operation,
        path,
        source,
    }
}

#[cfg(test)]
mod tests;
