//! What only authenticated messages tell: epochs, freshness, health; and what a node knows of its own hearing.

use super::{
    Alarm, Election, Event, Freshness, Health, Kind, MonoTime, PairMessage, Peer, Priority, Role, Signs,
};

/// A message that proves its sender makes it present for so long: ten times the longest time between two HA datagrams.
/// Nanoseconds.
const PRESENT_NANOS: u64 = 500_000_000;
/// Least silence of the leg after which an Active without a peer to take over counts as deaf. Nanoseconds.
const DEAF_ALONE_NANOS: u64 = 1_000_000_000;
/// A node takes nothing over for so long after its peer told of a clone of it. Nanoseconds.
const CLONE_NANOS: u64 = 3_000_000_000;

impl Election {
    /// Notes what a message of the peer says of it.
    pub(super) fn take_word(&mut self, now: MonoTime, heard: &PairMessage) {
        let Some(said) = heard.said else { return };
        if said.freshness == Freshness::Unproved {
            self.counters.unproved_received += 1;
            return;
        }
        if heard.kind != Kind::Claim {
            self.epoch_known = self.epoch_known.max(said.epoch);
        }
        if matches!(heard.kind, Kind::Owner | Kind::Release) {
            self.term_known = self.term_known.max(said.epoch);
        }
        if said.hears_twins && said.freshness == Freshness::Proved {
            self.counters.cloned += 1;
            self.cloned_at = Some(now);
            self.alarm(now, Alarm::Cloned);
        }
        if let Some(peer) = self.peer.as_mut().filter(|_| said.is_late) {
            if said.freshness == Freshness::Proved {
                peer.proved_at = Some(now);
            }
            return;
        }
        let proved_before = self.peer.and_then(|peer| peer.proved_at);
        let better_before = self.peer.and_then(|peer| peer.better_since);
        let is_better = said.health > self.with_reception(now, self.health_in_doubt());
        self.peer = Some(Peer {
            kind: heard.kind,
            health: said.health,
            signs: said.signs,
            at: heard.at,
            proved_at: if said.freshness == Freshness::Proved {
                Some(now)
            } else {
                proved_before
            },
            better_since: is_better.then_some(better_before.unwrap_or(now)),
            compared: now.minus(said.unheard_nanos) >= self.fell_at,
        });
    }

    /// Why this node, the Active, lets go at this message.
    pub(super) fn reason_to_yield(&self, now: MonoTime, heard: &PairMessage) -> Option<Event> {
        let by_priority = (heard.priority, heard.source) > (self.priority(), self.settings.address);
        let Some(said) = heard.said else {
            let is_better = !matches!(heard.kind, Kind::Release | Kind::Claim) && by_priority;
            return is_better.then_some(Event::BetterAdvert);
        };
        // Who cannot receive serves nobody, whatever it claims.
        if !said.health.has(Health::RECEIVES) {
            return None;
        }
        // Not to one that takes no part: then nobody would own.
        let is_now = self.peer.map_or(heard.kind, |peer| peer.kind);
        if said.hears_twins && said.freshness == Freshness::Proved && is_now != Kind::Idle {
            return Some(Event::Cloned);
        }
        match heard.kind {
            Kind::Owner => {
                let is_better = said.epoch > self.epoch || said.epoch == self.epoch && by_priority;
                is_better.then_some(Event::BetterAdvert)
            }
            // Said again each interval, by one that still wants to.
            Kind::Preempt if said.is_late || self.is_held() => None,
            Kind::Preempt => {
                let own = (self.health_at(now), self.priority(), self.settings.address);
                let is_better = (said.health, heard.priority, heard.source) > own;
                let may_go = self.peer_has_flows || !self.may_wait(now, said.health);
                (is_better && may_go).then_some(Event::BetterAdvert)
            }
            // It will own the addresses whatever this node answers.
            Kind::Claim => (said.unheard_nanos >= 2 * self.settings.interval.as_nanos())
                .then_some(Event::PeerHearsNothing),
            Kind::Standby => (said.freshness == Freshness::Proved && self.peer_is_healthier(now))
                .then_some(Event::PeerIsHealthier),
            Kind::Release | Kind::Idle => None,
        }
    }

    /// Whether the peer, a Standby that hears this node, can do more. It has looked whether it has lost what this node has, and
    /// this node whether it has what the peer has: what both lose or get back moves nothing.
    fn peer_is_healthier(&self, now: MonoTime) -> bool {
        let Some(peer) = self.peer.filter(|peer| peer.kind == Kind::Standby) else {
            return false;
        };
        if self.is_held() || peer.signs.has(Signs::MAINTENANCE) {
            return false;
        }
        let is_better = peer.compared && peer.better_since.is_some() && peer.health > self.health_at(now);
        let asked_again = |since| self.looked_at >= since;
        is_better && self.better_by_witness_since(now).is_none_or(asked_again)
    }

    /// Since when the peer has been better than this node, the Active, by nothing but the witness, which this node asks once
    /// more before it gives way.
    pub(crate) fn better_by_witness_since(&self, now: MonoTime) -> Option<MonoTime> {
        let peer = self.peer.filter(|_| self.role() == Role::Active)?;
        let rest = |health: Health| health.without(Health::WITNESS);
        let by_witness = rest(peer.health) <= rest(self.health_at(now));
        peer.better_since.filter(|_| by_witness)
    }

    /// This node can do less than before, or may: what the peer said before it heard of that does not count.
    pub(super) const fn compare_anew(&mut self, now: MonoTime) {
        self.fell_at = now;
        if let Some(peer) = &mut self.peer {
            peer.compared = false;
            peer.better_since = None;
        }
    }

    /// What this node can do beyond doubt, without [`Health::RECEIVES`].
    pub(super) fn health_in_doubt(&self) -> Health {
        if self.doubts_witness {
            self.health.without(Health::WITNESS)
        } else {
            self.health
        }
    }

    /// As the Active: the witness was asked once more in vain.
    pub(super) fn yield_to_healthier(&mut self, now: MonoTime) {
        if self.peer_is_there(now) && self.peer_is_healthier(now) {
            self.release(now);
            self.enter(now, self.place(now), Event::PeerIsHealthier);
        }
    }

    /// A sign of an owner that proves nothing holds a Standby back, but not for ever. Until when at most, if it does.
    pub(super) fn held_by_unproved(&mut self, now: MonoTime) -> Option<MonoTime> {
        let since = *self.unproved_since.get_or_insert(now);
        let until = since.plus(3 * self.wait_nanos());
        (now < until).then_some(until)
    }

    /// Whether a claim of the peer beats the own one.
    pub(super) fn claims_better(&self, heard: &PairMessage) -> bool {
        match heard.said {
            None => (heard.priority, heard.source) > (Priority::CLAIM, self.settings.address),
            Some(said) => {
                let own = (
                    self.epoch_known.saturating_add(1),
                    self.priority(),
                    self.settings.address,
                );
                (said.epoch, heard.priority, heard.source) > own
            }
        }
    }

    /// Under which epoch a message of this kind is sent.
    pub(crate) fn epoch_said(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Owner | Kind::Release => self.epoch,
            Kind::Claim => self.epoch_known.saturating_add(1),
            Kind::Preempt | Kind::Standby | Kind::Idle => self.epoch_known,
        }
    }

    /// What the datagrams of the driver say this node is.
    pub fn role_kind(&self) -> Kind {
        match self.role() {
            Role::Initialize => Kind::Idle,
            Role::Standby => Kind::Standby,
            Role::Active => Kind::Owner,
        }
    }

    /// What this node can do.
    pub fn health_at(&self, now: MonoTime) -> Health {
        self.with_reception(now, self.health)
    }

    fn with_reception(&self, now: MonoTime, health: Health) -> Health {
        if self.receives(now, self.wait_nanos()) {
            health.with(Health::RECEIVES)
        } else {
            health
        }
    }

    /// What the peer can do, if it proved lately that it hears this node.
    pub(crate) fn health_of_peer(&self, now: MonoTime) -> Option<(Kind, Health)> {
        let peer = self.peer.filter(|_| self.peer_is_there(now))?;
        Some((peer.kind, peer.health))
    }

    /// Whether the peer proved lately that it hears this node.
    pub(super) fn peer_is_there(&self, now: MonoTime) -> bool {
        let proved_at = self.peer.and_then(|peer| peer.proved_at);
        proved_at.is_some_and(|at| now.since(at) <= PRESENT_NANOS)
    }

    /// Whether the leg received anything in the last `nanos`; who asks nobody cannot tell, and is believed.
    pub(super) fn receives(&self, now: MonoTime, nanos: u64) -> bool {
        !self.reception_asked || now.since(self.leg_received_at) <= nanos
    }

    /// An Active whose leg receives nothing serves nobody. With a peer that can take over it is found sooner.
    pub(super) fn is_deaf_as_active(&self, now: MonoTime) -> bool {
        let patience = if self.peer_is_there(now) {
            self.wait_nanos()
        } else {
            self.wait_nanos().max(DEAF_ALONE_NANOS)
        };
        !self.receives(now, patience)
    }

    /// Whether this node may ask for the addresses: its leg received something since an advert was missing, no clone
    /// of it is about, and its operator lets it.
    pub(super) fn may_claim(&self, now: MonoTime, active_down_at: MonoTime) -> bool {
        let missing_since = active_down_at
            .minus(self.wait_nanos())
            .plus(self.learned_nanos + self.learned_nanos / 4);
        let hears = !self.reception_asked || self.leg_received_at >= missing_since;
        hears && self.may_own(now)
    }

    /// Whether no clone of this node is about.
    pub(super) fn is_alone(&self, now: MonoTime) -> bool {
        self.cloned_at.is_none_or(|at| now.since(at) >= CLONE_NANOS)
    }
}
