use std::fmt::Write as _;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const NODE: &str = include_str!("../../../etc/examples/node-lb1.toml");
const PAIR: &str = include_str!("../../../etc/examples/pair.toml");
const BOTH_NAT: &str = include_str!("../../../etc/examples/pair-both-nat.toml");
const DSR: &str = include_str!("../../../etc/examples/pair-dsr.toml");
const GATEWAY: &str = include_str!("../../../etc/examples/pair-gateway.toml");

/// Both files as the daemon judges them.
fn judge(node: &str, pair: &str) -> (Parsed<NodeConfig>, PairFile) {
    let mut node = parse_node(Source::new("node.toml", node));
    let mut pair = parse_pair(Source::new("pair.toml", pair));
    crate::check::lint(&mut node, &mut pair);
    (node, pair)
}

fn rules(pair: &str) -> Vec<&'static str> {
    judge(NODE, pair)
        .1
        .parsed
        .diagnostics
        .iter()
        .map(|d| d.rule)
        .collect()
}

fn config(pair: &str) -> PairConfig {
    let (_, file) = judge(NODE, pair);
    assert!(!file.parsed.is_draft(), "{:?}", file.parsed.diagnostics);
    file.parsed.config
}

/// A file with `services` services of `servers` servers each, in both-nat, `vips` VIPs in turn.
fn generated(services: usize, servers: usize, vips: usize) -> String {
    let mut text = String::from("format = 1\nha = { vrid = 1, auth = \"none\" }\n");
    for service in 0..services {
        let (vip, port) = (service % vips, 1 + service / vips);
        write!(
            text,
            "[[service]]\nname = \"s{service}\"\nvip = \"10.1.{}.{}\"\nprotocol = \"tcp\"\nports = [{port}]\nmode = \"both-nat\"\nserver = [",
            vip / 256,
            vip % 256,
        )
        .unwrap();
        for server in 0..servers {
            let number = service * servers + server;
            write!(
                text,
                "{{name=\"{server}\",address=\"10.2.{}.{}\"}},",
                number / 256 % 256,
                number % 256
            )
            .unwrap();
        }
        text.push_str("]\n");
    }
    text
}

#[test]
fn the_contract_of_the_design_is_read_as_it_is_meant() {
    let (node, _) = judge(
        r#"
name = "lb1"
id = 1
priority = 150
peer = { address = "192.168.100.3", interface = "eth1", key_file = "/etc/onearm/pair.key" }
[[leg]]
name = "lan"
interface = "eth0"
vlan = "none"
role = "service"
attach = "auto"
"#,
        PAIR,
    );
    // It says nothing of the addresses on the peer link.
    let rules: Vec<_> = node.diagnostics.iter().map(|found| found.rule).collect();
    assert_eq!((rules, node.is_draft()), (vec!["peer-link"], false));
    assert_eq!(node.config.peer.key_file.to_str(), Some("/etc/onearm/pair.key"));
    assert_eq!(node.config.priority, 150);
    assert_eq!(node.config.peer.interface.as_deref(), Some("eth1"));
    assert_eq!(node.config.legs[0].vlan, None);
    let pair = config(
        r#"
format = 1
ha = { vrid = 51, advert_interval = "100ms", auth = "hmac", preempt = false, announce = ["192.168.100.100"] }
limits = { max_flows = 1_000_000, half_open = 65_536 }
[[gateway]]
address = "192.168.100.1/24"
leg = "lan"
[[service]]
name = "web"
vip = "192.168.100.100"
protocol = "tcp"
ports = [80, 443]
mode = "dnat"
hairpin = "auto"
scheduler = "maglev"
snat = ["192.168.100.100"]
idle_timeout = "15m"
mss_clamp = 1440
udp = "flow"
sync_after = "3s"
check = { type = "tcp", interval = "2s", timeout = "1s", rise = 2, fall = 3 }
server = [ { name = "s1", address = "192.168.100.10", weight = 1 }, { name = "s2", address = "192.168.100.11", port = 8080, weight = 1 } ]
"#,
    );
    assert_eq!(pair.ha.advert_interval, Duration::from_millis(100));
    assert_eq!(pair.gateways[0].address.to_string(), "192.168.100.1/24");
    let web = &pair.services[0];
    assert_eq!(
        (web.mode, &web.hairpin, web.scheduler),
        (Mode::Dnat, &Hairpin::Auto, Scheduler::Maglev)
    );
    assert_eq!(web.idle_timeout, Duration::from_mins(15));
    assert_eq!((web.mss_clamp, web.per_packet), (Some(1_440), false));
    assert_eq!(web.sync_after, SyncAfter::Time(Duration::from_secs(3)));
    assert_eq!(web.servers[1].port, Some(8080));
    assert_eq!(
        (web.check_port(&web.servers[0]), web.check_port(&web.servers[1])),
        (80, 8080)
    );
    let check = web.check.unwrap();
    assert_eq!(
        (
            check.interval.as_secs(),
            check.timeout.as_secs(),
            check.rise,
            check.fall
        ),
        (2, 1, 2, 3)
    );
}

#[test]
fn what_the_file_leaves_out_has_its_documented_default() {
    let pair = config(
        r#"
format = 1
ha = { vrid = 51, auth = "none" }
service = [
  { name = "t", vip = "10.0.0.1", protocol = "tcp", ports = [1], mode = "both-nat", server = [{ name = "s", address = "10.0.0.9" }], check = { type = "tcp" } },
  { name = "u", vip = "10.0.0.2", protocol = "udp", ports = [1], mode = "both-nat", server = [{ name = "s", address = "10.0.0.9" }] },
]
"#,
    );
    assert_eq!(pair.ha.advert_interval, Duration::from_millis(100));
    assert_eq!(pair.ha.announce, [pair.services[0].vip]);
    assert_eq!(
        (pair.ha.announce_rate, pair.ha.announce_refresh),
        (200, Some(Duration::from_mins(1)))
    );
    assert!(!pair.ha.preempt);
    assert_eq!(pair.ha.transport, Transport::Multicast);
    assert_eq!(
        (pair.limits.max_flows, pair.limits.half_open),
        (1_000_000, 65_536)
    );
    let [t, u] = &*pair.services else { panic!() };
    assert_eq!(
        (t.idle_timeout, u.idle_timeout),
        (Duration::from_mins(15), Duration::from_mins(3))
    );
    assert_eq!(
        (t.snat.len(), t.snat[0].address, t.snat[0].ports.to_string()),
        (1, t.vip, "32768-65535".to_owned())
    );
    assert_eq!(
        (t.servers[0].weight, t.servers[0].port, t.leg.as_deref()),
        (1, None, None)
    );
    let check = t.check.unwrap();
    assert_eq!(
        (
            check.interval.as_secs(),
            check.timeout.as_secs(),
            check.rise,
            check.fall
        ),
        (2, 1, 2, 3)
    );
    assert_eq!(u.check, None);
    let (node, _) = judge(
        "name = \"a\"\nid = 2\npeer = { address = \"10.0.0.3\" }\nleg = [{ name = \"l\", interface = \"e\" }]",
        PAIR,
    );
    assert_eq!(
        (
            node.config.priority,
            node.config.legs[0].role,
            node.config.legs[0].attach
        ),
        (100, Role::Service, Attach::Auto)
    );
    let small = config(
        "format = 1\nha = { vrid = 1, auth = \"none\" }\nlimits = { max_flows = 2000 }\ngateway = [{ address = \"10.0.0.1/8\", leg = \"lan\" }]",
    );
    assert_eq!(small.limits.half_open, 2000, "never more than the flows");
    assert!(small.gateways[0].transit);
}

#[test]
fn a_snat_source_has_a_range_of_its_own_or_that_of_the_service() {
    let with = |snat: &str| {
        let service = format!("ports = [80]\nsnat_ports = \"40000-49999\"\nsnat = {snat}");
        let text = PAIR.replacen("ports = [80, 443]", &service, 1);
        assert_ne!(text, PAIR);
        parse_pair(Source::new("pair.toml", text)).parsed
    };
    let parsed = with(r#"["10.0.0.1", "10.0.0.2:20000-29999"]"#);
    assert_eq!(parsed.diagnostics, []);
    let sources: Vec<_> = parsed.config.services[0]
        .snat
        .iter()
        .map(|s| (s.address.to_string(), s.ports.to_string()))
        .collect();
    assert_eq!(
        sources,
        [
            ("10.0.0.1".to_owned(), "40000-49999".to_owned()),
            ("10.0.0.2".to_owned(), "20000-29999".to_owned())
        ]
    );
    for (bad, rule) in [
        (r#"["10.0.0.1:"]"#, "port"),
        (r#"["10.0.0.1:0-9"]"#, "port"),
        (r#"["10.0.0.1:9-8"]"#, "port"),
        (r#"["10.0.0.1:80"]"#, "range"),
        (r#"["10.0.0.256:80-90"]"#, "address"),
        (r#"["nat.example:80-90"]"#, "address"),
    ] {
        let found = with(bad).diagnostics;
        assert!(found.iter().any(|d| d.rule == rule), "{bad}: {found:?}");
    }
}

#[test]
fn each_client_has_a_mode_and_each_tunnel_its_header() {
    let pair = config(DSR);
    let [video, dns] = &*pair.services else { panic!() };
    assert_eq!(video.modes().collect::<Vec<_>>(), [Mode::Dsr, Mode::BothNat]);
    assert_eq!(video.mode_for[0].clients[0].to_string(), "10.9.0.0/16");
    assert!(video.is_direct() && video.translates_source() && !video.has_mode(Mode::Dnat));
    assert!(dns.is_direct() && !dns.translates_source());
    assert_eq!(
        (video.tunnel.kind, dns.tunnel.kind, dns.tunnel.port),
        (TunnelKind::Ipip, TunnelKind::Gue, 6_080)
    );
    assert_eq!(dns.tunnel.sources.unwrap().to_string(), "10.255.0.0/24");
    let owned: Vec<_> = pair.owned_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(owned, ["192.168.100.90", "192.168.100.100", "192.168.100.101"]);
}

#[test]
fn affinities_have_room_only_where_servers_answer_themselves() {
    let of = |text: &str| config(text).limits.dsr_flows;
    assert_eq!(of(PAIR), 0);
    assert_eq!(of(DSR), 200_000);
    let unsaid = DSR.replace("dsr_flows =", "# ");
    assert_eq!(of(&unsaid), 50_000);
    assert_eq!(of(&DSR.replace("dsr_flows = 200_000", "dsr_flows = 0")), 0);
    assert_eq!(
        rules(&DSR.replace("dsr_flows = 200_000", "dsr_flows = 200_001")),
        ["dsr-flows"]
    );
}

#[test]
fn there_is_room_for_half_as_many_ipv6_flows_unless_there_are_no_others() {
    let room = |gateway: &str, limits: &str| {
        let head = "format = 1\nha = { vrid = 1, auth = \"none\" }";
        let text = format!("{head}\n{limits}\ngateway = [{{ address = \"{gateway}\", leg = \"lan\" }}]");
        config(&text).limits
    };
    let (four, six) = ("10.0.0.1/8", "2001:db8::1/64");
    assert_eq!(room(four, "").max_flows6, 500_000);
    assert_eq!(room(six, "").max_flows6, 1_000_000);
    assert_eq!(room(six, "limits = { max_flows = 2_000 }").max_flows6, 2_000);
    assert_eq!(room(four, "limits = { max_flows = 1_500 }").max_flows6, 1_024);
    assert_eq!(room(four, "limits = { max_flows6 = 3_000 }").max_flows6, 3_000);
}

#[test]
fn clients_that_stay_have_room_only_where_a_service_asks_for_it() {
    let with = |limits: &str, keys: &str| {
        let services = BOTH_NAT.replacen("mode = \"both-nat\"", &format!("mode = \"both-nat\"\n{keys}"), 1);
        format!("limits = {{ {limits} }}\n{services}")
    };
    let stays = "scheduler = \"source-hash\"\npersistence = \"10m\"\nsource_prefix = 24";
    let pair = config(&with("", stays));
    let service = &pair.services[0];
    assert_eq!(
        (service.persistence, service.source_prefix),
        (Some(Duration::from_mins(10)), Some(24))
    );
    assert_eq!(pair.persistent_clients(), 65_536);
    assert_eq!(
        config(&with("persistent_clients = 2_000", stays)).persistent_clients(),
        2_000
    );
    assert_eq!(config(BOTH_NAT).persistent_clients(), 0);
    for (limit, keys, good) in [
        ("1_024", "persistence = \"30s\"\nsource_prefix = 1", true),
        ("1_000_000", "persistence = \"7days\"\nsource_prefix = 32", true),
        ("1_023", "persistence = \"1m\"", false),
        ("1_000_001", "persistence = \"1m\"", false),
        ("1_024", "persistence = \"29s 999ms\"", false),
        ("1_024", "persistence = \"7days 1s\"", false),
        ("1_024", "persistence = \"1m\"\nsource_prefix = 0", false),
        ("1_024", "persistence = \"1m\"\nsource_prefix = 33", false),
    ] {
        let keys = format!("scheduler = \"source-hash\"\n{keys}");
        let found = rules(&with(&format!("persistent_clients = {limit}"), &keys));
        assert_eq!(
            (found.is_empty(), found.contains(&"range")),
            (good, !good),
            "{found:?} {limit} {keys}"
        );
    }
}

#[test]
fn a_service_without_a_check_keeps_its_leg_from_the_gateway_or_says_so() {
    let pair = config(PAIR);
    assert_eq!(
        pair.named_legs().of("192.168.100.100".parse().unwrap()),
        Some("lan"),
        "in the gateway's network"
    );
    assert_eq!(pair.named_legs().of("10.0.0.1".parse().unwrap()), None);
    let named = PAIR.replace("vip = \"192.168.100.100\"", "vip = \"10.0.0.1\"\nleg = \"lan\"");
    assert_eq!(
        config(&named).named_legs().of("10.0.0.1".parse().unwrap()),
        Some("lan")
    );
}

#[test]
fn the_digest_is_of_the_meaning_and_not_of_the_text() {
    let digest = config(PAIR).digest();
    let comments = format!("# another comment\n{PAIR}\n");
    let defaults = PAIR.replace("vrid = 51", "preempt = false\nvrid = 51\nannounce_rate = 200");
    let left_out = PAIR.replace("advert_interval = \"100ms\"\n", "");
    assert!(PAIR != left_out && PAIR != defaults);
    for same in [left_out, comments, defaults] {
        assert_eq!(config(&same).digest(), digest);
    }
    for other in [
        PAIR.replace("vrid = 51", "vrid = 52"),
        PAIR.replace("weight = 3", "weight = 2"),
    ] {
        assert_ne!(config(&other).digest(), digest);
    }
    assert_eq!(digest.to_string().len(), 64);
}

#[test]
fn a_configuration_survives_json() {
    for text in [PAIR, BOTH_NAT, DSR, GATEWAY] {
        let pair = config(text);
        let json = serde_json::to_string(&pair).unwrap();
        assert_eq!(serde_json::from_str::<PairConfig>(&json).unwrap(), pair);
    }
    let node = judge(NODE, PAIR).0.config;
    let json = serde_json::to_string(&node).unwrap();
    assert_eq!(serde_json::from_str::<NodeConfig>(&json).unwrap(), node);
}

#[test]
fn limits_of_vips_services_and_servers_hold_on_both_sides() {
    // (services, servers each, VIPs), what the one too many is called.
    assert_eq!(
        rules(&generated(4_000, 4, 4_000)),
        [] as [&str; 0],
        "4,000 VIPs, 4,000 services"
    );
    assert_eq!(rules(&generated(4_001, 1, 4_000)), ["limit"], "4,001 services");
    assert_eq!(
        rules(&generated(64, 256, 64)),
        [] as [&str; 0],
        "16,384 servers, 256 a service"
    );
    assert_eq!(
        rules(&generated(1, 257, 1)),
        ["limit"],
        "257 servers of a service"
    );
    let one_more = generated(64, 256, 64)
        + &generated(1, 1, 1)
            .replace("s0", "last")
            .replace("10.1.0.0", "10.3.0.1")[generated(0, 1, 1).len()..];
    assert_eq!(rules(&one_more), ["limit"], "16,385 servers");
    let message = judge(NODE, &one_more).1.parsed.diagnostics.remove(0).to_string();
    assert!(message.contains("16385 servers, the limit is 16384"), "{message}");
}

#[test]
fn limits_of_lists_hold_on_both_sides() {
    let list =
        |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let service = |more: &str| {
        format!(
            "format = 1\nha = {{ vrid = 1, auth = \"none\" }}\n[[gateway]]\naddress = \"10.1.0.1/16\"\nleg = \"lan\"\n[[service]]\nname = \"s\"\nvip = \"10.1.0.9\"\nprotocol = \"tcp\"\nmode = \"dnat\"\nserver = [{{ name = \"s\", address = \"10.1.0.10\" }}]\n{more}\n"
        )
    };
    let prefix = |n: usize| format!("\"10.{}.0.0/16\"", 1 + n);
    for (count, expected) in [(64, &[][..]), (65, &["limit"][..])] {
        let text = service(&format!("ports = [{}]", list(count, &|n| format!("{}", n + 1))));
        assert_eq!(rules(&text), expected, "{count} ports");
        let text = service(&format!("ports = [1]\nhairpin = [{}]", list(count, &prefix)));
        assert_eq!(rules(&text), expected, "{count} hairpin prefixes");
        let text = service("ports = [1]").replace(
            "leg = \"lan\"",
            &format!("leg = \"lan\"\ndirect = [{}]", list(count, &prefix)),
        );
        assert_eq!(rules(&text), expected, "{count} direct prefixes");
    }
    for (count, expected) in [(16, &[][..]), (17, &["limit"][..])] {
        let text = service(&format!(
            "ports = [1]\nsnat = [{}]",
            list(count, &|n| format!("\"10.3.0.{}\"", n + 1))
        ));
        assert_eq!(rules(&text), expected, "{count} SNAT sources");
    }
    for (count, expected) in [(256, &[][..]), (257, &["limit"][..])] {
        let gateways = list(count, &|n| {
            format!(
                "{{ address = \"10.{}.{}.1/24\", leg = \"lan\" }}",
                n / 256,
                n % 256
            )
        });
        let text = format!("format = 1\nha = {{ vrid = 1, auth = \"none\" }}\ngateway = [{gateways}]");
        assert_eq!(rules(&text), expected, "{count} gateways");
    }
    for (count, expected) in [(64, &[][..]), (65, &["limit"][..])] {
        let legs = list(count, &|n| format!("{{ name = \"l{n}\", interface = \"e{n}\" }}"));
        let node = format!("name = \"a\"\nid = 1\npeer = {{ address = \"10.0.0.3\" }}\nleg = [{legs}]");
        let found: Vec<_> = parse_node(Source::new("node.toml", node))
            .diagnostics
            .iter()
            .map(|d| d.rule)
            .collect();
        assert_eq!(found, expected, "{count} legs");
    }
}

#[test]
fn a_second_peer_address_is_link_local_and_stands_beside_an_ipv4_one() {
    let parsed = |peer: &str| {
        let node = format!(
            "name = \"a\"\nid = 1\npeer = {{ {peer} }}\nleg = [{{ name = \"l\", interface = \"e\" }}]"
        );
        parse_node(Source::new("node.toml", node))
    };
    let both = parsed("address = \"10.0.0.3\", address6 = \"fe80::3\"");
    assert!(both.diagnostics.is_empty());
    let keys: Vec<_> = both.config.peer.addresses().map(|(key, _)| key).collect();
    assert_eq!(keys, ["peer.address", "peer.address6"]);
    for wrong in [
        "address = \"fe80::2\", address6 = \"fe80::3\"",
        "address = \"10.0.0.3\", address6 = \"10.0.0.4\"",
        "address = \"10.0.0.3\", address6 = \"2001:db8::3\"",
    ] {
        let rules: Vec<_> = parsed(wrong).diagnostics.iter().map(|d| d.rule).collect();
        assert_eq!(rules, ["address"], "{wrong}");
    }
}

#[test]
fn adverts_go_to_a_group_or_to_the_peer() {
    let file = |word: &str| PAIR.replace("vrid = 51", &format!("vrid = 51\ntransport = \"{word}\""));
    for (word, transport) in [
        ("multicast", Transport::Multicast),
        ("unicast", Transport::Unicast),
    ] {
        let parsed = parse_pair(Source::new("pair.toml", &*file(word))).parsed;
        assert_eq!(parsed.config.ha.transport, transport);
    }
    assert_eq!(rules(&file("broadcast")), ["unknown-word"]);
}

#[test]
fn limits_of_numbers_and_times_hold_on_both_sides() {
    for (key, good, bad) in [
        ("vrid", ["1", "255"], ["0", "256"]),
        ("announce_rate", ["1", "3_200"], ["0", "3_201"]),
        (
            "advert_interval",
            ["\"10ms\"", "\"40s 950ms\""],
            ["\"9ms\"", "\"40s 960ms\""],
        ),
        (
            "announce_refresh",
            ["\"1s\"", "\"24h\""],
            ["\"999ms\"", "\"24h 1s\""],
        ),
    ] {
        let file = |value: &str| {
            let vrid = if key == "vrid" { "" } else { "vrid = 9, " };
            format!(
                "format = 1\nha = {{ {vrid}auth = \"none\", {key} = {value} }}\ngateway = [{{ address = \"10.0.0.1/8\", leg = \"lan\" }}]"
            )
        };
        for value in good {
            assert!(!judge(NODE, &file(value)).1.parsed.is_draft(), "{key} = {value}");
        }
        for value in bad {
            assert_eq!(rules(&file(value)), ["range"], "{key} = {value}");
        }
    }
    for (from, good, bad) in [
        (
            "priority = 150",
            ["priority = 3", "priority = 254"],
            ["priority = 2", "priority = 255"],
        ),
        ("id = 1 ", ["id = 1 ", "id = 2 "], ["id = 0 ", "id = 3 "]),
        (
            "interface = \"eth0\"",
            [
                "interface = \"e\"\nvlan = 1",
                "interface = \"ten-letter\"\nvlan = 4094",
            ],
            [
                "interface = \"eth0\"\nvlan = 0",
                "interface = \"11-lettered\"\nvlan = 4094",
            ],
        ),
    ] {
        assert!(NODE.contains(from));
        let parse = |to: &str| parse_node(Source::new("node.toml", NODE.replacen(from, to, 1)));
        for to in good {
            assert_eq!(parse(to).diagnostics, [], "{to}");
        }
        for to in bad {
            assert_eq!(
                parse(to).diagnostics.iter().map(|d| d.rule).collect::<Vec<_>>(),
                ["range"],
                "{to}"
            );
        }
    }
}

#[test]
fn the_longest_file_is_read_and_one_byte_more_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pair.toml");
    let mut text = PAIR.to_owned();
    text.push('#');
    text.extend(std::iter::repeat_n('x', limits::FILE_BYTES - text.len()));
    std::fs::write(&path, &text).unwrap();
    assert!(!read_pair(&path).parsed.is_draft());
    text.push('x');
    std::fs::write(&path, &text).unwrap();
    assert_eq!(read(&path).unwrap_err().rule, "too-long");
}

#[test]
fn b107_hostile_files_of_full_length_end_in_errors_soon() {
    let fill = |piece: &str| piece.repeat(limits::FILE_BYTES / piece.len());
    for (name, text) in [
        ("brackets", fill("[")),
        ("tables", fill("[a]\n")),
        ("arrays of tables", fill("[[service]]\n")),
        ("errors", fill("=\n")),
        ("dotted", format!("{}a = 1", fill("a."))),
        ("one key", fill("a")),
        ("inline", format!("service = {}", fill("[{"))),
        (
            "unknown keys",
            (0..50_000).fold(String::new(), |text, n| text + &format!("k{n} = 1\n")),
        ),
        ("small errors", "=\n".repeat(limits::FILE_BYTES_RECOVERED / 2)),
    ] {
        let parsed = parse_pair(Source::new("pair.toml", text));
        assert!(parsed.parsed.is_draft(), "{name}");
    }
}

#[test]
fn loading_gives_both_files_or_every_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let key = directory.path().join("pair.key");
    let named = format!("peer = {{ key_file = \"{}\", ", key.display());
    let with_key = NODE.replace("peer = { ", &named);
    let (node, pair) = (path("node.toml", &with_key), path("pair.toml", PAIR));
    let refused = load(&node, &pair).unwrap_err();
    assert_eq!(refused.diagnostics[0].rule, "key-missing", "{refused}");
    let plain = path("plain.toml", &PAIR.replace("\"hmac\"", "\"none\""));
    assert!(load(&node, &plain).unwrap().keys.is_none());
    let keys = crate::key::generate().unwrap();
    crate::key::create(&key, &keys, &crate::key::Reader::this_process()).unwrap();
    let loaded = load(&node, &pair).unwrap();
    assert_eq!(loaded.keys.as_ref(), Some(&keys));
    assert_eq!(
        (
            loaded.node.name.as_str(),
            loaded.pair.services.len(),
            loaded.warnings.len()
        ),
        ("lb1", 2, 0)
    );
    let warned = path(
        "warned.toml",
        &PAIR.replace("mode = \"dnat\"", "mode = \"dnat\"\nhairpin = \"off\""),
    );
    assert_eq!(load(&node, &warned).unwrap().warnings.len(), 2);
    // A daemon goes on without a program it would not run; `onearm check` refuses the file.
    let hooked = path(
        "hooked.toml",
        &PAIR.replacen(
            "vrid = 51",
            "vrid = 51\nscript_user = \"root\"\nhooks = { active = [\"/no/such/program\"] }",
            1,
        ),
    );
    let found = load(&node, &hooked).unwrap().warnings;
    let rules: Vec<_> = found.iter().map(|found| found.rule).collect();
    assert_eq!(rules, ["script-user", "program-access"]);
    let reader = crate::key::Reader::this_process();
    let judged = crate::check::files(&[&node], &hooked, None, Some(&reader), Severity::Error);
    assert!(judged.pair.is_none() && judged.diagnostics.len() == 2);
    let bad = path(
        "bad.toml",
        &NODE.replace("id = 1 ", "id = 9 ").replace("eth0", "e t h"),
    );
    let worse = path(
        "worse.toml",
        &PAIR
            .replace("vrid = 51", "vrid = 0")
            .replace("weight = 3", "weight = 300"),
    );
    let refused = load(&bad, &worse).unwrap_err();
    assert_eq!(refused.diagnostics.len(), 4, "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("bad.toml:3:6: error: id = 9") && text.contains("worse.toml:6:8: error: ha.vrid = 0"),
        "{text}"
    );
}

#[test]
fn every_key_and_every_rule_is_documented() {
    let manual = include_str!("../../../docs/configuration.md");
    for keys in [
        node_file::ROOT,
        node_file::PEER,
        node_file::LEG,
        pair_file::ROOT,
        pair_file::HA,
        pair_file::LIMITS,
        pair_file::GATEWAY,
        service_file::SERVICE,
        service_file::CHECK,
        service_file::SERVER,
        mode_file::MODE_FOR,
        track_file::TRACK,
        track_file::SCRIPT,
        track_file::QUORUM,
        track_file::HOOKS,
    ] {
        for key in keys.known {
            let forms = [
                format!("`{key}`"),
                format!(".{key}`"),
                format!("[{key}]"),
                format!("service.{key}`"),
            ];
            assert!(forms.iter().any(|form| manual.contains(form)), "{key}");
        }
    }
    let mut sources = String::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/check")).unwrap() {
        sources += &std::fs::read_to_string(file.unwrap().path()).unwrap();
    }
    let calls = sources
        .split("findings.error(")
        .chain(sources.split("findings.warn("));
    let calls = calls
        .chain(sources.split("of_node.error("))
        .chain(sources.split("of_pair.error("));
    let calls = calls
        .chain(sources.split("of_node.warn("))
        .chain(sources.split("of_pair.warn("));
    let mut rules = 0;
    for call in calls {
        let Some(rule) = call
            .trim_start()
            .strip_prefix('"')
            .and_then(|rest| rest.split('"').next())
        else {
            continue;
        };
        assert!(manual.contains(&format!("`{rule}`")), "{rule}");
        rules += 1;
    }
    assert!(rules > 30, "the rules are found: {rules}");
}

/// Ways to spoil a text.
fn mutated(text: &'static str) -> impl Strategy<Value = String> {
    let noise = prop_oneof![
        Just("\"".to_owned()),
        Just("[[".to_owned()),
        Just("}".to_owned()),
        Just("\n".to_owned()),
        Just("=".to_owned()),
        Just("999999999999999999999999".to_owned()),
        Just("-1".to_owned()),
        Just("\u{feff}".to_owned()),
        "\\PC{0,8}",
        "[a-z_.]{1,12} = [0-9]{1,3}\n",
    ];
    let change = (0..text.len(), 0..40_usize, noise);
    prop::collection::vec(change, 1..5).prop_map(|changes| {
        let mut text = text.to_owned();
        for (start, length, noise) in changes {
            let start = text.floor_char_boundary(start.min(text.len()));
            let end = text.floor_char_boundary((start + length).min(text.len()));
            text.replace_range(start..end, &noise);
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { ProptestConfig::default().cases }))]

    #[test]
    fn prop_no_mutation_of_a_good_file_panics_or_is_refused_without_a_reason(
        node in mutated(NODE),
        pair in prop_oneof![mutated(PAIR), mutated(BOTH_NAT), mutated(DSR), mutated(GATEWAY)],
    ) {
        let (node, pair) = judge(&node, &pair);
        for diagnostic in node.diagnostics.iter().chain(&pair.parsed.diagnostics) {
            prop_assert!(!diagnostic.message.is_empty() && !diagnostic.remedy.is_empty());
            let source = if diagnostic.file == "node.toml" { &node.source } else { &pair.parsed.source };
            prop_assert!(diagnostic.line <= source.lines());
            prop_assert!((diagnostic.line == 0) == (diagnostic.rule == "empty"), "{diagnostic}");
        }
        if !pair.parsed.is_draft() {
            let again = serde_json::from_value::<PairConfig>(serde_json::to_value(&pair.parsed.config).unwrap()).unwrap();
            prop_assert_eq!(again.digest(), pair.parsed.config.digest());
        }
    }

    #[test]
    fn prop_any_text_is_judged_without_panic(text in "\\PC{0,200}", more in prop::collection::vec(any::<char>(), 0..100)) {
        let text = text + &more.iter().collect::<String>();
        judge(&text, &text);
    }
}
