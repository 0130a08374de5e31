use proptest::prelude::*;

use super::*;

const VIP: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x100);
const OWN: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const PEER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 3);
const MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0x0a]);

/// The announcement of a gateway address, checksum worked out by another program.
#[rustfmt::skip]
const ADVERTISEMENT_FRAME: [u8; 86] = [
    0x33, 0x33, 0, 0, 0, 0x01, 0x02, 0, 0, 0, 0, 0x0a, 0x86, 0xdd,
    0x6c, 0, 0, 0, 0, 0x20, 0x3a, 0xff,
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0,
    0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01,
    0x88, 0, 0x77, 0x23, 0xa0, 0, 0, 0,
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0,
    0x02, 0x01, 0x02, 0, 0, 0, 0, 0x0a,
];
/// The question for the peer, likewise.
#[rustfmt::skip]
const SOLICITATION_FRAME: [u8; 86] = [
    0x33, 0x33, 0xff, 0, 0, 0x03, 0x02, 0, 0, 0, 0, 0x0a, 0x86, 0xdd,
    0x6c, 0, 0, 0, 0, 0x20, 0x3a, 0xff,
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02,
    0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0xff, 0, 0, 0x03,
    0x87, 0, 0x7a, 0x8b, 0, 0, 0, 0,
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x03,
    0x01, 0x01, 0x02, 0, 0, 0, 0, 0x0a,
];

/// `frame` with another byte in the ICMPv6 message, summed anew.
fn changed(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame[56..58].copy_from_slice(&[0, 0]);
    let packet = parse_ipv6(&frame[14..]).unwrap();
    let sum = ones_sum(
        pseudo_header(packet.src, packet.dst, PROTOCOL_ICMPV6, packet.payload.len()),
        packet.payload,
    );
    frame[56..58].copy_from_slice(&checksum(sum).to_be_bytes());
    frame
}

#[test]
fn b84_the_announcement_of_a_gateway_replaces_is_from_a_router_and_carries_the_mac() {
    let message = Message::unsolicited(VIP, MAC, true);
    assert_eq!(message.emit_frame(MAC), ADVERTISEMENT_FRAME);
    assert_eq!(Message::parse_frame(&ADVERTISEMENT_FRAME), Ok((MAC, message)));
    let plain = Message::unsolicited(VIP, MAC, false).emit_frame(MAC);
    assert_eq!(plain[58], OVERRIDE);
}

#[test]
fn a_question_goes_to_the_solicited_node_group_with_the_askers_mac() {
    let message = Message::question(OWN, MAC, PEER);
    assert_eq!(message.emit_frame(MAC), SOLICITATION_FRAME);
    assert_eq!(Message::parse_frame(&SOLICITATION_FRAME), Ok((MAC, message)));
}

#[test]
fn a_solicited_node_group_has_the_last_three_bytes_of_the_address() {
    let of = |address: &str| solicited_node(address.parse().unwrap()).to_string();
    assert_eq!(of("2001:db8::100"), "ff02::1:ff00:100");
    assert_eq!(of("2001:db8::12ab:cdef"), "ff02::1:ffab:cdef");
}

#[test]
fn a_probe_has_no_source_and_no_mac() {
    let probe = Message {
        src: Ipv6Addr::UNSPECIFIED,
        mac: None,
        ..Message::question(OWN, MAC, VIP)
    };
    let frame = probe.emit_frame(MAC);
    assert_eq!(frame.len(), 78);
    assert_eq!(Message::parse_frame(&frame), Ok((MAC, probe)));
}

#[test]
fn padding_is_ignored_and_a_cut_frame_is_truncated() {
    let mut padded = ADVERTISEMENT_FRAME.to_vec();
    padded.resize(100, 0);
    assert!(Message::parse_frame(&padded).is_ok());
    for cut in 0..ADVERTISEMENT_FRAME.len() {
        assert!(
            matches!(
                Message::parse_frame(&ADVERTISEMENT_FRAME[..cut]),
                Err(ParseError::Truncated { .. })
            ),
            "{cut} bytes"
        );
    }
}

#[test]
fn what_rfc_4861_calls_invalid_is_refused() {
    let frame = || ADVERTISEMENT_FRAME.to_vec();
    let error = |frame: Vec<u8>| Message::parse_frame(&frame).unwrap_err();
    let mut routed = frame();
    routed[21] = 254;
    assert_eq!(error(routed), ParseError::Ttl(254));
    assert_eq!(error(changed(frame(), 54, 134)), ParseError::NdKind(0x8600));
    assert_eq!(error(changed(frame(), 55, 1)), ParseError::NdKind(0x8801));
    assert_eq!(error(changed(frame(), 62, 0xff)), ParseError::NdField);
    assert_eq!(error(changed(frame(), 79, 0)), ParseError::NdField);
    assert_eq!(
        error(changed(frame(), 79, 2)),
        ParseError::Truncated { needed: 16, got: 8 }
    );
    let mut tcp = frame();
    tcp[20] = 6;
    assert_eq!(error(tcp), ParseError::Protocol(6));
    let mut arp = frame();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(error(arp), ParseError::EtherType(0x0806));
}

#[test]
fn strange_options_are_skipped() {
    let strange = changed(ADVERTISEMENT_FRAME.to_vec(), 78, 14);
    assert_eq!(Message::parse_frame(&strange).map(|(_, m)| m.mac), Ok(None));
}

#[test]
fn every_flipped_bit_of_addresses_and_message_is_noticed() {
    for at in 22..ADVERTISEMENT_FRAME.len() {
        for bit in 0..8 {
            let mut frame = ADVERTISEMENT_FRAME;
            frame[at] ^= 1 << bit;
            assert!(Message::parse_frame(&frame).is_err(), "byte {at} bit {bit}");
        }
    }
}

proptest! {
    #[test]
    fn parse_undoes_emit(
        src: u128,
        dst: u128,
        target in any::<u128>().prop_filter("no group", |target| target >> 120 != 0xff),
        flags: Option<(bool, bool, bool)>,
        mac: Option<[u8; 6]>,
        src_mac: [u8; 6],
    ) {
        let message = Message {
            src: src.into(),
            dst: dst.into(),
            kind: flags.map_or(Kind::Solicitation, |(router, solicited, replaces)| {
                Kind::Advertisement { router, solicited, replaces }
            }),
            target: target.into(),
            mac: mac.map(Mac),
        };
        prop_assert_eq!(
            Message::parse_frame(&message.emit_frame(Mac(src_mac))),
            Ok((Mac(src_mac), message))
        );
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        // Only the absence of a panic is claimed; random bytes that parse are fine.
        let mut framed = ADVERTISEMENT_FRAME[..54].to_vec();
        framed.extend_from_slice(&bytes);
        for frame in [bytes, framed] {
            prop_assert!(Message::parse_frame(&frame).is_ok() || Message::parse_frame(&frame).is_err());
        }
    }
}
