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

#[test]
fn the_packet_rules_of_the_manual_name_cases_that_exist() {
    let manual = include_str!("../../../docs/modes.md");
    let (_, rules) = manual.split_once("## Packet rules").expect("the section");
    let known: Vec<&str> = [true, false]
        .into_iter()
        .flat_map(|v6| {
            support::frames::use_v6(v6);
            cases::tables::<Host>()
        })
        .map(|case| case.description)
        .collect();
    for rule in rules.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let named = rule.split('|').nth(3).expect("four columns");
        for name in named.split('`').skip(1).step_by(2) {
            assert!(known.contains(&name), "no case {name:?}");
        }
    }
}

/// Cases of a property test: `make test T=prop N=…` sets `PROPTEST_CASES`.
fn property_cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}
