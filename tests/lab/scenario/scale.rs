//! 4,000 VIPs: all answered within 50 ms of the take-over, all announced at the configured pace.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    os::fd::AsRawFd as _,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::socket::{MsgFlags, send};
use socket2::Socket;

use super::{Run, Scenario};
use crate::{
    clock::{self, MS, Nanos, ms},
    measure::{
        capture::{self, Capture, Direction, Filter},
        stalls::{self, StallMonitor},
    },
    node::Pair,
    packet::{Frame, arp_request},
    process,
    service::{Mode, PairSpec, Service},
    topology::{self, Options, SERVERS, VIP},
    traffic,
};

/// Number of VIPs.
const VIPS: u16 = 4000;
/// All must be answered within this of the first.
const BOUND: Nanos = 50 * MS;
/// Where the new Active is asked.
const PORT: &str = "p-lb2";
/// A stall of the machine above this excuses a run.
const STALL: Nanos = 10 * MS;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "vips-4000",
        about: "4,000 VIPs: ARP answered for all within 50 ms of take-over; announcement rate and total",
        for_peers: true,
        run,
    }
}

/// The addresses: 10.100.0.1 and up.
fn vips() -> Vec<Ipv4Addr> {
    (1..=VIPS)
        .map(|i| Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 100, 0, 0)) + u32::from(i)))
        .collect()
}

fn spec(run: &Run) -> PairSpec {
    let interval = run.wanted.interval.unwrap_or(Duration::from_secs(1));
    let mut spec = PairSpec::web_and_echo(Mode::BothNat, interval);
    spec.services.retain(|s| s.name == "web");
    // The most there is; the default is gentler with old switches.
    spec.announce_rate = Some(3_200);
    for (i, vip) in vips().into_iter().skip(1).enumerate() {
        let mut service = Service::new(&format!("v{i}"), "tcp", 80, Mode::BothNat, &["s1", "s2"]);
        service.vip = vip.into();
        service.checked = false;
        spec.services.push(service);
    }
    spec
}

fn run(run: &mut Run) -> Result<()> {
    let spec = spec(run);
    let runs = run.wanted.runs.unwrap_or(3);
    // With the drawing's own VIP and gateway there are 4,000 service addresses and one gateway.
    let mut all = vips();
    if let Some(first) = all.first_mut() {
        *first = VIP;
    }
    run.with_lab("vips", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut spans = Vec::new();
        for number in 0..runs {
            let mut pair = Pair::prepare(run.wanted.kind, lab, &spec, &run.wanted.bin_dir)?;
            pair.start()?;
            settle(lab, &all)?;
            let stall_monitor = StallMonitor::start()?;
            let capture = Capture::start(lab.switch().ns(), Some(PORT), Filter::Ownership)?;
            clock::observe(Duration::from_millis(100));
            let killed = clock::now();
            lab.switch().cut("lb1")?;
            let asked = all.clone();
            let sweep = lab.switch().ns().thread("sweep", move || sweep(&asked))?;
            let found = sweep
                .join()
                .map_err(|_| anyhow::anyhow!("the sweeping thread panicked"))??;
            clock::observe(Duration::from_secs(4));
            let record = capture.stop()?;
            record.write_pcap(&lab.lab().dir().join(format!("vips-{number}.pcap")))?;
            let stall = stalls::longest(&stall_monitor.stop()?, killed, found.last.max(killed));
            announcements(run, number, &record.frames, killed);
            let span = found.last.saturating_sub(found.first);
            run.report.check(
                format!("#{number}: ARP is answered for all {VIPS} VIPs after the take-over"),
                found.answered == usize::from(VIPS),
                format!(
                    "{} answered in {} rounds of questions; first {} ms after the cut",
                    found.answered,
                    found.rounds,
                    ms(found.first.saturating_sub(killed))
                ),
            );
            run.report.note(format!(
                "#{number}: all answered within {} ms, machine stall {} ms",
                ms(span),
                ms(stall)
            ));
            spans.push((span, stall));
            lab.switch().mend("lb1")?;
            lab.default_route("lb1")?;
            pair.scrap()?;
        }
        let values: Vec<f64> = spans.iter().map(|(span, _)| ms(*span)).collect();
        run.report.spread("all_answered_ms", &values);
        let quiet: Vec<f64> = spans
            .iter()
            .filter(|(_, stall)| *stall <= STALL)
            .map(|(span, _)| ms(*span))
            .collect();
        let worst = quiet.iter().copied().fold(f64::NAN, f64::max);
        run.report.check(
            "all VIPs answer within 50 ms of the first in runs without a machine stall over 10 ms",
            worst <= ms(BOUND),
            format!("{worst} ms over {} runs", quiet.len()),
        );
        Ok(())
    })
}

/// Waits until the Active answers for every VIP and has fallen silent with its announcements.
fn settle(lab: &topology::OneArm, all: &[Ipv4Addr]) -> Result<()> {
    let what = "the Active to answer for every VIP";
    clock::wait_for(what, Duration::from_secs(30), Duration::from_millis(100), || {
        let found = lab
            .switch()
            .ns()
            .enter(|| Asker::open("p-lb1")?.ask_all(all, clock::now() + 300 * MS))?;
        Ok((found.answered == all.len()).then_some(()))
    })?;
    // The repeats of announcements end too; refreshes go on for ever, so this has a bound and no verdict.
    let bound = clock::now() + 10_000 * MS;
    while clock::now() < bound {
        let capture = Capture::start(lab.switch().ns(), None, Filter::Ownership)?;
        clock::observe(Duration::from_millis(700));
        let frames = capture.stop()?.frames;
        let announced = |c: &&capture::Captured| {
            c.frame()
                .and_then(|f| f.arp())
                .is_some_and(|a| a.is_announcement())
        };
        if frames.iter().filter(announced).count() < 20 {
            break;
        }
    }
    Ok(())
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    first: Nanos,
    last: Nanos,
    answered: usize,
    /// How often all that were missing had to be asked.
    rounds: usize,
}

/// Asks the new Active for the first VIP every millisecond, and once it answers, for all. The questions are put into its
/// cable at the switch: a broadcast through the bridge would cost the machine more time than is to be measured.
fn sweep(all: &[Ipv4Addr]) -> Result<Found> {
    process::prefer_this_thread(crate::measure::INSTRUMENT_PRIORITY);
    let asker = Asker::open(PORT)?;
    let (socket, offset, own) = (&asker.socket, asker.offset, asker.mac);
    let Some(probe) = all.first() else {
        return Ok(Found::default());
    };
    let mut buffer = [0; 128];
    let end = clock::now() + 60_000 * MS;
    while clock::now() < end {
        send(
            socket.as_raw_fd(),
            &arp_request(own, topology::address("mon"), *probe),
            MsgFlags::MSG_DONTWAIT,
        )
        .ok();
        clock::sleep_until(clock::now() + MS);
        while let Some(got) = capture::receive(socket, &mut buffer, offset)? {
            let answer = Frame::new(buffer.get(..got.len.min(128)).unwrap_or_default()).and_then(|f| f.arp());
            if got.direction == Direction::In
                && answer.is_some_and(|a| a.operation == 2 && a.sender == *probe)
            {
                let mut found = asker.ask_all(all, got.at + 500 * MS)?;
                found.first = got.at;
                return Ok(found);
            }
        }
    }
    Ok(Found::default())
}

/// Puts questions into a cable at the switch and reads the answers there. It asks with the MAC of the port itself, so
/// that the answers go no further.
struct Asker {
    socket: Socket,
    offset: Nanos,
    mac: [u8; 6],
}

impl Asker {
    fn open(port: &str) -> Result<Self> {
        let mac = capture::link_address(port)?
            .addr()
            .context("the port has no MAC")?;
        Ok(Self {
            socket: capture::open(Some(port), Filter::Ownership)?,
            offset: clock::realtime_offset(),
            mac,
        })
    }

    /// Asks for every address once, and again every 20 ms for those that did not answer, until `end`.
    fn ask_all(&self, all: &[Ipv4Addr], end: Nanos) -> Result<Found> {
        let mut missing: BTreeSet<Ipv4Addr> = all.iter().copied().collect();
        let mut found = Found {
            first: clock::now(),
            ..Found::default()
        };
        let from = topology::address("mon");
        while !missing.is_empty() && clock::now() < end {
            let round = clock::now();
            let asked: Vec<Ipv4Addr> = missing.iter().copied().collect();
            // In portions, so that the cable's queue does not overflow.
            for portion in asked.chunks(200) {
                for address in portion {
                    let request = arp_request(self.mac, from, *address);
                    send(self.socket.as_raw_fd(), &request, MsgFlags::MSG_DONTWAIT).ok();
                }
                self.drain(&mut missing, &mut found)?;
            }
            found.rounds += 1;
            while !missing.is_empty() && clock::now() < round + 20 * MS {
                self.drain(&mut missing, &mut found)?;
                clock::sleep_until(clock::now() + MS / 5);
            }
        }
        found.answered = all.len() - missing.len();
        Ok(found)
    }

    fn drain(&self, missing: &mut BTreeSet<Ipv4Addr>, found: &mut Found) -> Result<()> {
        let mut buffer = [0; 128];
        while let Some(got) = capture::receive(&self.socket, &mut buffer, self.offset)? {
            let arp = Frame::new(buffer.get(..got.len.min(128)).unwrap_or_default()).and_then(|f| f.arp());
            if got.direction == Direction::In
                && let Some(arp) = arp.filter(|a| a.operation == 2)
                && missing.remove(&arp.sender)
            {
                found.last = found.last.max(got.at);
            }
        }
        Ok(())
    }
}

/// Figures of the announcements of the new Active.
fn announcements(run: &mut Run, number: u32, frames: &[capture::Captured], killed: Nanos) {
    let mut first: BTreeMap<Ipv4Addr, Nanos> = BTreeMap::new();
    let mut per_tenth: BTreeMap<Nanos, usize> = BTreeMap::new();
    let mut total = 0_usize;
    for captured in frames
        .iter()
        .filter(|c| c.at > killed && c.direction == Direction::In && c.port == PORT)
    {
        let Some(arp) = captured
            .frame()
            .and_then(|f| f.arp())
            .filter(crate::packet::Arp::is_announcement)
        else {
            continue;
        };
        first.entry(arp.sender).or_insert(captured.at);
        *per_tenth.entry(captured.at / (100 * MS)).or_default() += 1;
        total += 1;
    }
    let begin = first.values().min().copied().unwrap_or(0);
    let end = first.values().max().copied().unwrap_or(0);
    run.report.count(format!("announcements_{number}"), total);
    run.report.count(format!("announced_vips_{number}"), first.len());
    run.report.figure(
        format!("announce_span_ms_{number}"),
        ms(end.saturating_sub(begin)),
    );
    run.report.figure(
        format!("announce_last_after_cut_ms_{number}"),
        ms(end.saturating_sub(killed)),
    );
    let busiest = per_tenth.values().max().copied().unwrap_or(0);
    run.report
        .count(format!("announce_rate_max_per_s_{number}"), busiest * 10);
    run.report.check(
        format!("#{number}: every VIP is announced by the new Active"),
        first.len() >= usize::from(VIPS),
        format!(
            "{} of {VIPS} in {} ms",
            first.len(),
            ms(end.saturating_sub(begin))
        ),
    );
}
