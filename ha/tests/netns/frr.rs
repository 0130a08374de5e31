//! Against FRR's vrrpd, which sends IPv6 adverts from the link-local address of its macvlan.

use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};

use onearm_ha::config::Config;
use onearm_ha::election::Role;

use crate::interop::{FAMILIES, Family};
use crate::lab::{Lab, VIP, VIP6, wait_until};
use crate::node::{LONG, Node};

/// FRR's own address for IPv6 adverts.
const OWN6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x52);

/// zebra and vrrpd as router B.
struct Frr {
    daemons: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Frr {
    fn start(lab: &Lab, family: Family, priority: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Its daemons give up root and must still make their sockets.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (mac, own, address) = match family {
            Family::Ipv4 => ("00:00:5e:00:01:33", None, format!("ip {VIP}")),
            Family::Ipv6 => ("00:00:5e:00:02:33", Some(OWN6), format!("ipv6 {VIP6}")),
        };
        lab.ip(
            "b",
            &format!("link add vrrp link eth0 address {mac} type macvlan mode bridge"),
        );
        lab.ip("b", "link set vrrp addrgenmode none");
        lab.ip("b", &format!("addr add {} dev vrrp", Self::held(family)));
        if let Some(own) = own {
            lab.ip("b", &format!("addr add {own}/64 dev vrrp nodad"));
        }
        lab.ip("b", "link set vrrp up");
        let path = folder.path();
        fs::write(path.join("zebra.conf"), "hostname z\n").unwrap();
        let text = format!(
            "hostname v\ninterface eth0\n vrrp 51 version 3\n vrrp 51 priority {priority}\n \
             vrrp 51 advertisement-interval 100\n vrrp 51 {address}\n!\n"
        );
        fs::write(path.join("vrrpd.conf"), text).unwrap();
        let mut frr = Self {
            daemons: Vec::new(),
            folder,
        };
        frr.spawn(lab, "zebra");
        wait_until("zebra", LONG, || frr.folder.path().join("zserv.api").exists());
        frr.spawn(lab, "vrrpd");
        frr
    }

    fn held(family: Family) -> String {
        match family {
            Family::Ipv4 => format!("{VIP}/32"),
            Family::Ipv6 => format!("{VIP6}/128 nodad"),
        }
    }

    fn spawn(&mut self, lab: &Lab, daemon: &str) {
        let dir = self.folder.path().display().to_string();
        let log = fs::File::create(format!("{dir}/{daemon}.log")).unwrap();
        let line = format!(
            "-f {dir}/{daemon}.conf -i {dir}/{daemon}.pid -z {dir}/zserv.api --vty_socket {dir} -P 0 --log stdout"
        );
        let child = lab
            .command_in("b", &format!("/usr/lib/frr/{daemon}"))
            .args(line.split(' '))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemons.insert(0, child);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("vrrpd.log")).unwrap_or_default()
    }

    /// It takes the macvlan up as the owner only.
    fn owns(lab: &Lab) -> bool {
        let link = lab.run_in("b", "ip link show vrrp");
        !link.contains("protodown on") && !link.contains("NO-CARRIER")
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let pid = nix::unistd::Pid::from_raw(daemon.id().cast_signed());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
            daemon.wait().ok();
        }
    }
}

/// A's settings with FRR as the peer.
fn config(family: Family, preempt: bool) -> Config {
    let mut config = family.config();
    if let Some(wire) = &mut config.ipv6 {
        wire.peer = OWN6;
    }
    Config { preempt, ..config }
}

#[test]
#[ignore = "needs root"]
fn frr_listens_takes_over_on_release_and_gives_way_to_preemption() {
    for family in FAMILIES {
        let lab = Lab::new();
        lab.client_knows_another_owner();
        let a = Node::start(&lab, "a", &config(family, false));
        a.wait_lease();
        let frr = Frr::start(&lab, family, 100);
        wait_until(&format!("FRR as Backup\n{}", frr.log()), LONG, || {
            lab.run_in("b", "ip link show vrrp").contains("protodown on")
        });
        let sent = a.state().election_counters.adverts_sent;
        wait_until("more adverts", LONG, || {
            a.state().election_counters.adverts_sent > sent + 30
        });
        assert!(!Frr::owns(&lab), "{}", frr.log());

        a.stop();
        let took = wait_until("FRR to own", LONG, || Frr::owns(&lab));
        println!("{family:?}: stop of onearm, FRR owns after {took} ms");

        let a = Node::start(&lab, "a", &config(family, false));
        a.wait_role(Role::Standby);
        a.wait_heard(31);
        assert!(Frr::owns(&lab) && !a.cell.holds());
        let state = a.state();
        assert_eq!(state.wire_counters.bad_checksum, 0);
        assert_eq!(state.election_counters.address_list_differed, 0);
        a.stop();

        let a = Node::start(&lab, "a", &config(family, true));
        let took = a.wait_lease();
        println!("{family:?}: preempting onearm owns after {took} ms");
        wait_until("FRR to let go", LONG, || !Frr::owns(&lab));
        a.wait_role(Role::Active);
        wait_until("the client to know A", LONG, || {
            lab.client_has(family.vip()) == Some(lab.mac("a"))
        });
        drop(frr);
        assert!(a.cell.holds());
    }
}

#[test]
#[ignore = "needs root"]
fn onearm_yields_to_a_better_frr_and_takes_over_when_it_stops() {
    for family in FAMILIES {
        let lab = Lab::new();
        let a = Node::start(&lab, "a", &config(family, false));
        a.wait_lease();
        let frr = Frr::start(&lab, family, 200);
        wait_until(&format!("onearm to yield\n{}", frr.log()), LONG, || {
            !a.cell.holds()
        });
        a.wait_role(Role::Standby);
        drop(frr);
        let took = a.wait_lease();
        println!("{family:?}: FRR stopped: onearm owns after {took} ms");
        assert!(took <= 300 + 42 + 200);
    }
}
