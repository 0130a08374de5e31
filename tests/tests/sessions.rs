//! The instrument of sessions is right: known faults between clients and servers give the readings they must.

use std::{net::IpAddr, time::Duration};

use onearm_lab::{
    OneArm, clock,
    measure::sessions::{PORT, Protocol, Server, Sessions, Short, Wanted, Why},
    topology::{Options, address},
};

fn lab() -> OneArm {
    OneArm::build(Options::default()).expect("a lab (this test needs root)")
}

fn server(lab: &OneArm, tag: u8, short: &str) -> Server {
    let any: IpAddr = [0, 0, 0, 0].into();
    Server::start(lab.ns(short), tag, any).expect("a server")
}

fn wanted(protocol: Protocol, count: usize, period: Option<Duration>) -> Wanted {
    Wanted {
        protocol,
        target: (address("s1"), PORT).into(),
        sources: vec![address("cl").into()],
        first_port: 10_000,
        count,
        period,
        set: 7,
    }
}

const PERIOD: Option<Duration> = Some(Duration::from_millis(100));
const LIMIT: Duration = Duration::from_secs(3);

#[test]
#[ignore = "needs root"]
fn a_silence_stalls_connections_and_breaks_none() {
    let lab = lab();
    let served = server(&lab, 1, "s1");
    let tcp = Sessions::open(lab.ns("cl"), &wanted(Protocol::Tcp, 50, PERIOD)).expect("connections");
    let udp = Sessions::open(lab.ns("cl"), &wanted(Protocol::Udp, 50, PERIOD)).expect("datagrams");
    let from = clock::now();
    lab.switch().silence("s1").expect("silence");
    clock::observe(Duration::from_millis(500));
    lab.switch().unsilence("s1").expect("unsilence");
    let since = clock::now();
    assert_eq!(tcp.wait_answered(since, LIMIT), 0);
    assert_eq!(udp.wait_answered(since, LIMIT), 0);
    let to = clock::now();
    let (tcp, udp) = (tcp.finish().expect("TCP"), udp.finish().expect("UDP"));
    let (streams, datagrams) = (tcp.between(from, to), udp.between(from, to));
    assert_eq!((streams.broken(), datagrams.broken()), (0, 0));
    assert_eq!((streams.alive, streams.stalls.len()), (50, 50));
    // The words of the first tenth of a second were said then.
    assert!(streams.stall(500) >= 400_000_000, "{streams:?}");
    assert!((150..=350).contains(&datagrams.lost), "{} lost", datagrams.lost);
    let served = served.finish().expect("the server");
    assert!(served.foreign.is_empty() && served.answers >= tcp.answers + udp.answers);
    assert_eq!(served.accepted, 50);
}

#[test]
#[ignore = "needs root"]
fn ends_of_all_kinds_are_told_apart() {
    let lab = lab();
    let one = server(&lab, 1, "s1");
    let ended = Sessions::open(lab.ns("cl"), &wanted(Protocol::Tcp, 20, PERIOD)).expect("connections");
    let moved = Sessions::open(lab.ns("cl"), &wanted(Protocol::Udp, 20, PERIOD)).expect("datagrams");
    let from = clock::now();
    one.finish().expect("the server");
    let _two = server(&lab, 2, "s1");
    let since = clock::now();
    assert_eq!(ended.wait_answered(since, LIMIT), 0);
    assert_eq!(moved.wait_answered(since, LIMIT), 0);
    let to = clock::now();
    let (ended, moved) = (ended.finish().expect("TCP"), moved.finish().expect("UDP"));
    let ended = ended.between(from, to);
    let why: Vec<Why> = ended.broken.keys().copied().collect();
    assert_eq!(ended.broken(), 20);
    assert!(
        why.iter().all(|why| matches!(why, Why::Closed | Why::Reset)),
        "{why:?}"
    );
    assert_eq!(moved.between(from, to).foreign(), 20);
}

#[test]
#[ignore = "needs root"]
fn who_gets_no_answer_is_given_up_and_idle_ones_speak_when_told() {
    let lab = lab();
    let _one = server(&lab, 1, "s1");
    let idle = Sessions::open(lab.ns("cl"), &wanted(Protocol::Tcp, 20, None)).expect("connections");
    let from = clock::now();
    idle.speak();
    assert_eq!(idle.wait_answered(from, LIMIT), 0);
    lab.switch().silence("s1").expect("silence");
    let since = clock::now();
    idle.speak();
    assert_eq!(idle.wait_answered(since, Duration::from_millis(500)), 20);
    let to = clock::now();
    let record = idle.finish().expect("the record");
    assert_eq!(record.answers, 20);
    assert_eq!(record.between(from, to).broken.get(&Why::Silent), Some(&20));
}

#[test]
#[ignore = "needs root"]
fn short_connections_use_their_ports_again() {
    let lab = lab();
    let served = server(&lab, 1, "s1");
    let target = (address("s1"), PORT).into();
    let short = Short::start(lab.ns("cl"), address("cl").into(), target, Duration::ZERO).expect("short ones");
    clock::observe(Duration::from_secs(1));
    let briefly = short.finish().expect("the record");
    assert!(briefly.done > 200, "{} done", briefly.done);
    assert!(
        briefly.refused.is_empty() && briefly.hesitant.is_empty() && briefly.broken.is_empty(),
        "{briefly:?}"
    );
    assert!(briefly.foreign.is_empty() && served.finish().expect("the server").foreign.is_empty());
}
