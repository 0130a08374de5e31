//! Network namespaces that go away with the test, and questions to ordinary tools.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::AsRawFd as _,
    process::Command,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, unshare};
use onearm_netcfg::{Desired, IfName, Leg, LegSysctl};

/// Runs a test in a thread of its own with a fresh network namespace; children inherit it.
pub(crate) fn in_fresh_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        sh("ip link set lo up");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Another network namespace, alive as long as this value.
pub(crate) struct Ns(File);

impl Ns {
    pub(crate) fn new() -> Self {
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let namespace = Self(thread.join().unwrap());
        namespace.sh("ip link set lo up");
        namespace
    }

    /// A path other tools can open.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    pub(crate) fn sh(&self, script: &str) -> String {
        output(
            Command::new("nsenter")
                .arg(format!("--net={}", self.path()))
                .args(["sh", "-ec", script]),
            script,
        )
    }

    /// Whether a script succeeds.
    pub(crate) fn does(&self, script: &str) -> bool {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.path()))
            .args(["sh", "-ec", script]);
        command.output().unwrap().status.success()
    }
}

/// Runs a script in the test's namespace and returns what it printed.
pub(crate) fn sh(script: &str) -> String {
    output(Command::new("sh").args(["-ec", script]), script)
}

/// Whether a script succeeds in the test's namespace.
pub(crate) fn does(script: &str) -> bool {
    Command::new("sh")
        .args(["-ec", script])
        .output()
        .unwrap()
        .status
        .success()
}

fn output(command: &mut Command, script: &str) -> String {
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{script}\n{out}{err}");
    out.into_owned()
}

#[expect(clippy::disallowed_methods, reason = "tests wait in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits until a condition holds; panics with its name after ten seconds.
#[expect(clippy::disallowed_methods, reason = "tests wait in real time")]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = now() + Duration::from_secs(10);
    while !holds() {
        assert!(now() < deadline, "not within ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Everything of the host that onearm may touch, as the tools print it.
pub(crate) fn snapshot(legs: &[&str]) -> BTreeMap<String, String> {
    let mut commands = vec![
        "ip rule".to_owned(),
        "ip -6 rule".to_owned(),
        "ip route show table all".to_owned(),
        "ip -6 route show table all".to_owned(),
        "ip neigh show nud permanent".to_owned(),
        "ip -d neigh | grep -c 'proto 111' || true".to_owned(),
    ];
    for leg in legs {
        commands.push(format!(
            "sysctl -a 2>/dev/null | grep '[.]{leg}[.]' | grep -v stable_secret"
        ));
        commands.push(format!("ethtool -k {leg}"));
    }
    commands
        .into_iter()
        .map(|command| (command.clone(), sh(&command)))
        .collect()
}

pub(crate) fn name(text: &str) -> IfName {
    IfName::new(text).unwrap()
}

/// A leg with everything that can be asked for.
pub(crate) fn leg(guarded: &[&str], neighbours: &[&str]) -> Leg {
    Leg {
        guarded: guarded.iter().map(|network| network.parse().unwrap()).collect(),
        sysctls: [(LegSysctl::send_redirects(), "0".to_owned())].into(),
        offloads: [
            ("rx-gro".to_owned(), false),
            ("rx-vlan-hw-parse".to_owned(), false),
        ]
        .into(),
        neighbours: neighbours
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
    }
}

pub(crate) fn desired(
    legs: impl IntoIterator<Item = (&'static str, Leg)>,
    owned: &[&str],
    refuse_own: bool,
) -> Desired {
    Desired {
        legs: legs.into_iter().map(|(text, leg)| (name(text), leg)).collect(),
        owned: owned.iter().map(|address| address.parse().unwrap()).collect(),
        refuse_own,
    }
}

/// A veth whose far end is in another namespace, both up, with addresses.
pub(crate) fn cable(leg: &str, addresses: &[&str], far: &Ns, far_leg: &str, far_addresses: &[&str]) {
    let path = far.path();
    sh(&format!(
        "ip link add {leg} type veth peer name {far_leg} netns {path}"
    ));
    far.sh(&format!("ip link set {far_leg} up"));
    sh(&format!("ip link set {leg} up"));
    for address in addresses {
        sh(&format!(
            "ip addr add {address} dev {leg} $(echo {address} | grep -q : && echo nodad)"
        ));
    }
    for address in far_addresses {
        far.sh(&format!(
            "ip addr add {address} dev {far_leg} $(echo {address} | grep -q : && echo nodad)"
        ));
    }
    settle(leg);
}

/// Waits for the link-local address, which comes by itself and would look like a change.
pub(crate) fn settle(leg: &str) {
    eventually("link-local address", || {
        !sh(&format!("ip -6 addr show dev {leg} scope link -tentative"))
            .trim()
            .is_empty()
            && sh(&format!("ip -6 addr show dev {leg} tentative"))
                .trim()
                .is_empty()
    });
}
