//! Frames nobody would send, drawn as for the fuzz of user space, through the kernel and through memory.

use crate::{
    both::{Both, End, now},
    fuzz::{
        draw::{Op, op},
        script,
        setups::{Family, SETUPS, setup},
    },
    kernel::Kernel,
    support::Engine,
};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};
use std::cell::RefCell;

/// Operations of one history.
const MOST_OPS: usize = 150;

#[derive(Default)]
struct Tally {
    frames: u64,
    histories: u64,
    given_up: u64,
    /// Identifications given in the history before.
    ids: Vec<u32>,
}

fn run(kernel: &mut Kernel, name: &str, family: Family, ops: &[Op], tally: &mut Tally) -> Result<(), String> {
    let mut both = Both::new(kernel, &setup(name, family), &tally.ids);
    let outcome = ops.iter().try_for_each(|op| {
        (0..op.steps()).try_for_each(|step| {
            let events = op.events(step, family, &both.judge.host.entries(), &both.judge.given);
            events.iter().try_for_each(|event| both.happen(event))
        })
    });
    tally.frames += both.frames;
    tally.histories += 1;
    tally.ids = both.ids();
    match outcome {
        Ok(()) => Ok(()),
        Err(End::Clock) => {
            tally.given_up += 1;
            Ok(())
        }
        Err(End::Wrong(wrong)) => Err(format!(
            "{wrong}\n\n{}",
            script::print(name, family, &both.judge.history)
        )),
    }
}

/// For `ONEARM_FUZZ_SECONDS`, else a few seconds; `ONEARM_FUZZ_SEED` repeats a run.
#[test]
#[ignore = "needs root"]
fn the_kernel_makes_of_arbitrary_frames_what_user_space_makes_of_them() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    // A run of a given length looks for what is new, any other sees that what held still holds.
    let fresh = || {
        if number("ONEARM_FUZZ_SECONDS").is_some() {
            now()
        } else {
            1
        }
    };
    let mut seed = number("ONEARM_FUZZ_SEED").unwrap_or_else(fresh);
    println!("seeds from {seed}");
    let kernel = RefCell::new(Kernel::new());
    let end = now() + number("ONEARM_FUZZ_SECONDS").unwrap_or(15) * 1_000_000_000;
    let tally = RefCell::new(Tally::default());
    while now() < end {
        let config = Config {
            cases: 16,
            failure_persistence: None,
            max_shrink_iters: 400,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let strategy = (
            0..SETUPS.len(),
            0..Family::ALL.len(),
            prop::collection::vec(op(), 1..MOST_OPS),
        );
        let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |(name, family, ops)| {
            run(
                &mut kernel.borrow_mut(),
                SETUPS[name],
                Family::ALL[family],
                &ops,
                &mut tally.borrow_mut(),
            )
            .map_err(TestCaseError::fail)
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, _)) => panic!("seed {seed}: {reason}"),
            Err(abort) => panic!("seed {seed}: {abort}"),
        }
        seed += 1;
    }
    let tally = tally.borrow();
    println!(
        "{} frames in {} histories, {} given up",
        tally.frames, tally.histories, tally.given_up
    );
    assert!(
        tally.given_up * 2 < tally.histories,
        "the clocks spoil most histories"
    );
}

#[test]
#[ignore = "needs root"]
fn what_was_wrong_once_stays_right_in_the_kernel() {
    let mut kernel = Kernel::new();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("common/tests/corpus");
    let mut ids = Vec::new();
    for file in std::fs::read_dir(&folder).expect("the corpus") {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let (name, family, events) = script::parse(&text).expect("a script");
        let mut both = Both::new(&mut kernel, &setup(&name, family), &ids);
        for event in &events {
            match both.happen(event) {
                Ok(()) | Err(End::Clock) => {}
                Err(End::Wrong(wrong)) => panic!("{}: {wrong}", path.display()),
            }
        }
        ids = both.ids();
    }
}
