//! What a service rewrites, by client.

use ipnet::IpNet;
pub use onearm_dataplane::Mode;
use serde::{Deserialize, Serialize};

use super::pair::{Hairpin, ServiceConfig};

/// One element of `service.mode_for`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeFor {
    /// Who has it; of several lists the longest prefix counts.
    pub clients: Vec<IpNet>,
    /// The mode.
    pub mode: Mode,
}

/// The outer header of packets in [`Mode::L3Dsr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// Which header.
    pub kind: TunnelKind,
    /// UDP port of [`TunnelKind::Gue`], 1–65,535.
    pub port: u16,
    /// Outer sources; a flow keeps one of them. `None` = the leg's own address.
    pub sources: Option<IpNet>,
}

/// Kind of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TunnelKind {
    /// IP in IP of the same family.
    Ipip,
    /// Generic UDP encapsulation, variant 1: the packet follows the UDP header.
    Gue,
}

impl ServiceConfig {
    /// Every mode that some client of it has.
    pub fn modes(&self) -> impl Iterator<Item = Mode> {
        std::iter::once(self.mode).chain(self.mode_for.iter().map(|rule| rule.mode))
    }

    /// Whether some clients have that mode.
    pub fn has_mode(&self, mode: Mode) -> bool {
        self.modes().any(|other| other == mode)
    }

    /// Whether its servers hold the VIP, because they answer some clients themselves.
    pub fn is_direct(&self) -> bool {
        self.modes().any(Mode::is_direct)
    }

    /// Whether some flows of it get another source address.
    pub fn translates_source(&self) -> bool {
        self.modes().any(|mode| match mode {
            Mode::BothNat => true,
            Mode::Dnat => self.hairpin != Hairpin::Off,
            Mode::Dsr | Mode::L3Dsr => false,
        })
    }
}
