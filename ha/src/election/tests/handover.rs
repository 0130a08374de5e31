//! Hand-overs that do not go as they should: the peer withdraws, answers late, or the reason goes away.

use super::*;

/// A word of the peer, a Standby, which heard what this node said `unheard_ms` ago.
fn said(bench: &Bench, unheard_ms: u64, signs: Signs) -> PairMessage {
    let mut heard = sign(bench, Kind::Standby, Freshness::Proved, signs);
    if let Some(said) = &mut heard.said {
        said.unheard_nanos = unheard_ms * MS;
    }
    heard
}

/// An Active that yields to its peer since now, for this reason.
fn yielding(why: Input) -> Bench {
    let mut bench = fit_active();
    bench.give(why);
    bench.now = bench.now.plus(3 * MS);
    bench.give(Input::Received(said(&bench, 2, Signs::ARMED)));
    assert_eq!(bench.words(), ["speak", "relay", "yield true"], "{why:?}");
    bench
}

const ORDER: Input = Input::HandOverOrdered { force: false };
const FORCE: Input = Input::HandOverOrdered { force: true };

#[test]
fn a_peer_that_withdraws_is_handed_nothing_and_the_owner_makes_flows_again_at_once() {
    let unfit = FIT.without(Health::LEGS);
    for (health, signs, unable) in [
        (unfit, Signs::default(), Unable::PeerUnfit(unfit)),
        (FIT, Signs::MAINTENANCE, Unable::PeerInMaintenance),
    ] {
        let mut bench = yielding(ORDER);
        bench.now = bench.now.plus(5 * MS);
        let mut heard = said(&bench, 1, signs);
        heard.said.as_mut().unwrap().health = health;
        bench.give(Input::Received(heard));
        assert_eq!(
            bench.take(),
            [Output::Yield(false), Output::RefuseHandOver(unable)]
        );
        bench.pass(SECOND / 5);
        assert_eq!(bench.machine.role(), Role::Active);
        assert!(!bench.machine.signs(bench.now).has(Signs::ARMS));
    }
}

#[test]
fn a_peer_that_withdraws_what_it_asked_for_itself_is_handed_nothing_unless_more_than_that_moves_the_owner() {
    for (order, stays) in [
        (None, true),
        (Some(ORDER), true),
        (Some(FORCE), false),
        (Some(Input::StopOrdered), false),
    ] {
        let mut bench = fit_active();
        let preempts = |bench: &Bench| {
            Input::Received(PairMessage {
                priority: Priority::from_wire(200),
                ..sign(bench, Kind::Preempt, Freshness::Proved, Signs::default())
            })
        };
        bench.give(preempts(&bench));
        bench.now = bench.now.plus(3 * MS);
        bench.give(Input::Received(said(&bench, 2, Signs::ARMED)));
        if let Some(order) = order {
            bench.give(order);
        }
        bench.give(preempts(&bench));
        bench.now = bench.now.plus(5 * MS);
        bench.give(Input::Received(said(&bench, 1, Signs::MAINTENANCE)));
        bench.pass(SECOND / 4);
        assert_eq!(bench.machine.role() == Role::Active, stays, "{order:?}");
    }
}

#[test]
fn what_the_peer_said_before_it_was_armed_and_comes_late_breaks_nothing_off() {
    let mut bench = yielding(ORDER);
    bench.give(Input::Received(said(&bench, 3, Signs::default())));
    bench.pass(30 * MS);
    assert_eq!(bench.machine.role(), Role::Standby);
    assert!(!bench.words().contains(&"yield false".to_owned()));
}

#[test]
fn a_peer_that_is_armed_no_more_is_armed_again() {
    let mut bench = yielding(ORDER);
    bench.now = bench.now.plus(5 * MS);
    bench.give(Input::Received(said(&bench, 1, Signs::default())));
    assert_eq!(bench.words(), ["yield false"]);
    bench.give(Input::Received(said(&bench, 0, Signs::ARMED)));
    assert_eq!(bench.words(), ["relay", "yield true"]);
    bench.pass(30 * MS);
    assert_eq!(bench.machine.role(), Role::Standby);
}

#[test]
fn at_the_last_moment_the_owner_looks_once_more_whether_the_peer_can_take_over() {
    let mut bench = yielding(ORDER);
    bench.give(Input::PeerLegsKnown(false));
    bench.pass(31 * MS);
    assert_eq!(bench.machine.role(), Role::Active);
    let words = bench.words();
    assert!(
        words.ends_with(&["yield false".into(), "refuse PeerLegsUnknown".into()]),
        "{words:?}"
    );
    // Who must let go does.
    let mut bench = yielding(FORCE);
    bench.give(Input::PeerLegsKnown(false));
    bench.pass(31 * MS);
    assert_eq!(bench.machine.role(), Role::Standby);
}

#[test]
fn by_force_a_peer_that_can_is_armed_too_and_one_that_does_not_answer_is_waited_for() {
    let mut bench = fit_active();
    bench.give(FORCE);
    assert_eq!(bench.words(), ["speak"]);
    bench.pass(199 * MS);
    assert_eq!(bench.machine.role(), Role::Active);
    bench.pass(MS);
    assert_eq!(bench.machine.role(), Role::Standby);
    yielding(FORCE);
}

#[test]
fn with_answers_that_come_late_a_hand_over_ends_nevertheless() {
    for (order, stays) in [(ORDER, true), (FORCE, false), (Input::StopOrdered, false)] {
        let mut bench = fit_active();
        let begun = bench.now;
        bench.give(order);
        bench.pass(115 * MS);
        while bench.now < begun.plus(250 * MS) {
            bench.give(Input::Received(said(&bench, 110, Signs::ARMED)));
            bench.pass(11 * MS);
        }
        assert_eq!(bench.machine.role() == Role::Active, stays, "{order:?}");
        let words = bench.words();
        assert!(words.contains(&"yield false".to_owned()), "{words:?}");
        assert_eq!(words.contains(&"refuse NoAnswer".to_owned()), stays, "{order:?}");
    }
}

#[test]
fn an_owner_whose_main_process_is_heard_again_stays_unless_more_than_its_silence_moves_it() {
    let mut bench = yielding(Input::MainFellSilent);
    bench.give(Input::MainSpokeAgain);
    assert_eq!(bench.words(), ["yield false"]);
    bench.pass(SECOND / 4);
    assert_eq!(bench.machine.role(), Role::Active);
    for more in [ORDER, Input::StopOrdered] {
        let mut bench = yielding(Input::MainFellSilent);
        bench.give(more);
        bench.give(Input::MainSpokeAgain);
        bench.pass(30 * MS);
        assert_ne!(bench.machine.role(), Role::Active, "{more:?}");
    }
}

#[test]
fn an_owner_with_a_silent_main_process_that_loses_ownership_takes_no_part() {
    let lapses = |bench: &mut Bench| bench.stall(SECOND);
    let gives_way = |bench: &mut Bench| {
        let better = word(bench, Kind::Owner, Freshness::Proved, 9);
        bench.give(Input::Received(better));
    };
    let is_deaf = |bench: &mut Bench| {
        bench.give(Input::ReceptionAsked(true));
        bench.pass(2 * SECOND);
    };
    let losses: [fn(&mut Bench); 3] = [lapses, gives_way, is_deaf];
    for (number, lose) in losses.into_iter().enumerate() {
        let mut bench = fit_active();
        bench.give(Input::PeerLegsKnown(false));
        bench.give(Input::MainFellSilent);
        assert_eq!(bench.machine.role(), Role::Active, "nobody could take over");
        lose(&mut bench);
        assert_eq!(bench.machine.role(), Role::Initialize, "{number}");
        bench.give(Input::MainSpokeAgain);
        assert_eq!(bench.machine.role(), Role::Standby, "{number}");
    }
}

#[test]
fn what_the_peer_asks_for_is_refused_once_and_what_the_operator_orders_every_time() {
    let mut bench = fit_active();
    bench.give(Input::PeerLegsKnown(false));
    for asks in [true, true, true, false, true] {
        let signs = if asks { Signs::ASKS } else { Signs::default() };
        bench.give(Input::Received(said(&bench, 1, signs)));
    }
    assert_eq!(bench.words(), ["refuse PeerLegsUnknown"; 2]);
    bench.give(ORDER);
    assert_eq!(bench.words(), ["refuse PeerLegsUnknown"]);
}

#[test]
fn a_standby_that_takes_no_part_any_more_says_so_at_once() {
    for input in [
        Input::MainFellSilent,
        Input::StopOrdered,
        Input::LegFailed(LegFault::Down),
    ] {
        let mut bench = fit_standby(authenticated());
        let arms = sign(&bench, Kind::Owner, Freshness::Proved, Signs::ARMS);
        bench.give(Input::Received(arms));
        bench.take();
        bench.give(input);
        let words = bench.words().join(", ");
        assert!(words.contains("disarm, speak"), "{input:?}: {words}");
    }
}

#[test]
fn flows_the_peer_does_not_have_hold_an_operators_hand_over_and_nothing_that_must_be() {
    let cases: [(Input, bool); 4] = [
        (ORDER, true),
        (FORCE, false),
        (Input::StopOrdered, false),
        (Input::MainFellSilent, false),
    ];
    for (order, is_held) in cases {
        let mut bench = fit_active();
        bench.give(Input::PeerHasFlows(false));
        bench.give(order);
        assert_eq!(
            bench.words().contains(&"refuse PeerLacksFlows".to_owned()),
            is_held,
            "{order:?}"
        );
        bench.give(Input::PeerHasFlows(true));
        bench.give(order);
        assert!(!bench.words().iter().any(|word| word.starts_with("refuse")));
    }
}

#[test]
fn a_peer_better_by_priority_alone_waits_for_the_flows_and_one_with_all_legs_does_not() {
    for impaired in [false, true] {
        let mut bench = fit_active();
        if impaired {
            bench.give(Input::OtherLegFailed);
        }
        bench.give(Input::PeerHasFlows(false));
        let asks = PairMessage {
            priority: Priority::from_wire(200),
            ..sign(&bench, Kind::Preempt, Freshness::Proved, Signs::default())
        };
        bench.give(Input::Received(asks));
        assert_eq!(bench.machine.role(), Role::Active);
        assert_eq!(bench.machine.signs(bench.now).has(Signs::ARMS), impaired);
        bench.give(Input::PeerHasFlows(true));
        bench.give(Input::Received(asks));
        assert!(bench.machine.signs(bench.now).has(Signs::ARMS));
    }
}

#[test]
fn the_peer_owns_when_it_has_the_flows_and_not_before() {
    for (order, must) in [(ORDER, false), (FORCE, true), (Input::StopOrdered, true)] {
        let mut bench = yielding(order);
        bench.flushes_work = false;
        let keep_armed = |bench: &mut Bench, span: u64| {
            let end = bench.now.plus(span);
            while bench.now < end {
                bench.give(Input::Received(said(bench, 1, Signs::ARMED)));
                bench.pass(5 * MS);
            }
        };
        keep_armed(&mut bench, 50 * MS);
        assert_eq!(bench.machine.role(), Role::Active);
        assert!(bench.words().contains(&"flush 1".to_owned()), "{order:?}");
        // Of another attempt.
        bench.give(Input::Flushed(0));
        keep_armed(&mut bench, 20 * MS);
        assert_eq!(bench.machine.role(), Role::Active);
        keep_armed(&mut bench, 70 * MS);
        let words = bench.words();
        assert_eq!(bench.machine.role() != Role::Active, must, "{order:?}");
        assert_eq!(
            words.contains(&"refuse PeerLacksFlows".to_owned()),
            !must,
            "{order:?}"
        );

        let mut bench = yielding(order);
        bench.flushes_work = false;
        keep_armed(&mut bench, 50 * MS);
        bench.give(Input::Flushed(1));
        bench.give(Input::DeadlineReached);
        assert_ne!(bench.machine.role(), Role::Active, "{order:?}");
    }
    let mut bench = yielding(Input::MainFellSilent);
    bench.pass(31 * MS);
    assert_ne!(bench.machine.role(), Role::Active, "nobody could flush anything");
}

#[test]
fn a_hand_over_to_a_mere_priority_that_cannot_be_flushed_comes_to_nothing() {
    for impaired in [false, true] {
        let mut bench = fit_active();
        bench.flushes_work = false;
        if impaired {
            bench.give(Input::OtherLegFailed);
        }
        let asks = PairMessage {
            priority: Priority::from_wire(200),
            ..sign(&bench, Kind::Preempt, Freshness::Proved, Signs::default())
        };
        bench.give(Input::Received(asks));
        let end = bench.now.plus(200 * MS);
        while bench.now < end {
            bench.now = bench.now.plus(2 * MS);
            bench.give(Input::Received(said(&bench, 1, Signs::ARMED)));
            bench.pass(3 * MS);
        }
        let words = bench.words();
        assert!(words.contains(&"flush 1".to_owned()), "{words:?}");
        assert_eq!(bench.machine.role() == Role::Active, !impaired, "{words:?}");
        assert!(!words.iter().any(|word| word.starts_with("refuse")), "{words:?}");
    }
}
