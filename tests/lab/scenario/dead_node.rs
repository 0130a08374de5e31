//! SIGKILL of the Active in DNAT with 200 open connections: nobody resets any, and the dead node's kernel forwards none.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{Run, Scenario, failover, stage};
use crate::{
    clock::{self, MS, Nanos},
    measure::{
        Stop,
        capture::{Capture, Captured, Direction, Filter},
        echo,
    },
    packet::{FIN, RST},
    service::{Mode, PairSpec},
    switch::Switch,
    topology::{Options, SERVERS, VIP, address},
    traffic,
};

/// Connections open at the time of death.
const CONNECTIONS: usize = 200;
/// After this its XDP program may not transmit any more either (FACTS: a few ms, at most 70 with large tables).
const LAST_BREATH: Nanos = 100 * MS;
/// A connection asks again this often.
const PACE: Nanos = 50 * MS;

/// The scenario.
pub(super) fn scenario() -> Scenario {
    Scenario {
        name: "dead-node-silent",
        about: "SIGKILL of the Active in DNAT with 200 open connections: none is reset, its kernel forwards nothing",
        for_peers: true,
        run,
    }
}

/// What became of the connections.
#[derive(Debug, Default)]
struct Fates {
    answers_before: usize,
    answers_after: usize,
    reset: usize,
    closed: usize,
}

fn run(run: &mut Run) -> Result<()> {
    let interval = run.interval();
    let spec = PairSpec::web_and_echo(Mode::Dnat, interval);
    // Forwarding on: only the guard rules stand between the dead node's kernel and the servers' answers.
    run.with_lab(
        "dnat",
        Options {
            forwarding: true,
            ..Options::default()
        },
        |run, lab| {
            let _servers = traffic::start_servers(lab, &SERVERS)?;
            let mut pair = stage(run, lab, &spec)?;
            let stop = Stop::default();
            let flag = stop.clone();
            let sockets = lab.ns("out").enter(connect_all)?;
            let death = clock::now() + 700 * MS;
            let talk = lab
                .ns("out")
                .thread("connections", move || Ok(converse(sockets, death, &flag)))?;
            let capture = Capture::start(lab.switch().ns(), None, Filter::Tcp)?;
            clock::sleep_until(death);
            pair.nodes[0].sigkill_all();
            let killed = clock::now();
            let window = Duration::from_nanos(spec.active_down(1)) + Duration::from_secs(4);
            clock::observe(window);
            let record = capture.stop()?;
            stop.set();
            let fates = talk
                .join()
                .map_err(|_| anyhow::anyhow!("the clients' thread panicked"))??;
            record.write_pcap(&lab.lab().dir().join("tcp.pcap"))?;
            judge(run, &fates, &record.frames, killed);
            let forwarding = lab.ns("lb1").read_sysctl("net.ipv4.ip_forward")?;
            run.report.check(
                "the dead node's kernel forwards (else this proves nothing)",
                forwarding == "1",
                forwarding,
            );
            failover::wait_served(lab, SocketAddrV4::new(VIP, echo::PORT))?;
            let answers = traffic::curl(lab, "out", &VIP.to_string(), 50, "afterwards")?;
            run.report.check(
                "new connections are served by the other node",
                answers.good() == 50,
                format!("{} of 50 {}", answers.good(), answers.complaint),
            );
            pair.scrap()
        },
    )
}

fn connect_all() -> Result<Vec<TcpStream>> {
    (0..CONNECTIONS)
        .map(|i| {
            let socket =
                TcpStream::connect_timeout(&SocketAddrV4::new(VIP, 80).into(), Duration::from_secs(2))
                    .with_context(|| format!("connection {i}"))?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })
        .collect()
}

/// Asks over every connection again and again until told to stop.
fn converse(sockets: Vec<TcpStream>, death: Nanos, stop: &Stop) -> Fates {
    let mut fates = Fates::default();
    let mut open: Vec<Option<TcpStream>> = sockets.into_iter().map(Some).collect();
    let mut buffer = [0; 4096];
    while !stop.is_set() {
        let round = clock::now();
        for slot in &mut open {
            let Some(socket) = slot.as_mut() else { continue };
            let mut gone = None;
            loop {
                match socket.read(&mut buffer) {
                    Ok(0) => gone = Some(ErrorKind::UnexpectedEof),
                    Ok(_) if clock::now() < death => {
                        fates.answers_before += 1;
                        continue;
                    }
                    Ok(_) => {
                        fates.answers_after += 1;
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => gone = Some(error.kind()),
                }
                break;
            }
            if gone.is_none() && clock::now() < death + 300 * MS {
                let request = b"GET /who HTTP/1.1\r\nHost: vip\r\n\r\n";
                if let Err(error) = socket.write_all(request)
                    && error.kind() != ErrorKind::WouldBlock
                {
                    gone = Some(error.kind());
                }
            }
            if let Some(kind) = gone {
                if kind == ErrorKind::UnexpectedEof {
                    fates.closed += 1;
                } else {
                    fates.reset += 1;
                }
                *slot = None;
            }
        }
        clock::sleep_until(round + PACE);
    }
    fates
}

fn judge(run: &mut Run, fates: &Fates, frames: &[Captured], killed: Nanos) {
    let report = &mut run.report;
    report.check(
        format!("{CONNECTIONS} connections were in use before"),
        fates.answers_before >= CONNECTIONS,
        format!("{} answers", fates.answers_before),
    );
    report.check(
        "no client saw a reset or an end",
        fates.reset == 0 && fates.closed == 0,
        format!("{} reset, {} closed of {CONNECTIONS}", fates.reset, fates.closed),
    );
    report.count("answers_after_death", fates.answers_after);
    let resets: Vec<String> = frames
        .iter()
        .filter(|c| c.at > killed && c.direction == Direction::In && c.port.starts_with("p-"))
        .filter_map(|c| {
            let ip = c.frame()?.ip()?;
            // Health checks end by reset on purpose.
            let of_nodes = [address("lb1"), address("lb2")];
            let check = of_nodes.contains(&ip.src) || of_nodes.contains(&ip.dst);
            (ip.flags & (RST | FIN) != 0 && !check)
                .then(|| format!("{} {} > {} flags {:#x}", c.port, ip.src, ip.dst, ip.flags))
        })
        .collect();
    report.check(
        "no reset and no end of a connection on any cable",
        resets.is_empty(),
        format!(
            "{} frames {}",
            resets.len(),
            resets.first().cloned().unwrap_or_default()
        ),
    );
    let dead = Switch::port("lb1");
    let forwarded: Vec<&Captured> = frames
        .iter()
        .filter(|c| c.at > killed + LAST_BREATH && c.direction == Direction::In && c.port == dead)
        .filter(|c| {
            c.frame()
                .and_then(|f| f.ip())
                .is_some_and(|ip| ip.src != address("lb1"))
        })
        .collect();
    report.check(
        "the dead node forwards nothing",
        forwarded.is_empty(),
        format!(
            "{} frames {}",
            forwarded.len(),
            forwarded
                .first()
                .and_then(|c| c.frame()?.ip())
                .map(|ip| format!("{} > {}", ip.src, ip.dst))
                .unwrap_or_default()
        ),
    );
    let reached = frames
        .iter()
        .filter(|c| c.at > killed + LAST_BREATH && c.direction == Direction::Out && c.port == dead)
        .count();
    report.check(
        "frames still reached the dead node (else this proves nothing)",
        reached > 0,
        format!("{reached} frames"),
    );
}
