//! What the HA process asks of the kernel for itself, and what it got.

use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl::{set_dumpable, set_timerslack};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::sys;

/// Above ordinary processes, below the kernel's own real-time threads.
const REALTIME_PRIORITY: i32 = 20;

/// What was granted; shown in status, because a 10 ms interval needs the first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "four independent grants")]
pub struct Grants {
    /// Real-time priority (`SCHED_FIFO`).
    pub realtime: bool,
    /// All memory, now and later, stays in RAM.
    pub memory_locked: bool,
    /// No core dump: its writing would keep descriptors open for seconds.
    pub no_core_dump: bool,
    /// SIGTERM, SIGINT and SIGHUP are held back: the main process orders the stop.
    pub signals_held: bool,
}

impl Grants {
    /// Asks for everything, for the calling thread and its process. To be called once, before other threads exist;
    /// what is refused is left out.
    pub fn claim() -> Self {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            signals.add(signal);
        }
        let no_core_dump = setrlimit(Resource::RLIMIT_CORE, 0, 0).is_ok() & set_dumpable(false).is_ok();
        // Of use without real-time priority only, and never harmful.
        set_timerslack(1).ok();
        Self {
            realtime: sys::realtime(REALTIME_PRIORITY).is_ok(),
            memory_locked: lock_memory(),
            no_core_dump,
            signals_held: signals.thread_block().is_ok(),
        }
    }
}

/// Locks what there is, and what comes if no limit could make a later allocation fail. An unprivileged process wants
/// `LimitMEMLOCK=infinity`.
fn lock_memory() -> bool {
    let unlimited = getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft == RLIM_INFINITY);
    if unlimited || geteuid().is_root() {
        mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE).is_ok()
    } else {
        mlockall(MlockAllFlags::MCL_CURRENT).is_ok()
    }
}
