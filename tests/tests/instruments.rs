//! The instruments are right: a lab with known faults gives the readings it must.

use std::{
    net::{SocketAddrV4, UdpSocket},
    time::Duration,
};

use onearm_lab::{
    OneArm,
    clock::{self, MS, Nanos, ms},
    measure::{
        capture::{Capture, Direction, Filter},
        echo::{self, Echo},
        owners::Sampler,
        stalls::StallMonitor,
        udp::UdpProber,
    },
    netns::Namespace,
    switch::Switch,
    topology::{Options, VIP, address, mac},
    traffic,
};

fn lab() -> OneArm {
    OneArm::build(Options::default()).expect("a lab (this test needs root)")
}

fn carrier(lab: &OneArm, short: &str) -> bool {
    lab.ns(short)
        .run("ip link show eth0")
        .expect("ip")
        .contains("LOWER_UP")
}

#[test]
#[ignore = "needs root"]
fn a_dropped_lab_leaves_nothing_behind() {
    let lab = lab();
    let prefix = format!("{}-", lab.lab().prefix());
    let dir = lab.lab().dir().to_owned();
    let sleeper = lab
        .ns("s1")
        .spawn(&["sleep", "1000"], &[], &dir.join("sleep.log"))
        .expect("sleep");
    let pid = sleeper.pid();
    assert!(Namespace::names(&prefix).len() >= 10 && dir.exists());
    drop(lab);
    assert_eq!(Namespace::names(&prefix), Vec::<String>::new());
    assert!(!dir.exists());
    assert!(!onearm_lab::process::is_alive(pid));
}

#[test]
#[ignore = "needs root"]
fn a_cut_takes_the_carrier_and_silence_does_not() {
    let lab = lab();
    assert!(carrier(&lab, "s1"));
    lab.switch().cut("s1").expect("cut");
    assert!(!carrier(&lab, "s1"));
    lab.switch().mend("s1").expect("mend");
    assert!(carrier(&lab, "s1"));
    lab.switch().silence("s1").expect("silence");
    assert!(carrier(&lab, "s1"));
    let ping = |to: &str| {
        let to = address(to).to_string();
        lab.ns("cl")
            .output(&["ping", "-c", "1", "-W", "1", &to])
            .expect("ping")
            .status
            .success()
    };
    assert!(!ping("s1") && ping("s2"));
    lab.switch().unsilence("s1").expect("unsilence");
    // The client asks for the address again once a second: the next time may be after this ping has given up.
    clock::wait_for(
        "an answer after the silence",
        Duration::from_secs(10),
        Duration::from_millis(50),
        || Ok(ping("s1").then_some(())),
    )
    .expect("heard again");
}

#[test]
#[ignore = "needs root"]
fn the_prober_measures_a_cut_of_known_length() {
    let lab = lab();
    let _echo = Echo::start(lab.ns("s1"), 1).expect("echo");
    // The cut is at the prober's own switch port, so that no neighbour has to be found again.
    let prober =
        UdpProber::start(lab.ns("cl"), SocketAddrV4::new(address("s1"), echo::PORT), MS).expect("prober");
    clock::observe(Duration::from_millis(200));
    let begun = clock::now();
    lab.switch().silence("s1").expect("silence");
    clock::sleep_until(begun + 300 * MS);
    lab.switch().unsilence("s1").expect("unsilence");
    let ended = clock::now();
    clock::observe(Duration::from_millis(200));
    let series = prober.stop().expect("series");
    let gap = series.longest_gap(0, Nanos::MAX);
    assert!(
        gap >= 250 * MS && gap <= ended - begun + 20 * MS,
        "{} ms",
        ms(gap)
    );
    assert_eq!(series.gaps(0, Nanos::MAX).len(), 1);
}

#[test]
#[ignore = "needs root"]
fn one_owner_counts_as_one_and_two_as_two() {
    let lab = lab();
    let watch = || {
        let sampler = Sampler::start(&lab, VIP, MS).expect("sampler");
        clock::observe(Duration::from_millis(200));
        sampler.stop().expect("owners")
    };
    assert_eq!(watch().most_at_once(0, Nanos::MAX), 0);
    lab.ns("s1")
        .run(&format!("ip addr add {VIP}/32 dev eth0"))
        .expect("address");
    let owners = watch();
    assert_eq!(owners.most_at_once(0, Nanos::MAX), 1);
    assert_eq!(owners.owner_at(Nanos::MAX), Some((Switch::port("s1"), mac("s1"))));
    let answered = owners.answers.iter().filter(|(_, seen)| !seen.is_empty()).count();
    assert!(
        answered + 10 >= owners.answers.len(),
        "{answered} of {}",
        owners.answers.len()
    );
    lab.ns("s2")
        .run(&format!("ip addr add {VIP}/32 dev eth0"))
        .expect("address");
    let owners = watch();
    assert_eq!(owners.most_at_once(0, Nanos::MAX), 2);
    assert!(owners.disputed(0, Nanos::MAX).len() > 100);
}

#[test]
#[ignore = "needs root"]
fn muted_and_deaf_ports_lose_adverts_and_nothing_else() {
    let lab = lab();
    let protocol = socket2::Protocol::from(112);
    let heard = || {
        let capture = Capture::start(lab.ns("lb2"), Some("eth0"), Filter::Ownership).expect("capture");
        lab.ns("lb1")
            .enter(|| {
                let raw = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(protocol))?;
                let to = std::net::SocketAddrV4::new(address("lb2"), 0);
                raw.send_to(&[0x31, 51, 100, 1, 0, 100, 0, 0, 192, 168, 100, 100], &to.into())?;
                UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", (address("lb2"), 9))?;
                Ok(())
            })
            .expect("send");
        clock::observe(Duration::from_millis(100));
        let record = capture.stop().expect("record");
        record
            .frames
            .iter()
            .filter(|c| c.direction == Direction::In && c.frame().is_some_and(|f| f.advert().is_some()))
            .count()
    };
    assert_eq!(heard(), 1);
    lab.switch().mute("lb1").expect("mute");
    assert_eq!(heard(), 0);
    lab.switch().unmute("lb1").expect("unmute");
    lab.switch().deafen("lb2").expect("deafen");
    assert_eq!(heard(), 0);
    assert!(lab.ns("lb1").run("ping -c 1 -W 1 192.168.100.3").is_ok());
    lab.switch().undeafen("lb2").expect("undeafen");
    assert_eq!(heard(), 1);
}

#[test]
#[ignore = "needs root"]
fn curl_counts_answers_by_server_and_failures() {
    let lab = lab();
    let web = traffic::start_servers(&lab, &["s1", "s2"]).expect("servers");
    let answers = traffic::curl(&lab, "cl", &address("s1").to_string(), 20, "direct").expect("curl");
    assert_eq!((answers.good(), answers.failed), (20, 0));
    assert_eq!(answers.by_server.get("s1"), Some(&20));
    assert_eq!(web[0].log().expect("log").len(), 20);
    let answers = traffic::curl(&lab, "cl", &format!("{}:9", address("s2")), 5, "closed").expect("curl");
    assert_eq!((answers.good(), answers.failed), (0, 5));
    assert!(!answers.complaint.is_empty());
}

#[test]
fn the_stall_monitor_reads_every_cpu_and_ends() {
    let monitor = StallMonitor::start().expect("monitor");
    clock::observe(Duration::from_millis(50));
    let stalls = monitor.stop().expect("stalls");
    assert!(stalls.iter().all(|s| s.to > s.from));
}
