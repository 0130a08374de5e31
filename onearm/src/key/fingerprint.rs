use std::fmt::Write as _;

use onearm_ha::auth::{Key, PairKeys};
use sha2::Digest as _;

use crate::control::KeyStatus;

/// The keys as they may be shown.
pub fn shown(keys: &PairKeys) -> Vec<KeyStatus> {
    let shown = |key: &Key| KeyStatus {
        id: key.id.0,
        fingerprint: fingerprint(keys, key),
    };
    keys.keys().iter().map(shown).collect()
}

/// What may be shown of a key: equal on two nodes exactly if pair, number and secret are. 64 bits, `3f2a-91bc-7e10-55d2`.
pub fn fingerprint(keys: &PairKeys, key: &Key) -> String {
    let mut hash = sha2::Sha256::new_with_prefix(b"onearm key fingerprint");
    hash.update(keys.pair());
    hash.update(key.id.0.to_be_bytes());
    hash.update(key.secret);
    let mut text = String::new();
    for (place, two) in hash.finalize().chunks(2).take(4).enumerate() {
        let dash = if place == 0 { "" } else { "-" };
        // Writing to a string never fails.
        let _ignored = write!(text, "{dash}{:02x}{:02x}", two[0], two[1]);
    }
    text
}
