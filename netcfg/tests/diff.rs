//! Golden folders: `tests/diff/<case>/{desired,current,changes}.json`. A new case is a folder, no code.
//!
//! `BLESS=1 cargo test -p onearm-netcfg --test diff` writes `changes.json`; read it before it is committed.

use std::{fs, path::Path};

use onearm_netcfg::{Change, Desired, State, diff};
use serde::de::DeserializeOwned;

fn read<T: DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_case_gives_its_changes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/diff");
    let mut cases = 0;
    for case in fs::read_dir(&root).unwrap() {
        let case = case.unwrap().path();
        let desired: Desired = read(&case.join("desired.json"));
        let current: State = read(&case.join("current.json"));
        let changes = diff(&desired.state(), &current);
        let golden = case.join("changes.json");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&golden, serde_json::to_string_pretty(&changes).unwrap() + "\n").unwrap();
        }
        assert_eq!(changes, read::<Vec<Change>>(&golden), "{}", case.display());
        cases += 1;
    }
    assert!(cases >= 10, "only {cases} cases found");
}
