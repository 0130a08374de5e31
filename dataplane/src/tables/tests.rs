use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;
use onearm_dataplane_common::maps::{self, ScopedPrefix, ServiceKey};
use onearm_types::GroupId;

use super::{
    Compiled, Entry, Hairpin, LimitsSpec, Mode, OnServerDown, OwnedAddress, OwnedKinds, Persistence,
    Protocol, Registry, Scheduler, ServerId, ServerNetwork, ServerSpec, ServiceSpec, SnatPoolSpec,
    SnatRangeSpec, Tables, TablesError, TunnelSpec, compile,
};
use crate::identity::Identities;
use crate::tables::wide;

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 100));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 101));

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(crate) fn owned(addr: IpAddr) -> OwnedAddress {
    OwnedAddress {
        addr,
        kinds: OwnedKinds {
            service: true,
            ..OwnedKinds::default()
        },
        leg: 0,
        group: GroupId::FIRST,
    }
}

pub(crate) fn server(n: u8) -> ServerSpec {
    ServerSpec {
        id: ServerId {
            addr: IpAddr::V4(Ipv4Addr::new(192, 168, 100, n)),
            port: 0,
        },
        weight: 1,
        up: true,
    }
}

pub(crate) fn service(name: &str) -> ServiceSpec {
    ServiceSpec {
        name: name.to_owned(),
        vip: VIP,
        protocol: Protocol::Tcp,
        ports: vec![80..=80],
        mode: Mode::Dnat,
        scheduler: Scheduler::Maglev,
        hairpin: Hairpin::Off,
        persistence: Persistence::default(),
        group: GroupId::FIRST,
        snat: Vec::new(),
        idle_timeout: Duration::from_mins(15),
        mss_clamp: None,
        per_packet: false,
        limits: LimitsSpec::default(),
        on_server_down: OnServerDown::default(),
        sync_after: Some(Duration::ZERO),
        mode_for: Vec::new(),
        tunnel: TunnelSpec::default(),
        servers: vec![server(10)],
    }
}

pub(crate) fn good() -> Tables {
    Tables {
        owned: vec![owned(VIP), owned(OTHER)],
        services: vec![service("web")],
        ..Tables::default()
    }
}

fn build(tables: &Tables) -> Result<Compiled, TablesError> {
    compile(&Registry::new([1, 2]), &Identities::new(1, 100), tables, 1, 400)
}

fn refused(change: impl FnOnce(&mut Tables)) -> TablesError {
    let mut tables = good();
    change(&mut tables);
    build(&tables).unwrap_err()
}

#[test]
fn limits_are_told_to_the_programs_only_where_there_are_some() {
    let value = |limits: LimitsSpec| {
        let mut tables = good();
        tables.services[0].limits = limits;
        let image = build(&tables).unwrap().image;
        let clients = image
            .entries
            .iter()
            .filter(|entry| matches!(entry, Entry::Client(..)))
            .count();
        (image.services[0].1.options, image.limits[0].1, clients)
    };
    assert_eq!(value(LimitsSpec::default()), (0, maps::Limits::default(), 0));
    let (options, limits, clients) = value(LimitsSpec {
        max_connections: Some(5),
        max_new_per_second: Some(1_000),
        deny: vec![net("10.1.0.0/16")],
        ..LimitsSpec::default()
    });
    assert_eq!(options, maps::service::LIMITED | maps::service::CLIENTS);
    assert_eq!((limits.max_connections, limits.max_per_source), (5, 0));
    assert_eq!(
        (limits.new_cost_ns, limits.new_burst_ns),
        (1_000_000, 100_000_000)
    );
    assert_eq!(clients, 1);
    let (options, ..) = value(LimitsSpec {
        allow: vec![net("10.0.0.0/8")],
        ..LimitsSpec::default()
    });
    assert_eq!(options, maps::service::CLIENTS | maps::service::ALLOWED_ONLY);
    let twice = refused(|t| {
        t.services[0].limits.allow = vec![net("10.0.0.0/8")];
        t.services[0].limits.deny = vec![net("10.0.0.0/8")];
    });
    assert!(matches!(twice, TablesError::DuplicatePrefix { .. }), "{twice:?}");
}

#[test]
fn a_port_that_clients_call_is_never_a_source_port() {
    let pool = |first, last| SnatPoolSpec {
        addr: VIP,
        first,
        last,
    };
    for (first, last, port) in [(80, 80, 80), (1, 1_000, 80), (50, 80, 80)] {
        let refused = refused(|t| t.services[0].snat = vec![pool(first, last)]);
        let of_web = |error: &TablesError| matches!(error, TablesError::SourceIsServicePort { port: p, .. } if *p == port);
        assert!(of_web(&refused), "{refused:?}");
        let refused = self::refused(|t| {
            t.snat_ranges = vec![SnatRangeSpec {
                addr: VIP,
                first,
                last,
            }];
        });
        assert!(of_web(&refused), "{refused:?}");
    }
    let mut tables = good();
    tables.services[0].snat = vec![pool(81, 90), pool(1, 79)];
    assert!(build(&tables).is_ok());
}

#[test]
fn tables_that_contradict_themselves_are_refused() {
    assert!(build(&good()).is_ok());
    assert!(matches!(
        refused(|t| t.services.push(service("web"))),
        TablesError::DuplicateService { name } if name == "web"
    ));
    assert!(matches!(
        refused(|t| t.services[0].servers.push(server(10))),
        TablesError::DuplicateServer { .. }
    ));
    assert!(matches!(
        refused(|t| t.owned.push(owned(VIP))),
        TablesError::DuplicateAddress { addr: VIP, .. }
    ));
    assert!(matches!(
        refused(|t| t.connected = vec![net("10.0.0.0/8"), net("10.1.0.0/8")]),
        TablesError::DuplicatePrefix { .. }
    ));
    assert!(matches!(
        refused(|t| t.owned.clear()),
        TablesError::NotOwned {
            what: "service VIP",
            ..
        }
    ));
    assert!(matches!(
        refused(|t| t.services[0].snat.push(SnatPoolSpec {
            addr: VIP,
            first: 0,
            last: 9
        })),
        TablesError::BadSourcePorts { .. }
    ));
    assert!(matches!(
        refused(|t| t.snat_ranges.push(SnatRangeSpec {
            addr: VIP,
            first: 9,
            last: 8
        })),
        TablesError::BadSourcePorts { .. }
    ));
    let gateway = IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1));
    assert!(matches!(
        refused(|t| t.server_networks.push(ServerNetwork {
            network: net("10.0.0.0/8"),
            gateway
        })),
        TablesError::NotOwned { what: "gateway", .. }
    ));
    for timeout in [Duration::ZERO, Duration::from_hours(10 * 365 * 24)] {
        assert!(matches!(
            refused(|t| t.services[0].idle_timeout = timeout),
            TablesError::BadTimeout { .. }
        ));
    }
}

#[test]
fn a_service_and_a_network_are_of_one_family() {
    let six: IpAddr = "2001:db8::10".parse().unwrap();
    let server_of_six = refused(|tables| tables.services[0].servers[0].id.addr = six);
    assert_eq!(
        server_of_six.to_string(),
        "service web: server 2001:db8::10 and the VIP 192.168.100.100 are not of one family"
    );
    let pool = SnatPoolSpec {
        addr: OTHER,
        first: 32_768,
        last: 49_151,
    };
    let source_of_four = refused(|tables| {
        tables.owned[0].addr = six;
        let service = &mut tables.services[0];
        (service.vip, service.servers[0].id.addr) = (six, "2001:db8::11".parse().unwrap());
        service.snat = vec![pool];
    });
    assert!(matches!(
        source_of_four,
        TablesError::MixedFamilies {
            what: "SNAT source",
            addr: OTHER,
            ..
        }
    ));
    let gateway_of_four = refused(|tables| {
        tables.server_networks = vec![ServerNetwork {
            network: net("2001:db8::/64"),
            gateway: OTHER,
        }];
    });
    assert!(matches!(gateway_of_four, TablesError::GatewayFamily { .. }));
}

#[test]
fn ports_are_checked_and_may_be_wanted_once() {
    assert!(matches!(
        refused(|t| t.services[0].ports.clear()),
        TablesError::BadPorts { .. }
    ));
    assert!(matches!(
        refused(|t| t.services[0].ports = vec![0..=5]),
        TablesError::BadPorts { .. }
    ));
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let reversed = vec![9..=5];
    assert!(matches!(
        refused(|t| t.services[0].ports = reversed),
        TablesError::BadPorts { .. }
    ));
    let wants = |ports, vip, protocol| {
        move |t: &mut Tables| {
            t.services[0].ports = vec![8_000..=8_100];
            t.services.push(ServiceSpec {
                vip,
                protocol,
                ports,
                ..service("other")
            });
        }
    };
    let taken = refused(wants(vec![8_080..=8_080], VIP, Protocol::Tcp));
    assert!(
        matches!(taken, TablesError::PortTaken { port: 8_080, .. }),
        "{taken}"
    );
    assert!(matches!(
        refused(|t| t.services[0].ports = vec![80..=80, 80..=81]),
        TablesError::PortTaken { .. }
    ));
    for (vip, protocol) in [(VIP, Protocol::Udp), (OTHER, Protocol::Tcp)] {
        let mut tables = good();
        wants(vec![8_080..=8_080], vip, protocol)(&mut tables);
        assert!(build(&tables).is_ok());
    }
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let many = refused(|t| t.services[0].servers = (0..=256).map(many_server).collect());
    let text = many.to_string();
    assert!(text.contains("257") && text.contains("256"), "{text}");
    // Every port of a server with port 0 answers: 1,000 of them, and 200 fit a slot here.
    let endpoints = refused(|t| t.services[0].ports = vec![1_000..=1_999]);
    assert!(
        matches!(
            endpoints,
            TablesError::TooMany {
                what: "ports of dnat servers",
                max: 200,
                ..
            }
        ),
        "{endpoints}"
    );
}

#[test]
fn ports_that_take_more_prefixes_than_the_trie_has_are_refused() {
    let error = refused(|t| {
        // 30 prefixes each, the worst a range can be.
        t.services = (0..2_300)
            .map(|n| ServiceSpec {
                ports: vec![1..=65_534],
                ..service(&format!("s{n}"))
            })
            .collect();
    });
    assert!(
        matches!(
            error,
            TablesError::TooMany {
                what: "prefixes of service ports",
                ..
            }
        ),
        "{error}"
    );
}

fn many_server(n: u32) -> ServerSpec {
    ServerSpec {
        id: ServerId {
            addr: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)),
            port: 0,
        },
        weight: 1,
        up: true,
    }
}

#[test]
fn a_port_range_becomes_prefixes_of_the_key() {
    let mut tables = good();
    tables.services[0].ports = vec![8_000..=8_003, 8_010..=8_010];
    let compiled = build(&tables).unwrap();
    let port = |entry: &Entry| match entry {
        Entry::Port(bits, key, service) => Some((*bits, u16::from_be_bytes(key.port), *service)),
        _ => None,
    };
    let ports: Vec<_> = compiled.image.entries.iter().filter_map(port).collect();
    assert_eq!(ports, [(158, 8_000, 0), (160, 8_010, 0)]);
    let key = compiled.image.entries.iter().find_map(|e| match e {
        Entry::Port(_, key, _) => Some(*key),
        _ => None,
    });
    assert_eq!(
        key,
        Some(ServiceKey {
            slot: 1,
            proto: 6,
            addr: wide(VIP).bytes(),
            port: [0x1f, 0x40]
        })
    );
}

#[test]
fn listed_hairpin_prefixes_are_scoped_by_slot_and_service() {
    let mut tables = good();
    tables.services[0].hairpin = Hairpin::Listed(vec![net("10.9.1.1/16")]);
    let compiled = build(&tables).unwrap();
    let key = ScopedPrefix {
        scope: [1, 0, 0, 0],
        addr: wide(IpAddr::from([10, 9, 0, 0])).bytes(),
    };
    assert!(compiled.image.entries.contains(&Entry::Hairpin(144, key)));
    assert_eq!(compiled.image.services[0].1.hairpin, maps::hairpin::LISTED);
}

#[test]
fn a_server_is_in_the_longest_connected_prefix() {
    let mut tables = good();
    tables.connected = vec![net("192.168.0.0/16"), net("192.168.100.0/24"), net("10.0.0.0/8")];
    tables.services[0].servers.push(many_server(1));
    tables.services[0].servers.push(ServerSpec {
        id: ServerId {
            addr: IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)),
            port: 0,
        },
        ..server(1)
    });
    let compiled = build(&tables).unwrap();
    let nets: Vec<u16> = compiled.servers.iter().map(|(_, server)| server.net).collect();
    assert_eq!(nets, [2, 3, 0]);
}

#[test]
fn both_nat_servers_have_no_endpoints() {
    let mut tables = good();
    let endpoints = |tables: &Tables| {
        let compiled = build(tables).unwrap();
        compiled
            .image
            .entries
            .iter()
            .filter(|e| matches!(e, Entry::Endpoint(_)))
            .count()
    };
    assert_eq!(endpoints(&tables), 1);
    tables.services[0].servers[0].id.port = 8_080;
    tables.services[0].ports = vec![1..=9_999];
    assert_eq!(
        endpoints(&tables),
        1,
        "a server with a port of its own answers from that one alone"
    );
    tables.services[0].mode = Mode::BothNat;
    assert_eq!(endpoints(&tables), 0);
}

#[test]
fn time_outs_become_ticks_rounded_up() {
    let ticks = |timeout| {
        let mut tables = good();
        tables.services[0].idle_timeout = timeout;
        build(&tables).unwrap().image.services[0].1.idle_ticks
    };
    assert_eq!(ticks(Duration::from_nanos(1)), 1);
    assert_eq!(ticks(Duration::from_nanos(1 << 26)), 1);
    assert_eq!(ticks(Duration::from_mins(1)), 895);
}

#[test]
fn servers_that_hold_the_vip_have_no_other_port_or_source() {
    let direct = |change: fn(&mut ServiceSpec)| {
        refused(|t| {
            t.services[0].mode = Mode::Dsr;
            change(&mut t.services[0]);
        })
    };
    let other_port = direct(|s| s.servers[0].id.port = 8_080);
    assert!(
        matches!(other_port, TablesError::DirectPort { .. }),
        "{other_port:?}"
    );
    let source = direct(|s| {
        s.mode_for = vec![("10.9.0.0/16".parse().unwrap(), Mode::BothNat)];
        s.snat = vec![SnatPoolSpec {
            addr: VIP,
            first: 32_768,
            last: 49_151,
        }];
    });
    assert!(matches!(source, TablesError::DirectSource { .. }), "{source:?}");
    let tunnel = direct(|s| s.tunnel.gue_port = Some(0));
    assert!(matches!(tunnel, TablesError::BadTunnel { .. }), "{tunnel:?}");
}

#[test]
fn modes_by_client_and_the_outer_header_are_compiled() {
    let mut tables = good();
    tables.services[0].mode = Mode::L3Dsr;
    tables.services[0].mode_for = vec![("10.9.0.0/16".parse().unwrap(), Mode::Dnat)];
    tables.services[0].tunnel = TunnelSpec {
        gue_port: Some(6_080),
        sources: Some("172.31.0.0/24".parse().unwrap()),
    };
    let image = build(&tables).unwrap().image;
    assert_eq!(image.services[0].1.mode, maps::mode::L3_DSR | maps::mode::RULES);
    let rules: Vec<_> = image
        .entries
        .iter()
        .filter(|e| matches!(e, Entry::ModeRule(144, _, 1)))
        .collect();
    assert_eq!(rules.len(), 1);
    let (_, tunnel) = image.tunnels[0];
    assert_eq!(
        (tunnel.port, tunnel.spread),
        (6_080_u16.to_be(), 0xff_u32.to_be())
    );
}
