use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const GROUP: Ipv4Addr = Ipv4Addr::GROUP;
const A: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 2);
const B: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 3);
const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 100);
const MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0x0a]);

/// An advert from A to the group: vrid 51, priority 150, 1 s, one address. The checksums were worked out by hand:
/// 3133 + 9601 + 0064 + c0a8 + 6464 = 1eca4, folded eca5, complement 135a; the pseudo-header
/// c0a8 + 6402 + e000 + 0012 + 0070 + 000c = 20538, folded 053a, makes it f1df, complement 0e20; the IPv4 header sums to
/// 8a0f, complement 75f0.
#[rustfmt::skip]
const GOLDEN: [u8; 46] = [
    0x01, 0x00, 0x5e, 0x00, 0x00, 0x12, 0x02, 0, 0, 0, 0, 0x0a, 0x08, 0x00,
    0x45, 0xc0, 0x00, 0x20, 0x00, 0x00, 0x40, 0x00, 0xff, 0x70, 0x75, 0xf0, 192, 168, 100, 2, 224, 0, 0, 18,
    0x31, 51, 150, 1, 0x00, 100, 0x0e, 0x20, 192, 168, 100, 100,
];

fn advert() -> Advert<Ipv4Addr> {
    Advert {
        vrid: Vrid::new(51).unwrap(),
        priority: Priority::configured(150).unwrap(),
        interval: Centiseconds::new(100).unwrap(),
        addresses: vec![VIP],
        trailer: Vec::new(),
    }
}

fn message(advert: &Advert<Ipv4Addr>, dst: Ipv4Addr, form: ChecksumForm) -> Vec<u8> {
    let mut out = Vec::new();
    advert.emit(&mut out, A, dst, form);
    out
}

/// `advert` as a message to the group, changed at one byte and summed anew.
fn changed(at: usize, value: u8) -> Vec<u8> {
    let mut bytes = message(&advert(), GROUP, ChecksumForm::MessageOnly);
    bytes[at] = value;
    resum(&mut bytes);
    bytes
}

fn resum(bytes: &mut [u8]) {
    bytes[6..8].copy_from_slice(&[0, 0]);
    let sum = checksum(ones_sum(0, bytes));
    bytes[6..8].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn golden_bytes_both_ways() {
    let frame = emit_frame(
        (MAC, A),
        (GROUP.group_mac(), GROUP),
        &advert(),
        ChecksumForm::PseudoHeader,
    );
    assert_eq!(frame, GOLDEN);
    let received = parse_frame(&GOLDEN);
    assert_eq!(
        received,
        Ok(ReceivedAdvert {
            src_mac: MAC,
            src: A,
            dst: GROUP,
            advert: advert()
        })
    );
}

#[test]
fn the_message_alone_may_be_summed_as_rfc_9568_has_it() {
    let bytes = message(&advert(), GROUP, ChecksumForm::MessageOnly);
    assert_eq!(bytes[6..8], [0x13, 0x5a]);
    assert_eq!(Advert::parse(&bytes, A, GROUP), Ok(advert()));
}

#[test]
fn b21_a_unicast_advert_is_summed_over_its_own_destination() {
    let right = message(&advert(), B, ChecksumForm::PseudoHeader);
    assert_eq!(Advert::parse(&right, A, B), Ok(advert()));
    let summed_over_the_group = message(&advert(), GROUP, ChecksumForm::PseudoHeader);
    assert_eq!(
        Advert::parse(&summed_over_the_group, A, B),
        Err(ParseError::Checksum)
    );
}

#[test]
fn b22_padding_up_to_the_smallest_frame_and_beyond_is_ignored() {
    for padding in [0, 2, 6, 14, 20] {
        let mut frame = GOLDEN.to_vec();
        frame.resize(GOLDEN.len() + padding, 0);
        assert_eq!(
            parse_frame(&frame).map(|r| r.advert),
            Ok(advert()),
            "{padding} bytes"
        );
    }
}

#[test]
fn b22_an_ip_length_too_short_for_the_address_count_is_refused() {
    let short = changed(3, 2);
    assert_eq!(
        Advert::parse(&short, A, GROUP),
        Err(ParseError::Truncated { needed: 16, got: 12 })
    );
}

#[test]
fn b24_any_number_of_addresses_is_read() {
    for count in [1, 2, 3, 255] {
        let advert = Advert {
            addresses: vec![VIP; count],
            ..advert()
        };
        let bytes = message(&advert, GROUP, ChecksumForm::PseudoHeader);
        assert_eq!(Advert::parse(&bytes, A, GROUP), Ok(advert), "{count} addresses");
    }
}

/// [`GOLDEN`] with nothing listed, its lengths and checksums worked out by hand: 3133 + 9600 + 0064 = c797, complement
/// 3868; the pseudo-header, four bytes shorter, sums to 0536, which makes it 3332; the IPv4 header to 8a0b, complement
/// 75f4.
#[rustfmt::skip]
const GOLDEN_EMPTY: [u8; 42] = [
    0x01, 0x00, 0x5e, 0x00, 0x00, 0x12, 0x02, 0, 0, 0, 0, 0x0a, 0x08, 0x00,
    0x45, 0xc0, 0x00, 0x1c, 0x00, 0x00, 0x40, 0x00, 0xff, 0x70, 0x75, 0xf4, 192, 168, 100, 2, 224, 0, 0, 18,
    0x31, 51, 150, 0, 0x00, 100, 0x33, 0x32,
];

#[test]
fn an_advert_that_lists_no_address_is_refused() {
    assert_eq!(parse_frame::<Ipv4Addr>(&GOLDEN_EMPTY), Err(ParseError::NoAddress));
    let mut padded = GOLDEN_EMPTY.to_vec();
    padded.resize(60, 0);
    assert_eq!(parse_frame::<Ipv4Addr>(&padded), Err(ParseError::NoAddress));
    for priority in [0, 1, 255] {
        let empty = Advert {
            priority: Priority::from_wire(priority),
            addresses: Vec::new(),
            trailer: b"trailer".to_vec(),
            ..advert()
        };
        for form in [ChecksumForm::PseudoHeader, ChecksumForm::MessageOnly] {
            let bytes = message(&empty, GROUP, form);
            let found = Advert::parse(&bytes, A, GROUP);
            assert_eq!(found, Err(ParseError::NoAddress), "priority {priority}, {form:?}");
        }
    }
    let empty = Advert {
        addresses: Vec::new(),
        ..advert6()
    };
    let mut bytes = Vec::new();
    empty.emit(&mut bytes, A6, Ipv6Addr::GROUP, ChecksumForm::PseudoHeader);
    assert_eq!(
        Advert::parse(&bytes, A6, Ipv6Addr::GROUP),
        Err(ParseError::NoAddress)
    );
    let mut wrong = GOLDEN_EMPTY;
    wrong[41] ^= 1;
    assert_eq!(parse_frame::<Ipv4Addr>(&wrong), Err(ParseError::Checksum));
}

#[test]
fn more_addresses_than_the_count_field_holds_are_not_listed() {
    let advert = Advert {
        addresses: vec![VIP; 300],
        ..advert()
    };
    let bytes = message(&advert, GROUP, ChecksumForm::PseudoHeader);
    assert_eq!(bytes.len(), advert.wire_len());
    assert_eq!(
        Advert::parse(&bytes, A, GROUP).map(|a| a.addresses.len()),
        Ok(255)
    );
}

#[test]
fn a_trailer_behind_the_address_list_is_summed_and_signed_with_all_but_the_checksum() {
    let mut bytes = message(&advert(), GROUP, ChecksumForm::MessageOnly);
    bytes.extend_from_slice(b"trailer");
    assert_eq!(Advert::parse(&bytes, A, GROUP), Err(ParseError::Checksum));
    resum(&mut bytes);
    let with_trailer = Advert {
        trailer: b"trailer".to_vec(),
        ..advert()
    };
    assert_eq!(Advert::parse(&bytes, A, GROUP), Ok(with_trailer.clone()));
    assert_eq!(with_trailer.signed(), advert().signed());
    let changes: [fn(&mut Advert<Ipv4Addr>); 4] = [
        |advert| advert.vrid = Vrid::new(52).unwrap(),
        |advert| advert.priority = Priority::from_wire(151),
        |advert| advert.interval = Centiseconds::new(101).unwrap(),
        |advert| advert.addresses.push(B),
    ];
    for change in changes {
        let mut other = advert();
        change(&mut other);
        assert_ne!(other.signed(), advert().signed());
    }
}

#[test]
fn faults_are_told_apart() {
    let cases = [
        (0, 0x21, ParseError::Version(2)),
        (0, 0x32, ParseError::PacketType(2)),
        (1, 0, ParseError::Vrid),
        (5, 0, ParseError::Interval),
    ];
    for (at, value, error) in cases {
        assert_eq!(Advert::parse(&changed(at, value), A, GROUP), Err(error));
    }
    for cut in 0..8 {
        let bytes = &changed(2, 100)[..cut];
        assert_eq!(
            Advert::parse(bytes, A, GROUP),
            Err(ParseError::Truncated { needed: 8, got: cut })
        );
    }
}

#[test]
fn reserved_bits_beside_the_interval_are_ignored() {
    assert_eq!(Advert::parse(&changed(4, 0xf0), A, GROUP), Ok(advert()));
}

#[test]
fn every_flipped_bit_of_the_message_is_noticed() {
    for at in 34..GOLDEN.len() {
        for bit in 0..8 {
            let mut frame = GOLDEN;
            frame[at] ^= 1 << bit;
            assert!(parse_frame::<Ipv4Addr>(&frame).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn a_routed_advert_and_other_protocols_are_refused() {
    let mut frame = GOLDEN;
    frame[22] = 254;
    let sum = checksum(ones_sum(0, &[&frame[14..24], &[0, 0], &frame[26..34]].concat()));
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(parse_frame::<Ipv4Addr>(&frame), Err(ParseError::Ttl(254)));
    let mut arp = GOLDEN;
    arp[13] = 6;
    assert_eq!(parse_frame::<Ipv4Addr>(&arp), Err(ParseError::EtherType(0x0806)));
}

const A6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x100);

/// An advert from A to ff02::12: vrid 51, priority 150, 1 s, the router's link-local address and one more; checksum
/// worked out by another program.
#[rustfmt::skip]
const GOLDEN6: [u8; 94] = [
    0x33, 0x33, 0, 0, 0, 0x12, 0x02, 0, 0, 0, 0, 0x0a, 0x86, 0xdd,
    0x6c, 0, 0, 0, 0, 0x28, 0x70, 0xff,
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02,
    0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12,
    0x31, 0x33, 0x96, 0x02, 0, 0x64, 0xab, 0xc8,
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0x5e, 0xff, 0xfe, 0, 0x02, 0x33,
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0,
];

fn advert6() -> Advert<Ipv6Addr> {
    let Advert {
        vrid,
        priority,
        interval,
        ..
    } = advert();
    Advert {
        vrid,
        priority,
        interval,
        addresses: with_link_local(vrid, &[VIP6]),
        trailer: Vec::new(),
    }
}

#[test]
fn b87_an_ipv6_advert_is_the_golden_bytes_both_ways() {
    let group = Ipv6Addr::GROUP;
    for form in [ChecksumForm::PseudoHeader, ChecksumForm::MessageOnly] {
        let frame = emit_frame((MAC, A6), (group.group_mac(), group), &advert6(), form);
        assert_eq!(frame, GOLDEN6, "{form:?}: over IPv6 there is one form");
    }
    let received = ReceivedAdvert {
        src_mac: MAC,
        src: A6,
        dst: group,
        advert: advert6(),
    };
    assert_eq!(parse_frame(&GOLDEN6), Ok(received));
}

#[test]
fn b87_the_list_of_an_ipv6_advert_begins_with_a_link_local_address() {
    let vrid = Vrid::new(51).unwrap();
    let own: Ipv6Addr = "fe80::1".parse().unwrap();
    let derived: Ipv6Addr = "fe80::200:5eff:fe00:233".parse().unwrap();
    assert_eq!(with_link_local(vrid, &[VIP6]), [derived, VIP6]);
    assert_eq!(with_link_local(vrid, &[VIP6, own]), [own, VIP6]);
    assert_eq!(with_link_local(vrid, &[own, VIP6]), [own, VIP6]);
    assert_eq!(with_link_local(vrid, &[]), [derived]);
}

#[test]
fn over_ipv6_the_message_alone_is_not_summed() {
    let mut frame = GOLDEN6;
    frame[60..62].copy_from_slice(&[0, 0]);
    let alone = checksum(ones_sum(0, &frame[54..]));
    frame[60..62].copy_from_slice(&alone.to_be_bytes());
    assert_eq!(parse_frame::<Ipv6Addr>(&frame), Err(ParseError::Checksum));
}

#[test]
fn every_flipped_bit_of_an_ipv6_advert_is_noticed() {
    for at in 22..GOLDEN6.len() {
        for bit in 0..8 {
            let mut frame = GOLDEN6;
            frame[at] ^= 1 << bit;
            assert!(parse_frame::<Ipv6Addr>(&frame).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn an_ipv6_advert_from_beyond_a_router_is_refused_and_padding_ignored() {
    let mut frame = GOLDEN6;
    frame[21] = 254;
    assert_eq!(parse_frame::<Ipv6Addr>(&frame), Err(ParseError::Ttl(254)));
    for (src, dst, error) in [
        (A6, "fe80::3".parse().unwrap(), None),
        (VIP6, "fe80::3".parse().unwrap(), Some(ParseError::Ttl(64))),
        (A6, VIP6, Some(ParseError::Ttl(64))),
    ] {
        let mut frame = emit_frame((MAC, src), (MAC, dst), &advert6(), ChecksumForm::PseudoHeader);
        frame[21] = 64;
        assert_eq!(parse_frame::<Ipv6Addr>(&frame).err(), error, "{src} to {dst}");
    }
    let mut padded = GOLDEN6.to_vec();
    padded.resize(120, 0);
    assert_eq!(parse_frame::<Ipv6Addr>(&padded).map(|r| r.advert), Ok(advert6()));
    assert_eq!(
        parse_frame::<Ipv4Addr>(&GOLDEN6),
        Err(ParseError::EtherType(0x86dd))
    );
}

proptest! {
    #[test]
    fn parse_undoes_emit(
        vrid in 1u8..,
        priority: u8,
        interval in 1u16..4096,
        addresses in proptest::collection::vec(any::<u32>().prop_map(Ipv4Addr::from), 1..256),
        dst in any::<u32>().prop_map(Ipv4Addr::from),
        trailer in proptest::collection::vec(any::<u8>(), 0..MAX_TRAILER),
        message_only: bool,
    ) {
        let advert = Advert {
            vrid: Vrid::new(vrid).unwrap(),
            priority: Priority::from_wire(priority),
            interval: Centiseconds::new(interval).unwrap(),
            addresses,
            trailer,
        };
        let form = if message_only { ChecksumForm::MessageOnly } else { ChecksumForm::PseudoHeader };
        let frame = emit_frame((MAC, A), (MAC, dst), &advert, form);
        prop_assert_eq!(parse_frame(&frame).map(|r| r.advert), Ok(advert));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        // Only the absence of a panic is claimed; random bytes that parse are fine.
        prop_assert!(parse_frame::<Ipv4Addr>(&bytes).is_ok() || parse_frame::<Ipv4Addr>(&bytes).is_err());
        prop_assert!(Advert::parse(&bytes, A, B).is_ok() || Advert::parse(&bytes, A, B).is_err());
        let mut framed = GOLDEN6[..54].to_vec();
        framed.extend_from_slice(&bytes);
        for frame in [bytes, framed] {
            prop_assert!(parse_frame::<Ipv6Addr>(&frame).is_ok() || parse_frame::<Ipv6Addr>(&frame).is_err());
        }
    }

    #[test]
    fn parse_undoes_emit_over_ipv6(
        addresses in proptest::collection::vec(any::<u128>().prop_map(Ipv6Addr::from), 1..256),
        src: u128,
        dst: u128,
        message_only: bool,
    ) {
        let advert = Advert { addresses, ..advert6() };
        let form = if message_only { ChecksumForm::MessageOnly } else { ChecksumForm::PseudoHeader };
        let frame = emit_frame((MAC, src.into()), (MAC, dst.into()), &advert, form);
        let expected = ReceivedAdvert { src_mac: MAC, src: src.into(), dst: dst.into(), advert };
        prop_assert_eq!(parse_frame::<Ipv6Addr>(&frame), Ok(expected));
    }
}
