//! Whose a message is, and what is learned from each of the peer's, whatever the role.

use super::{Alarm, Election, Kind, MonoTime, PairMessage};

/// A learned interval is at most this, or ten own intervals if that is more. Nanoseconds.
const LEARNED_MAX_NANOS: u64 = 3_000_000_000;

impl Election {
    /// Counts an advert and tells whether it is the peer's.
    pub(super) fn admit(&mut self, now: MonoTime, heard: &PairMessage) -> bool {
        if heard.source == self.settings.address {
            // Never a reason to change the role (B25).
            self.counters.own_source_received += 1;
            self.alarm(now, Alarm::LoopOrDuplicateAddress);
            return false;
        }
        if heard.source != self.settings.peer {
            self.counters.foreign_received += 1;
            self.alarm(now, Alarm::ForeignGroup { source: heard.source });
            return false;
        }
        self.counters.adverts_received += 1;
        if heard.proves_its_sender() {
            self.peer_heard_at = Some(heard.at);
        }
        if !heard.same_addresses {
            self.counters.address_list_differed += 1;
            self.alarm(now, Alarm::AddressListDiffers);
        }
        self.take_word(now, heard);
        if !heard.proves_its_sender() {
            // Perhaps a recording of another life: neither its interval nor its priority is the peer's.
            return true;
        }
        let is_late = heard.is_late();
        if !is_late || heard.kind == Kind::Release {
            self.peer_said = Some(heard.kind);
        }
        if heard.kind == Kind::Release {
            self.counters.releases_received += 1;
            return true;
        }
        if is_late {
            return true;
        }
        if heard.kind != Kind::Claim || heard.said.is_some() {
            self.peer_priority = Some(heard.priority);
        }
        let most = LEARNED_MAX_NANOS.max(self.settings.interval.as_nanos().saturating_mul(10));
        let advertised = heard.interval.as_nanos();
        if advertised > most {
            self.counters.interval_clamped += 1;
            self.alarm(
                now,
                Alarm::IntervalClamped {
                    advertised: heard.interval,
                },
            );
        }
        self.learned_nanos = advertised.min(most);
        true
    }
}
