use std::net::SocketAddr;

use clap::Args;

use super::Daemon;
use super::exit::{Exit, Failure};
use super::output;
use crate::control::{ProbeRequest, ProbeResult};

#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    #[command(flatten)]
    daemon: Daemon,
    /// VIP and port, for example 192.168.100.100:80
    #[arg(value_name = "VIP:PORT")]
    target: SocketAddr,
    /// How long to wait, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    timeout: u32,
}

pub(super) fn run(args: &ProbeArgs) -> Result<Exit, Failure> {
    let result = args.daemon.connect()?.probe(ProbeRequest {
        target: args.target,
        timeout_ms: args.timeout,
    })?;
    if args.daemon.json {
        output::json(&result)?;
    } else {
        output::print(&show(&result))?;
    }
    Ok(if result.connected {
        Exit::Ok
    } else {
        Exit::Unhealthy
    })
}

pub(super) fn show(result: &ProbeResult) -> String {
    let (whole, part) = (result.elapsed_us / 1_000, result.elapsed_us % 1_000 / 100);
    let from = result
        .client
        .map(|client| format!(" from {client}"))
        .unwrap_or_default();
    format!(
        "{}{from} → {}: {} ({whole}.{part} ms)\n",
        result.client_node, result.target, result.detail
    )
}
