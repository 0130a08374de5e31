//! The loaded dataplane as the daemon holds it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use aya::Ebpf;
use aya::programs::{Program, SchedClassifier};
use onearm_dataplane_common::maps::Node;
use onearm_dataplane_common::phase;
use onearm_types::GroupId;

use crate::apply::Slots;
use crate::attach::{Attached, LegAttach};
use crate::egress_gate::{self, GateRecord};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::flows::FlowTable;
use crate::helper::{Helper, Ports};
use crate::kernel_maps::KernelMaps;
use crate::lease::LeaseCell;
use crate::loader;
use crate::next_hops::Mirror;
use crate::sync::TellRing;
use crate::sys;
use crate::tables::Registry;

/// Programs and maps in the kernel, and what user space keeps about them.
///
/// One owner; every method is a plain blocking call, so the daemon runs them from `spawn_blocking`. The parts that other
/// threads need at the same time are separate objects: [`LeaseCell`], [`FlowTable`], [`Events`]. Dropping it drops its
/// link descriptors: the programs stay attached only while another process holds them.
pub struct Dataplane {
    pub(crate) ebpf: Ebpf,
    pub(crate) maps: KernelMaps,
    pub(crate) flows: Arc<FlowTable>,
    pub(crate) registry: Registry,
    pub(crate) mirror: Mirror,
    pub(crate) slots: Slots,
    pub(crate) ports: Ports,
    node: Node,
    attached: Vec<Attached>,
    map_bytes: u64,
}

impl std::fmt::Debug for Dataplane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dataplane")
            .field("attached", &self.attached)
            .finish_non_exhaustive()
    }
}

impl Dataplane {
    pub(crate) fn assemble(
        ebpf: Ebpf,
        maps: KernelMaps,
        flows: FlowTable,
        registry: Registry,
        mirror: Mirror,
        node: Node,
        map_bytes: u64,
    ) -> Self {
        Self {
            ebpf,
            maps,
            flows: Arc::new(flows),
            registry,
            mirror,
            slots: Slots::default(),
            ports: Ports::default(),
            node,
            attached: Vec::new(),
            map_bytes,
        }
    }

    /// Kernel memory of all maps in bytes, as the kernel accounts for it. The flow table appears in the process's RSS
    /// too, because it is mapped.
    pub fn map_bytes(&self) -> u64 {
        self.map_bytes
    }

    /// Attaches the program to a leg. No other interface is touched (B140).
    ///
    /// # Errors
    /// [`Error::AttachedAlready`], [`Error::NoSuchInterface`], [`Error::InterfaceTaken`], [`Error::AttachNative`] when
    /// native was asked for and refused, [`Error::AttachGeneric`].
    pub fn attach(&mut self, leg: &LegAttach) -> Result<&Attached> {
        if self.attached.iter().any(|a| a.ifindex == leg.ifindex) {
            return Err(Error::AttachedAlready {
                interface: leg.name.clone(),
                ifindex: leg.ifindex,
            });
        }
        let program = loader::xdp(&mut self.ebpf, phase::MAIN)?
            .fd()
            .map_err(loader::unusable)?;
        self.attached.push(Attached::new(program.as_fd(), leg)?);
        Ok(&self.attached[self.attached.len() - 1])
    }

    /// Legs the program is attached to, with mode and reason.
    pub fn attached(&self) -> &[Attached] {
        &self.attached
    }

    /// Detaches from one interface at once, also if another process holds the link. An interface that is not attached,
    /// or is gone, is no error: this is also how a link to a deleted interface is forgotten (B130).
    ///
    /// # Errors
    /// [`Error::Detach`].
    pub fn detach(&mut self, ifindex: u32) -> Result<()> {
        match self.attached.iter().position(|a| a.ifindex == ifindex) {
            Some(at) => self.attached.remove(at).detach(),
            None => Ok(()),
        }
    }

    /// Detaches from every leg (clean stop). Goes on after a failure.
    ///
    /// # Errors
    /// [`Error::Detach`], or [`Error::Several`].
    pub fn detach_all(&mut self) -> Result<()> {
        Error::gather(self.attached.drain(..).filter_map(|a| a.detach().err()).collect())
    }

    /// Second descriptors of all links, and of the program array, for the HA process: while it holds them the dataplane
    /// outlives this process. The kernel empties a program array when the last descriptor of it is closed, attached
    /// programs or not: without it established flows would go on, and everything else would end with this process.
    ///
    /// Fetch them anew after each [`Dataplane::attach`]; order means nothing.
    ///
    /// # Errors
    /// [`Error::Descriptor`].
    pub fn keepalive_fds(&self) -> Result<Vec<OwnedFd>> {
        let phases = sys::duplicate(self.maps.phases.fd()).map_err(|source| Error::Descriptor { source });
        self.attached
            .iter()
            .map(Attached::link_fd)
            .chain([phases])
            .collect()
    }

    /// A descriptor of the map `LEASE`, for [`LeaseCell::map`] in the HA process.
    ///
    /// # Errors
    /// [`Error::Descriptor`].
    pub fn lease_fd(&self) -> Result<OwnedFd> {
        sys::duplicate(self.maps.lease.fd()).map_err(|source| Error::Descriptor { source })
    }

    /// The lease cell of a group in this process.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn lease_cell(&self, group: GroupId) -> Result<LeaseCell> {
        LeaseCell::map(self.maps.lease.fd(), group)
    }

    /// Puts the egress gate on an interface: ARP and packets of an owned sender leave only under a valid lease. Journal
    /// the record; [`egress_gate::remove`] takes it away again, also from another process. A filter that an earlier
    /// process left is replaced; the record of that process stays the one that knows whether the qdisc was ours.
    ///
    /// # Errors
    /// [`Error::EgressGate`], [`Error::MissingProgram`].
    pub fn add_egress_gate(&mut self, ifindex: u32, name: &str) -> Result<GateRecord> {
        let program: &mut SchedClassifier = match self.ebpf.program_mut(phase::EGRESS) {
            Some(Program::SchedClassifier(program)) => program,
            _ => {
                return Err(Error::MissingProgram {
                    program: phase::EGRESS,
                });
            }
        };
        egress_gate::add(program, ifindex, name)
    }

    /// Whether stray frames are relayed to the peer (it is known to be the Active) or dropped.
    pub fn set_relay_to_peer(&mut self, relay: bool) {
        self.node.relay_to_peer = u32::from(relay);
        self.write_node();
    }

    /// The epoch of this node's ownership: flows made from now on carry it, and source ports are searched from another
    /// place. The lower 16 bits of the number count.
    pub fn set_epoch(&mut self, epoch: u64) {
        let node = self.node.incarnation_base >> 56 << 56;
        self.node.incarnation_base = node | (epoch & 0xffff) << 40;
        // 2^64 / golden ratio: successive epochs start far apart in any range of ports.
        self.node.snat_shift = epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.write_node();
    }

    fn write_node(&mut self) {
        self.maps.node.write(0, &self.node);
    }

    /// The flow table, for listing and expiry from any thread.
    pub fn flows(&self) -> Arc<FlowTable> {
        Arc::clone(&self.flows)
    }

    /// What does for the programs what they cannot do themselves, for a thread of its own.
    ///
    /// # Errors
    /// [`Error::Kernel`] without a packet socket (`CAP_NET_RAW`, `CAP_NET_ADMIN`), [`Error::Descriptor`].
    pub fn helper(&mut self) -> Result<Helper> {
        let program = loader::xdp(&mut self.ebpf, phase::MAIN)?
            .fd()
            .map_err(loader::unusable)?;
        let program = sys::duplicate(program).map_err(|source| Error::Descriptor { source })?;
        Helper::new(program, Arc::clone(&self.ports))
    }

    /// The consumer of the programs' events; there is one, `None` after the first call.
    pub fn take_events(&mut self) -> Option<Events> {
        self.maps.events.take().map(Events::new)
    }

    /// The consumer of what the programs say of flows; there is one, `None` after the first call.
    pub fn take_tells(&mut self) -> Option<TellRing> {
        let maps = self.maps.tells.take()?;
        Some(TellRing::new(maps, self.flows()))
    }
}

#[cfg(test)]
mod tests {
    use super::Dataplane;
    use crate::{EventStream, Events, Expiry, FlowTable, Helper, LeaseCell, sync::TellRing};

    #[test]
    fn what_other_threads_need_can_be_given_to_them() {
        fn movable<T: Send + 'static>() {}
        fn shared<T: Send + Sync + 'static>() {}
        movable::<Dataplane>();
        movable::<Events>();
        movable::<EventStream>();
        movable::<Expiry>();
        movable::<Helper>();
        movable::<TellRing>();
        shared::<LeaseCell>();
        shared::<FlowTable>();
    }
}
