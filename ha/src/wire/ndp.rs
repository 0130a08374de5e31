//! Neighbour Discovery as far as announcements need it (RFC 4861 §4.3, §4.4).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+-------------------------------+
//! |  135 or 136   |    Code 0     |           Checksum            |
//! +-+-+-+---------+---------------+-------------------------------+
//! |R|S|O|   (advertisement)         Reserved                      |
//! +-+-+-+---------------------------------------------------------+
//! |                    target address, 16 bytes                   |
//! +---------------+---------------+-------------------------------+
//! | option 1 or 2 |    length 1   |  Ethernet address, 6 bytes    |
//! +---------------+---------------+-------------------------------+
//! ```

use std::net::Ipv6Addr;

use super::address::pseudo_header;
use super::frame::{Ethernet, emit_ethernet};
use super::ipv6::{ETHERTYPE_IPV6, PROTOCOL_ICMPV6, emit_ipv6, parse_ipv6};
use super::{Address as _, Mac, ParseError, array, be16, checksum, ones_sum};

/// All nodes of the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Hop limit of every message, sent and received (RFC 4861 §7.1).
const HOPS: u8 = 255;
/// Bytes before the options.
const FIXED_LEN: usize = 24;
/// Bytes of an option with an Ethernet address.
const OPTION_LEN: usize = 8;
/// ICMPv6 type and code 0.
const SOLICITATION: u16 = 135 << 8;
const ADVERTISEMENT: u16 = 136 << 8;
/// Option types.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Flags of an advertisement.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// The solicited-node group of an address (RFC 4291 §2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who has the target?
    Solicitation,
    /// The target is here.
    Advertisement {
        /// The sender is a router for others. A host whose default router advertises without it drops the route
        /// (RFC 4861 §7.2.5, B84).
        router: bool,
        /// Answers a solicitation.
        solicited: bool,
        /// Replaces what caches hold.
        replaces: bool,
    },
}

/// A solicitation or an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// IPv6 source; unspecified in a probe (RFC 4862 §5.4.2).
    pub src: Ipv6Addr,
    /// IPv6 destination.
    pub dst: Ipv6Addr,
    /// What it says.
    pub kind: Kind,
    /// The address it is about.
    pub target: Ipv6Addr,
    /// Ethernet address of the sender (solicitation) or of the target (advertisement), from the option.
    pub mac: Option<Mac>,
}

impl Message {
    /// "`address` is at `mac`", told to all nodes unasked (RFC 4861 §7.2.6).
    pub const fn unsolicited(address: Ipv6Addr, mac: Mac, router: bool) -> Self {
        Self {
            src: address,
            dst: ALL_NODES,
            kind: Kind::Advertisement {
                router,
                solicited: false,
                replaces: true,
            },
            target: address,
            mac: Some(mac),
        }
    }

    /// "Who has `target`?", asked by `sender` at `mac`.
    pub fn question(sender: Ipv6Addr, mac: Mac, target: Ipv6Addr) -> Self {
        Self {
            src: sender,
            dst: solicited_node(target),
            kind: Kind::Solicitation,
            target,
            mac: Some(mac),
        }
    }

    /// Parses a whole Ethernet frame, as strictly as RFC 4861 §7.1 wants of a receiver. Returns the Ethernet source
    /// with the message.
    ///
    /// # Errors
    /// [`ParseError::EtherType`], [`ParseError::NotIpv6`], [`ParseError::Protocol`], [`ParseError::Ttl`],
    /// [`ParseError::Truncated`], [`ParseError::NdKind`], [`ParseError::Checksum`], [`ParseError::NdField`].
    pub fn parse_frame(frame: &[u8]) -> Result<(Mac, Self), ParseError> {
        let ethernet = Ethernet::parse(frame)?;
        if ethernet.ethertype != ETHERTYPE_IPV6 {
            return Err(ParseError::EtherType(ethernet.ethertype));
        }
        let packet = parse_ipv6(ethernet.payload)?;
        if packet.protocol != PROTOCOL_ICMPV6 {
            return Err(ParseError::Protocol(packet.protocol));
        }
        if packet.hops != HOPS {
            return Err(ParseError::Ttl(packet.hops));
        }
        let message = packet.payload;
        let fixed: [u8; FIXED_LEN] = array(message, 0)?;
        let start = pseudo_header(packet.src, packet.dst, PROTOCOL_ICMPV6, message.len());
        if checksum(ones_sum(start, message)) != 0 {
            return Err(ParseError::Checksum);
        }
        let (kind, option) = match be16(&fixed, 0) {
            SOLICITATION => (Kind::Solicitation, SOURCE_ADDRESS),
            ADVERTISEMENT => {
                let kind = Kind::Advertisement {
                    router: fixed[4] & ROUTER != 0,
                    solicited: fixed[4] & SOLICITED != 0,
                    replaces: fixed[4] & OVERRIDE != 0,
                };
                (kind, TARGET_ADDRESS)
            }
            other => return Err(ParseError::NdKind(other)),
        };
        let target = Ipv6Addr::from(array::<16>(&fixed, 8)?);
        if target.is_multicast() {
            return Err(ParseError::NdField);
        }
        let mac = find_mac(&message[FIXED_LEN..], option)?;
        let (src, dst) = (packet.src, packet.dst);
        Ok((
            ethernet.src,
            Self {
                src,
                dst,
                kind,
                target,
                mac,
            },
        ))
    }

    /// A whole Ethernet frame from `src_mac` to the group [`Self::dst`].
    pub fn emit_frame(&self, src_mac: Mac) -> Vec<u8> {
        let (type_code, flags, option) = match self.kind {
            Kind::Solicitation => (SOLICITATION, 0, SOURCE_ADDRESS),
            Kind::Advertisement {
                router,
                solicited,
                replaces,
            } => {
                let flag = |set: bool, bit: u8| if set { bit } else { 0 };
                let flags = flag(router, ROUTER) | flag(solicited, SOLICITED) | flag(replaces, OVERRIDE);
                (ADVERTISEMENT, flags, TARGET_ADDRESS)
            }
        };
        let len = FIXED_LEN + self.mac.map_or(0, |_| OPTION_LEN);
        let mut out = Vec::with_capacity(54 + len);
        emit_ethernet(&mut out, self.dst.group_mac(), src_mac, ETHERTYPE_IPV6);
        emit_ipv6(&mut out, (self.src, self.dst), PROTOCOL_ICMPV6, HOPS, len);
        let start = out.len();
        out.extend_from_slice(&type_code.to_be_bytes());
        out.extend_from_slice(&[0, 0, flags, 0, 0, 0]);
        self.target.write(&mut out);
        if let Some(mac) = self.mac {
            out.extend_from_slice(&[option, 1]);
            out.extend_from_slice(&mac.0);
        }
        let header = pseudo_header(self.src, self.dst, PROTOCOL_ICMPV6, len);
        let sum = checksum(ones_sum(header, &out[start..]));
        out[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
        out
    }
}

/// The Ethernet address in the first option of type `wanted`; others are skipped.
fn find_mac(mut options: &[u8], wanted: u8) -> Result<Option<Mac>, ParseError> {
    let mut found = None;
    while !options.is_empty() {
        let [kind, units] = array::<2>(options, 0)?;
        let len = usize::from(units) * OPTION_LEN;
        if len == 0 {
            return Err(ParseError::NdField);
        }
        let option = options.get(..len).ok_or(ParseError::Truncated {
            needed: len,
            got: options.len(),
        })?;
        if kind == wanted && found.is_none() {
            found = Some(Mac(array(option, 2)?));
        }
        options = &options[len..];
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
