//! Processes of the Active die while its machine has no time, its network devices come and go, or its flow table is large.

use std::time::Duration;

use anyhow::Result;

use super::{
    ALLOWANCE, STALL,
    fault::{self, Fault, Target},
    once,
};
use crate::{
    clock::{self, MS, ms},
    measure::owners::Sampler,
    node::Pair,
    process::Process,
    scenario::{Run, Scenario, named, stage},
    service::{Mode, PairSpec},
    topology::{NODES, OneArm, Options, ROUTER, SERVERS, VIP},
    traffic,
};

/// Flows the large table has room for.
const LARGE: u32 = 4_000_000;
/// How long a pair under load is looked at before anything happens to it.
const CALM: Duration = Duration::from_secs(5);

/// What else goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Two busy loops on each CPU, and questions to the control API of both nodes without end.
    Starved,
    /// Network devices are made and deleted on both nodes without end.
    Churn,
    /// A flow table of 4,000,000 entries is mapped on both nodes.
    Large,
}

impl Load {
    const ALL: [Self; 3] = [Self::Starved, Self::Churn, Self::Large];

    fn name(self) -> &'static str {
        match self {
            Self::Starved => "starved",
            Self::Churn => "churn",
            Self::Large => "large",
        }
    }

    fn spec(self, interval: Duration) -> PairSpec {
        let mut spec = PairSpec {
            witness: Some(ROUTER),
            ..PairSpec::web_and_echo(Mode::Dnat, interval)
        };
        if self == Self::Large {
            spec.max_flows = LARGE;
        }
        spec
    }

    /// Begins it; it ends when what is returned is dropped.
    fn begin(self, run: &Run, lab: &OneArm) -> Result<Vec<Process>> {
        let log = lab.lab().dir().join("load.log");
        let mut all = Vec::new();
        if self == Self::Starved {
            all.extend(fault::hogs(lab)?);
        }
        for short in NODES {
            let loops: Vec<String> = match self {
                Self::Starved => {
                    let onearm = run.wanted.bin_dir.join("onearm").display().to_string();
                    let socket = lab.lab().dir().join(short).join("run").display().to_string();
                    ["status", "flows --limit 1000"]
                        .map(|question| format!("{onearm} {question} --run-dir {socket} >/dev/null 2>&1"))
                        .to_vec()
                }
                Self::Churn => vec![
                    "ip link add ch0 type veth peer name ch1; ip link del ch0".to_owned(),
                    "ip addr add 10.99.0.1/32 dev lo; ip addr del 10.99.0.1/32 dev lo; ip rule; ip neigh >/dev/null"
                        .to_owned(),
                ],
                Self::Large => Vec::new(),
            };
            for line in loops {
                let line = format!("while :; do {line}; done");
                all.push(lab.ns(short).spawn(&["sh", "-c", &line], &[], &log)?);
            }
        }
        Ok(all)
    }
}

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "deaths",
        about: "SIGKILL of the main process, of the HA process, of both: on a starved machine, among devices that come and go, with 4,000,000 flows mapped (--only)",
        for_peers: false,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    let interval = run.wanted.interval.unwrap_or(Duration::from_millis(100));
    for load in named(&Load::ALL, Load::name, &run.wanted.only)? {
        let spec = load.spec(interval);
        let mut lab = OneArm::build(Options {
            forwarding: true,
            ..Options::default()
        })?;
        let outcome = story(run, &mut lab, load, &spec);
        if outcome.is_err() {
            run.keep(&lab, load.name())?;
        } else {
            run.keep_if_needed(&lab, load.name())?;
        }
        outcome?;
    }
    Ok(())
}

fn story(run: &mut Run, lab: &mut OneArm, load: Load, spec: &PairSpec) -> Result<()> {
    let _servers = traffic::start_servers(lab, &SERVERS)?;
    let mut pair = stage(run, lab, spec)?;
    calm(run, lab, load)?;
    for fault in [Fault::KillMain, Fault::KillHa, Fault::Kill] {
        let runs = run.wanted.runs.unwrap_or(3);
        for _ in 0..runs {
            death(run, lab, &mut pair, spec, load, fault)?;
        }
    }
    pair.scrap()
}

/// Both live, and every path is there: ownership stays where it is.
fn calm(run: &mut Run, lab: &OneArm, load: Load) -> Result<()> {
    let going_on = load.begin(run, lab)?;
    let sampler = Sampler::start(lab, VIP, MS)?;
    let begun = clock::now();
    clock::observe(CALM);
    let end = clock::now();
    let owners = sampler.stop()?;
    drop(going_on);
    run.report.check(
        format!("{}: ownership does not move while both nodes live", load.name()),
        owners.changes(begun, end) == 0 && owners.most_at_once(begun, end) <= 1,
        format!(
            "{} changes of owner in {} s",
            owners.changes(begun, end),
            CALM.as_secs()
        ),
    );
    Ok(())
}

fn death(
    run: &mut Run,
    lab: &mut OneArm,
    pair: &mut Pair,
    spec: &PairSpec,
    load: Load,
    fault: Fault,
) -> Result<()> {
    let silence = spec.active_down(0).max(spec.active_down(1));
    let going_on = load.begin(run, lab)?;
    let outcome = once(run, lab, pair, spec, (fault, Target::Active), going_on)?;
    let name = format!("{}, {fault:?}", load.name());
    let bound = silence + ALLOWANCE;
    run.report.check(
        format!("{name}: service is back within {} ms", ms(bound)),
        outcome.outage <= bound || (outcome.stall > STALL && outcome.outage <= bound + 2 * outcome.stall),
        format!(
            "{:.1} ms, {} of 1,000 packets a second lost, machine stall {:.1} ms",
            ms(outcome.outage),
            outcome.lost,
            ms(outcome.stall)
        ),
    );
    run.report.check(
        format!("{name}: never two owners"),
        outcome.disputed == 0 && outcome.doubles == 0,
        format!(
            "{} ms by frames, {} ms by leases",
            outcome.disputed, outcome.doubles
        ),
    );
    Ok(())
}
