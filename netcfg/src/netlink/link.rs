//! Interfaces.

use super::wire::{Frame, Message, attributes, mac_of, name_of, text_of, u8_of, u16_of, u32_of};
use crate::name::{IfName, Mac};

const FIXED: usize = 16;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
const IFLA_INFO_KIND: u16 = 1;
const ARPHRD_ETHER: u16 = 1;
/// Statistics are not needed and are most of a message.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

/// An interface as the kernel tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkMessage {
    pub(crate) ifindex: u32,
    pub(crate) name: IfName,
    /// Hardware address of an Ethernet-like interface.
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    /// Kind of a virtual interface: `veth`, `bridge`, `vlan`.
    pub(crate) kind: Option<String>,
    /// Bus and name of the device behind it.
    pub(crate) parent: Option<(String, String)>,
}

/// Request for all interfaces.
pub(crate) fn list() -> Message {
    Message::new(libc::RTM_GETLINK, 0, &[0; FIXED]).number(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
}

/// Reads `RTM_NEWLINK` and `RTM_DELLINK`; none for another message or one without index or name.
pub(crate) fn read(frame: Frame<'_>) -> Option<LinkMessage> {
    if !matches!(frame.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK) {
        return None;
    }
    // A bridge tells of its ports under its own family; those are no news of the interface.
    if u8_of(frame.payload)? != 0 {
        return None;
    }
    let hardware = u16_of(frame.payload.get(2..)?)?;
    let ifindex = u32_of(frame.payload.get(4..)?)?;
    let flags = u32_of(frame.payload.get(8..)?)?.cast_signed();
    let (mut name, mut mac, mut mtu, mut carrier, mut kind) = (None, None, 0, None, None);
    let (mut bus, mut device) = (None, None);
    for (attribute, value) in attributes(frame.payload.get(FIXED..)?) {
        match attribute {
            libc::IFLA_IFNAME => name = name_of(value),
            libc::IFLA_ADDRESS => mac = mac_of(value).filter(|_| hardware == ARPHRD_ETHER),
            libc::IFLA_MTU => mtu = u32_of(value).unwrap_or(0),
            libc::IFLA_CARRIER => carrier = u8_of(value).map(|carrier| carrier != 0),
            libc::IFLA_LINKINFO => {
                kind = attributes(value)
                    .find(|(attribute, _)| *attribute == IFLA_INFO_KIND)
                    .and_then(|(_, value)| text_of(value).map(str::to_owned));
            }
            IFLA_PARENT_DEV_NAME => device = text_of(value).map(str::to_owned),
            IFLA_PARENT_DEV_BUS_NAME => bus = text_of(value).map(str::to_owned),
            _ => {}
        }
    }
    let up = flags & libc::IFF_UP != 0;
    let carrier = up && carrier.unwrap_or(flags & libc::IFF_LOWER_UP != 0);
    Some(LinkMessage {
        ifindex,
        name: name?,
        mac,
        mtu,
        up,
        carrier,
        kind,
        parent: bus.zip(device),
    })
}
