//! What the contract says becomes of a frame, given the flows there are: written down once more, naively. Which server and
//! port a new flow gets is left open; the judge looks that up in the flow.

mod answer;
mod error;
mod fragment;
mod resolve;
mod way;

pub use fragment::{identification, remembered};
pub use way::{Role, way};

use super::{
    read::{Content, Ip, Link, Piece, be16, is_link_local, is_special, transport_len},
    write::{Draft, Sent, Way},
};
use crate::{host::Host, support::frames::raw};
use onearm_dataplane_common::{
    flow::{FlowEntry, FlowKey, State, hop, is_reset_by_client},
    maps::{Addr, EndpointKey, Leg, LegKey, NOT_A_HOST, Owned, ServiceKey, mode, proto, server},
    tables::{Tables, tick},
};
use std::net::IpAddr;

/// What must become of a frame.
#[derive(Clone, Debug)]
pub enum Want {
    Pass,
    Drop,
    /// Given to user space until its first fragment has come, unless a rate is used up.
    Kept,
    /// This is given to user space to be fragmented, so many bytes at most, unless a rate is used up.
    Divide(u16, Vec<u8>),
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

/// What must become of a frame that came by an interface. `note`: what user space put before it.
pub fn expect(node: (&Host, bool, &[FlowEntry]), (ifindex, frame, note): (u32, &[u8], u32)) -> Want {
    if Link::read(frame, ifindex).is_some_and(|link| link.kind == 0x88b5) {
        // From outside: nobody else asks user space.
        return Want::Drop;
    }
    Scene::read(node, (ifindex, frame, note)).map_or(Want::Pass, |scene| scene.expect())
}

/// A frame that the kernel sends in the pair's name: with an owned sender, or about an owned target. Adverts are exempt.
pub fn is_of_the_pair(host: &Host, frame: &[u8]) -> bool {
    let Some(link) = Link::read(frame, 0) else {
        return false;
    };
    let owned = |range: std::ops::Range<usize>| {
        let bytes = frame.get(link.l3 + range.start..link.l3 + range.end);
        bytes.is_some_and(|bytes| host.owned(0, raw(super::read::address(bytes))).is_some())
    };
    let holds = |len| frame.len() >= link.l3 + len;
    match link.kind {
        0x0806 => holds(28) && owned(14..18),
        0x0800 => holds(20) && frame[link.l3 + 9] != 112 && owned(12..16),
        0x86dd if holds(40) && frame[link.l3 + 6] != 112 => {
            let tells = holds(64) && frame[link.l3 + 6] == 58 && frame[link.l3 + 40] == 136;
            owned(8..24) || (tells && owned(48..64))
        }
        _ => false,
    }
}

/// A frame before it is judged.
pub struct Scene<'s> {
    pub host: &'s Host,
    pub leased: bool,
    pub flows: &'s [FlowEntry],
    pub frame: &'s [u8],
    pub link: Link,
    pub leg: Leg,
    /// What user space put before the frame.
    pub note: u32,
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

impl<'s> Scene<'s> {
    /// `None`: the frame is none of the node's business.
    pub fn read(
        (host, leased, flows): (&'s Host, bool, &'s [FlowEntry]),
        (ifindex, frame, note): (u32, &'s [u8], u32),
    ) -> Option<Self> {
        let link = Link::read(frame, ifindex)?;
        let key = LegKey {
            ifindex,
            vlan: link.vlan,
            _pad: 0,
        };
        let leg = *host.leg(&key)?;
        (link.from[0] & 1 == 0).then_some(Self {
            host,
            leased,
            flows,
            frame,
            link,
            leg,
            note,
        })
    }
}

impl Scene<'_> {
    /// The headers of a packet that makes a flow: as they stand, or of a first fragment.
    pub fn opener(&self, fresh: Option<(Ip, Piece)>) -> Option<Ip> {
        match fresh {
            Some((head, _)) => Some(head),
            None => Ip::read(self.frame, self.link.l3, self.link.kind == 0x86dd),
        }
    }

    /// What must become of the frame.
    pub fn expect(&self) -> Want {
        let ours = self.link.to == self.leg.mac;
        match self.link.kind {
            0x0806 if ours || self.link.to == [0xff; 6] => self.arp(),
            0x0800 if ours => self.ip(false),
            0x86dd if ours || self.link.to[..2] == [0x33, 0x33] => self.six(ours),
            _ => Want::Pass,
        }
    }

    fn owned(&self, addr: IpAddr) -> Option<Owned> {
        self.host.owned(0, raw(addr))
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        [self.leg.addr, self.leg.addr6, self.leg.link_local].contains(&raw(addr))
    }

    /// To where the frame came from.
    fn back(&self) -> Way {
        Way {
            from: self.leg.mac,
            to: self.link.from,
            vlan: self.link.vlan,
            ifindex: self.link.ifindex,
            mtu: self.leg.mtu,
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
        let ends = if ip.proto == 17 {
            server::RESETS | server::MOVES
        } else {
            server::RESETS
        };
        let gone = !flow.is_reply()
            && (self.host.server(u32::from(flow.server))).is_some_and(|s| s.flags & ends != 0);
        if !flow.is_reply() && ip.proto == 6 && is_opening(flags) {
            let kept = flow.state() == State::Established && !gone && !self.is_overdue(flow);
            return if kept || (!gone && self.waits(flow)) {
                self.by(ip, flow)
            } else {
                self.miss(ip, false, None)
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
        // A FIN or RST may be anybody's: the SYN after it goes to the same server until the flow ends.
        let over = if flow.state() == State::Closing {
            let patience = self.host.node().map_or(0, |node| node.closing_ticks);
            self.silence(flow) > patience
        } else {
            self.is_overdue(flow)
        };
        if !up || (ip.proto == 6 && is_opening(ip.flags(self.frame)) && over) {
            return self.miss(ip, false, None);
        }
        self.by(ip, flow)
    }

    fn is_overdue(&self, flow: &FlowEntry) -> bool {
        self.silence(flow) > flow.idle_ticks
    }

    /// Ticks since the last packet of a flow.
    fn silence(&self, flow: &FlowEntry) -> u32 {
        let same = self.flows.iter().filter(|f| f.incarnation == flow.incarnation);
        let seen = same.map(|f| f.last_seen).max().unwrap_or(0);
        tick(self.host.now) - seen
    }

    /// A flow that a SYN sent again stays with: half-open, or given up by its client alone, and its server is up.
    fn waits(&self, flow: &FlowEntry) -> bool {
        let up = (self.host.server(u32::from(flow.server))).is_some_and(|s| s.flags & server::UP != 0);
        let patience = self.host.node().map_or(0, |node| node.half_open_ticks);
        let open = flow.state() == State::HalfOpen || is_reset_by_client(flow.own, flow.other);
        up && open && self.silence(flow) <= patience && !self.is_overdue(flow)
    }

    /// Translated by a flow.
    fn by(&self, ip: &Ip, flow: &FlowEntry) -> Want {
        self.by_flow(ip, flow, Role::First, None)
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
            self.tell(ip, ip.to, port, 0)
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
        let Some(way) = way(self.host, &self.leg, hop::ROUTE, ip.to) else {
            return Want::Drop;
        };
        match self.excess(ip, &way, 0) {
            Some(most) => self.too_big(ip, most, self.frame),
            None => Want::Sent(self.routed(ip, &way)),
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
}

fn icmp(v6: bool) -> u8 {
    if v6 { proto::ICMPV6 } else { proto::ICMP }
}
