//! Runs frames, holds what becomes of them against the reference, and checks what must always be true.

use super::{
    changes,
    expect::{
        Role, Scene, Want, address, expect, flow_of, identification, is_direct, is_of_the_pair, mode_for,
        remembered, way,
    },
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
    hash, help, limits,
    maps::{Addr, LegKey, Service, ServiceKey, hairpin, mode, server, service},
    tables::Tables,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
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
    /// User space runs the programs on a frame, with this before it.
    Again(u32, u32, Vec<u8>),
    /// The kernel sends a frame.
    Leaves(Vec<u8>),
    /// User space removes flows that were silent for too long.
    Sweep,
    /// User space finds a last hop, by number, believable or not.
    Judged(u32, bool),
    /// One of [`changes::CHANGES`].
    Change(&'static str),
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

/// A frame user space was given: its interface, the frame, and the bytes its fragments may have, if it is to be fragmented.
pub type Given = (u32, Vec<u8>, Option<u16>);

/// A node and what happened to it.
pub struct Judge {
    pub host: Host,
    pub leased: bool,
    pub history: Vec<Event>,
    pub met: BTreeMap<&'static str, u64>,
    pub given: Vec<Given>,
}

/// A frame and what became of it.
pub struct Outcome<'o> {
    pub ifindex: u32,
    pub frame: &'o [u8],
    pub note: u32,
    pub verdict: Verdict,
    pub out: &'o [u8],
    pub before: &'o [FlowEntry],
    pub after: &'o [FlowEntry],
    /// By how much counters moved.
    pub moved: &'o HashMap<Counter, u64>,
}

impl Outcome<'_> {
    fn counted(&self, counter: Counter) -> bool {
        self.moved.contains_key(&counter)
    }

    fn refused(&self) -> bool {
        self.verdict == Verdict::Drop && REFUSED.iter().any(|reason| self.counted(*reason))
    }
}

/// A packet between a client and a service that no flow remembers: protocol, client, port.
type Stateless = (u8, (IpAddr, u16), u16);

impl Judge {
    pub fn new(setup: &Setup) -> Self {
        Self {
            host: Host::new(setup),
            leased: true,
            history: Vec::new(),
            met: BTreeMap::new(),
            given: Vec::new(),
        }
    }

    /// Lets something happen; what is wrong about it.
    pub fn happen(&mut self, event: &Event) -> Result<(), String> {
        self.history.push(event.clone());
        match event {
            Event::Frame(ifindex, frame) => return self.arrive(*ifindex, frame, 0),
            Event::Again(note, ifindex, frame) => return self.arrive(*ifindex, frame, *note),
            Event::Leaves(frame) => return self.leave(frame),
            Event::Ticks(ticks) => self.host.pass_ticks(*ticks),
            Event::Sweep => self.host.sweep(),
            Event::Judged(n, believed) => {
                if let Some(hop) = self.host.numbered_last_hop(*n) {
                    Engine::judge(&mut self.host, hop, *believed);
                }
            }
            Event::Change(name) => self.host.edit(changes::named(name).ok_or("a change")?),
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

    fn leave(&mut self, frame: &[u8]) -> Result<(), String> {
        let counted = self.counters();
        let may = self.leased || !is_of_the_pair(&self.host, frame);
        ensure!(self.host.leaves(frame) == may, "it may leave: {may}");
        let moved = self.moved(&counted);
        ensure!(may == moved.is_empty(), "{moved:?}");
        Ok(())
    }

    /// By how much counters moved since.
    fn moved(&mut self, counted: &[u64]) -> HashMap<Counter, u64> {
        let moved: HashMap<Counter, u64> = COUNTERS
            .iter()
            .zip(counted.iter().zip(self.counters()))
            .filter(|(_, (was, is))| *was != is)
            .map(|((counter, _), (was, is))| (*counter, is - was))
            .collect();
        for (counter, n) in &moved {
            *self.met.entry(counter.name()).or_default() += n;
        }
        moved
    }

    fn arrive(&mut self, ifindex: u32, frame: &[u8], note: u32) -> Result<(), String> {
        let before = self.host.entries();
        let counted = self.counters();
        let want = expect((&self.host, self.leased, &before), (ifindex, frame, note));
        let (verdict, out, _) = self.host.pass_through(frame, ifindex, note);
        let moved = self.moved(&counted);
        let outcome = Outcome {
            ifindex,
            frame,
            note,
            verdict,
            out: &out,
            before: &before,
            after: &self.host.entries(),
            moved: &moved,
        };
        self.check(&want, &outcome)?;
        if note == 0 && verdict == Verdict::Pass && out.len() == frame.len() + help::LEN {
            let most = be16(&out, help::MOST);
            let most = (out[help::WHAT] == help::wanted::DIVIDE).then_some(most);
            self.given.push((ifindex, out[help::LEN..].to_vec(), most));
        }
        Ok(())
    }

    /// Holds an outcome against what was wanted, and what is always true.
    pub fn check(&self, want: &Want, outcome: &Outcome<'_>) -> Result<(), String> {
        accounted(outcome)
            .and_then(|()| self.compare(want, outcome))
            .and_then(|()| self.sound(outcome))
            .map_err(|wrong| format!("{wrong}; {:?}, {:?}", outcome.verdict, outcome.moved))
    }

    fn scene<'o>(&'o self, o: &Outcome<'o>) -> Result<Scene<'o>, String> {
        let node = (&self.host, self.leased, o.before);
        Ok(Scene::read(node, (o.ifindex, o.frame, o.note)).ok_or("a leg")?)
    }

    fn compare(&self, want: &Want, o: &Outcome<'_>) -> Result<(), String> {
        match want {
            Want::NewFlow { fresh } => self.by_a_flow(&self.scene(o)?, o, *fresh),
            Want::Joined(ip, protocol, client, port) => {
                // Also where an old flow would have given way: it counts until it is gone.
                if o.refused() {
                    return Ok(());
                }
                let role = if ip.content == Content::Fragment {
                    Role::Later
                } else {
                    Role::Error
                };
                let scene = self.scene(o)?;
                match flow_of(o.after, *protocol, client.0, ip.to, (client.1, *port)) {
                    Some(flow) => self.by(&scene, o, &flow, ip, role, None),
                    None => self.by_hash(&scene, o, ip, role, (*protocol, *client, *port)),
                }
            }
            Want::Renamed(flow, head, piece) => {
                self.by(&self.scene(o)?, o, flow, head, Role::First, Some(piece))
            }
            want => settle(want, o),
        }
    }

    /// Whatever flow there is for it now.
    fn by_a_flow(
        &self,
        scene: &Scene<'_>,
        o: &Outcome<'_>,
        fresh: Option<(Ip, Piece)>,
    ) -> Result<(), String> {
        let ip = match fresh {
            Some((head, _)) => head,
            None => Ip::read(o.frame, scene.link.l3, scene.link.kind == 0x86dd).ok_or("a packet")?,
        };
        let ports = (be16(o.frame, ip.l4), be16(o.frame, ip.l4 + 2));
        if o.refused() {
            return Ok(());
        }
        let Some(flow) = flow_of(o.after, ip.proto, ip.from, ip.to, ports) else {
            let forgets = self.service_of(&ip, ports.1).is_some_and(|(index, service)| {
                service.options & service::PER_PACKET != 0
                    && mode_for(&self.host, index, ip.from) >= mode::DSR
            });
            ensure!(forgets || o.counted(Counter::AffinityMissed), "no flow was made");
            let whom = (ip.proto, (ip.from, ports.0), ports.1);
            return self.by_hash(scene, o, &ip, Role::First, whom);
        };
        if o.counted(Counter::FlowCreated) {
            self.made_well(&scene.link, &ip, &flow, o)?;
        }
        let piece = fresh.map(|(_, piece)| piece);
        self.by(scene, o, &flow, &ip, Role::First, piece.as_ref())
    }

    fn service_of(&self, ip: &Ip, port: u16) -> Option<(u32, Service)> {
        let key = ServiceKey {
            slot: 0,
            proto: ip.proto,
            addr: raw(ip.to).bytes(),
            port: port.to_be_bytes(),
        };
        let index = self.host.service_index(&key)?;
        Some((index, *self.host.service(0, index)?))
    }

    /// To a server of the service that nothing remembers.
    fn by_hash(
        &self,
        scene: &Scene<'_>,
        o: &Outcome<'_>,
        ip: &Ip,
        role: Role,
        (protocol, client, port): Stateless,
    ) -> Result<(), String> {
        let mut whose = *ip;
        whose.proto = protocol;
        let (index, service) = self.service_of(&whose, port).ok_or("a service")?;
        let mode = mode_for(&self.host, index, client.0);
        let tunnel = self.host.tunnel(0, index).copied().unwrap_or_default();
        let key = FlowKey::new(
            protocol,
            raw(client.0),
            client.1.to_be(),
            raw(ip.to),
            port.to_be(),
        );
        let hash = hash::client([0x7370_7265, 0x6164], &key);
        let mut source = match (tunnel.source.is_none(), ip.v6) {
            (false, _) => tunnel.source,
            (true, true) => scene.leg.addr6,
            (true, false) => scene.leg.addr,
        };
        source.0[3] ^= u32::try_from(hash >> 32).expect("32 bits") & tunnel.spread;
        let mut wrong = "the service has no server".to_owned();
        for index in self.servers_of(index) {
            let server = self.host.server(u32::from(index)).ok_or("a server")?;
            let flow = FlowEntry {
                flags: mode << flags::MODE_SHIFT,
                new_saddr: source,
                new_daddr: server.addr,
                new_sport: onearm_dataplane_common::tunnel::spread(hash),
                new_dport: tunnel.port,
                hop: server.next_hop,
                stats: u16::try_from(service.stats).expect("few"),
                ..FlowEntry::default()
            };
            match settle(&scene.by_flow(ip, &flow, role, None), o) {
                Ok(()) => return Ok(()),
                Err(reason) => wrong = reason,
            }
        }
        Err(format!("not sent to any server of the service: {wrong}"))
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

    fn by(
        &self,
        scene: &Scene<'_>,
        o: &Outcome<'_>,
        flow: &FlowEntry,
        ip: &Ip,
        role: Role,
        piece: Option<&Piece>,
    ) -> Result<(), String> {
        let mut want = scene.by_flow(ip, flow, role, None);
        if let Some(piece) = piece.filter(|_| flow.new_saddr != flow.saddr && !is_direct(flow))
            && matches!(want, Want::Sent(_))
            && o.verdict != Verdict::Drop
        {
            let moved = o.out.len().cast_signed() - o.frame.len().cast_signed();
            let at = ip.l3.checked_add_signed(moved).ok_or("a header")?;
            let new = if ip.v6 {
                let at = at + (piece.at - 8) - ip.l3;
                u32::from(be16(o.out, at + 4)) << 16 | u32::from(be16(o.out, at + 6))
            } else {
                u32::from(be16(o.out, at + 4))
            };
            ensure!(new != 0, "an identification of zero");
            if piece.more {
                let kept = remembered(&self.host, ip, piece).ok_or("a first fragment is not remembered")?;
                ensure!(
                    identification(ip.v6, &kept) == new,
                    "later fragments would have another identification"
                );
            }
            want = scene.by_flow(ip, flow, role, Some((*piece, new)));
        }
        settle(&want, o).map_err(|wrong| format!("{wrong}\nby {flow:?}"))
    }

    /// A new flow is one its service allows.
    fn made_well(&self, link: &Link, ip: &Ip, flow: &FlowEntry, o: &Outcome<'_>) -> Result<(), String> {
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
            if mode == mode::L3_DSR {
                self.tunnel_is_right(link, index, ip, flow)?;
            }
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
        let reply = o
            .after
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
            let Some(back) = way(&self.host, leg, reply.hop, ip.from) else {
                // The neighbour it came by is not believed, or there was no index for it.
                let known = reply.hop != hop::ROUTE || o.counted(Counter::LastHopsFull);
                ensure!(known, "no way back");
                return Ok(());
            };
            let ends = |way: &super::write::Way| (way.to, way.vlan, way.ifindex);
            let by_route = way(&self.host, leg, hop::ROUTE, ip.from);
            ensure!(
                ends(&back) == (link.from, link.vlan, link.ifindex)
                    || by_route.is_some_and(|way| ends(&way) == ends(&back)),
                "replies go neither to whom the packet came from nor to the next hop"
            );
        }
        Ok(())
    }

    /// The outer ends of a new flow.
    fn tunnel_is_right(&self, link: &Link, index: u32, ip: &Ip, flow: &FlowEntry) -> Result<(), String> {
        let key = LegKey {
            ifindex: link.ifindex,
            vlan: link.vlan,
            _pad: 0,
        };
        let leg = self.host.leg(&key).ok_or("a leg")?;
        let tunnel = self.host.tunnel(0, index).ok_or("a tunnel")?;
        let own = if ip.v6 { leg.addr6 } else { leg.addr };
        let want = if tunnel.source.is_none() {
            own
        } else {
            tunnel.source
        };
        let fixed = |addr: Addr| {
            let Addr([a, b, c, d]) = addr;
            [a, b, c, d & !tunnel.spread]
        };
        ensure!(
            fixed(flow.new_saddr) == fixed(want),
            "{} is no source of the tunnel",
            address(flow.new_saddr)
        );
        ensure!(flow.new_dport == tunnel.port, "not the tunnel's port");
        ensure!(u16::from_be(flow.new_sport) >= 49_152, "not a dynamic port");
        Ok(())
    }

    /// What is true of every table.
    fn sound(&self, o: &Outcome<'_>) -> Result<(), String> {
        let (before, after) = (o.before, o.after);
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
        let mut of_service: HashMap<u32, u64> = HashMap::new();
        let mut of_client: HashMap<(u32, Addr), u64> = HashMap::new();
        for entry in after
            .iter()
            .filter(|e| !e.is_reply() && e.state() != State::Closing)
        {
            *open.entry(u32::from(entry.server)).or_default() += 1;
            *of_service.entry(u32::from(entry.stats)).or_default() += 1;
            if entry.own & seen::COUNTED != 0 {
                *of_client
                    .entry((u32::from(entry.stats), entry.saddr))
                    .or_default() += 1;
            }
        }
        for index in self.host.server_indexes() {
            let (counted, there) = (
                self.host.open_of_server(index),
                open.get(&index).copied().unwrap_or(0),
            );
            ensure!(
                counted == there,
                "server {index} has {there} flows, not {counted}"
            );
        }
        for index in self.host.service_indexes() {
            let (counted, there) = (
                self.host.open_of_service(index),
                of_service.get(&index).copied().unwrap_or(0),
            );
            ensure!(
                counted == there,
                "service {index} has {there} flows, not {counted}"
            );
        }
        let key = self.host.node().ok_or("a node")?.flow_hash_key;
        for ((stats, client), there) in of_client {
            let counted = limits::of_source(&self.host, key, stats, client);
            ensure!(
                counted == there,
                "{} has {there} flows of service {stats}, not {counted}",
                address(client)
            );
        }
        // Nobody takes an established flow away, but its own client, when it is overdue or its server is gone.
        let own = Link::read(o.frame, o.ifindex)
            .and_then(|link| Ip::read(o.frame, link.l3, link.kind == 0x86dd))
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
            // Datagrams nobody has answered give way.
            let unanswered = entry.proto == 17 && entry.other & seen::OPENED == 0;
            ensure!(
                there || by_client || unanswered,
                "an established flow was taken away"
            );
            ensure!(entry.own & seen::RST == 0, "an established flow with a RST");
        }
        Ok(())
    }
}

/// One frame, one verdict, one counter for it.
fn accounted(o: &Outcome<'_>) -> Result<(), String> {
    for counter in NEVER {
        ensure!(!o.counted(counter), "{} counted", counter.name());
    }
    let of = |counter| o.moved.get(&counter).copied().unwrap_or(0);
    // A conflict is told, and dropped.
    let is_drop = |c: Counter| c.is_drop() || c == Counter::ArpConflict;
    let drops: u64 = o.moved.iter().filter(|(c, _)| is_drop(**c)).map(|(_, n)| n).sum();
    let ends = [
        of(Counter::Passed) + of(Counter::FragmentKept) + of(Counter::Divided),
        of(Counter::Transmitted),
        of(Counter::Redirected),
        drops,
    ];
    let want = match o.verdict {
        // User space knows what it has asked for.
        Verdict::Pass if o.note == 1 && ends == [0; 4] => return Ok(()),
        Verdict::Pass => [1, 0, 0, 0],
        Verdict::Transmit => [0, 1, 0, 0],
        Verdict::Redirect => [0, 0, 1, 0],
        Verdict::Drop => [0, 0, 0, 1],
    };
    ensure!(ends == want, "passed, transmitted, redirected, dropped: {ends:?}");
    Ok(())
}

/// What leaves nothing open.
fn settle(want: &Want, o: &Outcome<'_>) -> Result<(), String> {
    match (want, o.verdict) {
        (Want::Pass, Verdict::Pass) => {
            ensure!(o.out == o.frame, "what passes is not untouched");
            Ok(())
        }
        (Want::Drop, Verdict::Drop) => Ok(()),
        (Want::Kept, Verdict::Pass) => asked(o, 1, 0, o.frame),
        (Want::Divide(most, frame), Verdict::Pass) => asked(o, 2, *most, frame),
        (Want::Kept | Want::Divide(..), Verdict::Drop) if o.counted(Counter::HelpLimited) => Ok(()),
        (Want::Limited(_), Verdict::Drop) if o.counted(Counter::RefusalLimited) => Ok(()),
        (Want::Sent(sent) | Want::Limited(sent), Verdict::Transmit | Verdict::Redirect) => {
            same(o.out, o.verdict, sent)
        }
        _ => Err(format!("wanted {}", brief(want))),
    }
}

/// User space gets the frame behind what is wanted.
fn asked(o: &Outcome<'_>, what: u8, most: u16, frame: &[u8]) -> Result<(), String> {
    let header = o.out.get(..20).ok_or("no header for user space")?;
    let [high, low] = most.to_be_bytes();
    let want = [
        &o.frame[..6],
        &o.frame[..6],
        &[0x88, 0xb5, what, 0, high, low, 0, 0],
    ]
    .concat();
    ensure!(
        header == want,
        "user space is told {}",
        super::script::hex(header)
    );
    let got = &o.out[20..];
    ensure!(
        got == frame,
        "user space gets another frame:\n got {}\nwant {}",
        super::script::hex(got),
        super::script::hex(frame)
    );
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
