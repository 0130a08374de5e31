//! What conntrackd tells of itself over its control socket, cheaper than its own command can.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::curve::Curve;
use crate::{
    clock::{self, MS, Nanos},
    measure::{INSTRUMENT_PRIORITY, Recorder, Stop},
    netns::Namespace,
    process,
};

/// Its request for statistics: `STATS` in conntrackd.h.
const STATS: i32 = 21;
/// Between two questions.
const QUESTION: Nanos = 2 * MS;

/// Entries of both caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Caches {
    /// Its own flows.
    pub(super) internal: u64,
    /// The other node's.
    pub(super) external: u64,
    /// Those of the other node that came so far.
    pub(super) came: u64,
}

impl Caches {
    /// Asks.
    pub(super) fn ask(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(&STATS.to_ne_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut caches = Self::default();
        let mut is_external = false;
        let number = |line: &str| {
            let word = line.split(':').nth(1)?.split_whitespace().next()?;
            word.parse().ok()
        };
        for line in text.lines() {
            if line.starts_with("cache ") {
                is_external = line.starts_with("cache external");
            } else if line.starts_with("current active connections") {
                let current = number(line).unwrap_or(0);
                if is_external {
                    caches.external = current;
                } else {
                    caches.internal = current;
                }
            } else if is_external && line.starts_with("connections created") {
                caches.came = number(line).unwrap_or(0);
            }
        }
        caches
    }
}

/// Records a number that grows.
#[derive(Debug)]
pub(super) struct Growth {
    recorder: Recorder<Curve>,
}

impl Growth {
    /// What `ask` gives inside `ns`, above what it gave first.
    pub(super) fn start(ns: &Namespace, ask: impl Fn() -> Result<u64> + Send + 'static) -> Result<Self> {
        let stop = Stop::default();
        let flag = stop.clone();
        let thread = ns.thread("growth", move || {
            process::prefer_this_thread(INSTRUMENT_PRIORITY);
            let first = ask()?;
            let mut curve = Curve::new();
            while !flag.is_set() {
                let there = ask()?.saturating_sub(first);
                let now = clock::now();
                curve.push((now, there));
                clock::sleep_until(now + QUESTION);
            }
            Ok(curve)
        })?;
        Ok(Self {
            recorder: Recorder::new(stop, thread),
        })
    }

    pub(super) fn stop(self) -> Result<Curve> {
        self.recorder.finish()
    }
}

/// Flows in the kernel of the namespace this is called in.
pub(super) fn kernel() -> Result<u64> {
    let count = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")?;
    count.trim().parse().context("nf_conntrack_count")
}

/// Waits until one of the numbers is at least `wanted`; how long it took from `since`, ns.
pub(super) fn wait(
    socket: &Path,
    of: fn(&Caches) -> u64,
    wanted: u64,
    since: Nanos,
    limit: Duration,
) -> Result<Nanos> {
    let end = since + clock::nanos(limit);
    loop {
        let there = of(&Caches::ask(socket).context("conntrackd")?);
        let now = clock::now();
        if there >= wanted {
            return Ok(now - since);
        }
        if now > end {
            bail!(
                "conntrackd holds {there} of {wanted} flows after {} s",
                limit.as_secs()
            );
        }
        clock::observe(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_both_caches_are_read() {
        let text = "cache internal:\ncurrent active connections:\t\t 7\nconnections created:\t\t 9\tfailed:\t 0\n\n\
                    cache external:\ncurrent active connections:\t\t 5\nconnections created:\t\t 6\tfailed:\t 0\n";
        let found = Caches::parse(text);
        assert_eq!((found.internal, found.external, found.came), (7, 5, 6));
    }
}
