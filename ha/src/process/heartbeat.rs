//! Heartbeats: when to send one, and when the other side has been silent for too long. Pure.

use crate::units::MonoTime;

/// Time between two heartbeats of the main process. Nanoseconds.
pub const HEARTBEAT_NANOS: u64 = 40_000_000;

/// Judges the other process by its heartbeats. Any message counts as one.
///
/// A watcher that stalled itself has no right to judge: if it was not asked for half the allowed silence, the silence
/// counts anew.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    silence_nanos: u64,
    heard_at: MonoTime,
    asked_at: MonoTime,
    silent: bool,
}

/// What a look at the watch tells; each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing changed.
    AsBefore,
    /// The other process has been silent for too long.
    FellSilent,
    /// It is heard again.
    SpokeAgain,
}

impl Watch {
    /// Starts now; `silence_nanos` is the silence allowed.
    pub const fn new(now: MonoTime, silence_nanos: u64) -> Self {
        Self {
            silence_nanos,
            heard_at: now,
            asked_at: now,
            silent: false,
        }
    }

    /// Another silence is allowed from now on.
    pub const fn allow(&mut self, silence_nanos: u64) {
        self.silence_nanos = silence_nanos;
    }

    /// The other process was heard.
    pub const fn heard(&mut self, now: MonoTime) {
        self.heard_at = now;
    }

    /// Judges at `now`, after everything received was handled.
    pub fn look(&mut self, now: MonoTime) -> Verdict {
        if !self.silent && now.since(self.asked_at) > self.silence_nanos / 2 {
            self.heard_at = now;
        }
        self.asked_at = now;
        let silent = now.since(self.heard_at) > self.silence_nanos;
        let before = std::mem::replace(&mut self.silent, silent);
        match (before, silent) {
            (false, true) => Verdict::FellSilent,
            (true, false) => Verdict::SpokeAgain,
            (false, false) | (true, true) => Verdict::AsBefore,
        }
    }

    /// Whether the other process is silent, as of the last look.
    pub const fn is_silent(&self) -> bool {
        self.silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: u64 = 20 * HEARTBEAT_NANOS;

    fn at(tick: u64) -> MonoTime {
        MonoTime::from_nanos(tick * HEARTBEAT_NANOS)
    }

    #[test]
    fn silence_is_told_once_and_so_is_its_end() {
        let mut watch = Watch::new(at(0), ALLOWED);
        for tick in 1..=20 {
            assert_eq!(watch.look(at(tick)), Verdict::AsBefore, "{tick}");
        }
        assert_eq!(watch.look(at(21)), Verdict::FellSilent);
        assert_eq!(watch.look(at(22)), Verdict::AsBefore);
        assert!(watch.is_silent());
        assert_eq!(
            watch.look(at(5_000)),
            Verdict::AsBefore,
            "an own stall is no word of the other"
        );
        watch.heard(at(5_001));
        assert_eq!(watch.look(at(5_001)), Verdict::SpokeAgain);
        assert_eq!(watch.look(at(5_002)), Verdict::AsBefore);
    }

    #[test]
    fn a_watcher_that_stalled_gives_the_other_the_whole_time_again() {
        let mut watch = Watch::new(at(0), ALLOWED);
        assert_eq!(watch.look(at(1_000)), Verdict::AsBefore);
        for tick in 1_001..=1_020 {
            assert_eq!(watch.look(at(tick)), Verdict::AsBefore, "{tick}");
        }
        assert_eq!(watch.look(at(1_021)), Verdict::FellSilent);
    }
}
