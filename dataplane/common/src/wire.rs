//! Header lengths, field offsets and constants of Ethernet, ARP, IPv4, IPv6, TCP, UDP, ICMP and Neighbour Discovery.

/// Ethernet.
pub mod eth {
    /// Header without VLAN tag, bytes.
    pub const LEN: usize = 14;
    /// VLAN tag, bytes.
    pub const TAG_LEN: usize = 4;
    /// Destination MAC.
    pub const DST: usize = 0;
    /// Source MAC.
    pub const SRC: usize = 6;
    /// Type, or type of the tag.
    pub const TYPE: usize = 12;
    /// Tag control information of a tagged frame.
    pub const TCI: usize = 14;
    /// Type of a tagged frame.
    pub const TAGGED_TYPE: usize = 16;
    /// IPv4, as it stands in the packet.
    pub const IPV4: u16 = 0x0800u16.to_be();
    /// IPv6.
    pub const IPV6: u16 = 0x86ddu16.to_be();
    /// ARP.
    pub const ARP: u16 = 0x0806u16.to_be();
    /// VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100u16.to_be();
    /// VLAN tag of a provider (802.1ad).
    pub const PROVIDER_VLAN: u16 = 0x88a8u16.to_be();
}

/// ARP for IPv4 over Ethernet (RFC 826).
pub mod arp {
    /// Packet, bytes.
    pub const LEN: usize = 28;
    /// Hardware and protocol type, 4 bytes.
    pub const TYPES: usize = 0;
    /// Value of `TYPES`: Ethernet, IPv4.
    pub const ETHERNET_IPV4: u32 = 0x0001_0800u32.to_be();
    /// Address lengths, 2 bytes.
    pub const LENGTHS: usize = 4;
    /// Value of `LENGTHS`: 6, 4.
    pub const SIX_FOUR: u16 = 0x0604u16.to_be();
    /// Operation.
    pub const OP: usize = 6;
    /// Request.
    pub const REQUEST: u16 = 1u16.to_be();
    /// Reply.
    pub const REPLY: u16 = 2u16.to_be();
    /// Sender MAC.
    pub const SHA: usize = 8;
    /// Sender address.
    pub const SPA: usize = 14;
    /// Target MAC.
    pub const THA: usize = 18;
    /// Target address.
    pub const TPA: usize = 24;
}

/// IPv4 (RFC 791).
pub mod ip {
    /// Header without options, bytes.
    pub const LEN: usize = 20;
    /// Version and header length.
    pub const VERSION_IHL: usize = 0;
    /// Type of service.
    pub const TOS: usize = 1;
    /// Total length.
    pub const TOTAL: usize = 2;
    /// Identification.
    pub const ID: usize = 4;
    /// Flags and fragment offset.
    pub const FRAGMENT: usize = 6;
    /// Bits of `FRAGMENT` that make a packet a fragment: more fragments, offset.
    pub const FRAGMENT_MASK: u16 = 0x3fffu16.to_be();
    /// Bits of `FRAGMENT`: offset in units of eight bytes.
    pub const OFFSET_MASK: u16 = 0x1fffu16.to_be();
    /// Bit of `FRAGMENT`: do not fragment.
    pub const DF: u16 = 0x4000u16.to_be();
    /// Time to live.
    pub const TTL: usize = 8;
    /// Time to live and protocol as one field.
    pub const TTL_PROTO: usize = 8;
    /// Protocol.
    pub const PROTO: usize = 9;
    /// Header checksum.
    pub const CHECKSUM: usize = 10;
    /// Source address.
    pub const SADDR: usize = 12;
    /// Destination address.
    pub const DADDR: usize = 16;
    /// Bytes of options a header may have.
    pub const MOST_OPTIONS: usize = 40;
    /// Option without a length: the list ends.
    pub const END_OF_OPTIONS: u8 = 0;
    /// Option without a length: nothing.
    pub const NO_OPERATION: u8 = 1;
    /// Option: loose source route and record (§3.1).
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    /// Option: strict source route and record (§3.1).
    pub const STRICT_SOURCE_ROUTE: u8 = 137;
}

/// IPv6 (RFC 8200).
pub mod ip6 {
    /// Header, bytes.
    pub const LEN: usize = 40;
    /// Version, traffic class and flow label.
    pub const VERSION: usize = 0;
    /// Value of `VERSION` without class and label.
    pub const VERSION_6: u32 = 0x6000_0000u32.to_be();
    /// Payload length.
    pub const PAYLOAD: usize = 4;
    /// Next header.
    pub const NEXT: usize = 6;
    /// Hop limit.
    pub const HOP_LIMIT: usize = 7;
    /// Source address.
    pub const SADDR: usize = 8;
    /// Destination address.
    pub const DADDR: usize = 24;
    /// Next header: hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// Next header: routing.
    pub const ROUTING: u8 = 43;
    /// Bits of a fragment header's second word: offset in units of eight bytes.
    pub const OFFSET_MASK: u16 = 0xfff8u16.to_be();
    /// Next header: fragment.
    pub const FRAGMENT: u8 = 44;
    /// Fragment header, bytes.
    pub const FRAGMENT_LEN: usize = 8;
    /// In a fragment header: offset and "more fragments".
    pub const FRAGMENT_OFFSET: usize = 2;
    /// In a fragment header: identification.
    pub const FRAGMENT_ID: usize = 4;
    /// Next header: authentication (RFC 4302); its length counts words of four bytes, minus two.
    pub const AUTH: u8 = 51;
    /// Next header: destination options.
    pub const DESTINATION: u8 = 60;

    /// Extension headers that are walked or, being a fragment, dealt with; others end the chain (RFC 8200 §4).
    #[inline(always)]
    pub const fn is_extension(next: u8) -> bool {
        matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AUTH | DESTINATION)
    }
}

/// TCP (RFC 9293).
pub mod tcp {
    /// Header without options, bytes.
    pub const LEN: usize = 20;
    /// Source port.
    pub const SPORT: usize = 0;
    /// Destination port.
    pub const DPORT: usize = 2;
    /// Sequence number.
    pub const SEQ: usize = 4;
    /// Acknowledgement number.
    pub const ACK_SEQ: usize = 8;
    /// Data offset, upper four bits.
    pub const OFFSET: usize = 12;
    /// Flags.
    pub const FLAGS: usize = 13;
    /// Window.
    pub const WINDOW: usize = 14;
    /// Checksum.
    pub const CHECKSUM: usize = 16;
    /// Urgent pointer.
    pub const URGENT: usize = 18;
    /// Option without a length: the list ends.
    pub const END_OF_OPTIONS: u8 = 0;
    /// Option without a length: nothing.
    pub const NO_OPERATION: u8 = 1;
    /// Option: largest segment its sender takes.
    pub const MSS: u8 = 2;
    /// Length of that option, bytes.
    pub const MSS_LEN: usize = 4;
    /// Flag.
    pub const FIN: u8 = 1;
    /// Flag.
    pub const SYN: u8 = 2;
    /// Flag.
    pub const RST: u8 = 4;
    /// Flag.
    pub const ACK: u8 = 16;
}

/// UDP (RFC 768). Ports as in TCP.
pub mod udp {
    /// Header, bytes.
    pub const LEN: usize = 8;
    /// Length, header included.
    pub const LENGTH: usize = 4;
    /// Checksum; 0 = none.
    pub const CHECKSUM: usize = 6;
}

/// ICMP (RFC 792).
pub mod icmp {
    /// Header, bytes.
    pub const LEN: usize = 8;
    /// Type and code as one field.
    pub const TYPE_CODE: usize = 0;
    /// Type.
    pub const TYPE: usize = 0;
    /// Checksum.
    pub const CHECKSUM: usize = 2;
    /// Rest of the header.
    pub const REST: usize = 4;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Code of `UNREACHABLE`.
    pub const PORT: u8 = 3;
    /// Code of `UNREACHABLE`: the packet is too big and must not be fragmented.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Echo request.
    pub const ECHO: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER: u8 = 12;
}

/// ICMPv6 (RFC 4443). Fields as in ICMP.
pub mod icmp6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Code of `UNREACHABLE`.
    pub const PORT: u8 = 4;
    /// Packet too big.
    pub const TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER: u8 = 4;
    /// Echo request.
    pub const ECHO: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Informational messages have this bit.
    pub const INFORMATIONAL: u8 = 128;
}

/// Neighbour Discovery (RFC 4861).
pub mod nd {
    /// Solicitation or advertisement without options, bytes, ICMPv6 header included.
    pub const LEN: usize = 24;
    /// With one link-layer address option.
    pub const LEN_WITH_ADDRESS: usize = 32;
    /// Neighbour solicitation.
    pub const SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const ADVERTISEMENT: u8 = 136;
    /// Hop limit all of them have (§7.1.1).
    pub const HOP_LIMIT: u8 = 255;
    /// Flags of an advertisement, four bytes.
    pub const FLAGS: usize = 4;
    /// Flag: the sender is a router.
    pub const ROUTER: u32 = 0x8000_0000u32.to_be();
    /// Flag: in answer to a solicitation.
    pub const SOLICITED: u32 = 0x4000_0000u32.to_be();
    /// Flag: overrides what is known.
    pub const OVERRIDE: u32 = 0x2000_0000u32.to_be();
    /// Target address.
    pub const TARGET: usize = 8;
    /// First option.
    pub const OPTIONS: usize = 24;
    /// Option: link-layer address of the sender.
    pub const SOURCE_ADDRESS: u8 = 1;
    /// Option: link-layer address of the target.
    pub const TARGET_ADDRESS: u8 = 2;
}

/// Source or destination addresses no packet of a connection can have: this network, loopback, group, reserved, broadcast.
#[inline(always)]
pub const fn is_special(addr: u32) -> bool {
    let first = addr.to_ne_bytes()[0];
    first == 0 || first == 127 || first >= 224
}
