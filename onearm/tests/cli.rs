//! The `onearm` command against a daemon's socket: what it prints, and its exit codes.

use std::process::{Command, Output};
use std::sync::Arc;

use onearm::control::{
    ControlBackend, ControlServer, EventList, EventQuery, FlowList, FlowQuery, ProbeRequest, ProbeResult,
    Refusal, ServiceStatus, Status,
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
