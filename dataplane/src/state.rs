//! The daemon's calls that bring tables, servers, legs and next hops into the maps.

use std::sync::PoisonError;
use std::time::Instant;

use crate::apply::{self, Applied, MapSink};
use crate::dataplane::Dataplane;
use crate::error::{Error, Result};
use crate::next_hops::{LegSpec, NextHops, NextHopsReport};
use crate::sync::Directory;
use crate::tables::{ServerChange, Tables, TablesError};

/// What a sweep for unused indexes freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Indexes of removed services, servers and next hops that are free again.
    pub freed: usize,
    /// Those that flows still name.
    pub waiting: usize,
}

impl Dataplane {
    /// Brings a generation into force: compiles it, writes it into the slot no program reads, switches by one store,
    /// waits until no program can be using the generation before (10 to 30 ms: one RCU grace period, asked of the kernel
    /// by `membarrier`), and sweeps that. On an error the generation before is in force, whole, and what was written is
    /// removed before the slot is used next.
    ///
    /// # Errors
    /// [`Error::Tables`] if the tables contradict themselves or do not fit; [`Error::MapAccess`] from the kernel.
    pub fn apply(&mut self, tables: &Tables) -> Result<Applied> {
        match self.try_apply(tables) {
            Err(Error::Tables(TablesError::NoIndex { .. })) if self.reclaim()?.freed > 0 => {
                self.try_apply(tables)
            }
            other => other,
        }
    }

    fn try_apply(&mut self, tables: &Tables) -> Result<Applied> {
        let most_endpoints = self.maps.most_endpoints;
        let mut sink = MapSink(&mut self.maps);
        self.flows.note_clients();
        let applied = apply::apply(
            &mut self.registry,
            &mut self.mirror,
            &mut self.slots,
            &mut sink,
            tables,
            most_endpoints,
        )?;
        for service in self.registry.services().values() {
            self.flows.clients().set_rule(service.index, service.rule());
        }
        self.know();
        Ok(applied)
    }

    /// Tells the flow table what there is for flows of the peer. What is not in force any more is in none that is put into the
    /// table from now on, so that its indexes may be freed once no flow names them.
    fn know(&self) {
        self.flows.know(Directory::of(&self.registry, &self.mirror));
    }

    /// Changes health and weight of servers in the generation in force: each service's scheduler table is built anew
    /// beside the old one and put in place by one store. Give all changes known at one time in one call. Where clients stay with
    /// their servers, those with flows are noted before, which takes one look at the flow table.
    ///
    /// # Errors
    /// [`Error::Tables`] for a server that is not configured or a table that does not fit; nothing is changed then.
    pub fn change_servers(&mut self, changes: &[ServerChange]) -> Result<()> {
        let services = self.registry.services();
        let mut of = changes.iter().filter_map(|change| services.get(&change.service));
        if of.any(|service| service.rule().ticks() > 0) {
            self.flows.note_clients();
        }
        apply::change(
            &mut self.registry,
            &mut self.slots,
            &mut MapSink(&mut self.maps),
            changes,
        )
    }

    /// Tells the programs the legs: all of them, each time one changes. A leg's entry decides which frames are for us;
    /// attaching is separate.
    ///
    /// # Errors
    /// [`Error::MapAccess`]; call again, it goes on where it stopped.
    pub fn set_legs(&mut self, legs: &[LegSpec]) -> Result<NextHopsReport> {
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) =
            legs.iter().map(|leg| (leg.id, leg.ifindex)).collect();
        let report = self.mirror.set_legs(legs, &mut MapSink(&mut self.maps))?;
        self.know();
        Ok(report)
    }

    /// Legs as set last.
    pub fn legs(&self) -> Vec<LegSpec> {
        self.mirror.legs().copied().collect()
    }

    /// Mirrors routes and neighbours: all of them, each time one changes. Only what differs is written, and next hops
    /// that flows use are repaired in place.
    ///
    /// # Errors
    /// [`Error::MapAccess`]; call again, it goes on where it stopped.
    pub fn set_next_hops(&mut self, next_hops: &NextHops) -> Result<NextHopsReport> {
        let report = self.mirror.set(next_hops, &mut MapSink(&mut self.maps))?;
        self.know();
        Ok(report)
    }

    /// Judges the neighbours that packets of clients came from: resolved ones are believed, others only until they should
    /// have been resolved; then their flows go by the route. Lets the programs learn so many more. Once a second.
    ///
    /// # Errors
    /// [`Error::MapAccess`]; call again, it goes on where it stopped.
    pub fn judge_last_hops(&mut self, now: Instant) -> Result<()> {
        if self.mirror.judge_last_hops(now, &mut MapSink(&mut self.maps))? {
            self.know();
        }
        Ok(())
    }

    /// Frees the indexes of removed services, servers and neighbours that no flow names any more: one grace period and a
    /// sweep of the flow table. [`Dataplane::apply`] does it when it runs out; once a minute keeps that from happening.
    ///
    /// # Errors
    /// [`Error::Kernel`] without a grace period, [`Error::MapAccess`] if counters cannot be cleared.
    pub fn reclaim(&mut self) -> Result<Reclaimed> {
        let waiting = self.registry.retired() + self.mirror.ids.retired();
        if waiting == 0 && !self.mirror.last_hops.is_waiting() {
            return Ok(Reclaimed::default());
        }
        let mut sink = MapSink(&mut self.maps);
        self.flows.clients().forget_removed();
        apply::Sink::grace(&mut sink)?;
        let references = self.flows.references();
        let (services, servers) = self.registry.reclaim(&references.services, &references.servers);
        self.slots.forget_servers(&servers, &mut sink);
        let hops = self.mirror.ids.reclaim(&references.next_hops);
        self.mirror.write(&mut sink)?;
        self.mirror.last_hops.reclaim(&references.last_hops, &mut sink)?;
        let freed = services.len() + servers.len() + hops.len();
        for index in services {
            self.maps.service_stats.clear(index)?;
            self.maps.service_refusals.clear(index)?;
        }
        for index in servers {
            self.maps.server_stats.clear(index)?;
        }
        Ok(Reclaimed {
            freed,
            waiting: waiting - freed,
        })
    }
}
