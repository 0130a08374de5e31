//! What can happen to a node of the drawing.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::{
    clock::Nanos,
    node::{Node, Pair},
    process::{self, Process},
    topology::{NODES, OneArm},
};

/// Which node it happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The owner.
    Active,
    /// The other one.
    Standby,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL of every process.
    Kill,
    /// SIGKILL of the main process alone.
    KillMain,
    /// SIGKILL of the HA process alone.
    KillHa,
    /// SIGSTOP of every process, resumed at the end.
    Hang,
    /// SIGSTOP of the main process alone.
    HangMain,
    /// SIGSTOP of the HA process alone.
    HangHa,
    /// SIGTERM, and a new start at the end.
    Stop,
    /// Its cable is cut.
    Cut,
    /// Its port loses every frame, the carrier stays.
    Silence,
    /// The adverts it sends are lost.
    Mute,
    /// The adverts sent to it are lost.
    Deafen,
    /// Adverts are lost both ways, everything else arrives.
    Filter,
    /// Its leg is set down and up by the operator.
    LegDown,
    /// Its own address is taken off the leg.
    NoAddress,
    /// Its interface goes, and comes back with the same name.
    LegGone,
    /// Two busy loops on each CPU.
    Hog,
}

impl Fault {
    /// Every kind.
    pub(super) const ALL: &[Self] = &[
        Self::Kill,
        Self::KillMain,
        Self::KillHa,
        Self::Hang,
        Self::HangMain,
        Self::HangHa,
        Self::Stop,
        Self::Cut,
        Self::Silence,
        Self::Mute,
        Self::Deafen,
        Self::Filter,
        Self::LegDown,
        Self::NoAddress,
        Self::LegGone,
        Self::Hog,
    ];

    /// Whom it happens to when every kind has its turn: what concerns both nodes alike happens once.
    pub(super) fn targets(self) -> impl Iterator<Item = Target> {
        let both = !matches!(self, Self::Filter | Self::Hog);
        std::iter::once(Target::Active).chain(both.then_some(Target::Standby))
    }

    /// Whether messages of one node can reach the other by some way all the time.
    pub(super) fn leaves_a_path(self, linked: bool) -> bool {
        linked || self != Self::Silence
    }

    /// How long service may be away; `silence`: three intervals and the skew.
    pub(super) fn bound(self, target: Target, silence: Nanos) -> Nanos {
        if target == Target::Standby || matches!(self, Self::Filter | Self::Hog | Self::Deafen) {
            0
        } else {
            silence
        }
    }

    /// How long it lasts: as long as whatever is to follow from it needs.
    pub(super) fn length(self, silence: Nanos) -> Duration {
        if self == Self::HangHa {
            // Found after a second, killed, and started again after another one.
            Duration::from_millis(2_500)
        } else {
            Duration::from_nanos(2 * silence) + Duration::from_millis(300)
        }
    }

    /// Makes it happen to node `index`. What is returned ends it when dropped.
    pub(super) fn inject(self, lab: &mut OneArm, pair: &Pair, index: usize) -> Result<Vec<Process>> {
        let (node, short) = (pair.nodes[index].as_ref(), NODES[index]);
        let (main, ha) = (node.pids().first().copied(), node.pids().last().copied());
        let send = |pid: Option<i32>, signal| pid.into_iter().for_each(|pid| process::signal(pid, signal));
        match self {
            Self::Kill => node.sigkill_all(),
            Self::KillMain => send(main, Signal::SIGKILL),
            Self::KillHa => send(ha, Signal::SIGKILL),
            Self::Hang => node.sigstop_all(),
            Self::HangMain => send(main, Signal::SIGSTOP),
            Self::HangHa => send(ha, Signal::SIGSTOP),
            Self::Stop => node.ask_to_stop(),
            Self::Cut => lab.switch().cut(short)?,
            Self::Silence => lab.switch().silence(short)?,
            Self::Mute => lab.switch().mute(short)?,
            Self::Deafen => lab.switch().deafen(short)?,
            Self::Filter => {
                lab.switch().mute(short)?;
                lab.switch().deafen(short)?;
            }
            Self::LegDown => drop(node.ns().run("ip link set eth0 down")?),
            Self::NoAddress => drop(node.ns().run(&format!(
                "ip addr del {}/24 dev eth0",
                crate::topology::address(short)
            ))?),
            Self::LegGone => lab.remove_leg(short)?,
            Self::Hog => return hogs(lab),
        }
        Ok(Vec::new())
    }

    /// Ends it.
    pub(super) fn heal(self, lab: &mut OneArm, pair: &mut Pair, index: usize) -> Result<()> {
        let short = NODES[index];
        match self {
            Self::Kill | Self::KillMain | Self::KillHa | Self::Stop => restart(pair.nodes[index].as_mut())?,
            Self::Hang | Self::HangMain | Self::HangHa => pair.nodes[index].sigcont_all(),
            Self::Cut => {
                lab.switch().mend(short)?;
                lab.default_route(short)?;
            }
            Self::Silence => lab.switch().unsilence(short)?,
            Self::Mute => lab.switch().unmute(short)?,
            Self::Deafen => lab.switch().undeafen(short)?,
            Self::Filter => {
                lab.switch().unmute(short)?;
                lab.switch().undeafen(short)?;
            }
            Self::LegDown => {
                lab.ns(short).run("ip link set eth0 up")?;
                lab.default_route(short)?;
            }
            Self::NoAddress => {
                lab.address_leg(short)?;
                lab.default_route(short)?;
            }
            Self::LegGone => {
                lab.new_leg(short)?;
                lab.ns(short).run("ip link set eth0 up")?;
                lab.address_leg(short)?;
                lab.default_route(short)?;
            }
            Self::Hog => {}
        }
        Ok(())
    }
}

/// As a service manager does with a daemon that has ended in any way.
fn restart(node: &mut dyn Node) -> Result<()> {
    node.sigkill_all();
    node.reap(Duration::from_secs(10))?;
    node.start()
}

fn hogs(lab: &OneArm) -> Result<Vec<Process>> {
    let log = lab.lab().dir().join("hogs.log");
    let cpus = std::thread::available_parallelism()?.get();
    (0..2 * cpus)
        .map(|_| {
            lab.ns("mon")
                .spawn(&["sh", "-c", "while :; do :; done"], &[], &log)
        })
        .collect()
}
