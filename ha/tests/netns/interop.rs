use std::fs;
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use onearm_ha::config::{Config, Transport};
use onearm_ha::election::Role;
use onearm_ha::units::Vrid;
use onearm_ha::wire::advert::with_link_local;

use crate::lab::{A, A6, B, B6, Lab, VIP, VIP6, wait_until};
use crate::node::{LONG, Node, config, config6};

/// Which of the two protocols.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

pub(crate) const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

impl Family {
    /// A's settings.
    pub(crate) fn config(self) -> Config {
        match self {
            Self::Ipv4 => config(A, 100),
            Self::Ipv6 => config6(A, 100, false),
        }
    }

    pub(crate) fn vip(self) -> IpAddr {
        match self {
            Self::Ipv4 => VIP.into(),
            Self::Ipv6 => VIP6.into(),
        }
    }
}

/// keepalived as router B.
struct Keepalived {
    process: Child,
    folder: tempfile::TempDir,
}

impl Keepalived {
    fn start(lab: &Lab, priority: u8, family: Family, transport: Transport) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (own, peer, addresses): (IpAddr, IpAddr, _) = match family {
            Family::Ipv4 => (B.into(), A.into(), format!("{VIP}/32")),
            Family::Ipv6 => {
                let listed = with_link_local(Vrid::new(51).unwrap(), &[VIP6]);
                let lines: Vec<_> = listed.iter().map(|address| format!("{address}/64")).collect();
                (B6.into(), A6.into(), lines.join("\n "))
            }
        };
        let way = match transport {
            Transport::Multicast => format!("mcast_src_ip {own}"),
            Transport::Unicast => format!("unicast_src_ip {own}\n unicast_peer {{\n {peer}\n }}"),
        };
        let text = format!(
            "global_defs {{\n vrrp_version 3\n vrrp_garp_master_delay 1\n script_user root\n}}\n\
             vrrp_instance V {{\n state BACKUP\n interface eth0\n virtual_router_id 51\n priority {priority}\n \
             advert_int 0.1\n {way}\n virtual_ipaddress {{\n {addresses}\n }}\n}}\n"
        );
        let file = folder.path().join("keepalived.conf");
        fs::write(&file, text).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let pids = ["pid", "vrrp", "check"].map(|name| folder.path().join(name));
        let mut command = lab.command_in("b", "keepalived");
        command
            .args([
                "--dont-fork",
                "--log-console",
                "--log-detail",
                "--vrrp",
                "--no-syslog",
                "-f",
            ])
            .arg(&file)
            .arg("-p")
            .arg(&pids[0])
            .arg("-r")
            .arg(&pids[1])
            .arg("-c")
            .arg(&pids[2])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null());
        Self {
            process: command.spawn().unwrap(),
            folder,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    #[track_caller]
    fn wait_log(&self, words: &str) -> u64 {
        wait_until(&format!("keepalived: {words}\n{}", self.log()), LONG, || {
            self.log().contains(words)
        })
    }

    fn owns(lab: &Lab, family: Family) -> bool {
        lab.run_in("b", "ip -o addr show dev eth0")
            .contains(&format!("{}/", family.vip()))
    }
}

impl Drop for Keepalived {
    fn drop(&mut self) {
        // SIGTERM, so that it cleans up; its children end with it.
        let pid = nix::unistd::Pid::from_raw(self.process.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
        self.process.wait().ok();
    }
}

#[test]
#[ignore = "needs root"]
fn keepalived_listens_takes_over_on_release_and_gives_way_to_preemption() {
    for family in FAMILIES {
        for transport in [Transport::Multicast, Transport::Unicast] {
            take_turns(family, transport);
        }
    }
}

fn take_turns(family: Family, transport: Transport) {
    let lab = Lab::new();
    let owns = || Keepalived::owns(&lab, family);
    let of = |preempt| Config {
        transport,
        preempt,
        ..family.config()
    };
    lab.client_knows_another_owner();
    let a = Node::start(&lab, "a", &of(false));
    a.wait_lease();
    let keepalived = Keepalived::start(&lab, 100, family, transport);
    keepalived.wait_log("Entering BACKUP STATE");
    // Thirty of its waits would have ended.
    let sent = a.state().election_counters.adverts_sent;
    wait_until("more adverts", LONG, || {
        a.state().election_counters.adverts_sent > sent + 30
    });
    assert!(!owns(), "{}", keepalived.log());
    wait_until("the client to know A", LONG, || {
        lab.client_has(family.vip()) == Some(lab.mac("a"))
    });

    a.stop();
    let took = wait_until("keepalived to own", LONG, owns);
    println!("{family:?} {transport:?}: stop of onearm, keepalived owns after {took} ms");
    assert!(took <= 250, "{}", keepalived.log());
    wait_until("the client to know B", LONG, || {
        lab.client_has(family.vip()) == Some(lab.mac("b"))
    });

    // Without preemption keepalived stays the owner.
    let a = Node::start(&lab, "a", &of(false));
    a.wait_role(Role::Standby);
    a.wait_heard(31);
    assert!(owns() && !a.cell.holds());
    let state = a.state();
    assert_eq!(state.wire_counters.bad_checksum, 0);
    assert_eq!(state.wire_counters.malformed, 0);
    assert_eq!(state.election_counters.address_list_differed, 0);
    a.stop();

    // With preemption it gives way, and the lease begins after it has.
    let a = Node::start(&lab, "a", &of(true));
    let took = a.wait_lease();
    println!("{family:?} {transport:?}: preempting onearm owns after {took} ms");
    wait_until("keepalived to let go", Duration::from_millis(500), || !owns());
    a.wait_role(Role::Active);
    wait_until("the client to know A again", LONG, || {
        lab.client_has(family.vip()) == Some(lab.mac("a"))
    });
    assert!(!keepalived.log().contains("invalid"), "{}", keepalived.log());

    drop(keepalived);
    assert!(a.cell.holds());
}

#[test]
#[ignore = "needs root"]
fn onearm_takes_over_when_keepalived_stops_or_dies() {
    for family in FAMILIES {
        let lab = Lab::new();
        let keepalived = Keepalived::start(&lab, 200, family, Transport::Multicast);
        keepalived.wait_log("Entering MASTER STATE");
        let a = Node::start(&lab, "a", &family.config());
        a.wait_role(Role::Standby);
        a.wait_heard(21);
        drop(keepalived);
        let took = a.wait_lease();
        println!("{family:?}: keepalived stopped: onearm owns after {took} ms");
        assert!(took <= 200);

        // A better keepalived preempts, as plain VRRP has it; then its link is cut.
        let keepalived = Keepalived::start(&lab, 200, family, Transport::Multicast);
        keepalived.wait_log("Entering MASTER STATE");
        wait_until("onearm to yield", LONG, || !a.cell.holds());
        a.wait_role(Role::Standby);
        lab.ip("sw", "link set pb down");
        let took = a.wait_lease();
        println!("{family:?}: keepalived cut off: onearm owns after {took} ms");
        assert!(took <= 300 + 42 + 200);
    }
}
