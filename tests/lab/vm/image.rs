//! The image of the VMs: made once, kept until its recipe changes.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{Flock, FlockArg};

/// The recipe; its text names the image.
const RECIPE: &str = include_str!("image.sh");
/// Where images are kept, from the folder of the project.
const FOLDER: &str = "target/vm";
/// What VMs need of this machine.
const PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "qemu-img", "debootstrap", "mke2fs"];

/// A made image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    folder: PathBuf,
}

impl Image {
    /// The image of the present recipe; made now (a minute or two) if there is none, or if `anew`.
    ///
    /// # Errors
    /// When a program is missing or the recipe fails; its output is kept beside the image.
    pub fn get(anew: bool) -> Result<Self> {
        let folder = Path::new(FOLDER);
        fs::create_dir_all(folder)?;
        let folder = folder.canonicalize()?;
        missing()?;
        // Two that want it at once: one makes it, the other waits.
        let lock = File::create(folder.join("lock"))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        let mut hasher = DefaultHasher::new();
        RECIPE.hash(&mut hasher);
        let name = format!("debian12-{:016x}", hasher.finish());
        let image = Self {
            folder: folder.join(&name),
        };
        if anew && image.folder.exists() {
            fs::remove_dir_all(&image.folder)?;
        }
        if !image.folder.exists() {
            for entry in fs::read_dir(&folder)?.flatten() {
                // Older recipes, and what a make that was stopped left.
                if entry.file_name().to_string_lossy().starts_with("debian12-") {
                    fs::remove_dir_all(entry.path())?;
                }
            }
            make(&folder, &image.folder)?;
        }
        drop(lock);
        Ok(image)
    }

    /// The disk, which nobody writes to.
    pub fn disk(&self) -> PathBuf {
        self.folder.join("disk.raw")
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// What the kernel starts with.
    pub fn initrd(&self) -> PathBuf {
        self.folder.join("initrd")
    }
}

fn missing() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in PROGRAMS {
        let found = std::env::split_paths(&path)
            .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
            .any(|folder| folder.join(program).is_file());
        if !found {
            bail!("no {program} on this machine; `xtask/setup.sh vm` installs what VMs need");
        }
    }
    Ok(())
}

fn make(folder: &Path, to: &Path) -> Result<()> {
    eprintln!("vm: making the Debian image (a minute or two)");
    let part = to.with_extension("part");
    fs::create_dir_all(&part)?;
    let script = folder.join("image.sh");
    fs::write(&script, RECIPE)?;
    let log = folder.join("image.log");
    let output = File::create(&log)?;
    let status = Command::new("bash")
        .arg(&script)
        .arg(&part)
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .context("cannot start bash")?;
    if !status.success() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().take(5).collect();
        bail!(
            "the image could not be made ({}): {}",
            log.display(),
            last.into_iter().rev().collect::<Vec<_>>().join(" / ")
        );
    }
    fs::rename(&part, to)?;
    Ok(())
}
