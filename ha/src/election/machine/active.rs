//! The Active's half: adverts, lease, stepping down.

use super::{
    ANSWER_SPACING, Alarm, CHANGE_ADVERTS, Centiseconds, Election, Event, IntervalChange, Kind, LATE_NANOS,
    MonoTime, Output, PairMessage, Priority, State, Tenure,
};
use crate::election::record::{CONTENTION_PAUSE_NANOS, Contention};
use crate::lease;

impl Election {
    pub(super) fn hear_as_active(&mut self, now: MonoTime, heard: &PairMessage, tenure: Tenure) {
        self.hear_signs_as_active(now, heard);
        if let Some(event) = self.reason_to_yield(now, heard) {
            if self.prefers_order(now, heard, event, tenure) {
                return;
            }
            if heard.kind == Kind::Owner && heard.said.is_some() {
                self.note_contention(heard, true);
                self.alarm(now, Alarm::Contended);
            }
            self.release(now);
            self.enter(now, self.place(heard.at), event);
            return;
        }
        match heard.kind {
            // It had taken over and let go: it may have announced, and never heard us (B12).
            Kind::Release => self.outputs.push_back(Output::AnnounceAgain),
            // The other owner's last words before it let go, by a slower path.
            Kind::Owner if self.is_late_owner(heard) => self.counters.late_owner += 1,
            Kind::Owner => {
                self.note_contention(heard, false);
                self.alarm(now, Alarm::Contended);
                self.outputs.push_back(Output::AnnounceAgain);
            }
            Kind::Claim | Kind::Preempt => {}
            Kind::Standby | Kind::Idle => return,
        }
        self.answer(now, tenure);
    }

    /// Whether an owner under an earlier epoch said so before it can have heard of this term: within an interval of its
    /// beginning, and after nothing that was sent in it. One that is still there is heard again.
    fn is_late_owner(&self, heard: &PairMessage) -> bool {
        let Some(said) = heard.said.filter(|said| said.epoch < self.epoch) else {
            return false;
        };
        let knew_until = heard.at.minus(said.unheard_nanos);
        knew_until < self.since && heard.at.since(self.since) <= self.learned_nanos.max(LATE_NANOS)
    }

    /// Two owners: keeps what is known of the other.
    fn note_contention(&mut self, heard: &PairMessage, gave_way: bool) {
        self.counters.contended += 1;
        let before = self
            .contention
            .filter(|known| heard.at.since(known.last_at) < CONTENTION_PAUSE_NANOS && !known.gave_way);
        self.contention = Some(Contention {
            first_at: before.map_or(heard.at, |known| known.first_at),
            last_at: heard.at,
            messages: before.map_or(1, |known| known.messages + 1),
            priority: heard.priority,
            epoch: heard.said.map(|said| said.epoch),
            own_epoch: self.epoch,
            own_since: self.since,
            gave_way,
        });
    }

    /// Brings the next advert forward: a better owner shows itself at once.
    pub(super) fn answer(&mut self, now: MonoTime, tenure: Tenure) {
        let soon = now.max(
            tenure
                .advertised_at
                .plus(self.interval_nanos(now) / ANSWER_SPACING),
        );
        let advertise_at = tenure.advertise_at.min(soon);
        self.state = State::Active(Tenure {
            advertise_at,
            ..tenure
        });
    }

    pub(super) fn become_active(&mut self, now: MonoTime, event: Event) {
        self.change = None;
        self.unproved_since = None;
        self.epoch_known = self.epoch_known.saturating_add(1);
        self.epoch = self.epoch_known;
        self.term_known = self.epoch;
        self.counters.became_active += 1;
        self.asking = None;
        self.handing = None;
        let tenure = Tenure {
            advertise_at: now,
            renew_at: now.plus(lease::RENEW_NANOS),
            advertised_at: now,
            credit_until: now.plus(lease::length(self.settings.interval.as_nanos())),
            leased: false,
        };
        self.enter(now, State::Active(tenure), event);
        self.advertise(now, tenure);
    }

    pub(super) fn judge_tenure(&mut self, now: MonoTime, tenure: Tenure) {
        if self.is_deaf_as_active(now) {
            self.counters.deaf += 1;
            self.alarm(now, Alarm::Deaf);
            self.release(now);
            self.enter(now, self.place(now), Event::Deaf);
        } else if now >= tenure.advertise_at {
            self.advertise(now, tenure);
        } else if now >= tenure.renew_at {
            self.renew(now, tenure);
        }
    }

    pub(super) fn advertise(&mut self, now: MonoTime, tenure: Tenure) {
        self.send(now, Kind::Owner, self.priority());
        let advertise_at = now.plus(self.interval_nanos(now));
        self.state = State::Active(Tenure {
            advertise_at,
            advertised_at: now,
            ..tenure
        });
    }

    /// An advert decided on at `decided_at` left before `now`, and the previous credit still lasts at `now` (checked
    /// on entry of [`Self::handle`]): the peer had no chance to claim in between.
    pub(super) fn credit(&mut self, now: MonoTime, decided_at: MonoTime, tenure: Tenure) {
        let length = lease::length(self.interval_nanos(now));
        // A shorter new interval never shortens what an earlier advert permits.
        let credit_until = tenure.credit_until.max(decided_at.plus(length));
        self.renew(
            now,
            Tenure {
                credit_until,
                leased: true,
                ..tenure
            },
        );
        if !tenure.leased {
            self.end_grants();
            self.outputs.push_back(Output::StartAnnouncing);
        }
    }

    pub(super) fn renew(&mut self, now: MonoTime, tenure: Tenure) {
        // Before the first advert has left there is nothing to renew.
        if tenure.leased {
            self.lease_deadline = lease::deadline(tenure.credit_until, now);
            self.outputs.push_back(Output::RenewLease {
                deadline: self.lease_deadline,
            });
        }
        self.state = State::Active(Tenure {
            renew_at: now.plus(lease::RENEW_NANOS),
            ..tenure
        });
    }

    /// The credit ended as Active: nobody knows who owns the addresses now.
    pub(super) fn lapse(&mut self, now: MonoTime) {
        let event = if self.send_failing {
            Event::SendErrors
        } else {
            self.counters.lease_lapsed += 1;
            self.alarm(now, Alarm::LeaseLapsed);
            Event::LeaseLapsed
        };
        self.leave_active();
        self.enter(now, self.place(now), event);
    }

    /// Clears the lease, then tells the peer.
    pub(super) fn release(&mut self, now: MonoTime) {
        self.leave_active();
        self.tell_release(now);
    }

    pub(super) fn tell_release(&mut self, now: MonoTime) {
        self.released_at = Some(now);
        self.send(now, Kind::Release, Priority::RELEASE);
    }

    /// Gives up what only the Active holds; does nothing in other roles.
    pub(super) fn leave_active(&mut self) {
        if let State::Active(_) = self.state {
            self.lease_deadline = MonoTime::ZERO;
            self.wait_no_more();
            self.handing = None;
            self.change = None;
            self.outputs.push_back(Output::ClearLease);
            self.outputs.push_back(Output::StopAnnouncing);
        }
    }

    /// Between two intervals the shorter governs; changes add up.
    pub(super) fn change_interval(&mut self, now: MonoTime, to: Centiseconds) {
        if to == self.settings.interval {
            return;
        }
        let shorter_nanos = self.interval_nanos(now).min(to.as_nanos());
        let until = now.plus(shorter_nanos.saturating_mul(CHANGE_ADVERTS));
        self.change = Some(IntervalChange { shorter_nanos, until });
    }

    /// Interval that governs rate and lease at `now`. Nanoseconds.
    pub(super) fn interval_nanos(&self, now: MonoTime) -> u64 {
        match self.change {
            Some(change) if now < change.until => change.shorter_nanos,
            Some(_) | None => self.settings.interval.as_nanos(),
        }
    }
}
