//! How full everything is that can run out: shares for status, and an event when a share has grown or fallen. Pure, but for
//! the task that looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onearm_dataplane::{MOST_FRAGMENTS, MOST_LAST_HOPS, MOST_NEXT_HOPS, SnatUsage, Usage};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::{PairConfig, ServiceConfig};
use crate::control::{NewEvent, Severity, UsageStatus};

use super::backend::Backend;

/// How often it is looked at, and for how long a fragmented datagram is remembered.
const PERIOD: Duration = Duration::from_secs(5);
/// Shares that are told, in percent.
const LEVELS: [u64; 3] = [50, 85, 100];
/// A level is left when the share has fallen so far below it, in percent.
const HYSTERESIS: u64 = 10;
/// From here on an operator is warned.
const WARNED: u64 = 85;
/// Most names in one event or warning; the rest is counted.
const NAMED: usize = 8;

/// Looks for as long as it is polled. Cancel-safe: nothing is lost between two looks.
pub(crate) async fn watch(backend: Arc<Backend>) {
    let mut levels = Levels::default();
    let mut fragments = None;
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let usage = match backend.usage().await {
            Ok(usage) => usage,
            Err(error) => {
                tracing::warn!(%error, "how full the tables are is not known");
                continue;
            }
        };
        let before = fragments.replace(usage.fragments).unwrap_or(usage.fragments);
        let uses = uses(
            &backend.loaded.pair,
            &usage,
            usage.fragments.saturating_sub(before),
        );
        for event in levels.judge(&uses) {
            backend.board.tell(event);
        }
        backend.board.warn("usage", warnings(&uses, &levels));
        backend.board.facts().usage = shown(uses);
    }
}

/// Something that can run out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    /// What, in words that name service or address.
    name: String,
    /// What else is to be said of it, in parentheses.
    detail: Option<String>,
    /// How much is in use.
    used: u64,
    /// How much there may be; not 0.
    limit: u64,
    /// What happens at the limit, and what can be done.
    remedy: &'static str,
    /// Shown whatever its share.
    always: bool,
}

impl Use {
    fn percent(&self) -> u64 {
        self.used.saturating_mul(100) / self.limit
    }

    /// Name and detail.
    fn title(&self) -> String {
        let detail = self.detail.iter().map(|detail| format!(" {detail}"));
        std::iter::once(self.name.clone()).chain(detail).collect()
    }
}

/// All of them; `fragments`: remembered within [`PERIOD`].
fn uses(pair: &PairConfig, usage: &Usage, fragments: u64) -> Vec<Use> {
    let (flows, flows6) = pair.flow_room();
    let limits = &pair.limits;
    let tables = [
        (
            "IPv4 flows",
            usage.flows,
            u64::from(flows),
            "at the limit new flows are refused: raise limits.max_flows",
        ),
        (
            "IPv6 flows",
            usage.flows6,
            u64::from(flows6),
            "at the limit new flows are refused: raise limits.max_flows6",
        ),
        (
            "half-open flows",
            usage.half_open,
            u64::from(limits.half_open),
            "at the limit older ones give way: a SYN flood, or raise limits.half_open",
        ),
        (
            "flows of dsr and l3-dsr",
            usage.direct,
            u64::from(limits.dsr_flows),
            "at the limit older ones give way and follow their hash: raise limits.dsr_flows",
        ),
        (
            "clients that stay with their server",
            usage.persistent.clients,
            u64::from(pair.persistent_clients()),
            "at the limit older ones give way and follow their hash: raise limits.persistent_clients",
        ),
        (
            "neighbours of clients",
            usage.last_hops,
            MOST_LAST_HOPS,
            "at the limit replies go by the routes: look for a host that invents MACs",
        ),
        (
            "next hops",
            usage.next_hops,
            MOST_NEXT_HOPS,
            "at the limit new servers and hosts are not reached: use fewer",
        ),
        (
            "fragmented datagrams in five seconds",
            fragments,
            MOST_FRAGMENTS,
            "at the limit the oldest are forgotten and their later fragments dropped: find out who sends fragments",
        ),
    ];
    let tables = tables.into_iter().map(|(name, used, limit, remedy)| Use {
        name: name.to_owned(),
        detail: None,
        used,
        limit,
        remedy,
        always: true,
    });
    let services = usage.services.iter().filter_map(|of| {
        let service = pair.services.iter().find(|service| service.name == of.name)?;
        connections(service, of.open)
    });
    let sources = usage.snat.iter().map(of_source);
    tables
        .chain(services)
        .chain(sources)
        .filter(|of| of.limit > 0)
        .collect()
}

fn connections(service: &ServiceConfig, open: u64) -> Option<Use> {
    service.limits.max_connections.map(|most| Use {
        name: format!("connections of service {}", service.name),
        detail: None,
        used: open,
        limit: u64::from(most),
        remedy: "at the limit new ones are dropped: raise the service's max_connections, or find out who calls",
        always: true,
    })
}

fn of_source(of: &SnatUsage) -> Use {
    Use {
        name: format!("SNAT ports of {}", of.addr),
        detail: of.server.map(|server| format!("to {server}")),
        used: of.used,
        limit: of.ports,
        remedy: "at the limit new connections to that server need another source or are refused: give its services more snat addresses or a wider snat_ports",
        always: false,
    }
}

/// Levels told last.
#[derive(Debug, Default)]
struct Levels(BTreeMap<String, u64>);

impl Levels {
    /// The level a share is at, given that it was at another: one is left only well below it.
    fn next(before: u64, percent: u64) -> u64 {
        let reached = |share: u64| {
            LEVELS
                .into_iter()
                .rev()
                .find(|level| share >= *level)
                .unwrap_or(0)
        };
        let (up, down) = (reached(percent), reached(percent + HYSTERESIS));
        if up > before { up } else { before.min(down) }
    }

    /// What is to be told: one event for each level, however many have reached it, and one for all that left theirs.
    fn judge(&mut self, uses: &[Use]) -> Vec<NewEvent> {
        let mut reached: BTreeMap<(u64, &'static str), Vec<String>> = BTreeMap::new();
        let mut left = Vec::new();
        for of in uses {
            let before = self.0.get(&of.name).copied().unwrap_or(0);
            let now = Self::next(before, of.percent());
            let told = format!("{} ({} of {}, {} %)", of.title(), of.used, of.limit, of.percent());
            if now > before {
                reached.entry((now, of.remedy)).or_default().push(told);
            } else if now < before {
                left.push(told);
            }
            if now == 0 {
                self.0.remove(&of.name);
            } else {
                self.0.insert(of.name.clone(), now);
            }
        }
        let reached = reached.into_iter().map(|((level, remedy), names)| NewEvent {
            severity: if level >= WARNED {
                Severity::Warning
            } else {
                Severity::Info
            },
            kind: "usage-high",
            message: format!("{level} % in use: {}", joined(&names)),
            remedy: remedy.to_owned(),
        });
        let left = (!left.is_empty()).then(|| NewEvent {
            severity: Severity::Info,
            kind: "usage-fell",
            message: format!("less in use: {}", joined(&left)),
            remedy: String::new(),
        });
        reached.chain(left).collect()
    }

    fn is_warned(&self, of: &Use) -> bool {
        self.0.get(&of.name).is_some_and(|level| *level >= WARNED)
    }
}

/// Names for people, not all of a thousand.
fn joined(names: &[String]) -> String {
    let first = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Standing warnings of what is nearly used up.
fn warnings(uses: &[Use], levels: &Levels) -> Vec<String> {
    let mut by_remedy: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for of in uses.iter().filter(|of| levels.is_warned(of)) {
        let told = format!("{} {} %", of.title(), of.percent());
        by_remedy.entry(of.remedy).or_default().push(told);
    }
    let warning = |(remedy, names): (&str, Vec<String>)| format!("in use: {}; {remedy}", joined(&names));
    by_remedy.into_iter().map(warning).collect()
}

/// What status shows: the tables, and SNAT sources that have given half of their ports to one server.
fn shown(uses: Vec<Use>) -> Vec<UsageStatus> {
    uses.into_iter()
        .filter(|of| of.always || of.percent() >= LEVELS[0])
        .map(|of| UsageStatus {
            percent: of.percent(),
            name: of.title(),
            used: of.used,
            limit: of.limit,
        })
        .collect()
}

#[cfg(test)]
mod tests;
