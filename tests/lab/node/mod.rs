//! What runs in the nodes' place: onearm, or one of its peers, behind one trait and measured by the same code.

pub mod frr;
pub mod keepalived;
pub(crate) mod nat;
pub mod onearm;
pub mod ucarp;

use std::{fmt, fs, path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Result, bail};
use nix::sys::signal::Signal;

use crate::{
    clock,
    netns::Namespace,
    process,
    service::PairSpec,
    topology::{NODES, OneArm},
};

/// Which product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// `onearmd` and `onearm`.
    #[default]
    Onearm,
    /// keepalived with nftables.
    Keepalived,
    /// keepalived with nftables, and conntrackd beside it.
    Conntrackd,
    /// FRR's vrrpd with nftables.
    Frr,
    /// ucarp with nftables.
    Ucarp,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Onearm => "onearm",
            Self::Keepalived => "keepalived",
            Self::Conntrackd => "conntrackd",
            Self::Frr => "frr",
            Self::Ucarp => "ucarp",
        })
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        Ok(match word {
            "onearm" => Self::Onearm,
            "keepalived" => Self::Keepalived,
            "conntrackd" => Self::Conntrackd,
            "frr" => Self::Frr,
            "ucarp" => Self::Ucarp,
            _ => bail!("no product of the name {word}; there are onearm, keepalived, conntrackd, frr, ucarp"),
        })
    }
}

/// What a node says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It owns the addresses.
    Active,
    /// It waits.
    Standby,
    /// It is not ready, or does not run.
    Neither,
}

/// One node of a pair.
pub trait Node: Send {
    /// Its short name: `lb1` or `lb2`.
    fn short(&self) -> &'static str;

    /// The namespace it runs in.
    fn ns(&self) -> &Namespace;

    /// Names of its programs: the files they were started from.
    fn programs(&self) -> &'static [&'static str];

    /// Starts it; does not wait until it is ready.
    ///
    /// # Errors
    /// When a program cannot be started or a file not be written.
    fn start(&mut self) -> Result<()>;

    /// What it is now.
    ///
    /// # Errors
    /// When it cannot be found out for a reason other than that it does not run.
    fn role(&mut self) -> Result<Role>;

    /// Tells it to stop in order, and returns at once.
    fn ask_to_stop(&self);

    /// Waits until its programs have ended, however they did, and forgets them.
    ///
    /// # Errors
    /// When they still run after `limit`.
    fn reap(&mut self, limit: Duration) -> Result<()>;

    /// Does what a reboot would do to what a killed node left in the kernel.
    ///
    /// # Errors
    /// When something cannot be removed.
    fn clean_up(&mut self) -> Result<()>;

    /// Tells the Active to hand over; false if the product has no such command.
    ///
    /// # Errors
    /// When the command fails.
    fn switch_over(&mut self) -> Result<bool>;

    /// Undoes [`switch_over`](Self::switch_over) on the node that was told; false if there is nothing to undo, and the other
    /// node is to be told to hand over.
    ///
    /// # Errors
    /// When the command fails.
    fn take_back(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Its running processes.
    fn pids(&self) -> Vec<i32> {
        self.ns()
            .pids()
            .into_iter()
            .filter(|pid| {
                process::program(*pid).is_some_and(|name| self.programs().contains(&name.as_str()))
                    && process::is_alive(*pid)
            })
            .collect()
    }

    /// Sends `signal` to all its processes: first to whole process groups, which the kernel does in one go, so that no
    /// process lives on to tell of another's death.
    fn signal_all(&self, signal: Signal) {
        let groups: std::collections::BTreeSet<i32> = self
            .pids()
            .into_iter()
            .filter_map(process::group)
            .filter(|group| *group > 1)
            .collect();
        for group in groups {
            process::signal_group(group, signal);
        }
        for pid in self.pids() {
            process::signal(pid, signal);
        }
    }

    /// Kills all its processes.
    fn sigkill_all(&self) {
        self.signal_all(Signal::SIGKILL);
    }

    /// Stops all its processes as a debugger would.
    fn sigstop_all(&self) {
        self.signal_all(Signal::SIGSTOP);
    }

    /// Lets them go on.
    fn sigcont_all(&self) {
        self.signal_all(Signal::SIGCONT);
    }

    /// Waits until it is `role`.
    ///
    /// # Errors
    /// When it is not within `limit`.
    fn wait_role(&mut self, role: Role, limit: Duration) -> Result<()> {
        let what = format!("{} to be {role:?}", self.short());
        clock::wait_for(&what, limit, Duration::from_millis(20), || {
            Ok((self.role()? == role).then_some(()))
        })
    }

    /// Waits until it has an opinion of every server: before, a checked server is out of rotation.
    ///
    /// # Errors
    /// When it has none within `limit`.
    fn wait_checked(&mut self, _limit: Duration) -> Result<()> {
        Ok(())
    }

    /// Waits until a pair that shares its flows has done so: asked of the node that owns nothing, with the number of flows
    /// there are at least. Without sync there is nothing to wait for.
    ///
    /// # Errors
    /// When it has not within `limit`.
    fn wait_synced(&mut self, _flows: usize, _limit: Duration) -> Result<()> {
        Ok(())
    }

    /// This node as onearm, for what only onearm can be asked.
    fn as_onearm(&self) -> Option<&onearm::OnearmNode> {
        None
    }
}

/// Both nodes. `lb1` has the higher priority.
pub struct Pair {
    /// lb1 and lb2.
    pub nodes: [Box<dyn Node>; 2],
    kind: Kind,
    spec: PairSpec,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("kind", &self.kind)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl Pair {
    /// Prepares both nodes; nothing runs yet.
    ///
    /// # Errors
    /// When files cannot be written or the product is not installed.
    pub fn prepare(kind: Kind, lab: &OneArm, spec: &PairSpec, bin_dir: &std::path::Path) -> Result<Self> {
        let make = |index: usize| -> Result<Box<dyn Node>> {
            Ok(match kind {
                Kind::Onearm => Box::new(onearm::OnearmNode::prepare(lab, index, spec, bin_dir)?),
                Kind::Keepalived | Kind::Conntrackd => {
                    let synced = kind == Kind::Conntrackd;
                    Box::new(keepalived::KeepalivedNode::prepare(lab, index, spec, synced)?)
                }
                Kind::Frr => Box::new(frr::FrrNode::prepare(lab, index, spec)?),
                Kind::Ucarp => Box::new(ucarp::UcarpNode::prepare(lab, index, spec)?),
            })
        };
        Ok(Self {
            nodes: [make(0)?, make(1)?],
            kind,
            spec: spec.clone(),
        })
    }

    /// Which product it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What it serves.
    pub fn spec(&self) -> &PairSpec {
        &self.spec
    }

    /// How long a cold node may take until it owns the addresses. An emulated processor verifies the programs in a minute.
    pub fn patience(&self) -> Duration {
        Duration::from_mins(3) + self.spec.interval * 8
    }

    /// Starts lb1, waits until it is Active, starts lb2, waits until it is Standby.
    ///
    /// # Errors
    /// When they do not get there.
    pub fn start(&mut self) -> Result<()> {
        let patience = self.patience();
        let [one, two] = &mut self.nodes;
        one.start()?;
        one.wait_role(Role::Active, patience)?;
        two.start()?;
        two.wait_role(Role::Standby, patience)?;
        // keepalived calls itself backup at once and may still be about to preempt; the first must have stayed.
        one.wait_role(Role::Active, patience)?;
        one.wait_checked(patience)?;
        two.wait_checked(patience)
    }

    /// Kills both and removes what they left.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn scrap(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.sigcont_all();
            node.sigkill_all();
            node.reap(Duration::from_secs(5))?;
            node.clean_up()?;
        }
        Ok(())
    }

    /// The processes of both.
    pub fn pids(&self) -> [Vec<i32>; 2] {
        [self.nodes[0].pids(), self.nodes[1].pids()]
    }
}

/// Folder of a node's files: `DIR/lb1`.
pub(crate) fn folder(lab: &OneArm, index: usize) -> Result<PathBuf> {
    let dir = lab.lab().dir().join(NODES[index]);
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Takes from `eth0` what a killed peer left there.
pub(crate) fn forget_addresses(ns: &Namespace, owned: &[std::net::Ipv4Addr]) -> Result<()> {
    let there = ns.run("ip -4 -o addr show dev eth0")?;
    let present: std::collections::HashSet<&str> = there.split_whitespace().collect();
    for address in owned
        .iter()
        .map(|a| format!("{a}/32"))
        .filter(|a| present.contains(a.as_str()))
    {
        // keepalived may still be taking it away.
        ns.output(&["ip", "addr", "del", &address, "dev", "eth0"])?;
    }
    Ok(())
}
