//! The step between the daemon and a program of the operator's: this program again, which gives up all that the daemon
//! has and becomes the other.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{self, Gid, Uid, setgroups, setresgid, setresuid, setsid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// First argument of the daemon's program in this part: user, group, program and its arguments follow.
pub const FLAG: &str = "--as-script";

/// Exit code when the program could not be started; the reason is on standard error.
pub(super) const NOT_STARTED: i32 = 125;
/// Lower than anything of the daemon.
const NICE: i32 = 10;
/// Why the user cannot be changed, as a rule.
const NEEDS: &str = "CAP_SETUID and CAP_SETGID are missing: see scripts.conf of the examples";
/// Descriptors it may open.
const DESCRIPTORS: u64 = 1_024;
/// Processes and threads of its user at a time, those of all scripts and hooks and of what they left running.
const PROCESSES: u64 = 256;

/// Becomes a program of the operator's if the command line says so; `None` if it does not. Called before anything else.
pub fn as_script() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != FLAG {
        return None;
    }
    let error = match become_it(arguments) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    eprintln!("{error:#}");
    Some(ExitCode::from(u8::try_from(NOT_STARTED).unwrap_or(u8::MAX)))
}

fn become_it(mut arguments: impl Iterator<Item = OsString>) -> anyhow::Result<std::convert::Infallible> {
    let mut number = || -> anyhow::Result<u32> {
        let text = arguments.next().context("an argument is missing")?;
        Ok(text.to_str().context("not a number")?.parse()?)
    };
    let (user, group) = (number()?, number()?);
    let program = arguments.next().context("no program")?;

    // Its whole group is ended at once, and no terminal reaches it.
    setsid().context("no session of its own")?;
    std::env::set_current_dir("/").context("cannot go to /")?;
    umask(Mode::from_bits_truncate(0o022));
    SigSet::empty()
        .thread_set_mask()
        .context("signals stay blocked")?;
    give_up_priority()?;
    close_all().context("descriptors of the daemon cannot be closed")?;
    give_up_rights(Uid::from_raw(user), Gid::from_raw(group))?;
    // After the change of user, which takes it back.
    set_pdeathsig(Signal::SIGKILL).context("it would outlive the daemon")?;

    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("{} cannot be run", program.display()))
}

/// The daemon may have real-time priority and locked memory, and is spared when memory runs out. This is neither.
fn give_up_priority() -> anyhow::Result<()> {
    for (limit, most) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_RTPRIO, 0),
        (Resource::RLIMIT_NICE, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
        (Resource::RLIMIT_NOFILE, DESCRIPTORS),
        (Resource::RLIMIT_NPROC, PROCESSES),
    ] {
        setrlimit(limit, most, most).with_context(|| format!("{limit:?} cannot be lowered"))?;
    }
    rustix::process::nice(NICE).context("the priority cannot be lowered")?;
    // Where there is no such file, nobody is spared.
    match fs::write("/proc/self/oom_score_adj", "0") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context("it would be spared when memory runs out")
        }
        _ => Ok(()),
    }
}

/// Everything but standard input, output and error.
fn close_all() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let number: Option<i32> = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        open.extend(number.filter(|number| *number > 2));
    }
    for number in open {
        match unistd::close(number) {
            // That of the folder itself.
            Ok(()) | Err(nix::errno::Errno::EBADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn give_up_rights(user: Uid, group: Gid) -> anyhow::Result<()> {
    anyhow::ensure!(!user.is_root(), "a program of the operator's never runs as root");
    // Only whoever may can; without new privileges nothing in it could be got back anyway.
    for capability in CapabilitySet::all().iter() {
        if remove_capability_from_bounding_set(capability).is_err() {
            break;
        }
    }
    setgroups(&[])
        .and_then(|()| setresgid(group, group, group))
        .and_then(|()| setresuid(user, user, user))
        .with_context(|| format!("cannot become user {user} and group {group} ({NEEDS})"))?;
    clear_ambient_capability_set().context("capabilities cannot be given up")?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets).context("capabilities cannot be given up")?;
    set_no_new_privs(true).context("new privileges cannot be refused")?;
    Ok(())
}
