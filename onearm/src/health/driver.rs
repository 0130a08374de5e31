use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::machine::{Input, Machine, Output, ServerView};
use super::spec::{CheckResult, CheckSpec, ServerKey, Target};
use super::tunnel::{self, Ears, Waiting};

/// Checks that run at a time unless the daemon says otherwise: each holds a descriptor for at most its time-out. With more
/// servers than that *and all of them silent*, a round of checks takes longer than the interval.
pub const DEFAULT_CAPACITY: usize = 1_024;

/// Health of all checked servers. Clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    machine: Arc<Mutex<Machine>>,
    wanted: Arc<watch::Sender<Arc<Vec<CheckSpec>>>>,
    changes: watch::Receiver<u64>,
}

impl Health {
    /// The shared view, and the task that checks; it ends when every clone of the view is gone. `seed` spreads the checks,
    /// `capacity` as for [`Machine::new`].
    pub fn new(seed: u64, capacity: usize) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let machine = Arc::new(Mutex::new(Machine::new(seed, capacity)));
        let (wanted, specs) = watch::channel(Arc::default());
        let (changed, changes) = watch::channel(0);
        let task = drive(Arc::clone(&machine), specs, changed);
        (
            Self {
                machine,
                wanted: Arc::new(wanted),
                changes,
            },
            task,
        )
    }

    /// Checks these servers from now on, and no others. Those already checked keep their state.
    pub fn configure(&self, specs: Vec<CheckSpec>) {
        self.wanted.send_replace(Arc::new(specs));
    }

    /// Counts changes of servers; wakes its reader when a server went into rotation or out of it.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The server as it is now; `None` = it is not checked, and so in rotation.
    pub fn view(&self, key: &ServerKey) -> Option<ServerView> {
        locked(&self.machine).view(now(), key)
    }

    /// Checks this machine could not make since the start, for lack of descriptors or ports.
    pub fn not_tried(&self) -> u64 {
        locked(&self.machine).not_tried()
    }

    /// Whether new flows may go to the server.
    pub fn in_rotation(&self, key: &ServerKey) -> bool {
        locked(&self.machine).in_rotation(key).unwrap_or(true)
    }
}

/// A machine left by a panic is still consistent: it is only ever changed by its own methods.
fn locked(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn drive(
    machine: Arc<Mutex<Machine>>,
    mut wanted: watch::Receiver<Arc<Vec<CheckSpec>>>,
    changed: watch::Sender<u64>,
) {
    let mut checks = FuturesUnordered::new();
    let waiting = Waiting::default();
    let mut ears: Option<Ears> = None;
    loop {
        let deadline = {
            let mut machine = locked(&machine);
            machine.time_passed(now());
            while let Some(output) = machine.poll_output() {
                match output {
                    Output::StartCheck {
                        check,
                        target,
                        timeout,
                    } => {
                        let waiting = waiting.clone();
                        checks.push(async move { (check, attempt(target, timeout, &waiting).await) });
                    }
                    Output::ChangeServer {
                        key: ServerKey { service, server },
                        up,
                        result,
                    } => {
                        tracing::info!(service, server, up, %result, "server changed");
                        changed.send_modify(|count| *count += 1);
                    }
                }
            }
            machine.deadline()
        };
        let wake = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let hearing = async {
            match &ears {
                Some(ears) => ears.hear(&waiting).await,
                None => std::future::pending().await,
            }
        };
        // Cancel-safe: `next` loses no result, `changed` only looks, the sleep is made anew, what is heard is handed on at once.
        tokio::select! {
            Some((check, result)) = checks.next() => {
                locked(&machine).handle(now(), Input::CheckEnded { check, result });
            }
            configured = wanted.changed() => {
                if configured.is_err() {
                    return;
                }
                let specs = wanted.borrow_and_update().as_ref().clone();
                if ears.is_none() && specs.iter().any(|spec| spec.target.tunnel.is_some()) {
                    match Ears::open() {
                        Ok(opened) => ears = Some(opened),
                        Err(error) => {
                            tracing::error!(%error, "answers of servers behind tunnels cannot be heard: they count as down");
                        }
                    }
                }
                locked(&machine).handle(now(), Input::Configured(specs));
            }
            () = wake => {}
            never = hearing => match never {},
        }
    }
}

/// One check, by all ways.
async fn attempt(target: Target, limit: Duration, waiting: &Waiting) -> CheckResult {
    let started = tokio::time::Instant::now();
    let mut result = match target.address {
        Some(address) => connect(address, limit).await,
        None => CheckResult::Connected(Duration::ZERO),
    };
    if let (CheckResult::Connected(_), Some(tunnel)) = (result, target.tunnel) {
        let left = limit.saturating_sub(started.elapsed());
        result = tunnel::connect(tunnel, left, waiting).await;
    }
    result
}

/// A connection, reset at once so that no closed connections pile up here.
async fn connect(target: SocketAddr, timeout: Duration) -> CheckResult {
    let started = tokio::time::Instant::now();
    match tokio::time::timeout(timeout, TcpStream::connect(target)).await {
        Ok(Ok(stream)) => {
            let elapsed = started.elapsed();
            if let Err(error) = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)) {
                tracing::debug!(%error, "check connection closes slowly");
            }
            CheckResult::Connected(elapsed)
        }
        Ok(Err(error)) => CheckResult::of_error(&error),
        Err(_) => CheckResult::TimedOut(timeout),
    }
}
