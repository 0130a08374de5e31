//! Scripts of `ha.track` and hooks of `ha.hooks`: each in a thread of its own that waits for it, hooks one after the other.
//! Nothing here is waited for by anybody; what does not fit is left out and said so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self as blocking, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::unistd::{Gid, Uid};
use tokio::sync::mpsc;

use crate::config::{HaConfig, TrackScript};
use crate::control::NodeState;
use crate::script::{Account, Ended, How, Run, run};

/// Hooks that wait for the one that runs; when there is no room for another, that one is left out.
const HOOKS: usize = 16;
/// Ends that the main loop has not taken note of; a thread with another waits.
const SAID: usize = 64;
/// The daemon's own program, also when the file was replaced since.
const SHIM: &str = "/proc/self/exe";

/// What came of a program.
#[derive(Debug)]
pub(crate) enum Said {
    /// The script at this place of the file has ended.
    Script(usize, Ended),
    /// The hook of this name has ended.
    Hook(&'static str, Ended),
}

/// Runs what the operator has written down.
#[derive(Debug)]
pub(crate) struct Scripts {
    account: Result<Account, String>,
    hooks: SyncSender<(&'static str, Run)>,
    said: mpsc::Sender<Said>,
    /// The daemon stops.
    stop: Arc<AtomicBool>,
    /// Places of scripts whose last run cannot be ended; another would be beside it.
    stuck: Arc<Mutex<BTreeSet<usize>>>,
}

impl Scripts {
    /// Ready to run them as the configured user, which is nobody who may use the control socket (of `control_group`); and
    /// what they say.
    ///
    /// # Errors
    /// When there is no thread for the hooks.
    pub(crate) fn new(
        ha: &HaConfig,
        control_group: Option<&str>,
    ) -> std::io::Result<(Self, mpsc::Receiver<Said>)> {
        let (said, heard) = mpsc::channel(SAID);
        let stop = Arc::new(AtomicBool::new(false));
        let (hooks, waiting) = blocking::sync_channel::<(&'static str, Run)>(HOOKS);
        let (told, stopped) = (said.clone(), Arc::clone(&stop));
        thread::Builder::new().name("hooks".to_owned()).spawn(move || {
            for (name, wanted) in waiting {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // The main loop is gone when nobody listens.
                run(&shim(), &wanted, &stopped, |ended| {
                    drop(told.blocking_send(Said::Hook(name, ended)));
                });
            }
        })?;
        let scripts = Self {
            account: Account::find(
                &ha.script_user,
                Uid::effective().as_raw(),
                Gid::effective().as_raw(),
                control_group,
            ),
            hooks,
            said,
            stop,
            stuck: Arc::default(),
        };
        Ok((scripts, heard))
    }

    /// Starts a script of `ha.track`.
    pub(crate) fn start(&self, place: usize, script: &TrackScript, environment: Vec<(String, String)>) {
        let wanted = match self.wanted(&script.command, environment, script.timeout) {
            Ok(wanted) => wanted,
            Err(why) => return self.not_started(place, why),
        };
        if locked(&self.stuck).contains(&place) {
            return self.not_started(place, "the run before goes on, and cannot be ended".to_owned());
        }
        let (said, stop, stuck) = (self.said.clone(), Arc::clone(&self.stop), Arc::clone(&self.stuck));
        let running = thread::Builder::new().name("script".to_owned()).spawn(move || {
            run(&shim(), &wanted, &stop, |ended| {
                if ended.how == How::Stuck {
                    locked(&stuck).insert(place);
                }
                // The main loop is gone when nobody listens.
                drop(said.blocking_send(Said::Script(place, ended)));
            });
            locked(&stuck).remove(&place);
        });
        if let Err(error) = running {
            self.not_started(place, format!("no thread: {error}"));
        }
    }

    fn not_started(&self, place: usize, why: String) {
        let ended = Ended {
            how: How::NotStarted(why),
            output: String::new(),
            cut: false,
        };
        // A full queue has older news of the same kind; the script is not run again before one of them was taken.
        drop(self.said.try_send(Said::Script(place, ended)));
    }

    /// Has a hook run after those before it.
    ///
    /// # Errors
    /// Why it is left out.
    pub(crate) fn hook(
        &self,
        name: &'static str,
        command: &[String],
        environment: Vec<(String, String)>,
        limit: std::time::Duration,
    ) -> Result<(), String> {
        let wanted = self.wanted(command, environment, limit)?;
        self.hooks
            .try_send((name, wanted))
            .map_err(|_| format!("{HOOKS} hooks wait already"))
    }

    fn wanted(
        &self,
        command: &[String],
        environment: Vec<(String, String)>,
        limit: std::time::Duration,
    ) -> Result<Run, String> {
        Ok(Run {
            command: command.to_vec(),
            account: self.account.clone()?,
            environment,
            limit,
        })
    }

    /// Ends what runs, and starts nothing any more.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A poisoned lock holds whole places.
fn locked(stuck: &Mutex<BTreeSet<usize>>) -> MutexGuard<'_, BTreeSet<usize>> {
    stuck.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shim() -> PathBuf {
    Path::new(SHIM).to_owned()
}

/// The hook of a role.
pub(crate) fn hook_of(ha: &HaConfig, state: NodeState) -> (&'static str, Option<&[String]>) {
    let hooks = &ha.hooks;
    match state {
        NodeState::Active => ("active", hooks.active.as_deref()),
        NodeState::Standby => ("standby", hooks.standby.as_deref()),
        NodeState::Initialize => ("fault", hooks.fault.as_deref()),
    }
}
