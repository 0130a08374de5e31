//! What can happen to a node of the drawing.

use std::{thread::JoinHandle, time::Duration};

use anyhow::Result;
use nix::sys::signal::Signal;

use crate::{
    clock::{self, MS, Nanos},
    node::{Node, Pair},
    process::{self, Process},
    scenario::attack,
    switch::Variant,
    topology::{NODES, OneArm},
};

/// What goes on while a fault lasts, and ends when it is dropped.
pub(super) struct Load {
    _processes: Vec<Process>,
    forger: Option<JoinHandle<Result<()>>>,
}

impl Load {
    fn of(processes: Vec<Process>) -> Self {
        Self {
            _processes: processes,
            forger: None,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(forger) = self.forger.take() {
            // It ends by itself; frames that could not be sent are none that do harm.
            drop(forger.join());
        }
    }
}

/// How long two nodes that start together may take until they serve: loading, listening, checks of the servers.
const COLD_START: Nanos = 20_000 * MS;
/// How often a peer link that flaps goes down.
const FLAPS: u32 = 10;
/// Forged adverts a second.
const FORGED: u64 = 200;

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
    /// Power-off: SIGKILL of every process, and no carrier.
    PowerOff,
    /// SIGKILL of every process while a third host sends adverts of the highest priority in the nodes' names.
    KillForged,
    /// Reboot: a stop in order, nothing left in the kernel, the leg down; all that anew at the end.
    Reboot,
    /// SIGKILL of both nodes, which start at the same moment at the end.
    ColdStart,
    /// Nothing reaches its leg any more; what it sends arrives.
    DeafLeg,
    /// Switch floods every frame to every port, both legs take all of them.
    Flooding,
    /// The peer link is down.
    LinkCut,
    /// The peer link goes down and up, again and again.
    LinkFlap,
    /// Leg silent and peer link down.
    BothCut,
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
        Self::PowerOff,
        Self::KillForged,
        Self::Reboot,
        Self::ColdStart,
        Self::DeafLeg,
        Self::Flooding,
        Self::LinkCut,
        Self::LinkFlap,
        Self::BothCut,
    ];

    /// Name on the command line.
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether it can happen to a pair with or without a peer link.
    pub(super) fn is_possible(self, linked: bool) -> bool {
        linked || !matches!(self, Self::LinkCut | Self::LinkFlap | Self::BothCut)
    }

    /// Whom it happens to when every kind has its turn: what concerns both nodes alike happens once.
    pub(super) fn targets(self) -> impl Iterator<Item = Target> {
        let both = !matches!(
            self,
            Self::Filter
                | Self::Hog
                | Self::ColdStart
                | Self::Flooding
                | Self::LinkCut
                | Self::LinkFlap
                | Self::KillForged
        );
        std::iter::once(Target::Active).chain(both.then_some(Target::Standby))
    }

    /// Whether messages of one node can reach the other by some way all the time.
    pub(super) fn leaves_a_path(self, linked: bool) -> bool {
        match self {
            Self::Silence => linked,
            Self::BothCut => false,
            _ => true,
        }
    }

    /// How long service may be away; `silence`: three intervals and the skew.
    pub(super) fn bound(self, target: Target, silence: Nanos) -> Nanos {
        match self {
            Self::Filter | Self::Hog | Self::Deafen | Self::Flooding | Self::LinkCut | Self::LinkFlap => 0,
            Self::ColdStart => clock::nanos(self.length(silence)) + COLD_START,
            _ if target == Target::Standby => 0,
            _ => silence,
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
    pub(super) fn inject(self, lab: &mut OneArm, pair: &mut Pair, index: usize) -> Result<Load> {
        let short = NODES[index];
        let silence = pair.spec().active_down(0).max(pair.spec().active_down(1));
        let node = pair.nodes[index].as_mut();
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
            Self::Hog => return Ok(Load::of(hogs(lab)?)),
            Self::PowerOff => {
                lab.switch().cut(short)?;
                node.sigkill_all();
            }
            Self::KillForged => {
                let count = FORGED * u64::try_from(self.length(silence).as_millis())? / 1_000;
                let forger = attack::forge_adverts(lab, count, FORGED)?;
                node.sigkill_all();
                return Ok(Load {
                    _processes: Vec::new(),
                    forger: Some(forger),
                });
            }
            Self::Reboot => {
                node.ask_to_stop();
                node.reap(Duration::from_secs(20))?;
                node.clean_up()?;
                node.ns().run("ip link set eth0 down")?;
            }
            Self::ColdStart => pair.nodes.iter().for_each(|node| node.sigkill_all()),
            Self::DeafLeg => lab.switch().starve(short)?,
            Self::Flooding => {
                lab.switch().set_variant(Variant::Flooding)?;
                promiscuous(lab, "on")?;
            }
            Self::LinkCut => link(lab, short, "down")?,
            Self::LinkFlap => {
                for _ in 0..FLAPS {
                    link(lab, short, "down")?;
                    clock::observe(Duration::from_millis(40));
                    link(lab, short, "up")?;
                    clock::observe(Duration::from_millis(40));
                }
            }
            Self::BothCut => {
                link(lab, short, "down")?;
                lab.switch().silence(short)?;
            }
        }
        Ok(Load::of(Vec::new()))
    }

    /// Ends it.
    pub(super) fn heal(self, lab: &mut OneArm, pair: &mut Pair, index: usize) -> Result<()> {
        let short = NODES[index];
        match self {
            Self::Kill | Self::KillMain | Self::KillHa | Self::KillForged | Self::Stop => {
                restart(pair.nodes[index].as_mut())?;
            }
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
            Self::PowerOff => {
                lab.switch().mend(short)?;
                lab.default_route(short)?;
                restart(pair.nodes[index].as_mut())?;
            }
            Self::Reboot => {
                lab.ns(short).run("ip link set eth0 up")?;
                lab.default_route(short)?;
                pair.nodes[index].start()?;
            }
            Self::ColdStart => {
                for node in &mut pair.nodes {
                    node.reap(Duration::from_secs(10))?;
                }
                for node in &mut pair.nodes {
                    node.start()?;
                }
            }
            Self::DeafLeg => lab.switch().feed(short)?,
            Self::Flooding => {
                promiscuous(lab, "off")?;
                lab.switch().set_variant(Variant::Learning)?;
            }
            Self::LinkCut => link(lab, short, "up")?,
            Self::BothCut => {
                lab.switch().unsilence(short)?;
                link(lab, short, "up")?;
            }
            Self::Hog | Self::LinkFlap => {}
        }
        Ok(())
    }
}

fn link(lab: &OneArm, short: &str, state: &str) -> Result<()> {
    lab.ns(short).run(&format!("ip link set eth1 {state}")).map(drop)
}

fn promiscuous(lab: &OneArm, state: &str) -> Result<()> {
    for short in NODES {
        lab.ns(short).run(&format!("ip link set eth0 promisc {state}"))?;
    }
    Ok(())
}

/// As a service manager does with a daemon that has ended in any way.
fn restart(node: &mut dyn Node) -> Result<()> {
    node.sigkill_all();
    node.reap(Duration::from_secs(10))?;
    node.start()
}

/// Two busy loops on each CPU.
pub(super) fn hogs(lab: &OneArm) -> Result<Vec<Process>> {
    let log = lab.lab().dir().join("hogs.log");
    let cpus = std::thread::available_parallelism()?.get();
    (0..2 * cpus)
        .map(|_| {
            lab.ns("mon")
                .spawn(&["sh", "-c", "while :; do :; done"], &[], &log)
        })
        .collect()
}
