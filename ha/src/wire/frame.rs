//! Ethernet II and IPv4 headers around an advert; IPv6's is in [`super::ipv6`].
//!
//! ```text
//! 0        6        12   14                                                34
//! +--------+--------+----+----+-----+--------+--------+-----+-----+---+----+-----------+---------+
//! | to MAC | from   |type|0x45| TOS | length | id, DF | TTL | 112 | checksum | from IP | to IP |...
//! +--------+--------+----+----+-----+--------+--------+-----+-----+---+----+-----------+---------+
//! ```

use std::net::Ipv4Addr;

use super::{Mac, ParseError, array, be16, checksum, ones_sum};

/// Bytes of an Ethernet II header without VLAN tag.
pub const ETHERNET_LEN: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Ethernet type of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethernet type of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// IP protocol number of VRRP.
pub const PROTOCOL_VRRP: u8 = 112;
/// TTL or hop limit of every advert, sent and received (RFC 9568 §5.1.1.3, §5.1.2.3).
pub const VRRP_TTL: u8 = 255;
/// Type of service of adverts: class selector 6, internetwork control.
const TOS_CS6: u8 = 0xc0;
/// Don't fragment.
const FLAG_DF: u16 = 0x4000;
/// More fragments, or a fragment offset.
const FRAGMENT_BITS: u16 = 0x3fff;

/// An Ethernet header and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet<'a> {
    /// To.
    pub dst: Mac,
    /// From.
    pub src: Mac,
    /// [`ETHERTYPE_IPV4`], [`ETHERTYPE_ARP`], [`super::ipv6::ETHERTYPE_IPV6`] or any other.
    pub ethertype: u16,
    /// All bytes after the header, padding included.
    pub payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Splits a frame.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 14 bytes.
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        Ok(Self {
            dst: Mac(array(frame, 0)?),
            src: Mac(array(frame, 6)?),
            ethertype: u16::from_be_bytes(array(frame, 12)?),
            payload: frame.get(ETHERNET_LEN..).unwrap_or_default(),
        })
    }
}

/// Writes an Ethernet header at the end of `out`.
pub fn emit_ethernet(out: &mut Vec<u8>, dst: Mac, src: Mac, ethertype: u16) {
    out.extend_from_slice(&dst.0);
    out.extend_from_slice(&src.0);
    out.extend_from_slice(&ethertype.to_be_bytes());
}

/// A whole, unfragmented IP packet of a control protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a, A> {
    /// From.
    pub src: A,
    /// To.
    pub dst: A,
    /// Hops left: TTL or hop limit.
    pub hops: u8,
    /// IP protocol number, or next header.
    pub protocol: u8,
    /// The bytes after header and options, up to the header's length: padding is cut off.
    pub payload: &'a [u8],
}

/// Splits a packet; bytes beyond the total length are padding and ignored (B22).
///
/// # Errors
/// [`ParseError::Truncated`], [`ParseError::NotIpv4`], [`ParseError::HeaderChecksum`], [`ParseError::Fragment`].
pub fn parse_ipv4(packet: &[u8]) -> Result<Packet<'_, Ipv4Addr>, ParseError> {
    let fixed: [u8; IPV4_LEN] = array(packet, 0)?;
    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    if fixed[0] >> 4 != 4 || header_len < IPV4_LEN {
        return Err(ParseError::NotIpv4(fixed[0]));
    }
    let total_len = usize::from(be16(&fixed, 2));
    let needed = total_len.max(header_len);
    let whole = packet.get(..needed).ok_or(ParseError::Truncated {
        needed,
        got: packet.len(),
    })?;
    if total_len < header_len {
        return Err(ParseError::Truncated {
            needed: header_len,
            got: total_len,
        });
    }
    if checksum(ones_sum(0, &whole[..header_len])) != 0 {
        return Err(ParseError::HeaderChecksum);
    }
    if be16(&fixed, 6) & FRAGMENT_BITS != 0 {
        return Err(ParseError::Fragment);
    }
    Ok(Packet {
        src: Ipv4Addr::from(array::<4>(packet, 12)?),
        dst: Ipv4Addr::from(array::<4>(packet, 16)?),
        hops: fixed[8],
        protocol: fixed[9],
        payload: &whole[header_len..],
    })
}

/// Writes the IPv4 header of an advert with `payload_len` bytes of VRRP behind it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an advert has at most 8 + 255 × 4 bytes"
)]
pub fn emit_ipv4(out: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr, payload_len: usize) {
    let start = out.len();
    out.extend_from_slice(&[0x45, TOS_CS6]);
    out.extend_from_slice(&((IPV4_LEN + payload_len) as u16).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&FLAG_DF.to_be_bytes());
    out.extend_from_slice(&[VRRP_TTL, PROTOCOL_VRRP, 0, 0]);
    out.extend_from_slice(&src.octets());
    out.extend_from_slice(&dst.octets());
    let sum = checksum(ones_sum(0, &out[start..]));
    out[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 2);
    const TO: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        emit_ipv4(&mut out, FROM, TO, payload.len());
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn b22_padding_after_the_ip_length_is_ignored() {
        for padding in [0, 2, 6, 20] {
            let mut bytes = packet(b"advert");
            bytes.resize(bytes.len() + padding, 0);
            let parsed = parse_ipv4(&bytes);
            assert_eq!(parsed.map(|p| p.payload), Ok(&b"advert"[..]), "{padding} bytes");
        }
    }

    #[test]
    fn a_packet_shorter_than_its_length_field_is_truncated() {
        let bytes = packet(b"advert");
        for cut in 0..bytes.len() {
            assert!(
                matches!(parse_ipv4(&bytes[..cut]), Err(ParseError::Truncated { .. })),
                "{cut} bytes"
            );
        }
    }

    #[test]
    fn header_faults_are_told_apart() {
        let spoil = |at: usize, value: u8| {
            let mut bytes = packet(b"advert");
            bytes[at] = value;
            bytes[10..12].copy_from_slice(&[0, 0]);
            let sum = checksum(ones_sum(0, &bytes[..20]));
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes
        };
        assert_eq!(parse_ipv4(&spoil(0, 0x65)), Err(ParseError::NotIpv4(0x65)));
        assert_eq!(parse_ipv4(&spoil(0, 0x44)), Err(ParseError::NotIpv4(0x44)));
        assert_eq!(parse_ipv4(&spoil(6, 0x20)), Err(ParseError::Fragment));
        assert_eq!(
            parse_ipv4(&spoil(3, 19)),
            Err(ParseError::Truncated { needed: 20, got: 19 })
        );
        let mut bytes = packet(b"advert");
        bytes[12] ^= 1;
        assert_eq!(parse_ipv4(&bytes), Err(ParseError::HeaderChecksum));
    }

    #[test]
    fn options_are_skipped() {
        let mut bytes = packet(b"advert");
        bytes[0] = 0x46;
        bytes[3] += 4;
        bytes.splice(20..20, [1, 1, 1, 0]);
        bytes[10..12].copy_from_slice(&[0, 0]);
        let sum = checksum(ones_sum(0, &bytes[..24]));
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(parse_ipv4(&bytes).map(|p| p.payload), Ok(&b"advert"[..]));
    }
}
