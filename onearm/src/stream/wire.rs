//! What goes over the stream, byte by byte.
//!
//! ```text
//! frame     length (2, big endian) │ so many bytes, at most 65,535
//! opening   "1stm" │ form (1) │ number of the key (2) │ Noise message 1 with the introduction
//! answer    1 │ Noise message 2 with the introduction      or      2 │ why not (1), in the clear
//! then      a Noise message each: records, one after the other
//! record    kind (1) │ 0 (1) │ length (2, big endian) │ body
//! ```
//!
//! Introductions and profiles are JSON, of which what is not known is passed over. A record of a kind that is not known is
//! passed over and counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use onearm_ha::auth::KeyId;
use onearm_types::NodeId;
use serde::{Deserialize, Serialize};

use super::owned::Part;
use crate::control::{ProbeRequest, ProbeResult};

/// Versions of the protocol this release speaks: the lowest and the highest.
pub(crate) const PROTOCOLS: (u16, u16) = (1, 1);
/// Capability: the peer makes probes when asked.
pub(crate) const PROBE: &str = "probe";
/// Capability: flow sync in the layout of `onearm_dataplane::sync`.
pub(crate) const SYNC: &str = "sync-1";
/// Capability: the node tells which addresses it owns, and hears which the peer does.
pub(crate) const OWNED: &str = "owned-1";
/// What this release can do beyond the least that its version asks for, by name.
pub(crate) const CAPABILITIES: [&str; 3] = [PROBE, SYNC, OWNED];

/// Form of everything before the versions are known.
pub(crate) const FORM: u8 = 1;
const MAGIC: [u8; 4] = *b"1stm";
/// Bytes of an opening before its Noise message.
pub(crate) const OPENING_HEAD: usize = 7;

/// Bytes of a length.
pub(crate) const LENGTH: usize = 2;
/// Longest frame of a handshake, bytes after the length.
pub(crate) const MOST_HANDSHAKE: usize = 4_096;
/// Bytes that Noise adds to a message.
pub(crate) const TAG: usize = 16;
/// Most bytes of records in one Noise message.
pub(crate) const MOST_PLAIN: usize = 65_535 - TAG;
/// Bytes of a record before its body.
pub(crate) const RECORD_HEAD: usize = 4;
/// Longest body of a record, bytes.
pub(crate) const MOST_BODY: usize = MOST_PLAIN - RECORD_HEAD;

/// First byte of an answer that goes on.
pub(crate) const ANSWER: u8 = 1;
/// First byte of an answer that does not.
pub(crate) const REFUSAL: u8 = 2;

/// Longest name, version or digest, bytes.
const MOST_TEXT: usize = 64;
/// Longest sentence for people, bytes.
const MOST_SENTENCE: usize = 512;
/// Most capabilities of a peer.
const MOST_CAPABILITIES: usize = 64;
/// Most legs of a peer.
pub(super) const MOST_LEGS: usize = 64;

/// The part of an opening in the clear, bound into the handshake by its prologue.
pub(crate) fn opening_head(key: KeyId) -> [u8; OPENING_HEAD] {
    let mut head = [0; OPENING_HEAD];
    head[..4].copy_from_slice(&MAGIC);
    head[4] = FORM;
    head[5..].copy_from_slice(&key.0.to_be_bytes());
    head
}

/// The key an opening was made with, and its Noise message; `None` where it is of no known form.
pub(crate) fn parse_opening(frame: &[u8]) -> Option<(KeyId, &[u8])> {
    let (head, message) = frame.split_at_checked(OPENING_HEAD)?;
    let key = KeyId(u16::from_be_bytes([head[5], head[6]]));
    (head[..4] == MAGIC && head[4] == FORM).then_some((key, message))
}

/// Why a node does not go on with a handshake, as it says in the clear: advice, no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It holds no key of that number.
    KeyUnknown,
    /// The key of that number is another one there.
    WrongKey,
    /// The form is not known.
    NotUnderstood,
}

impl Refusal {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::KeyUnknown => 1,
            Self::WrongKey => 2,
            Self::NotUnderstood => 3,
        }
    }

    pub(crate) fn of(code: u8) -> Option<Self> {
        [Self::KeyUnknown, Self::WrongKey, Self::NotUnderstood]
            .into_iter()
            .find(|refusal| refusal.code() == code)
    }
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// `name` of `node.toml`.
    pub(crate) name: String,
    /// `id` of `node.toml`.
    pub(crate) id: NodeId,
    /// Version of the daemon.
    pub(crate) version: String,
    /// `ha.vrid`.
    pub(crate) vrid: u8,
    /// Lowest and highest version of the protocol it speaks.
    pub(crate) protocols: (u16, u16),
    /// What it can do beyond that.
    #[serde(default)]
    pub(crate) capabilities: Vec<String>,
}

impl Introduction {
    /// Reads one; `None` unless its texts may go to logs and terminals.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let fits = is_printable(&read.name)
            && is_printable(&read.version)
            && read.capabilities.len() <= MOST_CAPABILITIES
            && read.capabilities.iter().all(|name| is_printable(name));
        fits.then_some(read)
    }

    /// As it is sent.
    pub(crate) fn emit(&self) -> Vec<u8> {
        json(self)
    }
}

/// What a node tells of itself when a session begins, and whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Profile {
    /// Digest of the pair's configuration, hexadecimal.
    pub(crate) digest: String,
    /// MACs of the legs that carry traffic, by name.
    #[serde(default)]
    pub(crate) legs: BTreeMap<String, [u8; 6]>,
}

impl Profile {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let is_host = |mac: &[u8; 6]| mac[0] & 1 == 0 && *mac != [0; 6];
        let fits = is_printable(&read.digest)
            && read.legs.len() <= MOST_LEGS
            && read
                .legs
                .iter()
                .all(|(name, mac)| is_printable(name) && is_host(mac));
        fits.then_some(read)
    }
}

pub(super) fn is_printable(text: &str) -> bool {
    !text.is_empty() && text.len() <= MOST_TEXT && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_sentence(text: &str) -> bool {
    text.len() <= MOST_SENTENCE && !text.chars().any(char::is_control)
}

/// Why a node leaves a session in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// Its daemon stops.
    Stopping,
    /// The key the session was made with is no longer in its file.
    KeyRemoved,
    /// A newer session is there.
    Replaced,
    /// Any other; a newer release has words this one does not know.
    Other,
}

impl Farewell {
    const fn code(self) -> u8 {
        match self {
            Self::Stopping => 1,
            Self::KeyRemoved => 2,
            Self::Replaced => 3,
            Self::Other => 0,
        }
    }

    fn of(code: u8) -> Self {
        [Self::Stopping, Self::KeyRemoved, Self::Replaced]
            .into_iter()
            .find(|farewell| farewell.code() == code)
            .unwrap_or(Self::Other)
    }
}

/// One record of an open session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A sign of life.
    Heartbeat,
    /// What the node tells of itself.
    Profile(Profile),
    /// The last one.
    Farewell(Farewell),
    /// Make a probe. Needs [`PROBE`].
    ProbeAsked {
        /// Of the asker's own counting.
        number: u64,
        /// Which.
        request: ProbeRequest,
    },
    /// What came of it, or a sentence why it was not made.
    ProbeAnswered {
        /// As asked.
        number: u64,
        /// What came of it.
        result: Result<ProbeResult, String>,
    },
    /// A body of flow sync, at most [`MOST_BODY`] bytes. Needs [`SYNC`].
    Sync(Vec<u8>),
    /// Some of the addresses the node owns. Needs [`OWNED`].
    Owned(Part),
}

/// Body of [`Message::ProbeAsked`]: what a newer release says more is passed over.
#[derive(Serialize, Deserialize)]
struct Asked {
    number: u64,
    target: SocketAddr,
    timeout_ms: u32,
}

impl Asked {
    fn parse(bytes: &[u8]) -> Option<Message> {
        let Self {
            number,
            target,
            timeout_ms,
        } = serde_json::from_slice(bytes).ok()?;
        let request = ProbeRequest { target, timeout_ms };
        let fits = ProbeRequest::TIMEOUT_MS.contains(&timeout_ms);
        fits.then_some(Message::ProbeAsked { number, request })
    }
}

/// Body of [`Message::ProbeAnswered`].
#[derive(Serialize, Deserialize)]
struct Answered {
    number: u64,
    result: Result<ProbeResult, String>,
}

impl Answered {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let fits = match &read.result {
            Ok(result) => is_printable(&result.client_node) && is_sentence(&result.detail),
            Err(why) => is_sentence(why),
        };
        fits.then_some(read)
    }
}

/// A record that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Of a kind this release does not know.
    Unknown,
    /// Not what its kind says it is.
    Malformed,
}

impl Message {
    const HEARTBEAT: u8 = 1;
    const PROFILE: u8 = 2;
    const FAREWELL: u8 = 3;
    const PROBE_ASKED: u8 = 4;
    const PROBE_ANSWERED: u8 = 5;
    const SYNC: u8 = 6;
    const OWNED: u8 = 7;

    /// Appends the record to `to`. A body that does not fit is a bug of the sender: false, and nothing is appended.
    pub(crate) fn emit(&self, to: &mut Vec<u8>) -> bool {
        let (kind, body) = match self {
            Self::Heartbeat => (Self::HEARTBEAT, Vec::new()),
            Self::Profile(profile) => (Self::PROFILE, json(profile)),
            Self::Farewell(farewell) => (Self::FAREWELL, vec![farewell.code()]),
            Self::ProbeAsked { number, request } => {
                let ProbeRequest { target, timeout_ms } = *request;
                let number = *number;
                (
                    Self::PROBE_ASKED,
                    json(&Asked {
                        number,
                        target,
                        timeout_ms,
                    }),
                )
            }
            Self::ProbeAnswered { number, result } => {
                let (number, result) = (*number, result.clone());
                (Self::PROBE_ANSWERED, json(&Answered { number, result }))
            }
            Self::Owned(part) => (Self::OWNED, json(part)),
            Self::Sync(body) => return append(to, Self::SYNC, body),
        };
        append(to, kind, &body)
    }

    /// The first record of `bytes`, and what follows it; `None` where it is cut off.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Result<Self, Unfit>, &[u8])> {
        let (head, rest) = bytes.split_at_checked(RECORD_HEAD)?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let (body, rest) = rest.split_at_checked(length)?;
        let message = match head[0] {
            Self::HEARTBEAT => Ok(Self::Heartbeat),
            Self::PROFILE => Profile::parse(body).map(Self::Profile).ok_or(Unfit::Malformed),
            Self::FAREWELL => Ok(Self::Farewell(Farewell::of(body.first().copied().unwrap_or(0)))),
            Self::PROBE_ASKED => Asked::parse(body).ok_or(Unfit::Malformed),
            Self::PROBE_ANSWERED => Answered::parse(body)
                .map(|Answered { number, result }| Self::ProbeAnswered { number, result })
                .ok_or(Unfit::Malformed),
            Self::SYNC => Ok(Self::Sync(body.to_vec())),
            Self::OWNED => Part::parse(body).map(Self::Owned).ok_or(Unfit::Malformed),
            _ => Err(Unfit::Unknown),
        };
        Some((message, rest))
    }
}

fn append(to: &mut Vec<u8>, kind: u8, body: &[u8]) -> bool {
    let Some(length) = u16::try_from(body.len()).ok().filter(|_| body.len() <= MOST_BODY) else {
        return false;
    };
    to.extend_from_slice(&[kind, 0]);
    to.extend_from_slice(&length.to_be_bytes());
    to.extend_from_slice(body);
    true
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("strings and numbers are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn profile() -> Profile {
        Profile {
            digest: "ab".repeat(32),
            legs: [("lan".to_owned(), [2, 0, 0, 0, 3, 2])].into(),
        }
    }

    #[test]
    fn records_are_read_as_they_were_written_one_after_the_other() {
        let request = ProbeRequest {
            target: "192.168.100.100:80".parse().unwrap(),
            timeout_ms: 2_000,
        };
        let said = [
            Message::Heartbeat,
            Message::Profile(profile()),
            Message::ProbeAsked { number: 7, request },
            Message::ProbeAnswered {
                number: 7,
                result: Err("why not".to_owned()),
            },
            Message::Sync(vec![7; MOST_BODY]),
            Message::Farewell(Farewell::KeyRemoved),
        ];
        let mut bytes = Vec::new();
        for message in &said {
            assert!(message.emit(&mut bytes));
        }
        assert_eq!(bytes[..8], [1, 0, 0, 0, 2, 0, 0, 106]);
        assert_eq!(bytes[bytes.len() - 5..], [3, 0, 0, 1, 2]);
        let mut rest = &bytes[..];
        for message in said {
            let (read, after) = Message::parse(rest).unwrap();
            assert_eq!(read, Ok(message));
            rest = after;
        }
        assert!(rest.is_empty());
        let newer = [200, 0, 0, 2, 9, 9, 1, 0, 0, 0];
        let (read, after) = Message::parse(&newer).unwrap();
        assert_eq!((read, after), (Err(Unfit::Unknown), &newer[6..]));
        assert_eq!(Message::parse(&newer[..5]), None, "cut off");
    }

    #[test]
    fn a_profile_names_hosts_and_may_go_to_a_terminal() {
        let read = |profile: &Profile| Profile::parse(&serde_json::to_vec(profile).unwrap());
        assert_eq!(read(&profile()), Some(profile()));
        for mac in [[0; 6], [1, 0, 0x5e, 0, 0, 18], [0xff; 6]] {
            let mut forged = profile();
            forged.legs.insert("wan".to_owned(), mac);
            assert_eq!(read(&forged), None, "{mac:?}");
        }
        for digest in ["\u{1b}[2J", "lb 2", "", &"x".repeat(65)] {
            let forged = Profile {
                digest: digest.to_owned(),
                ..profile()
            };
            assert_eq!(read(&forged), None, "{digest:?}");
        }
        let longest = Profile {
            legs: (0..MOST_LEGS).map(|n| (format!("{n:063}"), [0xfe; 6])).collect(),
            ..profile()
        };
        let mut record = Vec::new();
        assert!(Message::Profile(longest.clone()).emit(&mut record));
        assert_eq!(Message::parse(&record).unwrap().0, Ok(Message::Profile(longest)));
    }

    #[test]
    fn a_probe_has_a_limit_and_its_answer_may_go_to_a_terminal() {
        let unfit = |message: Message| {
            let mut bytes = Vec::new();
            message.emit(&mut bytes) && Message::parse(&bytes).unwrap().0 == Err(Unfit::Malformed)
        };
        let target = "192.168.100.100:80".parse().unwrap();
        let ask = |timeout_ms| Message::ProbeAsked {
            number: 1,
            request: ProbeRequest { target, timeout_ms },
        };
        assert!(unfit(ask(0)) && unfit(ask(30_001)) && !unfit(ask(30_000)));
        let answer = |detail: &str| Message::ProbeAnswered {
            number: 1,
            result: Err(detail.to_owned()),
        };
        assert!(
            unfit(answer("\u{1b}[2J"))
                && unfit(answer(&"x".repeat(513)))
                && !unfit(answer("no answer in 5 ms"))
        );
    }

    #[test]
    fn an_introduction_of_a_newer_release_is_understood() {
        let newer = br#"{"name":"lb2","id":2,"version":"9.0","vrid":51,"protocols":[1,7],"mood":"good"}"#;
        let read = Introduction::parse(newer).unwrap();
        assert_eq!((read.protocols, read.capabilities.len()), ((1, 7), 0));
        assert_eq!(Introduction::parse(&read.emit()), Some(read.clone()));
        for name in ["", "\u{1b}[2J", "a b"] {
            let forged = Introduction {
                name: name.to_owned(),
                ..read.clone()
            };
            assert_eq!(Introduction::parse(&forged.emit()), None, "{name:?}");
        }
        assert_eq!(Introduction::parse(b"{}"), None);
    }

    #[test]
    fn an_opening_says_the_key_and_nothing_else_passes_for_one() {
        let mut opening = opening_head(KeyId(258)).to_vec();
        assert_eq!(opening, *b"1stm\x01\x01\x02");
        opening.extend(b"noise");
        assert_eq!(parse_opening(&opening), Some((KeyId(258), &b"noise"[..])));
        assert_eq!(parse_opening(&opening[..6]), None);
        opening[4] = 2;
        assert_eq!(parse_opening(&opening), None, "another form");
        assert_eq!(parse_opening(b"GET / HTTP/1.0"), None);
    }

    proptest! {
        #[test]
        fn whatever_arrives_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ignored = Introduction::parse(&bytes);
            let _ignored = parse_opening(&bytes);
            let mut rest = &bytes[..];
            while let Some((_, after)) = Message::parse(rest) {
                prop_assert!(after.len() < rest.len());
                rest = after;
            }
        }
    }
}
