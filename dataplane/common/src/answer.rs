//! Answers made in place: echo reply, RST, ICMP errors. All but the echo reply are rate-limited.

use crate::{
    checksum::{Change, fold, halves},
    counter::Counter,
    established::route,
    event::kind,
    header::{Header, TTL, pseudo},
    help::{self, wanted},
    maps::{Addr, proto},
    miss::tell_of_leg,
    packet::{Packet, mac_number},
    refusal,
    tables::{Tables, discard, may_send},
    transmit::{Hop, send, write_header},
    wire::{eth, icmp, icmp6, ip, tcp},
    work::{Answer, Step, Work},
};

/// Transport bytes quoted in an ICMP error.
const QUOTED: usize = 8;

/// [`crate::phase::Phase::Answer`].
#[inline(always)]
pub fn answer<A: Header, P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    let key = &work.arrival.key;
    if work.answer == Answer::Echo as u8 {
        return echo::<A, P, T>(packet, work, tables, &way_back(work, tables));
    }
    if work.answer == Answer::TimeExceeded as u8 || work.answer == Answer::TooBig as u8 {
        let big = work.answer == Answer::TooBig as u8;
        let (untold, sent, meter) = if big {
            (Counter::TooBig, Counter::TooBigSent, refusal::TOO_BIG_ALL)
        } else {
            (
                Counter::TtlExpired,
                Counter::TimeExceededSent,
                refusal::TIME_EXCEEDED_ALL,
            )
        };
        if big && work.arrival.total > work.leg.mtu {
            tables.count(Counter::SuperPacket);
            tell_of_leg(work, tables, kind::SUPER_PACKET);
        }
        if big && !A::is_unfragmentable(packet, work.arrival.l3 as usize) {
            return help::ask(
                packet,
                work,
                tables,
                (wanted::DIVIDE, work.most),
                Counter::Divided,
                Counter::TooBig,
            );
        }
        if !may_be_told::<A, P>(packet, work) {
            return discard(tables, untold);
        }
        let slot = work.arrival.slot;
        work.answer_from = if tables.owned(slot, key.daddr).is_some() {
            key.daddr
        } else {
            let gateway = tables.server_net(slot, key.saddr).unwrap_or(Addr::NONE);
            let own = if A::V6 { work.leg.addr6 } else { work.leg.addr };
            if gateway.is_none() { own } else { gateway }
        };
        if work.answer_from.is_none() {
            return discard(tables, untold);
        }
        if !may_send(tables, meter, key.saddr, work.now) {
            return discard(tables, Counter::RefusalLimited);
        }
        let (message, rest) = if big {
            (A::MESSAGES.too_big, u32::from(work.most).to_be())
        } else {
            ((A::MESSAGES.time_exceeded, 0), 0)
        };
        return error::<A, P, T>(packet, work, tables, message, rest, sent);
    }
    if work.answer == Answer::ServerGone as u8 {
        // One for one, to who has a connection: nothing to limit.
        tables.count(Counter::ServerDownReset);
        return reset::<A, P, T>(packet, work, tables, &way_back(work, tables));
    }
    if !may_send(tables, refusal::REFUSALS_ALL, key.saddr, work.now) {
        return discard(tables, Counter::RefusalLimited);
    }
    if work.answer == Answer::Reset as u8 {
        tables.count(Counter::RefusedTcp);
        return reset::<A, P, T>(packet, work, tables, &way_back(work, tables));
    }
    work.answer_from = key.daddr;
    error::<A, P, T>(
        packet,
        work,
        tables,
        (A::MESSAGES.unreachable, A::MESSAGES.port),
        0,
        Counter::RefusedUdp,
    )
}

/// Back to where the packet came from; what the peer passed on goes to its sender by the route, if that is resolved. The
/// peer drops what is sent to it from an owned address.
#[inline(always)]
fn way_back<T: Tables>(work: &Work, tables: &T) -> Hop {
    let arrival = &work.arrival;
    let back = Hop {
        mac: arrival.src_mac,
        vlan: arrival.vlan,
        ifindex: arrival.ifindex,
        leg: u32::from(work.leg.id),
        mtu: work.leg.mtu,
    };
    if mac_number(arrival.src_mac) != mac_number(work.leg.peer_mac) {
        return back;
    }
    route(tables, arrival.key.saddr, &work.leg, work.now).unwrap_or(back)
}

#[inline(always)]
fn echo<A: Header, P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T, to: &Hop) -> Step {
    let arrival = &work.arrival;
    let (from, client) = (A::narrow(arrival.key.daddr), A::narrow(arrival.key.saddr));
    if !A::rewrite(packet, arrival.l3 as usize, (client, from), (from, client), TTL) {
        return discard(tables, Counter::Internal);
    }
    let Some(message) = packet.window::<{ icmp::LEN }>(arrival.l4 as usize) else {
        return discard(tables, Counter::Internal);
    };
    let reply = u16::from_ne_bytes([A::MESSAGES.echo_reply, 0]);
    let change = Change::new().u16(message.u16::<{ icmp::TYPE_CODE }>(), reply);
    message.set_u16::<{ icmp::TYPE_CODE }>(reply);
    message.set_u16::<{ icmp::CHECKSUM }>(change.apply(message.u16::<{ icmp::CHECKSUM }>()));
    tables.count(Counter::EchoAnswered);
    send(packet, arrival, &work.leg, tables, to)
}

/// RST (RFC 9293 §3.5.2, group 1): to a SYN with sequence 0, acknowledging it and its data; to a segment with an
/// acknowledgement with that as sequence.
#[inline(always)]
fn reset<A: Header, P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T, to: &Hop) -> Step {
    let arrival = &work.arrival;
    let l3 = arrival.l3 as usize;
    let Some(segment) = packet.window::<{ tcp::LEN }>(arrival.l4 as usize) else {
        return discard(tables, Counter::Internal);
    };
    let seq = u32::from_be(segment.u32::<{ tcp::SEQ }>());
    let headers = u32::from(arrival.l4 - arrival.l3) + (u32::from(segment.u8::<{ tcp::OFFSET }>()) >> 4 << 2);
    let data = u32::from(arrival.total).saturating_sub(headers);
    let flags = arrival.tcp_flags;
    let (seq, ack, flags) = if flags & tcp::ACK != 0 {
        (segment.u32::<{ tcp::ACK_SEQ }>(), 0, tcp::RST)
    } else {
        let marks = u32::from(flags & tcp::SYN != 0) + u32::from(flags & tcp::FIN != 0);
        (
            0,
            seq.wrapping_add(marks).wrapping_add(data).to_be(),
            tcp::RST | tcp::ACK,
        )
    };
    if !packet.set_len(l3 + A::LEN + tcp::LEN) {
        return discard(tables, Counter::Internal);
    }
    let key = &arrival.key;
    let (from, client) = (A::narrow(key.daddr), A::narrow(key.saddr));
    if !A::write(packet, l3, from, client, proto::TCP, tcp::LEN) {
        return discard(tables, Counter::Internal);
    }
    let Some(segment) = packet.window::<{ tcp::LEN }>(l3 + A::LEN) else {
        return discard(tables, Counter::Internal);
    };
    segment.set_u16::<{ tcp::SPORT }>(key.dport);
    segment.set_u16::<{ tcp::DPORT }>(key.sport);
    segment.set_u32::<{ tcp::SEQ }>(seq);
    segment.set_u32::<{ tcp::ACK_SEQ }>(ack);
    let offset_flags = u16::from_ne_bytes([(tcp::LEN as u8 / 4) << 4, flags]);
    segment.set_u16::<{ tcp::OFFSET }>(offset_flags);
    segment.set_u16::<{ tcp::WINDOW }>(0);
    segment.set_u16::<{ tcp::URGENT }>(0);
    let sum = pseudo(key.daddr, key.saddr, proto::TCP, tcp::LEN)
        + u32::from(key.sport)
        + u32::from(key.dport)
        + halves(seq)
        + halves(ack)
        + u32::from(offset_flags);
    segment.set_u16::<{ tcp::CHECKSUM }>(!fold(sum));
    send(packet, arrival, &work.leg, tables, to)
}

/// No error about an ICMP error, nor about a later fragment in IPv4 (RFC 1122 §3.2.2, RFC 4443 §2.4 (e)).
#[inline(always)]
fn may_be_told<A: Header, P: Packet>(packet: &P, work: &Work) -> bool {
    if !A::V6 {
        match packet.window::<{ ip::LEN }>(work.arrival.l3 as usize) {
            Some(header) if header.u16::<{ ip::FRAGMENT }>() & ip::OFFSET_MASK == 0 => {}
            _ => return false,
        }
    }
    if work.arrival.key.proto != A::ICMP {
        return true;
    }
    match packet.window::<{ icmp::LEN }>(work.arrival.l4 as usize) {
        Some(message) => {
            let kind = message.u8::<{ icmp::TYPE }>();
            if A::V6 {
                kind & icmp6::INFORMATIONAL != 0
            } else {
                kind == icmp::ECHO || kind == icmp::ECHO_REPLY
            }
        }
        None => false,
    }
}

/// An ICMP error that quotes the packet's IP header, extension headers included, and eight bytes.
#[inline(always)]
fn error<A: Header, P: Packet, T: Tables>(
    packet: &mut P,
    work: &Work,
    tables: &T,
    (kind, code): (u8, u8),
    rest: u32,
    counter: Counter,
) -> Step {
    let arrival = &work.arrival;
    let to = &way_back(work, tables);
    let l3 = arrival.l3 as usize;
    let headers = (arrival.l4 - arrival.l3) as usize;
    let whole = if (arrival.total as usize) < headers + QUOTED {
        headers
    } else {
        headers + QUOTED
    };
    let quoted = if whole < MOST_QUOTED { whole } else { MOST_QUOTED };
    let grow = A::LEN + icmp::LEN;
    if !packet.set_len(l3 + quoted) || !packet.move_start(grow.cast_signed()) {
        return discard(tables, Counter::Internal);
    }
    let vlan = if l3 == eth::LEN { None } else { Some(arrival.vlan) };
    if !write_header(packet, work.leg.mac, arrival.src_mac, vlan, A::ETHERTYPE) {
        return discard(tables, Counter::Internal);
    }
    let (from, client) = (A::narrow(work.answer_from), A::narrow(arrival.key.saddr));
    if !A::write(packet, l3, from, client, A::ICMP, icmp::LEN + quoted) {
        return discard(tables, Counter::Internal);
    }
    let Some(message) = packet.window::<{ icmp::LEN }>(l3 + A::LEN) else {
        return discard(tables, Counter::Internal);
    };
    let type_code = u16::from_ne_bytes([kind, code]);
    message.set_u16::<{ icmp::TYPE_CODE }>(type_code);
    message.set_u32::<{ icmp::REST }>(rest);
    let mut sum = u32::from(type_code) + halves(rest);
    if A::V6 {
        sum += pseudo(work.answer_from, arrival.key.saddr, A::ICMP, icmp::LEN + quoted);
    }
    let mut offset = 0;
    while offset < MOST_QUOTED {
        if offset >= quoted {
            break;
        }
        let Some(word) = packet.window::<4>(l3 + grow + offset) else {
            return discard(tables, Counter::Internal);
        };
        sum += halves(word.u32::<0>());
        offset += 4;
    }
    let Some(message) = packet.window::<{ icmp::LEN }>(l3 + A::LEN) else {
        return discard(tables, Counter::Internal);
    };
    message.set_u16::<{ icmp::CHECKSUM }>(!fold(sum));
    tables.count(counter);
    send(packet, arrival, &work.leg, tables, to)
}

/// Bytes quoted at most, a multiple of four: long IPv6 extension headers are cut.
const MOST_QUOTED: usize = 128 + QUOTED;
