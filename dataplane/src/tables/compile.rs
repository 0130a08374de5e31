//! From plain tables to map entries: pure, with a registry of what must stay stable over generations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use onearm_dataplane_common::maps::{self, Server};
use onearm_dataplane_common::persistence::Rule;

use super::address::wide;
use super::check::{self, Result};
use super::image::{Image, endpoints, entries_of, prefixes};
use super::{
    OnServerDown, Persistence, Scheduler, ServerChange, ServerId, ServerSpec, ServiceSpec, Tables,
    TablesError,
};
use crate::identity::{Identities, IndexSet};
use crate::next_hops::HopKey;
use crate::sched_space::{Region, SchedSpace};
use crate::schedule::{Candidate, maglev, wrr};

/// Index of the next hop that never resolves: a server there has no index of its own.
const FIRST_SERVER: u32 = 1;

/// What stays the same from one generation to the next. Cloned for a compilation and replaced when that is in force.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    /// Key of Maglev's permutations, the pair's.
    key: [u64; 2],
    services: BTreeMap<String, ServiceState>,
    service_ids: Identities<String>,
    server_ids: Identities<(u32, ServerId)>,
    /// Ids of connected prefixes, from 1; kept for ever.
    nets: BTreeMap<IpNet, u16>,
    /// Connected prefixes of the generation in force.
    pub(super) connected: BTreeMap<IpNet, u16>,
    space: SchedSpace,
    /// Regions replaced by a change of health or weight, free after the next grace period.
    limbo: Vec<Region>,
}

/// A service in force.
#[derive(Clone, Debug)]
pub(crate) struct ServiceState {
    /// Index into `SERVICE`, `SERVICE_STATS` and `WRR`.
    pub(crate) index: u32,
    /// As configured, with weights and health as changed since.
    pub(crate) spec: ServiceSpec,
    /// Indexes into `SERVERS`, in the order of the configuration.
    pub(crate) servers: Vec<u32>,
    /// Of each server: it went down while the pair knew it, and has not come back.
    fallen: Vec<bool>,
    pub(super) table: Region,
}

impl ServiceState {
    /// Which clients are one, and how long they stay.
    pub(crate) fn rule(&self) -> Rule {
        let Persistence { time, prefix } = self.spec.persistence;
        let bits = if self.spec.vip.is_ipv4() { 32 } else { 128 };
        if self.spec.scheduler != Scheduler::SourceHash {
            return Rule::default();
        }
        let ticks = time.and_then(check::ticks).unwrap_or(0);
        Rule::new(ticks, prefix.map_or(0, |prefix| u8::saturating_sub(bits, prefix)))
    }

    /// Flags of the server at a position.
    fn flags(&self, at: usize) -> u32 {
        let server = &self.spec.servers[at];
        let others = self.spec.servers.iter().any(|s| s.up && s.weight > 0);
        let resets = self.fallen[at] && others && self.spec.on_server_down == OnServerDown::Reset;
        let bit = |set, bit| if set { bit } else { 0 };
        maps::server::USED
            | bit(server.up, maps::server::UP)
            | bit(resets, maps::server::RESETS)
            | u32::from(server.weight) << maps::server::WEIGHT_SHIFT
    }
}

/// A generation ready to be written.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) registry: Registry,
    pub(crate) hops: Identities<HopKey>,
    pub(crate) image: Image,
    /// (server index, value): everything configured, written before the switch if new and after it if changed.
    pub(crate) servers: Vec<(u32, Server)>,
    /// Servers of the generation before that are no longer configured.
    pub(crate) gone: Vec<u32>,
    /// Tables of the generation before, free after the grace period.
    pub(crate) unused: Vec<Region>,
}

/// What a change of servers asks to be written: new table first, then the word of the service, then the flags.
#[derive(Debug, Default)]
pub(crate) struct Rescheduled {
    pub(crate) schedules: Vec<(Region, Vec<u16>)>,
    /// (service index, value of `Service::table`).
    pub(crate) tables: Vec<(u32, u64)>,
    /// (server index, flags).
    pub(crate) servers: Vec<(u32, u32)>,
}

/// Builds everything one generation needs in `slot`.
///
/// # Errors
/// Whatever is wrong with the tables, or that they do not fit.
pub(crate) fn compile(
    registry: &Registry,
    hops: &Identities<HopKey>,
    tables: &Tables,
    slot: u8,
    most_endpoints: u32,
) -> Result<Compiled> {
    check::tables(tables)?;
    let mut new = registry.clone();
    let mut hops = hops.clone();
    let mut image = Image::default();
    new.connect(&tables.connected)?;
    prefixes(&new, tables, slot, &mut image);

    let names: BTreeSet<&str> = tables.services.iter().map(|s| s.name.as_str()).collect();
    new.service_ids.retain(|name| names.contains(name.as_str()));
    let mut states = BTreeMap::new();
    let mut wanted = BTreeSet::new();
    for spec in &tables.services {
        let retired = new.service_ids.retired();
        let index = new.service_ids.take(&spec.name).ok_or(TablesError::NoIndex {
            what: "service",
            retired,
        })?;
        wanted.extend(spec.servers.iter().map(|s| (index, s.id)));
        states.insert(spec.name.clone(), (index, spec));
    }
    let gone = new.server_ids.retain(|id| wanted.contains(id));
    let addresses: BTreeSet<IpAddr> = wanted.iter().map(|(_, id)| id.addr).collect();
    hops.retain(|key| !matches!(key, HopKey::Server(addr) if !addresses.contains(addr)));

    let mut servers = Vec::new();
    let mut services = BTreeMap::new();
    for (name, (index, spec)) in states {
        let state = new.service(index, spec, registry.services.get(&name), &mut image)?;
        for (position, (server, at)) in spec.servers.iter().zip(&state.servers).enumerate() {
            let retired = hops.retired();
            let hop = hops
                .take(&HopKey::Server(server.id.addr))
                .ok_or(TablesError::NoIndex {
                    what: "next hop",
                    retired,
                })?;
            servers.push((*at, new.server(server, hop, state.flags(position))));
        }
        entries_of(&state, slot, &mut image);
        services.insert(name, state);
    }
    let kept: BTreeSet<u64> = services.values().map(|s| s.table.table()).collect();
    let unused = (registry.services.values().map(|s| s.table))
        .filter(|table| !kept.contains(&table.table()))
        .collect();
    new.services = services;
    endpoints(tables, slot, most_endpoints, &mut image)?;
    Ok(Compiled {
        registry: new,
        hops,
        image,
        servers,
        gone,
        unused,
    })
}

impl Registry {
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self {
            key,
            services: BTreeMap::new(),
            service_ids: Identities::new(0, maps::MAX_SERVICES),
            server_ids: Identities::new(FIRST_SERVER, maps::SERVER_INDEXES),
            nets: BTreeMap::new(),
            connected: BTreeMap::new(),
            space: SchedSpace::new(maps::SCHED_WORDS),
            limbo: Vec::new(),
        }
    }

    /// Services in force by name.
    pub(crate) fn services(&self) -> &BTreeMap<String, ServiceState> {
        &self.services
    }

    /// Name of the service whose flows carry this stats index, if it is configured.
    pub(crate) fn service_named(&self, index: u32) -> Option<&str> {
        self.services
            .values()
            .find(|s| s.index == index)
            .map(|s| s.spec.name.as_str())
    }

    /// Takes over ids for connected prefixes.
    fn connect(&mut self, prefixes: &[IpNet]) -> Result<()> {
        self.connected.clear();
        for prefix in prefixes {
            let prefix = prefix.trunc();
            let next = u16::try_from(self.nets.len() + 1).ok();
            let id = match (self.nets.get(&prefix), next) {
                (Some(id), _) => *id,
                (None, Some(id)) => id,
                (None, None) => {
                    return Err(TablesError::TooMany {
                        what: "connected prefixes since start",
                        count: self.nets.len() + 1,
                        max: usize::from(u16::MAX),
                    });
                }
            };
            self.nets.insert(prefix, id);
            self.connected.insert(prefix, id);
        }
        Ok(())
    }

    /// Id of the longest connected prefix an address is in; 0 = none.
    fn net(&self, addr: IpAddr) -> u16 {
        let of = self.connected.iter().filter(|(prefix, _)| prefix.contains(&addr));
        of.max_by_key(|(prefix, _)| prefix.prefix_len())
            .map_or(0, |(_, id)| *id)
    }

    fn server(&self, spec: &ServerSpec, next_hop: u32, flags: u32) -> Server {
        Server {
            addr: wide(spec.id.addr),
            port: spec.id.port.to_be(),
            net: self.net(spec.id.addr),
            next_hop,
            flags,
            _pad: 0,
        }
    }

    /// Indexes and scheduler table of one service; the table of before is kept if it would be the same.
    fn service(
        &mut self,
        index: u32,
        spec: &ServiceSpec,
        before: Option<&ServiceState>,
        image: &mut Image,
    ) -> Result<ServiceState> {
        let mut servers = Vec::with_capacity(spec.servers.len());
        for server in &spec.servers {
            let retired = self.server_ids.retired();
            servers.push(
                self.server_ids
                    .take(&(index, server.id))
                    .ok_or(TablesError::NoIndex {
                        what: "server",
                        retired,
                    })?,
            );
        }
        let same = |b: &&ServiceState| {
            b.index == index
                && b.servers == servers
                && b.spec.servers == spec.servers
                && b.spec.scheduler == spec.scheduler
        };
        let table = match before.filter(same) {
            Some(before) => before.table,
            None => self.schedule(spec, &servers, &mut image.schedules)?,
        };
        let fallen = |server: &ServerSpec| {
            let before = before.filter(|b| b.index == index)?;
            let at = before.spec.servers.iter().position(|s| s.id == server.id)?;
            Some(!server.up && (before.fallen[at] || before.spec.servers[at].up))
        };
        Ok(ServiceState {
            index,
            fallen: spec
                .servers
                .iter()
                .map(|server| fallen(server).unwrap_or(false))
                .collect(),
            spec: spec.clone(),
            servers,
            table,
        })
    }

    /// A region with the service's scheduler table.
    fn schedule(
        &mut self,
        spec: &ServiceSpec,
        servers: &[u32],
        schedules: &mut Vec<(Region, Vec<u16>)>,
    ) -> Result<Region> {
        let positions = positions(self.key, spec);
        let entries: Vec<u16> = positions
            .iter()
            .filter_map(|at| u16::try_from(servers[usize::from(*at)]).ok())
            .collect();
        let space = u32::try_from(entries.len())
            .ok()
            .and_then(|len| self.space.take(len));
        let region = space.ok_or_else(|| TablesError::NoScheduleSpace {
            service: spec.name.clone(),
            entries: entries.len(),
        })?;
        if !entries.is_empty() {
            schedules.push((region, entries));
        }
        Ok(region)
    }

    /// Applies changes of weight and health, building each service's table once.
    ///
    /// # Errors
    /// [`TablesError::UnknownServer`], [`TablesError::NoScheduleSpace`]; use a clone, it may be half changed then.
    pub(crate) fn change(&mut self, changes: &[ServerChange]) -> Result<Rescheduled> {
        let mut out = Rescheduled::default();
        let mut touched = BTreeSet::new();
        for change in changes {
            let unknown = || TablesError::UnknownServer {
                service: change.service.clone(),
                server: change.server,
            };
            let state = self.services.get_mut(&change.service).ok_or_else(unknown)?;
            let at = state
                .spec
                .servers
                .iter()
                .position(|s| s.id == change.server)
                .ok_or_else(unknown)?;
            let server = &mut state.spec.servers[at];
            let before = *server;
            server.weight = change.weight.unwrap_or(server.weight);
            server.up = change.up.unwrap_or(server.up);
            if server.up != before.up {
                state.fallen[at] = before.up;
            }
            if *server != before {
                touched.insert(change.service.as_str());
            }
        }
        for name in touched {
            let Some(mut state) = self.services.remove(name) else {
                continue;
            };
            let table = self.schedule(&state.spec, &state.servers, &mut out.schedules)?;
            out.tables.push((state.index, table.table()));
            let flags = (0..state.servers.len()).map(|at| (state.servers[at], state.flags(at)));
            out.servers.extend(flags);
            self.limbo.push(std::mem::replace(&mut state.table, table));
            self.services.insert(name.to_owned(), state);
        }
        Ok(out)
    }

    /// Tables replaced and not yet free.
    pub(crate) fn in_limbo(&self) -> usize {
        self.limbo.len()
    }

    /// Frees replaced tables, and those of a swept generation. Only after a grace period.
    pub(crate) fn free_tables(&mut self, unused: Vec<Region>) {
        for region in self.limbo.drain(..).chain(unused) {
            self.space.give_back(region);
        }
    }

    /// Tables of a generation that could not be swept yet.
    pub(crate) fn keep_until_grace(&mut self, unused: Vec<Region>) {
        self.limbo.extend(unused);
    }

    /// Frees indexes of removed services and servers that no flow names; returns them (services, servers).
    pub(crate) fn reclaim(&mut self, services: &IndexSet, servers: &IndexSet) -> (Vec<u32>, Vec<u32>) {
        (
            self.service_ids.reclaim(services),
            self.server_ids.reclaim(servers),
        )
    }

    /// Indexes of removed services and servers that wait for their flows to end.
    pub(crate) fn retired(&self) -> usize {
        self.service_ids.retired() + self.server_ids.retired()
    }
}

fn positions(key: [u64; 2], spec: &ServiceSpec) -> Vec<u8> {
    let candidates: Vec<Candidate> = (spec.servers.iter())
        .map(|s| Candidate {
            addr: s.id.addr,
            port: s.id.port,
            weight: s.weight,
            up: s.up,
        })
        .collect();
    match spec.scheduler {
        Scheduler::Maglev | Scheduler::SourceHash => maglev::table(key, &candidates),
        Scheduler::Wrr | Scheduler::Wlc => wrr::sequence(&candidates),
    }
}
