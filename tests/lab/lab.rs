//! A lab: everything that carries one unique prefix, and its removal on every way out.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use anyhow::{Context as _, Result, bail};

use crate::{netns::Namespace, process};

/// Run files of all labs of the machine: one folder a lab, named like its prefix, with its owner's pid inside.
const RUN: &str = "/run/onearm-lab";
/// First characters of every prefix.
const MARK: &str = "ol";

/// Labs of this process that have not been torn down yet.
static LIVING: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Set once the process has been told to stop: no lab grows any more.
static STOPPING: AtomicBool = AtomicBool::new(false);
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// The holder of one prefix. Dropping it removes the namespaces and kills what lives in them.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    dir: PathBuf,
}

impl Lab {
    /// Takes a prefix that no other lab of the machine has, after removing what dead labs left behind.
    ///
    /// # Errors
    /// When this is not root or the run folder cannot be made.
    pub fn new() -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("the lab needs root: it makes network namespaces");
        }
        sweep();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{MARK}{}x{number}", std::process::id());
        let dir = Path::new(RUN).join(&prefix);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let own = i32::try_from(std::process::id())?;
        fs::write(
            dir.join("owner"),
            format!("{own} {}", process::start_time(own).unwrap_or(0)),
        )?;
        living().push(prefix.clone());
        Ok(Self { prefix, dir })
    }

    /// Makes the namespace `PREFIX-short`.
    ///
    /// # Errors
    /// When the lab is being torn down, or as [`Namespace::create`].
    pub fn namespace(&self, short: &str) -> Result<Namespace> {
        let guard = living();
        if STOPPING.load(Ordering::SeqCst) {
            bail!("interrupted");
        }
        let made = Namespace::create(&format!("{}-{short}", self.prefix));
        drop(guard);
        made
    }

    /// The lab's folder for logs, sockets and captures, removed with it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The prefix of all its namespaces.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Copies the lab's folder to `to` (regular files only, no disks of VMs), for the post-mortem of a failed run.
    ///
    /// # Errors
    /// When `to` cannot be written.
    pub fn keep_files(&self, to: &Path) -> Result<()> {
        copy_files(&self.dir, to).with_context(|| format!("cannot write {}", to.display()))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut list = living();
        tear_down(&self.prefix);
        list.retain(|p| *p != self.prefix);
    }
}

fn living() -> MutexGuard<'static, Vec<String>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all labs of this process: for the way out after a signal.
pub fn tear_down_all() {
    STOPPING.store(true, Ordering::SeqCst);
    for prefix in living().drain(..) {
        tear_down(&prefix);
    }
}

/// Whether the process has been told to stop.
pub fn is_stopping() -> bool {
    STOPPING.load(Ordering::SeqCst)
}

fn tear_down(prefix: &str) {
    for name in Namespace::names(&format!("{prefix}-")) {
        for failure in Namespace::existing(&name).remove() {
            eprintln!("lab: {failure:#}");
        }
    }
    // A folder that is gone already is as good.
    drop(fs::remove_dir_all(Path::new(RUN).join(prefix)));
}

/// Removes labs whose owner is dead.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(RUN) else { return };
    for entry in entries.flatten() {
        let Some(prefix) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        let owner = fs::read_to_string(entry.path().join("owner")).unwrap_or_default();
        let mut words = owner.split_whitespace();
        let pid = words.next().and_then(|w| w.parse::<i32>().ok());
        let started = words.next().and_then(|w| w.parse::<u64>().ok());
        // A folder without owner may be one that is being made this moment; the pid is in its name then.
        let pid = pid.or_else(|| prefix.strip_prefix(MARK)?.split('x').next()?.parse().ok());
        let lives = pid.is_some_and(|pid| match (process::start_time(pid), started) {
            (Some(now), Some(then)) => now == then || then == 0,
            (Some(_), None) => true,
            (None, _) => false,
        });
        if !lives && prefix.starts_with(MARK) {
            tear_down(&prefix);
        }
    }
}

fn is_disk(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "raw" || e == "qcow2")
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.flatten() {
        let kind = entry.file_type()?;
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else if kind.is_file() && !is_disk(&target) {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Tears everything down and ends the process (status 130) on SIGINT, SIGTERM and SIGHUP; with `keep_on_interrupt`
/// SIGINT is ignored, because it is meant for the shell of `onearm-lab up`.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn tear_down_on_signals(keep_on_interrupt: bool) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        )
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                loop {
                    // Each branch only waits for a signal: nothing is lost when another one wins.
                    tokio::select! {
                        _ = interrupt.recv() => if keep_on_interrupt { continue },
                        _ = terminate.recv() => {}
                        _ = hangup.recv() => {}
                    }
                    break;
                }
            });
            eprintln!("\nonearm-lab: stopped by a signal; tearing the lab down");
            tear_down_all();
            std::process::exit(130);
        })?;
    Ok(())
}
