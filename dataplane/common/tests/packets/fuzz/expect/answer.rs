//! What the node says itself: echo replies, refusals, ICMP errors of its own.

use super::{Scene, TCP_ACK, TCP_RST, TCP_SYN, Want, address, icmp, way::way};
use crate::{
    fuzz::{
        read::{Ip, be16},
        write::{Draft, Sent, Way, leave, packet, pseudo, sum},
    },
    support::frames::raw,
};
use onearm_dataplane_common::{flow::hop, tables::Tables};
use std::net::IpAddr;

impl Scene<'_> {
    pub(super) fn message(&self, ip: &Ip, report: bool) -> Want {
        if ip.proto != icmp(ip.v6) || ip.l4 + 8 > ip.end {
            return Want::Drop;
        }
        if report && self.reports(ip) {
            return self.error(ip);
        }
        let (ask, reply) = if ip.v6 { (128, 129) } else { (8, 0) };
        if self.frame[ip.l4..ip.l4 + 2] != [ask, 0] {
            return Want::Drop;
        }
        let mut answer = Draft::new(self.frame.to_vec());
        answer.readdress(ip, (ip.to, ip.from), 64);
        let before = sum(&answer.bytes[ip.l4..ip.end]);
        let head = if ip.v6 {
            pseudo(ip.from, ip.to, 58, ip.end - ip.l4)
        } else {
            0
        };
        answer.bytes[ip.l4] = reply;
        let covered = sum(&answer.bytes[ip.l4..ip.end]);
        answer.seal(ip.l4 + 2, head + before, head + covered);
        Want::Sent(answer.leave(&self.link, &self.way_back(ip)))
    }

    pub(super) fn time_exceeded(&self, ip: &Ip) -> Want {
        self.told(ip, if ip.v6 { (3, 0) } else { (11, 0) }, 0)
    }

    /// Too long for its way: IPv4 may be divided, if its sender lets it be; else that is told the bytes it may have.
    /// `frame`: as it is to be divided.
    pub(super) fn too_big(&self, ip: &Ip, most: usize, frame: &[u8]) -> Want {
        let most = u16::try_from(most).expect("an MTU");
        if !ip.v6 && self.frame[ip.l3 + 6] & 0x40 == 0 {
            return self.ask(ip, Want::Divide(most, frame.to_vec()));
        }
        self.told(ip, if ip.v6 { (2, 0) } else { (3, 4) }, u32::from(most))
    }

    /// User space is asked, unless it has asked itself.
    pub(super) fn ask(&self, ip: &Ip, want: Want) -> Want {
        match self.note {
            0 if self.is_bad_source(ip) => Want::Drop,
            0 if !self.leased => self.relay(ip),
            0 => want,
            1 => Want::Pass,
            _ => Want::Drop,
        }
    }

    /// An ICMP error of ours about a packet that is to be forwarded, if there may be one.
    fn told(&self, ip: &Ip, message: (u8, u8), rest: u32) -> Want {
        if !ip.v6 && be16(self.frame, ip.l3 + 6).trailing_zeros() < 13 {
            return Want::Drop;
        }
        if ip.proto == icmp(ip.v6) {
            let kind = self.frame.get(ip.l4).filter(|_| self.frame.len() >= ip.l4 + 8);
            let told = kind.is_some_and(|kind| {
                if ip.v6 {
                    *kind >= 128
                } else {
                    [0, 8].contains(kind)
                }
            });
            if !told {
                return Want::Drop;
            }
        }
        let gateway = self
            .host
            .server_net(0, raw(ip.from))
            .filter(|gateway| !gateway.is_none());
        let own = if ip.v6 { self.leg.addr6 } else { self.leg.addr };
        let from = match self.owned(ip.to) {
            Some(_) => raw(ip.to),
            None => gateway.unwrap_or(own),
        };
        if from.is_none() {
            return Want::Drop;
        }
        Want::Limited(self.tell(ip, address(from), message, rest))
    }

    /// An ICMP error of ours about the packet: its headers and eight bytes, or its headers if there is less; 136 bytes at
    /// most.
    pub(super) fn tell(&self, ip: &Ip, from: IpAddr, (kind, code): (u8, u8), rest: u32) -> Sent {
        let quoted = if ip.l4 + 8 <= ip.end { ip.l4 + 8 } else { ip.l4 }.min(ip.l3 + 136);
        let body = [
            &[kind, code, 0, 0],
            &rest.to_be_bytes()[..],
            &self.frame[ip.l3..quoted],
        ]
        .concat();
        let mut frame = self.frame[..self.link.l3].to_vec();
        if self.link.l3 == 18 {
            frame[14..16].copy_from_slice(&self.link.vlan.to_be_bytes());
        }
        frame.extend(packet(from, ip.from, icmp(ip.v6), &body, 2));
        leave(&frame, &self.link, &self.way_back(ip))
    }

    /// A RST in answer to a segment (RFC 9293 §3.5.2).
    pub(super) fn reset(&self, ip: &Ip) -> Sent {
        let segment = &self.frame[ip.l4..ip.end];
        let number = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().expect("four bytes"));
        let flags = segment[13];
        let data = (ip.end - ip.l4).saturating_sub(usize::from(segment[12] >> 4) * 4);
        let mut body = [&segment[2..4], &segment[..2]].concat();
        if flags & TCP_ACK != 0 {
            body.extend(number(8).to_be_bytes());
            body.extend([0, 0, 0, 0, 0x50, TCP_RST]);
        } else {
            let marks = u32::from(flags & TCP_SYN != 0) + u32::from(flags & 1 != 0);
            let ack = number(4)
                .wrapping_add(marks)
                .wrapping_add(u32::try_from(data).expect("short"));
            body.extend([0; 4]);
            body.extend(ack.to_be_bytes());
            body.extend([0x50, TCP_RST | TCP_ACK]);
        }
        body.extend([0; 6]);
        let mut frame = self.frame[..self.link.l3].to_vec();
        frame.extend(packet(ip.to, ip.from, 6, &body, 16));
        leave(&frame, &self.link, &self.way_back(ip))
    }

    /// To the sender: where the frame came from, unless that is the peer and the sender's own way is known.
    fn way_back(&self, ip: &Ip) -> Way {
        if self.link.from != self.leg.peer_mac {
            return self.back();
        }
        way(self.host, &self.leg, hop::ROUTE, ip.from).unwrap_or_else(|| self.back())
    }
}
