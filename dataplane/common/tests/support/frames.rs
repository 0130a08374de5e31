//! Frames built with etherparse.

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder, TcpOptionElement, VlanId,
};
use onearm_dataplane_common::addr::Addr;
use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

pub type Mac = [u8; 6];

/// One end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End(pub IpAddr, pub u16);

/// `a.b.c.d:port`.
pub fn end(text: &str) -> End {
    let socket: std::net::SocketAddrV4 = text.parse().expect("address:port");
    End(of_family(*socket.ip()), socket.port())
}

thread_local! {
    static V6: Cell<bool> = const { Cell::new(false) };
}

/// From now on addresses of this thread's cases are IPv6 ones, made from the IPv4 ones they are written as.
pub fn use_v6(v6: bool) {
    V6.set(v6);
}

/// Whether they are.
pub fn v6() -> bool {
    V6.get()
}

/// The address that plays the part of an IPv4 one: itself, or one of `2001:db8::/96`, or of the same special kind.
pub fn of_family(addr: Ipv4Addr) -> IpAddr {
    if !v6() {
        return addr.into();
    }
    let [first, .., last] = addr.octets();
    let last = u16::from(last);
    match first {
        0 => Ipv6Addr::UNSPECIFIED.into(),
        127 => Ipv6Addr::LOCALHOST.into(),
        224.. => Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, last).into(),
        _ => Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(u32::from(addr))).into(),
    }
}

pub fn ip(text: &str) -> IpAddr {
    of_family(text.parse().expect("address"))
}

/// Address as map types hold it.
pub fn raw(addr: IpAddr) -> Addr {
    match addr {
        IpAddr::V4(addr) => Addr::from_bytes(addr.to_ipv6_mapped().octets()),
        IpAddr::V6(addr) => Addr::from_bytes(addr.octets()),
    }
}

/// Everything a test may want to vary.
#[derive(Clone, Debug)]
pub struct Frame {
    pub from_mac: Mac,
    pub to_mac: Mac,
    pub vlan: Option<u16>,
    pub from: End,
    pub to: End,
    pub ttl: u8,
    pub options: Vec<u8>,
    /// TCP options; none: the largest segment in a SYN.
    pub tcp_options: Vec<u8>,
    pub payload: Vec<u8>,
    pub padding: usize,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Flags as letters of `SAFR`, sequence, acknowledgement.
    Tcp(&'static str, u32, u32),
    /// With a checksum or without.
    Udp(bool),
    Echo(u16, u16),
}

pub fn tcp(from: &str, to: &str, flags: &'static str, seq: u32, ack: u32) -> Frame {
    Frame::new(end(from), end(to), Body::Tcp(flags, seq, ack))
}

pub fn udp(from: &str, to: &str) -> Frame {
    Frame::new(end(from), end(to), Body::Udp(true))
}

pub fn echo(from: &str, to: &str) -> Frame {
    Frame::new(End(ip(from), 0), End(ip(to), 0), Body::Echo(77, 5))
}

impl Frame {
    /// From the router to the node, TTL 64, no payload.
    pub fn new(from: End, to: End, body: Body) -> Self {
        Self {
            from_mac: super::setup::ROUTER_MAC,
            to_mac: super::setup::OUR_MAC,
            vlan: None,
            from,
            to,
            ttl: 64,
            options: Vec::new(),
            tcp_options: Vec::new(),
            payload: Vec::new(),
            padding: 0,
            body,
        }
    }
    pub fn via(mut self, from_mac: Mac) -> Self {
        self.from_mac = from_mac;
        self
    }
    pub fn onto(mut self, to_mac: Mac) -> Self {
        self.to_mac = to_mac;
        self
    }
    pub fn vlan(mut self, vlan: u16) -> Self {
        self.vlan = Some(vlan);
        self
    }
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }
    /// IP options, a multiple of 4 bytes; with IPv6, two destination options headers.
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }
    /// TCP options, at most 40 bytes.
    pub fn tcp_options(mut self, options: &[u8]) -> Self {
        self.tcp_options = options.to_vec();
        self
    }
    /// Bytes after the IP packet.
    pub fn padding(mut self, padding: usize) -> Self {
        self.padding = padding;
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let ip = match (self.from.0, self.to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let (from, to) = (from.octets(), to.octets());
                let mut header =
                    etherparse::Ipv4Header::new(0, self.ttl, etherparse::IpNumber::TCP, from, to)
                        .expect("header");
                header.identification = 0x1234;
                header.options = self.options.as_slice().try_into().expect("options");
                etherparse::IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = etherparse::Ipv6Header {
                    traffic_class: 0x20,
                    flow_label: 0x12345.try_into().expect("20 bits"),
                    payload_length: 0,
                    next_header: etherparse::IpNumber::TCP,
                    hop_limit: self.ttl,
                    source: from.octets(),
                    destination: to.octets(),
                };
                let mut extensions = etherparse::Ipv6Extensions::default();
                if !self.options.is_empty() {
                    // PadN, six bytes: the smallest header; then one of twice the size.
                    let small =
                        etherparse::Ipv6RawExtHeader::new_raw(etherparse::IpNumber::TCP, &[1, 4, 0, 0, 0, 0]);
                    let large = etherparse::Ipv6RawExtHeader::new_raw(
                        etherparse::IpNumber::TCP,
                        &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                    );
                    extensions.hop_by_hop_options = Some(small.expect("length"));
                    extensions.destination_options = Some(large.expect("length"));
                }
                etherparse::IpHeaders::Ipv6(header, extensions)
            }
            mixed => panic!("mixed families {mixed:?}"),
        };
        let v6 = self.from.0.is_ipv6();
        let link = PacketBuilder::ethernet2(self.from_mac, self.to_mac);
        let step = match self.vlan {
            Some(id) => link.single_vlan(VlanId::try_new(id).expect("12 bits")).ip(ip),
            None => link.ip(ip),
        };
        let mut out = Vec::new();
        match &self.body {
            Body::Tcp(flags, seq, ack) => {
                let mut b = step.tcp(self.from.1, self.to.1, *seq, 64_000);
                for flag in flags.chars() {
                    b = match flag {
                        'S' => b
                            .syn()
                            .options(&[TcpOptionElement::MaximumSegmentSize(1460)])
                            .expect("room"),
                        'A' => b.ack(*ack),
                        'F' => b.fin(),
                        'R' => b.rst(),
                        other => panic!("flag {other}"),
                    };
                }
                if !self.tcp_options.is_empty() {
                    b = b.options_raw(&self.tcp_options).expect("room");
                }
                b.write(&mut out, &self.payload).expect("write");
            }
            Body::Udp(checksum) => {
                step.udp(self.from.1, self.to.1)
                    .write(&mut out, &self.payload)
                    .expect("write");
                if !checksum {
                    let at = out.len() - self.payload.len() - 2;
                    out[at..at + 2].fill(0);
                }
            }
            Body::Echo(id, seq) => {
                if v6 {
                    step.icmpv6_echo_request(*id, *seq)
                        .write(&mut out, &self.payload)
                        .expect("write");
                } else {
                    step.icmpv4_echo_request(*id, *seq)
                        .write(&mut out, &self.payload)
                        .expect("write");
                }
            }
        }
        out.extend(std::iter::repeat_n(0xa5, self.padding));
        out
    }
}

fn v4_octets(addr: IpAddr) -> [u8; 4] {
    match addr {
        IpAddr::V4(addr) => addr.octets(),
        IpAddr::V6(addr) => panic!("{addr} in an ARP packet"),
    }
}

/// An ARP request.
pub fn arp_request(from_mac: Mac, sender: IpAddr, target: IpAddr, to_mac: Mac) -> Vec<u8> {
    arp(
        ArpOperation::REQUEST,
        (from_mac, sender),
        ([0; 6], target),
        to_mac,
    )
}

/// An ARP packet.
pub fn arp(operation: ArpOperation, sender: (Mac, IpAddr), target: (Mac, IpAddr), to_mac: Mac) -> Vec<u8> {
    let packet = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &sender.0,
        &v4_octets(sender.1),
        &target.0,
        &v4_octets(target.1),
    )
    .expect("lengths");
    let mut out = Vec::new();
    PacketBuilder::ethernet2(sender.0, to_mac)
        .arp(packet)
        .write(&mut out)
        .expect("write");
    out
}
