//! Fragments.

use super::{Scene, Want, flow_of, is_direct, way::Role};
use crate::{
    fuzz::{
        read::{Ip, Piece, be16, transport_len},
        write::{Draft, sum},
    },
    host::Host,
    support::frames::raw,
};
use onearm_dataplane_common::{
    flow::FlowEntry,
    maps::{FragmentKey, Remembered, mode, server},
    tables::Tables,
};

/// How long later fragments may take.
const PATIENCE_NS: u64 = 5_000_000_000;

impl Scene<'_> {
    pub(super) fn fragment(&self, ip: &Ip) -> Want {
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
                None => self.ask(ip, Want::Kept),
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
        !flow.is_reply() && flow.proto == 17 && flags & (server::RESETS | server::MOVES) != 0
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
        let id = (flow.new_saddr != flow.saddr).then(|| (*piece, identification(ip.v6, first)));
        self.by_flow(ip, &flow, Role::Later, id)
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
