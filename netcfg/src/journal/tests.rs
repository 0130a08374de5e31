use std::fs;

use super::*;

fn place(boot: &str) -> Place {
    Place {
        boot: boot.to_owned(),
        netns: 4_026_531_840,
    }
}

fn entry(boot: &str, old: &str, written: &str) -> Entry {
    Entry {
        place: place(boot),
        device: Some(Device {
            ifindex: 2,
            name: IfName::new("eth0").unwrap(),
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        }),
        lent: Lent::Sysctl {
            key: LegSysctl::send_redirects(),
            old: old.to_owned(),
            written: written.to_owned(),
        },
    }
}

fn reopened(directory: &Path, boot: &str) -> StateDir {
    StateDir::acquire_at(directory, place(boot)).unwrap()
}

#[test]
fn entries_survive_the_process_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let marks = Entry {
        place: place("a"),
        device: None,
        lent: Lent::marks(),
    };
    let offload = Entry {
        lent: Lent::Offload {
            feature: "rx-gro".to_owned(),
            old: true,
            written: false,
        },
        ..entry("a", "", "")
    };
    let all = vec![entry("a", "1", "0"), marks, offload, entry("a", "0", "2")];
    let mut state = reopened(directory.path(), "a");
    state.record(all[..2].to_vec()).unwrap();
    state.record(all[2..].to_vec()).unwrap();
    assert_eq!(state.entries(), all);
    drop(state);
    let state = reopened(directory.path(), "a");
    assert_eq!(
        (state.entries(), state.discarded(), state.damaged()),
        (&all[..], 0, 0)
    );
}

#[test]
fn entries_of_another_boot_are_discarded_for_good() {
    let directory = tempfile::tempdir().unwrap();
    reopened(directory.path(), "a")
        .record(vec![entry("a", "1", "0")])
        .unwrap();
    let mut state = reopened(directory.path(), "b");
    assert_eq!((state.entries().len(), state.discarded()), (0, 1));
    state.record(vec![entry("b", "1", "0")]).unwrap();
    drop(state);
    let state = reopened(directory.path(), "b");
    assert_eq!(
        (state.entries(), state.discarded()),
        (&[entry("b", "1", "0")][..], 0)
    );
}

#[test]
fn a_torn_last_line_is_dropped_and_does_not_spoil_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(JOURNAL);
    reopened(directory.path(), "a")
        .record(vec![entry("a", "1", "0"), entry("a", "0", "2")])
        .unwrap();
    let whole = fs::read(&path).unwrap();
    let first = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
    for cut in first + 1..whole.len() - 1 {
        fs::write(&path, &whole[..cut]).unwrap();
        let mut state = reopened(directory.path(), "a");
        assert_eq!((state.entries().len(), state.damaged()), (1, 1), "cut at {cut}");
        state.record(vec![entry("a", "0", "3")]).unwrap();
        drop(state);
        assert_eq!(
            reopened(directory.path(), "a").entries(),
            [entry("a", "1", "0"), entry("a", "0", "3")]
        );
    }
}

/// Where the journal cannot be cleaned (the name of the new one is taken by a directory), it is used as it is.
#[test]
fn a_torn_journal_that_cannot_be_rewritten_still_takes_entries() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(JOURNAL);
    reopened(directory.path(), "a")
        .record(vec![entry("a", "1", "0"), entry("a", "0", "2")])
        .unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 9]).unwrap();
    fs::create_dir(directory.path().join(JOURNAL_NEW)).unwrap();
    let mut state = reopened(directory.path(), "a");
    assert_eq!((state.entries().len(), state.damaged()), (1, 1));
    state.record(vec![entry("a", "0", "3")]).unwrap();
    state.record(vec![entry("a", "3", "4")]).unwrap();
    drop(state);
    let mut state = reopened(directory.path(), "a");
    assert_eq!(
        state.entries(),
        [entry("a", "1", "0"), entry("a", "0", "3"), entry("a", "3", "4")]
    );
    state.replace(Vec::new()).unwrap();
    drop(state);
    assert_eq!(reopened(directory.path(), "a").entries(), []);
}

#[test]
fn bytes_that_are_no_text_are_counted_and_the_rest_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(JOURNAL);
    let mut bytes = vec![0, 0xff, b'\n', b'{', b'}', b'\n'];
    bytes.extend(lines(&[entry("a", "1", "0")]).unwrap());
    fs::write(&path, bytes).unwrap();
    let state = reopened(directory.path(), "a");
    assert_eq!(
        (state.entries(), state.damaged()),
        (&[entry("a", "1", "0")][..], 2)
    );
}

#[test]
fn a_held_directory_is_refused_and_free_again_when_its_holder_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let held = reopened(directory.path(), "a");
    let refused = StateDir::acquire_at(directory.path(), place("a")).unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }) && !refused.is_transient());
    drop(held);
    reopened(directory.path(), "a");
}

#[test]
fn a_device_is_the_same_under_another_name_or_with_another_address_but_not_both() {
    let device = |ifindex, name, last| Device {
        ifindex,
        name: IfName::new(name).unwrap(),
        mac: Some(Mac([2, 0, 0, 0, 0, last])),
    };
    let eth0 = device(2, "eth0", 1);
    assert!(eth0.is_same(&device(2, "lan0", 1)));
    assert!(eth0.is_same(&device(2, "eth0", 9)));
    assert!(!eth0.is_same(&device(2, "lan0", 9)));
    assert!(!eth0.is_same(&device(3, "eth0", 1)), "deleted and made again");
}

#[test]
fn the_place_is_this_boot_and_this_namespace() {
    let here = Place::here().unwrap();
    assert_eq!(here.boot.len(), 36);
    assert_eq!(here, Place::here().unwrap());
}
