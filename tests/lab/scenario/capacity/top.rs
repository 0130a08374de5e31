//! The highest rate of new flows of which none is lost, and how late they are at half of it.

use anyhow::Result;

use super::{Run, with_pair};
use crate::clock::ms;

/// The first rate that is tried, flows a second.
const FIRST: u64 = 100_000;
/// Between two rates.
const STEP: u64 = 50_000;
/// The last.
const LAST: u64 = 600_000;
/// How long each is held, s.
const LASTS: u64 = 2;
/// Of half the highest rate, 99 of 100 flows are acknowledged within this, ms.
const LAG: f64 = 5.0;
/// The goal, flows a second.
const GOAL: u64 = 200_000;

/// Rates by steps until one loses something or is more than the generator makes, all in one pair; half the highest in another.
pub(super) fn search(run: &mut Run) -> Result<()> {
    let mut highest = 0;
    // A table that has room for as many as may come by then.
    let flows = 4_000_000;
    with_pair(run, None, "onearm_top", flows, |run, part, bench| {
        let mut all = 0;
        for rate in (FIRST..=LAST).step_by(usize::try_from(STEP)?) {
            let count = rate * LASTS;
            all += count;
            if all > flows {
                run.report
                    .note(format!("{part}: no room for {rate} flows a second"));
                break;
            }
            bench.equal()?;
            let lost_before = bench.told(0, "/sync/counters/events_lost")?;
            let before = [bench.sent(0)?, bench.applied(1)?];
            let begun = crate::clock::now();
            let made = bench.pour(rate, count)?;
            let took = made.last().map_or(1, |(at, _)| at - begun);
            let (came, _) = bench.settled()?;
            let told = bench.sent(0)?.saturating_sub(before[0]);
            let came = came.saturating_sub(before[1]);
            let lost = bench.told(0, "/sync/counters/events_lost")? - lost_before;
            run.report.note(format!(
                "{part}: {rate} a second: {count} made in {:.0} ms, {told} told, {came} came, {lost} events lost; 99 of 100 acknowledged within {} us",
                ms(took),
                bench.told(0, "/sync/lag_p99_us")?
            ));
            // A generator that is a twentieth late did not make this rate.
            let is_made = ms(took) <= ms_of(LASTS) * 1.05;
            if lost > 0 || came < told || told < count || !is_made {
                break;
            }
            highest = rate;
        }
        run.report
            .count(format!("{part}_flows_per_s"), usize::try_from(highest)?);
        run.report.check(
            format!("{part}: of {GOAL} new flows a second none is lost"),
            highest >= GOAL,
            format!("{highest} a second"),
        );
        Ok(())
    })?;
    let half = highest / 2;
    if half == 0 {
        return Ok(());
    }
    with_pair(run, None, "onearm_half", half * 5, |run, part, bench| {
        bench.rate_of_onearm(run, part, half, half * 5)?;
        let late = ms(bench.told(0, "/sync/lag_p99_us")? * 1_000);
        run.report.check(
            format!("{part}: at {half} a second 99 of 100 are acknowledged within {LAG} ms"),
            late <= LAG,
            format!("{late:.2} ms"),
        );
        Ok(())
    })
}

#[expect(clippy::cast_precision_loss, reason = "seconds")]
fn ms_of(seconds: u64) -> f64 {
    seconds as f64 * 1_000.0
}
