//! Classic BPF programs of the packet sockets.
//!
//! Adverts of the peer, and answers to this node's questions, have sockets of their own, so that a flood of ARP or of
//! strangers' adverts cannot push them out of the buffer, nor wake anybody. Answers wake the thread only while one is awaited.

use std::net::{IpAddr, Ipv6Addr};

use socket2::SockFilter;

use crate::config::Config;
use crate::wire::frame::{ETHERTYPE_ARP, ETHERTYPE_IPV4, PROTOCOL_VRRP};
use crate::wire::ipv6::{ETHERTYPE_IPV6, PROTOCOL_ICMPV6};

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Ancillary data: added to −0x1000.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;
/// Packet types of if_packet.h.
const OTHER_HOST: u32 = 3;
const OUTGOING: u32 = 4;
/// Offsets in an untagged frame.
const ETHERTYPE_AT: u32 = 12;
const PROTOCOL_AT: u32 = 23;
const SOURCE_AT: u32 = 26;
/// The same of IPv6, where no extension header comes between.
const NEXT_HEADER_AT: u32 = 20;
const SOURCE6_AT: u32 = 22;
const ICMPV6_TYPE_AT: u32 = 54;
/// Target of an advertisement.
const TARGET6_AT: u32 = 62;
/// Operation and sender's address in ARP.
const OPERATION_AT: u32 = 20;
const SENDER_AT: u32 = 28;
const REPLY: u32 = 2;
/// ICMPv6 types of neighbour solicitations and advertisements.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// More than any frame we read.
const WHOLE: u32 = 0xffff;
const NOTHING: u32 = 0;

/// One load and what it must find.
#[derive(Clone, Copy, Debug)]
struct Test {
    load: u16,
    at: u32,
    value: u32,
}

const fn ethertype(value: u16) -> Test {
    Test {
        load: LOAD_HALF,
        at: ETHERTYPE_AT,
        value: value as u32,
    }
}

const fn byte(at: u32, value: u8) -> Test {
    Test {
        load: LOAD_BYTE,
        at,
        value: value as u32,
    }
}

const fn word(at: u32, value: u32) -> Test {
    Test {
        load: LOAD_WORD,
        at,
        value,
    }
}

const VRRP: [Test; 2] = [ethertype(ETHERTYPE_IPV4), byte(PROTOCOL_AT, PROTOCOL_VRRP)];
const VRRP6: [Test; 2] = [ethertype(ETHERTYPE_IPV6), byte(NEXT_HEADER_AT, PROTOCOL_VRRP)];
const ICMPV6: [Test; 2] = [ethertype(ETHERTYPE_IPV6), byte(NEXT_HEADER_AT, PROTOCOL_ICMPV6)];

/// One instruction: code, jumps if true and if not, operand.
type Instruction = (u16, u8, u8, u32);

const fn verdict(bytes: u32) -> Instruction {
    (RETURN, 0, 0, bytes)
}

/// A program under construction: untagged frames addressed to us or to a group; the first rule all of whose tests hold
/// decides, and without one the frame is not taken.
struct Rules(Vec<Instruction>);

impl Rules {
    fn new() -> Self {
        let mut rules = Self(Vec::new());
        for kind in [OTHER_HOST, OUTGOING] {
            rules.decide(&[word(PACKET_TYPE, kind)], NOTHING);
        }
        rules.0.extend([
            (LOAD_WORD, 0, 0, VLAN_TAG_PRESENT),
            (JUMP_EQUAL, 1, 0, 0),
            verdict(NOTHING),
        ]);
        rules
    }

    fn decide(&mut self, tests: &[Test], bytes: u32) {
        for (number, test) in tests.iter().enumerate() {
            self.0.push((test.load, 0, 0, test.at));
            // To the next rule: over the tests that are left, two instructions each, and the verdict.
            let over = 2 * (tests.len() - 1 - number) + 1;
            let over = u8::try_from(over).expect("a rule has at most seven tests");
            self.0.push((JUMP_EQUAL, 0, over, test.value));
        }
        self.0.push(verdict(bytes));
    }

    /// Adverts of the peer, in each family there are any.
    fn decide_peer(&mut self, config: &Config, bytes: u32) {
        if let Some(wire) = &config.ipv4 {
            let source = word(SOURCE_AT, u32::from(wire.peer));
            self.decide(&[VRRP[0], VRRP[1], source], bytes);
        }
        if let Some(wire) = &config.ipv6 {
            let mut tests = VRRP6.to_vec();
            tests.extend(words(SOURCE6_AT, wire.peer));
            self.decide(&tests, bytes);
        }
    }

    /// Solicitations and advertisements of neighbours.
    fn decide_nd(&mut self) {
        for kind in [SOLICITATION, ADVERTISEMENT] {
            self.decide(&[ICMPV6[0], ICMPV6[1], byte(ICMPV6_TYPE_AT, kind)], WHOLE);
        }
    }

    fn end(mut self) -> Self {
        self.0.push(verdict(NOTHING));
        self
    }

    fn program(&self) -> Vec<SockFilter> {
        self.0
            .iter()
            .map(|(code, then, otherwise, operand)| SockFilter::new(*code, *then, *otherwise, *operand))
            .collect()
    }
}

/// Untagged adverts from the peer, addressed to us or to a group.
pub(super) fn peer_adverts(config: &Config) -> Vec<SockFilter> {
    only_peer(config).program()
}

fn only_peer(config: &Config) -> Rules {
    let mut rules = Rules::new();
    rules.decide_peer(config, WHOLE);
    rules.end()
}

/// Untagged ARP and ND, and adverts of anybody but the peer.
pub(super) fn everything_else(config: &Config) -> Vec<SockFilter> {
    all_but_peer(config).program()
}

fn all_but_peer(config: &Config) -> Rules {
    let mut rules = Rules::new();
    rules.decide_peer(config, NOTHING);
    rules.decide(&[ethertype(ETHERTYPE_ARP)], WHOLE);
    rules.decide(&VRRP, WHOLE);
    rules.decide(&VRRP6, WHOLE);
    rules.decide_nd();
    rules.end()
}

/// Untagged ARP and ND.
pub(super) fn claims() -> Vec<SockFilter> {
    let mut rules = Rules::new();
    rules.decide(&[ethertype(ETHERTYPE_ARP)], WHOLE);
    rules.decide_nd();
    rules.end().program()
}

/// Untagged ARP replies and advertisements of the witness, and of whoever has the listed addresses.
pub(super) fn answers(config: &Config) -> Vec<SockFilter> {
    only_answers(config).program()
}

fn only_answers(config: &Config) -> Rules {
    let mut rules = Rules::new();
    for address in config.witnesses().chain(config.listed()) {
        match address {
            IpAddr::V4(address) => {
                let reply = Test {
                    load: LOAD_HALF,
                    at: OPERATION_AT,
                    value: REPLY,
                };
                let sender = word(SENDER_AT, u32::from(address));
                rules.decide(&[ethertype(ETHERTYPE_ARP), reply, sender], WHOLE);
            }
            IpAddr::V6(address) => {
                let mut tests = ICMPV6.to_vec();
                tests.push(byte(ICMPV6_TYPE_AT, ADVERTISEMENT));
                tests.extend(words(TARGET6_AT, address));
                rules.decide(&tests, WHOLE);
            }
        }
    }
    rules.end()
}

/// Tests for an address at this offset.
fn words(at: u32, address: Ipv6Addr) -> impl Iterator<Item = Test> {
    let fours = address.octets().as_chunks::<4>().0.to_vec();
    (at..)
        .step_by(4)
        .zip(fours)
        .map(|(at, four)| word(at, u32::from_be_bytes(four)))
}

/// Nothing at all: until a socket is bound and filtered it must not collect frames of other interfaces.
pub(super) fn nothing() -> Vec<SockFilter> {
    vec![SockFilter::new(RETURN, 0, 0, NOTHING)]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::config::{Wire, tests::sample};
    use crate::units::Priority;
    use crate::wire::advert::{Advert, ChecksumForm, emit_frame, with_link_local};
    use crate::wire::arp::{Arp, Form};
    use crate::wire::ndp::Message;
    use crate::wire::{Address, Mac};

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 3);
    const PEER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4);

    /// What the kernel would do: bytes taken of `frame`, which came in with this packet type and perhaps a tag.
    fn run(rules: &Rules, frame: &[u8], packet_type: u32, tagged: bool) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let (code, then, otherwise, operand) = rules.0[at];
            at += 1;
            let bytes = |count: usize| {
                let from = usize::try_from(operand).unwrap();
                let part = frame.get(from..from + count)?;
                Some(part.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
            };
            let loaded = match code {
                LOAD_WORD if operand == PACKET_TYPE => Some(packet_type),
                LOAD_WORD if operand == VLAN_TAG_PRESENT => Some(u32::from(tagged)),
                LOAD_WORD => bytes(4),
                LOAD_HALF => bytes(2),
                LOAD_BYTE => bytes(1),
                JUMP_EQUAL => {
                    at += usize::from(if accumulator == operand { then } else { otherwise });
                    continue;
                }
                RETURN => return operand,
                other => panic!("{other:#x}"),
            };
            // The kernel drops a packet too short for a load.
            let Some(loaded) = loaded else { return NOTHING };
            accumulator = loaded;
        }
    }

    fn advert<A: Address>(from: A, listed: Vec<A>) -> Vec<u8> {
        let advert = Advert {
            vrid: sample().vrid,
            priority: Priority::CLAIM,
            interval: sample().advert_interval,
            addresses: listed,
            trailer: Vec::new(),
        };
        let form = ChecksumForm::PseudoHeader;
        emit_frame((MAC, from), (A::GROUP.group_mac(), A::GROUP), &advert, form)
    }

    fn configs() -> [Config; 3] {
        let wire6 = Wire {
            address: "fe80::2".parse().unwrap(),
            peer: PEER6,
            announce: with_link_local(sample().vrid, &[]),
        };
        let both = Config {
            ipv6: Some(wire6),
            ..sample()
        };
        let only6 = Config {
            ipv4: None,
            ..both.clone()
        };
        [sample(), only6, both]
    }

    #[test]
    fn each_socket_gets_its_frames_and_no_others() {
        let vip = Ipv4Addr::new(192, 168, 100, 100);
        let vip6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        let close = |word: usize| {
            let mut octets = PEER6.octets();
            octets[4 * word + 3] ^= 1;
            advert(Ipv6Addr::from(octets), vec![vip6])
        };
        for config in configs() {
            let (peer, others) = (only_peer(&config), all_but_peer(&config));
            let verdicts = |frame: &[u8]| (run(&peer, frame, 0, false), run(&others, frame, 0, false));
            let (to_peer, to_others, to_none) = ((WHOLE, NOTHING), (NOTHING, WHOLE), (NOTHING, NOTHING));
            let of = |configured: bool| if configured { to_peer } else { to_others };
            assert_eq!(verdicts(&advert(PEER, vec![vip])), of(config.ipv4.is_some()));
            assert_eq!(verdicts(&advert(PEER6, vec![vip6])), of(config.ipv6.is_some()));
            assert_eq!(verdicts(&advert(vip, vec![vip])), to_others);
            for word in 0..4 {
                assert_eq!(verdicts(&close(word)), to_others, "word {word}");
            }
            let arp = Arp::gratuitous(vip, MAC, Form::Request).emit_frame(Mac::BROADCAST);
            let mut ndp = Message::unsolicited(vip6, MAC, false).emit_frame(MAC);
            assert_eq!(verdicts(&arp), to_others);
            assert_eq!(verdicts(&ndp), to_others);
            for (kind, taken) in [(135, to_others), (134, to_none), (128, to_none)] {
                ndp[54] = kind;
                assert_eq!(verdicts(&ndp), taken, "ICMPv6 type {kind}");
            }
            let mut tcp = advert(PEER, vec![vip]);
            tcp[23] = 6;
            assert_eq!(verdicts(&tcp), to_none);
            assert_eq!(verdicts(&ndp[..40]), to_none);
        }
    }

    #[test]
    fn only_answers_of_the_witness_and_for_the_pairs_addresses_wake_the_thread() {
        let (gateway, gateway6) = (Ipv4Addr::new(192, 168, 100, 1), PEER6);
        let vip = Ipv4Addr::new(192, 168, 100, 100);
        for (config, witness) in configs().into_iter().zip([true, false, true]) {
            let config = Config {
                witness: Some(if witness { gateway.into() } else { gateway6.into() }),
                ..config
            };
            let rules = only_answers(&config);
            let taken = |frame: &[u8]| run(&rules, frame, 0, false) == WHOLE;
            let reply = |of| Arp::gratuitous(of, MAC, Form::Reply).emit_frame(Mac::BROADCAST);
            let question = Arp::gratuitous(gateway, MAC, Form::Request).emit_frame(Mac::BROADCAST);
            let advertised = |of| Message::unsolicited(of, MAC, false).emit_frame(MAC);
            assert_eq!(taken(&reply(gateway)), witness);
            assert_eq!(taken(&reply(vip)), config.ipv4.is_some());
            assert_eq!(taken(&advertised(gateway6)), !witness);
            assert!(!taken(&question) && !taken(&reply(PEER)));
            assert!(!taken(&advertised("2001:db8::99".parse().unwrap())));
        }
    }

    #[test]
    fn frames_of_others_sent_ones_and_tagged_ones_are_not_taken() {
        for config in configs() {
            for frame in [advert(PEER, vec![PEER]), advert(PEER6, vec![PEER6])] {
                for rules in [only_peer(&config), all_but_peer(&config)] {
                    for (packet_type, tagged) in [(OTHER_HOST, false), (OUTGOING, false), (0, true)] {
                        assert_eq!(run(&rules, &frame, packet_type, tagged), NOTHING);
                    }
                }
            }
        }
    }
}
