use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::control::tests::{Fixed, service, status};

/// Samples by name and labels, and the kinds of the families; panics where the text breaks a rule of the format.
fn read(page: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    let (mut samples, mut kinds, mut helped) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let body = page.strip_suffix("# EOF\n").expect("an end");
    for line in body.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            let (family, help) = told.split_once(' ').unwrap();
            assert!(!help.is_empty() && helped.insert(family.to_owned()), "{line}");
        } else if let Some(told) = line.strip_prefix("# TYPE ") {
            let (family, kind) = told.split_once(' ').unwrap();
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kinds.insert(family.to_owned(), kind.to_owned()), None, "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.starts_with("onearm_") && name.chars().all(fits), "{line}");
            let is_counter = |family: &str| kinds.get(family).is_some_and(|kind| kind == "counter");
            match name.strip_suffix("_total").filter(|family| is_counter(family)) {
                Some(_) => {}
                None => assert_eq!(kinds.get(name).map(String::as_str), Some("gauge"), "{line}"),
            }
            let value: f64 = value.parse().unwrap();
            assert_eq!(samples.insert(sample.to_owned(), value), None, "{line}");
        }
    }
    assert!(kinds.keys().all(|family| helped.contains(family)));
    (samples, kinds)
}

#[test]
fn a_page_says_what_status_and_services_say() {
    let (mut status, service) = (status(), service());
    status.ha.counters = BTreeMap::from([("a_new_counter".to_owned(), 7)]);
    status.dataplane.counters = BTreeMap::from([("relayed".to_owned(), 3)]);
    status.sync.verdict = SyncVerdict::Behind;
    status.sync.oldest_behind_ms = 250;
    let name = service.name.clone();
    let flows = service.traffic.flows;
    let state = status.state.as_str();
    let page = page(status.clone(), vec![service]).unwrap();
    let (samples, kinds) = read(&page);
    for (sample, value) in [
        (format!("onearm_state{{state=\"{state}\"}}"), 1.0),
        ("onearm_ha_a_new_counter_total".to_owned(), 7.0),
        ("onearm_dataplane_relayed_total".to_owned(), 3.0),
        ("onearm_sync_verdict{verdict=\"behind\"}".to_owned(), 1.0),
        ("onearm_sync_verdict{verdict=\"equal\"}".to_owned(), 0.0),
        ("onearm_sync_behind_seconds".to_owned(), 0.25),
        (
            format!("onearm_service_flows_total{{service=\"{name}\"}}"),
            number(flows),
        ),
        (
            "onearm_flows_limit".to_owned(),
            number(status.dataplane.max_flows),
        ),
    ] {
        assert_eq!(samples.get(&sample), Some(&value), "{sample} in\n{page}");
    }
    assert_eq!(kinds["onearm_ha_a_new_counter"], "counter");
    assert!(
        page.contains(
            "# HELP onearm_dataplane_relayed Sent on to the Active because this node has no lease."
        )
    );
}

/// Dashboards and alerts are written for these: a name that goes or changes is a decision.
#[test]
fn names_stay_what_they_are() {
    let (_, kinds) = read(&page(status(), vec![service()]).unwrap());
    let kept = [
        "build_info",
        "config_differs",
        "epoch",
        "flows",
        "flows_limit",
        "ha_effective_priority",
        "ha_fit",
        "ha_priority",
        "ha_realtime",
        "ha_stance",
        "ha_tracked_good",
        "half_open_flows",
        "half_open_flows_limit",
        "lease_valid",
        "leg_attached",
        "leg_carrier",
        "map_bytes",
        "node_info",
        "peer_last_seen_seconds",
        "peer_state",
        "server_bytes",
        "server_flows",
        "server_packets",
        "server_up",
        "server_weight",
        "service_bytes",
        "service_flows",
        "service_open_flows",
        "service_packets",
        "service_refused",
        "state",
        "state_seconds",
        "stream_bytes",
        "stream_ended",
        "stream_failed",
        "stream_frames",
        "stream_messages_lost",
        "stream_open",
        "stream_sessions",
        "stream_unknown_records",
        "sync_behind_records",
        "sync_behind_seconds",
        "sync_lag_seconds",
        "sync_verdict",
        "uptime_seconds",
        "usage",
        "usage_limit",
        "warnings",
    ];
    let counters = |name: &String| {
        ["dataplane_", "ha_", "sync_"]
            .iter()
            .any(|of| name.starts_with(of))
            && kinds[&format!("onearm_{name}")] == "counter"
    };
    let names: Vec<String> = kinds
        .keys()
        .filter_map(|name| name.strip_prefix("onearm_"))
        .map(str::to_owned)
        .collect();
    let own: Vec<&String> = names.iter().filter(|name| !counters(name)).collect();
    assert_eq!(own, kept.iter().collect::<Vec<_>>());
}

#[test]
fn words_of_an_operator_cannot_break_a_page() {
    let mut service = service();
    service.name = "a \"b\"\\ \nc} 1".to_owned();
    let (samples, _) = read(&page(status(), vec![service]).unwrap());
    assert!(
        samples.contains_key("onearm_service_open_flows{service=\"a \\\"b\\\"\\\\ \\nc} 1\"}"),
        "{:?}",
        samples.keys()
    );
}

/// What the server answers to these bytes, until it closes.
async fn ask(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok();
    answer
}

#[tokio::test]
async fn a_scraper_is_answered_beside_crowds_of_silent_ones_and_nothing_else_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(http::serve(listener, Arc::new(Fixed)));
    let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut silent = Vec::new();
    for _ in 0..7 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let answer = ask(address, get).await;
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains(CONTENT_TYPE), "{head}");
    read(page);
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        (
            "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
            "405",
        ),
        ("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
        ("what\r\n\r\n", "400"),
    ] {
        let answer = ask(address, request).await;
        assert_eq!(answer.get(9..12), Some(status), "{request}: {answer}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(20_000));
    assert!(!ask(address, &long).await.contains(" 200 "));
    // Beside eight that are silent nobody is answered; as soon as one has gone, somebody is.
    silent.push(TcpStream::connect(address).await.unwrap());
    assert_eq!(ask(address, get).await, "");
    silent.clear();
    while !ask(address, get).await.contains(" 200 ") {
        tokio::task::yield_now().await;
    }
    server.abort();
}
