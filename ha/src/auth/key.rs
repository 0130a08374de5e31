//! The keys of a pair.
//!
//! One file on both nodes holds the pair's id and one or more numbered secrets. From each secret a key for every purpose is
//! derived (HKDF-SHA256, RFC 5869, with the pair's id as salt), so that no message of one kind passes for another.
//!
//! **Rotation without a gap.** Every message says the highest number its sender holds. A node signs with the highest one
//! that both hold, and believes every one it holds. So a new secret goes into the file on one node and then on the other;
//! both change over by themselves, and the old one is removed when both have.

use hkdf::Hkdf;
use hmac::{Hmac, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::{Zeroize as _, ZeroizeOnDrop};

/// Bytes of a message authentication code: all of HMAC-SHA256.
pub const CODE_LEN: usize = 32;
/// Most secrets of one pair.
pub const MAX_KEYS: usize = 8;

/// Number of a secret; grows with every rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub u16);

/// What a derived key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The trailer of adverts.
    Advert,
    /// HA datagrams.
    Datagram,
    /// The stream between the main processes.
    Stream,
}

impl Purpose {
    const fn info(self) -> &'static [u8] {
        match self {
            Self::Advert => b"onearm 1 advert",
            Self::Datagram => b"onearm 1 datagram",
            Self::Stream => b"onearm 1 stream",
        }
    }
}

/// A numbered secret; leaves nothing behind in memory.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ZeroizeOnDrop)]
pub struct Key {
    /// Its number.
    #[zeroize(skip)]
    pub id: KeyId,
    /// From a generator fit for keys.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({}, secret)", self.id.0)
    }
}

/// The pair's id and its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairKeys {
    pair: [u8; 16],
    /// By number, ascending; at least one.
    keys: Vec<Key>,
}

/// Keys that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is none.
    #[error("there is no key")]
    None,
    /// More than [`MAX_KEYS`].
    #[error("there are {0} keys, more than {MAX_KEYS}")]
    TooMany(usize),
    /// Two have the same number.
    #[error("two keys have the number {}", .0.0)]
    Twice(KeyId),
}

impl PairKeys {
    /// Takes the keys in any order.
    ///
    /// # Errors
    /// [`KeyError`] if there is none, too many, or two of one number.
    pub fn new(pair: [u8; 16], mut keys: Vec<Key>) -> Result<Self, KeyError> {
        if keys.is_empty() {
            return Err(KeyError::None);
        }
        if keys.len() > MAX_KEYS {
            return Err(KeyError::TooMany(keys.len()));
        }
        keys.sort_by_key(|key| key.id);
        if let Some(twice) = keys.windows(2).find(|two| two[0].id == two[1].id) {
            return Err(KeyError::Twice(twice[0].id));
        }
        Ok(Self { pair, keys })
    }

    /// The pair's id.
    pub const fn pair(&self) -> &[u8; 16] {
        &self.pair
    }

    /// The secrets, by number, ascending.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The numbers, ascending.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = KeyId> {
        self.keys.iter().map(|key| key.id)
    }

    /// The highest number.
    pub fn newest(&self) -> KeyId {
        self.keys.last().map_or(KeyId(0), |key| key.id)
    }

    /// With which key to sign for a peer that holds keys up to `peer_newest`; `None`: it was not heard yet.
    ///
    /// The highest number not above the peer's, else the lowest: who has only newer ones hopes that they are there, too.
    pub fn to_sign(&self, peer_newest: Option<KeyId>) -> KeyId {
        let common = peer_newest.and_then(|newest| self.ids().rfind(|id| *id <= newest));
        common.or_else(|| self.ids().next()).unwrap_or(KeyId(0))
    }

    /// The key for one purpose, 32 bytes; `None` for a number the pair does not hold.
    pub fn derive(&self, id: KeyId, purpose: Purpose) -> Option<[u8; 32]> {
        let key = self.keys.iter().find(|key| key.id == id)?;
        let mut derived = [0; 32];
        Hkdf::<Sha256>::new(Some(&self.pair), &key.secret)
            .expand(purpose.info(), &mut derived)
            .ok()?;
        Some(derived)
    }
}

/// The keys of one purpose, derived once; to sign and to check with.
#[derive(Clone)]
pub struct Signer {
    pair: [u8; 16],
    keys: Vec<(KeyId, [u8; 32])>,
}

impl Drop for Signer {
    fn drop(&mut self) {
        for (_, key) in &mut self.keys {
            key.zeroize();
        }
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({} keys)", self.keys.len())
    }
}

impl Signer {
    /// Derives every key.
    pub fn new(keys: &PairKeys, purpose: Purpose) -> Self {
        let derive = |id| keys.derive(id, purpose).map(|key| (id, key));
        Self {
            pair: keys.pair,
            keys: keys.ids().filter_map(derive).collect(),
        }
    }

    fn begin(&self, id: KeyId, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let (_, key) = self.keys.iter().find(|(known, _)| *known == id)?;
        let mut code = Hmac::<Sha256>::new_from_slice(key).ok()?;
        code.update(&self.pair);
        for part in parts {
            code.update(part);
        }
        Some(code)
    }

    /// The code over the pair's id and `parts`, one after the other; `None` for a key that is not held.
    pub fn sign(&self, id: KeyId, parts: &[&[u8]]) -> Option<[u8; CODE_LEN]> {
        Some(self.begin(id, parts)?.finalize().into_bytes().into())
    }

    /// Whether `code` is right; takes the same time wherever it is wrong. `None` for a key that is not held.
    pub fn is_right(&self, id: KeyId, parts: &[&[u8]], code: &[u8; CODE_LEN]) -> Option<bool> {
        Some(self.begin(id, parts)?.verify_slice(code).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(ids: &[u8]) -> PairKeys {
        let keys = ids.iter().map(|id| Key {
            id: KeyId(u16::from(*id)),
            secret: [*id; 32],
        });
        PairKeys::new([7; 16], keys.collect()).unwrap()
    }

    #[test]
    fn each_number_and_purpose_and_pair_has_a_key_of_its_own() {
        let pair = keys(&[1, 2]);
        let other = PairKeys::new([8; 16], pair.keys.clone()).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for (pair, id) in [(&pair, 1), (&pair, 2), (&other, 1), (&other, 2)] {
            for purpose in [Purpose::Advert, Purpose::Datagram, Purpose::Stream] {
                assert!(seen.insert(pair.derive(KeyId(id), purpose).unwrap()));
            }
        }
        assert_eq!(pair.derive(KeyId(3), Purpose::Advert), None);
    }

    #[test]
    fn a_rotation_has_no_moment_in_which_the_nodes_do_not_understand_each_other() {
        // (held by A, held by B), as the files change one after the other.
        let steps: [(&[u8], &[u8]); 5] = [
            (&[1], &[1]),
            (&[1, 2], &[1]),
            (&[1, 2], &[1, 2]),
            (&[2], &[1, 2]),
            (&[2], &[2]),
        ];
        let (mut a_knows, mut b_knows) = (None, None);
        for (a, b) in steps {
            let (a, b) = (keys(a), keys(b));
            for _ in 0..2 {
                let (from_a, from_b) = (a.to_sign(a_knows), b.to_sign(b_knows));
                assert!(b.ids().any(|id| id == from_a), "B holds what A signs with");
                assert!(a.ids().any(|id| id == from_b), "A holds what B signs with");
                (a_knows, b_knows) = (Some(b.newest()), Some(a.newest()));
            }
        }
        assert_eq!(keys(&[1, 2]).to_sign(Some(KeyId(2))), KeyId(2));
    }

    #[test]
    fn a_code_holds_for_its_own_text_key_and_purpose_alone() {
        let pair = keys(&[1, 2]);
        let adverts = Signer::new(&pair, Purpose::Advert);
        let code = adverts.sign(KeyId(1), &[b"ab", b"c"]).unwrap();
        assert_eq!(adverts.is_right(KeyId(1), &[b"abc"], &code), Some(true));
        assert_eq!(adverts.is_right(KeyId(1), &[b"abd"], &code), Some(false));
        assert_eq!(adverts.is_right(KeyId(2), &[b"abc"], &code), Some(false));
        assert_eq!(adverts.is_right(KeyId(9), &[b"abc"], &code), None);
        let datagrams = Signer::new(&pair, Purpose::Datagram);
        assert_eq!(datagrams.is_right(KeyId(1), &[b"abc"], &code), Some(false));
    }

    #[test]
    fn keys_that_cannot_be_used_are_refused_and_none_is_ever_printed() {
        assert_eq!(PairKeys::new([0; 16], vec![]), Err(KeyError::None));
        let one = Key {
            id: KeyId(1),
            secret: [0xab; 32],
        };
        assert_eq!(
            PairKeys::new([0; 16], vec![one.clone(), one.clone()]),
            Err(KeyError::Twice(KeyId(1)))
        );
        assert_eq!(
            PairKeys::new([0; 16], vec![one.clone(); 9]),
            Err(KeyError::TooMany(9))
        );
        let shown = format!(
            "{one:?} {:?}",
            Signer::new(
                &PairKeys::new([0; 16], vec![one.clone()]).unwrap(),
                Purpose::Advert
            )
        );
        assert!(!shown.contains("171") && !shown.contains("ab"), "{shown}");
    }
}
