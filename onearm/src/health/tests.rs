use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::control::ServerHealth;

const GOOD: CheckResult = CheckResult::Connected(Duration::from_micros(400));
const BAD: CheckResult = CheckResult::Failed(libc::ECONNREFUSED);
const INTERVAL: Duration = Duration::from_secs(2);

fn key(server: &str) -> ServerKey {
    ServerKey {
        service: "web".into(),
        server: server.into(),
    }
}

fn spec(server: &str, last: u8, port: u16) -> CheckSpec {
    CheckSpec {
        key: key(server),
        target: SocketAddr::from(([192, 168, 100, last], port)).into(),
        interval: INTERVAL,
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
    }
}

/// A machine, a clock, and servers that answer as the table says.
struct Bench {
    machine: Machine,
    now: Instant,
    answers: HashMap<Target, CheckResult>,
    changes: Vec<(String, bool)>,
    checks: Vec<(Duration, Target)>,
    start: Instant,
}

impl Bench {
    fn new(specs: Vec<CheckSpec>) -> Self {
        let start = tokio::time::Instant::now().into_std();
        let mut bench = Self {
            machine: Machine::new(1, 100),
            now: start,
            answers: HashMap::new(),
            changes: vec![],
            checks: vec![],
            start,
        };
        bench.configure(specs);
        bench
    }

    fn configure(&mut self, specs: Vec<CheckSpec>) {
        self.machine.handle(self.now, Input::Configured(specs));
    }

    fn answer(&mut self, spec: &CheckSpec, result: CheckResult) {
        self.answers.insert(spec.target, result);
    }

    /// Does all that is due now; answers come at once.
    fn settle(&mut self) {
        self.machine.time_passed(self.now);
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::StartCheck { check, target, .. } => {
                    self.checks.push((self.now - self.start, target));
                    let result = self.answers.get(&target).copied().unwrap_or(GOOD);
                    self.machine.handle(self.now, Input::CheckEnded { check, result });
                }
                Output::ChangeServer { key, up, .. } => self.changes.push((key.server, up)),
            }
        }
    }

    /// The next round of checks.
    fn round(&mut self) {
        self.now = self.machine.deadline().expect("a check is to come");
        self.settle();
    }

    fn up(&self, server: &str) -> bool {
        self.machine
            .view(self.now, &key(server))
            .expect("it is checked")
            .in_rotation
    }

    fn health(&self, server: &str) -> ServerHealth {
        self.machine
            .view(self.now, &key(server))
            .expect("it is checked")
            .health
    }
}

#[test]
fn the_first_check_comes_at_once_and_decides() {
    let (s1, s2) = (spec("s1", 1, 80), spec("s2", 2, 80));
    let mut bench = Bench::new(vec![s1, s2.clone()]);
    assert_eq!(bench.health("s1"), ServerHealth::Pending);
    assert!(!bench.up("s1"), "not before it was seen");
    bench.answer(&s2, BAD);
    bench.settle();
    assert_eq!((bench.up("s1"), bench.up("s2")), (true, false));
    assert_eq!(bench.machine.view(bench.now, &key("other")), None);
}

#[test]
fn b119_failures_count_in_a_row_only() {
    let s1 = spec("s1", 1, 80);
    let mut bench = Bench::new(vec![s1.clone()]);
    bench.settle();
    for _ in 0..10 {
        bench.answer(&s1, BAD);
        bench.round();
        bench.answer(&s1, GOOD);
        (0..20).for_each(|_| bench.round());
    }
    assert_eq!(bench.changes, [("s1".to_owned(), true)], "up once, never down");
    bench.answer(&s1, BAD);
    for expected in [true, true, false, false] {
        bench.round();
        assert_eq!(bench.up("s1"), expected);
    }
    bench.answer(&s1, GOOD);
    bench.round();
    assert!(!bench.up("s1"), "rise is 2");
    bench.answer(&s1, BAD);
    bench.round();
    bench.answer(&s1, GOOD);
    for expected in [false, true] {
        bench.round();
        assert_eq!(bench.up("s1"), expected);
    }
}

#[test]
fn b109_configured_weight_and_health_meet_only_in_the_effective_weight() {
    let text = include_str!("../../../etc/examples/pair.toml");
    let specs = |text: String| {
        specs(
            &crate::config::parse_pair(crate::config::Source::new("pair.toml", text))
                .parsed
                .config,
        )
    };
    let other_weight = text.replace("weight = 3", "weight = 0");
    assert_ne!(other_weight, text);
    assert_eq!(
        specs(other_weight),
        specs(text.to_owned()),
        "a change of weight is no change of the check"
    );
    for (weight, up, expected) in [
        (3, true, 3),
        (3, false, 0),
        (0, true, 0),
        (0, false, 0),
        (255, true, 255),
    ] {
        assert_eq!(effective_weight(weight, up), expected);
    }
}

#[test]
fn b116_an_unrelated_change_never_brings_a_dead_server_back() {
    let (s1, s2) = (spec("s1", 1, 80), spec("s2", 2, 80));
    let mut bench = Bench::new(vec![s1.clone(), s2.clone()]);
    bench.answer(&s2, BAD);
    bench.settle();
    let checks = bench.checks.len();
    for n in 0..20 {
        let mut specs = vec![s1.clone(), s2.clone()];
        if n % 2 == 0 {
            specs.insert(0, spec("s3", 3, 80));
        }
        bench.configure(specs);
        assert!(bench.up("s1") && !bench.up("s2"), "kept through apply {n}");
        bench.settle();
        assert!(bench.up("s1") && !bench.up("s2"));
    }
    assert_eq!(
        bench.checks.len(),
        checks + 10,
        "only the new server was checked early"
    );
}

#[test]
fn b118_changed_parameters_are_tried_at_once_and_the_old_state_holds_until_they_decide() {
    let mut bench = Bench::new(vec![spec("s1", 1, 80)]);
    bench.settle();
    bench.answer(&spec("s1", 1, 81), BAD);
    let changed_at = bench.now;
    bench.configure(vec![spec("s1", 1, 81)]);
    bench.settle();
    assert_eq!(
        bench.checks.last(),
        Some(&(changed_at - bench.start, spec("s1", 1, 81).target))
    );
    assert!(bench.up("s1"), "one failure is not three");
    bench.round();
    bench.round();
    assert!(!bench.up("s1"));
    assert!(bench.now - changed_at <= INTERVAL * 3);
}

#[test]
fn another_address_under_the_same_name_is_another_server() {
    let mut bench = Bench::new(vec![spec("s1", 1, 80)]);
    bench.settle();
    bench.configure(vec![spec("s1", 9, 80)]);
    assert_eq!(bench.health("s1"), ServerHealth::Pending);
}

#[test]
fn a_result_of_a_check_that_was_replaced_says_nothing() {
    let mut machine = Machine::new(1, 10);
    let now = tokio::time::Instant::now().into_std();
    machine.handle(now, Input::Configured(vec![spec("s1", 1, 80)]));
    let Some(Output::StartCheck { check: old, .. }) = machine.poll_output() else {
        panic!("a check starts")
    };
    machine.handle(now, Input::Configured(vec![spec("s1", 1, 81)]));
    let Some(Output::StartCheck { check: new, .. }) = machine.poll_output() else {
        panic!("a check starts")
    };
    machine.handle(
        now,
        Input::CheckEnded {
            check: old,
            result: BAD,
        },
    );
    machine.handle(
        now,
        Input::CheckEnded {
            check: 12_345,
            result: BAD,
        },
    );
    assert_eq!(
        machine.view(now, &key("s1")).map(|v| v.health),
        Some(ServerHealth::Pending)
    );
    machine.handle(
        now,
        Input::CheckEnded {
            check: new,
            result: GOOD,
        },
    );
    machine.handle(
        now,
        Input::CheckEnded {
            check: new,
            result: BAD,
        },
    );
    assert_eq!(
        machine.view(now, &key("s1")).map(|v| v.health),
        Some(ServerHealth::Up)
    );
    machine.handle(now, Input::Configured(vec![]));
    assert_eq!((machine.deadline(), machine.view(now, &key("s1"))), (None, None));
}

#[test]
fn a_fault_of_this_machine_is_no_fault_of_the_server() {
    let s1 = spec("s1", 1, 80);
    let mut bench = Bench::new(vec![s1.clone()]);
    bench.settle();
    bench.answer(&s1, CheckResult::NotTried(libc::EMFILE));
    (0..10).for_each(|_| bench.round());
    assert!(bench.up("s1"));
    assert_eq!(
        bench.health("s1"),
        ServerHealth::Stale,
        "but nobody vouches for it"
    );
    assert_eq!(bench.machine.not_tried(), 10);
}

#[test]
fn b155_when_results_stop_the_server_is_shown_stale_with_the_age_of_the_last() {
    let mut bench = Bench::new(vec![spec("s1", 1, 80)]);
    bench.settle();
    let at = |seconds: u64| {
        bench
            .machine
            .view(bench.now + Duration::from_secs(seconds), &key("s1"))
            .expect("checked")
    };
    assert_eq!(at(7).health, ServerHealth::Up);
    assert_eq!(at(8).health, ServerHealth::Stale);
    assert!(at(60).in_rotation, "what was known still applies");
    assert_eq!(at(60).last_check.map(|check| check.age_ms), Some(60_000));
}

#[test]
fn checks_are_an_interval_apart_give_or_take_a_tenth_and_do_not_march_in_step() {
    let specs: Vec<_> = (1..=50).map(|n| spec(&format!("s{n}"), n, 80)).collect();
    let mut bench = Bench::new(specs);
    bench.settle();
    while bench.now < bench.start + Duration::from_mins(1) {
        bench.round();
    }
    let mut times: HashMap<Target, Vec<Duration>> = HashMap::new();
    for (at, target) in &bench.checks {
        times.entry(*target).or_default().push(*at);
    }
    for times in times.values() {
        assert!((26..=34).contains(&times.len()));
        assert!(
            times
                .windows(2)
                .all(|pair| (1_800..=2_200).contains(&pair[1].saturating_sub(pair[0]).as_millis()))
        );
    }
    let second: std::collections::HashSet<Duration> = times.values().map(|times| times[1]).collect();
    assert!(second.len() > 25, "{} moments of 50", second.len());
}

#[test]
fn no_more_checks_run_than_there_is_room_for_and_all_get_their_turn() {
    let mut machine = Machine::new(7, 3);
    let mut now = tokio::time::Instant::now().into_std();
    machine.handle(
        now,
        Input::Configured((1..=20).map(|n| spec(&format!("s{n}"), n, 80)).collect()),
    );
    let mut running = std::collections::VecDeque::new();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20 {
        while let Some(output) = machine.poll_output() {
            if let Output::StartCheck { check, target, .. } = output {
                running.push_back(check);
                seen.insert(target);
            }
        }
        assert!(running.len() == 3 || seen.len() == 20);
        assert!(
            seen.len() == 20 || machine.deadline().is_none(),
            "no room: time alone starts nothing"
        );
        now += Duration::from_millis(1);
        if let Some(check) = running.pop_front() {
            machine.handle(now, Input::CheckEnded { check, result: GOOD });
        }
    }
    assert_eq!(seen.len(), 20);
}

#[test]
fn details_are_short_and_say_what_happened() {
    for (result, text) in [
        (
            CheckResult::Connected(Duration::from_micros(12_345)),
            "connected in 12.3 ms",
        ),
        (
            CheckResult::TimedOut(Duration::from_secs(1)),
            "no answer in 1000 ms",
        ),
        (BAD, "connection refused"),
        (CheckResult::Failed(libc::EHOSTUNREACH), "No route to host"),
        (
            CheckResult::NotTried(libc::EMFILE),
            "not tried: Too many open files",
        ),
    ] {
        assert_eq!(result.to_string(), text);
    }
    let local = std::io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
    assert_eq!(
        CheckResult::of_error(&local),
        CheckResult::NotTried(libc::EADDRNOTAVAIL)
    );
}

#[test]
fn b70_servers_are_checked_by_every_way_that_clients_come_to_them() {
    let file = |service: &str| {
        let text = format!(
            "format = 1\nha = {{ vrid = 9, auth = \"none\" }}\n[[service]]\nname = \"web\"\nvip = \"192.0.2.9\"\nprotocol = \"tcp\"\n\
             ports = [80, 443]\nsnat = [\"192.0.2.8\"]\n{service}\nserver = [{{ name = \"s1\", address = \"10.0.0.1\" }}]\n"
        );
        let parsed = crate::config::parse_pair(crate::config::Source::new("pair.toml", text)).parsed;
        assert_eq!(parsed.diagnostics, []);
        let found = specs(&parsed.config);
        assert_eq!(found.len(), 1);
        found[0].target
    };
    let address = |port| Some(SocketAddr::from(([10, 0, 0, 1], port)));
    let tunnel = |port, gue, source: Option<&str>| {
        Some(TunnelTarget {
            server: [10, 0, 0, 1].into(),
            vip: SocketAddr::from(([192, 0, 2, 9], port)),
            gue,
            source: source.map(|source| source.parse().unwrap()),
        })
    };
    for (service, address, tunnel) in [
        ("mode = \"dsr\"\ncheck = { type = \"tcp\" }", address(80), None),
        (
            "mode = \"l3-dsr\"\ncheck = { type = \"tcp\" }",
            None,
            tunnel(80, None, None),
        ),
        (
            "mode = \"l3-dsr\"\ntunnel = \"gue\"\ntunnel_port = 7000\ntunnel_sources = \"10.255.0.0/16\"\ncheck = { type = \"tcp\", port = 443 }",
            None,
            tunnel(443, Some(7_000), Some("10.255.0.0")),
        ),
        (
            "mode = \"l3-dsr\"\ncheck = { type = \"tcp\", tunnel = false }",
            address(80),
            None,
        ),
        (
            "mode = \"both-nat\"\nmode_for = [{ clients = [\"10.9.0.0/16\"], mode = \"l3-dsr\" }]\ncheck = { type = \"tcp\" }",
            address(80),
            tunnel(80, None, None),
        ),
    ] {
        assert_eq!(file(service), Target { address, tunnel }, "{service}");
    }
}

#[test]
fn servers_of_services_without_check_are_not_checked() {
    let source = crate::config::Source::new(
        "pair.toml",
        include_str!("../../../etc/examples/pair-both-nat.toml"),
    );
    let found: Vec<_> = specs(&crate::config::parse_pair(source).parsed.config)
        .into_iter()
        .map(|s| (s.key, s.target))
        .collect();
    assert_eq!(
        found,
        [
            (key("s1"), SocketAddr::from(([192, 168, 100, 10], 80)).into()),
            (key("far"), SocketAddr::from(([10, 20, 0, 10], 8_080)).into())
        ]
    );
}

proptest! {
    /// Against a model that looks at the whole history of results.
    #[test]
    fn prop_a_server_is_what_its_last_results_say(results in prop::collection::vec(any::<bool>(), 1..60), rise in 1..5_u32, fall in 1..5_u32) {
        let spec = CheckSpec { rise, fall, ..spec("s1", 1, 80) };
        let mut bench = Bench::new(vec![spec.clone()]);
        let mut model = results[0];
        for (n, passed) in results.iter().enumerate() {
            bench.answer(&spec, if *passed { GOOD } else { BAD });
            if n == 0 { bench.settle() } else { bench.round() }
            let in_a_row = results[..=n].iter().rev().take_while(|r| *r == passed).count();
            if in_a_row >= if *passed { rise } else { fall } as usize {
                model = *passed;
            }
            prop_assert_eq!(bench.up("s1"), model);
            let last = bench.machine.view(bench.now, &key("s1")).and_then(|view| view.last_check).expect("a result");
            prop_assert_eq!((last.in_a_row as usize, last.passed), (in_a_row, *passed));
        }
    }
}

/// A runtime for tests with real sockets.
fn with_runtime<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test)
}

async fn until(health: &Health, what: impl Fn(&Health) -> bool) {
    let mut changes = health.changes();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !what(health) {
        tokio::time::timeout_at(deadline, changes.changed())
            .await
            .expect("it happens in time")
            .expect("checks go on");
    }
}

#[test]
fn real_servers_go_up_and_down_and_connections_are_not_left_behind() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        real_servers_go_up_and_down(host);
    }
}

fn real_servers_go_up_and_down(host: &str) {
    with_runtime(async {
        let listener = tokio::net::TcpListener::bind(host).await.expect("a listener");
        let target = listener.local_addr().expect("bound");
        let closed = {
            let other = std::net::TcpListener::bind(host).expect("a port");
            other.local_addr().expect("bound").port()
        };
        let quick = |server: &str, port| CheckSpec {
            key: key(server),
            target: SocketAddr::new(target.ip(), port).into(),
            interval: Duration::from_millis(100),
            timeout: Duration::from_millis(90),
            rise: 2,
            fall: 3,
        };
        let (health, task) = Health::new(3, 4);
        let task = tokio::spawn(task);
        health.configure(vec![quick("live", target.port()), quick("dead", closed)]);
        until(&health, |h| h.in_rotation(&key("live"))).await;
        until(&health, |h| {
            h.view(&key("dead"))
                .is_some_and(|v| v.health == ServerHealth::Down)
        })
        .await;
        let refused = health
            .view(&key("dead"))
            .and_then(|view| view.last_check)
            .expect("a result");
        assert_eq!((refused.passed, &*refused.detail), (false, "connection refused"));
        assert!(
            health.in_rotation(&key("unchecked")),
            "a server without check is up"
        );
        // The server sees resets, not closed connections that linger on the checking side.
        let (stream, _) = listener.accept().await.expect("a check arrived");
        stream.readable().await.expect("it ends");
        assert_eq!(
            stream.try_read(&mut [0; 1]).map_err(|e| e.kind()),
            Err(std::io::ErrorKind::ConnectionReset)
        );
        drop((stream, listener));
        until(&health, |h| !h.in_rotation(&key("live"))).await;
        drop(health);
        task.await.expect("the task ends with its last reader");
    });
}

#[test]
fn thousands_of_servers_are_checked_with_few_connections_at_a_time() {
    with_runtime(async {
        let listener = tokio::net::TcpListener::bind(("0.0.0.0", 0))
            .await
            .expect("a listener");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let specs: Vec<_> = (0..4_000_u16)
            .map(|n| CheckSpec {
                key: key(&n.to_string()),
                target: SocketAddr::from((Ipv4Addr::from_bits(0x7f01_0001 + u32::from(n)), port)).into(),
                interval: Duration::from_mins(1),
                timeout: Duration::from_secs(10),
                rise: 1,
                fall: 1,
            })
            .collect();
        let keys: Vec<_> = specs.iter().map(|spec| spec.key.clone()).collect();
        let (health, task) = Health::new(9, 64);
        tokio::spawn(task);
        health.configure(specs);
        until(&health, |h| keys.iter().rev().all(|key| h.in_rotation(key))).await;
    });
}
