//! Golden cases of `onearm check`: each folder of `tests/check` holds the files that differ from `valid`, and what the
//! command writes. `make bless` rewrites the expectations.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn onearm(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onearm"))
        .args(args)
        .current_dir(directory)
        .output()
        .expect("onearm runs")
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check")
}

fn transcript(output: &Output) -> String {
    let mut text = String::from_utf8(output.stdout.clone()).expect("text");
    text.push_str(&String::from_utf8(output.stderr.clone()).expect("text"));
    writeln!(text, "exit {}", output.status.code().expect("an exit code")).expect("a string");
    text
}

/// What the command says of a case, by folder.
fn judged() -> Vec<(PathBuf, String)> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(cases())
        .expect("cases")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    folders.sort();
    assert!(folders.len() > 10, "the cases are there");
    let judge = |folder: PathBuf| {
        let file = |name: &str| {
            if folder.join(name).exists() {
                name.to_owned()
            } else {
                format!("../valid/{name}")
            }
        };
        let args = [
            "check",
            "--node",
            &file("node.toml"),
            "--pair",
            &file("pair.toml"),
        ];
        let found = transcript(&onearm(&folder, &args));
        (folder, found)
    };
    folders.into_iter().map(judge).collect()
}

#[test]
fn every_case_is_judged_as_expected() {
    let mut wrong = String::new();
    for (folder, found) in judged() {
        let golden = folder.join("expected.txt");
        if std::env::var_os("ONEARM_BLESS").is_some() {
            std::fs::write(&golden, &found).expect("the expectation is written");
            continue;
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        if expected != found {
            writeln!(
                wrong,
                "{}\n--- expected\n{expected}--- found\n{found}",
                folder.display()
            )
            .expect("a string");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn b154_only_files_without_error_exit_with_0_and_every_error_has_its_line() {
    for (folder, found) in judged() {
        let errors: Vec<&str> = found.lines().filter(|line| line.contains(": error: ")).collect();
        let good = found.ends_with("exit 0\n");
        assert_eq!(good, errors.is_empty(), "{}", folder.display());
        assert!(good || found.ends_with("exit 3\n"), "{}", folder.display());
        let located = |line: &&str| {
            let mut parts = line.split(':').skip(1).map(str::parse::<u32>);
            matches!((parts.next(), parts.next()), (Some(Ok(_)), Some(Ok(_))))
        };
        let whole_file = |line: &&str| line.ends_with("error: the file says nothing");
        assert!(
            errors.iter().all(|line| located(line) || whole_file(line)),
            "{found}"
        );
    }
}

#[test]
fn every_example_is_good_on_both_nodes() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/examples");
    let mut pairs = 0;
    for entry in std::fs::read_dir(&examples).expect("examples") {
        let name = entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("a name");
        if name.starts_with("pair") {
            let drawing = if name == "pair-two-arm.toml" {
                "two-arm-"
            } else {
                ""
            };
            let nodes = ["lb1", "lb2"].map(|node| format!("node-{drawing}{node}.toml"));
            let args = ["check", "--node", &nodes[0], "--node", &nodes[1], "--pair", &name];
            let output = onearm(&examples, &args);
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{name}: {}",
                transcript(&output)
            );
            pairs += 1;
        }
    }
    assert!(pairs >= 3);
}

#[test]
fn b107_a_file_that_is_missing_unreadable_or_huge_is_refused_and_the_other_one_judged() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = cases().join("valid/node.toml");
    let huge = directory.path().join("huge.toml");
    std::fs::write(&huge, vec![b'#'; 50_000_000]).expect("written");
    let binary = directory.path().join("binary.toml");
    std::fs::write(&binary, b"format = 1\n# \xff\n").expect("written");
    for (pair, says) in [
        ("missing.toml", "cannot be read: No such file"),
        (".", "cannot be read: Is a directory"),
        ("huge.toml", "longer than 4194304 bytes"),
        ("binary.toml", "not UTF-8 text (first bad byte in line 2)"),
    ] {
        let output = onearm(
            directory.path(),
            &["check", "--node", good.to_str().expect("a path"), "--pair", pair],
        );
        let text = transcript(&output);
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(text.contains(says) && text.contains("1 error\n"), "{text}");
    }
    let bad = directory.path().join("node.toml");
    std::fs::write(&bad, "id = 7\n").expect("written");
    let text = transcript(&onearm(
        directory.path(),
        &["check", "--node", "node.toml", "--pair", "missing.toml"],
    ));
    assert!(
        text.contains("cannot be read") && text.contains("node.toml:1:6: error: id = 7"),
        "{text}"
    );
}

#[test]
#[ignore = "needs root"]
fn b107_a_file_the_user_may_not_read_is_refused() {
    // Root reads everything: the command runs as nobody, in a directory nobody may enter but not read from.
    assert!(nix::unistd::geteuid().is_root(), "this test needs root");
    let directory = tempfile::tempdir().expect("a directory");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
    };
    mode(directory.path(), 0o755);
    let (command, pair) = (
        directory.path().join("onearm"),
        directory.path().join("pair.toml"),
    );
    std::fs::copy(env!("CARGO_BIN_EXE_onearm"), &command).expect("copied");
    std::fs::copy(
        cases().join("valid/node.toml"),
        directory.path().join("node.toml"),
    )
    .expect("copied");
    std::fs::write(&pair, "format = 1\n").expect("written");
    mode(&pair, 0o600);
    let output = std::os::unix::process::CommandExt::uid(
        Command::new(&command)
            .args(["check", "--node", "node.toml", "--pair", "pair.toml"])
            .current_dir(directory.path()),
        65_534,
    )
    .output()
    .expect("onearm runs");
    let text = transcript(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("cannot be read: Permission denied"), "{text}");
}

#[test]
fn b154_an_interface_this_machine_does_not_have_is_an_error_when_the_machine_is_asked() {
    let directory = cases().join("valid");
    let args = ["check", "--node", "node.toml", "--pair", "pair.toml", "--host"];
    let directory_with = |interface: &str| {
        let copy = tempfile::tempdir().expect("a directory");
        let node = std::fs::read_to_string(directory.join("node.toml")).expect("readable");
        let node = node.replace("interface = \"eth0\"", &format!("interface = \"{interface}\""));
        std::fs::write(copy.path().join("node.toml"), node).expect("written");
        std::fs::copy(directory.join("pair.toml"), copy.path().join("pair.toml")).expect("copied");
        copy
    };
    let text = transcript(&onearm(directory_with("no-such-leg").path(), &args));
    assert!(
        text.contains("leg[0].interface = \"no-such-leg\": this machine has no such interface"),
        "{text}"
    );
    assert!(text.ends_with("exit 3\n"), "{text}");
    let text = transcript(&onearm(directory_with("lo").path(), &args));
    assert!(!text.contains("no such interface"), "{text}");
}

/// What `onearm check` says of a.toml, b.toml and pair.toml.
fn checked_together(directory: &Path) -> String {
    let files = [
        "check",
        "--node",
        "a.toml",
        "--node",
        "b.toml",
        "--pair",
        "pair.toml",
    ];
    transcript(&onearm(directory, &files))
}

#[test]
fn two_nodes_that_could_not_be_a_pair_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let node = std::fs::read_to_string(cases().join("valid/node.toml")).expect("readable");
    std::fs::write(directory.path().join("a.toml"), &node).expect("written");
    let other = node.replace("name = \"lan\"", "name = \"dmz\"");
    std::fs::write(directory.path().join("b.toml"), other).expect("written");
    std::fs::copy(
        cases().join("valid/pair.toml"),
        directory.path().join("pair.toml"),
    )
    .expect("copied");
    let text = checked_together(directory.path());
    for says in [
        "b.toml:3:6: error: id = 1: a.toml has the same id",
        "error: name = \"lb1\": a.toml has the same name",
        "error: peer.address = \"192.168.100.3\": a.toml names the same peer",
        "error: leg[0].name = \"dmz\": a.toml has no leg of that name",
        "error: leg: a.toml has a leg \"lan\", this file has not",
        "gateway[0].leg = \"lan\": b.toml has no leg of that name",
    ] {
        assert!(text.contains(says), "{says}\n{text}");
    }
}

#[test]
fn nodes_whose_adverts_go_over_other_families_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/examples");
    let read = |name: &str| std::fs::read_to_string(examples.join(name)).expect("readable");
    let six = |text: String, address: &str| {
        text.replacen("peer = {", &format!("peer = {{ address6 = \"{address}\","), 1)
    };
    let (one, two) = (six(read("node-lb1.toml"), "fe80::3"), read("node-lb2.toml"));
    let both = six(two.clone(), "fe80::2");
    std::fs::write(directory.path().join("pair.toml"), read("pair.toml")).expect("written");
    std::fs::write(directory.path().join("a.toml"), one).expect("written");
    let judged = |text: &str| {
        std::fs::write(directory.path().join("b.toml"), text).expect("written");
        checked_together(directory.path())
    };
    let says = "adverts over IPv4 here, over IPv4 and IPv6 in a.toml";
    assert!(judged(&two).contains(says), "{}", judged(&two));
    assert!(judged(&both).ends_with("exit 0\n"), "{}", judged(&both));
}

#[test]
fn the_addresses_on_the_peer_link_are_each_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/examples");
    let read = |name: &str| std::fs::read_to_string(examples.join(name)).expect("readable");
    let link = |text: &str, own: &str, other: &str| {
        let keys = format!(
            "peer = {{ interface = \"eth1\", link_address = \"{other}\", own_link_address = \"{own}\","
        );
        text.replacen("peer = {", &keys, 1)
    };
    let (one, two) = (read("node-lb1.toml"), read("node-lb2.toml"));
    std::fs::write(directory.path().join("pair.toml"), read("pair.toml")).expect("written");
    std::fs::write(
        directory.path().join("a.toml"),
        link(&one, "10.1.0.2", "10.1.0.3"),
    )
    .expect("written");
    let judged = |text: &str| {
        std::fs::write(directory.path().join("b.toml"), text).expect("written");
        checked_together(directory.path())
    };
    for wrong in [link(&two, "10.1.0.2", "10.1.0.3"), two.clone()] {
        let text = judged(&wrong);
        assert!(
            text.contains("a.toml has other addresses on the peer link"),
            "{text}"
        );
    }
    let text = judged(&link(&two, "10.1.0.3", "10.1.0.2"));
    assert!(text.ends_with("exit 0\n"), "{text}");
}

#[test]
fn the_key_file_is_judged_where_the_machine_is_asked_and_never_printed() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let read = |name: &str| std::fs::read_to_string(cases().join("valid").join(name)).expect("readable");
    let named = format!("peer = {{ key_file = \"{}\",", at("pair.key").display());
    let node = read("node.toml")
        .replace("peer = {", &named)
        .replace("\"eth0\"", "\"lo\"");
    std::fs::write(at("node.toml"), node).expect("written");
    let pair = read("pair.toml").replace("auth = \"none\"", "auth = \"hmac\"");
    std::fs::write(at("pair.toml"), pair).expect("written");
    let judged = |host: &[&str]| {
        let args = ["check", "--node", "node.toml", "--pair", "pair.toml"];
        transcript(&onearm(directory.path(), &[&args, host].concat()))
    };
    assert!(judged(&[]).ends_with("exit 0\n"), "{}", judged(&[]));
    let text = judged(&["--host"]);
    assert!(
        text.contains("pair.key: error: cannot be read") && text.ends_with("exit 3\n"),
        "{text}"
    );
    let key = at("pair.key");
    let key = key.to_str().expect("a path");
    assert!(
        onearm(directory.path(), &["key", "new", "--out", key])
            .status
            .success()
    );
    let text = judged(&["--host"]);
    assert!(text.contains("\nkey 1  ") && text.ends_with("exit 0\n"), "{text}");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o644)).expect("permissions");
    let text = judged(&["--host"]);
    assert!(
        text.contains("others may use it (mode 0644)") && text.contains("chmod 600"),
        "{text}"
    );
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).expect("permissions");
    let secret = std::fs::read_to_string(key)
        .expect("the key")
        .replace("key 1 ", "key 1 x");
    std::fs::write(key, &secret).expect("written");
    let text = judged(&["--host"]);
    assert!(
        text.contains("pair.key:5:7: error: key 1: not hexadecimal"),
        "{text}"
    );
    let digits = secret.rsplit(' ').next().expect("digits").trim();
    assert!(!text.contains(digits), "{text}");
}

#[test]
fn the_json_report_says_the_same() {
    let directory = cases().join("b154-snat-overlap");
    let args = [
        "check",
        "--json",
        "--node",
        "../valid/node.toml",
        "--pair",
        "pair.toml",
    ];
    let output = onearm(&directory, &args);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stderr.is_empty());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["capacity"], serde_json::Value::Null);
    let found = report["diagnostics"].as_array().expect("a list");
    assert!(
        found
            .iter()
            .any(|d| d["rule"] == "snat-overlap" && d["line"] == 17),
        "{found:?}"
    );
    let output = onearm(
        &cases().join("valid"),
        &["check", "--json", "--node", "node.toml", "--pair", "pair.toml"],
    );
    assert_eq!(output.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["capacity"]["services"][0]["per_server"], 32_768);
    assert_eq!(report["digest"].as_str().map(str::len), Some(64));
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for args in [
        &["check", "--nod"][..],
        &["chekc"],
        &[],
        &["flows", "--limit", "0"],
        &["probe", "web:80"],
    ] {
        assert_eq!(onearm(&cases(), args).status.code(), Some(2), "{args:?}");
    }
    let three = ["check", "--node", "a", "--node", "b", "--node", "c"];
    assert_eq!(onearm(&cases(), &three).status.code(), Some(2));
}

#[test]
fn without_a_daemon_every_question_exits_with_5() {
    let directory = tempfile::tempdir().expect("a directory");
    for question in [
        &["status"][..],
        &["services"],
        &["flows"],
        &["events"],
        &["probe", "192.168.100.100:80"],
    ] {
        let output = onearm(directory.path(), &[question, &["--run-dir", "."]].concat());
        assert_eq!(output.status.code(), Some(5), "{question:?}");
        assert!(
            transcript(&output).contains("cannot reach onearmd at ./control.sock"),
            "{question:?}"
        );
    }
}
