//! IPv6 header around an advert or a message of Neighbour Discovery.
//!
//! ```text
//! 0                   4        6             7           8           24           40
//! +---+-------+-------+--------+-------------+-----------+-----------+------------+---------+
//! | 6 | class | label | length | next header | hop limit |  from IP  |   to IP    | payload |
//! +---+-------+-------+--------+-------------+-----------+-----------+------------+---------+
//! ```

use std::net::Ipv6Addr;

use super::frame::Packet;
use super::{Address as _, ParseError, array, be16};

/// Bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Ethernet type of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Next header of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;
/// Version 6, traffic class CS6 (internetwork control), flow label 0.
const FIRST_WORD: [u8; 4] = [0x6c, 0, 0, 0];

/// Splits a packet; bytes beyond the payload length are padding and ignored (B22). Extension headers are not looked
/// into: neither adverts nor Neighbour Discovery come with any, and a fragment has one (RFC 6980).
///
/// # Errors
/// [`ParseError::Truncated`], [`ParseError::NotIpv6`].
pub fn parse_ipv6(packet: &[u8]) -> Result<Packet<'_, Ipv6Addr>, ParseError> {
    let fixed: [u8; IPV6_LEN] = array(packet, 0)?;
    if fixed[0] >> 4 != 6 {
        return Err(ParseError::NotIpv6(fixed[0]));
    }
    let needed = IPV6_LEN + usize::from(be16(&fixed, 4));
    let truncated = ParseError::Truncated {
        needed,
        got: packet.len(),
    };
    Ok(Packet {
        src: Ipv6Addr::from(array::<16>(&fixed, 8)?),
        dst: Ipv6Addr::from(array::<16>(&fixed, 24)?),
        hops: fixed[7],
        protocol: fixed[6],
        payload: packet.get(IPV6_LEN..needed).ok_or(truncated)?,
    })
}

/// Writes the header of a packet with `payload_len` bytes of `protocol` behind it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an advert has at most 8 + 255 × 16 bytes, a message of Neighbour Discovery 32"
)]
pub fn emit_ipv6(
    out: &mut Vec<u8>,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    protocol: u8,
    hops: u8,
    payload_len: usize,
) {
    out.extend_from_slice(&FIRST_WORD);
    out.extend_from_slice(&(payload_len as u16).to_be_bytes());
    out.extend_from_slice(&[protocol, hops]);
    src.write(out);
    dst.write(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    const TO: Ipv6Addr = Ipv6Addr::GROUP;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        emit_ipv6(&mut out, (FROM, TO), 112, 255, payload.len());
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn what_is_written_is_read_and_padding_is_ignored() {
        for padding in [0, 2, 20] {
            let mut bytes = packet(b"advert");
            bytes.resize(bytes.len() + padding, 0);
            let expected = Packet {
                src: FROM,
                dst: TO,
                hops: 255,
                protocol: 112,
                payload: b"advert",
            };
            assert_eq!(parse_ipv6(&bytes), Ok(expected), "{padding} bytes");
        }
    }

    #[test]
    fn a_packet_shorter_than_its_length_field_is_truncated_and_another_version_refused() {
        let bytes = packet(b"advert");
        for cut in 0..bytes.len() {
            assert!(
                matches!(parse_ipv6(&bytes[..cut]), Err(ParseError::Truncated { .. })),
                "{cut} bytes"
            );
        }
        let mut other = bytes;
        other[0] = 0x45;
        assert_eq!(parse_ipv6(&other), Err(ParseError::NotIpv6(0x45)));
    }
}
