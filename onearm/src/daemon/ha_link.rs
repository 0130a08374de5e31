//! The main process's side of the HA process: starting it, orders, news, and acting in its place when it dies.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use onearm_dataplane::LeaseCell;
use onearm_ha::announce::OwnedAddress;
use onearm_ha::auth::Health;
use onearm_ha::config::Config;
use onearm_ha::process::{
    FromHa, Guardian, HEARTBEAT_NANOS, MainEnd, ToHa, ToMain, Verdict, Watch, owned_messages, spawn,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::ha_process::Cell;
use super::keeper::{self, FlowSync};

/// News kept for a main loop that is late; a [`ToMain::State`] that does not fit is told anew 200 ms later.
const NEWS: usize = 256;
/// How long an order may wait for room in the socket.
const PATIENCE: Duration = Duration::from_secs(1);
/// A heartbeat that cannot be sent is complained of once in so long.
const COMPLAIN_AGAIN: Duration = Duration::from_secs(10);
/// How often the reading thread looks whether the HA process is silent, and whether anybody still wants news.
const LOOK: Duration = Duration::from_millis(200);
/// An HA process that says nothing for so long hangs: it is killed, and its end acted on. Far longer than any stall that
/// real-time priority allows; its lease ended by itself long before.
const SILENCE_NANOS: u64 = 1_000_000_000;
/// How long the HA process may take to hand over, pass strays on for a second, and end.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// How long after SIGKILL its end is waited for.
const KILL_LIMIT: Duration = Duration::from_millis(500);

/// What came of the HA process.
#[derive(Debug)]
pub(crate) enum News {
    /// It says something.
    Message(ToMain),
    /// It has ended. The lease is cleared and the peer told, unless the end was ordered.
    Ended,
}

/// A running HA process.
#[derive(Debug)]
pub(crate) struct HaLink {
    end: Arc<MainEnd>,
    child: Child,
    ordered: Arc<AtomicBool>,
    beating: tokio::task::JoinHandle<()>,
    /// Owned addresses somebody claimed, which it has not been told yet.
    conflicts: Arc<Mutex<BTreeSet<IpAddr>>>,
    /// Acts when the process dies, under the settings it was given last.
    guardian: Arc<Mutex<Guardian>>,
    /// What it was given last and did not refuse.
    config: Option<Config>,
    /// The owned set it was given last.
    owned: Vec<OwnedAddress>,
    /// What it was told last of this node's health.
    health: Health,
    /// What it was told of the peer's legs.
    peer_legs: Option<bool>,
    peer_flows: Option<bool>,
}

/// A panic of another holder left it whole: each is changed by one call.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HaLink {
    /// Starts it, gives it the lease map and the links, its settings, and what this node can do.
    ///
    /// # Errors
    /// Any step; a process that was started is ended again.
    pub(crate) fn start(
        config: Config,
        owned: &[OwnedAddress],
        lease_map: &OwnedFd,
        links: &[OwnedFd],
        lease: LeaseCell,
        health: Health,
    ) -> anyhow::Result<(Self, mpsc::Receiver<News>)> {
        let guardian = Arc::new(Mutex::new(Guardian::prepare(&config)?));
        let mut command = Command::new("/proc/self/exe");
        command.arg("--ha-process").stdout(Stdio::null());
        let (child, end) = spawn(command)?;
        let end = Arc::new(end);
        let ordered = Arc::new(AtomicBool::new(false));
        let conflicts = Arc::default();
        let beating = tokio::spawn(beat(Arc::clone(&end), Arc::clone(&conflicts)));
        let link = Self {
            end,
            child,
            ordered,
            beating,
            conflicts,
            guardian,
            config: Some(config.clone()),
            owned: owned.to_vec(),
            health,
            peer_legs: None,
            peer_flows: None,
        };
        let (news, heard) = mpsc::channel(NEWS);
        let begun = link
            .begin(config, owned, lease_map, links)
            .and_then(|()| link.listen(lease, news));
        match begun {
            Ok(()) => Ok((link, heard)),
            Err(error) => {
                link.kill();
                Err(error)
            }
        }
    }

    fn begin(
        &self,
        config: Config,
        owned: &[OwnedAddress],
        lease_map: &OwnedFd,
        links: &[OwnedFd],
    ) -> anyhow::Result<()> {
        let links: Vec<_> = links.iter().map(AsFd::as_fd).collect();
        self.end.hold(Some(lease_map.as_fd()), &links, PATIENCE)?;
        self.end.send(&ToHa::Configure(Box::new(config)), PATIENCE)?;
        self.end.send(&ToHa::Health(self.health), PATIENCE)?;
        for message in owned_messages(owned) {
            self.end.send(&message, PATIENCE)?;
        }
        Ok(())
    }

    /// Reads in a thread of its own: the end of the HA process is acted on there, however busy the main loop is.
    fn listen(&self, lease: LeaseCell, news: mpsc::Sender<News>) -> anyhow::Result<()> {
        let (end, ordered) = (Arc::clone(&self.end), Arc::clone(&self.ordered));
        let guardian = Arc::clone(&self.guardian);
        let pid = Pid::from_raw(i32::try_from(self.child.id()).context("process id out of range")?);
        let read = move || {
            let mut cell = Cell(lease);
            let mut watch = Watch::new(onearm_ha::driver::now(), SILENCE_NANOS);
            while !news.is_closed() {
                let received = end.receive(LOOK);
                if matches!(received, Ok(FromHa::Message(_))) {
                    watch.heard(onearm_ha::driver::now());
                }
                if watch.look(onearm_ha::driver::now()) == Verdict::FellSilent {
                    tracing::error!("the HA process hangs and is killed");
                    // It cannot hand over any more, whatever it was ordered.
                    ordered.store(false, Ordering::Release);
                    if let Err(error) = kill(pid, Signal::SIGKILL) {
                        tracing::error!(%error, "the HA process could not be killed");
                    }
                }
                match received {
                    Ok(FromHa::Nothing) => {}
                    Ok(FromHa::Message(message)) => {
                        if let ToMain::State(state) = &message
                            && let Some(word) = state.last_word
                        {
                            lock(&guardian).note(word);
                        }
                        if let Err(error) = news.try_send(News::Message(message)) {
                            tracing::debug!(%error, "news of the HA process dropped");
                        }
                    }
                    Ok(FromHa::Ended) => {
                        if !ordered.load(Ordering::Acquire)
                            && let Err(error) = lock(&guardian).act(&mut cell)
                        {
                            tracing::error!(%error, "the peer could not be told of the HA process's death");
                        }
                        // The loop may be late, but it must learn of this.
                        drop(news.blocking_send(News::Ended));
                        return;
                    }
                    Err(error) => tracing::warn!(%error, "HA process not understood"),
                }
            }
        };
        thread::Builder::new()
            .name("ha-link".to_owned())
            .spawn(read)
            .context("no thread for the HA process")?;
        Ok(())
    }

    /// Whether it goes by these settings.
    pub(crate) fn has(&self, config: &Config) -> bool {
        self.config.as_ref() == Some(config)
    }

    /// It has refused its settings (its leg went in that moment): it is to be given them again.
    pub(crate) fn refused(&mut self) {
        self.config = None;
    }

    /// Gives it other settings.
    ///
    /// # Errors
    /// When it takes no orders, or the leg cannot be opened.
    pub(crate) fn configure(&mut self, config: Config) -> anyhow::Result<()> {
        // Before the process, so that a release never comes from an address the peer no longer knows.
        let prepared = Guardian::prepare(&config)?;
        lock(&self.guardian).replace(prepared);
        self.end
            .send(&ToHa::Configure(Box::new(config.clone())), PATIENCE)?;
        self.config = Some(config);
        Ok(())
    }

    /// Tells it what this node can do; false if it has no room for that now.
    pub(crate) fn health(&mut self, health: Health) -> bool {
        if self.health != health && matches!(self.end.try_send(&ToHa::Health(health)), Ok(true)) {
            self.health = health;
        }
        self.health == health
    }

    /// Whether this is the owned set it was given last.
    pub(crate) fn owns(&self, owned: &[OwnedAddress]) -> bool {
        self.owned == owned
    }

    /// Gives it the owned set.
    ///
    /// # Errors
    /// When it takes no orders.
    pub(crate) fn own(&mut self, owned: Vec<OwnedAddress>) -> anyhow::Result<()> {
        for message in owned_messages(&owned) {
            self.end.send(&message, PATIENCE)?;
        }
        self.owned = owned;
        Ok(())
    }

    /// Gives it an order of the operator's.
    ///
    /// # Errors
    /// When it takes no orders.
    pub(crate) fn order(&self, message: &ToHa) -> anyhow::Result<()> {
        Ok(self.end.send(message, PATIENCE)?)
    }

    /// Tells it whether the programs know the peer's legs.
    ///
    /// # Errors
    /// When it takes no orders.
    pub(crate) fn tell_peer_legs(&mut self, known: bool) -> anyhow::Result<()> {
        if self.peer_legs != Some(known) {
            self.order(&ToHa::PeerLegs(known))?;
            self.peer_legs = Some(known);
        }
        Ok(())
    }

    /// Tells it whether the peer has this node's flows.
    ///
    /// # Errors
    /// When it takes no orders.
    pub(crate) fn tell_peer_flows(&mut self, has: bool) -> anyhow::Result<()> {
        if self.peer_flows != Some(has) {
            self.order(&ToHa::PeerHasFlows(has))?;
            self.peer_flows = Some(has);
        }
        Ok(())
    }

    /// Gives it the links of programs attached anew.
    ///
    /// # Errors
    /// When it takes no orders.
    pub(crate) fn hold(&self, links: &[OwnedFd]) -> anyhow::Result<()> {
        let links: Vec<_> = links.iter().map(AsFd::as_fd).collect();
        Ok(self.end.hold(None, &links, PATIENCE)?)
    }

    /// Tells it that the dataplane saw somebody claim an owned address; with a heartbeat to come if it has no room now.
    pub(crate) fn conflict(&self, address: IpAddr) {
        let mut conflicts = lock(&self.conflicts);
        conflicts.insert(address);
        tell_conflicts(&self.end, &mut conflicts);
    }

    /// Orders the end: it hands over if Active, or lets go `at_once`. Waits for it, and kills it if it does not end.
    pub(crate) async fn stop(
        self,
        news: &mut mpsc::Receiver<News>,
        sync: &mut Option<FlowSync>,
        at_once: bool,
    ) {
        self.ordered.store(true, Ordering::Release);
        for _ in 0..=u8::from(at_once) {
            if let Err(error) = self.end.send(&ToHa::Stop, PATIENCE) {
                tracing::warn!(%error, "the HA process takes no orders");
            }
        }
        if timeout(STOP_LIMIT, self.end_of(news, sync)).await.is_err() {
            tracing::warn!("the HA process did not end in time and is killed");
            // As after any other death the lease is cleared and the peer told.
            self.ordered.store(false, Ordering::Release);
            if let Ok(pid) = i32::try_from(self.child.id())
                && let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL)
            {
                tracing::warn!(%error, "the HA process could not be killed");
            }
            if timeout(KILL_LIMIT, self.end_of(news, sync)).await.is_err() {
                tracing::warn!("the end of the HA process was not seen");
            }
        }
        self.kill();
    }

    /// Waits for the end of the HA process; of what it says before, the flush of the flows is done for it.
    async fn end_of(&self, news: &mut mpsc::Receiver<News>, sync: &mut Option<FlowSync>) {
        loop {
            // Cancel-safe: both are channels.
            let flushed = tokio::select! {
                heard = news.recv() => match (heard, &sync) {
                    (Some(News::Ended) | None, _) => return,
                    (Some(News::Message(ToMain::Flush(number))), None) => number,
                    (Some(News::Message(ToMain::Flush(number))), Some(sync)) => {
                        sync.flush(number);
                        continue;
                    }
                    (Some(News::Message(_)), _) => continue,
                },
                heard = keeper::heard(sync) => match heard {
                    keeper::News::Flushed(number) => number,
                    keeper::News::PeerHasFlows(_) | keeper::News::ClientsWanted(_) => continue,
                },
            };
            if let Err(error) = self.order(&ToHa::Flushed(flushed)) {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the HA process was not told of the flows"
                );
            }
        }
    }

    /// Ends the process if it has not ended, and takes its exit status.
    pub(crate) fn kill(mut self) {
        self.beating.abort();
        let Ok(pid) = i32::try_from(self.child.id()).map(Pid::from_raw) else {
            return;
        };
        if !matches!(
            waitpid(pid, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::StillAlive)
        ) {
            return;
        }
        if let Err(error) = kill(pid, Signal::SIGKILL) {
            tracing::warn!(%error, "the HA process could not be killed");
        }
        if let Err(error) = self.child.wait() {
            tracing::debug!(%error, "the HA process had been waited for");
        }
    }
}

/// Heartbeats from the runtime that does the work: when that hangs, the HA process hands over.
async fn beat(end: Arc<MainEnd>, conflicts: Arc<Mutex<BTreeSet<IpAddr>>>) {
    let mut tick = interval(Duration::from_nanos(HEARTBEAT_NANOS));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut complained = None::<Instant>;
    loop {
        tick.tick().await;
        match end.try_send(&ToHa::Heartbeat) {
            Err(onearm_ha::Error::PeerEnded) => return,
            Err(error) if complained.is_none_or(|at| at.elapsed() > COMPLAIN_AGAIN) => {
                complained = Some(Instant::now());
                tracing::warn!(%error, "heartbeat not sent");
            }
            Ok(_) | Err(_) => {}
        }
        tell_conflicts(&end, &mut lock(&conflicts));
    }
}

/// Tells of claims as long as there is room; what does not fit stays.
fn tell_conflicts(end: &MainEnd, conflicts: &mut BTreeSet<IpAddr>) {
    pass_on(conflicts, |address| {
        matches!(end.try_send(&ToHa::ConflictSeen(address)), Ok(true))
    });
}

/// Takes out of `waiting` what `take` takes, until it refuses one.
fn pass_on(waiting: &mut BTreeSet<IpAddr>, mut take: impl FnMut(IpAddr) -> bool) {
    while let Some(first) = waiting.first().copied()
        && take(first)
    {
        waiting.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::pass_on;
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    #[test]
    fn m11_a_claim_that_finds_no_room_is_told_when_there_is_some() {
        let claimed = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|a| a.parse::<IpAddr>().unwrap());
        let (mut waiting, mut told) = (BTreeSet::from(claimed), Vec::new());
        for room in [0, 1, 0, 8] {
            let end = told.len() + room;
            pass_on(&mut waiting, |address| {
                let has_room = told.len() < end;
                if has_room {
                    told.push(address);
                }
                has_room
            });
        }
        assert_eq!(told, claimed);
        assert!(waiting.is_empty());
    }
}
