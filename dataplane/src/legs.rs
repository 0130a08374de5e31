//! Map `LEGS`, written while programs read it.

use onearm_dataplane_common::maps::{Leg, LegKey, LegSlot};

use crate::error::{Error, Result};
use crate::mapping::{Words, word_of};

/// Words of a leg; that of its key follows.
const LEG_WORDS: usize = size_of::<Leg>() / 8;

/// The legs.
#[derive(Debug)]
pub(crate) struct Legs(pub(crate) Words<LegSlot>);

impl Legs {
    /// Writes a leg, or changes it where it stands. Programs see whole words, and a new leg whole.
    ///
    /// # Errors
    /// [`Error::LegNotPlaced`] if others stand wherever it might.
    pub(crate) fn set(&self, key: LegKey, leg: &Leg) -> Result<()> {
        let word = key.word();
        let stands = |wanted: u64| {
            key.slots()
                .into_iter()
                .find(|slot| self.0.load(*slot, LEG_WORDS) == wanted)
        };
        let slot = stands(word).or_else(|| stands(0)).ok_or(Error::LegNotPlaced {
            ifindex: key.ifindex,
            vlan: key.vlan,
        })?;
        let new = LegSlot {
            leg: *leg,
            key: word,
            ..LegSlot::default()
        };
        for n in 0..=LEG_WORDS {
            self.0.store(slot, n, word_of(&new, n));
        }
        Ok(())
    }

    /// Removes a leg; one that is not there is no error.
    pub(crate) fn remove(&self, key: LegKey) {
        for slot in key.slots() {
            if self.0.load(slot, LEG_WORDS) == key.word() {
                self.0.store(slot, LEG_WORDS, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use onearm_dataplane_common::maps::{LEG_PROBES, LEG_SLOTS, MAX_LEGS};

    use super::*;

    fn legs() -> Legs {
        let memory = memfd_create(c"legs", MFdFlags::empty()).unwrap();
        nix::unistd::ftruncate(&memory, i64::from(LEG_SLOTS) * 128).unwrap();
        Legs(Words::new(memory.as_fd(), LEG_SLOTS).unwrap())
    }

    fn key(ifindex: u32, vlan: u16) -> LegKey {
        LegKey {
            ifindex,
            vlan,
            _pad: 0,
        }
    }

    fn id_of(legs: &Legs, key: LegKey) -> Option<u64> {
        let slot = key
            .slots()
            .into_iter()
            .find(|slot| legs.0.load(*slot, LEG_WORDS) == key.word())?;
        Some(legs.0.load(slot, 0) >> 48)
    }

    #[test]
    fn every_leg_is_found_where_programs_look_for_it_until_it_is_removed() {
        let legs = legs();
        let keys: Vec<LegKey> = (0..MAX_LEGS)
            .map(|n| match n % 3 {
                0 => key(2 + n, 0),
                1 => key(3, u16::try_from(n).unwrap()),
                _ => key(1_000_003 * n, 0),
            })
            .collect();
        for (id, key) in (0u8..).zip(&keys) {
            for id in [id ^ 1, id] {
                legs.set(*key, &Leg { id, ..Leg::default() }).unwrap();
            }
        }
        for (id, key) in (0u64..).zip(&keys) {
            assert_eq!(id_of(&legs, *key), Some(id), "{key:?}");
        }
        legs.remove(keys[0]);
        legs.remove(keys[0]);
        assert_eq!((id_of(&legs, keys[0]), id_of(&legs, keys[1])), (None, Some(1)));
    }

    #[test]
    fn a_leg_that_finds_no_place_is_refused_and_takes_one_that_becomes_free() {
        let legs = legs();
        let rivals: Vec<LegKey> = (0u32..)
            .take(LEG_PROBES + 1)
            .map(|n| key(7 + n * LEG_SLOTS, 0))
            .collect();
        let (last, others) = rivals.split_last().unwrap();
        for key in others {
            legs.set(*key, &Leg::default()).unwrap();
        }
        let refused = legs.set(*last, &Leg::default()).unwrap_err();
        assert!(
            refused.to_string().contains(&last.ifindex.to_string()),
            "{refused}"
        );
        legs.remove(others[1]);
        legs.set(
            *last,
            &Leg {
                id: 5,
                ..Leg::default()
            },
        )
        .unwrap();
        assert_eq!(id_of(&legs, *last), Some(5));
    }
}
