//! What every authenticated message says: who speaks, what it holds, and whom it has heard.
//!
//! ```text
//!  0               4       5       6       7       8
//! +---------------+-------+-------+-------+-------+
//! | magic "1arm"  |format | length| kind  | node  |
//! +---------------+-------+-------+-------+-------+
//! | key           | newest key    |prio.  |flags  | interval (cs) |   16
//! | incarnation                                                   |   24
//! | sequence                                                      |   32
//! | echo: incarnation (0: nobody heard yet)                       |   40
//! | echo: sequence                                                |   48
//! | epoch                                                         |   56
//! | generation                                                    |   64
//! | digest of the owned set                                       |   72
//! | health                        |refusal| reserved, 0           |   80
//! | code: HMAC-SHA256 over the pair's id, the context, all above  |  112
//! +---------------------------------------------------------------+
//! ```
//!
//! Numbers in network byte order. `length` counts the bytes before the code; a later release may append fields, which
//! this one signs and checks and otherwise ignores. `format` changes when an older release could misunderstand.

use serde::{Deserialize, Serialize};

use super::key::{CODE_LEN, KeyId, Signer};
use crate::election::{Refused, Stance};
use crate::units::{Centiseconds, Priority};

const MAGIC: [u8; 4] = *b"1arm";
const FORMAT: u8 = 1;
/// Bytes before the code.
const BODY_LEN: u8 = 80;
/// Bytes of a word of this release, with its code.
pub const WORD_LEN: usize = BODY_LEN as usize + CODE_LEN;
const HEARS_TWINS: u8 = 1;
/// Bits of the flags that are [`Signs`].
const SIGNS: u8 = 0x3e;

/// What the sender is, or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// Takes no part.
    Idle = 0,
    /// Waits.
    Standby = 1,
    /// Owns the addresses under `epoch`.
    Owner = 2,
    /// Asks whether anybody owns the addresses; would own them under `epoch`.
    Claim = 3,
    /// Is better than the owner it hears, and wants it to let go.
    Preempt = 4,
    /// Owned the addresses under `epoch`, and owns them no more.
    Release = 5,
}

impl Kind {
    /// What an advert without a word says by its priority alone. One that asks an owner to let go looks like an owner's.
    pub fn of_priority(priority: Priority) -> Self {
        match priority {
            Priority::RELEASE => Self::Release,
            Priority::CLAIM => Self::Claim,
            _ => Self::Owner,
        }
    }

    const fn read(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Idle,
            1 => Self::Standby,
            2 => Self::Owner,
            3 => Self::Claim,
            4 => Self::Preempt,
            5 => Self::Release,
            _ => return None,
        })
    }
}

/// What a node can do, as bits, the one that matters most highest: of two nodes the one with the higher number is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Health(pub u32);

impl Health {
    /// The dataplane's programs are on every leg.
    pub const DATAPLANE: Self = Self(1 << 31);
    /// The leg of the adverts has proved able to receive.
    pub const RECEIVES: Self = Self(1 << 30);
    /// Every leg has carrier.
    pub const LEGS: Self = Self(1 << 29);
    /// The witness answers.
    pub const WITNESS: Self = Self(1 << 28);
    /// The quorum of servers is up.
    pub const SERVERS: Self = Self(1 << 27);
    /// The operator's scripts say yes.
    pub const SCRIPTS: Self = Self(1 << 26);
    /// What the operator has tracked.
    pub const TRACKED: Self = Self::SERVERS.with(Self::SCRIPTS);

    /// Whether every bit of `bits` is set.
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// These bits without those of `bits`.
    #[must_use]
    pub const fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }

    /// These bits and those of `bits`.
    #[must_use]
    pub const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }
}

/// What a node says of hand-overs and of what its operator wants: bits of the word's flags, and above them the refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signs(u16);

impl Signs {
    /// An owner that wants to hand over: its peer is armed for a moment.
    pub const ARMS: Self = Self(1 << 1);
    /// A Standby that is armed.
    pub const ARMED: Self = Self(1 << 2);
    /// A Standby that asks the owner to hand over: its operator wants it.
    pub const ASKS: Self = Self(1 << 3);
    /// The operator wants ownership to stay where it is.
    pub const HOLDS: Self = Self(1 << 4);
    /// This node owns nothing, even if nobody does.
    pub const MAINTENANCE: Self = Self(1 << 5);

    /// Whether every bit of `bits` is set.
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// These bits and those of `bits`.
    #[must_use]
    pub const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }

    /// An owner that does not do what its peer asks for, and why.
    pub(crate) const fn refusing(refused: Refused) -> Self {
        Self((refused as u16) << 8)
    }

    /// Why its sender does not do what it is asked for.
    pub(crate) const fn refused(self) -> Option<Refused> {
        Refused::of_code(self.0.to_be_bytes()[0])
    }

    /// What they say of the operator's wish.
    pub(crate) fn stance(self) -> Stance {
        if self.has(Self::MAINTENANCE) {
            Stance::Maintenance
        } else if self.has(Self::HOLDS) {
            Stance::Hold
        } else {
            Stance::Normal
        }
    }
}

/// Which message this is, and the last one of the peer's that its sender has heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Random, not 0, anew whenever the sender starts.
    pub incarnation: u64,
    /// From 1, one more with every message on any path.
    pub sequence: u64,
    /// Incarnation and sequence of the peer's message.
    pub echo: Option<(u64, u64)>,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// What the sender is.
    pub kind: Kind,
    /// The sender's id in the pair, 1 or 2.
    pub node: u8,
    /// Highest key the sender holds.
    pub newest_key: KeyId,
    /// Priority with which it takes part.
    pub priority: Priority,
    /// The sender hears two that have the receiver's name: a clone of it is running.
    pub hears_twins: bool,
    /// What it says of hand-overs.
    pub signs: Signs,
    /// Interval it keeps as an owner.
    pub interval: Centiseconds,
    /// Which message.
    pub stamp: Stamp,
    /// See [`Kind`]; of one that owns nothing the highest epoch it knows of.
    pub epoch: u64,
    /// Generation of the shared configuration in force.
    pub generation: u64,
    /// Digest of the owned set.
    pub owned_digest: u64,
    /// What it can do.
    pub health: Health,
}

/// A word as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spoken {
    /// What was said.
    pub word: Word,
    /// Signed with this key.
    pub key: KeyId,
}

/// Why a word is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Disbelief {
    /// There is none: the sender does not authenticate.
    #[error("not authenticated")]
    Missing,
    /// Too short, or no word at all.
    #[error("not a whole word")]
    Malformed,
    /// Of a release that this one cannot understand.
    #[error("format {0} is not known")]
    Format(u8),
    /// Signed with a key that this node does not hold.
    #[error("key {} is not held", .0.0)]
    UnknownKey(KeyId),
    /// The code is wrong: another pair, another key of the same number, or forged.
    #[error("the code is wrong")]
    WrongCode,
    /// Signed, but a field is out of its range.
    #[error("a field is out of range")]
    OutOfRange,
}

impl Word {
    /// Appends the word to `out`, signed with `key` over `context` and itself; `None` if the key is not held.
    pub fn seal(&self, signer: &Signer, key: KeyId, context: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[FORMAT, BODY_LEN, self.kind as u8, self.node]);
        out.extend_from_slice(&key.0.to_be_bytes());
        out.extend_from_slice(&self.newest_key.0.to_be_bytes());
        let [refusal, signs] = self.signs.0.to_be_bytes();
        out.extend_from_slice(&[
            self.priority.get(),
            signs | if self.hears_twins { HEARS_TWINS } else { 0 },
        ]);
        out.extend_from_slice(&self.interval.get().to_be_bytes());
        let (echo_incarnation, echo_sequence) = self.stamp.echo.unwrap_or_default();
        for number in [
            self.stamp.incarnation,
            self.stamp.sequence,
            echo_incarnation,
            echo_sequence,
            self.epoch,
            self.generation,
            self.owned_digest,
        ] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.health.0.to_be_bytes());
        out.extend_from_slice(&[refusal, 0, 0, 0]);
        let mut parts = context.to_vec();
        parts.push(&out[start..]);
        let Some(code) = signer.sign(key, &parts) else {
            out.truncate(start);
            return None;
        };
        out.extend_from_slice(&code);
        Some(())
    }

    /// Reads a word from the start of `bytes`, and believes it only with a right code.
    ///
    /// # Errors
    /// [`Disbelief`], in the order of its variants: nothing of a word is looked at before its code.
    pub fn open(signer: &Signer, context: &[&[u8]], bytes: &[u8]) -> Result<Self, Disbelief> {
        if bytes.is_empty() {
            return Err(Disbelief::Missing);
        }
        let head: [u8; 10] = at(bytes, 0)?;
        if head[..4] != MAGIC {
            return Err(Disbelief::Missing);
        }
        if head[4] != FORMAT {
            return Err(Disbelief::Format(head[4]));
        }
        let length = usize::from(head[5]);
        if head[5] < BODY_LEN {
            return Err(Disbelief::Malformed);
        }
        let body = bytes.get(..length).ok_or(Disbelief::Malformed)?;
        let code: [u8; CODE_LEN] = at(bytes, length)?;
        let key = KeyId(u16::from_be_bytes([head[8], head[9]]));
        let mut parts = context.to_vec();
        parts.push(body);
        match signer.is_right(key, &parts, &code) {
            None => Err(Disbelief::UnknownKey(key)),
            Some(false) => Err(Disbelief::WrongCode),
            Some(true) => Self::read(body).ok_or(Disbelief::OutOfRange),
        }
    }

    fn read(body: &[u8]) -> Option<Self> {
        let number = |from| at(body, from).ok().map(u64::from_be_bytes);
        let stamp = Stamp {
            incarnation: number(16).filter(|n| *n != 0)?,
            sequence: number(24).filter(|n| *n != 0)?,
            echo: Some((number(32)?, number(40)?)).filter(|(incarnation, _)| *incarnation != 0),
        };
        Some(Self {
            kind: Kind::read(body[6])?,
            node: Some(body[7]).filter(|id| matches!(id, 1 | 2))?,
            newest_key: KeyId(u16::from_be_bytes([body[10], body[11]])),
            priority: Priority::from_wire(body[12]),
            hears_twins: body[13] & HEARS_TWINS != 0,
            signs: Signs(u16::from_be_bytes([body[76], body[13] & SIGNS])),
            interval: Centiseconds::new(u16::from_be_bytes([body[14], body[15]])).ok()?,
            stamp,
            epoch: number(48)?,
            generation: number(56)?,
            owned_digest: number(64)?,
            health: Health(u32::from_be_bytes(at(body, 72).ok()?)),
        })
    }
}

fn at<const N: usize>(bytes: &[u8], from: usize) -> Result<[u8; N], Disbelief> {
    let slice = bytes.get(from..from + N).ok_or(Disbelief::Malformed)?;
    slice.try_into().map_err(|_| Disbelief::Malformed)
}

#[cfg(test)]
mod tests;
