use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use onearm_ha::announce::OwnedAddress;
use onearm_ha::config::Config;
use onearm_ha::election::{LegFault, Role};
use onearm_ha::units::Priority;

use crate::lab::{A, B, Lab, VIP, VIP6, wait_until};
use crate::node::{Cell, LONG, Node, assert_never_two, config6, owned};

const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const INSIDE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
/// What nobody has.
const FALSE_MAC: &str = "02:00:00:00:00:99";

/// Gateways inside, VIPs outside.
fn arms() -> Vec<OwnedAddress> {
    let inside = |owned| OwnedAddress {
        router: true,
        leg: 1,
        ..owned
    };
    vec![
        owned(VIP),
        owned(VIP6),
        inside(owned(INSIDE)),
        inside(owned(INSIDE6)),
    ]
}

fn start(lab: &Lab, space: &str, address: Ipv4Addr) -> Node {
    let config = Config {
        other_legs: vec!["eth1".into()],
        ..config6(address, 100, true)
    };
    Node::start_with(lab, space, &config, &arms(), Cell::default())
}

/// Both hosts have talked to all IPv6 addresses some time ago, when another host had them.
fn everybody_knows_another_owner(lab: &Lab) {
    for space in ["c", "d"] {
        for address in [VIP6, INSIDE6] {
            let entry = format!("neigh replace {address} lladdr {FALSE_MAC} dev eth0 nud stale");
            lab.ip(space, &entry);
        }
    }
}

/// The host on each leg knows the addresses that live there at `node`, and nothing of the others.
fn known_at(lab: &Lab, node: &str) -> bool {
    let (outside, inside) = (Some(lab.mac(node)), Some(lab.mac_of(node, "eth1")));
    let nobody = Some(FALSE_MAC.to_owned());
    let expected = [
        ("c", VIP.into(), outside.clone()),
        ("c", VIP6.into(), outside),
        ("c", INSIDE.into(), None),
        ("c", INSIDE6.into(), nobody.clone()),
        ("d", VIP.into(), None),
        ("d", VIP6.into(), nobody),
        ("d", INSIDE.into(), inside.clone()),
        ("d", INSIDE6.into(), inside),
    ];
    expected
        .into_iter()
        .all(|(space, address, mac): (_, std::net::IpAddr, _)| lab.known_to(space, address) == mac)
}

#[test]
#[ignore = "needs root"]
fn each_address_is_announced_on_its_own_leg_with_that_legs_mac_and_on_no_other() {
    let lab = Lab::new();
    lab.add_inside();
    everybody_knows_another_owner(&lab);
    let a = start(&lab, "a", A);
    let b = start(&lab, "b", B);
    a.wait_lease();
    wait_until("all hosts to know A", LONG, || known_at(&lab, "a"));
    wait_until("all rounds", LONG, || a.state().announce_counters.passes >= 3);
    assert!(known_at(&lab, "a"));
    let (_, a_cell) = a.stop();
    b.wait_lease();
    wait_until("all hosts to know B", LONG, || known_at(&lab, "b"));
    assert_eq!(b.state().announce_counters.send_errors, 0);
    assert_never_two(&a_cell, &b.cell);
}

#[test]
#[ignore = "needs root"]
fn the_node_that_loses_its_other_leg_gives_way_to_one_that_has_it_and_does_not_come_back() {
    for fault in ["carrier", "down"] {
        let lab = Lab::new();
        lab.add_inside();
        let a = start(&lab, "a", A);
        let b = start(&lab, "b", B);
        a.wait_lease();
        b.wait_role(Role::Standby);
        b.wait_heard(3);
        let (wanted, repair) = if fault == "carrier" {
            lab.ip("sw", "link set ia down");
            (LegFault::NoCarrier, ("sw", "link set ia up"))
        } else {
            lab.ip("a", "link set eth1 down");
            (LegFault::Down, ("a", "link set eth1 up"))
        };
        let took = b.wait_lease();
        println!("{fault}: lease of B after {took} ms");
        assert!(took <= 200, "{took}");
        wait_until("the reason", LONG, || {
            a.state().other_faults == [("eth1".to_owned(), wanted)]
        });
        assert_eq!(a.state().election.unwrap().priority, Priority::IMPAIRED);
        lab.ip(repair.0, repair.1);
        wait_until("A to be well again", LONG, || a.state().other_faults.is_empty());
        assert_eq!(a.state().election.unwrap().priority.get(), 150);
        let heard = a.state().election_counters.adverts_received;
        a.wait_heard(heard + 10);
        assert!(b.cell.holds() && a.role() == Some(Role::Standby));
        assert_never_two(&a.cell, &b.cell);
    }
}

#[test]
#[ignore = "needs root"]
fn without_a_better_node_a_node_with_one_leg_goes_on_until_one_comes() {
    let lab = Lab::new();
    lab.add_inside();
    let a = start(&lab, "a", A);
    a.wait_lease();
    lab.ip("sw", "link set ia down");
    wait_until("the fault", LONG, || !a.state().other_faults.is_empty());
    let lost = a.state().election_counters.lease_lapsed;
    let sent = a.state().election_counters.adverts_sent;
    wait_until("adverts of the lone node", LONG, || {
        a.state().election_counters.adverts_sent > sent + 10
    });
    assert!(a.cell.holds());
    assert_eq!(a.state().election_counters.lease_lapsed, lost);
    let b = start(&lab, "b", B);
    let took = b.wait_lease();
    println!("lease of B {took} ms after its start");
    assert!(took < Duration::from_secs(3).as_millis().try_into().unwrap());
    assert_never_two(&a.cell, &b.cell);
    // Now both: nobody moves.
    lab.ip("sw", "link set ib down");
    wait_until("the other fault", LONG, || !b.state().other_faults.is_empty());
    let heard = a.state().election_counters.adverts_received;
    a.wait_heard(heard + 10);
    assert!(b.cell.holds() && !a.cell.holds());
}
