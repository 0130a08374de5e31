//! The lease cell: until when this node may act for a group.

use std::os::fd::AsFd;

use aya::maps::{MapData, MapType};
use onearm_dataplane_common::permission::{ARMED_BASE, LEASE_WORDS, RELAYING_BASE, YIELDING};
use onearm_types::GroupId;

use crate::error::{Error, Result};
use crate::mapping::Words;
use crate::sys;

/// The lease of one group in the map `LEASE`, in this process's memory.
///
/// The programs act for the pair's addresses only while `bpf_ktime_get_ns()` is below the deadline. Any process that
/// holds a descriptor of the map can make a cell of it; the HA process maps this one page and nothing else. The cell
/// stays usable when the object it came from is dropped.
#[derive(Debug)]
pub struct LeaseCell {
    words: Words<u64>,
    group: GroupId,
}

impl LeaseCell {
    /// Maps the cell of `group` from a descriptor of the map `LEASE` (see `Dataplane::lease_fd`).
    ///
    /// # Errors
    /// [`Error::NotTheLeaseMap`] if the descriptor is of another object, [`Error::Map`] if it cannot be mapped.
    pub fn map(fd: impl AsFd, group: GroupId) -> Result<Self> {
        let copy = sys::duplicate(&fd).map_err(|source| Error::Map { map: "LEASE", source })?;
        let info = MapData::from_fd(copy)
            .and_then(|map| map.info())
            .map_err(|source| Error::NotTheLeaseMap {
                source: Some(Box::new(source)),
            })?;
        let is_lease = matches!(info.map_type(), Ok(MapType::Array))
            && info.value_size() == 8
            && info.max_entries() == LEASE_WORDS;
        if !is_lease {
            return Err(Error::NotTheLeaseMap { source: None });
        }
        let words =
            Words::new(fd.as_fd(), LEASE_WORDS).map_err(|source| Error::Map { map: "LEASE", source })?;
        Ok(Self { words, group })
    }

    /// Permits acting until `deadline_ns` (CLOCK_MONOTONIC, nanoseconds, exact to two). A value in the past withdraws the
    /// permission. No system call, nor in any other method.
    pub fn write(&self, deadline_ns: u64) {
        self.words.store(self.group.index(), 0, deadline_ns & !YIELDING);
    }

    /// As [`Self::write`], but no flows are made: packets that would make one, or belong to none, go on to the peer.
    pub fn write_yielding(&self, deadline_ns: u64) {
        let deadline = if deadline_ns == 0 {
            0
        } else {
            deadline_ns | YIELDING
        };
        self.words.store(self.group.index(), 0, deadline);
    }

    /// Permits acting, without a lease, on what the peer passes on, until `until_ns` (CLOCK_MONOTONIC, nanoseconds); 0 = no
    /// more.
    pub fn arm(&self, until_ns: u64) {
        self.words.store(ARMED_BASE + self.group.index(), 0, until_ns);
    }

    /// Until `until_ns` (CLOCK_MONOTONIC, nanoseconds) what this node has no right to act on goes on to the peer, whether or
    /// not the peer is known to own.
    pub fn relay(&self, until_ns: u64) {
        self.words.store(RELAYING_BASE + self.group.index(), 0, until_ns);
    }

    /// The deadline as written last by anyone (CLOCK_MONOTONIC, nanoseconds); 0 = none.
    pub fn read(&self) -> u64 {
        self.words.load(self.group.index(), 0) & !YIELDING
    }

    /// Until when this node is armed (CLOCK_MONOTONIC, nanoseconds); 0 = it never was, or no more.
    pub fn armed(&self) -> u64 {
        self.words.load(ARMED_BASE + self.group.index(), 0)
    }

    /// Withdraws both permissions.
    pub fn clear(&self) {
        self.write(0);
        self.arm(0);
    }
}
