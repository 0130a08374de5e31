//! Both lease cells, read every millisecond straight from the kernel.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData, MapInfo};

use super::{INSTRUMENT_PRIORITY, Recorder, Stop};
use crate::{
    clock::{self, MS, Nanos},
    process,
};

/// Name of the map of lease cells; entry 0 is the deadline of the pair's one group, in ns of CLOCK_MONOTONIC.
const MAP: &str = "LEASE";

/// One reading of a node's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// When it was read.
    pub at: Nanos,
    /// The deadlines of both nodes; 0 where there is no cell.
    pub deadlines: [Nanos; 2],
}

impl Reading {
    /// Which nodes hold a valid lease.
    pub fn valid(&self) -> [bool; 2] {
        self.deadlines.map(|d| d > self.at)
    }
}

/// The lease cell of one node.
struct Cell {
    array: Array<MapData, u64>,
}

impl Cell {
    /// Finds the cell among the maps a process holds.
    fn find(pids: &[i32]) -> Option<Self> {
        let id = pids
            .iter()
            .flat_map(|pid| map_ids(*pid))
            .find(|id| MapInfo::from_id(*id).is_ok_and(|info| info.name_as_str() == Some(MAP)))?;
        let array = Array::try_from(Map::Array(MapData::from_id(id).ok()?)).ok()?;
        Some(Self { array })
    }

    fn read(&self) -> Nanos {
        self.array.get(&0, 0).unwrap_or(0)
    }
}

/// Ids of the BPF maps process `pid` has descriptors of.
fn map_ids(pid: i32) -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return BTreeSet::new();
    };
    entries
        .flatten()
        .filter_map(|e| fs::read_to_string(e.path()).ok())
        .filter_map(|text| {
            text.lines()
                .find_map(|l| l.strip_prefix("map_id:"))?
                .trim()
                .parse()
                .ok()
        })
        .collect()
}

/// A running sampler. The cells are held by it, so that a dead node's cell is read on.
#[derive(Debug)]
pub struct LeaseSampler {
    recorder: Recorder<Vec<Reading>>,
}

impl LeaseSampler {
    /// Reads the cells of the nodes whose processes are given.
    ///
    /// # Errors
    /// When a node has no cell, or the thread cannot be made.
    pub fn start(nodes: [Vec<i32>; 2]) -> Result<Self> {
        let [one, two] = nodes.map(|pids| Cell::find(&pids));
        let cells = [
            one.context("lb1 has no lease cell")?,
            two.context("lb2 has no lease cell")?,
        ];
        let stop = Stop::default();
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("leases".to_owned())
            .spawn(move || {
                process::prefer_this_thread(INSTRUMENT_PRIORITY);
                let mut readings = Vec::new();
                let mut next = clock::now();
                while !flag.is_set() {
                    // The first is read again and the clock last: an orderly hand-over between two reads is no double.
                    let first = cells[0].read();
                    let second = cells[1].read();
                    let deadlines = [first.min(cells[0].read()), second];
                    readings.push(Reading {
                        at: clock::now(),
                        deadlines,
                    });
                    next = (next + MS).max(clock::now());
                    clock::sleep_until(next);
                }
                Ok(readings)
            })?;
        Ok(Self {
            recorder: Recorder::new(stop, thread),
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When the thread failed.
    pub fn stop(self) -> Result<Vec<Reading>> {
        self.recorder.finish()
    }
}

/// Readings in which both leases were valid.
pub fn doubles(readings: &[Reading]) -> usize {
    readings.iter().filter(|r| r.valid() == [true, true]).count()
}
