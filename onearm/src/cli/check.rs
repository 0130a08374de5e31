use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use ipnet::IpNet;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output;
use crate::check::{Capacity, HostInterface, Judged, files};
use crate::config::{DEFAULT_NODE_FILE, DEFAULT_PAIR_FILE, Diagnostic, PairConfig, Severity};
use crate::control::KeyStatus;
use crate::key::{self, Reader};

/// Most services whose capacity is listed for people.
const LISTED: usize = 32;
/// Most findings written for people; the rest is counted.
const WRITTEN: usize = 500;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The node's own file; give both nodes' to compare them [default: /etc/onearm/node.toml]
    #[arg(long = "node", value_name = "FILE")]
    nodes: Vec<PathBuf>,
    /// The pair's file
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PAIR_FILE)]
    pair: PathBuf,
    /// Compare with the interfaces and the key file of this machine too; always done without --node
    #[arg(long)]
    host: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    digest: Option<String>,
    capacity: Option<Capacity>,
    keys: Option<Vec<KeyStatus>>,
    diagnostics: &'a [Diagnostic],
}

pub(super) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let default = Path::new(DEFAULT_NODE_FILE);
    let nodes: Vec<&Path> = if args.nodes.is_empty() {
        vec![default]
    } else {
        args.nodes.iter().map(PathBuf::as_path).collect()
    };
    if nodes.len() > 2 {
        output::complain("a pair has two nodes: give --node once or twice");
        return Ok(Exit::Usage);
    }
    let interfaces = if args.host || args.nodes.is_empty() {
        Some(interfaces()?)
    } else {
        None
    };
    let reader = interfaces.as_ref().map(|_| Reader::daemon());
    let judged = files(
        &nodes,
        &args.pair,
        interfaces.as_deref(),
        reader.as_ref(),
        Severity::Error,
    );
    let exit = if judged.pair.is_some() {
        Exit::Ok
    } else {
        Exit::BadConfiguration
    };
    if args.json {
        output::json(&Report {
            ok: judged.pair.is_some(),
            digest: judged.pair.as_ref().map(|pair| pair.digest().to_string()),
            capacity: judged.pair.as_ref().map(Capacity::of),
            keys: judged.keys.as_ref().map(key::shown),
            diagnostics: &judged.diagnostics,
        })?;
        return Ok(exit);
    }
    for diagnostic in judged.diagnostics.iter().take(WRITTEN) {
        output::complain(&diagnostic.to_string());
    }
    if let Some(more @ 1..) = judged.diagnostics.len().checked_sub(WRITTEN) {
        output::complain(&format!("… and {more} more (--json lists all)"));
    }
    if let Some(pair) = &judged.pair {
        let files: Vec<String> = nodes
            .iter()
            .chain([&&*args.pair])
            .map(|path| path.display().to_string())
            .collect();
        output::print(&summary(&files.join(", "), pair, &judged))?;
    } else {
        let errors = judged
            .diagnostics
            .iter()
            .filter(|d| d.severity == Severity::Error)
            .count();
        output::complain(&format!("{errors} error{}", if errors == 1 { "" } else { "s" }));
    }
    Ok(exit)
}

fn summary(files: &str, pair: &PairConfig, judged: &Judged) -> String {
    let capacity = Capacity::of(pair);
    let warnings = match judged.diagnostics.len() {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        n => format!(", {n} warnings"),
    };
    let mut text = format!("{files}: good{warnings}\n");
    // Writing to a string never fails.
    let _ignored = writeln!(
        text,
        "VIPs {}, services {}, servers {}; at most {} {}\n",
        output::grouped(capacity.vips as u64),
        output::grouped(capacity.services.len() as u64),
        output::grouped(capacity.servers as u64),
        flows(&capacity),
        output::size(capacity.flow_table_bytes),
    );
    if let Some(keys) = &judged.keys {
        for shown in key::shown(keys) {
            let _ignored = writeln!(text, "key {}  {}", shown.id, shown.fingerprint);
        }
        text.push('\n');
    }
    let mut services = capacity.services;
    let left_out = services.len().saturating_sub(LISTED);
    if left_out > 0 {
        services.sort_by_key(|service| service.per_server.unwrap_or(u64::MAX));
        services.truncate(LISTED);
    }
    let mut table = output::table(&[
        "service",
        "vip",
        "servers",
        "translated to one server port, pair / node",
    ]);
    for service in &services {
        let ceiling = match service.per_server {
            Some(most) => format!("{} / {}", output::grouped(most), output::grouped(most / 2)),
            None => "not translated".to_owned(),
        };
        table.add_row([
            comfy_table::Cell::new(&service.name),
            comfy_table::Cell::new(service.vip),
            output::number(service.servers as u64),
            comfy_table::Cell::new(ceiling),
        ]);
    }
    if !services.is_empty() {
        text.push_str(&output::draw(&table));
    }
    if left_out > 0 {
        let _ignored = writeln!(
            text,
            "… and {left_out} services with as much or more (--json lists all)"
        );
    }
    text
}

/// How many flows in the families there are, and whose memory is told next.
fn flows(capacity: &Capacity) -> String {
    let (four, six) = (capacity.max_flows, capacity.max_flows6);
    let (four_text, six_text) = (output::grouped(u64::from(four)), output::grouped(u64::from(six)));
    match (four, six) {
        (_, 0) => format!("{four_text} flows, their table takes"),
        (0, _) => format!("{six_text} flows, their table takes"),
        _ => format!("{four_text} IPv4 and {six_text} IPv6 flows, their tables take"),
    }
}

/// The interfaces of this machine with their addresses.
fn interfaces() -> Result<Vec<HostInterface>, Failure> {
    let mut interfaces: Vec<HostInterface> = Vec::new();
    for entry in nix::ifaddrs::getifaddrs().map_err(Failure::Interfaces)? {
        let at = interfaces
            .iter()
            .position(|i| i.name == entry.interface_name)
            .unwrap_or_else(|| {
                interfaces.push(HostInterface {
                    name: entry.interface_name.clone(),
                    addresses: Vec::new(),
                    ipv6: has_ipv6(&entry.interface_name),
                });
                interfaces.len() - 1
            });
        let ip = |address: Option<nix::sys::socket::SockaddrStorage>| {
            let address = address?;
            let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
            four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
        };
        let net = ip(entry.address)
            .zip(ip(entry.netmask))
            .and_then(|(ip, mask)| IpNet::with_netmask(ip, mask).ok());
        interfaces[at].addresses.extend(net);
    }
    Ok(interfaces)
}

/// A kernel without IPv6 has no such file.
fn has_ipv6(interface: &str) -> bool {
    let key = Path::new("/proc/sys/net/ipv6/conf")
        .join(interface)
        .join("disable_ipv6");
    std::fs::read_to_string(key).is_ok_and(|value| value.trim() == "0")
}
