//! The real maps.

use ipnet::IpNet;
use onearm_dataplane_common::maps::{
    LastHop, Leg, LegKey, Limits, MAX_LAST_HOPS, MAX_SERVICES, MAX_SNAT_POOLS, NeighbourKey, Route, Server,
    Service, SnatPool, Tunnel,
};

use super::Sink;
use crate::error::{Error, Result};
use crate::kernel_maps::KernelMaps;
use crate::next_hops::{self, LastHopSink, last_hop};
use crate::sched_space::{ENTRIES_PER_WORD, Region};
use crate::sys;
use crate::tables::Entry;
use crate::tables::bits;

/// Value of the maps that only say whether a key is there.
const MEMBER: u32 = 1;

/// Writes into the kernel's maps.
pub(crate) struct MapSink<'a>(pub(crate) &'a mut KernelMaps);

impl Sink for MapSink<'_> {
    fn insert(&mut self, entry: &Entry) -> Result<()> {
        let maps = &mut *self.0;
        match *entry {
            Entry::Owned(key, value) => maps.owned.insert(&key, &value),
            Entry::SnatRange(key, value) => maps.snat_ranges.insert(&key, &value),
            Entry::Port(bits, key, service) => maps.services.insert(bits, key, &service),
            Entry::Connected(bits, key, id) => maps.connected.insert(bits, key, &id),
            Entry::ServerNetwork(bits, key, gateway) => maps.server_nets.insert(bits, key, &gateway),
            Entry::Direct(bits, key) => maps.direct.insert(bits, key, &MEMBER),
            Entry::Hairpin(bits, key) => maps.hairpin.insert(bits, key, &MEMBER),
            Entry::Client(bits, key, rule) => maps.clients.insert(bits, key, &rule),
            Entry::ModeRule(bits, key, mode) => maps.mode_rules.insert(bits, key, &mode),
            Entry::Endpoint(key) => maps.endpoints.insert(&key, &MEMBER),
        }
    }

    fn remove(&mut self, entry: &Entry) -> Result<()> {
        let maps = &mut *self.0;
        match *entry {
            Entry::Owned(key, _) => maps.owned.remove(&key),
            Entry::SnatRange(key, _) => maps.snat_ranges.remove(&key),
            Entry::Port(bits, key, _) => maps.services.remove(bits, key),
            Entry::Connected(bits, key, _) => maps.connected.remove(bits, key),
            Entry::ServerNetwork(bits, key, _) => maps.server_nets.remove(bits, key),
            Entry::Direct(bits, key) => maps.direct.remove(bits, key),
            Entry::Hairpin(bits, key) => maps.hairpin.remove(bits, key),
            Entry::Client(bits, key, _) => maps.clients.remove(bits, key),
            Entry::ModeRule(bits, key, _) => maps.mode_rules.remove(bits, key),
            Entry::Endpoint(key) => maps.endpoints.remove(&key),
        }
    }

    fn set_service(&mut self, slot: u32, index: u32, service: &Service) -> Result<()> {
        self.0.service.write(slot * MAX_SERVICES + index, service);
        Ok(())
    }

    fn set_service_table(&mut self, slot: u32, index: u32, table: u64) {
        self.0.service.store(slot * MAX_SERVICES + index, 0, table);
    }

    fn set_limits(&mut self, slot: u32, index: u32, limits: &Limits) -> Result<()> {
        self.0.limits.set(slot * MAX_SERVICES + index, limits)
    }

    fn set_tunnel(&mut self, slot: u32, index: u32, tunnel: &Tunnel) -> Result<()> {
        self.0.tunnels.set(slot * MAX_SERVICES + index, tunnel)
    }

    fn set_pool(&mut self, slot: u32, index: u32, pool: SnatPool) -> Result<()> {
        self.0.snat_pools.set(slot * MAX_SNAT_POOLS + index, &pool)
    }

    fn write_schedule(&mut self, region: Region, entries: &[u16]) {
        for (word, four) in (region.first_word()..).zip(entries.chunks(ENTRIES_PER_WORD as usize)) {
            let value = four
                .iter()
                .rev()
                .fold(0, |word, index| word << 16 | u64::from(*index));
            self.0.sched.store(word, 0, value);
        }
    }

    fn set_server(&mut self, index: u32, server: &Server) {
        self.0.servers.write(index, server);
    }

    fn switch(&mut self, slot: u32) {
        self.0
            .generation
            .u32(0)
            .store(slot, std::sync::atomic::Ordering::SeqCst);
    }

    fn grace(&mut self) -> Result<()> {
        sys::wait_for_running_programs().map_err(|source| Error::Kernel {
            operation: "waiting for running programs",
            source,
        })
    }
}

impl next_hops::Sink for MapSink<'_> {
    fn next_hop_word(&mut self, index: u32, word: usize, value: u64) {
        self.0.next_hops.store(index, word, value);
    }

    fn set_neighbour(&mut self, key: NeighbourKey, index: u32) -> Result<()> {
        self.0.neighbours.insert(&key, &index)
    }

    fn remove_neighbour(&mut self, key: NeighbourKey) -> Result<()> {
        self.0.neighbours.remove(&key)
    }

    fn set_route(&mut self, prefix: IpNet, route: Route) -> Result<()> {
        let (bits, addr) = bits(prefix);
        self.0.routes.insert(bits, addr, &route)
    }

    fn remove_route(&mut self, prefix: IpNet) -> Result<()> {
        let (bits, addr) = bits(prefix);
        self.0.routes.remove(bits, addr)
    }

    fn set_leg(&mut self, key: LegKey, leg: Leg) -> Result<()> {
        self.0.legs.set(key, &leg)
    }

    fn remove_leg(&mut self, key: LegKey) -> Result<()> {
        self.0.legs.remove(key);
        Ok(())
    }

    fn set_port(&mut self, leg: u8, ifindex: u32) -> Result<()> {
        self.0.ports.set(u32::from(leg), ifindex)
    }

    fn remove_port(&mut self, leg: u8) -> Result<()> {
        self.0.ports.remove(u32::from(leg))
    }

    fn repair_last_hops(&mut self, repaired: &dyn Fn(LastHop) -> LastHop) -> Result<usize> {
        let mut changed = 0;
        for index in 0..MAX_LAST_HOPS {
            let old = self.last_hop(index);
            let new = repaired(old);
            if new != old && old != LastHop::default() {
                // Nobody may be given the index for what it no longer is.
                self.remove_last_hop(old)?;
                self.set_last_hop(index, new);
                changed += 1;
            }
        }
        Ok(changed)
    }
}

impl LastHopSink for MapSink<'_> {
    fn last_hop(&self, index: u32) -> LastHop {
        last_hop(&self.0.last_hops, index)
    }

    fn set_last_hop(&mut self, index: u32, hop: LastHop) {
        self.0.last_hops.write(index, &hop);
    }

    fn last_hop_indexes(&self) -> Result<Vec<(LastHop, u32)>> {
        self.0.last_hop_index.entries()
    }

    fn insert_last_hop(&mut self, hop: LastHop, index: u32) -> Result<()> {
        self.0.last_hop_index.insert(&hop, &index)
    }

    fn remove_last_hop(&mut self, hop: LastHop) -> Result<()> {
        self.0.last_hop_index.remove(&hop)
    }

    fn offer_last_hop(&mut self, index: u32) -> Result<()> {
        self.0.last_hop_free.push(&index)
    }
}
