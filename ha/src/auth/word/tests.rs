use proptest::prelude::*;

use super::*;
use crate::auth::key::{Key, PairKeys, Purpose};

fn signer(secret: u8) -> Signer {
    let key = Key {
        id: KeyId(3),
        secret: [secret; 32],
    };
    Signer::new(&PairKeys::new([1; 16], vec![key]).unwrap(), Purpose::Advert)
}

prop_compose! {
    fn words()(
        kind in 0_u8..6, node in 1_u8..3, priority: u8, hears_twins: bool, signs: u8, refusal: u8, interval in 1_u16..4096, newest: u16,
        numbers in prop::array::uniform5(any::<u64>()), incarnation in 1_u64.., sequence in 1_u64..,
        echo in prop::option::of((1_u64.., any::<u64>())), health: u32,
    ) -> Word {
        Word {
            kind: Kind::read(kind).unwrap(),
            node,
            newest_key: KeyId(newest),
            priority: Priority::from_wire(priority),
            hears_twins,
            signs: Signs(u16::from_be_bytes([refusal, signs & SIGNS])),
            interval: Centiseconds::new(interval).unwrap(),
            stamp: Stamp { incarnation, sequence, echo },
            epoch: numbers[0],
            generation: numbers[1],
            owned_digest: numbers[2],
            health: Health(health),
        }
    }
}

fn sealed(word: &Word, context: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    word.seal(&signer(5), KeyId(3), context, &mut out).unwrap();
    out
}

proptest! {
    #[test]
    fn what_was_said_is_heard(word in words()) {
        let bytes = sealed(&word, &[b"x"]);
        prop_assert_eq!(bytes.len(), WORD_LEN);
        prop_assert_eq!(Word::open(&signer(5), &[b"x"], &bytes), Ok(word));
    }

    #[test]
    fn one_changed_bit_anywhere_is_not_believed(word in words(), bit in 0_usize..WORD_LEN * 8) {
        let mut bytes = sealed(&word, &[b"x"]);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Word::open(&signer(5), &[b"x"], &bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_not_believed_and_harm_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Word::open(&signer(5), &[], &bytes).is_err());
        let mut with_magic = b"1arm\x01\x50".to_vec();
        with_magic.extend_from_slice(&bytes);
        prop_assert!(Word::open(&signer(5), &[], &with_magic).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn another_context_key_or_purpose_is_not_believed(word in words()) {
        let bytes = sealed(&word, &[b"x"]);
        prop_assert_eq!(Word::open(&signer(5), &[b"y"], &bytes), Err(Disbelief::WrongCode));
        prop_assert_eq!(Word::open(&signer(6), &[b"x"], &bytes), Err(Disbelief::WrongCode));
        prop_assert_eq!(Word::open(&signer(5), &[b"x"], &bytes[..WORD_LEN - 1]), Err(Disbelief::Malformed));
        prop_assert_eq!(Word::open(&signer(5), &[b"x"], &[]), Err(Disbelief::Missing));
    }

    #[test]
    fn a_longer_word_of_a_later_release_is_understood(word in words(), more in prop::collection::vec(any::<u8>(), 1..100)) {
        let mut bytes = sealed(&word, &[]);
        bytes.truncate(WORD_LEN - CODE_LEN);
        bytes.extend_from_slice(&more);
        bytes[5] = u8::try_from(bytes.len()).unwrap();
        let code = signer(5).sign(KeyId(3), &[&bytes]).unwrap();
        bytes.extend_from_slice(&code);
        prop_assert_eq!(Word::open(&signer(5), &[], &bytes), Ok(word));
    }
}
