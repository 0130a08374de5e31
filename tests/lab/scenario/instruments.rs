//! Everything that looks on while something happens to a pair of onearm nodes.

use std::{cell::Cell, net::SocketAddrV4};

use anyhow::Result;

use crate::{
    clock::{self, MS, Nanos},
    measure::{
        echo,
        lease::{LeaseSampler, Reading},
        outage::Series,
        owners::{Owners, Sampler},
        stalls::{Stall, StallMonitor},
        udp::UdpProber,
    },
    node::Pair,
    topology::{OneArm, VIP},
};

/// Everything that measures, running.
pub(super) struct Instruments {
    pub(super) begun: Nanos,
    leases: Cell<Option<LeaseSampler>>,
    stalls: StallMonitor,
    owners: Sampler,
    udp: UdpProber,
}

/// What it found.
pub(super) struct Found {
    pub(super) udp: Series,
    pub(super) owners: Owners,
    pub(super) stalls: Vec<Stall>,
}

impl Instruments {
    /// A datagram of an outside client, a question who owns the VIP, and a reading of both lease cells every millisecond.
    ///
    /// # Errors
    /// When a node has no lease cell or an instrument cannot be made.
    pub(super) fn start(lab: &OneArm, pair: &Pair) -> Result<Self> {
        Ok(Self {
            leases: Some(LeaseSampler::start(pair.pids())?).into(),
            stalls: StallMonitor::start()?,
            owners: Sampler::start(lab, VIP, MS)?,
            udp: UdpProber::start(lab.ns("out"), SocketAddrV4::new(VIP, echo::PORT), MS)?,
            begun: clock::now(),
        })
    }

    /// Ends the reading of lease cells.
    ///
    /// # Errors
    /// When it failed.
    pub(super) fn readings(&self) -> Result<Vec<Reading>> {
        self.leases.take().map_or(Ok(Vec::new()), LeaseSampler::stop)
    }

    /// Ends all others.
    ///
    /// # Errors
    /// When one failed.
    pub(super) fn stop(self) -> Result<Found> {
        Ok(Found {
            udp: self.udp.stop()?,
            owners: self.owners.stop()?,
            stalls: self.stalls.stop()?,
        })
    }
}
