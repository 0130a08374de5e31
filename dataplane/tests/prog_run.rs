//! The loaded programs, frame by frame (`BPF_PROG_TEST_RUN`): the table of cases that `dataplane/common` runs over ordinary
//! memory, here through the kernel's verifier, maps and tail calls.
#![expect(unreachable_pub, reason = "files shared with dataplane/common/tests")]

#[path = "prog_run/both.rs"]
mod both;
#[path = "../common/tests/cases/mod.rs"]
mod cases;
#[path = "prog_run/differential.rs"]
mod differential;
#[path = "../common/tests/packets/fuzz/mod.rs"]
mod fuzz;
#[path = "../common/tests/packets/host/mod.rs"]
mod host;
#[path = "prog_run/hostile.rs"]
mod hostile;
#[path = "prog_run/kernel.rs"]
mod kernel;
#[path = "../common/tests/support/mod.rs"]
mod support;

use cases::{Talk, expect};
use kernel::Kernel;
use onearm_dataplane_common::{
    addr::Addr,
    counter::Counter,
    maps::{mode, proto},
    phase::{FAMILY_PHASES, PHASES, Phase},
};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use support::{
    Engine, Setup, Verdict,
    frames::{Body, End, Frame, arp_request, echo, end, ip, use_v6, v6},
    model::{Report, ends, fragments, unfragmented},
    setup::{BROADCAST, OUR_MAC, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
};

fn talk() -> Talk {
    Talk {
        client: end("192.168.10.50:40000"),
        client_mac: ROUTER_MAC,
        vip: end("192.168.100.100:80"),
        server: end("192.168.100.10:80"),
        server_mac: S1_MAC,
    }
}

#[test]
#[ignore = "needs root"]
fn every_case_of_the_table_holds_in_the_kernel() {
    cases::run_all(&mut Kernel::new());
}

/// Rounds of a race before the table is emptied.
const RACES: u16 = 2_000;
/// How long a race is sought: two threads of a starved machine rarely run at one moment.
const PATIENCE: Duration = Duration::from_mins(5);

#[test]
#[ignore = "needs root"]
#[expect(clippy::disallowed_methods, reason = "a bound on the search")]
fn b54_datagrams_that_race_for_their_flow_get_the_same_one() {
    let mut kernel = Kernel::new();
    let spec = ServiceSpec {
        proto: proto::UDP,
        servers: &[1, 2],
        ..ServiceSpec::BOTH_NAT
    };
    let until = Instant::now() + PATIENCE;
    loop {
        kernel.load(&Setup::service(&spec));
        race(&mut kernel);
        if kernel.counter(Counter::FlowRaceLost) > 0 {
            return;
        }
        assert!(Instant::now() < until, "no race was met in {PATIENCE:?}");
    }
}

/// Two datagrams at once for each of [`RACES`] flows.
#[track_caller]
fn race(kernel: &mut Kernel) {
    let mut lost = 0;
    for n in 0..RACES {
        let client = End(ip("192.168.10.50"), 10_000 + n);
        let frame = Talk { client, ..talk() }.request(Body::Udp(true)).build();
        let mut seen = HashSet::new();
        for (verdict, out) in kernel.race(&frame, 2) {
            match verdict {
                Verdict::Transmit => drop(seen.insert(ends(&out))),
                // The other one held the lock longer than is waited for: a machine that is emulated or starved.
                Verdict::Drop => lost += 1,
                other => panic!("round {n}: {other:?}, {:?}", kernel.counters()),
            }
        }
        assert_eq!(seen.len(), 1, "round {n}: {seen:?}");
    }
    assert!(
        lost <= u64::from(RACES) / 20,
        "{lost} of {RACES} rounds lost a datagram"
    );
    assert_eq!(kernel.counter(Counter::LockContended), lost);
    assert_eq!(kernel.entries().len(), 2 * usize::from(RACES));
    assert_eq!(kernel.counter(Counter::Transmitted), 2 * u64::from(RACES) - lost);
    assert_eq!(kernel.counter(Counter::FlowCreated), u64::from(RACES));
}

#[test]
#[ignore = "needs root"]
fn hostile_frames_meet_the_same_verdict_in_the_kernel_as_over_memory() {
    hostile::run(&mut Kernel::new());
}

/// What a driver that splits headers makes of frames: those whose headers are whole go on, all others are refused, counted.
#[test]
#[ignore = "needs root"]
fn headers_in_pieces_are_refused_and_what_follows_them_may_lie_anywhere() {
    let mut kernel = Kernel::new();
    kernel.load(&Setup::service(&ServiceSpec::BOTH_NAT));
    for payload in [0, 10, 1_400, 6_000] {
        let request = talk().request(Body::Tcp("S", 1, 0)).payload(&vec![7; payload]);
        let frame = request.build();
        let whole = expect(&mut kernel, &frame, Verdict::Transmit);
        for first in 14..frame.len().min(100) {
            let before = kernel.counter(Counter::HeadersInPieces);
            let Some((verdict, out)) = kernel.run_in_pieces(&frame, first) else {
                assert!(release() < (6, 18), "this kernel makes such frames");
                return;
            };
            let refused = kernel.counter(Counter::HeadersInPieces) - before;
            if first < 14 + 20 + 20 {
                assert_eq!(
                    (verdict, refused),
                    (Verdict::Drop, 1),
                    "{first} of {}",
                    frame.len()
                );
            } else {
                assert_eq!(
                    (verdict, refused),
                    (Verdict::Transmit, 0),
                    "{first} of {}",
                    frame.len()
                );
                assert_eq!(out, whole);
            }
        }
    }
}

/// Of the running kernel.
fn release() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs");
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A stranger's first fragments, which are never completed, between those of datagrams that are, which come 20 ms apart:
/// of 20,000 in all, and then of 40,000 between two fragments.
#[test]
#[ignore = "needs root"]
fn b81_a_flood_of_first_fragments_takes_none_from_good_datagrams() {
    let mut kernel = Kernel::new();
    kernel.load(&Setup::service(&ServiceSpec {
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    }));
    let stranger = |n: u32| {
        let [a, b, c, d] = n.to_be_bytes();
        let id = u32::from(u16::from_be_bytes([c, d]));
        let client = End([10, 66, a, b].into(), 5);
        let frame = Talk { client, ..talk() }
            .request(Body::Udp(true))
            .payload(&[1; 64]);
        fragments(&unfragmented(&frame.build(), id), id, 16).swap_remove(0)
    };
    let mut sent = 0;
    let mut complete = 0;
    for (datagrams, between) in [(100, 67), (4, 20_000)] {
        for n in 0..datagrams {
            let good = talk().request(Body::Udp(true)).payload(&[n; 3_000]).build();
            for piece in fragments(
                &unfragmented(&good, 7_000 + u32::from(n)),
                7_000 + u32::from(n),
                1_480,
            ) {
                let (verdict, _) = kernel.run(&piece);
                complete += u32::from(verdict == Verdict::Transmit);
                for _ in 0..between {
                    kernel.run(&stranger(sent));
                    sent += 1;
                }
            }
        }
    }
    assert_eq!(complete, 104 * 3, "{:?}", kernel.counters());
    assert!(sent > 240_000 && kernel.counter(Counter::FragmentRemembered) >= u64::from(sent));
}

#[test]
#[ignore = "needs root"]
fn an_event_that_finds_no_room_is_counted() {
    let mut kernel = Kernel::new();
    let mut setup = Setup::classic();
    // The whole world is on the link, and none of it is resolved.
    setup.routes[0].2.gateway = Addr::NONE;
    kernel.load(&setup);
    // Nobody reads the ring, which has room for some four thousand.
    for _ in 0..8 {
        kernel.forget_pace();
        for host in 0..4_096 {
            let to = format!("10.0.{}.{}:9", host / 256, host % 256);
            kernel.run(
                &Frame::new(end("192.168.100.10:1"), end(&to), Body::Udp(true))
                    .via(S1_MAC)
                    .build(),
            );
        }
    }
    assert!(kernel.counter(Counter::EventLost) > 0);
    assert_eq!(kernel.counter(Counter::NoNeighbour), 8 * 4_096);
}

#[test]
#[ignore = "needs root"]
fn what_the_peer_was_not_told_because_the_ring_was_full_is_counted() {
    let mut kernel = Kernel::new();
    kernel.load(&Setup::service(&ServiceSpec::BOTH_NAT));
    let talk = talk();
    let source = talk.handshake(&mut kernel, 1, 2);
    let rounds = 20_000;
    for _ in 0..rounds {
        talk.server_sends(&mut kernel, source, Body::Tcp("R", 3, 0));
        talk.server_sends(&mut kernel, source, Body::Tcp("A", 3, 2));
    }
    let lost = kernel.counter(Counter::TellsLost);
    // The ring takes 16 bytes for a record.
    assert_eq!(2 * rounds + 1 - lost, (1 << 18) / 16 - 1);
    assert_eq!(kernel.tells().len() as u64, 2 * rounds + 1 - lost);
    talk.server_sends(&mut kernel, source, Body::Tcp("R", 3, 0));
    assert_eq!(
        (kernel.tells().len(), kernel.counter(Counter::TellsLost)),
        (1, lost)
    );
}

#[test]
#[ignore = "needs root"]
fn forwarded_packets_are_counted_for_their_service() {
    let mut kernel = Kernel::new();
    kernel.load(&Setup::service(&ServiceSpec::BOTH_NAT));
    let source = talk().handshake(&mut kernel, 1, 2);
    talk().server_sends(&mut kernel, source, Body::Tcp("A", 3, 2));
    let stats = kernel.service_stats(0);
    assert_eq!((stats.flows, stats.packets_in, stats.packets_out), (1, 2, 2));
    assert_eq!((stats.bytes_in, stats.bytes_out, stats.refused), (112, 112, 0));
}

/// A frame that a phase is needed for, in the family of the moment; before it, what makes it so.
fn needing(kernel: &mut Kernel, phase: Phase) -> Vec<u8> {
    let request = |port, flags| {
        let to = end(&format!("192.168.100.100:{port}"));
        Frame::new(end("192.168.10.50:40000"), to, Body::Tcp(flags, 1, 1))
    };
    let ping = || echo("192.168.10.50", VIP).build();
    let fragment = |port| fragments(&request(port, "A").payload(&[7; 40]).build(), 9, 32).swap_remove(0);
    match phase {
        Phase::Neighbour if v6() => solicitation(),
        Phase::Neighbour => arp_request(ROUTER_MAC, ip("192.168.100.254"), ip(VIP), BROADCAST),
        Phase::Miss | Phase::Answer | Phase::Receive6 => ping(),
        Phase::Schedule | Phase::Create | Phase::Forward => request(80, "S").build(),
        Phase::Evict => {
            kernel.run(&request(80, "S").build());
            Frame::new(
                end("192.168.10.50:40001"),
                end("192.168.100.100:80"),
                Body::Tcp("S", 1, 1),
            )
            .build()
        }
        Phase::Search => {
            for port in 40_001..40_004 {
                let from = End(ip("192.168.10.50"), port);
                kernel.run(&Frame::new(from, end("192.168.100.100:83"), Body::Udp(true)).build());
            }
            Frame::new(
                end("192.168.10.50:40009"),
                end("192.168.100.100:83"),
                Body::Udp(true),
            )
            .build()
        }
        Phase::Transit => Frame::new(end("192.168.100.10:1"), end("198.51.100.7:9"), Body::Udp(true))
            .via(S1_MAC)
            .build(),
        Phase::Relay => {
            kernel.lease(false);
            ping()
        }
        Phase::IcmpError => Report {
            from_mac: ROUTER_MAC,
            to_mac: OUR_MAC,
            from: ip("192.168.100.254"),
            to: ip(VIP),
            ttl: 64,
            kind: if v6() { 1 } else { 3 },
            code: 1,
            rest: [0; 4],
            quote: request(80, "S").build()[14..].to_vec(),
        }
        .build(),
        Phase::Fragment => fragment(80),
        Phase::Extensions | Phase::Lookup => request(80, "S").options(&[1; 8]).build(),
        Phase::Direct => request(81, "S").build(),
        Phase::Mss => request(82, "S").build(),
        Phase::DirectForward => {
            kernel.run(&request(81, "S").build());
            fragment(81)
        }
    }
}

/// For the VIP, from the router.
fn solicitation() -> Vec<u8> {
    let write = fuzz::write::packet;
    let mut body = vec![135, 0, 0, 0, 0, 0, 0, 0];
    body.extend(fuzz::write::octets(ip(VIP)));
    body.extend([1, 1]);
    body.extend(ROUTER_MAC);
    let mut packet = write(ip("192.168.100.254"), ip(VIP), 58, &body, 2);
    packet[7] = 255;
    [&OUR_MAC[..], &ROUTER_MAC, &[0x86, 0xdd], &packet].concat()
}

const ALL: [Phase; 18] = [
    Phase::Neighbour,
    Phase::Miss,
    Phase::Schedule,
    Phase::Evict,
    Phase::Create,
    Phase::Forward,
    Phase::Answer,
    Phase::Transit,
    Phase::Relay,
    Phase::Search,
    Phase::IcmpError,
    Phase::Fragment,
    Phase::Receive6,
    Phase::Extensions,
    Phase::Lookup,
    Phase::Direct,
    Phase::Mss,
    Phase::DirectForward,
];

/// A service for each of the ways a new flow may go.
fn all_ways() -> Setup {
    let direct = ServiceSpec {
        port: 81,
        mode: mode::DSR,
        ..ServiceSpec::BOTH_NAT
    };
    let clamped = ServiceSpec {
        port: 82,
        ..ServiceSpec::BOTH_NAT
    };
    let datagrams = ServiceSpec {
        port: 83,
        proto: proto::UDP,
        ..ServiceSpec::BOTH_NAT
    };
    let mut setup = [&direct, &clamped, &datagrams]
        .into_iter()
        .fold(Setup::service(&ServiceSpec::BOTH_NAT), Setup::with);
    setup.service[2].1.mss = 1_000;
    setup.pools[0].1.last = setup.pools[0].1.first + 2;
    setup.node.half_open_budget = 1;
    setup
}

#[test]
#[ignore = "needs root"]
fn a_program_that_is_missing_costs_the_packets_that_need_it_and_is_counted() {
    let mut kernel = Kernel::new();
    for (index, name) in PHASES {
        let v6 = index >= FAMILY_PHASES || name == "onearm_receive6";
        let phase = ALL
            .into_iter()
            .find(|phase| phase.index(v6 && name != "onearm_receive6") == index)
            .expect("a phase");
        use_v6(v6);
        kernel.load(&all_ways());
        let frame = needing(&mut kernel, phase);
        kernel.remove_phase(index);
        let (verdict, _) = kernel.run(&frame);
        let counted = (kernel.counter(Counter::Internal), verdict);
        kernel.restore_phase(index, name);
        assert_eq!(counted, (1, Verdict::Drop), "{name}: {:?}", kernel.counters());
    }
    use_v6(false);
}

#[test]
#[ignore = "needs root"]
fn a_leg_without_a_port_to_redirect_to_costs_the_packet_and_is_counted() {
    let mut kernel = Kernel::new();
    let mut setup = Setup::service(&ServiceSpec {
        servers: &[5],
        ..ServiceSpec::BOTH_NAT
    });
    setup.next_hops[4].1.leg = 9;
    kernel.load(&setup);
    let (verdict, _) = kernel.run(&talk().request(Body::Tcp("S", 1, 0)).build());
    assert_eq!((kernel.counter(Counter::Internal), verdict), (1, Verdict::Drop));
}
