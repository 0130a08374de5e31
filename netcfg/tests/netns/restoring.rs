//! What is asked for appears exactly, and goes away exactly.

use std::{collections::BTreeMap, path::Path};

use onearm_netcfg::{
    Device, Entry, Error, Fault, Kernel, LegSysctl, Lent, Outcome, Place, Restored, StateDir, Thing, diff,
    offload, restore,
};

use crate::lab::{Ns, cable, desired, does, eventually, in_fresh_namespace, leg, name, now, sh, snapshot};

fn lan() -> Ns {
    let far = Ns::new();
    cable(
        "leg0",
        &["192.168.100.2/24", "2001:db8:1::2/64"],
        &far,
        "far0",
        &["192.168.100.10/24"],
    );
    sh("ethtool -K leg0 gro on");
    far
}

fn lan_desired(refuse_own: bool) -> onearm_netcfg::Desired {
    let lan = leg(
        &["192.168.100.0/24", "2001:db8:1::/64"],
        &["192.168.100.10", "192.168.100.11"],
    );
    desired(
        [("leg0", lan)],
        &["192.168.100.100", "192.168.100.1", "2001:db8:1::100"],
        refuse_own,
    )
}

fn restored(directory: &Path) -> Restored {
    let mut restored = None;
    // A child another test is just starting holds a copy of the lock's descriptor until it is replaced.
    eventually("the lock is free", || {
        restored = match restore(directory) {
            Err(Error::InUse { .. }) => None,
            other => Some(other.unwrap()),
        };
        restored.is_some()
    });
    let restored = restored.unwrap();
    assert!(restored.errors.is_empty(), "{:?}", restored.errors);
    restored
}

fn outcomes(directory: &Path) -> Vec<(Thing, Outcome)> {
    restored(directory)
        .lines
        .into_iter()
        .map(|line| (line.what, line.outcome))
        .collect()
}

#[test]
#[ignore = "needs root"]
fn rules_routes_and_settings_appear_exactly_and_go_away_exactly() {
    in_fresh_namespace(|| {
        let _far = lan();
        let before = snapshot(&["leg0"]);
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut kernel = Kernel::open().unwrap();
        let found = kernel.apply(&mut state, &lan_desired(true)).unwrap();
        assert!(found.faults.is_empty(), "{:?}", found.faults);
        assert_eq!(
            sh("ip rule"),
            "0:\tfrom all lookup local\n\
             1111:\tfrom all iif leg0 lookup 7111 proto 111\n\
             1112:\tfrom 192.168.100.0/24 iif leg0 blackhole proto 111\n\
             1113:\tfrom 0.0.0.0 iif lo lookup 7112 proto 111\n\
             32766:\tfrom all lookup main\n32767:\tfrom all lookup default\n"
        );
        assert_eq!(
            sh("ip -6 rule"),
            "0:\tfrom all lookup local\n\
             1111:\tfrom all iif leg0 lookup 7111 proto 111\n\
             1112:\tfrom 2001:db8:1::/64 iif leg0 blackhole proto 111\n\
             1113:\tfrom all iif lo lookup 7112 proto 111\n\
             32766:\tfrom all lookup main\n"
        );
        assert_eq!(
            sh("ip route show table 7111"),
            "blackhole 192.168.100.1 proto 111 \nblackhole 192.168.100.100 proto 111 \n"
        );
        assert_eq!(
            sh("ip route show table 7112"),
            "unreachable 192.168.100.1 proto 111 \nunreachable 192.168.100.100 proto 111 \n"
        );
        assert!(sh("ip -6 route show table 7111").starts_with("blackhole 2001:db8:1::100 dev lo proto 111"));
        assert_eq!(sh("sysctl -n net.ipv4.conf.leg0.send_redirects"), "0\n");
        let features = sh("ethtool -k leg0");
        assert!(
            features.contains("generic-receive-offload: off") && features.contains("rx-vlan-offload: off")
        );
        assert!(sh("ip -d neigh show 192.168.100.10").contains("managed extern_learn"));

        // The Standby lets its own connections pass; a second application changes nothing.
        kernel.apply(&mut state, &lan_desired(false)).unwrap();
        assert!(!sh("ip rule").contains("iif lo"));
        let again = kernel.query(&lan_desired(false)).unwrap();
        assert_eq!(diff(&lan_desired(false).state(), &again.state), []);

        drop(state);
        let lines = outcomes(directory.path());
        assert_eq!(
            lines,
            [
                (
                    Thing::Setting(LegSysctl::send_redirects()),
                    Outcome::PutBack {
                        value: "1".to_owned()
                    }
                ),
                (
                    Thing::Offload("rx-gro".to_owned()),
                    Outcome::PutBack {
                        value: "on".to_owned()
                    }
                ),
                (
                    Thing::Offload("rx-vlan-hw-parse".to_owned()),
                    Outcome::PutBack {
                        value: "on".to_owned()
                    }
                ),
                (Thing::Rules, Outcome::Removed { count: 4 }),
                (Thing::Routes, Outcome::Removed { count: 6 }),
                (Thing::Neighbours, Outcome::Removed { count: 2 }),
            ]
        );
        assert_eq!(snapshot(&["leg0"]), before);
        assert_eq!(
            outcomes(directory.path()),
            [],
            "the second time there is nothing to do"
        );
    });
}

/// B140, promise 7: an interface that is not listed and objects without our marks stay as they are.
#[test]
#[ignore = "needs root"]
fn b140_what_others_made_is_never_touched() {
    in_fresh_namespace(|| {
        let far = lan();
        cable("other0", &["10.9.9.1/24"], &far, "far9", &["10.9.9.2/24"]);
        sh("ip rule add iif leg0 lookup 7111 pref 1111
            ip rule add from 192.168.100.0/24 iif leg0 blackhole pref 1112 protocol 112
            ip rule add to 10.1.0.0/16 lookup 100 pref 2000 protocol 111
            ip route add blackhole 192.168.100.77 table 7111
            ip route add blackhole 192.168.100.78 table 100 proto 111
            ip neigh add 192.168.100.77 lladdr 02:00:00:00:00:77 dev leg0 nud permanent
            ip neigh add 10.9.9.77 lladdr 02:00:00:00:00:77 dev other0 nud permanent");
        let before = snapshot(&["leg0", "other0"]);
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut wanted = lan_desired(true);
        wanted
            .legs
            .get_mut(&name("leg0"))
            .unwrap()
            .neighbours
            .insert("192.168.100.77".parse().unwrap());
        Kernel::open().unwrap().apply(&mut state, &wanted).unwrap();
        assert!(sh("ip neigh show 192.168.100.77").contains("02:00:00:00:00:77 PERMANENT"));
        drop(state);
        outcomes(directory.path());
        assert_eq!(snapshot(&["leg0", "other0"]), before);
    });
}

#[test]
#[ignore = "needs root"]
fn restore_is_refused_while_a_daemon_holds_the_state_directory() {
    in_fresh_namespace(|| {
        let _far = lan();
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        Kernel::open()
            .unwrap()
            .apply(&mut state, &lan_desired(false))
            .unwrap();
        let during = snapshot(&["leg0"]);
        assert!(matches!(restore(directory.path()), Err(Error::InUse { .. })));
        assert_eq!(snapshot(&["leg0"]), during);
    });
}

/// M15: a value goes back only if it still is what onearm wrote, on the same device, of the same boot.
#[test]
#[ignore = "needs root"]
fn a_value_changed_by_somebody_else_stays_and_so_does_a_new_device() {
    in_fresh_namespace(|| {
        let far = lan();
        cable("leg1", &["10.0.1.2/24"], &far, "far1", &["10.0.1.10/24"]);
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut wanted = lan_desired(false);
        wanted.legs.insert(name("leg1"), leg(&[], &[]));
        Kernel::open().unwrap().apply(&mut state, &wanted).unwrap();
        drop(state);
        sh("sysctl -qw net.ipv4.conf.leg0.send_redirects=1; ethtool -K leg0 rxvlan on; ip link del leg1");
        cable("leg1", &["10.0.1.2/24"], &far, "far1", &["10.0.1.10/24"]);
        sh("sysctl -qw net.ipv4.conf.leg1.send_redirects=0");
        let restored = restored(directory.path());
        let of = |interface: &str| -> Vec<_> {
            let lines = restored
                .lines
                .iter()
                .filter(|line| line.leg == Some(name(interface)));
            lines.map(|line| line.outcome.clone()).collect()
        };
        let changed = |value: &str| Outcome::LeftChanged {
            value: value.to_owned(),
        };
        assert_eq!(
            of("leg0"),
            [
                changed("1"),
                Outcome::PutBack {
                    value: "on".to_owned()
                },
                changed("on")
            ]
        );
        assert_eq!(
            of("leg1"),
            vec![Outcome::LeftDeviceGone; 2],
            "{:?}",
            restored.lines
        );
        assert_eq!(sh("sysctl -n net.ipv4.conf.leg1.send_redirects"), "0\n");
    });
}

/// Killed between the entry and the change, and after it; with an operator's value in between.
#[test]
#[ignore = "needs root"]
fn an_entry_without_its_change_does_no_harm_and_a_chain_of_changes_goes_back_to_the_first_value() {
    in_fresh_namespace(|| {
        let _far = lan();
        let directory = tempfile::tempdir().unwrap();
        let index = sh("ip -o link show leg0 | cut -d: -f1").trim().parse().unwrap();
        let mac = sh("ip -o link show leg0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'")
            .trim()
            .parse()
            .unwrap();
        let entry = |old: &str, written: &str| Entry {
            place: Place::here().unwrap(),
            device: Some(Device {
                ifindex: index,
                name: name("leg0"),
                mac: Some(mac),
            }),
            lent: Lent::Sysctl {
                key: LegSysctl::send_redirects(),
                old: old.to_owned(),
                written: written.to_owned(),
            },
        };
        // (entries, value in the kernel, value after restore)
        for (entries, value, after) in [
            (&[("1", "0")][..], "1", "1"),
            (&[("1", "0")], "0", "1"),
            (&[("1", "0"), ("0", "2")], "2", "1"),
            (&[("1", "0"), ("0", "2")], "0", "1"),
            (&[("1", "0"), ("2", "0")], "2", "2"),
        ] {
            let mut state = StateDir::acquire(directory.path()).unwrap();
            state
                .record(entries.iter().map(|(old, written)| entry(old, written)).collect())
                .unwrap();
            sh(&format!("sysctl -qw net.ipv4.conf.leg0.send_redirects={value}"));
            drop(state);
            outcomes(directory.path());
            let found = sh("sysctl -n net.ipv4.conf.leg0.send_redirects");
            assert_eq!(found.trim(), after, "{entries:?} with {value}");
        }
    });
}

/// A full disk: what cannot be written down is not changed, the guards stand all the same, and everything goes back.
#[test]
#[ignore = "needs root"]
fn a_full_disk_leaves_settings_alone_and_opens_no_way_past_the_guards() {
    in_fresh_namespace(|| {
        let _far = lan();
        let before = snapshot(&["leg0"]);
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        sh(&format!(
            "mount --make-rprivate /; mount -t tmpfs -o size=64k none {path}"
        ));
        let fill = || sh(&format!("cat /dev/zero > {path}/filler 2>/dev/null || true"));
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut kernel = Kernel::open().unwrap();
        fill();
        let errors = kernel.apply(&mut state, &lan_desired(false)).unwrap_err();
        assert!(
            errors.iter().any(|error| matches!(error, Error::Journal { .. })),
            "{errors:?}"
        );
        assert!(sh("ip rule").contains("from 192.168.100.0/24 iif leg0 blackhole"));
        assert_eq!(sh("sysctl -n net.ipv4.conf.leg0.send_redirects"), "1\n");
        assert!(sh("ethtool -k leg0").contains("rx-vlan-offload: on"));
        sh(&format!("rm {path}/filler"));
        kernel.apply(&mut state, &lan_desired(false)).unwrap();
        assert_eq!(sh("sysctl -n net.ipv4.conf.leg0.send_redirects"), "0\n");
        fill();
        drop(state);
        restored(directory.path());
        assert_eq!(snapshot(&["leg0"]), before);
        assert_eq!(outcomes(directory.path()), []);
    });
}

/// A manager that writes its value again and again must not fill the disk.
#[test]
#[ignore = "needs root"]
fn the_same_debt_is_written_down_once_and_another_value_is_another_debt() {
    in_fresh_namespace(|| {
        let _far = lan();
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut kernel = Kernel::open().unwrap();
        let mut entries = Vec::new();
        for value in ["1", "1", "1", "2", "2"] {
            sh(&format!(
                "sysctl -qw net.ipv4.conf.leg0.send_redirects={value}; ethtool -K leg0 gro on"
            ));
            kernel.apply(&mut state, &lan_desired(false)).unwrap();
            assert_eq!(sh("sysctl -n net.ipv4.conf.leg0.send_redirects"), "0\n");
            entries.push(state.entries().len());
        }
        // Marks, one setting, two offloads; then the other value.
        assert_eq!(entries, [4, 4, 4, 5, 5]);
        drop(state);
        restored(directory.path());
        assert_eq!(
            sh("sysctl -n net.ipv4.conf.leg0.send_redirects"),
            "2\n",
            "the last word of others"
        );
    });
}

/// What the child below does until it is killed.
const CHILD: &str = "ONEARM_NETCFG_TEST_STATE";

#[test]
#[ignore = "needs root"]
fn after_sigkill_at_any_instant_everything_goes_back() {
    in_fresh_namespace(|| {
        let _far = lan();
        let before = snapshot(&["leg0"]);
        for round in 0..12 {
            let directory = tempfile::tempdir().unwrap();
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--ignored",
                    "--exact",
                    "restoring::child_that_changes_until_it_is_killed",
                ])
                .env(CHILD, directory.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            eventually("the child works", || does("ip rule | grep -q 'proto 111'"));
            let until = now() + std::time::Duration::from_micros(700 * round);
            while now() < until {}
            child.kill().unwrap();
            child.wait().unwrap();
            outcomes(directory.path());
            assert_eq!(snapshot(&["leg0"]), before, "round {round}");
        }
    });
}

#[test]
#[ignore = "needs root"]
fn child_that_changes_until_it_is_killed() {
    assert!(nix::unistd::geteuid().is_root(), "needs root");
    // Started by the test above; by itself there is nothing to do.
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let mut state = StateDir::acquire(Path::new(&directory)).unwrap();
    let mut kernel = Kernel::open().unwrap();
    for round in 0.. {
        let mut wanted = lan_desired(round % 2 == 0);
        let lan = wanted.legs.get_mut(&name("leg0")).unwrap();
        lan.sysctls
            .insert(LegSysctl::send_redirects(), (round % 3).to_string());
        lan.offloads = BTreeMap::from([("rx-gro".to_owned(), round % 2 == 1)]);
        kernel.apply(&mut state, &wanted).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn a_device_is_reported_with_driver_carrier_and_offloads() {
    in_fresh_namespace(|| {
        let far = lan();
        let mut kernel = Kernel::open().unwrap();
        let report = kernel.device_report(&name("leg0")).unwrap().unwrap();
        assert_eq!(report.driver.as_deref(), Some("veth"));
        assert!(report.carrier && report.mtu == 1500);
        assert!(
            report.offloads[offload::CHECKSUM_TX].active && report.offloads[offload::CHECKSUM_TX].changeable
        );
        far.sh("ip link set far0 down");
        assert!(!kernel.device_report(&name("leg0")).unwrap().unwrap().carrier);
        assert_eq!(kernel.device_report(&name("nothing0")).unwrap(), None);
        // An offload the device cannot change is a fault, not an endless repair.
        let mut wanted = lan_desired(false);
        let lan = wanted.legs.get_mut(&name("leg0")).unwrap();
        lan.offloads = offload::for_generic_attach();
        lan.offloads.insert(offload::VLAN_RX.to_owned(), false);
        lan.offloads.insert("rx-fcs".to_owned(), true);
        lan.sysctls
            .insert("ipv4.conf.no_such_setting".parse().unwrap(), "1".to_owned());
        let directory = tempfile::tempdir().unwrap();
        let found = kernel
            .apply(&mut StateDir::acquire(directory.path()).unwrap(), &wanted)
            .unwrap();
        let leg = name("leg0");
        let key = "ipv4.conf.no_such_setting".parse().unwrap();
        assert_eq!(
            found.faults.into_iter().collect::<Vec<_>>(),
            [
                Fault::SettingUnknown {
                    leg: leg.clone(),
                    key
                },
                Fault::OffloadFixed {
                    leg,
                    feature: "rx-fcs".to_owned(),
                    active: false
                },
            ]
        );
    });
}
