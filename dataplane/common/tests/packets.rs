//! The packet logic over ordinary memory: every case of `cases`, then what only this tier can do.
#![expect(unreachable_pub, reason = "files shared with dataplane/tests")]

mod cases;
#[path = "packets/conversations.rs"]
mod conversations;
#[path = "packets/decap.rs"]
mod decap;
#[path = "packets/fuzz/mod.rs"]
mod fuzz;
#[path = "packets/host.rs"]
mod host;
#[path = "packets/noise.rs"]
mod noise;
mod support;
#[path = "packets/time.rs"]
mod time;

use host::Host;
use support::Setup;

#[test]
fn every_case_of_the_table_holds() {
    cases::run_all(&mut Host::new(&Setup::classic()));
}

/// Cases of a property test: `make test T=prop N=…` sets `PROPTEST_CASES`.
fn property_cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}
