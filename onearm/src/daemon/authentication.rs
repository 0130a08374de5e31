//! What the node authenticates with, what may take its place while it runs, and what an operator is told of refused
//! messages. Pure.

use std::time::{Duration, Instant};

use onearm_ha::auth::PairKeys;
use onearm_ha::config::Rollout;
use onearm_ha::driver::{PeerVoice, VoiceCounters};

use crate::control::{NewEvent, Severity};
use crate::key::shown;

/// A warning stays so long after the last message it is about.
const STAYS: Duration = Duration::from_secs(10);
/// An event is told again after so long.
const AGAIN: Duration = Duration::from_mins(1);

/// Keys and what goes with them.
#[derive(Clone, Debug)]
pub(crate) struct Authentication {
    /// The pair's keys.
    pub(crate) keys: PairKeys,
    /// What becomes of messages without authentication.
    pub(crate) rollout: Rollout,
    /// Highest epoch this node has stored, of before the election began.
    pub(crate) epoch: u64,
}

/// As `ha.rollout` is written.
pub(crate) const fn word(rollout: Rollout) -> &'static str {
    match rollout {
        Rollout::Accept => "accept",
        Rollout::Prefer => "prefer",
        Rollout::Enforce => "enforce",
    }
}

/// The keys in words: `key 1 (3f2a-91bc-7e10-55d2)`.
pub(crate) fn in_words(keys: &PairKeys) -> String {
    let words = shown(keys)
        .into_iter()
        .map(|key| format!("key {} ({})", key.id, key.fingerprint));
    words.collect::<Vec<_>>().join(", ")
}

/// Why `next` cannot take the place of `now` while the node runs, with the remedy: the nodes would not understand each other.
pub(crate) fn objection(
    now: &PairKeys,
    next: &PairKeys,
    peer: Option<PeerVoice>,
) -> Option<(String, &'static str)> {
    const ROTATE: &str =
        "change keys by `onearm key rotate`, or stop both nodes before a change like this one";
    if now.pair() != next.pair() {
        return Some(("the key file is another pair's".to_owned(), ROTATE));
    }
    let same = |id| now.keys().iter().find(|key| key.id == id);
    let changed = next
        .keys()
        .iter()
        .find(|key| same(key.id).is_some_and(|known| known.secret != key.secret));
    if let Some(key) = changed {
        let message = format!(
            "key {} of the key file is another secret than the one in use",
            key.id.0
        );
        return Some((message, ROTATE));
    }
    if !next.ids().any(|id| same(id).is_some()) {
        return Some(("the key file has none of the keys in use".to_owned(), ROTATE));
    }
    let peer = peer?.newest_key;
    if next.ids().all(|id| id > peer) {
        let message = format!("the peer holds keys up to {} only", peer.0);
        return Some((message, "copy the file with both keys to it and reload it first"));
    }
    None
}

/// One kind of messages that are refused, or odd.
struct Kind {
    count: fn(&VoiceCounters) -> u64,
    event: &'static str,
    message: &'static str,
    remedy: &'static str,
}

const KINDS: [Kind; 5] = [
    Kind {
        count: |counters| counters.wrong_code,
        event: "wrong-key",
        message: "messages are refused: they are signed with another key than this node's",
        remedy: "compare `onearm key show` on both nodes; if they show the same, somebody else speaks here",
    },
    Kind {
        count: |counters| counters.plain_refused,
        event: "not-authenticated",
        message: "messages without authentication are refused",
        remedy: "if the other node has auth = \"none\" still, write rollout = \"accept\" here until it has the key; else find who \
                 speaks VRRP with this vrid",
    },
    Kind {
        count: |counters| counters.not_understood,
        event: "not-understood",
        message: "messages are refused: they are of no known form",
        remedy: "install the same release on both nodes",
    },
    Kind {
        count: |counters| counters.own_name,
        event: "own-name",
        message: "messages are refused: they are signed in this node's own name",
        remedy: "give the nodes different ids (node.toml); a copy of this node's disk or memory must not run beside it",
    },
    Kind {
        count: |counters| counters.twins,
        event: "peer-cloned",
        message: "two nodes speak in the other node's name: neither owns while this one can",
        remedy: "find out which of the two is the copy, of its disk or of its memory, and stop it",
    },
];

/// What was refused of late, by kind.
#[derive(Debug, Default)]
pub(crate) struct Refusals([Refused; KINDS.len()]);

#[derive(Debug, Default)]
struct Refused {
    count: u64,
    last: Option<Instant>,
    told: Option<Instant>,
}

impl Refusals {
    /// Looks at the counters: warnings that hold now, and events to tell.
    pub(crate) fn look(&mut self, now: Instant, counters: &VoiceCounters) -> (Vec<String>, Vec<NewEvent>) {
        let (mut warnings, mut events) = (Vec::new(), Vec::new());
        for (kind, refused) in KINDS.iter().zip(&mut self.0) {
            let count = (kind.count)(counters);
            // An HA process that was started anew counts from 0.
            let grown = count > refused.count || count > 0 && count < refused.count;
            refused.count = count;
            if grown {
                refused.last = Some(now);
            }
            if grown && refused.told.is_none_or(|told| now.duration_since(told) >= AGAIN) {
                refused.told = Some(now);
                events.push(NewEvent {
                    severity: Severity::Warning,
                    kind: kind.event,
                    message: kind.message.to_owned(),
                    remedy: kind.remedy.to_owned(),
                });
            }
            if refused.last.is_some_and(|last| now.duration_since(last) < STAYS) {
                warnings.push(format!("{} ({count} so far): {}", kind.message, kind.remedy));
            }
        }
        (warnings, events)
    }
}

#[cfg(test)]
mod tests {
    use super::{AGAIN, Refusals, STAYS, in_words, objection};
    use onearm_ha::auth::{Key, KeyId, PairKeys};
    use onearm_ha::driver::{PeerVoice, VoiceCounters};
    use onearm_ha::units::MonoTime;
    use std::time::{Duration, Instant};

    fn keys(ids: &[u8]) -> PairKeys {
        let key = |id: &u8| Key {
            id: KeyId(u16::from(id % 100)),
            secret: [*id; 32],
        };
        PairKeys::new([7; 16], ids.iter().map(key).collect()).unwrap()
    }

    #[test]
    fn keys_change_while_the_node_runs_only_where_the_nodes_go_on_understanding_each_other() {
        let peer = |newest| {
            Some(PeerVoice {
                newest_key: KeyId(newest),
                since: MonoTime::ZERO,
                heard_at: MonoTime::ZERO,
            })
        };
        for (now, next, of_peer, objects) in [
            (&[1][..], &[1][..], peer(1), ""),
            (&[1], &[1, 2], peer(1), ""),
            (&[1, 2], &[2], peer(2), ""),
            (&[1, 2], &[2], None, ""),
            (&[1, 2], &[1], peer(2), ""),
            (&[1, 2], &[2], peer(1), "the peer holds keys up to 1 only"),
            (&[1], &[2], peer(2), "the key file has none of the keys in use"),
            // Number 1 again, another secret.
            (
                &[1],
                &[101, 2],
                peer(1),
                "key 1 of the key file is another secret",
            ),
        ] {
            let found = objection(&keys(now), &keys(next), of_peer);
            let message = found.as_ref().map_or("", |(message, _)| message);
            assert!(
                message.starts_with(objects) && message.is_empty() == objects.is_empty(),
                "{next:?}: {message}"
            );
        }
        let other = PairKeys::new([8; 16], keys(&[1]).keys().to_vec()).unwrap();
        assert!(objection(&keys(&[1]), &other, None).is_some());
        assert!(in_words(&keys(&[1, 2])).starts_with("key 1 ("));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn refused_messages_are_told_once_a_minute_and_warned_of_while_they_come() {
        let start = Instant::now();
        let of = |wrong_code| VoiceCounters {
            wrong_code,
            ..VoiceCounters::default()
        };
        let mut refusals = Refusals::default();
        for (after, count, warnings, events) in [
            (Duration::ZERO, 0, 0, 0),
            (Duration::from_secs(1), 3, 1, 1),
            (Duration::from_secs(2), 3, 1, 0),
            (Duration::from_secs(3), 9, 1, 0),
            (Duration::from_secs(3) + STAYS, 9, 0, 0),
            (Duration::from_secs(1) + AGAIN, 10, 1, 1),
            // Started anew.
            (Duration::from_secs(2) + AGAIN, 0, 1, 0),
            (Duration::from_secs(30) + AGAIN, 1, 1, 0),
        ] {
            let (warned, told) = refusals.look(start + after, &of(count));
            assert_eq!((warned.len(), told.len()), (warnings, events), "after {after:?}");
        }
        let both = VoiceCounters {
            plain_refused: 1,
            own_name: 1,
            twins: 1,
            ..of(1)
        };
        let (_, told) = Refusals::default().look(start, &both);
        let kinds: Vec<_> = told.iter().map(|event| event.kind).collect();
        assert_eq!(
            kinds,
            ["wrong-key", "not-authenticated", "own-name", "peer-cloned"]
        );
    }
}
