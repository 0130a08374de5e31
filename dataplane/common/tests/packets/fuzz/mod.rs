//! Arbitrary frames against a second, naive implementation of the contract ([`expect`]): what must become of each, byte for
//! byte, with every checksum made from nothing.
//!
//! `make fuzz T=seconds` goes on with ever new seeds for that long. A failure prints the shortest sequence of events found
//! that shows it; saved in `tests/corpus/` it is a regression test.

mod draw;
mod expect;
mod judge;
mod read;
mod script;
mod write;

use crate::support::{
    Engine, Setup,
    frames::use_v6,
    setup::{ServiceSpec, prefix},
};
use draw::{Op, op};
use judge::{Event, Judge};
use onearm_dataplane_common::maps::{Limits, Tunnel, hairpin, mode, proto, scheduler, service};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};
use std::time::Duration;

const SETUPS: [&str; 2] = ["roomy", "tight"];

/// A setup by name.
fn setup(name: &str) -> Setup {
    let spec = |port, mode, hairpin, scheduler, servers| ServiceSpec {
        port,
        proto: if (53..=56).contains(&port) {
            proto::UDP
        } else {
            proto::TCP
        },
        mode,
        hairpin,
        scheduler,
        servers,
        ..ServiceSpec::DNAT
    };
    let (both, dnat) = (mode::BOTH_NAT, mode::DNAT);
    let mut setup = Setup::classic()
        .with(&spec(80, both, hairpin::OFF, scheduler::WRR, &[1, 2]))
        .with(&spec(
            81,
            dnat,
            hairpin::AUTO,
            scheduler::MAGLEV,
            &[1, 2, 3, 4, 5],
        ))
        .with(&spec(53, both, hairpin::OFF, scheduler::WLC, &[1, 4, 5]))
        .with(&spec(54, dnat, hairpin::OFF, scheduler::SOURCE_HASH, &[2, 3, 4]))
        .with(&spec(443, dnat, hairpin::LISTED, scheduler::WRR, &[1, 2]))
        .with(&spec(82, mode::DSR, hairpin::OFF, scheduler::WRR, &[1, 2, 5]))
        .with(&spec(
            55,
            mode::DSR,
            hairpin::OFF,
            scheduler::MAGLEV,
            &[1, 2, 3, 4],
        ))
        .with(&spec(
            83,
            mode::L3_DSR,
            hairpin::OFF,
            scheduler::WRR,
            &[1, 3, 4, 5],
        ))
        .with(&spec(84, mode::L3_DSR, hairpin::OFF, scheduler::MAGLEV, &[1, 3]))
        .with(&spec(
            56,
            mode::L3_DSR,
            hairpin::OFF,
            scheduler::SOURCE_HASH,
            &[2, 3],
        ))
        .with(&spec(
            85,
            mode::DSR | mode::RULES,
            hairpin::AUTO,
            scheduler::WRR,
            &[1, 2],
        ));
    for (service, port) in [(7, 0), (8, 6_080), (9, 0)] {
        let tunnel = Tunnel {
            port: u16::to_be(port),
            ..Tunnel::default()
        };
        setup.tunnels.push((service, tunnel));
    }
    for (host, mode) in [
        ("192.168.10.50", both),
        ("192.168.10.51", dnat),
        ("10.9.0.7", mode::L3_DSR),
    ] {
        setup.mode_rules.push(prefix(10, host, 32, u32::from(mode)));
    }
    setup.tunnels.push((10, Tunnel::default()));
    setup.hairpin.push(prefix(4, "192.168.10.0", 24, 1));
    setup.servers[1].1.port = 8_080_u16.to_be();
    setup.node.relay_to_peer = 1;
    setup.buckets = 64;
    if name == "tight" {
        setup.node.relay_to_peer = 0;
        setup.node.half_open_budget = 2;
        setup.buckets = 1;
        setup.pools[0].1.last = setup.pools[0].1.first + 1;
        setup.service[0].1.options |= service::LIMITED;
        let limits = Limits {
            max_per_source: 2,
            max_connections: 3,
            ..Limits::default()
        };
        setup.limits.push((0, limits));
    }
    setup.node.flow_bucket_mask = setup.buckets - 1;
    setup.node.flow6_bucket_mask = setup.buckets - 1;
    setup
}

/// Runs events; on failure what is wrong and all that happened.
fn run(
    name: &str,
    v6: bool,
    events: impl FnOnce(&mut dyn FnMut(&Op) -> Result<(), String>) -> Result<(), String>,
) -> Result<(), String> {
    use_v6(v6);
    let mut judge = Judge::new(&setup(name));
    let outcome = events(&mut |op| {
        let event = op.event(&judge.host.entries());
        judge.happen(&event)
    });
    use_v6(false);
    outcome.map_err(|wrong| format!("{wrong}\n\n{}", script::print(name, v6, &judge.history)))
}

fn ops() -> impl Strategy<Value = (usize, bool, Vec<Op>)> {
    (0..SETUPS.len(), any::<bool>(), prop::collection::vec(op(), 1..60))
}

/// `cases` random histories from a seed.
fn explore(seed: u64, cases: u32) {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&ops(), |(n, v6, ops)| {
        let each = |happen: &mut dyn FnMut(&Op) -> Result<(), String>| ops.iter().try_for_each(happen);
        run(SETUPS[n], v6, each).map_err(TestCaseError::fail)
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
        explore(seed, 64);
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
    let mut seed = first;
    while start.elapsed() < Duration::from_secs(seconds) {
        explore(seed, 256);
        seed += 1;
    }
    println!("{} random histories, nothing wrong", (seed - first) * 256);
}

#[test]
fn what_was_wrong_once_stays_right() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut failed = Vec::new();
    for file in std::fs::read_dir(&folder).expect("tests/corpus") {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let (name, v6, events) =
            script::parse(&text).unwrap_or_else(|| panic!("{} is no script", path.display()));
        use_v6(v6);
        let mut judge = Judge::new(&setup(&name));
        if let Err(wrong) = events.iter().try_for_each(|event: &Event| judge.happen(event)) {
            failed.push(format!("{}: {wrong}", path.display()));
        }
        use_v6(false);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
