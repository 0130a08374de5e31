//! ucarp in a node's place, with nftables for the balancing. It carries one address: the VIP.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use anyhow::Result;
use nix::sys::signal::Signal;

use super::{Node, Role, folder, nat};
use crate::{
    netns::Namespace,
    process::Process,
    service::PairSpec,
    topology::{self, NODES, OneArm},
};

/// One node run by ucarp. Its interval is one second whatever the pair says: it knows whole seconds only.
#[derive(Debug)]
pub struct UcarpNode {
    index: usize,
    ns: Namespace,
    dir: PathBuf,
    spec: PairSpec,
    running: Option<Process>,
}

impl UcarpNode {
    /// Prepares it.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn prepare(lab: &OneArm, index: usize, spec: &PairSpec) -> Result<Self> {
        let ns = lab.ns(NODES[index]).clone();
        Ok(Self {
            index,
            ns,
            dir: folder(lab, index)?,
            spec: spec.clone(),
            running: None,
        })
    }

    fn script(&self, verb: &str) -> Result<String> {
        let path = self.dir.join(format!("{verb}.sh"));
        let lines: String = self
            .spec
            .owned()
            .iter()
            .map(|a| match verb {
                // ucarp announces its one address itself.
                "add" => format!("ip addr add {a}/32 dev $1\narping -q -c 1 -U -I $1 {a}\n"),
                _ => format!("ip addr del {a}/32 dev $1\n"),
            })
            .collect();
        fs::write(&path, format!("#!/bin/sh\n{lines}exit 0\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path.display().to_string())
    }
}

impl Node for UcarpNode {
    fn short(&self) -> &'static str {
        NODES[self.index]
    }

    fn ns(&self) -> &Namespace {
        &self.ns
    }

    fn programs(&self) -> &'static [&'static str] {
        &["ucarp"]
    }

    fn start(&mut self) -> Result<()> {
        nat::remove(&self.ns)?;
        nat::install(&self.ns, &self.spec, &self.dir)?;
        let (up, down) = (self.script("add")?, self.script("del")?);
        let own = topology::address(self.short()).to_string();
        let vip = self.spec.announce[0].to_string();
        let skew = if self.index == 0 { "0" } else { "100" };
        let argv = [
            "ucarp", "-i", "eth0", "-s", &own, "-v", "42", "-p", "secret", "-a", &vip, "-z", "-b", "1", "-k",
            skew, "-u", &up, "-d", &down,
        ];
        self.running = Some(self.ns.spawn(&argv, &[], &self.dir.join("ucarp.log"))?);
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
        Ok(())
    }

    fn clean_up(&mut self) -> Result<()> {
        super::forget_addresses(&self.ns, &self.spec.owned())?;
        nat::remove(&self.ns)
    }

    fn switch_over(&mut self) -> Result<bool> {
        if let Some(running) = &self.running {
            running.signal(Signal::SIGUSR2);
        }
        Ok(true)
    }
}
