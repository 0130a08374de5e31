//! FRR's vrrpd in a node's place, with nftables for the balancing.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use anyhow::Result;
use nix::sys::signal::Signal;

use super::{Node, Role, folder, nat};
use crate::{
    clock,
    netns::Namespace,
    process::Process,
    service::PairSpec,
    topology::{NODES, OneArm},
};

/// MAC of virtual router 51.
const VIRTUAL_MAC: &str = "00:00:5e:00:01:33";

/// One node run by FRR: zebra and vrrpd, addresses on a macvlan that goes up and down.
#[derive(Debug)]
pub struct FrrNode {
    index: usize,
    ns: Namespace,
    dir: PathBuf,
    spec: PairSpec,
    /// vrrpd, then zebra.
    running: Vec<Process>,
}

impl FrrNode {
    /// Prepares it.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn prepare(lab: &OneArm, index: usize, spec: &PairSpec) -> Result<Self> {
        let ns = lab.ns(NODES[index]).clone();
        let dir = folder(lab, index)?.join("frr");
        fs::create_dir_all(&dir)?;
        // Its daemons give up root and must still make their sockets.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))?;
        Ok(Self {
            index,
            ns,
            dir,
            spec: spec.clone(),
            running: Vec::new(),
        })
    }

    fn make_macvlan(&self) -> Result<()> {
        self.ns.run(&format!(
            "ip link add vrrp4 link eth0 address {VIRTUAL_MAC} type macvlan mode bridge"
        ))?;
        for address in self.spec.owned() {
            self.ns.run(&format!("ip addr add {address}/32 dev vrrp4"))?;
        }
        self.ns.run("ip link set vrrp4 up")?;
        self.ns.sysctl("net.ipv4.conf.all.arp_ignore", "1")
    }

    fn change_priority(&self, priority: u8) -> Result<bool> {
        let dir = self.dir.display().to_string();
        let command = format!("vrrp 51 priority {priority}");
        self.ns.exec(&[
            "vtysh",
            "--vty_socket",
            &dir,
            "-c",
            "conf t",
            "-c",
            "interface eth0",
            "-c",
            &command,
        ])?;
        Ok(true)
    }

    fn spawn(&self, daemon: &str) -> Result<Process> {
        let dir = self.dir.display();
        let program = format!("/usr/lib/frr/{daemon}");
        let line = format!(
            "{program} -f {dir}/{daemon}.conf -i {dir}/{daemon}.pid -z {dir}/zserv.api --vty_socket {dir} -P 0 --log stdout"
        );
        let argv: Vec<&str> = line.split_whitespace().collect();
        self.ns.spawn(&argv, &[], &self.dir.join(format!("{daemon}.log")))
    }
}

impl Node for FrrNode {
    fn short(&self) -> &'static str {
        NODES[self.index]
    }

    fn ns(&self) -> &Namespace {
        &self.ns
    }

    fn programs(&self) -> &'static [&'static str] {
        &["vrrpd", "zebra"]
    }

    fn start(&mut self) -> Result<()> {
        nat::remove(&self.ns)?;
        nat::install(&self.ns, &self.spec, &self.dir)?;
        self.make_macvlan()?;
        let lines: Vec<String> = self
            .spec
            .owned()
            .iter()
            .map(|a| format!(" vrrp 51 ip {a}\n"))
            .collect();
        let addresses = lines.concat();
        fs::write(self.dir.join("zebra.conf"), "hostname z\n")?;
        fs::write(
            self.dir.join("vrrpd.conf"),
            format!(
                "hostname v\ninterface eth0\n vrrp 51 version 3\n vrrp 51 priority {}\n vrrp 51 advertisement-interval {}\n{addresses}!\n",
                self.spec.priorities[self.index],
                self.spec.interval.as_millis()
            ),
        )?;
        let zebra = self.spawn("zebra")?;
        let api = self.dir.join("zserv.api");
        clock::wait_for("zebra", Duration::from_secs(5), Duration::from_millis(10), || {
            Ok(api.exists().then_some(()))
        })?;
        self.running = vec![self.spawn("vrrpd")?, zebra];
        Ok(())
    }

    fn role(&mut self) -> Result<Role> {
        if self.pids().is_empty() {
            return Ok(Role::Neither);
        }
        let link = self.ns.run("ip link show vrrp4")?;
        let down = link.contains("NO-CARRIER") || link.contains("protodown on");
        Ok(if down { Role::Standby } else { Role::Active })
    }

    fn ask_to_stop(&self) {
        for daemon in &self.running {
            daemon.signal(Signal::SIGTERM);
        }
    }

    fn reap(&mut self, limit: Duration) -> Result<()> {
        for mut daemon in self.running.drain(..) {
            daemon.wait(limit)?;
        }
        drop(fs::remove_file(self.dir.join("zserv.api")));
        Ok(())
    }

    fn clean_up(&mut self) -> Result<()> {
        if self.ns.run("ip -o link")?.contains("vrrp4") {
            self.ns.run("ip link del vrrp4")?;
        }
        nat::remove(&self.ns)
    }

    fn switch_over(&mut self) -> Result<bool> {
        self.change_priority(50)
    }

    fn take_back(&mut self) -> Result<bool> {
        self.change_priority(self.spec.priorities[self.index])
    }
}
