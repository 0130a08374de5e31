use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use onearm_ha::election::Role;
use onearm_ha::membership::{Memberships, groups};
use onearm_ha::wire::ndp::solicited_node;

use crate::lab::{A, B, Lab, VIP6, wait_until};
use crate::node::{LONG, Node, config6, owned};

/// Groups the kernel has joined on A's leg, of both families.
fn joined(lab: &Lab) -> BTreeSet<IpAddr> {
    let text = lab.run_in("a", "ip maddr show dev eth0");
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

#[test]
#[ignore = "needs root"]
fn thousands_of_groups_are_joined_left_and_joined_anew_with_the_interface() {
    let lab = Arc::new(Lab::new());
    let many: Vec<_> = (0..2_000)
        .map(|number| owned(Ipv6Addr::from(u128::from(VIP6) + 0x1_0000 + number)))
        .collect();
    let config = config6(A, 100, true);
    let (all, few) = (groups(&config, &many, 0), groups(&config, &many[..1], 0));
    assert_eq!(all.len(), 2_002, "one each, and the two of adverts");
    let inside = Arc::clone(&lab);
    let body = move || {
        let lab = &inside;
        let mut memberships = Memberships::new("eth0");
        memberships.hold(&all).unwrap();
        assert_eq!(memberships.len(), all.len());
        assert!(joined(lab).is_superset(&all));
        memberships.hold(&few).unwrap();
        assert_eq!(memberships.len(), 3);
        let left: BTreeSet<_> = all.difference(&few).copied().collect();
        assert!(joined(lab).is_disjoint(&left) && joined(lab).is_superset(&few));
        memberships.hold(&all).unwrap();

        lab.ip("a", "link del eth0");
        assert!(memberships.hold(&all).unwrap_err().is_transient());
        lab.plug("a");
        assert!(joined(lab).is_disjoint(&all));
        memberships.hold(&all).unwrap();
        assert!(joined(lab).is_superset(&all));
        drop(memberships);
        assert!(joined(lab).is_disjoint(&all));
    };
    lab.within("a", body).join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn an_older_kernels_memory_for_options_takes_more_sockets_and_no_fewer_groups() {
    let lab = Lab::new();
    let many: Vec<_> = (0..600)
        .map(|number| owned(Ipv6Addr::from(u128::from(VIP6) + number)))
        .collect();
    let all = groups(&config6(A, 100, true), &many, 0);
    let seen = all.clone();
    let joined = lab.within("a", move || {
        // Per namespace since kernel 6.x where it can be set at all; 20 KiB was the limit for long.
        std::fs::write("/proc/sys/net/core/optmem_max", "4096").unwrap();
        let mut memberships = Memberships::new("eth0");
        memberships.hold(&all).unwrap();
        memberships.len()
    });
    assert_eq!(joined.join().unwrap(), seen.len());
}

/// The switch learns who wants which group, asks, and sends no group where nobody does.
fn snoop(lab: &Lab) {
    for setting in [
        "mcast_query_response_interval 50",
        // Every second: its own address is not proved unique when it asks first.
        "mcast_startup_query_interval 100",
        "mcast_query_interval 100",
        "mcast_snooping 1",
        "mcast_querier 1",
    ] {
        lab.run_in("sw", &format!("ip link set br0 type bridge {setting}"));
    }
}

/// Ports of the switch on which `group` is wanted.
fn ports(lab: &Lab, group: IpAddr) -> Vec<String> {
    let text = lab.run_in("sw", "bridge mdb show dev br0");
    let of_group = text
        .lines()
        .filter(|line| line.contains(&format!("grp {group} ")));
    let port = |line: &str| line.split(" port ").nth(1)?.split(' ').next().map(str::to_owned);
    of_group.filter_map(port).collect()
}

/// Memberships held in `node` until dropped.
struct Held(
    Option<std::sync::mpsc::Sender<()>>,
    Option<std::thread::JoinHandle<()>>,
);

impl Held {
    fn new(lab: &Lab, node: &str, all: BTreeSet<IpAddr>) -> Self {
        let (held, over) = std::sync::mpsc::channel();
        let member = lab.within(node, move || {
            let mut memberships = Memberships::new("eth0");
            memberships.hold(&all).unwrap();
            over.recv().ok();
        });
        Self(Some(held), Some(member))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.take();
        if let Some(member) = self.1.take() {
            member.join().ok();
        }
    }
}

/// Solicitations for the VIP that have reached `node`.
fn count_solicitations(lab: &Lab, node: &str) {
    let group = solicited_node(VIP6);
    lab.run_in(node, "nft add table netdev seen");
    let hook = "type filter hook ingress device eth0 priority 0";
    lab.run_in(node, &format!("nft add chain netdev seen c {{ {hook}; }}"));
    let rule = format!("ip6 daddr {group} icmpv6 type nd-neighbor-solicit counter");
    lab.run_in(node, &format!("nft add rule netdev seen c {rule}"));
}

fn solicitations(lab: &Lab, node: &str) -> u64 {
    let text = lab.run_in(node, "nft list chain netdev seen c");
    let after = text.split("packets ").nth(1).unwrap();
    after.split(' ').next().unwrap().parse().unwrap()
}

/// The client asks for the VIP until it gives up.
fn ask_in_vain(lab: &Lab) {
    lab.command_in("c", "ping")
        .args(["-6", "-q", "-c", "1", "-W", "4", &VIP6.to_string()])
        .output()
        .unwrap();
    lab.run_in("c", "ip neigh flush dev eth0 nud failed");
}

#[test]
#[ignore = "needs root"]
fn a_snooping_switch_delivers_solicitations_and_adverts_to_members_alone() {
    let lab = Lab::new();
    count_solicitations(&lab, "a");
    count_solicitations(&lab, "b");
    snoop(&lab);
    // Without a member the question is lost, once the switch trusts its own queries.
    wait_until("questions to be lost", Duration::from_secs(30), || {
        let before = solicitations(&lab, "a");
        ask_in_vain(&lab);
        solicitations(&lab, "a") == before
    });
    let of = |address| config6(address, 100, false);
    let wanted = groups(&of(A), &[owned(VIP6)], 0);
    let held = ["a", "b"].map(|node| Held::new(&lab, node, wanted.clone()));
    for group in &wanted {
        wait_until(&format!("the switch to know {group}"), LONG, || {
            let ports = ports(&lab, *group);
            ["pa", "pb"].iter().all(|port| ports.iter().any(|p| p == port))
        });
    }
    // Active and Standby alike: whoever takes over is asked at once.
    let before = ["a", "b"].map(|node| solicitations(&lab, node));
    ask_in_vain(&lab);
    for (node, before) in ["a", "b"].into_iter().zip(before) {
        assert!(solicitations(&lab, node) > before, "{node}");
    }
    let a = Node::start(&lab, "a", &of(A));
    let b = Node::start(&lab, "b", &of(B));
    a.wait_lease();
    b.wait_role(Role::Standby);
    b.wait_heard(30);
    assert!(!b.cell.holds());
    drop(held);
    for group in wanted {
        wait_until(&format!("the switch to forget {group}"), LONG, || {
            ports(&lab, group).is_empty()
        });
    }
}
