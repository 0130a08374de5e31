use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(1_000_000_000 + ms * MS)
}

/// Both ends, and every message ever sent.
struct Talk {
    a: Session,
    b: Session,
}

impl Talk {
    fn new() -> Self {
        Self {
            a: Session::new(100, 7),
            b: Session::new(200, 8),
        }
    }

    /// A word each way, `A` first; how each was taken.
    fn exchange(&mut self, ms: u64) -> (Judged, Judged) {
        let from_a = self.a.stamp(at(ms), Kind::Owner);
        let at_b = self.b.judge(at(ms), &from_a);
        let from_b = self.b.stamp(at(ms), Kind::Owner);
        (at_b, self.a.judge(at(ms), &from_b))
    }
}

#[test]
fn two_messages_prove_the_one_and_a_third_the_other() {
    let mut talk = Talk::new();
    let (at_b, at_a) = talk.exchange(0);
    assert_eq!(at_b, taken(Freshness::Unproved, None));
    assert_eq!(at_a, taken(Freshness::Proved, None));
    let (at_b, at_a) = talk.exchange(10);
    assert_eq!(at_b, taken(Freshness::Proved, None));
    assert_eq!(at_a, taken(Freshness::Proved, None));
}

#[test]
fn a_peer_that_hears_nothing_is_known_but_not_proved() {
    let mut talk = Talk::new();
    for ms in 0..3 {
        talk.exchange(ms * 10);
    }
    for ms in (600..2000).step_by(10) {
        let from_a = talk.a.stamp(at(ms), Kind::Owner);
        assert_eq!(talk.b.judge(at(ms), &from_a), taken(Freshness::Known, None));
    }
}

#[test]
fn b04_no_message_of_an_earlier_boot_is_ever_proved() {
    let mut talk = Talk::new();
    let mut recorded = Vec::new();
    for ms in 0..50 {
        recorded.push(talk.a.stamp(at(ms), Kind::Owner));
        talk.b.judge(at(ms), recorded.last().unwrap());
        let from_b = talk.b.stamp(at(ms), Kind::Owner);
        talk.a.judge(at(ms), &from_b);
    }
    // B starts again: it knows nobody.
    let mut b = Session::new(201, 9);
    for stamp in &recorded {
        b.stamp(at(100), Kind::Owner);
        assert_eq!(b.judge(at(100), stamp), taken(Freshness::Unproved, None));
    }
}

#[test]
fn what_was_heard_once_is_dropped_whatever_the_order() {
    let mut talk = Talk::new();
    talk.exchange(0);
    let stamps: Vec<_> = (0..6).map(|_| talk.a.stamp(at(10), Kind::Owner)).collect();
    for i in [3, 0, 5, 1, 4, 2] {
        let judged = talk.b.judge(at(11), &stamps[i]);
        assert!(
            judged.freshness.is_some_and(|f| f != Freshness::Unproved),
            "{i}: {judged:?}"
        );
    }
    for stamp in &stamps {
        assert_eq!(talk.b.judge(at(12), stamp), dropped(Oddity::Repeated));
    }
}

#[test]
fn a_node_put_back_to_a_snapshot_is_believed_again_once_it_has_heard_its_peer() {
    let mut talk = Talk::new();
    for ms in 0..5 {
        talk.exchange(ms * 10);
    }
    let snapshot = talk.a.clone();
    for ms in 5..3000 {
        talk.exchange(ms * 10);
    }
    talk.a = snapshot;
    let (at_b, at_a) = talk.exchange(30_010);
    assert_eq!(
        at_b,
        dropped(Oddity::Repeated),
        "its echo is as old as the snapshot"
    );
    assert_eq!(at_a, taken(Freshness::Proved, None), "it is told what B heard");
    let (at_b, _) = talk.exchange(30_020);
    assert_eq!(at_b, taken(Freshness::Proved, Some(Oddity::WentBack)));
    let (at_b, _) = talk.exchange(30_030);
    assert_eq!(at_b, taken(Freshness::Proved, None));
}

#[test]
fn an_own_message_is_a_loop_and_another_in_the_own_name_is_not() {
    let mut node = Session::new(100, 7);
    let sent = node.stamp(at(0), Kind::Owner);
    assert_eq!(node.judge_own(&sent), Oddity::Own);
    assert_eq!(
        node.judge_own(&Session::new(99, 7).stamp(at(0), Kind::Owner)),
        Oddity::OwnName
    );
}

#[test]
fn the_peer_of_a_cloned_memory_tells_that_there_are_two() {
    let (mut first, mut b) = (Session::new(100, 7), Session::new(200, 8));
    for ms in 0..2000 {
        b.judge(at(ms * 10), &first.stamp(at(ms * 10), Kind::Owner));
        first.judge(at(ms * 10), &b.stamp(at(ms * 10), Kind::Owner));
    }
    let mut second = first.clone();
    for ms in 2000..4000 {
        b.judge(at(ms * 10), &first.stamp(at(ms * 10), Kind::Owner));
        first.judge(at(ms * 10), &b.stamp(at(ms * 10), Kind::Owner));
    }
    assert!(!b.hears_twins(at(40_000)));
    for ms in 4000..4100 {
        let now = at(ms * 10);
        let challenge = b.stamp(now, Kind::Owner);
        first.judge(now, &challenge);
        second.judge(now, &challenge);
        // Whichever speaks first.
        let speaks = if ms % 3 == 0 { &mut second } else { &mut first };
        b.judge(now, &speaks.stamp(now, Kind::Owner));
    }
    assert!(b.hears_twins(at(41_000)) && !b.hears_twins(at(47_000)));
}

#[test]
fn a_restart_is_no_twin_and_two_peers_of_one_name_are() {
    let mut b = Session::new(200, 8);
    let mut talk_with = |a: &mut Session, ms: u64| {
        for _ in 0..2 {
            let challenge = b.stamp(at(ms), Kind::Owner);
            a.judge(at(ms), &challenge);
            let answer = a.stamp(at(ms), Kind::Owner);
            let judged = b.judge(at(ms), &answer);
            if judged.oddity.is_some() {
                return judged.oddity;
            }
        }
        None
    };
    let mut first = Session::new(100, 1);
    let mut second = Session::new(101, 2);
    assert_eq!(talk_with(&mut first, 0), None);
    assert_eq!(talk_with(&mut second, 100), None, "it started again");
    assert_eq!(talk_with(&mut first, 200), Some(Oddity::Twins));
}

#[test]
fn recorded_messages_do_not_keep_a_live_peer_from_proving_itself() {
    let mut old = Session::new(99, 5);
    let recorded: Vec<_> = (0..200).map(|_| old.stamp(at(0), Kind::Owner)).collect();
    let (mut a, mut b) = (Session::new(100, 7), Session::new(200, 8));
    let mut proved_after = None;
    for round in 0_u16..2000 {
        let now = at(1000 + u64::from(round) * 10);
        let from_a = a.stamp(now, Kind::Owner);
        if b.judge(now, &from_a).freshness == Some(Freshness::Proved) {
            proved_after = Some(round);
            break;
        }
        // Ten of them for each of the live ones, each time the last to be heard.
        for stamp in recorded.iter().cycle().skip(usize::from(round) * 10).take(10) {
            b.judge(now, stamp);
        }
        let from_b = b.stamp(now, Kind::Owner);
        a.judge(now, &from_b);
    }
    assert!(
        proved_after.is_some_and(|rounds| rounds < 200),
        "{proved_after:?}"
    );
}

#[test]
fn the_last_words_of_a_life_neither_unseat_the_next_nor_make_it_a_twin() {
    let mut talk = Talk::new();
    for ms in 0..5 {
        talk.exchange(ms * 10);
    }
    // What the first life said on a slow path, or somebody recorded.
    let last_words: Vec<_> = (0..20).map(|_| talk.b.stamp(at(45), Kind::Standby)).collect();
    talk.b = Session::new(201, 9);
    for ms in 5..30 {
        let (_, at_a) = talk.exchange(ms * 10);
        assert!(
            ms < 7 || at_a.freshness.is_some_and(|f| f != Freshness::Unproved),
            "{at_a:?}"
        );
        for stamp in &last_words {
            assert_eq!(talk.a.judge(at(ms * 10), stamp), taken(Freshness::Unproved, None));
        }
    }
    assert!(!talk.a.hears_twins(at(300)));
}

#[test]
fn what_a_peer_said_before_it_went_back_is_dropped_after_that() {
    let mut talk = Talk::new();
    for ms in 0..5 {
        talk.exchange(ms * 10);
    }
    let snapshot = talk.b.clone();
    let mut recorded = Vec::new();
    for ms in 5..20 {
        talk.exchange(ms * 10);
        // These are lost, and recorded.
        recorded.push(talk.b.stamp(at(ms * 10), Kind::Standby));
    }
    talk.b = snapshot;
    for ms in 20..23 {
        talk.exchange(ms * 10);
    }
    for stamp in &recorded {
        assert_eq!(talk.a.judge(at(230), stamp), dropped(Oddity::Repeated));
    }
    let (_, at_a) = talk.exchange(230);
    assert_eq!(at_a, taken(Freshness::Proved, None));
}

#[test]
fn whatever_is_recorded_every_second_turn_and_every_claim_echo_the_peer() {
    let mut old = Session::new(99, 5);
    let mut talk = Talk::new();
    talk.exchange(0);
    let mut proved = 0;
    for round in 1..=100 {
        let now = at(round * 10);
        for _ in 0..10 {
            talk.a.judge(now, &old.stamp(now, Kind::Owner));
        }
        let from_b = talk.b.stamp(now, Kind::Owner);
        talk.a.judge(now, &from_b);
        // On several paths in one turn, all of which are the same.
        let echoes: Vec<_> = (0..3).map(|_| talk.a.stamp(now, Kind::Standby)).collect();
        let judged: Vec<_> = echoes.iter().map(|stamp| talk.b.judge(now, stamp)).collect();
        assert!(judged.iter().all(|one| *one == judged[0]), "{judged:?}");
        proved += usize::from(judged[0] == taken(Freshness::Proved, None));
        let claim = talk.a.stamp(now, Kind::Claim);
        assert_eq!(talk.b.judge(now, &claim), taken(Freshness::Proved, None));
    }
    assert!(proved >= 50, "{proved}");
}

/// One life of the peer's, or several, over two paths that reorder: when each message is said (10 ms apart), how long each path takes
/// (ms), and before which messages the peer starts anew.
fn over_two_paths(delays: &[(u64, u64)], restarts: &[usize]) -> Result<(), TestCaseError> {
    let mut a = Session::new(100, 7);
    let mut lives = vec![Session::new(200, 8)];
    // To whom (0: A, else the life), when, what.
    let mut under_way: Vec<(u64, usize, usize, Stamp)> = Vec::new();
    let mut newest_life = None;
    let mut newest = std::collections::BTreeMap::new();
    let last_said = 10 * delays.len() as u64;
    for ms in 0..last_said + 2_000 {
        let mut arrived: Vec<_> = under_way.extract_if(.., |(due, ..)| *due <= ms).collect();
        arrived.sort_by_key(|(due, ..)| *due);
        for (_, to, from, stamp) in arrived {
            if to > 0 {
                if to == lives.len() {
                    lives[to - 1].judge(at(ms), &stamp);
                }
                continue;
            }
            let judged = a.judge(at(ms), &stamp);
            prop_assert!(
                !matches!(judged.oddity, Some(Oddity::WentBack | Oddity::Twins)),
                "{ms} ms: {judged:?}"
            );
            if !matches!(judged.freshness, Some(Freshness::Proved | Freshness::Known)) {
                continue;
            }
            prop_assert!(
                newest_life.is_none_or(|life| from >= life),
                "{ms} ms: life {from} after {newest_life:?}"
            );
            newest_life = Some(from);
            let before = newest.insert(from, stamp.sequence.max(newest.get(&from).copied().unwrap_or(0)));
            prop_assert_eq!(
                judged.is_late,
                before.is_some_and(|before| stamp.sequence < before),
                "{} ms",
                ms
            );
        }
        if ms % 10 != 0 {
            continue;
        }
        let round = usize::try_from(ms / 10).unwrap();
        if restarts.contains(&round) && round < delays.len() {
            let life = lives.len() as u64;
            lives.push(Session::new(200 + life, 8 + life));
        }
        let life = lives.len();
        for path in 0..2 {
            let (there, back) = delays.get(round).copied().unwrap_or((1, 1));
            let delay = if path == 0 { there } else { back };
            under_way.push((ms + delay, 0, life, lives[life - 1].stamp(at(ms), Kind::Standby)));
            under_way.push((ms + delay, life, 0, a.stamp(at(ms), Kind::Owner)));
        }
    }
    // When it is calm, both are proved.
    let end = last_said + 2_000;
    let life = lives.len() - 1;
    let stamp = lives[life].stamp(at(end), Kind::Standby);
    prop_assert_eq!(a.judge(at(end), &stamp), taken(Freshness::Proved, None));
    let stamp = a.stamp(at(end), Kind::Owner);
    prop_assert_eq!(lives[life].judge(at(end), &stamp), taken(Freshness::Proved, None));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100), ..ProptestConfig::default() })]

    /// However two paths reorder what is said, no late message of an earlier life is believed once the next is known, none sets the
    /// known one back, and nothing of that looks like a snapshot or a clone.
    #[test]
    fn b04_whatever_comes_late_sets_nothing_back(
        delays in prop::collection::vec((0_u64..400, 0_u64..400), 20..120),
        restarts in prop::collection::vec(1_usize..120, 0..4),
    ) {
        over_two_paths(&delays, &restarts)?;
    }

    /// Against a set of all numbers heard: no message of a proved peer is taken twice, and none within the window is lost.
    #[test]
    fn the_window_drops_exactly_what_was_heard(steps in prop::collection::vec((0_u64..40, any::<bool>()), 1..400)) {
        let mut known = Known::new(at(0), &Stamp { incarnation: 1, sequence: 1, echo: None }, 0);
        let mut heard = std::collections::BTreeSet::from([1]);
        let mut newest = 1_u64;
        for (distance, forward) in steps {
            let sequence = if forward { newest + distance * 30 } else { newest.saturating_sub(distance * 37).max(1) };
            newest = newest.max(sequence);
            let expected = if newest - sequence >= WINDOW as u64 { None } else { Some(heard.insert(sequence)) };
            prop_assert_eq!(known.note(at(1), sequence), expected, "{} of {}", sequence, newest);
        }
    }
}
