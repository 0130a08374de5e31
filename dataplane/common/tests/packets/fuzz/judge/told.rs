//! What the peer is to know after a frame: of every proved flow that changed or was removed, and of none else.

use super::Outcome;
use onearm_dataplane_common::{
    addr::{Addr, Addr4},
    flow::{FlowEntry, State, is_proved},
    tell::{ENDED4, ENDED6, incarnation_word, place},
};
use std::collections::HashMap;

/// Clients' entries by incarnation, each with its location.
fn flows(entries: &[FlowEntry]) -> HashMap<u64, (FlowEntry, u64)> {
    let partners: HashMap<(u64, bool), u32> = entries
        .iter()
        .map(|entry| ((entry.incarnation, entry.is_reply()), entry.partner))
        .collect();
    let forward = entries.iter().filter(|entry| !entry.is_reply());
    forward
        .map(|entry| {
            // The other direction names it; a flow of one direction names itself.
            let at = partners.get(&(entry.incarnation, true)).unwrap_or(&entry.partner);
            let place = place(!entry.saddr.is_v4(), *at);
            (entry.incarnation, (*entry, place))
        })
        .collect()
}

fn state(entry: &FlowEntry) -> Option<State> {
    let proved = is_proved(entry.proto, entry.flags, entry.own, entry.other, entry.packets);
    proved.then(|| entry.state())
}

/// A record as far as it can be foreseen: the place, and of a flow that was removed its incarnation.
fn told(record: &[u64]) -> Result<(u64, Option<u64>), String> {
    let incarnation = match record.len() {
        1 => None,
        ENDED4 => Some(record[1 + incarnation_word::<Addr4>()]),
        ENDED6 => Some(record[1 + incarnation_word::<Addr>()]),
        other => return Err(format!("a record of {other} words")),
    };
    Ok((record[0], incarnation))
}

pub fn right(outcome: &Outcome<'_>) -> Result<(), String> {
    let (before, after) = (flows(outcome.before), flows(outcome.after));
    let mut want = Vec::new();
    for (incarnation, (entry, place)) in &before {
        let was = state(entry);
        match after.get(incarnation) {
            None if was.is_some() => want.push((*place, Some(*incarnation))),
            Some((entry, place)) if state(entry).is_some() && state(entry) != was => {
                want.push((*place, None));
            }
            None | Some(_) => {}
        }
    }
    for (incarnation, (entry, _)) in &after {
        let proved = state(entry).is_some() && !before.contains_key(incarnation);
        ensure!(!proved, "{entry:?} is proved by its first packet");
    }
    let mut told: Vec<_> = outcome.told.iter().map(|r| told(r)).collect::<Result<_, _>>()?;
    told.sort_unstable();
    want.sort_unstable();
    ensure!(told == want, "told {told:x?}, wanted {want:x?}");
    Ok(())
}
