//! A span of a pair's life, and what it did to the connections.

use super::{Cell, blow::Blow, many::Group, product::Product};
use crate::{
    clock::Nanos,
    measure::{
        outage::Series,
        sessions::{Record, Seen},
    },
};

/// What goes on in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The blow.
    Blow,
    /// What the blow broke is made whole again.
    Mended,
    /// Ownership is handed back by command.
    Failback,
    /// The blow again.
    Again,
    /// A blow of a row, by its number.
    Row(u8),
}

impl Event {
    /// Name in figures.
    pub(super) fn name(self) -> String {
        match self {
            Self::Blow => String::new(),
            Self::Mended => "_mended".to_owned(),
            Self::Failback => "_failback".to_owned(),
            Self::Again => "_again".to_owned(),
            Self::Row(nth) => format!("_row{nth:02}"),
        }
    }
}

/// When a stage was, and what was measured beside.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) event: Event,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    /// Datagrams of one flow at a steady rate.
    pub(super) steady: Series,
    /// The machine's longest stall.
    pub(super) machine: Nanos,
}

impl Span {
    /// What came of it.
    pub(super) fn stage(
        &self,
        product: Product,
        cell: Cell,
        size: usize,
        blow: Blow,
        records: &[(Group, Record)],
    ) -> Stage {
        let (from, to) = (self.from, self.to);
        Stage {
            product,
            cell,
            size,
            blow,
            event: self.event,
            from,
            seen: records
                .iter()
                .map(|(group, record)| (*group, record.between(from, to)))
                .collect(),
            lost: (self.steady.lost(from, to), self.steady.attempts.len()),
            outage: self.steady.longest_gap(from, to),
            machine: self.machine,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) product: Product,
    pub(super) cell: Cell,
    pub(super) size: usize,
    pub(super) blow: Blow,
    pub(super) event: Event,
    /// When it began.
    pub(super) from: Nanos,
    pub(super) seen: Vec<(Group, Seen)>,
    /// Datagrams at a steady rate that were lost, and how many there were.
    pub(super) lost: (usize, usize),
    /// The longest time without an answer to one, ns.
    pub(super) outage: Nanos,
    /// The machine's longest stall, ns.
    pub(super) machine: Nanos,
}

impl Stage {
    /// Its name in figures.
    pub(super) fn name(&self) -> String {
        format!(
            "{}_{}_{}_{}{}",
            self.product.name(),
            self.cell.name(),
            self.size,
            self.blow.name(),
            self.event.name()
        )
    }

    /// Whether nobody may notice anything.
    pub(super) fn is_planned(&self) -> bool {
        matches!(self.event, Event::Mended | Event::Failback) || self.blow == Blow::Switchover
    }

    /// Connections of all groups that were alive, and that broke.
    pub(super) fn broken(&self) -> (usize, usize) {
        let alive = self.seen.iter().map(|(_, seen)| seen.alive).sum();
        (alive, self.seen.iter().map(|(_, seen)| seen.broken()).sum())
    }

    /// Why connections broke, for people.
    pub(super) fn reasons(&self) -> String {
        let mut all = Seen::default();
        for (why, count) in self.seen.iter().flat_map(|(_, seen)| &seen.broken) {
            *all.broken.entry(*why).or_default() += count;
        }
        all.reasons()
    }

    /// Connections on which something of somebody else came.
    pub(super) fn foreign(&self) -> usize {
        self.seen.iter().map(|(_, seen)| seen.foreign()).sum()
    }

    /// What it did to one group.
    pub(super) fn of(&self, group: Group) -> Option<&Seen> {
        self.seen
            .iter()
            .find(|(of, _)| *of == group)
            .map(|(_, seen)| seen)
    }
}
