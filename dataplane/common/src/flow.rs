//! The flat flow table: layout and meaning of its words. What is done with them is in [`crate::table`].
//!
//! Map `FLOWS4` is a BPF array (`BPF_F_MMAPABLE`) of [`Bucket4`]. Every connection has two entries, one a direction, each
//! found by the packet *as it arrives*. A bucket is one 64-byte tag line and [`WAYS`] entries of 64 bytes, so that a packet
//! of an established flow touches two cache lines, and mostly one (see [`crate::table::Place::likely_ways`]).

use crate::{
    addr::{Addr, Addr4, Address},
    maps::{Port, WAYS},
};

/// The 5-tuple of a packet as it arrives.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey<A = Addr> {
    /// Source address.
    pub saddr: A,
    /// Destination address.
    pub daddr: A,
    /// Source port.
    pub sport: Port,
    /// Destination port.
    pub dport: Port,
    /// IP protocol.
    pub proto: u8,
    /// Explicit padding, zero.
    pub _pad: [u8; 3],
}

/// The key of an IPv4 packet.
pub type FlowKey4 = FlowKey<Addr4>;

impl<A: Address> FlowKey<A> {
    /// The key with general addresses.
    #[inline(always)]
    pub fn wide(&self) -> FlowKey {
        FlowKey::new(
            self.proto,
            self.saddr.wide(),
            self.sport,
            self.daddr.wide(),
            self.dport,
        )
    }

    /// Hash for the flow table.
    #[inline(always)]
    pub fn hash(&self, key: [u64; 2]) -> u64 {
        A::flow_hash(key, self.saddr, self.daddr, self.sport, self.dport, self.proto)
    }
}

impl FlowKey {
    /// The key as the flow table of one family has it.
    #[inline(always)]
    pub fn narrow<A: Address>(&self) -> FlowKey<A> {
        FlowKey::new(
            self.proto,
            A::narrow(self.saddr),
            self.sport,
            A::narrow(self.daddr),
            self.dport,
        )
    }
}

impl<A> FlowKey<A> {
    /// A key; ports in network byte order.
    #[inline(always)]
    pub const fn new(proto: u8, saddr: A, sport: Port, daddr: A, dport: Port) -> Self
    where
        A: Copy,
    {
        Self {
            saddr,
            daddr,
            sport,
            dport,
            proto,
            _pad: [0; 3],
        }
    }
}

/// One direction of a flow: 64 bytes for IPv4, 128 for IPv6.
///
/// `incarnation` is written last when an entry is published and zeroed first when it is removed; a reader takes it before
/// and after the fields it uses and starts again (or misses) when the two differ. Not a flow's: [`crate::table::is_published`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowEntry<A: Address = Addr> {
    /// Key: source address as the packet arrives.
    pub saddr: A,
    /// Key: destination address.
    pub daddr: A,
    /// Key: source port.
    pub sport: Port,
    /// Key: destination port.
    pub dport: Port,
    /// Key: IP protocol.
    pub proto: u8,
    /// [`flags`]: direction, mode, group.
    pub flags: u8,
    /// [`seen`]: what packets of this direction have shown. Written by packets of this direction only.
    pub own: u8,
    /// [`seen`]: copy of the partner's `own`. Written by packets of the other direction only.
    pub other: u8,
    /// Source address as the packet leaves.
    pub new_saddr: A,
    /// Destination address as the packet leaves.
    pub new_daddr: A,
    /// Source port as the packet leaves.
    pub new_sport: Port,
    /// Destination port as the packet leaves.
    pub new_dport: Port,
    /// Where to send: index into `NEXT_HOPS`, or with [`hop::LAST`] into `LAST_HOPS`; [`hop::ROUTE`] = look the route up.
    pub hop: u32,
    /// The other direction's entry: bucket << 4 | way.
    pub partner: u32,
    /// Tick (see [`crate::maps::TICK_SHIFT`]) of the last packet of this direction.
    pub last_seen: u32,
    /// Idle time-out while established, in ticks.
    pub idle_ticks: u32,
    /// TCP, native order. While half-open, in both directions: the acknowledgement the client must send (server's sequence
    /// + 1). From then on: the last acknowledgement this direction sent.
    pub expected_ack: u32,
    /// Index into `SERVERS` and `SERVER_STATS`.
    pub server: u16,
    /// Index into `SERVICE_STATS`.
    pub stats: u16,
    /// Packets of this direction; wraps.
    pub packets: u32,
    /// Which flow this is: node id << 56 | epoch << 40 | counter. The same in both entries; positive as a signed number in
    /// a live one.
    pub incarnation: u64,
    /// Explicit padding, zero.
    pub _rest: A::Rest,
}

/// A direction of an IPv4 flow.
pub type FlowEntry4 = FlowEntry<Addr4>;
/// A direction of an IPv6 flow.
pub type FlowEntry6 = FlowEntry<Addr>;

impl<A: Address> FlowEntry<A> {
    /// The key of the entry.
    #[inline(always)]
    pub const fn key(&self) -> FlowKey<A> {
        FlowKey::new(self.proto, self.saddr, self.sport, self.daddr, self.dport)
    }

    /// The key of packets of the other direction.
    #[inline(always)]
    pub const fn reply_key(&self) -> FlowKey<A> {
        FlowKey::new(
            self.proto,
            self.new_daddr,
            self.new_dport,
            self.new_saddr,
            self.new_sport,
        )
    }

    /// Value of [`crate::maps::mode`].
    #[inline(always)]
    pub const fn mode(&self) -> u8 {
        (self.flags & flags::MODE_MASK) >> flags::MODE_SHIFT
    }

    /// Ownership group whose lease guards the flow.
    #[inline(always)]
    pub const fn group(&self) -> u8 {
        self.flags >> flags::GROUP_SHIFT
    }

    /// True in the entry of packets from the server.
    #[inline(always)]
    pub const fn is_reply(&self) -> bool {
        self.flags & flags::REPLY != 0
    }
}

/// Bits of [`FlowEntry::flags`].
pub mod flags {
    /// The entry is for packets from the server.
    pub const REPLY: u8 = 1;
    /// [`crate::maps::mode`] in two bits.
    pub const MODE_SHIFT: u8 = 1;
    /// Mask of the mode.
    pub const MODE_MASK: u8 = 0b110;
    /// Bit of the mode: the server answers its clients itself; the flow has one entry, its own partner.
    pub const DIRECT: u8 = 0b100;
    /// The flow is Both-NAT only because client and chosen server are neighbours (hairpin).
    pub const HAIRPIN: u8 = 8;
    /// Ownership group in the upper four bits.
    pub const GROUP_SHIFT: u8 = 4;
}

/// Bits of [`FlowEntry::own`] and [`FlowEntry::other`].
pub mod seen {
    /// TCP: SYN (client) or SYN-ACK (server). UDP: a packet.
    pub const OPENED: u8 = 1;
    /// Client's side of TCP: it has acknowledged the server's SYN-ACK.
    pub const CONFIRMED: u8 = 2;
    /// A FIN.
    pub const FIN: u8 = 4;
    /// A RST, not yet lifted by a later segment.
    pub const RST: u8 = 8;
    /// This side's FIN was sent before the other's reached it: it keeps TIME-WAIT.
    pub const FIN_FIRST: u8 = 16;
    /// Client's side: the flow counts towards its address's `max_per_source` while it is not closing.
    pub const COUNTED: u8 = 32;
    /// A server that answers its clients itself: the client has sent a SYN after a FIN or RST, and nothing since.
    pub const AGAIN: u8 = 64;
}

/// Values and bits of [`FlowEntry::hop`].
pub mod hop {
    /// The rest is an index into `LAST_HOPS`.
    pub const LAST: u32 = 1 << 31;
    /// No hop is known (first packet relayed by the peer, or no index free): look up route and neighbour for each packet.
    pub const ROUTE: u32 = u32::MAX;
}

/// Coarse state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// TCP before the client has acknowledged the server's SYN-ACK.
    HalfOpen,
    /// Carrying traffic.
    Established,
    /// FIN of both sides, or a RST.
    Closing,
}

/// True for [`State::HalfOpen`] of an entry with these words, whatever its direction. Without branches, for scans.
#[inline(always)]
pub const fn is_half_open(proto: u8, entry_flags: u8, own: u8, other: u8) -> bool {
    let swap = (own ^ other) & (entry_flags & flags::REPLY).wrapping_neg();
    let (client, server) = (own ^ swap, other ^ swap);
    let closing = ((client | server) & seen::RST) | (client & server & seen::FIN);
    let missing = (!client & seen::CONFIRMED) | (!server & seen::OPENED);
    (closing as u32) << 8 | (proto ^ crate::maps::proto::TCP) as u32 == 0 && missing != 0
}

/// True for [`State::Closing`], whatever the direction of the entry. Without branches, like [`is_half_open`].
#[inline(always)]
pub const fn is_closing(own: u8, other: u8) -> bool {
    ((own | other) & seen::RST) | (own & other & seen::FIN) != 0
}

/// True for a flow of datagrams, nothing of which was answered. Without branches, like [`is_half_open`].
#[inline(always)]
pub const fn is_unanswered(proto: u8, entry_flags: u8, own: u8, other: u8) -> bool {
    let swap = (own ^ other) & (entry_flags & flags::REPLY).wrapping_neg();
    let server = other ^ swap;
    (proto ^ crate::maps::proto::TCP) != 0 && server & seen::OPENED == 0
}

/// True if an established TCP connection has met a RST of its client and nothing of its server since: the client has given
/// it up, or a stranger pretends so.
#[inline(always)]
pub const fn is_reset_by_client(client: u8, server: u8) -> bool {
    client & (seen::RST | seen::CONFIRMED) == seen::RST | seen::CONFIRMED
        && server & (seen::RST | seen::OPENED) == seen::OPENED
        && client & server & seen::FIN == 0
}

/// True for a flow of whose two ends either has shown that it is there: a TCP client has acknowledged its server's SYN-ACK, a
/// datagram has been answered, or, where the answers are never seen, a second packet has come. Bits as the forward entry has
/// them, and its packets.
#[inline(always)]
pub const fn is_proved(proto: u8, entry_flags: u8, client: u8, server: u8, packets: u32) -> bool {
    if entry_flags & flags::DIRECT != 0 {
        packets > 1
    } else if proto == crate::maps::proto::TCP {
        client & seen::CONFIRMED != 0
    } else {
        server & seen::OPENED != 0
    }
}

/// Coarse state from the two directions' [`seen`] bits, in any order for UDP, (client, server) for TCP.
#[inline(always)]
pub const fn state(proto: u8, client: u8, server: u8) -> State {
    if (client | server) & seen::RST != 0 || client & server & seen::FIN != 0 {
        State::Closing
    } else if proto == crate::maps::proto::TCP
        && (client & seen::CONFIRMED == 0 || server & seen::OPENED == 0)
    {
        State::HalfOpen
    } else {
        State::Established
    }
}

impl<A: Address> FlowEntry<A> {
    /// The entry with general addresses.
    pub fn wide(&self) -> FlowEntry {
        FlowEntry {
            saddr: self.saddr.wide(),
            daddr: self.daddr.wide(),
            sport: self.sport,
            dport: self.dport,
            proto: self.proto,
            flags: self.flags,
            own: self.own,
            other: self.other,
            new_saddr: self.new_saddr.wide(),
            new_daddr: self.new_daddr.wide(),
            new_sport: self.new_sport,
            new_dport: self.new_dport,
            hop: self.hop,
            partner: self.partner,
            last_seen: self.last_seen,
            idle_ticks: self.idle_ticks,
            expected_ack: self.expected_ack,
            server: self.server,
            stats: self.stats,
            packets: self.packets,
            incarnation: self.incarnation,
            _rest: [0; 16],
        }
    }
}

impl<A: Address> FlowEntry<A> {
    /// (client's bits, server's bits).
    #[inline(always)]
    pub const fn seen_by_side(&self) -> (u8, u8) {
        if self.is_reply() {
            (self.other, self.own)
        } else {
            (self.own, self.other)
        }
    }

    /// Coarse state of the flow.
    #[inline(always)]
    pub const fn state(&self) -> State {
        let (client, server) = self.seen_by_side();
        state(self.proto, client, server)
    }
}

/// One bucket of `FLOWS4` (1,088 bytes) or `FLOWS6` (2,112 bytes).
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket<A: Address = Addr> {
    /// Tags of the ways, 16 bits each, way 0 in the lowest bits of the first word; 0 = free.
    pub tags: [u64; WAYS / 4],
    /// Serialises insert-if-absent of keys whose first candidate is this bucket: 0 = free, else the owner ([`lock`]).
    pub lock: u64,
    /// Entries whose first candidate is this bucket but which live elsewhere: in their second one (lower 32 bits), in their
    /// third one (upper 32 bits).
    pub overflow: u64,
    /// Explicit padding, zero.
    pub _pad: [u64; 2],
    /// The ways.
    pub entries: [FlowEntry<A>; WAYS],
}

/// A bucket of `FLOWS4`.
pub type Bucket4 = Bucket<Addr4>;
/// A bucket of `FLOWS6`.
pub type Bucket6 = Bucket<Addr>;

impl<A: Address> Default for Bucket<A> {
    fn default() -> Self {
        Self {
            tags: [0; WAYS / 4],
            lock: 0,
            overflow: 0,
            _pad: [0; 2],
            entries: [FlowEntry::default(); WAYS],
        }
    }
}

/// Owners in [`Bucket::lock`].
pub mod lock {
    /// Set in the owner id of a user-space process; the lower 32 bits are its pid. Without it: CPU number + 1.
    ///
    /// A program cannot end while it holds a lock; a process can. [`crate::table::recover`] frees what a dead one left.
    pub const USER: u64 = 1 << 32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_branchless_tests_agree_with_the_state() {
        for proto in [6, 17] {
            for own in 0..32 {
                for other in 0..32 {
                    for flags in [0, flags::REPLY, flags::REPLY | 0x16] {
                        let entry = FlowEntry4 {
                            proto,
                            flags,
                            own,
                            other,
                            ..FlowEntry4::default()
                        };
                        let want = entry.state() == State::HalfOpen;
                        assert_eq!(is_half_open(proto, flags, own, other), want, "{entry:?}");
                        let want = entry.state() == State::Closing;
                        assert_eq!(is_closing(own, other), want, "{entry:?}");
                    }
                }
            }
        }
    }
}
