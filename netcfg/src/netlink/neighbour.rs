//! Neighbours.

use std::net::IpAddr;

use super::wire::{
    Frame, Message, address_of, attributes, family_of, mac_of, number_of, u8_of, u16_of, u32_of,
};
use crate::{
    marks,
    name::{Family, Mac},
    state::Holding,
};

const FIXED: usize = 12;
const NDA_PROTOCOL: u16 = 12;
const NDA_FLAGS_EXT: u16 = 15;
const NTF_PROXY: u8 = 0x08;
const NTF_EXT_LEARNED: u8 = 0x10;
const NTF_EXT_MANAGED: u32 = 0x01;

const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;

/// A neighbour as the kernel tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeighbourMessage {
    pub(crate) ifindex: u32,
    pub(crate) address: IpAddr,
    mac: Option<Mac>,
    state: u16,
    flags: u8,
    flags_ext: u32,
    protocol: u8,
}

impl NeighbourMessage {
    /// The hardware address, while frames may be sent to it: also when it has not been confirmed lately.
    pub(crate) fn usable(&self) -> Option<Mac> {
        let usable = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT;
        self.mac
            .filter(|mac| self.state & usable != 0 && mac.is_unicast())
    }

    /// Whether the kernel gave up resolving it.
    pub(crate) fn failed(&self) -> bool {
        self.state & NUD_FAILED != 0
    }

    /// Whether it carries our mark.
    pub(crate) fn is_ours(&self, protocol: u8) -> bool {
        self.protocol == protocol && self.state & NUD_PERMANENT == 0
    }

    /// How the kernel holds it.
    pub(crate) fn holding(&self) -> Holding {
        if self.is_ours(marks::PROTOCOL) && self.flags_ext & NTF_EXT_MANAGED != 0 {
            Holding::Ours
        } else if self.state & (NUD_PERMANENT | NUD_NOARP) != 0
            || (self.flags & NTF_EXT_LEARNED != 0 || self.flags_ext & NTF_EXT_MANAGED != 0)
                && self.protocol != marks::PROTOCOL
        {
            Holding::Foreign
        } else if self.usable().is_some() {
            Holding::Cached
        } else {
            Holding::Unresolved
        }
    }
}

fn fixed(address_family: u8, ifindex: u32, state: u16, flags: u8) -> [u8; FIXED] {
    let mut bytes = [0; FIXED];
    bytes[0] = address_family;
    bytes[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    bytes[8..10].copy_from_slice(&state.to_ne_bytes());
    bytes[10] = flags;
    bytes
}

/// Request for all neighbours of a family.
pub(crate) fn list(family: Family) -> Message {
    Message::new(libc::RTM_GETNEIGH, 0, &fixed(number_of(family), 0, 0, 0))
}

/// Request for one neighbour.
pub(crate) fn get(ifindex: u32, address: IpAddr) -> Message {
    Message::new(
        libc::RTM_GETNEIGH,
        0,
        &fixed(number_of(Family::of(address)), ifindex, 0, 0),
    )
    .address(libc::NDA_DST, address)
}

/// Has the kernel resolve a neighbour and keep it resolved, under our mark.
///
/// "Learned elsewhere" keeps it out of the neighbour table's limits and its garbage collection, which is global.
pub(crate) fn add(ifindex: u32, address: IpAddr, replace: bool) -> Message {
    let exclusive = if replace {
        libc::NLM_F_REPLACE
    } else {
        libc::NLM_F_EXCL
    };
    let fixed = fixed(number_of(Family::of(address)), ifindex, 0, NTF_EXT_LEARNED);
    Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE | exclusive, &fixed)
        .address(libc::NDA_DST, address)
        .attribute(NDA_PROTOCOL, &[marks::PROTOCOL])
        .number(NDA_FLAGS_EXT, NTF_EXT_MANAGED)
}

/// Asks a resolved neighbour of ours at once whether it is still there, under the address it has.
///
/// Two steps: the kernel ignores a state that is given together with "managed", and takes the flag away without it.
pub(crate) fn probe(ifindex: u32, address: IpAddr, mac: Mac) -> [Message; 2] {
    let fixed = fixed(
        number_of(Family::of(address)),
        ifindex,
        NUD_PROBE,
        NTF_EXT_LEARNED,
    );
    let ask = Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_REPLACE, &fixed)
        .address(libc::NDA_DST, address)
        .attribute(libc::NDA_LLADDR, &mac.0)
        .attribute(NDA_PROTOCOL, &[marks::PROTOCOL]);
    [ask, add(ifindex, address, true)]
}

/// Removes a neighbour.
pub(crate) fn remove(ifindex: u32, address: IpAddr) -> Message {
    Message::new(
        libc::RTM_DELNEIGH,
        0,
        &fixed(number_of(Family::of(address)), ifindex, 0, 0),
    )
    .address(libc::NDA_DST, address)
}

/// Reads `RTM_NEWNEIGH` and `RTM_DELNEIGH` of IP; none for another message, a proxy entry, a bridge's table.
pub(crate) fn read(frame: Frame<'_>) -> Option<NeighbourMessage> {
    if !matches!(frame.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH) {
        return None;
    }
    family_of(u8_of(frame.payload)?)?;
    let ifindex = u32_of(frame.payload.get(4..)?)?;
    let state = u16_of(frame.payload.get(8..)?)?;
    let flags = *frame.payload.get(10)?;
    let (mut address, mut mac, mut protocol, mut flags_ext) = (None, None, 0, 0);
    for (attribute, value) in attributes(frame.payload.get(FIXED..)?) {
        match attribute {
            libc::NDA_DST => address = address_of(value),
            libc::NDA_LLADDR => mac = mac_of(value),
            NDA_PROTOCOL => protocol = u8_of(value).unwrap_or(0),
            NDA_FLAGS_EXT => flags_ext = u32_of(value).unwrap_or(0),
            _ => {}
        }
    }
    let address = address.filter(|_| flags & NTF_PROXY == 0)?;
    Some(NeighbourMessage {
        ifindex,
        address,
        mac,
        state,
        flags,
        flags_ext,
        protocol,
    })
}
