//! What is compared.

use std::time::Duration;

use super::Cell;
use crate::{
    clock::MS,
    measure::sessions,
    node::Kind,
    report::Report,
    service::{Conntrackd, Mode, PairSpec, Service},
    topology::{Family, ROUTER, SERVERS, VIP},
};

/// A product, and how its nodes share flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    /// onearm.
    Onearm,
    /// keepalived with nftables; nothing is shared.
    Keepalived,
    /// The same with conntrackd in its mode FT-FW.
    Ftfw,
    /// The same with conntrackd in its mode NOTRACK.
    Notrack,
}

impl Product {
    pub(super) const ALL: [Self; 4] = [Self::Onearm, Self::Keepalived, Self::Ftfw, Self::Notrack];

    /// Name on the command line, in figures and in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Onearm => "onearm",
            Self::Keepalived => "keepalived",
            Self::Ftfw => "conntrackd-ftfw",
            Self::Notrack => "conntrackd-notrack",
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Onearm => Kind::Onearm,
            Self::Keepalived => Kind::Keepalived,
            Self::Ftfw | Self::Notrack => Kind::Conntrackd,
        }
    }

    /// The peers are set up for NAT of IPv4 alone.
    pub(super) fn knows(self, cell: Cell) -> bool {
        self == Self::Onearm || (!cell.mode.is_direct() && cell.family == Family::V4)
    }

    pub(super) fn needs_forwarding(self) -> bool {
        self != Self::Onearm
    }

    /// Servers are chosen in turn or at random: who does not know a connection chooses another one.
    pub(super) fn spec(self, cell: Cell, interval: Duration) -> PairSpec {
        let mut spec = PairSpec {
            witness: (cell.family == Family::V4).then_some(ROUTER),
            peer_link: true,
            conntrackd: if self == Self::Notrack {
                Conntrackd::Notrack
            } else {
                Conntrackd::FtFw
            },
            ..PairSpec::web_and_echo(cell.mode, interval)
        };
        for (name, protocol) in [("sessions", "tcp"), ("datagrams", "udp")] {
            spec.services.push(Service {
                scheduler: "wrr",
                ..Service::new(name, protocol, sessions::PORT, cell.mode, &SERVERS)
            });
        }
        // The node's own address does not move.
        if self != Self::Onearm {
            for service in &mut spec.services {
                service.snat = vec![VIP.into()];
            }
        }
        if cell.mode == Mode::BothNat && self == Self::Onearm {
            spec.max_flows = 131_072;
        }
        spec.of_family(cell.family)
    }

    /// What onearm must fulfil is checked; what a peer does is told.
    pub(super) fn demand(self, report: &mut Report, name: String, holds: bool, detail: String) {
        if self == Self::Onearm {
            report.check(name, holds, detail);
        } else if !holds {
            report.note(format!("not so: {name}: {detail}"));
        }
    }

    /// How long after a blow something may still come of it.
    pub(super) fn aftermath(spec: &PairSpec) -> Duration {
        let silence = spec.active_down(0).max(spec.active_down(1));
        Duration::from_nanos(silence + silence / 4 + 700 * MS)
    }
}
