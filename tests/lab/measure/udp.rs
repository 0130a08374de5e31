//! The fast prober: one numbered UDP datagram to the echo service every millisecond.

use std::{
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
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

/// How long the prober waits for answers after the last question.
const TAIL: Nanos = 100 * MS;
/// Without an answer for longer, service is away.
pub const LATE: Nanos = 20 * MS;

/// A running prober.
#[derive(Debug)]
pub struct UdpProber {
    recorder: Recorder<Series>,
    unanswered_at: Arc<AtomicU64>,
}

impl UdpProber {
    /// Asks `target` from inside `ns` every `spacing` ns, always from one source port.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(ns: &Namespace, target: impl Into<SocketAddr>, spacing: Nanos) -> Result<Self> {
        let target = target.into();
        let any: SocketAddr = match target {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = ns.enter(|| Ok(UdpSocket::bind(any)?))?;
        socket.set_nonblocking(true)?;
        let stop = Stop::default();
        let flag = stop.clone();
        let unanswered_at = Arc::new(AtomicU64::new(clock::now()));
        let marked = Arc::clone(&unanswered_at);
        let thread = ns.thread("udp-prober", move || {
            Ok(probe(&socket, target, spacing, &flag, &marked))
        })?;
        Ok(Self {
            recorder: Recorder::new(stop, thread),
            unanswered_at,
        })
    }

    /// Waits until there has been an answer in every [`LATE`] of a time of `span`; false if that is not so within `limit`.
    pub fn wait_answered(&self, span: Duration, limit: Duration) -> bool {
        let end = clock::now() + clock::nanos(limit);
        loop {
            let now = clock::now();
            if self.unanswered_at.load(Ordering::Relaxed) + clock::nanos(span) <= now {
                return true;
            }
            if now >= end {
                return false;
            }
            clock::observe(Duration::from_millis(10));
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// When the thread failed.
    pub fn stop(self) -> Result<Series> {
        self.recorder.finish()
    }
}

fn probe(
    socket: &UdpSocket,
    target: SocketAddr,
    spacing: Nanos,
    stop: &Stop,
    unanswered_at: &AtomicU64,
) -> Series {
    process::prefer_this_thread(INSTRUMENT_PRIORITY);
    let mut answered = clock::now();
    let mut series = Series {
        spacing,
        attempts: Vec::new(),
    };
    let mut next = clock::now();
    let mut end = None;
    loop {
        let now = clock::now();
        if end.is_none() && stop.is_set() {
            end = Some(now + TAIL);
        }
        match end {
            Some(end) if now >= end => return series,
            None if now >= next => {
                let number = u32::try_from(series.attempts.len()).unwrap_or(u32::MAX);
                series.attempts.push(Attempt {
                    at: now,
                    took: None,
                    server: 0,
                    extra: 0,
                });
                // What cannot be sent stays an attempt without answer.
                drop(socket.send_to(&number.to_be_bytes(), target));
                next += spacing;
                if next + 5 * MS < now {
                    next = now + spacing;
                }
            }
            _ => {}
        }
        let until = end.unwrap_or(next).saturating_sub(clock::now());
        let timeout = TimeSpec::nanoseconds(i64::try_from(until).unwrap_or(0));
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        ppoll(&mut fds, Some(timeout), None).ok();
        let now = clock::now();
        if drain(socket, &mut series) {
            answered = now;
        }
        if now > answered + LATE {
            unanswered_at.store(now, Ordering::Relaxed);
        }
    }
}

/// Reads what came; whether an answer was among it.
fn drain(socket: &UdpSocket, series: &mut Series) -> bool {
    let mut buffer = [0; 64];
    let mut answered = false;
    loop {
        let len = match socket.recv_from(&mut buffer) {
            Ok((len, _)) => len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return answered,
            // An ICMP error is the answer to an earlier datagram: it stays without answer.
            Err(_) => continue,
        };
        let now = clock::now();
        let Some(number) = buffer
            .get(..4)
            .and_then(|b| b.try_into().ok())
            .map(u32::from_be_bytes)
        else {
            continue;
        };
        let Some(attempt) = usize::try_from(number)
            .ok()
            .and_then(|i| series.attempts.get_mut(i))
        else {
            continue;
        };
        answered = true;
        if attempt.took.is_some() {
            attempt.extra = attempt.extra.saturating_add(1);
        } else {
            attempt.took = Some(now.saturating_sub(attempt.at));
            attempt.server = if len > 4 {
                buffer.get(4).copied().unwrap_or(0)
            } else {
                0
            };
        }
    }
}
