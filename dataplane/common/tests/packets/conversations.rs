//! Random traffic against a naive reference: a map of flows and a model that makes every checksum anew.

use crate::{
    cases::Talk,
    host::Host,
    support::{
        Engine, Setup, Verdict,
        frames::{Body, End, Frame, end, ip},
        model::{Expected, ends, translated, verifies},
        setup::{HALF, OUR_MAC, ROUTER_MAC, S1, S1_MAC, S2, S2_MAC, ServiceSpec, VIP},
    },
};
use onearm_dataplane_common::maps::{mode, proto};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Debug)]
enum Op {
    /// Client host, client port, service, flags, TTL, payload length, odd shapes.
    Request(u8, u16, usize, &'static str, u8, usize, bool),
    /// Flow (modulo), flags, payload length.
    Reply(usize, &'static str, usize),
    /// Server to the outside.
    Transit(u16),
    Ticks(u32),
    Lease(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags = prop::sample::select(vec!["S", "S", "A", "A", "A", "FA", "R", "SA", ""]);
    let request = (
        0u8..6,
        0u16..5,
        0usize..4,
        flags.clone(),
        prop_oneof![9 => 2u8..=64, 1 => 0u8..2],
        0usize..200,
        any::<bool>(),
    )
        .prop_map(|(h, p, s, f, ttl, len, odd)| Op::Request(h, p, s, f, ttl, len, odd));
    let op = prop_oneof![
        10 => request,
        8 => (any::<usize>(), flags, 0usize..200).prop_map(|(n, f, len)| Op::Reply(n, f, len)),
        1 => (0u16..3).prop_map(Op::Transit),
        1 => (0u32..20_000).prop_map(Op::Ticks),
        1 => prop::bool::weighted(0.8).prop_map(Op::Lease),
    ];
    prop::collection::vec(op, 1..120)
}

/// (VIP and port, protocol, both-nat): two of each.
fn services() -> [(End, u8, bool); 4] {
    [
        (end("192.168.100.100:80"), proto::TCP, true),
        (end("192.168.100.100:81"), proto::TCP, false),
        (end("192.168.100.100:53"), proto::UDP, true),
        (end("192.168.100.100:54"), proto::UDP, false),
    ]
}

fn setup() -> Setup {
    services()
        .iter()
        .fold(Setup::classic(), |setup, (vip, proto, both)| {
            let spec = ServiceSpec {
                port: vip.1,
                proto: *proto,
                mode: if *both { mode::BOTH_NAT } else { mode::DNAT },
                servers: &[1, 2],
                ..ServiceSpec::DNAT
            };
            setup.with(&spec)
        })
}

/// Hosts 0–3 are outside, 4 and 5 are the servers themselves.
fn client(host: u8, port: u16) -> (End, [u8; 6]) {
    let port = [40_000, 40_001, 1_024, 49_151, 65_535][usize::from(port)];
    match host {
        4 => (End(ip("192.168.100.10"), port), S1_MAC),
        5 => (End(ip("192.168.100.11"), port), S2_MAC),
        n => (End(ip(&format!("192.168.10.{}", 50 + n)), port), ROUTER_MAC),
    }
}

fn mac_of(server: End) -> [u8; 6] {
    if server.0 == ip("192.168.100.10") {
        S1_MAC
    } else {
        S2_MAC
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    talk: Talk,
    proto: u8,
    source: End,
}

struct Reference {
    host: Host,
    leased: bool,
    flows: HashMap<(End, End, u8), Flow>,
}

impl Reference {
    fn body(proto: u8, flags: &'static str, odd: bool) -> Body {
        if proto == proto::TCP {
            Body::Tcp(flags, 7, 8)
        } else {
            Body::Udp(!odd)
        }
    }

    fn request(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let Op::Request(host, port, service, flags, ttl, len, odd) = op else {
            unreachable!("a request")
        };
        let (vip, protocol, both) = services()[*service];
        let (from, mac) = client(*host, *port);
        let mut frame = Frame::new(from, vip, Self::body(protocol, flags, *odd))
            .via(mac)
            .ttl(*ttl);
        frame = frame.payload(&vec![0xfe; *len]).padding(if *odd { 7 } else { 0 });
        if *odd {
            frame = frame.options(&[1; 8]);
        }
        let frame = frame.build();
        let (verdict, out) = self.host.run(&frame);
        let key = (from, vip, protocol);
        let opening = protocol == proto::UDP || *flags == "S";
        if !self.leased {
            prop_assert_eq!(verdict, Verdict::Drop);
            return Ok(());
        }
        if !self.flows.contains_key(&key) && !opening {
            prop_assert_eq!(verdict, Verdict::Drop);
            return Ok(());
        }
        if *ttl <= 1 {
            prop_assert!(
                verdict == Verdict::Drop || out[23] == 1,
                "time exceeded or nothing"
            );
            return Ok(());
        }
        prop_assert_eq!(verdict, Verdict::Transmit);
        let (source, server) = ends(&out);
        let want = Expected {
            from_mac: OUR_MAC,
            to_mac: mac_of(server),
            from: source,
            to: server,
        };
        prop_assert_eq!(&out, &translated(&frame, &want));
        prop_assert!(verifies(&out));
        prop_assert!(server.1 == vip.1 && [S1, S2].map(ip).contains(&server.0));
        if let Some(known) = self.flows.get(&key)
            && !(opening && protocol == proto::TCP)
        {
            prop_assert_eq!((known.source, known.talk.server), (source, server));
        }
        // All outside clients keep their address in dnat; clients in the servers' prefix do not.
        if both || *host >= 4 {
            prop_assert_eq!(source.0, ip(VIP));
            prop_assert!((HALF.0..=HALF.1).contains(&source.1));
        } else {
            prop_assert_eq!(source.0, from.0);
        }
        let talk = Talk {
            client: from,
            client_mac: mac,
            vip,
            server,
            server_mac: mac_of(server),
        };
        self.flows.insert(
            key,
            Flow {
                talk,
                proto: protocol,
                source,
            },
        );
        let tuples: HashSet<_> = self
            .flows
            .values()
            .map(|f| (f.talk.server, f.source, f.proto))
            .collect();
        prop_assert_eq!(tuples.len(), self.flows.len(), "two flows with one reply tuple");
        Ok(())
    }

    fn reply(&mut self, n: usize, flags: &'static str, len: usize) -> Result<(), TestCaseError> {
        let mut keys: Vec<_> = self.flows.keys().copied().collect();
        keys.sort_by_key(|(a, b, c)| (a.0, a.1, b.1, *c));
        let Some(key) = keys.get(n % keys.len().max(1)) else {
            return Ok(());
        };
        let Flow { talk, proto, source } = self.flows[key];
        let frame = talk
            .reply(source, Self::body(proto, flags, len.is_multiple_of(2)))
            .payload(&vec![3; len])
            .build();
        let (verdict, out) = self.host.run(&frame);
        if !self.leased {
            prop_assert_eq!(verdict, Verdict::Drop);
            return Ok(());
        }
        prop_assert_eq!(verdict, Verdict::Transmit);
        let want = Expected {
            from_mac: OUR_MAC,
            to_mac: talk.client_mac,
            from: talk.vip,
            to: talk.client,
        };
        prop_assert_eq!(&out, &translated(&frame, &want));
        prop_assert!(verifies(&out));
        Ok(())
    }

    fn half_open_is_right(&self) -> Result<(), TestCaseError> {
        let entries = self.host.entries();
        let open = entries
            .iter()
            .filter(|e| e.state() == onearm_dataplane_common::flow::State::HalfOpen)
            .count();
        prop_assert_eq!(
            open as u64,
            2 * self.host.half_open(),
            "the number of half-open flows"
        );
        prop_assert_eq!(entries.len(), 2 * self.flows.len());
        for entry in &entries {
            let partner = entries
                .iter()
                .find(|e| e.incarnation == entry.incarnation && e.is_reply() != entry.is_reply());
            let partner = partner.ok_or_else(|| TestCaseError::fail("half a flow"))?;
            prop_assert_eq!((entry.own, entry.other), (partner.other, partner.own));
            prop_assert_eq!(entry.reply_key(), partner.key());
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::property_cases(128), ..ProptestConfig::default() })]

    #[test]
    fn every_accepted_packet_equals_the_models(ops in ops()) {
        let mut reference = Reference { host: Host::new(&setup()), leased: true, flows: HashMap::new() };
        for op in &ops {
            match op {
                Op::Request(..) => reference.request(op)?,
                Op::Reply(n, flags, len) => reference.reply(*n, flags, *len)?,
                Op::Transit(port) => {
                    let from = End(ip("192.168.100.10"), 5_000 + port);
                    let frame = Frame::new(from, end("198.51.100.7:443"), Body::Tcp("A", 1, 1)).build();
                    let (verdict, out) = reference.host.run(&frame);
                    let want = if reference.leased { Verdict::Transmit } else { Verdict::Drop };
                    prop_assert_eq!(verdict, want);
                    if reference.leased {
                        prop_assert_eq!(out, crate::support::model::routed(&frame, OUR_MAC, ROUTER_MAC));
                    }
                }
                Op::Ticks(ticks) => reference.host.pass_ticks(*ticks),
                Op::Lease(held) => {
                    reference.leased = *held;
                    Engine::lease(&mut reference.host, *held);
                }
            }
            reference.half_open_is_right()?;
        }
    }
}
