//! Anything may happen, in any order; then the tables become equal, and they were never said to be when they were not.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// So many things happen to flows of so many clients.
    Flows(u16, u16),
    Run(u64),
    Cut,
    Connect,
    Stall(bool),
    Lose(usize, u64),
    Fault(usize, Fault),
    Restart(usize, bool),
    Own(usize, bool),
    /// From one node to the other, the old one first or not.
    HandOver(bool),
    Latency(u64),
}

/// Anything.
pub(crate) fn op() -> impl Strategy<Value = Op> {
    let fault = prop_oneof![
        Just(Fault::Drop),
        Just(Fault::Alter),
        Just(Fault::Duplicate),
        Just(Fault::Swap),
        Just(Fault::DropBody),
        Just(Fault::DuplicateBody),
    ];
    prop_oneof![
        8 => (1_u16..60, 1_u16..300).prop_map(|(n, clients)| Op::Flows(n, clients)),
        8 => (1_u64..40).prop_map(Op::Run),
        1 => (100_u64..3_000).prop_map(Op::Run),
        1 => Just(Op::Cut),
        2 => Just(Op::Connect),
        1 => any::<bool>().prop_map(Op::Stall),
        1 => (0_usize..2, 1_u64..20).prop_map(|(index, n)| Op::Lose(index, n)),
        3 => (0_usize..2, fault).prop_map(|(index, fault)| Op::Fault(index, fault)),
        1 => (0_usize..2, any::<bool>()).prop_map(|(index, fresh)| Op::Restart(index, fresh)),
        1 => (0_usize..2, any::<bool>()).prop_map(|(index, owns)| Op::Own(index, owns)),
        2 => any::<bool>().prop_map(Op::HandOver),
        1 => (0_u64..20_000_000).prop_map(Op::Latency),
    ]
}

/// Lets it happen, then the tables become equal.
pub(crate) fn play<S: Stage>(make_table: fn() -> Arc<S>, seed: u64, ops: &[Op]) {
    let mut pair = Pair::new(make_table, seed);
    for op in ops {
        match *op {
            Op::Flows(n, clients) => {
                for _ in 0..n {
                    let client = u16::try_from(pair.random() % u64::from(clients)).unwrap();
                    for index in 0..2 {
                        if pair.owns(index) {
                            pair.happen(index, client);
                        }
                    }
                    if pair.random().is_multiple_of(8) {
                        pair.tick();
                    }
                }
            }
            Op::Run(ticks) => pair.run(ticks),
            Op::Cut => pair.cut(),
            Op::Connect => pair.connect(),
            Op::Stall(stalled) => pair.stalled = stalled,
            Op::Lose(index, events) => pair.lose(index, events),
            Op::Fault(index, fault) => pair.fault(index, &[fault]),
            Op::Restart(index, fresh) => pair.restart(index, fresh),
            Op::Own(index, owns) => pair.own(index, owns),
            Op::HandOver(old_first) => {
                let from = usize::from(pair.owns(1));
                if old_first {
                    pair.own(from, false);
                    pair.own(1 - from, true);
                } else {
                    pair.own(1 - from, true);
                    pair.run(2);
                    pair.own(from, false);
                }
            }
            Op::Latency(ns) => pair.latency = ns,
        }
    }
    pair.latency = 300_000;
    pair.heal();
}

proptest! {
    #[test]
    fn whatever_happens_the_tables_become_equal_and_are_never_said_to_be_before(
        seed: u64, ops in proptest::collection::vec(op(), 1..60),
    ) {
        play(|| Arc::new(PlainTable::new(16)), seed, &ops);
    }

    #[test]
    fn b44_tables_that_are_too_small_or_full_harm_nothing(
        seed: u64, ops in proptest::collection::vec(op(), 1..40),
    ) {
        // Four buckets a family: 128 places for up to 300 clients. Both full in other places: what fits on one node may not
        // on the other, so that the clients go before the end.
        let mut pair = Pair::new(|| Arc::new(PlainTable::new(4)), seed);
        for n in 0..300 {
            pair.open(0, n, false);
        }
        pair.run(500);
        for op in ops {
            if let Op::Flows(n, clients) = op {
                for _ in 0..n {
                    let client = u16::try_from(pair.random() % u64::from(clients)).unwrap();
                    pair.happen(0, client);
                }
            }
            pair.run(7);
        }
        for n in 60..300 {
            pair.end(0, n);
        }
        pair.heal();
    }
}
