//! Random events: frames of clients, servers, routers and strangers, whole and damaged, most of them about flows that exist.

use super::{
    changes::CHANGES,
    expect::{address, is_direct},
    judge::{Event, Given},
    setups::{Family, SERVERS, SOURCES},
};
use crate::support::{
    frames::{Body, End, Frame, Mac, arp, ip, use_v6, v6},
    model::{Report, fragments, unfragmented},
    setup::{
        BROADCAST, GATEWAY, IFINDEX, OTHER_IFINDEX, OTHER_MAC, OUR_ADDR, OUR_MAC, PEER_MAC, ROUTER,
        ROUTER_MAC, S1, S1_MAC, S2, S2_MAC, S3, S4, S5, VIP,
    },
};
use etherparse::ArpOperation;
use onearm_dataplane_common::{flow::FlowEntry, maps::server};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv6Addr};

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

/// TCP options: the largest segment at even and odd places, twice, too long, behind others, behind the end.
const SEGMENTS: [&[u8]; 8] = [
    &[2, 4, 5, 180],
    &[1, 2, 4, 5, 180, 0, 0, 0],
    &[8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 2, 4, 0x23, 0],
    &[2, 4, 0xff, 0xff, 2, 4, 5, 180],
    &[2, 4, 1, 0],
    &[0, 2, 4, 5, 180, 0, 0, 0],
    &[1, 1, 1, 2, 5, 5, 180, 0],
    &[5, 0, 2, 4, 5, 180, 1, 1],
];

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
        prop::option::weighted(0.3, 0..SEGMENTS.len()),
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

impl Packet {
    fn ends(&self, flows: &[FlowEntry]) -> (End, End) {
        let host = |n: usize| ip(HOSTS[n]);
        match self.between {
            Between::Client(h, p, s) => (End(host(h), PORTS[p]), End(ip(VIP), PORTS[s])),
            Between::Any(a, p, b, q) => (End(host(a), PORTS[p]), End(host(b), PORTS[q])),
            Between::Flow(n) => match modulo(flows, n) {
                Some(flow) => (
                    End(address(flow.saddr), u16::from_be(flow.sport)),
                    End(address(flow.daddr), u16::from_be(flow.dport)),
                ),
                None => (End(host(0), PORTS[SERVICES]), End(ip(VIP), PORTS[n % SERVICES])),
            },
        }
    }

    /// The frame, without what happens to it on its way: its interface, tag, bytes.
    fn whole(&self, flows: &[FlowEntry]) -> (u32, Option<u16>, Vec<u8>) {
        let (from, to) = self.ends(flows);
        let (mut mac, mut ifindex, mut vlan) = link_of(from.0);
        let mut onto = OUR_MAC;
        match self.way {
            1 => mac = PEER_MAC,
            2 => mac = [2, 0, 0, 0, 9, 9],
            3 => vlan = Some(10),
            4 => vlan = Some(0),
            5 => ifindex = OTHER_IFINDEX,
            6 => mac = [3, 0, 0, 0, 9, 9],
            7 => onto = BROADCAST,
            8 => vlan = Some(0xa00a),
            _ => {}
        }
        if ifindex == OTHER_IFINDEX && onto == OUR_MAC {
            onto = OTHER_MAC;
        }
        let mut bytes = match self.what {
            What::Resolve(asks, who, about, probe) => {
                resolve(asks, mac, ip(HOSTS[who]), ip(HOSTS[about]), probe)
            }
            What::Error(n, kind, code, far, quoted) => self.error(flows, n, (kind, code), far, quoted),
            _ => self.transport(from, to),
        };
        bytes[6..12].copy_from_slice(&mac);
        if !matches!(self.what, What::Resolve(..)) || self.way == 7 {
            bytes[..6].copy_from_slice(&onto);
        }
        (ifindex, vlan, bytes)
    }

    fn is_divisible(&self) -> bool {
        // The chain of IPv6 headers must lead to a transport header.
        let plain = self.options == 0 && !matches!(self.what, What::Other(_));
        !matches!(self.what, What::Resolve(..)) && (!v6() || plain)
    }

    /// Tags, damages.
    fn on_the_way(&self, vlan: Option<u16>, mut bytes: Vec<u8>) -> Vec<u8> {
        let outer = match self.way {
            9 => Some([0x81, 0, 0, 10]),
            10 => Some([0x88, 0xa8, 0, 10]),
            _ => None,
        };
        let tag = vlan.map(|vlan| {
            let [high, low] = vlan.to_be_bytes();
            [0x81, 0, high, low]
        });
        for tag in tag.or(outer.map(|_| [0x81, 0, 0, 10])).into_iter().chain(outer) {
            bytes.splice(12..12, tag);
        }
        for (at, byte) in &self.changes {
            if let Some(old) = bytes.get_mut(*at) {
                *old = *byte;
            }
        }
        if let Some(cut) = self.cut {
            bytes.truncate(cut);
        }
        bytes
    }

    fn frame(&self, flows: &[FlowEntry]) -> (u32, Vec<u8>) {
        let (ifindex, vlan, mut bytes) = self.whole(flows);
        if let Some((id, size, which)) = self.part
            && self.is_divisible()
        {
            let pieces = fragments(&bytes, u32::from(id), size);
            bytes.clone_from(&pieces[which % pieces.len()]);
            if self.way == 11 {
                // Near the end of the longest datagram.
                let at = if v6() { 14 + 40 + 2 } else { 14 + 6 };
                let word: u16 = if v6() { 0xffe8 } else { 0x1ffd };
                bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
            }
        }
        (ifindex, self.on_the_way(vlan, bytes))
    }

    /// All fragments.
    fn pieces(&self, flows: &[FlowEntry], mut order: u64) -> Vec<(u32, Vec<u8>)> {
        let (ifindex, vlan, bytes) = self.whole(flows);
        if !self.is_divisible() {
            return vec![(ifindex, self.on_the_way(vlan, bytes))];
        }
        let size = (bytes.len() / 4).next_multiple_of(8);
        let id = u32::try_from(order & 0xffff).expect("16 bits");
        let mut pieces = fragments(&bytes, id, size);
        for n in (1..pieces.len()).rev() {
            order = order.rotate_left(9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            pieces.swap(n, (order >> 32) as usize % (n + 1));
        }
        let sent = |bytes| (ifindex, self.on_the_way(vlan, bytes));
        pieces.into_iter().map(sent).collect()
    }

    fn transport(&self, from: End, to: End) -> Vec<u8> {
        let body = match self.what {
            What::Tcp(flags, seq, ack, _) => Body::Tcp(flags, seq, ack),
            What::Udp(checksum) => Body::Udp(checksum),
            What::Other(_) => Body::Udp(true),
            _ => Body::Echo(77, 5),
        };
        let padding = if self.part.is_some() { 0 } else { self.padding };
        let mut frame = Frame::new(from, to, body)
            .ttl(self.ttl)
            .payload(&vec![0xfe; self.payload])
            .padding(padding);
        if let Some(segment) = self.segment {
            frame = frame.tcp_options(SEGMENTS[segment]);
        }
        if self.part.is_none() && !(v6() && self.options > 3) {
            frame = frame.options(&options(self.options.min(10), self.payload));
        }
        let mut bytes = frame.build();
        if v6() && self.part.is_none() && self.options > 3 {
            lengthen(&mut bytes, self.options);
        }
        if let What::Tcp(.., true) = self.what {
            // A checksum that is wrong stays so.
            let at = bytes.len() - padding - self.payload - 4;
            bytes[at] ^= 0x55;
        }
        if !self.whole {
            bytes = unfragmented(&bytes, 0x4321);
        }
        if let What::Other(proto) = self.what {
            bytes[if v6() { 20 } else { 23 }] = proto;
        }
        bytes
    }

    /// What a router or the far end says about a packet of a flow that the node has sent.
    fn error(
        &self,
        flows: &[FlowEntry],
        n: usize,
        (kind, code): (u8, u8),
        far: bool,
        quoted: usize,
    ) -> Vec<u8> {
        let (from, to) = match modulo(flows, n) {
            // The server's answer, which the node has not seen.
            Some(flow) if is_direct(&flow) => (
                End(address(flow.daddr), u16::from_be(flow.dport)),
                End(address(flow.saddr), u16::from_be(flow.sport)),
            ),
            Some(flow) => (
                End(address(flow.new_saddr), u16::from_be(flow.new_sport)),
                End(address(flow.new_daddr), u16::from_be(flow.new_dport)),
            ),
            None => self.ends(flows),
        };
        let udp = modulo(flows, n).is_some_and(|flow| flow.proto == 17);
        let body = if udp {
            Body::Udp(self.whole)
        } else {
            Body::Tcp("A", 7, 8)
        };
        let sent = Frame::new(from, to, body)
            .options(&vec![1; self.options.min(10) * 4])
            .payload(&vec![0xd1; self.payload])
            .build();
        let end = (sent.len() - if udp { 8 } else { 20 } + quoted).min(sent.len());
        Report {
            from_mac: ROUTER_MAC,
            to_mac: OUR_MAC,
            from: if far { to.0 } else { ip(ROUTER) },
            to: from.0,
            ttl: self.ttl,
            kind,
            code,
            rest: [0, 0, 5, 0],
            quote: sent[14..end].to_vec(),
        }
        .build()
    }
}

/// So many words of options of the IPv4 header: nothing, record route, time stamps, a source route, one that breaks off.
fn options(words: usize, n: usize) -> Vec<u8> {
    let mut all = vec![1; words * 4];
    let len = u8::try_from(all.len()).expect("few").saturating_sub(1);
    if words > 1 {
        let head = match n % 8 {
            0 => [7, len, 4],
            1 => [68, len, 5],
            2 => [131, len, 4],
            3 => [137, 3, 4],
            4 => [148, 0, 0],
            5 => [7, len + 2, 4],
            _ => [1; 3],
        };
        all[1..4].copy_from_slice(&head);
    }
    all
}

/// More and longer extension headers: destination options, hop-by-hop options, routing, authentication.
fn lengthen(bytes: &mut Vec<u8>, n: usize) {
    let mut chain = Vec::new();
    let (mut next, mut first) = (bytes[20], 60);
    for k in 0..n - 3 {
        let (kind, units) = [(60, 0), (0, 1), (60, 8), (43, 2), (51, 4)][(n + k) % 5];
        let len = if kind == 51 {
            (units + 2) * 4
        } else {
            (units + 1) * 8
        };
        let mut header = vec![0; len];
        header[0] = next;
        header[1] = u8::try_from(units).expect("few");
        chain.splice(0..0, header);
        (next, first) = (kind, kind);
    }
    bytes[20] = first;
    let payload = u16::from_be_bytes([bytes[18], bytes[19]]) + u16::try_from(chain.len()).expect("few");
    bytes[18..20].copy_from_slice(&payload.to_be_bytes());
    bytes.splice(54..54, chain);
}

/// ARP, or a solicitation or advertisement.
fn resolve(asks: bool, mac: Mac, from: IpAddr, about: IpAddr, probe: bool) -> Vec<u8> {
    let (IpAddr::V6(from), IpAddr::V6(about)) = (from, about) else {
        let sender = if probe { ip("0.0.0.0") } else { from };
        let operation = if asks {
            ArpOperation::REQUEST
        } else {
            ArpOperation::REPLY
        };
        return arp(operation, (mac, sender), ([0; 6], about), BROADCAST);
    };
    let [.., a, b, c] = about.octets();
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    );
    let sender = if probe { Ipv6Addr::UNSPECIFIED } else { from };
    let mut body = vec![if asks { 135 } else { 136 }, 0, 0, 0, 0, 0, 0, 0];
    body.extend(about.octets());
    if !probe {
        body.extend([1, 1]);
        body.extend(mac);
    }
    let mut packet = super::write::packet(sender.into(), group.into(), 58, &body, 2);
    packet[7] = 255;
    [&[0x33, 0x33, 0xff, a, b, c], &mac[..], &[0x86, 0xdd], &packet].concat()
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
                talk(step, flows, (*host, 20_000 + port, *service), *end)
            }
            Self::Crowd(six, crowd, n) => {
                use_v6(family.of(*six));
                (0..*n).map(|n| crowd.frame(n)).collect()
            }
            Self::Sweep => vec![Event::Sweep],
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

/// What speaks first, then second, to whom.
fn talk(
    step: usize,
    flows: &[FlowEntry],
    (host, port, service): (usize, u16, usize),
    end: usize,
) -> Vec<Event> {
    let (client, vip) = (End(ip(HOSTS[host]), port), End(ip(VIP), PORTS[service]));
    let datagrams = is_udp(PORTS[service]);
    let key = |flow: &&FlowEntry| {
        (address(flow.saddr), flow.sport) == (client.0, port.to_be())
            && (address(flow.daddr), flow.dport) == (vip.0, vip.1.to_be())
            && flow.proto == if datagrams { 17 } else { 6 }
    };
    let server_speaks = step == 1 || (step > 2 && (step + end) % 2 == 1);
    let (from, to) = match flows.iter().find(key) {
        Some(flow) if server_speaks => (
            End(address(flow.new_daddr), u16::from_be(flow.new_dport)),
            End(address(flow.new_saddr), u16::from_be(flow.new_sport)),
        ),
        None if step != 0 => return Vec::new(),
        _ => (client, vip),
    };
    let body = match (datagrams, step) {
        (true, _) => Body::Udp(true),
        (_, 0) => Body::Tcp("S", 7, 0),
        (_, 1) => Body::Tcp("SA", 7, 8),
        (_, 2) => Body::Tcp("A", 8, 8),
        (..) => Body::Tcp("FA", 8, 8),
    };
    let (mac, ifindex, vlan) = link_of(from.0);
    let onto = if ifindex == OTHER_IFINDEX {
        OTHER_MAC
    } else {
        OUR_MAC
    };
    let mut frame = Frame::new(from, to, body).via(mac).onto(onto);
    frame.vlan = vlan;
    vec![Event::Frame(ifindex, frame.build())]
}

fn is_udp(port: u16) -> bool {
    (53..=59).contains(&port)
}

impl Crowd {
    /// What the nth of them sends.
    fn frame(&self, n: usize) -> Event {
        let port = 30_000 + u16::try_from(n).expect("few");
        let (host, to) = match self {
            Self::Open(host, service) => (*host, PORTS[*service]),
            Self::Ask(host) => (*host, 9),
            Self::Overtake => (0, 53),
        };
        let body = if is_udp(to) || (to == 9 && n.is_multiple_of(2)) {
            Body::Udp(true)
        } else {
            Body::Tcp("S", 7, 0)
        };
        let from = ip(HOSTS[host]);
        let (mac, ifindex, vlan) = link_of(from);
        let onto = if ifindex == OTHER_IFINDEX {
            OTHER_MAC
        } else {
            OUR_MAC
        };
        let mut frame = Frame::new(End(from, port), End(ip(VIP), to), body)
            .via(mac)
            .onto(onto);
        frame.vlan = vlan;
        if matches!(self, Self::Overtake) {
            let whole = frame.payload(&[3; 24]).build();
            let pieces = fragments(&whole, 60_000 + u32::from(port) - 30_000, 16);
            return Event::Frame(ifindex, pieces[1].clone());
        }
        Event::Frame(ifindex, frame.build())
    }
}
