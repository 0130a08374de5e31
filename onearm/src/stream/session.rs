//! One session with the peer, from the first byte to the last. Pure: bytes and the time come in, bytes and what they mean go out.
//!
//! ```text
//!  begins here: Asked ──answer─────────────────────────► Open ──► Ended
//!  begun there: Expecting ──opening──► Unproved ──frame──┘
//! ```
//!
//! `Unproved` is what keeps a recorded opening from anything: only who made it can send the frame that follows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onearm_ha::auth::{KeyId, PairKeys};
use snow::HandshakeState;

use super::end::End;
use super::noise::{self, Ciphers};
use super::view::Traffic;
use super::wire::{self, Farewell, Introduction, Message, Refusal, Unfit};

/// Times and sizes of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// A handshake ends within this.
    pub(crate) handshake: Duration,
    /// Pause after which a heartbeat is said.
    pub(crate) heartbeat: Duration,
    /// A peer that was not heard for so long is gone.
    pub(crate) silence: Duration,
    /// A frame that has begun arrives within this.
    pub(crate) frame: Duration,
    /// Most bytes that wait to be written: a peer that does not read more than that is given up.
    pub(crate) unwritten: usize,
    /// Messages of one direction after which its key changes; the same on both nodes.
    pub(crate) rekey_after: u64,
}

impl Bounds {
    /// Those of the protocol.
    pub(crate) const DEFAULT: Self = Self {
        handshake: Duration::from_secs(2),
        heartbeat: Duration::from_secs(1),
        silence: Duration::from_secs(4),
        frame: Duration::from_mins(1),
        unwritten: 4 << 20,
        rekey_after: noise::REKEY_AFTER,
    };
}

/// This side of every session.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// How it introduces itself.
    pub(crate) introduction: Introduction,
    /// The pair's keys.
    pub(crate) keys: Arc<PairKeys>,
    /// Times and sizes.
    pub(crate) bounds: Bounds,
}

/// What comes in.
#[derive(Clone, Debug)]
pub(crate) enum Input<'a> {
    /// Bytes of the peer, cut anywhere.
    Arrived(&'a [u8]),
    /// Something is to be said; without effect unless the session is open.
    Said(&'a Message),
    /// The deadline has come.
    Woken,
    /// The connection ended, or this side leaves.
    Left(End),
}

/// What it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Both nodes have shown that they live now. At most once, before anything else.
    Opened(Agreed),
    /// The peer said something.
    Heard(Message),
    /// The last output. What is unwritten then may still be written.
    Ended(End),
}

/// What the nodes agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The peer.
    pub(crate) peer: Introduction,
    /// The highest version both speak.
    pub(crate) protocol: u16,
    /// What both can do beyond it.
    pub(crate) capabilities: Vec<String>,
    /// The key.
    pub(crate) key: KeyId,
}

#[derive(Debug)]
enum State {
    /// The opening was said.
    Asked {
        handshake: Box<HandshakeState>,
        key: KeyId,
        until: Instant,
    },
    /// Nothing was heard.
    Expecting { until: Instant },
    /// The answer was said, to whoever holds the key or a recording.
    Unproved {
        ciphers: Box<Ciphers>,
        agreed: Agreed,
        until: Instant,
    },
    /// In use.
    Open {
        ciphers: Box<Ciphers>,
        heard_at: Instant,
        spoke_at: Instant,
    },
    /// Over.
    Ended,
}

/// The session.
#[derive(Debug)]
pub(crate) struct Session {
    own: Own,
    state: State,
    /// Bytes that make no whole frame yet.
    arrived: Vec<u8>,
    /// Since when they are the beginning of the same frame.
    part_since: Option<Instant>,
    /// Records that make the next frame.
    records: Vec<u8>,
    plain: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    outputs: VecDeque<Output>,
    traffic: Traffic,
}

/// Whether the nodes can work together: the same verdict on both sides.
pub(crate) fn judge(own: &Introduction, peer: Introduction, key: KeyId) -> Result<Agreed, End> {
    if own.id == peer.id {
        return Err(End::SameId);
    }
    if own.name == peer.name {
        return Err(End::SameName);
    }
    if own.vrid != peer.vrid {
        return Err(End::OtherVrid(peer.vrid));
    }
    let protocol = own.protocols.1.min(peer.protocols.1);
    if protocol < own.protocols.0.max(peer.protocols.0) {
        return Err(End::NoCommonVersion {
            own: own.protocols,
            peer: peer.protocols,
        });
    }
    let common = own
        .capabilities
        .iter()
        .filter(|name| peer.capabilities.contains(name));
    Ok(Agreed {
        protocol,
        capabilities: common.cloned().collect(),
        key,
        peer,
    })
}

impl Session {
    /// One that begins here, with key `key`; `None` where that is not held.
    pub(crate) fn ask(now: Instant, own: Own, key: KeyId) -> Option<Self> {
        let mut handshake = noise::handshake(&own.keys, key, true)?;
        let message = noise::write(&mut handshake, &own.introduction.emit())?;
        let until = now + own.bounds.handshake;
        let handshake = Box::new(handshake);
        let mut session = Self::new(
            own,
            State::Asked {
                handshake,
                key,
                until,
            },
        );
        session.say_clear(&[&wire::opening_head(key)[..], &message].concat());
        Some(session)
    }

    /// One that the other side begins.
    pub(crate) fn expect(now: Instant, own: Own) -> Self {
        let until = now + own.bounds.handshake;
        Self::new(own, State::Expecting { until })
    }

    fn new(own: Own, state: State) -> Self {
        Self {
            own,
            state,
            arrived: Vec::new(),
            part_since: None,
            records: Vec::new(),
            plain: Vec::new(),
            out: Vec::new(),
            written: 0,
            outputs: VecDeque::new(),
            traffic: Traffic::default(),
        }
    }

    /// Takes an input.
    pub(crate) fn handle(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::Arrived(bytes) => self.arrived(now, bytes),
            Input::Said(message) => self.say(message),
            Input::Woken => self.woken(now),
            Input::Left(end) => self.end(end),
        }
    }

    /// The next output.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to wake it; `None`: it is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let bounds = self.own.bounds;
        match &self.state {
            State::Asked { until, .. } | State::Expecting { until } | State::Unproved { until, .. } => {
                Some(*until)
            }
            State::Open {
                heard_at, spoke_at, ..
            } => Some((*heard_at + bounds.silence).min(*spoke_at + bounds.heartbeat)),
            State::Ended => None,
        }
    }

    /// What is to be written next; what was said in the meantime makes one frame.
    pub(crate) fn unwritten(&mut self, now: Instant) -> &[u8] {
        self.seal(now);
        &self.out[self.written..]
    }

    /// Bytes that wait to be written, about.
    pub(crate) fn backlog(&self) -> usize {
        self.out.len() - self.written + self.records.len()
    }

    /// So many bytes of [`Self::unwritten`] were written.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.traffic.bytes_out += bytes as u64;
        self.written += bytes;
        if self.written >= self.out.len() {
            self.out.clear();
            self.written = 0;
        }
    }

    /// What went each way since this was asked last.
    pub(crate) fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    fn arrived(&mut self, now: Instant, bytes: &[u8]) {
        self.traffic.bytes_in += bytes.len() as u64;
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((length, rest)) = arrived[at..].split_first_chunk::<{ wire::LENGTH }>() {
            let length = usize::from(u16::from_be_bytes(*length));
            let most = match self.state {
                State::Asked { .. } | State::Expecting { .. } => wire::MOST_HANDSHAKE,
                State::Unproved { .. } | State::Open { .. } => usize::from(u16::MAX),
                State::Ended => return,
            };
            if length > most {
                return self.end(End::NotUnderstood);
            }
            let Some(frame) = rest.get(..length) else { break };
            self.traffic.frames_in += 1;
            self.frame(now, frame);
            at += wire::LENGTH + length;
        }
        arrived.drain(..at);
        self.part_since = if arrived.is_empty() {
            None
        } else {
            self.part_since.filter(|_| at == 0).or(Some(now))
        };
        if let State::Open { heard_at, .. } = &mut self.state
            && let Some(since) = self.part_since
            && now < since + self.own.bounds.frame
        {
            // On a slow link a frame takes longer than a peer may be silent.
            *heard_at = now;
        }
        self.arrived = arrived;
    }

    fn frame(&mut self, now: Instant, frame: &[u8]) {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Asked { handshake, key, .. } => self.answered(now, *handshake, key, frame),
            State::Expecting { until } => self.asked(until, frame),
            State::Unproved {
                mut ciphers,
                agreed,
                until,
            } => {
                let mut plain = self.plain_buffer();
                if let Some(records) = ciphers.open(frame, &mut plain) {
                    self.outputs.push_back(Output::Opened(agreed));
                    self.state = State::Open {
                        ciphers,
                        heard_at: now,
                        spoke_at: now,
                    };
                    self.heard(records);
                } else {
                    self.state = State::Unproved {
                        ciphers,
                        agreed,
                        until,
                    };
                    self.end(End::Forged);
                }
                self.plain = plain;
            }
            State::Open {
                mut ciphers,
                spoke_at,
                heard_at,
            } => {
                let mut plain = self.plain_buffer();
                if let Some(records) = ciphers.open(frame, &mut plain) {
                    self.state = State::Open {
                        ciphers,
                        heard_at: now,
                        spoke_at,
                    };
                    self.heard(records);
                } else {
                    self.state = State::Open {
                        ciphers,
                        heard_at,
                        spoke_at,
                    };
                    self.end(End::Forged);
                }
                self.plain = plain;
            }
            State::Ended => {}
        }
    }

    fn plain_buffer(&mut self) -> Vec<u8> {
        let mut plain = std::mem::take(&mut self.plain);
        plain.resize(wire::MOST_PLAIN, 0);
        plain
    }

    /// The opening has come.
    fn asked(&mut self, until: Instant, frame: &[u8]) {
        self.state = State::Expecting { until };
        let Some((key, message)) = wire::parse_opening(frame) else {
            return self.refuse(Refusal::NotUnderstood, End::NotUnderstood);
        };
        let Some(mut handshake) = noise::handshake(&self.own.keys, key, false) else {
            return self.refuse(Refusal::KeyUnknown, End::KeyUnknown(key));
        };
        let Some(payload) = noise::read(&mut handshake, message) else {
            return self.refuse(Refusal::WrongKey, End::WrongKey);
        };
        let Some(peer) = Introduction::parse(&payload) else {
            return self.refuse(Refusal::NotUnderstood, End::NotUnderstood);
        };
        let Some(answer) = noise::write(&mut handshake, &self.own.introduction.emit()) else {
            return self.end(End::Malformed);
        };
        self.say_clear(&[&[wire::ANSWER], &answer[..]].concat());
        let ciphers = Ciphers::new(handshake, self.own.bounds.rekey_after);
        match (judge(&self.own.introduction, peer, key), ciphers) {
            (Ok(agreed), Some(ciphers)) => {
                let ciphers = Box::new(ciphers);
                self.state = State::Unproved {
                    ciphers,
                    agreed,
                    until,
                };
            }
            (Err(end), _) => self.end(end),
            (Ok(_), None) => self.end(End::Malformed),
        }
    }

    /// The answer has come.
    fn answered(&mut self, now: Instant, mut handshake: HandshakeState, key: KeyId, frame: &[u8]) {
        let message = match frame {
            [wire::ANSWER, message @ ..] => message,
            [wire::REFUSAL, code] => {
                return self.end(Refusal::of(*code).map_or(End::NotUnderstood, End::Refused));
            }
            _ => return self.end(End::NotUnderstood),
        };
        let Some(payload) = noise::read(&mut handshake, message) else {
            return self.end(End::Forged);
        };
        let Some(peer) = Introduction::parse(&payload) else {
            return self.end(End::NotUnderstood);
        };
        let ciphers = Ciphers::new(handshake, self.own.bounds.rekey_after);
        match (judge(&self.own.introduction, peer, key), ciphers) {
            (Ok(agreed), Some(ciphers)) => {
                self.outputs.push_back(Output::Opened(agreed));
                let ciphers = Box::new(ciphers);
                self.state = State::Open {
                    ciphers,
                    heard_at: now,
                    spoke_at: now,
                };
                // Proves to the peer that this node lives now.
                self.say(&Message::Heartbeat);
            }
            (Err(end), _) => self.end(end),
            (Ok(_), None) => self.end(End::Malformed),
        }
    }

    /// Records of one frame.
    fn heard(&mut self, mut records: &[u8]) {
        while !records.is_empty() {
            let Some((message, rest)) = Message::parse(records) else {
                return self.end(End::Malformed);
            };
            records = rest;
            match message {
                Ok(Message::Heartbeat) => {}
                Ok(Message::Farewell(farewell)) => return self.end(End::Left(farewell)),
                Ok(
                    message @ (Message::Profile(_)
                    | Message::ProbeAsked { .. }
                    | Message::ProbeAnswered { .. }
                    | Message::Sync(_)
                    | Message::Owned(_)),
                ) => self.outputs.push_back(Output::Heard(message)),
                Err(Unfit::Unknown) => self.traffic.unknown += 1,
                Err(Unfit::Malformed) => return self.end(End::Malformed),
            }
        }
    }

    fn woken(&mut self, now: Instant) {
        let bounds = self.own.bounds;
        match &mut self.state {
            State::Asked { until, .. } | State::Expecting { until } | State::Unproved { until, .. } => {
                if now >= *until {
                    self.end(End::Late);
                }
            }
            State::Open {
                heard_at, spoke_at, ..
            } => {
                if now >= *heard_at + bounds.silence {
                    self.end(End::Silent);
                } else if now >= *spoke_at + bounds.heartbeat {
                    *spoke_at = now;
                    self.say(&Message::Heartbeat);
                }
            }
            State::Ended => {}
        }
    }

    fn say(&mut self, message: &Message) {
        let State::Open { ciphers, .. } = &mut self.state else {
            return;
        };
        let before = self.records.len();
        message.emit(&mut self.records);
        if self.records.len() > wire::MOST_PLAIN {
            let last = self.records.split_off(before);
            let sealed = ciphers.seal(&self.records, &mut self.out);
            self.records = last;
            if sealed.is_none() {
                return self.end(End::Malformed);
            }
            self.traffic.frames_out += 1;
        }
        if self.backlog() > self.own.bounds.unwritten {
            self.end(End::NotRead);
        }
    }

    /// Makes a frame of the records that wait.
    fn seal(&mut self, now: Instant) {
        let State::Open {
            ciphers, spoke_at, ..
        } = &mut self.state
        else {
            return;
        };
        if self.records.is_empty() {
            return;
        }
        let sealed = ciphers.seal(&self.records, &mut self.out);
        self.records.clear();
        *spoke_at = now;
        if sealed.is_none() {
            return self.end(End::Malformed);
        }
        self.traffic.frames_out += 1;
    }

    fn say_clear(&mut self, frame: &[u8]) {
        let length = u16::try_from(frame.len()).unwrap_or(u16::MAX);
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(&frame[..usize::from(length)]);
        self.traffic.frames_out += 1;
    }

    fn refuse(&mut self, refusal: Refusal, end: End) {
        self.say_clear(&[wire::REFUSAL, refusal.code()]);
        self.end(end);
    }

    fn end(&mut self, end: End) {
        let farewell = match end {
            End::KeyRemoved => Some(Farewell::KeyRemoved),
            End::Replaced => Some(Farewell::Replaced),
            End::Stopping => Some(Farewell::Stopping),
            End::Moved => Some(Farewell::Other),
            End::Unreachable(_)
            | End::NotUnderstood
            | End::KeyUnknown(_)
            | End::WrongKey
            | End::Refused(_)
            | End::SameId
            | End::SameName
            | End::OtherVrid(_)
            | End::NoCommonVersion { .. }
            | End::Late
            | End::Crowded
            | End::Closed
            | End::Reset
            | End::Failed(_)
            | End::Silent
            | End::NotRead
            | End::TooMuch
            | End::Forged
            | End::Malformed
            | End::Crashed
            | End::Left(_) => None,
        };
        if let State::Open { ciphers, .. } = &mut self.state
            && let Some(farewell) = farewell
        {
            let mut last = Vec::new();
            if Message::Farewell(farewell).emit(&mut last) && ciphers.seal(&last, &mut self.out).is_some() {
                self.traffic.frames_out += 1;
            }
        }
        self.state = State::Ended;
        self.records.clear();
        self.arrived.clear();
        if !matches!(self.outputs.back(), Some(Output::Ended(_))) {
            self.outputs.push_back(Output::Ended(end));
        }
    }
}

#[cfg(test)]
mod tests;
