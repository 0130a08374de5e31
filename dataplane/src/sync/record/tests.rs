use super::{Coarse, Record};
use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::{FlowEntry, FlowKey, flags, seen};
use onearm_dataplane_common::maps::{mode, proto};
use proptest::prelude::*;

type Change = fn(&mut Record);

const V6: Addr = Addr([0x2001_0db8_u32.to_be(), 0, 0, 1]);

fn tcp() -> Record {
    Record {
        key: FlowKey::new(
            proto::TCP,
            Addr::v4(0x0a00_0001_u32.to_be()),
            1_000_u16.to_be(),
            Addr::v4(0x0a00_0064_u32.to_be()),
            80_u16.to_be(),
        ),
        new_saddr: Addr::v4(0x0a00_0064_u32.to_be()),
        new_daddr: Addr::v4(0x0a00_0201_u32.to_be()),
        new_sport: 40_000_u16.to_be(),
        new_dport: 8_080_u16.to_be(),
        flags: mode::BOTH_NAT << flags::MODE_SHIFT,
        client: seen::OPENED | seen::CONFIRMED,
        server: seen::OPENED,
        client_ack: 7,
        server_ack: 8,
        idle_ticks: 100,
        packets: 5,
        leg: Record::NO_LEG,
        vlan: 0,
        incarnation: 1 << 56 | 9,
    }
}

#[test]
fn entries_of_a_record_are_each_others_other_direction_and_give_the_record_again() {
    let record = tcp();
    let (forward, reply) = (record.forward(), record.reply());
    assert_eq!(forward.reply_key(), reply.key());
    assert_eq!(reply.reply_key(), forward.key());
    assert_eq!(
        (forward.own, forward.other, forward.state()),
        (reply.other, reply.own, reply.state())
    );
    assert!(reply.is_reply() && !forward.is_reply());
    assert_eq!(Record::of(&forward, Some(&reply)), record);
    assert_eq!(record.check(), Ok(()));
}

#[test]
fn only_what_is_proved_has_a_state() {
    let with = |change: Change| {
        let mut record = tcp();
        change(&mut record);
        record.coarse()
    };
    let table: [(&str, Option<Coarse>, Change); 11] = [
        ("established", Some(Coarse::Established), |_| ()),
        ("no SYN-ACK acknowledged", None, |r| r.client = seen::OPENED),
        ("refused by the server", None, |r| {
            (r.client, r.server) = (seen::OPENED, seen::RST);
        }),
        ("FIN of one side", Some(Coarse::Established), |r| {
            r.client |= seen::FIN;
        }),
        ("FIN of both", Some(Coarse::Closing), |r| {
            (r.client, r.server) = (r.client | seen::FIN, r.server | seen::FIN);
        }),
        ("RST", Some(Coarse::Closing), |r| r.server |= seen::RST),
        ("a datagram", None, |r| {
            (r.key.proto, r.client, r.server) = (proto::UDP, seen::OPENED, 0);
        }),
        ("a datagram answered", Some(Coarse::Established), |r| {
            (r.key.proto, r.client) = (proto::UDP, seen::OPENED);
        }),
        ("direct, one packet", None, |r| {
            (r.flags, r.packets) = (mode::DSR << flags::MODE_SHIFT, 1);
        }),
        ("direct, two packets", Some(Coarse::Established), |r| {
            (r.flags, r.packets) = (mode::DSR << flags::MODE_SHIFT, 2);
        }),
        ("direct, closing", Some(Coarse::Closing), |r| {
            (r.flags, r.client) = (mode::DSR << flags::MODE_SHIFT, r.client | seen::RST);
        }),
    ];
    for (name, want, change) in table {
        assert_eq!(with(change), want, "{name}");
    }
}

#[test]
fn a_record_that_contradicts_itself_is_named() {
    let tunnel = mode::L3_DSR << flags::MODE_SHIFT;
    let table: [(Result<(), &str>, Change); 17] = [
        (Err("incarnation"), |r| r.incarnation = 0),
        (Err("incarnation"), |r| r.incarnation |= 1 << 63),
        (Err("protocol"), |r| r.key.proto = proto::ICMP),
        (Err("address of nobody"), |r| {
            r.key.saddr = Addr::v4(0x7f00_0001_u32.to_be());
        }),
        (Err("address of nobody"), |r| r.new_daddr = Addr::NONE),
        (Err("addresses of two families"), |r| r.key.daddr = V6),
        (Err("addresses of two families"), |r| r.new_daddr = V6),
        (Err("source"), |r| r.new_saddr = V6),
        (Err("source"), |r| r.new_saddr = Addr::NONE),
        (Ok(()), |r| {
            (r.flags, r.new_saddr) = (mode::L3_DSR << flags::MODE_SHIFT, Addr::NONE);
        }),
        (Err("port"), |r| r.key.dport = 0),
        (Err("port"), |r| r.new_dport = 0),
        (Err("flags"), |r| r.flags |= flags::REPLY),
        (Err("seen"), |r| r.client |= 1 << 7),
        (Err("seen"), |r| r.client &= !seen::OPENED),
        (Err("VLAN"), |r| r.vlan = 4_095),
        (Err("state"), |r| r.client &= !seen::CONFIRMED),
    ];
    for (want, change) in table {
        let mut record = tcp();
        change(&mut record);
        assert_eq!(record.check(), want, "{record:?}");
    }
    let mut record = tcp();
    record.flags = tunnel | flags::HAIRPIN;
    assert_eq!(record.check(), Err("flags"));
}

proptest! {
    #[test]
    fn a_record_of_any_entries_has_their_state_and_survives_the_way_back(
        own: u8, other: u8, entry_flags: u8, packets: u32, ack: u32, incarnation: u64, udp: bool,
    ) {
        let forward = FlowEntry {
            proto: if udp { proto::UDP } else { proto::TCP },
            flags: entry_flags & !flags::REPLY,
            own,
            other,
            packets,
            expected_ack: ack,
            incarnation,
            ..tcp().forward()
        };
        let record = Record::of(&forward, None);
        prop_assert_eq!(record.forward(), forward);
        if let Some(coarse) = record.coarse() {
            let closing = forward.state() == onearm_dataplane_common::flow::State::Closing;
            prop_assert_eq!(coarse == Coarse::Closing, closing);
        }
    }
}
