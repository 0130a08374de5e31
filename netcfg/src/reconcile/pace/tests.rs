use proptest::prelude::*;

use super::*;

#[expect(clippy::disallowed_methods, reason = "any starting point will do")]
fn start() -> Instant {
    Instant::now()
}

fn key(number: usize) -> Key {
    let [.., high, low] = u32::try_from(number).unwrap().to_be_bytes();
    (IfName::new("leg0").unwrap(), IpAddr::from([10, 0, high, low]))
}

fn keys(count: usize) -> BTreeSet<Key> {
    (0..count).map(key).collect()
}

#[test]
fn a_few_absent_hosts_stay_in_the_kernels_care() {
    let (mut pace, start, wanted) = (Pace::default(), start(), keys(MAX_TRYING));
    for second in 0..60 {
        let now = start + Duration::from_secs(second);
        assert_eq!(pace.select(now, &wanted, |_| Standing::Failed).admitted, wanted);
        assert_eq!(pace.deadline(), None);
    }
}

#[test]
fn many_absent_hosts_take_turns_and_each_gets_one() {
    let count = MAX_TRYING * 3 + 7;
    let (mut pace, start, wanted) = (Pace::default(), start(), keys(count));
    let (mut now, mut tried) = (start, BTreeSet::new());
    // Those never asked before get a short turn each, so that all are asked soon; then the turns are long.
    for turn in [FIRST_TURN, FIRST_TURN, FIRST_TURN, TURN, TURN] {
        let selection = pace.select(now, &wanted, |_| Standing::Unresolved);
        assert_eq!(selection.admitted.len(), MAX_TRYING);
        tried.extend(selection.admitted);
        // Nobody loses the place before the turn is over.
        let same = pace.select(now + turn / 2, &wanted, |_| Standing::Unresolved);
        assert!(same.admitted.is_subset(&tried));
        now = pace.deadline().unwrap();
        assert!(now <= start + turn * 6);
    }
    assert_eq!(tried, wanted);
    assert_eq!(pace.unresolved(), count);
}

#[test]
fn a_host_that_answers_makes_room_at_once() {
    let (mut pace, now, wanted) = (Pace::default(), start(), keys(MAX_TRYING * 2));
    let first = pace.select(now, &wanted, |_| Standing::Unresolved).admitted;
    let standing = |key: &Key| {
        if first.contains(key) {
            Standing::Usable
        } else {
            Standing::Unresolved
        }
    };
    assert_eq!(pace.select(now, &wanted, standing).admitted, wanted);
    assert_eq!(pace.deadline(), None);
}

#[test]
fn a_host_that_is_lost_is_asked_for_at_once_and_only_once() {
    let (mut pace, now, wanted) = (Pace::default(), start(), keys(1));
    pace.select(now, &wanted, |_| Standing::Usable);
    assert_eq!(pace.select(now, &wanted, |_| Standing::Failed).retry, wanted);
    assert_eq!(
        pace.select(now, &wanted, |_| Standing::Failed).retry,
        BTreeSet::new()
    );
    pace.select(now, &wanted, |_| Standing::Usable);
    // Flushed: it is added anew, which asks.
    assert_eq!(
        pace.select(now, &wanted, |_| Standing::Unresolved).retry,
        BTreeSet::new()
    );
}

#[test]
fn a_host_just_lost_comes_before_those_never_seen() {
    let (mut pace, now, wanted) = (Pace::default(), start(), keys(MAX_TRYING * 2));
    let last = key(MAX_TRYING * 2 - 1);
    pace.select(now, &wanted, |key| {
        if *key == last {
            Standing::Usable
        } else {
            Standing::Unresolved
        }
    });
    let selection = pace.select(now + TURN, &wanted, |_| Standing::Failed);
    assert!(selection.admitted.contains(&last) && selection.retry.contains(&last));
}

#[test]
fn a_doubt_is_heard_once_in_a_while_and_only_about_known_hosts() {
    let (mut pace, now, wanted) = (Pace::default(), start(), keys(2));
    pace.select(now, &wanted, |k| {
        if *k == key(0) {
            Standing::Usable
        } else {
            Standing::Unresolved
        }
    });
    assert!(pace.suspect(now, &key(0)));
    assert!(!pace.suspect(now + SUSPECT_PAUSE / 2, &key(0)));
    assert!(pace.suspect(now + SUSPECT_PAUSE, &key(0)));
    assert!(!pace.suspect(now, &key(1)) && !pace.suspect(now, &key(9)));
}

proptest! {
    /// Whatever happens: never more unresolved ones in the kernel's care than allowed, usable ones always, nothing
    /// unwanted, and somebody who waits has a deadline.
    #[test]
    fn the_bound_holds_whatever_happens(
        steps in prop::collection::vec((0usize..400, 0u64..5000, any::<u64>()), 1..20),
    ) {
        let (mut pace, mut now) = (Pace::default(), start());
        for (count, elapsed_ms, seed) in steps {
            now += Duration::from_millis(elapsed_ms);
            let wanted = keys(count);
            let standing = |(_, address): &Key| {
                let IpAddr::V4(address) = address else { unreachable!() };
                match u64::from(address.to_bits()).wrapping_mul(seed | 1) >> 7 & 3 {
                    0 => Standing::Usable,
                    1 => Standing::Failed,
                    _ => Standing::Unresolved,
                }
            };
            let selection = pace.select(now, &wanted, standing);
            let unresolved = selection.admitted.iter().filter(|key| standing(key) != Standing::Usable).count();
            prop_assert!(unresolved <= MAX_TRYING);
            prop_assert!(selection.admitted.is_subset(&wanted));
            prop_assert!(selection.retry.is_subset(&selection.admitted));
            prop_assert!(wanted.iter().all(|key| standing(key) != Standing::Usable || selection.admitted.contains(key)));
            let absent = wanted.iter().filter(|key| standing(key) != Standing::Usable).count();
            prop_assert_eq!(pace.unresolved(), absent);
            prop_assert_eq!(unresolved, absent.min(MAX_TRYING));
            prop_assert_eq!(pace.deadline().is_some(), absent > MAX_TRYING);
        }
    }
}
