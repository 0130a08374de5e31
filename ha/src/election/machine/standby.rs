//! The Standby's half: waiting, asking, preempting.

use super::{
    Alarm, CLAIMS, Election, Event, Freshness, Kind, LATE_NANOS, MonoTime, PairMessage, Phase, Priority,
    RELEASE_WAIT_MAX_NANOS, START_LISTEN_NANOS, START_LISTEN_SECOND_NANOS, State,
};

impl Election {
    pub(super) fn hear_as_standby(
        &mut self,
        now: MonoTime,
        heard: &PairMessage,
        peer_before: Option<Kind>,
        active_down_at: MonoTime,
        phase: Phase,
    ) {
        if !heard.proves_its_sender() {
            if heard.kind == Kind::Owner {
                self.alarm(now, Alarm::UnprovedOwner);
                if let Some(until) = self.held_by_unproved(now) {
                    let active_down_at = active_down_at.max(heard.at.plus(self.wait_nanos()).min(until));
                    self.state = State::Standby {
                        active_down_at,
                        phase: Phase::Waiting,
                    };
                }
            }
            return;
        }
        match heard.kind {
            Kind::Release => {
                self.preemption_rests = false;
                self.state = self.wait_after_release(now, heard, active_down_at);
                return;
            }
            // It owned, and owns no more: its release was lost. What it said before its term may come later by a slower path.
            Kind::Standby | Kind::Idle
                if peer_before == Some(Kind::Owner) && !self.is_of_earlier_term(heard) =>
            {
                self.state = self.wait_after_release(now, heard, active_down_at);
                return;
            }
            Kind::Standby | Kind::Idle => return,
            Kind::Preempt if heard.said.is_some() => return,
            // It has said since that it owns no more.
            Kind::Owner if heard.is_late() && self.peer.is_some_and(|peer| peer.kind != Kind::Owner) => {
                return;
            }
            Kind::Owner => {
                self.unproved_since = None;
                // The peer took over after this node had released: its next release crosses none.
                let took_over = match heard.said {
                    Some(said) => said.epoch > self.epoch,
                    // It was on its way for no longer than that.
                    None => self
                        .released_at
                        .is_some_and(|at| heard.at.since(at) >= LATE_NANOS),
                };
                if took_over {
                    self.released_at = None;
                }
            }
            Kind::Claim | Kind::Preempt => {}
        }
        let mut wait = self.wait_nanos();
        let phase = if self.wants_to_preempt(heard) {
            match phase {
                Phase::Preempting { .. } => phase,
                Phase::Waiting | Phase::Released | Phase::Claiming { .. } => {
                    Phase::Preempting { next_at: now }
                }
            }
        } else {
            if let Phase::Claiming { .. } = phase
                && (heard.kind != Kind::Claim || self.claims_better(heard))
            {
                self.counters.claims_lost += 1;
                wait = wait.saturating_add(self.learned_nanos);
            }
            Phase::Waiting
        };
        self.state = State::Standby {
            active_down_at: heard.at.plus(wait),
            phase,
        };
    }

    /// While this node asks for the addresses, the peer answers for one of them. The lease that its last advert gave it has
    /// ended: it has one that adverts gave it which were not heard here. A plain VRRP router may do so for an address it has
    /// given up: its kernel answers for what is on any interface, and on one that is down.
    pub(super) fn hear_owner_answer(&mut self, now: MonoTime, at: MonoTime, active_down_at: MonoTime) {
        if at < self.claim_at(active_down_at) {
            return;
        }
        self.counters.owner_answered += 1;
        if !self.settings.authenticated {
            return;
        }
        self.alarm(now, Alarm::AdvertsLost);
        // Everybody on the leg can answer in the peer's name.
        if let Some(until) = self.held_by_unproved(now) {
            self.counters.claims_lost += 1;
            self.state = State::Standby {
                active_down_at: at.plus(self.wait_nanos()).min(until),
                phase: Phase::Waiting,
            };
        }
    }

    /// Whether it was said before the newest term that this node knows of began.
    fn is_of_earlier_term(&self, heard: &PairMessage) -> bool {
        heard.said.is_some_and(|said| said.epoch < self.term_known)
    }

    pub(super) fn wait_after_release(
        &mut self,
        now: MonoTime,
        heard: &PairMessage,
        active_down_at: MonoTime,
    ) -> State {
        let crossed = self
            .released_at
            .is_some_and(|at| now.since(at) < self.wait_nanos());
        let proved = heard.said.is_none_or(|said| said.freshness == Freshness::Proved);
        if crossed || !proved || self.is_of_earlier_term(heard) {
            // Two releases crossed, and each would take the other's word; or it may have been on its way for long, even while
            // the peer took over again. Ask first.
            let phase = Phase::Claiming {
                next_at: now,
                left: CLAIMS,
            };
            return State::Standby {
                active_down_at: now.plus(self.learned_nanos / 2),
                phase,
            };
        }
        self.known_at = heard.at;
        // A release never makes a wait longer. One that is proved was sent by the peer a moment ago: nothing is waited for.
        let wait = if heard.said.is_some() {
            0
        } else {
            self.skew_nanos().min(RELEASE_WAIT_MAX_NANOS)
        };
        State::Standby {
            active_down_at: active_down_at.min(heard.at.plus(wait)),
            phase: Phase::Released,
        }
    }

    /// An owner that has lost a leg is displaced by a node that has all of its own, whatever `preempt` says.
    pub(super) fn wants_to_preempt(&self, heard: &PairMessage) -> bool {
        let own = self.priority();
        let is_impaired = heard.priority <= Priority::IMPAIRED && own > Priority::IMPAIRED;
        heard.kind != Kind::Claim
            && !self.is_held()
            && heard.priority < own
            && (is_impaired || self.settings.preempt && !self.preemption_rests)
    }

    pub(super) fn judge_wait(&mut self, now: MonoTime, active_down_at: MonoTime, phase: Phase) {
        let half = self.learned_nanos / 2;
        match phase {
            Phase::Waiting => {
                let claim_at = self.claim_at(active_down_at);
                if now > claim_at.plus(half) {
                    self.oversleep(now);
                } else if now >= claim_at && !self.may_claim(now, active_down_at) {
                    self.hold_back(now);
                } else if now >= claim_at {
                    // The whole half interval is kept for answers, also when the deadline was met late.
                    self.claim(now, now.plus(half), CLAIMS);
                }
            }
            Phase::Released => {
                if now > active_down_at.plus(half) {
                    self.oversleep(now);
                } else if now >= active_down_at
                    && !(self.receives(now, self.wait_nanos()) && self.may_own(now))
                {
                    self.hold_back(now);
                } else if now >= active_down_at {
                    self.become_active(now, Event::PeerReleased);
                }
            }
            Phase::Claiming { next_at, left } => {
                if now > active_down_at.plus(half) {
                    self.oversleep(now);
                } else if now >= active_down_at {
                    self.become_active(now, Event::WaitEnded);
                } else if left > 0 && now >= next_at {
                    self.claim(now, active_down_at, left);
                }
            }
            Phase::Preempting { next_at } => {
                let claim_at = self.claim_at(active_down_at);
                if now > claim_at.plus(half) {
                    self.oversleep(now);
                } else if now >= claim_at && !self.may_claim(now, active_down_at) {
                    self.hold_back(now);
                } else if now >= claim_at {
                    self.claim(now, now.plus(half), CLAIMS);
                } else if now >= next_at {
                    self.send(now, Kind::Preempt, self.priority());
                    let next_at = now.plus(self.settings.interval.as_nanos());
                    self.state = State::Standby {
                        active_down_at,
                        phase: Phase::Preempting { next_at },
                    };
                }
            }
        }
    }

    /// Sends one of the adverts that ask.
    pub(super) fn claim(&mut self, now: MonoTime, active_down_at: MonoTime, left: u8) {
        self.send(now, Kind::Claim, Priority::CLAIM);
        if left == CLAIMS {
            // The silence is noticed.
            self.known_at = now;
        }
        let next_at = now.plus(self.learned_nanos / 2 / u64::from(CLAIMS));
        let phase = Phase::Claiming {
            next_at,
            left: left.saturating_sub(1),
        };
        self.state = State::Standby {
            active_down_at,
            phase,
        };
    }

    pub(super) fn listen_if_ready(&mut self, now: MonoTime) {
        if self.leg.is_err() || self.main_silent || self.stopped {
            return;
        }
        self.learned_nanos = self.settings.interval.as_nanos();
        let more = if self.settings.preferred {
            0
        } else {
            START_LISTEN_SECOND_NANOS
        };
        let listen = self.wait_nanos().max(START_LISTEN_NANOS) + more;
        let state = State::Standby {
            active_down_at: now.plus(listen),
            phase: Phase::Waiting,
        };
        self.enter(now, state, Event::BeganListening);
    }

    pub(super) fn fresh_wait(&self, now: MonoTime) -> State {
        State::Standby {
            active_down_at: now.plus(self.wait_nanos()),
            phase: Phase::Waiting,
        }
    }

    pub(super) fn wait_anew(&mut self, now: MonoTime) {
        self.state = self.fresh_wait(now);
    }

    /// The wait is over, but this node would serve nobody, own beside a clone of it, or against its operator: looks again in half an interval.
    pub(super) fn hold_back(&mut self, now: MonoTime) {
        if self.may_own(now) {
            self.counters.deaf += 1;
            self.alarm(now, Alarm::Deaf);
        }
        self.state = State::Standby {
            active_down_at: now.plus(self.learned_nanos),
            phase: Phase::Waiting,
        };
    }

    pub(super) fn oversleep(&mut self, now: MonoTime) {
        self.counters.overslept += 1;
        self.alarm(now, Alarm::Overslept);
        self.wait_anew(now);
    }

    /// Half an interval before the wait ends: time to ask.
    pub(super) fn claim_at(&self, active_down_at: MonoTime) -> MonoTime {
        active_down_at.minus(self.learned_nanos / 2)
    }

    /// `((256 − priority) × interval) / 256` in nanoseconds, not rounded to centiseconds (RFC 9568 §6.1).
    pub(super) fn skew_nanos(&self) -> u64 {
        (256 - u64::from(self.priority().get())) * self.learned_nanos / 256
    }

    /// Silence after which the Standby may take over: three intervals and the skew (RFC 9568 §6.1). Nanoseconds, at
    /// most 163.8 s.
    pub(super) fn wait_nanos(&self) -> u64 {
        3 * self.learned_nanos + self.skew_nanos()
    }
}
