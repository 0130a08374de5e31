//! Blows in a row to alternating owners, while short connections use a few ports again and again.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    Cell, Run,
    blow::{self, Blow, Scene},
    many::Many,
    product::Product,
    stage::{Event, Stage},
};
use crate::{
    clock::{MS, Nanos, ms},
    measure::sessions::{Briefly, PORT, Short},
    node::Pair,
    topology::{NODES, OneArm},
};

/// How many, and which take turns.
const BLOWS: u8 = 24;
/// See `BLOWS`.
const KINDS: [Blow; 3] = [Blow::Kill, Blow::Switchover, Blow::Cut];
/// Between two short connections of a thread.
const PAUSE: Duration = Duration::from_millis(10);
/// What was established for so long before a blow is known to the other node.
const ACKNOWLEDGED: Nanos = 5 * MS;

/// A hand-over is done so long after it was asked for.
const HAND_OVER: Nanos = 100 * MS;

/// All of them to one pair; `source` is the outside client's address for short connections.
pub(super) fn deal(
    run: &mut Run,
    lab: &OneArm,
    pair: &mut Pair,
    (product, cell): (Product, Cell),
    source: IpAddr,
    many: Many,
) -> Result<Vec<Stage>> {
    let target = (cell.vip(), PORT).into();
    let short = Short::start(lab.ns("out"), source, target, PAUSE)?;
    let size = many.size;
    let mut blows = Vec::new();
    let mut scene = Scene::new(run, lab, cell, &many);
    for (nth, blow) in (1..=BLOWS).zip(KINDS.into_iter().cycle()) {
        let owner = blow::active(pair);
        let what = || format!("number {nth}, {} of {}", blow.name(), NODES[owner]);
        scene
            .span(pair, Event::Row(nth), Some(1 - owner), |pair| {
                blow.begin(lab, pair, owner)
            })
            .with_context(what)?;
        blow.undo(lab, pair, owner).with_context(what)?;
        blows.push(blow);
    }
    let spans = scene.spans;
    let briefly = short.finish()?;
    let outcome = many.finish()?;
    let broken: usize = outcome
        .records
        .iter()
        .map(|(_, record)| record.broken.len())
        .sum();
    let stages: Vec<Stage> = spans
        .into_iter()
        .zip(blows)
        .map(|(span, blow)| span.stage(product, cell, size, blow, &outcome))
        .collect();
    let part = format!("{}_{}_{size}_row", product.name(), cell.name());
    let report = &mut run.report;
    report.count(format!("{part}_blows"), stages.len());
    report.count(format!("{part}_broken"), broken);
    product.demand(
        report,
        format!("{part}: no long-lived connection breaks at a blow or between two"),
        broken == 0,
        format!("{broken} in {} blows", stages.len()),
    );
    judge(run, product, &part, &briefly, &stages);
    Ok(stages)
}

/// What became of short connections.
fn judge(run: &mut Run, product: Product, part: &str, briefly: &Briefly, stages: &[Stage]) {
    // A stalled machine makes everything late by as much.
    let is_at = |at: Nanos, stage: &Stage| {
        let longest = if stage.is_planned() {
            HAND_OVER
        } else {
            stage.outage
        };
        let first = stage.from.saturating_sub(ACKNOWLEDGED + stage.machine);
        (first..=stage.from + longest + stage.machine + ACKNOWLEDGED).contains(&at)
    };
    let (mut at_blows, mut at_hand_overs, mut between) = (Vec::new(), Vec::new(), Vec::new());
    for (at, why) in &briefly.broken {
        let said = format!("{why}, {}", near(*at, stages));
        match stages.iter().find(|stage| is_at(*at, stage)) {
            Some(stage) if stage.is_planned() => at_hand_overs.push(said),
            Some(_) => at_blows.push(said),
            None => between.push(said),
        }
    }
    let report = &mut run.report;
    report.note(format!(
        "{part}: {} short connections; {} refused, {} not begun for an earlier one on the port, {} took a second SYN, {} broke, {} of them at a blow and {} at a hand-over",
        briefly.done,
        briefly.refused.len(),
        briefly.taken,
        briefly.hesitant.len(),
        briefly.broken.len(),
        at_blows.len(),
        at_hand_overs.len()
    ));
    for (word, count) in [
        ("done", briefly.done),
        ("refused", briefly.refused.len()),
        ("port_taken", briefly.taken),
        ("second_syn", briefly.hesitant.len()),
        ("broken_at_blows", at_blows.len()),
        ("broken_at_hand_overs", at_hand_overs.len()),
        ("broken_between", between.len()),
    ] {
        report.count(format!("{part}_short_{word}"), count);
    }
    let first = |at: &[Nanos]| at.first().map_or(String::new(), |at| near(*at, stages));
    product.demand(
        report,
        format!("{part}: ports were used again"),
        briefly.done > 4_000,
        format!("{} connections from 400 ports", briefly.done),
    );
    product.demand(
        report,
        format!("{part}: no short connection is refused"),
        briefly.refused.is_empty(),
        format!("{} {}", briefly.refused.len(), first(&briefly.refused)),
    );
    product.demand(
        report,
        format!("{part}: no short connection hears what belongs to another"),
        briefly.foreign.is_empty(),
        format!("{:?}", briefly.foreign),
    );
    product.demand(
        report,
        format!("{part}: no acknowledged short connection breaks"),
        between.is_empty(),
        format!("{between:?}"),
    );
    product.demand(
        report,
        format!("{part}: no short connection breaks at a hand-over"),
        at_hand_overs.is_empty(),
        format!("{at_hand_overs:?}"),
    );
}

/// Where in the row a time is, for people.
fn near(at: Nanos, stages: &[Stage]) -> String {
    let before = stages.iter().rfind(|stage| stage.from <= at);
    let after = stages.iter().find(|stage| stage.from > at);
    let since = before.map_or(String::new(), |stage| {
        format!("{:.0} ms after {}", ms(at - stage.from), stage.name())
    });
    let until = after.map_or(String::new(), |stage| {
        format!(" {:.0} ms before {}", ms(stage.from - at), stage.name())
    });
    since + &until
}
