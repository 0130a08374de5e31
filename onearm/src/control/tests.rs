use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onearm_types::NodeId;
use proptest::prelude::*;
use tokio::sync::watch;

use super::*;

/// Answers with fixed values; the limit of a query comes back in `matched`.
pub(crate) struct Fixed;

impl ControlBackend for Fixed {
    async fn status(&self) -> Result<Status, Refusal> {
        Ok(status())
    }
    async fn services(&self) -> Result<Vec<ServiceStatus>, Refusal> {
        Ok(vec![service()])
    }
    async fn flows(&self, query: FlowQuery) -> Result<FlowList, Refusal> {
        let flows: Vec<_> = [flow()].into_iter().filter(|f| query.matches(f)).collect();
        Ok(FlowList {
            matched: u64::from(query.limit),
            flows,
        })
    }
    async fn events(&self, query: EventQuery) -> Result<EventList, Refusal> {
        Ok(EventList {
            last: query.since,
            ..EventList::default()
        })
    }
    async fn probe(&self, _: ProbeRequest) -> Result<ProbeResult, Refusal> {
        Err(Refusal::state("this node is Active; ask the Standby"))
    }
    async fn ha(&self, request: HaRequest) -> Result<HaAnswer, Refusal> {
        Ok(HaAnswer {
            node: "lb1".into(),
            state: NodeState::Standby,
            owner: Some("lb2".into()),
            took_ms: Some(42),
            waited_ms: None,
            message: format!("{request:?}"),
        })
    }
}

pub(crate) fn status() -> Status {
    Status {
        node: NodeStatus {
            name: "lb1".into(),
            id: NodeId::new(1).expect("1 is an id"),
            version: "0.1.0".into(),
            uptime_ms: 5,
        },
        state: NodeState::Active,
        since_ms: 4,
        reason: "start".into(),
        lease: LeaseStatus {
            valid: true,
            deadline_ns: 9,
            remaining_us: 8,
            epoch: 2,
        },
        peer: PeerStatus::default(),
        stream: StreamStatus::default(),
        sync: SyncStatus::default(),
        owned: OwnedStatus::default(),
        legs: vec![],
        config: ConfigStatus {
            digest: "ab".into(),
            peer_digest: None,
            differs: false,
        },
        ha: HaStatus {
            vrid: 51,
            priority: 150,
            effective_priority: 150,
            advert_interval_ms: 100,
            auth: "none".into(),
            authentication: None,
            stance: "normal".into(),
            peer_stance: None,
            preempt: false,
            realtime: true,
            has: vec!["dataplane".into(), "legs".into()],
            peer_has: None,
            tracked: Vec::new(),
            counters: BTreeMap::from([("adverts_sent".into(), 7)]),
        },
        dataplane: DataplaneStatus {
            flows: 1,
            half_open: 0,
            max_flows: 10,
            max_half_open: 5,
            map_bytes: 100,
            usage: Vec::new(),
            counters: BTreeMap::new(),
        },
        warnings: vec!["adverts are not authenticated".into()],
    }
}

pub(crate) fn service() -> ServiceStatus {
    ServiceStatus {
        name: "web".into(),
        vip: IpAddr::from([192, 168, 100, 100]),
        protocol: "tcp".into(),
        ports: vec!["80".into()],
        mode: "dnat".into(),
        mode_for: Vec::new(),
        scheduler: "maglev".into(),
        traffic: Traffic::default(),
        open: 0,
        max_connections: None,
        refusals: Refusals::default(),
        servers: vec![ServerStatus {
            name: "s1".into(),
            address: IpAddr::from([192, 168, 100, 10]),
            port: None,
            weight: 3,
            effective_weight: 0,
            health: ServerHealth::Down,
            last_check: Some(LastCheck {
                age_ms: 3,
                passed: false,
                detail: "connection refused".into(),
                in_a_row: 3,
            }),
            traffic: Traffic::default(),
        }],
    }
}

fn flow() -> FlowEntry {
    let at = |last, port| SocketAddr::new(IpAddr::from([192, 168, 100, last]), port);
    FlowEntry {
        protocol: "tcp".into(),
        client: at(50, 40_000),
        vip: at(100, 80),
        server: at(10, 80),
        mode: "dnat".into(),
        hairpin: true,
        snat: Some(at(100, 33_000)),
        service: Some("web".into()),
        state: "established".into(),
        idle_ms: 1,
        expires_ms: 2,
    }
}

/// Runs `client` against a server in a directory of its own; the server stops when it returns.
fn with_server<T>(client: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (stop, stopped) = watch::channel(false);
    let server = {
        let _inside = runtime.enter();
        ControlServer::bind(dir.path(), None).expect("the socket")
    };
    let thread = std::thread::spawn(move || runtime.block_on(server.serve(Arc::new(Fixed), stopped)));
    let result = client(dir.path());
    stop.send(true).expect("the server is there");
    thread.join().expect("the server ends in order");
    assert!(!dir.path().join(SOCKET_NAME).exists(), "the socket is removed");
    result
}

fn raw(dir: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(dir.join(SOCKET_NAME)).expect("connect");
    // The server may answer and close before it has read everything.
    drop(stream.write_all(request));
    drop(stream.shutdown(std::net::Shutdown::Write));
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer));
    answer
}

#[test]
fn every_operation_comes_back_as_it_was_answered() {
    with_server(|dir| {
        let mut client = ControlClient::connect(dir).expect("connect");
        assert_eq!(client.status().expect("status"), status());
        assert_eq!(client.services().expect("services"), vec![service()]);
        let mut query = FlowQuery {
            client: None,
            vip: None,
            server: None,
            limit: 3,
        };
        assert_eq!(
            client.flows(query.clone()).expect("flows"),
            FlowList {
                flows: vec![flow()],
                matched: 3
            }
        );
        query.client = Some(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(client.flows(query).expect("flows").flows, vec![]);
        assert_eq!(client.events(EventQuery { since: 17 }).expect("events").last, 17);
        let target = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 80);
        match client.probe(ProbeRequest {
            target,
            timeout_ms: 1000,
        }) {
            Err(ClientError::Refused(r)) => assert_eq!(r.kind, RefusalKind::Refused),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_bad_request_is_refused_in_one_sentence_and_the_next_one_served() {
    with_server(|dir| {
        for (request, says) in [
            (r#"{"version":1,"op":"reboot"}"#, "reboot"),
            (r#"{"version":2,"op":"status"}"#, "control version 1"),
            (r#"{"op":"status"}"#, "control version 1"),
            (r#"{"version":1,"op":"flows","args":{"limit":0}}"#, "1 to 10000"),
            (
                r#"{"version":1,"op":"flows","args":{"limit":10001}}"#,
                "1 to 10000",
            ),
            (
                r#"{"version":1,"op":"flows","args":{"limit":1,"vip":"web"}}"#,
                "not understood",
            ),
            (
                r#"{"version":1,"op":"probe","args":{"target":"10.0.0.1:80","timeout_ms":30001}}"#,
                "30,000",
            ),
            ("status", "not JSON"),
            ("[]", "control version 1"),
        ] {
            let answers = raw(
                dir,
                format!("{request}\n{{\"version\":1,\"op\":\"status\"}}\n").as_bytes(),
            );
            let lines: Vec<&str> = answers.lines().collect();
            assert_eq!(lines.len(), 2, "{request}: {answers}");
            assert!(
                lines[0].contains(r#""kind":"usage""#) && lines[0].contains(says),
                "{request}: {}",
                lines[0]
            );
            assert!(lines[1].contains(r#""ok""#), "{request}: {}", lines[1]);
        }
    });
}

#[test]
fn a_request_that_never_ends_is_cut_at_the_limit() {
    with_server(|dir| {
        let answer = raw(dir, &vec![b' '; 3 * MAX_REQUEST]);
        assert!(
            answer.is_empty() || answer.contains("at most 16384 bytes"),
            "{answer}"
        );
        let answer = raw(dir, &vec![b' '; MAX_REQUEST]);
        assert!(answer.contains("at most 16384 bytes"), "{answer}");
    });
}

#[test]
fn silent_clients_take_their_own_places_only_and_the_one_too_many_is_told_busy() {
    with_server(|dir| {
        let silent: Vec<_> = (1..MAX_CONNECTIONS)
            .map(|_| UnixStream::connect(dir.join(SOCKET_NAME)).expect("connect"))
            .collect();
        let mut last = ControlClient::connect(dir).expect("connect");
        last.status().expect("the last place is served");
        let mut extra = ControlClient::connect(dir).expect("connect");
        match extra.status() {
            Err(ClientError::Refused(r)) => assert_eq!(r.kind, RefusalKind::Busy),
            other => panic!("{other:?}"),
        }
        drop(silent);
        last.status().expect("still served");
    });
}

#[test]
fn the_socket_is_for_owner_and_group_and_replaces_a_dead_one() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    drop(
        std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET_NAME)).expect("a dead daemon's socket"),
    );
    let server = ControlServer::bind(dir.path(), None).expect("the socket");
    let mode = std::fs::metadata(server.path())
        .expect("it exists")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    let unknown = ControlServer::bind(dir.path(), Some("no-such-group-here")).expect_err("no such group");
    assert_eq!(unknown.kind(), std::io::ErrorKind::NotFound);
    let entries: Vec<PathBuf> = std::fs::read_dir(dir.path())
        .expect("readable")
        .map(|e| e.expect("an entry").path())
        .collect();
    assert_eq!(
        entries,
        [server.path()],
        "nothing is left behind by the failed one"
    );
}

#[test]
fn without_a_daemon_the_client_names_the_socket() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    match ControlClient::connect(dir.path()) {
        Err(e @ ClientError::Connect { .. }) => assert!(e.to_string().contains(SOCKET_NAME)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_event_log_keeps_the_last_and_counts_the_lost() {
    let mut log = EventLog::new(3);
    assert_eq!(log.list(EventQuery { since: 0 }), EventList::default());
    for n in 1..=5 {
        let event = NewEvent {
            severity: Severity::Info,
            kind: "test",
            message: n.to_string(),
            remedy: String::new(),
        };
        assert_eq!(log.record(n * 10, event, None), n);
    }
    let numbers = |since| {
        let list = log.list(EventQuery { since });
        (
            list.events.iter().map(|e| e.sequence).collect::<Vec<_>>(),
            list.lost,
            list.last,
        )
    };
    assert_eq!(numbers(0), (vec![3, 4, 5], 2, 5));
    assert_eq!(numbers(2), (vec![3, 4, 5], 0, 5));
    assert_eq!(numbers(4), (vec![5], 0, 5));
    assert_eq!(numbers(5), (vec![], 0, 5));
    assert_eq!(numbers(99), (vec![], 0, 5), "a client of an earlier daemon");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn prop_no_bytes_from_a_client_stop_the_server(requests in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..4)) {
        with_server(|dir| {
            for request in &requests {
                raw(dir, request);
            }
            ControlClient::connect(dir).expect("connect").status().expect("still served");
        });
    }
}

#[tokio::test]
async fn a_daemon_that_ends_leaves_the_socket_of_its_successor() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let leaving = ControlServer::bind(dir.path(), None).expect("the socket");
    let successor = ControlServer::bind(dir.path(), None).expect("the socket again");
    drop(leaving);
    assert!(successor.path().exists());
    let path = successor.path().to_owned();
    drop(successor);
    assert!(!path.exists());
}
