use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use clap::CommandFactory as _;
use onearm_types::NodeId;

use super::exit::Failure;
use super::{Cli, Exit, events, flows, output, probe, services, status};
use crate::control::*;

fn status_of_an_active() -> Status {
    Status {
        node: NodeStatus {
            name: "lb1".into(),
            id: NodeId::new(1).expect("1 is an id"),
            version: "0.1.0".into(),
            uptime_ms: 93_784_000,
        },
        state: NodeState::Active,
        since_ms: 3_723_000,
        reason: "no advert from the peer for 3 intervals".into(),
        lease: LeaseStatus {
            valid: true,
            deadline_ns: 77,
            remaining_us: 41_500,
            epoch: 12,
        },
        peer: PeerStatus {
            address: Some(IpAddr::from([192, 168, 100, 3])),
            last_seen_ms: Some(41),
            state: Some(NodeState::Standby),
            priority: Some(100),
            advert_interval_ms: Some(100),
            mac: Some("02:00:00:00:00:03".into()),
        },
        stream: StreamStatus {
            state: StreamState::Open,
            since_ms: Some(11_100_000),
            peer_name: Some("lb2".into()),
            peer_id: Some(NodeId::new(2).expect("2 is an id")),
            peer_version: Some("0.1.0".into()),
            protocol: Some(1),
            key: Some(2),
            sessions: 2,
            frames_in: 11_200,
            ended: [("reset".into(), 1)].into(),
            last_error: Some("the connection was reset".into()),
            ..StreamStatus::default()
        },
        owned: OwnedStatus::default(),
        sync: SyncStatus {
            verdict: SyncVerdict::Behind,
            records_behind: 12,
            oldest_behind_ms: 1,
            lag_p50_us: 400,
            lag_p99_us: 1_200,
            ..SyncStatus::default()
        },
        legs: vec![LegStatus {
            name: "lan".into(),
            interface: "enp65s0f1".into(),
            vlan: Some(100),
            role: "service".into(),
            attach: "auto".into(),
            mode: "generic".into(),
            reason: "generic: the driver has no native XDP; about twice the cost per packet".into(),
            mac: Some("02:00:00:00:00:02".into()),
            addresses: vec![
                IpAddr::from([192, 168, 100, 2]),
                "2001:db8:100::2".parse().expect("an address"),
            ],
            carrier: true,
        }],
        config: ConfigStatus {
            digest: "0123456789abcdef".repeat(4),
            peer_digest: None,
            differs: false,
        },
        ha: HaStatus {
            vrid: 51,
            priority: 150,
            effective_priority: 150,
            advert_interval_ms: 100,
            auth: "none".into(),
            authentication: None,
            stance: "normal".into(),
            peer_stance: None,
            preempt: false,
            realtime: true,
            has: HaStatus::FITNESS.map(str::to_owned).into(),
            peer_has: None,
            tracked: Vec::new(),
            counters: BTreeMap::from([
                ("adverts_sent".into(), 1_234_567),
                ("adverts_received".into(), 89),
                ("send_errors".into(), 0),
                ("announcements_sent".into(), 4_000),
            ]),
        },
        dataplane: DataplaneStatus {
            flows: 123_456,
            half_open: 12,
            max_flows: 1_000_000,
            max_half_open: 65_536,
            map_bytes: 301_000_000,
            usage: usage(),
            counters: BTreeMap::from([("dnat_reply_without_flow".into(), 3)]),
        },
        warnings: vec!["adverts are not authenticated (auth = \"none\")".into()],
    }
}

fn usage() -> Vec<UsageStatus> {
    let of = |name: &str, used, limit| UsageStatus {
        name: name.into(),
        used,
        limit,
        percent: used * 100 / limit,
    };
    vec![
        of("IPv4 flows", 123_456, 1_000_000),
        of("IPv6 flows", 0, 1_000_000),
        of("half-open flows", 12, 65_536),
        of(
            "SNAT ports of 2001:db8:100::100 to [2001:db8:100::10]:8443",
            16_384,
            16_384,
        ),
    ]
}

fn servers() -> Vec<ServiceStatus> {
    let server = |name: &str, health, effective_weight, last_check| ServerStatus {
        name: name.into(),
        address: IpAddr::from([192, 168, 100, 210]),
        port: Some(8080),
        weight: 3,
        effective_weight,
        health,
        last_check,
        traffic: Traffic {
            flows: 12_345_678,
            refused: 7,
            ..Traffic::default()
        },
    };
    let check = |passed, detail: &str| {
        Some(LastCheck {
            age_ms: 1_234,
            passed,
            detail: detail.into(),
            in_a_row: 1_000,
        })
    };
    vec![
        ServiceStatus {
            name: "web".into(),
            vip: IpAddr::from([192, 168, 100, 100]),
            protocol: "tcp".into(),
            ports: vec!["80".into(), "8000-8100".into()],
            mode: "dnat".into(),
            mode_for: vec![ClientsMode {
                clients: vec!["10.9.0.0/16".into()],
                mode: "dsr".into(),
            }],
            scheduler: "maglev".into(),
            traffic: Traffic::default(),
            open: 900,
            max_connections: Some(1_000),
            refusals: Refusals::default(),
            servers: vec![
                server("s1", ServerHealth::Up, 3, check(true, "connected in 0.4 ms")),
                server(
                    "application-server-2",
                    ServerHealth::Down,
                    0,
                    check(false, "no answer in 1000 ms"),
                ),
                server("s3", ServerHealth::Unchecked, 3, None),
            ],
        },
        ServiceStatus {
            name: "dead".into(),
            vip: IpAddr::from([192, 168, 100, 101]),
            protocol: "udp".into(),
            ports: vec!["53".into()],
            mode: "both-nat".into(),
            mode_for: Vec::new(),
            scheduler: "wrr".into(),
            traffic: Traffic::default(),
            open: 0,
            max_connections: None,
            refusals: Refusals::default(),
            servers: vec![server("s1", ServerHealth::Pending, 0, None)],
        },
    ]
}

fn fits(text: &str) -> &str {
    for line in text.lines() {
        assert!(
            line.chars().count() <= 80,
            "{} columns: {line}",
            line.chars().count()
        );
        assert_eq!(line, line.trim_end(), "blanks at the end");
    }
    text
}

#[test]
fn what_is_tracked_is_shown_with_its_state_since_when_and_why_and_what_each_node_lacks() {
    let mut status = status_of_an_active();
    status.ha.has.retain(|word| word != "scripts");
    status.ha.peer_has = Some(vec!["dataplane".into(), "receives".into(), "legs".into()]);
    let thing = |kind, name: &str, state, counts, detail: &str| TrackedStatus {
        kind,
        name: name.into(),
        state,
        counts,
        since_ms: 61_000,
        detail: detail.into(),
    };
    let long = "exit code 7: no answer from 192.0.2.1, nor from any other of the hosts that the way to the provider goes by";
    status.ha.tracked = vec![
        thing(TrackedKind::Script, "uplink", TrackedState::Failed, true, long),
        thing(
            TrackedKind::Servers,
            "web",
            TrackedState::Good,
            false,
            "3 of 3 servers are up, 2 must be",
        ),
    ];
    let text = status::show(&status);
    fits(&text);
    assert!(
        text.contains("fitness    this node lacks: scripts; the peer lacks: witness, servers,"),
        "{text}"
    );
    for words in [
        "TRACKED",
        "script",
        "uplink",
        "FAILED",
        "1 m 1 s",
        "servers",
        "web",
        "does not count",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn status_fits_80_columns_and_says_who_owns_what_and_why() {
    let text = status::show(&status_of_an_active());
    assert_eq!(
        fits(&text),
        "\
node       lb1 (id 1), onearm 0.1.0, up 1 d 2 h
state      active for 1 h 2 m: no advert from the peer for 3 intervals
lease      valid, 42 ms left (renewed all the time), epoch 12
peer       192.168.100.3 standby, heard 41 ms ago, priority 100, every 100 ms
stream     lb2 (onearm 0.1.0) for 3 h 5 m, protocol 1, key 2; session 2, the one
           before: the connection was reset
flow sync  behind by 12 (oldest 1 ms); acknowledged after 0.4 ms, 99 of 100
           within 1.2 ms
election   vrid 51, priority 150, adverts every 100 ms, auth none, real-time
pair.toml  0123456789ab, the peer's is not known
flows      123,456 of 1,000,000, half-open 12 of 65,536; maps 301 MB

LEG  INTERFACE      ROLE     ATTACHED  LINK  ADDRESS          MAC
lan  enp65s0f1.100  service  generic   up    192.168.100.2    02:00:00:00:00:02
                                             2001:db8:100::2
lan: generic: the driver has no native XDP; about twice the cost per packet

in use
   12 %  123,456 of 1,000,000 IPv4 flows
    0 %  12 of 65,536 half-open flows
  100 %  16,384 of 16,384 SNAT ports of 2001:db8:100::100 to
         [2001:db8:100::10]:8443

protocol
  adverts_received                  89  adverts_sent               1,234,567
  announcements_sent             4,000

packets
  dnat_reply_without_flow            3

stream
  ended_reset                        1  frames_in                     11,200
  sessions                           2

! adverts are not authenticated (auth = \"none\")
"
    );
}

#[test]
fn a_lease_is_told_valid_ended_or_none() {
    let mut status = status_of_an_active();
    for (lease, says) in [
        (
            LeaseStatus {
                valid: false,
                deadline_ns: 5,
                remaining_us: -3_200_000,
                epoch: 2,
            },
            "ended 3.2 s ago, epoch 2",
        ),
        (
            LeaseStatus {
                valid: false,
                deadline_ns: 0,
                remaining_us: 0,
                epoch: 0,
            },
            "none, epoch 0",
        ),
        (
            LeaseStatus {
                valid: true,
                deadline_ns: 5,
                remaining_us: 1,
                epoch: 2,
            },
            "valid, 1 ms left",
        ),
    ] {
        status.lease = lease;
        assert!(status::show(&status).contains(says));
    }
}

#[test]
fn healthy_is_able_to_do_its_part() {
    let good = status_of_an_active();
    let changed = |change: &dyn Fn(&mut Status)| {
        let mut status = good.clone();
        change(&mut status);
        status::healthy(&status)
    };
    assert!(status::healthy(&good));
    assert!(
        changed(&|s| s.warnings.push("another".into())),
        "a warning is no failure"
    );
    assert!(changed(
        &|s| (s.state, s.lease.valid) = (NodeState::Standby, false)
    ));
    assert!(!changed(&|s| s.lease.valid = false), "Active without lease");
    assert!(!changed(&|s| s.state = NodeState::Initialize));
    assert!(!changed(&|s| s.config.differs = true));
    assert!(!changed(&|s| s.legs[0].carrier = false));
    assert!(!changed(&|s| s.legs[0].mode = "none".into()));
}

#[test]
fn services_fit_80_columns_and_a_service_without_server_stands_out() {
    let text = services::show(&servers());
    let text = fits(&text);
    assert!(
        text.contains("web: 192.168.100.100 tcp 80,8000-8100, dnat (dsr for 10.9.0.0/16), maglev\n"),
        "{text}"
    );
    assert!(
        text.contains("dead: 192.168.100.101 udp 53, both-nat, wrr: NO SERVER\n"),
        "{text}"
    );
    for word in [
        "DOWN",
        "pending",
        "3 (now 0)",
        "12,345,678",
        "  connections: 900 of 1,000\n",
    ] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    assert!(services::has_server(&servers()[0]) && !services::has_server(&servers()[1]));
    assert_eq!(services::show(&[]), "no services\n");
}

#[test]
fn flows_show_both_sides_of_the_translation() {
    let at = |last, port| SocketAddr::new(IpAddr::from([192, 168, 100, last]), port);
    let flow = FlowEntry {
        protocol: "tcp".into(),
        client: at(250, 65_535),
        vip: at(100, 65_535),
        server: at(210, 65_535),
        mode: "dnat".into(),
        hairpin: true,
        snat: Some(at(100, 65_535)),
        service: Some("web".into()),
        state: "established".into(),
        idle_ms: 1_500,
        expires_ms: 899_000,
    };
    let direct = FlowEntry {
        mode: "l3-dsr".into(),
        hairpin: false,
        snat: None,
        service: None,
        ..flow.clone()
    };
    let text = flows::show(&FlowList {
        flows: vec![flow, direct],
        matched: 1_234_567,
    });
    assert_eq!(
        fits(&text),
        "\
tcp  192.168.100.250:65535 → 192.168.100.100:65535  established hairpin  web
     192.168.100.100:65535 → 192.168.100.210:65535  idle 1.5 s, ends 14 m 59 s
tcp  192.168.100.250:65535 → 192.168.100.100:65535  established l3-dsr   -
     192.168.100.250:65535 → 192.168.100.210:65535  idle 1.5 s, ends 14 m 59 s
2 of 1,234,567 flows
"
    );
}

#[test]
fn events_and_probes_are_one_thought_a_line() {
    let mut log = EventLog::new(1);
    for n in [1, 2] {
        log.record(
            1_700_000_000_123,
            NewEvent {
                severity: Severity::Warning,
                kind: "server-down",
                message: format!("server s{n} is down"),
                remedy: "look at it".into(),
            },
            None,
        );
    }
    assert_eq!(
        events::show(&log.list(EventQuery::default())),
        "\
(1 older events are no longer kept)
2023-11-14 22:13:20.123 #2 warning server-down
    server s2 is down
    → look at it
"
    );
    let result = ProbeResult {
        client_node: "lb2".into(),
        client: Some("192.168.100.3:41000".parse().expect("an address")),
        target: "192.168.100.100:80".parse().expect("an address"),
        connected: true,
        elapsed_us: 1_290,
        detail: "connected".into(),
    };
    assert_eq!(
        probe::show(&result),
        "lb2 from 192.168.100.3:41000 → 192.168.100.100:80: connected (1.2 ms)\n"
    );
}

#[test]
fn numbers_and_times_are_for_people() {
    for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(output::grouped(number), text);
    }
    for (ms, text) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_999, "59.9 s"),
        (60_000, "1 m 0 s"),
        (3_600_000, "1 h 0 m"),
        (90_000_000, "1 d 1 h"),
    ] {
        assert_eq!(output::span(ms), text);
    }
    for (bytes, text) in [
        (9_999, "9999 B"),
        (10_000, "10 kB"),
        (285_212_672, "285 MB"),
        (20_000_000_000, "20 GB"),
    ] {
        assert_eq!(output::size(bytes), text);
    }
}

#[test]
fn the_exit_code_says_what_kind_of_no_it_was() {
    let refused = |refusal| Failure::Client(ClientError::Refused(refusal));
    let io = || std::io::Error::from(std::io::ErrorKind::TimedOut);
    for (failure, code) in [
        (refused(Refusal::usage("")), 2),
        (refused(Refusal::state("")), 4),
        (
            refused(Refusal {
                kind: RefusalKind::Busy,
                message: String::new(),
            }),
            5,
        ),
        (refused(Refusal::internal("")), 70),
        (
            Failure::Client(ClientError::Connect {
                path: "/x".into(),
                source: io(),
            }),
            5,
        ),
        (Failure::Client(ClientError::Exchange(io())), 5),
        (Failure::Client(ClientError::AnswerTooLong), 70),
        (Failure::Output(io()), 70),
    ] {
        assert_eq!(Exit::of(&failure) as u8, code, "{failure}");
    }
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn keys_are_shown_by_fingerprint_with_what_the_peer_holds_and_since_when_it_speaks() {
    let key = |id, fingerprint: &str| KeyStatus {
        id,
        fingerprint: fingerprint.to_owned(),
    };
    let mut auth = AuthenticationStatus {
        rollout: "enforce".to_owned(),
        keys: vec![key(1, "aaaa-1"), key(2, "bbbb-2")],
        signing_key: Some(2),
        peer_key: Some(2),
        peer_since_ms: Some(7_260_000),
        peer_heard_ms: Some(40),
    };
    let line = |auth: &AuthenticationStatus| {
        let mut shown = status_of_an_active();
        shown.ha.authentication = Some(auth.clone());
        let text = status::show(&shown);
        let from = text.find("keys  ").expect("a line of keys");
        let end = text[from..].find("pair.toml").expect("the next line");
        text[from..from + end]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        line(&auth),
        "keys key 2 (bbbb-2) in use, key 1 (aaaa-1) believed; the peer holds key 2, authenticated for 2 h 1 m"
    );
    auth.peer_heard_ms = Some(60_000);
    assert!(
        line(&auth).ends_with("the peer held key 2 when it was heard with authentication last, 1 m 0 s ago")
    );
    auth.peer_key = None;
    "accept".clone_into(&mut auth.rollout);
    auth.signing_key = None;
    assert_eq!(
        line(&auth),
        "keys key 1 (aaaa-1) believed, key 2 (bbbb-2) believed; the peer was not heard with authentication yet; rollout \"accept\""
    );
}
