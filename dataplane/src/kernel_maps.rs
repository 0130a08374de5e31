//! The maps of a loaded object, each under its name and with its types.

use std::borrow::{Borrow, BorrowMut};
use std::os::fd::AsFd;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::xdp::XdpMapError;
use aya::maps::{Array, DevMap, HashMap, Map, MapData, MapError, PerCpuArray, Queue, RingBuf};
use aya::{Ebpf, Pod};
use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::{Bucket4, Bucket6};
use onearm_dataplane_common::maps::{
    EndpointKey, LastHop, Limits, NeighbourKey, NextHop, Node, Owned, OwnedKey, Refusals, Route,
    ScopedPrefix, Server, Service, ServiceKey, SnatPool, SnatRange, Stats, Tunnel,
};

use crate::error::{Error, Result};
use crate::flows::Tallies;
use crate::legs::Legs;
use crate::mapping::{Mapping, Words};
use crate::persistence::ClientMaps;
use crate::sync::TellMaps;
use crate::sys;

/// A map with the name it has in errors.
#[derive(Debug)]
pub(crate) struct Named<M> {
    pub(crate) name: &'static str,
    pub(crate) map: M,
}

impl<M> Named<M> {
    fn failed(&self, operation: &'static str) -> impl FnOnce(MapError) -> Error + use<M> {
        let map = self.name;
        move |source| Error::MapAccess {
            map,
            operation,
            source: Box::new(source),
        }
    }
}

/// The kernel's answer to a remove of what is not there.
fn absent_is_fine(result: std::result::Result<(), MapError>) -> std::result::Result<(), MapError> {
    match result {
        Err(MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(MapError::KeyNotFound) => Ok(()),
        other => other,
    }
}

impl<T: BorrowMut<MapData>, K: Pod, V: Pod> Named<HashMap<T, K, V>> {
    pub(crate) fn insert(&mut self, key: &K, value: &V) -> Result<()> {
        let failed = self.failed("insert");
        self.map.insert(key, value, 0).map_err(failed)
    }

    /// Removes a key; one that is not there is no error.
    pub(crate) fn remove(&mut self, key: &K) -> Result<()> {
        let failed = self.failed("remove");
        absent_is_fine(self.map.remove(key)).map_err(failed)
    }
}

impl<T: Borrow<MapData>, K: Pod, V: Pod> Named<HashMap<T, K, V>> {
    /// What is in it; programs may insert meanwhile.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>> {
        let entries: std::result::Result<_, _> = self.map.iter().collect();
        entries.map_err(self.failed("read"))
    }
}

impl<T: BorrowMut<MapData>, V: Pod> Named<Queue<T, V>> {
    pub(crate) fn push(&mut self, value: &V) -> Result<()> {
        let failed = self.failed("write");
        self.map.push(value, 0).map_err(failed)
    }
}

impl<T: BorrowMut<MapData>, K: Pod, V: Pod> Named<LpmTrie<T, K, V>> {
    pub(crate) fn insert(&mut self, bits: u32, key: K, value: &V) -> Result<()> {
        let failed = self.failed("insert");
        self.map.insert(&Key::new(bits, key), value, 0).map_err(failed)
    }

    /// Removes a prefix; one that is not there is no error.
    pub(crate) fn remove(&mut self, bits: u32, key: K) -> Result<()> {
        let failed = self.failed("remove");
        absent_is_fine(self.map.remove(&Key::new(bits, key))).map_err(failed)
    }
}

impl<T: BorrowMut<MapData>, V: Pod> Named<Array<T, V>> {
    pub(crate) fn set(&mut self, index: u32, value: &V) -> Result<()> {
        let failed = self.failed("write");
        self.map.set(index, value, 0).map_err(failed)
    }
}

impl<T: Borrow<MapData>, V: Pod> Named<PerCpuArray<T, V>> {
    /// The value of every CPU.
    pub(crate) fn values(&self, index: u32) -> Result<Box<[V]>> {
        let failed = self.failed("read");
        Ok(self.map.get(&index, 0).map_err(failed)?.iter().copied().collect())
    }
}

impl<T: BorrowMut<MapData>, V: Pod + Default> Named<PerCpuArray<T, V>> {
    /// Zero on every CPU.
    pub(crate) fn clear(&mut self, index: u32) -> Result<()> {
        let failed = self.failed("write");
        let cpus = aya::util::nr_cpus().map_err(|(_, e)| Error::Kernel {
            operation: "counting CPUs",
            source: e,
        })?;
        let zero =
            aya::maps::PerCpuValues::try_from(vec![V::default(); cpus]).map_err(|source| Error::Kernel {
                operation: "counting CPUs",
                source,
            })?;
        self.map.set(index, zero, 0).map_err(failed)
    }
}

impl Named<DevMap<MapData>> {
    pub(crate) fn set(&mut self, index: u32, ifindex: u32) -> Result<()> {
        let failed = self.failed("write");
        self.map
            .set(index, ifindex, None, 0)
            .map_err(|error| match error {
                XdpMapError::MapError(error) => failed(error),
                XdpMapError::ChainedProgramNotSupported => failed(MapError::ProgIdNotSupported),
            })
    }

    pub(crate) fn remove(&mut self, index: u32) -> Result<()> {
        // aya has no remove for devmaps; interface 0 is how the kernel spells it.
        self.set(index, 0)
    }
}

/// Everything user space keeps hold of.
pub(crate) struct KernelMaps {
    pub(crate) node: Words<Node>,
    /// One `u32`: the slot in force.
    pub(crate) generation: Mapping,
    pub(crate) lease: MapData,
    pub(crate) service: Words<Service>,
    pub(crate) sched: Words<u64>,
    pub(crate) servers: Words<Server>,
    pub(crate) next_hops: Words<NextHop>,
    pub(crate) owned: Named<HashMap<MapData, OwnedKey, Owned>>,
    pub(crate) snat_ranges: Named<HashMap<MapData, OwnedKey, SnatRange>>,
    pub(crate) services: Named<LpmTrie<MapData, ServiceKey, u32>>,
    pub(crate) snat_pools: Named<Array<MapData, SnatPool>>,
    pub(crate) limits: Named<Array<MapData, Limits>>,
    pub(crate) clients: Named<LpmTrie<MapData, ScopedPrefix, u32>>,
    pub(crate) service_refusals: Named<PerCpuArray<MapData, Refusals>>,
    pub(crate) connected: Named<LpmTrie<MapData, ScopedPrefix, u32>>,
    pub(crate) server_nets: Named<LpmTrie<MapData, ScopedPrefix, Addr>>,
    pub(crate) direct: Named<LpmTrie<MapData, ScopedPrefix, u32>>,
    pub(crate) hairpin: Named<LpmTrie<MapData, ScopedPrefix, u32>>,
    pub(crate) mode_rules: Named<LpmTrie<MapData, ScopedPrefix, u32>>,
    pub(crate) tunnels: Named<Array<MapData, Tunnel>>,
    pub(crate) endpoints: Named<HashMap<MapData, EndpointKey, u32>>,
    /// Most entries of `endpoints`.
    pub(crate) most_endpoints: u32,
    pub(crate) legs: Legs,
    pub(crate) ports: Named<DevMap<MapData>>,
    pub(crate) neighbours: Named<HashMap<MapData, NeighbourKey, u32>>,
    pub(crate) routes: Named<LpmTrie<MapData, Addr, Route>>,
    pub(crate) last_hops: Words<LastHop>,
    pub(crate) last_hop_index: Named<HashMap<MapData, LastHop, u32>>,
    pub(crate) last_hop_free: Named<Queue<MapData, u32>>,
    pub(crate) counters: Named<PerCpuArray<MapData, u64>>,
    pub(crate) service_stats: Named<PerCpuArray<MapData, Stats>>,
    pub(crate) server_stats: Named<PerCpuArray<MapData, Stats>>,
    /// Handed to the process that keeps the dataplane alive.
    pub(crate) phases: MapData,
    /// Taken by the consumer.
    pub(crate) events: Option<RingBuf<MapData>>,
    /// Taken by the consumer.
    pub(crate) tells: Option<TellMaps>,
}

/// The maps of the flow table.
pub(crate) struct FlowMaps {
    pub(crate) buckets: Mapping,
    pub(crate) buckets6: Mapping,
    pub(crate) tallies: Tallies,
    pub(crate) sync: Words<u64>,
    pub(crate) last_hops: Words<LastHop>,
    pub(crate) clients: ClientMaps,
}

impl KernelMaps {
    /// Takes the maps out of a loaded object.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<(Self, FlowMaps)> {
        let endpoints: MapData = data(ebpf, "SERVER_ENDPOINTS")?;
        let most_endpoints = max_entries(&endpoints, "SERVER_ENDPOINTS")?;
        let endpoints = Named {
            name: "SERVER_ENDPOINTS",
            map: HashMap::try_from(Map::HashMap(endpoints)).map_err(unusable("SERVER_ENDPOINTS"))?,
        };
        let servers = data(ebpf, "SERVERS")?;
        let last_hops = data(ebpf, "LAST_HOPS")?;
        let counters: MapData = data(ebpf, "COUNTERS")?;
        let tells = TellMaps {
            ring: named::<RingBuf<MapData>>(ebpf, "FLOW_TELLS")?.map,
            counters: per_cpu(again(&counters, "COUNTERS")?, "COUNTERS")?,
        };
        let maps = Self {
            node: words(ebpf, "NODE")?,
            generation: mapping(ebpf, "GENERATION", 8)?,
            lease: data(ebpf, "LEASE")?,
            service: words(ebpf, "SERVICE")?,
            sched: words(ebpf, "SCHED")?,
            servers: mapped(&servers, "SERVERS")?,
            next_hops: words(ebpf, "NEXT_HOPS")?,
            owned: named(ebpf, "OWNED")?,
            snat_ranges: named(ebpf, "SNAT_RANGES")?,
            services: named(ebpf, "SERVICES")?,
            snat_pools: named(ebpf, "SNAT_POOLS")?,
            limits: named(ebpf, "LIMITS")?,
            clients: named(ebpf, "CLIENTS")?,
            service_refusals: named(ebpf, "SERVICE_REFUSALS")?,
            connected: named(ebpf, "CONNECTED")?,
            server_nets: named(ebpf, "SERVER_NETS")?,
            direct: named(ebpf, "DIRECT")?,
            hairpin: named(ebpf, "HAIRPIN")?,
            mode_rules: named(ebpf, "MODE_RULES")?,
            tunnels: named(ebpf, "TUNNELS")?,
            endpoints,
            most_endpoints,
            legs: Legs(words(ebpf, "LEGS")?),
            ports: named(ebpf, "TX_PORTS")?,
            neighbours: named(ebpf, "NEIGHBOURS")?,
            routes: named(ebpf, "ROUTES")?,
            last_hops: mapped(&last_hops, "LAST_HOPS")?,
            last_hop_index: named(ebpf, "LAST_HOP_INDEX")?,
            last_hop_free: named(ebpf, "LAST_HOP_FREE")?,
            counters: per_cpu(counters, "COUNTERS")?,
            service_stats: named(ebpf, "SERVICE_STATS")?,
            server_stats: named(ebpf, "SERVER_STATS")?,
            phases: data(ebpf, "PHASES")?,
            events: Some(named::<RingBuf<MapData>>(ebpf, "EVENTS")?.map),
            tells: Some(tells),
        };
        let flows = FlowMaps {
            buckets: mapping(ebpf, "FLOWS4", size_of::<Bucket4>())?,
            buckets6: mapping(ebpf, "FLOWS6", size_of::<Bucket6>())?,
            tallies: Tallies {
                half_open: words(ebpf, "HALF_OPEN")?,
                open: words(ebpf, "OPEN")?,
                open_servers: words(ebpf, "OPEN_SERVERS")?,
                sources: words(ebpf, "SOURCES")?,
            },
            sync: words(ebpf, "FLOW_SYNC")?,
            last_hops: mapped(&last_hops, "LAST_HOPS")?,
            clients: ClientMaps {
                rules: words(ebpf, "PERSISTENCE")?,
                buckets: words(ebpf, "CLIENT_SERVERS")?,
                servers: mapped(&servers, "SERVERS")?,
            },
        };
        Ok((maps, flows))
    }
}

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map> {
    ebpf.take_map(name).ok_or(Error::MissingMap { map: name })
}

/// A map taken out with its types, which are checked against the sizes in the object.
fn named<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &'static str) -> Result<Named<M>> {
    let map = M::try_from(take(ebpf, name)?).map_err(unusable(name))?;
    Ok(Named { name, map })
}

fn unusable(map: &'static str) -> impl FnOnce(MapError) -> Error {
    move |source| Error::MapAccess {
        map,
        operation: "use",
        source: Box::new(source),
    }
}

fn data(ebpf: &mut Ebpf, name: &'static str) -> Result<MapData> {
    match take(ebpf, name)? {
        Map::Array(data) | Map::HashMap(data) | Map::PerCpuArray(data) | Map::ProgramArray(data) => Ok(data),
        _ => Err(Error::MissingMap { map: name }),
    }
}

/// A second descriptor of a map.
fn again(data: &MapData, map: &'static str) -> Result<MapData> {
    let fd = sys::duplicate(data.fd()).map_err(|source| Error::Descriptor { source })?;
    MapData::from_fd(fd).map_err(unusable(map))
}

fn per_cpu(data: MapData, name: &'static str) -> Result<Named<PerCpuArray<MapData, u64>>> {
    let map = PerCpuArray::try_from(Map::PerCpuArray(data)).map_err(unusable(name))?;
    Ok(Named { name, map })
}

fn max_entries(data: &MapData, name: &'static str) -> Result<u32> {
    let info = data.info().map_err(|source| Error::MapAccess {
        map: name,
        operation: "inspect",
        source: Box::new(source),
    })?;
    Ok(info.max_entries())
}

/// Maps a whole array of `T`.
fn words<T: Pod>(ebpf: &mut Ebpf, name: &'static str) -> Result<Words<T>> {
    mapped(&data(ebpf, name)?, name)
}

/// The same of a map that is mapped more than once.
fn mapped<T: Pod>(data: &MapData, name: &'static str) -> Result<Words<T>> {
    let len = max_entries(data, name)?;
    Words::new(data.fd().as_fd(), len).map_err(|source| Error::Map { map: name, source })
}

/// Maps a whole array whose values lie `stride` bytes apart.
fn mapping(ebpf: &mut Ebpf, name: &'static str, stride: usize) -> Result<Mapping> {
    let data = data(ebpf, name)?;
    let len = max_entries(&data, name)? as usize * stride;
    Mapping::new(data.fd().as_fd(), len).map_err(|source| Error::Map { map: name, source })
}
