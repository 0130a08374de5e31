//! One network namespace of a lab.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::{Builder, JoinHandle},
};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns};

use crate::process::Process;

/// Where `ip netns` keeps the names.
const NAMES: &str = "/run/netns";

/// Seconds after which a command that is waited for is killed (status 124).
const PATIENCE: &str = "120";

/// A named network namespace. It is removed by the [`Lab`](crate::Lab) that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace `name` with loopback up and IPv6 off.
    ///
    /// # Errors
    /// When `ip netns add` fails (not root, name taken).
    pub fn create(name: &str) -> Result<Self> {
        run(Command::new("ip").args(["netns", "add", name]))?;
        let ns = Self {
            name: name.to_owned(),
        };
        ns.run("ip link set lo up")?;
        for key in [
            "net.ipv6.conf.all.disable_ipv6",
            "net.ipv6.conf.default.disable_ipv6",
        ] {
            ns.sysctl(key, "1")?;
        }
        Ok(ns)
    }

    /// The namespace of that name, made by somebody else (another lab, a sweep).
    pub fn existing(name: &str) -> Self {
        Self {
            name: name.to_owned(),
        }
    }

    /// Names of all namespaces that start with `prefix`.
    pub fn names(prefix: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(NAMES) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|name| name.starts_with(prefix))
            .collect()
    }

    /// The full name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.name)
    }

    /// A command that will run inside; `ip netns exec` replaces itself by it, so the pid is the program's.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name, program])
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// Runs a command line (split at blanks) inside and returns what it printed.
    ///
    /// # Errors
    /// When it cannot be started or fails; the text holds the command line and its complaint.
    pub fn run(&self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.exec(&words)
    }

    /// Runs a program with its arguments inside and returns what it printed.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn exec(&self, argv: &[&str]) -> Result<String> {
        let output = self.output(argv)?;
        if !output.status.success() {
            bail!(
                "{}: `{}` failed ({}): {}{}",
                self.name,
                argv.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a program inside and returns output and status, whatever they are.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn output(&self, argv: &[&str]) -> Result<Output> {
        let Some(program) = argv.first() else {
            bail!("an empty command line")
        };
        // Nothing that is waited for may hang for ever.
        self.command("timeout")
            .args(["-k", "2", PATIENCE])
            .args(argv)
            .output()
            .with_context(|| format!("{}: cannot start {program}", self.name))
    }

    /// Starts a program inside that stays; both its outputs go to the end of `log`.
    ///
    /// # Errors
    /// When it cannot be started or the log cannot be written.
    pub fn spawn(&self, argv: &[&str], env: &[(&str, &str)], log: &Path) -> Result<Process> {
        let Some((program, arguments)) = argv.split_first() else {
            bail!("an empty command line")
        };
        let mut command = self.command(program);
        command.args(arguments).envs(env.iter().copied());
        Process::start(&mut command, argv.join(" "), log)
    }

    /// Runs `work` on a thread inside and waits for it.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the error of `work`.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.join()?;
                    work()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a thread inside that stays.
    ///
    /// # Errors
    /// When the thread cannot be made. Failure to enter is the thread's own result.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let ns = self.clone();
        Ok(Builder::new().name(name.to_owned()).spawn(move || {
            ns.join()?;
            work()
        })?)
    }

    /// Moves the calling thread in.
    fn join(&self) -> Result<()> {
        let file = fs::File::open(self.path()).with_context(|| format!("no namespace {}", self.name))?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {}", self.name))
    }

    /// Writes a sysctl of the namespace (`net.…`, dots or slashes).
    ///
    /// # Errors
    /// When the key is not there or refuses the value; the key is named.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = sysctl_path(key);
        self.enter(|| fs::write(&path, value).with_context(|| format!("cannot set {key} to {value}")))
    }

    /// Reads a sysctl of the namespace.
    ///
    /// # Errors
    /// When the key is not there.
    pub fn read_sysctl(&self, key: &str) -> Result<String> {
        let path = sysctl_path(key);
        self.enter(|| {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {key}"))?;
            Ok(text.trim().to_owned())
        })
    }

    /// Processes that live inside (their main thread), ascending.
    pub fn pids(&self) -> BTreeSet<i32> {
        let Ok(mine) = fs::metadata(self.path()) else {
            return BTreeSet::new();
        };
        let Ok(entries) = fs::read_dir("/proc") else {
            return BTreeSet::new();
        };
        entries
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                fs::metadata(format!("/proc/{pid}/ns/net"))
                    .is_ok_and(|m| m.ino() == mine.ino() && m.dev() == mine.dev())
            })
            .collect()
    }

    /// Kills what lives inside and removes the name. Goes on after failures; returns them.
    pub fn remove(&self) -> Vec<anyhow::Error> {
        let mut failures = Vec::new();
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        for _ in 0..20 {
            let pids: Vec<i32> = self.pids().into_iter().filter(|pid| *pid != own).collect();
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                crate::process::signal(pid, nix::sys::signal::Signal::SIGKILL);
            }
            crate::clock::observe(std::time::Duration::from_millis(5));
        }
        if self.path().exists()
            && let Err(error) = run(Command::new("ip").args(["netns", "del", &self.name]))
        {
            failures.push(error);
        }
        failures
    }
}

fn sysctl_path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}

/// Runs a command of the host's own namespace.
///
/// # Errors
/// When it cannot be started or fails.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
