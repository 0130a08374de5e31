//! Instruments: probers that see outages, samplers of ARP owners and leases, captures, the machine's own stalls.
//!
//! Each instrument is a thread (or two) inside a namespace; `stop` ends it and gives its record. Times are nanoseconds
//! of CLOCK_MONOTONIC.

pub mod capture;
pub mod echo;
pub mod exchanges;
pub mod http;
pub mod lease;
pub mod live;
pub mod outage;
pub mod owners;
pub mod sessions;
pub mod stalls;
pub mod talk;
pub mod udp;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::{Result, anyhow};

/// Real-time priority of instruments that only measure.
pub(crate) const INSTRUMENT_PRIORITY: u8 = 10;

/// A flag that tells the threads of an instrument to end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Tells them.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether they have been told.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A measuring thread and the way to end it.
#[derive(Debug)]
pub(crate) struct Recorder<T> {
    stop: Stop,
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T> Recorder<T> {
    pub(crate) fn new(stop: Stop, thread: JoinHandle<Result<T>>) -> Self {
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// Ends the thread and gives what it recorded.
    pub(crate) fn finish(mut self) -> Result<T> {
        self.stop.set();
        let thread = self
            .thread
            .take()
            .ok_or_else(|| anyhow!("the recorder was finished already"))?;
        thread
            .join()
            .map_err(|_| anyhow!("a measuring thread panicked"))?
    }
}

impl<T> Drop for Recorder<T> {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // Its record is not wanted any more; a panic has been printed.
            drop(thread.join());
        }
    }
}
