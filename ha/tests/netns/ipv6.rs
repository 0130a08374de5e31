use std::net::Ipv4Addr;
use std::time::Duration;

use onearm_ha::announce::OwnedAddress;
use onearm_ha::config::{Config, Transport};
use onearm_ha::election::{Alarm, Role};
use onearm_ha::membership::KnownProtocol;
use onearm_ha::process::ToHa;
use onearm_ha::units::Priority;

use crate::lab::{A, A6, B, Lab, VIP, VIP6, wait_until};
use crate::node::{Cell, LONG, Node, assert_never_two, config, config6, owned};

/// As in `pair`.
const SOON: u64 = 200;

#[test]
#[ignore = "needs root"]
fn ownership_moves_over_ipv6_alone_and_beside_ipv4() {
    for (transport, beside_ipv4) in [
        (Transport::Multicast, false),
        (Transport::Multicast, true),
        (Transport::Unicast, false),
        (Transport::Unicast, true),
    ] {
        let lab = Lab::new();
        let of = |address| Config {
            transport,
            ..config6(address, 100, beside_ipv4)
        };
        lab.client_knows_another_owner();
        let a = Node::start(&lab, "a", &of(A));
        let b = Node::start(&lab, "b", &of(B));
        a.wait_lease();
        wait_until("the client to know A", LONG, || {
            lab.client_has(VIP6) == Some(lab.mac("a"))
        });
        b.wait_role(Role::Standby);

        let (_, a_cell) = a.stop();
        let took = b.wait_lease();
        println!("{transport:?}, IPv4 too: {beside_ipv4}: stop of A, lease of B after {took} ms");
        assert!(took <= SOON);
        wait_until("the client to know B", LONG, || {
            lab.client_has(VIP6) == Some(lab.mac("b")) && lab.client_has(VIP) == Some(lab.mac("b"))
        });

        let both = [owned(VIP), owned(VIP6)];
        let a = Node::start_with(&lab, "a", &of(A), &both, a_cell);
        a.wait_role(Role::Standby);
        // Long enough for it to have claimed, had it not heard B.
        a.wait_heard(if beside_ipv4 { 40 } else { 20 });
        assert!(b.cell.holds() && !a.cell.holds());
        for node in [&a, &b] {
            let state = node.state();
            assert_eq!(state.wire_counters.bad_checksum, 0);
            assert_eq!(state.wire_counters.malformed, 0);
            assert_eq!(state.election_counters.address_list_differed, 0);
            assert_eq!(state.election_counters.foreign_received, 0);
        }
        assert_never_two(&a.cell, &b.cell);
    }
}

#[test]
#[ignore = "needs root"]
fn either_family_alone_carries_the_pair_and_the_loss_of_both_is_silence() {
    let lab = Lab::new();
    let a = Node::start(&lab, "a", &config6(A, 100, true));
    let b = Node::start(&lab, "b", &config6(B, 100, true));
    a.wait_lease();
    b.wait_role(Role::Standby);
    for family in ["ip", "ip6"] {
        lab.lose("a", &[family]);
        let heard = b.state().election_counters.adverts_received;
        b.wait_heard(heard + 20);
        assert_eq!(b.role(), Some(Role::Standby), "{family} lost");
        if family == "ip6" {
            wait_until("a word about the silent family", LONG, || {
                b.notes.lock().unwrap().alarms == [Alarm::FamilySilent { ipv6: true }]
            });
        }
        lab.lose_nothing();
    }
    lab.lose("a", &["ip", "ip6"]);
    let took = b.wait_lease();
    println!("both families lost: lease of B after {took} ms");
    assert!((250..=1_500).contains(&took));
}

#[test]
#[ignore = "needs root"]
fn b84_a_gateway_address_is_announced_as_a_router_and_another_one_is_not() {
    let lab = Lab::new();
    lab.client_knows_another_owner();
    let gateway = OwnedAddress {
        router: true,
        ..owned(VIP6)
    };
    let a = Node::start_with(&lab, "a", &config6(A, 100, true), &[gateway], Cell::default());
    a.wait_lease();
    wait_until("the client to know a router", LONG, || {
        lab.client_has(VIP6) == Some(lab.mac("a")) && lab.client_entry(VIP6).contains("router")
    });
    // Added and changed at run time, as by a new configuration (B20).
    a.order(&ToHa::Owned {
        addresses: vec![owned(VIP6)],
        more: false,
    });
    wait_until("the client to know a host", LONG, || {
        !lab.client_entry(VIP6).contains("router")
    });
}

/// Settings of equal priorities, with these link-local addresses of A and B.
fn equal(address: Ipv4Addr, (a6, b6): (&str, &str), beside_ipv4: bool) -> Config {
    let mut config = config6(address, 100, beside_ipv4);
    let (own, peer) = if address == A { (a6, b6) } else { (b6, a6) };
    let wire = config.ipv6.as_mut().unwrap();
    wire.address = own.parse().unwrap();
    wire.peer = peer.parse().unwrap();
    config.priority = Priority::configured(100).unwrap();
    config
}

#[test]
#[ignore = "needs root"]
fn b86_equal_priorities_heal_by_the_link_local_address_as_an_unsigned_number() {
    for (a_address, b_address) in [("fe80::1", "fe80::ffff:1"), ("fe80::1", "fe80::8000:0:0:1")] {
        let lab = Lab::new();
        lab.ip("a", &format!("addr add {a_address}/64 dev eth0 nodad"));
        lab.ip("b", &format!("addr add {b_address}/64 dev eth0 nodad"));
        let of = |address| equal(address, (a_address, b_address), false);
        let a = Node::start(&lab, "a", &of(A));
        let b = Node::start(&lab, "b", &of(B));
        a.wait_lease();
        b.wait_role(Role::Standby);
        lab.block("a");
        b.wait_lease();
        assert!(a.cell.holds(), "cut off, both own");
        lab.unblock("a");
        let took = wait_until("one owner", LONG, || !a.cell.holds());
        println!("{b_address} over {a_address}: healed after {took} ms");
        a.wait_role(Role::Standby);
        assert!(b.cell.holds());
    }
}

/// IPv4's order is B over A, that of the link-local addresses A over B: were each wire judged by its own addresses, both
/// nodes or neither would give way.
#[test]
#[ignore = "needs root"]
fn equal_priorities_over_both_families_have_one_order_on_both_nodes_and_keep_it() {
    let lab = Lab::new();
    let (a6, b6) = ("fe80::2:2", "fe80::2:1");
    lab.ip("a", &format!("addr add {a6}/64 dev eth0 nodad"));
    lab.ip("b", &format!("addr add {b6}/64 dev eth0 nodad"));
    let of = |address| equal(address, (a6, b6), true);
    let a = Node::start(&lab, "a", &of(A));
    let b = Node::start(&lab, "b", &of(B));
    a.wait_lease();
    b.wait_role(Role::Standby);
    for cut in ["a", "b"] {
        lab.block(cut);
        wait_until("cut off, both own", LONG, || a.cell.holds() && b.cell.holds());
        lab.unblock(cut);
        let took = wait_until("one owner", LONG, || !a.cell.holds());
        println!("{cut} cut off: healed after {took} ms");
        a.wait_role(Role::Standby);
        let (became, heard) = (
            |node: &Node| node.state().election_counters.became_active,
            || a.state().election_counters.adverts_received,
        );
        let (before, then) = ([became(&a), became(&b)], heard());
        a.wait_heard(then + 40);
        assert!(b.cell.holds() && !a.cell.holds(), "the greater IPv4 address owns");
        assert_eq!([became(&a), became(&b)], before);
    }
    // Each family alone says the same.
    for family in ["ip", "ip6"] {
        lab.lose("b", &[family]);
        a.wait_heard(a.state().election_counters.adverts_received + 20);
        lab.lose_nothing();
        assert!(b.cell.holds() && !a.cell.holds(), "{family} lost");
    }
}

#[test]
#[ignore = "needs root"]
fn b02_a_link_local_address_that_goes_or_is_not_proved_unique_makes_the_leg_unusable() {
    let lab = Lab::new();
    let a = Node::start(&lab, "a", &config6(A, 100, true));
    a.wait_lease();
    lab.ip("a", &format!("addr del {A6}/64 dev eth0"));
    wait_until("the lease to end", Duration::from_secs(1), || !a.cell.holds());
    a.wait_role(Role::Initialize);
    // Detection takes a second, and it may not be used before.
    lab.ip("a", &format!("addr add {A6}/64 dev eth0"));
    let took = a.wait_role(Role::Standby);
    println!("address added with detection: Standby after {took} ms");
    assert!(took >= 500);
    // Somebody else has it: detection fails.
    lab.ip("a", &format!("addr del {A6}/64 dev eth0"));
    lab.ip("c", &format!("addr add {A6}/64 dev eth0 nodad"));
    a.wait_role(Role::Initialize);
    lab.ip("a", &format!("addr add {A6}/64 dev eth0"));
    wait_until("detection to fail", LONG, || {
        lab.run_in("a", "ip -6 addr show dev eth0").contains("dadfailed")
    });
    let turns = a.state().driver_counters.turns;
    wait_until("many looks at the leg", LONG, || {
        a.state().driver_counters.turns > turns + 50
    });
    assert_eq!(a.role(), Some(Role::Initialize));
}

#[test]
#[ignore = "needs root"]
fn m11_a_foreign_advertisement_for_an_owned_ipv6_address_is_answered() {
    let lab = Lab::new();
    let a = Node::start(&lab, "a", &config6(A, 100, true));
    a.wait_lease();
    wait_until("the rounds to end", LONG, || {
        a.state().announce_counters.passes >= 3
    });
    let before = a.state().announce_counters;
    // The client takes the VIP for itself; asked for it, it advertises, and it asks others from it.
    lab.ip("c", &format!("addr add {VIP6}/64 dev eth0 nodad"));
    lab.ip("a", "addr add 2001:db8::11/64 dev eth0 nodad");
    lab.run_in("c", &format!("ping -6 -q -c 1 -W 1 -I {VIP6} 2001:db8::11"));
    wait_until("an answer", LONG, || {
        a.state().announce_counters.ordered > before.ordered
    });
    let counters = a.state().announce_counters;
    assert!(counters.conflicts > before.conflicts, "{counters:?}");
    // What another host advertises of itself is none.
    let conflicts = a.state().announce_counters.conflicts;
    lab.ip("c", &format!("addr del {VIP6}/64 dev eth0"));
    lab.run_in("c", "ping -6 -q -c 1 -W 1 2001:db8::11");
    let heard = a.state().driver_counters.turns;
    wait_until("another look", LONG, || {
        a.state().driver_counters.turns > heard + 2
    });
    assert_eq!(a.state().announce_counters.conflicts, conflicts);
}

/// ICMP errors B's kernel has sent.
fn icmp_errors(lab: &Lab) -> u64 {
    let names = ["IcmpOutDestUnreachs", "Icmp6OutParmProblems"];
    let text = lab.run_in("b", "nstat -asz");
    let lines = text
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let counts = lines.filter(|fields| fields.first().is_some_and(|name| names.contains(name)));
    counts.map(|fields| fields[1].parse::<u64>().unwrap()).sum()
}

#[test]
#[ignore = "needs root"]
fn unicast_adverts_reach_the_peer_alone_once_its_kernel_has_said_where_it_is() {
    for (family, config) in [
        ("ip protocol", config(A, 100)),
        ("ip6 nexthdr", config6(A, 100, false)),
    ] {
        let lab = Lab::new();
        let config = Config {
            transport: Transport::Unicast,
            ..config
        };
        // No daemon runs on B: ARP or ND alone tells. Its kernel says nothing of adverts.
        let known = config.clone();
        let known = move || KnownProtocol::open(&known).unwrap();
        let known = lab.within("b", known).join().unwrap();
        lab.run_in("c", "nft add table netdev seen");
        let hook = "type filter hook ingress device eth0 priority 0";
        lab.run_in("c", &format!("nft add chain netdev seen c {{ {hook}; }}"));
        lab.run_in("c", &format!("nft add rule netdev seen c {family} 112 counter"));
        let seen = || {
            let text = lab.run_in("c", "nft list chain netdev seen c");
            let after = text.split("packets ").nth(1).unwrap();
            after.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let a = Node::start(&lab, "a", &config);
        a.wait_lease();
        let sent = || a.state().election_counters.adverts_sent;
        let (mut before, mut then) = (sent(), seen());
        wait_until("twenty adverts the third host does not see", LONG, || {
            if seen() != then {
                (before, then) = (sent(), seen());
            }
            sent() > before + 20
        });
        println!("{family}: {then} adverts were seen by the third host");
        assert_eq!(a.state().driver_counters.questions_failed, 0);
        assert_eq!(icmp_errors(&lab), 0);
        drop(known);
        wait_until("B's kernel to complain", LONG, || icmp_errors(&lab) > 0);
    }
}
