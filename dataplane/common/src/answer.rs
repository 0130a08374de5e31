//! Answers made in place: echo reply, RST, ICMP errors. All but the echo reply are rate-limited.

use crate::{
    checksum::{Change, fold, halves},
    counter::Counter,
    established::route,
    maps::{Addr4, proto},
    packet::{Packet, Window, mac_number},
    refusal,
    tables::{Tables, discard, may_send},
    transmit::{Hop, send, write_header},
    wire::{eth, icmp, ip, tcp},
    work::{Answer, Step, Work},
};

/// TTL of what we send.
const TTL: u8 = 64;
/// Transport bytes quoted in an ICMP error.
const QUOTED: usize = 8;

/// [`crate::phase::Phase::Answer`].
#[inline(always)]
pub fn answer<P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    let key = &work.arrival.key;
    if work.answer == Answer::Echo as u8 {
        return echo(packet, work, tables, &way_back(work, tables));
    }
    if work.answer == Answer::TimeExceeded as u8 {
        if !may_be_told(packet, work) {
            return discard(tables, Counter::TtlExpired);
        }
        let slot = work.arrival.slot;
        work.answer_from = if tables.owned(slot, key.daddr).is_some() {
            key.daddr
        } else {
            let gateway = tables.server_net(slot, key.saddr).unwrap_or(0);
            if gateway == 0 { work.leg.addr } else { gateway }
        };
        if work.answer_from == 0 {
            return discard(tables, Counter::TtlExpired);
        }
        if !may_send(tables, refusal::TIME_EXCEEDED_ALL, key.saddr, work.now) {
            return discard(tables, Counter::RefusalLimited);
        }
        return error(
            packet,
            work,
            tables,
            icmp::TIME_EXCEEDED,
            0,
            Counter::TimeExceededSent,
        );
    }
    if work.answer == Answer::ServerGone as u8 {
        // One for one, to who has a connection: nothing to limit.
        tables.count(Counter::ServerDownReset);
        return reset(packet, work, tables, &way_back(work, tables));
    }
    if !may_send(tables, refusal::REFUSALS_ALL, key.saddr, work.now) {
        return discard(tables, Counter::RefusalLimited);
    }
    if work.answer == Answer::Reset as u8 {
        tables.count(Counter::RefusedTcp);
        return reset(packet, work, tables, &way_back(work, tables));
    }
    work.answer_from = key.daddr;
    error(
        packet,
        work,
        tables,
        icmp::UNREACHABLE,
        icmp::PORT,
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
    };
    if mac_number(arrival.src_mac) != mac_number(work.leg.peer_mac) {
        return back;
    }
    route(tables, arrival.key.saddr, &work.leg, work.now).unwrap_or(back)
}

#[inline(always)]
fn echo<P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T, to: &Hop) -> Step {
    let arrival = &work.arrival;
    let Some(header) = packet.window::<{ ip::LEN }>(arrival.l3 as usize) else {
        return discard(tables, Counter::Internal);
    };
    header.set_u32::<{ ip::SADDR }>(arrival.key.daddr);
    header.set_u32::<{ ip::DADDR }>(arrival.key.saddr);
    let old = header.u16::<{ ip::TTL_PROTO }>();
    header.set_u8::<{ ip::TTL }>(TTL);
    let change = Change::new().u16(old, header.u16::<{ ip::TTL_PROTO }>());
    header.set_u16::<{ ip::CHECKSUM }>(change.apply(header.u16::<{ ip::CHECKSUM }>()));
    let Some(message) = packet.window::<{ icmp::LEN }>(arrival.l4 as usize) else {
        return discard(tables, Counter::Internal);
    };
    let reply = u16::from_ne_bytes([icmp::ECHO_REPLY, 0]);
    let change = Change::new().u16(message.u16::<{ icmp::TYPE_CODE }>(), reply);
    message.set_u16::<{ icmp::TYPE_CODE }>(reply);
    message.set_u16::<{ icmp::CHECKSUM }>(change.apply(message.u16::<{ icmp::CHECKSUM }>()));
    tables.count(Counter::EchoAnswered);
    send(packet, arrival, &work.leg, tables, to)
}

/// RST (RFC 9293 §3.5.2, group 1): to a SYN with sequence 0, acknowledging it and its data; to a segment with an
/// acknowledgement with that as sequence.
#[inline(always)]
fn reset<P: Packet, T: Tables>(packet: &mut P, work: &Work, tables: &T, to: &Hop) -> Step {
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
    if !packet.set_len(l3 + ip::LEN + tcp::LEN) {
        return discard(tables, Counter::Internal);
    }
    let key = &arrival.key;
    let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
        return discard(tables, Counter::Internal);
    };
    write_ip(header, key.daddr, key.saddr, proto::TCP, ip::LEN + tcp::LEN);
    let Some(segment) = packet.window::<{ tcp::LEN }>(l3 + ip::LEN) else {
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
    let pseudo = halves(key.saddr)
        + halves(key.daddr)
        + u32::from(u16::from(proto::TCP).to_be())
        + u32::from((tcp::LEN as u16).to_be());
    let sum = pseudo
        + u32::from(key.sport)
        + u32::from(key.dport)
        + halves(seq)
        + halves(ack)
        + u32::from(offset_flags);
    segment.set_u16::<{ tcp::CHECKSUM }>(!fold(sum));
    send(packet, arrival, &work.leg, tables, to)
}

/// No error about an ICMP error (RFC 1122 §3.2.2).
#[inline(always)]
fn may_be_told<P: Packet>(packet: &P, work: &Work) -> bool {
    if work.arrival.key.proto != proto::ICMP {
        return true;
    }
    match packet.window::<{ icmp::LEN }>(work.arrival.l4 as usize) {
        Some(message) => {
            let kind = message.u8::<{ icmp::TYPE }>();
            kind == icmp::ECHO || kind == icmp::ECHO_REPLY
        }
        None => false,
    }
}

/// An ICMP error that quotes the packet's IP header and eight bytes.
#[inline(always)]
fn error<P: Packet, T: Tables>(
    packet: &mut P,
    work: &Work,
    tables: &T,
    kind: u8,
    code: u8,
    counter: Counter,
) -> Step {
    let arrival = &work.arrival;
    let to = &way_back(work, tables);
    let l3 = arrival.l3 as usize;
    let ihl = (arrival.l4 - arrival.l3) as usize & 0x3c;
    let quoted = if (arrival.total as usize) < ihl + QUOTED {
        ihl
    } else {
        ihl + QUOTED
    };
    let grow = ip::LEN + icmp::LEN;
    if !packet.set_len(l3 + quoted) || !packet.move_start(grow.cast_signed()) {
        return discard(tables, Counter::Internal);
    }
    let vlan = if l3 == eth::LEN { None } else { Some(arrival.vlan) };
    if !write_header(packet, work.leg.mac, arrival.src_mac, vlan) {
        return discard(tables, Counter::Internal);
    }
    let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
        return discard(tables, Counter::Internal);
    };
    write_ip(
        header,
        work.answer_from,
        arrival.key.saddr,
        proto::ICMP,
        grow + quoted,
    );
    let Some(message) = packet.window::<{ icmp::LEN }>(l3 + ip::LEN) else {
        return discard(tables, Counter::Internal);
    };
    let type_code = u16::from_ne_bytes([kind, code]);
    message.set_u16::<{ icmp::TYPE_CODE }>(type_code);
    message.set_u32::<{ icmp::REST }>(0);
    let mut sum = u32::from(type_code);
    let mut offset = 0;
    while offset < MAX_QUOTED {
        if offset >= quoted {
            break;
        }
        let Some(word) = packet.window::<4>(l3 + grow + offset) else {
            return discard(tables, Counter::Internal);
        };
        sum += halves(word.u32::<0>());
        offset += 4;
    }
    let Some(message) = packet.window::<{ icmp::LEN }>(l3 + ip::LEN) else {
        return discard(tables, Counter::Internal);
    };
    message.set_u16::<{ icmp::CHECKSUM }>(!fold(sum));
    tables.count(counter);
    send(packet, arrival, &work.leg, tables, to)
}

/// Longest IP header and eight bytes.
const MAX_QUOTED: usize = 60 + QUOTED;

/// A header without options, with its checksum.
#[inline(always)]
fn write_ip(header: Window<'_, { ip::LEN }>, from: Addr4, to: Addr4, protocol: u8, total: usize) {
    let total = (total as u16).to_be();
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
}
