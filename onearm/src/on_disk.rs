//! Files that are written whole or not at all: to another name, to the disk, then under their own name.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Who may use a new file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Mode, whatever the process's mask is.
    pub(crate) mode: u32,
    /// User and group to give it to.
    pub(crate) owner: Option<(u32, u32)>,
}

impl Access {
    /// Of what the state directory keeps: readable to those who may look into it.
    pub(crate) const STATE: Self = Self {
        mode: 0o640,
        owner: None,
    };
}

/// What a file of at most `longest` bytes holds; `None` if there is none.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::InvalidData`] if it is longer.
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(file) if file.len() > longest => Err(io::Error::new(io::ErrorKind::InvalidData, "too long")),
        Ok(_) => fs::read(path).map(Some),
    }
}

/// Makes a file of that name; fails with [`io::ErrorKind::AlreadyExists`] if there is anything, a dangling link included.
///
/// # Errors
/// Those of the system; nothing is left then.
pub(crate) fn create(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    put(path, bytes, access, |new| {
        fs::hard_link(new, path)?;
        fs::remove_file(new)
    })
}

/// Puts a file in the place of whatever has that name.
///
/// # Errors
/// Those of the system; the file is as it was then.
pub(crate) fn replace(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    put(path, bytes, access, |new| fs::rename(new, path))
}

fn put(
    path: &Path,
    bytes: &[u8],
    access: Access,
    name: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let new = beside(path)?;
    // One that a crash left behind.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let done = write(&new, bytes, access).and_then(|()| name(&new));
    if done.is_err() {
        // It may be what could not be made.
        drop(fs::remove_file(&new));
    }
    done?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write(new: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(access.mode & 0o600)
        .open(new)?;
    if let Some((user, group)) = access.owner {
        fchown(&file, Some(user), Some(group))?;
    }
    file.set_permissions(Permissions::from_mode(access.mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The other name, `.NAME.new` in the same folder.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    Ok(path.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    use super::{Access, create, replace};
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    const PLAIN: Access = Access {
        mode: 0o640,
        owner: None,
    };

    #[test]
    fn a_file_is_made_once_and_replaced_whole_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("epoch.json");
        fs::write(directory.path().join(".epoch.json.new"), "of a crash").unwrap();
        create(&file, b"one", PLAIN).unwrap();
        assert_eq!(
            create(&file, b"two", PLAIN).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read(&file).unwrap(), b"one");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        replace(&file, b"three", PLAIN).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"three");
        let dangling = directory.path().join("link");
        symlink("nowhere", &dangling).unwrap();
        assert_eq!(
            create(&dangling, b"", PLAIN).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        fs::remove_file(&dangling).unwrap();
        assert!(replace(&directory.path().join("no/such/folder"), b"", PLAIN).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
