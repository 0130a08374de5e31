//! A span of a pair's life, and what it did to the connections.

use anyhow::{Context as _, Result};

use super::{
    Cell,
    blow::{self, Blow},
    many::{Group, Outcome},
    product::Product,
};
use crate::{
    clock::Nanos,
    measure::{outage::Series, sessions::Seen, stalls},
    node::Pair,
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
    pub(super) lag: Option<Lag>,
}

/// How long after they were made flows were acknowledged by the other node, of the last minute or two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lag {
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    /// Whether the other node was there all the time: one that comes back is told everything first.
    pub(super) is_steady: bool,
}

impl Lag {
    /// What the Active tells; none of a product that tells nothing.
    pub(super) fn told(pair: &mut Pair) -> Result<Option<Self>> {
        let owner = blow::active(pair);
        let Some(node) = pair.nodes[owner].as_onearm() else {
            return Ok(None);
        };
        let sync = node.ask(&["status"])?["sync"].take();
        let of = |name: &str| sync[name].as_u64().with_context(|| format!("no sync.{name}"));
        Ok(Some(Self {
            p50_us: of("lag_p50_us")?,
            p99_us: of("lag_p99_us")?,
            is_steady: sync["counters"]["streams"] == 1,
        }))
    }
}

impl Span {
    /// What came of it.
    pub(super) fn stage(
        &self,
        product: Product,
        cell: Cell,
        size: usize,
        blow: Blow,
        outcome: &Outcome,
    ) -> Stage {
        let (from, to) = (self.from, self.to);
        Stage {
            product,
            cell,
            size,
            blow,
            event: self.event,
            from,
            seen: outcome
                .records
                .iter()
                .map(|(group, record)| (*group, record.between(from, to)))
                .collect(),
            lost: (self.steady.lost(from, to), self.steady.attempts.len()),
            outage: self.steady.longest_gap(from, to),
            machine: stalls::longest(&outcome.stalls, from, to),
            lag: self.lag,
            machine_before: stalls::longest(&outcome.stalls, 0, from),
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
    /// How late flows were acknowledged before.
    pub(super) lag: Option<Lag>,
    /// The machine's longest stall before, since the connections were opened, ns.
    pub(super) machine_before: Nanos,
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
