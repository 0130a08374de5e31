//! Answers of the control API, from the board, the dataplane and the health checks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use onearm_dataplane::{
    Counters, Dataplane, FlowFilter, FlowInfo, FlowTable, LeaseCell, Protocol, ServiceTraffic,
    Traffic as Counted, Usage,
};

use onearm_ha::config::Rollout;
use onearm_ha::units::MonoTime;
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{Auth, Loaded, ModeFor, ServerConfig, ServiceConfig};
use crate::control::{
    AuthenticationStatus, ClientsMode, ConfigStatus, ControlBackend, DataplaneStatus, EventList, EventQuery,
    FlowEntry, FlowList, FlowQuery, HaAnswer, HaRequest, HaStatus, LeaseStatus, NodeState, NodeStatus,
    OwnedStatus, PeerStatus, ProbeRequest, ProbeResult, Refusal, RefusalKind, ServerHealth, ServerStatus,
    ServiceStatus, Status, Traffic,
};
use crate::health::{Health, ServerKey, effective_weight};
use crate::stream::view::View;

use super::authentication;
use super::board::{Board, Facts};
use super::clock;
use super::errands::Errands;
use super::node_loop::Order;
use super::{keeper, notices, probe, streaming};

/// The daemon as the control API sees it.
#[derive(Debug)]
pub(crate) struct Backend {
    /// Both files.
    pub(crate) loaded: Arc<Loaded>,
    /// What is known.
    pub(crate) board: Arc<Board>,
    /// The tables and counters; locked in threads that may block.
    pub(crate) dataplane: Arc<Mutex<Dataplane>>,
    /// The flow table.
    pub(crate) flows: Arc<FlowTable>,
    /// The lease.
    pub(crate) lease: LeaseCell,
    /// The checks.
    pub(crate) health: Health,
    /// What the peer does when asked, where there is a stream.
    pub(crate) errands: Option<Arc<Errands>>,
    /// The stream to the peer, where there is one.
    pub(crate) stream: Option<watch::Receiver<View>>,
    /// Flow sync, where there is a stream.
    pub(crate) sync: Option<watch::Receiver<keeper::View>>,
    /// When the daemon started, CLOCK_MONOTONIC ns.
    pub(crate) started_ns: u64,
    /// To the main loop.
    pub(crate) orders: mpsc::Sender<Order>,
}

impl Backend {
    /// Runs `ask` on the dataplane in a thread that may block.
    async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Dataplane) -> Result<T, onearm_dataplane::Error> + Send + 'static,
    ) -> Result<T, Refusal> {
        let dataplane = Arc::clone(&self.dataplane);
        let asked = tokio::task::spawn_blocking(move || {
            ask(&dataplane.lock().unwrap_or_else(PoisonError::into_inner))
        });
        match asked.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Refusal::internal(error.to_string())),
            Err(error) => Err(Refusal::internal(error.to_string())),
        }
    }

    /// How full the tables are.
    pub(crate) async fn usage(&self) -> Result<Usage, Refusal> {
        self.ask(Dataplane::usage).await
    }

    fn lease_status(&self, now_ns: u64, epoch: u64) -> LeaseStatus {
        let deadline_ns = self.lease.read();
        let remaining_ns = i128::from(deadline_ns) - i128::from(now_ns);
        LeaseStatus {
            valid: deadline_ns > now_ns,
            deadline_ns,
            remaining_us: i64::try_from(remaining_ns / 1_000).unwrap_or(i64::MIN),
            epoch,
        }
    }

    fn dataplane_status(&self, facts: &Facts, counters: Counters, map_bytes: u64) -> DataplaneStatus {
        let pair = &self.loaded.pair;
        let (four, six) = pair.flow_room();
        let named = counters.all.into_iter().map(|(name, n)| (name.to_owned(), n));
        let own = [
            ("helper_restarts".to_owned(), facts.helper_restarts),
            ("client_forgotten".to_owned(), self.flows.persistent().evicted),
        ];
        DataplaneStatus {
            flows: facts.flows,
            half_open: self.flows.half_open(),
            max_flows: u64::from(four) + u64::from(six),
            max_half_open: u64::from(pair.limits.half_open),
            map_bytes,
            usage: facts.usage.clone(),
            counters: named.chain(own).collect(),
        }
    }

    fn config_status(&self, peer: Option<&str>) -> ConfigStatus {
        let digest = self.loaded.pair.digest().to_string();
        let differs = peer.is_some_and(|p| p != digest);
        ConfigStatus {
            digest,
            peer_digest: peer.map(str::to_owned),
            differs,
        }
    }
}

impl ControlBackend for Backend {
    async fn status(&self) -> Result<Status, Refusal> {
        let counters = self.ask(|d| Ok((d.counters()?, d.map_bytes()))).await?;
        let (counters, map_bytes) = counters;
        let (node, pair) = (&self.loaded.node, &self.loaded.pair);
        let now_ns = clock::monotonic_ns();
        let ms_since = |at_ns: u64| now_ns.saturating_sub(at_ns) / 1_000_000;
        let facts = self.board.facts();
        let stream = self.stream.as_ref().map(|view| view.borrow().clone());
        let profile = stream.as_ref().and_then(|view| view.profile.as_ref());
        let config = self.config_status(profile.map(|profile| &*profile.digest));
        let stream = streaming::status(stream.as_ref(), node.stream_peer());
        let mut warnings: Vec<String> = facts.warnings.values().flatten().cloned().collect();
        let unsafe_for_now = match (
            pair.ha.auth,
            facts.authentication.as_ref().map(|facts| facts.rollout),
        ) {
            (Auth::None, _) => Some(
                "auth = \"none\": any host on the segment can move the VIPs; one owner holds for honest single faults only",
            ),
            (Auth::Hmac, Some(Rollout::Accept | Rollout::Prefer)) => Some(
                "ha.rollout: messages without authentication count; write \"enforce\" (the default) when both nodes speak with it",
            ),
            (Auth::Hmac, Some(Rollout::Enforce) | None) => None,
        };
        warnings.extend(unsafe_for_now.map(str::to_owned));
        if config.differs {
            let peer = stream.peer_name.as_deref().unwrap_or("the peer");
            warnings.push(format!("{peer} runs another pair.toml: compare the two files, then restart the node whose file is wrong"));
        }
        Ok(Status {
            node: NodeStatus {
                name: node.name.clone(),
                id: node.id,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                uptime_ms: ms_since(self.started_ns),
            },
            state: facts.state,
            since_ms: ms_since(facts.since_ns),
            reason: facts.reason.clone(),
            lease: self.lease_status(now_ns, facts.epoch),
            peer: PeerStatus {
                last_seen_ms: facts.peer_heard_ns.map(ms_since),
                ..facts.peer.clone()
            },
            stream,
            sync: self
                .sync
                .as_ref()
                .map_or_else(keeper::no_sync, |view| view.borrow().status()),
            owned: OwnedStatus {
                orphans_left_ms: facts
                    .orphans_until_ns
                    .map(|until| until.saturating_sub(now_ns) / 1_000_000),
                ..facts.owned.clone()
            },
            legs: facts.legs.clone(),
            config,
            ha: HaStatus {
                vrid: pair.ha.vrid,
                priority: node.priority,
                effective_priority: facts.effective_priority,
                advert_interval_ms: u64::try_from(pair.ha.advert_interval.as_millis()).unwrap_or(u64::MAX),
                auth: pair.ha.auth.as_str().to_owned(),
                authentication: facts.authentication.clone().map(|known| AuthenticationStatus {
                    rollout: authentication::word(known.rollout).to_owned(),
                    keys: known.keys,
                    signing_key: known.signing_key,
                    peer_key: known.peer.map(|peer| peer.newest_key.0),
                    peer_since_ms: known.peer.map(|peer| ms_since(peer.since.as_nanos())),
                    peer_heard_ms: known.peer.map(|peer| ms_since(peer.heard_at.as_nanos())),
                }),
                preempt: pair.ha.preempt,
                stance: facts.stance.to_owned(),
                peer_stance: facts.peer_stance.map(str::to_owned),
                realtime: facts.realtime,
                has: facts
                    .health
                    .map_or_else(Vec::new, |(own, _)| notices::health(own)),
                peer_has: facts.health.and_then(|(_, peer)| peer).map(notices::health),
                tracked: facts
                    .tracking
                    .as_ref()
                    .map_or_else(Vec::new, |tracking| tracking.view(MonoTime::from_nanos(now_ns))),
                counters: facts.ha_counters.clone(),
            },
            dataplane: self.dataplane_status(&facts, counters, map_bytes),
            warnings,
        })
    }

    async fn services(&self) -> Result<Vec<ServiceStatus>, Refusal> {
        let traffic: BTreeMap<String, ServiceTraffic> = self
            .ask(|d| Ok(d.traffic()?.into_iter().map(|t| (t.name.clone(), t)).collect()))
            .await?;
        let services = self.loaded.pair.services.iter();
        Ok(services
            .map(|s| service_status(s, traffic.get(&s.name), &self.health))
            .collect())
    }

    async fn flows(&self, query: FlowQuery) -> Result<FlowList, Refusal> {
        let filter = FlowFilter {
            client: query.client,
            vip: query.vip,
            server: query.server,
            ..FlowFilter::default()
        };
        let (table, limit) = (Arc::clone(&self.flows), query.limit as usize);
        let listed =
            tokio::task::spawn_blocking(move || table.list(&filter, limit, clock::monotonic_ns())).await;
        let listing = listed.map_err(|e| Refusal::internal(e.to_string()))?;
        let services = &self.loaded.pair.services;
        let flows = listing.flows.iter().map(|f| flow_entry(f, services)).collect();
        Ok(FlowList {
            flows,
            matched: listing.matched,
        })
    }

    async fn events(&self, query: EventQuery) -> Result<EventList, Refusal> {
        Ok(self.board.events(query))
    }

    async fn probe(&self, request: ProbeRequest) -> Result<ProbeResult, Refusal> {
        if self.board.facts().state == NodeState::Active {
            let asked = match &self.errands {
                Some(errands) => errands.ask(request).await,
                None => Err("authentication is off: there is no stream to it".to_owned()),
            };
            return asked.map_err(|why| Refusal {
                kind: RefusalKind::Refused,
                message: format!(
                    "this node is the Active, whose own packets to a VIP never leave it, and the Standby made no probe: {why}"
                ),
            });
        }
        Ok(probe::probe(&self.loaded.node.name, request).await)
    }

    async fn ha(&self, request: HaRequest) -> Result<HaAnswer, Refusal> {
        let (answer, answered) = oneshot::channel();
        let gone = || Refusal::internal("onearmd is stopping");
        self.orders
            .send(Order::new(request, answer))
            .await
            .map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn service_status(
    service: &ServiceConfig,
    traffic: Option<&ServiceTraffic>,
    health: &Health,
) -> ServiceStatus {
    ServiceStatus {
        name: service.name.clone(),
        vip: service.vip,
        protocol: service.protocol.as_str().to_owned(),
        ports: service.ports.iter().map(ToString::to_string).collect(),
        mode: service.mode.as_str().to_owned(),
        mode_for: service.mode_for.iter().map(clients_mode).collect(),
        scheduler: service.scheduler.as_str().to_owned(),
        traffic: traffic.map(|t| counted(&t.traffic)).unwrap_or_default(),
        open: traffic.map_or(0, |t| t.open),
        max_connections: service.limits.max_connections,
        refusals: traffic.map(|t| t.refusals).unwrap_or_default(),
        servers: service
            .servers
            .iter()
            .map(|s| server_status(service, s, traffic, health))
            .collect(),
    }
}

fn clients_mode(rule: &ModeFor) -> ClientsMode {
    ClientsMode {
        clients: rule.clients.iter().map(ToString::to_string).collect(),
        mode: rule.mode.as_str().to_owned(),
    }
}

fn server_status(
    service: &ServiceConfig,
    server: &ServerConfig,
    traffic: Option<&ServiceTraffic>,
    health: &Health,
) -> ServerStatus {
    let key = ServerKey::of(service, server);
    let id = super::plan::server_id(server);
    let own = traffic.and_then(|t| t.servers.iter().find(|s| s.id == id));
    let view = health.view(&key);
    let in_rotation = view.as_ref().is_none_or(|v| v.in_rotation);
    ServerStatus {
        name: server.name.clone(),
        address: server.address,
        port: server.port,
        weight: server.weight,
        effective_weight: effective_weight(server.weight, in_rotation),
        health: view.as_ref().map_or(ServerHealth::Unchecked, |v| v.health),
        last_check: view.and_then(|v| v.last_check),
        traffic: own.map(|s| counted(&s.traffic)).unwrap_or_default(),
    }
}

fn counted(traffic: &Counted) -> Traffic {
    Traffic {
        flows: traffic.flows,
        packets_in: traffic.packets_in,
        bytes_in: traffic.bytes_in,
        packets_out: traffic.packets_out,
        bytes_out: traffic.bytes_out,
        refused: traffic.refused,
    }
}

fn flow_entry(flow: &FlowInfo, services: &[ServiceConfig]) -> FlowEntry {
    let protocol = match flow.protocol {
        Some(Protocol::Tcp) => "tcp",
        Some(Protocol::Udp) => "udp",
        None => "icmp",
    };
    let called = |s: &&ServiceConfig| {
        flow.vip.ip() == s.vip
            && s.protocol.as_str() == protocol
            && s.ports
                .iter()
                .any(|p| (p.first()..=p.last()).contains(&flow.vip.port()))
    };
    FlowEntry {
        protocol: protocol.to_owned(),
        client: flow.client,
        vip: flow.vip,
        server: flow.server,
        mode: flow.mode.as_str().to_owned(),
        hairpin: flow.hairpin,
        snat: Some(flow.source).filter(|s: &SocketAddr| *s != flow.client),
        service: services.iter().find(called).map(|s| s.name.clone()),
        state: match flow.state {
            onearm_dataplane::FlowState::HalfOpen => "half-open",
            onearm_dataplane::FlowState::Established => "established",
            onearm_dataplane::FlowState::Closing => "closing",
        }
        .to_owned(),
        idle_ms: flow.idle_ms,
        expires_ms: flow.expires_ms,
    }
}
