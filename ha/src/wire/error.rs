use serde::{Deserialize, Serialize};

/// Why bytes are not the frame they should be. Each has a counter of its own (see `WireCounters`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than the fixed part, a length field or an address count promises.
    #[error("{needed} bytes needed, {got} there")]
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        got: usize,
    },
    /// Another Ethernet type than the one asked for.
    #[error("unexpected Ethernet type {0:#06x}")]
    EtherType(u16),
    /// Not IP version 4, or a header length below 20 bytes.
    #[error("no IPv4 header (first byte {0:#04x})")]
    NotIpv4(u8),
    /// Not IP version 6.
    #[error("no IPv6 header (first byte {0:#04x})")]
    NotIpv6(u8),
    /// The IPv4 header's checksum is wrong.
    #[error("wrong IPv4 header checksum")]
    HeaderChecksum,
    /// A fragment; adverts are never fragmented.
    #[error("IPv4 fragment")]
    Fragment,
    /// Another IP protocol than VRRP (112) or, for Neighbour Discovery, ICMPv6 (58).
    #[error("unexpected IP protocol {0}")]
    Protocol(u8),
    /// TTL or hop limit other than 255: the packet was routed, so it is not from this segment (RFC 9568 §5.1.1.3,
    /// RFC 4861 §7.1).
    #[error("TTL or hop limit {0} instead of 255")]
    Ttl(u8),
    /// A VRRP version other than 3.
    #[error("VRRP version {0}")]
    Version(u8),
    /// A VRRP packet type other than advertisement (RFC 9568 §5.2.2).
    #[error("VRRP packet type {0}")]
    PacketType(u8),
    /// The checksum of the VRRP or ICMPv6 message is wrong (VRRP over IPv4: in both accepted forms).
    #[error("wrong checksum")]
    Checksum,
    /// Virtual router id 0.
    #[error("virtual router id 0")]
    Vrid,
    /// Advertisement interval 0.
    #[error("advertisement interval 0")]
    Interval,
    /// An advert that lists no address (RFC 9568 §5.2.5).
    #[error("address count 0")]
    NoAddress,
    /// ARP that is not IPv4 over Ethernet.
    #[error("ARP not for IPv4 over Ethernet")]
    ArpKind,
    /// ICMPv6 of another type or code than a neighbour solicitation or advertisement.
    #[error("ICMPv6 type and code {0:#06x}")]
    NdKind(u16),
    /// A message of Neighbour Discovery with an option of length 0, or about a group (RFC 4861 §7.1).
    #[error("Neighbour Discovery message not valid")]
    NdField,
}
