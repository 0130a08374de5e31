//! ARP for IPv4 over Ethernet (RFC 826) and its gratuitous forms (RFC 5227 §2.3 and §3).
//!
//! ```text
//! 0        2        4     5     6        8           14          18          24          28
//! +--------+--------+-----+-----+--------+-----------+-----------+-----------+-----------+
//! | hw 1   | 0x0800 |  6  |  4  |  op    | sender MAC| sender IP | target MAC| target IP |
//! +--------+--------+-----+-----+--------+-----------+-----------+-----------+-----------+
//! ```

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::frame::{ETHERTYPE_ARP, Ethernet, emit_ethernet};
use super::{Mac, ParseError, array, be16};

/// Bytes of an ARP message.
const LEN: usize = 28;
/// Hardware type, protocol type and both lengths of IPv4 over Ethernet.
const KIND: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// Operation of an ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// Who has the target address?
    Request,
    /// The sender has it.
    Reply,
    /// Any other number.
    Other(u16),
}

impl Operation {
    const fn from_wire(number: u16) -> Self {
        match number {
            1 => Self::Request,
            2 => Self::Reply,
            other => Self::Other(other),
        }
    }

    const fn to_wire(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
            Self::Other(number) => number,
        }
    }
}

/// One ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arp {
    /// Request or reply.
    pub operation: Operation,
    /// The sender's Ethernet address.
    pub sender_mac: Mac,
    /// The sender's address; unspecified in a probe (RFC 5227 §1.1).
    pub sender: Ipv4Addr,
    /// The target's Ethernet address.
    pub target_mac: Mac,
    /// The target's address.
    pub target: Ipv4Addr,
}

/// The two forms of a gratuitous ARP. Some stacks update their cache on one of them only, so announcements alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Form {
    /// A request for the sender's own address: the announcement of RFC 5227 §2.3.
    Request,
    /// An unasked reply.
    Reply,
}

impl Arp {
    /// Parses an ARP message; bytes behind it are padding.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::ArpKind`].
    pub fn parse(message: &[u8]) -> Result<Self, ParseError> {
        let bytes: [u8; LEN] = array(message, 0)?;
        if bytes[..6] != KIND {
            return Err(ParseError::ArpKind);
        }
        Ok(Self {
            operation: Operation::from_wire(be16(&bytes, 6)),
            sender_mac: Mac(array(&bytes, 8)?),
            sender: Ipv4Addr::from(array::<4>(&bytes, 14)?),
            target_mac: Mac(array(&bytes, 18)?),
            target: Ipv4Addr::from(array::<4>(&bytes, 24)?),
        })
    }

    /// Parses a whole Ethernet frame.
    ///
    /// # Errors
    /// [`ParseError::EtherType`] besides those of [`Self::parse`].
    pub fn parse_frame(frame: &[u8]) -> Result<Self, ParseError> {
        let ethernet = Ethernet::parse(frame)?;
        if ethernet.ethertype != ETHERTYPE_ARP {
            return Err(ParseError::EtherType(ethernet.ethertype));
        }
        Self::parse(ethernet.payload)
    }

    /// A whole Ethernet frame from the sender's MAC to `dst`.
    pub fn emit_frame(&self, dst: Mac) -> Vec<u8> {
        let mut out = Vec::with_capacity(14 + LEN);
        emit_ethernet(&mut out, dst, self.sender_mac, ETHERTYPE_ARP);
        out.extend_from_slice(&KIND);
        out.extend_from_slice(&self.operation.to_wire().to_be_bytes());
        out.extend_from_slice(&self.sender_mac.0);
        out.extend_from_slice(&self.sender.octets());
        out.extend_from_slice(&self.target_mac.0);
        out.extend_from_slice(&self.target.octets());
        out
    }

    /// "`address` is at `mac`", told to everybody. To be emitted to [`Mac::BROADCAST`].
    pub const fn gratuitous(address: Ipv4Addr, mac: Mac, form: Form) -> Self {
        let (operation, target_mac) = match form {
            Form::Request => (Operation::Request, Mac::ZERO),
            // Linux takes a reply for gratuitous only if the target's MAC is the sender's.
            Form::Reply => (Operation::Reply, mac),
        };
        Self {
            operation,
            sender_mac: mac,
            sender: address,
            target_mac,
            target: address,
        }
    }

    /// "Who has `target`?"
    pub const fn request(sender_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self {
            operation: Operation::Request,
            sender_mac,
            sender,
            target_mac: Mac::ZERO,
            target,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 100);
    const MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0x0a]);

    #[rustfmt::skip]
    const REQUEST: [u8; 42] = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, 0x0a, 0x08, 0x06,
        0, 1, 0x08, 0x00, 6, 4, 0, 1,
        0x02, 0, 0, 0, 0, 0x0a, 192, 168, 100, 100,
        0, 0, 0, 0, 0, 0, 192, 168, 100, 100,
    ];
    #[rustfmt::skip]
    const REPLY: [u8; 42] = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, 0x0a, 0x08, 0x06,
        0, 1, 0x08, 0x00, 6, 4, 0, 2,
        0x02, 0, 0, 0, 0, 0x0a, 192, 168, 100, 100,
        0x02, 0, 0, 0, 0, 0x0a, 192, 168, 100, 100,
    ];

    #[test]
    fn both_gratuitous_forms_are_the_golden_bytes_both_ways() {
        for (form, golden) in [(Form::Request, REQUEST), (Form::Reply, REPLY)] {
            let arp = Arp::gratuitous(VIP, MAC, form);
            assert_eq!(arp.emit_frame(Mac::BROADCAST), golden);
            assert_eq!(Arp::parse_frame(&golden), Ok(arp));
        }
    }

    #[test]
    fn padding_is_ignored_and_a_cut_frame_is_truncated() {
        let mut padded = REQUEST.to_vec();
        padded.resize(60, 0);
        assert_eq!(
            Arp::parse_frame(&padded),
            Ok(Arp::gratuitous(VIP, MAC, Form::Request))
        );
        for cut in 0..REQUEST.len() {
            assert!(matches!(
                Arp::parse_frame(&REQUEST[..cut]),
                Err(ParseError::Truncated { .. })
            ));
        }
    }

    #[test]
    fn other_hardware_and_other_frames_are_refused_and_other_operations_kept() {
        let mut token_ring = REQUEST;
        token_ring[15] = 6;
        assert_eq!(Arp::parse_frame(&token_ring), Err(ParseError::ArpKind));
        let mut ipv4 = REQUEST;
        ipv4[13] = 0;
        assert_eq!(Arp::parse_frame(&ipv4), Err(ParseError::EtherType(0x0800)));
        let mut reverse = REQUEST;
        reverse[21] = 3;
        assert_eq!(
            Arp::parse_frame(&reverse).map(|arp| arp.operation),
            Ok(Operation::Other(3))
        );
    }
}
