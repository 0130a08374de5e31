//! Frames nobody would send.

use crate::{
    host::Host,
    support::{
        Engine, Setup, Verdict,
        frames::{Body, Frame, arp_request, echo, end, ip},
        setup::{BROADCAST, OUR_MAC, ROUTER_MAC, ServiceSpec, VIP},
    },
};
use onearm_dataplane_common::{help, maps::proto};
use proptest::prelude::*;

fn setup() -> Setup {
    Setup::service(&ServiceSpec::BOTH_NAT)
        .with(&ServiceSpec {
            port: 53,
            proto: proto::UDP,
            ..ServiceSpec::DNAT
        })
        .with(&ServiceSpec {
            port: 81,
            ..ServiceSpec::DNAT
        })
}

/// Well-formed frames to damage.
fn originals() -> Vec<Vec<u8>> {
    let frame = |to, body| Frame::new(end("192.168.10.50:4000"), end(to), body).payload(b"payload");
    vec![
        frame("192.168.100.100:80", Body::Tcp("S", 1, 0)).build(),
        frame("192.168.100.100:81", Body::Tcp("A", 1, 0)).vlan(10).build(),
        frame("192.168.100.100:82", Body::Tcp("S", 1, 0))
            .options(&[1; 12])
            .build(),
        frame("192.168.100.100:53", Body::Udp(true)).build(),
        frame("192.168.100.100:54", Body::Udp(false))
            .options(&[1; 40])
            .build(),
        Frame::new(
            end("192.168.100.10:81"),
            end("198.51.100.7:4000"),
            Body::Tcp("A", 1, 1),
        )
        .build(),
        echo("192.168.10.50", VIP).payload(b"ping").build(),
        arp_request(ROUTER_MAC, ip("192.168.100.254"), ip(VIP), BROADCAST),
    ]
}

/// Whatever leaves carries our MAC and is no longer than an answer may be.
fn check(host: &mut Host, frame: &[u8]) -> Result<(), TestCaseError> {
    let (verdict, out) = host.run(frame);
    match verdict {
        Verdict::Pass if out.len() == help::LEN + frame.len() => {
            prop_assert_eq!(&out[help::LEN..], frame, "what user space gets is untouched");
        }
        Verdict::Pass => prop_assert_eq!(out, frame, "what passes is untouched"),
        Verdict::Drop => {}
        Verdict::Transmit => prop_assert_eq!(&out[6..12], OUR_MAC),
        Verdict::Redirect => prop_assert!(false, "there is nothing on the other interface"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::property_cases(512), ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(
        mut frame in prop::collection::vec(any::<u8>(), 0..160),
        ours in prop::bool::weighted(0.9),
        kind in prop_oneof![Just([8u8, 0]), Just([8, 6]), Just([0x81, 0])],
    ) {
        if ours && frame.len() >= 14 {
            frame[0..6].copy_from_slice(&OUR_MAC);
            frame[6] &= 0xfe;
            frame[12..14].copy_from_slice(&kind);
        }
        check(&mut Host::new(&setup()), &frame)?;
    }

    #[test]
    fn damaged_frames_never_panic(
        which in 0usize..8,
        changes in prop::collection::vec((12usize..80, any::<u8>()), 0..4),
        cut in prop::option::of(0usize..100),
    ) {
        let mut host = Host::new(&setup());
        for original in originals() {
            check(&mut host, &original)?;
        }
        let mut frame = originals().swap_remove(which);
        for (at, byte) in changes {
            if let Some(b) = frame.get_mut(at) {
                *b = byte;
            }
        }
        if let Some(cut) = cut {
            frame.truncate(cut);
        }
        check(&mut host, &frame)?;
    }
}
