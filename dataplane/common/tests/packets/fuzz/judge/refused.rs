//! New flows that are refused, and whether they should have been: counted anew, from the flows there are.

use super::{Judge, Outcome};
use crate::{
    fuzz::{
        expect::{is_direct, mode_for},
        read::{Content, Ip, transport_len},
    },
    support::{Verdict, frames::raw},
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::{FlowEntry, State, seen},
    maps::{Limits, Service, mode, service},
    tables::{Tables, tick},
};
use std::{collections::HashMap, net::IpAddr};

/// Why no flow was made.
const REASONS: [Counter; 11] = [
    Counter::DsrOffLink,
    Counter::TunnelWithoutSource,
    Counter::ClientDenied,
    Counter::MaxConnections,
    Counter::MaxNew,
    Counter::MaxPerSource,
    Counter::NoServer,
    Counter::NoPort,
    Counter::NoSnatSource,
    Counter::TableFull,
    Counter::HalfOpenFull,
];

/// What is left of each service's rate: ns of credit, and when that was.
#[derive(Debug, Default)]
pub struct Credits(HashMap<u32, (u64, u64)>);

impl Credits {
    /// One more new flow of a service; false if its rate is used up.
    fn take(&mut self, stats: u32, now: u64, limits: &Limits) -> bool {
        let (credit, at) = self.0.entry(stats).or_insert((limits.new_burst_ns, now));
        *credit = (*credit + (now - *at)).min(limits.new_burst_ns);
        *at = now;
        let enough = *credit >= limits.new_cost_ns;
        if enough {
            *credit -= limits.new_cost_ns;
        }
        enough
    }
}

impl Judge {
    /// The reason was a right one, and what was a reason was taken. True if the packet was refused. `client` and `port`: of the
    /// connection that a packet is of; `opens`: it begins it.
    pub(super) fn refused_well(
        &self,
        ip: &Ip,
        (client, port): (IpAddr, u16),
        opens: bool,
        o: &Outcome<'_>,
    ) -> Result<bool, String> {
        let given: Vec<Counter> = REASONS.into_iter().filter(|reason| o.counted(*reason)).collect();
        let refused = o.verdict == Verdict::Drop && !given.is_empty();
        ensure!(refused || given.is_empty(), "refused, and yet {:?}", o.verdict);
        let (index, service) = self.service_of(ip, port).ok_or("a service")?;
        let direct = mode_for(&self.host, index, client) >= mode::DSR;
        let wanted = self.reason(o, client, (index, &service), opens);
        match (wanted, given[..].first()) {
            (None, None) => {}
            (Some(wanted), Some(given)) if wanted == *given => {}
            (Some(wanted), given) => return Err(format!("refused for {given:?}, not {wanted:?}")),
            // Decided by the rate, or by the server and port that were chosen.
            (None, Some(Counter::MaxNew)) => {
                ensure!(service.options & service::LIMITED != 0, "a rate without a limit");
            }
            (None, Some(Counter::DsrOffLink | Counter::TunnelWithoutSource)) => {
                ensure!(direct, "a direct server's trouble");
            }
            (None, Some(Counter::TableFull)) => {
                ensure!(!direct, "what is not kept needs no room");
                let crowded = self.host.setup.buckets == 1;
                let left = o
                    .after
                    .iter()
                    .find(|flow| crowded && flow.saddr.is_v4() != ip.v6 && self.gives_way(flow));
                ensure!(left.is_none(), "there was room: {left:?}");
            }
            (None, Some(Counter::NoPort | Counter::NoSnatSource)) => {
                ensure!(!direct, "what is not kept needs no room");
            }
            (None, Some(Counter::HalfOpenFull)) => {
                let budget = self.host.node().map_or(0, |node| node.half_open_budget);
                let half_open = count(o.before, |flow| flow.state() == State::HalfOpen);
                ensure!(
                    !direct && ip.proto == 6 && half_open >= budget,
                    "there was room for one more half-open flow"
                );
            }
            (None, Some(given)) => return Err(format!("refused for {given:?}, without a reason")),
        }
        Ok(refused)
    }

    /// Whether a flow gives way to one with two directions when the table is full.
    fn gives_way(&self, flow: &FlowEntry) -> bool {
        let patience = self.host.node().map_or(0, |node| node.closing_ticks);
        match flow.state() {
            State::HalfOpen => true,
            State::Closing => is_direct(flow) || tick(self.host.now) - flow.last_seen > patience,
            State::Established => {
                let (_, server) = flow.seen_by_side();
                is_direct(flow) || (flow.proto == 17 && server & seen::OPENED == 0)
            }
        }
    }

    /// A reason that leaves no choice.
    fn reason(
        &self,
        o: &Outcome<'_>,
        client: IpAddr,
        (index, service): (u32, &Service),
        opens: bool,
    ) -> Option<Counter> {
        if service.options & service::CLIENTS != 0 {
            let by_default = if service.options & service::ALLOWED_ONLY == 0 {
                service::ALLOW
            } else {
                service::DENY
            };
            let rule = self.host.client_rule(0, index, raw(client)).unwrap_or(by_default);
            if rule == service::DENY {
                return Some(Counter::ClientDenied);
            }
        }
        if opens && service.options & service::LIMITED != 0 {
            let limits = self.host.limits(0, index)?;
            let of_service =
                |flow: &FlowEntry| u32::from(flow.stats) == service.stats && flow.state() != State::Closing;
            let all = count(o.before, of_service);
            if limits.max_connections != 0 && all >= limits.max_connections {
                return Some(Counter::MaxConnections);
            }
            let its = count(o.before, |flow| {
                of_service(flow) && flow.saddr == raw(client) && flow.own & seen::COUNTED != 0
            });
            if limits.max_per_source != 0 && its >= limits.max_per_source {
                return Some(Counter::MaxPerSource);
            }
            if o.counted(Counter::MaxNew) {
                return None;
            }
        }
        (service.table >> 32 == 0).then_some(Counter::NoServer)
    }

    /// The packet opens a connection, which limits count.
    pub(super) fn opens(&self, ip: &Ip, port: u16, o: &Outcome<'_>) -> bool {
        let forgets = self.service_of(ip, port).is_some_and(|(index, service)| {
            service.options & service::PER_PACKET != 0 && mode_for(&self.host, index, ip.from) >= mode::DSR
        });
        let first = match ip.content {
            Content::Ports(..) => true,
            Content::Fragment => transport_len(ip.proto).is_some(),
            Content::Broken | Content::Other => false,
        };
        let syn = ip.proto != 6 || ip.flags(o.frame) & 0x17 == 2;
        first && syn && !forgets
    }

    /// What the rate of a service lets pass. Once a frame.
    pub(super) fn rated_well(&mut self, ip: &Ip, port: u16, o: &Outcome<'_>) -> Result<(), String> {
        let Some((index, service)) = self.service_of(ip, port) else {
            return Ok(());
        };
        let limits = self.host.limits(0, index).ok_or("limits")?;
        let asked = [
            Counter::ClientDenied,
            Counter::MaxConnections,
            Counter::MaxPerSource,
        ]
        .iter()
        .all(|reason| !o.counted(*reason));
        if !asked
            || service.options & service::LIMITED == 0
            || limits.new_cost_ns == 0
            || !self.opens(ip, port, o)
        {
            return Ok(());
        }
        let passes = self.credits.take(service.stats, self.host.now, &limits);
        ensure!(
            passes != o.counted(Counter::MaxNew),
            "the rate of service {index} lets a new flow pass: {passes}"
        );
        Ok(())
    }
}

/// Flows, by their forward entries.
fn count(flows: &[FlowEntry], which: impl Fn(&FlowEntry) -> bool) -> u32 {
    let flows = flows.iter().filter(|flow| !flow.is_reply() && which(flow));
    u32::try_from(flows.count()).expect("few")
}
