//! The packet logic over ordinary memory: every case of `cases`, then what only this tier can do.
#![expect(unreachable_pub, reason = "files shared with dataplane/tests")]

mod cases;
#[path = "packets/conversations.rs"]
mod conversations;
#[path = "packets/counts.rs"]
mod counts;
#[path = "packets/decap.rs"]
mod decap;
#[path = "packets/fuzz/mod.rs"]
mod fuzz;
#[path = "packets/fuzzing.rs"]
mod fuzzing;
#[path = "packets/host/mod.rs"]
mod host;
#[path = "packets/noise.rs"]
mod noise;
#[path = "packets/room.rs"]
mod room;
mod support;
#[path = "packets/time.rs"]
mod time;

use host::Host;
use support::Setup;

/// How each program may end: verdicts, and the phases it hands packets to. The main program is IPv4's, the next one is IPv6's
/// in its place; all others exist for both.
const ENDINGS: [(&str, &str); 19] = [
    (
        "Receive",
        "PASS DROP TX REDIRECT Neighbour Miss Forward Answer Relay Fragment Extensions Receive6",
    ),
    (
        "Receive6",
        "PASS DROP TX REDIRECT Neighbour Miss Forward Answer Relay Extensions",
    ),
    ("Extensions", "Miss Fragment Lookup"),
    ("Lookup", "DROP TX REDIRECT Miss Forward Answer Relay"),
    ("Neighbour", "PASS DROP TX"),
    (
        "Miss",
        "PASS DROP Schedule Forward Answer Transit Relay IcmpError",
    ),
    ("Schedule", "DROP Evict Create Direct Mss"),
    ("Evict", "DROP Evict Create"),
    ("Create", "DROP Create Evict Search Forward"),
    ("Search", "DROP Search Evict Create"),
    ("Direct", "DROP TX REDIRECT Answer"),
    ("DirectForward", "DROP TX REDIRECT Answer Relay"),
    ("Mss", "Forward Direct"),
    ("Forward", "DROP TX REDIRECT Answer Relay Mss DirectForward"),
    ("Fragment", "PASS DROP TX REDIRECT Miss Forward Answer Relay"),
    ("IcmpError", "DROP TX REDIRECT Miss Forward Relay"),
    ("Transit", "PASS DROP TX REDIRECT Answer Relay"),
    ("Answer", "PASS DROP TX"),
    ("Relay", "DROP TX"),
];

/// Of the endings above, those a family does not have.
fn is_elsewhere(v6: bool, program: &str, ending: &str) -> bool {
    match (program, ending) {
        // Nobody divides an IPv6 packet.
        ("Receive", _) | ("Answer", "PASS") => v6,
        ("Receive6", _) => !v6,
        _ => false,
    }
}

#[test]
fn every_case_of_the_table_holds_and_each_program_ends_in_every_way_there_is() {
    let mut host = Host::new(&Setup::classic());
    cases::run_all(&mut host);
    let mut wanted = std::collections::BTreeSet::new();
    for (program, endings) in ENDINGS {
        for (v6, ending) in [false, true]
            .into_iter()
            .flat_map(|v6| endings.split(' ').map(move |e| (v6, e)))
        {
            if !is_elsewhere(v6, program, ending) {
                wanted.insert((v6, program, ending));
            }
        }
    }
    let met: std::collections::BTreeSet<_> = host.endings.borrow().keys().copied().collect();
    let missing: Vec<_> = wanted.difference(&met).collect();
    let unknown: Vec<_> = met.difference(&wanted).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "no case for {missing:?}; not in the table: {unknown:?}"
    );
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

/// An outside client with this port, and the first server.
fn talk(port: u16) -> cases::Talk {
    cases::Talk {
        client: support::frames::End(support::frames::ip("192.168.10.50"), port),
        client_mac: support::setup::ROUTER_MAC,
        vip: support::frames::end("192.168.100.100:80"),
        server: support::frames::end("192.168.100.10:80"),
        server_mac: support::setup::S1_MAC,
    }
}
