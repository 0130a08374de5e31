//! Nodes whose files differ in what they own, and a failover: connections to an address of the dead node alone go on, and an
//! address of the new owner alone is not taken from a host that has it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream},
    time::Duration,
};

use anyhow::Result;
use serde_json::Value;

use super::{
    Run, Scenario,
    authentication::{onearm, status, wait_both},
    stage,
};
use crate::{
    clock::{self, MS, ms},
    measure::{
        capture::{Capture, Direction, Filter, Record},
        talk::{self, Talker, Talks},
    },
    node::{Pair, Role, onearm::pair_toml},
    service::{Mode, PairSpec},
    switch::Switch,
    topology::{self, NODES, OneArm, Options, SERVERS, VIP},
    traffic,
};

/// In the first owner's file alone.
const LEFT: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 111);
/// In the next owner's file alone, and on a host of the segment.
const USED: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 112);
/// In the next owner's file alone, and nobody's.
const FREE: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 113);
/// The host that has it.
const STRANGER: &str = "mon";
/// Connections that must go on.
const TALKS: usize = 20;
/// Anything but the end of the last flow comes within this.
const LIMIT: Duration = Duration::from_secs(20);
/// A closed flow is gone, the sweep has seen it, and the count.
const CLOSED: Duration = Duration::from_secs(45);

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "owned-set",
        about: "a failover between nodes whose files differ: orphans go on until they end, no address of another host is taken",
        for_peers: false,
        run,
    }
}

/// The usual services, and these.
fn spec(run: &Run, more: &[(&str, Ipv4Addr, u16)]) -> PairSpec {
    let mut spec = PairSpec::web_and_echo(Mode::BothNat, run.interval());
    let web = spec.services[0].clone();
    for (name, vip, port) in more {
        let mut service = web.clone();
        (*name).clone_into(&mut service.name);
        service.vip = IpAddr::V4(*vip);
        service.ports = vec![*port];
        spec.services.push(service);
    }
    spec
}

fn run(run: &mut Run) -> Result<()> {
    let before = spec(run, &[("left", LEFT, talk::PORT)]);
    let after = spec(run, &[("used", USED, 80), ("free", FREE, 80)]);
    run.with_lab("owned-set", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let _talkers = SERVERS
            .iter()
            .map(|short| Talker::start(lab.ns(short)))
            .collect::<Result<Vec<_>>>()?;
        let mut pair = stage(run, lab, &before)?;
        wait_both(&pair, "/stream/state", &"open".into())?;
        let old = usize::from(pair.nodes[1].role()? == Role::Active);
        let new = 1 - old;
        restart(&mut pair, new, &after)?;
        wait_both(&pair, "/stream/state", &"open".into())?;
        lab.ns(STRANGER).run(&format!("ip addr add {USED}/32 dev eth0"))?;
        wait_split(run, &pair, new);
        let talks = Talks::open(
            lab.ns("out"),
            SocketAddrV4::new(LEFT, talk::PORT),
            TALKS,
            Duration::from_millis(50),
        )?;
        let patience = pair.patience();
        pair.nodes[old].wait_synced(TALKS, patience)?;
        let port = Switch::port(NODES[new]);
        let capture = Capture::start(lab.switch().ns(), Some(&port), Filter::Ownership)?;
        let begun = clock::now();
        pair.nodes[old].sigkill_all();
        pair.nodes[new].wait_role(Role::Active, patience)?;
        // A retransmission of each.
        clock::observe(Duration::from_millis(1_500));
        nothing_begins(run, lab, &pair, new)?;
        let talked = talks.finish()?;
        run.report.check(
            format!("{TALKS} connections to {LEFT} go on at a node whose file does not have it"),
            talked.broken.is_empty() && talked.answers > TALKS,
            format!(
                "{} answers, the slowest took {} ms; broken: {:?}",
                talked.answers,
                ms(talked.longest),
                talked.broken
            ),
        );
        let answers = traffic::curl(lab, "out", &VIP.to_string(), 10, "served")?;
        run.report.check(
            "what both files have is served as ever",
            answers.good() == 10,
            format!("{} of 10", answers.good()),
        );
        asked_for(run, lab, &pair, new)?;
        let ended = clock::wait_for("the orphan's end", CLOSED, Duration::from_millis(200), || {
            let orphans = status(&pair, new, "/owned/orphans")?;
            Ok(orphans.as_array().is_some_and(Vec::is_empty).then_some(()))
        });
        run.report.check(
            format!("{LEFT} ends with its last connection"),
            ended.is_ok() && events(&pair, new)?.contains("orphans-end"),
            status(&pair, new, "/owned")?,
        );
        frames(run, new, &capture.stop()?, begun);
        pair.scrap()
    })
}

/// Restarts a Standby with another file.
fn restart(pair: &mut Pair, index: usize, spec: &PairSpec) -> Result<()> {
    onearm(pair, index)?.write_pair(&pair_toml(spec))?;
    pair.nodes[index].ask_to_stop();
    pair.nodes[index].reap(LIMIT)?;
    pair.nodes[index].start()?;
    let patience = pair.patience();
    pair.nodes[index].wait_role(Role::Standby, patience)?;
    pair.nodes[index].wait_checked(patience)
}

fn events(pair: &Pair, index: usize) -> Result<String> {
    Ok(onearm(pair, index)?.ask(&["events"])?.to_string())
}

fn addresses(list: &Value) -> Vec<&str> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|one| one["address"].as_str()).collect()
}

/// The Standby knows beforehand, and says so.
fn wait_split(run: &mut Run, pair: &Pair, new: usize) {
    let mut owned = Value::Null;
    let known = clock::wait_for("the owned set", LIMIT, Duration::from_millis(20), || {
        owned = status(pair, new, "/owned")?;
        let (orphans, withheld) = (addresses(&owned["orphans"]), addresses(&owned["withheld"]));
        let is_so = orphans == [LEFT.to_string()] && withheld == [USED.to_string(), FREE.to_string()];
        Ok(is_so.then_some(()))
    });
    run.report.check(
        "the Standby knows which addresses the files do not share",
        known.is_ok() && owned["peer_tells"] == true,
        &owned,
    );
}

/// A new connection to the orphan gets no answer.
fn nothing_begins(run: &mut Run, lab: &OneArm, pair: &Pair, new: usize) -> Result<()> {
    let target = SocketAddr::from((LEFT, talk::PORT));
    let tried = lab.ns("out").enter(|| {
        Ok(TcpStream::connect_timeout(&target, Duration::from_millis(1_200)).map_err(|error| error.kind()))
    })?;
    let dropped = status(pair, new, "/dataplane/counters/orphan_without_flow")?;
    run.report.check(
        format!("a new connection to {LEFT} does not begin, and is not refused"),
        matches!(&tried, Err(std::io::ErrorKind::TimedOut)) && dropped.as_u64().is_some_and(|n| n > 0),
        format!("{:?}; {dropped} dropped", tried.map(drop)),
    );
    Ok(())
}

/// The address that a host has is left to it, the other one comes in.
fn asked_for(run: &mut Run, lab: &OneArm, pair: &Pair, new: usize) -> Result<()> {
    let mut owned = Value::Null;
    let mac = topology::colons(topology::mac(STRANGER));
    let asked = clock::wait_for("the probes", LIMIT, Duration::from_millis(50), || {
        owned = status(pair, new, "/owned")?;
        let withheld = &owned["withheld"];
        let is_so = addresses(withheld) == [USED.to_string()] && withheld[0]["used_by"] == mac.as_str();
        Ok(is_so.then_some(()))
    });
    let told = events(pair, new)?;
    run.report.check(
        format!("{USED} is not taken from the host that has it, which is named, and {FREE} is taken"),
        asked.is_ok() && told.contains("address-in-use") && told.contains("addresses-taken"),
        &owned,
    );
    let answers = traffic::curl(lab, "out", &FREE.to_string(), 5, "free")?;
    run.report.check(
        format!("{FREE} is served"),
        answers.good() == 5,
        format!("{} of 5", answers.good()),
    );
    Ok(())
}

/// What the new owner has said by ARP.
fn frames(run: &mut Run, new: usize, record: &Record, begun: clock::Nanos) {
    let own = topology::mac(NODES[new]);
    let said = record
        .frames
        .iter()
        .filter(|frame| frame.direction == Direction::In && frame.at >= begun);
    let said: Vec<_> = said
        .filter_map(|frame| Some((frame.at, frame.frame()?.arp()?)))
        .filter(|(_, arp)| arp.sender_mac == own)
        .collect();
    let of = |address: Ipv4Addr| said.iter().filter(move |(_, arp)| arp.sender == address);
    let first = |address| of(address).map(|(at, _)| *at).min();
    let probes = of(Ipv4Addr::UNSPECIFIED)
        .filter(|(_, arp)| arp.target == FREE)
        .count();
    run.report.check(
        format!("no ARP of the new owner claims {USED}"),
        of(USED).count() == 0,
        of(USED).count(),
    );
    run.report.check(
        format!("{FREE} is claimed after three probes"),
        probes == 3 && first(FREE).is_some(),
        format!("{probes} probes"),
    );
    let late = first(LEFT)
        .zip(first(VIP))
        .map(|(left, vip)| left.saturating_sub(vip));
    run.report.check(
        format!("{LEFT} is announced with the rest"),
        late.is_some_and(|late| late < 100 * MS),
        format!("{:?} ms after the first", late.map(ms)),
    );
}
