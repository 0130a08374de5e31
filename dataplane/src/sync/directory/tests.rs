use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::{FlowKey, flags, hop, seen};
use onearm_dataplane_common::maps::{STRAY_SERVER, STRAY_SERVICE, mode, proto};

use super::{Directory, Indexes};
use crate::next_hops::tests::{Fake, leg};
use crate::next_hops::{LastHopFake, LegSpec, Mirror, Neighbour, NextHops, RouteSpec, Via};
use crate::sync::Record;
use crate::tables::tests::{server, service};
use crate::tables::{Mode, Registry, ServiceSpec, Tables, compile, wide};
use crate::{LimitsSpec, Protocol, ServerSpec};

#[expect(clippy::disallowed_methods, reason = "any time will do")]
fn start() -> Instant {
    Instant::now()
}

/// An address of either family.
fn of(v6: bool, addr: [u8; 4]) -> IpAddr {
    let four = Ipv4Addr::from(addr);
    if v6 {
        return Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(four.to_bits())).into();
    }
    four.into()
}

pub(crate) fn vip(v6: bool) -> IpAddr {
    of(v6, [192, 168, 100, 100])
}

/// A service for each way: 80 Both-NAT, 53 of datagrams, 81 with limits, 82 DSR, 83 by a tunnel; 84 is told after a second, 85
/// never. All of them have the server .10, on the port that was called; 80 has .11:8080, too.
fn services(v6: bool) -> Vec<ServiceSpec> {
    let at = |n: u8, port: u16| {
        let mut spec = server(n);
        spec.id.addr = of(v6, [192, 168, 100, n]);
        spec.id.port = port;
        spec
    };
    let of_port = |port: u16, protocol: Protocol, mode: Mode, servers: Vec<ServerSpec>| ServiceSpec {
        vip: vip(v6),
        ports: vec![port..=port],
        protocol,
        mode,
        servers,
        ..service(&format!("{v6} {port}"))
    };
    let both = |port| of_port(port, Protocol::Tcp, Mode::Dnat, vec![at(10, 0)]);
    vec![
        of_port(80, Protocol::Tcp, Mode::Dnat, vec![at(10, 0), at(11, 8_080)]),
        of_port(53, Protocol::Udp, Mode::Dnat, vec![at(10, 0)]),
        ServiceSpec {
            limits: LimitsSpec {
                max_per_source: Some(10),
                ..LimitsSpec::default()
            },
            ..both(81)
        },
        of_port(82, Protocol::Tcp, Mode::Dsr, vec![at(10, 0)]),
        of_port(83, Protocol::Tcp, Mode::L3Dsr, vec![at(10, 0)]),
        ServiceSpec {
            sync_after: Some(Duration::from_secs(1)),
            ..both(84)
        },
        ServiceSpec {
            sync_after: None,
            ..both(85)
        },
    ]
}

pub(crate) fn own(v6: bool) -> Addr {
    wide(of(v6, [192, 168, 100, 2]))
}

fn mirror() -> Mirror {
    let mut mirror = Mirror::new();
    let legs = [
        LegSpec {
            addr: Some(Ipv4Addr::new(192, 168, 100, 2)),
            addr6: Some(match of(true, [192, 168, 100, 2]) {
                IpAddr::V6(addr) => addr,
                IpAddr::V4(_) => panic!("of IPv6"),
            }),
            ..leg(0)
        },
        leg(1),
    ];
    mirror.set_legs(&legs, &mut Fake::default()).unwrap();
    let neighbour = |leg, addr, n| Neighbour {
        leg,
        addr,
        mac: Some([2, 0, 0, 0, 0, n]),
    };
    let route = |prefix: &str, via| RouteSpec {
        prefix: prefix.parse().unwrap(),
        via,
        mtu: None,
    };
    let router = |v6| of(v6, [192, 168, 100, 254]);
    let next_hops = NextHops {
        neighbours: vec![
            neighbour(0, router(false), 1),
            neighbour(0, router(true), 2),
            neighbour(1, of(false, [10, 1, 0, 7]), 3),
            Neighbour {
                leg: 1,
                addr: of(false, [10, 1, 0, 8]),
                mac: None,
            },
        ],
        routes: vec![
            route(
                "0.0.0.0/0",
                Via::Gateway {
                    leg: 0,
                    addr: router(false),
                },
            ),
            route(
                "::/0",
                Via::Gateway {
                    leg: 0,
                    addr: router(true),
                },
            ),
            route("10.1.0.0/16", Via::OnLink { leg: 1 }),
            route(
                "10.1.1.0/24",
                Via::Gateway {
                    leg: 1,
                    addr: of(false, [10, 1, 0, 7]),
                },
            ),
            route("192.168.100.0/24", Via::OnLink { leg: 0 }),
        ],
    };
    mirror.set(&next_hops, &mut Fake::default()).unwrap();
    mirror
        .judge_last_hops(start(), &mut LastHopFake::default())
        .unwrap();
    mirror
}

/// Of both families' [`services`], without those of these ports.
pub(crate) fn directory(without: &[u16]) -> Directory {
    let mut services = [services(false), services(true)].concat();
    services.retain(|service| !without.contains(service.ports[0].start()));
    let (mut mirror, registry) = (mirror(), Registry::new([1, 2]));
    let tables = Tables {
        owned: [false, true]
            .map(|v6| crate::tables::tests::owned(vip(v6)))
            .to_vec(),
        services,
        ..Tables::default()
    };
    let compiled = compile(&registry, &mirror.ids, &tables, 0, 1_000).unwrap();
    mirror.ids = compiled.hops;
    Directory::of(&compiled.registry, &mirror)
}

/// The flow of client `n` to a port of the VIP, as the peer tells it.
pub(crate) fn record(v6: bool, n: u16, port: u16) -> Record {
    let [high, low] = n.to_be_bytes();
    let mode = match port {
        82 => mode::DSR,
        83 => mode::L3_DSR,
        _ => mode::BOTH_NAT,
    };
    let client = wide(of(v6, [10, 0, high, low]));
    let key = FlowKey::new(
        if port == 53 { proto::UDP } else { proto::TCP },
        client,
        (40_000 + n % 1_000).to_be(),
        wide(vip(v6)),
        port.to_be(),
    );
    let (new_saddr, new_sport) = match mode {
        mode::DSR => (key.saddr, key.sport),
        mode::L3_DSR => (Addr::NONE, 50_000_u16.to_be()),
        _ => (key.daddr, (20_000 + n).to_be()),
    };
    Record {
        key,
        new_saddr,
        new_daddr: wide(of(v6, [192, 168, 100, 10])),
        new_sport,
        new_dport: if mode == mode::L3_DSR { 0 } else { key.dport },
        flags: mode << flags::MODE_SHIFT,
        client: seen::OPENED | seen::CONFIRMED,
        server: seen::OPENED,
        client_ack: 7,
        server_ack: if mode >= mode::DSR { 0 } else { 8 },
        idle_ticks: 13_411,
        packets: 5,
        leg: if mode == mode::L3_DSR { 0 } else { Record::NO_LEG },
        vlan: 0,
        incarnation: 1 << 56 | 7 << 40 | (u64::from(n) + 1),
    }
}

#[test]
fn a_flow_finds_its_service_and_its_server_by_what_it_says() {
    let directory = directory(&[]);
    for v6 in [false, true] {
        let found = |port, change: fn(&mut Record)| {
            let mut record = record(v6, 1, port);
            change(&mut record);
            directory.indexes(&record)
        };
        let first = found(80, |_| ());
        let second = found(80, |r| {
            (r.new_daddr.0[3], r.new_dport) = (u32::from_ne_bytes([192, 168, 100, 11]), 8_080_u16.to_be());
        });
        assert_eq!((first.stats, first.limited), (second.stats, second.limited));
        assert_ne!(first.server, second.server);
        assert_ne!(first.hop, second.hop);
        let others: Vec<Indexes> = [53, 81, 82, 83].map(|port| found(port, |_| ())).to_vec();
        assert_eq!(
            others.iter().map(|x| x.limited).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        for indexes in others.iter().chain([&first, &second]) {
            assert!(indexes.server != STRAY_SERVER && indexes.stats != STRAY_SERVICE);
            assert!(indexes.hop != 0 && indexes.hop & hop::LAST == 0, "{indexes:?}");
        }
    }
}

#[test]
fn a_flow_of_what_is_not_in_force_is_a_stray_and_goes_by_the_route() {
    let directory = directory(&[81]);
    let found = |port, change: fn(&mut Record)| {
        let mut record = record(false, 1, port);
        change(&mut record);
        let indexes = directory.indexes(&record);
        (
            indexes.stats == STRAY_SERVICE,
            indexes.server == STRAY_SERVER,
            indexes.hop == hop::ROUTE,
        )
    };
    assert_eq!(found(81, |_| ()), (true, true, true));
    assert_eq!(found(80, |_| ()), (false, false, false));
    assert_eq!(found(80, |r| r.new_daddr.0[3] ^= 1 << 24), (false, true, true));
    assert_eq!(
        found(80, |r| r.new_dport = 1),
        (false, true, true),
        "another port"
    );
    assert_eq!(found(80, |r| r.key.proto = proto::UDP), (true, true, true));
    assert_eq!(found(80, |r| r.key.daddr.0[3] ^= 1), (true, true, true));
    assert_eq!(
        Directory::default().indexes(&record(false, 1, 80)).stats,
        STRAY_SERVICE
    );
}

#[test]
fn a_client_is_reached_by_the_resolved_neighbour_of_its_longest_route_or_by_route() {
    let directory = directory(&[]);
    let of = |v6, addr| directory.client_hop(wide(of(v6, addr)));
    let router = of(false, [10, 0, 0, 1]);
    assert!(router & hop::LAST != 0 && router != hop::ROUTE);
    let on_link = of(false, [10, 1, 0, 7]);
    assert!(on_link & hop::LAST != 0 && on_link != hop::ROUTE && on_link != router);
    assert_eq!(
        of(false, [10, 1, 1, 7]),
        on_link,
        "it is the router of a longer prefix"
    );
    assert_eq!(of(false, [10, 1, 0, 8]), hop::ROUTE, "not resolved");
    assert_eq!(of(false, [192, 168, 100, 9]), hop::ROUTE, "not known");
    let six = of(true, [10, 1, 0, 7]);
    assert!(six & hop::LAST != 0 && six != hop::ROUTE && six != router);
    assert_eq!(Directory::default().client_hop(own(false)), hop::ROUTE);
}

#[test]
fn services_say_when_their_flows_are_told_and_strays_are_told_at_once() {
    let directory = directory(&[]);
    let after = |port| directory.sync_after(directory.indexes(&record(false, 1, port)).stats);
    assert_eq!(
        [80, 84, 85].map(after),
        [Some(Duration::ZERO), Some(Duration::from_secs(1)), None]
    );
    assert_eq!(directory.sync_after(STRAY_SERVICE), Some(Duration::ZERO));
    assert_eq!(Directory::default().sync_after(3), Some(Duration::ZERO));
}

#[test]
fn own_addresses_are_known_by_leg() {
    let directory = directory(&[]);
    for v6 in [false, true] {
        assert_eq!(directory.leg_of(own(v6)), Some(0));
        assert_eq!(
            [0, 1, 9].map(|leg| directory.own_address(leg, v6)),
            [Some(own(v6)); 3]
        );
        assert_eq!(directory.leg_of(wide(vip(v6))), None);
    }
    assert_eq!(Directory::default().own_address(0, false), None);
}
