//! Frames built with etherparse.

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder, TcpOptionElement, VlanId,
};
use std::net::Ipv4Addr;

pub type Mac = [u8; 6];

/// One end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End(pub Ipv4Addr, pub u16);

/// `a.b.c.d:port`.
pub fn end(text: &str) -> End {
    let socket: std::net::SocketAddrV4 = text.parse().expect("address:port");
    End(*socket.ip(), socket.port())
}

pub fn ip(text: &str) -> Ipv4Addr {
    text.parse().expect("address")
}

/// Address as map types hold it.
pub fn raw(addr: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(addr.octets())
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
    /// IP options; a multiple of 4 bytes.
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }
    /// Bytes after the IP packet.
    pub fn padding(mut self, padding: usize) -> Self {
        self.padding = padding;
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let mut header = etherparse::Ipv4Header::new(
            0,
            self.ttl,
            etherparse::IpNumber::TCP,
            self.from.0.octets(),
            self.to.0.octets(),
        )
        .expect("header");
        header.identification = 0x1234;
        header.options = self.options.as_slice().try_into().expect("options");
        let ip = etherparse::IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default());
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
                step.icmpv4_echo_request(*id, *seq)
                    .write(&mut out, &self.payload)
                    .expect("write");
            }
        }
        out.extend(std::iter::repeat_n(0xa5, self.padding));
        out
    }
}

/// An ARP request.
pub fn arp_request(from_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr, to_mac: Mac) -> Vec<u8> {
    arp(
        ArpOperation::REQUEST,
        (from_mac, sender),
        ([0; 6], target),
        to_mac,
    )
}

/// An ARP packet.
pub fn arp(
    operation: ArpOperation,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
    to_mac: Mac,
) -> Vec<u8> {
    let packet = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &sender.0,
        &sender.1.octets(),
        &target.0,
        &target.1.octets(),
    )
    .expect("lengths");
    let mut out = Vec::new();
    PacketBuilder::ethernet2(sender.0, to_mac)
        .arp(packet)
        .write(&mut out)
        .expect("write");
    out
}
