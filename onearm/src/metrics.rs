//! What `onearm status` and `onearm services` know, as metrics (OpenMetrics text 1.0, which Prometheus reads).
//!
//! Nothing is counted here: a page is made of one [`Status`] and the services, so that a counter which appears there appears here.
//! Labels name things of the configuration or causes of a fixed list, never hosts outside of it.

pub mod http;

use std::collections::BTreeMap;
use std::fmt;

use onearm_dataplane::COUNTERS_ABOUT;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::control::{
    HaStatus, NodeState, ServerHealth, ServiceStatus, Status, StreamState, SyncVerdict, TrackedState, Traffic,
};

/// Media type of a page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A page.
///
/// # Errors
/// None that a text in memory could have.
pub fn page(status: Status, services: Vec<ServiceStatus>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("onearm");
    registry.register_collector(Box::new(Page { status, services }));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Page {
    status: Status,
    services: Vec<ServiceStatus>,
}

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        node(&mut families, &self.status)?;
        ha(&mut families, &self.status.ha)?;
        stream(&mut families, &self.status)?;
        sync(&mut families, &self.status)?;
        dataplane(&mut families, &self.status)?;
        services(&mut families, &self.services)
    }
}

type Labels<'l> = Vec<(&'static str, &'l str)>;

/// Families of metrics, one after the other.
struct Families<'e>(DescriptorEncoder<'e>);

impl Families<'_> {
    fn gauges<'l>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let samples = samples
            .into_iter()
            .map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.family(name, help, MetricType::Gauge, samples)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.gauges(name, help, [(Labels::new(), value)])
    }

    /// The name is without `_total`.
    fn counters<'l>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        let samples = samples
            .into_iter()
            .map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.family(name, help, MetricType::Counter, samples)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.counters(name, help, [(Labels::new(), value)])
    }

    /// One of several words holds: 1 for it, 0 for the others.
    fn one_of(&mut self, name: &str, help: &str, label: &'static str, all: &[&str], is: &str) -> fmt::Result {
        let samples = all.iter().map(|word| (vec![(label, *word)], truth(*word == is)));
        self.gauges(name, help, samples)
    }

    /// Counters by name, each a metric of its own.
    fn named(&mut self, prefix: &str, what: &str, counters: &BTreeMap<String, u64>) -> fmt::Result {
        for (name, value) in counters {
            let help = COUNTERS_ABOUT.iter().find(|(known, _)| known == name);
            let help = help.map_or_else(
                || format!("{what}: {}", name.replace('_', " ")),
                |(_, about)| about.trim().to_owned(),
            );
            self.counter(&format!("{prefix}_{name}"), &help, *value)?;
        }
        Ok(())
    }

    fn family<'l, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl Iterator<Item = (Labels<'l>, M)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, metric) in samples {
            if labels.is_empty() {
                // The one sample there is.
                return metric.encode(family);
            }
            let labels: Vec<_> = labels
                .into_iter()
                .map(|(name, value)| (name, escaped(value)))
                .collect();
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// The encoder writes values of labels as they are.
fn escaped(value: &str) -> String {
    value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

const fn truth(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "what is shown needs no 53 bits")]
const fn number(value: u64) -> f64 {
    value as f64
}

fn seconds(ms: u64) -> f64 {
    number(ms) / 1e3
}

const STATES: [&str; 3] = ["initialize", "standby", "active"];

fn node(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    let node = &status.node;
    let id = node.id.get().to_string();
    families.gauges(
        "build_info",
        "Version of the daemon",
        [(vec![("version", node.version.as_str())], 1.0)],
    )?;
    families.gauges(
        "node_info",
        "Name and id of the node",
        [(vec![("name", node.name.as_str()), ("id", id.as_str())], 1.0)],
    )?;
    families.gauge(
        "uptime_seconds",
        "How long the daemon has been running",
        seconds(node.uptime_ms),
    )?;
    families.one_of(
        "state",
        "Role in the pair",
        "state",
        &STATES,
        status.state.as_str(),
    )?;
    families.gauge(
        "state_seconds",
        "How long the node has been in its state",
        seconds(status.since_ms),
    )?;
    families.gauge(
        "lease_valid",
        "Whether the node may answer, announce and translate",
        truth(status.lease.valid),
    )?;
    families.gauge("epoch", "Term of ownership", number(status.lease.epoch))?;
    let heard = status.peer.last_seen_ms.map(|ms| (Labels::new(), seconds(ms)));
    families.gauges(
        "peer_last_seen_seconds",
        "Age of the peer's last advert; none before the first",
        heard,
    )?;
    let peer = status.peer.state.map_or("unknown", NodeState::as_str);
    let states = [STATES[0], STATES[1], STATES[2], "unknown"];
    families.one_of(
        "peer_state",
        "Role of the peer as its adverts imply",
        "state",
        &states,
        peer,
    )?;
    families.gauge(
        "config_differs",
        "Whether the nodes run different pair.toml files",
        truth(status.config.differs),
    )?;
    families.gauge(
        "warnings",
        "What an operator should know or do, as onearm status says it",
        number(status.warnings.len() as u64),
    )?;
    let legs = || status.legs.iter();
    families.gauges(
        "leg_carrier",
        "Link present",
        legs().map(|leg| (vec![("leg", leg.name.as_str())], truth(leg.carrier))),
    )?;
    families.gauges(
        "leg_attached",
        "Whether the program is attached, and how",
        legs().map(|leg| {
            let labels = vec![("leg", leg.name.as_str()), ("mode", leg.mode.as_str())];
            (labels, truth(leg.mode != "none"))
        }),
    )
}

fn ha(families: &mut Families<'_>, ha: &HaStatus) -> fmt::Result {
    families.gauge("ha_priority", "Configured priority", f64::from(ha.priority))?;
    families.gauge(
        "ha_effective_priority",
        "Priority in use, lowered by faults",
        f64::from(ha.effective_priority),
    )?;
    families.gauge(
        "ha_realtime",
        "Real-time priority was granted to the HA process",
        truth(ha.realtime),
    )?;
    let stances = ["normal", "hold", "maintenance"];
    families.one_of(
        "ha_stance",
        "What the operator wants of the node",
        "stance",
        &stances,
        &ha.stance,
    )?;
    families.gauges(
        "ha_fit",
        "Whether the node has what makes one fit to own",
        HaStatus::FITNESS
            .into_iter()
            .map(|what| (vec![("what", what)], truth(ha.has.iter().any(|has| has == what)))),
    )?;
    families.gauges(
        "ha_tracked_good",
        "Whether what is tracked is as it should be",
        ha.tracked.iter().map(|tracked| {
            let labels = vec![("kind", tracked.kind.as_str()), ("name", tracked.name.as_str())];
            (labels, truth(tracked.state == TrackedState::Good))
        }),
    )?;
    families.named("ha", "Protocol and announcements", &ha.counters)
}

fn stream(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    let stream = &status.stream;
    families.gauge(
        "stream_open",
        "Whether the stream to the peer is open",
        truth(stream.state == StreamState::Open),
    )?;
    families.counter("stream_sessions", "Sessions with the peer", stream.sessions)?;
    let ways = |in_: u64, out: u64| {
        [
            (vec![("direction", "in")], in_),
            (vec![("direction", "out")], out),
        ]
    };
    families.counters(
        "stream_frames",
        "Frames of the stream",
        ways(stream.frames_in, stream.frames_out),
    )?;
    families.counters(
        "stream_bytes",
        "Bytes of the stream",
        ways(stream.bytes_in, stream.bytes_out),
    )?;
    let lost = [
        (vec![("side", "sender")], stream.unsaid),
        (vec![("side", "receiver")], stream.untaken),
    ];
    families.counters(
        "stream_messages_lost",
        "Messages between the nodes that were lost",
        lost,
    )?;
    families.counter(
        "stream_unknown_records",
        "Records of a kind this release does not know",
        stream.unknown_records,
    )?;
    for (name, help, causes) in [
        (
            "stream_failed",
            "Connections that came to no session",
            &stream.failed,
        ),
        ("stream_ended", "Sessions that ended", &stream.ended),
    ] {
        families.counters(
            name,
            help,
            causes
                .iter()
                .map(|(cause, n)| (vec![("cause", cause.as_str())], *n)),
        )?;
    }
    Ok(())
}

fn sync(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    let sync = &status.sync;
    let verdict = match sync.verdict {
        SyncVerdict::Equal => "equal",
        SyncVerdict::Behind => "behind",
        SyncVerdict::NotSyncing => "not-syncing",
    };
    let verdicts = ["equal", "behind", "not-syncing"];
    families.one_of(
        "sync_verdict",
        "Whether both nodes have the same flows",
        "verdict",
        &verdicts,
        verdict,
    )?;
    families.gauge(
        "sync_behind_records",
        "Flows and changes of them that are under way to the peer",
        number(sync.records_behind),
    )?;
    families.gauge(
        "sync_behind_seconds",
        "Age of the oldest of them",
        seconds(sync.oldest_behind_ms),
    )?;
    families.gauges(
        "sync_lag_seconds",
        "Time from a packet until the peer had acknowledged what it did to its flow, lately",
        [("0.5", sync.lag_p50_us), ("0.99", sync.lag_p99_us)]
            .into_iter()
            .filter(|(_, us)| *us > 0)
            .map(|(quantile, us)| (vec![("quantile", quantile)], number(us) / 1e6)),
    )?;
    families.named("sync", "Flow sync", &sync.counters)
}

fn dataplane(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    let dataplane = &status.dataplane;
    for (name, help, value) in [
        (
            "flows",
            "Flows in the table, half-open ones included",
            dataplane.flows,
        ),
        ("flows_limit", "limits.max_flows", dataplane.max_flows),
        ("half_open_flows", "Half-open flows", dataplane.half_open),
        (
            "half_open_flows_limit",
            "limits.half_open",
            dataplane.max_half_open,
        ),
        ("map_bytes", "Memory of all maps", dataplane.map_bytes),
    ] {
        families.gauge(name, help, number(value))?;
    }
    let usage = || dataplane.usage.iter();
    families.gauges(
        "usage",
        "How much is taken of what can run out",
        usage().map(|usage| (vec![("resource", usage.name.as_str())], number(usage.used))),
    )?;
    families.gauges(
        "usage_limit",
        "How much there may be of it",
        usage().map(|usage| (vec![("resource", usage.name.as_str())], number(usage.limit))),
    )?;
    families.named("dataplane", "Packets", &dataplane.counters)
}

/// What can be said of a service and of a server alike.
fn traffic<'l>(families: &mut Families<'_>, whose: &str, all: &[(Labels<'l>, Traffic)]) -> fmt::Result {
    let with = |labels: &Labels<'l>, direction| {
        let mut labels = labels.clone();
        labels.push(("direction", direction));
        labels
    };
    families.counters(
        &format!("{whose}_flows"),
        "Flows made",
        all.iter()
            .map(|(labels, traffic)| (labels.clone(), traffic.flows)),
    )?;
    families.counters(
        &format!("{whose}_packets"),
        "Packets towards servers (in) and clients (out)",
        all.iter().flat_map(|(labels, traffic)| {
            [
                (with(labels, "in"), traffic.packets_in),
                (with(labels, "out"), traffic.packets_out),
            ]
        }),
    )?;
    families.counters(
        &format!("{whose}_bytes"),
        "Bytes of those frames",
        all.iter().flat_map(|(labels, traffic)| {
            [
                (with(labels, "in"), traffic.bytes_in),
                (with(labels, "out"), traffic.bytes_out),
            ]
        }),
    )
}

fn services(families: &mut Families<'_>, services: &[ServiceStatus]) -> fmt::Result {
    let each = || {
        services
            .iter()
            .map(|service| (vec![("service", service.name.as_str())], service))
    };
    families.gauges(
        "service_open_flows",
        "Flows now, closing ones not counted",
        each().map(|(labels, service)| (labels, number(service.open))),
    )?;
    let all: Vec<_> = each()
        .map(|(labels, service)| (labels, service.traffic))
        .collect();
    traffic(families, "service", &all)?;
    families.counters(
        "service_refused",
        "New flows refused",
        each().flat_map(|(labels, service)| {
            let refusals = &service.refusals;
            [
                ("denied", refusals.denied),
                ("max_connections", refusals.max_connections),
                ("max_new_per_second", refusals.max_new_per_second),
                ("max_per_source", refusals.max_per_source),
                ("no_server", refusals.no_server),
                ("no_port", refusals.no_port),
                ("table_full", refusals.table_full),
                ("other", refusals.other),
            ]
            .map(|(reason, n)| ([labels.as_slice(), &[("reason", reason)]].concat(), n))
        }),
    )?;
    let servers = || {
        services.iter().flat_map(|service| {
            service.servers.iter().map(|server| {
                (
                    vec![
                        ("service", service.name.as_str()),
                        ("server", server.name.as_str()),
                    ],
                    server,
                )
            })
        })
    };
    families.gauges(
        "server_up",
        "Whether the server is in rotation by its checks; one without checks is",
        servers().map(|(labels, server)| {
            (
                labels,
                truth(!matches!(
                    server.health,
                    ServerHealth::Down | ServerHealth::Pending
                )),
            )
        }),
    )?;
    families.gauges(
        "server_weight",
        "Weight that new flows are balanced with",
        servers().map(|(labels, server)| (labels, f64::from(server.effective_weight))),
    )?;
    let all: Vec<_> = servers()
        .map(|(labels, server)| (labels, server.traffic))
        .collect();
    traffic(families, "server", &all)
}

#[cfg(test)]
mod tests;
