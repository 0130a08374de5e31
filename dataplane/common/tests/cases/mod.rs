//! The table of packet cases, run over ordinary memory and in the kernel.

mod balanced;

use crate::support::{Engine, Setup, Verdict};

/// One rule, checked by a few frames.
pub struct Case<E: Engine> {
    pub description: &'static str,
    pub setup: fn() -> Setup,
    pub check: fn(&mut E),
}

/// Shorthand for a table row.
pub fn case<E: Engine>(description: &'static str, setup: fn() -> Setup, check: fn(&mut E)) -> Case<E> {
    Case {
        description,
        setup,
        check,
    }
}

/// Runs every case, each from an empty table; names all that fail.
pub fn run_all<E: Engine>(engine: &mut E) {
    let cases: Vec<Case<E>> = [balanced::cases()].into_iter().flatten().collect();
    let mut failed = Vec::new();
    for case in &cases {
        engine.load(&(case.setup)());
        let check = std::panic::AssertUnwindSafe(|| (case.check)(engine));
        if std::panic::catch_unwind(check).is_err() {
            eprintln!("FAILED: {}; counters {:?}", case.description, engine.counters());
            failed.push(case.description);
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} cases failed: {failed:#?}",
        failed.len(),
        cases.len()
    );
}

/// Expects a verdict and returns the frame.
#[track_caller]
pub fn expect<E: Engine>(engine: &mut E, frame: &[u8], verdict: Verdict) -> Vec<u8> {
    let (got, out) = engine.run(frame);
    assert_eq!(got, verdict, "counters {:?}", engine.counters());
    out
}
