//! The pair's key as an operator handles it: made, copied, rotated under traffic, wrong on one node.

use std::{fs, net::SocketAddrV4, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{Run, Scenario, stage};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{
        capture::{Capture, Filter},
        echo,
        owners::Sampler,
        udp::UdpProber,
    },
    node::{Pair, Role, onearm::OnearmNode},
    service::{Mode, PairSpec},
    topology::{OneArm, Options, SERVERS, VIP},
    traffic,
};

/// A reload, a new voice, a first proof: each within this.
const LIMIT: Duration = Duration::from_secs(20);
/// Begins every authenticated word.
const MAGIC: &[u8] = b"1arm";

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "authentication",
        about: "signed adverts; a key rotated under traffic; epochs kept over the death of both nodes; a wrong key refused and named",
        for_peers: false,
        run,
    }
}

fn run(run: &mut Run) -> Result<()> {
    let mut spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    spec.peer_link = true;
    let options = Options {
        peer_link: true,
        ..Options::default()
    };
    run.with_lab("authentication", options, |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        signed(run, lab, &pair)?;
        rotation(run, lab, &pair)?;
        epochs(run, &mut pair)?;
        wrong_key(run, lab, &mut pair)?;
        pair.scrap()
    })
}

pub(super) fn onearm(pair: &Pair, index: usize) -> Result<&OnearmNode> {
    pair.nodes[index].as_onearm().context("this is about onearm")
}

pub(super) fn status(pair: &Pair, index: usize, pointer: &str) -> Result<Value> {
    let status = onearm(pair, index)?.ask(&["status"])?;
    Ok(status.pointer(pointer).cloned().unwrap_or_default())
}

/// Waits until `pointer` of both nodes' status is `expected`.
pub(super) fn wait_both(pair: &Pair, pointer: &str, expected: &Value) -> Result<()> {
    clock::wait_for(pointer, LIMIT, Duration::from_millis(50), || {
        let found = [status(pair, 0, pointer)?, status(pair, 1, pointer)?];
        Ok(found.iter().all(|found| found == expected).then_some(()))
    })
}

fn signed(run: &mut Run, lab: &OneArm, pair: &Pair) -> Result<()> {
    wait_both(pair, "/ha/authentication/peer_key", &1.into())?;
    let capture = Capture::start(lab.switch().ns(), Some("p-lb1"), Filter::Ownership)?;
    clock::observe(pair.spec().interval * 10);
    let record = capture.stop()?;
    let adverts: Vec<_> = record
        .frames
        .iter()
        .filter(|captured| captured.frame().and_then(|frame| frame.advert()).is_some())
        .collect();
    let signed = adverts
        .iter()
        .filter(|captured| captured.bytes.windows(MAGIC.len()).any(|four| four == MAGIC))
        .count();
    run.report.check(
        "every advert carries a signed trailer",
        adverts.len() >= 5 && signed == adverts.len(),
        format!("{signed} of {}", adverts.len()),
    );
    let prints = [0, 1].map(|index| status(pair, index, "/ha/authentication/keys"));
    let [one, two] = prints;
    let (one, two) = (one?, two?);
    run.report.check(
        "both nodes show the same fingerprint",
        one == two && one.as_array().is_some_and(|keys| keys.len() == 1),
        format!("{one} {two}"),
    );
    let since = status(pair, 1, "/ha/authentication/peer_since_ms")?;
    run.report.check(
        "the status says for how long the peer has been authenticated",
        since.is_u64(),
        since,
    );
    Ok(())
}

/// `onearm key ARGS --key-file` of node `index`; its exit code.
fn key(pair: &Pair, index: usize, args: &[&str]) -> Result<Option<i32>> {
    let node = onearm(pair, index)?;
    let file = node.key_file().display().to_string();
    let mut all = vec!["key"];
    all.extend(args);
    all.extend(["--key-file", &file]);
    Ok(node.cli(&all)?.status.code())
}

pub(super) fn reload(pair: &Pair, index: usize) -> Result<()> {
    Ok(kill(
        Pid::from_raw(onearm(pair, index)?.main_pid()),
        Signal::SIGHUP,
    )?)
}

fn copy(pair: &Pair) -> Result<()> {
    fs::copy(onearm(pair, 0)?.key_file(), onearm(pair, 1)?.key_file())?;
    Ok(())
}

fn rotation(run: &mut Run, lab: &OneArm, pair: &Pair) -> Result<()> {
    let sampler = Sampler::start(lab, VIP, MS)?;
    let prober = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
    clock::observe(Duration::from_millis(300));
    let begun = clock::now();
    let added = key(pair, 0, &["rotate"])?;
    reload(pair, 0)?;
    clock::wait_for("two keys on lb1", LIMIT, Duration::from_millis(50), || {
        let keys = status(pair, 0, "/ha/authentication/keys")?;
        Ok((keys.as_array().map(Vec::len) == Some(2)).then_some(()))
    })?;
    // lb2 does not hold it yet.
    let early = key(pair, 0, &["rotate", "--finish"])?;
    copy(pair)?;
    reload(pair, 1)?;
    wait_both(pair, "/ha/authentication/signing_key", &2.into())?;
    let finished = key(pair, 0, &["rotate", "--finish"])?;
    reload(pair, 0)?;
    copy(pair)?;
    reload(pair, 1)?;
    wait_both(pair, "/ha/authentication/keys/0/id", &2.into())?;
    let streams = wait_both(pair, "/stream/key", &2.into());
    clock::observe(pair.spec().interval * 5);
    let end = clock::now();
    let (owners, series) = (sampler.stop()?, prober.stop()?);
    run.report.check(
        "the stream goes on with the next key",
        streams.is_ok(),
        format!(
            "{} {}",
            status(pair, 0, "/stream/ended")?,
            status(pair, 1, "/stream/ended")?
        ),
    );
    run.report.check(
        "a rotation goes by its steps, and no step too early",
        [added, early, finished] == [Some(0), Some(4), Some(0)],
        format!("exit codes {added:?} {early:?} {finished:?}"),
    );
    let lost = series.lost(begun, end - 100 * MS);
    run.report.check(
        "a rotation moves nothing and loses no packet",
        owners.changes(begun, end) == 0 && owners.most_at_once(begun, end) == 1 && lost == 0,
        format!(
            "{} changes of owner, {lost} packets lost, longest gap {} ms",
            owners.changes(begun, end),
            ms(series.longest_gap(begun, end))
        ),
    );
    let refused = [0, 1].map(|index| status(pair, index, "/ha/counters/authentication_wrong_code"));
    let [one, two] = refused;
    let (one, two) = (one?, two?);
    run.report.check(
        "no message of it was refused",
        one == 0 && two == 0,
        format!("{one} and {two}"),
    );
    Ok(())
}

fn epoch(pair: &Pair, index: usize) -> Result<u64> {
    Ok(status(pair, index, "/lease/epoch")?.as_u64().unwrap_or_default())
}

fn epochs(run: &mut Run, pair: &mut Pair) -> Result<()> {
    let first = epoch(pair, 0)?;
    let patience = pair.patience();
    pair.nodes[0].sigkill_all();
    pair.nodes[0].reap(LIMIT)?;
    pair.nodes[1].wait_role(Role::Active, patience)?;
    let second = epoch(pair, 1)?;
    pair.nodes[1].sigkill_all();
    pair.nodes[1].reap(LIMIT)?;
    pair.start()?;
    let third = epoch(pair, 0)?;
    run.report.check(
        "epochs grow with each owner, over the death of both nodes, too",
        first > 0 && first < second && second < third,
        format!("{first}, {second}, {third}"),
    );
    Ok(())
}

fn make_key(run: &Run, path: &Path) -> Result<()> {
    let made = std::process::Command::new(run.wanted.bin_dir.join("onearm"))
        .args(["key", "new", "--out"])
        .arg(path)
        .output()?;
    if !made.status.success() {
        bail!("no key was made: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

/// Node lb2 comes back with the key of nobody, then with the right one.
fn wrong_key(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    let right = onearm(pair, 0)?.key_file();
    let file = onearm(pair, 1)?.key_file();
    pair.nodes[1].sigkill_all();
    pair.nodes[1].reap(LIMIT)?;
    fs::remove_file(&file)?;
    make_key(run, &file)?;
    pair.nodes[1].start()?;
    let named = |pair: &Pair, index: usize| -> Result<Option<()>> {
        let warnings = status(pair, index, "/warnings")?.to_string();
        Ok(warnings.contains("signed with another key").then_some(()))
    };
    let pause = Duration::from_millis(50);
    let told =
        [0, 1].map(|index| clock::wait_for("the warning", LIMIT, pause, || named(pair, index)).is_ok());
    run.report.check(
        "a wrong key is named in the status of both nodes",
        told == [true, true],
        format!("{told:?}"),
    );
    let refused = status(pair, 0, "/ha/counters/authentication_wrong_code")?;
    let events = onearm(pair, 0)?.ask(&["events"])?.to_string();
    run.report.check(
        "what it says is refused, counted and told, and moves nothing",
        refused.as_u64() > Some(0)
            && events.contains("wrong-key")
            && pair.nodes[0].role()? == Role::Active
            && status(pair, 0, "/lease/valid")? == true,
        refused,
    );
    pair.nodes[1].sigkill_all();
    pair.nodes[1].reap(LIMIT)?;
    fs::copy(right, file)?;
    lab.forget_neighbours()?;
    let sampler = Sampler::start(lab, VIP, MS)?;
    let patience = pair.patience();
    pair.nodes[1].start()?;
    pair.nodes[1].wait_role(Role::Standby, patience)?;
    clock::observe(pair.spec().interval * 5);
    let owners = sampler.stop()?;
    run.report.check(
        "with the right key it waits, and one owns",
        owners.most_at_once(0, Nanos::MAX) == 1 && pair.nodes[0].role()? == Role::Active,
        format!("{:?}", owners.owner_at(clock::now())),
    );
    Ok(())
}
