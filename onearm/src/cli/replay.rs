use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use clap::Args;
use onearm_ha::election::{Entry, Output, Replay, Replayed, Transition};
use onearm_ha::units::MonoTime;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output;

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// What `onearmd --record` wrote
    file: PathBuf,
    /// Every input and what was done about it, not only changes of role
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    entries: u64,
    /// Parts of the recording: the daemon began, or entries are missing.
    parts: u64,
    lost: u64,
    skipped: u64,
    /// It had grown to its limit: what came later was not recorded.
    full: bool,
    transitions: Vec<Shown>,
    differences: u64,
}

#[derive(Debug, Serialize)]
struct Shown {
    line: u64,
    /// Since the part began.
    at_ms: f64,
    /// As the recording has it.
    recorded: Option<Transition>,
    /// As it was made again.
    made: Option<Transition>,
}

/// Runs a recording again; whether every change of role came out as recorded.
pub(super) fn run(args: &ReplayArgs) -> Result<Exit, Failure> {
    let name = args.file.display();
    let unread = |source| Failure::RecordingUnread {
        file: name.to_string(),
        source,
    };
    let file = File::open(&args.file).map_err(unread)?;
    let mut report = Report::default();
    let mut replay = Replay::default();
    let mut began = MonoTime::ZERO;
    for (line, number) in BufReader::new(file).lines().zip(1..) {
        let line = line.map_err(unread)?;
        let entry = match serde_json::from_str(&line) {
            Ok(entry) => entry,
            // Torn: the daemon was killed, or the disk full, while it was written.
            Err(_) if report.parts > 0 => Entry::Gap { lost: 1 },
            Err(source) => {
                return Err(Failure::NoRecording {
                    file: name.to_string(),
                    line: number,
                    source,
                });
            }
        };
        report.entries += 1;
        let played = replay.play(&entry);
        match &entry {
            Entry::Began { at, .. } => {
                began = *at;
                report.parts += 1;
            }
            Entry::Gap { lost } => report.lost += lost,
            Entry::Full { .. } => report.full = true,
            Entry::Given { .. } | Entry::Became(_) => {}
        }
        if args.all && !args.json {
            output::print(&told(number, began, &entry, &played))?;
        }
        let shown = |at: Transition, recorded, made| Shown {
            line: number,
            at_ms: since(began, at),
            recorded,
            made,
        };
        match played {
            Replayed::Same(both) => report.transitions.push(shown(both, Some(both), Some(both))),
            Replayed::Differs { recorded, made } => {
                report.differences += 1;
                report.transitions.push(shown(recorded, Some(recorded), made));
            }
            Replayed::Skipped => report.skipped += 1,
            Replayed::Quiet | Replayed::Did(_) => {}
        }
    }
    for made in replay.end() {
        report.differences += 1;
        report.transitions.push(Shown {
            line: report.entries,
            at_ms: since(began, made),
            recorded: None,
            made: Some(made),
        });
    }
    if args.json {
        output::json(&report)?;
    } else {
        output::print(&summary(&report, args.all))?;
    }
    Ok(if report.differences == 0 {
        Exit::Ok
    } else {
        Exit::Unhealthy
    })
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds, for people")]
fn since(began: MonoTime, transition: Transition) -> f64 {
    transition.at.since(began) as f64 / 1e6
}

fn told(line: u64, began: MonoTime, entry: &Entry, played: &Replayed) -> String {
    let mut text = match entry {
        Entry::Given { at, input } => {
            format!("{line} {} µs {input:?}\n", at.since(began) / 1_000)
        }
        other => format!("{line} {other:?}\n"),
    };
    if let Replayed::Did(outputs) = played {
        for output in outputs
            .iter()
            .filter(|output| !matches!(output, Output::ReportTransition(_)))
        {
            // Writing to a string never fails.
            let _ignored = writeln!(text, "      {output:?}");
        }
    }
    text
}

fn summary(report: &Report, all: bool) -> String {
    let mut text = String::new();
    let line = |text: &mut String, what: &str, at_ms: f64, of: Transition| {
        let Transition {
            prev,
            next,
            event,
            epoch,
            ..
        } = of;
        // Writing to a string never fails.
        let _ignored = writeln!(
            text,
            "{at_ms:>12.3} ms  {prev} → {next}  {event:?}, epoch {epoch}{what}"
        );
    };
    for shown in &report.transitions {
        match (shown.recorded, shown.made) {
            (Some(recorded), made) if made == Some(recorded) => {
                if !all {
                    line(&mut text, "", shown.at_ms, recorded);
                }
            }
            (recorded, made) => {
                if let Some(recorded) = recorded {
                    line(&mut text, "  (recorded)", shown.at_ms, recorded);
                }
                if let Some(made) = made {
                    line(&mut text, "  (made now)", shown.at_ms, made);
                }
            }
        }
    }
    let _ignored = writeln!(
        text,
        "{} entries in {} parts, {} missing, {} not run; {} changes of role, {} of them otherwise than recorded",
        output::grouped(report.entries),
        report.parts,
        output::grouped(report.lost),
        output::grouped(report.skipped),
        report.transitions.len(),
        report.differences
    );
    if report.full {
        text.push_str("the recording had grown to its limit: nothing later is in it\n");
    }
    text
}
