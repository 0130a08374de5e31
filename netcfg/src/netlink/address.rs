//! Addresses of interfaces.

use ipnet::IpNet;

use super::wire::{Frame, Message, address_of, attributes, family_of, network_of, u8_of, u32_of};

const FIXED: usize = 8;

/// An address of an interface; the network keeps the host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressMessage {
    pub(crate) ifindex: u32,
    pub(crate) network: IpNet,
    /// Not yet checked for a duplicate, or found to be one: not usable.
    pub(crate) tentative: bool,
}

/// Request for all addresses.
pub(crate) fn list() -> Message {
    Message::new(libc::RTM_GETADDR, 0, &[0; FIXED])
}

/// Reads `RTM_NEWADDR` and `RTM_DELADDR`; none for another message.
pub(crate) fn read(frame: Frame<'_>) -> Option<AddressMessage> {
    if !matches!(frame.kind, libc::RTM_NEWADDR | libc::RTM_DELADDR) {
        return None;
    }
    let family = family_of(u8_of(frame.payload)?)?;
    let length = *frame.payload.get(1)?;
    let mut flags = u32::from(*frame.payload.get(2)?);
    let ifindex = u32_of(frame.payload.get(4..)?)?;
    let (mut local, mut address) = (None, None);
    for (attribute, value) in attributes(frame.payload.get(FIXED..)?) {
        match attribute {
            libc::IFA_LOCAL => local = address_of(value),
            libc::IFA_ADDRESS => address = address_of(value),
            libc::IFA_FLAGS => flags = u32_of(value).unwrap_or(flags),
            _ => {}
        }
    }
    // IFA_ADDRESS is the far end of a point-to-point link; IFA_LOCAL is ours where it is told.
    let network = network_of(family, Some(local.or(address)?), length)?;
    let tentative =
        flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0 && flags & libc::IFA_F_OPTIMISTIC == 0;
    Some(AddressMessage {
        ifindex,
        network,
        tentative,
    })
}
