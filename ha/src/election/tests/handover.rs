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

/// Lets time pass with a peer, a Standby, that is heard every 50 ms.
fn beside_a_peer(bench: &mut Bench, nanos: u64, signs: Signs) {
    let end = bench.now.plus(nanos);
    while bench.now < end {
        bench.give(Input::Received(said(bench, 1, signs)));
        bench.pass((50 * MS).min(end.since(bench.now)));
    }
}

/// What was said of hand-overs since the last look.
fn of_hand_overs(bench: &mut Bench) -> Vec<String> {
    let mut words = bench.words();
    words.retain(|word| word.starts_with("refuse") || word.starts_with("waits"));
    words
}

/// An Active whose peer lacks flows.
fn ahead() -> Bench {
    let mut bench = fit_active();
    bench.give(Input::PeerHasFlows(false));
    bench
}

#[test]
fn flows_the_peer_does_not_have_hold_an_operators_hand_over_and_nothing_that_must_be() {
    let cases: [(Input, bool); 4] = [
        (ORDER, true),
        (FORCE, false),
        (Input::StopOrdered, false),
        (Input::MainFellSilent, false),
    ];
    for (order, waits) in cases {
        let mut bench = ahead();
        bench.give(order);
        let arms = |bench: &Bench| bench.machine.signs(bench.now).has(Signs::ARMS);
        assert_eq!(arms(&bench), !waits, "{order:?}");
        assert_eq!(bench.machine.status().waits_since.is_some(), waits);
        beside_a_peer(&mut bench, SECOND / 10, Signs::default());
        bench.give(Input::PeerHasFlows(true));
        bench.give(Input::DeadlineReached);
        assert!(arms(&bench), "{order:?}");
        let expected: &[&str] = if waits {
            &["waits true", "waits false"]
        } else {
            &[]
        };
        assert_eq!(of_hand_overs(&mut bench), expected, "{order:?}");
    }
}

#[test]
fn an_operators_hand_over_waits_four_seconds_for_the_flows_and_is_then_refused() {
    let mut bench = ahead();
    bench.give(ORDER);
    beside_a_peer(&mut bench, 4 * SECOND - MS, Signs::default());
    assert_eq!(of_hand_overs(&mut bench), ["waits true"]);
    beside_a_peer(&mut bench, MS, Signs::default());
    assert_eq!(
        of_hand_overs(&mut bench),
        ["waits false", "refuse PeerLacksFlows"]
    );
    assert_eq!(bench.machine.role(), Role::Active);
    assert_eq!(bench.machine.status().waits_since, None);
}

#[test]
fn an_order_given_again_joins_the_one_that_waits() {
    let mut bench = ahead();
    bench.give(ORDER);
    beside_a_peer(&mut bench, 3 * SECOND, Signs::default());
    bench.give(ORDER);
    beside_a_peer(&mut bench, SECOND, Signs::default());
    let words = ["waits true", "waits true", "waits false", "refuse PeerLacksFlows"];
    assert_eq!(of_hand_overs(&mut bench), words);
}

#[test]
fn what_waits_ends_at_once_with_the_peer_with_ownership_and_by_a_contrary_order() {
    type Given = Box<dyn Fn(&Bench) -> Input>;
    let hold = Input::Reconfigured(Settings {
        stance: Stance::Hold,
        ..authenticated()
    });
    let maintenance = Input::Reconfigured(Settings {
        stance: Stance::Maintenance,
        ..authenticated()
    });
    let word = |signs: Signs, health: Health| {
        move |bench: &Bench| {
            let mut heard = said(bench, 1, signs);
            heard.said.as_mut().unwrap().health = health;
            Input::Received(heard)
        }
    };
    let unfit = FIT.without(Health::LEGS);
    let cases: [(Given, Role, &str); 7] = [
        (Box::new(move |_| hold), Role::Active, "refuse Held"),
        (Box::new(word(Signs::HOLDS, FIT)), Role::Active, "refuse Held"),
        (
            Box::new(word(Signs::MAINTENANCE, FIT)),
            Role::Active,
            "refuse PeerInMaintenance",
        ),
        (
            Box::new(word(Signs::default(), unfit)),
            Role::Active,
            "refuse PeerUnfit",
        ),
        (
            Box::new(|_| Input::PeerLegsKnown(false)),
            Role::Active,
            "refuse PeerLegsUnknown",
        ),
        (Box::new(move |_| maintenance), Role::Standby, ""),
        (
            Box::new(|_| Input::LegFailed(LegFault::Down)),
            Role::Initialize,
            "",
        ),
    ];
    for (number, (input, role, refused)) in cases.iter().enumerate() {
        let mut bench = ahead();
        bench.give(ORDER);
        beside_a_peer(&mut bench, SECOND, Signs::default());
        of_hand_overs(&mut bench);
        bench.give(input(&bench));
        bench.give(Input::DeadlineReached);
        let words = of_hand_overs(&mut bench);
        assert_eq!(words[0], "waits false", "{number}");
        assert_eq!(
            words.len(),
            if refused.is_empty() { 1 } else { 2 },
            "{number}: {words:?}"
        );
        assert!(
            words.last().unwrap().starts_with(refused) || refused.is_empty(),
            "{number}: {words:?}"
        );
        assert_eq!(bench.machine.role(), *role, "{number}");
    }
    // One that falls silent is there for half a second.
    let mut bench = ahead();
    bench.give(ORDER);
    bench.pass(6 * SECOND / 10);
    assert_eq!(
        of_hand_overs(&mut bench),
        ["waits true", "waits false", "refuse PeerSilent"]
    );
}

#[test]
fn what_must_be_and_a_peer_that_can_do_more_do_not_wait_with_an_order() {
    for order in [FORCE, Input::StopOrdered, Input::MainFellSilent] {
        let mut bench = ahead();
        bench.give(ORDER);
        bench.give(order);
        assert!(bench.machine.signs(bench.now).has(Signs::ARMS), "{order:?}");
        assert_eq!(
            of_hand_overs(&mut bench),
            ["waits true", "waits false"],
            "{order:?}"
        );
    }
    for impaired in [false, true] {
        let mut bench = ahead();
        bench.give(ORDER);
        if impaired {
            bench.give(Input::OtherLegFailed);
        }
        bench.give(Input::Received(PairMessage {
            priority: Priority::from_wire(200),
            ..sign(&bench, Kind::Preempt, Freshness::Proved, Signs::default())
        }));
        assert_eq!(bench.machine.signs(bench.now).has(Signs::ARMS), impaired);
    }
}

#[test]
fn what_the_peer_asks_for_waits_too_says_so_is_waited_for_once_and_ends_with_the_asking() {
    let mut bench = ahead();
    beside_a_peer(&mut bench, 4 * SECOND - MS, Signs::ASKS);
    assert_eq!(of_hand_overs(&mut bench), ["waits true"]);
    assert_eq!(
        bench.machine.signs(bench.now).refused(),
        Some(Refused::LacksFlows)
    );
    beside_a_peer(&mut bench, SECOND, Signs::ASKS);
    assert_eq!(
        of_hand_overs(&mut bench),
        ["waits false", "refuse PeerLacksFlows"]
    );
    assert_eq!(
        bench.machine.signs(bench.now).refused(),
        Some(Refused::LacksFlows)
    );
    // It is still asked, and could.
    bench.give(Input::PeerHasFlows(true));
    beside_a_peer(&mut bench, 50 * MS, Signs::ASKS);
    assert!(bench.machine.signs(bench.now).has(Signs::ARMS));

    for orders in [false, true] {
        let mut bench = ahead();
        beside_a_peer(&mut bench, SECOND, Signs::ASKS);
        if orders {
            bench.give(ORDER);
        }
        of_hand_overs(&mut bench);
        beside_a_peer(&mut bench, SECOND, Signs::default());
        let expected: &[&str] = if orders { &[] } else { &["waits false"] };
        assert_eq!(of_hand_overs(&mut bench), expected);
    }
}

#[test]
fn who_asks_waits_as_long_as_the_owner_does_and_no_longer() {
    let lacks = Signs::refusing(Refused::LacksFlows);
    for (signs, patience, unable) in [
        (lacks, 5 * SECOND, "refuse PeerRefuses(LacksFlows)"),
        (
            Signs::refusing(Refused::LegsUnknown),
            SECOND,
            "refuse PeerRefuses(LegsUnknown)",
        ),
        (Signs::default(), SECOND, "refuse NoAnswer"),
    ] {
        let mut bench = fit_standby(authenticated());
        let owner = |bench: &Bench, signs| {
            let mut heard = sign(bench, Kind::Owner, Freshness::Proved, signs);
            heard.said.as_mut().unwrap().unheard_nanos = 0;
            Input::Received(heard)
        };
        bench.give(owner(&bench, Signs::default()));
        bench.take();
        let begun = bench.now;
        bench.give(Input::TakeOverOrdered);
        while bench.now < begun.plus(7 * SECOND) && !bench.words().contains(&unable.to_owned()) {
            assert_eq!(
                bench.machine.status().waits_since.is_some(),
                signs == lacks && bench.now > begun
            );
            bench.give(owner(&bench, signs));
            bench.pass(10 * MS);
        }
        assert_eq!(bench.now.since(begun), patience, "{unable}");
    }
    // Who holds asks no more.
    let mut bench = fit_standby(authenticated());
    let owner = |bench: &Bench, signs| Input::Received(sign(bench, Kind::Owner, Freshness::Proved, signs));
    bench.give(owner(&bench, Signs::default()));
    bench.give(Input::TakeOverOrdered);
    bench.give(owner(&bench, lacks));
    bench.give(Input::Reconfigured(Settings {
        stance: Stance::Hold,
        ..authenticated()
    }));
    assert!(bench.words().contains(&"refuse Held".to_owned()));
    assert!(!bench.machine.signs(bench.now).has(Signs::ASKS));
}

#[test]
fn what_cannot_be_flushed_waits_again() {
    let mut bench = yielding(ORDER);
    let begun = bench.now;
    bench.flushes_work = false;
    let mut waited = Vec::new();
    while bench.machine.role() == Role::Active && bench.now < begun.plus(6 * SECOND) {
        let armed = if bench.machine.signs(bench.now).has(Signs::ARMS) {
            Signs::ARMED
        } else {
            Signs::default()
        };
        bench.give(Input::Received(said(&bench, 1, armed)));
        bench.pass(5 * MS);
        waited.extend(of_hand_overs(&mut bench));
        // The fourth attempt can be flushed.
        bench.flushes_work = waited.len() >= 6;
    }
    assert_eq!(waited, ["waits true", "waits false"].repeat(3));
    assert_eq!(bench.machine.role(), Role::Standby);
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
        assert_eq!(words.contains(&"waits true".to_owned()), !must, "{order:?}");

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

fn arms(bench: &Bench) -> bool {
    bench.machine.signs(bench.now).has(Signs::ARMS)
}

/// What was overtaken on its way: the peer has said something else since.
fn late(mut heard: PairMessage) -> PairMessage {
    if let Some(said) = &mut heard.said {
        said.is_late = true;
    }
    heard
}

#[test]
fn an_overtaken_wish_to_own_moves_nothing() {
    for (kind, signs) in [
        (Kind::Idle, Signs::default()),
        (Kind::Standby, Signs::MAINTENANCE),
    ] {
        let mut bench = fit_active();
        let is_now = sign(&bench, kind, Freshness::Proved, signs);
        let wished = PairMessage {
            priority: Priority::from_wire(200),
            ..sign(&bench, Kind::Preempt, Freshness::Proved, Signs::default())
        };
        bench.give(Input::Received(is_now));
        bench.give(Input::Received(late(wished)));
        assert_eq!(bench.machine.role(), Role::Active, "{kind:?}");
    }
}

#[test]
fn an_overtaken_advert_of_an_owner_that_has_released_delays_nothing() {
    let mut bench = fit_standby(authenticated());
    let owner = sign(&bench, Kind::Owner, Freshness::Proved, Signs::default());
    let release = sign(&bench, Kind::Release, Freshness::Proved, Signs::default());
    bench.give(Input::Received(release));
    let due = bench.machine.deadline();
    bench.give(Input::Received(late(owner)));
    assert_eq!(bench.machine.deadline(), due);
}

#[test]
fn a_hold_ends_an_order_until_the_peer_has_been_let_own() {
    for yields in [false, true] {
        let mut bench = if yields { yielding(ORDER) } else { fit_active() };
        if !yields {
            bench.give(ORDER);
            assert!(arms(&bench));
        }
        let holds = said(&bench, 1, Signs::HOLDS.with(Signs::ARMED));
        bench.give(Input::Received(holds));
        bench.pass(5 * MS);
        assert_eq!(bench.machine.role(), Role::Active);
        assert!(!arms(&bench), "yields: {yields}");
        let words = bench.words().join(", ");
        assert!(words.contains("refuse Held"), "{words}");
    }
}

#[test]
fn what_the_peers_operator_alone_wanted_ends_when_it_does_not_ask_any_more() {
    let mut bench = fit_active();
    bench.give(Input::Received(said(&bench, 1, Signs::ASKS)));
    assert!(arms(&bench));
    bench.give(Input::Received(said(&bench, 1, Signs::default())));
    assert!(!arms(&bench));
    // With an order of its own it goes on.
    bench.give(Input::Received(said(&bench, 1, Signs::ASKS)));
    bench.give(ORDER);
    bench.give(Input::Received(said(&bench, 1, Signs::default())));
    assert!(arms(&bench));
}

#[test]
fn an_order_takes_over_what_a_mere_priority_began() {
    let mut bench = fit_active();
    bench.flushes_work = false;
    let asks = PairMessage {
        priority: Priority::from_wire(200),
        ..sign(&bench, Kind::Preempt, Freshness::Proved, Signs::default())
    };
    bench.give(Input::Received(asks));
    assert!(arms(&bench));
    bench.give(ORDER);
    let end = bench.now.plus(4_500 * MS);
    while bench.now < end {
        bench.now = bench.now.plus(2 * MS);
        bench.give(Input::Received(said(&bench, 1, Signs::ARMED)));
        bench.pass(3 * MS);
    }
    assert_eq!(bench.machine.role(), Role::Active);
    assert!(bench.words().contains(&"refuse PeerLacksFlows".to_owned()));
}
