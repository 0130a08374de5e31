//! The host gets back what it lent: after SIGKILL of everything and `onearmd --restore`, and after an orderly stop.

use std::time::Duration;

use anyhow::Result;

use super::{Run, Scenario, stage};
use crate::{
    clock::{self, MS},
    kernel_state::KernelState,
    measure::owners::Sampler,
    node::{Node as _, onearm::OnearmNode},
    service::{Mode, PairSpec},
    topology::{NODES, OneArm, Options, SERVERS, VIP},
    traffic,
};

/// The scenarios.
pub(super) fn scenarios() -> [Scenario; 2] {
    [
        Scenario {
            name: "restore",
            about: "SIGKILL of everything, then onearmd --restore: ip, sysctl, ethtool, bpftool print what they did before",
            for_peers: false,
            run: restore,
        },
        Scenario {
            name: "b146-stop-leaves-nothing",
            about: "an orderly stop, also with the leg down, leaves nothing behind and tells the peer (B146)",
            for_peers: false,
            run: stop_leaves_nothing,
        },
    ]
}

fn spec(run: &Run) -> PairSpec {
    PairSpec::web_and_echo(Mode::Dnat, run.interval())
}

fn states(lab: &OneArm) -> Result<[KernelState; 2]> {
    Ok([
        KernelState::read(lab.ns(NODES[0]))?,
        KernelState::read(lab.ns(NODES[1]))?,
    ])
}

fn compare(run: &mut Run, when: &str, before: &[KernelState; 2], after: &[KernelState; 2]) {
    for (node, (old, new)) in NODES.iter().zip(before.iter().zip(after)) {
        let found = old.differences(new);
        let shown: Vec<_> = found.iter().take(6).cloned().collect();
        run.report.check(
            format!("{when}: {node} is as it was before"),
            found.is_empty(),
            format!("{} differences {}", found.len(), shown.join(" | ")),
        );
    }
}

pub(super) fn restore(run: &mut Run) -> Result<()> {
    let spec = spec(run);
    run.with_lab(
        "restore",
        Options {
            forwarding: true,
            ..Options::default()
        },
        |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let before = states(lab)?;
            let mut pair = stage(run, lab, &spec)?;
            let during = states(lab)?;
            let lent = before[0].differences(&during[0]).len();
            run.report.check(
                "a running node has changed something (else this proves nothing)",
                lent > 0,
                format!("{lent} lines"),
            );
            let refused = pair.nodes[0].as_onearm().map(OnearmNode::restore);
            run.report.check(
                "--restore is refused while a daemon runs",
                matches!(refused, Some(Err(_))),
                match refused {
                    Some(Err(error)) => format!("{error:#}")
                        .lines()
                        .next_back()
                        .unwrap_or_default()
                        .to_owned(),
                    _ => "it was not".to_owned(),
                },
            );
            traffic::curl(lab, "out", &VIP.to_string(), 100, "half-way")?;
            for node in &pair.nodes {
                node.sigkill_all();
            }
            for node in &mut pair.nodes {
                node.reap(Duration::from_secs(5))?;
            }
            let dead = states(lab)?;
            let guards = before[0].differences(&dead[0]);
            run.report.check(
                "the dead node's guard rules outlive it",
                guards.iter().any(|l| l.starts_with("ip rule show: +")),
                format!("{} lines left", guards.len()),
            );
            for node in &pair.nodes {
                if let Some(onearm) = node.as_onearm() {
                    let said = onearm.restore()?;
                    run.report.note(format!(
                        "restore of {}: {}",
                        onearm.short(),
                        said.lines().next().unwrap_or("")
                    ));
                }
            }
            compare(run, "after SIGKILL and --restore", &before, &states(lab)?);
            for node in &pair.nodes {
                if let Some(onearm) = node.as_onearm() {
                    onearm.restore()?;
                }
            }
            compare(run, "after a second --restore", &before, &states(lab)?);
            pair.start()?;
            run.report.check("the pair starts again afterwards", true, "");
            pair.scrap()
        },
    )
}

fn stop_leaves_nothing(run: &mut Run) -> Result<()> {
    let spec = spec(run);
    run.with_lab(
        "stop",
        Options {
            forwarding: true,
            ..Options::default()
        },
        |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let before = states(lab)?;
            let mut pair = stage(run, lab, &spec)?;
            let sampler = Sampler::start(lab, VIP, MS)?;
            clock::observe(Duration::from_millis(200));
            for node in &mut pair.nodes {
                let begun = clock::now();
                node.ask_to_stop();
                node.reap(Duration::from_secs(10))?;
                run.report.figure(
                    format!("stop_ms_{}", node.short()),
                    clock::ms(clock::now() - begun),
                );
            }
            let owners = sampler.stop()?;
            let released = owners
                .adverts
                .iter()
                .any(|(_, port, priority, _)| port == "p-lb1" && *priority == 0);
            run.report.check(
                "the Active says priority 0 when it is stopped",
                released,
                format!("{} adverts", owners.adverts.len()),
            );
            compare(run, "after an orderly stop", &before, &states(lab)?);
            pair.start()?;
            lab.ns("lb1").run("ip link set eth0 down")?;
            pair.nodes[0].ask_to_stop();
            pair.nodes[0].reap(Duration::from_secs(10))?;
            lab.ns("lb1").run("ip link set eth0 up")?;
            lab.default_route("lb1")?;
            let after = KernelState::read(lab.ns("lb1"))?;
            let found = before[0].differences(&after);
            run.report.check(
                "after a stop with the leg down: lb1 is as it was before",
                found.is_empty(),
                format!(
                    "{} differences {}",
                    found.len(),
                    found.first().cloned().unwrap_or_default()
                ),
            );
            pair.scrap()
        },
    )
}
