//! Fragments whose first one is still to come. Each is tried again after times that grow: most first ones are a moment
//! late, and few come later than that.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes of all frames that wait.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// Waits before each try; after the last one a fragment is given up. 560 ms in all.
const WAITS: [Duration; 5] = [
    Duration::from_millis(2),
    Duration::from_millis(8),
    Duration::from_millis(30),
    Duration::from_millis(120),
    Duration::from_millis(400),
];
/// What a frame costs beside its bytes.
const OVERHEAD: usize = 64;

/// A frame and the interface it came by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) ifindex: u32,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// The frames that wait.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// By the number of tries they have had. All of a queue wait equally long, so each is in order of time.
    queues: [VecDeque<(Instant, Frame)>; WAITS.len()],
    /// Tries that the frame given out last has had.
    tried: usize,
    bytes: usize,
}

impl Kept {
    /// Takes a frame.
    ///
    /// # Errors
    /// The frame, if there is no room.
    pub(crate) fn keep(&mut self, now: Instant, frame: Frame) -> Result<(), Frame> {
        if self.bytes + frame.cost() > MOST_BYTES {
            return Err(frame);
        }
        self.bytes += frame.cost();
        self.queues[0].push_back((now + WAITS[0], frame));
        Ok(())
    }

    /// A frame to try now, and whether it is the last time. Each goes back by [`Kept::wait_on`] or [`Kept::forget`]
    /// before the next.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<(Frame, bool)> {
        let due = |queue: &VecDeque<(Instant, Frame)>| queue.front().is_some_and(|(at, _)| *at <= now);
        self.tried = self.queues.iter().rposition(due)?;
        let (_, frame) = self.queues[self.tried].pop_front()?;
        Some((frame, self.tried + 1 == WAITS.len()))
    }

    /// The frame tried last is to be tried again, if it may.
    pub(crate) fn wait_on(&mut self, now: Instant, frame: Frame) {
        let next = self.tried + 1;
        match WAITS.get(next) {
            Some(wait) => self.queues[next].push_back((now + *wait, frame)),
            None => self.forget(&frame),
        }
    }

    /// The frame tried last needs no further try.
    pub(crate) fn forget(&mut self, frame: &Frame) {
        self.bytes -= frame.cost();
    }

    /// When the next frame is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.queues
            .iter()
            .filter_map(|queue| queue.front().map(|(at, _)| *at))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, Kept, MOST_BYTES, WAITS};
    use std::time::{Duration, Instant};

    const JUST: Duration = Duration::from_nanos(1);

    fn frame(n: u8) -> Frame {
        Frame {
            ifindex: 3,
            bytes: vec![n; 1_500],
        }
    }

    #[expect(clippy::disallowed_methods, reason = "any moment")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_frame_is_tried_five_times_and_given_up() {
        let (mut kept, mut now) = (Kept::default(), start());
        kept.keep(now, frame(1)).unwrap();
        for (n, wait) in WAITS.into_iter().enumerate() {
            assert_eq!(kept.deadline(), Some(now + wait));
            assert_eq!(kept.next_due(now + wait.saturating_sub(JUST)), None);
            now += wait;
            let (given, last) = kept.next_due(now).unwrap();
            assert_eq!((&given, last), (&frame(1), n == 4));
            kept.wait_on(now, given);
        }
        assert_eq!((kept.deadline(), kept.bytes), (None, 0));
    }

    #[test]
    fn frames_leave_in_the_order_they_came_and_make_room() {
        let (mut kept, now) = (Kept::default(), start());
        let room = MOST_BYTES / frame(0).cost();
        for n in 0..room {
            kept.keep(now, frame(n.to_le_bytes()[0])).unwrap();
        }
        assert_eq!(kept.keep(now, frame(7)), Err(frame(7)));
        for n in 0..room {
            let (given, last) = kept.next_due(now + WAITS[0]).unwrap();
            assert_eq!((given.bytes[0], last), (n.to_le_bytes()[0], false));
            kept.forget(&given);
        }
        assert_eq!((kept.next_due(now + WAITS[0]), kept.bytes), (None, 0));
        kept.keep(now, frame(7)).unwrap();
    }
}
