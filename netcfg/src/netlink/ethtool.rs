//! Offload features and the link, by ethtool's generic netlink.

use std::{collections::BTreeSet, io};

use super::{
    socket::Requests,
    wire::{Frame, Message, attributes, text_of, u8_of, u16_of},
};
use crate::error::Error;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const GENL_FIXED: usize = 4;

const ETHTOOL_MSG_LINKSTATE_GET: u8 = 6;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
const ETHTOOL_A_LINKSTATE_LINK: u16 = 2;

/// Offload features of a device by the kernel's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeatureSets {
    /// The device can switch them.
    pub(crate) changeable: BTreeSet<String>,
    /// Asked for by the user.
    pub(crate) wanted: BTreeSet<String>,
    /// Switched on.
    pub(crate) active: BTreeSet<String>,
}

/// A socket to ethtool.
#[derive(Debug)]
pub(crate) struct Ethtool {
    requests: Requests,
    family: u16,
}

impl Ethtool {
    /// Finds ethtool's family.
    pub(crate) fn open() -> Result<Self, Error> {
        let mut requests = Requests::generic()?;
        let request = Message::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
            .text(CTRL_ATTR_FAMILY_NAME, "ethtool");
        let family = requests
            .get(request, |frame| {
                attribute_of(frame, CTRL_ATTR_FAMILY_ID).and_then(u16_of)
            })
            .and_then(|family| family.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(|source| Error::Netlink {
                operation: "find ethtool",
                source,
            })?;
        Ok(Self { requests, family })
    }

    /// Whether the link has a carrier, as the driver says at this moment (`ETHTOOL_GLINK`).
    pub(crate) fn carrier(&mut self, ifindex: u32) -> io::Result<bool> {
        let request = self.request(ETHTOOL_MSG_LINKSTATE_GET, ifindex, 0);
        let link = self.requests.get(request, |frame| {
            attribute_of(frame, ETHTOOL_A_LINKSTATE_LINK).and_then(u8_of)
        })?;
        link.map(|link| link != 0)
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// The features of a device.
    pub(crate) fn features(&mut self, ifindex: u32) -> io::Result<FeatureSets> {
        let request = self.request(ETHTOOL_MSG_FEATURES_GET, ifindex, 0);
        let sets = self.requests.get(request, |frame| Some(read_features(frame)))?;
        sets.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Asks for features to be on or off.
    pub(crate) fn set_feature(&mut self, ifindex: u32, feature: &str, on: bool) -> io::Result<()> {
        let request = self
            .request(ETHTOOL_MSG_FEATURES_SET, ifindex, ETHTOOL_FLAG_OMIT_REPLY)
            .nested(ETHTOOL_A_FEATURES_WANTED, |set| {
                set.nested(ETHTOOL_A_BITSET_BITS, |bits| {
                    bits.nested(ETHTOOL_A_BITSET_BITS_BIT, |bit| {
                        let bit = bit.text(ETHTOOL_A_BITSET_BIT_NAME, feature);
                        if on {
                            bit.attribute(ETHTOOL_A_BITSET_BIT_VALUE, &[])
                        } else {
                            bit
                        }
                    })
                })
            });
        self.requests.get(request, |_| None::<()>).map(|_| ())
    }

    fn request(&self, command: u8, ifindex: u32, flags: u32) -> Message {
        Message::new(self.family, 0, &[command, 1, 0, 0]).nested(ETHTOOL_A_HEADER, |header| {
            let header = header.number(ETHTOOL_A_HEADER_DEV_INDEX, ifindex);
            if flags == 0 {
                header
            } else {
                header.number(ETHTOOL_A_HEADER_FLAGS, flags)
            }
        })
    }
}

fn attribute_of(frame: Frame<'_>, kind: u16) -> Option<&[u8]> {
    attributes(frame.payload.get(GENL_FIXED..)?)
        .find(|(attribute, _)| *attribute == kind)
        .map(|(_, value)| value)
}

pub(super) fn read_features(frame: Frame<'_>) -> FeatureSets {
    let mut sets = FeatureSets::default();
    let mut fixed = BTreeSet::new();
    for (attribute, value) in attributes(frame.payload.get(GENL_FIXED..).unwrap_or(&[])) {
        match attribute {
            ETHTOOL_A_FEATURES_HW => sets.changeable = bitset(value),
            ETHTOOL_A_FEATURES_WANTED => sets.wanted = bitset(value),
            ETHTOOL_A_FEATURES_ACTIVE => sets.active = bitset(value),
            ETHTOOL_A_FEATURES_NOCHANGE => fixed = bitset(value),
            _ => {}
        }
    }
    sets.changeable.retain(|feature| !fixed.contains(feature));
    sets
}

/// Names of the bits of a set that are set. A list without mask names only those; one with a mask flags them.
fn bitset(set: &[u8]) -> BTreeSet<String> {
    const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
    let list = attributes(set).any(|(attribute, _)| attribute == ETHTOOL_A_BITSET_NOMASK);
    let bits = attributes(set).filter(|(attribute, _)| *attribute == ETHTOOL_A_BITSET_BITS);
    bits.flat_map(|(_, bits)| attributes(bits))
        .filter(|(attribute, _)| *attribute == ETHTOOL_A_BITSET_BITS_BIT)
        .filter(|(_, bit)| {
            list || attributes(bit).any(|(attribute, _)| attribute == ETHTOOL_A_BITSET_BIT_VALUE)
        })
        .filter_map(|(_, bit)| {
            let (_, name) = attributes(bit).find(|(attribute, _)| *attribute == ETHTOOL_A_BITSET_BIT_NAME)?;
            text_of(name).map(str::to_owned)
        })
        .collect()
}
