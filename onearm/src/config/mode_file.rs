//! `mode`, `mode_for` and the tunnel of a `[[service]]`.

use super::limits;
use super::mode::{Mode, ModeFor, Tunnel, TunnelKind};
use super::walk::{Field, Keys, Table, Walk};

pub(super) const MODE_FOR: Keys = Keys {
    known: &["clients", "mode"],
    later: &[],
};

/// IANA's port of GUE.
const DEFAULT_TUNNEL_PORT: u16 = 6_080;
const MODE_REMEDY: &str = "write mode = \"dnat\", \"both-nat\", \"dsr\" or \"l3-dsr\"";

/// Mode of all clients that have none of their own.
pub(super) fn mode(walk: &mut Walk<'_>, table: &Table<'_>) -> Option<Mode> {
    let words = [Mode::BothNat, Mode::Dnat, Mode::Dsr, Mode::L3Dsr].map(|mode| (mode.as_str(), mode));
    walk.need(table, "mode", MODE_REMEDY, |walk, field| {
        walk.choice(field, &words, &[])
    })
}

/// Modes of listed clients.
pub(super) fn mode_for(walk: &mut Walk<'_>, table: &Table<'_>) -> Vec<ModeFor> {
    walk.or(table, "mode_for", Vec::new(), |walk, field| {
        walk.list(field, limits::PREFIXES_PER_LIST, rule)
    })
}

fn rule(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<ModeFor> {
    let table = walk.table(field, MODE_FOR)?;
    let remedy = "write clients = [\"10.9.0.0/16\"]";
    let clients = walk.need(&table, "clients", remedy, |walk, field| {
        let clients = walk.list(field, limits::PREFIXES_PER_LIST, Walk::prefix)?;
        if field.value.as_array().is_some_and(|list| list.is_empty()) {
            walk.error(field, "empty-list", "the rule is for nobody", remedy);
        }
        Some(clients)
    });
    let mode = mode(walk, &table);
    Some(ModeFor {
        clients: clients?,
        mode: mode?,
    })
}

/// The outer header.
pub(super) fn tunnel(walk: &mut Walk<'_>, table: &Table<'_>) -> Tunnel {
    let kinds = [("ipip", TunnelKind::Ipip), ("gue", TunnelKind::Gue)];
    let kind = walk.or(table, "tunnel", TunnelKind::Ipip, |walk, field| {
        walk.choice(field, &kinds, &[])
    });
    Tunnel {
        kind,
        port: walk.or(table, "tunnel_port", DEFAULT_TUNNEL_PORT, Walk::port),
        sources: walk.may(table, "tunnel_sources", Walk::prefix),
    }
}
