//! What is compared.

use std::time::Duration;

use crate::{
    clock::{MS, Nanos},
    node::Kind,
    service::{Mode, PairSpec},
    topology::{Options, ROUTER},
};

/// A product, and how its nodes are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    /// onearm with the leg alone.
    Onearm,
    /// onearm with a peer link beside the leg.
    OnearmLinked,
    /// keepalived with nftables.
    Keepalived,
    /// FRR's vrrpd with nftables.
    Frr,
    /// ucarp with nftables.
    Ucarp,
}

impl Product {
    pub(super) const ALL: [Self; 5] = [
        Self::Onearm,
        Self::OnearmLinked,
        Self::Keepalived,
        Self::Frr,
        Self::Ucarp,
    ];

    /// Name on the command line, in figures and in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Onearm => "onearm",
            Self::OnearmLinked => "onearm-link",
            Self::Keepalived => "keepalived",
            Self::Frr => "frr",
            Self::Ucarp => "ucarp",
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Onearm | Self::OnearmLinked => Kind::Onearm,
            Self::Keepalived => Kind::Keepalived,
            Self::Frr => Kind::Frr,
            Self::Ucarp => Kind::Ucarp,
        }
    }

    /// Whether it can advertise so often: ucarp knows whole seconds only.
    pub(super) fn knows(self, interval: Duration) -> bool {
        self != Self::Ucarp || interval.subsec_millis() == 0
    }

    pub(super) fn options(self) -> Options {
        Options {
            forwarding: true,
            peer_link: self == Self::OnearmLinked,
            ..Options::default()
        }
    }

    pub(super) fn spec(self, interval: Duration) -> PairSpec {
        PairSpec {
            witness: Some(ROUTER),
            peer_link: self == Self::OnearmLinked,
            ..PairSpec::web_and_echo(Mode::Dnat, interval)
        }
    }

    /// How long after a fault or its end something may still come of it.
    pub(super) fn aftermath(self, spec: &PairSpec) -> Duration {
        let silence: Nanos = spec.active_down(0).max(spec.active_down(1));
        let more = if self == Self::Ucarp { 3_000 * MS } else { 0 };
        Duration::from_nanos(silence + silence / 4 + 700 * MS + more)
    }
}
