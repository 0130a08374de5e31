//! Fragments. Only the first one carries ports: what it is part of is remembered for a few seconds, and the later ones
//! follow it, each as it comes. A fragment that comes before its first one waits in user space ([`help`]).
//!
//! A datagram whose source is rewritten gets an identification of our own: two clients, or two servers, that use the same
//! one towards the same host would otherwise be put together there.

use crate::{
    addr::{Addr, Addr4, Address},
    checksum::Change,
    counter::Counter,
    established::{Way, resolve},
    flow::{FlowKey, flags},
    header::Header,
    help::{self, wanted},
    maps::{FRAGMENT_IDS, FragmentKey, Remembered, proto, server},
    miss::stays_here,
    packet::Packet,
    permission::may_act,
    phase::Phase,
    table::{self, Found},
    tables::{Tables, discard, geometry, pass, tick},
    transmit::{excess, send},
    wire::{ip, ip6, tcp, udp},
    work::{Answer, Step, Work, shape},
};

/// How long later fragments may take, ns.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Longest datagram (RFC 791 §3.1): fragments that reach further were made to hurt.
const LONGEST: usize = 65_535;

/// What a fragment says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Identification as it stands in the packet.
    pub id: u32,
    /// Offset in the datagram, bytes.
    pub offset: usize,
    /// More fragments follow.
    pub more: bool,
    /// Transport protocol.
    pub proto: u8,
    /// Where the fragment's part of the datagram begins.
    pub l4: usize,
}

/// Fragments of one family.
pub trait Fragmented: Header {
    /// Reads the fragment of the packet at `l3` whose headers end at `l4`.
    fn piece<P: Packet>(packet: &P, l3: usize, l4: usize) -> Option<Piece>;

    /// Writes an identification (as it stands in the packet) into a fragment whose part begins at `l4`.
    fn set_id<P: Packet>(packet: &P, l3: usize, l4: usize, id: u32) -> bool;
}

impl Fragmented for Addr4 {
    #[inline(always)]
    fn piece<P: Packet>(packet: &P, l3: usize, l4: usize) -> Option<Piece> {
        let header = packet.window::<{ ip::LEN }>(l3)?;
        let word = u16::from_be(header.u16::<{ ip::FRAGMENT }>());
        Some(Piece {
            id: u32::from(header.u16::<{ ip::ID }>()),
            offset: (word as usize & 0x1fff) << 3,
            more: word & 0x2000 != 0,
            proto: header.u8::<{ ip::PROTO }>(),
            l4,
        })
    }

    #[inline(always)]
    fn set_id<P: Packet>(packet: &P, l3: usize, _l4: usize, id: u32) -> bool {
        let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
            return false;
        };
        let change = Change::new().u16(header.u16::<{ ip::ID }>(), id as u16);
        header.set_u16::<{ ip::ID }>(id as u16);
        header.set_u16::<{ ip::CHECKSUM }>(change.apply(header.u16::<{ ip::CHECKSUM }>()));
        true
    }
}

impl Fragmented for Addr {
    #[inline(always)]
    fn piece<P: Packet>(packet: &P, _l3: usize, l4: usize) -> Option<Piece> {
        let header = packet.window::<{ ip6::FRAGMENT_LEN }>(l4)?;
        let word = u16::from_be(header.u16::<{ ip6::FRAGMENT_OFFSET }>());
        Some(Piece {
            id: header.u32::<{ ip6::FRAGMENT_ID }>(),
            offset: (word & 0xfff8) as usize,
            more: word & 1 != 0,
            proto: header.u8::<0>(),
            l4: l4 + ip6::FRAGMENT_LEN,
        })
    }

    #[inline(always)]
    fn set_id<P: Packet>(packet: &P, _l3: usize, l4: usize, id: u32) -> bool {
        let Some(header) = packet.window::<{ ip6::FRAGMENT_LEN }>(l4 - ip6::FRAGMENT_LEN) else {
            return false;
        };
        header.set_u32::<{ ip6::FRAGMENT_ID }>(id);
        true
    }
}

/// Transport header without options, bytes; `None` for a protocol without ports.
#[inline(always)]
const fn transport_len(protocol: u8) -> Option<usize> {
    match protocol {
        proto::TCP => Some(tcp::LEN),
        proto::UDP => Some(udp::LEN),
        _ => None,
    }
}

/// [`Phase::Fragment`].
#[inline(always)]
pub fn fragment<A: Fragmented, P: Packet, T: Tables>(packet: &mut P, work: &mut Work, tables: &T) -> Step {
    let slot = work.arrival.slot;
    let FlowKey { saddr, daddr, .. } = work.arrival.key;
    if stays_here(&work.leg, saddr, daddr) {
        return pass(tables);
    }
    let ours = tables.owned(slot, daddr).is_some() || tables.server_net(slot, saddr).is_some();
    let (l3, l4) = (work.arrival.l3 as usize, work.arrival.l4 as usize);
    let Some(piece) = A::piece(packet, l3, l4) else {
        return refuse(tables, ours);
    };
    let end = l3 + work.arrival.total as usize;
    let bytes = end.wrapping_sub(piece.l4);
    if piece.l4 >= end || piece.offset + bytes > LONGEST || (piece.more && bytes & 7 != 0) {
        return refuse(tables, ours);
    }
    work.now = tables.now();
    let whole = FragmentKey {
        saddr,
        daddr,
        id: piece.id,
        // The first fragment's alone counts in IPv6 (RFC 8200 §4.5).
        proto: u32::from(if A::V6 { ip6::FRAGMENT } else { piece.proto }),
    };
    let known = match tables.fragment(&whole) {
        Some(known) if work.now.wrapping_sub(known.time) < PATIENCE_NS => known,
        _ => Remembered::default(),
    };
    if piece.offset != 0 {
        if known.id == 0 {
            if !ours {
                return pass(tables);
            }
            return help::ask(
                packet,
                work,
                tables,
                (wanted::KEEP, 0),
                Counter::FragmentKept,
                Counter::FragmentEarly,
            );
        }
        if transport_len(known.proto as u8).is_some_and(|header| piece.offset < header) {
            return refuse(tables, ours);
        }
        return later::<A, P, T>(packet, work, tables, &piece, &known);
    }
    first::<A, P, T>(packet, work, tables, &piece, &whole, &known, ours)
}

/// Not ours to judge, or not fit to be forwarded.
#[inline(always)]
fn refuse<T: Tables>(tables: &T, ours: bool) -> Step {
    if ours {
        discard(tables, Counter::FragmentRefused)
    } else {
        pass(tables)
    }
}

#[inline(always)]
fn first<A: Fragmented, P: Packet, T: Tables>(
    packet: &P,
    work: &mut Work,
    tables: &T,
    piece: &Piece,
    whole: &FragmentKey,
    known: &Remembered,
    ours: bool,
) -> Step {
    work.arrival.key.proto = piece.proto;
    work.arrival.l4 = piece.l4 as u16;
    let end = work.arrival.l3 as usize + work.arrival.total as usize;
    let mut found = false;
    let mut ends = (whole.saddr, whole.daddr);
    if let Some(header) = transport_len(piece.proto) {
        let Some(transport) = packet.window::<{ udp::LEN }>(piece.l4) else {
            return refuse(tables, ours);
        };
        if piece.l4 + header > end {
            return refuse(tables, ours);
        }
        if A::V6 && piece.proto == proto::UDP && transport.u16::<{ udp::CHECKSUM }>() == 0 {
            return refuse(tables, ours);
        }
        if piece.proto == proto::TCP {
            let Some(segment) = packet.window::<{ tcp::LEN }>(piece.l4) else {
                return refuse(tables, ours);
            };
            work.arrival.tcp_flags = segment.u8::<{ tcp::FLAGS }>();
        }
        work.arrival.key.sport = transport.u16::<{ tcp::SPORT }>();
        work.arrival.key.dport = transport.u16::<{ tcp::DPORT }>();
        work.arrival.shape = shape::FRAGMENT | shape::PORTS;
        if let Some(flow) = flow::<A, T>(tables, &work.arrival.key) {
            let entry = flow.entry();
            ends = (entry.new_saddr().wide(), entry.new_daddr().wide());
            found = !must_move(tables, &flow);
            if !found {
                work.old_at = flow.at;
                work.old_incarnation = flow.incarnation;
                work.reopen = 1;
            }
        }
    } else if A::V6 && ip6::is_extension(piece.proto) {
        // Behind the fragment header: the ports may be anywhere.
        return refuse(tables, ours);
    }
    if ours || found {
        let key = &work.arrival.key;
        // The same datagram sent twice keeps its identification.
        let again = known.id != 0
            && known.sport == key.sport
            && known.dport == key.dport
            && known.proto == u32::from(key.proto);
        work.fresh_id = if again {
            known.id
        } else {
            fresh_id::<A, T>(tables, ends.0, ends.1)
        };
        if piece.more {
            tables.count(Counter::FragmentRemembered);
            tables.remember_fragment(
                whole,
                &Remembered {
                    time: work.now,
                    id: work.fresh_id,
                    sport: key.sport,
                    dport: key.dport,
                    proto: u32::from(key.proto),
                    _pad: 0,
                },
            );
        }
    }
    Step::Next(if found { Phase::Forward } else { Phase::Miss })
}

/// Number of the next datagram from one address to another: each pair counts for itself, from a number that strangers
/// cannot guess (RFC 7739 §5.3), so that one comes again only after as many datagrams as there are numbers (RFC 6864 §4.3).
#[inline(always)]
pub fn identification<A: Address, T: Tables>(tables: &T, from: A, to: A) -> u64 {
    let key = tables.node().map_or([0; 2], |node| node.flow_hash_key);
    let hash = A::flow_hash(key, from, to, 0, 0, 0);
    (hash >> 16).wrapping_add(tables.next_fragment_id(hash as u32 & (FRAGMENT_IDS - 1)))
}

/// Never 0.
#[inline(always)]
fn fresh_id<A: Header, T: Tables>(tables: &T, from: Addr, to: Addr) -> u32 {
    let next = identification(tables, A::narrow(from), A::narrow(to));
    if A::V6 {
        ((next % 0xffff_ffff) as u32 + 1).to_be()
    } else {
        u32::from(((next % 0xffff) as u16 + 1).to_be())
    }
}

#[inline(always)]
fn flow<A: Header, T: Tables>(tables: &T, key: &FlowKey) -> Option<Found<A>> {
    table::find(tables, &geometry::<A>(tables.node()?), &key.narrow::<A>())
}

/// The server of a flow is down or removed, and its datagrams are to go elsewhere.
#[inline(always)]
fn must_move<A: Header, T: Tables>(tables: &T, found: &Found<A>) -> bool {
    let entry = found.entry();
    let Some(server) = tables.server(u32::from(entry.server())) else {
        return false;
    };
    if entry.flags() & flags::DIRECT != 0 {
        return server.flags & server::UP == 0;
    }
    let moves = entry.flags() & flags::REPLY == 0
        && entry.key().proto == proto::UDP
        && server.flags & (server::RESETS | server::MOVES) != 0;
    if moves {
        tables.count(Counter::ServerDownMoved);
    }
    moves
}

/// A fragment without ports goes where its first one went.
#[inline(always)]
fn later<A: Fragmented, P: Packet, T: Tables>(
    packet: &mut P,
    work: &mut Work,
    tables: &T,
    piece: &Piece,
    known: &Remembered,
) -> Step {
    let arrival = work.arrival.narrow::<A>();
    let leg = work.leg;
    let key = FlowKey::new(
        known.proto as u8,
        work.arrival.key.saddr,
        known.sport,
        work.arrival.key.daddr,
        known.dport,
    );
    let found = flow::<A, T>(tables, &key);
    let direct = found
        .as_ref()
        .is_some_and(|f| f.entry().flags() & flags::DIRECT != 0);
    let Some(found) = found.filter(|_| !direct) else {
        work.arrival.key = key;
        if transport_len(key.proto).is_some() {
            work.arrival.shape = shape::FRAGMENT | shape::PORTS | shape::LATER;
        }
        return Step::Next(if direct { Phase::Forward } else { Phase::Miss });
    };
    let entry = found.entry();
    let entry_flags = entry.flags();
    if !may_act(
        tables,
        entry_flags >> flags::GROUP_SHIFT,
        work.now,
        &arrival,
        &leg,
    ) {
        return Step::Next(Phase::Relay);
    }
    let old = (arrival.key.saddr, arrival.key.daddr);
    let new = (entry.new_saddr(), entry.new_daddr());
    let (hop, server, stats) = (entry.hop(), entry.server(), entry.stats());
    if !found.intact() {
        return discard(tables, Counter::LockContended);
    }
    if arrival.ttl <= 1 {
        return discard(tables, Counter::TtlExpired);
    }
    let Way::To(to) = resolve::<T, true>(tables, hop, new.1.wide(), &leg, work.now) else {
        return discard(tables, Counter::NoNeighbour);
    };
    if let Some(most) = excess(&arrival, &leg, &to, 0) {
        work.answer = Answer::TooBig as u8;
        work.most = most;
        return Step::Next(Phase::Answer);
    }
    let l3 = arrival.l3 as usize;
    let renamed = new.0 == old.0 || A::set_id(packet, l3, piece.l4, known.id);
    if !renamed || !A::rewrite(packet, l3, old, new, arrival.ttl.wrapping_sub(1)) {
        return discard(tables, Counter::Internal);
    }
    entry.set_last_seen(tick(work.now));
    entry.set_packets(entry.packets().wrapping_add(1));
    tables.tally(
        stats,
        server,
        entry_flags & flags::REPLY != 0,
        u64::from(arrival.l3) + u64::from(arrival.total),
    );
    tables.count(Counter::FragmentFollowed);
    send(packet, &arrival, &leg, tables, &to)
}
