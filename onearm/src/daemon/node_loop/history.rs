//! What is told of a take-over when it is over, and of two owners: evidence, in the order it became known.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onearm_dataplane::Dataplane;
use onearm_ha::driver::TermTimes;
use onearm_ha::election::{Contention, Role, Transition};
use onearm_ha::process::HaState;
use onearm_ha::units::MonoTime;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Running;
use crate::control::{NewEvent, Severity, Timeline};
use crate::daemon::clock;
use crate::daemon::filters;
use crate::daemon::legs::lock;
use crate::daemon::notices::told;
use crate::daemon::plan;

/// How often the programs' counters are looked at for the first packet: so exact is its time.
const LOOK: Duration = Duration::from_millis(10);
/// How often they are looked at while this node does not own.
const LOOK_BEFORE: Duration = Duration::from_secs(2);
/// A take-over is told after so long, whatever has not happened by then.
const PATIENCE_NANOS: u64 = 5_000_000_000;
/// Another owner that was not heard for so long is one no more.
const QUIET_NANOS: u64 = 1_000_000_000;

/// What is not told yet.
#[derive(Debug, Default)]
pub(super) struct History {
    takeover: Option<Takeover>,
    before: Before,
    contention: Option<Contention>,
    /// Its end was told.
    settled: bool,
    /// Paths on which something is lost.
    filtered: Vec<String>,
}

/// What was forwarded before the term that comes next.
#[derive(Debug, Default)]
struct Before {
    /// Packets, when they were counted last.
    forwarded: Arc<AtomicU64>,
    /// `None`: after the end of a term they are to be counted at once.
    looked_at: Option<Instant>,
}

impl Before {
    /// Whether to look at the programs' counters now; a helper forwards for a moment, just before it owns.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = self
            .looked_at
            .is_none_or(|at| now.duration_since(at) >= LOOK_BEFORE);
        if due {
            self.looked_at = Some(now);
        }
        due
    }
}

#[derive(Debug)]
struct Takeover {
    transition: Transition,
    reason: String,
    /// When a packet of this term was seen first, CLOCK_MONOTONIC ns; 0 = none yet.
    first_packet: Arc<AtomicU64>,
}

impl Running {
    /// Notes a change of role; a take-over is told when its times are known.
    pub(super) fn remember(&mut self, transition: &Transition, reason: &str) {
        if transition.next == Role::Active {
            let first_packet = Arc::new(AtomicU64::new(0));
            let looking = look(
                Arc::clone(&self.node.dataplane),
                self.history.before.forwarded.load(Ordering::Relaxed),
                Arc::clone(&first_packet),
            );
            tokio::spawn(looking);
            self.history.takeover = Some(Takeover {
                transition: *transition,
                reason: reason.to_owned(),
                first_packet,
            });
            return;
        }
        self.history.before.looked_at = None;
        // A term that ended sooner is told with what is known.
        if let Some(takeover) = self.history.takeover.take() {
            self.tell_takeover(&takeover, None);
        }
    }

    /// Notes what was forwarded without owning: as the helper of the owner.
    pub(super) fn count_before_term(&mut self) {
        if !self.history.before.is_due(Instant::now()) {
            return;
        }
        let dataplane = Arc::clone(&self.node.dataplane);
        let forwarded = Arc::clone(&self.history.before.forwarded);
        // Beside the loop: whoever changes tables may hold the programs for long.
        tokio::spawn(async move {
            match spawn_blocking(move || lock(&dataplane).forwarded()).await {
                Ok(Ok(count)) => forwarded.store(count, Ordering::Relaxed),
                Ok(Err(error)) => tracing::debug!(%error, "counters not read"),
                Err(error) => tracing::debug!(%error, "counters not read"),
            }
        });
    }

    /// Takes what the HA process tells of times and of other owners.
    pub(super) fn look_back(&mut self, state: &HaState) {
        if let Some(takeover) = &self.history.takeover {
            let began = takeover.transition.at;
            let term = state.term.filter(|term| term.began_at == began);
            let has_all = term.is_some_and(|term| term.all_announced_at.is_some() || state.owned == 0)
                && takeover.first_packet.load(Ordering::Relaxed) != 0;
            if (has_all || state.at.since(began) >= PATIENCE_NANOS)
                && let Some(takeover) = self.history.takeover.take()
            {
                self.tell_takeover(&takeover, term);
            }
        }
        self.look_at_paths(state);
        if let Some(contention) = state.election.and_then(|election| election.contention) {
            self.look_at_contention(state, contention);
        }
    }

    fn look_at_paths(&mut self, state: &HaState) {
        let loaded = &self.node.loaded;
        let leg = plan::election_leg(&loaded.node, &self.node.picture.borrow())
            .map_or_else(String::new, |leg| leg.interface.clone());
        let filtered = filters::sentences(state, &leg, loaded.pair.ha.datagram_port);
        if filtered == self.history.filtered {
            return;
        }
        let board = &self.node.board;
        for sentence in filtered
            .iter()
            .filter(|sentence| !self.history.filtered.contains(sentence))
        {
            let remedy = "it stays in the warnings of onearm status until it is gone";
            board.record(Severity::Warning, "path-filtered", sentence.clone(), remedy);
        }
        if filtered.is_empty() {
            let text = "every path between the nodes carries what it should again".to_owned();
            board.record(Severity::Info, "path-clear", text, "");
        }
        board.warn("paths", filtered.clone());
        self.history.filtered = filtered;
    }

    fn tell_takeover(&self, takeover: &Takeover, term: Option<TermTimes>) {
        let transition = &takeover.transition;
        let first = takeover.first_packet.load(Ordering::Relaxed);
        let timeline = timeline(
            transition,
            &takeover.reason,
            term,
            (first != 0).then(|| MonoTime::from_nanos(first)),
        );
        let event = NewEvent {
            severity: Severity::Info,
            kind: "took-over",
            message: words(&timeline),
            remedy: String::new(),
        };
        self.node.board.tell_with(event, Some(timeline));
    }

    /// Two owners: evidence when the other is heard, and how long it lasted when it is not any more.
    fn look_at_contention(&mut self, state: &HaState, now: Contention) {
        let board = &self.node.board;
        let peer = self.node.loaded.node.peer.address;
        let is_known = self
            .history
            .contention
            .is_some_and(|known| known.first_at == now.first_at);
        if !is_known {
            self.history.settled = false;
            let node = &self.node.loaded.node;
            let picture = self.node.picture.borrow();
            // It may not have been heard by advert.
            let known = || {
                let leg = plan::election_leg(node, &picture)?;
                plan::neighbour_mac(leg, &picture, peer).map(onearm_ha::wire::Mac)
            };
            let mac = state
                .peer_mac
                .or_else(known)
                .map_or_else(|| "unknown".to_owned(), |mac| mac.to_string());
            let epoch = now
                .epoch
                .map_or_else(String::new, |epoch| format!(" under epoch {epoch}"));
            let text = format!(
                "{peer} (MAC {mac}, priority {}) said that it owns the addresses{epoch}, {} ms after this node's term of epoch {} had begun; {}",
                now.priority.get(),
                now.first_at.since(now.own_since) / 1_000_000,
                now.own_epoch,
                if now.gave_way {
                    "this node gave way"
                } else {
                    "this node keeps them"
                },
            );
            let remedy = "look for a path that is cut or loses one way: adverts on the leg, datagrams on the peer link";
            board.record(Severity::Error, "two-owners", text.clone(), remedy);
            board.warn("two-owners", vec![format!("two owners: {text}")]);
        }
        let is_over = now.gave_way || state.at.since(now.last_at) >= QUIET_NANOS;
        if is_over && !self.history.settled {
            self.history.settled = true;
            let text = format!(
                "{peer} does not say any more that it owns the addresses: {} messages in {} ms, as heard here",
                now.messages,
                now.last_at.since(now.first_at) / 1_000_000
            );
            board.record(Severity::Warning, "two-owners-over", text, "");
            board.warn("two-owners", Vec::new());
        }
        self.history.contention = Some(now);
    }
}

/// Waits for the first packet that is forwarded beyond `before`.
async fn look(dataplane: Arc<Mutex<Dataplane>>, before: u64, first: Arc<AtomicU64>) {
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let until = clock::monotonic_ns() + PATIENCE_NANOS;
    while clock::monotonic_ns() < until {
        tick.tick().await;
        let dataplane = Arc::clone(&dataplane);
        let asked = spawn_blocking(move || lock(&dataplane).forwarded()).await;
        match asked {
            Ok(Ok(forwarded)) if forwarded > before => {
                first.store(clock::monotonic_ns(), Ordering::Relaxed);
                return;
            }
            Ok(Ok(_)) => {}
            // The times that are known are told without it.
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

fn timeline(
    transition: &Transition,
    reason: &str,
    term: Option<TermTimes>,
    first_packet: Option<MonoTime>,
) -> Timeline {
    let since = |at: MonoTime| at.since(transition.known_at) / 1_000;
    let of_term = |time: fn(&TermTimes) -> Option<MonoTime>| term.as_ref().and_then(time).map(since);
    Timeline {
        epoch: transition.epoch,
        cause: reason.to_owned(),
        peer_said: transition.peer_said.map(|said| told(&said)),
        peer_heard_before_us: transition
            .heard_at
            .map(|at| transition.known_at.since(at) / 1_000),
        decided_us: since(transition.at),
        lease_us: of_term(|term| term.lease_at),
        first_announced_us: of_term(|term| term.first_announced_at),
        all_announced_us: of_term(|term| term.all_announced_at),
        announced: term.map_or(0, |term| term.announced),
        first_packet_us: first_packet.map(since),
        first_packet_resolution_us: u64::try_from(LOOK.as_micros()).unwrap_or(u64::MAX),
    }
}

/// One sentence; times in ms since the cause was known.
fn words(timeline: &Timeline) -> String {
    let ms = |us: u64| format!("{}.{}", us / 1_000, us / 100 % 10);
    let time = |what: &str, us: Option<u64>| match us {
        Some(us) => format!("{what} after {} ms", ms(us)),
        None => format!("no {what}"),
    };
    let peer = match (&timeline.peer_said, timeline.peer_heard_before_us) {
        (Some(said), Some(before)) => format!("the peer's last word was {said}, {} ms before", ms(before)),
        (None, Some(before)) => format!("the peer was heard last {} ms before", ms(before)),
        (_, None) => "the peer was never heard".to_owned(),
    };
    let packet = match timeline.first_packet_us {
        Some(us) => format!(
            "first packet seen after {} ms (looked at every {} ms)",
            ms(us),
            timeline.first_packet_resolution_us / 1_000
        ),
        None => "no packet yet".to_owned(),
    };
    format!(
        "epoch {}, {}: {peer}; since that was known: {}, {}, {}, {packet}",
        timeline.epoch,
        timeline.cause,
        time("lease", timeline.lease_us),
        time("first announcement", timeline.first_announced_us),
        time("announcement of every address", timeline.all_announced_us),
    )
}

#[cfg(test)]
mod tests {
    use super::{Before, LOOK_BEFORE, timeline, words};
    use onearm_ha::auth::Kind;
    use onearm_ha::driver::TermTimes;
    use onearm_ha::election::{Event, Role, Transition};
    use onearm_ha::units::MonoTime;
    use std::time::Duration;
    use tokio::time::Instant;

    #[test]
    fn what_was_forwarded_before_is_counted_now_and_then_and_at_once_after_a_term() {
        let mut before = Before::default();
        let now = Instant::now();
        let due: Vec<_> = (0..21)
            .map(|n| before.is_due(now + n * Duration::from_millis(200)))
            .collect();
        assert_eq!(
            due.iter().filter(|due| **due).count(),
            3,
            "{LOOK_BEFORE:?}: {due:?}"
        );
        before.looked_at = None;
        assert!(before.is_due(now + Duration::from_secs(4)));
    }

    #[test]
    fn a_take_over_is_told_in_milliseconds_since_its_cause_was_known() {
        let at = |us: u64| MonoTime::from_nanos(1_000_000_000 + us * 1_000);
        let transition = Transition {
            prev: Role::Standby,
            next: Role::Active,
            event: Event::PeerReleased,
            at: at(50),
            epoch: 7,
            known_at: at(0),
            heard_at: Some(at(0)),
            peer_said: Some(Kind::Release),
        };
        let term = TermTimes {
            began_at: at(50),
            lease_at: Some(at(300)),
            first_announced_at: Some(at(400)),
            all_announced_at: Some(at(61_250)),
            announced: 12,
        };
        let told = timeline(&transition, "peer released", Some(term), Some(at(10_000)));
        assert_eq!(
            (told.decided_us, told.lease_us, told.all_announced_us),
            (50, Some(300), Some(61_250))
        );
        assert_eq!(
            words(&told),
            "epoch 7, peer released: the peer's last word was release, 0.0 ms before; since that was known: lease after 0.3 ms, first \
             announcement after 0.4 ms, announcement of every address after 61.2 ms, first packet seen after 10.0 ms (looked at every 10 ms)"
        );
        let told = words(&timeline(&transition, "peer released", None, None));
        assert!(
            told.contains("no lease, no first announcement") && told.ends_with("no packet yet"),
            "{told}"
        );
    }
}
