use std::io;

use onearm_ha::auth::{Key, KeyId, PairKeys};
use zeroize::Zeroize as _;

/// Why a key file cannot take the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RotationError {
    /// It holds the next key already.
    #[error("key {} waits for both nodes already", newest.0)]
    UnderWay {
        /// The newest key.
        newest: KeyId,
    },
    /// There is no older key to drop.
    #[error("key {} is the only one: no rotation is under way", only.0)]
    NotUnderWay {
        /// The key.
        only: KeyId,
    },
    /// No number is left.
    #[error("no number is left after {}: make a new key file", last.0)]
    LastNumber {
        /// The newest key.
        last: KeyId,
    },
    /// The kernel gives no random numbers.
    #[error("the kernel gives no random numbers")]
    Random(#[source] io::Error),
}

fn random<const N: usize>() -> Result<[u8; N], RotationError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| RotationError::Random(io::Error::other(error)))?;
    Ok(bytes)
}

/// A key with 256 bits from the kernel's generator.
fn key(id: KeyId) -> Result<Key, RotationError> {
    let mut secret = random()?;
    let key = Key { id, secret };
    secret.zeroize();
    Ok(key)
}

/// One key, or two of different numbers.
fn pair(id: [u8; 16], keys: Vec<Key>) -> PairKeys {
    PairKeys::new(id, keys).expect("one or two keys of different numbers")
}

/// A new pair's id and its key 1.
///
/// # Errors
/// [`RotationError::Random`].
pub fn generate() -> Result<PairKeys, RotationError> {
    Ok(pair(random()?, vec![key(KeyId(1))?]))
}

/// The keys with a next one.
///
/// # Errors
/// [`RotationError::UnderWay`] where there is more than one, [`RotationError::LastNumber`], [`RotationError::Random`].
pub fn with_next(keys: &PairKeys) -> Result<PairKeys, RotationError> {
    let newest = keys.newest();
    let [only] = keys.keys() else {
        return Err(RotationError::UnderWay { newest });
    };
    let next = newest.0.checked_add(1);
    let next = key(KeyId(next.ok_or(RotationError::LastNumber { last: newest })?))?;
    Ok(pair(*keys.pair(), vec![only.clone(), next]))
}

/// The newest key alone.
///
/// # Errors
/// [`RotationError::NotUnderWay`] where there is one already.
pub fn finished(keys: &PairKeys) -> Result<PairKeys, RotationError> {
    match keys.keys() {
        [_, .., newest] => Ok(pair(*keys.pair(), vec![newest.clone()])),
        _ => Err(RotationError::NotUnderWay { only: keys.newest() }),
    }
}
