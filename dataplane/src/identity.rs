//! Stable indexes: one for each identity, and never another's while a flow may still refer to it.

use std::collections::BTreeMap;

/// Gives each identity an index of `first..end` and keeps it.
///
/// An identity that is no longer wanted is *retired*: its index waits until [`Identities::reclaim`] is told that no flow
/// refers to it. One that comes back before that finds its old index, and with it its flows and counters.
#[derive(Clone, Debug)]
pub(crate) struct Identities<K> {
    live: BTreeMap<K, u32>,
    retired: BTreeMap<K, u32>,
    free: Vec<u32>,
    /// Lowest index never given out.
    fresh: u32,
    end: u32,
}

impl<K: Ord + Clone> Identities<K> {
    pub(crate) fn new(first: u32, end: u32) -> Self {
        Self {
            live: BTreeMap::new(),
            retired: BTreeMap::new(),
            free: Vec::new(),
            fresh: first,
            end,
        }
    }

    /// The index of a live identity.
    pub(crate) fn get(&self, identity: &K) -> Option<u32> {
        self.live.get(identity).copied()
    }

    /// The index of an identity, live from now on; `None` when all are in use or retired.
    pub(crate) fn take(&mut self, identity: &K) -> Option<u32> {
        if let Some(index) = self.get(identity) {
            return Some(index);
        }
        let index = self
            .retired
            .remove(identity)
            .or_else(|| self.free.pop())
            .or_else(|| {
                (self.fresh < self.end).then(|| {
                    self.fresh += 1;
                    self.fresh - 1
                })
            })?;
        self.live.insert(identity.clone(), index);
        Some(index)
    }

    /// Retires every live identity that is not wanted, and returns their indexes.
    pub(crate) fn retain(&mut self, wanted: impl Fn(&K) -> bool) -> Vec<u32> {
        let gone: Vec<(K, u32)> = self
            .live
            .extract_if(.., |identity, _| !wanted(identity))
            .collect();
        let indexes = gone.iter().map(|(_, index)| *index).collect();
        self.retired.extend(gone);
        indexes
    }

    /// Indexes waiting for the flows that may refer to them to end.
    pub(crate) fn retired(&self) -> usize {
        self.retired.len()
    }

    /// Live and retired identities with their indexes.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&K, u32)> {
        self.live
            .iter()
            .chain(&self.retired)
            .map(|(identity, index)| (identity, *index))
    }

    /// Frees every retired index that `in_use` does not name, and returns them.
    pub(crate) fn reclaim(&mut self, in_use: &IndexSet) -> Vec<u32> {
        let freed: Vec<u32> = self
            .retired
            .extract_if(.., |_, index| !in_use.contains(*index))
            .map(|(_, index)| index)
            .collect();
        self.free.extend(&freed);
        freed
    }
}

/// A set of indexes below 2^16, as found by a sweep of the flow table.
#[derive(Clone, Debug)]
pub(crate) struct IndexSet(Vec<u64>);

impl IndexSet {
    pub(crate) fn new() -> Self {
        Self(vec![0; 1_024])
    }

    pub(crate) fn insert(&mut self, index: u16) {
        self.0[usize::from(index / 64)] |= 1 << (index % 64);
    }

    pub(crate) fn contains(&self, index: u32) -> bool {
        self.0
            .get((index / 64) as usize)
            .is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Identities, IndexSet};
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn an_index_is_not_reused_while_a_flow_may_refer_to_it() {
        let mut ids = Identities::new(1, 3);
        assert_eq!(
            [ids.take(&"a"), ids.take(&"b"), ids.take(&"a"), ids.take(&"c")],
            [Some(1), Some(2), Some(1), None]
        );
        assert_eq!(ids.retain(|id| *id != "a"), [1]);
        assert_eq!(ids.take(&"c"), None);
        let mut in_use = IndexSet::new();
        in_use.insert(1);
        assert_eq!(ids.reclaim(&in_use), []);
        assert_eq!(ids.reclaim(&IndexSet::new()), [1]);
        assert_eq!((ids.take(&"c"), ids.get(&"a")), (Some(1), None));
    }

    #[test]
    fn an_identity_that_comes_back_finds_its_index() {
        let mut ids = Identities::new(0, 10);
        ids.take(&"a");
        let b = ids.take(&"b");
        ids.retain(|id| *id == "a");
        assert_eq!((ids.take(&"c"), ids.take(&"b"), ids.retired()), (Some(2), b, 0));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take(u8),
        Retire(u8),
        FlowMade(u8),
        FlowsEnded(u8),
        Reclaim,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0_u8..20).prop_map(Op::Take),
            (0_u8..20).prop_map(Op::Retire),
            (0_u8..20).prop_map(Op::FlowMade),
            (0_u8..20).prop_map(Op::FlowsEnded),
            Just(Op::Reclaim),
        ]
    }

    proptest! {
        #[test]
        fn an_index_names_one_identity_while_it_or_a_flow_of_it_lives(ops in prop::collection::vec(op(), 0..300)) {
            let mut ids = Identities::new(0, 12);
            // index → identity of the flows that refer to it
            let mut flows: HashMap<u32, u8> = HashMap::new();
            for op in ops {
                match op {
                    Op::Take(id) => {
                        if let Some(index) = ids.take(&id) {
                            prop_assert!(flows.get(&index).is_none_or(|of| *of == id));
                        }
                    }
                    Op::Retire(id) => drop(ids.retain(|live| *live != id)),
                    // Only a live identity gets new flows.
                    Op::FlowMade(id) => flows.extend(ids.get(&id).map(|index| (index, id))),
                    Op::FlowsEnded(id) => flows.retain(|_, of| *of != id),
                    Op::Reclaim => {
                        let mut in_use = IndexSet::new();
                        for index in flows.keys() {
                            in_use.insert(u16::try_from(*index).unwrap());
                        }
                        ids.reclaim(&in_use);
                    }
                }
                let mut indexes: Vec<u32> = ids.known().map(|(_, index)| index).collect();
                indexes.sort_unstable();
                indexes.dedup();
                prop_assert_eq!(indexes.len(), ids.known().count());
            }
        }
    }
}
