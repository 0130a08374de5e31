use std::fmt::Write as _;

use clap::Args;

use super::Daemon;
use super::exit::{Exit, Failure};
use super::output;
use crate::control::{EventList, EventQuery};

#[derive(Debug, Args)]
pub(super) struct EventArgs {
    #[command(flatten)]
    daemon: Daemon,
    /// Only events with a greater number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    since: u64,
}

pub(super) fn run(args: &EventArgs) -> Result<Exit, Failure> {
    let events = args.daemon.connect()?.events(EventQuery { since: args.since })?;
    if args.daemon.json {
        output::json(&events)?;
    } else {
        output::print(&show(&events))?;
    }
    Ok(Exit::Ok)
}

pub(super) fn show(list: &EventList) -> String {
    let mut text = String::new();
    if list.lost > 0 {
        let _ignored = writeln!(
            text,
            "({} older events are no longer kept)",
            output::grouped(list.lost)
        );
    }
    for event in &list.events {
        let time = output::moment(event.time_ms);
        let _ignored = writeln!(
            text,
            "{time} #{} {} {}",
            event.sequence,
            event.severity.as_str(),
            event.kind
        );
        text.push_str(&output::paragraph("    ", &event.message));
        if !event.remedy.is_empty() {
            text.push_str(&output::paragraph("    → ", &event.remedy));
        }
    }
    if list.events.is_empty() {
        text.push_str("no events\n");
    }
    text
}
