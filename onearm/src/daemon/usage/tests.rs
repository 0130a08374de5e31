use std::net::{IpAddr, Ipv4Addr};

use onearm_dataplane::{Persistent, ServiceUsage, SnatUsage, Usage};
use proptest::prelude::*;

use super::{LEVELS, Levels, Use, shown, uses, warnings};
use crate::config::{PairConfig, Source, parse_pair};
use crate::control::Severity;

const PAIR: &str = r#"
format = 1
ha = { vrid = 51, auth = "none" }
limits = { max_flows = 10_000, half_open = 1_000, dsr_flows = 2_000, persistent_clients = 1_024 }
[[service]]
name = "web"
vip = "192.168.100.100"
leg = "lan"
protocol = "tcp"
ports = [80]
mode = "both-nat"
scheduler = "source-hash"
persistence = "10m"
max_connections = 200
server = [{ name = "s1", address = "192.168.100.10" }, { name = "s2", address = "192.168.100.11" }]
[[service]]
name = "direct"
vip = "192.168.100.101"
leg = "lan"
protocol = "tcp"
ports = [80]
mode = "dsr"
server = [{ name = "s1", address = "192.168.100.12" }]
"#;

fn pair() -> PairConfig {
    parse_pair(Source::new("pair.toml", PAIR)).parsed.config
}

/// Everything about so full, in percent; of two SNAT sources one.
fn full(percent: u64) -> Usage {
    let source = |n, used| SnatUsage {
        addr: IpAddr::V4(Ipv4Addr::new(192, 168, 100, n)),
        ports: 16_384,
        used,
        server: (used > 0).then(|| "192.168.100.11:80".parse().unwrap()),
    };
    Usage {
        flows: 100 * percent,
        flows6: 0,
        half_open: 10 * percent,
        direct: 20 * percent,
        persistent: Persistent {
            clients: (1_024 * percent).div_ceil(100),
            evicted: 0,
        },
        last_hops: (65_536 * percent).div_ceil(100),
        next_hops: (32_768 * percent).div_ceil(100),
        fragments: 0,
        services: vec![
            ServiceUsage {
                name: "web".into(),
                open: 2 * percent,
            },
            ServiceUsage {
                name: "direct".into(),
                open: 9,
            },
        ],
        snat: vec![
            source(100, (16_384 * percent).div_ceil(100)),
            source(101, 5),
            source(102, 0),
        ],
    }
}

fn of(usage: &Usage, percent: u64) -> Vec<Use> {
    uses(&pair(), usage, (65_536 * percent).div_ceil(100))
}

#[test]
fn b153_everything_that_can_run_out_is_told_at_50_85_and_100_percent_by_name() {
    let names = [
        "IPv4 flows",
        "half-open flows",
        "flows of dsr and l3-dsr",
        "clients that stay with their server",
        "neighbours of clients",
        "next hops",
        "fragmented datagrams in five seconds",
        "connections of service web",
        "SNAT ports of 192.168.100.100 to 192.168.100.11:80",
    ];
    let mut levels = Levels::default();
    for percent in [0, 49] {
        let uses = of(&full(percent), percent);
        assert_eq!(levels.judge(&uses), [], "{percent} %");
        assert!(warnings(&uses, &levels).is_empty());
    }
    for percent in LEVELS {
        let uses = of(&full(percent), percent);
        let events = levels.judge(&uses);
        for name in names {
            let said: Vec<_> = events
                .iter()
                .filter(|event| event.message.contains(name))
                .collect();
            let [event] = said[..] else {
                panic!("{percent} %: {name}: {events:#?}")
            };
            assert!(
                event.message.starts_with(&format!("{percent} % in use: ")),
                "{}",
                event.message
            );
            assert!(!event.remedy.is_empty());
            let warned = percent > 50;
            assert_eq!(event.severity == Severity::Warning, warned, "{name} {percent} %");
            assert_eq!(
                warnings(&uses, &levels)
                    .iter()
                    .any(|warning| warning.contains(name)),
                warned
            );
        }
        assert!(
            !events
                .iter()
                .any(|event| event.message.contains("IPv6") || event.message.contains("192.168.100.101"))
        );
        assert_eq!(levels.judge(&uses), [], "once");
    }
    let fell = levels.judge(&of(&full(5), 5));
    assert_eq!(fell.len(), 1, "{fell:#?}");
    assert_eq!((fell[0].severity, fell[0].kind), (Severity::Info, "usage-fell"));
}

#[test]
fn b153_a_share_that_goes_up_and_down_about_a_level_is_told_once() {
    let mut levels = Levels::default();
    let mut told = 0;
    for round in 0..100 {
        let percent = if round % 2 == 0 { 86 } else { 79 };
        told += levels
            .judge(&of(&full(percent), percent))
            .iter()
            .filter(|e| e.message.contains("IPv4"))
            .count();
    }
    assert_eq!(told, 1);
    assert!(
        !warnings(&of(&full(79), 79), &levels).is_empty(),
        "still warned of"
    );
    assert_eq!(levels.judge(&of(&full(74), 74)).len(), 1);
    assert!(warnings(&of(&full(74), 74), &levels).is_empty());
}

#[test]
fn a_thousand_services_at_once_are_one_event() {
    let of = |n: u32| Use {
        name: format!("connections of service s{n}"),
        detail: None,
        used: 9,
        limit: 10,
        remedy: "more",
        always: false,
    };
    let uses: Vec<Use> = (0..1_000).map(of).collect();
    let mut levels = Levels::default();
    let events = levels.judge(&uses);
    assert_eq!(events.len(), 1);
    assert!(
        events[0].message.ends_with("and 992 more"),
        "{}",
        events[0].message
    );
    assert_eq!(warnings(&uses, &levels).len(), 1);
}

#[test]
fn status_shows_every_table_and_those_sources_alone_that_run_out_of_ports() {
    let names = |percent| {
        shown(of(&full(percent), percent))
            .into_iter()
            .map(|of| of.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(10).len(), 8);
    let more = names(60);
    assert_eq!(more.len(), 9);
    assert_eq!(more[8], "SNAT ports of 192.168.100.100 to 192.168.100.11:80");
    let shown = shown(of(&full(60), 60));
    assert_eq!(
        (shown[0].used, shown[0].limit, shown[0].percent),
        (6_000, 10_000, 60)
    );
}

proptest! {
    #[test]
    fn a_level_is_reached_at_its_share_and_left_ten_percent_below(shares in prop::collection::vec(0_u64..130, 1..60)) {
        let mut level = 0;
        for share in shares {
            let next = Levels::next(level, share);
            let reached = LEVELS.into_iter().filter(|l| share >= *l).max().unwrap_or(0);
            prop_assert!(next >= reached, "told at once");
            prop_assert!(next == 0 || share + super::HYSTERESIS >= next, "not for ever");
            prop_assert!(next == reached || next <= level, "no level that was never reached");
            level = next;
        }
    }
}
