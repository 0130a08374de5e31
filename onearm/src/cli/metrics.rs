use std::io;

use super::Daemon;
use super::exit::{Exit, Failure};
use super::output;
use crate::metrics;

pub(super) fn run(args: &Daemon) -> Result<Exit, Failure> {
    let mut daemon = args.connect()?;
    let (status, services) = (daemon.status()?, daemon.services()?);
    if args.json {
        output::json(&serde_json::json!({ "status": status, "services": services }))?;
        return Ok(Exit::Ok);
    }
    let page = metrics::page(status, services).map_err(io::Error::other)?;
    output::print(&page)?;
    Ok(Exit::Ok)
}
