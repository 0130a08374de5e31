//! What one phase leaves to the next.

use crate::{
    addr::{Addr, Address},
    evict::Room,
    flow::{FlowEntry, FlowKey},
    maps::{Leg, Mac, Port},
    phase::Phase,
    search::Search,
    table::Scan,
};

/// What to do with the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Leave it to the kernel.
    Pass,
    /// Throw it away.
    Drop,
    /// Send it back by the interface it came from.
    Transmit,
    /// Send it by the interface of this leg (key of `TX_PORTS`).
    Redirect(u32),
    /// Go on with this phase; what it needs is in [`Work`].
    Next(Phase),
}

/// A parsed frame: where it came from and what it says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival<A = Addr> {
    /// The key of the packet; ports are 0 unless [`shape`] says otherwise.
    pub key: FlowKey<A>,
    /// Interface.
    pub ifindex: u32,
    /// VLAN id, native order; 0 = none.
    pub vlan: u16,
    /// Source MAC.
    pub src_mac: Mac,
    /// Offset of the IP or ARP header.
    pub l3: u16,
    /// Offset of what follows the IP header.
    pub l4: u16,
    /// IP total length; with IPv6, header included.
    pub total: u16,
    /// TCP flags.
    pub tcp_flags: u8,
    /// [`shape`].
    pub shape: u8,
    /// Time to live.
    pub ttl: u8,
    /// Explicit padding, zero.
    pub _pad: [u8; 3],
    /// Table slot of this packet.
    pub slot: u32,
}

impl<A: Address> Arrival<A> {
    /// Writes it with general addresses.
    #[inline(always)]
    pub fn widen_into(&self, to: &mut Arrival) {
        to.key = self.key.wide();
        to.ifindex = self.ifindex;
        to.vlan = self.vlan;
        to.src_mac = self.src_mac;
        to.l3 = self.l3;
        to.l4 = self.l4;
        to.total = self.total;
        to.tcp_flags = self.tcp_flags;
        to.shape = self.shape;
        to.ttl = self.ttl;
        to.slot = self.slot;
    }
}

impl Arrival {
    /// It with the addresses of one family.
    #[inline(always)]
    pub fn narrow<A: Address>(&self) -> Arrival<A> {
        Arrival {
            key: self.key.narrow(),
            ifindex: self.ifindex,
            vlan: self.vlan,
            src_mac: self.src_mac,
            l3: self.l3,
            l4: self.l4,
            total: self.total,
            tcp_flags: self.tcp_flags,
            shape: self.shape,
            ttl: self.ttl,
            _pad: [0; 3],
            slot: self.slot,
        }
    }
}

/// Bits of [`Arrival::shape`].
pub mod shape {
    /// A fragment, first or not.
    pub const FRAGMENT: u8 = 1;
    /// The IP packet ends before its transport header does.
    pub const SHORT: u8 = 2;
    /// Ports and, for TCP, flags were read.
    pub const PORTS: u8 = 4;
    /// A fragment after the first one, whose ports those are.
    pub const LATER: u8 = 8;
    /// An ICMP error; the key is that of the flow it tells of, without TCP flags.
    pub const ERROR: u8 = 16;
    /// The packet says by way of whom it is to be routed.
    pub const ROUTED: u8 = 32;
    /// What belongs to a flow and never makes one.
    pub const JOINED: u8 = LATER | ERROR;
}

/// What to answer in [`Phase::Answer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// ICMP echo reply.
    #[default]
    Echo = 0,
    /// RST to a SYN.
    Reset = 1,
    /// ICMP port unreachable.
    PortUnreachable = 2,
    /// ICMP time exceeded.
    TimeExceeded = 3,
    /// RST to a segment of a flow whose server went down.
    ServerGone = 4,
    /// ICMP fragmentation needed, ICMPv6 packet too big.
    TooBig = 5,
}

/// Value of map `WORK` (per-CPU array of one). Valid from the phase that hands over to the end of the chain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// The packet.
    pub arrival: Arrival,
    /// The leg it came by.
    pub leg: Leg,
    /// CLOCK_MONOTONIC, ns; 0 = not read yet.
    pub now: u64,
    /// Hash of the packet's key for the flow table; 0 = not known.
    pub hash: u64,
    /// Incarnation of the flow that a SYN may replace; 0 = none.
    pub old_incarnation: u64,
    /// Incarnation of the flow that was made of this packet; 0 = none was.
    pub made_incarnation: u64,
    /// Location of the old flow.
    pub old_at: u32,
    /// Location of the new one.
    pub made_at: u32,
    /// Service index.
    pub service: u32,
    /// First pool of the service, with the slot's base.
    pub pool_base: u32,
    /// Number of pools; 0 = the client's address stays.
    pub pools: u32,
    /// The search for a flow that gives way.
    pub room: Room,
    /// A scan for affinities that may give way.
    pub scan: Scan,
    /// A closed flow whose source port may be used again; incarnation 0 = none seen.
    pub resting_incarnation: u64,
    /// Its location.
    pub resting_at: u32,
    /// Its source address.
    pub resting_addr: Addr,
    /// Its source port.
    pub resting_port: Port,
    /// Explicit padding, zero.
    pub _pad_resting: u16,
    /// How willingly it gives way: its age in ticks, or `u32::MAX` if its port need not rest.
    pub resting_score: u32,
    /// Source ports guessed.
    pub attempt: u32,
    /// Start of the pseudo-random search.
    pub seed: u32,
    /// The exact search.
    pub search: Search,
    /// Source of the answer; none = the packet's destination.
    pub answer_from: Addr,
    /// Value of [`Answer`].
    pub answer: u8,
    /// Mode of the service for this client.
    pub mode: u8,
    /// 1 = the old flow is to be replaced whatever its state.
    pub reopen: u8,
    /// How often room was made.
    pub evicted: u8,
    /// Runs spent on waiting for a lock.
    pub waited: u8,
    /// 1 = the old flow goes for its source port.
    pub reusing: u8,
    /// 1 = no flow is to be kept of the packet.
    pub forgets: u8,
    /// 1 = the source port is chosen.
    pub chosen: u8,
    /// Identification for a first fragment, as it will stand in the packet, should its source be rewritten; 0 = none.
    pub fresh_id: u32,
    /// 1 = an ICMP error about none of our flows.
    pub judged: u8,
    /// 1 = [`Phase::Mss`] has been there.
    pub clamped: u8,
    /// Bytes a packet that is too big may have.
    pub most: u16,
    /// Bytes a segment may have.
    pub mss: u16,
    /// 1 = after [`Phase::Mss`] comes [`Phase::Direct`], else [`Phase::Forward`].
    pub then_direct: u8,
    /// 1 = the reply's entry found no room, 0 = the client's.
    pub cramped_reply: u8,
    /// Explicit padding, zero.
    pub _pad: [u8; 4],
    /// Place in the packet.
    pub cursor: Memory,
    /// The new flow.
    pub forward: FlowEntry,
    /// The new flow.
    pub reply: FlowEntry,
}

/// A number that stays in memory. The verifier forgets what it knew of a value once it is stored; kept in a register, every
/// value a scan could have found so far would be a state of its own.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory(u64);

#[expect(unsafe_code, reason = "volatile access to a plain number")]
impl Memory {
    /// Loads it.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        // SAFETY: a reference is valid and aligned.
        unsafe { (&raw const self.0).read_volatile() }
    }

    /// Stores it.
    #[inline(always)]
    pub fn set(&mut self, value: u64) {
        // SAFETY: a reference is valid and aligned.
        unsafe { (&raw mut self.0).write_volatile(value) }
    }
}
