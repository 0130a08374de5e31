//! Where a key file lies: who may read it, and how it is written whole or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid, User};
use onearm_ha::auth::PairKeys;
use zeroize::Zeroizing;

use super::text;
use crate::config::{Diagnostic, Severity};
use crate::on_disk::{self, Access};

/// Longest key file in bytes.
const FILE_BYTES: u64 = 64 * 1024;
/// The user the packaged daemon runs as.
const DAEMON: &str = "onearm";
/// Mode of a new file.
const MODE: u32 = 0o600;

/// Who is to read a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// User and group of the packaged daemon, to which a file may belong that root reads.
    pub(super) daemon: Option<(u32, u32)>,
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Reader {
    /// This process.
    pub fn this_process() -> Self {
        let uid = Uid::effective();
        let name = User::from_uid(uid).ok().flatten().map(|user| user.name);
        Self {
            name: name.unwrap_or_else(|| uid.to_string()),
            uid: uid.as_raw(),
            gid: Gid::effective().as_raw(),
            daemon: packaged().map(|user| (user.uid.as_raw(), user.gid.as_raw())),
        }
    }

    /// The daemon of this machine: the user `onearm` where there is one, else whoever asks.
    pub fn daemon() -> Self {
        packaged().map_or_else(Self::this_process, |user| Self {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            daemon: None,
            name: user.name,
        })
    }

    /// The same user reads: what this process cannot do, it cannot.
    pub fn is_this_process(&self) -> bool {
        self.uid == Uid::effective().as_raw()
    }

    /// Number of the user.
    pub const fn user(&self) -> u32 {
        self.uid
    }

    /// Number of its group.
    pub const fn group(&self) -> u32 {
        self.gid
    }

    fn trusts(&self, owner: u32) -> bool {
        owner == 0 || owner == self.uid || self.daemon.is_some_and(|(daemon, _)| owner == daemon)
    }

    fn shares(&self, group: u32) -> bool {
        group == self.gid || self.daemon.is_some_and(|(_, daemon)| group == daemon)
    }

    /// What is wrong with a file of this owner, group and mode, with the remedy.
    pub(super) fn objects_to(
        &self,
        owner: u32,
        group: u32,
        mode: u32,
        path: &Path,
    ) -> Option<(String, String)> {
        let path = path.display();
        let own = |what: String| Some((what, format!("chown {}: {path}; chmod 600 {path}", self.name)));
        if !self.trusts(owner) {
            return own(format!(
                "it belongs to user {owner}, not to root or {}: whoever owns it can change it",
                self.name
            ));
        }
        let open = mode & 0o777;
        if open & 0o007 != 0 {
            return own(format!("others may use it (mode {open:04o})"));
        }
        if open & 0o030 != 0 {
            return own(format!("its group may change it (mode {open:04o})"));
        }
        if open & 0o040 != 0 && !self.shares(group) {
            return own(format!(
                "group {group} may read it (mode {open:04o}), which is not the group of {}",
                self.name
            ));
        }
        let reads = self.uid == 0
            || owner == self.uid && open & 0o400 != 0
            || owner != self.uid && group == self.gid && open & 0o040 != 0;
        if reads {
            None
        } else {
            own(format!(
                "the daemon's user {} cannot read it (mode {open:04o})",
                self.name
            ))
        }
    }
}

/// The user of the packaged daemon.
fn packaged() -> Option<User> {
    User::from_name(DAEMON).ok().flatten()
}

/// A key file that could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Something lies there already.
    #[error("{0} is there already, and a key is never overwritten")]
    Exists(String),
    /// The system said no.
    #[error("{path} cannot be written")]
    Write {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn about(
    path: &Path,
    rule: &'static str,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        rule,
        file: path.display().to_string(),
        line: 0,
        column: 0,
        field: String::new(),
        value: None,
        message: message.into(),
        remedy: remedy.into(),
    }
}

/// Reads the key file at `path` for `reader`. It must be a file, not a link to one, that only root and `reader` can read.
///
/// # Errors
/// Everything that is wrong with it; a file others can read is not read at all (rule `key-access`), and one that this
/// process may not read has the rule `key-unread`.
pub fn read(path: &Path, reader: &Reader) -> Result<PairKeys, Vec<Diagnostic>> {
    let bytes = bytes(path, reader).map_err(|found| vec![*found])?;
    text::parse(&path.display().to_string(), &bytes)
}

fn bytes(path: &Path, reader: &Reader) -> Result<Zeroizing<Vec<u8>>, Box<Diagnostic>> {
    // Neither a link nor a pipe that nobody writes to is waited for or followed.
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| Box::new(not_opened(path, &error)))?;
    let unread = |error: &io::Error| {
        let message = format!("cannot be read: {error}");
        Box::new(about(path, "unreadable", message, "check the file system"))
    };
    let found = file.metadata().map_err(|error| unread(&error))?;
    if !found.is_file() {
        let remedy = "name the key file itself";
        return Err(Box::new(about(path, "key-access", "not a plain file", remedy)));
    }
    if let Some((message, remedy)) = reader.objects_to(found.uid(), found.gid(), found.mode(), path) {
        return Err(Box::new(about(path, "key-access", message, remedy)));
    }
    let size = found.len().min(FILE_BYTES);
    // Never made longer: what is moved leaves a copy behind.
    let room = usize::try_from(size).unwrap_or_default() + 2;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(size + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unread(&error))?;
    if bytes.len() as u64 > size {
        let message = format!("longer than {FILE_BYTES} bytes, or written at this moment");
        return Err(Box::new(about(
            path,
            "too-long",
            message,
            "is it the right file?",
        )));
    }
    Ok(bytes)
}

fn not_opened(path: &Path, error: &io::Error) -> Diagnostic {
    let message = format!("cannot be read: {error}");
    match error.raw_os_error() {
        Some(nix::libc::ELOOP) => about(
            path,
            "key-access",
            "a symbolic link: a key file is a plain file of its own",
            "name the file itself",
        ),
        Some(nix::libc::ENOENT) => about(
            path,
            "key-missing",
            message,
            "make one on one node (`onearm key new`) and copy it to the other; or write auth = \"none\" in pair.toml",
        ),
        Some(nix::libc::EACCES | nix::libc::EPERM) => about(
            path,
            "key-unread",
            message,
            format!(
                "the daemon's user must be able to: chown {DAEMON}: {}",
                path.display()
            ),
        ),
        _ => about(path, "unreadable", message, "check path and file system"),
    }
}

/// The folder of a key file, held by one command at a time; until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _folder: Flock<fs::File>,
}

/// Waits until no other command changes a key file in the folder of `path`.
///
/// # Errors
/// [`StoreError::Write`] when there is no such folder, or it cannot be read.
pub fn lock(path: &Path) -> Result<Lock, StoreError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::File::open(folder.unwrap_or(Path::new("."))).map_err(failed(path))?;
    let held = Flock::lock(folder, FlockArg::LockExclusive);
    let held = held.map_err(|(_, errno)| failed(path)(errno.into()))?;
    Ok(Lock { _folder: held })
}

/// Writes a new key file, of mode 0600, that `reader` can read; whole or not at all.
///
/// # Errors
/// [`StoreError::Exists`] if there is anything of that name, [`StoreError::Write`].
pub fn create(path: &Path, keys: &PairKeys, reader: &Reader) -> Result<(), StoreError> {
    // Only root can give a file away, and must: its own would be of no use to the daemon.
    let owner = Uid::effective().is_root().then_some((reader.uid, reader.gid));
    let access = Access { mode: MODE, owner };
    on_disk::create(path, text::emit(keys).as_bytes(), access).map_err(|source| {
        if source.kind() == io::ErrorKind::AlreadyExists {
            StoreError::Exists(path.display().to_string())
        } else {
            failed(path)(source)
        }
    })
}

/// Replaces the key file, with owner, group and mode as they are; whole or not at all.
///
/// # Errors
/// [`StoreError::Write`].
pub fn replace(path: &Path, keys: &PairKeys) -> Result<(), StoreError> {
    let found = fs::symlink_metadata(path).map_err(failed(path))?;
    let owner = Uid::effective().is_root().then_some((found.uid(), found.gid()));
    let access = Access {
        mode: found.mode() & 0o777,
        owner,
    };
    on_disk::replace(path, text::emit(keys).as_bytes(), access).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.display().to_string();
    move |source| StoreError::Write { path, source }
}
