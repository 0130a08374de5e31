//! What has no flow: refused if it opens something where nothing is, dropped otherwise.

use super::{Case, case, case4, edges::check_icmp_error, expect, expect_drop};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Frame, end, tcp, udp},
    model::{ends, verifies},
    setup::{OUR_MAC, ROUTER_MAC, ServiceSpec, VIP},
};
use onearm_dataplane_common::counter::Counter;

fn service() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
}

fn reset<E: Engine>(e: &mut E) {
    let base = tcp("192.168.10.50:40000", "192.168.100.100:81", "S", 0xffff_fffe, 0);
    let frames: [(Frame, u32); 4] = [
        (base.clone(), 0xffff_ffff),
        (base.clone().payload(b"fast open"), 8),
        (base.clone().options(&[1; 8]).payload(b"x"), 0),
        (base.padding(6), 0xffff_ffff),
    ];
    for (frame, ack) in frames {
        let frame = frame.build();
        let out = expect(e, &frame, Transmit);
        assert_eq!((&out[0..6], &out[6..12]), (&ROUTER_MAC[..], &OUR_MAC[..]));
        assert_eq!(
            ends(&out),
            (end("192.168.100.100:81"), end("192.168.10.50:40000"))
        );
        assert_eq!(out.len(), 54);
        assert_eq!(out[38..42], [0; 4], "sequence 0");
        assert_eq!(
            out[42..46],
            ack.to_be_bytes(),
            "acknowledges the SYN and its data"
        );
        assert_eq!(out[46..48], [0x50, 0x14], "RST, ACK");
        assert!(verifies(&out));
    }
    assert_eq!(e.counters(), [("transmitted", 4), ("refused_tcp", 4)]);
}

fn unreachable<E: Engine>(e: &mut E) {
    for options in [vec![], vec![1; 40]] {
        for payload in [&b""[..], b"question", &[9; 1_400]] {
            let frame = udp("192.168.10.50:40000", "192.168.100.100:9")
                .options(&options)
                .payload(payload)
                .build();
            let out = expect(e, &frame, Transmit);
            check_icmp_error(&out, &frame, VIP, 3, 3);
        }
    }
    let frame = udp("192.168.10.50:40000", "192.168.100.100:9").vlan(10).build();
    check_icmp_error(&expect(e, &frame, Transmit), &frame, VIP, 3, 3);
    assert_eq!(e.counters(), [("transmitted", 7), ("refused_udp", 7)]);
}

fn never_refused<E: Engine>(e: &mut E) {
    let segment = |to: &str, flags| tcp("192.168.10.50:40000", to, flags, 5, 6).build();
    for to in ["192.168.100.100:80", "192.168.100.100:81"] {
        for flags in ["A", "FA", "R", "RA", "F", "SR", "SF", ""] {
            expect_drop(e, &segment(to, flags), Counter::TcpWithoutFlow);
        }
        expect_drop(e, &segment(to, "SA"), Counter::SynAckWithoutFlow);
    }
    for port in [32_768, 40_000, 65_535] {
        let to = format!("192.168.100.100:{port}");
        for flags in ["S", "A", "SA", "R"] {
            expect_drop(e, &segment(&to, flags), Counter::SnatRangeWithoutFlow);
        }
        expect_drop(
            e,
            &udp("192.168.10.50:1", &to).build(),
            Counter::SnatRangeWithoutFlow,
        );
    }
    assert!(e.entries().is_empty());
    assert_eq!(e.counter(Counter::Transmitted), 0);
}

fn limited<E: Engine>(e: &mut E) {
    let mut sent = 0;
    for n in 0..100 {
        let (verdict, _) = e.run(&udp(&format!("192.168.10.{}:1", n % 50), "192.168.100.100:9").build());
        sent += u64::from(verdict == Transmit);
    }
    assert!((20..100).contains(&sent), "{sent} answers to one network at once");
    assert_eq!(e.counter(Counter::RefusalLimited), 100 - sent);
    expect(e, &udp("192.168.11.1:1", "192.168.100.100:9").build(), Transmit);
    for network in 0..400 {
        e.run(
            &udp(
                &format!("10.{}.{}.1:1", network / 200, network % 200),
                "192.168.100.100:9",
            )
            .build(),
        );
    }
    let (all, kept) = (e.counter(Counter::RefusedUdp), e.counter(Counter::RefusalLimited));
    assert!(all >= 190 && all + kept == 501, "{all} answers, {kept} kept back");
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case4("a SYN to a port that is no service is reset", service, reset),
        case4(
            "a datagram to a port that is no service is unreachable",
            service,
            unreachable,
        ),
        case("nothing else without a flow is answered", service, never_refused),
        case4(
            "refusals are limited for a source network and in all",
            service,
            limited,
        ),
    ]
}
