//! Exchanges of one datagram and its answer, each from a port of its own: every question is a new flow.

use std::{
    collections::VecDeque,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::AsFd as _,
};

use anyhow::{Context as _, Result};
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::time::{TimeSpec, TimeValLike as _},
};

use super::{
    INSTRUMENT_PRIORITY, Recorder, Stop,
    outage::{Attempt, Series},
};
use crate::{
    clock::{self, MS, Nanos},
    netns::Namespace,
    process,
};

/// How long an answer is waited for.
const PATIENCE: Nanos = 500 * MS;
/// First port that is asked from, and how many there are.
const PORTS: (u16, u16) = (2_048, 60_000);

/// Running exchanges.
#[derive(Debug)]
pub struct Exchanges {
    recorder: Recorder<Series>,
}

/// A question without an answer yet.
struct Asked {
    socket: UdpSocket,
    attempt: usize,
}

impl Exchanges {
    /// Asks `target` from inside `ns` every `spacing` ns, from each address of `sources` in turn.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn start(
        ns: &Namespace,
        target: SocketAddrV4,
        sources: Vec<Ipv4Addr>,
        spacing: Nanos,
    ) -> Result<Self> {
        let stop = Stop::default();
        let flag = stop.clone();
        let thread = ns.thread("exchanges", move || exchange(target, &sources, spacing, &flag))?;
        Ok(Self {
            recorder: Recorder::new(stop, thread),
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When the thread failed: a socket could not be made.
    pub fn stop(self) -> Result<Series> {
        self.recorder.finish()
    }
}

fn exchange(target: SocketAddrV4, sources: &[Ipv4Addr], spacing: Nanos, stop: &Stop) -> Result<Series> {
    process::prefer_this_thread(INSTRUMENT_PRIORITY);
    let mut series = Series {
        spacing,
        attempts: Vec::new(),
    };
    let mut waiting = VecDeque::new();
    let mut next = clock::now();
    let mut end = None;
    loop {
        let now = clock::now();
        if end.is_none() && stop.is_set() {
            end = Some(now + PATIENCE);
        }
        if end.is_some_and(|end| now >= end) {
            return Ok(series);
        }
        if end.is_none() && now >= next {
            waiting.push_back(ask(target, sources, &mut series)?);
            next += spacing;
            if next + 20 * MS < now {
                next = now + spacing;
            }
        }
        let until = end.unwrap_or(next).saturating_sub(clock::now());
        let timeout = TimeSpec::nanoseconds(i64::try_from(until).unwrap_or(0));
        let mut fds: Vec<_> = waiting
            .iter()
            .map(|asked: &Asked| PollFd::new(asked.socket.as_fd(), PollFlags::POLLIN))
            .collect();
        ppoll(&mut fds, Some(timeout), None).ok();
        let ready: Vec<_> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        let now = clock::now();
        let mut ready = ready.into_iter();
        waiting.retain(|asked| !(ready.next().unwrap_or(false) && is_answered(asked, now, &mut series)));
        while waiting
            .front()
            .and_then(|asked| series.attempts.get(asked.attempt))
            .is_some_and(|attempt| attempt.at + PATIENCE < now)
        {
            waiting.pop_front();
        }
    }
}

/// Sends one question from the next address and port.
fn ask(target: SocketAddrV4, sources: &[Ipv4Addr], series: &mut Series) -> Result<Asked> {
    let number = series.attempts.len();
    let source = sources
        .get(number % sources.len().max(1))
        .context("no address to ask from")?;
    let (first, count) = PORTS;
    let nth = u16::try_from(number / sources.len() % usize::from(count))?;
    let socket = UdpSocket::bind((*source, first + nth))?;
    socket.set_nonblocking(true)?;
    socket.connect(target)?;
    series.attempts.push(Attempt {
        at: clock::now(),
        took: None,
        server: 0,
        extra: 0,
    });
    // What cannot be sent stays an attempt without answer.
    drop(socket.send(&u32::try_from(number)?.to_be_bytes()));
    Ok(Asked {
        socket,
        attempt: number,
    })
}

fn is_answered(asked: &Asked, now: Nanos, series: &mut Series) -> bool {
    let mut buffer = [0; 64];
    match asked.socket.recv(&mut buffer) {
        Ok(len) => {
            if let Some(attempt) = series.attempts.get_mut(asked.attempt) {
                attempt.took = Some(now.saturating_sub(attempt.at));
                attempt.server = if len > 4 {
                    buffer.get(4).copied().unwrap_or(0)
                } else {
                    0
                };
            }
            true
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        // An ICMP error: it is no answer, and none will come.
        Err(_) => true,
    }
}
