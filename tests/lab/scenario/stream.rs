//! The stream between the daemons: resets forged into it, strangers at its port, and authentication introduced under traffic.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd as _,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::socket::{MsgFlags, send};
use serde_json::Value;

use super::{
    Run, Scenario,
    authentication::{onearm, reload, status, wait_both},
    stage,
};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{
        capture::{self, Direction, Filter},
        echo,
        owners::Sampler,
        udp::UdpProber,
    },
    node::{Pair, Role, onearm::pair_toml},
    packet::{self, Flow, Frame},
    service::{Mode, PairSpec},
    topology::{self, NODES, OneArm, Options, SERVERS, VIP},
    traffic,
};

/// A session, a reload, a heartbeat: each within this.
const LIMIT: Duration = Duration::from_secs(20);
/// `ha.stream_port`.
const PORT: u16 = 8_470;
/// A session is back within this, the heartbeat that finds its end included.
const BACK: Nanos = 3_000 * MS;
/// Without service while one node of a running pair is stopped in order and the other owns.
const ORDERLY: Nanos = 100 * MS;

/// The scenarios.
pub(super) fn scenarios() -> [Scenario; 2] {
    [
        Scenario {
            name: "stream",
            about: "the authenticated stream between the daemons: resets forged by a third host on the leg, and strangers at its port",
            for_peers: false,
            run,
        },
        Scenario {
            name: "rollout",
            about: "a running pair goes from auth none to hmac: accept, prefer, enforce",
            for_peers: false,
            run: rollout,
        },
    ]
}

fn run(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("stream", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        wait_both(&pair, "/stream/state", &"open".into())?;
        wait_both(&pair, "/config/differs", &false.into())?;
        let digests = [0, 1].map(|index| status(&pair, index, "/config/peer_digest"));
        let [one, two] = digests;
        let (one, two) = (one?, two?);
        run.report.check(
            "the nodes know each other's configuration by the stream",
            one.is_string() && one == two,
            format!("{one} {two}"),
        );
        let probed = onearm(&pair, 0)?.ask(&["probe", &format!("{VIP}:80")])?;
        run.report.check(
            "a probe asked of the Active is made by the Standby",
            probed["client_node"] == "lb2" && probed["connected"] == true,
            &probed,
        );
        let sampler = Sampler::start(lab, VIP, MS)?;
        let prober = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
        clock::observe(Duration::from_millis(300));
        let begun = clock::now();
        for victim in [0, 1] {
            forged_reset(run, lab, &pair, victim)?;
        }
        strangers(run, lab, &pair)?;
        let end = clock::now();
        let (owners, series) = (sampler.stop()?, prober.stop()?);
        let lost = series.lost(begun, end - 100 * MS);
        run.report.check(
            "none of it moves a VIP or costs a packet",
            owners.changes(begun, end) == 0 && owners.most_at_once(begun, end) == 1 && lost == 0,
            format!(
                "{} changes of owner, {lost} packets lost, longest gap {} ms",
                owners.changes(begun, end),
                ms(series.longest_gap(begun, end))
            ),
        );
        cut_cable(run, lab, &mut pair)?;
        let events = onearm(&pair, 0)?.ask(&["events"])?.to_string();
        run.report.check(
            "a session made anew is told, and one that is gone",
            ["stream-up", "stream-renewed", "stream-down"]
                .iter()
                .all(|kind| events.contains(kind)),
            events.matches("stream-").count(),
        );
        pair.scrap()
    })
}

fn count(pair: &Pair, index: usize, pointer: &str) -> Result<u64> {
    Ok(status(pair, index, pointer)?.as_u64().unwrap_or_default())
}

/// A third host on the leg resets the connection at node `victim`. It knows the numbers, as only one that hears the leg does.
fn forged_reset(run: &mut Run, lab: &OneArm, pair: &Pair, victim: usize) -> Result<()> {
    let short = NODES[victim];
    let before = count(pair, victim, "/stream/sessions")?;
    let resets = count(pair, victim, "/stream/ended/reset")?;
    let from = topology::address(NODES[1 - victim]);
    let flow = next_of(lab, short, from)?;
    let stranger = lab.ns("mon").enter(|| {
        let socket = capture::open(Some("eth0"), Filter::Ownership)?;
        let mac = capture::link_address("eth0")?.addr().context("no MAC")?;
        Ok((socket, mac))
    })?;
    let frame = packet::tcp_reset(topology::mac(short), stranger.1, &flow);
    send(stranger.0.as_raw_fd(), &frame, MsgFlags::empty())?;
    let sent = clock::now();
    let reset = clock::wait_for(
        "the reset to be counted",
        LIMIT,
        Duration::from_millis(10),
        || Ok((count(pair, victim, "/stream/ended/reset")? > resets).then_some(())),
    );
    run.report.check(
        format!("a forged reset ends the connection at {short}, and is counted"),
        reset.is_ok(),
        status(pair, victim, "/stream/ended")?,
    );
    clock::wait_for("the next session", LIMIT, Duration::from_millis(10), || {
        Ok((count(pair, victim, "/stream/sessions")? > before).then_some(()))
    })?;
    let back = clock::now() - sent;
    wait_both(pair, "/stream/state", &"open".into())?;
    run.report.check(
        format!(
            "the stream is back within {} ms after the reset at {short}",
            ms(BACK)
        ),
        back <= BACK,
        format!("{} ms", ms(back)),
    );
    Ok(())
}

/// The stream's addresses and the number its next byte towards `short` will have, as soon as something was said.
fn next_of(lab: &OneArm, short: &str, from: Ipv4Addr) -> Result<Flow> {
    let port = crate::switch::Switch::port(short);
    let socket = lab
        .switch()
        .ns()
        .enter(|| capture::open(Some(&port), Filter::Tcp))?;
    let offset = clock::realtime_offset();
    let mut buffer = [0; 2_048];
    clock::wait_for("a word over the stream", LIMIT, Duration::from_millis(1), || {
        while let Some(got) = capture::receive(&socket, &mut buffer, offset)? {
            let frame = Frame::new(buffer.get(..got.len.min(2_048)).unwrap_or_default());
            let Some(flow) = frame.and_then(|frame| frame.tcp_flow()) else {
                continue;
            };
            let of_stream = flow.from.port() == PORT || flow.to.port() == PORT;
            if got.direction == Direction::Out && of_stream && *flow.from.ip() == from {
                return Ok(Some(flow));
            }
        }
        Ok(None)
    })
}

/// Hosts that have nothing to say there.
fn strangers(run: &mut Run, lab: &OneArm, pair: &Pair) -> Result<()> {
    let before = [0, 1].map(|index| count(pair, index, "/stream/sessions"));
    let mut knock = String::new();
    for _ in 0..30 {
        // Writing to a String cannot fail.
        write!(
            knock,
            "(exec 3<>/dev/tcp/{}/{PORT}; head -c 64 /dev/urandom >&3; cat <&3) 2>/dev/null; ",
            topology::address("lb1")
        )
        .ok();
    }
    knock.push_str("true");
    lab.ns("mon").exec(&["timeout", "20", "bash", "-c", &knock])?;
    let turned_away = count(pair, 0, "/stream/failed/stranger")?;
    let after = [0, 1].map(|index| count(pair, index, "/stream/sessions"));
    let [Ok(one), Ok(two)] = before else {
        return before.into_iter().collect::<Result<Vec<_>>>().map(drop);
    };
    let [Ok(one_after), Ok(two_after)] = after else {
        return after.into_iter().collect::<Result<Vec<_>>>().map(drop);
    };
    run.report.check(
        "strangers at the port are closed unheard and disturb nothing",
        turned_away >= 30 && (one, two) == (one_after, two_after),
        format!("{turned_away} turned away; sessions {one} {two}, then {one_after} {two_after}"),
    );
    Ok(())
}

/// The Standby's cable: nothing ends the connection but silence.
fn cut_cable(run: &mut Run, lab: &OneArm, pair: &mut Pair) -> Result<()> {
    lab.switch().cut("lb2")?;
    let gone = wait_both(pair, "/stream/state", &"waiting".into());
    let reason = status(pair, 0, "/stream/reason")?;
    run.report.check(
        "a peer that is not heard any more is given up, and the status says why",
        gone.is_ok() && reason.as_str().is_some_and(|reason| reason.contains("heard")),
        reason,
    );
    // An interruption is told when it has lasted.
    clock::observe(Duration::from_secs(3));
    lab.switch().mend("lb2")?;
    let mended = clock::now();
    wait_both(pair, "/stream/state", &"open".into())?;
    let back = clock::now() - mended;
    run.report.check(
        "it is back soon after the cable, and the Active has stayed",
        back <= 2 * BACK && pair.nodes[0].role()? == Role::Active,
        format!("{} ms", ms(back)),
    );
    Ok(())
}

fn rollout(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval()).without_authentication();
    run.with_lab("rollout", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let says = |word: &str| {
            let rollout = format!("auth = \"hmac\", rollout = \"{word}\"");
            pair_toml(&spec).replace("auth = \"none\"", &rollout)
        };
        run.report.check(
            "without a key there is no stream, and the status says so",
            [0, 1].iter().all(|index| {
                let reason = status(&pair, *index, "/stream/reason").unwrap_or_default();
                reason
                    .as_str()
                    .is_some_and(|reason| reason.contains("authentication is off"))
            }),
            status(&pair, 0, "/stream/reason")?,
        );
        let sampler = Sampler::start(lab, VIP, MS)?;
        let prober = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
        clock::observe(Duration::from_millis(300));
        let begun = clock::now();
        // The Standby first, then the other.
        for index in [1, 0] {
            onearm(&pair, index)?.write_pair(&says("accept"))?;
            pair.nodes[index].ask_to_stop();
            pair.nodes[index].reap(LIMIT)?;
            pair.nodes[index].start()?;
            let patience = pair.patience();
            pair.nodes[index].wait_role(Role::Standby, patience)?;
            pair.nodes[index].wait_checked(patience)?;
            clock::observe(spec.interval * 5);
        }
        let restarted = clock::now();
        wait_both(&pair, "/ha/authentication/peer_key", &1.into())?;
        wait_both(&pair, "/stream/state", &"open".into())?;
        for word in ["prefer", "enforce"] {
            for index in [0, 1] {
                onearm(&pair, index)?.write_pair(&says(word))?;
                reload(&pair, index)?;
                let wanted = Value::from(word);
                clock::wait_for("the rollout", LIMIT, Duration::from_millis(20), || {
                    Ok((status(&pair, index, "/ha/authentication/rollout")? == wanted).then_some(()))
                })?;
                clock::observe(spec.interval * 5);
            }
        }
        let end = clock::now();
        let (owners, series) = (sampler.stop()?, prober.stop()?);
        let (gap, changes) = (
            series.longest_gap(begun, restarted),
            owners.changes(begun, restarted),
        );
        run.report.check(
            "restarting both nodes costs one orderly change of the owner",
            changes == 1 && owners.most_at_once(begun, end) == 1 && gap <= ORDERLY,
            format!("{changes} changes of owner, longest gap {} ms", ms(gap)),
        );
        let lost = series.lost(restarted, end - 100 * MS);
        run.report.check(
            "prefer and enforce move nothing and lose no packet",
            owners.changes(restarted, end) == 0 && lost == 0,
            format!(
                "{} changes of owner, {lost} packets lost",
                owners.changes(restarted, end)
            ),
        );
        let refused = [0, 1].map(|index| count(&pair, index, "/ha/counters/authentication_plain_refused"));
        run.report.check(
            "no message of it was refused, and the stream is open",
            refused.iter().all(|count| matches!(count, Ok(0)))
                && status(&pair, 0, "/stream/state")? == "open",
            format!("{refused:?}"),
        );
        pair.scrap()
    })
}
