//! Field cases: short stories that went wrong elsewhere.

use std::{net::SocketAddrV4, os::fd::AsRawFd as _, time::Duration};

use anyhow::{Context as _, Result};
use nix::sys::socket::{MsgFlags, bind, send};

use super::{Run, Scenario, failover, stage};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{
        Stop,
        capture::{self, Direction, Filter},
        echo,
        owners::Sampler,
        udp::UdpProber,
    },
    node::{Pair, Role},
    packet::Frame,
    service::{Mode, PairSpec},
    topology::{GATEWAY, OneArm, Options, SERVERS, VIP, colons, mac},
    traffic,
};

/// The scenarios.
pub(super) fn scenarios() -> Vec<Scenario> {
    let case = |name, about, for_peers, run| Scenario {
        name,
        about,
        for_peers,
        run,
    };
    vec![
        case(
            "nodes-as-client",
            "each node as client of the VIP: served or refused at once, never left hanging (B62)",
            false,
            nodes_as_client,
        ),
        case(
            "b05-simultaneous-start",
            "both nodes start at once: one owner of all addresses each time (B05)",
            true,
            simultaneous_start,
        ),
        case(
            "b12-unheard-winner",
            "the Standby took over unheard: neighbours find the winner again (B12)",
            true,
            unheard_winner,
        ),
        case(
            "b14-announce-refresh",
            "announcements are repeated, by the Active only (B14)",
            false,
            announce_refresh,
        ),
        case(
            "b25-reflected-adverts",
            "a node's own adverts reflected to it change nothing (B25)",
            true,
            reflected_adverts,
        ),
        case(
            "b67-server-new-mac",
            "a server comes back with another MAC, silently (B67)",
            true,
            server_new_mac,
        ),
        case(
            "b68-flushed-neighbours",
            "the Active's neighbour table is flushed under traffic (B68)",
            true,
            flushed_neighbours,
        ),
        case(
            "b130-leg-replaced",
            "the leg is deleted, made anew, renamed; strangers come and go (B130)",
            false,
            leg_replaced,
        ),
        case(
            "b144-leg-comes-late",
            "the daemon starts before its leg exists, is up, has an address (B144)",
            false,
            leg_comes_late,
        ),
    ]
}

fn interval(run: &Run) -> Duration {
    run.wanted.interval.unwrap_or(Duration::from_millis(100))
}

fn echo_target() -> SocketAddrV4 {
    SocketAddrV4::new(VIP, echo::PORT)
}

fn nodes_as_client(run: &mut Run) -> Result<()> {
    for mode in [Mode::BothNat, Mode::Dnat] {
        let word = mode.word();
        let spec = PairSpec::web_and_echo(mode, interval(run));
        run.with_lab(word, Options::default(), |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let mut pair = stage(run, lab, &spec)?;
            let answers = traffic::curl(lab, "lb2", &VIP.to_string(), 50, "standby")?;
            run.report.check(
                format!("{word}: the Standby is served over the leg"),
                answers.good() == 50,
                format!("{} of 50 {}", answers.good(), answers.complaint),
            );
            let begun = clock::now();
            let output = lab.ns("lb1").output(&[
                "curl",
                "-s",
                "-S",
                "--max-time",
                "5",
                &format!("http://{VIP}/who"),
            ])?;
            let took = ms(clock::now() - begun);
            let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            run.report.check(
                format!("{word}: the Active is served or refused at once"),
                output.status.code() != Some(28) && took < 500.0,
                format!("{took} ms {complaint}"),
            );
            let node = pair.nodes[0].as_onearm().context("only onearm has a probe")?;
            let probe = node.ask(&["probe", &format!("{VIP}:80")])?;
            let connected = probe.get("connected").and_then(serde_json::Value::as_bool);
            run.report.check(
                format!("{word}: `onearm probe` from the Active connects"),
                connected == Some(true),
                probe.to_string(),
            );
            pair.scrap()
        })?;
    }
    Ok(())
}

fn simultaneous_start(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
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

/// MAC that `short` has in its neighbour table for `address`.
fn neighbour(lab: &OneArm, short: &str, address: std::net::Ipv4Addr) -> Result<Option<String>> {
    // A datagram to a closed port makes it resolve; what becomes of it does not matter.
    lab.ns(short)
        .output(&["ping", "-c", "1", "-W", "1", &address.to_string()])?;
    let text = lab.ns(short).run(&format!("ip neigh show {address} dev eth0"))?;
    Ok(text
        .split_whitespace()
        .skip_while(|w| *w != "lladdr")
        .nth(1)
        .map(str::to_owned))
}

fn unheard_winner(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
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

fn announce_refresh(run: &mut Run) -> Result<()> {
    const WINDOW: u32 = 10;
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
    run.with_lab("refresh", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = Pair::prepare(run.wanted.kind, lab, &spec, &run.wanted.bin_dir)?;
        for node in &pair.nodes {
            let onearm = node.as_onearm().context("only onearm's file is known here")?;
            let text = crate::node::onearm::pair_toml(&spec);
            onearm.write_pair(&text.replacen("auth = ", "announce_refresh = \"2s\", auth = ", 1))?;
        }
        pair.start()?;
        failover::wait_served(lab, echo_target())?;
        for (active, port, other) in [(0, "p-lb1", "p-lb2"), (1, "p-lb2", "p-lb1")] {
            if active == 1 {
                pair.nodes[0].sigkill_all();
                pair.nodes[0].reap(Duration::from_secs(5))?;
                let patience = pair.patience();
                pair.nodes[1].wait_role(Role::Active, patience)?;
                pair.nodes[0].start()?;
                pair.nodes[0].wait_role(Role::Standby, patience)?;
            }
            // The repeats that follow a take-over are not refreshes.
            clock::observe(Duration::from_secs(6));
            let sampler = Sampler::start(lab, VIP, 100 * MS)?;
            clock::observe(Duration::from_secs(u64::from(WINDOW)));
            let owners = sampler.stop()?;
            for address in [VIP, GATEWAY] {
                let of = |p: &str| {
                    owners
                        .announcements
                        .iter()
                        .filter(|(_, _, q, a)| q == p && *a == address)
                        .count()
                };
                let due = usize::try_from(WINDOW / 2)?;
                run.report.check(
                    format!("{address}: about {due} announcements in {WINDOW} s on {port}, none on {other}"),
                    of(port).abs_diff(due) <= 1 && of(other) == 0,
                    format!("{} and {}", of(port), of(other)),
                );
            }
        }
        pair.scrap()
    })
}

fn reflected_adverts(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
    run.with_lab("reflected", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        for (what, raise) in [("as they are", 0), ("with priority + 1", 1)] {
            let sampler = Sampler::start(lab, VIP, MS)?;
            let stop = Stop::default();
            let flag = stop.clone();
            let mirror = lab
                .switch()
                .ns()
                .thread("mirror", move || reflect("p-lb1", raise, &flag))?;
            let begun = clock::now();
            clock::observe(spec.interval * 20);
            stop.set();
            let sent = mirror
                .join()
                .map_err(|_| anyhow::anyhow!("the mirror panicked"))??;
            clock::observe(spec.interval * 5);
            let end = clock::now();
            let owners = sampler.stop()?;
            let silence = ms(owners.longest_silence(begun, end));
            run.report.check(
                format!("own adverts reflected {what}: the Active stays"),
                sent > 10
                    && owners.changes(begun, end) == 0
                    && owners.most_at_once(begun, end) == 1
                    && owners.owner_at(end).is_some_and(|(port, _)| port == "p-lb1"),
                format!(
                    "{sent} reflected, {} changes, longest silence {silence} ms",
                    owners.changes(begun, end)
                ),
            );
        }
        if let Some(node) = pair.nodes[0].as_onearm() {
            let status = node.ask(&["status"])?;
            let counters = status.pointer("/ha/counters").cloned().unwrap_or_default();
            let counted = counters.as_object().is_some_and(|c| {
                c.iter()
                    .any(|(k, v)| k.contains("own") && v.as_u64().unwrap_or(0) > 0)
            });
            run.report.check("they are counted", counted, counters);
        }
        pair.scrap()
    })
}

/// Sends every advert that comes in from `port` back out of it, with its priority raised. Runs until told to stop and
/// gives the number.
fn reflect(port: &str, raise: u8, stop: &Stop) -> Result<usize> {
    let socket = capture::open(Some(port), Filter::Ownership)?;
    bind(socket.as_raw_fd(), &capture::link_address(port)?)?;
    let offset = clock::realtime_offset();
    let mut buffer = [0; 256];
    let mut sent = 0;
    while !stop.is_set() {
        while let Some(got) = capture::receive(&socket, &mut buffer, offset)? {
            let Some(bytes) = buffer.get_mut(..got.len.min(256)) else {
                continue;
            };
            let Some(advert) = Frame::new(bytes).and_then(|f| f.advert()) else {
                continue;
            };
            if got.direction == Direction::In {
                clock::sleep_until(got.at + 5 * MS);
                if let Some(raised) = advert.priority.checked_add(raise) {
                    raise_priority(bytes, raised);
                }
                send(socket.as_raw_fd(), bytes, MsgFlags::empty()).ok();
                sent += 1;
            }
        }
        clock::sleep_until(clock::now() + MS);
    }
    Ok(sent)
}

/// Writes the priority of the advert in `frame` (no IP options) and mends its checksum (RFC 1624).
fn raise_priority(frame: &mut [u8], priority: u8) {
    let Some(advert) = frame.get_mut(34..42) else {
        return;
    };
    let old = u32::from(advert[2]);
    let new = u32::from(priority);
    let sum = u32::from(u16::from_be_bytes([advert[6], advert[7]]));
    // The priority is the high byte of its word.
    let mut mended = (!sum & 0xffff) + (!(old << 8) & 0xffff) + (new << 8);
    while mended > 0xffff {
        mended = (mended & 0xffff) + (mended >> 16);
    }
    let [high, low] = u16::try_from(!mended & 0xffff).unwrap_or(0).to_be_bytes();
    advert[2] = priority;
    advert[6] = high;
    advert[7] = low;
}

fn server_new_mac(run: &mut Run) -> Result<()> {
    let mut spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
    for service in &mut spec.services {
        service.servers.retain(|s| s.name == "s1");
    }
    run.with_lab("new-mac", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let prober = UdpProber::start(lab.ns("out"), echo_target(), 2 * MS)?;
        clock::observe(Duration::from_millis(300));
        let changed = clock::now();
        let server = lab.ns("s1");
        server.sysctl("net.ipv4.conf.eth0.arp_notify", "0")?;
        server.run("ip link set eth0 address 02:00:00:00:0f:0a")?;
        clock::observe(Duration::from_secs(10));
        let end = clock::now();
        let answers = traffic::curl(lab, "out", &VIP.to_string(), 20, "new-mac")?;
        let series = prober.stop()?;
        let gap = series.longest_gap(changed - 100 * MS, end);
        run.report.figure("outage_ms", ms(gap));
        run.report.check(
            "new flows reach the server under its new MAC",
            answers.good() == 20,
            format!("{} of 20 {}", answers.good(), answers.complaint),
        );
        run.report.check(
            "running traffic goes on within 8 s",
            gap < 8000 * MS && series.lost(end - 1000 * MS, end) == 0,
            format!("{} ms", ms(gap)),
        );
        pair.scrap()?;
        server.run(&format!("ip link set eth0 address {}", colons(mac("s1"))))?;
        Ok(())
    })
}

fn flushed_neighbours(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
    run.with_lab("flushed", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let prober = UdpProber::start(lab.ns("out"), echo_target(), MS)?;
        let begun = clock::now();
        for _ in 0..5 {
            clock::observe(Duration::from_millis(400));
            lab.ns("lb1").run("ip neigh flush dev eth0")?;
        }
        clock::observe(Duration::from_millis(500));
        let end = clock::now();
        // One SYN that must not need a second one.
        let answers = traffic::curl(lab, "out", &VIP.to_string(), 20, "flushed")?;
        let series = prober.stop()?;
        let gap = series.longest_gap(begun, end);
        run.report.figure("outage_ms", ms(gap));
        run.report.count("lost", series.lost(begun, end));
        run.report.check(
            "five flushes cost at most 20 ms each",
            gap <= 20 * MS,
            format!("{} ms, {} lost", ms(gap), series.lost(begun, end)),
        );
        run.report.check(
            "new flows work",
            answers.good() == 20,
            format!("{} of 20 {}", answers.good(), answers.complaint),
        );
        pair.scrap()
    })
}

fn leg_replaced(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
    let lab = OneArm::build(Options::default())?;
    let mut lab = Some(lab);
    let outcome = leg_story(run, &spec, lab.as_mut().context("just made")?);
    if let Some(lab) = &lab {
        if outcome.is_err() {
            run.keep(lab, "leg")?;
        } else {
            run.keep_if_needed(lab, "leg")?;
        }
    }
    outcome
}

fn leg_story(run: &mut Run, spec: &PairSpec, lab: &mut OneArm) -> Result<()> {
    let _servers = traffic::start_servers(lab, &SERVERS)?;
    let mut pair = stage(run, lab, spec)?;
    let pids = pair.nodes[0].pids();
    let patience = pair.patience();
    lab.remove_leg("lb1")?;
    pair.nodes[1].wait_role(Role::Active, patience)?;
    run.report
        .check("the other node takes over when the leg goes", true, "");
    for i in 0..250 {
        let ns = lab.ns("lb1");
        ns.run(&format!("ip link add x{i} type veth peer name y{i}"))?;
        ns.run(&format!("ip link del x{i}"))?;
    }
    lab.new_leg("lb1")?;
    lab.ns("lb1").run("ip link set eth0 up")?;
    lab.address_leg("lb1")?;
    usable(run, lab, &mut pair, "made anew", &pids)?;
    for name in ["eth9", "eth0"] {
        let ns = lab.ns("lb1");
        let old = if name == "eth9" { "eth0" } else { "eth9" };
        ns.run(&format!("ip link set {old} down"))?;
        ns.run(&format!("ip link set {old} name {name}"))?;
        ns.run(&format!("ip link set {name} up"))?;
        clock::observe(Duration::from_secs(1));
    }
    lab.default_route("lb1")?;
    usable(run, lab, &mut pair, "renamed and back", &pids)?;
    pair.scrap()
}

/// lb1 is a usable Standby without a restart: it takes over when lb2's cable is cut.
fn usable(run: &mut Run, lab: &OneArm, pair: &mut Pair, what: &str, pids: &[i32]) -> Result<()> {
    let patience = pair.patience();
    if pair.nodes[0].role()? == Role::Active {
        run.report.note("lb1 is Active again by itself");
    } else {
        pair.nodes[0].wait_role(Role::Standby, patience)?;
        lab.switch().cut("lb2")?;
        pair.nodes[0].wait_role(Role::Active, patience)?;
    }
    let served = failover::wait_served(lab, echo_target());
    run.report.check(
        format!("leg {what}: lb1 serves again without a restart"),
        served.is_ok() && pair.nodes[0].pids() == pids,
        served.err().map(|e| format!("{e:#}")).unwrap_or_default(),
    );
    lab.switch().mend("lb2")?;
    lab.default_route("lb2")?;
    pair.nodes[1].wait_role(Role::Standby, patience)
}

fn leg_comes_late(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval(run));
    for order in ["up, then address", "address, then up"] {
        let mut lab = OneArm::build(Options::default())?;
        let outcome = late_story(run, &spec, &mut lab, order);
        if outcome.is_err() {
            run.keep(&lab, "late")?;
        } else {
            run.keep_if_needed(&lab, "late")?;
        }
        outcome?;
    }
    Ok(())
}

fn late_story(run: &mut Run, spec: &PairSpec, lab: &mut OneArm, order: &str) -> Result<()> {
    let _servers = traffic::start_servers(lab, &SERVERS)?;
    lab.remove_leg("lb1")?;
    let mut pair = Pair::prepare(run.wanted.kind, lab, spec, &run.wanted.bin_dir)?;
    pair.nodes[0].start()?;
    let pause = Duration::from_secs(1);
    clock::observe(pause);
    lab.new_leg("lb1")?;
    clock::observe(pause);
    let up = "ip link set eth0 up";
    if order.starts_with("up") {
        lab.ns("lb1").run(up)?;
        clock::observe(pause);
        lab.address_leg("lb1")?;
    } else {
        lab.ns("lb1").run("ip addr add 192.168.100.2/24 dev eth0")?;
        clock::observe(pause);
        lab.ns("lb1").run(up)?;
        lab.default_route("lb1")?;
    }
    let patience = pair.patience();
    let ready = pair.nodes[0].wait_role(Role::Active, patience);
    run.report.check(
        format!("leg made, {order}: it becomes usable without a restart"),
        ready.is_ok(),
        ready.err().map(|e| format!("{e:#}")).unwrap_or_default(),
    );
    let served = failover::wait_served(lab, echo_target());
    run.report.check(
        format!("leg made, {order}: it serves"),
        served.is_ok(),
        served.err().map(|e| format!("{e:#}")).unwrap_or_default(),
    );
    pair.scrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Internet checksum over `bytes`.
    fn checksum(bytes: &[u8]) -> u16 {
        let mut sum: u32 = bytes
            .chunks(2)
            .map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0)))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).expect("folded")
    }

    #[test]
    fn a_raised_priority_keeps_the_checksum_right() {
        let mut frame = vec![0; 34];
        frame.extend([0x31, 51, 150, 1, 0, 100, 0, 0, 192, 168, 100, 100]);
        let right = checksum(&frame[34..]).to_be_bytes();
        frame[40..42].copy_from_slice(&right);
        raise_priority(&mut frame, 151);
        assert_eq!(frame[36], 151);
        assert_eq!(checksum(&frame[34..]), 0);
    }
}
