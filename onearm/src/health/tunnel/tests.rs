//! A server behind a tunnel, played by a thread: everything is on the loopback of a namespace.

use std::io::Read as _;
use std::net::SocketAddr;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, unshare};

use super::*;

const LIMIT: Duration = Duration::from_secs(5);
/// For answers that never come.
const SHORT: Duration = Duration::from_millis(300);
const GUE: u16 = 6_080;

/// What the server does with a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Accepts,
    Refuses,
    /// As one whose kernel drops what came out of the tunnel.
    IsSilent,
    /// It answers something else.
    IsConfused,
}

/// A loopback with the server's address, and no way to the VIP.
fn enter() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace (needs root)");
    for line in [
        "link set lo up",
        "addr add 192.0.2.10/32 dev lo",
        "addr add 2001:db8::10/128 dev lo nodad",
    ] {
        let words = line.split_whitespace();
        let done = std::process::Command::new("ip").args(words).status();
        assert!(done.expect("ip runs").success(), "{line}");
    }
}

fn target(six: bool, gue: bool) -> TunnelTarget {
    let (server, vip) = if six {
        ("2001:db8::10", "[2001:db8::100]:80")
    } else {
        ("192.0.2.10", "192.0.2.100:80")
    };
    TunnelTarget {
        server: server.parse().unwrap(),
        vip: vip.parse().unwrap(),
        gue: gue.then_some(GUE),
        source: None,
    }
}

/// The end of the tunnel: hears until the RST, or for as long as a check takes. What it heard, and from where.
fn server(target: TunnelTarget, manner: Manner) -> JoinHandle<Vec<(IpAddr, Segment)>> {
    let domain = Domain::for_address(target.vip);
    let four = target.server.is_ipv4();
    let tunnel = if target.gue.is_some() {
        let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
        socket.bind(&SocketAddr::new(target.server, GUE).into()).unwrap();
        socket
    } else {
        let protocol = Protocol::from(if four { IPIP } else { IP6IP6 });
        Socket::new(domain, Type::RAW, Some(protocol)).unwrap()
    };
    tunnel.set_read_timeout(Some(2 * SHORT)).unwrap();
    let past = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))).unwrap();
    std::thread::spawn(move || {
        let mut heard = Vec::new();
        let mut bytes = [0; 2_048];
        while let Ok(from) = tunnel.peek_sender() {
            let len = (&tunnel).read(&mut bytes).unwrap();
            // Raw sockets of IPv4 show the outer header.
            let skipped = if four && target.gue.is_none() { 20 } else { 0 };
            let packet = &bytes[skipped..len];
            let segment = Segment::parse(packet).expect("a segment");
            assert_eq!(packet, segment.emit(), "whole, with its checksums");
            heard.push((from.as_socket().unwrap().ip(), segment));
            if segment.flags & flags::RST != 0 {
                break;
            }
            let acknowledgment = segment.sequence.wrapping_add(1);
            let (acknowledgment, answer) = match manner {
                Manner::Accepts => (acknowledgment, flags::SYN | flags::ACK),
                Manner::Refuses => (acknowledgment, flags::RST | flags::ACK),
                Manner::IsSilent => continue,
                Manner::IsConfused => (segment.sequence, flags::SYN | flags::ACK),
            };
            let answer = Segment {
                from: segment.to,
                to: segment.from,
                sequence: 9,
                acknowledgment,
                flags: answer,
            };
            let to = SocketAddr::new(segment.from.ip(), 0);
            past.send_to(&answer.emit(), &to.into()).unwrap();
            if manner == Manner::Refuses {
                break;
            }
        }
        heard
    })
}

/// One check of such a server.
fn check(target: TunnelTarget, manner: Manner) -> (CheckResult, Vec<(IpAddr, Segment)>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let end = server(target, manner);
    let result = runtime.block_on(async {
        let waiting = Waiting::default();
        let ears = Ears::open().expect("packet sockets");
        let limit = match manner {
            Manner::Accepts | Manner::Refuses => LIMIT,
            Manner::IsSilent | Manner::IsConfused => SHORT,
        };
        let result = tokio::select! {
            result = connect(target, limit, &waiting) => result,
            never = ears.hear(&waiting) => match never {},
        };
        assert!(waiting.lock().is_empty());
        result
    });
    (result, end.join().unwrap())
}

#[test]
#[ignore = "needs root"]
fn b70_a_server_is_asked_by_its_tunnel_and_answers_past_it() {
    let within = std::thread::spawn(|| {
        enter();
        for (six, gue) in [(false, false), (false, true), (true, false), (true, true)] {
            let target = target(six, gue);
            let (result, heard) = check(target, Manner::Accepts);
            assert!(
                matches!(result, CheckResult::Connected(_)),
                "{target:?}: {result}"
            );
            let [(_, syn), (_, rst)] = heard.as_slice() else {
                panic!("{target:?}: {heard:?}")
            };
            assert_eq!((syn.flags, syn.to), (flags::SYN, target.vip));
            assert_eq!((rst.flags, rst.from, rst.to), (flags::RST, syn.from, target.vip));
            assert_eq!(rst.sequence, syn.sequence.wrapping_add(1));

            let (result, heard) = check(target, Manner::Refuses);
            assert_eq!(result, CheckResult::Failed(libc::ECONNREFUSED), "{target:?}");
            assert_eq!(heard.len(), 1);
            for manner in [Manner::IsSilent, Manner::IsConfused] {
                let (result, _) = check(target, manner);
                assert_eq!(result, CheckResult::TimedOut(SHORT), "{target:?}: {manner:?}");
            }
        }
    });
    if let Err(panic) = within.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
#[ignore = "needs root"]
fn packets_leave_with_the_outer_source_that_the_service_has() {
    let within = std::thread::spawn(|| {
        enter();
        for (six, source) in [(false, "198.51.100.7"), (true, "2001:db8:7::7")] {
            for gue in [false, true] {
                let target = TunnelTarget {
                    source: Some(source.parse().unwrap()),
                    ..target(six, gue)
                };
                let (result, heard) = check(target, Manner::Accepts);
                assert!(
                    matches!(result, CheckResult::Connected(_)),
                    "{target:?}: {result}"
                );
                for (from, segment) in heard {
                    assert_eq!((Some(from), segment.from.ip()), (target.source, target.server));
                }
            }
        }
    });
    if let Err(panic) = within.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn an_answer_is_for_the_check_with_its_ends_and_number() {
    let waiting = Waiting::default();
    let ends: Ends = (
        "192.0.2.100:80".parse().unwrap(),
        "192.0.2.1:40000".parse().unwrap(),
    );
    let (told, mut answer) = oneshot::channel();
    waiting.lock().insert(ends, (7, told));
    let right = Segment {
        from: ends.0,
        to: ends.1,
        sequence: 0,
        acknowledgment: 7,
        flags: flags::SYN | flags::ACK,
    };
    for other in [
        Segment {
            acknowledgment: 8,
            ..right
        },
        Segment {
            from: "192.0.2.100:81".parse().unwrap(),
            ..right
        },
        Segment {
            to: "192.0.2.1:40001".parse().unwrap(),
            ..right
        },
    ] {
        waiting.heard(&other);
        assert_eq!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }
    waiting.heard(&right);
    assert_eq!(answer.try_recv(), Ok(true));
    waiting.heard(&right);
    assert!(waiting.lock().is_empty());
}
