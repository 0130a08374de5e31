//! Framing of netlink: messages, attributes.
//!
//! ```text
//!  0       4   6   8       12      16
//! +-------+---+---+-------+-------+---------------------------------------
//! |length |typ|flg|  seq  | port  | fixed header | attribute | attribute …
//! +-------+---+---+-------+-------+---------------------------------------
//!  attribute: length u16 (with these four bytes), type u16, value, padding to four bytes; all in host order
//! ```
//!
//! Reading is tolerant: what does not fit ends the walk, unknown attributes are skipped, nothing panics.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::name::{Family, IfName, Mac};

/// Bytes of a message's header.
const HEADER: usize = 16;
/// Bytes of an attribute's header.
const ATTRIBUTE_HEADER: usize = 4;
/// The two highest bits of an attribute's type are flags (nested, network byte order).
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;

/// A message under construction.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A message of a type, with flags beyond `NLM_F_REQUEST`, and its fixed header.
    pub(crate) fn new(kind: u16, flags: i32, fixed: &[u8]) -> Self {
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST).expect("flags of a request have 16 bits");
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(fixed);
        let mut message = Self { bytes };
        message.pad();
        message
    }

    /// Appends an attribute.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).expect("our attributes are short");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// Appends a 32-bit number.
    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends a text with the zero byte the kernel expects.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Appends an address.
    pub(crate) fn address(self, kind: u16, value: IpAddr) -> Self {
        match value {
            IpAddr::V4(address) => self.attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.attribute(kind, &address.octets()),
        }
    }

    /// Appends attributes within an attribute.
    pub(crate) fn nested(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self = inner(self.attribute(kind | NESTED, &[]));
        let length = u16::try_from(self.bytes.len() - start).expect("our attributes are short");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// The finished bytes under a sequence number.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("our messages are short");
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    /// Adds flags.
    pub(crate) fn flagged(mut self, flags: i32) -> Self {
        let flags = u16::try_from(flags).expect("flags of a request have 16 bits");
        let old = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        self.bytes[6..8].copy_from_slice(&(old | flags).to_ne_bytes());
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// What follows the header: fixed header and attributes.
    pub(crate) payload: &'a [u8],
}

/// The messages of a datagram; ends at the first that does not fit.
pub(crate) fn frames(mut datagram: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_of(datagram)?).ok()?;
        let message = datagram.get(..length).filter(|message| message.len() >= HEADER)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Frame {
            kind: u16_of(&message[4..])?,
            flags: u16_of(&message[6..])?,
            sequence: u32_of(&message[8..])?,
            payload: &message[HEADER..],
        })
    })
}

/// The attributes after a fixed header, type and value; ends at the first that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_of(bytes)?);
        let kind = u16_of(bytes.get(2..)?)? & TYPE_MASK;
        let attribute = bytes
            .get(..length)
            .filter(|attribute| attribute.len() >= ATTRIBUTE_HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, &attribute[ATTRIBUTE_HEADER..]))
    })
}

pub(crate) fn u8_of(bytes: &[u8]) -> Option<u8> {
    bytes.first().copied()
}

pub(crate) fn u16_of(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().copied().map(u16::from_ne_bytes)
}

pub(crate) fn u32_of(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_ne_bytes)
}

pub(crate) fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

pub(crate) fn name_of(bytes: &[u8]) -> Option<IfName> {
    IfName::new(text_of(bytes)?).ok()
}

pub(crate) fn mac_of(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

pub(crate) fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::V4(Ipv4Addr::from(octets)));
    }
    <[u8; 16]>::try_from(bytes)
        .ok()
        .map(|octets| IpAddr::V6(Ipv6Addr::from(octets)))
}

/// A network of a family: the default one without an address.
pub(crate) fn network_of(family: Family, address: Option<IpAddr>, length: u8) -> Option<IpNet> {
    let address = address.unwrap_or(unspecified(family));
    let net = IpNet::new(address, length).ok()?;
    (Family::of(address) == family).then_some(net)
}

pub(crate) fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// The kernel's number of a family.
pub(crate) fn number_of(family: Family) -> u8 {
    let number = match family {
        Family::Ipv4 => libc::AF_INET,
        Family::Ipv6 => libc::AF_INET6,
    };
    u8::try_from(number).expect("both are small")
}

/// The family of a kernel number, if it is IP.
pub(crate) fn family_of(number: u8) -> Option<Family> {
    Family::BOTH
        .into_iter()
        .find(|family| number_of(*family) == number)
}
