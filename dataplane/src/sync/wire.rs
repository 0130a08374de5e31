//! What two nodes say to each other of their flows, byte by byte. Numbers are big endian.
//!
//! ```text
//! body          kind (1) │ fields
//! of a stream   kind (1) │ stream (4) │ number (8) │ …        opening, batch, mark, repair: numbered from 0, acknowledged
//! record        kind (1) │ length (1) │ body                  in a batch, one after the other
//! ```
//!
//! What is longer than known is read as far as known; a kind that is not known is passed over and counted. What is shorter
//! than known is malformed.

mod record;

use super::content::CLASSES;
use super::shadow::{ClassSet, Classes, no_classes};

pub(crate) use record::{Said, longest_record, push_end, push_flow, records};

/// Layout of what is said, as this release has it.
pub(crate) const LAYOUT: u16 = 1;
/// Oldest layout a reader must know to understand it.
pub(crate) const READABLE_BY: u16 = 1;

/// Bytes of a body of a stream before its fields.
pub(crate) const STREAM_HEAD: usize = 13;

/// Bytes of a body with digests.
pub(crate) const DIGESTS: usize = STREAM_HEAD + 8 * CLASSES;
/// Most bytes of an acknowledgement, a verdict, a request or a refusal.
pub(crate) const SMALL: usize = 64;

/// A whole body that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message about flows is malformed")]
pub struct Malformed;

/// Kinds of bodies.
mod kind {
    pub(super) const OPENING: u8 = 1;
    pub(super) const BATCH: u8 = 2;
    pub(super) const ACK: u8 = 3;
    pub(super) const MARK: u8 = 4;
    pub(super) const DIGESTS: u8 = 5;
    pub(super) const REPAIR_BEGIN: u8 = 6;
    pub(super) const REPAIR_END: u8 = 7;
    pub(super) const ASK: u8 = 8;
    pub(super) const REFUSE: u8 = 9;
    pub(super) const VERDICT: u8 = 10;
}

/// Where in which stream a body stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    /// Which stream of its teller; one begins with each opening.
    pub(crate) stream: u32,
    /// Number of the body in it.
    pub(crate) number: u64,
}

/// Who begins a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// Layout of what follows.
    pub(crate) layout: u16,
    /// Oldest layout that can read it.
    pub(crate) readable_by: u16,
    /// Node id of the teller.
    pub(crate) node: u8,
    /// Which run of the teller's process.
    pub(crate) boot: u64,
    /// Key of words and classes.
    pub(crate) key: [u64; 2],
    /// Places of the teller's tables: IPv4, IPv6.
    pub(crate) places: [u32; 2],
}

/// What the applier has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    /// All bodies up to this one.
    pub(crate) at: At,
    /// XOR of all words there; none while they are being counted.
    pub(crate) total: Option<u64>,
    /// Flows of this stream for which there was no room.
    pub(crate) full: u32,
}

/// Why an applier applies nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It cannot read the layout.
    Layout,
    /// It owns flows itself.
    Owner,
    /// A reason this release does not know.
    Other(u8),
}

/// How the teller judges; the fields of another kind are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Which stream, and how many bodies of it went before.
    pub(crate) at: At,
    /// 0 = equal, 1 = behind, else why it is not syncing.
    pub(crate) code: u8,
    /// XOR of all words.
    pub(crate) total: u64,
    /// Records the peer has not acknowledged.
    pub(crate) records: u64,
    /// Age of the oldest, milliseconds.
    pub(crate) oldest_ms: u64,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    Opening(At, Opening),
    /// Records: see [`records`].
    Batch(At, &'a [u8]),
    Ack(Ack),
    Mark(At),
    /// The applier's digests at a mark.
    Digests(At, Classes),
    RepairBegin(At, ClassSet),
    RepairEnd(At),
    /// Begin a stream.
    Ask,
    Refuse(u32, Refusal),
    Judgement(Judgement),
    Unknown(u8),
}

impl<'a> Body<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`] if it is empty or shorter than its kind.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        Ok(match r.u8()? {
            kind::OPENING => Self::Opening(
                r.at()?,
                Opening {
                    layout: r.u16()?,
                    readable_by: r.u16()?,
                    node: r.u8()?,
                    boot: r.u64()?,
                    key: [r.u64()?, r.u64()?],
                    places: [r.u32()?, r.u32()?],
                },
            ),
            kind::BATCH => Self::Batch(r.at()?, r.0),
            kind::ACK => Self::Ack(Ack {
                at: r.at()?,
                total: {
                    let known = r.u8()? != 0;
                    let total = r.u64()?;
                    known.then_some(total)
                },
                full: r.u32()?,
            }),
            kind::MARK => Self::Mark(r.at()?),
            kind::DIGESTS => {
                let at = r.at()?;
                let bytes = r.take(8 * CLASSES)?;
                let mut classes = no_classes();
                for (class, bytes) in classes.iter_mut().zip(bytes.as_chunks().0) {
                    *class = u64::from_be_bytes(*bytes);
                }
                Self::Digests(at, classes)
            }
            kind::REPAIR_BEGIN => {
                let at = r.at()?;
                let mut set = ClassSet::empty();
                for word in set.0.iter_mut() {
                    *word = r.u64()?;
                }
                Self::RepairBegin(at, set)
            }
            kind::REPAIR_END => Self::RepairEnd(r.at()?),
            kind::ASK => Self::Ask,
            kind::REFUSE => Self::Refuse(
                r.u32()?,
                match r.u8()? {
                    1 => Refusal::Layout,
                    2 => Refusal::Owner,
                    other => Refusal::Other(other),
                },
            ),
            kind::VERDICT => Self::Judgement(Judgement {
                at: r.at()?,
                code: r.u8()?,
                total: r.u64()?,
                records: r.u64()?,
                oldest_ms: r.u64()?,
            }),
            other => Self::Unknown(other),
        })
    }

    /// Writes a message.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut w = Vec::new();
        match self {
            Self::Opening(at, opening) => {
                head(&mut w, kind::OPENING, *at);
                w.extend(opening.layout.to_be_bytes());
                w.extend(opening.readable_by.to_be_bytes());
                w.push(opening.node);
                for word in [opening.boot, opening.key[0], opening.key[1]] {
                    w.extend(word.to_be_bytes());
                }
                for places in opening.places {
                    w.extend(places.to_be_bytes());
                }
            }
            Self::Batch(at, records) => {
                head(&mut w, kind::BATCH, *at);
                w.extend(*records);
            }
            Self::Ack(ack) => {
                head(&mut w, kind::ACK, ack.at);
                w.push(u8::from(ack.total.is_some()));
                w.extend(ack.total.unwrap_or(0).to_be_bytes());
                w.extend(ack.full.to_be_bytes());
            }
            Self::Mark(at) => head(&mut w, kind::MARK, *at),
            Self::Digests(at, classes) => {
                w.reserve(DIGESTS);
                head(&mut w, kind::DIGESTS, *at);
                for class in classes {
                    w.extend(class.to_be_bytes());
                }
            }
            Self::RepairBegin(at, set) => {
                head(&mut w, kind::REPAIR_BEGIN, *at);
                for word in set.0.iter() {
                    w.extend(word.to_be_bytes());
                }
            }
            Self::RepairEnd(at) => head(&mut w, kind::REPAIR_END, *at),
            Self::Ask => w.push(kind::ASK),
            Self::Refuse(stream, refusal) => {
                w.push(kind::REFUSE);
                w.extend(stream.to_be_bytes());
                w.push(match refusal {
                    Refusal::Layout => 1,
                    Refusal::Owner => 2,
                    Refusal::Other(other) => *other,
                });
            }
            Self::Judgement(judgement) => {
                head(&mut w, kind::VERDICT, judgement.at);
                w.push(judgement.code);
                for word in [judgement.total, judgement.records, judgement.oldest_ms] {
                    w.extend(word.to_be_bytes());
                }
            }
            Self::Unknown(kind) => w.push(*kind),
        }
        w
    }
}

fn head(w: &mut Vec<u8>, kind: u8, at: At) {
    w.push(kind);
    w.extend(at.stream.to_be_bytes());
    w.extend(at.number.to_be_bytes());
}

/// The head of a batch, to which records are added.
pub(crate) fn begin_batch(w: &mut Vec<u8>, at: At) {
    head(w, kind::BATCH, at);
}

/// Takes bytes from the front, never more than there are.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    fn at(&mut self) -> Result<At, Malformed> {
        Ok(At {
            stream: self.u32()?,
            number: self.u64()?,
        })
    }
}

#[cfg(test)]
mod tests;
