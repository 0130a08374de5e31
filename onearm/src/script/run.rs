//! Running one program to its end. Blocks: for a thread of its own.

use std::fmt;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::account::Account;
use super::place;
use super::shim::{FLAG, NOT_STARTED};

/// Bytes of its output that are kept.
pub const OUTPUT_BYTES: usize = 2_048;
/// After so many bytes of output nothing more is read: it gets an error when it writes.
const READ_BYTES: usize = 1024 * 1024;
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);
/// What has not ended so long after its first SIGKILL cannot be ended.
const DYING: Duration = Duration::from_millis(200);
/// How often its end is looked for. It usually shows at once, by the end of its output.
const LOOK_MS: u8 = 10;

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Path and arguments; at least the path.
    pub command: Vec<String>,
    /// As whom.
    pub account: Account,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// After so long its group is sent SIGTERM, and a second later SIGKILL.
    pub limit: Duration,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// With this exit code, 0 to 255.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It had not ended after so long, and was ended.
    TimedOut(Duration),
    /// It had not ended in time, and SIGKILL does not end it: it goes on.
    Stuck,
    /// The daemon stops, and ended it.
    Stopped,
    /// It was not run.
    NotStarted(String),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(0) => f.write_str("ended well"),
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::TimedOut(limit) => write!(f, "not ended after {} ms", limit.as_millis()),
            Self::Stuck => f.write_str("not ended in time, and SIGKILL does not end it"),
            Self::Stopped => f.write_str("ended because the daemon stops"),
            Self::NotStarted(why) => write!(f, "not run: {why}"),
        }
    }
}

/// A program that has ended, or that cannot be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub how: How,
    /// The first [`OUTPUT_BYTES`] it wrote to standard output and error, without control characters.
    pub output: String,
    /// It wrote more.
    pub cut: bool,
}

impl Ended {
    /// Whether it said yes.
    pub fn is_good(&self) -> bool {
        self.how == How::Exited(0)
    }

    fn not_started(why: impl Into<String>) -> Self {
        Self {
            how: How::NotStarted(why.into()),
            output: String::new(),
            cut: false,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.how.fmt(f)?;
        match self.output.trim() {
            "" => Ok(()),
            output => write!(f, ": {output}{}", if self.cut { " …" } else { "" }),
        }
    }
}

/// Runs it by way of `shim` (the daemon's program) until it has ended, or `stop` is set. Then nothing of its process group
/// is left; what it put into a group of its own goes on.
///
/// `report` is called once: at its end, or when SIGKILL has not ended it either (the daemon may not signal it, or the
/// kernel does not let go of it). In both cases this returns only when it has ended.
pub fn run(shim: &Path, wanted: &Run, stop: &AtomicBool, report: impl FnOnce(Ended)) {
    let Some((program, arguments)) = wanted.command.split_first() else {
        return report(Ended::not_started("no program"));
    };
    // Whatever was found when the file was read: it is run now.
    if let Err(wrong) = place::judge(Path::new(program)) {
        return report(Ended::not_started(format!("{}; {}", wrong.message, wrong.remedy)));
    }
    let started = || -> io::Result<(Child, PipeReader)> {
        let (output, writer) = io::pipe()?;
        let child = Command::new(shim)
            .arg(FLAG)
            .args([wanted.account.user, wanted.account.group].map(|id| id.to_string()))
            .arg(program)
            .args(arguments)
            .env_clear()
            .envs(wanted.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn()?;
        Ok((child, output))
    };
    match started() {
        Ok((child, output)) => Running::new(child, output, wanted.limit).wait(stop, report),
        Err(error) => report(Ended::not_started(error.to_string())),
    }
}

struct Running {
    child: Child,
    pid: Pid,
    output: Option<PipeReader>,
    kept: Vec<u8>,
    read: usize,
    limit: Duration,
    began: Duration,
    /// Why it was told to end, and when.
    told: Option<(How, Duration)>,
    /// It was first sent SIGKILL then.
    killed: Option<Duration>,
}

impl Running {
    fn new(child: Child, output: PipeReader, limit: Duration) -> Self {
        Self {
            pid: Pid::from_raw(child.id().cast_signed()),
            child,
            output: Some(output),
            kept: Vec::new(),
            read: 0,
            limit,
            began: now(),
            told: None,
            killed: None,
        }
    }

    fn wait(mut self, stop: &AtomicBool, report: impl FnOnce(Ended)) {
        let mut report = Some(report);
        loop {
            self.listen();
            if self.has_ended() {
                break;
            }
            self.press(now(), stop.load(Ordering::Relaxed));
            if self
                .killed
                .is_some_and(|since| now().saturating_sub(since) >= DYING)
                && let Some(report) = report.take()
            {
                report(self.ended(How::Stuck));
                // It does not wait for a reader either.
                self.output = None;
                while self.look(WaitPidFlag::empty()) == Err(Errno::EINTR) {}
                break;
            }
        }
        // What it left running in its group; its number cannot be anybody else's before it has been waited for.
        self.signal(Signal::SIGKILL);
        let status = self.child.wait();
        if self.output.is_some() {
            self.take();
        }
        let how = match (self.told.take(), status) {
            (Some((why, _)), _) => why,
            (None, Ok(status)) => ended(status, self.text().trim()),
            (None, Err(error)) => How::NotStarted(error.to_string()),
        };
        if let Some(report) = report {
            report(self.ended(how));
        }
    }

    /// Tells it to end when the daemon stops or its time has passed.
    fn press(&mut self, time: Duration, stop: bool) {
        match &self.told {
            None if stop => {
                self.kill(time);
                self.told = Some((How::Stopped, time));
            }
            None if time.saturating_sub(self.began) >= self.limit => {
                self.signal(Signal::SIGTERM);
                self.told = Some((How::TimedOut(self.limit), time));
            }
            Some((_, since)) if stop || time.saturating_sub(*since) >= GRACE => self.kill(time),
            None | Some(_) => {}
        }
    }

    fn kill(&mut self, time: Duration) {
        self.signal(Signal::SIGKILL);
        self.killed.get_or_insert(time);
    }

    fn ended(&self, how: How) -> Ended {
        let output = match how {
            How::NotStarted(_) => String::new(),
            _ => self.text(),
        };
        Ended {
            how,
            output,
            cut: self.read > self.kept.len(),
        }
    }

    /// What it wrote, as far as it is kept.
    fn text(&self) -> String {
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        String::from_utf8_lossy(&self.kept).chars().map(visible).collect()
    }

    /// Waits a moment for output, and takes it.
    fn listen(&mut self) {
        let mut sets: Vec<_> = self
            .output
            .iter()
            .map(|output| PollFd::new(output.as_fd(), PollFlags::POLLIN))
            .collect();
        if matches!(poll(&mut sets, PollTimeout::from(LOOK_MS)), Ok(1..)) {
            self.take();
        }
    }

    /// Takes the output that is there; the pipe is given up at its end, and when there was too much.
    fn take(&mut self) {
        let Some(output) = &mut self.output else { return };
        let mut sets = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut sets, PollTimeout::ZERO), Ok(1..)) {
            return;
        }
        let mut buffer = [0; 16 * 1024];
        match output.read(&mut buffer) {
            Ok(0) => self.output = None,
            Ok(count) => {
                let room = OUTPUT_BYTES.saturating_sub(self.kept.len());
                self.kept.extend_from_slice(&buffer[..count.min(room)]);
                self.read += count;
                if self.read >= READ_BYTES {
                    self.output = None;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.output = None,
        }
    }

    /// Whether it has ended; it is not waited for yet, so its number stays its own.
    fn has_ended(&self) -> bool {
        self.look(WaitPidFlag::WNOHANG) != Ok(WaitStatus::StillAlive)
    }

    fn look(&self, how: WaitPidFlag) -> nix::Result<WaitStatus> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | how;
        waitid(Id::Pid(self.pid), flags)
    }

    /// Signals its group; before it has one, itself.
    fn signal(&self, signal: Signal) {
        let group = Pid::from_raw(-self.pid.as_raw());
        if kill(group, signal).is_err() && !self.has_ended() {
            // Without the right to it, it goes on until its own end.
            kill(self.pid, signal).unwrap_or_default();
        }
    }
}

fn ended(status: ExitStatus, output: &str) -> How {
    match (status.code(), status.signal()) {
        (Some(NOT_STARTED), _) => How::NotStarted(output.to_owned()),
        (Some(code), _) => How::Exited(code),
        (None, Some(signal)) => How::Killed(signal),
        (None, None) => How::Exited(-1),
    }
}

/// Time since some moment in the past.
fn now() -> Duration {
    Duration::from_nanos(onearm_ha::driver::now().as_nanos())
}
