//! keepalived in a node's place, with nftables for the balancing and conntrackd beside it where wanted.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use super::{Node, Role, folder, nat};
use crate::{
    clock,
    netns::Namespace,
    process::Process,
    service::{Conntrackd, PairSpec},
    topology::{self, NODES, OneArm},
};

/// One node run by keepalived.
#[derive(Debug)]
pub struct KeepalivedNode {
    index: usize,
    ns: Namespace,
    dir: PathBuf,
    spec: PairSpec,
    priority: u8,
    synced: bool,
    running: Option<Process>,
    conntrackd: Option<Process>,
}

impl KeepalivedNode {
    /// Prepares it; with `synced` conntrackd runs beside it and commits at a take-over.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn prepare(lab: &OneArm, index: usize, spec: &PairSpec, synced: bool) -> Result<Self> {
        let ns = lab.ns(NODES[index]).clone();
        Ok(Self {
            index,
            ns,
            dir: folder(lab, index)?,
            spec: spec.clone(),
            priority: spec.priorities[index],
            synced,
            running: None,
            conntrackd: None,
        })
    }

    fn write_configuration(&self) -> Result<PathBuf> {
        let addresses: Vec<String> = self.spec.owned().iter().map(|a| format!("    {a}/32")).collect();
        let (listed, excluded) = addresses.split_at(addresses.len().min(20));
        let excluded = if excluded.is_empty() {
            String::new()
        } else {
            format!("  virtual_ipaddress_excluded {{\n{}\n  }}\n", excluded.join("\n"))
        };
        let notify = if self.synced {
            self.write_notify_script()?
        } else {
            String::new()
        };
        let text = format!(
            "global_defs {{\n  vrrp_version 3\n  router_id {}\n  script_user root\n}}\nvrrp_instance V {{\n  \
             state BACKUP\n  interface eth0\n  virtual_router_id 51\n  priority {}\n  advert_int {}\n  \
             virtual_ipaddress {{\n{}\n  }}\n{excluded}{notify}}}\n",
            NODES[self.index],
            self.priority,
            self.spec.interval.as_secs_f64(),
            listed.join("\n")
        );
        let path = self.dir.join("keepalived.conf");
        fs::write(&path, text)?;
        Ok(path)
    }

    /// The script of conntrackd's primary-backup example, shortened: commit and resend, or ask for a resync.
    fn write_notify_script(&self) -> Result<String> {
        let path = self.dir.join("notify.sh");
        let call = format!("conntrackd -C {}/conntrackd.conf", self.dir.display());
        fs::write(
            &path,
            format!(
                "#!/bin/sh\nexec 9>$0.lock; flock 9\ncase $1 in\nprimary) {call} -c; {call} -f; {call} -R; {call} -B;;\n*) {call} -t; {call} -n;;\nesac\n"
            ),
        )?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let path = path.display();
        Ok(format!(
            "  notify_master \"{path} primary\"\n  notify_backup \"{path} backup\"\n"
        ))
    }

    fn change_priority(&mut self, priority: u8) -> Result<bool> {
        self.priority = priority;
        self.write_configuration()?;
        if let Some(running) = &self.running {
            running.signal(Signal::SIGHUP);
        }
        Ok(true)
    }

    /// As its manual advises for busy nodes, with its own examples for the rest; over the peer link where there is one.
    fn conntrackd_configuration(&self) -> String {
        let dir = self.dir.display();
        let (interface, own, peer) = if self.spec.peer_link {
            (
                "eth1",
                topology::link_address(self.index),
                topology::link_address(1 - self.index),
            )
        } else {
            let [own, peer] = [self.index, 1 - self.index].map(|index| topology::address(NODES[index]));
            ("eth0", own, peer)
        };
        let mode = match self.spec.conntrackd {
            Conntrackd::FtFw => "FTFW {\n    ResendQueueSize 131072\n    ACKWindowSize 300\n",
            Conntrackd::Notrack => "NOTRACK {\n    DisableInternalCache Off\n",
        };
        let ignored: Vec<String> = [own, peer, [127, 0, 0, 1].into()]
            .iter()
            .map(|address| format!("      IPv4_address {address}\n"))
            .collect();
        format!(
            "Sync {{\n  Mode {mode}    PurgeTimeout 60\n    DisableExternalCache Off\n  }}\n  UDP {{\n    IPv4_address {own}\n    IPv4_Destination_Address {peer}\n    \
             Port 3780\n    Interface {interface}\n    SndSocketBuffer 4194304\n    RcvSocketBuffer 4194304\n    \
             Checksum on\n  }}\n}}\nGeneral {{\n  HashSize 262144\n  HashLimit 1048576\n  \
             LockFile {dir}/conntrackd.lock\n  UNIX {{\n    Path {dir}/conntrackd.ctl\n  }}\n  \
             LogFile {dir}/conntrackd.log\n  NetlinkBufferSize 8388608\n  NetlinkBufferSizeMaxGrowth 33554432\n  \
             NetlinkOverrunResync On\n  Filter From Kernelspace {{\n    Protocol Accept {{\n      TCP\n      UDP\n    }}\n    \
             Address Ignore {{\n{}    }}\n  }}\n}}\n",
            ignored.concat()
        )
    }

    fn start_conntrackd(&mut self) -> Result<()> {
        let text = self.conntrackd_configuration();
        let conf = self.dir.join("conntrackd.conf");
        fs::write(&conf, text)?;
        // After SIGKILL it refuses to start until its lock is gone.
        for left in ["conntrackd.lock", "conntrackd.ctl"] {
            drop(fs::remove_file(self.dir.join(left)));
        }
        self.ns.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
        let conf = conf.display().to_string();
        let mut running = self.ns.spawn(
            &["conntrackd", "-C", &conf],
            &[],
            &self.dir.join("conntrackd.out"),
        )?;
        let socket = self.dir.join("conntrackd.ctl");
        clock::wait_for(
            "conntrackd",
            Duration::from_secs(5),
            Duration::from_millis(10),
            || {
                anyhow::ensure!(
                    running.is_running()?,
                    "conntrackd ended; see {}",
                    running.log().display()
                );
                Ok(socket.exists().then_some(()))
            },
        )?;
        self.conntrackd = Some(running);
        Ok(())
    }
}

impl Node for KeepalivedNode {
    fn short(&self) -> &'static str {
        NODES[self.index]
    }

    fn ns(&self) -> &Namespace {
        &self.ns
    }

    fn programs(&self) -> &'static [&'static str] {
        &["keepalived", "conntrackd"]
    }

    fn start(&mut self) -> Result<()> {
        nat::remove(&self.ns)?;
        nat::install(&self.ns, &self.spec, &self.dir)?;
        if self.synced {
            self.start_conntrackd()?;
        }
        let conf = self.write_configuration()?.display().to_string();
        let pid_files = ["pid", "vrrp.pid", "checkers.pid"].map(|name| {
            let path = self.dir.join(name);
            drop(fs::remove_file(&path));
            path.display().to_string()
        });
        let argv = [
            "keepalived",
            "-n",
            "-l",
            "-P",
            "-f",
            &conf,
            "-p",
            &pid_files[0],
            "-r",
            &pid_files[1],
            "-c",
            &pid_files[2],
        ];
        self.running = Some(self.ns.spawn(&argv, &[], &self.dir.join("keepalived.log"))?);
        Ok(())
    }

    fn role(&mut self) -> Result<Role> {
        if self.pids().is_empty() {
            return Ok(Role::Neither);
        }
        let own = self
            .ns
            .run(&format!("ip -4 -o addr show to {}/32", self.spec.announce[0]))?;
        Ok(if own.is_empty() {
            Role::Standby
        } else {
            Role::Active
        })
    }

    fn ask_to_stop(&self) {
        if let Some(running) = &self.running {
            running.signal(Signal::SIGTERM);
        }
    }

    fn reap(&mut self, limit: Duration) -> Result<()> {
        if let Some(mut running) = self.running.take() {
            running.wait(limit)?;
        }
        self.conntrackd = None;
        Ok(())
    }

    fn clean_up(&mut self) -> Result<()> {
        self.priority = self.spec.priorities[self.index];
        super::forget_addresses(&self.ns, &self.spec.owned())?;
        if self.synced {
            self.ns.run("conntrack -F")?;
        }
        nat::remove(&self.ns)
    }

    fn wait_synced(&mut self, flows: usize, limit: Duration) -> Result<()> {
        if !self.synced {
            return Ok(());
        }
        let conf = self.dir.join("conntrackd.conf").display().to_string();
        let mut held = 0;
        clock::wait_for(
            "conntrackd to hold the flows",
            limit,
            Duration::from_millis(50),
            || {
                let told = self.ns.exec(&["conntrackd", "-C", &conf, "-s"])?;
                let external = told.split("cache external").nth(1).unwrap_or_default();
                let current = external.lines().find(|line| line.contains("current active"));
                held = current
                    .and_then(|line| line.split_whitespace().last()?.parse().ok())
                    .unwrap_or(0);
                Ok((held >= flows).then_some(()))
            },
        )
        .with_context(|| format!("{}: {held} of {flows}", self.short()))
    }

    fn switch_over(&mut self) -> Result<bool> {
        self.change_priority(50)
    }

    fn take_back(&mut self) -> Result<bool> {
        self.change_priority(self.spec.priorities[self.index])
    }
}
