//! VRRPv3 advertisement over IPv4 (RFC 9568 §5.2).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+---------------+---------------+
//! |Version| Type 1| Virtual Rtr ID|   Priority    | Address count |
//! +-------+-------+---------------+---------------+---------------+
//! |(rsvd) | Max. advertise interval (cs) |       Checksum         |
//! +-------+------------------------------+------------------------+
//! |                     IPv4 address, count times                 |
//! +---------------------------------------------------------------+
//! |            trailer: reserved for authentication               |
//! +---------------------------------------------------------------+
//! ```
//!
//! **Trailer.** What lies between the address list and the IP total length is covered by the checksum and otherwise
//! ignored on reception; `auth = "none"` sends nothing there. Authentication will put key id, node, incarnation,
//! epoch, sequence, generation, health, digest and MAC in that place.
//!
//! **Checksum.** RFC 9568 §5.2.8 sums the VRRP message alone over IPv4; the many readers of RFC 5798 that came before
//! it (keepalived up to 2.2.7 and FRR by default) put an IPv4 pseudo-header in front. Either is accepted; which one is
//! sent is [`ChecksumForm`]. The pseudo-header holds the addresses *of this packet*, so that a unicast advert is not
//! summed over the group's address (B21).

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::frame::{ETHERTYPE_IPV4, Ethernet, Ipv4, PROTOCOL_VRRP, VRRP_TTL, emit_ethernet, emit_ipv4};
use super::{Mac, ParseError, array, be16, checksum, ones_sum};
use crate::units::{Centiseconds, Priority, Vrid};

/// The group of all VRRP routers (RFC 9568 §5.1.1.2).
pub const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);
/// Bytes before the address list.
const FIXED_LEN: usize = 8;
/// Most addresses of one advert: the count field has 8 bits.
pub const MAX_ADDRESSES: usize = 255;

/// What the checksum of a sent advert covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChecksumForm {
    /// IPv4 pseudo-header and message: what keepalived up to 2.2.7 and FRR expect.
    #[default]
    PseudoHeader,
    /// The message alone, as RFC 9568 §5.2.8 has it.
    MessageOnly,
}

/// One advertisement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advert {
    /// Which virtual router.
    pub vrid: Vrid,
    /// Priority of the sender; [`Priority::RELEASE`] gives ownership up.
    pub priority: Priority,
    /// Interval the sender keeps while it is the Active.
    pub interval: Centiseconds,
    /// Addresses listed, at most [`MAX_ADDRESSES`]. A list that differs from the receiver's changes nothing (B24).
    pub addresses: Vec<Ipv4Addr>,
}

impl Advert {
    /// Parses a VRRP message that came in an IPv4 packet from `src` to `dst`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] when shorter than its own address count, [`ParseError::Version`],
    /// [`ParseError::PacketType`], [`ParseError::Checksum`], [`ParseError::Vrid`], [`ParseError::Interval`].
    pub fn parse(message: &[u8], src: Ipv4Addr, dst: Ipv4Addr) -> Result<Self, ParseError> {
        let fixed: [u8; FIXED_LEN] = array(message, 0)?;
        if fixed[0] >> 4 != 3 {
            return Err(ParseError::Version(fixed[0] >> 4));
        }
        if fixed[0] & 0x0f != 1 {
            return Err(ParseError::PacketType(fixed[0] & 0x0f));
        }
        let count = usize::from(fixed[3]);
        let needed = FIXED_LEN + 4 * count;
        let list = message.get(FIXED_LEN..needed).ok_or(ParseError::Truncated {
            needed,
            got: message.len(),
        })?;
        let alone = ones_sum(0, message);
        let with_header = ones_sum(pseudo_header(src, dst, message.len()), message);
        if checksum(alone) != 0 && checksum(with_header) != 0 {
            return Err(ParseError::Checksum);
        }
        Ok(Self {
            vrid: Vrid::new(fixed[1]).map_err(|_| ParseError::Vrid)?,
            priority: Priority::from_wire(fixed[2]),
            interval: Centiseconds::new(be16(&fixed, 4) & 0x0fff).map_err(|_| ParseError::Interval)?,
            addresses: list
                .chunks_exact(4)
                .map(|octets| Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]))
                .collect(),
        })
    }

    /// Bytes [`Self::emit`] writes. Addresses beyond [`MAX_ADDRESSES`] are not listed.
    pub fn wire_len(&self) -> usize {
        FIXED_LEN + 4 * self.addresses.len().min(MAX_ADDRESSES)
    }

    /// Writes the message at the end of `out`.
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_ADDRESSES are listed")]
    pub fn emit(&self, out: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr, form: ChecksumForm) {
        let start = out.len();
        let listed = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        out.extend_from_slice(&[0x31, self.vrid.get(), self.priority.get(), listed.len() as u8]);
        out.extend_from_slice(&self.interval.get().to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        for address in listed {
            out.extend_from_slice(&address.octets());
        }
        let header = match form {
            ChecksumForm::PseudoHeader => pseudo_header(src, dst, out.len() - start),
            ChecksumForm::MessageOnly => 0,
        };
        let sum = checksum(ones_sum(header, &out[start..]));
        out[start + 6..start + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Sum of the IPv4 pseudo-header: source, destination, protocol, length.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an IPv4 packet has at most 65,535 bytes"
)]
fn pseudo_header(src: Ipv4Addr, dst: Ipv4Addr, len: usize) -> u32 {
    let sum = ones_sum(0, &src.octets());
    let sum = ones_sum(sum, &dst.octets());
    let sum = ones_sum(sum, &[0, PROTOCOL_VRRP]);
    ones_sum(sum, &(len as u16).to_be_bytes())
}

/// An advert with the addresses of the frame it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedAdvert {
    /// Ethernet source.
    pub src_mac: Mac,
    /// IPv4 source.
    pub src: Ipv4Addr,
    /// IPv4 destination: [`GROUP`] or an address of the receiver.
    pub dst: Ipv4Addr,
    /// The message.
    pub advert: Advert,
}

/// Parses a whole Ethernet frame with an advert in it.
///
/// # Errors
/// Every [`ParseError`] of [`Ethernet`], [`Ipv4`] and [`Advert`], and [`ParseError::EtherType`],
/// [`ParseError::Protocol`], [`ParseError::Ttl`].
pub fn parse_frame(frame: &[u8]) -> Result<ReceivedAdvert, ParseError> {
    let ethernet = Ethernet::parse(frame)?;
    if ethernet.ethertype != ETHERTYPE_IPV4 {
        return Err(ParseError::EtherType(ethernet.ethertype));
    }
    let packet = Ipv4::parse(ethernet.payload)?;
    if packet.protocol != PROTOCOL_VRRP {
        return Err(ParseError::Protocol(packet.protocol));
    }
    if packet.ttl != VRRP_TTL {
        return Err(ParseError::Ttl(packet.ttl));
    }
    let advert = Advert::parse(packet.payload, packet.src, packet.dst)?;
    Ok(ReceivedAdvert {
        src_mac: ethernet.src,
        src: packet.src,
        dst: packet.dst,
        advert,
    })
}

/// A whole Ethernet frame with an advert in it.
pub fn emit_frame(
    (src_mac, src): (Mac, Ipv4Addr),
    (dst_mac, dst): (Mac, Ipv4Addr),
    advert: &Advert,
    form: ChecksumForm,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(34 + advert.wire_len());
    emit_ethernet(&mut out, dst_mac, src_mac, ETHERTYPE_IPV4);
    emit_ipv4(&mut out, src, dst, advert.wire_len());
    advert.emit(&mut out, src, dst, form);
    out
}

#[cfg(test)]
mod tests;
