//! Flow sync as the thread runs it: tells of the programs in, bodies to and from the peer, what the daemon hears of it.

use std::sync::Arc;
use std::sync::mpsc as queue;

use anyhow::Context as _;
use onearm_dataplane::sync::{Because, Position, Settings, Sync, Tell, TellRing, Verdict};
use onearm_dataplane::{FlowTable, LeaseCell};
use onearm_types::NodeId;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};

use crate::daemon::board::Board;
use crate::stream::port::Carried;
use crate::stream::wire::MOST_BODY;

use super::notices::Notices;
use super::{News, Order, View};

/// After a body that is not full the next one is waited for so long: what happens meanwhile goes together.
const GATHER_NS: u64 = 500_000;
/// A body of so many bytes is followed by the next one at once.
const FULL: usize = 16 * 1024;
/// Events of the programs that are taken before others have their turn.
const MOST_TELLS: usize = 4_096;
/// Places or buckets that are walked over before others have their turn.
const BUDGET: u32 = 1_024;
/// What is shown of it is never older than this, as long as anything wakes the thread.
const SHOWN_NS: u64 = 200_000_000;
/// What the peer has not acknowledged for so long, milliseconds, it does not have.
const PATIENCE_MS: u64 = 50;
/// Repairs have this long to make the tables alike; a hand-over does not wait for ever.
const STUCK_NS: u64 = 60_000_000_000;

/// What flow sync needs; it outlives a panic of the thread.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) node: NodeId,
    pub(super) ring: TellRing,
    pub(super) orders: queue::Receiver<Order>,
    pub(super) news: mpsc::Sender<News>,
    pub(super) view: watch::Sender<View>,
    pub(super) board: Arc<Board>,
    pub(super) lease: LeaseCell,
    /// Groups this node owns, a bit each.
    pub(super) owned: u16,
}

/// A session with the peer.
#[derive(Debug)]
struct Session {
    serial: u64,
    /// `None`: the peer's release knows no flow sync.
    say: Option<mpsc::Sender<Vec<u8>>>,
    /// A body for which there was no room.
    unsaid: Option<Vec<u8>>,
}

/// Flow sync at work.
#[derive(Debug)]
pub(super) struct Syncing<'a> {
    parts: &'a mut Parts,
    table: Arc<FlowTable>,
    sync: Sync<FlowTable>,
    session: Option<Session>,
    gathers_until: u64,
    flushes: Vec<(u64, Position)>,
    has_flows: Option<bool>,
    /// Repairs before this session, and since when one has not helped.
    repairs_before: u64,
    stuck_since: Option<u64>,
    shown_at: u64,
    /// Records the ring had no room for, and when that was read.
    lost: u64,
    lost_at: u64,
    notices: Notices,
}

impl<'a> Syncing<'a> {
    /// Without a peer yet.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(super) fn new(parts: &'a mut Parts, table: Arc<FlowTable>, now: u64) -> anyhow::Result<Self> {
        let mut seed = [0_u8; 16];
        getrandom::fill(&mut seed).context("no random numbers for flow sync")?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| seed[at + n]));
        let mut sync = Sync::new(
            Arc::clone(&table),
            parts.node,
            [word(0), word(8)],
            Settings::default(),
        );
        sync.owned(now, parts.owned);
        parts.ring.listen(true);
        Ok(Self {
            parts,
            table,
            sync,
            session: None,
            gathers_until: 0,
            flushes: Vec::new(),
            has_flows: None,
            repairs_before: 0,
            stuck_since: None,
            shown_at: 0,
            lost: 0,
            lost_at: 0,
            notices: Notices::new(now),
        })
    }

    /// What to wait for beside the wake-ups: the ring, unless what it says would only be gathered.
    pub(super) fn ring(&self, now: u64) -> Option<&TellRing> {
        (now >= self.gathers_until).then_some(&self.parts.ring)
    }

    /// When to work again though nothing comes.
    pub(super) fn deadline(&self, now: u64) -> u64 {
        let gathers = (now < self.gathers_until).then_some(self.gathers_until);
        // While the stream has no room nothing is due before it says that it has.
        let is_held_back = self.session.as_ref().is_some_and(|open| open.unsaid.is_some());
        let due = self.sync.deadline().map(|due| {
            if is_held_back {
                due.max(now + GATHER_NS)
            } else {
                due
            }
        });
        [gathers, due].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    pub(super) fn told(&mut self, now: u64, tell: Tell) {
        self.sync.told(now, tell);
    }

    pub(super) fn carried(&mut self, now: u64, carried: Carried) {
        match carried {
            Carried::Opened { serial, say } => {
                if self.session.take().is_some() {
                    self.sync.disconnected(now);
                }
                if say.is_some() {
                    self.sync.connected(now);
                }
                (self.repairs_before, self.stuck_since) = (self.sync.repairs(), None);
                self.session = Some(Session {
                    serial,
                    say,
                    unsaid: None,
                });
            }
            Carried::Heard { serial, body } => {
                let of_session = self.session.as_ref().is_some_and(|open| open.serial == serial);
                if of_session && let Err(malformed) = self.sync.heard(now, &body) {
                    tracing::warn!(%malformed, "flow sync: the peer cannot be understood; the session ends");
                    self.disconnected(now);
                }
            }
            Carried::Ended { serial } => {
                if self.session.as_ref().is_some_and(|open| open.serial == serial) {
                    self.disconnected(now);
                }
            }
        }
    }

    /// Without its way of saying bodies the stream ends the session, if it has not.
    fn disconnected(&mut self, now: u64) {
        self.session = None;
        self.sync.disconnected(now);
    }

    fn orders(&mut self, now: u64) {
        while let Ok(order) = self.parts.orders.try_recv() {
            match order {
                Order::Own(groups) => {
                    self.parts.owned = groups;
                    self.sync.owned(now, groups);
                }
                Order::Flush(number) => {
                    let position = self.sync.flush(now);
                    self.flushes.push((number, position));
                }
            }
        }
    }

    /// One turn; whether there is more to do at once.
    ///
    /// # Errors
    /// When the ring cannot be read.
    pub(super) fn turn(&mut self, now: u64) -> Result<bool, onearm_dataplane::Error> {
        let (sync, ring) = (&mut self.sync, &mut self.parts.ring);
        // Before what the programs say, which they may have said since this node acts.
        if self.parts.lease.read() > now || self.parts.lease.armed() > now {
            sync.acts(now);
        }
        let taken = ring.drain(MOST_TELLS, |tell| sync.told(now, tell));
        if taken > 0 || now >= self.lost_at + SHOWN_NS {
            (self.lost, self.lost_at) = (ring.lost()?, now);
        }
        if taken < MOST_TELLS {
            sync.drained(now, self.lost);
        }
        // What a flush is to cover has been taken from the ring.
        if taken < MOST_TELLS {
            self.orders(now);
        }
        let more = self.sync.work(now, BUDGET);
        self.say(now);
        self.flushed();
        self.show(now);
        Ok(more || taken == MOST_TELLS)
    }

    /// Says as much as there is room for.
    fn say(&mut self, now: u64) {
        let Some(session) = &mut self.session else { return };
        let Some(say) = &session.say else { return };
        while let Some(body) = session
            .unsaid
            .take()
            .or_else(|| (now >= self.gathers_until).then(|| self.sync.next_body(now, MOST_BODY))?)
        {
            let full = body.len() >= FULL;
            match say.try_send(body) {
                Ok(()) if full => {}
                Ok(()) => self.gathers_until = now + GATHER_NS,
                // Its thread wakes this one when there is room.
                Err(TrySendError::Full(body)) => {
                    session.unsaid = Some(body);
                    return;
                }
                // Its end is on the way here.
                Err(TrySendError::Closed(_)) => return,
            }
        }
    }

    fn flushed(&mut self) {
        // A release that knows no flow sync will never have them; a session that broke off may come back.
        let able = self.session.as_ref().is_none_or(|open| open.say.is_some());
        let (sync, news) = (&self.sync, &self.parts.news);
        self.flushes.retain(|(number, position)| {
            let done = !able || sync.is_acknowledged(*position);
            !(done && news.try_send(News::Flushed(*number)).is_ok())
        });
    }

    /// Whether the tables go on differing though what differs was told: what the peer lacks it cannot have, and waiting for it is
    /// bounded.
    fn is_stuck(&mut self, now: u64, verdict: Verdict) -> bool {
        let repaired = self.sync.repairs() > self.repairs_before;
        let differs = matches!(
            verdict,
            Verdict::NotSyncing {
                because: Because::Comparing | Because::Repairing | Because::PeerFull
            }
        );
        if !(repaired && differs) {
            self.stuck_since = None;
            return false;
        }
        now >= *self.stuck_since.get_or_insert(now) + STUCK_NS
    }

    fn show(&mut self, now: u64) {
        let verdict = self.sync.verdict(now);
        let is_stuck = self.is_stuck(now, verdict);
        let has_flows = match (&self.session, verdict) {
            (None, _) => false,
            (Some(Session { say: None, .. }), _) | (_, Verdict::Equal) => true,
            (_, Verdict::Behind { oldest_ms, .. }) => oldest_ms <= PATIENCE_MS,
            (_, Verdict::NotSyncing { .. }) => is_stuck,
        };
        if self.has_flows != Some(has_flows)
            && self.parts.news.try_send(News::PeerHasFlows(has_flows)).is_ok()
        {
            self.has_flows = Some(has_flows);
        }
        let turned = {
            let shown = self.parts.view.borrow();
            std::mem::discriminant(&shown.verdict) != std::mem::discriminant(&verdict)
        };
        if !turned && now < self.shown_at + SHOWN_NS {
            return;
        }
        self.shown_at = now;
        let wanted = self.table.take_wanted();
        if !wanted.is_empty() {
            // The next audit wants them again.
            self.parts.news.try_send(News::ClientsWanted(wanted)).ok();
        }
        let view = View {
            verdict,
            peer_knows: self.session.as_ref().map(|open| open.say.is_some()),
            counters: self.sync.counters(),
        };
        let (warnings, events) = self.notices.look(now, &view);
        self.parts.board.warn("sync", warnings);
        for event in events {
            self.parts.board.tell(event);
        }
        self.parts.view.send_replace(view);
    }
}
