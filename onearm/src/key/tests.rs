use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use onearm_ha::auth::{Key, KeyId, PairKeys};
use proptest::prelude::*;

use super::{Reader, create, emit, fingerprint, finished, generate, parse, read, replace, with_next};

fn keys(ids: &[u8]) -> PairKeys {
    let key = |id: &u8| Key {
        id: KeyId(u16::from(*id)),
        secret: [*id; 32],
    };
    PairKeys::new([7; 16], ids.iter().map(key).collect()).unwrap()
}

const PAIR: &str = "pair 07070707070707070707070707070707\n";
const KEY: &str = "key 1 0101010101010101010101010101010101010101010101010101010101010101\n";

#[test]
fn what_is_written_is_read_again_whatever_blanks_comments_and_letters() {
    for ids in [&[1][..], &[1, 2], &[200]] {
        let text = emit(&keys(ids));
        assert_eq!(parse("k", text.as_bytes()).unwrap(), keys(ids));
    }
    let loose = "\n  # note\nonearm-key\t1 \r\nkey 11 0B0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b\n\npair 07070707070707070707070707070707";
    assert_eq!(parse("k", loose.as_bytes()).unwrap(), keys(&[11]));
}

#[test]
fn every_error_has_its_line_and_field_and_a_remedy_and_all_are_told_at_once() {
    let digits = "01".repeat(32);
    let of = |lines: &str| format!("onearm-key 1\n{lines}");
    let nine: Vec<String> = (1..=9).map(|id| format!("key {id} {digits}")).collect();
    for (text, expected) in [
        (String::new(), vec![(0, "", "the file says nothing")]),
        (
            "format = 1\n".to_owned(),
            vec![(1, "", "not a key file of onearm")],
        ),
        ("onearm-key\n".to_owned(), vec![(1, "onearm-key", "missing")]),
        (
            "onearm-key 2\npair x\n".to_owned(),
            vec![(1, "onearm-key", "format 2 is of another release than this one")],
        ),
        (
            of(""),
            vec![(0, "pair", "missing"), (0, "key", "there is no key")],
        ),
        (of(PAIR), vec![(0, "key", "there is no key")]),
        (of(KEY), vec![(0, "pair", "missing")]),
        (
            of(&format!(
                "pair 07\nkey 0 {digits}\nkey\nkey 2\nkey 3 01\nkey 4 {}\n",
                "xy".repeat(32)
            )),
            vec![
                (2, "pair", "not 32 hexadecimal digits"),
                (3, "key", "its number is not 1 to 65535"),
                (4, "key", "missing"),
                (5, "key 2", "its secret is missing"),
                (6, "key 3", "not 64 hexadecimal digits"),
                (7, "key 4", "not hexadecimal"),
            ],
        ),
        (
            of(&format!("{PAIR}{PAIR}{KEY}key 1 {} more\n", "02".repeat(32))),
            vec![
                (3, "pair", "written twice"),
                (5, "key 1", "two keys have the number 1"),
                (5, "key", "too many words"),
            ],
        ),
        (
            of(&format!("{PAIR}{KEY}Key 2 {digits}\n")),
            vec![(4, "", "unknown line")],
        ),
        (
            of(&format!("{PAIR}{}", nine.join("\n"))),
            vec![(11, "key", "there are 9 keys, more than 8")],
        ),
    ] {
        let found = parse("k", text.as_bytes()).unwrap_err();
        let told: Vec<_> = found.iter().map(|f| (f.line, &*f.field, &*f.message)).collect();
        assert_eq!(told, expected, "{text}");
        assert!(found.iter().all(|f| !f.remedy.is_empty() && f.value.is_none()));
    }
}

proptest! {
    #[test]
    fn no_finding_quotes_the_file(
        text in "(onearm-key 1\n)?((pair|key|key 1|0*)? ?[0-9a-z]{16,70} ?[0-9a-f]{0,9}\n){0,4}"
    ) {
        if let Err(found) = parse("k", text.as_bytes()) {
            for word in text.split_whitespace().filter(|word| word.len() >= 12) {
                let told = format!("{found:?}");
                prop_assert!(!told.contains(word), "{}", told);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(parse("k", &bytes));
        let after_the_head = [b"onearm-key 1\n", &*bytes].concat();
        drop(parse("k", &after_the_head));
    }
}

#[test]
fn a_rotation_adds_the_next_key_then_drops_the_old_one_and_nothing_else_is_done() {
    let first = generate().unwrap();
    assert_eq!(first.ids().collect::<Vec<_>>(), [KeyId(1)]);
    assert_ne!(generate().unwrap().pair(), first.pair());
    assert!(finished(&first).is_err());
    let both = with_next(&first).unwrap();
    assert_eq!(both.ids().collect::<Vec<_>>(), [KeyId(1), KeyId(2)]);
    assert_eq!((both.pair(), &both.keys()[0]), (first.pair(), &first.keys()[0]));
    assert_ne!(both.keys()[1].secret, both.keys()[0].secret);
    assert!(with_next(&both).is_err());
    let second = finished(&both).unwrap();
    assert_eq!((second.pair(), second.keys()), (first.pair(), &both.keys()[1..]));
    let last = PairKeys::new(
        [0; 16],
        vec![Key {
            id: KeyId(u16::MAX),
            secret: [1; 32],
        }],
    );
    assert!(
        with_next(&last.unwrap())
            .unwrap_err()
            .to_string()
            .contains("make a new key file")
    );
}

#[test]
fn a_fingerprint_tells_pair_number_and_secret_apart_and_shows_none() {
    let one = keys(&[1, 2]);
    let mut seen = std::collections::BTreeSet::new();
    let other_pair = PairKeys::new([8; 16], one.keys().to_vec()).unwrap();
    let renumbered = Key {
        id: KeyId(3),
        ..one.keys()[0].clone()
    };
    for (pair, key) in [
        (&one, &one.keys()[0]),
        (&one, &one.keys()[1]),
        (&other_pair, &one.keys()[0]),
        (&one, &renumbered),
    ] {
        let text = fingerprint(pair, key);
        assert_eq!(text.len(), 19, "{text}");
        assert!(seen.insert(text));
    }
    assert_eq!(
        fingerprint(&one, &one.keys()[0]),
        fingerprint(&keys(&[1]), &one.keys()[0])
    );
}

#[test]
fn only_root_and_the_reader_may_be_able_to_read_the_file_and_the_reader_must() {
    let reader = |uid, gid| Reader {
        daemon: None,
        name: "onearm".to_owned(),
        uid,
        gid,
    };
    let path = Path::new("/k");
    let daemon = reader(998, 997);
    for (owner, group, mode, wrong) in [
        (998, 997, 0o600, ""),
        (998, 0, 0o400, ""),
        (0, 997, 0o640, ""),
        (0, 997, 0o440, ""),
        (998, 997, 0o640, ""),
        (0, 0, 0o600, "the daemon's user onearm cannot read it (mode 0600)"),
        (0, 997, 0o600, "the daemon's user onearm cannot read it"),
        (998, 997, 0o240, "the daemon's user onearm cannot read it"),
        (0, 0, 0o640, "group 0 may read it (mode 0640)"),
        (998, 100, 0o640, "group 100 may read it"),
        (0, 997, 0o660, "its group may change it"),
        (0, 997, 0o644, "others may use it (mode 0644)"),
        (998, 997, 0o602, "others may use it"),
        (1000, 997, 0o640, "it belongs to user 1000"),
    ] {
        let found = daemon.objects_to(owner, group, 0o100_000 | mode, path);
        let message = found.as_ref().map_or("", |(message, _)| message);
        assert!(
            message.starts_with(wrong) && message.is_empty() == wrong.is_empty(),
            "{owner}:{group} {mode:o}: {message}"
        );
        assert!(found.is_none_or(|(_, remedy)| remedy == "chown onearm: /k; chmod 600 /k"));
    }
    assert_eq!(reader(0, 0).objects_to(0, 0, 0o600, path), None);
    assert!(reader(0, 0).objects_to(998, 997, 0o600, path).is_some());
    let root = Reader {
        daemon: Some((998, 997)),
        ..reader(0, 0)
    };
    assert_eq!(
        root.objects_to(998, 997, 0o640, path),
        None,
        "made for the daemon"
    );
    assert_eq!(
        reader(0, 0).objects_to(0, 0, 0o000, path),
        None,
        "root reads everything"
    );
}

fn rule(path: &Path) -> &'static str {
    read(path, &Reader::this_process()).unwrap_err()[0].rule
}

#[test]
fn a_file_is_made_once_for_its_reader_alone_and_replaced_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pair.key");
    let reader = Reader::this_process();
    assert_eq!(rule(&path), "key-missing");
    create(&path, &keys(&[1]), &reader).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!(found.mode() & 0o7777, 0o600);
    assert_eq!(read(&path, &reader).unwrap(), keys(&[1]));
    let again = create(&path, &keys(&[2]), &reader).unwrap_err();
    assert!(
        again.to_string().ends_with("a key is never overwritten"),
        "{again}"
    );
    assert_eq!(read(&path, &reader).unwrap(), keys(&[1]));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    replace(&path, &keys(&[1, 2])).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o400);
    assert_eq!(read(&path, &reader).unwrap(), keys(&[1, 2]));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_link_a_pipe_a_folder_and_a_file_for_all_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    create(&at("pair.key"), &keys(&[1]), &Reader::this_process()).unwrap();
    symlink(at("pair.key"), at("link")).unwrap();
    nix::unistd::mkfifo(
        &at("pipe"),
        nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR,
    )
    .unwrap();
    for name in ["link", "pipe", "."] {
        assert_eq!(rule(&at(name)), "key-access", "{name}");
    }
    fs::set_permissions(at("pair.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(rule(&at("pair.key")), "key-access");
    fs::set_permissions(at("pair.key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(at("pair.key"), vec![b'#'; 70_000]).unwrap();
    assert_eq!(rule(&at("pair.key")), "too-long");
}
