//! What happens to the Active, how it is undone, and what was measured meanwhile.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Cell, Run,
    many::Many,
    product::Product,
    stage::{Event, Lag, Span, Stage},
};
use crate::{
    clock::{self, MS, Nanos},
    measure::{echo, udp::UdpProber},
    node::{Kind, Node, Pair, Role},
    topology::{NODES, OneArm},
};

/// Between two datagrams at a steady rate.
const STEADY: Nanos = MS;
/// The tables of flows must be equal by then.
const SYNCED: Duration = Duration::from_secs(20);
/// Who has had no answer by then is broken: TCP asks again 6.2 s after a word, and then 12.6 s after.
const SILENT: Duration = Duration::from_secs(16);
/// Datagrams before something happens.
const BEFORE: Duration = Duration::from_millis(300);

/// What happens to the Active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    /// SIGKILL of every process; started again.
    Kill,
    /// Its leg's cable is cut; mended.
    Cut,
    /// Both cables are dead and every process, at once; it boots.
    PowerOff,
    /// It is told to hand over.
    Switchover,
}

impl Blow {
    pub(super) const ALL: [Self; 4] = [Self::Kill, Self::Cut, Self::PowerOff, Self::Switchover];

    /// Name on the command line and in figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Cut => "cut",
            Self::PowerOff => "power-off",
            Self::Switchover => "switchover",
        }
    }

    pub(super) fn begin(self, lab: &OneArm, pair: &mut Pair, index: usize) -> Result<()> {
        let node = pair.nodes[index].as_mut();
        match self {
            Self::Kill => node.sigkill_all(),
            Self::Cut => lab.switch().cut(NODES[index])?,
            Self::PowerOff => {
                lab.switch().cut(NODES[index])?;
                node.sigkill_all();
                lab.ns(NODES[index]).run("ip link set eth1 down")?;
            }
            Self::Switchover => ensure!(node.switch_over()?, "no command to hand over"),
        }
        Ok(())
    }

    /// Undoes it; the node is Standby or Active again when this returns.
    pub(super) fn undo(self, lab: &OneArm, pair: &mut Pair, index: usize) -> Result<()> {
        let patience = pair.patience();
        let reboots = pair.kind() != Kind::Onearm || self == Self::PowerOff;
        let node = pair.nodes[index].as_mut();
        if matches!(self, Self::Kill | Self::PowerOff) {
            node.reap(patience)?;
            if reboots {
                node.clean_up()?;
            }
        }
        if matches!(self, Self::Cut | Self::PowerOff) {
            lab.switch().mend(NODES[index])?;
            lab.default_route(NODES[index])?;
        }
        if self == Self::PowerOff {
            lab.ns(NODES[index]).run("ip link set eth1 up")?;
        }
        if matches!(self, Self::Kill | Self::PowerOff) {
            node.start()?;
        }
        wait_whole(pair)
    }
}

/// Waits until one node is Active and the other Standby, and stays so for a moment.
fn wait_whole(pair: &mut Pair) -> Result<()> {
    let patience = pair.patience();
    let mut since = None;
    clock::wait_for(
        "one Active and one Standby",
        patience,
        Duration::from_millis(50),
        || {
            let roles = [pair.nodes[0].role()?, pair.nodes[1].role()?];
            let is_whole = matches!(
                roles,
                [Role::Active, Role::Standby] | [Role::Standby, Role::Active]
            );
            let begun = *since.get_or_insert_with(clock::now);
            if !is_whole {
                since = None;
            }
            Ok((is_whole && clock::now() >= begun + 1_000 * MS).then_some(()))
        },
    )?;
    for node in &mut pair.nodes {
        node.wait_checked(patience)?;
    }
    Ok(())
}

/// Which node owns.
pub(super) fn active(pair: &mut Pair) -> usize {
    // One that was killed has no role.
    usize::from(matches!(pair.nodes[1].role(), Ok(Role::Active)))
}

/// The blow, its end, the failback and the blow again, to one set of connections.
pub(super) fn deal(
    run: &Run,
    lab: &OneArm,
    pair: &mut Pair,
    (product, cell): (Product, Cell),
    blow: Blow,
    many: Many,
) -> Result<Vec<Stage>> {
    let size = many.size;
    let mut scene = Scene::new(run, lab, cell, &many);
    let first = active(pair);
    scene.span(pair, Event::Blow, Some(1 - first), |pair| {
        blow.begin(lab, pair, first)
    })?;
    if blow != Blow::Switchover {
        scene.span(pair, Event::Mended, None, |pair| blow.undo(lab, pair, first))?;
    }
    // A product that prefers a node has handed back already.
    if active(pair) != first {
        scene.span(pair, Event::Failback, Some(first), |pair| hand_back(pair, first))?;
    }
    scene.span(pair, Event::Again, Some(1 - first), |pair| {
        blow.begin(lab, pair, first)
    })?;
    let spans = scene.spans;
    if blow == Blow::Switchover {
        hand_back(pair, first)?;
    } else {
        blow.undo(lab, pair, first)?;
    }
    wait_whole(pair)?;
    let outcome = many.finish()?;
    Ok(spans
        .into_iter()
        .map(|span| span.stage(product, cell, size, blow, &outcome))
        .collect())
}

/// Node `first` owns again, by command.
fn hand_back(pair: &mut Pair, first: usize) -> Result<()> {
    if !pair.nodes[first].take_back()? {
        ensure!(pair.nodes[1 - first].switch_over()?, "no command to hand over");
    }
    Ok(())
}

/// What both nodes say happened last.
fn told(pair: &Pair) -> String {
    let of = |node: &dyn Node| {
        let onearm = node.as_onearm()?;
        let printed = onearm.cli(&["events"]).ok()?.stdout;
        let text = String::from_utf8_lossy(&printed).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(8)..)?.join(" | ");
        Some(format!("{}: {last}", node.short()))
    };
    let words: Vec<String> = pair.nodes.iter().filter_map(|node| of(node.as_ref())).collect();
    words.join("; ")
}

/// What goes on around a span.
pub(super) struct Scene<'a> {
    is_unsynced: bool,
    lab: &'a OneArm,
    target: SocketAddr,
    many: &'a Many,
    /// Those that are over.
    pub(super) spans: Vec<Span>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(run: &Run, lab: &'a OneArm, cell: Cell, many: &'a Many) -> Self {
        Self {
            is_unsynced: run.wanted.unsynced,
            lab,
            target: (cell.vip(), echo::PORT).into(),
            many,
            spans: Vec::new(),
        }
    }

    /// Does `work` once the tables of flows are equal, and waits until all that lives has had an answer; then `owner` owns.
    pub(super) fn span(
        &mut self,
        pair: &mut Pair,
        event: Event,
        owner: Option<usize>,
        work: impl FnOnce(&mut Pair) -> Result<()>,
    ) -> Result<()> {
        if event != Event::Mended && !self.is_unsynced {
            let active = active(pair);
            // Later some connections may be over.
            let flows = if event == Event::Blow { self.many.count } else { 0 };
            pair.nodes[1 - active]
                .wait_synced(flows, SYNCED)
                .with_context(|| format!("before {event:?}"))?;
        }
        let lag = Lag::told(pair)?;
        let steady = UdpProber::start(self.lab.ns("out"), self.target, STEADY)?;
        clock::observe(BEFORE);
        let from = clock::now();
        work(pair)?;
        clock::observe(Product::aftermath(pair.spec()));
        self.many.wait_answered(SILENT);
        if let Some(owner) = owner {
            let is_moved = active(pair) == owner;
            ensure!(
                is_moved,
                "{event:?} did not move ownership to {}: {}",
                NODES[owner],
                told(pair)
            );
        }
        let to = clock::now();
        self.spans.push(Span {
            event,
            // A word said just before may be the first one that is not answered.
            from: from - MS,
            to,
            steady: steady.stop()?,
            lag,
        });
        Ok(())
    }
}
