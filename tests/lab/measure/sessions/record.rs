//! What became of connections, and what of it falls into a span of time.

use std::{collections::BTreeMap, fmt};

use crate::clock::{MS, Nanos};

/// An answer that took longer than this is a stall.
pub(super) const STALL: Nanos = 20 * MS;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It was reset.
    Reset,
    /// The other side closed it.
    Closed,
    /// Nothing came back for too long.
    Silent,
    /// The answer belongs to another connection or word, or is damaged.
    Payload,
    /// Another server answered, or the same one on another connection.
    Server,
    /// Something else.
    Other,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset",
            Self::Closed => "closed by the other side",
            Self::Silent => "silent",
            Self::Payload => "foreign payload",
            Self::Server => "another server",
            Self::Other => "another error",
        })
    }
}

/// A time without answers on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Which connection.
    pub connection: u32,
    /// When the first word was said that was not answered at once.
    pub asked: Nanos,
    /// How long it took until an answer came.
    pub took: Nanos,
}

/// All of one set of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Connections there were.
    pub connections: usize,
    /// Words that came back.
    pub answers: u64,
    /// Stalls longer than 20 ms, in no order.
    pub stalls: Vec<Stall>,
    /// When words were said that never came back, of datagrams.
    pub lost: Vec<Nanos>,
    /// When and why connections broke.
    pub broken: Vec<(Nanos, Why)>,
}

/// What a span of time did to the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Connections that were alive when it began.
    pub alive: usize,
    /// Why some of them broke, and how many.
    pub broken: BTreeMap<Why, usize>,
    /// Words of datagrams that never came back.
    pub lost: usize,
    /// The longest stall of each connection that stalled, ascending, ns.
    pub stalls: Vec<Nanos>,
}

impl Record {
    /// Adds connections whose numbers begin at `first`.
    pub(super) fn add(&mut self, other: Self, first: u32) {
        self.connections += other.connections;
        self.answers += other.answers;
        self.stalls.extend(other.stalls.into_iter().map(|stall| Stall {
            connection: first + stall.connection,
            ..stall
        }));
        self.lost.extend(other.lost);
        self.broken.extend(other.broken);
    }

    /// What happened from `from` to `to`: stalls that began then.
    pub fn between(&self, from: Nanos, to: Nanos) -> Seen {
        let within = |at: &Nanos| (from..to).contains(at);
        let earlier = self.broken.iter().filter(|(at, _)| *at < from).count();
        let mut broken: BTreeMap<Why, usize> = BTreeMap::new();
        for (_, why) in self.broken.iter().filter(|(at, _)| within(at)) {
            *broken.entry(*why).or_default() += 1;
        }
        let mut longest: BTreeMap<u32, Nanos> = BTreeMap::new();
        for stall in self.stalls.iter().filter(|stall| within(&stall.asked)) {
            let most = longest.entry(stall.connection).or_default();
            *most = stall.took.max(*most);
        }
        let mut stalls: Vec<Nanos> = longest.into_values().collect();
        stalls.sort_unstable();
        Seen {
            alive: self.connections - earlier,
            broken,
            lost: self.lost.iter().filter(|at| within(at)).count(),
            stalls,
        }
    }
}

impl Seen {
    /// Connections that broke.
    pub fn broken(&self) -> usize {
        self.broken.values().sum()
    }

    /// Connections on which something of somebody else came.
    pub fn foreign(&self) -> usize {
        let of = |why| self.broken.get(&why).copied().unwrap_or(0);
        of(Why::Payload) + of(Why::Server)
    }

    /// The stall that so many thousandths of the stalled connections stay within, ns; 0 if none stalled.
    pub fn stall(&self, thousandths: usize) -> Nanos {
        let last = self.stalls.len().saturating_sub(1);
        let at = (self.stalls.len() * thousandths / 1_000).min(last);
        self.stalls.get(at).copied().unwrap_or(0)
    }

    /// Why connections broke, for people.
    pub fn reasons(&self) -> String {
        let words: Vec<String> = self.broken.iter().map(|(why, n)| format!("{n} {why}")).collect();
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(connection: u32, asked: Nanos, took: Nanos) -> Stall {
        Stall {
            connection,
            asked,
            took,
        }
    }

    #[test]
    fn a_span_sees_the_longest_stall_of_each_connection_that_began_in_it() {
        let record = Record {
            connections: 4,
            stalls: vec![
                stall(0, 5, 90),
                stall(0, 11, 30),
                stall(0, 12, 50),
                stall(3, 19, 20),
                stall(2, 20, 1),
            ],
            ..Record::default()
        };
        let seen = record.between(10, 20);
        assert_eq!(seen.stalls, [20, 50]);
        assert_eq!((seen.stall(500), seen.stall(1_000)), (50, 50));
        assert_eq!(record.between(30, 40).stall(990), 0);
    }

    #[test]
    fn who_broke_before_is_not_alive_and_does_not_break_again() {
        let record = Record {
            connections: 10,
            broken: vec![
                (5, Why::Reset),
                (12, Why::Server),
                (13, Why::Server),
                (25, Why::Closed),
            ],
            lost: vec![3, 14],
            ..Record::default()
        };
        let seen = record.between(10, 20);
        assert_eq!(
            (seen.alive, seen.broken(), seen.foreign(), seen.lost),
            (9, 2, 2, 1)
        );
        assert_eq!(seen.reasons(), "2 another server");
    }

    #[test]
    fn connections_of_two_threads_do_not_get_the_same_number() {
        let mut one = Record {
            connections: 2,
            stalls: vec![stall(1, 10, 30)],
            ..Record::default()
        };
        one.add(
            Record {
                connections: 2,
                stalls: vec![stall(1, 10, 40)],
                ..Record::default()
            },
            2,
        );
        assert_eq!(one.between(0, 20).stalls, [30, 40]);
    }
}
