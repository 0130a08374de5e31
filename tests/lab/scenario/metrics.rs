//! Metrics of both nodes, as a scraper on each reads them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};

use super::{Run, Scenario, authentication::onearm, stage};
use crate::{
    clock,
    service::{Mode, PairSpec},
    topology::{OneArm, Options, SERVERS, VIP},
    traffic,
};

/// Requests of a client.
const REQUESTS: u32 = 50;
/// What flow sync and counters take to show.
const LIMIT: Duration = Duration::from_secs(15);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "metrics",
        about: "metrics of both nodes over HTTP and by the CLI: roles, flow sync, counters that move",
        for_peers: false,
        run,
    }
}

type Samples = BTreeMap<String, f64>;

/// All samples of a node.
fn scrape(lab: &OneArm, node: &str) -> Result<Samples> {
    let page = lab
        .ns(node)
        .run("curl -sS --fail --max-time 5 http://127.0.0.1:9812/metrics")?;
    read(&page)
}

fn read(page: &str) -> Result<Samples> {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (sample, value) = line
                .rsplit_once(' ')
                .with_context(|| format!("no sample: {line}"))?;
            Ok((sample.to_owned(), value.parse().with_context(|| line.to_owned())?))
        })
        .collect()
}

fn run(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("metrics", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let pair = stage(run, lab, &spec)?;
        let is = |samples: &Samples, sample: &str| samples.get(sample) == Some(&1.0);
        let found = clock::wait_for(
            "both nodes to show the pair",
            LIMIT,
            Duration::from_millis(200),
            || {
                let both = [scrape(lab, "lb1")?, scrape(lab, "lb2")?];
                let roles = is(&both[0], "onearm_state{state=\"active\"}")
                    && is(&both[1], "onearm_state{state=\"standby\"}");
                let synced = both
                    .iter()
                    .all(|samples| is(samples, "onearm_sync_verdict{verdict=\"equal\"}"));
                Ok((roles && synced).then_some(both))
            },
        );
        run.report.check(
            "roles and the verdict of flow sync are those of the nodes",
            found.is_ok(),
            found.as_ref().map_or_else(
                |error| format!("{error:#}"),
                |both| format!("{} samples", both[0].len()),
            ),
        );
        let before = found?;
        let answers = traffic::curl(lab, "out", &VIP.to_string(), REQUESTS as usize, "metrics")?;
        let flows = "onearm_service_flows_total{service=\"web\"}";
        let moved = clock::wait_for("the counters to move", LIMIT, Duration::from_millis(200), || {
            let now = scrape(lab, "lb1")?;
            Ok((now[flows] - before[0][flows] >= f64::from(REQUESTS)).then_some(now))
        });
        run.report.check(
            format!("{REQUESTS} connections are counted"),
            answers.good() == REQUESTS as usize && moved.is_ok(),
            format!("{} answered", answers.good()),
        );
        let told = onearm(&pair, 0)?.cli(&["metrics"])?;
        let (told, before) = (read(&String::from_utf8(told.stdout)?)?, &before[0]);
        let lacks: Vec<_> = before
            .keys()
            .filter(|sample| !told.contains_key(*sample))
            .collect();
        run.report.check(
            "onearm metrics says the same samples",
            lacks.is_empty(),
            format!("{lacks:?}"),
        );
        Ok(())
    })
}
