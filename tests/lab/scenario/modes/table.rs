//! The table of modes: which cell is checked by what, and which cannot apply.

use crate::{service::Mode, topology::Family};

/// Protocol of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Requests and their answers.
    Data,
    /// Errors from the server's side to the client and the other way.
    IcmpError,
    /// Fragments, in order and not.
    Fragments,
    /// A link that is too small for a packet.
    TooBig,
    /// IP options, extension headers.
    Options,
    /// VLAN tags in the frame.
    Vlan,
}

/// What a cell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// It is checked by the run.
    Checked,
    /// It cannot apply.
    NotApplicable(&'static str),
}

/// Families in the order of the table.
pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// Protocols in the order of the table.
pub(super) const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
/// Columns in the order of the table.
pub(super) const FEATURES: [Feature; 6] = [
    Feature::Data,
    Feature::IcmpError,
    Feature::Fragments,
    Feature::TooBig,
    Feature::Options,
    Feature::Vlan,
];

impl Protocol {
    /// Its name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

impl Feature {
    /// Its name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::IcmpError => "ICMP error",
            Self::Fragments => "fragments",
            Self::TooBig => "too-big",
            Self::Options => "options",
            Self::Vlan => "VLAN",
        }
    }
}

/// The cell of the table. All modes have the same ones.
pub(super) fn cell(family: Family, protocol: Protocol, feature: Feature) -> Cell {
    match (feature, family, protocol) {
        (Feature::Fragments, Family::V6, Protocol::Tcp) => {
            Cell::NotApplicable("no router fragments IPv6, and TCP sends segments that fit")
        }
        _ => Cell::Checked,
    }
}

/// Name of the check of a cell.
pub(super) fn name(mode: Mode, family: Family, protocol: Protocol, feature: Feature) -> String {
    format!(
        "{} {} {} {}",
        mode.word(),
        family.word(),
        protocol.word(),
        feature.word()
    )
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// The table as Markdown.
    fn markdown() -> String {
        let mut text = String::from("| mode | family | protocol |");
        for feature in FEATURES {
            // Writing to a String cannot fail.
            write!(text, " {} |", feature.word()).ok();
        }
        text.push_str("\n|---|---|---|");
        text.push_str(&"---|".repeat(FEATURES.len()));
        text.push('\n');
        for mode in Mode::ALL {
            for family in FAMILIES {
                for protocol in PROTOCOLS {
                    write!(
                        text,
                        "| {} | {} | {} |",
                        mode.word(),
                        family.word(),
                        protocol.word()
                    )
                    .ok();
                    for feature in FEATURES {
                        match cell(family, protocol, feature) {
                            Cell::Checked => write!(text, " `{}` |", name(mode, family, protocol, feature)),
                            Cell::NotApplicable(why) => write!(text, " n/a because {why} |"),
                        }
                        .ok();
                    }
                    text.push('\n');
                }
            }
        }
        text
    }

    #[test]
    fn the_document_shows_the_table_of_the_scenario() {
        let document = include_str!("../../../../docs/modes.md");
        assert!(
            document.contains(&markdown()),
            "docs/modes.md must hold this table:\n{}",
            markdown()
        );
    }
}
