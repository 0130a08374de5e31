//! A leg beside that of the adverts: announcements of the addresses that live there leave by it, and it is watched, because
//! a node that has lost it serves worse than one that has not.

use std::io;

use nix::net::if_::if_nametoindex;

use super::leg::Leg;
use super::sockets::PacketSocket;
use crate::election::LegFault;
use crate::error::Error;
use crate::units::MonoTime;
use crate::wire::Mac;

/// A leg that failed counts as well again after so long without fault: one that comes and goes moves ownership once.
/// Nanoseconds.
const WELL_AFTER_NANOS: u64 = 3_000_000_000;
/// A leg that failed is looked at so often: asking for its carrier may wait for others' changes of interfaces, and this
/// thread may hold a lease. Nanoseconds.
const LOOK_AGAIN_NANOS: u64 = 500_000_000;

/// One such leg.
#[derive(Debug)]
pub(super) struct OtherLeg {
    name: String,
    /// With the index of the interface it is bound to.
    socket: Option<(u32, PacketSocket)>,
    leg: Leg,
    health: Health,
}

impl OtherLeg {
    /// The leg on interface `name`, whether that is there yet or not.
    ///
    /// # Errors
    /// [`Error::System`] if it cannot be watched.
    pub(super) fn new(name: &str) -> Result<Self, Error> {
        Ok(Self {
            name: name.to_owned(),
            socket: None,
            leg: Leg::new(name, Vec::new())?,
            health: Health::default(),
        })
    }

    /// Its interface.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What is wrong with it, or was a moment ago. `now` never decreases.
    pub(super) fn fault(&mut self, now: MonoTime) -> Option<LegFault> {
        if self.health.is_due(now) {
            self.health.seen(now, self.leg.look(now).err());
        }
        self.health.fault.map(|fault| fault.is)
    }

    /// Sends the frame that is made of the interface's Ethernet address at this moment.
    pub(super) fn send(&mut self, frame: impl FnOnce(Mac) -> Vec<u8>) -> io::Result<()> {
        let index = if_nametoindex(self.name.as_str())?;
        let socket = match self.socket.take().filter(|(bound, _)| *bound == index) {
            Some((_, socket)) => socket,
            None => PacketSocket::open_announcer(index)?,
        };
        let frame = frame(socket.mac(&self.name)?);
        socket.send(&frame)?;
        self.socket = Some((index, socket));
        Ok(())
    }
}

/// The last fault, kept until the leg has been well for a while.
#[derive(Clone, Copy, Debug, Default)]
struct Health {
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    is: LegFault,
    /// When it was last seen.
    seen_at: MonoTime,
    looked_at: MonoTime,
}

impl Health {
    fn is_due(&self, now: MonoTime) -> bool {
        self.fault
            .is_none_or(|fault| now.since(fault.looked_at) >= LOOK_AGAIN_NANOS)
    }

    fn seen(&mut self, now: MonoTime, seen: Option<LegFault>) {
        self.fault = match (seen, self.fault) {
            (Some(is), _) => Some(Fault {
                is,
                seen_at: now,
                looked_at: now,
            }),
            (None, Some(before)) if now.since(before.seen_at) < WELL_AFTER_NANOS => Some(Fault {
                looked_at: now,
                ..before
            }),
            (None, _) => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_counts_at_once_and_its_end_only_when_it_lasts() {
        let mut health = Health::default();
        let mut at = |ms: u64, seen| {
            let now = MonoTime::from_nanos(ms * 1_000_000);
            let due = health.is_due(now);
            health.seen(now, seen);
            (due, health.fault.map(|fault| fault.is))
        };
        let lost = Some(LegFault::NoCarrier);
        assert_eq!(at(1_000, None), (true, None));
        assert_eq!(at(1_020, lost), (true, lost));
        assert_eq!(at(1_519, None), (false, lost));
        assert_eq!(at(2_019, None), (true, lost));
        assert_eq!(at(3_000, lost), (true, lost));
        assert_eq!(at(5_999, None), (true, lost));
        assert_eq!(at(6_499, None), (true, None), "3 s well");
        let down = Some(LegFault::Down);
        assert_eq!(at(6_520, down), (true, down));
    }
}
