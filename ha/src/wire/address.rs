//! What differs between the families: groups, Ethernet types, headers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::frame::{ETHERTYPE_IPV4, Packet, emit_ipv4, parse_ipv4};
use super::ipv6::{ETHERTYPE_IPV6, emit_ipv6, parse_ipv6};
use super::{Mac, ParseError, ones_sum};

/// An IPv4 or IPv6 address as adverts carry it.
pub trait Address: Copy + Ord + fmt::Debug + Into<IpAddr> + sealed::Sealed {
    /// The group of all VRRP routers (RFC 9568 §5.1.1.2 and §5.1.2.2).
    const GROUP: Self;
    /// Ethernet type of the packets.
    const ETHERTYPE: u16;
    /// Bytes of an address.
    const LEN: usize;
    /// Whether an advert may be summed without a pseudo-header (RFC 9568 §5.2.8: over IPv4).
    const MESSAGE_ALONE: bool;

    /// Whether no router forwards a packet between these (RFC 4291 §2.5.6), whatever its hop limit says.
    fn stay_on_link(src: Self, dst: Self) -> bool;
    /// The address in the first [`Self::LEN`] bytes; `None` if there are fewer.
    fn read(bytes: &[u8]) -> Option<Self>;
    /// Writes the address at the end of `out`.
    fn write(self, out: &mut Vec<u8>);
    /// The Ethernet address of a group.
    fn group_mac(self) -> Mac;
    /// Splits a packet.
    ///
    /// # Errors
    /// Those of [`parse_ipv4`] and [`parse_ipv6`].
    fn parse_packet(packet: &[u8]) -> Result<Packet<'_, Self>, ParseError>;
    /// Writes the header of an advert with `payload_len` bytes of VRRP behind it.
    fn emit_header(out: &mut Vec<u8>, src: Self, dst: Self, payload_len: usize);
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::net::Ipv4Addr {}
    impl Sealed for std::net::Ipv6Addr {}
}

impl Address for Ipv4Addr {
    const GROUP: Self = Self::new(224, 0, 0, 18);
    const ETHERTYPE: u16 = ETHERTYPE_IPV4;
    const LEN: usize = 4;
    const MESSAGE_ALONE: bool = true;

    fn stay_on_link(_: Self, _: Self) -> bool {
        false
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk::<4>().map(|octets| Self::from(*octets))
    }

    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.octets());
    }

    /// RFC 1112 §6.4.
    fn group_mac(self) -> Mac {
        let [_, b, c, d] = self.octets();
        Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    fn parse_packet(packet: &[u8]) -> Result<Packet<'_, Self>, ParseError> {
        parse_ipv4(packet)
    }

    fn emit_header(out: &mut Vec<u8>, src: Self, dst: Self, payload_len: usize) {
        emit_ipv4(out, src, dst, payload_len);
    }
}

impl Address for Ipv6Addr {
    const GROUP: Self = Self::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12);
    const ETHERTYPE: u16 = ETHERTYPE_IPV6;
    const LEN: usize = 16;
    const MESSAGE_ALONE: bool = false;

    fn stay_on_link(src: Self, dst: Self) -> bool {
        src.is_unicast_link_local() && dst.is_unicast_link_local()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk::<16>().map(|octets| Self::from(*octets))
    }

    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.octets());
    }

    /// RFC 2464 §7.
    fn group_mac(self) -> Mac {
        let [.., a, b, c, d] = self.octets();
        Mac([0x33, 0x33, a, b, c, d])
    }

    fn parse_packet(packet: &[u8]) -> Result<Packet<'_, Self>, ParseError> {
        parse_ipv6(packet)
    }

    fn emit_header(out: &mut Vec<u8>, src: Self, dst: Self, payload_len: usize) {
        emit_ipv6(
            out,
            (src, dst),
            super::frame::PROTOCOL_VRRP,
            super::frame::VRRP_TTL,
            payload_len,
        );
    }
}

/// Sum of the pseudo-header: source, destination, length, protocol. Both families' have the same sum of the same parts
/// (RFC 5798 §5.2.8, RFC 8200 §8.1); a length has at most 16 bits in either.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a packet of ours has at most 65,535 bytes"
)]
pub(super) fn pseudo_header<A: Address>(src: A, dst: A, protocol: u8, len: usize) -> u32 {
    let mut bytes = Vec::with_capacity(2 * A::LEN + 4);
    src.write(&mut bytes);
    dst.write(&mut bytes);
    bytes.extend_from_slice(&[0, protocol]);
    bytes.extend_from_slice(&(len as u16).to_be_bytes());
    ones_sum(0, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vrrp_groups_have_their_macs() {
        assert_eq!(Ipv4Addr::GROUP.to_string(), "224.0.0.18");
        assert_eq!(Ipv4Addr::GROUP.group_mac().to_string(), "01:00:5e:00:00:12");
        assert_eq!(Ipv6Addr::GROUP.to_string(), "ff02::12");
        assert_eq!(Ipv6Addr::GROUP.group_mac().to_string(), "33:33:00:00:00:12");
    }
}
