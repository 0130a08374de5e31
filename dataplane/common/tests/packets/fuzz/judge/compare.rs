//! What became of a frame, by the flow there is for it now, held against the reference.

use super::{Judge, Outcome, settle::settle};
use crate::{
    fuzz::{
        expect::{Role, Scene, Want, flow_of, identification, is_direct, mode_for, remembered},
        read::{Content, Ip, Piece, be16},
    },
    support::{Verdict, frames::raw},
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::{FlowEntry, FlowKey, flags},
    hash,
    maps::{Service, ServiceKey, mode, scheduler, service},
    tables::Tables,
    tunnel,
};
use std::net::IpAddr;

/// A packet between a client and a service that no flow remembers: protocol, client, port.
type Stateless = (u8, (IpAddr, u16), u16);

impl Judge {
    pub(super) fn compare(&self, want: &Want, o: &Outcome<'_>) -> Result<(), String> {
        match want {
            Want::NewFlow { fresh } => self.by_a_flow(&self.scene(o)?, o, *fresh),
            Want::Joined(ip, protocol, client, port) => {
                // Also where an old flow would have given way: it counts until it is gone.
                let whose = Ip {
                    proto: *protocol,
                    ..*ip
                };
                if self.refused_well(&whose, (client.0, *port), false, o)? {
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
        let ip = scene.opener(fresh).ok_or("a packet")?;
        let ports = (be16(o.frame, ip.l4), be16(o.frame, ip.l4 + 2));
        let opens = self.opens(&ip, ports.1, o);
        if self.refused_well(&ip, (ip.from, ports.1), opens, o)? {
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

    pub(super) fn service_of(&self, ip: &Ip, port: u16) -> Option<(u32, Service)> {
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
        let stays = self.stays(index, client.0);
        ensure!(
            stays.is_some() == o.counted(Counter::ClientStayed),
            "the client stays with {stays:?}"
        );
        for index in stays.map_or_else(|| self.servers_of(index), |server| vec![server]) {
            let server = self.host.server(u32::from(index)).ok_or("a server")?;
            let flow = FlowEntry {
                flags: mode << flags::MODE_SHIFT,
                new_saddr: source,
                new_daddr: server.addr,
                new_sport: tunnel::spread(hash),
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

    /// The server that a client has, by what user space has noted.
    pub(super) fn stays(&self, index: u32, client: IpAddr) -> Option<u16> {
        let service = self.host.service(0, index)?;
        let persistent = service.scheduler == scheduler::SOURCE_HASH;
        persistent.then(|| self.clients.server(&self.host, service.stats, client))?
    }

    pub(super) fn servers_of(&self, service: u32) -> Vec<u16> {
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
}
