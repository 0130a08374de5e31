use std::fmt::Write as _;
use std::net::IpAddr;

use clap::Args;

use super::Daemon;
use super::exit::{Exit, Failure};
use super::output::{self, grouped, span};
use crate::control::{FlowEntry, FlowList, FlowQuery, MAX_FLOWS};

#[derive(Debug, Args)]
pub(super) struct FlowArgs {
    #[command(flatten)]
    daemon: Daemon,
    /// Only flows of this client
    #[arg(long, value_name = "ADDRESS")]
    client: Option<IpAddr>,
    /// Only flows to this VIP
    #[arg(long, value_name = "ADDRESS")]
    vip: Option<IpAddr>,
    /// Only flows to this server
    #[arg(long, value_name = "ADDRESS")]
    server: Option<IpAddr>,
    /// Most flows to list
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_FLOWS)))]
    limit: u32,
}

pub(super) fn run(args: &FlowArgs) -> Result<Exit, Failure> {
    let query = FlowQuery {
        client: args.client,
        vip: args.vip,
        server: args.server,
        limit: args.limit,
    };
    let flows = args.daemon.connect()?.flows(query)?;
    if args.daemon.json {
        output::json(&flows)?;
    } else {
        output::print(&show(&flows))?;
    }
    Ok(Exit::Ok)
}

fn mode(flow: &FlowEntry) -> &str {
    if flow.hairpin { "hairpin" } else { &flow.mode }
}

/// Two lines a flow: the client's view, then the server's.
pub(super) fn show(list: &FlowList) -> String {
    let mut text = String::new();
    for flow in &list.flows {
        let _ignored = writeln!(
            text,
            "{:<4} {:>21} → {:<21}  {:<11} {:<8} {}",
            flow.protocol,
            flow.client.to_string(),
            flow.vip.to_string(),
            flow.state,
            mode(flow),
            flow.service.as_deref().unwrap_or("-"),
        );
        let _ignored = writeln!(
            text,
            "     {:>21} → {:<21}  idle {}, ends {}",
            flow.snat.unwrap_or(flow.client).to_string(),
            flow.server.to_string(),
            span(flow.idle_ms),
            span(flow.expires_ms),
        );
    }
    let _ignored = writeln!(
        text,
        "{} of {} flows",
        grouped(list.flows.len() as u64),
        grouped(list.matched)
    );
    text
}
