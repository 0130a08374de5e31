//! Random events: frames of clients, servers, routers and strangers, whole and damaged, most of them about flows that exist.

mod headers;
mod many;
mod packet;

use super::{
    changes::CHANGES,
    judge::{Event, Given},
    setups::{Family, SERVERS, SOURCES},
};
use crate::support::{
    frames::{Mac, ip, use_v6, v6},
    model::fragments,
    setup::{
        GATEWAY, IFINDEX, OTHER_IFINDEX, OUR_ADDR, OUR_MAC, ROUTER, ROUTER_MAC, S1, S1_MAC, S2, S2_MAC, S3,
        S4, S5, VIP,
    },
};
use onearm_dataplane_common::{flow::FlowEntry, maps::server};
use proptest::prelude::*;
use std::net::IpAddr;

const HOSTS: [&str; 19] = [
    "192.168.10.50",
    "192.168.10.51",
    "10.9.0.7",
    "192.168.100.66",
    "192.168.100.77",
    S1,
    S2,
    S3,
    S4,
    S5,
    VIP,
    GATEWAY,
    OUR_ADDR,
    ROUTER,
    "127.0.0.1",
    "224.0.0.5",
    "192.168.100.255",
    SOURCES[0],
    SOURCES[1],
];
const PORTS: [u16; 24] = [
    80, 81, 53, 54, 443, 82, 55, 83, 84, 56, 85, 57, 58, 86, 87, 88, 59, 40_000, 40_001, 32_768, 49_151, 9,
    1_024, 65_535,
];

/// The first of them are services.
const SERVICES: usize = 17;

/// Whom a packet is between.
#[derive(Clone, Debug)]
pub enum Between {
    /// A client and a service.
    Client(usize, usize, usize),
    /// Indexes into `HOSTS` and `PORTS`.
    Any(usize, usize, usize, usize),
    /// An entry of the table, modulo: its key.
    Flow(usize),
}

#[derive(Clone, Debug)]
pub enum What {
    Tcp(&'static str, u32, u32, bool),
    Udp(bool),
    Echo,
    /// Another protocol.
    Other(u8),
    /// About a packet of a flow, modulo: type, code, from the flow's other end, transport bytes quoted.
    Error(usize, u8, u8, bool, usize),
    /// ARP or Neighbour Discovery: asks, from a host, about a host, from nowhere.
    Resolve(bool, usize, usize, bool),
}

/// A fragment of the packet: identification, size, which of them (modulo).
pub type Part = (u16, usize, usize);

#[derive(Clone, Debug)]
pub struct Packet {
    between: Between,
    what: What,
    ttl: u8,
    options: usize,
    payload: usize,
    padding: usize,
    part: Option<Part>,
    /// Odd ways to come: 0 as it should.
    way: usize,
    /// An IPv6 packet, where there are both.
    six: bool,
    /// IPv4: "do not fragment".
    whole: bool,
    /// TCP options, or what goes without saying.
    segment: Option<usize>,
    changes: Vec<(usize, u8)>,
    cut: Option<usize>,
}

#[derive(Clone, Debug)]
pub enum Op {
    Packet(Packet),
    Bytes(bool, [u8; 2], Vec<u8>),
    Ticks(u32),
    Lease(bool),
    Server(u32, u32),
    /// All fragments of a packet, in an order that depends on this.
    Datagram(Packet, u64),
    /// User space runs the programs on what it was given, modulo; for the last time or not.
    Again(usize, bool),
    /// The kernel sends a frame.
    Leaves(Packet),
    Sweep,
    Noted,
    Judged(u32, bool),
    Change(usize),
    /// A connection from a client (host, port) to a service, opened, and so far closed again: by nobody, the server,
    /// both; or the reverse.
    Talk(bool, usize, u16, usize, usize),
    /// Many at once.
    Crowd(bool, Crowd, usize),
}

/// What many do at once.
#[derive(Clone, Debug)]
pub enum Crowd {
    /// From a host, to a service.
    Open(usize, usize),
    /// To no service.
    Ask(usize),
    /// Fragments whose first ones never come.
    Overtake,
}

fn between() -> impl Strategy<Value = Between> {
    let host = 0..HOSTS.len();
    let port = 0..PORTS.len();
    prop_oneof![
        6 => (0usize..8, SERVICES..SERVICES + 4, 0usize..SERVICES).prop_map(|(h, p, s)| Between::Client(h, p, s)),
        10 => any::<usize>().prop_map(Between::Flow),
        2 => (host.clone(), port.clone(), host, port).prop_map(|(a, p, b, q)| Between::Any(a, p, b, q)),
    ]
}

fn what() -> impl Strategy<Value = What> {
    let flags = prop::sample::select(vec![
        "S", "S", "S", "SA", "SA", "A", "A", "A", "FA", "RA", "R", "SF", "", "F",
    ]);
    let number = prop_oneof![6 => Just(7u32), 2 => Just(8), 1 => any::<u32>()];
    let kind = prop::sample::select(vec![1u8, 2, 3, 4, 5, 11, 12, 0, 13, 128, 129, 133]);
    let host = 0..HOSTS.len();
    prop_oneof![
        12 => (flags, number.clone(), number, prop::bool::weighted(0.1)).prop_map(|(f, s, a, bad)| What::Tcp(f, s, a, bad)),
        6 => prop::bool::weighted(0.8).prop_map(What::Udp),
        1 => Just(What::Echo),
        1 => prop::sample::select(vec![47u8, 132, 0, 60, 44, 255]).prop_map(What::Other),
        3 => (any::<usize>(), kind, 0u8..5, any::<bool>(), prop_oneof![0usize..40, 40usize..1_300])
            .prop_map(|(n, kind, code, far, quoted)| What::Error(n, kind, code, far, quoted)),
        1 => (any::<bool>(), host.clone(), host, prop::bool::weighted(0.2))
            .prop_map(|(asks, from, about, probe)| What::Resolve(asks, from, about, probe)),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    let ttl = prop_oneof![12 => Just(64u8), 1 => 0u8..3];
    let shape = (
        ttl,
        prop_oneof![8 => Just(0usize), 1 => 1usize..11],
        prop_oneof![
            6 => Just(0usize), 6 => 0usize..90,
            1 => 500usize..720, 1 => 1_200usize..1_500, 1 => 1_500usize..3_000,
        ],
        prop_oneof![4 => Just(0usize), 1 => 0usize..9],
        prop::option::weighted(
            0.15,
            (0u16..4, prop_oneof![Just(8usize), Just(16), Just(24)], 0usize..6),
        ),
        prop_oneof![14 => Just(0usize), 1 => 1usize..12],
    );
    let kind = (
        any::<bool>(),
        prop::bool::weighted(0.7),
        prop::option::weighted(0.3, 0..packet::SEGMENTS.len()),
    );
    let damage = (
        prop_oneof![6 => Just(Vec::new()), 1 => prop::collection::vec((0usize..90, any::<u8>()), 1..4)],
        prop::option::weighted(0.05, 0usize..90),
    );
    (between(), what(), shape, kind, damage).prop_map(
        |(
            between,
            what,
            (ttl, options, payload, padding, part, way),
            (six, whole, segment),
            (changes, cut),
        )| Packet {
            between,
            what,
            ttl,
            options,
            payload,
            padding,
            part,
            way,
            six,
            whole,
            segment,
            changes,
            cut,
        },
    )
}

fn crowd() -> impl Strategy<Value = (Crowd, usize)> {
    prop_oneof![
        30 => ((0usize..8, 0..SERVICES).prop_map(|(host, service)| Crowd::Open(host, service)), 1usize..24),
        5 => ((0usize..8).prop_map(Crowd::Ask), 20usize..40),
        1 => (Just(Crowd::Overtake), 310usize..330),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let kinds = prop::sample::select(vec![
        [8u8, 0],
        [8, 6],
        [0x86, 0xdd],
        [0x81, 0],
        [0x88, 0xcc],
        [0x88, 0xb5],
    ]);
    let flags = prop::sample::select(vec![server::UP, server::UP, 0, server::RESETS, server::MOVES]);
    let ticks = prop_oneof![4 => 0u32..40, 2 => 0u32..500, 1 => 0u32..20_000];
    prop_oneof![
        40 => packet().prop_map(Op::Packet),
        2 => (prop::bool::weighted(0.9), kinds, prop::collection::vec(any::<u8>(), 0..160))
            .prop_map(|(ours, kind, bytes)| Op::Bytes(ours, kind, bytes)),
        3 => ticks.prop_map(Op::Ticks),
        1 => prop::bool::weighted(0.8).prop_map(Op::Lease),
        1 => (1..=2 * SERVERS, flags).prop_map(|(index, flags)| Op::Server(index, flags)),
        3 => (packet(), any::<u64>()).prop_map(|(packet, order)| Op::Datagram(packet, order)),
        2 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(n, last)| Op::Again(n, last)),
        1 => packet().prop_map(Op::Leaves),
        6 => (any::<bool>(), 0usize..8, 0u16..40, 0..SERVICES, 0usize..5)
            .prop_map(|(six, host, port, service, end)| Op::Talk(six, host, port, service, end)),
        1 => (any::<bool>(), crowd()).prop_map(|(six, (crowd, n))| Op::Crowd(six, crowd, n)),
        1 => Just(Op::Sweep),
        1 => Just(Op::Noted),
        1 => (0u32..8, any::<bool>()).prop_map(|(n, believed)| Op::Judged(n, believed)),
        1 => (0..CHANGES.len()).prop_map(Op::Change),
    ]
}

/// Where frames from an address come by: its MAC, interface, VLAN.
fn link_of(from: IpAddr) -> (Mac, u32, Option<u16>) {
    let is = |text| from == ip(text);
    if is(S1) {
        (S1_MAC, IFINDEX, None)
    } else if is(S2) {
        (S2_MAC, IFINDEX, None)
    } else if is(S4) {
        ([2, 0, 0, 0, 1, 4], IFINDEX, Some(10))
    } else if is(S5) {
        ([2, 0, 0, 0, 1, 5], OTHER_IFINDEX, None)
    } else {
        (ROUTER_MAC, IFINDEX, None)
    }
}

fn modulo<T: Copy>(list: &[T], n: usize) -> Option<T> {
    list.get(n.checked_rem(list.len())?).copied()
}

impl Op {
    /// In so many steps, each of which depends on what came of those before.
    pub fn steps(&self) -> usize {
        match self {
            Self::Talk(.., end) => 3 + end.div_ceil(2),
            _ => 1,
        }
    }

    /// What it means now that there are these flows, and user space was given these frames.
    pub fn events(&self, step: usize, family: Family, flows: &[FlowEntry], given: &[Given]) -> Vec<Event> {
        let of = |packet: &Packet| -> Vec<FlowEntry> {
            use_v6(family.of(packet.six));
            let mine = |flow: &&FlowEntry| flow.saddr.is_v4() != v6();
            flows.iter().filter(mine).copied().collect()
        };
        let events = match self {
            Self::Packet(packet) => {
                let (ifindex, bytes) = packet.frame(&of(packet));
                vec![Event::Frame(ifindex, bytes)]
            }
            Self::Datagram(packet, order) => packet
                .pieces(&of(packet), *order)
                .into_iter()
                .map(|(ifindex, bytes)| Event::Frame(ifindex, bytes))
                .collect(),
            Self::Again(n, last) => again(given, *n, *last),
            Self::Bytes(ours, kind, bytes) => {
                let mut frame = bytes.clone();
                if *ours && frame.len() >= 14 {
                    frame[..6].copy_from_slice(&OUR_MAC);
                    frame[6] &= 0xfe;
                    frame[12..14].copy_from_slice(kind);
                    if kind == &[0x86, 0xdd] && frame.len() > 20 {
                        frame[14] = 0x60;
                        frame[18..20].copy_from_slice(&[0, 40]);
                    }
                }
                vec![Event::Frame(IFINDEX, frame)]
            }
            Self::Ticks(ticks) => vec![Event::Ticks(*ticks)],
            Self::Lease(held) => vec![Event::Lease(*held)],
            Self::Server(index, flags) => vec![Event::Server(*index, *flags)],
            Self::Leaves(packet) => vec![Event::Leaves(packet.frame(&of(packet)).1)],
            Self::Talk(six, host, port, service, end) => {
                use_v6(family.of(*six));
                many::talk(step, flows, (*host, 20_000 + port, *service), *end)
            }
            Self::Crowd(six, crowd, n) => {
                use_v6(family.of(*six));
                (0..*n).map(|n| crowd.frame(n)).collect()
            }
            Self::Sweep => vec![Event::Sweep],
            Self::Noted => vec![Event::Noted],
            Self::Judged(n, believed) => vec![Event::Judged(*n, *believed)],
            Self::Change(n) => vec![Event::Change(CHANGES[*n].0)],
        };
        use_v6(false);
        events
    }
}

/// User space tries again: with a fragment as it was, or with the fragments of a packet that was too big.
fn again(given: &[Given], n: usize, last: bool) -> Vec<Event> {
    let Some((ifindex, frame, most)) = n.checked_rem(given.len()).map(|n| &given[n]) else {
        return Vec::new();
    };
    let note = if last { 2 } else { 1 };
    let whole = || vec![Event::Again(note, *ifindex, frame.clone())];
    let Some(most) = most else {
        return whole();
    };
    let l3 = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let word = u16::from_be_bytes([frame[l3 + 6], frame[l3 + 7]]);
    let header = usize::from(frame[l3] & 15) * 4;
    let Some(size) = usize::from(*most).checked_sub(header + 7).map(|room| room & !7) else {
        return whole();
    };
    if word & 0x3fff != 0 || size < 64 {
        // Fragments of fragments are the divider's own matter.
        return whole();
    }
    let id = u32::from(u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]));
    let pieces = fragments(frame, id, size);
    pieces
        .into_iter()
        .map(|piece| Event::Again(note, *ifindex, piece))
        .collect()
}
