//! Arbitrary frames against a second, naive implementation of the contract ([`crate::fuzz::expect`]): what must become of each, byte for
//! byte, with every checksum made from nothing.
//!
//! `make fuzz T=seconds` goes on with ever new seeds for that long. A failure prints the shortest sequence of events found
//! that shows it; saved in `tests/corpus/` it is a regression test.

use crate::{
    fuzz::{
        draw::{Op, op},
        judge::{Event, Judge},
        script,
        setups::{Family, SETUPS, setup},
    },
    support::Engine,
};
use onearm_dataplane_common::counter::COUNTERS;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};
use std::{cell::RefCell, collections::BTreeMap, time::Duration};

/// What was met so far: counters, and how programs ended.
#[derive(Default)]
struct Coverage {
    counters: BTreeMap<&'static str, u64>,
    endings: BTreeMap<(bool, &'static str, &'static str), u64>,
}

impl Coverage {
    fn add(&mut self, judge: &Judge) {
        for (name, n) in &judge.met {
            *self.counters.entry(name).or_default() += n;
        }
        for (ending, n) in judge.host.endings.borrow().iter() {
            *self.endings.entry(*ending).or_default() += n;
        }
    }

    fn print(&self) {
        println!("\ncounter                      packets");
        for (_, name) in COUNTERS {
            println!("{name:28} {}", self.counters.get(name).unwrap_or(&0));
        }
        println!("\nprogram          ends in             IPv4         IPv6");
        let of = |key| self.endings.get(&key).unwrap_or(&0);
        let kinds: std::collections::BTreeSet<_> = self.endings.keys().map(|(_, p, e)| (p, e)).collect();
        for (program, ending) in kinds {
            let (four, six) = (of((false, program, ending)), of((true, program, ending)));
            println!("{program:16} {ending:13} {four:>12} {six:>12}");
        }
    }
}

/// Runs events; on failure what is wrong and all that happened.
fn run(name: &str, family: Family, ops: &[Op], coverage: &RefCell<Coverage>) -> Result<(), String> {
    let mut judge = Judge::new(&setup(name, family));
    let outcome = ops.iter().try_for_each(|op| {
        (0..op.steps()).try_for_each(|step| {
            let events = op.events(step, family, &judge.host.entries(), &judge.given);
            events.iter().try_for_each(|event| judge.happen(event))
        })
    });
    coverage.borrow_mut().add(&judge);
    outcome.map_err(|wrong| format!("{wrong}\n\n{}", script::print(name, family, &judge.history)))
}

fn ops() -> impl Strategy<Value = (usize, usize, Vec<Op>)> {
    (
        0..SETUPS.len(),
        0..Family::ALL.len(),
        prop_oneof![3 => prop::collection::vec(op(), 1..60), 1 => prop::collection::vec(op(), 60..200)],
    )
}

/// `cases` random histories from a seed.
fn explore(seed: u64, cases: u32, coverage: &RefCell<Coverage>) {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&ops(), |(n, family, ops)| {
        run(SETUPS[n], Family::ALL[family], &ops, coverage).map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, _)) => panic!("seed {seed}: {reason}"),
        Err(abort) => panic!("seed {seed}: {abort}"),
    }
}

#[test]
fn every_accepted_frame_is_what_the_naive_reference_makes_of_it() {
    for seed in 0..u64::from(crate::property_cases(256) / 64) {
        explore(seed, 64, &RefCell::default());
    }
}

/// `make fuzz T=…` sets `ONEARM_FUZZ_SECONDS`, and may set `ONEARM_FUZZ_SEED`.
#[test]
#[ignore = "runs as long as it is told to: make fuzz T=seconds"]
fn fuzz() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("ONEARM_FUZZ_SECONDS").expect("ONEARM_FUZZ_SECONDS");
    #[expect(
        clippy::disallowed_methods,
        reason = "the test's own time, and a seed that nobody chose"
    )]
    let (start, any_seed) = (std::time::Instant::now(), std::time::SystemTime::now());
    let since = any_seed
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let first = number("ONEARM_FUZZ_SEED").unwrap_or(since << 20);
    println!("seeds from {first}");
    let coverage = RefCell::default();
    let mut seed = first;
    while start.elapsed() < Duration::from_secs(seconds) {
        explore(seed, 256, &coverage);
        seed += 1;
    }
    coverage.borrow().print();
    println!("{} random histories, nothing wrong", (seed - first) * 256);
}

#[test]
fn what_was_wrong_once_stays_right() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut failed = Vec::new();
    for file in std::fs::read_dir(&folder).expect("tests/corpus") {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let (name, family, events) =
            script::parse(&text).unwrap_or_else(|| panic!("{} is no script", path.display()));
        let mut judge = Judge::new(&setup(&name, family));
        if let Err(wrong) = events.iter().try_for_each(|event: &Event| judge.happen(event)) {
            failed.push(format!("{}: {wrong}", path.display()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
