//! What happens often and should move nothing: second legs, forgetful switches, slow adverts, flapping legs, reloads.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::echo_target;
use crate::{
    clock::{self, MS, Nanos, ms, nanos},
    measure::{owners::Sampler, udp::UdpProber},
    node::{Node as _, Pair, Role, onearm::OnearmNode},
    scenario::{Run, attack::forge, failover, stage},
    service::{Mode, PairSpec},
    switch::Switch,
    topology::{self, Options, SERVERS, VIP, colons, mac},
    traffic,
};

fn number(node: &OnearmNode, pointer: &str) -> Result<Option<u64>> {
    let status = node.ask(&["status"])?;
    Ok(status.pointer(pointer).and_then(Value::as_u64))
}

pub(super) fn two_legs_on_one_segment(run: &mut Run) -> Result<()> {
    const QUESTIONS: u64 = 50;
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("two-legs", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let node = lab.ns("lb1");
        lab.switch()
            .plug("second", node, "eth7", "02:00:00:00:07:02")?;
        node.run(&format!(
            "ip addr add {}/24 dev eth7",
            Ipv4Addr::new(192, 168, 100, 90)
        ))?;
        let mut pair = stage(run, lab, &spec)?;
        let sampler = Sampler::start(lab, VIP, 20 * MS)?;
        let begun = clock::now();
        clock::observe(Duration::from_millis(20 * QUESTIONS));
        let end = clock::now();
        let owners = sampler.stop()?;
        let asked: Vec<_> = owners
            .answers
            .iter()
            .filter(|(at, _)| (begun..end - 20 * MS).contains(at))
            .collect();
        let right = asked
            .iter()
            .filter(|(_, seen)| {
                matches!(seen.as_slice(), [(_, from, port)] if *from == mac("lb1") && port == &Switch::port("lb1"))
            })
            .count();
        run.report.check(
            "each question for the VIP has one answer, from the leg that owns it (B17)",
            right == asked.len() && right > 40,
            format!("{right} of {}", asked.len()),
        );
        pair.scrap()
    })
}

pub(super) fn forgetful_switch(run: &mut Run) -> Result<()> {
    const APART: Nanos = 8_000 * MS;
    let spec = PairSpec::web_and_echo(Mode::Dnat, Duration::from_secs(1));
    run.with_lab("ageing", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let owner = colons(mac("lb1"));
        lab.ns("rt").run(&format!(
            "ip neigh replace {VIP} lladdr {owner} dev eth0 nud permanent"
        ))?;
        lab.switch()
            .ns()
            .run("ip link set br0 type bridge ageing_time 500")?;
        for short in lab.names().filter(|short| !matches!(*short, "out" | "rem")) {
            let port = Switch::port(short);
            lab.switch()
                .ns()
                .run(&format!("bridge link set dev {port} flood off"))?;
        }
        let prober = UdpProber::start(lab.ns("out"), echo_target(), APART)?;
        clock::observe(Duration::from_nanos(3 * APART + APART / 2));
        let series = prober.stop()?;
        let lost = series.lost(0, Nanos::MAX);
        run.report.check(
            "a switch that forgets in 5 s and floods nothing knows the Active all the time (B18)",
            lost == 0 && series.attempts.len() >= 4,
            format!("{lost} of {} requests lost, 8 s apart", series.attempts.len()),
        );
        pair.scrap()
    })
}

pub(super) fn slow_owner(run: &mut Run) -> Result<()> {
    const APART: Duration = Duration::from_secs(3);
    let spec = PairSpec::web_and_echo(Mode::Dnat, Duration::from_millis(500)).without_authentication();
    run.with_lab("slow", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let advert = forge::Advert {
            from: topology::address("lb1").into(),
            vrid: 51,
            priority: 200,
            interval_cs: 300,
            addresses: vec![VIP.into()],
        }
        .frame(mac("lb1"));
        let stranger = lab.ns("lb1").clone();
        let sender = lab.ns("lb1").thread("slow", move || {
            for _ in 0..6 {
                forge::send_all(&stranger, std::slice::from_ref(&advert), 1, 1)?;
                clock::observe(APART);
            }
            Ok(clock::now() - nanos(APART))
        })?;
        let mut node = OnearmNode::prepare(lab, 1, &spec, &run.wanted.bin_dir)?;
        node.start()?;
        node.wait_role(Role::Standby, Duration::from_secs(30))?;
        clock::observe(APART * 2);
        let learned = number(&node, "/peer/advert_interval_ms")?;
        let own = number(&node, "/ha/advert_interval_ms")?;
        run.report.check(
            "the learned interval and the own one are shown apart (B27)",
            learned == Some(3_000) && own == Some(500),
            format!("learned {learned:?}, own {own:?}"),
        );
        let last = sender
            .join()
            .map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        let role = node.role()?;
        node.wait_role(Role::Active, Duration::from_secs(30))?;
        let waited = clock::now() - last;
        // Three learned intervals, and at most one as skew.
        let bounds = nanos(APART) * 3..nanos(APART) * 4 + 500 * MS;
        run.report.check(
            "a Standby of a slow owner waits for three of the owner's intervals (B27)",
            role == Role::Standby && bounds.contains(&waited),
            format!(
                "{role:?} until the last advert, Active {:.0} ms after it",
                ms(waited)
            ),
        );
        node.ask_to_stop();
        node.reap(Duration::from_secs(20))
    })
}

pub(super) fn flapping_leg(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("flaps", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        for _ in 0..12 {
            lab.switch().cut("lb1")?;
            clock::observe(Duration::from_millis(10) + run.random_span(Duration::from_millis(490)));
            lab.switch().mend("lb1")?;
            clock::observe(Duration::from_millis(10) + run.random_span(Duration::from_millis(490)));
        }
        lab.default_route("lb1")?;
        let settled = clock::wait_for(
            "one Active and one Standby",
            Duration::from_secs(30),
            Duration::from_millis(50),
            || {
                let roles = [pair.nodes[0].role()?, pair.nodes[1].role()?];
                Ok((roles.contains(&Role::Active) && roles.contains(&Role::Standby)).then_some(roles))
            },
        )?;
        let node = pair.nodes[0].as_onearm().context("this is about onearm")?;
        let priority = number(node, "/ha/effective_priority")?;
        run.report.check(
            "after twelve flaps of its leg a node has its configured priority again (B35)",
            priority == Some(u64::from(spec.priorities[0])),
            format!("{priority:?}, {settled:?}"),
        );
        lab.forget_neighbours()?;
        run.report.check(
            "and the pair serves (B35)",
            failover::wait_served(lab, echo_target()).is_ok(),
            "",
        );
        pair.scrap()
    })
}

pub(super) fn reloads(run: &mut Run) -> Result<()> {
    const RELOADS: u32 = 30;
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("reloads", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = Pair::prepare(run.wanted.kind, lab, &spec, &run.wanted.bin_dir)?;
        let patience = pair.patience();
        // One node alone.
        let node = &mut pair.nodes[0];
        node.start()?;
        node.wait_role(Role::Active, patience)?;
        node.wait_checked(patience)?;
        lab.forget_neighbours()?;
        failover::wait_served(lab, echo_target())?;
        let onearm = node.as_onearm().context("this is about onearm")?;
        let since = number(onearm, "/lease/epoch")?;
        let sampler = Sampler::start(lab, VIP, MS)?;
        let prober = UdpProber::start(lab.ns("out"), echo_target(), MS)?;
        let begun = clock::now();
        for _ in 0..RELOADS {
            kill(Pid::from_raw(onearm.main_pid()), Signal::SIGHUP)?;
            clock::observe(Duration::from_millis(300));
        }
        let end = clock::now();
        let (series, owners) = (prober.stop()?, sampler.stop()?);
        let (lost, silence) = (series.lost(begun, end), owners.longest_silence(begun, end));
        let epoch = number(onearm, "/lease/epoch")?;
        run.report.check(
            "a node that is told to reload again and again stays Active (B36)",
            epoch == since && owners.changes(begun, end) == 0,
            format!("term {since:?}, then {epoch:?}, after {RELOADS} reloads"),
        );
        run.report.check(
            "and answers and serves all the time (B36)",
            lost == 0 && silence < 50 * MS,
            format!(
                "{lost} packets lost, nobody answered for the VIP for {:.0} ms at most",
                ms(silence)
            ),
        );
        pair.scrap()
    })
}
