//! What a service rewrites, by client.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::pair::{Hairpin, ServiceConfig};

/// What a service rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Source and destination.
    BothNat,
    /// Destination; servers answer through the gateway address.
    Dnat,
    /// Nothing: the frame goes to the server, which holds the VIP and answers the client itself.
    Dsr,
    /// Nothing: the packet goes to the server in a tunnel; the server holds the VIP and answers the client itself.
    L3Dsr,
}

impl Mode {
    /// As written in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BothNat => "both-nat",
            Self::Dnat => "dnat",
            Self::Dsr => "dsr",
            Self::L3Dsr => "l3-dsr",
        }
    }

    /// Whether servers answer their clients past the pair, with the VIP as their own address.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Dsr | Self::L3Dsr)
    }
}

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
