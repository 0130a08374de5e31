//! Space in the map `SCHED`: regions of whole words for scheduler tables, first fit.

/// Server indexes in one word.
pub(crate) const ENTRIES_PER_WORD: u32 = 4;

/// Part of `SCHED` that holds one scheduler table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// First word.
    word: u32,
    /// Entries in use; the region has as many words as that takes.
    len: u32,
}

impl Region {
    /// No table: a service without a live server.
    pub(crate) const EMPTY: Self = Self { word: 0, len: 0 };

    fn words(self) -> u32 {
        self.len.div_ceil(ENTRIES_PER_WORD)
    }

    /// First word in the map.
    pub(crate) fn first_word(self) -> u32 {
        self.word
    }

    /// The value of `Service::table`: base in entries, length in entries.
    pub(crate) fn table(self) -> u64 {
        u64::from(self.len) << 32 | u64::from(self.word * ENTRIES_PER_WORD)
    }
}

/// Which words of `SCHED` are free.
#[derive(Clone, Debug)]
pub(crate) struct SchedSpace {
    /// Free runs (first word, words): ascending, apart from each other, none empty.
    free: Vec<(u32, u32)>,
}

impl SchedSpace {
    /// A space of `words` words, all free.
    pub(crate) fn new(words: u32) -> Self {
        Self {
            free: vec![(0, words)],
        }
    }

    /// A region for `len` entries, or `None` if no free run is long enough.
    pub(crate) fn take(&mut self, len: u32) -> Option<Region> {
        if len == 0 {
            return Some(Region::EMPTY);
        }
        let words = len.div_ceil(ENTRIES_PER_WORD);
        let at = self.free.iter().position(|(_, run)| *run >= words)?;
        let (first, run) = self.free[at];
        if run == words {
            self.free.remove(at);
        } else {
            self.free[at] = (first + words, run - words);
        }
        Some(Region { word: first, len })
    }

    /// Frees a region nobody reads any more.
    pub(crate) fn give_back(&mut self, region: Region) {
        let words = region.words();
        if words == 0 {
            return;
        }
        let at = self.free.partition_point(|(first, _)| *first < region.word);
        let joins_next = self
            .free
            .get(at)
            .is_some_and(|(first, _)| *first == region.word + words);
        let joins_previous = at
            .checked_sub(1)
            .is_some_and(|p| self.free[p].0 + self.free[p].1 == region.word);
        match (joins_previous, joins_next) {
            (true, true) => {
                self.free[at - 1].1 += words + self.free[at].1;
                self.free.remove(at);
            }
            (true, false) => self.free[at - 1].1 += words,
            (false, true) => self.free[at] = (region.word, words + self.free[at].1),
            (false, false) => self.free.insert(at, (region.word, words)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Region, SchedSpace};
    use proptest::prelude::*;

    fn free_words(space: &SchedSpace) -> u32 {
        space.free.iter().map(|(_, run)| run).sum()
    }

    #[test]
    fn a_table_word_names_entries() {
        let mut space = SchedSpace::new(100);
        assert_eq!(space.take(0), Some(Region::EMPTY));
        assert_eq!(space.take(5).map(Region::table), Some(5 << 32));
        assert_eq!(space.take(7).map(Region::table), Some(7 << 32 | 8));
        assert_eq!(space.take(385), None);
        assert_eq!(space.take(384).map(Region::table), Some(384 << 32 | 16));
        assert_eq!(free_words(&space), 0);
    }

    proptest! {
        #[test]
        fn regions_never_overlap_and_free_runs_join(ops in prop::collection::vec((any::<bool>(), 0_u32..40, any::<prop::sample::Index>()), 0..200)) {
            let mut space = SchedSpace::new(64);
            let mut held: Vec<Region> = Vec::new();
            for (take, len, at) in ops {
                if take {
                    held.extend(space.take(len));
                } else if !held.is_empty() {
                    space.give_back(held.swap_remove(at.index(held.len())));
                }
                let mut words = [0_u8; 64];
                for region in &held {
                    (region.word..region.word + region.words()).for_each(|w| words[w as usize] += 1);
                }
                prop_assert!(words.iter().all(|n| *n <= 1));
                let free = words.len() - words.iter().map(|n| usize::from(*n)).sum::<usize>();
                prop_assert_eq!(free, free_words(&space) as usize);
                prop_assert!(space.free.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0));
            }
        }
    }
}
