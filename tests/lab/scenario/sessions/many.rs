//! All connections of one blow.

use std::{net::IpAddr, time::Duration};

use anyhow::Result;

use super::{Cell, Run};
use crate::{
    clock::{self, Nanos},
    measure::{
        sessions::{self, Protocol, Record, Sessions, Wanted},
        stalls::{Stall, StallMonitor},
    },
    topology::{self, Family, OneArm},
};

/// Words a second of all TCP connections together.
const WORDS: usize = 5_000;
/// The least time between two words of a connection.
const PERIOD: Duration = Duration::from_millis(200);
/// Of so many connections from outside, one is datagrams beside, and one from the servers' own network.
const ONE_OF: usize = 10;
/// Connections that say nothing over a blow.
const IDLE: usize = 20;
/// Connections from one address.
const EACH: usize = 5_000;
/// The first port they come from, and how many there are.
const FIRST_PORT: u16 = 10_000;
/// See `FIRST_PORT`.
const PORTS: u16 = 20_000;

/// Which connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// TCP from outside.
    Tcp,
    /// TCP from the servers' own network.
    Near,
    /// UDP from outside.
    Udp,
    /// TCP that says nothing until it is told to.
    Idle,
}

impl Group {
    pub(super) const ALL: [Self; 4] = [Self::Tcp, Self::Near, Self::Udp, Self::Idle];

    /// Name in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Near => "near",
            Self::Udp => "udp",
            Self::Idle => "idle",
        }
    }
}

/// Connections under way.
#[derive(Debug)]
pub(super) struct Many {
    groups: Vec<(Group, Sessions)>,
    watch: StallMonitor,
    /// How many of TCP from outside.
    pub(super) size: usize,
    /// How many of all groups.
    pub(super) count: usize,
}

/// Gives the outside client addresses enough.
pub(super) fn sources(lab: &OneArm, family: Family, size: usize) -> Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    for n in (0_u8..).take(size.div_ceil(EACH) + 1) {
        let address: IpAddr = match family {
            Family::V4 => {
                let mut bytes = topology::address("out").octets();
                bytes[3] += n;
                bytes.into()
            }
            Family::V6 => {
                let mut words = topology::address6("out").segments();
                words[7] += u16::from(n);
                words.into()
            }
        };
        if n > 0 {
            let rest = if address.is_ipv4() {
                "/24 dev eth0"
            } else {
                "/64 dev eth0 nodad"
            };
            lab.ns("out").run(&format!("ip addr add {address}{rest}"))?;
        }
        all.push(address);
    }
    Ok(all)
}

impl Many {
    /// Opens them, from other ports than the `nth` time before; the last of `sources` is for idle ones and
    /// datagrams.
    pub(super) fn open(
        run: &mut Run,
        lab: &OneArm,
        cell: Cell,
        sources: &[IpAddr],
        size: usize,
        nth: u16,
    ) -> Result<Self> {
        let near: IpAddr = match cell.family {
            Family::V4 => topology::address("cl").into(),
            Family::V6 => topology::address6("cl").into(),
        };
        let period = PERIOD.max(Duration::from_secs(1) * u32::try_from(size / WORDS)?);
        let (last, most) = sources.split_last().unwrap_or((&near, &[]));
        let mut many = Self {
            groups: Vec::new(),
            watch: StallMonitor::start()?,
            size,
            count: 0,
        };
        let each = u16::try_from(EACH.min(size))?;
        let first_port = FIRST_PORT + nth % (PORTS / each) * each;
        let set = run.random();
        for (group, set) in Group::ALL.into_iter().zip(set..) {
            let (protocol, from, count, period) = match group {
                Group::Tcp => (Protocol::Tcp, most.to_vec(), size, Some(period)),
                Group::Near => (Protocol::Tcp, vec![near], 1_000.min(size) / ONE_OF, Some(PERIOD)),
                Group::Udp => (Protocol::Udp, vec![*last], 1_000.min(size) / ONE_OF, Some(PERIOD)),
                Group::Idle => (Protocol::Tcp, vec![*last], IDLE, None),
            };
            let host = if group == Group::Near { "cl" } else { "out" };
            let wanted = Wanted {
                protocol,
                target: (cell.vip(), sessions::PORT).into(),
                sources: from,
                first_port,
                count,
                period,
                set,
            };
            many.groups.push((group, Sessions::open(lab.ns(host), &wanted)?));
            many.count += count;
        }
        Ok(many)
    }

    /// Tells the idle ones to speak, and waits until each has had an answer to a word of this time or later; who has none
    /// within `limit` is broken.
    pub(super) fn wait_answered(&self, limit: Duration) {
        let since: Nanos = clock::now();
        let end = since + clock::nanos(limit);
        for (_, sessions) in &self.groups {
            sessions.speak();
        }
        for (_, sessions) in &self.groups {
            let left = Duration::from_nanos(end.saturating_sub(clock::now()));
            sessions.wait_answered(since, left);
        }
    }

    /// Ends them.
    pub(super) fn finish(self) -> Result<Outcome> {
        let ended = |(group, sessions): (Group, Sessions)| Ok((group, sessions.finish()?));
        Ok(Outcome {
            records: self.groups.into_iter().map(ended).collect::<Result<_>>()?,
            stalls: self.watch.stop()?,
        })
    }
}

/// What became of them.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) records: Vec<(Group, Record)>,
    /// The machine's stalls since the first was opened.
    pub(super) stalls: Vec<Stall>,
}
