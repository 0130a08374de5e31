//! How many new flows a second reach the Standby, how late, and at what cost; how long a table takes to be sent whole and to
//! be of use.
//!
//! A generator pours datagrams of ever new flows (and to onearm their answers) out of the Active's port of the switch, at a set rate, on the machine that
//! both nodes share.

mod conntrackd;
mod curve;
mod onearm;
mod top;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Result;

use self::{
    conntrackd::{Caches, Growth},
    curve::{Curve, lags, quantile},
};
use super::{Run, Scenario, named};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::live::{Answerer, Generator, Template},
    node::{Kind, Pair},
    process,
    service::{Conntrackd, Mode, PairSpec, Service},
    switch::Switch,
    topology::{self, NODES, OneArm, Options, SERVERS, VIP, mac},
};

const PORT: u16 = 5_300;
/// Flows a second.
const RATES: [(&str, u64); 3] = [("42k", 42_000), ("100k", 100_000), ("200k", 200_000)];
/// Names the search for the highest rate of which nothing is lost, which is onearm's.
const TOP: &str = "top";
/// How long each rate is held, s.
const LASTS: u64 = 5;
/// Flows of tables that are sent whole.
const SNAPSHOTS: [(&str, u64); 4] = [
    ("snapshot-100k", 100_000),
    ("snapshot-200k", 200_000),
    ("snapshot-500k", 500_000),
    ("snapshot-2m", 2_000_000),
];
/// No more fit into a kernel's table as it is set.
const MOST_OF_KERNEL: u64 = 200_000;
/// At this rate tables are filled: conntrackd has to follow.
const FILLING: u64 = 20_000;
/// Room in one of onearm's tables at least, flows.
const LEAST: u32 = 1 << 18;
/// Everything has come when nothing came for so long.
const QUIET: Nanos = 1_500 * MS;
/// A snapshot must be there by then.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is measured, by name: onearm, and conntrackd in its modes.
const SIDES: [(&str, Option<Conntrackd>); 3] = [
    ("onearm", None),
    ("conntrackd-ftfw", Some(Conntrackd::FtFw)),
    ("conntrackd-notrack", Some(Conntrackd::Notrack)),
];

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "capacity",
        about: "new flows a second to the Standby, their lag and CPU, the highest rate, snapshots; conntrackd's beside (--only, --peers)",
        for_peers: false,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    let sides = named(&SIDES, |(name, _)| name, &run.wanted.peers)?;
    let all: Vec<&str> = RATES
        .iter()
        .chain(&SNAPSHOTS)
        .map(|(name, _)| *name)
        .chain([TOP])
        .collect();
    let stages = named(&all, |name| name, &run.wanted.only)?;
    for stage in stages {
        if stage == TOP {
            if sides.iter().any(|(_, side)| side.is_none()) {
                top::search(run)?;
            }
            continue;
        }
        let mut costs = Vec::new();
        for (name, side) in &sides {
            let part = format!("{name}_{stage}");
            if let Some((_, rate)) = RATES.into_iter().find(|(name, _)| *name == stage) {
                // The same flows for all sides.
                let count = (rate * LASTS).min(if sides.len() > 1 { MOST_OF_KERNEL } else { u64::MAX });
                with_pair(run, *side, &part, count, |run, part, bench| {
                    let cost = match side {
                        None => bench.rate_of_onearm(run, part, rate, count)?,
                        Some(_) => bench.rate(run, part, rate, count)?,
                    };
                    costs.push((*name, cost));
                    Ok(())
                })?;
            } else if let Some((_, flows)) = SNAPSHOTS.into_iter().find(|(name, _)| *name == stage)
                && (side.is_none() || flows <= MOST_OF_KERNEL)
            {
                with_pair(run, *side, &part, flows, |run, part, bench| match side {
                    None => bench.snapshot_of_onearm(run, part, flows),
                    Some(_) => bench.snapshot(run, part, flows),
                })?;
            }
        }
        compare(run, stage, &costs);
    }
    Ok(())
}

/// Processor time of both nodes for each flow that came to the Standby, onearm's against the others'.
fn compare(run: &mut Run, stage: &str, costs: &[(&str, f64)]) {
    let Some((_, own)) = costs.iter().find(|(name, _)| *name == "onearm") else {
        return;
    };
    for (name, cost) in costs.iter().filter(|(name, _)| *name != "onearm") {
        run.report.check(
            format!("{stage}: a flow costs at most a fifth of {name}'s processor time"),
            own * 5.0 <= *cost,
            format!("{own:.2} and {cost:.2} us, {:.1} times", cost / own),
        );
    }
}

/// A pair with a generator before it.
struct Bench<'a> {
    lab: &'a OneArm,
    pair: Pair,
    /// Which flow comes next.
    next: u64,
    template: Template,
}

/// CPU of the processes, ms.
type Cpu = BTreeMap<&'static str, u64>;

/// A pair whose tables have room for `flows` and a quarter more.
fn with_pair(
    run: &mut Run,
    side: Option<Conntrackd>,
    part: &str,
    flows: u64,
    work: impl FnOnce(&mut Run, &str, &mut Bench<'_>) -> Result<()>,
) -> Result<()> {
    let options = Options {
        forwarding: side.is_some(),
        peer_link: true,
        sink: true,
        ..Options::default()
    };
    run.with_lab(part, options, |run, lab| {
        let mut spec = PairSpec::web_and_echo(Mode::Dnat, Duration::from_secs(1));
        spec.services = vec![Service::new("many", "udp", PORT, Mode::Dnat, &SERVERS)];
        (spec.peer_link, spec.max_flows) = (true, u32::try_from(flows + flows / 4)?.max(LEAST));
        let kind = match side {
            None => Kind::Onearm,
            Some(mode) => {
                spec.conntrackd = mode;
                Kind::Conntrackd
            }
        };
        // A flow without an answer is no flow yet to onearm; its answers are the generator's, which speaks for one server.
        let answers = side.is_none().then(|| Answerer {
            mac: mac(SERVERS[0]),
            address: topology::address(SERVERS[0]),
        });
        if answers.is_some() {
            spec.services[0].servers.truncate(1);
        }
        // Frames come from an XDP program; without one here the interface must be able to take them.
        lab.ns("lb1").run("ethtool -K eth0 gro on")?;
        let mut pair = Pair::prepare(kind, lab, &spec, &run.wanted.bin_dir)?;
        pair.start()?;
        for node in NODES.into_iter().filter(|_| side.is_some()) {
            for key in ["udp_timeout", "udp_timeout_stream"] {
                let key = format!("net.netfilter.nf_conntrack_{key}");
                lab.ns(node).sysctl(&key, "600")?;
            }
        }
        let mut generator = Generator::new(lab.switch().ns(), &Switch::port("lb1"), 0)?;
        let template = Template {
            answers,
            ..Template::of_clients((VIP, PORT))
        };
        generator.reach(&template, || lab.sunk())?;
        let mut bench = Bench {
            lab,
            pair,
            next: generator.next(),
            template,
        };
        work(run, part, &mut bench)?;
        bench.pair.scrap()
    })
}

impl Bench<'_> {
    fn socket(&self, node: &str) -> PathBuf {
        self.lab.lab().dir().join(node).join("conntrackd.ctl")
    }

    /// Flows in a node's kernel.
    fn kernel(&self, node: &str) -> Result<u64> {
        self.lab.ns(node).enter(conntrackd::kernel)
    }

    /// New flows at `rate`, and when how many there were.
    fn pour(&mut self, rate: u64, count: u64) -> Result<Curve> {
        let template = Template {
            rate: Some(rate),
            ..self.template
        };
        let made = template.pour(self.lab.switch().ns(), &Switch::port("lb1"), self.next, count)?;
        self.next += count;
        Ok(made)
    }

    /// Of the daemons as a whole; of onearm's also that of the thread that speaks with the peer, which is where records are
    /// encrypted; of this process: the generator, in whose name the kernel moves packets through the nodes, and questions.
    fn cpu(&self) -> Cpu {
        let mut cpu = Cpu::new();
        for (node, whole, stream) in [
            (&self.pair.nodes[0], "active", "active_stream"),
            (&self.pair.nodes[1], "standby", "standby_stream"),
        ] {
            for pid in node.pids() {
                let daemon = process::program(pid).filter(|name| name == "conntrackd" || name == "onearmd");
                if daemon.is_none() {
                    continue;
                }
                let threads = process::thread_cpu_ms(pid);
                *cpu.entry(whole).or_default() += threads.values().sum::<u64>();
                if let Some(spent) = threads.get("stream") {
                    *cpu.entry(stream).or_default() += spent;
                }
            }
        }
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        cpu.insert("generator_and_paths", process::cpu_ms(own).unwrap_or(0));
        cpu
    }

    /// New flows at `rate`: which of them came, how late, at what cost.
    fn rate(&mut self, run: &mut Run, part: &str, rate: u64, count: u64) -> Result<f64> {
        let (before, kernel) = (self.cpu(), self.kernel("lb1")?);
        let socket = self.socket("lb2");
        let arrivals = Growth::start(self.lab.ns("lb2"), move || Ok(Caches::ask(&socket)?.came))?;
        let begun = clock::now();
        let made = self.pour(rate, count)?;
        let took = made.last().map_or(1, |(at, _)| at - begun);
        let mut came = (0, clock::now());
        let end = clock::now() + clock::nanos(PATIENCE);
        while clock::now() < (came.1 + QUIET).min(end) {
            let now = Caches::ask(&self.socket("lb2"))?.came;
            if now != came.0 {
                came = (now, clock::now());
            }
            clock::observe(Duration::from_millis(50));
        }
        let held = arrivals.stop()?;
        let spent = self.report_cpu(run, part, &before, count);
        let there = self.kernel("lb1")?.saturating_sub(kernel);
        let arrived = held.last().map_or(0, |(_, n)| *n);
        let lags = lags(&made, &held, count);
        let report = &mut run.report;
        #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
        let real = count as f64 / (ms(took) / 1_000.0);
        report.figure(format!("{part}_flows_per_s"), real);
        report.count(format!("{part}_flows_made"), usize::try_from(there)?);
        report.count(
            format!("{part}_flows_lost"),
            usize::try_from(there.saturating_sub(arrived))?,
        );
        for (word, thousandths) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
            report.figure(format!("{part}_lag_{word}_ms"), ms(quantile(&lags, thousandths)));
        }
        run.report.check(
            format!("{part}: the generator made its flows"),
            there >= count * 99 / 100,
            format!("{there} of {count} in {:.0} ms", ms(took)),
        );
        Ok(each(spent, arrived))
    }

    /// Reports what was spent since `before`; both nodes' together, ms.
    fn report_cpu(&self, run: &mut Run, part: &str, before: &Cpu, count: u64) -> u64 {
        let mut both = 0;
        for (who, spent) in self.cpu() {
            let spent = spent.saturating_sub(*before.get(who).unwrap_or(&0));
            if matches!(who, "active" | "standby") {
                both += spent;
            }
            let spent = ms(spent * MS);
            #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
            let each = spent / 1_000.0 / (count as f64 / 100_000.0);
            run.report.figure(format!("{part}_cpu_s_per_100k_{who}"), each);
        }
        both
    }

    /// A table of `flows`, sent whole to a Standby that has forgotten it, and put into its kernel.
    fn snapshot(&mut self, run: &mut Run, part: &str, flows: u64) -> Result<()> {
        self.pour(FILLING, flows)?;
        let conf = |node: &str| {
            let dir = self.lab.lab().dir().join(node);
            dir.join("conntrackd.conf").display().to_string()
        };
        let tell = |node: &str, what: &[&str]| {
            let conf = conf(node);
            let line: Vec<&str> = ["conntrackd", "-C", &conf]
                .into_iter()
                .chain(what.iter().copied())
                .collect();
            self.lab.ns(node).exec(&line)
        };
        let there = self.kernel("lb1")?;
        let (one, two) = (self.socket("lb1"), self.socket("lb2"));
        // It may have missed some of its own.
        tell("lb1", &["-R"])?;
        let nearly = there * 999 / 1_000;
        conntrackd::wait(&one, |caches| caches.internal, nearly, clock::now(), PATIENCE)?;
        conntrackd::wait(&two, |caches| caches.external, nearly, clock::now(), PATIENCE)?;
        tell("lb2", &["-f", "external"])?;
        let begun = clock::now();
        let emptied = Caches::ask(&two)?;
        let before = self.cpu();
        let since = clock::now();
        tell("lb2", &["-n"])?;
        let sent = conntrackd::wait(&two, |caches| caches.external, nearly, since, PATIENCE)?;
        self.report_cpu(run, part, &before, there);
        let since = clock::now();
        tell("lb2", &["-c"])?;
        let committed = clock::wait_for(
            "the flows in the kernel",
            PATIENCE,
            Duration::from_millis(20),
            || Ok((self.kernel("lb2")? >= nearly).then(clock::now)),
        )? - since;
        run.report.count(format!("{part}_flows"), usize::try_from(there)?);
        run.report.figure(format!("{part}_sent_ms"), ms(sent));
        run.report.figure(format!("{part}_of_use_ms"), ms(committed));
        run.report.check(
            format!("{part}: the Standby had forgotten the table"),
            emptied.external < there / 10,
            format!("{} left {:.0} ms before", emptied.external, ms(since - begun)),
        );
        Ok(())
    }
}

/// Microseconds of `spent` milliseconds for each of `flows`.
#[expect(clippy::cast_precision_loss, reason = "counts of a run")]
fn each(spent: u64, flows: u64) -> f64 {
    spent as f64 * 1_000.0 / flows.max(1) as f64
}
