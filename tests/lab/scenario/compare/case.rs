//! What happens to the Active, and how it is undone.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;

use super::product::Product;
use crate::{
    node::{Kind, Node, Pair},
    process,
    topology::{NODES, OneArm},
};

/// What happens to the Active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// Its cable is cut; mended.
    Cut,
    /// Its port loses every frame while the carrier stays, so that both live and neither hears the other on the leg; healed.
    Partition,
    /// SIGKILL of every process; started again.
    Kill,
    /// SIGKILL of the HA process alone.
    KillHa,
    /// SIGKILL of the main process alone.
    KillMain,
    /// SIGSTOP of every process; SIGCONT.
    Hang,
    /// SIGTERM; started again.
    Stop,
    /// It is told to hand over; ownership is handed back.
    SwitchOver,
}

impl Case {
    pub(super) const ALL: [Self; 8] = [
        Self::Cut,
        Self::Partition,
        Self::Kill,
        Self::KillHa,
        Self::KillMain,
        Self::Hang,
        Self::Stop,
        Self::SwitchOver,
    ];

    /// Name on the command line and in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Partition => "partition",
            Self::Kill => "kill",
            Self::KillHa => "kill-ha",
            Self::KillMain => "kill-main",
            Self::Hang => "hang",
            Self::Stop => "stop",
            Self::SwitchOver => "switchover",
        }
    }

    /// What happens, and how it is undone, for people.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Cut => ("link cut", "mended"),
            Self::Partition => ("partition", "healed"),
            Self::Kill => ("SIGKILL, all", "started again"),
            Self::KillHa => ("SIGKILL, HA process", "started again"),
            Self::KillMain => ("SIGKILL, main process", "started again"),
            Self::Hang => ("SIGSTOP, all", "SIGCONT"),
            Self::Stop => ("clean stop", "started again"),
            Self::SwitchOver => ("switchover", "failback"),
        }
    }

    /// Whether the product has what it happens to.
    pub(super) fn concerns(self, product: Product) -> bool {
        !matches!(self, Self::KillHa | Self::KillMain) || product.kind() == Kind::Onearm
    }

    /// Whether the node is started anew, so that the lease cells of before are no longer its own.
    pub(super) fn restarts(self) -> bool {
        matches!(self, Self::Kill | Self::KillHa | Self::KillMain | Self::Stop)
    }

    /// Makes it happen to node `index`; false if the product has no way to.
    pub(super) fn begin(self, lab: &OneArm, pair: &mut Pair, index: usize) -> Result<bool> {
        let node = pair.nodes[index].as_mut();
        let pids = node.pids();
        let kill = |pid: Option<&i32>| pid.iter().for_each(|pid| process::signal(**pid, Signal::SIGKILL));
        match self {
            Self::Cut => lab.switch().cut(NODES[index])?,
            Self::Partition => lab.switch().silence(NODES[index])?,
            Self::Kill => node.sigkill_all(),
            Self::KillHa => kill(pids.last()),
            Self::KillMain => kill(pids.first()),
            Self::Hang => node.sigstop_all(),
            Self::Stop => node.ask_to_stop(),
            Self::SwitchOver => return node.switch_over(),
        }
        Ok(true)
    }

    /// Undoes it.
    pub(super) fn undo(self, lab: &OneArm, pair: &mut Pair, index: usize) -> Result<()> {
        match self {
            Self::Cut => {
                lab.switch().mend(NODES[index])?;
                lab.default_route(NODES[index])?;
            }
            Self::Partition => lab.switch().unsilence(NODES[index])?,
            Self::Kill | Self::KillHa | Self::KillMain | Self::Stop => {
                let patience = pair.patience();
                let reboots = pair.kind() != Kind::Onearm;
                restart(pair.nodes[index].as_mut(), self, reboots, patience)?;
            }
            Self::Hang => pair.nodes[index].sigcont_all(),
            Self::SwitchOver => {
                if !pair.nodes[index].take_back()? {
                    pair.nodes[1 - index].switch_over()?;
                }
            }
        }
        Ok(())
    }
}

/// As a service manager does with a daemon that has ended; what a killed peer leaves in the kernel goes only by a reboot.
fn restart(node: &mut dyn Node, case: Case, reboots: bool, patience: Duration) -> Result<()> {
    if case != Case::Stop {
        node.sigkill_all();
    }
    node.reap(patience)?;
    if reboots {
        node.clean_up()?;
    }
    node.start()
}
