//! Indexes of `LAST_HOPS`: who has which, who is believed, and when one is free again. Pure.
//!
//! ```text
//!   free ──► offered to the programs ──► taken by one: waiting ── too long ──► refused
//!    ▲  │                                     │    ▲                             │
//!    │  └───────────────────────► resolved: believed ◄──── resolved ─────────────┘
//!    │                                        │ not resolved any more: believed as long as flows name it
//!    └── twice no flow names it ── retired ◄──┴── no flow names it, and it is not resolved
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use onearm_dataplane_common::maps::{LAST_HOP_ALLOWANCE, LastHop, MAX_LAST_HOPS};

use crate::error::Result;
use crate::identity::IndexSet;
use crate::mapping::Words;

/// A last hop that a program has taken is believed for so long without being a resolved neighbour: the kernel asks three
/// times, a second apart.
const WAIT: Duration = Duration::from_secs(4);

/// The maps, as far as last hops need them.
pub(crate) trait Sink {
    /// Entry `index` of `LAST_HOPS`.
    fn last_hop(&self, index: u32) -> LastHop;
    /// Writes it; who it leads to changes by one store.
    fn set_last_hop(&mut self, index: u32, hop: LastHop);
    /// All of `LAST_HOP_INDEX`.
    fn last_hop_indexes(&self) -> Result<Vec<(LastHop, u32)>>;
    fn insert_last_hop(&mut self, hop: LastHop, index: u32) -> Result<()>;
    fn remove_last_hop(&mut self, hop: LastHop) -> Result<()>;
    /// Puts an index into `LAST_HOP_FREE`.
    fn offer_last_hop(&mut self, index: u32) -> Result<()>;
}

/// What is thought of a neighbour that has an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opinion {
    /// It is, or was, a resolved neighbour.
    Believed,
    /// A program saw it at about this time.
    Waiting(Instant),
    /// It was no resolved neighbour for too long.
    Refused,
}

/// Neighbours with an index, and the indexes nobody has.
#[derive(Debug)]
pub(crate) struct LastHops {
    known: BTreeMap<LastHopKey, (u32, Opinion)>,
    resolved: BTreeSet<LastHopKey>,
    /// Offered to the programs, and not seen in use.
    offered: BTreeSet<u32>,
    /// Led to by nothing but flows; true: no flow named it at the last sweep.
    retired: BTreeMap<u32, bool>,
    free: Vec<u32>,
    /// Lowest index never given out.
    fresh: u32,
}

/// Leg, interface, VLAN, MAC, MTU.
type LastHopKey = (u16, u32, u16, [u8; 6], u16);

const fn key(hop: &LastHop) -> LastHopKey {
    (hop.leg, hop.ifindex, hop.vlan, hop.mac, hop.mtu)
}

const fn hop(key: LastHopKey) -> LastHop {
    let (leg, ifindex, vlan, mac, mtu) = key;
    LastHop {
        mac,
        vlan,
        ifindex,
        leg,
        mtu,
    }
}

/// An entry of `LAST_HOPS`.
///
/// # Panics
/// If `index` is out of range.
pub(crate) fn last_hop(map: &Words<LastHop>, index: u32) -> LastHop {
    let words = [0, 1].map(|word| map.load(index, word).to_ne_bytes());
    let [[m0, m1, m2, m3, m4, m5, v0, v1], [i0, i1, i2, i3, l0, l1, s0, s1]] = words;
    LastHop {
        mac: [m0, m1, m2, m3, m4, m5],
        vlan: u16::from_ne_bytes([v0, v1]),
        ifindex: u32::from_ne_bytes([i0, i1, i2, i3]),
        leg: u16::from_ne_bytes([l0, l1]),
        mtu: u16::from_ne_bytes([s0, s1]),
    }
}

impl LastHops {
    pub(crate) const fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            resolved: BTreeSet::new(),
            offered: BTreeSet::new(),
            retired: BTreeMap::new(),
            free: Vec::new(),
            fresh: 0,
        }
    }

    /// Takes note of what the programs have taken, believes resolved neighbours, refuses who is none for too long, and lets
    /// the programs have more indexes. `resolved`: all of them, if they have changed.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        resolved: Option<Vec<LastHop>>,
        sink: &mut impl Sink,
    ) -> Result<()> {
        let changed = resolved.is_some();
        if let Some(resolved) = resolved {
            self.resolved = resolved.iter().map(key).collect();
        }
        let is_taken = |index: &u32| sink.last_hop(*index) != LastHop::default();
        if changed || self.offered.iter().any(is_taken) {
            self.take_note(now, sink)?;
        }
        for (key, (index, opinion)) in &mut self.known {
            let is_resolved = self.resolved.contains(key);
            match *opinion {
                Opinion::Refused if is_resolved => {
                    sink.set_last_hop(*index, hop(*key));
                    *opinion = Opinion::Believed;
                }
                Opinion::Waiting(_) if is_resolved => *opinion = Opinion::Believed,
                Opinion::Waiting(since) if now.duration_since(since) >= WAIT => {
                    let refused = LastHop {
                        ifindex: 0,
                        ..hop(*key)
                    };
                    sink.set_last_hop(*index, refused);
                    *opinion = Opinion::Refused;
                }
                Opinion::Believed | Opinion::Waiting(_) | Opinion::Refused => {}
            }
        }
        if changed {
            self.give_to_resolved(sink)?;
        }
        self.offer(sink)
    }

    fn give_to_resolved(&mut self, sink: &mut impl Sink) -> Result<()> {
        let without: Vec<LastHopKey> = self
            .resolved
            .iter()
            .filter(|key| !self.known.contains_key(*key))
            .copied()
            .collect();
        for key in without {
            let Some(index) = self.take() else {
                break;
            };
            sink.set_last_hop(index, hop(key));
            self.known.insert(key, (index, Opinion::Believed));
            sink.insert_last_hop(hop(key), index)?;
        }
        Ok(())
    }

    /// Brings `known`, `offered` and `retired` to what is in the maps.
    fn take_note(&mut self, now: Instant, sink: &impl Sink) -> Result<()> {
        let found: BTreeMap<LastHopKey, u32> = sink
            .last_hop_indexes()?
            .iter()
            .map(|(hop, index)| (key(hop), *index))
            .collect();
        // Overwritten by another CPU's, or repaired away.
        let gone = self
            .known
            .extract_if(.., |key, (index, _)| found.get(key) != Some(index));
        self.retired.extend(gone.map(|(_, (index, _))| (index, false)));
        for (key, index) in found {
            self.offered.remove(&index);
            self.retired.remove(&index);
            self.known.entry(key).or_insert((index, Opinion::Waiting(now)));
        }
        // A program wrote it and was not the first, or found no room.
        let lost = self
            .offered
            .extract_if(.., |index| sink.last_hop(*index) != LastHop::default());
        self.retired.extend(lost.map(|index| (index, false)));
        Ok(())
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.fresh < MAX_LAST_HOPS).then(|| {
                self.fresh += 1;
                self.fresh - 1
            })
        })
    }

    fn offer(&mut self, sink: &mut impl Sink) -> Result<()> {
        while self.offered.len() < LAST_HOP_ALLOWANCE as usize
            && let Some(index) = self.take()
        {
            sink.offer_last_hop(index)?;
            self.offered.insert(index);
        }
        Ok(())
    }

    /// The index of a neighbour that is believed.
    pub(crate) fn believed(&self, hop: &LastHop) -> Option<u32> {
        let (index, opinion) = self.known.get(&key(hop))?;
        (*opinion == Opinion::Believed).then_some(*index)
    }

    /// Neighbours with an index.
    pub(crate) fn len(&self) -> usize {
        self.known.len() + self.retired.len()
    }

    /// True if there may be something to free.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.retired.is_empty() || self.known.keys().any(|key| !self.resolved.contains(key))
    }

    /// Frees what no flow names. `in_use` was swept after a grace period that began after the last call: a program that
    /// had looked an index up has used it by then.
    pub(crate) fn reclaim(&mut self, in_use: &IndexSet, sink: &mut impl Sink) -> Result<()> {
        for (index, was_free) in &mut self.retired {
            let is_free = !in_use.contains(*index);
            if is_free && *was_free {
                sink.set_last_hop(*index, LastHop::default());
                self.free.push(*index);
            }
            *was_free = is_free;
        }
        let free: BTreeSet<u32> = self.free.iter().copied().collect();
        self.retired.retain(|index, _| !free.contains(index));
        let unused: Vec<LastHopKey> = self
            .known
            .iter()
            .filter(|(key, (index, _))| !self.resolved.contains(*key) && !in_use.contains(*index))
            .map(|(key, _)| *key)
            .collect();
        for key in unused {
            sink.remove_last_hop(hop(key))?;
            if let Some((index, _)) = self.known.remove(&key) {
                self.retired.insert(index, false);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
