//! The demonstration: a pair serves, its Active is killed, service comes back; shown live.

mod screen;

use std::{
    collections::BTreeMap,
    net::SocketAddrV4,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{
        Recorder, Stop,
        capture::{self, Direction, Filter},
        echo,
        http::HttpProber,
        outage::Series,
        owners::Sampler,
        udp::UdpProber,
    },
    node::{Kind, Pair},
    packet::Frame,
    report::Report,
    scenario::{Run, Wanted, stage},
    service::{Mode, PairSpec},
    topology::{self, OneArm, Options, SERVERS, VIP, address, colons, mac},
    traffic,
};
use screen::Screen;

/// Requests of each client before the Active is killed.
const REQUESTS: usize = 30;
/// How long requests run before the Active dies.
const BEFORE: Duration = Duration::from_secs(2);
/// How long they run after service is back.
const AFTER: Duration = Duration::from_secs(2);

/// What the demonstration was asked for.
#[derive(Clone, Debug)]
pub struct Demonstration {
    /// What runs in the nodes' place.
    pub kind: Kind,
    /// Folder of `onearmd` and `onearm`.
    pub bin_dir: PathBuf,
    /// Advert interval.
    pub interval: Duration,
}

/// One client that asks all the time.
struct Client {
    short: &'static str,
    prober: HttpProber,
}

/// The owner of the VIP as seen this moment from the monitor port.
#[derive(Debug, Default)]
struct Owner {
    /// Last byte of its MAC; 0 = nobody answered yet.
    byte: AtomicU8,
    /// When it answered last.
    at: AtomicU64,
}

impl Demonstration {
    /// Shows both modes; the report says whether everything was right.
    pub fn show(&self) -> Report {
        let wanted = Wanted {
            seed: 1,
            runs: None,
            interval: Some(self.interval),
            kind: self.kind,
            bin_dir: self.bin_dir.clone(),
            only: Vec::new(),
            peers: Vec::new(),
            rate: None,
            unsynced: false,
            keep: false,
        };
        let mut run = Run::new("demo", wanted, false);
        let mut screen = Screen::new();
        screen.say(format!(
            "onearm demo: one leg, two nodes, VIP {VIP}, servers .10 .11 .12"
        ));
        for mode in [Mode::BothNat, Mode::Dnat] {
            if let Err(error) = self.one_mode(&mut run, mode, &mut screen) {
                screen.say(format!("FAILED: {error:#}"));
                run.report.check(
                    format!("{} was shown to its end", mode.word()),
                    false,
                    format!("{error:#}"),
                );
                break;
            }
        }
        run.report
    }

    fn one_mode(&self, run: &mut Run, mode: Mode, screen: &mut Screen) -> Result<()> {
        let word = mode.word();
        screen.say(String::new());
        screen.say(match mode {
            Mode::BothNat => {
                "both-nat: source and destination are rewritten; servers need no setting".to_owned()
            }
            Mode::Dnat => "dnat: servers see the real client and answer through the gateway .1".to_owned(),
            Mode::Dsr | Mode::L3Dsr => {
                format!("{word}: servers have the VIP and answer the client themselves")
            }
        });
        let spec = PairSpec::web_and_echo(mode, self.interval);
        run.with_lab(
            word,
            Options {
                forwarding: true,
                ..Options::default()
            },
            |run, lab| {
                let _servers = traffic::start_servers(lab, &SERVERS)?;
                let mut pair = stage(run, lab, &spec)?;
                screen.say(format!(
                    "  pair is up: lb1 Active, lb2 Standby, adverts every {} ms",
                    self.interval.as_millis()
                ));
                serve(run, lab, mode, screen)?;
                kill(run, lab, &mut pair, mode, screen)?;
                pair.scrap()
            },
        )
    }
}

/// One page, then some requests of every client.
fn serve(run: &mut Run, lab: &OneArm, mode: Mode, screen: &mut Screen) -> Result<()> {
    let page = lab
        .ns("out")
        .run(&format!("curl -s --max-time 3 http://{VIP}/"))?;
    let title = page
        .lines()
        .find(|l| l.contains("Hello"))
        .unwrap_or("no page")
        .to_owned();
    run.report.check(
        format!("{}: the page is served", mode.word()),
        title.contains("Hello"),
        &title,
    );
    screen.say(format!(
        "  outside client reads: {}",
        title.replace("<h1>", "").replace("</h1>", "")
    ));
    for (short, name) in clients() {
        let answers = traffic::curl(lab, short, &VIP.to_string(), REQUESTS, "demo")?;
        run.report.check(
            format!("{}: {short} gets {REQUESTS} of {REQUESTS}", mode.word()),
            answers.good() == REQUESTS,
            format!("{} failed {}", answers.failed, answers.complaint),
        );
        let parts: Vec<String> = answers
            .by_server
            .iter()
            .map(|(s, n)| format!("{s} {n}"))
            .collect();
        let own = answers.by_server.contains_key(short);
        screen.say(format!(
            "  {name:24} {:3} of {REQUESTS} answered: {}{}",
            answers.good(),
            parts.join(", "),
            if own { " (also by itself)" } else { "" }
        ));
    }
    Ok(())
}

/// Short name and description of every client.
fn clients() -> [(&'static str, String); 4] {
    ["out", "s1", "s2", "s3"].map(|short| {
        let what = if short == "out" {
            "outside".to_owned()
        } else {
            format!("server {short}")
        };
        (short, format!("{what} {}", address(short)))
    })
}

/// Continuous requests of everybody while the Active dies.
fn kill(run: &mut Run, lab: &OneArm, pair: &mut Pair, mode: Mode, screen: &mut Screen) -> Result<()> {
    let word = mode.word();
    let begun = clock::now();
    let sampler = Sampler::start(lab, VIP, MS)?;
    let udp = UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?;
    let owner = Arc::new(Owner::default());
    let _watch = watch_owner(lab, &owner)?;
    let mut asking = Vec::new();
    for (short, _) in clients() {
        asking.push(Client {
            short,
            prober: HttpProber::start(lab.ns(short), SocketAddrV4::new(VIP, 80), 20 * MS)?,
        });
    }
    live(screen, mode, pair, &asking, &owner, begun + clock::nanos(BEFORE));
    let killed = clock::now();
    pair.nodes[0].sigkill_all();
    screen.say("  SIGKILL of every process of lb1, the Active".to_owned());
    let limit = clock::nanos(Duration::from_nanos(pair.spec().active_down(1))) + 3000 * MS;
    // Until somebody answers again after a silence, or at the latest after the limit.
    while clock::now() < killed + limit && !back(&asking, killed) {
        live(screen, mode, pair, &asking, &owner, clock::now() + 50 * MS);
    }
    live(
        screen,
        mode,
        pair,
        &asking,
        &owner,
        clock::now() + clock::nanos(AFTER),
    );
    screen.clear();
    let end = clock::now();
    let mut series = BTreeMap::new();
    for client in asking {
        series.insert(client.short, client.prober.stop()?);
    }
    let udp = udp.stop()?;
    let owners = sampler.stop()?;
    owners
        .record
        .write_pcap(&lab.lab().dir().join("ownership.pcap"))?;
    result(run, pair, mode, screen, &series, &udp, killed, end);
    let most = owners.most_at_once(begun, end);
    run.report.check(
        format!("{word}: never two owners"),
        most == 1,
        format!("{most} at once"),
    );
    let last = owners.owner_at(end);
    let to_other = last.as_ref().is_some_and(|(port, _)| port == "p-lb2");
    run.report.check(
        format!("{word}: the VIP moved to lb2"),
        to_other,
        format!("{last:?}"),
    );
    let now_at = last.map_or("nobody".to_owned(), |(port, mac)| {
        format!("{} ({})", port.trim_start_matches("p-"), colons(mac))
    });
    let verdict = if most == 1 { "right" } else { "WRONG" };
    screen.say(format!("  VIP now at {now_at}; never two owners: {verdict}"));
    Ok(())
}

/// Whether the outside client was answered by a request that began after the kill.
fn back(asking: &[Client], killed: Nanos) -> bool {
    asking
        .iter()
        .all(|c| c.prober.tally().last_at.load(Ordering::Relaxed) > killed + 150 * MS)
}

/// What the kill cost.
#[expect(
    clippy::too_many_arguments,
    reason = "one place that knows everything measured"
)]
fn result(
    run: &mut Run,
    pair: &Pair,
    mode: Mode,
    screen: &mut Screen,
    series: &BTreeMap<&str, Series>,
    udp: &Series,
    killed: Nanos,
    end: Nanos,
) {
    let word = mode.word();
    let bound = pair.spec().active_down(1) + 20 * MS;
    let away = udp.longest_gap(killed.saturating_sub(100 * MS), end);
    run.report.figure(format!("outage_ms_{word}"), ms(away));
    screen.say(format!(
        "  service was away for {:.0} ms (1 ms UDP probes of the outside client)",
        ms(away)
    ));
    // Three intervals and skew is the promise; the machine's own hiccups get as much again.
    run.report.check(
        format!("{word}: service came back in time"),
        away <= bound + 200 * MS,
        format!("{} ms", ms(away)),
    );
    for (short, s) in series {
        let early = s.lost(0, killed.saturating_sub(450 * MS));
        let gap = s.longest_gap(killed.saturating_sub(450 * MS), end);
        let late = s.lost(end.saturating_sub(1000 * MS), end.saturating_sub(450 * MS));
        let good = s.attempts.iter().filter(|a| a.took.is_some()).count();
        screen.say(format!(
            "  {short:4} {good:4} of {:4} requests answered; away for {:4.0} ms",
            s.attempts.len(),
            ms(gap)
        ));
        run.report.check(
            format!("{word}: {short} lost requests around the kill only"),
            early == 0 && late == 0 && good > 0,
            format!("{early} before, {late} at the end"),
        );
    }
}

/// Draws until `until`.
fn live(screen: &mut Screen, mode: Mode, pair: &Pair, asking: &[Client], owner: &Owner, until: Nanos) {
    loop {
        let now = clock::now();
        screen.panel(&panel(mode, pair, asking, owner, now));
        if now >= until {
            return;
        }
        clock::sleep_until((now + screen.pace()).min(until));
    }
}

/// The lines of the panel, at most 80 columns each.
fn panel(mode: Mode, pair: &Pair, asking: &[Client], owner: &Owner, now: Nanos) -> Vec<String> {
    let answered = owner.at.load(Ordering::Relaxed);
    let silent = now.saturating_sub(answered);
    let name = match owner.byte.load(Ordering::Relaxed) {
        2 => "lb1",
        3 => "lb2",
        _ => "nobody",
    };
    let owner_text = if answered == 0 {
        "not asked yet".to_owned()
    } else if silent > 20 * MS {
        format!("nobody for {:.0} ms", ms(silent.min(99_999 * MS)))
    } else {
        format!(
            "{name} ({})",
            colons(mac(if name == "nobody" { "mon" } else { name }))
        )
    };
    let alive = |i: usize| {
        if pair.nodes[i].pids().is_empty() {
            "dead"
        } else {
            "runs"
        }
    };
    let mut lines = vec![
        format!("+- {:9} VIP {VIP} -- owner: {owner_text}", mode.word()),
        format!("|  lb1 {}   lb2 {}", alive(0), alive(1)),
        "|  client                   s1    s2    s3  failed  last answer".to_owned(),
    ];
    for client in asking {
        let tally = client.prober.tally();
        let of = |tag: usize| tally.answers.get(tag).map_or(0, |n| n.load(Ordering::Relaxed));
        let last_at = tally.last_at.load(Ordering::Relaxed);
        let last = if last_at == 0 {
            "none yet".to_owned()
        } else {
            format!(
                "s{}, {:.0} ms ago",
                tally.last_server.load(Ordering::Relaxed),
                ms(now.saturating_sub(last_at))
            )
        };
        lines.push(format!(
            "|  {:4} {:15}  {:5} {:5} {:5}  {:6}  {last}",
            client.short,
            address(client.short),
            of(1),
            of(2),
            of(3),
            tally.failed.load(Ordering::Relaxed)
        ));
    }
    lines
}

/// Reads who answers the sampler's questions, for the panel.
fn watch_owner(lab: &OneArm, owner: &Arc<Owner>) -> Result<Recorder<()>> {
    let stop = Stop::default();
    let flag = stop.clone();
    let owner = Arc::clone(owner);
    let socket = lab
        .ns("mon")
        .enter(|| capture::open(Some("eth0"), Filter::Ownership))
        .context("monitor port")?;
    let thread = lab.ns("mon").thread("owner", move || {
        let offset = clock::realtime_offset();
        let mut buffer = [0; 64];
        while !flag.is_set() {
            while let Some(got) = capture::receive(&socket, &mut buffer, offset)? {
                let frame = Frame::new(buffer.get(..got.len.min(64)).unwrap_or_default());
                let Some(arp) = frame.and_then(|f| f.arp()) else {
                    continue;
                };
                if got.direction == Direction::In && arp.operation == 2 && arp.sender == topology::VIP {
                    owner.byte.store(arp.sender_mac[5], Ordering::Relaxed);
                    owner.at.store(got.at, Ordering::Relaxed);
                }
            }
            clock::sleep_until(clock::now() + 5 * MS);
        }
        Ok(())
    })?;
    Ok(Recorder::new(stop, thread))
}
