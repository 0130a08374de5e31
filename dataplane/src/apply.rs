//! Bringing tables into force: write the slot nobody reads, switch by one store, wait, sweep the other slot.

mod sink;

use std::collections::BTreeMap;

use onearm_dataplane_common::maps::{self, Limits, Server, Service, SnatPool, Tunnel};

use crate::error::{Error, Result};
use crate::next_hops::{self, Mirror};
use crate::sched_space::Region;
use crate::tables::{
    Compiled, Entry, Image, Registry, Rescheduled, ServerChange, Tables, TablesError, compile,
};

pub(crate) use sink::MapSink;

/// Replaced scheduler tables kept before a grace period is waited for to free them.
const MOST_IN_LIMBO: usize = 256;

/// The maps, as far as tables need them.
pub(crate) trait Sink: next_hops::Sink {
    fn insert(&mut self, entry: &Entry) -> Result<()>;
    /// Removes an entry; one that is not there is no error.
    fn remove(&mut self, entry: &Entry) -> Result<()>;
    fn set_service(&mut self, slot: u32, index: u32, service: &Service) -> Result<()>;
    /// One 8-byte store of `Service::table`.
    fn set_service_table(&mut self, slot: u32, index: u32, table: u64);
    fn set_limits(&mut self, slot: u32, index: u32, limits: &Limits) -> Result<()>;
    fn set_tunnel(&mut self, slot: u32, index: u32, tunnel: &Tunnel) -> Result<()>;
    fn set_pool(&mut self, slot: u32, index: u32, pool: SnatPool) -> Result<()>;
    fn write_schedule(&mut self, region: Region, entries: &[u16]);
    fn set_server(&mut self, index: u32, server: &Server);
    /// One store of `GENERATION`.
    fn switch(&mut self, slot: u32);
    /// Returns when every program that was running has ended.
    fn grace(&mut self) -> Result<()>;
}

/// What the two slots hold.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    in_force: u32,
    /// Keyed entries that are, or may be, in each slot.
    entries: [Vec<Entry>; maps::SLOTS as usize],
    /// `SERVERS` as written.
    servers: BTreeMap<u32, Server>,
}

/// What a generation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Slot now in force, 0 or 1.
    pub slot: u32,
    /// Keyed entries of the slot.
    pub entries: usize,
    /// Scheduler tables built; the others were kept.
    pub schedules_built: usize,
    /// Keyed entries of the generation before that could not be swept; tried again before the slot is used next.
    pub left_behind: usize,
}

impl Slots {
    fn idle(&self) -> u32 {
        1 - self.in_force
    }

    /// Removes whatever the idle slot holds; returns how many entries would not go.
    fn sweep_idle(&mut self, sink: &mut impl Sink) -> (usize, Option<Error>) {
        let idle = self.idle() as usize;
        let mut first = None;
        self.entries[idle].retain(|entry| match sink.remove(entry) {
            Ok(()) => false,
            Err(error) => {
                first.get_or_insert(error);
                true
            }
        });
        (self.entries[idle].len(), first)
    }

    /// Forgets servers whose indexes are free again.
    pub(crate) fn forget_servers(&mut self, indexes: &[u32], sink: &mut impl Sink) {
        for index in indexes {
            self.servers.remove(index);
            sink.set_server(*index, &Server::default());
        }
    }
}

/// Compiles and brings into force. On an error the generation before is in force, whole.
pub(crate) fn apply(
    registry: &mut Registry,
    mirror: &mut Mirror,
    slots: &mut Slots,
    sink: &mut impl Sink,
    tables: &Tables,
    most_endpoints: u32,
) -> Result<Applied> {
    free_limbo(registry, sink, 0)?;
    if let (_, Some(error)) = slots.sweep_idle(sink) {
        return Err(error);
    }
    let idle = slots.idle();
    let slot = u8::from(idle != 0);
    let compiled = compile(registry, &mirror.ids, tables, slot, most_endpoints)?;
    let ids_before = std::mem::replace(&mut mirror.ids, compiled.hops.clone());
    if let Err(error) = write(&compiled, mirror, slots, sink) {
        mirror.ids = ids_before;
        if let Err(error) = mirror.write(sink) {
            tracing::warn!(%error, "next hops differ from what is wanted until they are set again");
        }
        return Err(error);
    }
    slots.in_force = idle;
    sink.switch(idle);

    // In force. What follows tidies up and cannot fail the generation.
    let Compiled {
        registry: new,
        image,
        servers,
        gone,
        unused,
        ..
    } = compiled;
    *registry = new;
    for (index, server) in servers {
        if slots.servers.get(&index) != Some(&server) {
            sink.set_server(index, &server);
            slots.servers.insert(index, server);
        }
    }
    for index in gone {
        if let Some(server) = slots.servers.get_mut(&index) {
            server.flags = server.flags & !maps::server::UP | maps::server::MOVES;
            sink.set_server(index, server);
        }
    }
    let left_behind = match sink.grace() {
        Ok(()) => {
            registry.free_tables(unused);
            let (left, error) = slots.sweep_idle(sink);
            if let Some(error) = error {
                tracing::warn!(%error, left, "entries of the generation before were not swept");
            }
            left
        }
        Err(error) => {
            tracing::warn!(%error, "no grace period: the generation before is swept later");
            registry.keep_until_grace(unused);
            slots.entries[slots.idle() as usize].len()
        }
    };
    Ok(Applied {
        slot: idle,
        entries: slots.entries[idle as usize].len(),
        schedules_built: image.schedules.len(),
        left_behind,
    })
}

/// Writes everything the idle slot needs. Each entry is noted before it is written.
fn write(compiled: &Compiled, mirror: &mut Mirror, slots: &mut Slots, sink: &mut impl Sink) -> Result<()> {
    let idle = slots.idle();
    let Image {
        entries,
        services,
        limits,
        tunnels,
        pools,
        schedules,
    } = &compiled.image;
    mirror.write(sink)?;
    for (index, server) in &compiled.servers {
        // A server in force is changed after the switch.
        if slots
            .servers
            .get(index)
            .is_none_or(|old| old.flags & maps::server::USED == 0)
        {
            sink.set_server(*index, server);
        }
    }
    for (region, entries) in schedules {
        sink.write_schedule(*region, entries);
    }
    for (index, pool) in (0..).zip(pools) {
        sink.set_pool(idle, index, *pool)?;
    }
    for (index, limits) in limits {
        sink.set_limits(idle, *index, limits)?;
    }
    for (index, tunnel) in tunnels {
        sink.set_tunnel(idle, *index, tunnel)?;
    }
    for (index, service) in services {
        sink.set_service(idle, *index, service)?;
    }
    for entry in entries {
        slots.entries[idle as usize].push(*entry);
        sink.insert(entry)?;
    }
    Ok(())
}

/// Applies changes of weight and health to the generation in force.
pub(crate) fn change(
    registry: &mut Registry,
    slots: &mut Slots,
    sink: &mut impl Sink,
    changes: &[ServerChange],
) -> Result<()> {
    free_limbo(registry, sink, MOST_IN_LIMBO)?;
    let mut new = registry.clone();
    let rescheduled = match new.change(changes) {
        Err(TablesError::NoScheduleSpace { .. }) if registry.in_limbo() > 0 => {
            free_limbo(registry, sink, 0)?;
            new = registry.clone();
            new.change(changes)?
        }
        other => other?,
    };
    *registry = new;
    let Rescheduled {
        schedules,
        tables,
        servers,
    } = rescheduled;
    for (region, entries) in &schedules {
        sink.write_schedule(*region, entries);
    }
    for (index, table) in tables {
        sink.set_service_table(slots.in_force, index, table);
    }
    for (index, flags) in servers {
        if let Some(server) = slots.servers.get_mut(&index) {
            server.flags = flags;
            sink.set_server(index, server);
        }
    }
    Ok(())
}

/// Frees replaced scheduler tables once there are more than `most` of them.
fn free_limbo(registry: &mut Registry, sink: &mut impl Sink, most: usize) -> Result<()> {
    if registry.in_limbo() > most {
        sink.grace()?;
        registry.free_tables(Vec::new());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
