use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use onearm_ha::config::{Config, Transport};
use onearm_ha::election::Role;

use crate::lab::{A, Lab, VIP, wait_until};
use crate::node::{LONG, Node, config};

/// keepalived as router B.
struct Keepalived {
    process: Child,
    folder: tempfile::TempDir,
}

impl Keepalived {
    fn start(lab: &Lab, priority: u8, transport: Transport) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let unicast = match transport {
            Transport::Multicast => "",
            Transport::Unicast => "unicast_src_ip 192.0.2.12\n unicast_peer {\n 192.0.2.11\n }",
        };
        let text = format!(
            "global_defs {{\n vrrp_version 3\n vrrp_garp_master_delay 1\n script_user root\n}}\n\
             vrrp_instance V {{\n state BACKUP\n interface eth0\n virtual_router_id 51\n priority {priority}\n \
             advert_int 0.1\n {unicast}\n virtual_ipaddress {{\n {VIP}/32\n }}\n}}\n"
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

    fn owns(lab: &Lab) -> bool {
        lab.run_in("b", "ip -o addr show dev eth0")
            .contains(&VIP.to_string())
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
    for transport in [Transport::Multicast, Transport::Unicast] {
        let lab = Lab::new();
        let of = |preempt| Config {
            transport,
            preempt,
            ..config(A, 100)
        };
        let a = Node::start(&lab, "a", &of(false));
        a.wait_lease();
        let keepalived = Keepalived::start(&lab, 100, transport);
        keepalived.wait_log("Entering BACKUP STATE");
        // Thirty of its waits would have ended.
        let sent = a.state().election_counters.adverts_sent;
        wait_until("more adverts", LONG, || {
            a.state().election_counters.adverts_sent > sent + 30
        });
        assert!(!Keepalived::owns(&lab), "{}", keepalived.log());

        a.stop();
        let took = wait_until("keepalived to own", LONG, || Keepalived::owns(&lab));
        println!("{transport:?}: stop of onearm, keepalived owns after {took} ms");
        assert!(took <= 250, "{}", keepalived.log());

        // Without preemption keepalived stays the owner.
        let a = Node::start(&lab, "a", &of(false));
        a.wait_role(Role::Standby);
        wait_until("adverts of keepalived", LONG, || {
            a.notes
                .lock()
                .unwrap()
                .state
                .as_ref()
                .is_some_and(|s| s.election_counters.adverts_received > 30)
        });
        assert!(Keepalived::owns(&lab) && !a.cell.holds());
        assert_eq!(a.state().wire_counters.bad_checksum, 0);
        a.stop();

        // With preemption it gives way, and the lease begins after it has.
        let a = Node::start(&lab, "a", &of(true));
        let took = a.wait_lease();
        println!("{transport:?}: preempting onearm owns after {took} ms");
        wait_until("keepalived to let go", Duration::from_millis(500), || {
            !Keepalived::owns(&lab)
        });
        a.wait_role(Role::Active);

        drop(keepalived);
        assert!(a.cell.holds());
    }
}

#[test]
#[ignore = "needs root"]
fn onearm_takes_over_when_keepalived_stops_or_dies() {
    let lab = Lab::new();
    let keepalived = Keepalived::start(&lab, 200, Transport::Multicast);
    keepalived.wait_log("Entering MASTER STATE");
    let a = Node::start(&lab, "a", &config(A, 100));
    a.wait_role(Role::Standby);
    wait_until("adverts of keepalived", LONG, || {
        a.notes
            .lock()
            .unwrap()
            .state
            .as_ref()
            .is_some_and(|s| s.election_counters.adverts_received > 20)
    });
    drop(keepalived);
    let took = a.wait_lease();
    println!("keepalived stopped: onearm owns after {took} ms");
    assert!(took <= 200);

    // A better keepalived preempts, as plain VRRP has it; then its link is cut.
    let keepalived = Keepalived::start(&lab, 200, Transport::Multicast);
    keepalived.wait_log("Entering MASTER STATE");
    wait_until("onearm to yield", LONG, || !a.cell.holds());
    a.wait_role(Role::Standby);
    lab.ip("sw", "link set pb down");
    let took = a.wait_lease();
    println!("keepalived cut off: onearm owns after {took} ms");
    assert!(took <= 300 + 42 + 200);
}
