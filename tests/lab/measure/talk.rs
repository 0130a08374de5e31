//! Long-lived connections that say something at every turn and want it back: who loses one, and how long the others wait.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsFd as _,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::resource::{Resource, getrlimit, setrlimit},
};

use super::{INSTRUMENT_PRIORITY, Recorder, Stop};
use crate::{
    clock::{self, MS, Nanos},
    netns::Namespace,
    process,
};

/// TCP port of the service.
pub const PORT: u16 = 9_100;
/// What is said.
const WORD: [u8; 32] = *b"and they go on talking all along";
/// How long an answer is waited for at the end.
const PATIENCE: Nanos = 15_000 * MS;
/// How long opening one connection may take.
const OPENING: Duration = Duration::from_secs(5);

/// Each connection is a descriptor, and both ends may live in this process.
fn raise_descriptors() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(65_536), hard)?;
    Ok(())
}

/// Says back what it hears; dropping it ends it.
#[derive(Debug)]
pub struct Talker {
    _recorder: Recorder<()>,
}

impl Talker {
    /// Starts it inside `ns`.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn start(ns: &Namespace) -> Result<Self> {
        raise_descriptors()?;
        let listener = ns.enter(|| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?))?;
        listener.set_nonblocking(true)?;
        let stop = Stop::default();
        let flag = stop.clone();
        let thread = ns.thread("talker", move || {
            process::prefer_this_thread(INSTRUMENT_PRIORITY);
            let mut open: Vec<TcpStream> = Vec::new();
            while !flag.is_set() {
                let ready = readable(
                    std::iter::once(listener.as_fd()).chain(open.iter().map(|s| s.as_fd())),
                    20,
                )?;
                if ready.first() == Some(&true) {
                    while let Ok((stream, _)) = listener.accept() {
                        stream.set_nonblocking(true)?;
                        stream.set_nodelay(true)?;
                        open.push(stream);
                    }
                }
                let mut heard = ready.into_iter().skip(1);
                open.retain_mut(|stream| !heard.next().unwrap_or(false) || say_back(stream));
            }
            Ok(())
        })?;
        Ok(Self {
            _recorder: Recorder::new(stop, thread),
        })
    }
}

fn say_back(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(len) => stream.write_all(buffer.get(..len).unwrap_or_default()).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// Which of them can be read now, or within `ms`.
fn readable<'f>(all: impl Iterator<Item = std::os::fd::BorrowedFd<'f>>, ms: u16) -> Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    poll(&mut polled, PollTimeout::from(ms))?;
    Ok(polled
        .iter()
        .map(|fd| fd.revents().is_some_and(|events| !events.is_empty()))
        .collect())
}

/// What became of the connections.
#[derive(Clone, Debug, Default)]
pub struct Talked {
    /// Connections there were.
    pub connections: usize,
    /// What broke each that broke.
    pub broken: Vec<String>,
    /// Words that came back.
    pub answers: usize,
    /// How long the slowest of them took, and the median of each connection's slowest, ns.
    pub longest: Nanos,
    /// See `longest`.
    pub median_longest: Nanos,
}

/// One connection.
struct Talk {
    stream: TcpStream,
    due: Nanos,
    asked: Option<Nanos>,
    heard: usize,
    longest: Nanos,
    broken: Option<String>,
}

/// Connections under way.
#[derive(Debug)]
pub struct Talks {
    recorder: Recorder<Talked>,
}

impl Talks {
    /// Opens `count` connections from inside `ns`; each says a word every `period`.
    ///
    /// # Errors
    /// When one of them cannot be opened.
    pub fn open(ns: &Namespace, target: SocketAddrV4, count: usize, period: Duration) -> Result<Self> {
        raise_descriptors()?;
        let period = clock::nanos(period);
        let mut talks = ns.enter(|| {
            (0..count)
                .map(|n| {
                    let stream = TcpStream::connect_timeout(&SocketAddr::V4(target), OPENING)
                        .with_context(|| format!("connection {n}"))?;
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    Ok(Talk {
                        stream,
                        due: 0,
                        asked: None,
                        heard: 0,
                        longest: 0,
                        broken: None,
                    })
                })
                .collect::<Result<Vec<_>>>()
        })?;
        let begun = clock::now();
        for (talk, n) in talks.iter_mut().zip(0_u64..) {
            talk.due = begun + period * n / u64::try_from(count.max(1))?;
        }
        let stop = Stop::default();
        let flag = stop.clone();
        let thread = ns.thread("talks", move || {
            process::prefer_this_thread(INSTRUMENT_PRIORITY);
            let mut answers = 0;
            let mut end = None;
            loop {
                let now = clock::now();
                if flag.is_set() && end.is_none() {
                    end = Some(now + PATIENCE);
                }
                let waiting = talks.iter().any(|talk| talk.asked.is_some());
                if end.is_some_and(|end| now >= end || !waiting) {
                    break;
                }
                turn(
                    &mut talks,
                    now,
                    if end.is_none() { Some(period) } else { None },
                    &mut answers,
                )?;
            }
            Ok(judged(talks, answers))
        })?;
        Ok(Self {
            recorder: Recorder::new(stop, thread),
        })
    }

    /// Ends them once the last words have come back.
    ///
    /// # Errors
    /// When the instrument failed.
    pub fn finish(self) -> Result<Talked> {
        self.recorder.finish()
    }
}

/// Says what is due, if anything is to be said, and hears what has come.
fn turn(talks: &mut [Talk], now: Nanos, period: Option<Nanos>, answers: &mut usize) -> Result<()> {
    for talk in talks.iter_mut().filter(|talk| talk.broken.is_none()) {
        if let Some(period) = period
            && talk.asked.is_none()
            && now >= talk.due
        {
            talk.due = talk.due.max(now.saturating_sub(period)) + period;
            talk.asked = Some(now);
            if let Err(error) = talk.stream.write_all(&WORD) {
                (talk.broken, talk.asked) = (Some(error.to_string()), None);
            }
        }
    }
    let mut waiting: Vec<&mut Talk> = talks.iter_mut().filter(|talk| talk.asked.is_some()).collect();
    if waiting.is_empty() {
        clock::sleep_until(now + 2 * MS);
        return Ok(());
    }
    let ready = readable(waiting.iter().map(|talk| talk.stream.as_fd()), 2)?;
    for (talk, _) in waiting.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
        let mut buffer = [0; WORD.len()];
        match talk.stream.read(&mut buffer) {
            Ok(0) => (talk.broken, talk.asked) = (Some("closed by the other side".to_owned()), None),
            Ok(len) => talk.heard += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => (talk.broken, talk.asked) = (Some(error.to_string()), None),
        }
        if talk.heard >= WORD.len() {
            talk.heard -= WORD.len();
            *answers += 1;
            if let Some(asked) = talk.asked.take() {
                talk.longest = talk.longest.max(clock::now() - asked);
            }
        }
    }
    Ok(())
}

fn judged(talks: Vec<Talk>, answers: usize) -> Talked {
    let connections = talks.len();
    let mut longest: Vec<Nanos> = talks.iter().map(|talk| talk.longest).collect();
    longest.sort_unstable();
    let broken = talks
        .into_iter()
        .filter_map(|talk| talk.broken.or_else(|| talk.asked.map(|_| "no answer".to_owned())))
        .collect();
    Talked {
        connections,
        broken,
        answers,
        longest: longest.last().copied().unwrap_or(0),
        median_longest: longest.get(connections / 2).copied().unwrap_or(0),
    }
}
