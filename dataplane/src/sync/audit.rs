//! Going through the whole table, a slice at a time, again and again.

/// How often a slice is due, ns.
const SLICE: u64 = 100_000_000;

/// How far a walk has come.
#[derive(Debug)]
pub(crate) struct Audit {
    /// Next bucket.
    next: u32,
    /// When the pass began.
    began_at: u64,
    slice_at: u64,
    /// Something was lost that a whole pass from its start must find.
    lost: bool,
    /// This pass finds it.
    covers: bool,
}

impl Audit {
    pub(crate) fn new() -> Self {
        Self {
            next: 0,
            began_at: 0,
            slice_at: 0,
            lost: false,
            covers: false,
        }
    }

    /// Something was lost: a pass begins at once, or after the one that is under way for another loss.
    pub(crate) fn lose(&mut self) {
        if self.covers {
            self.lost = true;
        } else {
            (self.covers, self.next) = (true, 0);
        }
    }

    /// Something was lost and has not been found yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.covers
    }

    /// Forgets what was lost: another walk finds it.
    pub(crate) fn forgive(&mut self, now: u64) {
        *self = Self {
            began_at: now,
            slice_at: now + SLICE,
            ..Self::new()
        };
    }

    /// Buckets to go through now, as far as `budget` goes, for a pass of `all` buckets in `pass` ns.
    pub(crate) fn slice(&mut self, now: u64, budget: u32, all: u32, pass: u64) -> std::ops::Range<u32> {
        let until = if self.covers {
            all
        } else if now >= self.slice_at {
            let share =
                u128::from(now.saturating_sub(self.began_at)) * u128::from(all) / u128::from(pass.max(1));
            u32::try_from(share).map_or(all, |share| share.min(all))
        } else {
            self.next
        };
        let end = until.min(self.next.saturating_add(budget)).max(self.next);
        self.next..end
    }

    /// The slice up to this bucket is done; true at the end of a pass.
    pub(crate) fn done(&mut self, now: u64, end: u32, all: u32) -> bool {
        self.next = end;
        self.slice_at = now + SLICE;
        if end < all {
            return false;
        }
        self.next = 0;
        self.began_at = now;
        self.covers = std::mem::take(&mut self.lost);
        true
    }

    /// When a slice is due.
    pub(crate) fn due_at(&self) -> u64 {
        if self.covers { 0 } else { self.slice_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: u64 = 100 * SLICE;

    #[test]
    fn a_pass_takes_its_time_and_begins_anew() {
        let mut audit = Audit::new();
        audit.forgive(0);
        let (mut seen, mut passes) = (0, 0);
        for now in (0..=2 * PASS).step_by(usize::try_from(SLICE).unwrap()) {
            let slice = audit.slice(now, 1_000, 500, PASS);
            assert!(slice.len() <= 10, "{slice:?}");
            seen += slice.len();
            passes += u32::from(audit.done(now, slice.end, 500));
        }
        assert_eq!((seen, passes), (1_000, 2));
    }

    #[test]
    fn a_loss_is_found_by_a_whole_pass_that_began_after_it() {
        let mut audit = Audit::new();
        audit.forgive(0);
        audit.done(0, 300, 500);
        audit.lose();
        assert_eq!(audit.slice(1, 200, 500, PASS), 0..200);
        assert!(!audit.done(1, 200, 500) && audit.is_behind());
        audit.lose();
        assert_eq!(audit.slice(1, 900, 500, PASS), 200..500);
        assert!(audit.done(1, 500, 500) && audit.is_behind());
        assert_eq!(audit.slice(1, 900, 500, PASS), 0..500);
        assert!(audit.done(1, 500, 500) && !audit.is_behind());
        assert_eq!(audit.slice(1, 900, 500, PASS), 0..0);
    }
}
