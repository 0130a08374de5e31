//! Who owns the addresses after an unhappy beginning or a partition.

use std::time::Duration;

use anyhow::Result;

use super::{echo_target, neighbour};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{owners::Sampler, udp::UdpProber},
    node::{Pair, Role},
    scenario::{Run, failover, stage},
    service::{Mode, PairSpec},
    topology::{GATEWAY, Options, SERVERS, VIP, colons},
    traffic,
};

pub(super) fn simultaneous_start(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    let runs = run.wanted.runs.unwrap_or(5);
    run.with_lab("start", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        for number in 0..runs {
            let mut pair = Pair::prepare(run.wanted.kind, lab, &spec, &run.wanted.bin_dir)?;
            let sampler = Sampler::start(lab, VIP, MS)?;
            let begun = clock::now();
            let first = usize::from(run.random() % 2 == 1);
            pair.nodes[first].start()?;
            clock::observe(run.random_span(Duration::from_millis(100)));
            pair.nodes[1 - first].start()?;
            let patience = pair.patience();
            clock::wait_for(
                "one Active and one Standby",
                patience,
                Duration::from_millis(50),
                || {
                    let roles = [pair.nodes[0].role()?, pair.nodes[1].role()?];
                    let settled = roles.contains(&Role::Active) && roles.contains(&Role::Standby);
                    Ok(settled.then_some(()))
                },
            )?;
            lab.forget_neighbours()?;
            failover::wait_served(lab, echo_target())?;
            clock::observe(Duration::from_millis(500));
            let answers = traffic::curl(lab, "out", &VIP.to_string(), 20, "start")?;
            let owners = sampler.stop()?;
            let [vip, gateway] = [neighbour(lab, "rt", VIP)?, neighbour(lab, "s1", GATEWAY)?];
            let most = owners.most_at_once(begun, clock::now());
            run.report.check(
                format!("#{number}: one owner, both caches name it, the flow works"),
                most <= 1 && answers.good() == 20 && vip.is_some() && (gateway == vip || gateway.is_none()),
                format!(
                    "owners {most}, VIP at {vip:?}, gateway at {gateway:?}, {} of 20",
                    answers.good()
                ),
            );
            pair.scrap()?;
        }
        Ok(())
    })
}

pub(super) fn unheard_winner(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("unheard", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let sampler = Sampler::start(lab, VIP, MS)?;
        let prober = UdpProber::start(lab.ns("out"), echo_target(), MS)?;
        clock::observe(Duration::from_millis(300));
        lab.switch().mute("lb1")?;
        lab.switch().mute("lb2")?;
        clock::observe(spec.interval * 4 + Duration::from_millis(500));
        lab.switch().unmute("lb1")?;
        clock::observe(Duration::from_secs(5));
        let healed = clock::now();
        lab.switch().unmute("lb2")?;
        clock::observe(Duration::from_secs(5));
        let end = clock::now();
        let (owners, series) = (sampler.stop()?, prober.stop()?);
        let settled = healed + 3000 * MS;
        let owner = owners.owner_at(end);
        run.report.check(
            "one owner after the partition has healed",
            owners.most_at_once(settled, end) == 1 && owners.changes(settled, end) == 0,
            format!(
                "{:?}; disputed {} times in all",
                owner,
                owners.disputed(0, Nanos::MAX).len()
            ),
        );
        let roles = [pair.nodes[0].role()?, pair.nodes[1].role()?];
        run.report.check(
            "one Active and one Standby",
            roles.contains(&Role::Active) && roles.contains(&Role::Standby),
            format!("{roles:?}"),
        );
        let known = neighbour(lab, "rt", VIP)?;
        run.report.check(
            "the router's cache names the owner",
            known.is_some() && known == owner.map(|(_, mac)| colons(mac)),
            format!("{known:?}"),
        );
        let lost = series.lost(settled, end - 100 * MS);
        run.report.check(
            "the client is served again within 3 s of the heal",
            lost == 0,
            format!("{lost} lost later"),
        );
        run.report
            .figure("longest_outage_ms", ms(series.longest_gap(0, Nanos::MAX)));
        pair.scrap()
    })
}
