//! Several frames that belong together: connections, and crowds.

use super::{Crowd, HOSTS, PORTS, link_of};
use crate::{
    fuzz::{expect::address, judge::Event},
    support::{
        frames::{Body, End, Frame, ip},
        model::fragments,
        setup::{OTHER_IFINDEX, OTHER_MAC, OUR_MAC, VIP},
    },
};
use onearm_dataplane_common::flow::FlowEntry;

/// What speaks first, then second, to whom.
pub fn talk(
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
    pub fn frame(&self, n: usize) -> Event {
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
