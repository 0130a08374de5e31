//! Noise as the stream uses it: `NNpsk0` with X25519, ChaCha20-Poly1305 and SHA-256, by `snow`.
//!
//! Ephemeral keys are made by the library from the system's generator: the one thing in a session that does not come from outside,
//! because nobody else may know it.

use onearm_ha::auth::{KeyId, PairKeys, Purpose};
use snow::{Builder, HandshakeState, TransportState};
use zeroize::Zeroizing;

use super::wire::{self, MOST_HANDSHAKE};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Bound into every handshake before the pair's id and the opening's head.
const PROTOCOL: &[u8] = b"onearm stream";

/// Messages of one direction after which its key is changed: part of the protocol, both sides count.
pub(super) const REKEY_AFTER: u64 = 1 << 20;

/// A handshake under key `id`; `None` for a key that is not held.
pub(super) fn handshake(keys: &PairKeys, id: KeyId, begins: bool) -> Option<HandshakeState> {
    let secret = Zeroizing::new(keys.derive(id, Purpose::Stream)?);
    let prologue = [PROTOCOL, keys.pair(), &wire::opening_head(id)].concat();
    let params = PATTERN.parse().ok()?;
    let builder = Builder::new(params)
        .psk(0, &secret)
        .and_then(|builder| builder.prologue(&prologue))
        .ok()?;
    let made = if begins {
        builder.build_initiator()
    } else {
        builder.build_responder()
    };
    made.ok()
}

/// The next message of a handshake with `payload`.
pub(super) fn write(handshake: &mut HandshakeState, payload: &[u8]) -> Option<Vec<u8>> {
    let mut message = vec![0; MOST_HANDSHAKE];
    let length = handshake.write_message(payload, &mut message).ok()?;
    message.truncate(length);
    Some(message)
}

/// The payload of the peer's message; `None` where it does not hold a right one.
pub(super) fn read(handshake: &mut HandshakeState, message: &[u8]) -> Option<Vec<u8>> {
    let mut payload = vec![0; MOST_HANDSHAKE];
    let length = handshake.read_message(message, &mut payload).ok()?;
    payload.truncate(length);
    Some(payload)
}

/// Both directions of a session, with keys that change by themselves.
#[derive(Debug)]
pub(super) struct Ciphers {
    state: TransportState,
    rekey_after: u64,
    sealed: u64,
    opened: u64,
}

impl Ciphers {
    /// Of a handshake that is done.
    pub(super) fn new(done: HandshakeState, rekey_after: u64) -> Option<Self> {
        Some(Self {
            state: done.into_transport_mode().ok()?,
            rekey_after,
            sealed: 0,
            opened: 0,
        })
    }

    /// Appends `plain`, at most [`wire::MOST_PLAIN`] bytes, to `to` as a frame with its length.
    pub(super) fn seal(&mut self, plain: &[u8], to: &mut Vec<u8>) -> Option<()> {
        let length = u16::try_from(plain.len() + wire::TAG).ok()?;
        to.extend_from_slice(&length.to_be_bytes());
        let at = to.len();
        to.resize(at + usize::from(length), 0);
        self.state.write_message(plain, &mut to[at..]).ok()?;
        self.sealed += 1;
        if self.sealed.is_multiple_of(self.rekey_after) {
            self.state.rekey_outgoing();
        }
        Some(())
    }

    /// What is in a frame, in `plain` from its beginning; `None` where it was altered, repeated, or left out before.
    pub(super) fn open<'a>(&mut self, frame: &[u8], plain: &'a mut [u8]) -> Option<&'a [u8]> {
        let length = self.state.read_message(frame, plain).ok()?;
        self.opened += 1;
        if self.opened.is_multiple_of(self.rekey_after) {
            self.state.rekey_incoming();
        }
        plain.get(..length)
    }
}
