//! Frames made to hurt, through the kernel and through memory.

use crate::{
    both::{Both, End},
    fuzz::{judge::Event, script::hex},
    kernel::Kernel,
    support::{
        Setup,
        frames::{Body, Frame, echo, end, tcp, udp, use_v6, v6},
        model::{Layout, fragments, unfragmented},
        setup::{IFINDEX, OUR_ADDR, ROUTER_MAC, S1_MAC, ServiceSpec, VIP},
    },
};
use onearm_dataplane_common::maps::{Tunnel, mode, proto};

/// Histories, and frames of each: few enough that no rate is used up.
const HISTORIES: u64 = 300;
const FRAMES: usize = 12;

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ a >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ b >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("small")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A frame that nobody could object to.
fn decent(chance: &mut Chance) -> Vec<u8> {
    let port = chance.of(&[80, 53, 9]);
    let vip = format!("{VIP}:{port}");
    let client = format!("192.168.10.50:{}", chance.of(&[40_000, 40_001]));
    let body = chance.of(&["S", "A", "FA", "R", "SA"]);
    let payload = vec![0x42; chance.of(&[0, 1, 8, 40, 600, 1_400, 5_000])];
    let frame = match chance.below(8) {
        0 => udp(&client, &vip),
        1 => echo("192.168.10.50", VIP),
        2 => tcp("192.168.100.10:4000", "198.51.100.7:443", body, 1, 2).via(S1_MAC),
        3 => tcp("192.168.100.10:80", &client, body, 1, 2).via(S1_MAC),
        4 => udp(&client, &format!("{OUR_ADDR}:53")),
        _ => Frame::new(end(&client), end(&vip), Body::Tcp(body, 1, 2)).via(ROUTER_MAC),
    };
    let whole = frame.payload(&payload).padding(chance.of(&[0, 0, 6])).build();
    if chance.below(4) != 0 {
        return whole;
    }
    let id = 7 + u32::from(chance.byte() & 1);
    let pieces = fragments(&unfragmented(&whole, id), id, chance.of(&[8, 24, 400, 1_480]));
    pieces[chance.below(pieces.len())].clone()
}

/// Headers between the IP header and what follows: options, or a chain of extension headers, honest or not.
fn lengthened(chance: &mut Chance, frame: &[u8]) -> Vec<u8> {
    let Layout { l3, .. } = Layout::of(frame);
    let mut out = frame.to_vec();
    if v6() {
        let (mut chain, mut next) = (Vec::new(), out[l3 + 6]);
        for _ in 0..=chance.below(8) {
            let kind = chance.of(&[0, 43, 44, 51, 60, 60, 135, 59]);
            let units = usize::from(chance.of(&[0_u8, 0, 1, 2, 20, 255]));
            let len = if kind == 44 { 8 } else { (units.min(4) + 1) * 8 };
            let mut header: Vec<u8> = (0..len).map(|_| chance.of(&[0, 0, 1, 4, 0xff])).collect();
            (header[0], header[1]) = (next, u8::try_from(units).expect("a byte"));
            chain.splice(0..0, header);
            next = kind;
        }
        out[l3 + 6] = next;
        let len = u16::from_be_bytes([out[l3 + 4], out[l3 + 5]]) + u16::try_from(chain.len()).expect("short");
        out[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
        out.splice(l3 + 40..l3 + 40, chain);
    } else if out[l3] == 0x45 {
        let words = 1 + chance.below(10);
        let options: Vec<u8> = (0..words * 4)
            .map(|_| chance.of(&[0, 1, 1, 1, 2, 3, 4, 7, 68, 131, 137, 148, 255]))
            .collect();
        out[l3] += u8::try_from(words).expect("few");
        let len =
            u16::from_be_bytes([out[l3 + 2], out[l3 + 3]]) + u16::try_from(options.len()).expect("short");
        out[l3 + 2..l3 + 4].copy_from_slice(&len.to_be_bytes());
        out.splice(l3 + 20..l3 + 20, options);
    }
    out
}

/// Lies of length, bytes of anything, tags, an end anywhere.
fn damaged(chance: &mut Chance, mut frame: Vec<u8>) -> Vec<u8> {
    match chance.below(7) {
        0 => frame[14] = chance.byte(),
        1 => {
            let at = 14 + chance.of(&[2, 4]);
            let lie = chance.of(&[0, 19, 20, 39, 40, 41, 1_500, 0xfff0, 0xffff]);
            frame[at..at + 2].copy_from_slice(&u16::to_be_bytes(lie));
        }
        2 => {
            for _ in 0..=chance.below(4) {
                let at = 12 + chance.below(frame.len().min(90) - 12);
                frame[at] = chance.byte();
            }
        }
        3 => {
            for _ in 0..=chance.below(3) {
                let tag = [
                    chance.of(&[[0x81, 0], [0x88, 0xa8], [0x91, 0]]),
                    [chance.byte() & 0xe0, chance.of(&[0, 10, 99])],
                ];
                frame.splice(12..12, tag.concat());
            }
        }
        _ => {}
    }
    if chance.below(3) == 0 {
        // What is shorter than an Ethernet header no driver delivers.
        let len = 14 + chance.below(frame.len().min(140) - 13);
        frame.truncate(len);
    }
    frame
}

fn setups() -> [Setup; 4] {
    let of = |mode| {
        let service = |port, proto| ServiceSpec {
            port,
            proto,
            mode,
            ..ServiceSpec::DNAT
        };
        let mut setup = Setup::service(&service(80, proto::TCP)).with(&service(53, proto::UDP));
        setup.tunnels = vec![(0, Tunnel::default()), (1, Tunnel::default())];
        (setup.buckets, setup.node.flow_buckets, setup.node.flow6_buckets) = (16, 16, 16);
        setup
    };
    [
        of(mode::DNAT),
        of(mode::DSR),
        of(mode::BOTH_NAT),
        of(mode::L3_DSR),
    ]
}

/// Runs every history through both.
pub fn run(kernel: &mut Kernel) {
    let (mut ids, mut given_up) = (Vec::new(), 0);
    for six in [false, true] {
        use_v6(six);
        for seed in 0..HISTORIES {
            let mut chance = Chance(seed);
            let all = setups();
            let mut both = Both::new(kernel, &all[chance.below(all.len())], &ids);
            for n in 0..FRAMES {
                let mut frame = decent(&mut chance);
                if chance.below(2) == 0 {
                    frame = lengthened(&mut chance, &frame);
                }
                if chance.below(3) != 0 {
                    frame = damaged(&mut chance, frame);
                }
                let context = format!("IPv6 {six}, seed {seed}, frame {n}: {}", hex(&frame));
                match both.happen(&Event::Frame(IFINDEX, frame)) {
                    Ok(()) => {}
                    Err(End::Clock) => {
                        given_up += 1;
                        break;
                    }
                    Err(End::Wrong(wrong)) => panic!("{context}\n{wrong}"),
                }
            }
            ids = both.ids();
        }
    }
    use_v6(false);
    assert!(given_up < HISTORIES, "the clocks spoil most histories");
}
