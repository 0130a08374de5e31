//! The peer's Ethernet address for unicast adverts. Pure.
//!
//! Learned from the peer's adverts, ARP and ND, asked for while unknown and again from time to time. One for both
//! families: a leg has one Ethernet address. Until it is
//! known, unicast adverts go to the broadcast address: an Active whose peer is switched off must still be able to
//! advertise, and a peer that comes up hears it.

use crate::units::MonoTime;
use crate::wire::Mac;

/// Time between two questions while the address is unknown. Nanoseconds.
const ASK_NANOS: u64 = 1_000_000_000;
/// Time after which a known address is asked for again. Nanoseconds.
const CONFIRM_NANOS: u64 = 10_000_000_000;

/// What is known of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerMac {
    known: Option<(Mac, MonoTime)>,
    asked_at: Option<MonoTime>,
}

impl PeerMac {
    /// A frame of the peer came from `mac`.
    pub(super) fn learn(&mut self, now: MonoTime, mac: Mac) {
        self.known = Some((mac, now));
    }

    /// Whether the peer is known to be at `mac`.
    pub(super) fn is_at(&self, mac: Mac) -> bool {
        self.known.is_some_and(|(known, _)| known == mac)
    }

    /// Where to send to.
    pub(super) fn destination(&self) -> Mac {
        self.known.map_or(Mac::BROADCAST, |(mac, _)| mac)
    }

    /// Whether to ask now; remembers that it was asked.
    pub(super) fn ask(&mut self, now: MonoTime) -> bool {
        let fresh = self.known.is_some_and(|(_, at)| now.since(at) < CONFIRM_NANOS);
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
        assert_eq!(peer.destination(), Mac::BROADCAST);
        assert!(peer.ask(second(1)) && !peer.ask(second(1)) && peer.ask(second(2)));
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        peer.learn(second(2), mac);
        assert_eq!(peer.destination(), mac);
        assert!(!peer.ask(second(11)) && peer.ask(second(12)));
    }
}
