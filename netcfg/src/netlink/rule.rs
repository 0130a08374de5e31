//! Policy rules.

use super::wire::{
    Frame, Message, address_of, attributes, family_of, name_of, network_of, number_of, u8_of, u32_of,
    unspecified,
};
use crate::{
    marks,
    name::Family,
    state::{Rule, RuleAction},
};

const FIXED: usize = 12;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;
const FR_ACT_BLACKHOLE: u8 = 6;

/// A rule as the kernel tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleMessage {
    pub(crate) protocol: u8,
    pub(crate) rule: Rule,
}

/// Request for all rules of a family.
pub(crate) fn list(family: Family) -> Message {
    let mut fixed = [0; FIXED];
    fixed[0] = number_of(family);
    Message::new(libc::RTM_GETRULE, 0, &fixed)
}

/// Adds a rule under our mark; `EEXIST` if it is there.
pub(crate) fn add(rule: &Rule) -> Message {
    message(
        libc::RTM_NEWRULE,
        libc::NLM_F_CREATE | libc::NLM_F_EXCL,
        rule,
        marks::PROTOCOL,
    )
}

/// Removes a rule that carries a mark.
pub(crate) fn remove(rule: &Rule, protocol: u8) -> Message {
    message(libc::RTM_DELRULE, 0, rule, protocol)
}

fn message(kind: u16, flags: i32, rule: &Rule, protocol: u8) -> Message {
    let (action, table) = match rule.action {
        RuleAction::Lookup(table) => (FR_ACT_TO_TBL, table),
        RuleAction::Blackhole => (FR_ACT_BLACKHOLE, 0),
        RuleAction::Other(number) => (number, 0),
    };
    let mut fixed = [0; FIXED];
    fixed[0] = number_of(rule.family);
    fixed[2] = rule.from.map_or(0, |network| network.prefix_len());
    // Tables beyond 255 are told by attribute.
    fixed[4] = u8::try_from(table).unwrap_or(0);
    fixed[7] = action;
    let mut message = Message::new(kind, flags, &fixed)
        .number(FRA_PRIORITY, rule.priority)
        .attribute(FRA_PROTOCOL, &[protocol]);
    if table != 0 {
        message = message.number(FRA_TABLE, table);
    }
    if let Some(from) = rule.from {
        message = message.address(FRA_SRC, from.network());
    }
    if let Some(iif) = &rule.iif {
        message = message.text(FRA_IIFNAME, iif.as_str());
    }
    message
}

/// Reads a rule; none for another message.
pub(crate) fn read(frame: Frame<'_>) -> Option<RuleMessage> {
    if !matches!(frame.kind, libc::RTM_NEWRULE | libc::RTM_DELRULE) {
        return None;
    }
    let family = family_of(u8_of(frame.payload)?)?;
    let from_length = *frame.payload.get(2)?;
    let mut table = u32::from(*frame.payload.get(4)?);
    let action = *frame.payload.get(7)?;
    let (mut from, mut iif, mut priority, mut protocol) = (None, None, 0, 0);
    for (attribute, value) in attributes(frame.payload.get(FIXED..)?) {
        match attribute {
            FRA_SRC => from = address_of(value),
            FRA_IIFNAME => iif = name_of(value),
            FRA_PRIORITY => priority = u32_of(value).unwrap_or(0),
            FRA_TABLE => table = u32_of(value).unwrap_or(table),
            FRA_PROTOCOL => protocol = u8_of(value).unwrap_or(0),
            _ => {}
        }
    }
    // The kernel leaves the attribute out where the address is unspecified.
    let from = (from_length > 0).then(|| from.unwrap_or(unspecified(family)));
    let from = match from {
        Some(address) => Some(network_of(family, Some(address), from_length)?),
        None => None,
    };
    let action = match action {
        FR_ACT_TO_TBL => RuleAction::Lookup(table),
        FR_ACT_BLACKHOLE => RuleAction::Blackhole,
        other => RuleAction::Other(other),
    };
    Some(RuleMessage {
        protocol,
        rule: Rule {
            family,
            priority,
            from,
            iif,
            action,
        },
    })
}
