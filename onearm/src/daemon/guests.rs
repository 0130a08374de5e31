//! Hosts on a leg that nobody configured and whose MAC a packet needed: mostly clients whose frames were relayed by the
//! peer. The kernel is asked to keep them resolved for a while. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// Most guests at one time: addresses that strangers invent must not make the node shout ARP. When full, others wait.
const MOST: usize = 1_024;
/// A guest is kept resolved for so long after a packet last needed it.
const STAY: Duration = Duration::from_mins(5);

/// The guests, by leg and address, with the time they were last needed.
#[derive(Debug, Default)]
pub(crate) struct Guests(BTreeMap<(u8, IpAddr), Instant>);

impl Guests {
    /// A packet needed the MAC of a host. True if it is a new guest.
    pub(crate) fn needed(&mut self, now: Instant, leg: u8, addr: IpAddr) -> bool {
        if self.0.len() >= MOST && !self.0.contains_key(&(leg, addr)) {
            return false;
        }
        self.0.insert((leg, addr), now).is_none()
    }

    /// Forgets who was not needed for long.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.0.retain(|_, needed| now.duration_since(*needed) < STAY);
    }

    /// Guests of a leg.
    pub(crate) fn of(&self, leg: u8) -> impl Iterator<Item = IpAddr> {
        self.0
            .keys()
            .filter(move |(of, _)| *of == leg)
            .map(|(_, addr)| *addr)
    }
}

#[cfg(test)]
mod tests {
    use super::{Guests, MOST, STAY};
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::time::Instant;

    fn host(n: usize) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + u32::try_from(n).unwrap()).into()
    }

    #[tokio::test]
    async fn a_guest_is_new_once_and_leaves_after_a_while() {
        let (mut guests, now) = (Guests::default(), Instant::now());
        assert!(guests.needed(now, 0, host(1)));
        assert!(!guests.needed(now + STAY / 2, 0, host(1)));
        guests.expire(now + STAY);
        assert_eq!(guests.of(0).collect::<Vec<_>>(), [host(1)]);
        guests.expire(now + STAY / 2 + STAY);
        assert_eq!(guests.of(0).count(), 0);
    }

    #[tokio::test]
    async fn invented_addresses_are_bounded() {
        let (mut guests, now) = (Guests::default(), Instant::now());
        assert_eq!(
            (0..2 * MOST).filter(|n| guests.needed(now, 0, host(*n))).count(),
            MOST
        );
        assert!(!guests.needed(now, 0, host(0)));
        assert_eq!((guests.of(0).count(), guests.of(1).count()), (MOST, 0));
    }
}
