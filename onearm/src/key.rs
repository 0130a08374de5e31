//! The file with the pair's key: its text, who may read it, and how it is made, rotated and shown.
//!
//! The same file lies on both nodes. It holds the pair's id and one secret, during a rotation two: nodes sign with the
//! newest one that both hold ([`onearm_ha::auth::key`]), so that no step of a rotation has a gap.

mod fingerprint;
mod place;
mod rotation;
mod text;

#[cfg(test)]
mod tests;

pub use fingerprint::{fingerprint, shown};
pub use place::{Lock, Reader, StoreError, create, lock, read, replace};
pub use rotation::{RotationError, finished, generate, with_next};
pub use text::{emit, parse};

/// Where the key is unless `peer.key_file` of `node.toml` says otherwise.
pub const DEFAULT_KEY_FILE: &str = "/etc/onearm/pair.key";
