//! What the contract says becomes of a frame, given the flows there are: written down once more, naively. Which server and
//! port a new flow gets is left open; the judge looks that up in the flow.

use super::{
    read::{Content, Ip, Link, Piece, be16, is_link_local, is_special, transport_len},
    write::{Draft, Sent, Way, leave, octets, packet, pseudo, sum},
};
use crate::{
    host::Host,
    support::{frames::raw, model::outer},
};
use onearm_dataplane_common::{
    flow::{FlowEntry, FlowKey, State, hop},
    maps::{
        Addr, EndpointKey, FragmentKey, Leg, LegKey, NOT_A_HOST, NeighbourKey, Owned, Remembered, ServiceKey,
        mode, owned, proto, server,
    },
    tables::{Tables, tick},
};
use std::net::IpAddr;

/// How long later fragments may take.
const PATIENCE_NS: u64 = 5_000_000_000;

/// What must become of a frame.
#[derive(Clone, Debug)]
pub enum Want {
    Pass,
    Drop,
    /// Given to user space, unless a rate is used up.
    Kept,
    Sent(Sent),
    /// Sent, unless a rate is used up.
    Limited(Sent),
    /// Sent by a flow that is there afterwards, or dropped because none could be made. `fresh`: the fragment whose
    /// identification is anew if the source is.
    NewFlow {
        fresh: Option<(Ip, Piece)>,
    },
    /// To the service of this packet (protocol, client, port), whose servers answer their clients themselves.
    Joined(Ip, u8, (IpAddr, u16), u16),
    /// By this flow, with an identification of ours if the source changes.
    Renamed(Box<FlowEntry>, Ip, Piece),
}

/// A frame before it is judged.
pub struct Scene<'s> {
    pub host: &'s Host,
    pub leased: bool,
    pub flows: &'s [FlowEntry],
    pub frame: &'s [u8],
    pub link: Link,
    pub leg: Leg,
}

/// The flow of a packet.
pub fn flow_of(
    flows: &[FlowEntry],
    protocol: u8,
    from: IpAddr,
    to: IpAddr,
    ports: (u16, u16),
) -> Option<FlowEntry> {
    let key = FlowKey::new(protocol, raw(from), ports.0.to_be(), raw(to), ports.1.to_be());
    flows.iter().find(|flow| flow.key() == key).copied()
}

pub fn address(addr: Addr) -> IpAddr {
    IpAddr::from(addr.bytes()).to_canonical()
}

const TCP_SYN: u8 = 2;
const TCP_RST: u8 = 4;
const TCP_ACK: u8 = 16;

/// The flow is but a server remembered.
pub fn is_direct(flow: &FlowEntry) -> bool {
    flow.mode() >= mode::DSR
}

/// The mode of a service for a client.
pub fn mode_for(host: &Host, index: u32, client: IpAddr) -> u8 {
    let service = host.service(0, index).expect("a service");
    let rule = host
        .mode_rule(0, index, raw(client))
        .filter(|_| service.mode & mode::RULES != 0);
    rule.map_or(service.mode, |rule| u8::try_from(rule).expect("a mode")) & mode::MASK
}

fn is_opening(flags: u8) -> bool {
    flags & 0x17 == TCP_SYN
}

/// What must become of a frame that came by an interface.
pub fn expect(host: &Host, leased: bool, flows: &[FlowEntry], frame: &[u8], ifindex: u32) -> Want {
    let Some(link) = Link::read(frame, ifindex) else {
        return Want::Pass;
    };
    let key = LegKey {
        ifindex,
        vlan: link.vlan,
        _pad: 0,
    };
    let Some(leg) = host.leg(&key).copied() else {
        return Want::Pass;
    };
    if link.from[0] & 1 != 0 {
        return Want::Pass;
    }
    let scene = Scene {
        host,
        leased,
        flows,
        frame,
        link,
        leg,
    };
    let ours = link.to == leg.mac;
    match link.kind {
        0x0806 if ours || link.to == [0xff; 6] => scene.arp(),
        0x0800 if ours => scene.ip(false),
        0x86dd if ours || link.to[..2] == [0x33, 0x33] => scene.six(ours),
        _ => Want::Pass,
    }
}

impl Scene<'_> {
    fn owned(&self, addr: IpAddr) -> Option<Owned> {
        self.host.owned(0, raw(addr))
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        [self.leg.addr, self.leg.addr6, self.leg.link_local].contains(&raw(addr))
    }

    fn arp(&self) -> Want {
        let Some(request) = self.frame.get(self.link.l3..self.link.l3 + 28) else {
            return Want::Pass;
        };
        if request[..6] != [0, 1, 8, 0, 6, 4] {
            return Want::Pass;
        }
        let (sender_mac, sender, target) = (
            &request[8..14],
            super::read::address(&request[14..18]),
            super::read::address(&request[24..28]),
        );
        if self.owned(sender).is_some() {
            return if self.leased && *sender_mac != self.leg.mac {
                Want::Drop
            } else {
                Want::Pass
            };
        }
        let asked = be16(request, 6) == 1 && self.owned(target).is_some_and(|o| o.leg == self.leg.id);
        if !asked {
            return Want::Pass;
        }
        if sender_mac[0] & 1 != 0 || (is_special(sender) && octets(sender) != [0; 4]) {
            return Want::Drop;
        }
        if !self.leased {
            return Want::Pass;
        }
        let mut answer = Draft::new(self.frame.to_vec());
        answer.write(self.link.l3 + 6, &[0, 2]);
        answer.write(
            self.link.l3 + 8,
            &[&self.leg.mac[..], &request[24..28], sender_mac, &request[14..18]].concat(),
        );
        Want::Sent(answer.leave(&self.link, &self.back()))
    }

    /// To where the frame came from.
    fn back(&self) -> Way {
        Way {
            from: self.leg.mac,
            to: self.link.from,
            vlan: self.link.vlan,
            ifindex: self.link.ifindex,
        }
    }

    fn six(&self, ours: bool) -> Want {
        let broken = if ours { Want::Drop } else { Want::Pass };
        let l3 = self.link.l3;
        let Some(header) = self.frame.get(l3..l3 + 40) else {
            return broken;
        };
        let len = usize::from(be16(header, 4));
        let whole = header[0] >> 4 == 6 && l3 + 40 + len <= self.frame.len();
        if whole && header[6] == 58 && len >= 24 && matches!(self.frame[l3 + 40], 135 | 136) {
            return self.nd(header, len);
        }
        if ours { self.ip(true) } else { Want::Pass }
    }

    fn nd(&self, header: &[u8], len: usize) -> Want {
        let l4 = self.link.l3 + 40;
        let message = &self.frame[l4..l4 + len];
        let (from, to, target) = (
            super::read::address(&header[8..24]),
            super::read::address(&header[24..40]),
            super::read::address(&message[8..24]),
        );
        let asks = message[0] == 135;
        let claims = self.owned(from).is_some() || (!asks && self.owned(target).is_some());
        if claims {
            let heard = self.leased && self.link.from != self.leg.mac;
            return if header[7] != 255 || heard {
                Want::Drop
            } else {
                Want::Pass
            };
        }
        let Some(owner) = self.owned(target).filter(|o| asks && o.leg == self.leg.id) else {
            return Want::Pass;
        };
        let mut group = octets("ff02::1:ff00:0".parse().expect("group"));
        group[13..].copy_from_slice(&octets(target)[13..]);
        let to_group = octets(to) == group;
        if !to_group && to != target {
            return Want::Pass;
        }
        let probe = from.is_unspecified();
        let mut options = &message[24..];
        let mut sane = header[7] == 255 && message[1] == 0 && len <= 64 && len.is_multiple_of(8);
        sane &= if probe { to_group } else { !is_special(from) };
        sane &= (pseudo(from, to, 58, len) + sum(message)).is_multiple_of(0xffff);
        while sane && !options.is_empty() {
            let units = usize::from(options[1]) * 8;
            sane = units != 0 && units <= options.len() && !(probe && options[0] == 1);
            options = options.get(units..).unwrap_or_default();
        }
        if !sane {
            return Want::Drop;
        }
        if !self.leased {
            return Want::Pass;
        }
        let router = if owner.kinds & owned::GATEWAY != 0 {
            0x80
        } else {
            0
        };
        let solicited = if probe { 0 } else { 0x40 };
        let mut body = vec![136, 0, 0, 0, router | solicited | 0x20, 0, 0, 0];
        body.extend(octets(target));
        body.extend([2, 1]);
        body.extend(self.leg.mac);
        let all_nodes = "ff02::1".parse().expect("group");
        let mut answer = self.frame[..self.link.l3].to_vec();
        let mut way = self.back();
        if probe {
            way.to = [0x33, 0x33, 0, 0, 0, 1];
            if self.link.l3 == 18 {
                answer[14..16].copy_from_slice(&self.link.vlan.to_be_bytes());
            }
        }
        let told = if probe { all_nodes } else { from };
        let mut ip = packet(target, told, 58, &body, 2);
        ip[7] = 255;
        answer.extend(ip);
        Want::Sent(leave(&answer, &self.link, &way))
    }

    fn ip(&self, v6: bool) -> Want {
        let Some(ip) = Ip::read(self.frame, self.link.l3, v6) else {
            return Want::Drop;
        };
        match ip.content {
            Content::Fragment => self.fragment(&ip),
            Content::Ports(from, to) => {
                if v6 && ip.proto == 17 && be16(self.frame, ip.l4 + 6) == 0 {
                    return Want::Drop;
                }
                match flow_of(self.flows, ip.proto, ip.from, ip.to, (from, to)) {
                    Some(flow) => self.known(&ip, &flow),
                    None => self.miss(&ip, true, None),
                }
            }
            Content::Broken | Content::Other => self.miss(&ip, true, None),
        }
    }

    /// A packet of a flow.
    fn known(&self, ip: &Ip, flow: &FlowEntry) -> Want {
        if !self.leased {
            return self.relay(ip);
        }
        if is_direct(flow) {
            return self.remembered(ip, flow);
        }
        if ip.ttl <= 1 {
            return self.time_exceeded(ip);
        }
        let flags = ip.flags(self.frame);
        let gone = !flow.is_reply()
            && (self.host.server(u32::from(flow.server))).is_some_and(|s| s.flags & server::RESETS != 0);
        if !flow.is_reply() && ip.proto == 6 && is_opening(flags) {
            let kept = flow.state() == State::Established && !gone && !self.is_overdue(flow);
            return if kept {
                self.by(ip, flow)
            } else {
                Want::NewFlow { fresh: None }
            };
        }
        if gone && ip.proto == 17 {
            return self.miss(ip, false, None);
        }
        if gone && flags & TCP_RST == 0 {
            return Want::Sent(self.reset(ip));
        }
        self.by(ip, flow)
    }

    /// A packet of a flow whose server answers its client itself.
    fn remembered(&self, ip: &Ip, flow: &FlowEntry) -> Want {
        if flow.mode() == mode::L3_DSR && ip.ttl <= 1 {
            return self.time_exceeded(ip);
        }
        let up = self
            .host
            .server(u32::from(flow.server))
            .is_some_and(|s| s.flags & server::UP != 0);
        let over = flow.state() != State::Established || self.is_overdue(flow);
        if !up || (ip.proto == 6 && is_opening(ip.flags(self.frame)) && over) {
            return self.miss(ip, false, None);
        }
        self.by(ip, flow)
    }

    fn is_overdue(&self, flow: &FlowEntry) -> bool {
        let same = self.flows.iter().filter(|f| f.incarnation == flow.incarnation);
        let seen = same.map(|f| f.last_seen).max().unwrap_or(0);
        tick(self.host.now) - seen > flow.idle_ticks
    }

    /// Translated by a flow.
    fn by(&self, ip: &Ip, flow: &FlowEntry) -> Want {
        translated(self.host, self.frame, &self.link, &self.leg, ip, flow, None)
            .map_or(Want::Drop, Want::Sent)
    }

    /// A packet without a flow. `report`: an ICMP error may still be about one.
    fn miss(&self, ip: &Ip, report: bool, fresh: Option<Piece>) -> Want {
        let Some(_) = self.owned(ip.to) else {
            let stays = self.stays(ip);
            if !stays && report && ip.content == Content::Other && self.reports(ip) {
                return self.error(ip);
            }
            if stays || self.host.server_net(0, raw(ip.from)).is_none() {
                return Want::Pass;
            }
            return self.transit(ip, fresh.is_some());
        };
        if self.is_bad_source(ip) {
            return Want::Drop;
        }
        if !self.leased {
            return self.relay(ip);
        }
        let ports = match ip.content {
            Content::Ports(_, to) => to,
            Content::Fragment if fresh.is_some() && transport_len(ip.proto).is_some() => {
                be16(self.frame, ip.l4 + 2)
            }
            Content::Fragment | Content::Broken => return Want::Drop,
            Content::Other => return self.message(ip, report),
        };
        self.open(ip, ports, fresh)
    }

    /// To an owned address, neither TCP nor UDP.
    fn message(&self, ip: &Ip, report: bool) -> Want {
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

    /// TCP or UDP without a flow, to an owned address.
    fn open(&self, ip: &Ip, port: u16, fresh: Option<Piece>) -> Want {
        let opening = ip.proto == 17 || is_opening(ip.flags(self.frame));
        let key = ServiceKey {
            slot: 0,
            proto: ip.proto,
            addr: raw(ip.to).bytes(),
            port: port.to_be_bytes(),
        };
        if let Some(index) = self.host.service_index(&key) {
            let mode = mode_for(self.host, index, ip.from);
            return match (opening || mode >= mode::DSR, ip.ttl) {
                (false, _) => Want::Drop,
                (true, ..=1) if mode != mode::DSR => self.time_exceeded(ip),
                (true, _) => Want::NewFlow {
                    fresh: fresh.map(|piece| (*ip, piece)),
                },
            };
        }
        let for_answers = self
            .host
            .snat_range(0, raw(ip.to))
            .is_some_and(|r| (r.first..=r.last).contains(&port));
        if for_answers || !opening {
            return Want::Drop;
        }
        Want::Limited(if ip.proto == 6 {
            self.reset(ip)
        } else {
            let port = if ip.v6 { (1, 4) } else { (3, 3) };
            self.tell(ip, ip.to, port)
        })
    }

    fn stays(&self, ip: &Ip) -> bool {
        self.is_own(ip.to) || is_special(ip.to) || is_link_local(ip.from) || is_link_local(ip.to)
    }

    fn is_bad_source(&self, ip: &Ip) -> bool {
        is_special(ip.from)
            || self.is_own(ip.from)
            || self.owned(ip.from).is_some()
            || self.host.connected(0, raw(ip.from)) == NOT_A_HOST
    }

    /// An ICMP error by its type.
    fn reports(&self, ip: &Ip) -> bool {
        let errors: &[u8] = if ip.v6 { &[1, 2, 3, 4] } else { &[3, 11, 12] };
        ip.proto == icmp(ip.v6) && self.frame.get(ip.l4 + 7).is_some() && errors.contains(&self.frame[ip.l4])
    }

    fn relay(&self, ip: &Ip) -> Want {
        let peer = self.leg.peer_mac;
        let known = peer != [0; 6] && self.host.node().is_some_and(|node| node.relay_to_peer != 0);
        if self.link.from == peer || !known || ip.ttl <= 1 {
            return Want::Drop;
        }
        let way = Way {
            to: peer,
            ..self.back()
        };
        Want::Sent(self.routed(ip, &way))
    }

    fn routed(&self, ip: &Ip, way: &Way) -> Sent {
        let mut draft = Draft::new(self.frame.to_vec());
        draft.readdress(ip, (ip.from, ip.to), ip.ttl - 1);
        draft.leave(&self.link, way)
    }

    fn transit(&self, ip: &Ip, first: bool) -> Want {
        let Some(route) = self.host.route(raw(ip.to)) else {
            return Want::Drop;
        };
        if route.leg == onearm_dataplane_common::maps::LOCAL_LEG {
            return Want::Pass;
        }
        if self.is_bad_source(ip) {
            return Want::Drop;
        }
        if !self.leased {
            return self.relay(ip);
        }
        if ip.content == Content::Broken {
            return Want::Drop;
        }
        if matches!(ip.content, Content::Ports(..)) || (first && transport_len(ip.proto).is_some()) {
            let opening = ip.proto == 6 && is_opening(ip.flags(self.frame));
            let port = be16(self.frame, ip.l4);
            if !opening && self.is_endpoint(ip.proto, ip.from, port) && !self.host.direct(0, raw(ip.to)) {
                return Want::Drop;
            }
        }
        if ip.ttl <= 1 {
            return self.time_exceeded(ip);
        }
        match way(self.host, &self.leg, hop::ROUTE, ip.to) {
            Some(way) => Want::Sent(self.routed(ip, &way)),
            None => Want::Drop,
        }
    }

    fn is_endpoint(&self, protocol: u8, addr: IpAddr, port: u16) -> bool {
        self.host.endpoint(&EndpointKey {
            addr: raw(addr),
            port: port.to_be(),
            proto: protocol,
            slot: 0,
        })
    }

    fn time_exceeded(&self, ip: &Ip) -> Want {
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
        Want::Limited(self.tell(ip, address(from), if ip.v6 { (3, 0) } else { (11, 0) }))
    }

    /// An ICMP error of ours about the packet: its headers and eight bytes, or its headers if there is less; 136 bytes at
    /// most.
    fn tell(&self, ip: &Ip, from: IpAddr, (kind, code): (u8, u8)) -> Sent {
        let quoted = if ip.l4 + 8 <= ip.end { ip.l4 + 8 } else { ip.l4 }.min(ip.l3 + 136);
        let body = [&[kind, code, 0, 0, 0, 0, 0, 0], &self.frame[ip.l3..quoted]].concat();
        let mut frame = self.frame[..self.link.l3].to_vec();
        if self.link.l3 == 18 {
            frame[14..16].copy_from_slice(&self.link.vlan.to_be_bytes());
        }
        frame.extend(packet(from, ip.from, icmp(ip.v6), &body, 2));
        leave(&frame, &self.link, &self.way_back(ip))
    }

    /// A RST in answer to a segment (RFC 9293 §3.5.2).
    fn reset(&self, ip: &Ip) -> Sent {
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

    /// An ICMP error that may be about a flow's packet.
    fn error(&self, ip: &Ip) -> Want {
        let Some(quote) = ip.quote(self.frame).filter(|quote| quote.from == ip.to) else {
            return self.about_nothing(ip, None);
        };
        let Content::Ports(from, to) = quote.content else {
            unreachable!("a quote has ports")
        };
        let Some(flow) = flow_of(self.flows, quote.proto, quote.to, quote.from, (to, from)) else {
            if self.owned(ip.to).is_some() && !self.is_bad_source(ip) && self.leased {
                let mut client = *ip;
                client.from = quote.to;
                if self.is_bad_source(&client) {
                    return Want::Drop;
                }
                return self.join(ip, quote.proto, (quote.to, to), from, false);
            }
            return self.about_nothing(ip, Some((quote.proto, quote.to, to)));
        };
        if self.is_bad_source(ip) {
            return Want::Drop;
        }
        if !self.leased {
            return self.relay(ip);
        }
        let Some(way) = way(self.host, &self.leg, flow.hop, address(flow.new_daddr)) else {
            return Want::Drop;
        };
        if ip.ttl <= 1 && flow.mode() != mode::DSR {
            return Want::Drop;
        }
        if is_direct(&flow) {
            return Want::Sent(carried(self.frame, &self.link, ip, &flow, &way));
        }
        let (source, target) = (address(flow.new_daddr), address(flow.new_saddr));
        let mut draft = Draft::new(self.frame.to_vec());
        let whole = |bytes: &[u8], from, to| {
            sum(&bytes[ip.l4..ip.end])
                + if ip.v6 {
                    pseudo(from, to, 58, ip.end - ip.l4)
                } else {
                    0
                }
        };
        let before = whole(&draft.bytes, ip.from, ip.to);
        requote(
            &mut draft,
            &quote,
            (source, target),
            (flow.new_dport, flow.new_sport),
        );
        let from = if flow.new_saddr == flow.saddr {
            ip.from
        } else {
            target
        };
        draft.readdress(ip, (from, source), ip.ttl - 1);
        let covered = whole(&draft.bytes, from, source);
        draft.seal(ip.l4 + 2, before, covered);
        Want::Sent(draft.leave(&self.link, &way))
    }

    fn about_nothing(&self, ip: &Ip, sender: Option<(u8, IpAddr, u16)>) -> Want {
        let balanced = sender.is_some_and(|(protocol, addr, port)| self.is_endpoint(protocol, addr, port));
        let owned = self.owned(ip.to).is_some();
        if owned && !self.leased && !self.is_bad_source(ip) {
            return self.relay(ip);
        }
        if balanced || owned {
            return Want::Drop;
        }
        self.miss(ip, false, None)
    }

    /// To an owned address and about a connection that is not remembered: servers that answer themselves get it all the
    /// same.
    fn join(&self, ip: &Ip, protocol: u8, client: (IpAddr, u16), port: u16, told: bool) -> Want {
        let key = ServiceKey {
            slot: 0,
            proto: protocol,
            addr: raw(ip.to).bytes(),
            port: port.to_be_bytes(),
        };
        match self
            .host
            .service_index(&key)
            .map(|index| mode_for(self.host, index, client.0))
        {
            Some(mode::L3_DSR) if ip.ttl <= 1 && told => self.time_exceeded(ip),
            Some(mode::L3_DSR) if ip.ttl <= 1 => Want::Drop,
            Some(mode) if mode >= mode::DSR => Want::Joined(*ip, protocol, client, port),
            _ => Want::Drop,
        }
    }

    fn fragment(&self, ip: &Ip) -> Want {
        if self.stays(ip) {
            return Want::Pass;
        }
        let ours = self.owned(ip.to).is_some() || self.host.server_net(0, raw(ip.from)).is_some();
        let refused = || if ours { Want::Drop } else { Want::Pass };
        let Some(piece) = ip.piece(self.frame) else {
            return refused();
        };
        let bytes = ip.end.saturating_sub(piece.at);
        if bytes == 0 || piece.offset + bytes > 65_535 || (piece.more && !bytes.is_multiple_of(8)) {
            return refused();
        }
        if piece.offset != 0 {
            let known = remembered(self.host, ip, &piece);
            return match known.filter(|first| self.host.now - first.time < PATIENCE_NS) {
                Some(first)
                    if transport_len(protocol(&first)).is_none_or(|header| piece.offset >= header) =>
                {
                    self.later(ip, &piece, &first)
                }
                Some(_) => refused(),
                None if !ours => Want::Pass,
                None if self.is_bad_source(ip) => Want::Drop,
                None if !self.leased => self.relay(ip),
                None => Want::Kept,
            };
        }
        let mut head = *ip;
        (head.proto, head.l4) = (piece.proto, piece.at);
        let Some(header) = transport_len(piece.proto) else {
            let behind = ip.v6 && [0, 43, 44, 51, 60].contains(&piece.proto);
            return if behind {
                refused()
            } else {
                self.miss(&head, true, None)
            };
        };
        let missing =
            ip.v6 && piece.proto == 17 && piece.at + 8 <= ip.end && be16(self.frame, piece.at + 6) == 0;
        if piece.at + header > ip.end || missing {
            return refused();
        }
        let ports = (be16(self.frame, piece.at), be16(self.frame, piece.at + 2));
        let Some(flow) = flow_of(self.flows, piece.proto, ip.from, ip.to, ports) else {
            return self.miss(&head, true, Some(piece));
        };
        if self.must_move(&flow) {
            return self.miss(&head, true, Some(piece));
        }
        if !self.leased {
            return self.relay(&head);
        }
        if ip.ttl <= 1 && flow.mode() != mode::DSR {
            return self.time_exceeded(&head);
        }
        Want::Renamed(Box::new(flow), head, piece)
    }

    /// The server of a flow is down, and datagrams are to go elsewhere.
    fn must_move(&self, flow: &FlowEntry) -> bool {
        let flags = self
            .host
            .server(u32::from(flow.server))
            .map_or(0, |server| server.flags);
        if is_direct(flow) {
            return flags & server::UP == 0;
        }
        !flow.is_reply() && flow.proto == 17 && flags & server::RESETS != 0
    }

    /// A later fragment whose first one belongs to no flow.
    fn orphan(&self, ip: &Ip, protocol: u8, ports: (u16, u16)) -> Want {
        let mut bare = *ip;
        bare.proto = protocol;
        if self.owned(ip.to).is_none() {
            let opening = transport_len(protocol).is_none();
            let answers =
                !opening && self.is_endpoint(protocol, ip.from, ports.0) && !self.host.direct(0, raw(ip.to));
            return match self.miss(&bare, true, None) {
                Want::Sent(_) | Want::Limited(_) if answers && self.leased => Want::Drop,
                want => want,
            };
        }
        if self.is_bad_source(ip) {
            return Want::Drop;
        }
        if !self.leased {
            return self.relay(ip);
        }
        if transport_len(protocol).is_none() {
            return Want::Drop;
        }
        self.join(&bare, protocol, (ip.from, ports.0), ports.1, true)
    }

    fn later(&self, ip: &Ip, piece: &Piece, first: &Remembered) -> Want {
        let ports = (u16::from_be(first.sport), u16::from_be(first.dport));
        let Some(flow) = flow_of(self.flows, protocol(first), ip.from, ip.to, ports) else {
            return self.orphan(ip, protocol(first), ports);
        };
        if !self.leased {
            return self.relay(ip);
        }
        if ip.ttl <= 1 && flow.mode() == mode::L3_DSR {
            return self.time_exceeded(ip);
        }
        if ip.ttl <= 1 && !is_direct(&flow) {
            return Want::Drop;
        }
        let Some(way) = way(self.host, &self.leg, flow.hop, address(flow.new_daddr)) else {
            return Want::Drop;
        };
        if is_direct(&flow) {
            return Want::Sent(carried(self.frame, &self.link, ip, &flow, &way));
        }
        let mut draft = Draft::new(self.frame.to_vec());
        if flow.new_saddr != flow.saddr {
            rename(&mut draft, ip, piece, identification(ip.v6, first));
        }
        draft.readdress(ip, (address(flow.new_saddr), address(flow.new_daddr)), ip.ttl - 1);
        Want::Sent(draft.leave(&self.link, &way))
    }
}

/// What the program remembers of a datagram's first fragment.
pub fn remembered(host: &Host, ip: &Ip, piece: &Piece) -> Option<Remembered> {
    let key = FragmentKey {
        saddr: raw(ip.from),
        daddr: raw(ip.to),
        id: if ip.v6 {
            piece.id.to_be()
        } else {
            u32::from(u16::try_from(piece.id).expect("16 bits").to_be())
        },
        proto: u32::from(if ip.v6 { 44 } else { piece.proto }),
    };
    host.fragment(&key)
}

fn protocol(first: &Remembered) -> u8 {
    u8::try_from(first.proto).expect("a protocol")
}

/// The identification the datagram leaves with.
pub fn identification(v6: bool, first: &Remembered) -> u32 {
    if v6 {
        u32::from_be(first.id)
    } else {
        u32::from(u16::from_be(u16::try_from(first.id).expect("16 bits")))
    }
}

fn icmp(v6: bool) -> u8 {
    if v6 { proto::ICMPV6 } else { proto::ICMP }
}

/// Another identification.
pub fn rename(draft: &mut Draft, ip: &Ip, piece: &Piece, id: u32) {
    if ip.v6 {
        draft.write(piece.at - 4, &id.to_be_bytes());
        return;
    }
    let header = |bytes: &[u8]| sum(&bytes[ip.l3..ip.l3 + usize::from(bytes[ip.l3] & 15) * 4]);
    let before = header(&draft.bytes);
    draft.write(ip.l3 + 4, &u16::try_from(id).expect("16 bits").to_be_bytes());
    draft.seal(ip.l3 + 10, before, header(&draft.bytes));
}

/// The quoted packet of an ICMP error between other ends; ports as they stand in the packet.
fn requote(draft: &mut Draft, quote: &Ip, (from, to): (IpAddr, IpAddr), ports: (u16, u16)) {
    let (l3, l4) = (quote.l3, quote.l4);
    let at = l4 + if quote.proto == 17 { 6 } else { 16 };
    let there = at + 2 <= quote.end;
    let part = |bytes: &[u8], from, to| {
        pseudo(from, to, 0, 0) + sum(&bytes[l4..l4 + 4]) + if there { sum(&bytes[at..at + 2]) } else { 0 }
    };
    let before = part(&draft.bytes, quote.from, quote.to);
    let addresses = [octets(from), octets(to)].concat();
    if quote.v6 {
        draft.write(l3 + 8, &addresses);
    } else {
        let head = |bytes: &[u8]| sum(&bytes[l3..l4]);
        let before = head(&draft.bytes);
        draft.write(l3 + 12, &addresses);
        draft.seal(l3 + 10, before, head(&draft.bytes));
    }
    draft.write(l4, &ports.0.to_ne_bytes());
    draft.write(l4 + 2, &ports.1.to_ne_bytes());
    if there {
        let covered = part(&draft.bytes, from, to);
        if quote.proto == 17 {
            draft.seal_udp(at, before, covered);
        } else {
            draft.seal(at, before, covered);
        }
    }
}

/// The way of a flow's packets, or none while the neighbour is not known.
pub fn way(host: &Host, leg: &Leg, stored: u32, to: IpAddr) -> Option<Way> {
    let found = |mac, vlan, ifindex| {
        let key = LegKey {
            ifindex,
            vlan,
            _pad: 0,
        };
        Way {
            from: host.leg(&key).expect("a leg").mac,
            to: mac,
            vlan,
            ifindex,
        }
    };
    let mut index = stored;
    if stored == hop::ROUTE {
        let (gateway, leg) = host
            .route(raw(to))
            .map_or((Addr::NONE, u32::from(leg.id)), |route| {
                (route.gateway, route.leg)
            });
        let addr = if gateway.is_none() { raw(to) } else { gateway };
        index = host.neighbour(&NeighbourKey { addr, leg })?;
    } else if stored & hop::LAST != 0 {
        let last = host.last_hop(stored & !hop::LAST).expect("learned");
        return Some(found(last.mac, last.vlan, last.ifindex));
    }
    let next = host.next_hop(index).filter(|next| next.valid != 0)?;
    Some(found(next.mac, next.vlan, next.ifindex))
}

/// The frame as a server gets it that answers its client itself: as it is, or in a tunnel.
fn carried(frame: &[u8], link: &Link, ip: &Ip, flow: &FlowEntry, way: &Way) -> Sent {
    if flow.mode() == mode::DSR {
        return leave(frame, link, way);
    }
    let mut draft = Draft::new(frame.to_vec());
    draft.readdress(ip, (ip.from, ip.to), ip.ttl - 1);
    // The outer header begins anew: no tag but the way's.
    let nowhere = Link {
        ifindex: u32::MAX,
        ..*link
    };
    let mut sent = draft.leave(&nowhere, way);
    let (spread, port) = (u16::from_be(flow.new_sport), u16::from_be(flow.new_dport));
    let udp = (port != 0).then_some((spread, port));
    let inner = sent.bytes.len();
    sent.bytes = outer(
        &sent.bytes,
        address(flow.new_saddr),
        address(flow.new_daddr),
        udp,
        spread,
    );
    let grown = sent.bytes.len() - inner;
    sent.loose.iter_mut().for_each(|at| *at += grown);
    let l3 = inner - (frame.len() - link.l3);
    // Its identification is ours unless it may not be fragmented.
    sent.renamed = (!ip.v6 && sent.bytes[l3 + 6] & 0x40 == 0).then_some(l3);
    sent.redirect = way.ifindex != link.ifindex;
    sent
}

/// The frame as a flow translates it. `id`: another identification, at a fragment.
pub fn translated(
    host: &Host,
    frame: &[u8],
    link: &Link,
    leg: &Leg,
    ip: &Ip,
    flow: &FlowEntry,
    id: Option<(Piece, u32)>,
) -> Option<Sent> {
    let way = way(host, leg, flow.hop, address(flow.new_daddr))?;
    let new = (address(flow.new_saddr), address(flow.new_daddr));
    if is_direct(flow) {
        return Some(carried(frame, link, ip, flow, &way));
    }
    let mut draft = Draft::new(frame.to_vec());
    if let Some((piece, id)) = id {
        rename(&mut draft, ip, &piece, id);
    }
    let ports = (u16::from_be(flow.new_sport), u16::from_be(flow.new_dport));
    draft.renumber(ip, ip.l4, ports, new);
    draft.readdress(ip, new, ip.ttl - 1);
    Some(draft.leave(link, &way))
}
