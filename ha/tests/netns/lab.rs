//! A switch with three ports in namespaces of their own: node A, node B, client.
//!
//! ```text
//!   A eth0 192.0.2.11  fe80::11 ──────────┐
//!   B eth0 192.0.2.12  fe80::12 ──────────┤ bridge br0 (namespace sw)
//!   C eth0 192.0.2.101 2001:db8::101/64 ──┘        VIP 192.0.2.10 and 2001:db8::10
//! ```

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use onearm_ha::driver::now;

pub(crate) const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
pub(crate) const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 12);
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub(crate) const A6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x11);
pub(crate) const B6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x12);
pub(crate) const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Lab {
    prefix: String,
}

impl Lab {
    /// Needs root; fails without.
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lab = Self {
            prefix: format!("oaha{}-{number}", std::process::id()),
        };
        for space in ["sw", "a", "b", "c"] {
            run(&format!("ip netns add {}", lab.name(space)));
            lab.ip(space, "link set lo up");
        }
        lab.ip("sw", "link add br0 type bridge mcast_snooping 0 forward_delay 0");
        lab.ip("sw", "link set br0 up");
        for (node, address) in [("a", "192.0.2.11"), ("b", "192.0.2.12"), ("c", "192.0.2.101")] {
            lab.plug(node);
            lab.ip(node, &format!("addr add {address}/24 dev eth0"));
        }
        for (node, address) in [("a", A6), ("b", B6)] {
            lab.ip(node, &format!("addr add {address}/64 dev eth0 nodad"));
        }
        lab.ip("c", "addr add 2001:db8::101/64 dev eth0 nodad");
        lab.run_in(
            "c",
            "sysctl -qw net.ipv4.conf.all.arp_accept=1 net.ipv4.conf.eth0.arp_accept=1",
        );
        lab
    }

    /// A new interface `eth0` in `node`, up, without address.
    pub(crate) fn plug(&self, node: &str) {
        let inside = self.name(node);
        self.ip(
            "sw",
            &format!("link add p{node} type veth peer name eth0 netns {inside}"),
        );
        self.ip("sw", &format!("link set p{node} master br0 up"));
        self.ip(node, "link set eth0 up");
    }

    /// A second switch, br1: `eth1` of both nodes without addresses, and another host D, which learns from announcements.
    pub(crate) fn add_inside(&self) {
        run(&format!("ip netns add {}", self.name("d")));
        self.ip("sw", "link add br1 type bridge mcast_snooping 0 forward_delay 0");
        self.ip("sw", "link set br1 up");
        for (space, interface) in [("a", "eth1"), ("b", "eth1"), ("d", "eth0")] {
            let inside = self.name(space);
            self.ip(
                "sw",
                &format!("link add i{space} type veth peer name {interface} netns {inside}"),
            );
            self.ip("sw", &format!("link set i{space} master br1 up"));
            self.ip(space, &format!("link set {interface} up"));
        }
        self.ip("d", "addr add 10.1.0.101/24 dev eth0");
        self.run_in(
            "d",
            "sysctl -qw net.ipv4.conf.all.arp_accept=1 net.ipv4.conf.eth0.arp_accept=1",
        );
    }

    pub(crate) fn name(&self, space: &str) -> String {
        format!("{}-{space}", self.prefix)
    }

    pub(crate) fn ip(&self, space: &str, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.name(space)));
    }

    pub(crate) fn run_in(&self, space: &str, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.name(space)))
    }

    /// A command that goes on in a namespace.
    pub(crate) fn command_in(&self, space: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(space), program]);
        command
    }

    /// Runs `body` in a thread that lives in the namespace.
    pub(crate) fn within<T: Send + 'static>(
        &self,
        space: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = format!("/run/netns/{}", self.name(space));
        std::thread::spawn(move || {
            let file = File::open(path).unwrap();
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            body()
        })
    }

    pub(crate) fn mac(&self, node: &str) -> String {
        self.mac_of(node, "eth0")
    }

    pub(crate) fn mac_of(&self, node: &str, interface: &str) -> String {
        let text = self.run_in(node, &format!("cat /sys/class/net/{interface}/address"));
        text.trim().to_owned()
    }

    /// The MAC the client has for the VIP.
    pub(crate) fn client_sees(&self) -> Option<String> {
        self.client_has(VIP)
    }

    /// The MAC the client has for `address`.
    pub(crate) fn client_has(&self, address: impl Into<IpAddr>) -> Option<String> {
        self.known_to("c", address)
    }

    /// The MAC the host in `space` has for `address`.
    pub(crate) fn known_to(&self, space: &str, address: impl Into<IpAddr>) -> Option<String> {
        let address: IpAddr = address.into();
        let entry = self.run_in(space, &format!("ip neigh show {address} dev eth0"));
        let mut words = entry.split_whitespace();
        words.find(|word| *word == "lladdr")?;
        words.next().map(str::to_owned)
    }

    /// What the client knows of `address`.
    pub(crate) fn client_entry(&self, address: impl Into<IpAddr>) -> String {
        let address: IpAddr = address.into();
        self.run_in("c", &format!("ip neigh show {address} dev eth0"))
    }

    /// The client has talked to the VIP some time ago, when another host had it: an advertisement changes an entry, but
    /// makes none (RFC 4861 §7.2.5).
    pub(crate) fn client_knows_another_owner(&self) {
        self.ip(
            "c",
            &format!("neigh replace {VIP6} lladdr 02:00:00:00:00:99 dev eth0 nud stale"),
        );
    }

    /// Frames from `node` of the given Ethernet types are lost in the switch.
    pub(crate) fn lose(&self, node: &str, ethertypes: &[&str]) {
        self.nft("add table netdev loss");
        let hook = "type filter hook ingress device";
        self.nft(&format!(
            "add chain netdev loss c {{ {hook} p{node} priority 0; }}"
        ));
        for ethertype in ethertypes {
            self.nft(&format!("add rule netdev loss c meta protocol {ethertype} drop"));
        }
    }

    /// No frame is lost any more.
    pub(crate) fn lose_nothing(&self) {
        self.nft("delete table netdev loss");
    }

    fn nft(&self, command: &str) {
        self.run_in("sw", &format!("nft {command}"));
    }

    /// Adverts and everything else stop at the port; the carrier stays.
    pub(crate) fn block(&self, node: &str) {
        self.run_in("sw", &format!("bridge link set dev p{node} state 0"));
    }

    pub(crate) fn unblock(&self, node: &str) {
        self.run_in("sw", &format!("bridge link set dev p{node} state 3"));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for space in ["a", "b", "c", "d", "sw"] {
            Command::new("ip")
                .args(["netns", "del", &self.name(space)])
                .stderr(std::process::Stdio::null())
                .status()
                .ok();
        }
    }
}

fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(
        status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

/// Waits until `condition` holds; panics after `limit`. Returns the milliseconds it took.
#[track_caller]
pub(crate) fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> u64 {
    let begun = now();
    loop {
        let waited = now().since(begun) / 1_000_000;
        if condition() {
            return waited;
        }
        assert!(
            u128::from(waited) < limit.as_millis(),
            "{what}: not within {limit:?}"
        );
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
