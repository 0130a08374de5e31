//! What both nodes know of the table: a word a place, and the digests of all words.

use super::Place;
use super::content::{CLASSES, class, is_flow};

/// XOR of the words of each class; [`CLASSES`] of them.
pub(crate) type Classes = Box<[u64]>;

/// A word for each place of both families' tables. Memory of places never used is not touched.
#[derive(Debug)]
pub(crate) struct Shadow {
    four: Vec<u64>,
    six: Vec<u64>,
    classes: Classes,
    total: u64,
    flows: u64,
}

impl Shadow {
    /// For so many places of both families; all empty.
    pub(crate) fn new(four: u32, six: u32) -> Self {
        Self {
            four: vec![0; four as usize],
            six: vec![0; six as usize],
            classes: no_classes(),
            total: 0,
            flows: 0,
        }
    }

    /// The word of a place; 0 if there is no such place.
    pub(crate) fn get(&self, place: Place) -> u64 {
        self.words(place.v6).get(place.at as usize).copied().unwrap_or(0)
    }

    /// Puts a word in place of another, which it returns. Nothing happens if there is no such place.
    pub(crate) fn set(&mut self, place: Place, word: u64) -> u64 {
        let words = if place.v6 { &mut self.six } else { &mut self.four };
        let Some(slot) = words.get_mut(place.at as usize) else {
            return 0;
        };
        let before = std::mem::replace(slot, word);
        if before != word {
            if is_flow(before) {
                self.turn(before);
                self.flows -= 1;
            }
            if is_flow(word) {
                self.turn(word);
                self.flows += 1;
            }
        }
        before
    }

    fn turn(&mut self, word: u64) {
        self.classes[class(word)] ^= word;
        self.total ^= word;
    }

    /// Words of one family, by [`Place::at`].
    pub(crate) fn words(&self, v6: bool) -> &[u64] {
        if v6 { &self.six } else { &self.four }
    }

    /// The digest of each class.
    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }

    /// XOR of all words.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Flows in it.
    pub(crate) fn flows(&self) -> u64 {
        self.flows
    }
}

/// Digests of nothing.
pub(crate) fn no_classes() -> Classes {
    vec![0; CLASSES].into_boxed_slice()
}

/// A set of classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassSet(pub(crate) Box<[u64; CLASSES / 64]>);

impl ClassSet {
    /// None.
    pub(crate) fn empty() -> Self {
        Self(Box::new([0; CLASSES / 64]))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The classes in which two nodes differ.
    pub(crate) fn of_difference(one: &[u64], other: &[u64]) -> Self {
        let mut set = Self::empty();
        for (class, (one, other)) in one.iter().zip(other).enumerate() {
            if one != other {
                set.0[class / 64] |= 1 << (class % 64);
            }
        }
        set
    }

    pub(crate) fn has(&self, class: usize) -> bool {
        self.0[class / 64] >> (class % 64) & 1 != 0
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// A set of places.
#[derive(Debug)]
pub(crate) struct PlaceSet {
    four: Vec<u64>,
    six: Vec<u64>,
}

impl PlaceSet {
    /// Empty; for the places of a shadow.
    pub(crate) fn new(shadow: &Shadow) -> Self {
        let bits = |v6| vec![0; shadow.words(v6).len().div_ceil(64)];
        Self {
            four: bits(false),
            six: bits(true),
        }
    }

    pub(crate) fn insert(&mut self, place: Place) {
        let words = if place.v6 { &mut self.six } else { &mut self.four };
        if let Some(word) = words.get_mut(place.at as usize / 64) {
            *word |= 1 << (place.at % 64);
        }
    }

    pub(crate) fn has(&self, place: Place) -> bool {
        let words = if place.v6 { &self.six } else { &self.four };
        words
            .get(place.at as usize / 64)
            .is_some_and(|word| word >> (place.at % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digests_are_those_of_the_words_whatever_came_before(
            sets in proptest::collection::vec((any::<bool>(), 0_u32..70, 0_u64..50), 0..200),
        ) {
            let mut shadow = Shadow::new(64, 64);
            for (v6, at, word) in sets {
                // Stamps among flows.
                let word = if word < 10 { word } else { word << 9 | word };
                let place = Place { v6, at };
                let before = shadow.get(place);
                prop_assert_eq!(shadow.set(place, word), before);
                prop_assert_eq!(shadow.get(place), if at < 64 { word } else { 0 });
            }
            let mut plain = Shadow::new(64, 64);
            for v6 in [false, true] {
                for (at, word) in (0..).zip(shadow.words(v6)) {
                    plain.set(Place { v6, at }, *word);
                }
            }
            prop_assert_eq!(shadow.classes(), plain.classes());
            prop_assert_eq!(shadow.total(), plain.total());
            prop_assert_eq!(shadow.flows(), plain.flows());
            prop_assert_eq!(shadow.total(), shadow.classes().iter().fold(0, |all, one| all ^ one));
        }
    }

    #[test]
    fn a_difference_names_its_classes() {
        let (one, mut other) = (no_classes(), no_classes());
        assert!(ClassSet::of_difference(&one, &other).is_empty());
        (other[0], other[64], other[4_095]) = (1, 2, 3);
        let set = ClassSet::of_difference(&one, &other);
        assert!(set.has(0) && set.has(64) && set.has(4_095) && !set.has(1));
        assert_eq!(set.len(), 3);
    }
}
