//! `onearm-bench`: what a packet costs, by `BPF_PROG_TEST_RUN` over many flows, beside the least any balancer must do.
//!
//! A wrapper program builds another frame each time and tail-calls the program under test; its own cost is measured the
//! same way and subtracted. Rounds are interleaved and medians reported: absolute figures drift with the machine, ratios
//! within one run hold.

mod frames;
mod subject;
mod table;

use onearm_dataplane_common::maps::mode;
use std::process::ExitCode;
use subject::{Reference, Subject};
use table::Row;

const USAGE: &str = "usage: onearm-bench [--flows N]... [--rounds R] [--json]
  --flows N    flows to choose from at random (default: 100000 and 1000000)
  --rounds R   interleaved rounds, medians are reported (default: 5)
  --json       one JSON object instead of a table";

/// In the order of the report's rows.
const MODES: [u8; 4] = [mode::BOTH_NAT, mode::DNAT, mode::DSR, mode::L3_DSR];

struct Arguments {
    flows: Vec<u32>,
    rounds: usize,
    json: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        flows: Vec::new(),
        rounds: 5,
        json: false,
    };
    while let Some(word) = words.next() {
        let mut number = |least: u32, most: u32| -> Result<u32, String> {
            let value = words.next().ok_or(format!("{word} needs a number"))?;
            match value.replace('_', "").parse() {
                Ok(n) if (least..=most).contains(&n) => Ok(n),
                _ => Err(format!("{word} {value}: not a number from {least} to {most}")),
            }
        };
        match word.as_str() {
            "--flows" => arguments.flows.push(number(1_000, 4_000_000)?),
            "--rounds" => arguments.rounds = number(1, 99)? as usize,
            "--json" => arguments.json = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    if arguments.flows.is_empty() {
        arguments.flows = vec![100_000, 1_000_000];
    }
    Ok(arguments)
}

/// ns per packet of everything, medians over the rounds, the wrapper subtracted.
fn measure(flows: u32, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let mut reference = Reference::load(flows)?;
    let mut established = Vec::new();
    let mut fresh = Vec::new();
    for mode in MODES {
        established.push(Subject::load(flows, mode)?);
        fresh.push(Subject::load(flows, mode)?);
    }
    for subject in &mut established {
        subject.establish()?;
    }
    reference.warm()?;
    let mut rows = Row::all();
    for round in 0..rounds {
        let wrapper = reference.wrapper()?;
        let mut samples = vec![wrapper, reference.parse()?, reference.lru()?];
        for subject in &mut established {
            samples.push(subject.requests()?);
            samples.extend(subject.replies()?);
        }
        samples.push(reference.lru_new(round)?);
        for subject in &mut fresh {
            samples.push(subject.new_flows()?);
        }
        for (row, sample) in rows.iter_mut().zip(samples) {
            row.samples
                .push(if row.is_wrapper { sample } else { sample - wrapper });
        }
    }
    Ok(rows)
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut results = Vec::new();
    for flows in &arguments.flows {
        results.push((*flows, measure(*flows, arguments.rounds)?));
    }
    let text = if arguments.json {
        table::json(&results, arguments.rounds)
    } else {
        table::text(&results)
    };
    println!("{text}");
    Ok(())
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("onearm-bench: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onearm-bench: {error:#}");
            ExitCode::from(5)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let parse = |words: &[&str]| parse(words.iter().map(ToString::to_string));
        let arguments = parse(&["--flows", "10_000", "--json", "--rounds", "3"]).unwrap();
        assert_eq!(
            (arguments.flows, arguments.rounds, arguments.json),
            (vec![10_000], 3, true)
        );
        assert_eq!(parse(&[]).unwrap().flows, [100_000, 1_000_000]);
        for wrong in [
            &["--flows"][..],
            &["--flows", "7"],
            &["--rounds", "x"],
            &["--fast"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!((table::median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
    }
}
