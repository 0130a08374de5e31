//! The peer's Ethernet address for unicast adverts. Pure.
//!
//! Learned from the peer's adverts, ARP and ND, asked for while unknown and again from time to time. One for both
//! families: a leg has one Ethernet address. Until it is
//! known, unicast adverts go to the broadcast address: an Active whose peer is switched off must still be able to
//! advertise, and a peer that comes up hears it. They go there also while two say that they are the peer: nothing of
//! ARP and ND is proved, and adverts that follow a forged claim would leave the peer without an owner to hear.

use crate::units::MonoTime;
use crate::wire::Mac;

/// Time between two questions while the address is unknown. Nanoseconds.
const ASK_NANOS: u64 = 1_000_000_000;
/// Time after which a known address is asked for again. Nanoseconds.
const CONFIRM_NANOS: u64 = 10_000_000_000;
/// For so long after the last change of address everybody gets what is meant for the peer. Nanoseconds.
const DISPUTE_NANOS: u64 = 2 * CONFIRM_NANOS;

/// What is known of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerMac {
    known: Option<(Mac, MonoTime)>,
    asked_at: Option<MonoTime>,
    /// When it was last said to be elsewhere than before.
    moved_at: Option<MonoTime>,
}

impl PeerMac {
    /// A frame of the peer came from `mac`, or so it says.
    pub(super) fn learn(&mut self, now: MonoTime, mac: Mac) {
        if self.known.is_some_and(|(known, _)| known != mac) {
            self.moved_at = Some(now);
        }
        self.known = Some((mac, now));
    }

    /// Whether the peer may be at more than one address.
    fn is_disputed(&self, now: MonoTime) -> bool {
        self.moved_at.is_some_and(|at| now.since(at) < DISPUTE_NANOS)
    }

    /// Whether the peer is known to be at `mac`.
    pub(super) fn is_at(&self, mac: Mac) -> bool {
        self.known.is_some_and(|(known, _)| known == mac)
    }

    /// Where to send to.
    pub(super) fn destination(&self, now: MonoTime) -> Mac {
        match self.known {
            Some((mac, _)) if !self.is_disputed(now) => mac,
            _ => Mac::BROADCAST,
        }
    }

    /// Whether to ask now; remembers that it was asked.
    pub(super) fn ask(&mut self, now: MonoTime) -> bool {
        let fresh = !self.is_disputed(now) && self.known.is_some_and(|(_, at)| now.since(at) < CONFIRM_NANOS);
        let recent = self.asked_at.is_some_and(|at| now.since(at) < ASK_NANOS);
        if fresh || recent {
            return false;
        }
        self.asked_at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_peer_is_asked_for_every_second_and_a_known_one_every_ten() {
        let second = |n: u64| MonoTime::from_nanos(n * ASK_NANOS);
        let mut peer = PeerMac::default();
        assert_eq!(peer.destination(second(1)), Mac::BROADCAST);
        assert!(peer.ask(second(1)) && !peer.ask(second(1)) && peer.ask(second(2)));
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        peer.learn(second(2), mac);
        assert_eq!(peer.destination(second(2)), mac);
        assert!(!peer.ask(second(11)) && peer.ask(second(12)));
    }

    #[test]
    fn while_two_say_that_they_are_the_peer_everybody_is_sent_what_is_meant_for_it() {
        let second = |n: u64| MonoTime::from_nanos(n * ASK_NANOS);
        let (own, forged) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 66]));
        let mut peer = PeerMac::default();
        peer.learn(second(1), own);
        assert_eq!(peer.destination(second(1)), own);
        for n in 2..60 {
            peer.learn(second(n), forged);
            assert_eq!(peer.destination(second(n)), Mac::BROADCAST);
            // It is asked meanwhile, and its answer is what ends the matter.
            assert!(peer.ask(second(n)));
            peer.learn(second(n), own);
            assert_eq!(peer.destination(second(n)), Mac::BROADCAST);
        }
        assert_eq!(peer.destination(second(78)), Mac::BROADCAST);
        assert_eq!(peer.destination(second(79)), own);
    }
}
