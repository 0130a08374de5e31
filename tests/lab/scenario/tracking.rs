//! What the operator has tracked moves ownership when one node alone has lost it, once; hooks, and a hook that hangs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Run, Scenario, failover};
use crate::{
    clock::{self, MS, ms},
    measure::{echo, owners::Sampler, udp::UdpProber},
    node::{
        Pair,
        onearm::{OnearmNode, pair_toml},
    },
    service::{Mode, PairSpec},
    topology::{Options, SERVERS, VIP},
    traffic,
};

const LIMIT: Duration = Duration::from_secs(20);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "tracking",
        about: "scripts and quorums move ownership once and never back (B31, B33); hooks run without rights, and a hung one delays nothing",
        for_peers: false,
        run,
    }
}

/// Programs and what they go by, in a folder that root alone can change.
struct Programs(PathBuf);

impl Programs {
    fn new() -> Result<Self> {
        let folder = PathBuf::from(format!("/var/lib/onearm-lab-{}", std::process::id()));
        fs::create_dir_all(folder.join("said"))?;
        let programs = Self(folder);
        let folder = programs.0.display();
        programs.write("check", &format!("! [ -e {folder}/bad-$ONEARM_NODE ]"))?;
        let line = "$ONEARM_HOOK $ONEARM_PREVIOUS $ONEARM_EPOCH $(id -u)";
        programs.write(
            "hook",
            &format!("echo \"{line}\" >> {folder}/said/$ONEARM_NODE; echo said"),
        )?;
        programs.write("hang", "trap '' TERM; while :; do sleep 1000; done")?;
        // Where the hooks' user writes.
        fs::set_permissions(programs.0.join("said"), fs::Permissions::from_mode(0o777))?;
        Ok(programs)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn fail(&self, node: &str, fails: bool) -> Result<()> {
        let flag = self.0.join(format!("bad-{node}"));
        match (fails, flag.exists()) {
            (true, false) => Ok(fs::write(flag, "")?),
            (false, true) => Ok(fs::remove_file(flag)?),
            _ => Ok(()),
        }
    }

    fn said(&self, node: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("said").join(node)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn onearm(pair: &Pair, index: usize) -> Result<&OnearmNode> {
    pair.nodes[index].as_onearm().context("this is about onearm")
}

fn status(pair: &Pair, index: usize) -> Result<Value> {
    onearm(pair, index)?.ask(&["status"])
}

/// Which node is the Active; `None` while none or both are.
fn owner(pair: &Pair) -> Result<Option<usize>> {
    let active = |index| -> Result<bool> { Ok(status(pair, index)?["state"] == "active") };
    Ok(match (active(0)?, active(1)?) {
        (true, false) => Some(0),
        (false, true) => Some(1),
        _ => None,
    })
}

fn wait_owner(pair: &Pair, wanted: usize) -> Result<()> {
    clock::wait_for("the other owner", LIMIT, Duration::from_millis(20), || {
        Ok((owner(pair)? == Some(wanted)).then_some(()))
    })?;
    Ok(())
}

/// Waits until every tracked thing of both nodes has a result that counts.
fn wait_tracked(pair: &Pair, states: [&str; 2]) -> Result<()> {
    clock::wait_for("results", LIMIT, Duration::from_millis(50), || {
        for (index, wanted) in states.into_iter().enumerate() {
            let status = status(pair, index)?;
            let script = &status["ha"]["tracked"][0];
            if script["state"] != wanted || script["counts"] != true {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    Ok(())
}

fn run(run: &mut Run) -> Result<()> {
    let auth = [("hmac", true), ("none", false)];
    for (auth, compares) in auth {
        let mut spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
        spec.auth = auth;
        spec.peer_link = true;
        spec.check_interval = Duration::from_millis(500);
        let options = Options {
            peer_link: true,
            ..Options::default()
        };
        run.with_lab(auth, options, |run, lab| {
            let programs = Programs::new()?;
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let text = pair_toml(&spec).replace(
                "preempt = false",
                &format!(
                    "preempt = false, script_user = \"nobody\", track = {{ hold = \"3s\", scripts = [{{ name = \"fit\", command = [\"{}\"], \
                     interval = \"200ms\", timeout = \"200ms\", rise = 2, fall = 3 }}], quorum = [{{ service = \"web\", servers = 2 }}] }}, \
                     hooks = {{ active = [\"{hook}\"], standby = [\"{hook}\"], fault = [\"{hook}\"] }}",
                    programs.path("check"),
                    hook = programs.path("hook"),
                ),
            );
            let mut pair = Pair::prepare(run.wanted.kind, lab, &spec, &run.wanted.bin_dir)?;
            for index in [0, 1] {
                onearm(&pair, index)?.write_pair(&text)?;
            }
            pair.start()?;
            lab.forget_neighbours()?;
            failover::wait_served(lab, std::net::SocketAddrV4::new(VIP, echo::PORT))?;
            wait_tracked(&pair, ["good", "good"])?;
            let first = owner(&pair)?.context("one owner")?;
            moves(run, lab, &pair, &programs, first, compares)?;
            hooks(run, &mut pair, &programs, &text)?;
            pair.scrap()
        })?;
    }
    Ok(())
}

#[expect(clippy::too_many_lines, reason = "one story")]
fn moves(
    run: &mut Run,
    lab: &crate::topology::OneArm,
    pair: &Pair,
    programs: &Programs,
    first: usize,
    compares: bool,
) -> Result<()> {
    let names = ["lb1", "lb2"];
    let other = 1 - first;
    let sampler = Sampler::start(lab, VIP, MS)?;
    let prober = UdpProber::start(lab.ns("out"), std::net::SocketAddrV4::new(VIP, echo::PORT), MS)?;
    let begun = clock::now();

    // On the edge: every third run fails.
    for number in 0..30 {
        programs.fail(names[first], number % 3 == 0)?;
        clock::observe(Duration::from_millis(200));
    }
    programs.fail(names[first], false)?;
    wait_tracked(pair, ["good", "good"])?;
    let edge = clock::now();
    run.report.check(
        "a script on the edge moves nothing",
        owner(pair)? == Some(first),
        format!("{:?}", owner(pair)?),
    );

    // Both lose it, the owner first, and get it back, the Standby first.
    programs.fail(names[first], true)?;
    clock::observe(Duration::from_millis(300));
    programs.fail(names[other], true)?;
    wait_tracked(pair, ["failed", "failed"])?;
    programs.fail(names[other], false)?;
    clock::observe(Duration::from_millis(300));
    programs.fail(names[first], false)?;
    wait_tracked(pair, ["good", "good"])?;
    let both = clock::now();
    run.report.check(
        "what both lose and get back moves nothing",
        owner(pair)? == Some(first),
        format!("{:?}", owner(pair)?),
    );

    // Servers that are down for both.
    for server in ["s1", "s2"] {
        let refuse = "nft add table inet t; nft add chain inet t c '{ type filter hook input priority 0; }'; \
                      nft add rule inet t c tcp dport 80 reject with tcp reset";
        lab.ns(server).exec(&["sh", "-c", refuse])?;
    }
    clock::wait_for(
        "the quorum is missed on both",
        LIMIT,
        Duration::from_millis(50),
        || {
            let missed = |index| -> Result<bool> {
                let servers = &status(pair, index)?["ha"]["tracked"][1];
                Ok(servers["state"] == "failed" && servers["counts"] == true)
            };
            Ok((missed(0)? && missed(1)?).then_some(()))
        },
    )?;
    let still = owner(pair)?;
    for server in ["s1", "s2"] {
        lab.ns(server).run("nft delete table inet t")?;
    }
    clock::wait_for(
        "the quorum is met on both",
        LIMIT,
        Duration::from_millis(50),
        || {
            let met = |index| -> Result<bool> {
                let servers = &status(pair, index)?["ha"]["tracked"][1];
                Ok(servers["state"] == "good" && servers["counts"] == true)
            };
            Ok((met(0)? && met(1)?).then_some(()))
        },
    )?;
    let servers = clock::now();
    run.report.check(
        "servers that are down for both move nothing",
        still == Some(first) && owner(pair)? == Some(first),
        format!("{still:?}"),
    );

    // One alone loses it, and gets it back.
    let lost = clock::now();
    programs.fail(names[first], true)?;
    wait_owner(pair, other)?;
    let moved = clock::now();
    programs.fail(names[first], false)?;
    wait_tracked(pair, ["good", "good"])?;
    clock::observe(Duration::from_secs(1));
    let end = clock::now();
    let (owners, series) = (sampler.stop()?, prober.stop()?);
    run.report.check(
        "one node alone that fails gives way, once, and does not get them back (B31)",
        owner(pair)? == Some(other),
        format!("after {} ms", ms(moved - lost)),
    );
    run.report.check(
        "one owner at every instant, and one move in all",
        owners.most_at_once(begun, end) == 1 && owners.changes(begun, end) == 1,
        format!(
            "{} moves: {} on the edge, {} by both, {} by servers",
            owners.changes(begun, end),
            owners.changes(begun, edge),
            owners.changes(edge, both),
            owners.changes(both, servers)
        ),
    );
    run.report.figure(
        if compares {
            "hmac_outage_ms"
        } else {
            "none_outage_ms"
        },
        ms(series.longest_gap(lost, end)),
    );
    Ok(())
}

fn hooks(run: &mut Run, pair: &mut Pair, programs: &Programs, text: &str) -> Result<()> {
    let said = [programs.said("lb1"), programs.said("lb2")];
    let ran_as_nobody = said.iter().flatten().all(|line| line.ends_with(" 65534"));
    let became = |lines: &[String], hook: &str| lines.iter().any(|line| line.starts_with(hook));
    run.report.check(
        "each change of role ran its hook, without rights",
        ran_as_nobody
            && said
                .iter()
                .all(|lines| became(lines, "active ") && became(lines, "standby ")),
        format!("{said:?}"),
    );
    // A hook that hangs.
    let hung = text.replace(&programs.path("hook"), &programs.path("hang"));
    let active = owner(pair)?.context("one owner")?;
    let standby = 1 - active;
    pair.nodes[standby].ask_to_stop();
    pair.nodes[standby].reap(LIMIT)?;
    onearm(pair, standby)?.write_pair(&hung)?;
    pair.nodes[standby].start()?;
    let node = onearm(pair, standby)?;
    let is_standby = || -> Result<Option<()>> {
        // Until the socket is there it is asked in vain.
        let status = node.ask(&["status"]).unwrap_or_default();
        Ok((status["state"] == "standby").then_some(()))
    };
    clock::wait_for(
        "a Standby whose hook hangs",
        LIMIT,
        Duration::from_millis(20),
        is_standby,
    )?;
    let asked = clock::now();
    let answered = node.ask(&["status"]).is_ok();
    let took = clock::now() - asked;
    run.report.check(
        "a hook that hangs delays no answer",
        answered && took < 500 * MS,
        format!("{} ms", ms(took)),
    );
    let stopping = clock::now();
    pair.nodes[standby].ask_to_stop();
    pair.nodes[standby].reap(LIMIT)?;
    let took = clock::now() - stopping;
    run.report
        .check("nor the stop", took < 3_000 * MS, format!("{} ms", ms(took)));
    let hanging = hanging(Path::new(&programs.path("hang")))?;
    run.report.check(
        "and it is gone with the daemon",
        hanging.is_empty(),
        format!("{hanging:?}"),
    );
    Ok(())
}

/// Processes that run the program.
fn hanging(program: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&program.display().to_string()) {
            found.push(line);
        }
    }
    Ok(found)
}
