//! What is compared of a flow: one word, the same on both nodes.
//!
//! ```text
//! word    52 bits: keyed hash of identity, translation, incarnation and state │ 12 bits: class, a keyed hash of the identity
//! 0       nothing
//! 1–4095  a flow the peer is not told of yet (no word of a flow: its upper bits are not zero)
//! ```

use onearm_dataplane_common::hash::{ports, sip13, sip13_wide};

use super::{Coarse, Record};

/// Number of classes.
pub(crate) const CLASSES: usize = 1 << CLASS_BITS;
const CLASS_BITS: u32 = 12;
const CLASS_MASK: u64 = CLASSES as u64 - 1;

/// Nanoseconds of one step of a waiting flow's stamp, as a power of two (0.27 s). Stamps come round after 18 minutes.
pub(crate) const STAMP_SHIFT: u32 = 28;
/// Stamps there are: 1 to this.
pub(crate) const STAMPS: u64 = CLASS_MASK;

/// Class of a word.
pub(crate) const fn class(word: u64) -> usize {
    (word & CLASS_MASK) as usize
}

/// True for the word of a flow.
pub(crate) const fn is_flow(word: u64) -> bool {
    word >> CLASS_BITS != 0
}

/// What the words of a flow have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    hash: u64,
    class: u64,
}

impl Content {
    /// Of a flow, under a key.
    pub(crate) fn of(key: [u64; 2], record: &Record) -> Self {
        let flow = &record.key;
        let identity = sip13_wide(
            key,
            flow.saddr,
            flow.daddr,
            ports(flow.sport, flow.dport, flow.proto),
        );
        let translation = sip13_wide(
            key,
            record.new_saddr,
            record.new_daddr,
            ports(record.new_sport, record.new_dport, record.flags) | 1 << 63,
        );
        Self {
            hash: sip13(
                [key[0] ^ identity, key[1] ^ translation],
                identity,
                record.incarnation,
            ),
            class: identity & CLASS_MASK,
        }
    }

    /// The class of the flow.
    pub(crate) const fn class(self) -> usize {
        class(self.class)
    }

    /// The word of the flow in a state.
    pub(crate) const fn word(self, coarse: Coarse) -> u64 {
        let hash = match coarse {
            Coarse::Established => self.hash,
            Coarse::Closing => mix(self.hash),
        };
        let hash = hash & !CLASS_MASK;
        self.class | if hash == 0 { 1 << CLASS_BITS } else { hash }
    }

    /// True for the word of the flow in one of its states.
    pub(crate) const fn has(self, word: u64) -> bool {
        word == self.word(Coarse::Established) || word == self.word(Coarse::Closing)
    }
}

/// A bijection of words without structure (the last step of MurmurHash3). What goes in is secret.
const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use super::super::plain::record;
    use super::*;

    #[test]
    fn the_word_of_a_flow_tells_whatever_makes_it_another_one() {
        let base = record(1, 1);
        let word = |record: &Record| Content::of([3, 4], record).word(record.coarse().unwrap());
        let mut others = vec![base];
        let mut change = |change: fn(&mut Record)| {
            let mut other = base;
            change(&mut other);
            others.push(other);
        };
        change(|r| r.key.sport ^= 1);
        change(|r| r.key.saddr.0[3] ^= 1 << 24);
        change(|r| r.new_sport ^= 1);
        change(|r| r.new_daddr.0[3] ^= 1 << 24);
        change(|r| r.incarnation += 1);
        change(|r| r.flags ^= 1 << 4);
        change(|r| r.client |= onearm_dataplane_common::flow::seen::RST);
        let words: std::collections::HashSet<u64> = others.iter().map(word).collect();
        assert_eq!(words.len(), others.len());
        assert_ne!(Content::of([3, 5], &base).word(Coarse::Established), word(&base));
        for same in [
            Record { leg: 9, ..base },
            Record { vlan: 9, ..base },
            Record { packets: 77, ..base },
            Record {
                client_ack: 5,
                ..base
            },
        ] {
            assert_eq!(word(&same), word(&base));
        }
    }

    #[test]
    fn the_states_of_a_flow_have_one_class_and_no_word_is_mistaken_for_a_stamp() {
        for n in 0..2_000 {
            let content = Content::of([1, 2], &record(n, u64::from(n) + 1));
            let words = [content.word(Coarse::Established), content.word(Coarse::Closing)];
            assert_ne!(words[0], words[1]);
            assert_eq!(class(words[0]), class(words[1]));
            assert!(words.into_iter().all(|word| is_flow(word) && content.has(word)));
        }
        assert!(!is_flow(0) && !is_flow(STAMPS));
        let empty = Content { hash: 5, class: 9 };
        assert!(is_flow(empty.word(Coarse::Established)));
    }
}
