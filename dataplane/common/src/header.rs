//! What differs between the headers of IPv4 and IPv6 when a packet is rewritten or made.

use crate::{
    addr::{Addr, Addr4, Address},
    checksum::{Change, fold, halves},
    maps::proto,
    packet::{Packet, Window},
    wire::{eth, icmp, icmp6, ip, ip6},
};

/// Hop limit of what we send.
pub const TTL: u8 = 64;

/// The IP header of one family.
pub trait Header: Address {
    /// Length without options or extension headers, bytes.
    const LEN: usize;
    /// As it stands in the frame.
    const ETHERTYPE: u16;
    /// ICMP of the family.
    const ICMP: u8;
    /// Types and codes.
    const MESSAGES: Messages;

    /// The change of the addresses, for checksums.
    fn change(old: (Self, Self), new: (Self, Self)) -> Change;

    /// Writes addresses (source, destination) and a hop limit into the header at `l3`; false if it is not there.
    fn rewrite<P: Packet>(packet: &P, l3: usize, old: (Self, Self), new: (Self, Self), ttl: u8) -> bool;

    /// True if the packet at `l3` must not be fragmented on its way.
    fn is_unfragmentable<P: Packet>(packet: &P, l3: usize) -> bool;

    /// Writes a hop limit; returns false if the header is not there.
    fn set_ttl<P: Packet>(packet: &P, l3: usize, ttl: u8) -> bool;

    /// Writes a header without options before `payload` bytes; false if there is no room.
    fn write<P: Packet>(packet: &P, l3: usize, from: Self, to: Self, protocol: u8, payload: usize) -> bool;
}

/// ICMP types and codes of one family.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// Echo request.
    pub echo: u8,
    /// Echo reply.
    pub echo_reply: u8,
    /// Destination unreachable.
    pub unreachable: u8,
    /// Its code for a port.
    pub port: u8,
    /// Time exceeded.
    pub time_exceeded: u8,
    /// Type and code: too big to be forwarded.
    pub too_big: (u8, u8),
}

/// Sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1) for `len` bytes of transport.
#[inline(always)]
pub const fn pseudo(from: Addr, to: Addr, protocol: u8, len: usize) -> u32 {
    from.halves() + to.halves() + (protocol as u16).to_be() as u32 + (len as u16).to_be() as u32
}

/// Writes a TTL, and the header checksum after that and `change`.
#[inline(always)]
fn set_ttl4(header: Window<'_, { ip::LEN }>, change: Change, ttl: u8) {
    let before = header.u16::<{ ip::TTL_PROTO }>();
    header.set_u8::<{ ip::TTL }>(ttl);
    let change = change.u16(before, header.u16::<{ ip::TTL_PROTO }>());
    header.set_u16::<{ ip::CHECKSUM }>(change.apply(header.u16::<{ ip::CHECKSUM }>()));
}

impl Header for Addr4 {
    const LEN: usize = ip::LEN;
    const ETHERTYPE: u16 = eth::IPV4;
    const ICMP: u8 = proto::ICMP;
    const MESSAGES: Messages = Messages {
        echo: icmp::ECHO,
        echo_reply: icmp::ECHO_REPLY,
        unreachable: icmp::UNREACHABLE,
        port: icmp::PORT,
        time_exceeded: icmp::TIME_EXCEEDED,
        too_big: (icmp::UNREACHABLE, icmp::FRAGMENTATION_NEEDED),
    };

    #[inline(always)]
    fn change(old: (Self, Self), new: (Self, Self)) -> Change {
        Change::new().u32(old.0, new.0).u32(old.1, new.1)
    }

    #[inline(always)]
    fn rewrite<P: Packet>(packet: &P, l3: usize, old: (Self, Self), new: (Self, Self), ttl: u8) -> bool {
        let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
            return false;
        };
        header.set_u32::<{ ip::SADDR }>(new.0);
        header.set_u32::<{ ip::DADDR }>(new.1);
        set_ttl4(header, Self::change(old, new), ttl);
        true
    }

    #[inline(always)]
    fn is_unfragmentable<P: Packet>(packet: &P, l3: usize) -> bool {
        packet
            .window::<{ ip::LEN }>(l3)
            .is_some_and(|header| header.u16::<{ ip::FRAGMENT }>() & ip::DF != 0)
    }

    #[inline(always)]
    fn set_ttl<P: Packet>(packet: &P, l3: usize, ttl: u8) -> bool {
        let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
            return false;
        };
        set_ttl4(header, Change::new(), ttl);
        true
    }

    #[inline(always)]
    fn write<P: Packet>(packet: &P, l3: usize, from: Self, to: Self, protocol: u8, payload: usize) -> bool {
        let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
            return false;
        };
        let total = ((ip::LEN + payload) as u16).to_be();
        let version_tos = u16::from_ne_bytes([0x45, 0]);
        let ttl_proto = u16::from_ne_bytes([TTL, protocol]);
        header.set_u16::<{ ip::VERSION_IHL }>(version_tos);
        header.set_u16::<{ ip::TOTAL }>(total);
        header.set_u16::<{ ip::ID }>(0);
        header.set_u16::<{ ip::FRAGMENT }>(ip::DF);
        header.set_u16::<{ ip::TTL_PROTO }>(ttl_proto);
        header.set_u32::<{ ip::SADDR }>(from);
        header.set_u32::<{ ip::DADDR }>(to);
        let sum = u32::from(version_tos)
            + u32::from(total)
            + u32::from(ip::DF)
            + u32::from(ttl_proto)
            + halves(from)
            + halves(to);
        header.set_u16::<{ ip::CHECKSUM }>(!fold(sum));
        true
    }
}

impl Header for Addr {
    const LEN: usize = ip6::LEN;
    const ETHERTYPE: u16 = eth::IPV6;
    const ICMP: u8 = proto::ICMPV6;
    const MESSAGES: Messages = Messages {
        echo: icmp6::ECHO,
        echo_reply: icmp6::ECHO_REPLY,
        unreachable: icmp6::UNREACHABLE,
        port: icmp6::PORT,
        time_exceeded: icmp6::TIME_EXCEEDED,
        too_big: (icmp6::TOO_BIG, 0),
    };

    #[inline(always)]
    fn change(old: (Self, Self), new: (Self, Self)) -> Change {
        let (a, b, c, d) = (old.0.0, old.1.0, new.0.0, new.1.0);
        Change::new()
            .u32(a[0], c[0])
            .u32(a[1], c[1])
            .u32(a[2], c[2])
            .u32(a[3], c[3])
            .u32(b[0], d[0])
            .u32(b[1], d[1])
            .u32(b[2], d[2])
            .u32(b[3], d[3])
    }

    #[inline(always)]
    fn rewrite<P: Packet>(packet: &P, l3: usize, _old: (Self, Self), new: (Self, Self), ttl: u8) -> bool {
        let Some(header) = packet.window::<{ ip6::LEN }>(l3) else {
            return false;
        };
        header.set_addr::<{ ip6::SADDR }>(new.0);
        header.set_addr::<{ ip6::DADDR }>(new.1);
        header.set_u8::<{ ip6::HOP_LIMIT }>(ttl);
        true
    }

    #[inline(always)]
    fn is_unfragmentable<P: Packet>(_packet: &P, _l3: usize) -> bool {
        true
    }

    #[inline(always)]
    fn set_ttl<P: Packet>(packet: &P, l3: usize, ttl: u8) -> bool {
        let Some(header) = packet.window::<{ ip6::LEN }>(l3) else {
            return false;
        };
        header.set_u8::<{ ip6::HOP_LIMIT }>(ttl);
        true
    }

    #[inline(always)]
    fn write<P: Packet>(packet: &P, l3: usize, from: Self, to: Self, protocol: u8, payload: usize) -> bool {
        let Some(header) = packet.window::<{ ip6::LEN }>(l3) else {
            return false;
        };
        header.set_u32::<{ ip6::VERSION }>(ip6::VERSION_6);
        header.set_u16::<{ ip6::PAYLOAD }>((payload as u16).to_be());
        header.set_u8::<{ ip6::NEXT }>(protocol);
        header.set_u8::<{ ip6::HOP_LIMIT }>(TTL);
        header.set_addr::<{ ip6::SADDR }>(from);
        header.set_addr::<{ ip6::DADDR }>(to);
        true
    }
}
