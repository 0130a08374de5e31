//! The server's end of a tunnel.

use super::host::Buffer;
use crate::support::{
    frames::{Body, Frame, end, ip, raw, tcp, udp, use_v6, v6},
    model::{Layout, outer, verifies},
    setup::{OUR_ADDR, S1, S2, VIP},
};
use onearm_dataplane_common::{
    addr::Addr,
    decap::{Settings, TALLIES, Tally, Told, Verdict, decapsulate},
};
use proptest::prelude::*;
use std::cell::RefCell;

const GUE: u16 = 6080;

struct Server {
    vips: Vec<Addr>,
    from: Option<Addr>,
    tallies: RefCell<[u64; TALLIES.len()]>,
}

impl Server {
    fn new() -> Self {
        Self {
            vips: vec![raw(ip(VIP))],
            from: Some(raw(ip(OUR_ADDR))),
            tallies: RefCell::default(),
        }
    }

    fn run(&self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut buffer = Buffer::new(frame);
        let verdict = decapsulate(&mut buffer, self);
        (verdict, buffer.into_frame())
    }

    /// The frame passes as it came, and is counted as this alone.
    #[track_caller]
    fn leaves_alone(&self, frame: &[u8], why: Option<Tally>) {
        let before = *self.tallies.borrow();
        assert_eq!(self.run(frame), (Verdict::Pass, frame.to_vec()));
        let mut want = before;
        if let Some(why) = why {
            want[why as usize] += 1;
        }
        assert_eq!(*self.tallies.borrow(), want);
    }
}

impl Told for Server {
    fn settings(&self) -> Option<Settings> {
        Some(Settings {
            gue_port: GUE.to_be(),
            listed_only: u16::from(self.from.is_some()),
        })
    }

    fn is_vip(&self, addr: Addr) -> bool {
        self.vips.contains(&addr)
    }

    fn is_listed(&self, source: Addr) -> bool {
        self.from == Some(source)
    }

    fn tally(&self, what: Tally, n: u64) {
        self.tallies.borrow_mut()[what as usize] += n;
    }
}

fn request() -> Frame {
    tcp("192.168.10.50:40000", "192.168.100.100:80", "A", 2, 9).payload(b"GET /")
}

/// GUE or not.
const WAYS: [Option<(u16, u16)>; 2] = [None, Some((50_000, GUE))];

fn wrapped(frame: &[u8], from: &str, udp: Option<(u16, u16)>) -> Vec<u8> {
    outer(frame, ip(from), ip(S1), udp, 7)
}

/// Runs `check` in both families.
fn both(check: impl Fn()) {
    for family in [false, true] {
        use_v6(family);
        check();
    }
    use_v6(false);
}

/// Writes the congestion bits of the IP header at `l3`.
fn mark(frame: &mut [u8], l3: usize, bits: u8) {
    if v6() {
        frame[l3 + 1] = frame[l3 + 1] & 0xcf | bits << 4;
        return;
    }
    frame[l3 + 1] = frame[l3 + 1] & 0xfc | bits;
    frame[l3 + 10..l3 + 12].fill(0);
    let sum: u32 = frame[l3..l3 + 20]
        .chunks(2)
        .map(|c| u32::from(c[0]) << 8 | u32::from(c[1]))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from(folded & 0xffff).expect("folded");
    frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn b71_what_the_balancer_wraps_comes_out_as_the_client_sent_it() {
    both(|| {
        let server = Server::new();
        let mut bytes = 0;
        let mut packets = 0;
        for way in WAYS {
            for frame in [
                request(),
                request().vlan(10),
                request().options(&[1; 8]),
                udp("192.168.10.50:40000", "192.168.100.100:53").payload(&[7; 1_400]),
                Frame::new(end("192.168.10.50:0"), end("192.168.100.100:0"), Body::Echo(1, 2)),
            ] {
                let frame = frame.build();
                assert_eq!(
                    server.run(&wrapped(&frame, OUR_ADDR, way)),
                    (Verdict::Pass, frame.clone())
                );
                let layout = Layout::of(&frame);
                bytes += (layout.end - layout.l3) as u64;
                packets += 1;
            }
        }
        let tallies = server.tallies.borrow();
        assert_eq!((tallies[0], tallies[1]), (packets, bytes));
        assert!(tallies[2..].iter().all(|n| *n == 0));
    });
}

#[test]
fn everything_but_a_vips_packet_from_a_listed_source_is_left_alone() {
    both(|| {
        let server = Server::new();
        let inner = request().build();
        server.leaves_alone(&inner, None);
        server.leaves_alone(&[0; 13], None);
        server.leaves_alone(&[0x5a; 60], None);
        for way in WAYS {
            server.leaves_alone(&wrapped(&inner, S2, way), Some(Tally::ForeignSource));
            let elsewhere = tcp("192.168.10.50:40000", "192.168.100.101:80", "S", 1, 0).build();
            server.leaves_alone(&wrapped(&elsewhere, OUR_ADDR, way), Some(Tally::OtherDestination));
            let mut longer = wrapped(&inner, OUR_ADDR, way);
            let at = longer.len() - (inner.len() - 14) + if v6() { 5 } else { 3 };
            longer[at] += 1;
            server.leaves_alone(&longer, Some(Tally::Malformed));
            let mut version = wrapped(&inner, OUR_ADDR, way);
            let at = version.len() - (inner.len() - 14);
            version[at] ^= 0x20;
            server.leaves_alone(&version, Some(Tally::Malformed));
        }
        server.leaves_alone(&wrapped(&inner, OUR_ADDR, Some((50_000, GUE + 1))), None);
        if !v6() {
            let mut fragment = wrapped(&inner, OUR_ADDR, None);
            fragment[20] |= 0x20;
            server.leaves_alone(&fragment, Some(Tally::Fragment));
            let mut datagram = wrapped(&inner, OUR_ADDR, Some((50_000, GUE)));
            datagram[20] |= 0x20;
            server.leaves_alone(&datagram, None);
        }
        let anybody = Server {
            from: None,
            ..Server::new()
        };
        assert_eq!(anybody.run(&wrapped(&inner, S2, None)).1, inner);
    });
}

#[test]
fn congestion_met_in_the_tunnel_is_told_to_the_inner_packet() {
    // RFC 6040 §4.2: (outer, inner) to inner.
    let table = [
        (0, 0, Some(0)),
        (0, 1, Some(1)),
        (0, 2, Some(2)),
        (0, 3, Some(3)),
        (1, 0, Some(0)),
        (1, 1, Some(1)),
        (1, 2, Some(1)),
        (1, 3, Some(3)),
        (2, 0, Some(0)),
        (2, 1, Some(1)),
        (2, 2, Some(2)),
        (2, 3, Some(3)),
        (3, 0, None),
        (3, 1, Some(3)),
        (3, 2, Some(3)),
        (3, 3, Some(3)),
    ];
    both(|| {
        let server = Server::new();
        for (on_the_way, sent, want) in table {
            for way in WAYS {
                let mut inner = request().build();
                mark(&mut inner, 14, sent);
                let mut frame = wrapped(&inner, OUR_ADDR, way);
                mark(&mut frame, 14, on_the_way);
                let (verdict, out) = server.run(&frame);
                if let Some(bits) = want {
                    mark(&mut inner, 14, bits);
                    assert_eq!((verdict, out.clone()), (Verdict::Pass, inner));
                    assert!(verifies(&out));
                } else {
                    assert_eq!(verdict, Verdict::Drop);
                }
            }
        }
        assert_eq!(server.tallies.borrow()[Tally::CongestionLost as usize], 2);
    });
}

proptest! {
    #[test]
    fn a_broken_packet_passes_unchanged_or_loses_its_outer_headers_alone(
        family: bool,
        gue: bool,
        cut in 0usize..200,
        flips in prop::collection::vec((0usize..140, any::<u8>()), 0..4),
    ) {
        use_v6(family);
        let server = Server { from: None, ..Server::new() };
        let mut frame = wrapped(&request().build(), OUR_ADDR, gue.then_some((50_000, GUE)));
        for (at, bits) in flips {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= bits;
            }
        }
        frame.truncate(cut.max(1));
        let (verdict, out) = server.run(&frame);
        let off = server.tallies.borrow()[0] == 1;
        use_v6(false);
        if off {
            let removed = frame.len() - out.len();
            prop_assert!(removed == 20 || removed == 28 || removed == 40 || removed == 48 || !family);
            // Congestion bits apart, what is left is the inner packet.
            prop_assert_eq!(&out[34..], &frame[removed + 34..]);
        } else {
            prop_assert!(verdict == Verdict::Drop || out == frame);
        }
    }
}
