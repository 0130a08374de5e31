//! The frames of a packet that was drawn.

use super::{
    Between, HOSTS, PORTS, Packet, SERVICES, What,
    headers::{lengthen, options, resolve},
    link_of, modulo,
};
use crate::{
    fuzz::expect::{address, is_direct},
    support::{
        frames::{Body, End, Frame, ip, v6},
        model::{Report, fragments, unfragmented},
        setup::{BROADCAST, OTHER_IFINDEX, OTHER_MAC, OUR_MAC, PEER_MAC, ROUTER, ROUTER_MAC, VIP},
    },
};
use onearm_dataplane_common::flow::FlowEntry;

/// TCP options: the largest segment at even and odd places, twice, too long, behind others, behind the end.
pub const SEGMENTS: [&[u8]; 8] = [
    &[2, 4, 5, 180],
    &[1, 2, 4, 5, 180, 0, 0, 0],
    &[8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 2, 4, 0x23, 0],
    &[2, 4, 0xff, 0xff, 2, 4, 5, 180],
    &[2, 4, 1, 0],
    &[0, 2, 4, 5, 180, 0, 0, 0],
    &[1, 1, 1, 2, 5, 5, 180, 0],
    &[5, 0, 2, 4, 5, 180, 1, 1],
];

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

    pub fn frame(&self, flows: &[FlowEntry]) -> (u32, Vec<u8>) {
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
    pub fn pieces(&self, flows: &[FlowEntry], mut order: u64) -> Vec<(u32, Vec<u8>)> {
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
