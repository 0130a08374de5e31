//! VRRPv3 advertisement over IPv4 and IPv6 (RFC 9568 §5.2).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+---------------+---------------+
//! |Version| Type 1| Virtual Rtr ID|   Priority    | Address count |
//! +-------+-------+---------------+---------------+---------------+
//! |(rsvd) | Max. advertise interval (cs) |       Checksum         |
//! +-------+------------------------------+------------------------+
//! |                IPv4 or IPv6 address, count times              |
//! +---------------------------------------------------------------+
//! |       trailer: a word (see [`crate::auth::word`]), or nothing |
//! +---------------------------------------------------------------+
//! ```
//!
//! **Trailer.** What lies between the address list and the end of the IP packet is covered by the checksum; a node with
//! `auth = "none"` sends nothing there and ignores what others send.
//!
//! **Checksum.** RFC 9568 §5.2.8 sums the VRRP message alone over IPv4; the many readers of RFC 5798 that came before
//! it (keepalived up to 2.2.7 and FRR by default) put an IPv4 pseudo-header in front. Either is accepted; which one is
//! sent is [`ChecksumForm`]. Over IPv6 the pseudo-header is always there. It holds the addresses *of this packet*, so
//! that a unicast advert is not summed over the group's address (B21).
//!
//! **Hop limit.** 255, sent and asked for, as proof that no router was passed; but keepalived 2.2 sends unicast IPv6
//! adverts with 64, and between two link-local addresses no proof is needed.
//!
//! **First address.** Over IPv6 it is link-local (RFC 9568 §5.2.9, B87); see [`with_link_local`].

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use super::address::pseudo_header;
use super::frame::{Ethernet, PROTOCOL_VRRP, VRRP_TTL, emit_ethernet};
use super::{Address, Mac, ParseError, array, be16, checksum, ones_sum};
use crate::units::{Centiseconds, Priority, Vrid};

/// Bytes before the address list.
const FIXED_LEN: usize = 8;
/// Most addresses of one advert: the count field has 8 bits.
pub const MAX_ADDRESSES: usize = 255;

/// Longest trailer: a whole advert of ours fits a frame of 1,500 bytes with it.
pub const MAX_TRAILER: usize = 512;

/// What the checksum of an advert sent over IPv4 covers.
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
pub struct Advert<A> {
    /// Which virtual router.
    pub vrid: Vrid,
    /// Priority of the sender; [`Priority::RELEASE`] gives ownership up.
    pub priority: Priority,
    /// Interval the sender keeps while it is the Active.
    pub interval: Centiseconds,
    /// Addresses listed, 1 to [`MAX_ADDRESSES`]. A list that differs from the receiver's changes nothing (B24).
    pub addresses: Vec<A>,
    /// What follows the list, at most [`MAX_TRAILER`] bytes.
    pub trailer: Vec<u8>,
}

impl<A: Address> Advert<A> {
    /// Parses a VRRP message that came in a packet from `src` to `dst`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] when shorter than its own address count, [`ParseError::Version`],
    /// [`ParseError::PacketType`], [`ParseError::Checksum`], [`ParseError::Vrid`], [`ParseError::Interval`],
    /// [`ParseError::NoAddress`] (RFC 9568 §5.2.5, erratum 8299 on §7.1).
    pub fn parse(message: &[u8], src: A, dst: A) -> Result<Self, ParseError> {
        let fixed: [u8; FIXED_LEN] = array(message, 0)?;
        if fixed[0] >> 4 != 3 {
            return Err(ParseError::Version(fixed[0] >> 4));
        }
        if fixed[0] & 0x0f != 1 {
            return Err(ParseError::PacketType(fixed[0] & 0x0f));
        }
        let count = usize::from(fixed[3]);
        let needed = FIXED_LEN + A::LEN * count;
        let list = message.get(FIXED_LEN..needed).ok_or(ParseError::Truncated {
            needed,
            got: message.len(),
        })?;
        let header = pseudo_header(src, dst, PROTOCOL_VRRP, message.len());
        let is_right = |start| checksum(ones_sum(start, message)) == 0;
        if !(is_right(header) || A::MESSAGE_ALONE && is_right(0)) {
            return Err(ParseError::Checksum);
        }
        if count == 0 {
            return Err(ParseError::NoAddress);
        }
        Ok(Self {
            vrid: Vrid::new(fixed[1]).map_err(|_| ParseError::Vrid)?,
            priority: Priority::from_wire(fixed[2]),
            interval: Centiseconds::new(be16(&fixed, 4) & 0x0fff).map_err(|_| ParseError::Interval)?,
            addresses: list.chunks_exact(A::LEN).filter_map(A::read).collect(),
            trailer: message[needed..].to_vec(),
        })
    }

    /// What the trailer is signed with: every field but the checksum.
    pub fn signed(&self) -> Vec<u8> {
        let mut out = A::ETHERTYPE.to_be_bytes().to_vec();
        self.emit_fields(&mut out);
        out
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_ADDRESSES are listed")]
    fn emit_fields(&self, out: &mut Vec<u8>) {
        let listed = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        out.extend_from_slice(&[0x31, self.vrid.get(), self.priority.get(), listed.len() as u8]);
        out.extend_from_slice(&self.interval.get().to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        for address in listed {
            address.write(out);
        }
    }

    /// Bytes [`Self::emit`] writes. Addresses beyond [`MAX_ADDRESSES`] are not listed.
    pub fn wire_len(&self) -> usize {
        FIXED_LEN + A::LEN * self.addresses.len().min(MAX_ADDRESSES) + self.trailer.len()
    }

    /// Writes the message at the end of `out`.
    pub fn emit(&self, out: &mut Vec<u8>, src: A, dst: A, form: ChecksumForm) {
        let start = out.len();
        self.emit_fields(out);
        out.extend_from_slice(&self.trailer);
        let header = match form {
            ChecksumForm::MessageOnly if A::MESSAGE_ALONE => 0,
            ChecksumForm::PseudoHeader | ChecksumForm::MessageOnly => {
                pseudo_header(src, dst, PROTOCOL_VRRP, out.len() - start)
            }
        };
        let sum = checksum(ones_sum(header, &out[start..]));
        out[start + 6..start + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The link-local address of the virtual router's own MAC, 00-00-5E-00-02-{VRID} (RFC 9568 §7.3), as a modified EUI-64.
pub fn virtual_link_local(vrid: Vrid) -> Ipv6Addr {
    let last = 0x0200 | u16::from(vrid.get());
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0200, 0x5eff, 0xfe00, last)
}

/// The list of an IPv6 advert for the virtual addresses `configured`: the first link-local one leads, and where none is
/// configured [`virtual_link_local`] does, as RFC 9568 §5.2.9 wants the list to begin (B87).
pub fn with_link_local(vrid: Vrid, configured: &[Ipv6Addr]) -> Vec<Ipv6Addr> {
    let mut listed = configured.to_vec();
    let position = listed.iter().position(Ipv6Addr::is_unicast_link_local);
    let first = position.map_or_else(|| virtual_link_local(vrid), |position| listed.remove(position));
    listed.insert(0, first);
    listed
}

/// An advert with the addresses of the frame it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedAdvert<A> {
    /// Ethernet source.
    pub src_mac: Mac,
    /// IP source.
    pub src: A,
    /// IP destination: [`Address::GROUP`] or an address of the receiver.
    pub dst: A,
    /// The message.
    pub advert: Advert<A>,
}

/// Parses a whole Ethernet frame with an advert in it.
///
/// # Errors
/// Every [`ParseError`] of [`Ethernet`], [`Address::parse_packet`] and [`Advert`], and [`ParseError::EtherType`],
/// [`ParseError::Protocol`], [`ParseError::Ttl`].
pub fn parse_frame<A: Address>(frame: &[u8]) -> Result<ReceivedAdvert<A>, ParseError> {
    let ethernet = Ethernet::parse(frame)?;
    if ethernet.ethertype != A::ETHERTYPE {
        return Err(ParseError::EtherType(ethernet.ethertype));
    }
    let packet = A::parse_packet(ethernet.payload)?;
    if packet.protocol != PROTOCOL_VRRP {
        return Err(ParseError::Protocol(packet.protocol));
    }
    if packet.hops != VRRP_TTL && !A::stay_on_link(packet.src, packet.dst) {
        return Err(ParseError::Ttl(packet.hops));
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
pub fn emit_frame<A: Address>(
    (src_mac, src): (Mac, A),
    (dst_mac, dst): (Mac, A),
    advert: &Advert<A>,
    form: ChecksumForm,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(54 + advert.wire_len());
    emit_ethernet(&mut out, dst_mac, src_mac, A::ETHERTYPE);
    A::emit_header(&mut out, src, dst, advert.wire_len());
    advert.emit(&mut out, src, dst, form);
    out
}

#[cfg(test)]
mod tests;
