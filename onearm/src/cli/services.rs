use std::fmt::Write as _;

use comfy_table::Cell;

use super::Daemon;
use super::exit::{Exit, Failure};
use super::output::{self, number, span};
use crate::control::{Refusals, ServerHealth, ServerStatus, ServiceStatus};

pub(super) fn run(args: &Daemon) -> Result<Exit, Failure> {
    let services = args.connect()?.services()?;
    if args.json {
        output::json(&services)?;
    } else {
        output::print(&show(&services))?;
    }
    Ok(if services.iter().all(has_server) {
        Exit::Ok
    } else {
        Exit::Unhealthy
    })
}

/// Whether new connections find a server.
pub(super) fn has_server(service: &ServiceStatus) -> bool {
    service.servers.iter().any(|server| server.effective_weight > 0)
}

pub(super) fn show(services: &[ServiceStatus]) -> String {
    let mut text = String::new();
    for service in services {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ignored = writeln!(
            text,
            "{}: {} {} {}, {}, {}{}",
            service.name,
            service.vip,
            service.protocol,
            service.ports.join(","),
            modes(service),
            service.scheduler,
            if has_server(service) { "" } else { ": NO SERVER" },
        );
        let mut table = output::table(&[
            "  server",
            "address",
            "weight",
            "health",
            "flows",
            "refused",
            "last check",
        ]);
        for server in &service.servers {
            table.add_row([
                Cell::new(format!("  {}", server.name)),
                Cell::new(address(server)),
                Cell::new(weight(server)),
                Cell::new(health(server.health)),
                number(server.traffic.flows),
                number(server.traffic.refused),
                Cell::new(check(server)),
            ]);
        }
        text.push_str(&output::draw(&table));
        if let Some(most) = service.max_connections {
            let (open, most) = (output::grouped(service.open), output::grouped(most.into()));
            let _ignored = writeln!(text, "  connections: {open} of {most}");
        }
        if let Some(refused) = refused(&service.refusals) {
            let _ignored = writeln!(text, "  refused: {refused}");
        }
    }
    if services.is_empty() {
        text.push_str("no services\n");
    }
    text
}

/// The mode, and which clients have another.
fn modes(service: &ServiceStatus) -> String {
    let mut text = service.mode.clone();
    for rule in &service.mode_for {
        let _ignored = write!(text, " ({} for {})", rule.mode, rule.clients.join(" "));
    }
    text
}

/// New flows refused, by reason; `None` if there were none.
fn refused(refusals: &Refusals) -> Option<String> {
    let reasons = [
        ("clients not allowed", refusals.denied),
        ("max_connections", refusals.max_connections),
        ("max_new_per_second", refusals.max_new_per_second),
        ("max_per_source", refusals.max_per_source),
        ("no server", refusals.no_server),
        ("no source port", refusals.no_port),
        ("table full", refusals.table_full),
        ("other", refusals.other),
    ];
    let told: Vec<String> = reasons
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(reason, n)| format!("{reason} {}", output::grouped(*n)))
        .collect();
    (!told.is_empty()).then(|| told.join(", "))
}

fn address(server: &ServerStatus) -> String {
    server.port.map_or_else(
        || server.address.to_string(),
        |port| format!("{}:{port}", server.address),
    )
}

fn weight(server: &ServerStatus) -> String {
    if server.weight == server.effective_weight {
        server.weight.to_string()
    } else {
        format!("{} (now {})", server.weight, server.effective_weight)
    }
}

fn health(health: ServerHealth) -> &'static str {
    match health {
        ServerHealth::Up => "up",
        ServerHealth::Down => "DOWN",
        ServerHealth::Pending => "pending",
        ServerHealth::Unchecked => "-",
        ServerHealth::Stale => "STALE",
    }
}

fn check(server: &ServerStatus) -> String {
    match &server.last_check {
        Some(check) => format!(
            "{} ago: {} ({}×)",
            span(check.age_ms),
            check.detail,
            check.in_a_row
        ),
        None => "-".to_owned(),
    }
}
