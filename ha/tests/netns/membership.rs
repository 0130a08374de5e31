use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use onearm_ha::membership::{Memberships, groups};
use onearm_ha::wire::ndp::solicited_node;

use crate::lab::{A, Lab, VIP6, wait_until};
use crate::node::{LONG, config6, owned};

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
    let (all, few) = (groups(&config, &many), groups(&config, &many[..1]));
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
    let all = groups(&config6(A, 100, true), &many);
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

#[test]
#[ignore = "needs root"]
fn a_snooping_switch_learns_where_owned_addresses_and_adverts_are_wanted() {
    let lab = Lab::new();
    lab.run_in(
        "sw",
        "ip link set br0 type bridge mcast_snooping 1 mcast_querier 1",
    );
    lab.run_in(
        "sw",
        "ip link set br0 type bridge mcast_query_response_interval 50 mcast_startup_query_interval 100",
    );
    let config = config6(A, 100, true);
    let all = groups(&config, &[owned(VIP6)]);
    let (told, over) = std::sync::mpsc::channel::<()>();
    let member = lab.within("a", move || {
        let mut memberships = Memberships::new("eth0");
        memberships.hold(&all).unwrap();
        over.recv().ok();
    });
    let group = solicited_node(VIP6).to_string();
    let knows = |group: &str| {
        let text = lab.run_in("sw", "bridge mdb show dev br0");
        text.lines()
            .any(|line| line.contains("port pa ") && line.contains(&format!("grp {group} ")))
    };
    wait_until("the switch to know the port", LONG, || {
        knows(&group) && knows("ff02::12")
    });
    drop(told);
    member.join().unwrap();
    wait_until("the switch to forget it", LONG, || !knows(&group));
}
