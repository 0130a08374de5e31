//! The loop of the main process: waits for anything to happen, says so to the node, and stops in order.

mod election;
mod history;
mod orders;
mod owned;
mod peer;
mod reload;
mod tracking;

use std::future::pending;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use onearm_dataplane::{Event as Seen, EventStream, LeaseCell, Timed};
use onearm_ha::election::{LegFault, Stance};
use onearm_ha::membership::{self, KnownProtocol, Memberships};
use onearm_netcfg::Event as KernelEvent;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::config::{Loaded, Refused};
use crate::control::Severity;
use crate::stream::wire::Message;
use crate::track::Tracking;

pub(crate) use orders::Order;
use orders::Pending;
pub(crate) use reload::Files;

use super::authentication::{Authentication, Refusals};
use super::epochs::Epochs;
use super::errands::Errands;
use super::ha_link::{HaLink, News};
use super::keeper::{self, FlowSync};
use super::node::{Node, RETRY, Settled};
use super::notices::{self, told};
use super::owned::Store;
use super::plan;
use super::recording::Recording;
use super::scripts::{Said, Scripts};
use super::streaming::Streaming;

/// Indexes of removed servers and neighbours are freed this often.
const RECLAIM: Duration = Duration::from_mins(1);

/// Neighbours that packets of clients came from are judged this often.
const LAST_HOPS: Duration = Duration::from_secs(1);

/// Whether the egress gates are where they were put is looked at this often: nothing tells of a filter that goes.
const GATES: Duration = Duration::from_secs(10);

/// New guests are gathered this long before the kernel is asked for them.
const GUESTS_GATHER: Duration = Duration::from_millis(5);

/// What tells the loop of dataplane and kernel.
pub(crate) struct Inputs {
    pub(crate) events: Option<EventStream>,
    pub(crate) kernel: mpsc::Receiver<KernelEvent>,
    pub(crate) orders: mpsc::Receiver<Order>,
    /// Programs of the operator's, and what came of them.
    pub(crate) scripts: (Scripts, mpsc::Receiver<Said>),
}

/// A node with its HA process.
struct Running {
    node: Node,
    lease: LeaseCell,
    /// Keeps NIC filters and snooping switches delivering adverts, and solicitations for owned IPv6 addresses.
    memberships: Vec<Memberships>,
    /// Keeps the kernel from answering unicast adverts.
    known_protocol: Option<KnownProtocol>,
    ha: Option<(HaLink, mpsc::Receiver<News>)>,
    /// The HA process may be started (again) from then on.
    ha_from: Instant,
    /// Where the election is authenticated.
    streaming: Option<Streaming>,
    /// Where there is a stream.
    errands: Option<Arc<Errands>>,
    /// Where there is a stream.
    flow_sync: Option<FlowSync>,
    /// What it said last of the peer.
    peer_has_flows: Option<bool>,
    again_at: Option<Instant>,
    /// Programs were attached or went since the HA process was given the links.
    links_due: bool,
    terms: u64,
    /// Faults of legs beside that of the adverts, by interface.
    other_faults: Vec<(String, LegFault)>,
    recording: Option<Recording>,
    /// Both files are being read again.
    reading: Option<JoinHandle<Result<Loaded, Refused>>>,
    /// And once more after that.
    read_again: bool,
    /// Where the election is authenticated.
    auth: Option<Authentication>,
    /// Where the election is authenticated.
    epochs: Option<Epochs>,
    refusals: Refusals,
    files: Files,
    tracking: Tracking,
    scripts: Scripts,
    said: mpsc::Receiver<Said>,
    history: history::History,
    /// What the operator wants of this node.
    stance: Stance,
    /// What is being carried out.
    pending: Option<Pending>,
    /// Where the nodes' files differ.
    sharing: owned::Sharing,
}

/// Runs until SIGTERM or SIGINT, then stops in order: ownership first, programs next, borrowed settings last.
///
/// # Errors
/// What made going on impossible. Guards and gates are then left in place.
#[expect(clippy::too_many_lines, reason = "one loop with a branch for each input")]
pub(crate) async fn run(
    node: Node,
    lease: LeaseCell,
    Inputs {
        mut events,
        kernel: mut kernel_events,
        mut orders,
        scripts: (scripts, said),
    }: Inputs,
    (streaming, errands, flow_sync): (Option<Streaming>, Option<Arc<Errands>>, Option<FlowSync>),
    recording: Option<Recording>,
    files: Files,
    (auth, epochs, stance, store): (Option<Authentication>, Option<Epochs>, Stance, Option<Store>),
) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be caught")?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be caught")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be caught")?;
    let mut picture = node.picture.clone();
    let mut health = node.health.changes();
    let mut kernel_status = node.netcfg.status();
    let mut reclaim = interval(RECLAIM);
    reclaim.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_hops = interval(LAST_HOPS);
    last_hops.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut gates = interval(GATES);
    gates.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watchdog = watchdog();
    let flows = node.ask(|d| Ok(d.flows())).await.map_err(anyhow::Error::msg)?;
    let tracking = Tracking::new(onearm_ha::driver::now(), &node.loaded.pair);
    let mut running = Running {
        node,
        lease,
        memberships: Vec::new(),
        known_protocol: None,
        ha: None,
        ha_from: Instant::now(),
        streaming,
        errands,
        flow_sync,
        peer_has_flows: None,
        again_at: None,
        links_due: false,
        terms: 0,
        other_faults: Vec::new(),
        recording,
        reading: None,
        read_again: false,
        epochs,
        auth,
        refusals: Refusals::default(),
        files,
        tracking,
        scripts,
        said,
        history: history::History::default(),
        stance,
        pending: None,
        sharing: owned::Sharing::new(flows, store),
    };
    running.look_at_quorums();
    running.show_stances(stance, None);
    running.show_authentication();
    running.settle().await;
    tell_systemd(NotifyState::Ready);
    tracing::info!("ready");
    loop {
        let due = running.tracking_due();
        // Every branch is cancel-safe: each waits on a channel, signal, descriptor or clock that loses nothing when dropped.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(()) = hangup.recv() => running.reload(),
            read = reload::read(&mut running.reading) => running.have_read(read).await,
            news = news(&mut running.ha) => running.news(news).await,
            Some(order) = orders.recv() => running.order(order).await,
            () = at(running.pending.as_ref().map(Pending::due)) => running.give_order_up("time is up"),
            changed = picture.changed() => {
                changed.context("nobody watches the kernel any more")?;
                picture.borrow_and_update();
                running.settle().await;
            }
            changed = health.changed() => {
                changed.context("nobody checks the servers any more")?;
                health.borrow_and_update();
                let settled = running.node.check_health().await;
                running.after(settled);
                running.look_at_quorums();
            }
            done = owned::next(&mut running.sharing) => running.shared(done).await,
            tracked = tracking::next(&mut running.said, due) => running.tracked(tracked),
            Ok(()) = kernel_status.changed() => {
                let faults = kernel_status.borrow_and_update().faults.iter().map(|f| format!("kernel: {}", notices::fault(f))).collect();
                running.node.board.warn("kernel", faults);
            }
            Some(event) = kernel_events.recv() => running.node.board.tell(notices::kernel(&event)),
            seen = next_event(&mut events) => if let Some(seen) = seen {
                running.seen(seen);
            } else {
                events = None;
                let text = "events of the dataplane cannot be read: refusals and conflicts are counted, not told";
                running.node.board.warn("events", vec![text.to_owned()]);
            },
            streamed = streamed(&mut running.streaming) => match streamed {
                Some(message) => running.errand(message),
                None => running.look_at_stream().await,
            },
            news = keeper::heard(&mut running.flow_sync) => running.synced(news),
            () = at(running.again_at) => {
                running.again_at = None;
                running.settle().await;
            }
            _ = reclaim.tick() => {
                running.node.guests.expire(Instant::now());
                if let Err(error) = running.node.ask(|d| d.reclaim().map(drop)).await {
                    tracing::warn!(%error, "indexes could not be freed");
                }
            }
            _ = last_hops.tick() => {
                let now = Instant::now().into_std();
                if let Err(error) = running.node.ask(move |d| d.judge_last_hops(now)).await {
                    tracing::warn!(%error, "last hops of clients could not be judged");
                }
            }
            _ = gates.tick() => running.node.restore_gates().await,
            () = tick(&mut watchdog) => tell_systemd(NotifyState::Watchdog),
        }
    }
    tell_systemd(NotifyState::Stopping);
    running.stop().await
}

fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::debug!(%error, "systemd could not be told");
    }
}

/// Half of systemd's patience (`WatchdogSec=`), where it wants signs of life.
fn watchdog() -> Option<Interval> {
    let mut patience_us = 0;
    sd_notify::watchdog_enabled(false, &mut patience_us)
        .then(|| Duration::from_micros(patience_us / 2).max(Duration::from_millis(1)))
        .map(interval)
}

async fn tick(clock: &mut Option<Interval>) {
    match clock {
        Some(clock) => drop(clock.tick().await),
        None => pending().await,
    }
}

async fn news(ha: &mut Option<(HaLink, mpsc::Receiver<News>)>) -> News {
    match ha {
        // The sender goes only after it has sent the end.
        Some((_, heard)) => heard.recv().await.unwrap_or(News::Ended),
        None => pending().await,
    }
}

/// A message of the peer's; or `None`: something is known of the stream, or is to be told of it.
async fn streamed(streaming: &mut Option<Streaming>) -> Option<Message> {
    let Some(streaming) = streaming else {
        return pending().await;
    };
    let deadline = streaming.notices.deadline();
    tokio::select! {
        // Cancel-safe. Without its thread nothing changes any more.
        Ok(()) = streaming.view.changed() => None,
        Some(message) = streaming.heard.recv() => Some(message),
        () = at(deadline) => None,
    }
}

async fn next_event(events: &mut Option<EventStream>) -> Option<Timed> {
    match events {
        Some(events) => events
            .next()
            .await
            .inspect_err(|error| tracing::error!(%error, "no more dataplane events"))
            .ok(),
        None => pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

impl Running {
    async fn settle(&mut self) {
        self.hear_owned();
        let settled = self.node.settle().await;
        self.after(settled);
        self.links_due |= settled.links_changed;
        self.hold_links().await;
        self.keep_memberships();
        self.keep_ha().await;
        self.tell_of_peer();
        self.keep_stream();
        self.share();
    }

    fn keep_memberships(&mut self) {
        let Loaded { node, pair, .. } = &*self.node.loaded;
        let picture = self.node.picture.borrow();
        // The election is not on any leg yet; why, `keep_ha` says.
        let Ok(Some(config)) = plan::ha_config(node, pair, &picture, self.auth.as_ref()) else {
            return;
        };
        let owned = plan::owned(node, pair, &picture, &self.node.split.at_most());
        drop(picture);
        let legs: Vec<&String> = std::iter::once(&config.ifname)
            .chain(&config.other_legs)
            .collect();
        if self.known_protocol.is_none() {
            match KnownProtocol::open(&config) {
                Ok(known) => self.known_protocol = Some(known),
                Err(error) => tracing::warn!(%error, "unicast adverts will be answered by ICMP errors"),
            }
        }
        // The peer's network may be on another leg now.
        self.memberships
            .retain(|m| legs.iter().any(|leg| *leg == m.ifname()));
        let mut again = false;
        for (leg, number) in legs.into_iter().zip(0..) {
            let groups = membership::groups(&config, &owned, number);
            let known = self.memberships.iter().position(|m| m.ifname() == leg);
            let at = known.unwrap_or_else(|| {
                self.memberships.push(Memberships::new(leg));
                self.memberships.len() - 1
            });
            if let Err(error) = self.memberships[at].hold(&groups) {
                tracing::warn!(%error, ifname = %leg, "groups not joined");
                again = true;
            }
        }
        if again {
            self.again_by(Instant::now() + RETRY);
        }
    }

    fn after(&mut self, settled: Settled) {
        if settled.again {
            self.again_by(Instant::now() + RETRY);
        }
    }

    /// Another pass at `at`, unless one comes sooner.
    fn again_by(&mut self, at: Instant) {
        self.again_at = Some(sooner(self.again_at, at));
    }

    /// The stream goes between the nodes' own addresses, whichever they are now.
    fn keep_stream(&self) {
        let Some(streaming) = &self.streaming else { return };
        let picture = self.node.picture.borrow();
        let Loaded { node, pair, .. } = &*self.node.loaded;
        streaming.tell(|profile| profile.legs = plan::leg_macs(&node.legs, &picture));
        streaming.at(plan::stream_ends(node, pair, &picture));
    }

    fn errand(&self, message: Message) {
        if let Some(errands) = &self.errands {
            errands.heard(message);
        }
    }

    async fn look_at_stream(&mut self) {
        let Some(streaming) = &mut self.streaming else {
            return;
        };
        let view = streaming.view.borrow_and_update().clone();
        let (warnings, events) = streaming.notices.look(Instant::now(), &view);
        self.node.board.warn("stream", warnings);
        for event in events {
            self.node.board.tell(event);
        }
        let owned_changed = self.hear_owned();
        let legs = view.profile.map(|profile| profile.legs);
        let legs_changed = legs.is_some_and(|legs| {
            let before = std::mem::replace(&mut self.node.peer_legs, legs);
            before != self.node.peer_legs
        });
        if owned_changed || legs_changed {
            self.settle().await;
        } else {
            self.show_owned();
        }
    }

    /// A packet needs the MAC of a host on a leg, or will.
    fn want_resolved(&mut self, leg: u8, addr: IpAddr) {
        // A host behind no leg of ours cannot be resolved on one.
        let known = usize::from(leg) < self.node.loaded.node.legs.len();
        if known && self.node.guests.needed(Instant::now(), leg, addr) {
            self.again_by(Instant::now() + GUESTS_GATHER);
        }
    }

    fn seen(&mut self, seen: Timed) {
        match seen.event {
            Seen::NeighbourWanted { leg, addr } => {
                self.want_resolved(u8::try_from(leg).unwrap_or(u8::MAX), addr);
            }
            Seen::NextHopWanted { leg, addr, .. } => {
                let legs = &self.node.loaded.node.legs;
                let name = legs
                    .get(leg as usize)
                    .and_then(|l| onearm_netcfg::IfName::new(&l.interface).ok());
                if let Some(name) = name {
                    self.node.netcfg.suspect(&name, addr);
                }
            }
            Seen::AddressConflict { addr, mac, .. } => {
                let mac = onearm_netcfg::Mac(mac);
                self.node.board.record(
                    Severity::Error,
                    "address-conflict",
                    format!("{mac} claims the owned address {addr}"),
                    "find the host with that MAC and take the address from it; a server of mode dsr holds it and must be silent: \
                     net.ipv4.conf.all.arp_ignore = 1, arp_announce = 2",
                );
                if let Some((ha, _)) = &self.ha {
                    ha.conflict(addr);
                }
            }
            event => {
                let legs = &self.node.loaded.node.legs;
                let interface = |leg: u32| {
                    legs.get(leg as usize)
                        .map_or_else(|| format!("leg {leg}"), |leg| leg.interface.clone())
                };
                if let Some(notice) =
                    notices::refused(&event).or_else(|| notices::of_interface(&event, interface))
                {
                    self.node.board.tell(notice);
                } else {
                    tracing::debug!(event = told(&event), "dataplane event");
                }
            }
        }
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        tracing::info!("stopping");
        self.scripts.stop();
        if let Some((ha, mut heard)) = self.ha.take() {
            ha.stop(&mut heard, &mut self.flow_sync, false).await;
        }
        self.lease.clear();
        if let Some(streaming) = self.streaming.take() {
            streaming.stop().await;
        }
        let mut failed = Vec::new();
        if let Err(error) = self.node.ask(onearm_dataplane::Dataplane::detach_all).await {
            failed.push(error);
        }
        let gates = Arc::clone(&self.node.gates);
        let removed = tokio::task::spawn_blocking(move || {
            gates.lock().unwrap_or_else(PoisonError::into_inner).remove_all()
        });
        failed.extend(removed.await.unwrap_or_else(|panic| vec![panic.to_string()]));
        match self.node.netcfg.stop().await {
            Ok(restored) => {
                for line in &restored.lines {
                    tracing::info!(%line, "put back");
                }
                failed.extend(restored.errors.iter().map(ToString::to_string));
            }
            Err(error) => failed.push(error.to_string()),
        }
        anyhow::ensure!(
            failed.is_empty(),
            "not everything could be put back: {}",
            failed.join("; ")
        );
        Ok(())
    }
}

/// The earlier of a time that may be set and another.
fn sooner(set: Option<Instant>, at: Instant) -> Instant {
    set.map_or(at, |set| set.min(at))
}

#[cfg(test)]
mod tests {
    use super::{RETRY, sooner};
    use tokio::time::Instant;

    #[tokio::test]
    async fn a_retry_never_puts_off_what_is_due_sooner() {
        let soon = Instant::now();
        assert_eq!(sooner(None, soon + RETRY), soon + RETRY);
        assert_eq!(sooner(Some(soon), soon + RETRY), soon);
        assert_eq!(sooner(Some(soon + RETRY), soon), soon);
    }
}
