//! Who could change a program: nobody but root may, neither itself nor any folder on the way to it.

use std::fs::symlink_metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// A program that somebody else than root can change, or that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// What is wrong, a sentence without the program's own path.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// Judges the program at `path`: a plain file, executable for others, that root alone can change, in folders that root
/// alone can change, without any symbolic link.
///
/// Whoever passes has no way to put another program in its place until it is run.
///
/// # Errors
/// The first thing that is wrong, from / on.
pub fn judge(path: &Path) -> Result<(), Misplaced> {
    let wrong = |message: String, remedy: String| Err(Misplaced { message, remedy });
    if !path.is_absolute() {
        return wrong("not an absolute path".to_owned(), "write it from /".to_owned());
    }
    let mut so_far = PathBuf::from("/");
    let mut parts = path.components().peekable();
    // The folder / itself comes first.
    while let Some(part) = parts.next() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => so_far.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return wrong("has .. in it".to_owned(), "write the direct path".to_owned());
            }
        }
        let shown = so_far.display();
        let found = match symlink_metadata(&so_far) {
            Ok(found) => found,
            Err(error) => return wrong(format!("{shown}: {error}"), "check the path".to_owned()),
        };
        let is_last = parts.peek().is_none();
        if found.file_type().is_symlink() {
            return wrong(
                format!("{shown} is a symbolic link"),
                "write the path it leads to".to_owned(),
            );
        }
        if found.uid() != 0 {
            return wrong(
                format!(
                    "{shown} belongs to user {}, not to root: whoever that is can change it",
                    found.uid()
                ),
                format!("chown root {shown}"),
            );
        }
        // Of what root put into a folder with the sticky bit, nobody else can take anything away; but / and what follows
        // must not be given to others to begin with.
        if found.mode() & 0o022 != 0 {
            return wrong(
                format!(
                    "others than root may write to {shown} (mode {:04o})",
                    found.mode() & 0o7777
                ),
                format!("chmod go-w {shown}, or put the program elsewhere: /usr/local/lib/onearm"),
            );
        }
        match (is_last, found.is_file(), found.is_dir()) {
            (true, true, _) | (false, _, true) => {}
            (true, false, _) => {
                return wrong(
                    format!("{shown} is no plain file"),
                    "name the program itself".to_owned(),
                );
            }
            (false, _, false) => {
                return wrong(format!("{shown} is no folder"), "check the path".to_owned());
            }
        }
        if is_last && found.mode() & 0o001 == 0 {
            return wrong(
                format!(
                    "others may not execute {shown} (mode {:04o})",
                    found.mode() & 0o7777
                ),
                format!("chmod o+rx {shown}"),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::judge;
    use std::fs::{self, Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::path::Path;

    fn message(path: &Path) -> String {
        judge(path).unwrap_err().message
    }

    #[test]
    fn a_program_of_the_system_is_well_placed_and_a_folder_or_nothing_is_not() {
        assert_eq!(judge(&fs::canonicalize("/bin/sh").unwrap()), Ok(()));
        assert!(message(Path::new("/usr/bin")).ends_with("is no plain file"));
        assert!(message(Path::new("/usr/no/such")).starts_with("/usr/no: "));
        assert!(message(Path::new("/usr/../bin/sh")).starts_with("has .."));
        assert!(message(Path::new("bin/sh")).starts_with("not an absolute"));
        assert!(message(Path::new("/tmp/x")).contains("others than root may write to /tmp"));
    }

    #[test]
    #[ignore = "needs root"]
    fn what_others_can_change_is_refused_wherever_it_is_on_the_way() {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        // Not below /tmp, to which everybody may write.
        let top = tempfile::tempdir_in("/root").unwrap();
        let folder = top.path().join("scripts");
        fs::create_dir(&folder).unwrap();
        let file = folder.join("check");
        fs::write(&file, "#!/bin/sh\n").unwrap();
        let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(&folder, 0o755);
        mode(&file, 0o755);
        assert_eq!(judge(&file), Ok(()));
        mode(&file, 0o750);
        assert!(message(&file).contains("others may not execute"));
        mode(&file, 0o775);
        assert!(message(&file).contains("others than root may write"));
        mode(&file, 0o755);
        mode(&folder, 0o777);
        assert!(message(&file).contains("others than root may write"));
        mode(&folder, 0o1777);
        assert!(message(&file).contains("others than root may write"));
        mode(&folder, 0o755);
        chown(&folder, Some(65_534), None).unwrap();
        assert!(message(&file).contains("belongs to user 65534"));
        chown(&folder, Some(0), None).unwrap();
        chown(&file, Some(65_534), None).unwrap();
        assert!(message(&file).contains("belongs to user 65534"));
        chown(&file, Some(0), None).unwrap();
        assert_eq!(judge(&file), Ok(()));
        let link = folder.join("link");
        symlink(&file, &link).unwrap();
        assert!(message(&link).contains("is a symbolic link"));
        let way = top.path().join("way");
        symlink(&folder, &way).unwrap();
        assert!(message(&way.join("check")).contains("way is a symbolic link"));
    }
}
