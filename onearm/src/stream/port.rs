//! Where the stream meets the thread of the flows: bodies of flow sync each way, and which session they belong to.
//!
//! Towards the peer a channel of a few bodies, from which the session takes while its connection keeps up; from the peer a queue
//! bounded by what the peer may send unacknowledged. Neither side ever waits for the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as queue;

use nix::sys::eventfd::EventFd;
use tokio::sync::mpsc;

/// Bodies that wait for the connection.
pub(crate) const DEPTH: usize = 8;
/// Bodies that wait for the thread of the flows: twice what the peer may have unacknowledged. One more is not taken.
const MOST_WAITING: usize = 128;

/// What the thread of the flows hears.
#[derive(Debug)]
pub(crate) enum Carried {
    /// A session is there, in place of any other.
    Opened {
        /// Number of the session.
        serial: u64,
        /// Takes bodies for the peer; `None` if its release knows no flow sync.
        say: Option<mpsc::Sender<Vec<u8>>>,
    },
    /// A body of the peer's.
    Heard {
        /// Number of the session.
        serial: u64,
        /// The body.
        body: Vec<u8>,
    },
    /// The session is over.
    Ended {
        /// Number of the session.
        serial: u64,
    },
}

/// The stream's end of it.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    to: queue::Sender<Carried>,
    waiting: Arc<AtomicUsize>,
    wake: Arc<EventFd>,
}

/// The other end.
#[derive(Debug)]
pub(crate) struct Wharf {
    from: queue::Receiver<Carried>,
    waiting: Arc<AtomicUsize>,
}

/// Both ends. `wake` is written to whenever there is something to take, or room to say more.
pub(crate) fn port(wake: Arc<EventFd>) -> (Port, Wharf) {
    let (to, from) = queue::channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let wharf = Wharf {
        from,
        waiting: Arc::clone(&waiting),
    };
    (Port { to, waiting, wake }, wharf)
}

impl Port {
    /// Hands `carried` over; false where it cannot be taken: too much waits, or nobody is there any more.
    pub(crate) fn carry(&self, carried: Carried) -> bool {
        if let Carried::Heard { .. } = carried
            && self.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING
        {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let taken = self.to.send(carried).is_ok();
        self.wake();
        taken
    }

    /// There is room to say more.
    pub(crate) fn wake(&self) {
        // It fails only where the counter is full: whoever reads it wakes then, too.
        self.wake.write(1).unwrap_or_default();
    }
}

impl Wharf {
    /// What came, if anything did. Never waits.
    pub(crate) fn take(&self) -> Option<Carried> {
        let carried = self.from.try_recv().ok()?;
        if let Carried::Heard { .. } = carried {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Some(carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_bounded_and_what_tells_of_sessions_is_not() {
        let (port, wharf) = port(Arc::new(EventFd::new().unwrap()));
        let heard = |n: u8| Carried::Heard {
            serial: 1,
            body: vec![n],
        };
        assert!(port.carry(Carried::Opened { serial: 1, say: None }));
        for _ in 0..MOST_WAITING {
            assert!(port.carry(heard(7)));
        }
        assert!(!port.carry(heard(8)) && port.carry(Carried::Ended { serial: 1 }));
        assert!(matches!(wharf.take(), Some(Carried::Opened { .. })));
        assert!(matches!(wharf.take(), Some(Carried::Heard { .. })));
        assert!(port.carry(heard(9)), "there is room for one again");
        let left: Vec<_> = std::iter::from_fn(|| wharf.take()).collect();
        assert_eq!(left.len(), MOST_WAITING + 1);
        drop(wharf);
        assert!(!port.carry(Carried::Ended { serial: 1 }), "nobody is there");
    }
}
