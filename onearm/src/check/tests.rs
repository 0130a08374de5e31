use ipnet::IpNet;

use super::*;
use crate::config::{Source, parse_node, parse_pair};

const NODE: &str = include_str!("../../../etc/examples/node-lb1.toml");
const PAIR: &str = include_str!("../../../etc/examples/pair.toml");

/// Rules and fields found by comparing with a machine that has these addresses on `eth0`.
fn on_a_machine_with(addresses: &[&str], node: &str, pair: &str) -> Vec<(&'static str, String)> {
    let addresses = addresses
        .iter()
        .map(|net| net.parse::<IpNet>().unwrap())
        .collect();
    let second = vec!["10.200.0.2/24".parse::<IpNet>().unwrap()];
    let interfaces = [("eth0", addresses), ("eth1", second)].map(|(name, addresses)| HostInterface {
        name: name.into(),
        addresses,
        ipv6: true,
    });
    on_a_machine(&interfaces, node, pair)
}

fn on_a_machine(interfaces: &[HostInterface], node: &str, pair: &str) -> Vec<(&'static str, String)> {
    let (mut node, mut pair) = (
        parse_node(Source::new("node.toml", node)),
        parse_pair(Source::new("pair.toml", pair)),
    );
    lint(&mut node, &mut pair);
    lint_host(&mut node, &mut pair, interfaces);
    let found = node.diagnostics.into_iter().chain(pair.parsed.diagnostics);
    found.map(|d| (d.rule, d.field)).collect()
}

#[test]
fn the_machine_the_files_are_for_has_nothing_against_them() {
    assert_eq!(on_a_machine_with(&["192.168.100.2/24"], NODE, PAIR), []);
}

#[test]
fn addresses_of_the_pair_do_not_live_in_the_kernel() {
    let found = |rule, field: &str| vec![(rule, field.to_owned())];
    for (local, expected) in [
        ("192.168.100.100/32", found("address-is-local", "service[0].vip")),
        (
            "192.168.100.1/24",
            found("address-is-local", "gateway[0].address"),
        ),
        ("192.168.100.3/32", found("peer-is-local", "peer.address")),
    ] {
        assert_eq!(
            on_a_machine_with(&["192.168.100.2/24", local], NODE, PAIR),
            expected,
            "{local}"
        );
    }
    let servers = on_a_machine_with(&["192.168.100.10/24"], NODE, PAIR);
    assert_eq!(servers.len(), 2, "{servers:?}");
    assert!(servers.iter().all(|(rule, _)| *rule == "server-is-node"));
}

#[test]
fn a_leg_without_address_or_with_another_network_is_told() {
    assert_eq!(
        on_a_machine_with(&[], NODE, PAIR),
        [("no-address", "leg[0].interface".to_owned())]
    );
    let elsewhere = on_a_machine_with(&["10.0.0.2/24"], NODE, PAIR);
    let expected = [
        ("vip-off-link", "service[0].vip".to_owned()),
        ("vip-off-link", "service[1].vip".to_owned()),
    ];
    assert_eq!(elsewhere, expected);
    let narrow = on_a_machine_with(&["192.168.100.97/30"], NODE, PAIR);
    assert!(
        narrow.contains(&("vip-off-link", "service[1].vip".to_owned())),
        "{narrow:?}"
    );
    let pair = PAIR.replace("192.168.100.101", "192.168.100.103");
    let last = on_a_machine_with(&["192.168.100.102/29"], NODE, &pair);
    assert_eq!(last, [("network-or-broadcast", "service[1].vip".to_owned())]);
}

#[test]
fn a_dsr_server_is_on_the_network_of_a_leg() {
    let dsr = include_str!("../../../etc/examples/pair-dsr.toml");
    assert_eq!(
        on_a_machine_with(&["192.168.100.2/24"], NODE, dsr),
        [],
        "the far one has a tunnel"
    );
    let far = dsr.replace("192.168.100.11\"", "192.168.101.11\"");
    let expected = [("dsr-off-link", "service[0].server[1].address".to_owned())];
    assert_eq!(on_a_machine_with(&["192.168.100.2/24"], NODE, &far), expected);
    assert_eq!(on_a_machine_with(&["192.168.100.2/23"], NODE, &far), []);
}

/// An IPv6 VIP is compared with IPv6 networks, and the leg needs an address of the family in which adverts are.
#[test]
fn a_machine_is_judged_in_the_family_of_what_is_asked_of_it() {
    let both = include_str!("../../../etc/examples/pair-ipv6.toml");
    let here = ["192.168.100.2/24", "2001:db8:100::2/64", "fe80::2/64"];
    assert_eq!(on_a_machine_with(&here, NODE, both), []);
    let expected = |rule, field: &str| vec![(rule, field.to_owned())];
    for (local, found) in [
        (
            "2001:db8:100::100/128",
            expected("address-is-local", "service[1].vip"),
        ),
        ("fe80::1/64", expected("address-is-local", "gateway[1].address")),
    ] {
        assert_eq!(
            on_a_machine_with(&[here[0], here[1], here[2], local], NODE, both),
            found,
            "{local}"
        );
    }
    let elsewhere = on_a_machine_with(&[here[0], "2001:db8:200::2/64", here[2]], NODE, both);
    assert_eq!(elsewhere, expected("vip-off-link", "service[1].vip"));
    let anycast = both.replace("2001:db8:100::100", "2001:db8:100::");
    let first = on_a_machine_with(&here, NODE, &anycast);
    assert!(
        first.contains(&("network-or-broadcast", "service[1].vip".to_owned())),
        "{first:?}"
    );
    // Adverts between link-local addresses need one of the leg.
    let local_peer = NODE.replace("192.168.100.3", "fe80::3");
    assert_eq!(on_a_machine_with(&here, &local_peer, both), []);
    let without = on_a_machine_with(&here[..2], &local_peer, both);
    assert_eq!(without, expected("no-address", "leg[0].interface"));
}

#[test]
fn a_leg_without_ipv6_is_told_where_the_pair_serves_ipv6_alone() {
    let both = include_str!("../../../etc/examples/pair-ipv6.toml");
    let interfaces = ["eth0", "eth1"].map(|name| HostInterface {
        name: name.into(),
        addresses: vec!["192.168.100.2/24".parse().unwrap()],
        ipv6: name != "eth0",
    });
    let found = |pair| {
        let found = on_a_machine(&interfaces, NODE, pair);
        let told = found.into_iter().filter(|(rule, _)| *rule == "ipv6-disabled");
        told.map(|(_, field)| field).collect::<Vec<_>>()
    };
    assert_eq!(found(both), ["leg[0].interface"]);
    assert!(found(PAIR).is_empty());
}

#[test]
fn with_several_service_legs_a_vip_needs_a_network_or_a_name() {
    let node = format!("{NODE}\n[[leg]]\nname = \"two\"\ninterface = \"eth1\"\n");
    assert_eq!(
        on_a_machine_with(&["192.168.100.2/24"], &node, PAIR),
        [],
        "the gateway's network says it"
    );
    let both_nat = include_str!("../../../etc/examples/pair-both-nat.toml");
    assert_eq!(
        on_a_machine_with(&["192.168.100.2/24"], &node, both_nat),
        [],
        "the connected prefix says it"
    );
    let found = on_a_machine_with(&["10.0.0.2/24"], &node, both_nat);
    assert_eq!(
        found
            .iter()
            .filter(|(rule, _)| *rule == "vip-without-leg")
            .count(),
        2,
        "{found:?}"
    );
    let named = both_nat.replace("protocol =", "leg = \"lan\"\nprotocol =");
    assert_eq!(on_a_machine_with(&["192.168.100.2/24"], &node, &named), []);
}

#[test]
fn capacity_is_snat_ports_times_addresses() {
    let pair = parse_pair(Source::new(
        "pair.toml",
        include_str!("../../../etc/examples/pair-both-nat.toml"),
    ));
    let capacity = Capacity::of(&pair.parsed.config);
    let ceilings: Vec<_> = capacity
        .services
        .iter()
        .map(|service| service.per_server)
        .collect();
    assert_eq!(ceilings, [Some(2 * 32_768), Some(32_768)]);
    let ranges = include_str!("../../../etc/examples/pair-both-nat.toml").replacen(
        "snat =",
        "snat = [\"10.99.0.1:1000-1999\", \"10.99.0.2\"] #",
        1,
    );
    let of_ranges = Capacity::of(&parse_pair(Source::new("pair.toml", ranges)).parsed.config);
    assert_eq!(of_ranges.services[0].per_server, Some(1_000 + 32_768));
    assert_eq!((capacity.vips, capacity.servers), (2, 3));
}
