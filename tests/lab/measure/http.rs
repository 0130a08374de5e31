//! The HTTP prober: a new connection with one GET at every tick, however long the earlier ones hang.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddrV4,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::time::{TimeSpec, TimeValLike as _},
};
use socket2::{Domain, Socket, Type};

use super::{
    INSTRUMENT_PRIORITY, Recorder, Stop,
    outage::{Attempt, Series},
};
use crate::{
    clock::{self, MS, Nanos},
    netns::Namespace,
    process,
};

/// An attempt that has no answer by then failed. Below the kernel's first retransmission of a SYN (1 s), so that a
/// lost SYN is a failure.
const PATIENCE: Nanos = 400 * MS;

/// What a running prober has seen so far, for those who look on.
#[derive(Debug, Default)]
pub struct Tally {
    /// Answers by tag of the server; 0 is a server without tag.
    pub answers: [AtomicUsize; 10],
    /// Attempts that failed.
    pub failed: AtomicUsize,
    /// Tag of the server that answered last.
    pub last_server: AtomicUsize,
    /// When it did.
    pub last_at: AtomicU64,
}

impl Tally {
    fn count(&self, attempt: &Attempt, over_at: Nanos) {
        if attempt.took.is_none() {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(count) = self.answers.get(usize::from(attempt.server)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.last_server
            .store(usize::from(attempt.server), Ordering::Relaxed);
        self.last_at.store(over_at, Ordering::Relaxed);
    }
}

/// A running prober.
#[derive(Debug)]
pub struct HttpProber {
    recorder: Recorder<Series>,
    tally: Arc<Tally>,
}

/// One attempt that hangs.
struct Open {
    socket: Socket,
    index: usize,
    asked: bool,
    answer: Vec<u8>,
}

impl HttpProber {
    /// Gets `/` from `target` from inside `ns` every `spacing` ns.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn start(ns: &Namespace, target: SocketAddrV4, spacing: Nanos) -> Result<Self> {
        let stop = Stop::default();
        let flag = stop.clone();
        let tally = Arc::new(Tally::default());
        let counted = Arc::clone(&tally);
        let thread = ns.thread("http-prober", move || probe(target, spacing, &flag, &counted))?;
        Ok(Self {
            recorder: Recorder::new(stop, thread),
            tally,
        })
    }

    /// What it has seen so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Ends it.
    ///
    /// # Errors
    /// When the thread failed.
    pub fn stop(self) -> Result<Series> {
        self.recorder.finish()
    }
}

fn probe(target: SocketAddrV4, spacing: Nanos, stop: &Stop, tally: &Tally) -> Result<Series> {
    process::prefer_this_thread(INSTRUMENT_PRIORITY);
    let mut series = Series {
        spacing,
        attempts: Vec::new(),
    };
    let mut open: Vec<Open> = Vec::new();
    let mut next = clock::now();
    let mut end = None;
    loop {
        let now = clock::now();
        if end.is_none() && stop.is_set() {
            end = Some(now + PATIENCE);
        }
        if end.is_some_and(|end| now >= end || open.is_empty()) {
            return Ok(series);
        }
        if end.is_none() && now >= next {
            let index = series.attempts.len();
            series.attempts.push(Attempt {
                at: now,
                took: None,
                server: 0,
                extra: 0,
            });
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            // A prober leaves no port behind: the server closes first anyway.
            socket.set_linger(Some(std::time::Duration::ZERO))?;
            // "In progress" is the rule here; a refusal shows when the socket is read.
            drop(socket.connect(&target.into()));
            open.push(Open {
                socket,
                index,
                asked: false,
                answer: Vec::new(),
            });
            next += spacing;
            if next + 5 * MS < now {
                next = now + spacing;
            }
        }
        let until = if end.is_some() {
            MS
        } else {
            next.saturating_sub(clock::now())
        };
        let timeout = TimeSpec::nanoseconds(i64::try_from(until).unwrap_or(0));
        let mut fds: Vec<PollFd<'_>> = open
            .iter()
            .map(|o| {
                let wanted = if o.asked {
                    PollFlags::POLLIN
                } else {
                    PollFlags::POLLOUT
                };
                PollFd::new(o.socket.as_fd(), wanted)
            })
            .collect();
        ppoll(&mut fds, Some(timeout), None).ok();
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        drop(fds);
        let now = clock::now();
        let mut ready = ready.into_iter();
        open.retain_mut(|o| {
            let Some(attempt) = series.attempts.get_mut(o.index) else {
                return false;
            };
            let goes_on = !ready.next().unwrap_or(false) || advance(o, attempt, now);
            let stays = goes_on && now.saturating_sub(attempt.at) < PATIENCE;
            if !stays {
                tally.count(attempt, now);
            }
            stays
        });
    }
}

/// Takes an attempt one step further; false when it is over.
fn advance(open: &mut Open, attempt: &mut Attempt, now: Nanos) -> bool {
    if !open.asked {
        open.asked = true;
        let request = b"GET / HTTP/1.0\r\nHost: vip\r\n\r\n";
        return (&open.socket).write_all(request).is_ok();
    }
    let mut buffer = [0; 2048];
    match (&open.socket).read(&mut buffer) {
        Ok(0) => {
            if open.answer.starts_with(b"HTTP/1.1 200") {
                attempt.took = Some(now.saturating_sub(attempt.at));
                attempt.server = server_tag(&open.answer);
            }
            false
        }
        Ok(len) => {
            open.answer.extend(buffer.get(..len).unwrap_or_default());
            true
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// The number in the header `X-Server: sN`.
fn server_tag(answer: &[u8]) -> u8 {
    let text = String::from_utf8_lossy(answer);
    text.lines()
        .find_map(|l| l.strip_prefix("X-Server: s"))
        .and_then(|n| n.trim().parse().ok())
        .unwrap_or(0)
}
