//! Planned hand-overs under traffic: nothing is lost, and at every instant one node owns.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Run, Scenario, authentication::onearm, stage};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{echo, exchanges::Exchanges, lease, lease::LeaseSampler, outage::Series, stalls},
    node::{Pair, Role},
    process,
    service::{Mode, PairSpec},
    topology::{OneArm, Options, SERVERS, VIP},
    traffic,
};

/// Hand-overs back and forth.
const HAND_OVERS: usize = 20;
/// Hand-overs ordered one right after the other.
const AT_ONCE: usize = 6;
/// Time for traffic between two of them.
const BETWEEN: Duration = Duration::from_millis(1_200);
/// Questions a second: with the answers twice as many packets.
const RATE: u32 = 5_000;
/// Addresses the client asks from: none uses a port twice within the life of a flow.
const SOURCES: u8 = 8;
/// Addresses servers are asked from.
const SNAT: u8 = 8;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "handover",
        about: "hand-overs by command, stop, death of the main process, maintenance and failback: no packet lost, one owner",
        for_peers: false,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    for (part, mode, peer_link) in [
        ("with-link", Mode::BothNat, true),
        ("leg-alone", Mode::BothNat, false),
        ("gateway", Mode::Dnat, true),
    ] {
        let options = Options {
            peer_link,
            ..Options::default()
        };
        run.with_lab(part, options, |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let mut pair = stage(run, lab, &spec(run, mode, peer_link))?;
            let sources = sources(lab)?;
            let mut run = Part {
                run,
                lab,
                name: part,
                sources,
            };
            run.back_and_forth(&mut pair)?;
            run.at_once(&mut pair)?;
            if peer_link && mode == Mode::BothNat {
                run.stop(&mut pair)?;
                run.maintenance(&mut pair)?;
                run.hold(&mut pair)?;
                run.main_dies(&mut pair)?;
                run.failback(&mut pair)?;
            }
            pair.scrap()
        })?;
    }
    Ok(())
}

fn spec(run: &Run, mode: Mode, peer_link: bool) -> PairSpec {
    let mut spec = PairSpec::web_and_echo(mode, run.wanted.interval.unwrap_or(Duration::from_millis(100)));
    spec.peer_link = peer_link;
    spec.max_flows = 400_000;
    for service in &mut spec.services {
        let [a, b, c, d] = VIP.octets();
        if mode == Mode::BothNat {
            service.snat = (0..SNAT).map(|n| IpAddr::from([a, b, c, d + n])).collect();
        }
        service.idle_timeout = Some(Duration::from_secs(5));
    }
    spec
}

/// Gives the outside client more addresses.
fn sources(lab: &OneArm) -> Result<Vec<Ipv4Addr>> {
    let [a, b, c, d] = crate::topology::address("out").octets();
    let mut all = vec![Ipv4Addr::new(a, b, c, d)];
    for n in 1..SOURCES {
        let more = Ipv4Addr::new(a, b, c, d + n);
        lab.ns("out").run(&format!("ip addr add {more}/24 dev eth0"))?;
        all.push(more);
    }
    Ok(all)
}

/// One lab with its pair.
struct Part<'a> {
    run: &'a mut Run,
    lab: &'a OneArm,
    name: &'static str,
    sources: Vec<Ipv4Addr>,
}

/// What was measured beside something.
struct Seen {
    series: Series,
    doubles: usize,
    pings: String,
    stall: Nanos,
}

impl Part<'_> {
    /// Traffic and both lease cells while `work` goes on; `held`: both nodes are there all the time.
    fn beside<T>(
        &mut self,
        pair: &mut Pair,
        work: impl FnOnce(&mut Run, &mut Pair) -> Result<T>,
    ) -> Result<(T, Seen)> {
        let rate = self.run.wanted.rate.unwrap_or(RATE);
        let target = SocketAddrV4::new(VIP, echo::PORT);
        let leases = LeaseSampler::start(pair.pids())?;
        let monitor = stalls::StallMonitor::start()?;
        let ping = self.lab.lab().dir().join("ping.log");
        let vip = VIP.to_string();
        let pinging = self
            .lab
            .ns("out")
            .spawn(&["ping", "-q", "-n", "-i", "0.005", &vip], &[], &ping)?;
        let traffic = Exchanges::start(
            self.lab.ns("out"),
            target,
            self.sources.clone(),
            1_000 * MS / u64::from(rate),
        )?;
        clock::observe(Duration::from_millis(500));
        let done = work(self.run, pair);
        clock::observe(Duration::from_secs(1));
        pinging.signal(Signal::SIGINT);
        let series = traffic.stop()?;
        let mut pinging = pinging;
        pinging.wait(Duration::from_secs(5))?;
        let text = std::fs::read_to_string(&ping)?;
        // The file goes on from one to the next.
        let of_now = |line: &&str| line.contains("packet loss");
        let pings = text.lines().rfind(of_now).unwrap_or_default();
        let stalled = monitor.stop()?;
        Ok((
            done?,
            Seen {
                doubles: lease::doubles(&leases.stop()?),
                pings: pings.to_owned(),
                stall: stalls::longest(&stalled, 0, Nanos::MAX),
                series,
            },
        ))
    }

    fn judge(&mut self, what: &str, seen: &Seen) {
        let lost: Vec<Nanos> = seen
            .series
            .attempts
            .iter()
            .filter(|a| a.took.is_none())
            .map(|a| a.at)
            .collect();
        let first = lost.first().copied().unwrap_or(0);
        let report = &mut self.run.report;
        report.check(
            format!("{}, {what}: no exchange is lost", self.name),
            lost.is_empty(),
            format!(
                "{} of {} lost, over {} ms; the machine's longest stall {} ms",
                lost.len(),
                seen.series.attempts.len(),
                ms(lost.last().map_or(0, |last| last - first)),
                ms(seen.stall)
            ),
        );
        report.check(
            format!("{}, {what}: no ping is lost", self.name),
            seen.pings.contains(" 0% packet loss") && !seen.pings.contains("errors"),
            seen.pings.clone(),
        );
        report.check(
            format!("{}, {what}: at no instant two leases", self.name),
            seen.doubles == 0,
            format!("{} of the readings, one a millisecond", seen.doubles),
        );
    }

    fn back_and_forth(&mut self, pair: &mut Pair) -> Result<()> {
        let (took, seen) = self.beside(pair, |_, pair| {
            let mut took = Vec::new();
            for n in 0..HAND_OVERS {
                // Asked of the Active and of the Standby in turn.
                let (owner, asked) = (n % 2, n / 2 % 2);
                let told = onearm(pair, (owner + asked) % 2)?.ask(&["ha", "switchover"])?;
                took.push(told["took_ms"].as_u64().context("no time in the answer")?);
                let next = 1 - owner;
                if onearm(pair, next)?.ask(&["status"])?["state"] != "active" {
                    bail!("after {told} the other node is not Active");
                }
                clock::observe(BETWEEN);
            }
            Ok(took)
        })?;
        self.judge(&format!("{HAND_OVERS} hand-overs"), &seen);
        // What takes longer waited for flows that the new Standby lacked.
        let mut sorted = took.clone();
        sorted.sort_unstable();
        self.run.report.check(
            format!(
                "{}: half of the hand-overs are done within 100 ms, all within 5 s",
                self.name
            ),
            sorted[HAND_OVERS / 2] < 100 && sorted[HAND_OVERS - 1] < 5_000,
            format!("{took:?} ms"),
        );
        for (index, armed) in armed(pair)?.into_iter().enumerate() {
            self.run.report.check(
                format!("{}: lb{} was armed for each of its terms", self.name, index + 1),
                armed == HAND_OVERS as u64 / 2,
                format!("{armed} times"),
            );
        }
        Ok(())
    }

    /// Ordered again as soon as it was done: the order waits for the flows that the new Standby lacks. lb1 owns at the end.
    fn at_once(&mut self, pair: &mut Pair) -> Result<()> {
        let (took, seen) = self.beside(pair, |_, pair| {
            (0..AT_ONCE)
                .map(|n| {
                    let told = onearm(pair, n % 2)?.ask(&["ha", "switchover"])?;
                    told["took_ms"].as_u64().context("no time in the answer")
                })
                .collect::<Result<Vec<_>>>()
        })?;
        self.run.report.check(
            format!(
                "{}: {AT_ONCE} hand-overs ordered at once are carried out",
                self.name
            ),
            took.len() == AT_ONCE,
            format!("{took:?} ms"),
        );
        self.judge("hand-overs ordered at once", &seen);
        Ok(())
    }

    /// The service is stopped on the Active, and started again.
    fn stop(&mut self, pair: &mut Pair) -> Result<()> {
        let (took, seen) = self.beside(pair, |_, pair| {
            let begun = clock::now();
            pair.nodes[0].ask_to_stop();
            pair.nodes[0].reap(Duration::from_secs(10))?;
            Ok(clock::now() - begun)
        })?;
        self.judge("the service stops", &seen);
        self.run.report.check(
            format!("{}: the service stops within 5 s", self.name),
            took < 5_000 * MS,
            format!("{} ms", ms(took)),
        );
        start_again(pair, 0)
    }

    /// lb2 owns.
    fn maintenance(&mut self, pair: &mut Pair) -> Result<()> {
        let (told, seen) = self.beside(pair, |_, pair| onearm(pair, 1)?.ask(&["ha", "maintenance"]))?;
        self.judge("maintenance", &seen);
        let refused = onearm(pair, 0)?.cli(&["ha", "switchover"])?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        self.run.report.check(
            format!("{}: nothing is handed to a node in maintenance", self.name),
            refused.status.code() == Some(4) && said.contains("in maintenance"),
            said,
        );
        let shown: Vec<bool> = (0..2)
            .map(|index| {
                let status = onearm(pair, index)?.ask(&["status"])?;
                let warnings = status["warnings"].to_string();
                Ok(warnings.contains("MAINTENANCE"))
            })
            .collect::<Result<_>>()?;
        self.run.report.check(
            format!("{}: both nodes show it", self.name),
            shown == [true, true],
            format!("{shown:?}; {told}"),
        );
        // It is kept over a restart, and the death of the other node.
        pair.nodes[1].ask_to_stop();
        pair.nodes[1].reap(Duration::from_secs(10))?;
        start_again(pair, 1)?;
        pair.nodes[0].sigkill_all();
        pair.nodes[0].reap(Duration::from_secs(5))?;
        clock::observe(Duration::from_secs(3));
        let alone = pair.nodes[1].role()?;
        let ended = onearm(pair, 1)?.ask(&["ha", "maintenance", "--off"])?;
        pair.nodes[1].wait_role(Role::Active, pair.patience())?;
        self.run.report.check(
            format!(
                "{}: in maintenance it owns nothing over a restart and even alone, and then again",
                self.name
            ),
            alone == Role::Standby,
            format!("{alone:?}; {ended}"),
        );
        pair.nodes[0].clean_up()?;
        start_again(pair, 0)
    }

    /// lb2 owns.
    fn hold(&mut self, pair: &mut Pair) -> Result<()> {
        let told = onearm(pair, 0)?.ask(&["ha", "hold"])?;
        let patience = Duration::from_secs(5);
        clock::wait_for("the peer to show it", patience, Duration::from_millis(20), || {
            let status = onearm(pair, 1)?.ask(&["status"])?;
            Ok((status["ha"]["peer_stance"] == "hold").then_some(()))
        })?;
        pair.nodes[1].sigkill_all();
        pair.nodes[1].reap(Duration::from_secs(5))?;
        let taken = pair.nodes[0].wait_role(Role::Active, Duration::from_secs(20));
        self.run.report.check(
            format!("{}: a node that holds takes over from a dead one", self.name),
            taken.is_ok(),
            told.to_string(),
        );
        onearm(pair, 0)?.ask(&["ha", "hold", "--off"])?;
        pair.nodes[1].clean_up()?;
        start_again(pair, 1)
    }

    /// lb1 owns, and its main process is killed.
    fn main_dies(&mut self, pair: &mut Pair) -> Result<()> {
        let ((), seen) = self.beside(pair, |_, pair| {
            process::signal(onearm(pair, 0)?.main_pid(), Signal::SIGKILL);
            pair.nodes[1].wait_role(Role::Active, Duration::from_secs(10))?;
            pair.nodes[0].reap(Duration::from_secs(10))
        })?;
        self.judge("the main process dies", &seen);
        pair.nodes[0].clean_up()?;
        start_again(pair, 0)
    }

    /// lb2 owns; lb1, which is preferred, comes back.
    fn failback(&mut self, pair: &mut Pair) -> Result<()> {
        let text = crate::node::onearm::pair_toml(pair.spec()).replace("preempt = false", "preempt = true");
        for index in [0, 1] {
            pair.nodes[index].ask_to_stop();
            pair.nodes[index].reap(Duration::from_secs(10))?;
            onearm(pair, index)?.write_pair(&text)?;
        }
        let patience = pair.patience();
        pair.nodes[1].start()?;
        pair.nodes[1].wait_role(Role::Active, patience)?;
        pair.nodes[1].wait_checked(patience)?;
        super::failover::wait_served(self.lab, SocketAddrV4::new(VIP, echo::PORT))?;
        // The cell of a node that does not run yet cannot be read: the leases are judged by the simulation of the pair.
        let rate = self.run.wanted.rate.unwrap_or(RATE);
        let target = SocketAddrV4::new(VIP, echo::PORT);
        let traffic = Exchanges::start(
            self.lab.ns("out"),
            target,
            self.sources.clone(),
            1_000 * MS / u64::from(rate),
        )?;
        pair.nodes[0].start()?;
        pair.nodes[0].wait_role(Role::Active, patience)?;
        clock::observe(Duration::from_secs(1));
        let series = traffic.stop()?;
        let lost = series.lost(0, Nanos::MAX);
        self.run.report.check(
            format!("{}, failback: no exchange is lost", self.name),
            lost == 0,
            format!("{lost} of {}", series.attempts.len()),
        );
        Ok(())
    }
}

fn start_again(pair: &mut Pair, index: usize) -> Result<()> {
    let patience = pair.patience();
    pair.nodes[index].start()?;
    pair.nodes[index].wait_role(Role::Standby, patience)?;
    pair.nodes[index].wait_checked(patience)?;
    wait_connected(pair, index)
}

/// How often each node was armed.
fn armed(pair: &Pair) -> Result<[u64; 2]> {
    let of = |index| -> Result<u64> {
        let status = onearm(pair, index)?.ask(&["status"])?;
        Ok(counter(&status, "election_armed"))
    };
    Ok([of(0)?, of(1)?])
}

fn counter(status: &Value, name: &str) -> u64 {
    status["ha"]["counters"][name].as_u64().unwrap_or(0)
}

/// Waits until the node knows the other one's legs: strays are passed on to them.
fn wait_connected(pair: &Pair, index: usize) -> Result<()> {
    let what = "the stream between the nodes";
    clock::wait_for(what, Duration::from_secs(30), Duration::from_millis(50), || {
        let status = onearm(pair, index)?.ask(&["status"])?;
        Ok((status["config"]["peer_digest"].is_string()).then_some(()))
    })
}
