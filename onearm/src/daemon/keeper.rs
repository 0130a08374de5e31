//! The thread of the flows: the one part of user space that writes the flow table. It ends silent flows, and keeps the peer's table
//! and this one alike. A loaded table, a peer that is slow, or a crowd of new flows delays neither the main loop nor the control API.

mod notices;
mod sweep;
mod syncing;
mod thread;

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as queue;
use std::thread as os;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::eventfd::{EfdFlags, EventFd};
use onearm_dataplane::sync::{Because, Counters, TellRing, Verdict};
use onearm_dataplane::{FlowTable, LeaseCell};
use onearm_types::NodeId;
use tokio::sync::{mpsc, watch};

use crate::control::{Severity, SyncStatus, SyncVerdict};
use crate::stream::port::{self, Port};

use super::board::Board;
use thread::Parts;

/// After a panic it is begun again, but not sooner.
const PAUSE: Duration = Duration::from_secs(1);
/// Whose warning it is on the board.
const SOURCE: &str = "flows";
/// News that wait for the main loop; what finds no room is said again.
const NEWS: usize = 16;

/// What the daemon asks of flow sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// This node owns these groups now, a bit each.
    Own(u16),
    /// Tell of it when the peer has all flows there are now.
    Flush(u64),
}

/// What the daemon hears of flow sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The peer has all flows there were when the flush of that number was asked for; or no peer is there that could.
    Flushed(u64),
    /// Whether the peer has this node's flows, but for what is under way.
    PeerHasFlows(bool),
    /// Clients on legs, by leg id, that flows will need resolved.
    ClientsWanted(BTreeSet<(u8, IpAddr)>),
}

/// What is known of flow sync.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// How far both tables are alike.
    pub(crate) verdict: Verdict,
    /// Whether the peer's release knows flow sync; `None` without a session.
    pub(crate) peer_knows: Option<bool>,
    /// What it counted.
    pub(crate) counters: Counters,
}

impl Default for View {
    fn default() -> Self {
        Self {
            verdict: Verdict::NotSyncing {
                because: Because::NoSession,
            },
            peer_knows: None,
            counters: Counters::default(),
        }
    }
}

/// The next news; never without flow sync. Cancel-safe.
pub(crate) async fn heard(sync: &mut Option<FlowSync>) -> News {
    let Some(sync) = sync else { return pending().await };
    match sync.news.recv().await {
        Some(news) => news,
        // Without its thread nothing changes any more.
        None => pending().await,
    }
}

/// Without authentication.
pub(crate) fn no_sync() -> SyncStatus {
    SyncStatus {
        because: "authentication is off: nodes tell flows only to a peer they know".to_owned(),
        ..SyncStatus::default()
    }
}

impl View {
    /// As `onearm status` shows it.
    pub(crate) fn status(&self) -> SyncStatus {
        let mut status = SyncStatus {
            because: notices::why(self).unwrap_or_default(),
            lag_p50_us: self.counters.lag.p50_us,
            lag_p99_us: self.counters.lag.p99_us,
            counters: super::notices::counted(&self.counters).collect(),
            ..SyncStatus::default()
        };
        if status.because.is_empty() {
            status.verdict = SyncVerdict::Equal;
        }
        if let Verdict::Behind { records, oldest_ms } = self.verdict
            && status.because.is_empty()
        {
            status.verdict = SyncVerdict::Behind;
            (status.records_behind, status.oldest_behind_ms) = (records, oldest_ms);
        }
        status
    }
}

/// The running thread; it ends soon after this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    port: Port,
}

/// Flow sync as the main loop holds it.
#[derive(Debug)]
pub(crate) struct FlowSync {
    orders: queue::Sender<Order>,
    wake: Arc<EventFd>,
    /// What is heard of it.
    pub(crate) news: mpsc::Receiver<News>,
    /// What is known of it.
    pub(crate) view: watch::Receiver<View>,
}

impl FlowSync {
    /// This node owns the flows now, or does not.
    pub(crate) fn own(&self, owns: bool) {
        self.order(Order::Own(u16::from(owns)));
    }

    /// [`News::Flushed`] is to come when the peer has all flows there are now.
    pub(crate) fn flush(&self, number: u64) {
        self.order(Order::Flush(number));
    }

    fn order(&self, order: Order) {
        // Without its thread the daemon ends.
        if self.orders.send(order).is_ok() {
            self.wake.write(1).unwrap_or_default();
        }
    }
}

impl Keeper {
    /// Starts it; with `sync`, the events of the programs and this node's id, it tells the peer.
    ///
    /// # Errors
    /// The system's when there is no thread or descriptor.
    pub(crate) fn start(
        table: Arc<FlowTable>,
        board: Arc<Board>,
        sync: Option<(TellRing, NodeId, LeaseCell)>,
    ) -> anyhow::Result<(Self, Option<FlowSync>)> {
        let wake = Arc::new(
            EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
                .context("no descriptor for the thread of the flows")?,
        );
        let stop = Arc::new(AtomicBool::new(false));
        let (port, wharf) = port::port(Arc::clone(&wake));
        let (sync, flow_sync) = sync
            .map(|(ring, node, lease)| with_sync(ring, node, lease, &board, &wake))
            .unzip();
        let parts = Parts {
            table,
            board,
            wharf,
            wake: Arc::clone(&wake),
            stop: Arc::clone(&stop),
            sync,
        };
        spawn(parts).context("no thread for the flows")?;
        Ok((Self { stop, wake, port }, flow_sync))
    }

    /// Where the stream brings what the peer says of flows.
    pub(crate) fn port(&self) -> Port {
        self.port.clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake.write(1).unwrap_or_default();
    }
}

fn with_sync(
    ring: TellRing,
    node: NodeId,
    lease: LeaseCell,
    board: &Arc<Board>,
    wake: &Arc<EventFd>,
) -> (syncing::Parts, FlowSync) {
    let (orders, ordered) = queue::channel();
    let (tell, news) = mpsc::channel(NEWS);
    let (shown, view) = watch::channel(View::default());
    let parts = syncing::Parts {
        node,
        ring,
        orders: ordered,
        news: tell,
        view: shown,
        board: Arc::clone(board),
        lease,
        owned: 0,
    };
    let wake = Arc::clone(wake);
    let sync = FlowSync {
        orders,
        wake,
        news,
        view,
    };
    (parts, sync)
}

fn spawn(mut parts: Parts) -> io::Result<()> {
    os::Builder::new().name("flows".to_owned()).spawn(move || {
        loop {
            let ended = catch_unwind(AssertUnwindSafe(|| parts.run()));
            if parts.stop.load(Ordering::Relaxed) {
                return;
            }
            let why = match ended {
                Ok(Ok(())) => "it ended".to_owned(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "a panic, which the log shows".to_owned(),
            };
            parts.board.record(
                Severity::Error,
                "flow-keeper-ended",
                format!("the thread that ends silent flows failed: {why}"),
                "it is begun again; report this",
            );
            parts
                .board
                .warn(SOURCE, vec![format!("the thread of the flows failed: {why}")]);
            // One that wakes too early begins too early.
            os::park_timeout(PAUSE);
        }
    })?;
    Ok(())
}
