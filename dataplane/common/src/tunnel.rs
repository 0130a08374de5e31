//! Outer headers of L3 DSR: IPIP (RFC 2003), IP6IP6 (RFC 2473), and UDP with GUE variant 1, which puts the IP packet right
//! behind the UDP header (Linux: `ip fou add port N gue`). The outer packet has the family of the inner one.

use crate::{
    addr::{Addr, Addr4},
    checksum::{fold, halves},
    header::{Header, TTL},
    maps::{Port, proto},
    packet::Packet,
    wire::{ip, ip6, tcp, udp},
};

/// Source ports of GUE: the dynamic ones (RFC 6335 §6).
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// Where an outer packet goes.
#[derive(Clone, Copy, Debug)]
pub struct Ends<A> {
    /// Outer source.
    pub from: A,
    /// Outer destination: the server.
    pub to: A,
    /// The same for all packets of a flow: UDP source port of GUE, flow label of IP6IP6.
    pub spread: Port,
    /// UDP destination port; 0 = no UDP (IPIP, IP6IP6).
    pub port: Port,
}

/// What the outer header takes over from the inner one.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Type of service or traffic class, ECN included (RFC 6040, normal mode).
    tos: u8,
    /// IPv4: "do not fragment" as the inner packet has it (RFC 2003 §3.1).
    pub df: u16,
    /// IPv4: identification as it stands in the packet.
    pub id: u16,
}

/// An IP header that can be put before another of its family.
pub trait Outer: Header {
    /// IP protocol of a packet of this family in another packet.
    const INSIDE: u8;

    /// Looks at the header at `l3`.
    fn copied<P: Packet>(packet: &P, l3: usize) -> Option<Copied>;

    /// Writes a header at `l3` before `payload` bytes; false if there is no room.
    fn write_outer<P: Packet>(
        packet: &P,
        l3: usize,
        ends: &Ends<Self>,
        protocol: u8,
        payload: usize,
        copied: Copied,
    ) -> bool;
}

/// Bytes that a tunnel adds.
#[inline(always)]
pub const fn overhead<A: Outer>(port: Port) -> usize {
    A::LEN + if port == 0 { 0 } else { udp::LEN }
}

/// Source port and flow label of a flow.
#[inline(always)]
pub const fn spread(hash: u64) -> Port {
    (FIRST_SOURCE_PORT | (hash as u16 & !FIRST_SOURCE_PORT)).to_be()
}

/// Writes the outer headers at `l3`, where room was made for them, before an inner packet of `inner` bytes.
#[inline(always)]
pub fn write<A: Outer, P: Packet>(
    packet: &P,
    l3: usize,
    ends: &Ends<A>,
    inner: usize,
    copied: Copied,
) -> bool {
    if ends.port == 0 {
        return A::write_outer(packet, l3, ends, A::INSIDE, inner, copied);
    }
    let len = udp::LEN + inner;
    if !A::write_outer(packet, l3, ends, proto::UDP, len, copied) {
        return false;
    }
    let Some(datagram) = packet.window::<{ udp::LEN }>(l3 + A::LEN) else {
        return false;
    };
    datagram.set_u16::<{ tcp::SPORT }>(ends.spread);
    datagram.set_u16::<{ tcp::DPORT }>(ends.port);
    datagram.set_u16::<{ udp::LENGTH }>((len as u16).to_be());
    // The inner packet has checksums of its own (IPv6: RFC 6935 §5, RFC 6936 §4).
    datagram.set_u16::<{ udp::CHECKSUM }>(0);
    true
}

impl Outer for Addr4 {
    const INSIDE: u8 = proto::IPIP;

    #[inline(always)]
    fn copied<P: Packet>(packet: &P, l3: usize) -> Option<Copied> {
        let header = packet.window::<{ ip::LEN }>(l3)?;
        Some(Copied {
            tos: header.u8::<{ ip::TOS }>(),
            df: header.u16::<{ ip::FRAGMENT }>() & ip::DF,
            id: header.u16::<{ ip::ID }>(),
        })
    }

    #[inline(always)]
    fn write_outer<P: Packet>(
        packet: &P,
        l3: usize,
        ends: &Ends<Self>,
        protocol: u8,
        payload: usize,
        copied: Copied,
    ) -> bool {
        let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
            return false;
        };
        let total = ((ip::LEN + payload) as u16).to_be();
        let version_tos = u16::from_ne_bytes([0x45, copied.tos]);
        let ttl_proto = u16::from_ne_bytes([TTL, protocol]);
        header.set_u16::<{ ip::VERSION_IHL }>(version_tos);
        header.set_u16::<{ ip::TOTAL }>(total);
        header.set_u16::<{ ip::ID }>(copied.id);
        header.set_u16::<{ ip::FRAGMENT }>(copied.df);
        header.set_u16::<{ ip::TTL_PROTO }>(ttl_proto);
        header.set_u32::<{ ip::SADDR }>(ends.from);
        header.set_u32::<{ ip::DADDR }>(ends.to);
        let sum = u32::from(version_tos)
            + u32::from(total)
            + u32::from(copied.id)
            + u32::from(copied.df)
            + u32::from(ttl_proto)
            + halves(ends.from)
            + halves(ends.to);
        header.set_u16::<{ ip::CHECKSUM }>(!fold(sum));
        true
    }
}

impl Outer for Addr {
    const INSIDE: u8 = proto::IPV6;

    #[inline(always)]
    fn copied<P: Packet>(packet: &P, l3: usize) -> Option<Copied> {
        let header = packet.window::<{ ip6::LEN }>(l3)?;
        let first = u32::from_be(header.u32::<{ ip6::VERSION }>());
        Some(Copied {
            tos: (first >> 20) as u8,
            df: 0,
            id: 0,
        })
    }

    #[inline(always)]
    fn write_outer<P: Packet>(
        packet: &P,
        l3: usize,
        ends: &Ends<Self>,
        protocol: u8,
        payload: usize,
        copied: Copied,
    ) -> bool {
        let Some(header) = packet.window::<{ ip6::LEN }>(l3) else {
            return false;
        };
        // The flow label spreads flows over paths and queues (RFC 6438).
        let label = u32::from(u16::from_be(ends.spread));
        let first = 6 << 28 | u32::from(copied.tos) << 20 | label;
        header.set_u32::<{ ip6::VERSION }>(first.to_be());
        header.set_u16::<{ ip6::PAYLOAD }>((payload as u16).to_be());
        header.set_u8::<{ ip6::NEXT }>(protocol);
        header.set_u8::<{ ip6::HOP_LIMIT }>(TTL);
        header.set_addr::<{ ip6::SADDR }>(ends.from);
        header.set_addr::<{ ip6::DADDR }>(ends.to);
        true
    }
}
