//! The server's end of L3 DSR without a tunnel device: the outer headers of a packet for a VIP are taken off, and the inner
//! packet goes up the stack as if it had come without them. Everything else is left alone.

use crate::{
    addr::{Addr, Addr4},
    checksum::Change,
    maps::{Port, proto},
    packet::{Packet, Window},
    tunnel::Outer,
    wire::{eth, ip, ip6, tcp, udp},
};

/// Name of the XDP program.
pub const PROGRAM: &str = "onearm_decap";
/// Most VIPs.
pub const MAX_VIPS: u32 = 4_096;
/// Most prefixes of outer sources.
pub const MAX_FROM: u32 = 1_024;

/// Value of map `SETTINGS` (array of one).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// UDP port of GUE; 0 = GUE is left alone.
    pub gue_port: Port,
    /// 1 = only outer sources of map `FROM`, else all.
    pub listed_only: u16,
}

/// What happened to a packet in a tunnel: index into map `TALLY`, a per-CPU array of `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Tally {
    /// Outer headers taken off.
    Decapsulated = 0,
    /// Bytes of those packets, without the outer headers.
    Bytes = 1,
    /// Left alone: outer source not listed.
    ForeignSource = 2,
    /// Left alone: inner destination is no VIP.
    OtherDestination = 3,
    /// Left alone: fragment of an outer packet.
    Fragment = 4,
    /// Left alone: inner packet longer than the outer one, or of another version.
    Malformed = 5,
    /// Dropped: congestion experienced on the way by a packet whose ends know nothing of ECN (RFC 6040 §4.2).
    CongestionLost = 6,
}

/// Stable names of [`Tally`], in index order.
pub const TALLIES: [&str; 7] = [
    "decapsulated",
    "decapsulated_bytes",
    "foreign_source",
    "other_destination",
    "fragment",
    "malformed",
    "congestion_lost",
];

/// What the program is told.
pub trait Told {
    /// Settings.
    fn settings(&self) -> Option<Settings>;
    /// A VIP of this server.
    fn is_vip(&self, addr: Addr) -> bool;
    /// In one of the listed prefixes.
    fn is_listed(&self, source: Addr) -> bool;
    /// Adds to a tally of this CPU.
    fn tally(&self, what: Tally, n: u64);
}

/// What to do with the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the stack.
    Pass,
    /// Nowhere.
    Drop,
}

/// An IP header, read.
#[derive(Clone, Copy, Debug)]
struct Head {
    from: Addr,
    to: Addr,
    protocol: u8,
    /// Offset of what follows it.
    after: usize,
    /// Offset of the packet's end.
    end: usize,
    fragment: bool,
    /// Congestion bits (RFC 3168 §5).
    ecn: u8,
}

/// Headers of one family that are taken off.
trait Inside: Outer {
    /// Reads the header at `l3`; `None` if it is none of the family or ends beyond the frame.
    fn head<P: Packet>(packet: &P, l3: usize) -> Option<Head>;

    /// Writes the congestion bits of the header at `l3`.
    fn set_ecn<P: Packet>(packet: &P, l3: usize, ecn: u8) -> bool;
}

impl Inside for Addr4 {
    #[inline(always)]
    fn head<P: Packet>(packet: &P, l3: usize) -> Option<Head> {
        let header = packet.window::<{ ip::LEN }>(l3)?;
        let version_ihl = header.u8::<{ ip::VERSION_IHL }>();
        let ihl = (version_ihl as usize & 0xf) << 2;
        let total = u16::from_be(header.u16::<{ ip::TOTAL }>()) as usize;
        if version_ihl >> 4 != 4 || ihl < ip::LEN || total < ihl {
            return None;
        }
        Some(Head {
            from: Addr::v4(header.u32::<{ ip::SADDR }>()),
            to: Addr::v4(header.u32::<{ ip::DADDR }>()),
            protocol: header.u8::<{ ip::PROTO }>(),
            after: l3 + ihl,
            end: l3 + total,
            fragment: header.u16::<{ ip::FRAGMENT }>() & ip::FRAGMENT_MASK != 0,
            ecn: header.u8::<{ ip::TOS }>() & 3,
        })
    }

    #[inline(always)]
    fn set_ecn<P: Packet>(packet: &P, l3: usize, ecn: u8) -> bool {
        let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
            return false;
        };
        let before = header.u16::<{ ip::VERSION_IHL }>();
        let tos = header.u8::<{ ip::TOS }>() & !3 | ecn;
        header.set_u8::<{ ip::TOS }>(tos);
        let change = Change::new().u16(before, header.u16::<{ ip::VERSION_IHL }>());
        header.set_u16::<{ ip::CHECKSUM }>(change.apply(header.u16::<{ ip::CHECKSUM }>()));
        true
    }
}

impl Inside for Addr {
    #[inline(always)]
    fn head<P: Packet>(packet: &P, l3: usize) -> Option<Head> {
        let header = packet.window::<{ ip6::LEN }>(l3)?;
        if header.u8::<{ ip6::VERSION }>() >> 4 != 6 {
            return None;
        }
        let protocol = header.u8::<{ ip6::NEXT }>();
        Some(Head {
            from: header.addr::<{ ip6::SADDR }>(),
            to: header.addr::<{ ip6::DADDR }>(),
            protocol,
            after: l3 + ip6::LEN,
            end: l3 + ip6::LEN + u16::from_be(header.u16::<{ ip6::PAYLOAD }>()) as usize,
            fragment: false,
            ecn: header.u8::<{ ip6::VERSION + 1 }>() >> 4 & 3,
        })
    }

    #[inline(always)]
    fn set_ecn<P: Packet>(packet: &P, l3: usize, ecn: u8) -> bool {
        let Some(header) = packet.window::<{ ip6::LEN }>(l3) else {
            return false;
        };
        let byte = header.u8::<{ ip6::VERSION + 1 }>() & !0x30 | ecn << 4;
        header.set_u8::<{ ip6::VERSION + 1 }>(byte);
        true
    }
}

/// Congestion bits of the packet that goes on (RFC 6040 §4.2); `None`: it must be dropped.
#[inline(always)]
const fn ecn(outer: u8, inner: u8) -> Option<u8> {
    const UNAWARE: u8 = 0;
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    const EXPERIENCED: u8 = 3;
    match (outer, inner) {
        (EXPERIENCED, UNAWARE) => None,
        (EXPERIENCED, _) => Some(EXPERIENCED),
        (ECT_1, ECT_0) => Some(ECT_1),
        (_, inner) => Some(inner),
    }
}

/// A frame has arrived on an interface of the server.
#[inline(always)]
pub fn decapsulate<P: Packet, T: Told>(packet: &mut P, told: &T) -> Verdict {
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return Verdict::Pass;
    };
    let (mut ethertype, mut l3) = (header.u16::<{ eth::TYPE }>(), eth::LEN);
    if ethertype == eth::VLAN {
        let Some(header) = packet.window::<{ eth::LEN + eth::TAG_LEN }>(0) else {
            return Verdict::Pass;
        };
        ethertype = header.u16::<{ eth::TAGGED_TYPE }>();
        l3 = eth::LEN + eth::TAG_LEN;
    }
    if ethertype == eth::IPV4 {
        take_off::<Addr4, P, T>(packet, told, l3)
    } else if ethertype == eth::IPV6 {
        take_off::<Addr, P, T>(packet, told, l3)
    } else {
        Verdict::Pass
    }
}

#[inline(always)]
fn take_off<A: Inside, P: Packet, T: Told>(packet: &mut P, told: &T, l3: usize) -> Verdict {
    let pass = |reason| {
        told.tally(reason, 1);
        Verdict::Pass
    };
    let (Some(outer), Some(settings)) = (A::head(packet, l3), told.settings()) else {
        return Verdict::Pass;
    };
    let mut inner_l3 = outer.after;
    if outer.protocol == proto::UDP && !outer.fragment && settings.gue_port != 0 {
        match packet.window::<{ udp::LEN }>(inner_l3) {
            Some(datagram) if datagram.u16::<{ tcp::DPORT }>() == settings.gue_port => {}
            _ => return Verdict::Pass,
        }
        inner_l3 += udp::LEN;
    } else if outer.protocol != A::INSIDE {
        return Verdict::Pass;
    }
    if settings.listed_only != 0 && !told.is_listed(outer.from) {
        return pass(Tally::ForeignSource);
    }
    if outer.fragment {
        return pass(Tally::Fragment);
    }
    let inner = match A::head(packet, inner_l3) {
        Some(inner) if inner.end <= outer.end && packet.holds(inner.end) => inner,
        _ => return pass(Tally::Malformed),
    };
    if !told.is_vip(inner.to) {
        return pass(Tally::OtherDestination);
    }
    let Some(bits) = ecn(outer.ecn, inner.ecn) else {
        told.tally(Tally::CongestionLost, 1);
        return Verdict::Drop;
    };
    if bits != inner.ecn && !A::set_ecn(packet, inner_l3, bits) {
        return pass(Tally::Malformed);
    }
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return Verdict::Pass;
    };
    let (to, from) = (header.mac::<{ eth::DST }>(), header.mac::<{ eth::SRC }>());
    let tagged = l3 != eth::LEN;
    let rest = if tagged {
        packet
            .window::<{ eth::LEN + eth::TAG_LEN }>(0)
            .map_or(0, Window::u32::<{ eth::TYPE }>)
    } else {
        0
    };
    let bytes = (inner.end - inner_l3) as u64;
    if !packet.move_start(l3.cast_signed() - inner_l3.cast_signed()) {
        return pass(Tally::Malformed);
    }
    // The type, behind a tag or not, is what it was: both packets are of one family.
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return Verdict::Drop;
    };
    header.set_mac::<{ eth::DST }>(to);
    header.set_mac::<{ eth::SRC }>(from);
    if tagged {
        let Some(header) = packet.window::<{ eth::LEN + eth::TAG_LEN }>(0) else {
            return Verdict::Drop;
        };
        header.set_u32::<{ eth::TYPE }>(rest);
        header.set_u16::<{ eth::TAGGED_TYPE }>(A::ETHERTYPE);
    } else {
        header.set_u16::<{ eth::TYPE }>(A::ETHERTYPE);
    }
    told.tally(Tally::Decapsulated, 1);
    told.tally(Tally::Bytes, bytes);
    Verdict::Pass
}
