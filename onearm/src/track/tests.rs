use onearm_ha::auth::Health;
use onearm_ha::units::MonoTime;
use proptest::prelude::*;

use super::{Input, Output, Tracking};
use crate::config::{PairConfig, Source, parse_pair};
use crate::control::{TrackedKind, TrackedState};

const PAIR: &str = include_str!("../../../etc/examples/pair.toml");

fn pair(track: &str) -> PairConfig {
    let text = PAIR.replace("vrid = 51 ", &format!("{track}\nvrid = 51 "));
    let read = parse_pair(Source::new("pair.toml", text)).parsed;
    assert!(read.diagnostics.is_empty(), "{:?}", read.diagnostics);
    read.config
}

fn script() -> PairConfig {
    pair(
        "track = { hold = \"10s\", scripts = [{ name = \"up\", command = [\"/bin/true\"], interval = \"1s\", timeout = \"500ms\", \
         rise = 2, fall = 3 }] }",
    )
}

fn quorum() -> PairConfig {
    // The service's check: every 2 s, 1 s, rise 2, fall 3.
    pair("track = { hold = \"0s\", quorum = [{ service = \"web\", servers = 2 }] }")
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(1_000_000_000_000 + ms * 1_000_000)
}

fn outputs(tracking: &mut Tracking) -> Vec<Output> {
    std::iter::from_fn(|| tracking.poll_output()).collect()
}

fn ended(tracking: &mut Tracking, ms: u64, good: bool) {
    let detail = "said so".to_owned();
    tracking.handle(
        at(ms),
        Input::ScriptEnded {
            script: 0,
            good,
            detail,
        },
    );
}

fn turns(outputs: &[Output]) -> Vec<bool> {
    let good = |output: &Output| match output {
        Output::Report { good, .. } => Some(*good),
        Output::RunScript(_) => None,
    };
    outputs.iter().filter_map(good).collect()
}

#[test]
fn a_script_runs_at_its_interval_and_never_beside_itself() {
    let mut tracking = Tracking::new(at(0), &script());
    assert_eq!(tracking.deadline(), Some(at(0)));
    assert!(!tracking.health().has(Health::SCRIPTS), "nothing is known yet");
    assert!(tracking.health().has(Health::SERVERS), "no quorum is asked for");
    tracking.handle(at(0), Input::TimePassed);
    assert_eq!(outputs(&mut tracking), [Output::RunScript(0)]);
    tracking.handle(at(5_000), Input::TimePassed);
    assert_eq!((outputs(&mut tracking), tracking.deadline()), (vec![], None));
    ended(&mut tracking, 5_000, true);
    assert_eq!(outputs(&mut tracking), [Output::RunScript(0)], "it is late");
    ended(&mut tracking, 5_100, true);
    assert_eq!(
        (outputs(&mut tracking), tracking.deadline()),
        (vec![], Some(at(6_000)))
    );
    assert!(tracking.health().has(Health::SCRIPTS));
}

#[test]
fn b33_a_script_on_the_edge_changes_nothing_and_a_steady_failure_changes_it_once() {
    for pattern in [vec![true, false], vec![false, false, true]] {
        for active in [false, true] {
            let mut tracking = Tracking::new(at(0), &script());
            tracking.handle(at(0), Input::OwnershipChanged(active));
            ended(&mut tracking, 0, true);
            for (second, good) in (1..60).zip(pattern.iter().cycle()) {
                ended(&mut tracking, second * 1_000, *good);
                assert!(tracking.health().has(Health::SCRIPTS), "{pattern:?} {second}");
            }
            assert_eq!(turns(&outputs(&mut tracking)), [] as [bool; 0]);
        }
    }
    let mut tracking = Tracking::new(at(0), &script());
    ended(&mut tracking, 0, true);
    for second in 1..60 {
        ended(&mut tracking, second * 1_000, false);
        assert_eq!(tracking.health().has(Health::SCRIPTS), second < 3, "{second}");
    }
    assert_eq!(turns(&outputs(&mut tracking)), [false]);
    let view = tracking.view(at(60_000)).remove(0);
    assert_eq!(
        (view.kind, view.state),
        (TrackedKind::Script, TrackedState::Failed)
    );
    assert_eq!(
        (view.counts, view.since_ms, &*view.detail),
        (true, 57_000, "said so")
    );
}

#[test]
fn an_active_gives_way_one_round_later_and_another_node_comes_back_after_the_hold() {
    let mut tracking = Tracking::new(at(0), &script());
    tracking.handle(at(0), Input::OwnershipChanged(true));
    ended(&mut tracking, 0, true);
    for second in 1..=3 {
        ended(&mut tracking, second * 1_000, false);
    }
    // One round: 1 s, 500 ms, and 1 s until it is heard of.
    assert!(tracking.health().has(Health::SCRIPTS));
    assert!(!tracking.view(at(3_000))[0].counts);
    tracking.handle(at(5_499), Input::TimePassed);
    assert!(tracking.health().has(Health::SCRIPTS));
    assert!(tracking.deadline().is_some_and(|due| due <= at(5_500)));
    tracking.handle(at(5_500), Input::TimePassed);
    assert!(!tracking.health().has(Health::SCRIPTS));
    tracking.handle(at(5_600), Input::OwnershipChanged(false));
    ended(&mut tracking, 6_000, true);
    ended(&mut tracking, 7_000, true);
    tracking.handle(at(16_999), Input::TimePassed);
    assert!(!tracking.health().has(Health::SCRIPTS));
    tracking.handle(at(17_000), Input::TimePassed);
    assert!(tracking.health().has(Health::SCRIPTS));
    assert_eq!(turns(&outputs(&mut tracking)), [false, true]);
}

#[test]
fn an_owner_that_has_it_again_says_so_at_once() {
    let mut tracking = Tracking::new(at(0), &script());
    ended(&mut tracking, 0, false);
    assert!(!tracking.health().has(Health::SCRIPTS));
    tracking.handle(at(10), Input::OwnershipChanged(true));
    assert!(
        !tracking.health().has(Health::SCRIPTS),
        "what is missing stays so"
    );
    ended(&mut tracking, 1_000, true);
    ended(&mut tracking, 2_000, true);
    assert!(tracking.health().has(Health::SCRIPTS));
}

fn seen(tracking: &mut Tracking, ms: u64, up: usize, pending: usize) {
    let input = Input::ServersSeen {
        quorum: 0,
        up,
        pending,
        of: 3,
    };
    tracking.handle(at(ms), input);
}

#[test]
fn a_quorum_waits_until_its_servers_are_known() {
    let mut tracking = Tracking::new(at(0), &quorum());
    seen(&mut tracking, 10, 1, 1);
    assert_eq!(tracking.view(at(10))[0].state, TrackedState::Pending);
    assert!(!tracking.health().has(Health::SERVERS));
    seen(&mut tracking, 20, 2, 0);
    assert!(tracking.health().has(Health::SERVERS));
    seen(&mut tracking, 30, 1, 1);
    assert!(tracking.health().has(Health::SERVERS));
    seen(&mut tracking, 40, 1, 0);
    assert!(!tracking.health().has(Health::SERVERS));
    assert_eq!(turns(&outputs(&mut tracking)), [false]);
    assert_eq!(
        tracking.view(at(40))[0].detail,
        "1 of 3 servers are up, 2 must be"
    );
}

proptest! {
    /// Both nodes see the same servers, each late by its own time, at most that of a round of checks.
    #[test]
    fn what_both_nodes_lose_and_get_back_never_makes_the_other_node_better(
        changes in prop::collection::vec((1_000_u64..60_000, 0_u64..5_000, 0_u64..5_000), 1..12),
    ) {
        let (mut active, mut standby) = (Tracking::new(at(0), &quorum()), Tracking::new(at(0), &quorum()));
        active.handle(at(0), Input::OwnershipChanged(true));
        seen(&mut active, 0, 3, 0);
        seen(&mut standby, 0, 3, 0);
        let mut time = 10_000;
        let mut seen_by: Vec<(u64, bool, usize)> = Vec::new();
        for (number, (after, by_active, by_standby)) in changes.into_iter().enumerate() {
            time += after.max(6_000);
            let up = if number % 2 == 0 { 0 } else { 3 };
            seen_by.push((time + by_active, true, up));
            seen_by.push((time + by_standby, false, up));
        }
        seen_by.sort_unstable();
        let end = time + 60_000;
        for ms in (10_000..end).step_by(100) {
            for (_, by_active, up) in seen_by.iter().filter(|(when, ..)| when / 100 == ms / 100) {
                seen(if *by_active { &mut active } else { &mut standby }, ms, *up, 0);
            }
            active.handle(at(ms), Input::TimePassed);
            standby.handle(at(ms), Input::TimePassed);
            prop_assert!(standby.health() <= active.health(), "at {ms} ms");
        }
    }
}
