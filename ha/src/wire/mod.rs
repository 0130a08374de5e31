//! Frames as they stand on the wire: [`frame`] (Ethernet and IPv4), [`ipv6`], [`advert`] (VRRPv3), [`arp`] and [`ndp`].
//!
//! Every type parses from and emits to byte slices, and nothing here reads a clock or a socket.

pub mod advert;
pub mod arp;
pub mod frame;
pub mod ipv6;
pub mod ndp;

mod address;
mod error;

pub use address::Address;
pub use error::ParseError;

/// Ethernet address.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// All zeros: "unknown" in ARP.
    pub const ZERO: Self = Self([0; 6]);
}

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            let colon = if position == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Two bytes of `bytes` at `at`, network order; 0 past the end.
fn be16(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => u16::from_be_bytes([high, low]),
        _ => 0,
    }
}

/// The array of `N` bytes of `bytes` at `at`.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], ParseError> {
    bytes
        .get(at..at + N)
        .and_then(|slice| slice.try_into().ok())
        .ok_or(ParseError::Truncated {
            needed: at + N,
            got: bytes.len(),
        })
}

/// Sum of 16-bit words in one's complement arithmetic (RFC 1071), not complemented; an odd last byte counts as the
/// high half of a word.
fn ones_sum(start: u32, bytes: &[u8]) -> u32 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// The checksum field for a sum made by [`ones_sum`].
#[expect(clippy::cast_possible_truncation, reason = "ones_sum folds to 16 bits")]
fn checksum(sum: u32) -> u16 {
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}
