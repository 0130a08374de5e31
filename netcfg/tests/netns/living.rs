//! The running daemon's side: what others change is seen, and set right where it is ours.

use std::{net::IpAddr, path::Path, time::Duration};

use onearm_netcfg::{
    Change, Desired, Event, Fault, Mac, MirrorRoute, Netcfg, NextHop, Picture, Presence, StateDir,
    wait_for_leg,
};
use tokio::sync::mpsc;

use crate::lab::{
    Ns, cable, desired, does, eventually, in_fresh_namespace, leg, name, now, settle, sh, snapshot,
};

const SERVER: &str = "192.168.100.10";

/// A running netcfg with its state directory.
struct Running {
    netcfg: Netcfg,
    events: mpsc::Receiver<Event>,
    directory: tempfile::TempDir,
}

fn acquire(directory: &Path) -> StateDir {
    let mut state = None;
    // A child another test is just starting holds a copy of the lock's descriptor until it is replaced.
    eventually("the lock is free", || {
        state = StateDir::acquire(directory).ok();
        state.is_some()
    });
    state.unwrap()
}

fn started() -> Running {
    let directory = tempfile::tempdir().unwrap();
    let (netcfg, events) = Netcfg::start(acquire(directory.path())).unwrap();
    Running {
        netcfg,
        events,
        directory,
    }
}

fn wait<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), what)
            .await
            .expect("within ten seconds")
    })
}

impl Running {
    fn want(&self, desired: Desired) {
        let revision = self.netcfg.want(desired);
        wait(self.netcfg.settled(revision)).unwrap();
    }

    fn picture(&self) -> Picture {
        self.netcfg.picture().borrow().clone()
    }

    fn mac(&self, address: &str) -> Option<Mac> {
        let address: IpAddr = address.parse().unwrap();
        self.picture().legs[&name("leg0")]
            .neighbours
            .get(&address)
            .copied()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    fn faults(&self) -> Vec<Fault> {
        self.netcfg.status().borrow().faults.iter().cloned().collect()
    }
}

fn connect(far: &Ns) {
    cable(
        "leg0",
        &["192.168.100.2/24"],
        far,
        "far0",
        &["192.168.100.10/24", "192.168.100.254/24"],
    );
}

fn lan(neighbours: &[&str]) -> Desired {
    desired(
        [("leg0", leg(&["192.168.100.0/24"], neighbours))],
        &["192.168.100.100"],
        false,
    )
}

fn guards(interface: &str) -> bool {
    // Detached: waiting for the interface to come.
    let rules = (sh("ip rule") + &sh("ip -6 rule")).replace(" [detached]", "");
    rules.matches(&format!("iif {interface} lookup 7111")).count() == 2
        && rules.contains(&format!("from 192.168.100.0/24 iif {interface} blackhole"))
}

fn far_mac(far: &Ns) -> Mac {
    far.sh("ip -o link show far0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'")
        .trim()
        .parse()
        .unwrap()
}

#[test]
#[ignore = "needs root"]
fn b125_what_another_manager_flushes_is_back_within_two_seconds_and_told() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let mut running = started();
        running.want(lan(&[SERVER]));
        eventually("server resolved", || running.mac(SERVER).is_some());
        let (rules, routes) = (
            sh("ip rule; ip -6 rule"),
            sh("ip route show table 7111; ip route show table 7112"),
        );
        assert_eq!(running.events(), []);
        for (what, script) in [
            ("one rule", "ip rule del pref 1111"),
            (
                "all rules",
                "ip rule flush; ip rule add lookup main pref 32766; ip rule add lookup default pref 32767",
            ),
            ("IPv6 rules", "ip -6 rule del pref 1111"),
            ("one table", "ip route flush table 7111"),
            ("all neighbours", "ip neigh flush all"),
            (
                "everything",
                "ip rule del pref 1111; ip rule del pref 1112; ip route flush table 7112; ip neigh flush dev leg0",
            ),
        ] {
            let start = now();
            sh(script);
            eventually(what, || {
                guards("leg0")
                    && sh("ip rule; ip -6 rule") == rules
                    && sh("ip route show table 7111; ip route show table 7112") == routes
                    && running.mac(SERVER).is_some()
            });
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "{what}: {:?}",
                start.elapsed()
            );
            eventually("the repair is told", || {
                running
                    .events()
                    .iter()
                    .any(|event| matches!(event, Event::Repaired(changes) if !changes.is_empty()))
            });
        }
        assert!(running.netcfg.status().borrow().repairs >= 8);
    });
}

#[test]
#[ignore = "needs root"]
fn b130_a_renamed_leg_stays_guarded_and_a_new_one_is_set_up() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let mut running = started();
        running.want(lan(&[SERVER]));
        eventually("server resolved", || running.mac(SERVER).is_some());
        let index = running.picture().legs[&name("leg0")].link.unwrap().ifindex;

        // Renamed away: a fault, guarded under both names, the picture has no leg.
        sh("ip link set leg0 name away0");
        let renamed = Fault::LegRenamed {
            leg: name("leg0"),
            now: name("away0"),
        };
        eventually("the renamed leg is guarded", || guards("away0") && guards("leg0"));
        eventually("the fault is told", || running.faults() == [renamed.clone()]);
        assert_eq!(running.picture().legs[&name("leg0")].link, None);
        sh("ip link set away0 name leg0");
        eventually("back to normal", || {
            !guards("away0") && guards("leg0") && running.faults().is_empty()
        });
        eventually("server resolved again", || running.mac(SERVER).is_some());
        assert!(!sh("ip rule").contains("detached"));

        // Deleted: a fault, the guards wait for it. Other interfaces come and go meanwhile.
        sh("ip link del leg0");
        eventually("the fault is told", || {
            running.faults() == [Fault::LegMissing { leg: name("leg0") }]
        });
        assert!(guards("leg0"));
        sh(
            "for i in $(seq 250); do echo link add v$i type veth peer name w$i; echo link del v$i; done | ip -batch -",
        );
        connect(&far);
        eventually("the new leg is set up", || {
            does("test $(sysctl -n net.ipv4.conf.leg0.send_redirects) = 0")
                && sh("ethtool -k leg0").contains("rx-vlan-offload: off")
                && running.mac(SERVER).is_some()
                && running.faults().is_empty()
        });
        assert_ne!(running.picture().legs[&name("leg0")].link.unwrap().ifindex, index);
        assert!(guards("leg0"));
        let told = running.events();
        assert!(
            told.contains(&Event::FaultRaised(renamed.clone()))
                && told.contains(&Event::FaultCleared(renamed))
        );
        // Nobody changed the settings of the new one: it never had them.
        let blamed = told.iter().any(|event| {
            matches!(event, Event::Repaired(changes)
                if changes.iter().any(|change| matches!(change, Change::SetSysctl { .. } | Change::SetOffload { .. })))
        });
        assert!(!blamed, "{told:?}");
    });
}

/// B144: started before the leg exists; link, carrier and address come in any order.
#[test]
#[ignore = "needs root"]
fn b144_a_leg_that_comes_late_is_waited_for() {
    for order in [
        ["up", "far", "addr"],
        ["addr", "up", "far"],
        ["far", "addr", "up"],
    ] {
        in_fresh_namespace(move || {
            let far = Ns::new();
            let running = started();
            running.want(lan(&[SERVER]));
            let leg0 = name("leg0");
            assert_eq!(running.faults(), [Fault::LegMissing { leg: leg0.clone() }]);
            let there = |presence| {
                let mut picture = running.netcfg.picture();
                wait(wait_for_leg(&mut picture, &leg0, presence)).unwrap()
            };
            sh(&format!(
                "ip link add leg0 type veth peer name far0 netns {}",
                far.path()
            ));
            assert!(there(Presence::Link).link.is_some());
            for step in order {
                match step {
                    "up" => drop(sh("ip link set leg0 up")),
                    "addr" => drop(sh("ip addr add 192.168.100.2/24 dev leg0")),
                    _ => drop(far.sh("ip link set far0 up; ip addr add 192.168.100.10/24 dev far0")),
                }
            }
            there(Presence::Carrier);
            let leg = there(Presence::Address("192.168.100.2".parse().unwrap()));
            assert_eq!(
                leg.connected().collect::<Vec<_>>(),
                ["192.168.100.0/24".parse().unwrap()]
            );
            eventually("server resolved", || running.mac(SERVER).is_some());
            eventually("no fault", || running.faults().is_empty());
        });
    }
}

/// B67: a server comes back with another hardware address.
#[test]
#[ignore = "needs root"]
fn b67_a_servers_new_hardware_address_is_seen_announced_or_doubted() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let running = started();
        running.want(lan(&[SERVER]));
        let old = far_mac(&far);
        eventually("server resolved", || running.mac(SERVER) == Some(old));

        // Announced, after the time in which the kernel ignores a change of mind.
        let first: Mac = "02:00:00:00:00:77".parse().unwrap();
        far.sh("sysctl -qw net.ipv4.conf.far0.arp_notify=1; ip link set far0 down; ip link set far0 address 02:00:00:00:00:77; ip link set far0 up");
        let start = now();
        eventually("the announced address", || running.mac(SERVER) == Some(first));
        println!("announced: {:?}", start.elapsed());

        // Silent: a failing check doubts it.
        let second: Mac = "02:00:00:00:00:78".parse().unwrap();
        far.sh("sysctl -qw net.ipv4.conf.far0.arp_notify=0; ip link set far0 address 02:00:00:00:00:78");
        let start = now();
        eventually("the silent address", || {
            running.netcfg.suspect(&name("leg0"), SERVER.parse().unwrap());
            running.mac(SERVER) == Some(second)
        });
        println!("doubted: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());

        // Gone: the picture must not keep the address.
        far.sh("ip addr flush dev far0");
        let start = now();
        eventually("a host that is gone", || {
            running.netcfg.suspect(&name("leg0"), SERVER.parse().unwrap());
            running.mac(SERVER).is_none()
        });
        println!("gone: {:?}", start.elapsed());
    });
}

/// B68: resolved ahead, kept, and found again after carrier loss.
#[test]
#[ignore = "needs root"]
fn b68_servers_and_routers_are_resolved_without_traffic_and_again_after_carrier_loss() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let running = started();
        running.want(lan(&[SERVER]));
        // The router of a route by the leg need not be named.
        sh("ip route add default via 192.168.100.254");
        let router = "192.168.100.254";
        eventually("both resolved", || {
            running.mac(SERVER).is_some() && running.mac(router).is_some()
        });
        let hop = NextHop {
            leg: Some(name("leg0")),
            gateway: Some(router.parse().unwrap()),
            mtu: None,
        };
        let default = MirrorRoute::Hops(vec![hop]);
        assert_eq!(running.picture().routes[&"0.0.0.0/0".parse().unwrap()], default);
        for _ in 0..3 {
            far.sh("ip link set far0 down");
            eventually("gone with the carrier", || running.mac(SERVER).is_none());
            let carrier = || running.picture().legs[&name("leg0")].link.unwrap().carrier;
            eventually("no carrier", || !carrier());
            far.sh("ip link set far0 up");
            let start = now();
            eventually("back with the carrier", || running.mac(SERVER).is_some());
            assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        }
        sh("ip route del default");
        eventually("route gone", || {
            !running
                .picture()
                .routes
                .contains_key(&"0.0.0.0/0".parse().unwrap())
        });
        eventually("router given up", || {
            !sh("ip -d neigh show 192.168.100.254").contains("managed")
        });
    });
}

/// IPv6 as it is configured in practice: the router is known by its link-local address, its route has an MTU of its own.
#[test]
#[ignore = "needs root"]
fn a_router_by_its_link_local_address_is_resolved_on_its_leg_and_its_mtu_told() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        cable(
            "leg0",
            &["2001:db8:1::2/64"],
            &far,
            "far0",
            &["2001:db8:1::10/64", "fe80::1/64"],
        );
        let running = started();
        let servers = leg(&["2001:db8:1::/64"], &["2001:db8:1::10"]);
        running.want(desired([("leg0", servers)], &["2001:db8:1::100"], false));
        sh("ip -6 route add default via fe80::1 dev leg0 mtu 1400");
        eventually("server and router resolved", || {
            running.mac("2001:db8:1::10") == Some(far_mac(&far)) && running.mac("fe80::1").is_some()
        });
        let hop = NextHop {
            leg: Some(name("leg0")),
            gateway: Some("fe80::1".parse().unwrap()),
            mtu: Some(1400),
        };
        let default = "::/0".parse().unwrap();
        let routes = running.picture().routes;
        assert_eq!(routes[&default], MirrorRoute::Hops(vec![hop]));
        assert!(sh("ip -d -6 neigh show fe80::1").contains("managed"));
        far.sh("ip link set far0 down");
        eventually("gone with the carrier", || running.mac("fe80::1").is_none());
        far.sh("ip link set far0 up; ip addr replace fe80::1/64 dev far0 nodad");
        // The kernel took the route with the carrier.
        sh("ip -6 route replace default via fe80::1 dev leg0");
        eventually("back with the carrier", || running.mac("fe80::1").is_some());
        sh("ip -6 route del default");
        eventually("route gone", || !running.picture().routes.contains_key(&default));
        eventually("router given up", || {
            !sh("ip -d -6 neigh show fe80::1").contains("managed")
        });
    });
}

#[test]
#[ignore = "needs root"]
fn an_operators_permanent_entry_made_meanwhile_is_kept_and_ours_comes_back_after_it() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let running = started();
        running.want(lan(&[SERVER]));
        eventually("server resolved", || running.mac(SERVER).is_some());
        let theirs: Mac = "02:00:00:00:00:99".parse().unwrap();
        sh("ip neigh replace 192.168.100.10 lladdr 02:00:00:00:00:99 dev leg0 nud permanent");
        eventually("their entry counts", || running.mac(SERVER) == Some(theirs));
        // Everything of ours is repaired meanwhile, theirs is not touched.
        sh("ip rule del pref 1111");
        eventually("rule back", || guards("leg0"));
        running.want(lan(&[SERVER, "192.168.100.11"]));
        assert!(sh("ip neigh show 192.168.100.10").contains("02:00:00:00:00:99 PERMANENT"));
        sh("ip neigh del 192.168.100.10 dev leg0");
        eventually("ours again", || running.mac(SERVER) == Some(far_mac(&far)));
        // A stop removes ours and leaves theirs.
        sh("ip neigh replace 192.168.100.10 lladdr 02:00:00:00:00:99 dev leg0 nud permanent");
        eventually("their entry counts", || running.mac(SERVER) == Some(theirs));
        assert!(wait(running.netcfg.stop()).unwrap().errors.is_empty());
        assert!(sh("ip neigh show 192.168.100.10").contains("02:00:00:00:00:99 PERMANENT"));
        assert!(!sh("ip -d neigh").contains("managed"));
    });
}

/// M21: a thousand absent hosts are not a thousand times the broadcasts, and those present are found all the same.
#[test]
#[ignore = "needs root"]
fn absent_hosts_are_asked_for_at_a_bounded_rate() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        cable(
            "leg0",
            &["10.0.0.1/16"],
            &far,
            "far0",
            &["10.0.0.10/16", "10.0.200.200/16"],
        );
        let running = started();
        let absent = (0..1000u32).map(|number| IpAddr::from((0x0a00_0100 + number).to_be_bytes()));
        let mut lan = leg(&[], &["10.0.0.10", "10.0.200.200"]);
        lan.neighbours.extend(absent);
        running.want(desired([("leg0", lan)], &[], false));
        eventually("those present are found", || {
            running.mac("10.0.0.10").is_some() && running.mac("10.0.200.200").is_some()
        });
        let frames = || -> u64 {
            far.sh("cat /proc/net/dev | awk '/far0/ { print $3 }'")
                .trim()
                .parse()
                .unwrap()
        };
        let (before, start) = (frames(), now());
        eventually("eight seconds", || start.elapsed() > Duration::from_secs(8));
        let rate = f64::from(u32::try_from(frames() - before).unwrap()) / start.elapsed().as_secs_f64();
        println!("{rate:.1} frames a second");
        assert!((30.0..150.0).contains(&rate), "{rate} frames a second");
        assert_eq!(running.netcfg.status().borrow().unresolved, 1000);
        assert!(
            sh("ip -d neigh | grep -c managed")
                .trim()
                .parse::<usize>()
                .unwrap()
                <= 130
        );
    });
}

/// B146 and promise 7: a clean stop leaves nothing, an unclean end leaves the guards, and a restart does not lift them
/// before it knows what is wanted.
#[test]
#[ignore = "needs root"]
fn b146_a_clean_stop_leaves_nothing_and_an_unclean_one_leaves_the_guards() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let before = snapshot(&["leg0"]);
        let running = started();
        running.want(lan(&[SERVER]));
        let directory = running.directory;
        drop(running.netcfg);
        let guarded = sh("ip rule; ip route show table all");
        assert!(guards("leg0"));

        let (netcfg, _events) = Netcfg::start(acquire(directory.path())).unwrap();
        let start = now();
        eventually("half a second", || start.elapsed() > Duration::from_millis(500));
        assert_eq!(sh("ip rule; ip route show table all"), guarded);
        let revision = netcfg.want(lan(&[SERVER]));
        wait(netcfg.settled(revision)).unwrap();
        let restored = wait(netcfg.stop()).unwrap();
        assert!(restored.errors.is_empty(), "{:?}", restored.errors);
        assert_eq!(snapshot(&["leg0"]), before);

        // The same with the leg gone.
        let (netcfg, _events) = Netcfg::start(acquire(directory.path())).unwrap();
        let revision = netcfg.want(lan(&[SERVER]));
        wait(netcfg.settled(revision)).unwrap();
        sh("ip link del leg0");
        let restored = wait(netcfg.stop()).unwrap();
        assert!(restored.errors.is_empty(), "{:?}", restored.errors);
        assert!(!sh("ip rule; ip -6 rule").contains("proto 111"));
    });
}

/// What is no longer asked for goes back at once, not only at the end.
#[test]
#[ignore = "needs root"]
fn a_leg_taken_out_of_the_desire_is_given_back() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let before = snapshot(&["leg0"]);
        let running = started();
        running.want(lan(&[SERVER]));
        assert_ne!(snapshot(&["leg0"]), before);
        running.want(Desired::default());
        eventually("given back", || snapshot(&["leg0"]) == before);
    });
}

#[test]
#[ignore = "needs root"]
fn four_thousand_addresses_change_role_by_one_rule() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let running = started();
        let mut wanted = lan(&[SERVER]);
        wanted.owned = (0..4000u32)
            .map(|number| IpAddr::from((0x0a10_0000 + number).to_be_bytes()))
            .collect();
        let start = now();
        running.want(wanted.clone());
        println!("4,000 addresses: {:?}", start.elapsed());
        assert_eq!(sh("ip route show table 7111").lines().count(), 4000);
        wanted.refuse_own = true;
        let start = now();
        running.want(wanted);
        println!("role: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(1));
        assert!(sh("ip rule").contains("from 0.0.0.0 iif lo lookup 7112"));
        let start = now();
        assert!(wait(running.netcfg.stop()).unwrap().errors.is_empty());
        println!("stop: {:?}", start.elapsed());
    });
}

/// An address flushed and put back (B02) is seen, and does not confuse what is ours.
#[test]
#[ignore = "needs root"]
fn b02_loss_and_return_of_the_legs_address_is_seen() {
    in_fresh_namespace(|| {
        let far = Ns::new();
        connect(&far);
        let running = started();
        running.want(lan(&[SERVER]));
        let has = || {
            !running.picture().legs[&name("leg0")]
                .addresses
                .iter()
                .all(|net| net.addr().is_ipv6())
        };
        eventually("address there", has);
        sh("ip -4 addr flush dev leg0");
        eventually("address gone", || !has());
        sh("ip link set leg0 down");
        eventually("down", || !running.picture().legs[&name("leg0")].link.unwrap().up);
        sh("ip link set leg0 up; ip addr add 192.168.100.2/24 dev leg0");
        settle("leg0");
        eventually("address back", has);
        eventually("server resolved", || running.mac(SERVER).is_some());
        assert!(guards("leg0"));
    });
}
