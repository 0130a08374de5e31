//! The machine itself; its rules are told in the module above.

mod active;
mod admission;
mod handover;
mod pair;
mod sending;
mod standby;

use std::collections::VecDeque;

use super::record::{AlarmMemory, Contention, ElectionCounters, ElectionStatus};
use super::tape::{Entry, Tape};
use super::vocabulary::{
    Alarm, Event, Input, LegFault, Output, PairMessage, Refused, Role, Settings, Stance, Transition, Unable,
};
use crate::auth::{Freshness, Health, Kind, Signs};
use crate::units::{Centiseconds, MonoTime, Priority};

/// Least time a node listens after it started or its leg came back. Nanoseconds.
pub const START_LISTEN_NANOS: u64 = 1_000_000_000;
/// What the node that is not preferred listens longer. Nanoseconds.
pub const START_LISTEN_SECOND_NANOS: u64 = 500_000_000;
/// Longest wait after the peer's release. Nanoseconds.
///
/// RFC 9568 §6.4.2 waits the skew, so that of several Backups the best takes over; a pair has only one.
pub const RELEASE_WAIT_MAX_NANOS: u64 = 5_000_000;
/// Adverts that ask, spread over the half interval before the wait ends.
const CLAIMS: u8 = 3;
/// The Active answers a strange advert at once, but leaves this fraction of an interval between two adverts.
const ANSWER_SPACING: u64 = 8;
/// After a failed send the next attempt is this fraction of an interval away.
const RETRY_SPACING: u64 = 4;
/// Longest way of a message that counts as one. Nanoseconds.
const LATE_NANOS: u64 = 50_000_000;
/// Adverts at the shorter rate after the interval was changed.
const CHANGE_ADVERTS: u64 = 10;

pub use handover::GRANT_NANOS;
use handover::{Asking, Handing};

/// Where the machine stands; each state owns its deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Initialize,
    Standby { active_down_at: MonoTime, phase: Phase },
    Active(Tenure),
}

/// What a Standby does until `active_down_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits; asks half an interval before the wait ends.
    Waiting,
    /// The peer released: takes over when the short wait ends, without asking.
    Released,
    /// Asks whether anybody owns the addresses.
    Claiming { next_at: MonoTime, left: u8 },
    /// Hears a worse owner and tells it to let go.
    Preempting { next_at: MonoTime },
}

/// One term as Active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tenure {
    /// When the next advert is due.
    advertise_at: MonoTime,
    /// When the lease is renewed if no advert does it before.
    renew_at: MonoTime,
    /// When the last advert was decided on.
    advertised_at: MonoTime,
    /// End of the credit of the last advert that left in time; a lease never reaches beyond it.
    credit_until: MonoTime,
    /// Whether the lease cell was written in this term.
    leased: bool,
}

/// The interval was changed: until `until` the shorter of both governs rate and lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IntervalChange {
    shorter_nanos: u64,
    until: MonoTime,
}

/// The peer as its last authenticated message told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    kind: Kind,
    health: Health,
    signs: Signs,
    at: MonoTime,
    /// When it last proved that it hears this node.
    proved_at: Option<MonoTime>,
    /// Since when it has been able to do more than this node.
    better_since: Option<MonoTime>,
    /// It said so after it had heard what this node has lost.
    compared: bool,
}

/// The election of one virtual router on one node.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent conditions, not a state in disguise"
)]
pub struct Election {
    settings: Settings,
    state: State,
    since: MonoTime,
    leg: Result<(), LegFault>,
    /// A leg beside that of the adverts cannot be used.
    impaired: bool,
    /// Something that the operator has tracked is missing.
    lacks_tracked: bool,
    main_silent: bool,
    stopped: bool,
    send_failing: bool,
    /// After a hand-over preemption rests until the peer has let go of its own accord.
    preemption_rests: bool,
    /// When this node last released.
    released_at: Option<MonoTime>,
    /// Interval of the peer, clamped; the own one until it is heard. Nanoseconds.
    learned_nanos: u64,
    peer_priority: Option<Priority>,
    peer_heard_at: Option<MonoTime>,
    change: Option<IntervalChange>,
    lease_deadline: MonoTime,
    /// Of the own term, while this node is the Active.
    epoch: u64,
    /// Highest that any node of the pair is known to have owned under.
    epoch_known: u64,
    /// The newest term that has begun, as far as was heard in this life; 0 = none. A number that is kept for the next one, as
    /// [`Self::epoch_known`] may be after a start, is no term.
    term_known: u64,
    peer: Option<Peer>,
    /// When the first of the owner's messages came that proved nothing, since the last that did.
    unproved_since: Option<MonoTime>,
    /// Without [`Health::RECEIVES`]: that the machine knows itself.
    health: Health,
    /// When this node last became able to do less, or began to doubt that it hears the witness.
    fell_at: MonoTime,
    /// It doubts.
    doubts_witness: bool,
    /// When the last question was asked that the silent witness left unanswered.
    looked_at: MonoTime,
    /// Somebody on the leg is asked for signs of life.
    reception_asked: bool,
    leg_received_at: MonoTime,
    /// The peer told of a clone of this node.
    cloned_at: Option<MonoTime>,
    /// When the cause of the next take-over became known.
    known_at: MonoTime,
    peer_said: Option<Kind>,
    contention: Option<Contention>,
    /// A hand-over under way, on the Active.
    handing: Option<Handing>,
    /// Why the peer, which still asks, is handed nothing.
    refused_peer: Option<Unable>,
    /// Frames can be passed on to the peer, and be known to come from it.
    peer_legs_known: bool,
    peer_has_flows: bool,
    /// Flushes asked for.
    flushes: u64,
    /// End of the last grant of the peer's.
    armed_until: MonoTime,
    /// [`Output::Relay`] was ordered since this node last owned.
    relays: bool,
    /// The peer is asked to hand over.
    asking: Option<Asking>,
    /// Why it does not, by its own words.
    refused_by_peer: Option<Refused>,
    counters: ElectionCounters,
    alarms: AlarmMemory,
    outputs: VecDeque<Output>,
    /// Where everything is recorded, if it is.
    tape: Option<Tape>,
}

impl Election {
    /// A machine that waits for a usable leg. The driver has cleared the lease cell before. `epoch` is the highest that
    /// this node has stored; 0 if none.
    pub fn new(now: MonoTime, settings: Settings, epoch: u64) -> Self {
        Self {
            settings,
            state: State::Initialize,
            since: now,
            leg: Err(LegFault::Unknown),
            impaired: false,
            lacks_tracked: false,
            main_silent: false,
            stopped: false,
            send_failing: false,
            preemption_rests: false,
            released_at: None,
            learned_nanos: settings.interval.as_nanos(),
            peer_priority: None,
            peer_heard_at: None,
            change: None,
            lease_deadline: MonoTime::ZERO,
            epoch: 0,
            epoch_known: epoch,
            term_known: 0,
            peer: None,
            unproved_since: None,
            health: Health::default(),
            fell_at: MonoTime::ZERO,
            doubts_witness: false,
            looked_at: MonoTime::ZERO,
            reception_asked: false,
            leg_received_at: MonoTime::ZERO,
            cloned_at: None,
            known_at: now,
            peer_said: None,
            contention: None,
            handing: None,
            refused_peer: None,
            peer_legs_known: true,
            peer_has_flows: true,
            flushes: 0,
            armed_until: MonoTime::ZERO,
            relays: false,
            asking: None,
            refused_by_peer: None,
            counters: ElectionCounters::default(),
            alarms: AlarmMemory::default(),
            outputs: VecDeque::new(),
            tape: None,
        }
    }

    /// Records everything from now on. To be called before anything is handled.
    pub fn record(&mut self, now: MonoTime) {
        let mut tape = Tape::default();
        tape.add(Entry::Began {
            at: now,
            settings: self.settings,
            epoch: self.epoch_known,
        });
        self.tape = Some(tape);
    }

    /// What was recorded since the last call.
    pub fn take_recorded(&mut self) -> Vec<Entry> {
        self.tape.as_mut().map(Tape::take).unwrap_or_default()
    }

    /// Role now.
    pub const fn role(&self) -> Role {
        match self.state {
            State::Initialize => Role::Initialize,
            State::Standby { .. } => Role::Standby,
            State::Active(_) => Role::Active,
        }
    }

    /// Own priority now: that of the settings, at most [`Priority::IMPAIRED`] while another leg has failed. Without
    /// authentication it is all a peer hears of a node's health: then also while something tracked is missing.
    pub fn priority(&self) -> Priority {
        if self.impaired || self.lacks_tracked && !self.settings.authenticated {
            self.settings.priority.min(Priority::IMPAIRED)
        } else {
            self.settings.priority
        }
    }

    /// Settings in force.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counters since the start.
    pub const fn counters(&self) -> &ElectionCounters {
        &self.counters
    }

    /// What an operator sees.
    pub fn status(&self) -> ElectionStatus {
        ElectionStatus {
            role: self.role(),
            since: self.since,
            leg_fault: self.leg.err(),
            main_silent: self.main_silent,
            send_failing: self.send_failing,
            priority: self.priority(),
            peer_priority: self.peer_priority,
            peer_owns: self.peer_owns(),
            peer_heard_at: self.peer_heard_at,
            learned_interval_nanos: self.learned_nanos,
            lease_deadline: self.lease_deadline,
            epoch: self.epoch_said(self.role_kind()),
            contention: self.contention,
            health: self.health,
            peer_health: self.peer.map(|peer| peer.health),
            stance: self.settings.stance,
            peer_stance: self.peer.map(|peer| peer.signs.stance()),
            waits_since: self.waits_since(),
        }
    }

    /// Whether the peer said last that it owns the addresses. Without authentication everything but a question or a release
    /// looks like that.
    pub fn peer_owns(&self) -> bool {
        if self.settings.authenticated
            && let Some(peer) = self.peer
        {
            return peer.kind == Kind::Owner;
        }
        self.peer_priority
            .is_some_and(|priority| priority > Priority::CLAIM)
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::DeadlineReached`] is due at the latest; `None` in Initialize.
    pub fn deadline(&self) -> Option<MonoTime> {
        match self.state {
            State::Initialize => None,
            State::Standby {
                active_down_at,
                phase,
            } => Some(self.asking_until().unwrap_or(active_down_at).min(match phase {
                Phase::Waiting => self.claim_at(active_down_at),
                Phase::Released => active_down_at,
                Phase::Claiming { next_at, left } => {
                    if left > 0 {
                        next_at.min(active_down_at)
                    } else {
                        active_down_at
                    }
                }
                Phase::Preempting { next_at } => next_at.min(self.claim_at(active_down_at)),
            })),
            State::Active(tenure) => {
                let due = tenure.advertise_at.min(tenure.renew_at);
                Some(
                    self.handing
                        .map_or(due, |handing| due.min(handing.deadline(self.peer_has_flows))),
                )
            }
        }
    }

    /// Something happened. `now` never decreases from call to call, except between an input and the
    /// [`Input::AdvertLeft`] of its outputs, which is later.
    #[expect(clippy::too_many_lines, reason = "one exhaustive match of state and input")]
    #[expect(
        clippy::match_same_arms,
        reason = "grouped by input; pairs without effect stand where they belong"
    )]
    pub fn handle(&mut self, now: MonoTime, input: Input) {
        if let Some(tape) = &mut self.tape {
            tape.add(Entry::Given { at: now, input });
        }
        if let State::Active(tenure) = self.state
            && now > tenure.credit_until
        {
            self.lapse(now);
        }
        match (self.state, input) {
            (State::Initialize, Input::LegBecameUsable) => {
                self.leg = Ok(());
                self.listen_if_ready(now);
            }
            (State::Standby { .. } | State::Active(_), Input::LegBecameUsable) => self.leg = Ok(()),
            (State::Initialize, Input::LegFailed(fault)) => self.leg = Err(fault),
            (State::Standby { .. } | State::Active(_), Input::LegFailed(fault)) => {
                // Nothing is sent: the leg cannot carry it, and what it queued would come out later (B02).
                self.leg = Err(fault);
                self.leave_active();
                if self.settings.authenticated {
                    // By another path, if there is one.
                    self.tell_release(now);
                }
                self.enter(now, State::Initialize, Event::LegFailed(fault));
            }
            (State::Initialize | State::Standby { .. }, Input::OtherLegFailed) => self.impaired = true,
            (State::Initialize | State::Standby { .. }, Input::OtherLegsRecovered) => self.impaired = false,
            // A better Standby is to know at once.
            (State::Active(tenure), Input::OtherLegFailed) => {
                self.impaired = true;
                self.answer(now, tenure);
            }
            (State::Active(tenure), Input::OtherLegsRecovered) => {
                self.impaired = false;
                self.answer(now, tenure);
            }
            (State::Initialize, Input::Received(heard)) => {
                self.admit(now, &heard);
            }
            (
                State::Standby {
                    active_down_at,
                    phase,
                },
                Input::Received(heard),
            ) => {
                let before = self.peer.map(|peer| peer.kind);
                if self.admit(now, &heard) {
                    self.hear_as_standby(now, &heard, before, active_down_at, phase);
                    self.hear_signs_as_standby(now, &heard);
                }
            }
            (State::Active(tenure), Input::Received(heard)) => {
                if self.admit(now, &heard) && heard.proves_its_sender() {
                    self.hear_as_active(now, &heard, tenure);
                } else if heard.source != self.settings.address {
                    // What is answered to an unproved message lets a live sender prove itself with its next.
                    self.answer(now, tenure);
                }
            }
            (State::Active(tenure), Input::Repeated) => self.answer(now, tenure),
            (State::Initialize | State::Standby { .. }, Input::Repeated) => {}
            (_, Input::LegReceived(at)) => self.leg_received_at = self.leg_received_at.max(at),
            (_, Input::ReceptionAsked(asked)) => self.reception_asked = asked,
            (_, Input::HealthChanged(health)) => {
                if !health.has(self.health_in_doubt()) {
                    self.compare_anew(now);
                }
                self.health = health;
                let before = self.priority();
                self.lacks_tracked = !health.has(Health::TRACKED);
                if let State::Active(tenure) = self.state
                    && self.priority() != before
                {
                    // A better Standby is to know at once.
                    self.answer(now, tenure);
                }
            }
            (_, Input::WitnessDoubted(doubts)) => {
                self.doubts_witness = doubts;
                if doubts {
                    self.compare_anew(now);
                }
            }
            (State::Initialize | State::Standby { .. }, Input::WitnessLeftUnanswered(at)) => {
                self.looked_at = at;
            }
            (State::Active(_), Input::WitnessLeftUnanswered(at)) => {
                self.looked_at = at;
                self.yield_to_healthier(now);
            }
            (
                State::Standby {
                    active_down_at,
                    phase: Phase::Claiming { .. },
                },
                Input::OwnerAnswered(at),
            ) => self.hear_owner_answer(now, at, active_down_at),
            (
                State::Initialize
                | State::Standby {
                    phase: Phase::Waiting | Phase::Released | Phase::Preempting { .. },
                    ..
                }
                | State::Active(_),
                Input::OwnerAnswered(_),
            ) => {}
            (
                State::Active(tenure),
                Input::AdvertLeft {
                    kind: Kind::Owner,
                    decided_at,
                },
            ) => {
                self.count_sent(Kind::Owner);
                self.credit(now, decided_at, tenure);
            }
            // Only an owner's advert credits anything, and only while the term it belongs to lasts.
            (
                State::Active(_),
                Input::AdvertLeft {
                    kind: kind @ (Kind::Claim | Kind::Preempt | Kind::Release | Kind::Standby | Kind::Idle),
                    ..
                },
            )
            | (State::Initialize | State::Standby { .. }, Input::AdvertLeft { kind, .. }) => {
                self.count_sent(kind);
            }
            (State::Initialize, Input::AdvertFailed) => self.count_send_error(now),
            (State::Standby { .. }, Input::AdvertFailed) => {
                // Who cannot ask may not take.
                self.count_send_error(now);
                self.wait_anew(now);
            }
            (State::Active(tenure), Input::AdvertFailed) => {
                self.count_send_error(now);
                let retry_at = now.plus(self.interval_nanos(now) / RETRY_SPACING);
                self.state = State::Active(Tenure {
                    advertise_at: retry_at,
                    ..tenure
                });
            }
            (State::Initialize, Input::DeadlineReached) => {}
            (
                State::Standby {
                    active_down_at,
                    phase,
                },
                Input::DeadlineReached,
            ) => {
                self.judge_asking(now);
                self.judge_wait(now, active_down_at, phase);
            }
            (State::Active(tenure), Input::DeadlineReached) => {
                if !self.judge_hand_over(now) {
                    self.judge_tenure(now, tenure);
                    self.leave_if_silent(now);
                }
            }
            (State::Initialize | State::Standby { .. }, Input::HandOverOrdered { .. }) => {
                self.refused_peer = None;
                self.refuse_hand_over(Unable::NotActive);
            }
            (State::Active(_), Input::HandOverOrdered { force }) => {
                self.refused_peer = None;
                if force {
                    self.hand_over(now, Event::HandOver, true);
                } else {
                    self.hand_over_in_order(now, false);
                }
            }
            (_, Input::PeerLegsKnown(known)) => self.peer_legs_known = known,
            (_, Input::PeerHasFlows(has)) => self.peer_has_flows = has,
            (_, Input::Flushed(number)) => self.hear_flushed(now, number),
            (_, Input::TakeOverOrdered) => self.ask_for_hand_over(now),
            (State::Initialize, Input::StopOrdered) => self.stopped = true,
            (State::Standby { .. }, Input::StopOrdered) => {
                self.stopped = true;
                self.enter(now, State::Initialize, Event::Stop);
            }
            (State::Active(_), Input::StopOrdered) => {
                if std::mem::replace(&mut self.stopped, true) {
                    // At once now.
                    self.let_go(now, Event::Stop);
                } else {
                    self.hand_over(now, Event::Stop, true);
                }
            }
            (State::Initialize, Input::MainFellSilent) => self.main_silent = true,
            (State::Standby { .. }, Input::MainFellSilent) => {
                self.main_silent = true;
                self.enter(now, State::Initialize, Event::MainSilent);
            }
            (State::Active(_), Input::MainFellSilent) => {
                self.main_silent = true;
                self.leave_if_silent(now);
            }
            (State::Initialize, Input::MainSpokeAgain) => {
                self.main_silent = false;
                self.listen_if_ready(now);
            }
            (State::Standby { .. }, Input::MainSpokeAgain) => self.main_silent = false,
            (State::Active(_), Input::MainSpokeAgain) => {
                self.main_silent = false;
                self.stay_with_main();
            }
            (State::Initialize | State::Standby { .. }, Input::Reconfigured(settings)) => {
                if self.peer_heard_at.is_none() {
                    self.learned_nanos = settings.interval.as_nanos();
                }
                let stance_before = self.settings.stance;
                self.settings = settings;
                if settings.stance != Stance::Normal && stance_before != settings.stance {
                    self.ask_no_more();
                }
                if settings.stance == Stance::Maintenance
                    && let State::Standby { .. } = self.state
                {
                    self.withdraw(now);
                    self.wait_anew(now);
                }
            }
            (State::Active(_), Input::Reconfigured(settings)) if settings.stance == Stance::Maintenance => {
                self.settings = settings;
                self.let_go(now, Event::HandOver);
            }
            (State::Active(tenure), Input::Reconfigured(settings)) => {
                self.change_interval(now, settings.interval);
                self.settings = settings;
                self.state = State::Active(Tenure {
                    advertise_at: now,
                    ..tenure
                });
            }
        }
    }

    fn enter(&mut self, now: MonoTime, state: State, event: Event) {
        let prev = self.role();
        self.state = state;
        if state == State::Initialize {
            if self.asking.take().is_some() && !self.stopped {
                self.refuse_hand_over(Unable::NotStandby);
            }
            self.withdraw(now);
        }
        self.since = now;
        let transition = Transition {
            prev,
            next: self.role(),
            event,
            at: now,
            epoch: self.epoch_said(self.role_kind()),
            known_at: if let State::Active(_) = self.state {
                self.known_at
            } else {
                now
            },
            heard_at: self.peer_heard_at,
            peer_said: self.peer_said,
        };
        if let Some(tape) = &mut self.tape {
            tape.add(Entry::Became(transition));
        }
        self.outputs.push_back(Output::ReportTransition(transition));
    }

    fn alarm(&mut self, now: MonoTime, alarm: Alarm) {
        if self.alarms.admit(now, alarm) {
            self.outputs.push_back(Output::RaiseAlarm(alarm));
        }
    }
}
