//! Long-lived programs of a lab: pid kept, output in a file, gone with their handle.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid, getpgrp},
};

use crate::clock;

/// A running program. Dropping it kills it and its descendants.
#[derive(Debug)]
pub struct Process {
    child: Child,
    line: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both outputs appended to `log`.
    pub(crate) fn start(command: &mut Command, line: String, log: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        Ok(Self {
            child,
            line,
            log: log.to_owned(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// It and all its descendants, parents first.
    pub fn tree(&self) -> Vec<i32> {
        let mut all = vec![self.pid()];
        let mut next = 0;
        while let Some(pid) = all.get(next).copied() {
            all.extend(children(pid));
            next += 1;
        }
        all
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The command line it was started with.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// When the kernel cannot tell.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Sends it a signal.
    pub fn signal(&self, sig: Signal) {
        signal(self.pid(), sig);
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When `limit` passes first.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of `{}`", self.line);
        clock::wait_for(&what, limit, Duration::from_millis(1), || {
            Ok(self.child.try_wait()?)
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let tree = self.tree();
        for pid in tree {
            signal(pid, Signal::SIGKILL);
        }
        // Reaps it; an error here means it was reaped already.
        drop(self.child.wait());
    }
}

/// Direct children of `pid`.
fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    threads
        .flatten()
        .filter_map(|t| fs::read_to_string(t.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|w| w.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}

/// Sends `sig` to `pid`; that it is gone already is not an error.
pub(crate) fn signal(pid: i32, sig: Signal) {
    if pid > 1 {
        kill(Pid::from_raw(pid), sig).ok();
    }
}

/// Sends `sig` to every process of `group`.
pub(crate) fn signal_group(group: i32, sig: Signal) {
    if group > 1 {
        killpg(Pid::from_raw(group), sig).ok();
    }
}

/// Process group of `pid`, if it is not the lab's own.
pub(crate) fn group(pid: i32) -> Option<i32> {
    let group = getpgid(Some(Pid::from_raw(pid))).ok()?;
    (group != getpgrp()).then_some(group.as_raw())
}

/// Whether process `pid` exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !matches!(stat.rsplit(')').next().map(str::trim_start), Some(s) if s.starts_with('Z') || s.starts_with('X')))
}

/// Name of the file process `pid` runs, whatever it calls itself.
pub fn program(pid: i32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_str()?;
    // A file replaced since is marked by the kernel.
    Some(name.trim_end_matches(" (deleted)").to_owned())
}

/// When process `pid` was started, in clock ticks since boot: with the pid it names one process for ever.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()
}

/// CPU time (user and system) used by process `pid` and all threads it ever had, in ms (steps of 10).
pub fn cpu_ms(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * 10)
}

/// Processor time the living threads of a process have used, by name, ms.
pub fn thread_cpu_ms(pid: i32) -> BTreeMap<String, u64> {
    let mut spent = BTreeMap::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return spent;
    };
    for task in tasks.flatten().map(|entry| entry.path()) {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        let told = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let ns: u64 = told
            .split_whitespace()
            .next()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0);
        *spent.entry(name.trim().to_owned()).or_default() += ns / 1_000_000;
    }
    spent
}

/// Gives the calling thread real-time priority, so that a busy machine does not blur what it measures. Where that is
/// not allowed the thread stays as it is.
pub fn prefer_this_thread(priority: u8) {
    let tid = nix::unistd::gettid().to_string();
    drop(
        Command::new("chrt")
            .args(["-f", "-p", &priority.to_string(), &tid])
            .output(),
    );
}

/// Lets the calling thread run on the last processor alone, and only when nobody else wants to: the kernel's own threads
/// go first.
///
/// # Errors
/// When the kernel refuses the processor.
pub fn yield_this_thread() -> Result<()> {
    let this = nix::unistd::gettid();
    drop(
        Command::new("chrt")
            .args(["-i", "-p", "0", &this.to_string()])
            .output(),
    );
    let last = std::thread::available_parallelism()?.get() - 1;
    let mut only = CpuSet::new();
    only.set(last)?;
    Ok(sched_setaffinity(this, &only)?)
}
