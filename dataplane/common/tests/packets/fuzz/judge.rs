//! Runs frames, holds what becomes of them against the reference, and checks what must always be true.

use super::{
    expect::{Want, address, expect, flow_of, identification, is_direct, mode_for, remembered, translated},
    read::{Content, Ip, Link, Piece, be16},
    write::{Sent, sum},
};
use crate::{
    host::Host,
    support::{Engine, Setup, Verdict, frames::raw},
};
use onearm_dataplane_common::{
    counter::{COUNTERS, Counter},
    flow::{FlowEntry, FlowKey, State, flags, hop, seen},
    hash, help,
    maps::{LegKey, ServiceKey, hairpin, mode, server},
    tables::Tables,
};
use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

/// What is done to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame comes by an interface.
    Frame(u32, Vec<u8>),
    /// Time passes: ticks of 67 ms.
    Ticks(u32),
    Lease(bool),
    /// A server's flags change.
    Server(u32, u32),
}

/// Reasons not to make a flow.
const REFUSED: [Counter; 11] = [
    Counter::DsrOffLink,
    Counter::TunnelWithoutSource,
    Counter::ClientDenied,
    Counter::MaxConnections,
    Counter::MaxNew,
    Counter::MaxPerSource,
    Counter::NoServer,
    Counter::NoPort,
    Counter::NoSnatSource,
    Counter::TableFull,
    Counter::HalfOpenFull,
];
/// What never happens to a program that is alone.
const NEVER: [Counter; 3] = [Counter::Internal, Counter::LockContended, Counter::FlowRaceLost];

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// A node and what happened to it.
pub struct Judge {
    pub host: Host,
    pub leased: bool,
    pub history: Vec<Event>,
    pub met: HashSet<Counter>,
}

impl Judge {
    pub fn new(setup: &Setup) -> Self {
        Self {
            host: Host::new(setup),
            leased: true,
            history: Vec::new(),
            met: HashSet::new(),
        }
    }

    /// Lets something happen; what is wrong about it.
    pub fn happen(&mut self, event: &Event) -> Result<(), String> {
        self.history.push(event.clone());
        match event {
            Event::Frame(ifindex, frame) => return self.arrive(frame, *ifindex),
            Event::Ticks(ticks) => self.host.pass_ticks(*ticks),
            Event::Lease(held) => {
                self.leased = *held;
                Engine::lease(&mut self.host, *held);
            }
            Event::Server(index, flags) => self.host.edit(|setup| {
                let found = setup.servers.iter_mut().find(|(i, _)| i == index);
                if let Some((_, server)) = found {
                    server.flags = *flags | server::USED | 1 << server::WEIGHT_SHIFT;
                }
            }),
        }
        Ok(())
    }

    fn counters(&self) -> Vec<u64> {
        COUNTERS.iter().map(|(c, _)| self.host.counter(*c)).collect()
    }

    fn arrive(&mut self, frame: &[u8], ifindex: u32) -> Result<(), String> {
        let before = self.host.entries();
        let counted = self.counters();
        let want = expect(&self.host, self.leased, &before, frame, ifindex);
        let (verdict, out) = self.host.arrive(frame, ifindex);
        let after = self.host.entries();
        let moved: HashMap<Counter, u64> = COUNTERS
            .iter()
            .zip(counted.iter().zip(self.counters()))
            .filter(|(_, (was, is))| *was != is)
            .map(|((counter, _), (was, is))| (*counter, is - was))
            .collect();
        self.met.extend(moved.keys());
        let context = || format!("; {verdict:?}, {moved:?}");
        let check = accounted(verdict, &moved)
            .and_then(|()| self.compare(frame, ifindex, verdict, &out, &want, &after, &moved))
            .and_then(|()| self.sound(&before, &after, frame, ifindex));
        check.map_err(|wrong| wrong + &context())
    }

    #[expect(clippy::too_many_arguments, reason = "everything that happened")]
    fn compare(
        &self,
        frame: &[u8],
        ifindex: u32,
        verdict: Verdict,
        out: &[u8],
        want: &Want,
        after: &[FlowEntry],
        moved: &HashMap<Counter, u64>,
    ) -> Result<(), String> {
        match (want, verdict) {
            (Want::Pass, Verdict::Pass) => {
                ensure!(out == frame, "what passes is not untouched");
                Ok(())
            }
            (Want::Drop, Verdict::Drop) => Ok(()),
            (Want::Kept, Verdict::Pass) => {
                ensure!(
                    out.get(help::LEN..) == Some(frame),
                    "what user space gets is another frame"
                );
                Ok(())
            }
            (Want::Kept, Verdict::Drop) if moved.contains_key(&Counter::HelpLimited) => Ok(()),
            (Want::Limited(_), Verdict::Drop) if moved.contains_key(&Counter::RefusalLimited) => Ok(()),
            (Want::Sent(sent) | Want::Limited(sent), Verdict::Transmit | Verdict::Redirect) => {
                same(out, verdict, sent)
            }
            (Want::NewFlow { fresh }, _) => {
                self.by_a_flow(frame, ifindex, verdict, out, after, *fresh, moved)
            }
            (Want::Joined(ip, protocol, client, port), _) => {
                let denied = REFUSED.iter().any(|reason| moved.contains_key(reason));
                if verdict == Verdict::Drop && denied {
                    return Ok(());
                }
                let link = Link::read(frame, ifindex).ok_or("a link")?;
                match flow_of(after, *protocol, client.0, ip.to, (client.1, *port)) {
                    Some(flow) => self.by(frame, ifindex, verdict, out, &flow, ip, None, moved),
                    None => self.by_hash(frame, &link, ip, (*protocol, *client, *port), verdict, out, moved),
                }
            }
            (Want::Renamed(flow, head, piece), _) => {
                self.by(frame, ifindex, verdict, out, flow, head, Some(piece), moved)
            }
            _ => Err(format!("wanted {}", brief(want))),
        }
    }

    /// Whatever flow there is for it now.
    #[expect(clippy::too_many_arguments, reason = "everything that happened")]
    fn by_a_flow(
        &self,
        frame: &[u8],
        ifindex: u32,
        verdict: Verdict,
        out: &[u8],
        after: &[FlowEntry],
        fresh: Option<(Ip, Piece)>,
        moved: &HashMap<Counter, u64>,
    ) -> Result<(), String> {
        let link = Link::read(frame, ifindex).ok_or("a link")?;
        let ip = match fresh {
            Some((head, _)) => head,
            None => Ip::read(frame, link.l3, link.kind == 0x86dd).ok_or("a packet")?,
        };
        let ports = (be16(frame, ip.l4), be16(frame, ip.l4 + 2));
        // Also where an old flow would have given way: it counts until it is gone.
        if verdict == Verdict::Drop && REFUSED.iter().any(|reason| moved.contains_key(reason)) {
            return Ok(());
        }
        let Some(flow) = flow_of(after, ip.proto, ip.from, ip.to, ports) else {
            ensure!(moved.contains_key(&Counter::AffinityMissed), "no flow was made");
            return self.by_hash(
                frame,
                &link,
                &ip,
                (ip.proto, (ip.from, ports.0), ports.1),
                verdict,
                out,
                moved,
            );
        };
        if moved.contains_key(&Counter::FlowCreated) {
            self.made_well(&link, &ip, &flow, after)?;
        }
        let piece = fresh.map(|(_, piece)| piece);
        self.by(frame, ifindex, verdict, out, &flow, &ip, piece.as_ref(), moved)
    }

    /// To a server of the service that nothing remembers.
    #[expect(clippy::too_many_arguments, reason = "everything that happened")]
    fn by_hash(
        &self,
        frame: &[u8],
        link: &Link,
        ip: &Ip,
        (protocol, client, port): (u8, (IpAddr, u16), u16),
        verdict: Verdict,
        out: &[u8],
        moved: &HashMap<Counter, u64>,
    ) -> Result<(), String> {
        let key = ServiceKey {
            slot: 0,
            proto: protocol,
            addr: raw(ip.to).bytes(),
            port: port.to_be_bytes(),
        };
        let index = self.host.service_index(&key).ok_or("a service")?;
        let mode = mode_for(&self.host, index, client.0);
        let leg = LegKey {
            ifindex: link.ifindex,
            vlan: link.vlan,
            _pad: 0,
        };
        let leg = self.host.leg(&leg).ok_or("a leg")?;
        let tunnel = self.host.tunnel(0, index).copied().unwrap_or_default();
        let hash = hash::client(
            [0x7370_7265, 0x6164],
            &FlowKey::new(
                protocol,
                raw(client.0),
                client.1.to_be(),
                raw(ip.to),
                port.to_be(),
            ),
        );
        let own = if ip.v6 { leg.addr6 } else { leg.addr };
        let mut tries = self.servers_of(index).into_iter().map(|index| {
            let server = self.host.server(u32::from(index)).ok_or("a server")?;
            let flow = FlowEntry {
                flags: mode << flags::MODE_SHIFT,
                new_saddr: if tunnel.source.is_none() {
                    own
                } else {
                    tunnel.source
                },
                new_daddr: server.addr,
                new_sport: onearm_dataplane_common::tunnel::spread(hash),
                new_dport: tunnel.port,
                hop: server.next_hop,
                ..FlowEntry::default()
            };
            match translated(&self.host, frame, link, leg, ip, &flow, None) {
                Some(sent) if verdict != Verdict::Drop => same(out, verdict, &sent),
                None if moved.contains_key(&Counter::NoNeighbour) => Ok(()),
                _ => Err("dropped".to_owned()),
            }
        });
        ensure!(
            tries.any(|outcome| outcome.is_ok()),
            "not sent to any server of the service"
        );
        Ok(())
    }

    fn servers_of(&self, service: u32) -> Vec<u16> {
        let table = self.host.service(0, service).map_or(0, |service| service.table);
        let (base, len) = (table & 0xffff_ffff, table >> 32);
        let server = |entry: u64| {
            let word = self.host.sched_word(u32::try_from(entry / 4).expect("small"));
            u16::try_from(word >> (entry % 4 * 16) & 0xffff).expect("16 bits")
        };
        (base..base + len).map(server).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "everything that happened")]
    fn by(
        &self,
        frame: &[u8],
        ifindex: u32,
        verdict: Verdict,
        out: &[u8],
        flow: &FlowEntry,
        ip: &Ip,
        piece: Option<&Piece>,
        moved: &HashMap<Counter, u64>,
    ) -> Result<(), String> {
        let link = Link::read(frame, ifindex).ok_or("a link")?;
        let key = LegKey {
            ifindex,
            vlan: link.vlan,
            _pad: 0,
        };
        let leg = self.host.leg(&key).ok_or("a leg")?;
        let mut id = None;
        if let Some(piece) = piece.filter(|_| flow.new_saddr != flow.saddr && !is_direct(flow))
            && verdict != Verdict::Drop
        {
            let moved = out.len().cast_signed() - frame.len().cast_signed();
            let at = ip.l3.checked_add_signed(moved).ok_or("a header")?;
            let new = if ip.v6 {
                let at = at + (piece.at - 8) - ip.l3;
                u32::from(be16(out, at + 4)) << 16 | u32::from(be16(out, at + 6))
            } else {
                u32::from(be16(out, at + 4))
            };
            ensure!(new != 0, "an identification of zero");
            if piece.more {
                let kept = remembered(&self.host, ip, piece).ok_or("a first fragment is not remembered")?;
                ensure!(
                    identification(ip.v6, &kept) == new,
                    "later fragments would have another identification"
                );
            }
            id = Some((*piece, new));
        }
        match translated(&self.host, frame, &link, leg, ip, flow, id) {
            Some(sent) if verdict != Verdict::Drop => same(out, verdict, &sent),
            None if moved.contains_key(&Counter::NoNeighbour) => Ok(()),
            _ => Err(format!("wanted it by {flow:?}")),
        }
    }

    /// A new flow is one its service allows.
    fn made_well(&self, link: &Link, ip: &Ip, flow: &FlowEntry, after: &[FlowEntry]) -> Result<(), String> {
        let key = ServiceKey {
            slot: 0,
            proto: ip.proto,
            addr: flow.daddr.bytes(),
            port: flow.dport.to_ne_bytes(),
        };
        let index = self.host.service_index(&key).ok_or("a flow without a service")?;
        let service = self.host.service(0, index).ok_or("a service")?;
        let chosen = self.servers_of(index).contains(&flow.server);
        ensure!(chosen, "server {} is none of the service's", flow.server);
        let server = self.host.server(u32::from(flow.server)).ok_or("a server")?;
        let mode = mode_for(&self.host, index, ip.from);
        if mode >= mode::DSR {
            ensure!(
                flow.mode() == mode && flow.new_daddr == server.addr,
                "not to its server"
            );
            ensure!(flow.hop == server.next_hop, "not the server's hop");
            ensure!(
                mode != mode::DSR || server.net != 0,
                "a frame to a server behind a router"
            );
            return Ok(());
        }
        let port = if server.port == 0 { flow.dport } else { server.port };
        ensure!(
            (flow.new_daddr, flow.new_dport) == (server.addr, port),
            "not the server's address"
        );
        ensure!(flow.hop == server.next_hop, "not the server's hop");
        let near = match service.hairpin {
            hairpin::AUTO => server.net != 0 && self.host.connected(0, flow.saddr) == u32::from(server.net),
            hairpin::LISTED => self.host.hairpin(0, index, flow.saddr),
            _ => false,
        };
        let both = mode == mode::BOTH_NAT || near || server.addr == flow.saddr;
        if both {
            let source = u16::from_be(flow.new_sport);
            let pools =
                u32::from(service.snat_base)..u32::from(service.snat_base) + u32::from(service.snat_len);
            let ours = pools
                .filter_map(|n| self.host.snat_pool(0, n))
                .any(|pool| pool.addr == flow.new_saddr && (pool.first..=pool.last).contains(&source));
            ensure!(ours, "{}:{source} is no source of ours", address(flow.new_saddr));
        } else {
            ensure!(flow.new_saddr == flow.saddr, "dnat changes the client's address");
        }
        let reply = after
            .iter()
            .find(|f| f.incarnation == flow.incarnation && f.is_reply())
            .ok_or("a flow without replies")?;
        ensure!(
            (reply.new_saddr, reply.new_sport, reply.new_daddr, reply.new_dport)
                == (flow.daddr, flow.dport, flow.saddr, flow.sport),
            "replies do not lead back"
        );
        let leg = LegKey {
            ifindex: link.ifindex,
            vlan: link.vlan,
            _pad: 0,
        };
        let leg = self.host.leg(&leg).ok_or("a leg")?;
        if link.from != leg.peer_mac {
            let back = super::expect::way(&self.host, leg, reply.hop, ip.from).ok_or("a way back")?;
            let ends = |way: &super::write::Way| (way.to, way.vlan, way.ifindex);
            let by_route = super::expect::way(&self.host, leg, hop::ROUTE, ip.from);
            ensure!(
                ends(&back) == (link.from, link.vlan, link.ifindex)
                    || by_route.is_some_and(|way| ends(&way) == ends(&back)),
                "replies go neither to whom the packet came from nor to the next hop"
            );
        }
        Ok(())
    }

    /// What is true of every table.
    fn sound(
        &self,
        before: &[FlowEntry],
        after: &[FlowEntry],
        frame: &[u8],
        ifindex: u32,
    ) -> Result<(), String> {
        let mut half_open = 0;
        let mut keys = HashSet::new();
        for entry in after {
            ensure!(keys.insert(entry.key()), "one key twice");
            if is_direct(entry) {
                continue;
            }
            let partner = after
                .iter()
                .find(|e| e.incarnation == entry.incarnation && e.is_reply() != entry.is_reply())
                .ok_or("half a flow")?;
            ensure!(entry.reply_key() == partner.key(), "the partner has another key");
            ensure!(
                (entry.own, entry.other) == (partner.other, partner.own),
                "partners disagree"
            );
            half_open += u64::from(entry.state() == State::HalfOpen);
        }
        ensure!(
            half_open == 2 * Engine::half_open(&self.host),
            "half-open flows are miscounted"
        );
        let mut open: HashMap<u32, u64> = HashMap::new();
        for entry in after
            .iter()
            .filter(|e| !e.is_reply() && e.state() != State::Closing)
        {
            *open.entry(u32::from(entry.server)).or_default() += 1;
        }
        for (index, _) in (1..=5).zip(0..) {
            let (counted, there) = (
                self.host.open_of_server(index),
                open.get(&index).copied().unwrap_or(0),
            );
            ensure!(
                counted == there,
                "server {index} has {there} flows, not {counted}"
            );
        }
        // Nobody takes an established flow away, but its own client, when it is overdue or its server is gone.
        let own = Link::read(frame, ifindex)
            .and_then(|link| Ip::read(frame, link.l3, link.kind == 0x86dd))
            .filter(|ip| matches!(ip.content, Content::Ports(..) | Content::Fragment));
        for entry in before
            .iter()
            .filter(|e| !e.is_reply() && !is_direct(e) && e.state() == State::Established)
        {
            let there = after.iter().any(|e| e.incarnation == entry.incarnation);
            let by_client = own.is_some_and(|ip| {
                (ip.proto == entry.proto || ip.content == Content::Fragment)
                    && raw(ip.from) == entry.saddr
                    && raw(ip.to) == entry.daddr
            });
            ensure!(there || by_client, "an established flow was taken away");
            ensure!(entry.own & seen::RST == 0, "an established flow with a RST");
        }
        Ok(())
    }
}

/// One frame, one verdict, one counter for it.
fn accounted(verdict: Verdict, moved: &HashMap<Counter, u64>) -> Result<(), String> {
    for counter in NEVER {
        ensure!(!moved.contains_key(&counter), "{} counted", counter.name());
    }
    let of = |counter| moved.get(&counter).copied().unwrap_or(0);
    // A conflict is told, and dropped.
    let is_drop = |c: Counter| c.is_drop() || c == Counter::ArpConflict;
    let drops: u64 = moved.iter().filter(|(c, _)| is_drop(**c)).map(|(_, n)| n).sum();
    let ends = [
        of(Counter::Passed) + of(Counter::FragmentKept),
        of(Counter::Transmitted),
        of(Counter::Redirected),
        drops,
    ];
    let want = match verdict {
        Verdict::Pass => [1, 0, 0, 0],
        Verdict::Transmit => [0, 1, 0, 0],
        Verdict::Redirect => [0, 0, 1, 0],
        Verdict::Drop => [0, 0, 0, 1],
    };
    ensure!(ends == want, "passed, transmitted, redirected, dropped: {ends:?}");
    Ok(())
}

/// Byte for byte, but for the two ways to write zero.
fn same(out: &[u8], verdict: Verdict, sent: &Sent) -> Result<(), String> {
    ensure!(
        (verdict == Verdict::Redirect) == sent.redirect,
        "by the wrong interface"
    );
    let mut got = out.to_vec();
    if let Some(l3) = sent.renamed.filter(|l3| l3 + 20 <= got.len()) {
        ensure!(
            sum(&got[l3..l3 + 20]).is_multiple_of(0xffff),
            "the outer header's checksum is wrong"
        );
        for at in [l3 + 4, l3 + 10] {
            got[at..at + 2].copy_from_slice(&sent.bytes[at..at + 2]);
        }
    }
    for at in &sent.loose {
        let both =
            |at: usize| be16(&got, at).is_multiple_of(0xffff) && be16(&sent.bytes, at).is_multiple_of(0xffff);
        if *at + 2 <= got.len().min(sent.bytes.len()) && both(*at) {
            got[*at..*at + 2].copy_from_slice(&sent.bytes[*at..*at + 2]);
        }
    }
    ensure!(
        got == sent.bytes,
        "what leaves differs from byte {}:\n got {}\nwant {}",
        got.iter().zip(&sent.bytes).take_while(|(a, b)| a == b).count(),
        super::script::hex(&got),
        super::script::hex(&sent.bytes)
    );
    Ok(())
}

fn brief(want: &Want) -> String {
    match want {
        Want::Sent(sent) | Want::Limited(sent) => format!("it sent as {}", super::script::hex(&sent.bytes)),
        other => format!("{other:?}"),
    }
}
