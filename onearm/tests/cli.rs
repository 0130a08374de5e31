//! The `onearm` command against a daemon's socket: what it prints, and its exit codes.

use std::process::{Command, Output};
use std::sync::Arc;

use onearm::control::{
    ControlBackend, ControlServer, EventList, EventQuery, FlowList, FlowQuery, HaAnswer, HaRequest,
    ProbeRequest, ProbeResult, Refusal, ServiceStatus, Status,
};

/// A daemon that answers little.
struct Daemon;

impl ControlBackend for Daemon {
    async fn status(&self) -> Result<Status, Refusal> {
        Err(Refusal::internal("the election does not answer"))
    }
    async fn services(&self) -> Result<Vec<ServiceStatus>, Refusal> {
        Ok(vec![])
    }
    async fn flows(&self, query: FlowQuery) -> Result<FlowList, Refusal> {
        Ok(FlowList {
            flows: vec![],
            matched: u64::from(query.limit),
        })
    }
    async fn events(&self, query: EventQuery) -> Result<EventList, Refusal> {
        Ok(EventList {
            last: query.since,
            ..EventList::default()
        })
    }
    async fn probe(&self, request: ProbeRequest) -> Result<ProbeResult, Refusal> {
        if request.target.port() == 1 {
            return Err(Refusal::state("this node is Active; run it on the Standby"));
        }
        Ok(ProbeResult {
            client_node: "lb2".into(),
            client: None,
            target: request.target,
            connected: request.target.port() == 80,
            elapsed_us: 1_000,
            detail: "it was tried".into(),
        })
    }
    async fn ha(&self, request: HaRequest) -> Result<HaAnswer, Refusal> {
        if request == (HaRequest::Switchover { force: false }) {
            return Err(Refusal::state("nothing has changed: lb2 is in maintenance"));
        }
        if request
            == (HaRequest::Maintenance {
                on: true,
                force: false,
            })
        {
            tokio::time::sleep(std::time::Duration::from_millis(800)).await;
        }
        Ok(HaAnswer {
            node: "lb1".into(),
            state: onearm::control::NodeState::Standby,
            owner: Some("lb2".into()),
            took_ms: Some(42),
            waited_ms: None,
            message: format!("{request:?}"),
        })
    }
}

#[test]
fn every_answer_of_the_daemon_has_its_exit_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let server = {
        let _inside = runtime.enter();
        ControlServer::bind(directory.path(), None).expect("the socket")
    };
    let thread = std::thread::spawn(move || runtime.block_on(server.serve(Arc::new(Daemon), stopped)));
    let onearm = |args: &[&str]| -> Output {
        let run_dir = directory.path().to_str().expect("a path");
        Command::new(env!("CARGO_BIN_EXE_onearm"))
            .args(args)
            .args(["--run-dir", run_dir])
            .output()
            .expect("onearm runs")
    };
    for (args, code, out, err) in [
        (&["status"][..], 70, "", "onearm: the election does not answer\n"),
        (&["services"], 0, "no services\n", ""),
        (&["services", "--json"], 0, "[]\n", ""),
        (&["flows", "--limit", "7"], 0, "0 of 7 flows\n", ""),
        (
            &["flows", "--json"],
            0,
            "{\n  \"flows\": [],\n  \"matched\": 100\n}\n",
            "",
        ),
        (&["events"], 0, "no events\n", ""),
        (
            &["probe", "10.0.0.1:80"],
            0,
            "lb2 → 10.0.0.1:80: it was tried (1.0 ms)\n",
            "",
        ),
        (
            &["probe", "10.0.0.1:81"],
            1,
            "lb2 → 10.0.0.1:81: it was tried (1.0 ms)\n",
            "",
        ),
        (
            &["ha", "switchover"],
            4,
            "",
            "onearm: nothing has changed: lb2 is in maintenance\n",
        ),
        (
            &["ha", "switchover", "--force"],
            0,
            "Switchover { force: true }\n",
            "",
        ),
        (
            &["ha", "maintenance"],
            0,
            "Maintenance { on: true, force: false }\n",
            "onearm: the order is being carried out\n",
        ),
        (&["ha", "hold"], 0, "Hold { on: true }\n", ""),
        (&["ha", "hold", "--off"], 0, "Hold { on: false }\n", ""),
        (
            &["ha", "maintenance", "--off"],
            0,
            "Maintenance { on: false, force: false }\n",
            "",
        ),
        (
            &["ha", "maintenance", "--force", "--json"],
            0,
            "{\n  \"node\": \"lb1\",\n  \"state\": \"standby\",\n  \"owner\": \"lb2\",\n  \"took_ms\": 42,\n  \"waited_ms\": null,\n  \"message\": \"Maintenance { on: true, force: true }\"\n}\n",
            "",
        ),
        (
            &["probe", "10.0.0.1:1"],
            4,
            "",
            "onearm: this node is Active; run it on the Standby\n",
        ),
    ] {
        let output = onearm(args);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let found = (output.status.code(), text(output.stdout), text(output.stderr));
        assert_eq!(found, (Some(code), out.to_owned(), err.to_owned()), "{args:?}");
    }
    stop.send(true).expect("the server is there");
    thread.join().expect("the server ends");
}

#[test]
fn a_key_is_made_once_shown_by_fingerprint_rotated_in_steps_and_never_printed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pair.key");
    let file = path.to_str().expect("a path");
    let mut said = Vec::new();
    let mut onearm = |args: &[&str]| -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_onearm"))
            .arg("key")
            .args(args)
            .output()
            .expect("onearm runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let (out, err) = (text(output.stdout), text(output.stderr));
        said.push(format!("{out}{err}"));
        (output.status.code(), out, err)
    };
    let (code, _, err) = onearm(&["show", "--key-file", file]);
    assert_eq!(code, Some(3));
    assert!(err.contains("onearm key new"), "{err}");
    let (code, made, _) = onearm(&["new", "--out", file]);
    assert_eq!(code, Some(0));
    assert!(
        made.contains("install -m 600") && made.contains("\nkey 1  "),
        "{made}"
    );
    let first = std::fs::read_to_string(&path).expect("the key");
    let (code, _, err) = onearm(&["new", "--out", file]);
    assert_eq!(code, Some(4));
    assert_eq!(
        err,
        format!("onearm: {file} is there already, and a key is never overwritten\n")
    );
    let keys = |shown: &str| -> Vec<(u64, String)> {
        let shown: serde_json::Value = serde_json::from_str(shown).expect("JSON");
        let keys = shown["keys"].as_array().expect("keys").iter();
        keys.map(|key| {
            let print = key["fingerprint"].as_str().expect("a fingerprint");
            (key["id"].as_u64().expect("a number"), print.to_owned())
        })
        .collect()
    };
    let show = ["show", "--json", "--key-file", file];
    let before = keys(&onearm(&show).1);
    assert_eq!(onearm(&["rotate", "--finish", "--key-file", file]).0, Some(4));
    assert_eq!(onearm(&["rotate", "--force", "--key-file", file]).0, Some(2));
    assert_eq!(onearm(&["rotate", "--key-file", file]).0, Some(0));
    let both = keys(&onearm(&show).1);
    assert_eq!((both.len(), &both[0], both[1].0), (2, &before[0], 2));
    assert_eq!(onearm(&["rotate", "--key-file", file]).0, Some(4));
    let nowhere = directory.path().to_str().expect("a path");
    let asking = ["rotate", "--finish", "--key-file", file, "--run-dir", nowhere];
    assert_eq!(
        onearm(&asking).0,
        Some(5),
        "no daemon says that the peer holds it"
    );
    assert_eq!(
        onearm(&["rotate", "--finish", "--force", "--key-file", file]).0,
        Some(0)
    );
    assert_eq!(keys(&onearm(&show).1), both[1..]);
    let last = std::fs::read_to_string(&path).expect("the key");
    for secret in [first, last]
        .iter()
        .flat_map(|text| text.split_whitespace())
        .filter(|word| word.len() == 64 || word.len() == 32)
    {
        assert!(said.iter().all(|text| !text.contains(secret)));
    }
}

#[test]
fn of_two_rotations_at_once_one_is_made_and_the_other_told() {
    let directory = tempfile::tempdir().expect("a directory");
    for number in 0..10 {
        let file = directory.path().join(format!("{number}.key"));
        let onearm = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_onearm"));
            command.arg("key").args(args).arg(&file);
            command
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null());
            command.spawn().expect("onearm runs")
        };
        assert!(onearm(&["new", "--out"]).wait().expect("an end").success());
        let both = [(); 2].map(|()| onearm(&["rotate", "--key-file"]));
        let mut codes = both.map(|mut one| one.wait().expect("an end").code());
        codes.sort_unstable();
        assert_eq!(codes, [Some(0), Some(4)]);
        assert!(onearm(&["show", "--key-file"]).wait().expect("an end").success());
    }
    let left = std::fs::read_dir(directory.path()).expect("a listing").count();
    assert_eq!(left, 10, "nothing but the keys");
}
