//! Scripts of `ha.track` and hooks of `ha.hooks`: each in a thread of its own that waits for it, hooks one after the other.
//! Nothing here is waited for by anybody; what does not fit is left out and said so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self as blocking, SyncSender};
use std::thread;

use nix::unistd::Uid;
use tokio::sync::mpsc;

use crate::config::{HaConfig, TrackScript};
use crate::control::NodeState;
use crate::script::{Account, Ended, How, Order, run};

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
    hooks: SyncSender<(&'static str, Order)>,
    said: mpsc::Sender<Said>,
    /// The daemon stops.
    stop: Arc<AtomicBool>,
}

impl Scripts {
    /// Ready to run them as the configured user, and what they say.
    ///
    /// # Errors
    /// When there is no thread for the hooks.
    pub(crate) fn new(ha: &HaConfig) -> std::io::Result<(Self, mpsc::Receiver<Said>)> {
        let (said, heard) = mpsc::channel(SAID);
        let stop = Arc::new(AtomicBool::new(false));
        let (hooks, orders) = blocking::sync_channel::<(&'static str, Order)>(HOOKS);
        let (told, stopped) = (said.clone(), Arc::clone(&stop));
        thread::Builder::new().name("hooks".to_owned()).spawn(move || {
            for (name, order) in orders {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let ended = run(&shim(), &order, &stopped);
                // The main loop is gone when nobody listens.
                drop(told.blocking_send(Said::Hook(name, ended)));
            }
        })?;
        let scripts = Self {
            account: Account::find(&ha.script_user, Uid::effective().as_raw()),
            hooks,
            said,
            stop,
        };
        Ok((scripts, heard))
    }

    /// Starts a script of `ha.track`.
    pub(crate) fn start(&self, place: usize, script: &TrackScript, environment: Vec<(String, String)>) {
        let order = match self.order(&script.command, environment, script.timeout) {
            Ok(order) => order,
            Err(why) => return self.not_started(place, why),
        };
        let (said, stop) = (self.said.clone(), Arc::clone(&self.stop));
        let running = thread::Builder::new().name("script".to_owned()).spawn(move || {
            let ended = run(&shim(), &order, &stop);
            // The main loop is gone when nobody listens.
            drop(said.blocking_send(Said::Script(place, ended)));
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
        let order = self.order(command, environment, limit)?;
        self.hooks
            .try_send((name, order))
            .map_err(|_| format!("{HOOKS} hooks wait already"))
    }

    fn order(
        &self,
        command: &[String],
        environment: Vec<(String, String)>,
        limit: std::time::Duration,
    ) -> Result<Order, String> {
        Ok(Order {
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
