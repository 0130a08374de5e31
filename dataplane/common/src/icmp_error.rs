//! An ICMP error about a packet of a flow: somebody on the way could not forward what we sent. The packet it quotes is
//! translated back into what the flow's sender knows, and the error goes to that sender (RFC 5508 §4, RFC 7915 §4.3).
//!
//! Such an error changes nothing in the flow: it neither keeps it alive nor closes it.

use crate::{
    addr::{Addr, Addr4},
    checksum::Change,
    counter::Counter,
    established::{Way, resolve},
    flow::{FlowKey, flags},
    header::Header,
    maps::{EndpointKey, mode, proto},
    miss::is_bad_source,
    packet::{MAX_OFFSET, Packet},
    permission::may_act,
    phase::Phase,
    table,
    tables::{Tables, discard, geometry},
    transmit::{excess, send},
    wire::{icmp, icmp6, ip, ip6, tcp, udp},
    work::{Arrival, Step, Work, shape},
};

/// Extension headers of a quoted packet that are walked.
const MOST_EXTENSIONS: usize = 4;
/// Bytes of the transport header that every error quotes (RFC 792).
const QUOTED: usize = 8;

/// True for a type that tells of a packet not delivered. Source quench and redirect are none (RFC 6633, RFC 1812 §5.2.7.2).
#[inline(always)]
pub const fn is_error(v6: bool, kind: u8) -> bool {
    if v6 {
        matches!(
            kind,
            icmp6::UNREACHABLE | icmp6::TOO_BIG | icmp6::TIME_EXCEEDED | icmp6::PARAMETER
        )
    } else {
        matches!(kind, icmp::UNREACHABLE | icmp::TIME_EXCEEDED | icmp::PARAMETER)
    }
}

/// True if the packet is an ICMP error that can quote something.
#[inline(always)]
pub fn reports_one<A: Header, P: Packet>(packet: &P, arrival: &Arrival) -> bool {
    if arrival.key.proto != A::ICMP || arrival.shape != 0 {
        return false;
    }
    packet
        .window::<{ icmp::LEN }>(arrival.l4 as usize)
        .is_some_and(|message| is_error(A::V6, message.u8::<{ icmp::TYPE }>()))
}

/// The packet an error quotes.
#[derive(Clone, Copy, Debug)]
pub struct Quote<A> {
    /// Its key, as it was sent.
    pub key: FlowKey<A>,
    /// Where its transport header begins in the frame.
    pub l4: usize,
}

/// Quoted headers of one family.
pub trait Quoted: Header {
    /// Reads the packet quoted at `at` up to `end`; `None` for a later fragment and for anything but TCP and UDP.
    fn quote<P: Packet>(packet: &P, at: usize, end: usize) -> Option<Quote<Self>>;

    /// Writes its addresses; what that changes in a checksum over the whole quote.
    fn requote<P: Packet>(packet: &P, at: usize, old: (Self, Self), new: (Self, Self)) -> Option<Change>;
}

/// The ports of a quote, if they are there.
#[inline(always)]
fn with_ports<A: Header, P: Packet>(
    packet: &P,
    (protocol, saddr, daddr): (u8, A, A),
    l4: usize,
    end: usize,
) -> Option<Quote<A>> {
    if (protocol != proto::TCP && protocol != proto::UDP) || l4 > MAX_OFFSET || l4 + QUOTED > end {
        return None;
    }
    let transport = packet.window::<QUOTED>(l4)?;
    let (sport, dport) = (
        transport.u16::<{ tcp::SPORT }>(),
        transport.u16::<{ tcp::DPORT }>(),
    );
    Some(Quote {
        key: FlowKey::new(protocol, saddr, sport, daddr, dport),
        l4,
    })
}

impl Quoted for Addr4 {
    #[inline(always)]
    fn quote<P: Packet>(packet: &P, at: usize, end: usize) -> Option<Quote<Self>> {
        let header = packet.window::<{ ip::LEN }>(at)?;
        let version_ihl = header.u8::<{ ip::VERSION_IHL }>();
        let ihl = (version_ihl as usize & 0xf) << 2;
        let later = header.u16::<{ ip::FRAGMENT }>() & ip::OFFSET_MASK != 0;
        if version_ihl >> 4 != 4 || ihl < ip::LEN || later {
            return None;
        }
        let (saddr, daddr) = (header.u32::<{ ip::SADDR }>(), header.u32::<{ ip::DADDR }>());
        with_ports(
            packet,
            (header.u8::<{ ip::PROTO }>(), saddr, daddr),
            at + ihl,
            end,
        )
    }

    #[inline(always)]
    fn requote<P: Packet>(packet: &P, at: usize, old: (Self, Self), new: (Self, Self)) -> Option<Change> {
        let header = packet.window::<{ ip::LEN }>(at)?;
        let addresses = Self::change(old, new);
        let before = header.u16::<{ ip::CHECKSUM }>();
        let after = addresses.apply(before);
        header.set_u32::<{ ip::SADDR }>(new.0);
        header.set_u32::<{ ip::DADDR }>(new.1);
        header.set_u16::<{ ip::CHECKSUM }>(after);
        Some(addresses.u16(before, after))
    }
}

impl Quoted for Addr {
    #[inline(always)]
    fn quote<P: Packet>(packet: &P, at: usize, end: usize) -> Option<Quote<Self>> {
        let header = packet.window::<{ ip6::LEN }>(at)?;
        if header.u8::<{ ip6::VERSION }>() >> 4 != 6 {
            return None;
        }
        let (saddr, daddr) = (header.addr::<{ ip6::SADDR }>(), header.addr::<{ ip6::DADDR }>());
        let mut next = header.u8::<{ ip6::NEXT }>();
        let mut l4 = at + ip6::LEN;
        for _ in 0..MOST_EXTENSIONS {
            let fragment = next == ip6::FRAGMENT;
            let options = next == ip6::HOP_BY_HOP || next == ip6::ROUTING || next == ip6::DESTINATION;
            if !fragment && !options {
                break;
            }
            if l4 > MAX_OFFSET {
                return None;
            }
            let extension = packet.window::<8>(l4)?;
            if fragment && extension.u16::<2>() & ip6::OFFSET_MASK != 0 {
                return None;
            }
            let units = if fragment { 0 } else { extension.u8::<1>() as usize };
            l4 += (units + 1) << 3;
            next = extension.u8::<0>();
        }
        with_ports(packet, (next, saddr, daddr), l4, end)
    }

    #[inline(always)]
    fn requote<P: Packet>(packet: &P, at: usize, old: (Self, Self), new: (Self, Self)) -> Option<Change> {
        let header = packet.window::<{ ip6::LEN }>(at)?;
        header.set_addr::<{ ip6::SADDR }>(new.0);
        header.set_addr::<{ ip6::DADDR }>(new.1);
        Some(Self::change(old, new))
    }
}

/// [`Phase::IcmpError`].
#[inline(always)]
pub fn icmp_error<A: Quoted, P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    let arrival = work.arrival.narrow::<A>();
    let leg = work.leg;
    let l4 = arrival.l4 as usize;
    let end = arrival.l3 as usize + arrival.total as usize;
    let at = l4 + icmp::LEN;
    if at > MAX_OFFSET {
        return unmatched(work, tables, None);
    }
    let Some(quote) = A::quote(packet, at, end) else {
        return unmatched(work, tables, None);
    };
    let sent = &quote.key;
    // An error is told to the sender of what it quotes, nobody else.
    if sent.saddr != arrival.key.daddr {
        return unmatched(work, tables, None);
    }
    let Some(node) = tables.node() else {
        return discard(tables, Counter::Internal);
    };
    let answers = FlowKey::new(sent.proto, sent.daddr, sent.dport, sent.saddr, sent.sport);
    let Some(found) = table::find(tables, &geometry::<A>(node), &answers) else {
        return unmatched(work, tables, Some(answers.wide()));
    };
    if is_bad_source(work, tables) {
        return discard(tables, Counter::BadSource);
    }
    let entry = found.entry();
    let now = tables.now();
    if entry.flags() & flags::DIRECT != 0 {
        let tunnel = entry.flags() & flags::MODE_MASK != mode::DSR << flags::MODE_SHIFT;
        if arrival.ttl <= 1 && tunnel {
            return discard(tables, Counter::TtlExpired);
        }
        work.now = now;
        return joined(work, answers.wide(), Phase::Forward);
    }
    if !may_act(tables, entry.flags() >> flags::GROUP_SHIFT, now, &arrival, &leg) {
        return Step::Next(Phase::Relay);
    }
    let old = (sent.saddr, sent.daddr);
    let new = (entry.new_daddr(), entry.new_saddr());
    let (sport, dport) = (entry.new_dport(), entry.new_sport());
    let hop = entry.hop();
    if !found.intact() {
        return discard(tables, Counter::LockContended);
    }
    if arrival.ttl <= 1 {
        return discard(tables, Counter::TtlExpired);
    }
    let Way::To(to) = resolve::<T, true>(tables, hop, new.0.wide(), &leg, now) else {
        return discard(tables, Counter::NoNeighbour);
    };

    if excess(&arrival, &leg, &to, 0).is_some() {
        return discard(tables, Counter::TooBig);
    }

    let Some(header) = A::requote(packet, at, old, new) else {
        return discard(tables, Counter::Internal);
    };
    let Some(transport) = packet.window::<QUOTED>(quote.l4) else {
        return discard(tables, Counter::Internal);
    };
    let ports = Change::new().u16(sent.sport, sport).u16(sent.dport, dport);
    let covered = A::change(old, new).and(ports);
    transport.set_u16::<{ tcp::SPORT }>(sport);
    transport.set_u16::<{ tcp::DPORT }>(dport);
    let mut change = header.and(ports);
    if sent.proto == proto::UDP {
        let before = transport.u16::<{ udp::CHECKSUM }>();
        let after = covered.apply_udp(before);
        transport.set_u16::<{ udp::CHECKSUM }>(after);
        change = change.u16(before, after);
    } else if quote.l4 + tcp::CHECKSUM + 2 <= end
        && let Some(segment) = packet.window::<{ tcp::CHECKSUM + 2 }>(quote.l4)
    {
        let before = segment.u16::<{ tcp::CHECKSUM }>();
        let after = covered.apply(before);
        segment.set_u16::<{ tcp::CHECKSUM }>(after);
        change = change.u16(before, after);
    }

    // Where the flow's packets keep their source, the reporter keeps its own.
    let from = if new.1 == old.1 { arrival.key.saddr } else { new.1 };
    let outer = ((arrival.key.saddr, arrival.key.daddr), (from, new.0));
    if A::V6 {
        change = change.and(A::change(outer.0, outer.1));
    }
    let Some(message) = packet.window::<{ icmp::LEN }>(l4) else {
        return discard(tables, Counter::Internal);
    };
    message.set_u16::<{ icmp::CHECKSUM }>(change.apply(message.u16::<{ icmp::CHECKSUM }>()));
    if !A::rewrite(
        packet,
        arrival.l3 as usize,
        outer.0,
        outer.1,
        arrival.ttl.wrapping_sub(1),
    ) {
        return discard(tables, Counter::Internal);
    }
    tables.count(Counter::IcmpErrorTranslated);
    send(packet, &arrival, &leg, tables, &to)
}

/// An error about no flow: to an owned address it is dropped; others may be transit, or the kernel's, unless it would tell
/// of a `dnat` server's answer that was to be translated.
#[inline(always)]
fn unmatched<T: Tables>(work: &mut Work, tables: &T, answers: Option<FlowKey>) -> Step {
    let slot = work.arrival.slot;
    let balanced = answers.is_some_and(|key| {
        tables.endpoint(&EndpointKey {
            addr: key.saddr,
            port: key.sport,
            proto: key.proto,
            slot: slot as u8,
        })
    });
    if tables.owned(slot, work.arrival.key.daddr).is_some() {
        return match answers {
            Some(key) => joined(work, key, Phase::Miss),
            None => discard(tables, Counter::IcmpErrorWithoutFlow),
        };
    }
    if balanced {
        return discard(tables, Counter::IcmpErrorWithoutFlow);
    }
    work.judged = 1;
    Step::Next(Phase::Miss)
}

/// A server that answers its clients itself gets the error as it is, as one more packet of the flow.
#[inline(always)]
fn joined(work: &mut Work, key: FlowKey, phase: Phase) -> Step {
    work.arrival.key = key;
    work.arrival.tcp_flags = 0;
    work.arrival.shape = shape::PORTS | shape::ERROR;
    Step::Next(phase)
}
