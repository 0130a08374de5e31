//! Which server each client stays with: noted from the flow table, read by the programs. The rules are in
//! `onearm_dataplane_common::persistence`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use onearm_dataplane_common::flow::{FlowEntry, State, is_proved};
use onearm_dataplane_common::maps::{Server, server};
use onearm_dataplane_common::persistence::{Bucket, Noted, Rule, WAYS, bucket, fingerprint};
use serde::{Deserialize, Serialize};

use crate::mapping::Words;

/// Clients a bucket is meant for; the rest of its ways are for uneven spread.
const MEAN: u32 = 4;
/// Word of a server that has its flags in the lower half.
const FLAGS_WORD: usize = std::mem::offset_of!(Server, flags) / 8;

/// Buckets for so many clients, a power of two.
pub(crate) fn buckets(clients: u32) -> u32 {
    clients.div_ceil(MEAN).max(1).next_power_of_two()
}

/// Clients that stay with a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persistent {
    /// Noted when last looked at.
    pub clients: u64,
    /// Clients forgotten before their time because a bucket was full, since the programs were loaded.
    pub evicted: u64,
}

/// The maps.
#[derive(Debug)]
pub(crate) struct ClientMaps {
    /// Rules by stats index.
    pub(crate) rules: Words<u64>,
    pub(crate) buckets: Words<Bucket>,
    pub(crate) servers: Words<Server>,
}

/// Notes clients. Any thread may; the programs read meanwhile.
#[derive(Debug)]
pub(crate) struct Clients {
    maps: ClientMaps,
    key: [u64; 2],
    mask: u32,
    /// Held while anything is written.
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    shown: Persistent,
    /// Bucket that a pass has come to, and the clients it has met.
    next: u32,
    met: u64,
}

impl Clients {
    pub(crate) fn new(maps: ClientMaps, key: [u64; 2], mask: u32) -> Self {
        Self {
            maps,
            key,
            mask,
            counted: Mutex::default(),
        }
    }

    /// Sets what a service asks for.
    pub(crate) fn set_rule(&self, stats: u32, rule: Rule) {
        self.maps.rules.store(stats, 0, rule.0);
    }

    /// Of a service.
    fn rule(&self, stats: u16) -> Rule {
        Rule(self.maps.rules.load(u32::from(stats), 0))
    }

    /// Clients there is room for.
    pub(crate) fn capacity(&self) -> u64 {
        u64::from(MEAN) * (u64::from(self.mask) + 1)
    }

    /// How many there are.
    pub(crate) fn counts(&self) -> Persistent {
        self.lock().shown
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flags(&self, index: u16) -> u32 {
        let word = self.maps.servers.load(u32::from(index), FLAGS_WORD);
        u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default()
    }

    /// A client has a flow, seen by its forward entry. Once noted it stays while its server is up; a server that takes no
    /// new clients gets none noted.
    pub(crate) fn note(&self, flow: &FlowEntry, now: u32) {
        let rule = self.rule(flow.stats);
        if rule.ticks() == 0 || !is_proved(flow.proto, flow.flags, flow.own, flow.other, flow.packets) {
            return;
        }
        let flags = self.flags(flow.server);
        if !is_up(flags) || flags >> server::WEIGHT_SHIFT == 0 {
            return;
        }
        let client = fingerprint(self.key, u32::from(flow.stats), rule.network(flow.saddr));
        let noted = Noted {
            server: flow.server,
            seen: if flow.state() == State::Closing {
                flow.last_seen
            } else {
                now
            },
        };
        if noted.stays(rule, now) {
            self.write(bucket(client, self.mask), client, noted, rule, now);
        }
    }

    fn write(&self, bucket: u32, client: u64, noted: Noted, rule: Rule, now: u32) {
        let mut counted = self.lock();
        let buckets = &self.maps.buckets;
        let of = |way| Noted::of(buckets.load(bucket, WAYS + way));
        let mut oldest = None;
        for way in 0..WAYS {
            let who = buckets.load(bucket, way);
            let before = of(way);
            if who == client {
                let another = before.server != noted.server;
                let stays = another && before.stays(rule, now) && is_up(self.flags(before.server));
                let newer = another || noted.seen.wrapping_sub(before.seen).cast_signed() > 0;
                if !stays && newer {
                    buckets.store(bucket, WAYS + way, noted.word());
                }
                return;
            }
            let age = if who == 0 {
                u32::MAX
            } else {
                now.saturating_sub(before.seen)
            };
            if oldest.is_none_or(|(_, oldest)| age > oldest) {
                oldest = Some((way, age));
            }
        }
        let Some((way, age)) = oldest else { return };
        // An entry that is over waits for the next pass, unless its way is needed: its own rule is not known here.
        if age < u32::MAX {
            counted.shown.evicted += 1;
        }
        buckets.store(bucket, way, 0);
        buckets.store(bucket, WAYS + way, noted.word());
        buckets.store(bucket, way, client);
    }

    /// Looks at the buckets up to a share of them, as a pass over the flow table goes on: frees what has been silent for
    /// longer than any service asks for, and counts.
    pub(crate) fn sweep(&self, done: u32, of: u32, now: u32) {
        let mut counted = self.lock();
        let all = u64::from(self.mask) + 1;
        let end = u32::try_from(all * u64::from(done) / u64::from(of.max(1))).unwrap_or(u32::MAX);
        if counted.next == 0 && end > 0 {
            counted.met = 0;
        }
        let longest = self.longest();
        for bucket in counted.next..end {
            for way in 0..WAYS {
                if self.maps.buckets.load(bucket, way) == 0 {
                    continue;
                }
                if Noted::of(self.maps.buckets.load(bucket, WAYS + way)).stays(longest, now) {
                    counted.met += 1;
                } else {
                    self.maps.buckets.store(bucket, way, 0);
                }
            }
        }
        counted.next = end;
        if done == of {
            counted.next = 0;
            counted.shown.clients = counted.met;
        }
    }

    /// The longest time of all services.
    fn longest(&self) -> Rule {
        let rules = (0..).take(self.maps.rules.len());
        let ticks = rules.map(|stats| Rule(self.maps.rules.load(stats, 0)).ticks());
        Rule::new(ticks.max().unwrap_or(0), 0)
    }

    /// Whether any service asks for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.longest().ticks() > 0
    }

    /// Forgets clients of servers that are configured no more. Before a grace period and the reuse of their indexes.
    pub(crate) fn forget_removed(&self) {
        let _writing = self.lock();
        for bucket in 0..=self.mask {
            for way in 0..WAYS {
                if self.maps.buckets.load(bucket, way) == 0 {
                    continue;
                }
                let flags = self.flags(Noted::of(self.maps.buckets.load(bucket, WAYS + way)).server);
                if flags & server::USED == 0 || flags & server::MOVES != 0 {
                    self.maps.buckets.store(bucket, way, 0);
                }
            }
        }
    }
}

const fn is_up(flags: u32) -> bool {
    let up = server::USED | server::UP;
    flags & up == up
}

#[cfg(test)]
pub(crate) mod tests;
