//! What has been proved about the peer: that it is there now (freshness), and that nothing is heard twice.
//!
//! Every message of this node is a challenge: its incarnation is random, so nobody can have recorded an answer to it before.
//! The peer proves that it is there by echoing, under the key, the number of a message that this node sent a moment ago. From
//! then on its messages are believed as long as their sequence grows; what repeats is dropped. Nothing is kept on disk: a
//! reboot, a restored snapshot and a cloned disk all begin with proofs anew.

use serde::{Deserialize, Serialize};

use super::word::{Kind, Stamp};
use crate::units::MonoTime;

/// How old the message that is echoed may be. Nanoseconds.
///
/// Ten times the longest time between two HA datagrams, and fewer messages than are told apart at the shortest interval.
pub const FRESH_NANOS: u64 = 500_000_000;
/// Two incarnations of one name that prove themselves in turn within this time live beside each other. Nanoseconds.
pub const TWINS_NANOS: u64 = 5_000_000_000;
/// Messages before the newest one that are told apart from repetitions of themselves.
const WINDOW: usize = 1024;
/// Messages sent whose time is remembered.
const REMEMBERED: usize = 256;
/// Rank of a candidate that was echoed.
const ECHOED: u64 = u64::MAX;
/// What is sent within this time echoes the same, whatever the number of paths. Nanoseconds.
const TURN_NANOS: u64 = 1_000_000;

/// What a believed message proves about now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Freshness {
    /// Its sender has just heard this node: it is there, and receives.
    Proved,
    /// Its sender proved itself before, and this message is a new one; whether it hears this node is not known.
    Known,
    /// Its sender has proved nothing yet; the message may have been recorded in another life.
    Unproved,
}

/// What is strange about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Oddity {
    /// Heard before: a replay, a loop, or a network that repeats frames. To be dropped.
    Repeated,
    /// This node's own message came back: a loop. To be dropped.
    Own,
    /// Signed in this node's name, in an earlier life or by a clone; who is there now the peer can tell, not this node. To be
    /// dropped.
    OwnName,
    /// The peer went back to an earlier state and is there now: a snapshot was restored.
    WentBack,
    /// Two that have the peer's name and key prove themselves in turn: a clone of it is running.
    Twins,
}

/// How a message is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Judged {
    /// `None`: not to be used at all.
    pub freshness: Option<Freshness>,
    /// What an operator is to know.
    pub oddity: Option<Oddity>,
    /// Its sender said something else after it, which was heard before: it tells nothing of what its sender is now.
    pub is_late: bool,
}

/// The peer as far as it is proved.
#[derive(Clone, Debug)]
struct Known {
    incarnation: u64,
    newest: u64,
    /// The message heard last, which is not the newest when a node was put back to a snapshot, and when it was heard.
    last: u64,
    at: MonoTime,
    /// Highest message of this node's that it has echoed.
    echoed: u64,
    /// The message of this node's whose echo proved it; what it said before echoes earlier ones.
    proof: u64,
    /// The last message that this node had sent by then; who was there before has heard no later one.
    since: u64,
    /// Of the last [`WINDOW`] up to the newest, each at its number modulo that: whether it was heard.
    heard: [bool; WINDOW],
}

impl Known {
    fn new(now: MonoTime, stamp: &Stamp, since: u64) -> Self {
        let mut heard = [false; WINDOW];
        heard[slot(stamp.sequence, WINDOW)] = true;
        let proof = stamp.echo.map_or(0, |(_, sequence)| sequence);
        Self {
            incarnation: stamp.incarnation,
            newest: stamp.sequence,
            last: stamp.sequence,
            at: now,
            echoed: proof,
            proof,
            since,
            heard,
        }
    }

    /// Notes a message; whether it is new. `None`: too old to tell.
    fn note(&mut self, now: MonoTime, sequence: u64) -> Option<bool> {
        if sequence > self.newest {
            for skipped in (self.newest + 1..=sequence).take(WINDOW) {
                self.heard[slot(skipped, WINDOW)] = false;
            }
            self.newest = sequence;
        }
        if self.newest - sequence >= WINDOW as u64 {
            return None;
        }
        let is_new = !std::mem::replace(&mut self.heard[slot(sequence, WINDOW)], true);
        if is_new {
            self.last = sequence;
            self.at = now;
        }
        Some(is_new)
    }
}

/// This node's end of the talk with its peer.
#[derive(Clone, Debug)]
pub struct Session {
    incarnation: u64,
    /// Nobody else knows it.
    salt: u64,
    sent: u64,
    /// When message `n` was sent, at `n % REMEMBERED`.
    sent_at: [MonoTime; REMEMBERED],
    known: Option<Known>,
    /// A message that proved nothing or was dropped, to be echoed, with its rank among those since the last stamp; the lowest counts.
    candidate: Option<(u64, (u64, u64))>,
    /// When the last turn of messages began, and whether it echoes the candidate.
    turn: (MonoTime, bool),
    /// An incarnation that proved itself before the known one, and when that one followed it.
    other: Option<(u64, MonoTime)>,
    /// When the peer went back last.
    went_back_at: Option<MonoTime>,
    twins_at: Option<MonoTime>,
}

impl Session {
    /// Both numbers are random; of an incarnation of 0 the session makes 1, and `salt` is told to nobody.
    pub fn new(incarnation: u64, salt: u64) -> Self {
        Self {
            incarnation: incarnation.max(1),
            salt,
            sent: 0,
            sent_at: [MonoTime::ZERO; REMEMBERED],
            known: None,
            candidate: None,
            turn: (MonoTime::ZERO, false),
            other: None,
            went_back_at: None,
            twins_at: None,
        }
    }

    /// Whether two of the peer's name were there in the last [`TWINS_NANOS`].
    pub fn hears_twins(&self, now: MonoTime) -> bool {
        self.twins_at.is_some_and(|at| now.since(at) <= TWINS_NANOS)
    }

    /// The stamp of the next message.
    ///
    /// It echoes the peer as it is known; while others in its name wait for an echo, in every other turn one of them: the peer
    /// may have started anew, or this node be put back to a time before that. What moves ownership says what was heard of the peer.
    pub fn stamp(&mut self, now: MonoTime, kind: Kind) -> Stamp {
        self.sent += 1;
        self.sent_at[slot(self.sent, REMEMBERED)] = now;
        let waits = self.candidate.is_some_and(|(rank, _)| rank != ECHOED);
        if now.since(self.turn.0) >= TURN_NANOS {
            self.turn = (now, waits && !self.turn.1);
        }
        let known = self.known.as_ref();
        let is_others_turn = self.turn.1 && matches!(kind, Kind::Owner | Kind::Standby | Kind::Idle);
        let there = known.filter(|known| !is_others_turn && now.since(known.at) <= FRESH_NANOS);
        let last = |known: &Known| (known.incarnation, known.last);
        let echo = there.map(last).or_else(|| {
            let (rank, message) = self.candidate.as_mut()?;
            *rank = ECHOED;
            Some(*message)
        });
        Stamp {
            incarnation: self.incarnation,
            sequence: self.sent,
            echo: echo.or(known.map(last)),
        }
    }

    /// Takes a message with a right code in the peer's name.
    pub fn judge(&mut self, now: MonoTime, stamp: &Stamp) -> Judged {
        let proved = self.is_echo(now, stamp);
        let echoed = self.echoed_by(stamp);
        let sent = self.sent;
        if let Some(known) = &mut self.known
            && known.incarnation == stamp.incarnation
        {
            // It was said before its sender went back to where it was proved anew.
            if echoed.is_some_and(|echoed| echoed < known.proof) {
                return self.drop_repeated(stamp);
            }
            let newly = echoed.filter(|echoed| proved && *echoed > known.echoed);
            known.echoed = newly.unwrap_or(known.echoed);
            let is_late = stamp.sequence < known.newest;
            return match known.note(now, stamp.sequence) {
                Some(true) => Judged {
                    is_late,
                    ..taken(
                        if proved {
                            Freshness::Proved
                        } else {
                            Freshness::Known
                        },
                        None,
                    )
                },
                // It has heard what no message before had heard: no replay, but a sender that is not what it was.
                Some(false) | None if newly.is_some() => {
                    self.known = Some(Known::new(now, stamp, sent));
                    let again = self.went_back_at.replace(now);
                    let twins = again.is_some_and(|at| now.since(at) < TWINS_NANOS);
                    self.proved_oddly(now, if twins { Oddity::Twins } else { Oddity::WentBack })
                }
                Some(false) | None => self.drop_repeated(stamp),
            };
        }
        // The last words of one that was replaced echo what it heard before.
        let replaces = |known: &Known| echoed > Some(known.since);
        if !proved || !self.known.as_ref().is_none_or(replaces) {
            self.consider(stamp);
            return taken(Freshness::Unproved, None);
        }
        let before = self.known.replace(Known::new(now, stamp, sent));
        self.candidate = None;
        // A restart is one change; who is heard again after it was replaced lives beside its successor.
        let twins = self
            .other
            .is_some_and(|(other, at)| other == stamp.incarnation && now.since(at) < TWINS_NANOS);
        self.other = before.map(|known| (known.incarnation, now));
        if twins {
            self.proved_oddly(now, Oddity::Twins)
        } else {
            taken(Freshness::Proved, None)
        }
    }

    /// Drops what was heard before, or looks like it: if both nodes went back, neither knows where the other is until told.
    const fn drop_repeated(&mut self, stamp: &Stamp) -> Judged {
        self.consider(stamp);
        dropped(Oddity::Repeated)
    }

    const fn proved_oddly(&mut self, now: MonoTime, oddity: Oddity) -> Judged {
        if let Oddity::Twins = oddity {
            self.twins_at = Some(now);
        }
        taken(Freshness::Proved, Some(oddity))
    }

    /// How long ago this node sent the newest message that the sender of `stamp` had heard; [`u64::MAX`] if it had heard
    /// none, or one from before what is remembered. Nanoseconds.
    pub fn unheard(&self, now: MonoTime, stamp: &Stamp) -> u64 {
        self.echoed_by(stamp)
            .filter(|sequence| self.remembers(*sequence))
            .map_or(u64::MAX, |sequence| {
                now.since(self.sent_at[slot(sequence, REMEMBERED)])
            })
    }

    /// Which message of this incarnation `stamp` echoes, if it does.
    fn echoed_by(&self, stamp: &Stamp) -> Option<u64> {
        let (incarnation, sequence) = stamp.echo?;
        (incarnation == self.incarnation).then_some(sequence)
    }

    /// Takes a message with a right code in this node's own name.
    pub const fn judge_own(&self, stamp: &Stamp) -> Oddity {
        if stamp.incarnation == self.incarnation && stamp.sequence <= self.sent {
            Oddity::Own
        } else {
            Oddity::OwnName
        }
    }

    /// Which of several messages that proved nothing is echoed is decided by lot: recorded ones, however many, do not keep
    /// a live sender from proving itself.
    const fn consider(&mut self, stamp: &Stamp) {
        let rank = mix(self.salt ^ self.sent, mix(stamp.incarnation, stamp.sequence));
        let is_lowest = match self.candidate {
            Some((lowest, _)) => rank <= lowest,
            None => true,
        };
        if is_lowest {
            self.candidate = Some((rank, (stamp.incarnation, stamp.sequence)));
        }
    }

    fn is_echo(&self, now: MonoTime, stamp: &Stamp) -> bool {
        self.unheard(now, stamp) <= FRESH_NANOS
    }

    fn remembers(&self, sequence: u64) -> bool {
        (1..=self.sent).contains(&sequence) && self.sent - sequence < REMEMBERED as u64
    }
}

/// Finalizer of SplitMix64 over both.
const fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn slot(sequence: u64, of: usize) -> usize {
    usize::try_from(sequence % of as u64).unwrap_or_default()
}

const fn taken(freshness: Freshness, oddity: Option<Oddity>) -> Judged {
    Judged {
        freshness: Some(freshness),
        oddity,
        is_late: false,
    }
}

const fn dropped(oddity: Oddity) -> Judged {
    Judged {
        freshness: None,
        oddity: Some(oddity),
        is_late: false,
    }
}

#[cfg(test)]
mod tests;
