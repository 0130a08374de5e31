#![expect(clippy::disallowed_methods, reason = "any moment will do to begin with")]

use super::*;
use crate::stream::wire::Profile;
use onearm_ha::auth::Key;
use onearm_types::NodeId;
use proptest::prelude::*;

fn keys(pair: u8, ids: &[u16]) -> Arc<PairKeys> {
    let key = |id: &u16| Key {
        id: KeyId(id % 100),
        secret: [u8::try_from(*id).unwrap(); 32],
    };
    Arc::new(PairKeys::new([pair; 16], ids.iter().map(key).collect()).unwrap())
}

fn own(id: u8) -> Own {
    Own {
        introduction: Introduction {
            name: format!("lb{id}"),
            id: NodeId::new(id).unwrap(),
            version: "0.1.0".to_owned(),
            vrid: 51,
            protocols: (1, 1),
            capabilities: Vec::new(),
        },
        keys: keys(7, &[1]),
        bounds: Bounds::DEFAULT,
    }
}

fn profile(text: &str) -> Message {
    Message::Profile(Profile {
        digest: text.to_owned(),
        ..Profile::default()
    })
}

fn take(session: &mut Session, now: Instant) -> Vec<u8> {
    let bytes = session.unwritten(now).to_vec();
    session.wrote(bytes.len());
    bytes
}

fn outputs(session: &mut Session) -> Vec<Output> {
    std::iter::from_fn(|| session.poll_output()).collect()
}

/// Carries everything both ways until nothing is left to carry.
fn carry(now: Instant, one: &mut Session, two: &mut Session) {
    loop {
        let (from_one, from_two) = (take(one, now), take(two, now));
        if from_one.is_empty() && from_two.is_empty() {
            return;
        }
        two.handle(now, Input::Arrived(&from_one));
        one.handle(now, Input::Arrived(&from_two));
    }
}

/// Both sides with what came of it: outputs of node 2, which begins, and of node 1.
fn meet(two: Own, one: Own) -> (Session, Session, Vec<Output>, Vec<Output>) {
    let now = Instant::now();
    let key = two.keys.newest();
    let mut asks = Session::ask(now, two, key).unwrap();
    let mut expects = Session::expect(now, one);
    carry(now, &mut asks, &mut expects);
    let said = (outputs(&mut asks), outputs(&mut expects));
    (asks, expects, said.0, said.1)
}

fn agreed(outputs: &[Output]) -> &Agreed {
    match outputs {
        [Output::Opened(agreed)] => agreed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_nodes_of_a_pair_agree_and_hear_each_other() {
    let (mut two, mut one, of_two, of_one) = meet(own(2), own(1));
    assert_eq!(agreed(&of_two).peer.name, "lb1");
    assert_eq!(agreed(&of_one).peer.name, "lb2");
    assert_eq!(agreed(&of_one).key, KeyId(1));
    let now = Instant::now();
    one.handle(now, Input::Said(&profile("aa")));
    two.handle(now, Input::Said(&profile("bb")));
    two.handle(now, Input::Said(&profile("cc")));
    let before = two.traffic.frames_out;
    carry(now, &mut one, &mut two);
    assert_eq!(outputs(&mut two), [Output::Heard(profile("aa"))]);
    assert_eq!(
        outputs(&mut one),
        [Output::Heard(profile("bb")), Output::Heard(profile("cc"))]
    );
    assert_eq!(two.traffic.frames_out, before + 1, "said together, one frame");
    one.handle(now, Input::Left(End::Stopping));
    carry(now, &mut one, &mut two);
    assert_eq!(outputs(&mut one), [Output::Ended(End::Stopping)]);
    assert_eq!(outputs(&mut two), [Output::Ended(End::Left(Farewell::Stopping))]);
    assert_eq!((one.deadline(), two.deadline()), (None, None));
}

#[test]
fn releases_that_are_one_apart_speak_the_highest_version_both_know() {
    let speaks = |id, protocols, can: &[&str]| {
        let mut side = own(id);
        side.introduction.protocols = protocols;
        side.introduction.capabilities = can.iter().map(|name| (*name).to_owned()).collect();
        side
    };
    let (_, _, two, one) = meet(speaks(2, (1, 2), &["a", "b"]), speaks(1, (1, 3), &["b", "c"]));
    for side in [agreed(&two), agreed(&one)] {
        assert_eq!(
            (side.protocol, &side.capabilities[..]),
            (2, &["b".to_owned()][..])
        );
    }
    let (_, _, two, one) = meet(speaks(2, (1, 2), &[]), speaks(1, (2, 3), &[]));
    assert_eq!((agreed(&two).protocol, agreed(&one).protocol), (2, 2));
    let (_, _, two, one) = meet(speaks(2, (1, 1), &[]), speaks(1, (2, 3), &[]));
    let none = |own, peer| [Output::Ended(End::NoCommonVersion { own, peer })];
    assert_eq!(two, none((1, 1), (2, 3)));
    assert_eq!(one, none((2, 3), (1, 1)));
}

#[test]
fn whoever_is_not_the_other_node_of_the_pair_is_refused_by_name_on_both_sides() {
    let ended = |two: Own, one: Own| {
        let (_, _, two, one) = meet(two, one);
        match (&two[..], &one[..]) {
            ([Output::Ended(two)], [Output::Ended(one)]) => [two.clone(), one.clone()],
            other => panic!("{other:?}"),
        }
    };
    let with = |id, change: &dyn Fn(&mut Own)| {
        let mut side = own(id);
        change(&mut side);
        side
    };
    assert_eq!(
        ended(own(2), with(2, &|own| own.introduction.name = "lb9".into())),
        [End::SameId, End::SameId]
    );
    assert_eq!(
        ended(own(2), with(1, &|own| own.introduction.name = "lb2".into())),
        [End::SameName, End::SameName]
    );
    assert_eq!(
        ended(own(2), with(1, &|own| own.introduction.vrid = 52)),
        [End::OtherVrid(52), End::OtherVrid(51)]
    );
    let wrong = [End::Refused(Refusal::WrongKey), End::WrongKey];
    // Number 1 again, another secret.
    assert_eq!(ended(own(2), with(1, &|own| own.keys = keys(7, &[101]))), wrong);
    // Another pair's, with the same secret.
    assert_eq!(ended(own(2), with(1, &|own| own.keys = keys(8, &[1]))), wrong);
    assert_eq!(
        ended(with(2, &|own| own.keys = keys(7, &[1, 2])), own(1)),
        [End::Refused(Refusal::KeyUnknown), End::KeyUnknown(KeyId(2))]
    );
}

#[test]
fn a_recorded_handshake_opens_nothing_and_its_frames_are_forged_ones() {
    let now = Instant::now();
    let mut two = Session::ask(now, own(2), KeyId(1)).unwrap();
    let mut one = Session::expect(now, own(1));
    let opening = take(&mut two, now);
    one.handle(now, Input::Arrived(&opening));
    two.handle(now, Input::Arrived(&take(&mut one, now)));
    two.handle(now, Input::Said(&profile("aa")));
    let first = take(&mut two, now);
    one.handle(now, Input::Arrived(&first));
    assert!(matches!(
        outputs(&mut one)[..],
        [Output::Opened(_), Output::Heard(_)]
    ));
    // Later, to the same node: the opening is answered, and no more.
    let mut replayed = Session::expect(now, own(1));
    replayed.handle(now, Input::Arrived(&opening));
    assert!(!take(&mut replayed, now).is_empty());
    assert_eq!(outputs(&mut replayed), []);
    replayed.handle(now, Input::Arrived(&first));
    assert_eq!(outputs(&mut replayed), [Output::Ended(End::Forged)]);
    // A frame once more within its own session.
    one.handle(now, Input::Arrived(&first));
    assert_eq!(outputs(&mut one), [Output::Ended(End::Forged)]);
}

#[test]
fn a_handshake_has_two_seconds_and_a_silent_peer_four() {
    let start = Instant::now();
    let early = start + Duration::from_millis(1_999);
    let late = start + Bounds::DEFAULT.handshake;
    let mut two = Session::ask(start, own(2), KeyId(1)).unwrap();
    let mut one = Session::expect(start, own(1));
    let opening = take(&mut two, start);
    for byte in &opening[..opening.len() - 1] {
        one.handle(start, Input::Arrived(&[*byte]));
    }
    for session in [&mut two, &mut one] {
        assert_eq!(session.deadline(), Some(late));
        session.handle(early, Input::Woken);
        assert_eq!(outputs(session), []);
        session.handle(late, Input::Woken);
        assert_eq!(outputs(session), [Output::Ended(End::Late)]);
    }
    let mut unproved = Session::expect(start, own(1));
    unproved.handle(start, Input::Arrived(&opening));
    unproved.handle(late, Input::Woken);
    assert_eq!(outputs(&mut unproved), [Output::Ended(End::Late)]);

    let (mut two, mut one, ..) = meet(own(2), own(1));
    for _ in 0..20 {
        let now = one.deadline().unwrap().max(two.deadline().unwrap());
        one.handle(now, Input::Woken);
        two.handle(now, Input::Woken);
        carry(now, &mut one, &mut two);
    }
    assert_eq!(
        (outputs(&mut one), outputs(&mut two)),
        (vec![], vec![]),
        "heartbeats keep it"
    );
    for _ in 0..10 {
        let Some(now) = one.deadline() else { break };
        one.handle(now, Input::Woken);
        take(&mut one, now);
    }
    assert_eq!(outputs(&mut one), [Output::Ended(End::Silent)]);
}

#[test]
fn b38_a_frame_that_arrives_slowly_is_life_for_a_minute() {
    let now = Instant::now();
    let (mut two, mut one, ..) = meet(own(2), own(1));
    two.handle(now, Input::Said(&Message::Sync(vec![7; 60_000])));
    let frame = take(&mut two, now);
    let (last, most) = frame.split_last().unwrap();
    let mut at = now;
    for bytes in most.chunks(frame.len() / 20) {
        at += Duration::from_secs(2);
        one.handle(at, Input::Arrived(bytes));
        one.handle(at, Input::Woken);
        assert_eq!(outputs(&mut one), []);
    }
    one.handle(at, Input::Arrived(&[*last]));
    assert!(matches!(
        &outputs(&mut one)[..],
        [Output::Heard(Message::Sync(_))]
    ));
    // A byte now and then is none.
    let (mut two, mut one, ..) = meet(own(2), own(1));
    two.handle(now, Input::Said(&Message::Sync(vec![7; 60_000])));
    let frame = take(&mut two, now);
    let ended = (1..100_u64).find(|n| {
        let at = now + Duration::from_secs(*n);
        one.handle(at, Input::Arrived(&frame[..1]));
        one.handle(at, Input::Woken);
        outputs(&mut one).contains(&Output::Ended(End::Silent))
    });
    assert!(
        ended.is_some_and(|seconds| (60..70).contains(&seconds)),
        "{ended:?}"
    );
}

#[test]
fn what_is_no_handshake_ends_at_its_first_frame() {
    let now = Instant::now();
    for (bytes, end) in [
        (&b"GET / HTTP/1.0\r\n\r\n"[..], End::NotUnderstood),
        (&[0xff, 0xff], End::NotUnderstood),
        (&[0, 0], End::NotUnderstood),
        (&[0, 3, 1, 2, 3], End::NotUnderstood),
        (
            b"\x00\x09\x31\x73\x74\x6d\x02\x00\x01\x00\x00",
            End::NotUnderstood,
        ),
        (
            b"\x00\x09\x31\x73\x74\x6d\x01\x00\x09\x00\x00",
            End::KeyUnknown(KeyId(9)),
        ),
        (b"\x00\x09\x31\x73\x74\x6d\x01\x00\x01\x00\x00", End::WrongKey),
    ] {
        let mut one = Session::expect(now, own(1));
        one.handle(now, Input::Arrived(bytes));
        assert_eq!(outputs(&mut one), [Output::Ended(end)], "{bytes:?}");
        assert!(
            take(&mut one, now).len() <= 4,
            "the answer is no longer than the question"
        );
    }
    for (bytes, end) in [
        (&[0, 2, wire::REFUSAL, 2][..], End::Refused(Refusal::WrongKey)),
        (&[0, 2, wire::REFUSAL, 77], End::NotUnderstood),
        (&[0, 1, wire::ANSWER], End::Forged),
        (&[0, 0], End::NotUnderstood),
    ] {
        let mut two = Session::ask(now, own(2), KeyId(1)).unwrap();
        two.handle(now, Input::Arrived(bytes));
        assert_eq!(outputs(&mut two), [Output::Ended(end)], "{bytes:?}");
    }
    assert!(Session::ask(now, own(2), KeyId(9)).is_none());
}

#[test]
fn a_peer_that_does_not_read_is_given_up() {
    let (mut two, ..) = meet(own(2), own(1));
    let now = Instant::now();
    let long = profile(&"x".repeat(60_000));
    let mut said = 0;
    while outputs(&mut two).is_empty() {
        two.handle(now, Input::Said(&long));
        let _unwritten = two.unwritten(now);
        said += 1;
        assert!(said < 100);
    }
    assert_eq!(said, Bounds::DEFAULT.unwritten / 60_000 + 1);
}

#[test]
fn keys_change_on_the_way_and_nothing_is_lost() {
    let quick = |id| {
        let mut side = own(id);
        side.bounds.rekey_after = 3;
        side
    };
    let (mut two, mut one, ..) = meet(quick(2), quick(1));
    let now = Instant::now();
    for n in 0..20 {
        two.handle(now, Input::Said(&profile(&format!("a{n}"))));
        carry(now, &mut one, &mut two);
        assert_eq!(outputs(&mut one), [Output::Heard(profile(&format!("a{n}")))]);
        one.handle(now, Input::Said(&profile(&format!("b{n}"))));
        carry(now, &mut one, &mut two);
        assert_eq!(outputs(&mut two), [Output::Heard(profile(&format!("b{n}")))]);
    }
}

#[test]
fn records_that_fill_a_frame_begin_the_next_one() {
    let (mut two, mut one, ..) = meet(own(2), own(1));
    let now = Instant::now();
    let long = profile(&"x".repeat(60));
    for _ in 0..5_000 {
        two.handle(now, Input::Said(&long));
    }
    carry(now, &mut one, &mut two);
    assert_eq!(outputs(&mut one).len(), 5_000);
    assert!((5..12).contains(&two.traffic.frames_out), "{:?}", two.traffic);
    assert_eq!(one.traffic.frames_in, two.traffic.frames_out);
    assert_eq!(one.traffic.bytes_in, two.traffic.bytes_out);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_cut_anywhere_are_the_same_frames(cuts in proptest::collection::vec(1_usize..40, 1..60), count in 1_u8..9) {
        let now = Instant::now();
        let mut two = Session::ask(now, own(2), KeyId(1)).unwrap();
        let mut one = Session::expect(now, own(1));
        let mut cuts = cuts.into_iter().cycle();
        let mut said = 0;
        let mut heard = 0;
        loop {
            if two.deadline().is_some() && said < count && matches!(two.state, State::Open { .. }) {
                two.handle(now, Input::Said(&profile(&format!("n{said}"))));
                said += 1;
            }
            let (from_one, from_two) = (take(&mut one, now), take(&mut two, now));
            if from_one.is_empty() && from_two.is_empty() {
                break;
            }
            for (bytes, to) in [(from_one, &mut two), (from_two, &mut one)] {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (now_in, later) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                    to.handle(now, Input::Arrived(now_in));
                    rest = later;
                }
            }
            for output in outputs(&mut one) {
                if let Output::Heard(message) = output {
                    prop_assert_eq!(message, profile(&format!("n{heard}")));
                    heard += 1;
                }
            }
        }
        prop_assert_eq!(heard, count);
    }

    #[test]
    fn an_altered_byte_is_never_heard(at in any::<prop::sample::Index>(), bit in 0_u8..8, in_opening in any::<bool>()) {
        let now = Instant::now();
        let mut two = Session::ask(now, own(2), KeyId(1)).unwrap();
        let mut one = Session::expect(now, own(1));
        let alter = |mut bytes: Vec<u8>| {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            bytes
        };
        let mut opening = take(&mut two, now);
        if in_opening {
            opening = alter(opening);
        }
        one.handle(now, Input::Arrived(&opening));
        let answer = take(&mut one, now);
        two.handle(now, Input::Arrived(&answer));
        two.handle(now, Input::Said(&profile("aa")));
        let mut first = take(&mut two, now);
        if !in_opening {
            first = alter(first);
        }
        one.handle(now, Input::Arrived(&first));
        one.handle(now + Bounds::DEFAULT.silence, Input::Woken);
        let found = outputs(&mut one);
        prop_assert!(matches!(found[..], [Output::Ended(_)]), "{:?}", found);
    }

    #[test]
    fn nothing_that_arrives_harms_an_open_session_but_by_ending_it(bytes in proptest::collection::vec(any::<u8>(), 1..2_000)) {
        let (mut two, ..) = meet(own(2), own(1));
        two.handle(Instant::now(), Input::Arrived(&bytes));
        let found = outputs(&mut two);
        prop_assert!(found.is_empty() || found == [Output::Ended(End::Forged)], "{:?}", found);
    }
}
