//! The main process's loop: inputs of all kinds in, the dataplane and the kernel brought to what they ask for.
//!
//! One pass, [`Node::settle`], compares what is wanted with what was done last and does the difference: guards first, then
//! programs, then tables, then next hops. Every input only says that something may have changed; a pass that failed
//! half-way is made again after [`RETRY`], so no failure needs a way of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onearm_dataplane::{Dataplane, LegSpec, NextHops, ServerChange, Tables};
use onearm_netcfg::{Desired, Netcfg, Picture};
use tokio::sync::watch;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

use crate::config::{Leg, Loaded, ServerConfig, ServiceConfig};
use crate::control::{NodeState, Severity};
use crate::health::{Health, ServerKey, Target};

use super::board::Board;
use super::gates::Gates;
use super::guests::Guests;
use super::legs::{Legs, lock};
use super::owned::{self, Split};
use super::plan::{self, LegUse};
use crate::stream::owned::OwnedSet;

/// A pass that left something undone is made again after this.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// Guards are waited for so long before a leg is given up until the next pass.
const GUARDS_LIMIT: Duration = Duration::from_secs(3);

/// What the election says, as far as it concerns the dataplane and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ownership {
    /// This node's role.
    pub(crate) state: NodeState,
    /// Term.
    pub(crate) epoch: u64,
    /// The peer is heard as the Active.
    pub(crate) peer_is_active: bool,
    /// The peer's MAC on the leg of the adverts.
    pub(crate) peer_mac: Option<[u8; 6]>,
}

/// Everything a pass needs, and what the last one did.
pub(crate) struct Node {
    /// Both files.
    pub(crate) loaded: Arc<Loaded>,
    /// For status and events.
    pub(crate) board: Arc<Board>,
    /// Programs and maps.
    pub(crate) dataplane: Arc<Mutex<Dataplane>>,
    /// Journal of egress gates.
    pub(crate) gates: Arc<Mutex<Gates>>,
    /// The kernel.
    pub(crate) netcfg: Netcfg,
    /// Its picture.
    pub(crate) picture: watch::Receiver<Picture>,
    /// The checks.
    pub(crate) health: Health,
    /// The election's word.
    pub(crate) ownership: Ownership,
    /// The peer's MACs as it says, by leg.
    pub(crate) peer_legs: BTreeMap<String, [u8; 6]>,
    /// What the last owner told, as it has changed since; `None` where it is what the file says, or was never told.
    pub(crate) kept: Option<OwnedSet>,
    /// What the file and what is kept make of each other, as of the last pass.
    pub(crate) split: Split,
    /// Legs and their programs.
    pub(crate) legs: Legs,
    /// Hosts that packets needed.
    pub(crate) guests: Guests,
    done: Done,
}

/// What was asked for last, and succeeded.
#[derive(Default)]
struct Done {
    desired: Option<(Desired, u64)>,
    legs: Vec<LegSpec>,
    tables: Option<Tables>,
    next_hops: Option<NextHops>,
    relay: Option<bool>,
    epoch: Option<u64>,
}

/// What a pass achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Programs were attached or went: the HA process must be given the links.
    pub(crate) links_changed: bool,
    /// Something is left to do: make another pass after [`RETRY`].
    pub(crate) again: bool,
}

impl Node {
    /// A node on which nothing was done yet.
    pub(crate) fn new(
        loaded: Arc<Loaded>,
        board: Arc<Board>,
        dataplane: Arc<Mutex<Dataplane>>,
        gates: Arc<Mutex<Gates>>,
        netcfg: Netcfg,
        health: Health,
    ) -> Self {
        let picture = netcfg.picture();
        let ownership = Ownership {
            state: NodeState::Initialize,
            epoch: 0,
            peer_is_active: false,
            peer_mac: None,
        };
        let (legs, guests, done) = (Legs::default(), Guests::default(), Done::default());
        Self {
            loaded,
            board,
            dataplane,
            gates,
            netcfg,
            picture,
            health,
            ownership,
            peer_legs: BTreeMap::new(),
            kept: None,
            split: Split::default(),
            legs,
            guests,
            done,
        }
    }

    /// Whether every leg that carries traffic has its program and tables are in force.
    pub(crate) fn is_ready(&self) -> bool {
        self.legs.all_bound(&self.loaded.node.legs) && self.done.tables.is_some()
    }

    /// Whether the programs know the peer's MAC on every leg: else nothing can be passed on to it, nor be known to come from it.
    pub(crate) fn knows_peer_legs(&self) -> bool {
        let known = |id| {
            let mut legs = self.done.legs.iter();
            legs.any(|leg| leg.id == id && leg.peer_mac.is_some())
        };
        let legs = self.loaded.node.legs.iter().enumerate();
        let mut serving = legs.filter(|(_, leg)| leg.role.carries_traffic());
        serving.all(|(index, _)| known(plan::leg_id(index)))
    }

    /// One pass.
    pub(crate) async fn settle(&mut self) -> Settled {
        let picture = self.picture.borrow_and_update().clone();
        let mut settled = Settled::default();
        let Loaded { node, pair, .. } = &*self.loaded;
        self.split = owned::split(self.kept.as_ref(), node, pair, &picture);
        let configured = Arc::clone(&self.loaded);
        let released = self
            .legs
            .release(&configured.node.legs, &picture, &self.dataplane)
            .await;
        settled.links_changed |= released.links;

        self.want(&picture);
        settled.again |= !self.bind_legs(&picture, &mut settled.links_changed).await;
        if settled.links_changed {
            // Offloads depend on how the programs could be attached.
            self.want(&picture);
        }
        // With thousands of services each of the two halves takes a while: the heartbeat comes first.
        yield_now().await;

        if let Err(error) = self.mirror(&picture).await {
            settled.again = true;
            self.board.warn(
                "dataplane",
                vec![format!("the dataplane could not be brought up to date: {error}")],
            );
        } else {
            self.board.warn("dataplane", Vec::new());
        }
        self.report(&picture);
        settled
    }

    fn want(&mut self, picture: &Picture) {
        let legs = &self.legs;
        let uses = |leg: &Leg| LegUse {
            generic: legs.bound(leg).is_some_and(|b| b.generic),
        };
        let refuse_own = self.ownership.state == NodeState::Active;
        let mut desired = plan::desired(&self.loaded.node, &self.loaded.pair, picture, uses, refuse_own);
        self.split.guard(&mut desired.owned);
        for (index, leg) in self.loaded.node.legs.iter().enumerate() {
            let Some((_, wanted)) = desired
                .legs
                .iter_mut()
                .find(|(name, _)| name.as_str() == leg.interface)
            else {
                continue;
            };
            wanted.neighbours.extend(self.guests.of(plan::leg_id(index)));
        }
        if self
            .done
            .desired
            .as_ref()
            .is_none_or(|(done, _)| *done != desired)
        {
            let revision = self.netcfg.want(desired.clone());
            self.done.desired = Some((desired, revision));
        }
    }

    /// Attaches what is not attached, guards first. False if a leg that is there could not be bound.
    async fn bind_legs(&mut self, picture: &Picture, links_changed: &mut bool) -> bool {
        let loaded = Arc::clone(&self.loaded);
        let unbound = self.legs.unbound(&loaded.node.legs, picture);
        if unbound.is_empty() {
            return true;
        }
        let revision = self.done.desired.as_ref().map_or(0, |(_, revision)| *revision);
        let guarded = matches!(
            timeout(GUARDS_LIMIT, self.netcfg.guarded(revision)).await,
            Ok(Ok(_))
        );
        let mut all = true;
        let generic = loaded.node.is_generic() || self.legs.has_generic();
        for (leg, ifindex) in unbound {
            if guarded {
                *links_changed |= self
                    .legs
                    .bind(leg, ifindex, generic, &self.dataplane, &self.gates)
                    .await
                    .links;
            } else {
                self.legs.fault(
                    leg,
                    "the guard rules could not be installed; see the warnings".to_owned(),
                );
            }
            all &= self.legs.bound(leg).is_some_and(|b| b.ifindex == ifindex);
        }
        // Attached anew with the next pass.
        let unfit = self.legs.release_unfit(&loaded.node.legs, &self.dataplane).await;
        *links_changed |= unfit.links;
        all && !unfit.links
    }

    async fn mirror(&mut self, picture: &Picture) -> Result<(), String> {
        let loaded = Arc::clone(&self.loaded);
        let configured = &loaded.node.legs;
        let peer = self.loaded.node.peer.address;
        let election = plan::election_leg(&loaded.node, picture);
        let legs = plan::legs(configured, picture, |leg| {
            let said = self.peer_legs.get(&leg.name).copied();
            if election.is_none_or(|election| election.name != leg.name) {
                return said;
            }
            peer_mac(said, self.ownership, || plan::neighbour_mac(leg, picture, peer))
        });
        if legs != self.done.legs {
            let wanted = legs.clone();
            self.ask(move |d| d.set_legs(&wanted).map(drop)).await?;
            self.done.legs = legs;
        }
        let tables = self.tables(picture);
        if self.done.tables.as_ref() != Some(&tables) {
            let started = super::clock::monotonic_ns();
            let wanted = tables.clone();
            self.ask(move |d| d.apply(&wanted).map(drop)).await?;
            let elapsed_ms = (super::clock::monotonic_ns() - started) / 1_000_000;
            tracing::info!(services = tables.services.len(), elapsed_ms, "tables in force");
            let before = self.done.tables.as_ref();
            let changes = before.map_or_else(Vec::new, |before| plan::turned(before, &tables));
            self.done.tables = Some(tables);
            self.report_health(&changes);
        }
        let next_hops = plan::next_hops(configured, picture);
        if self.done.next_hops.as_ref() != Some(&next_hops) {
            let wanted = next_hops.clone();
            self.ask(move |d| d.set_next_hops(&wanted).map(drop)).await?;
            self.done.next_hops = Some(next_hops);
        }
        let Ownership {
            state,
            epoch,
            peer_is_active,
            ..
        } = self.ownership;
        let relay = state != NodeState::Active && peer_is_active;
        if self.done.relay != Some(relay) || self.done.epoch != Some(epoch) {
            self.ask(move |d| {
                d.set_relay_to_peer(relay);
                d.set_epoch(epoch);
                Ok(())
            })
            .await?;
            self.done.relay = Some(relay);
            self.done.epoch = Some(epoch);
        }
        Ok(())
    }

    fn tables(&self, picture: &Picture) -> Tables {
        let (node, pair) = (&self.loaded.node, &self.loaded.pair);
        let named = pair.named_legs();
        let leg_of = |address| plan::leg_id(plan::leg_of(node, &named, picture, address));
        let is_up = |service: usize, server: usize| {
            let service = &pair.services[service];
            let key = ServerKey::of(service, &service.servers[server]);
            self.health.in_rotation(&key)
        };
        let mut tables = plan::tables(node.id, pair, leg_of, plan::connected(&node.legs, picture), is_up);
        self.split.apply(&mut tables);
        tables
    }

    /// Carries changes of health into the tables in force, each by one store, without a new generation.
    pub(crate) async fn check_health(&mut self) -> Settled {
        let Some(before) = &self.done.tables else {
            return Settled::default();
        };
        let mut after = before.clone();
        // Those whose address is withheld are not in the tables.
        let mut configured = self.loaded.pair.services.iter();
        for spec in &mut after.services {
            let Some(service) = configured.by_ref().find(|service| service.name == spec.name) else {
                break;
            };
            for (server, known) in service.servers.iter().zip(&mut spec.servers) {
                known.up = self.health.in_rotation(&ServerKey::of(service, server));
            }
        }
        let changes = plan::turned(before, &after);
        if changes.is_empty() {
            return Settled::default();
        }
        let wanted = changes.clone();
        match self.ask(move |d| d.change_servers(&wanted)).await {
            Ok(()) => {
                self.done.tables = Some(after);
                self.report_health(&changes);
                Settled::default()
            }
            Err(error) => {
                tracing::warn!(%error, "health could not be carried into the tables");
                Settled {
                    again: true,
                    ..Settled::default()
                }
            }
        }
    }

    /// Tells of servers whose health is in force now.
    fn report_health(&self, changes: &[ServerChange]) {
        for change in changes {
            let service = self
                .loaded
                .pair
                .services
                .iter()
                .find(|s| s.name == change.service);
            let found = service.and_then(|service| {
                let mut servers = service.servers.iter();
                let server = servers.find(|server| plan::server_id(server) == change.server);
                server.map(|server| (service, server))
            });
            if let Some((service, server)) = found {
                self.report_server(service, server, change.up == Some(true));
            }
        }
    }

    fn report_server(&self, service: &ServiceConfig, server: &ServerConfig, up: bool) {
        let detail = self
            .health
            .view(&ServerKey::of(service, server))
            .and_then(|v| v.last_check)
            .map(|c| c.detail)
            .unwrap_or_default();
        let address = server.address;
        let text = format!(
            "server {} ({address}) of service {} is {}: {detail}",
            server.name,
            service.name,
            if up { "up" } else { "down" }
        );
        if up {
            self.board.record(Severity::Info, "server-up", text, "");
        } else {
            let remedy = if Target::of(service, server).tunnel.is_some() {
                "look at the server: it takes packets out of the tunnel (its reverse-path filter there is 0), holds the VIP and listens \
                 on it; new flows go to the others"
            } else {
                "look at the server; new flows go to the others"
            };
            self.board.record(Severity::Warning, "server-down", text, remedy);
        }
        // A server that does not answer may have another MAC now (B67).
        if !up {
            for leg in &self.loaded.node.legs {
                if let Ok(name) = onearm_netcfg::IfName::new(&leg.interface) {
                    self.netcfg.suspect(&name, address);
                }
            }
        }
    }

    /// Puts egress gates back that somebody else took away.
    pub(crate) async fn restore_gates(&self) {
        let legs = &self.loaded.node.legs;
        let restored = self.legs.restore_gates(legs, &self.dataplane, &self.gates).await;
        for (ifname, put) in restored {
            match put {
                Ok(()) => self.board.record(
                    Severity::Warning,
                    "gate-repaired",
                    format!("the egress gate of {ifname} was gone and is put back"),
                    "another program changes what onearm set; find out which",
                ),
                Err(error) => {
                    tracing::warn!(%ifname, %error, "the egress gate is gone and cannot be put back");
                }
            }
        }
    }

    fn report(&self, picture: &Picture) {
        let configured = &self.loaded.node.legs;
        let status = self.legs.status(configured, picture);
        let missing = status.iter().filter(|l| l.mode == "none" && l.role != "peer");
        let warnings = missing.map(|l| format!("leg {}: {}", l.name, l.reason)).collect();
        self.board.warn("legs", warnings);
        self.board
            .warn("addresses", plan::held_by_the_kernel(&self.loaded.pair, picture));
        self.board
            .warn("servers", plan::off_link(configured, &self.loaded.pair, picture));
        self.board.facts().legs = status;
    }

    /// Runs a call into the dataplane in a thread that may block.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Dataplane) -> Result<T, onearm_dataplane::Error> + Send + 'static,
    ) -> Result<T, String> {
        let dataplane = Arc::clone(&self.dataplane);
        match spawn_blocking(move || ask(&mut lock(&dataplane))).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(error.to_string()),
            Err(panic) => Err(panic.to_string()),
        }
    }
}

/// The peer's MAC on the leg of the adverts. What it says of itself is authenticated, and comes first. Without that an Active
/// is known by its adverts; a Standby sends none, and the kernel's neighbour of its address tells.
fn peer_mac(
    said: Option<[u8; 6]>,
    ownership: Ownership,
    neighbour: impl FnOnce() -> Option<[u8; 6]>,
) -> Option<[u8; 6]> {
    let heard = ownership.peer_mac;
    said.or_else(|| {
        if ownership.peer_is_active {
            heard.or_else(neighbour)
        } else {
            neighbour().or(heard)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Ownership, peer_mac};
    use crate::control::NodeState;

    #[test]
    fn what_the_peer_says_of_its_leg_counts_for_more_than_what_anybody_may_have_sent() {
        let (said, heard, neighbour) = ([1; 6], [2; 6], [3; 6]);
        let cases = [
            (Some(said), Some(heard), Some(neighbour), true, Some(said)),
            (Some(said), Some(heard), Some(neighbour), false, Some(said)),
            (Some(said), None, None, false, Some(said)),
            (None, Some(heard), Some(neighbour), true, Some(heard)),
            (None, Some(heard), Some(neighbour), false, Some(neighbour)),
            (None, None, Some(neighbour), true, Some(neighbour)),
            (None, Some(heard), None, false, Some(heard)),
            (None, None, None, true, None),
        ];
        for case in cases {
            let (said, heard, neighbour, peer_is_active, wanted) = case;
            let ownership = Ownership {
                state: NodeState::Standby,
                epoch: 0,
                peer_is_active,
                peer_mac: heard,
            };
            assert_eq!(peer_mac(said, ownership, || neighbour), wanted, "{case:?}");
        }
    }
}
