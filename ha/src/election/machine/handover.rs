//! A hand-over that loses nothing: the owner *arms* the peer, yields to it what has no flow, and then lets go.
//!
//! ```text
//!   owner (A)                                   peer (B), a Standby
//!   Arming    says `ARMS` every 5 ms ─────────► armed for 200 ms from receipt: acts on what A passes on
//!             ◄──────────────────────── `ARMED`
//!   Yielding  makes no flows, passes on what
//!             has none, still answers; 30 ms,
//!             then has its flows flushed      ── stream ──► has them all
//!   release   lease cleared, passes all on ───► owns under the next epoch, announces, is armed no more
//! ```
//!
//! Everything said is a sign in messages that go anyway, so that nothing hangs on one of them: the owner's says `ARMS` as
//! long as it wants, each renews the grant, and the peer's says `ARMED` as long as that lasts. B never owns by being armed: it takes
//! a lease after a release that is proved, or after the wait. A counts the grant from when it *sent* what B has heard, and as
//! shorter than B does, so what it passes on finds B armed; whatever dies or stalls, both ends come by themselves.
//!
//! What an operator orders waits before all this, for some seconds, until the peer has the flows, and again if they cannot be flushed.

use super::{
    Election, Event, Freshness, Health, Kind, MonoTime, Output, PairMessage, Priority, State, Tenure,
};
use crate::auth::Signs;
use crate::election::vocabulary::{Refused, Said, Stance, Unable};

/// How long one message arms. Nanoseconds.
pub const GRANT_NANOS: u64 = 200_000_000;
/// What the owner counts on of it: both clocks may be slewed by 9 %. Nanoseconds.
const TRUSTED_NANOS: u64 = 160_000_000;
/// With less than this left of the grant the owner makes flows itself again. Nanoseconds.
const LEAST_NANOS: u64 = 40_000_000;
/// Time between two messages that arm. Nanoseconds.
const REPEAT_NANOS: u64 = 5_000_000;
/// The peer is armed anew for so long. Nanoseconds.
const PATIENCE_NANOS: u64 = 200_000_000;
/// What has been sent to a server before the owner yielded is answered within this. Nanoseconds.
const DRAIN_NANOS: u64 = 30_000_000;
/// The peer has what it was told of flows within this. Nanoseconds.
const FLUSH_NANOS: u64 = 100_000_000;
/// Strays are passed on so long without the main process's word. Nanoseconds.
const RELAY_NANOS: u64 = 5_000_000_000;
/// What an operator orders waits so long for the peer to have the flows. Nanoseconds.
pub(crate) const AWAIT_NANOS: u64 = 4_000_000_000;
/// When they could not be flushed it is tried again after this: each attempt has the peer make flows for a while. Nanoseconds.
const RETRY_NANOS: u64 = 1_000_000_000;
/// The owner is asked to hand over for so long, and so long after it said last that it waits for the flows. Nanoseconds.
const ASK_NANOS: u64 = 1_000_000_000;
/// The owner is asked for no longer than this: it waits, arms and flushes within it. Nanoseconds.
const ASK_MAX_NANOS: u64 = AWAIT_NANOS + ASK_NANOS;
/// What a node must be able to do to be handed anything.
const FIT: Health = Health(Health::DATAPLANE.0 | Health::RECEIVES.0 | Health::LEGS.0);

/// A hand-over under way, on the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handing {
    why: Event,
    /// Lets go even if the peer does not answer.
    must: bool,
    /// Nobody but the peer's operator wants it.
    by_peer: bool,
    /// When it was wanted first.
    wanted_at: MonoTime,
    /// Ownership was held already when it was wanted.
    held: bool,
    /// Since when messages arm; the peer's answer is waited for from then on, however often it is armed.
    since: MonoTime,
    repeat_at: MonoTime,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The peer lacks flows: it is looked at again not before `from`.
    Awaiting {
        from: MonoTime,
    },
    Arming,
    Yielding {
        done_at: MonoTime,
        armed_until: MonoTime,
        flush: Flush,
    },
}

/// Whether the peer has every flow that was made until this node yielded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    NotAsked,
    Asked(u64),
    Done,
}

/// An owner that is asked to hand over, on its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asking {
    since: MonoTime,
    pub(super) until: MonoTime,
    /// The owner waits until this node has the flows.
    waits: bool,
}

impl Handing {
    fn awaits(self) -> bool {
        matches!(self.step, Step::Awaiting { .. })
    }

    /// Has the peer armed from `now` on.
    fn arming(self, now: MonoTime) -> Self {
        Self {
            since: now,
            repeat_at: now.plus(REPEAT_NANOS),
            step: Step::Arming,
            ..self
        }
    }

    /// The operator of this node wants it from now on.
    fn want_here(&mut self, now: MonoTime, held: bool) {
        (self.by_peer, self.wanted_at, self.held) = (false, now, held);
    }

    /// Nothing but an operator's order.
    fn is_ordered(self) -> bool {
        self.why == Event::HandOver && !self.must
    }

    /// Whether this node owns on if the peer withdraws: also when nobody but the peer wanted the hand-over.
    fn may_stay(self) -> bool {
        !self.must || self.why == Event::BetterAdvert
    }

    pub(super) fn deadline(self, peer_has_flows: bool) -> MonoTime {
        let give_up_at = self.wanted_at.plus(AWAIT_NANOS);
        self.repeat_at.min(match self.step {
            Step::Awaiting { from } if peer_has_flows => return from.min(give_up_at),
            Step::Awaiting { .. } => return give_up_at,
            Step::Arming => self.since.plus(PATIENCE_NANOS),
            Step::Yielding {
                done_at, armed_until, ..
            } => done_at.min(armed_until.minus(LEAST_NANOS)),
        })
    }
}

impl Election {
    /// Why the peer cannot be handed anything, if so. One that has just released waits again.
    pub(super) fn unable(&self, now: MonoTime) -> Option<Unable> {
        let Some(peer) = self.peer.filter(|_| self.peer_is_there(now)) else {
            return Some(Unable::PeerSilent);
        };
        if !self.peer_legs_known {
            Some(Unable::PeerLegsUnknown)
        } else if peer.signs.has(Signs::MAINTENANCE) {
            Some(Unable::PeerInMaintenance)
        } else if !matches!(peer.kind, Kind::Standby | Kind::Preempt | Kind::Release) {
            Some(Unable::PeerNotStandby)
        } else if !peer.health.has(FIT) {
            Some(Unable::PeerUnfit(peer.health))
        } else {
            None
        }
    }

    /// As the Active: hand over; if the node `must` let go, it does so in the end however the peer is.
    pub(super) fn hand_over(&mut self, now: MonoTime, why: Event, must: bool) {
        self.begin_hand_over(now, why, must, false);
    }

    /// As the Active: the operator, here or there (`by_peer`), wants the peer to own.
    pub(super) fn hand_over_in_order(&mut self, now: MonoTime, by_peer: bool) {
        // It has waited for this asking, or was told not to.
        let refused = self.refused_peer.filter(|_| by_peer);
        let lacks_flows = refused == Some(Unable::PeerLacksFlows) && !self.peer_has_flows;
        if !lacks_flows && (refused != Some(Unable::Held) || !self.is_held()) {
            self.begin_hand_over(now, Event::HandOver, false, by_peer);
        }
    }

    fn begin_hand_over(&mut self, now: MonoTime, why: Event, must: bool, by_peer: bool) {
        let awaits = self.handing.is_some_and(Handing::awaits);
        if awaits && !must && why == Event::HandOver || awaits && self.is_voluntary(now, why) {
            self.join_waiting(now, why, by_peer);
            return;
        }
        self.wait_no_more();
        let is_voluntary = self
            .handing
            .is_some_and(|handing| self.is_voluntary(now, handing.why));
        let held = self.is_held();
        if let Some(handing) = &mut self.handing {
            if why == Event::HandOver && !must && !by_peer {
                // What a mere priority wanted is an order from now on.
                if is_voluntary {
                    (handing.why, handing.must) = (why, must);
                }
                if is_voluntary || handing.by_peer {
                    handing.want_here(now, held);
                }
            }
            let adds_nothing = handing.must && why == Event::BetterAdvert;
            if (must || handing.why == Event::MainSilent) && !adds_nothing {
                handing.why = why;
                handing.must |= must;
            }
            return;
        }
        match self.unable(now) {
            _ if !self.settings.authenticated => self.let_go(now, why),
            Some(_) if must => self.let_go(now, why),
            Some(unable) => self.refuse_hand_over(unable),
            None => {
                let handing = Handing {
                    why,
                    must,
                    by_peer,
                    wanted_at: now,
                    held: self.is_held(),
                    since: now,
                    repeat_at: now,
                    step: Step::Awaiting { from: now },
                };
                if why == Event::HandOver && !must && !self.peer_has_flows {
                    self.handing = Some(handing);
                    self.outputs.push_back(Output::ShowWaiting(true));
                } else {
                    self.handing = Some(handing.arming(now));
                }
                self.outputs.push_back(Output::Speak);
            }
        }
    }

    /// One more wants what waits already.
    fn join_waiting(&mut self, now: MonoTime, why: Event, by_peer: bool) {
        let held = self.is_held();
        let Some(handing) = &mut self.handing else { return };
        if why == Event::HandOver && !by_peer {
            if handing.by_peer {
                handing.want_here(now, held);
            }
            self.outputs.push_back(Output::ShowWaiting(true));
        }
    }

    /// What waited for the peer to have the flows does so no more.
    pub(super) fn wait_no_more(&mut self) {
        if self.handing.is_some_and(Handing::awaits) {
            self.break_off();
        }
    }

    /// Since when a hand-over, ordered on either node, has waited until the Standby has the flows.
    pub(super) fn waits_since(&self) -> Option<MonoTime> {
        let handing = self.handing.filter(|handing| handing.awaits());
        let asking = self.asking.filter(|asking| asking.waits);
        handing
            .map(|handing| handing.wanted_at)
            .or(asking.map(|asking| asking.since))
    }

    /// As the Active with a silent main process: hands over to a peer that can serve. The programs go on forwarding as they
    /// did last, which is more than nobody does: with no such peer this node stays, and looks again. Without authentication nothing
    /// tells of the peer: it lets go.
    pub(super) fn leave_if_silent(&mut self, now: MonoTime) {
        let rests = self.handing.is_none_or(Handing::awaits);
        let silent = self.main_silent && matches!(self.state, State::Active(_)) && rests;
        if silent && (!self.settings.authenticated || self.unable(now).is_none()) {
            self.hand_over(now, Event::MainSilent, false);
        }
    }

    /// Releases, and goes where this node has a place now.
    pub(super) fn let_go(&mut self, now: MonoTime, why: Event) {
        self.relay(now.plus(RELAY_NANOS));
        self.release(now);
        self.preemption_rests |= why == Event::HandOver;
        self.enter(now, self.place(now), why);
    }

    /// Where a node that owns no more has a place; as Standby it waits from `from` on. It is handed nothing back while it is to end
    /// or its main process is silent.
    pub(super) fn place(&self, from: MonoTime) -> State {
        if self.stopped || self.main_silent {
            State::Initialize
        } else {
            self.fresh_wait(from)
        }
    }

    /// As the Active: owns as before, whatever became of the peer.
    fn break_off(&mut self) {
        match self.handing.take().map(|handing| handing.step) {
            Some(Step::Awaiting { .. }) => self.outputs.push_back(Output::ShowWaiting(false)),
            Some(Step::Yielding { .. }) => self.outputs.push_back(Output::Yield(false)),
            Some(Step::Arming) | None => {}
        }
    }

    /// As the Active: the main process, for whose silence alone a hand-over was begun, is heard again.
    pub(super) fn stay_with_main(&mut self) {
        if self
            .handing
            .is_some_and(|handing| handing.why == Event::MainSilent && !handing.must)
        {
            self.break_off();
        }
    }

    /// As the Active: what is due of a hand-over. Whether this node has let go.
    pub(super) fn judge_hand_over(&mut self, now: MonoTime) -> bool {
        let Some(mut handing) = self.handing else {
            return false;
        };
        if handing.is_ordered() && self.is_held() && !handing.held {
            self.break_off();
            self.refuse_hand_over(Unable::Held);
            return false;
        }
        match handing.step {
            Step::Awaiting { from } => {
                self.judge_waiting(now, handing, from);
                return false;
            }
            Step::Arming if now >= handing.since.plus(PATIENCE_NANOS) => {
                self.handing = None;
                // A better peer that has said nothing since may have died.
                let proved_at = self.peer.and_then(|peer| peer.proved_at);
                let is_there = proved_at.is_some_and(|at| at >= handing.since);
                if handing.must && (is_there || !handing.may_stay()) {
                    self.let_go(now, handing.why);
                    return true;
                }
                self.refuse_hand_over(Unable::NoAnswer);
                return false;
            }
            Step::Yielding { armed_until, .. } if now.plus(LEAST_NANOS) >= armed_until => {
                self.outputs.push_back(Output::Yield(false));
                handing.step = Step::Arming;
            }
            Step::Yielding {
                ref mut done_at,
                ref mut flush,
                ..
            } if now >= *done_at && *flush == Flush::NotAsked && !self.main_silent => {
                self.flushes += 1;
                *flush = Flush::Asked(self.flushes);
                *done_at = now.plus(FLUSH_NANOS);
                self.outputs.push_back(Output::Flush(self.flushes));
            }
            Step::Yielding {
                done_at,
                flush: Flush::Asked(_),
                ..
            } if now >= done_at && (!handing.must || self.is_voluntary(now, handing.why)) => {
                self.break_off();
                if handing.is_ordered() {
                    self.handing = Some(Handing {
                        step: Step::Awaiting {
                            from: now.plus(RETRY_NANOS),
                        },
                        ..handing
                    });
                    self.outputs.push_back(Output::ShowWaiting(true));
                } else if !handing.must {
                    self.refuse_hand_over(Unable::PeerLacksFlows);
                }
                return false;
            }
            Step::Yielding { done_at, .. } if now >= done_at => {
                if let Some(unable) = self.unable(now).filter(|_| handing.may_stay()) {
                    self.break_off();
                    self.refuse_hand_over(unable);
                    return false;
                }
                self.counters.handed_over += 1;
                self.let_go(now, handing.why);
                return true;
            }
            Step::Arming | Step::Yielding { .. } => {}
        }
        if now >= handing.repeat_at {
            handing.repeat_at = now.plus(REPEAT_NANOS);
            self.outputs.push_back(Output::Speak);
        }
        self.handing = Some(handing);
        false
    }

    /// As the Active: whether what was ordered waits on for the peer to have the flows.
    fn judge_waiting(&mut self, now: MonoTime, handing: Handing, from: MonoTime) {
        let is_late = now >= handing.wanted_at.plus(AWAIT_NANOS);
        if let Some(unable) = self.unable(now).or(is_late.then_some(Unable::PeerLacksFlows)) {
            self.break_off();
            self.refuse_hand_over(unable);
        } else if self.peer_has_flows && now >= from {
            self.handing = Some(handing.arming(now));
            self.outputs.push_back(Output::ShowWaiting(false));
            self.outputs.push_back(Output::Speak);
        }
    }

    /// Whether a peer of this health can be better by its priority alone: nobody is worse off for its waiting.
    pub(super) fn may_wait(&self, now: MonoTime, health: Health) -> bool {
        self.priority() > Priority::IMPAIRED && health == self.health_at(now)
    }

    /// Whether a hand-over is for such a peer.
    fn is_voluntary(&self, now: MonoTime, why: Event) -> bool {
        let mut peer = self.peer.iter();
        why == Event::BetterAdvert && peer.any(|peer| self.may_wait(now, peer.health))
    }

    /// As the Active: the peer has what it was told until flush `number`.
    pub(super) fn hear_flushed(&mut self, now: MonoTime, number: u64) {
        if let Some(Handing {
            step: Step::Yielding { done_at, flush, .. },
            ..
        }) = &mut self.handing
            && *flush == Flush::Asked(number)
        {
            (*flush, *done_at) = (Flush::Done, now);
        }
    }

    /// What a message says of hand-overs, if its sender says so now.
    fn said_now(heard: &PairMessage) -> Option<Said> {
        heard
            .said
            .filter(|said| said.freshness == Freshness::Proved && !said.is_late)
    }

    /// As the Active: what a message says of hand-overs.
    pub(super) fn hear_signs_as_active(&mut self, now: MonoTime, heard: &PairMessage) {
        let Some(said) = Self::said_now(heard) else {
            return;
        };
        if said.signs.has(Signs::ASKS) {
            self.hand_over_in_order(now, true);
        } else {
            self.refused_peer = None;
            if self
                .handing
                .is_some_and(|handing| handing.by_peer && handing.is_ordered())
            {
                self.break_off();
            }
        }
        let heard_at = now.minus(said.unheard_nanos);
        let unable = self.unable(now);
        let Some(handing) = &mut self.handing else { return };
        // Only a message that armed shows that the grant is of this hand-over.
        if heard_at < handing.since {
            return;
        }
        let until = heard_at.plus(TRUSTED_NANOS);
        if !said.signs.has(Signs::ARMED) {
            let withdraws = match handing.step {
                Step::Awaiting { .. } => false,
                Step::Arming => true,
                // What it said before it was armed may come later by a slower path.
                Step::Yielding { armed_until, .. } => until >= armed_until,
            };
            match unable {
                Some(unable) if withdraws && handing.may_stay() => {
                    self.break_off();
                    self.refuse_hand_over(unable);
                }
                // Nobody makes flows now: the peer is armed again, or the owner goes without that.
                Some(_) | None if withdraws && handing.step != Step::Arming => {
                    handing.step = Step::Arming;
                    self.outputs.push_back(Output::Yield(false));
                }
                Some(_) | None => {}
            }
            return;
        }
        match &mut handing.step {
            Step::Arming if until > now.plus(LEAST_NANOS) => {
                let done_at = now.plus(DRAIN_NANOS);
                handing.step = Step::Yielding {
                    done_at,
                    armed_until: until,
                    flush: Flush::NotAsked,
                };
                self.relay(now.plus(RELAY_NANOS));
                self.outputs.push_back(Output::Yield(true));
            }
            Step::Awaiting { .. } | Step::Arming => {}
            Step::Yielding { armed_until, .. } => *armed_until = until.max(*armed_until),
        }
    }

    /// As the Standby: the owner arms this node, if it can serve.
    pub(super) fn hear_signs_as_standby(&mut self, now: MonoTime, heard: &PairMessage) {
        let Some(said) = Self::said_now(heard) else {
            return;
        };
        // It had heard that it is asked.
        if let Some(asking) = &mut self.asking
            && now.minus(said.unheard_nanos) >= asking.since
        {
            let refused = said.signs.refused();
            self.refused_by_peer = refused.or(self.refused_by_peer);
            let waits = refused == Some(Refused::LacksFlows);
            if waits {
                let longest = asking.since.plus(ASK_MAX_NANOS);
                asking.until = asking.until.max(now.plus(ASK_NANOS)).min(longest);
            }
            if std::mem::replace(&mut asking.waits, waits) != waits {
                self.outputs.push_back(Output::ShowWaiting(waits));
            }
        }
        if heard.kind != Kind::Owner || !said.signs.has(Signs::ARMS) || said.epoch != self.term_known {
            return;
        }
        if self.may_own(now) && self.peer_legs_known && self.health_at(now).has(FIT) {
            self.counters.armed += u64::from(now >= self.armed_until);
            self.arm(now.plus(GRANT_NANOS));
            self.outputs.push_back(Output::Speak);
        } else {
            self.withdraw(now);
        }
    }

    /// Acts for the owner no more, and tells it at once: it is about to let go.
    pub(super) fn withdraw(&mut self, now: MonoTime) {
        if now < self.armed_until {
            self.arm(MonoTime::ZERO);
            self.outputs.push_back(Output::Speak);
        }
    }

    fn arm(&mut self, until: MonoTime) {
        self.armed_until = until;
        self.outputs.push_back(Output::Arm { until });
    }

    fn relay(&mut self, until: MonoTime) {
        self.relays = until > MonoTime::ZERO;
        self.outputs.push_back(Output::Relay { until });
    }

    /// The lease is held: what only a hand-over permits ends.
    pub(super) fn end_grants(&mut self) {
        if self.armed_until > MonoTime::ZERO {
            self.arm(MonoTime::ZERO);
        }
        if self.relays {
            self.relay(MonoTime::ZERO);
        }
    }

    /// The operator wants this node to own the addresses.
    pub(super) fn ask_for_hand_over(&mut self, now: MonoTime) {
        let unable = match (self.state, self.peer.filter(|_| self.peer_is_there(now))) {
            (State::Initialize | State::Active(_), _) => Some(Unable::NotStandby),
            (State::Standby { .. }, _) if !self.settings.authenticated => Some(Unable::NotAuthenticated),
            (State::Standby { .. }, _) if self.settings.stance == Stance::Maintenance => {
                Some(Unable::InMaintenance)
            }
            (State::Standby { .. }, None) => Some(Unable::PeerSilent),
            (State::Standby { .. }, Some(peer)) => {
                (peer.kind != Kind::Owner).then_some(Unable::PeerNotActive)
            }
        };
        if let Some(unable) = unable {
            self.refuse_hand_over(unable);
            return;
        }
        if self.asking.is_none() {
            self.asking = Some(Asking {
                since: now,
                until: now.plus(ASK_NANOS),
                waits: false,
            });
            self.refused_by_peer = None;
        }
        self.outputs.push_back(Output::Speak);
    }

    /// As the Standby: its operator wants ownership to stay where it is.
    pub(super) fn ask_no_more(&mut self) {
        if self.asking.take().is_some() {
            self.refuse_hand_over(Unable::Held);
        }
    }

    /// When the owner has not done what it is asked for: not while it has this node armed.
    pub(super) fn asking_until(&self) -> Option<MonoTime> {
        self.asking.map(|asking| asking.until.max(self.armed_until))
    }

    /// As the Standby: the owner did not do what it was asked for.
    pub(super) fn judge_asking(&mut self, now: MonoTime) {
        if self.asking_until().is_some_and(|until| now >= until) {
            self.asking = None;
            let refused = self.refused_by_peer.map(Unable::PeerRefuses);
            self.refuse_hand_over(refused.unwrap_or(Unable::NoAnswer));
        }
    }

    /// Tells this node's operator; of what the peer asks for, for a second in every word, once.
    pub(super) fn refuse_hand_over(&mut self, unable: Unable) {
        if self.peer.is_some_and(|peer| peer.signs.has(Signs::ASKS)) {
            if self.refused_peer == Some(unable) {
                return;
            }
            self.refused_peer = Some(unable);
        }
        self.outputs.push_back(Output::RefuseHandOver(unable));
    }

    /// What this node says of hand-overs and of what its operator wants.
    pub(crate) fn signs(&self, now: MonoTime) -> Signs {
        let stance = match self.settings.stance {
            Stance::Normal => Signs::default(),
            Stance::Hold => Signs::HOLDS,
            Stance::Maintenance => Signs::MAINTENANCE,
        };
        match self.state {
            State::Active(_) if self.handing.is_some_and(Handing::awaits) => {
                stance.with(Signs::refusing(Refused::LacksFlows))
            }
            State::Active(_) if self.handing.is_some() => stance.with(Signs::ARMS),
            State::Active(_) => match self.refused_peer {
                Some(unable) => stance.with(Signs::refusing(Refused::of(unable))),
                None => stance,
            },
            State::Standby { .. } => {
                let armed = if now < self.armed_until {
                    Signs::ARMED
                } else {
                    Signs::default()
                };
                let asks = if self.asking.is_some() {
                    Signs::ASKS
                } else {
                    Signs::default()
                };
                stance.with(armed).with(asks)
            }
            State::Initialize => stance,
        }
    }

    /// Whether this node may own at all: no clone of it is about, and its operator lets it.
    pub(super) fn may_own(&self, now: MonoTime) -> bool {
        self.is_alone(now) && self.settings.stance != Stance::Maintenance
    }

    /// Whether an operator wants ownership to stay where it is, on either node.
    pub(super) fn is_held(&self) -> bool {
        let peer = self.peer.is_some_and(|peer| peer.signs.has(Signs::HOLDS));
        peer || self.settings.stance != Stance::Normal
    }

    /// Whether a better peer, which asks this node to let go, is handed everything in order instead.
    pub(super) fn prefers_order(
        &mut self,
        now: MonoTime,
        heard: &PairMessage,
        event: Event,
        tenure: Tenure,
    ) -> bool {
        if heard.kind != Kind::Preempt || heard.said.is_none() || self.unable(now).is_some() {
            return false;
        }
        self.hand_over(now, event, true);
        self.answer(now, tenure);
        true
    }
}
