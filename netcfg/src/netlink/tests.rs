use proptest::prelude::*;

use super::{
    address, ethtool, link, neighbour, route, rule,
    wire::{Frame, Message, attributes, frames},
};
use crate::{
    name::{Family, IfName},
    state::{Holding, Route, RouteKind, Rule, RuleAction},
};

/// Hands the bytes of a message we wrote to a reader, under another type.
fn reread<T>(kind: u16, message: Message, read: impl Fn(Frame<'_>) -> Option<T>) -> Option<T> {
    let bytes = message.finish(1);
    let frame = frames(&bytes).next()?;
    read(Frame { kind, ..frame })
}

fn every_reader(frame: Frame<'_>) {
    let kinds = [
        libc::RTM_NEWLINK,
        libc::RTM_DELLINK,
        libc::RTM_NEWADDR,
        libc::RTM_NEWNEIGH,
        libc::RTM_NEWROUTE,
        libc::RTM_NEWRULE,
    ];
    for kind in kinds.into_iter().chain([frame.kind]) {
        let frame = Frame { kind, ..frame };
        drop(link::read(frame));
        let _: Option<_> = address::read(frame);
        let _: Option<_> = neighbour::read(frame).map(|neighbour| (neighbour.usable(), neighbour.holding()));
        let _: Option<_> = route::read(frame).map(|route| route.ours());
        drop(rule::read(frame));
        drop(ethtool::read_features(frame));
    }
}

/// `RTM_NEWLINK` of a veth as Linux 6.18 tells it, shortened, with an attribute (0x3ff0) no kernel has yet, one of
/// length 3 (broken) where statistics would be, and a name after it that must not be read.
fn link_message(tail: &[u8]) -> Vec<u8> {
    let mut fixed = [0; 16];
    fixed[2] = 1;
    fixed[4] = 7;
    fixed[8..12].copy_from_slice(&(1u32 | 1 << 16).to_ne_bytes());
    let mut bytes = Message::new(libc::RTM_NEWLINK, 0, &fixed)
        .text(libc::IFLA_IFNAME, "leg0")
        .attribute(0x3ff0, &[1, 2, 3, 4, 5])
        .attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1])
        .number(libc::IFLA_MTU, 1500)
        .attribute(libc::IFLA_CARRIER, &[1])
        .nested(libc::IFLA_LINKINFO, |info| info.text(99, "new").text(1, "veth"))
        .finish(0);
    bytes.extend_from_slice(tail);
    let length = u32::try_from(bytes.len()).unwrap();
    bytes[0..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

/// B129: unknown, short and broken attributes cost nothing but themselves.
#[test]
fn b129_a_link_is_found_whatever_else_the_kernel_tells_of_it() {
    for tail in [
        &[][..],
        &[8, 0, 7, 0, 1, 2, 3, 4],
        &[3, 0, 7, 0],
        &[0xff, 0xff, 3, 0],
        &[0, 0, 0, 0],
        &[1],
    ] {
        let bytes = link_message(tail);
        let found = link::read(frames(&bytes).next().unwrap()).unwrap();
        assert_eq!((found.ifindex, found.name.as_str(), found.mtu), (7, "leg0", 1500));
        assert_eq!(
            (found.up, found.carrier, found.kind.as_deref()),
            (true, true, Some("veth"))
        );
        assert_eq!(found.mac.unwrap().to_string(), "02:00:00:00:00:01");
    }
}

#[test]
fn b129_short_values_are_absent_values() {
    let mut fixed = [0; 16];
    fixed[4] = 7;
    let message = Message::new(0, 0, &fixed)
        .text(libc::IFLA_IFNAME, "leg0")
        .attribute(libc::IFLA_MTU, &[1, 2])
        .attribute(libc::IFLA_ADDRESS, &[1, 2, 3])
        .attribute(libc::IFLA_CARRIER, &[]);
    let found = reread(libc::RTM_NEWLINK, message, link::read).unwrap();
    assert_eq!((found.mtu, found.mac, found.carrier), (0, None, false));
}

#[test]
fn our_rules_are_read_as_they_were_written() {
    let leg = Some(IfName::new("leg0").unwrap());
    for (family, from, action) in [
        (Family::Ipv4, None, RuleAction::Lookup(7111)),
        (Family::Ipv6, None, RuleAction::Lookup(100)),
        (Family::Ipv4, Some("192.168.100.0/24"), RuleAction::Blackhole),
        (Family::Ipv6, Some("2001:db8::/64"), RuleAction::Blackhole),
        (Family::Ipv4, Some("0.0.0.0/32"), RuleAction::Lookup(7112)),
        (Family::Ipv4, None, RuleAction::Other(8)),
    ] {
        let from = from.map(|text| text.parse().unwrap());
        let rule = Rule {
            family,
            priority: 1111,
            from,
            iif: leg.clone(),
            action,
        };
        let found = reread(libc::RTM_NEWRULE, super::rule::add(&rule), rule::read).unwrap();
        assert_eq!((found.protocol, found.rule), (111, rule));
    }
}

#[test]
fn our_routes_are_read_as_they_were_written() {
    for (to, kind) in [
        ("192.168.100.100/32", RouteKind::Blackhole),
        ("2001:db8::1/128", RouteKind::Unreachable),
        ("10.0.0.0/8", RouteKind::Other(1)),
    ] {
        let route = Route {
            table: 7111,
            to: to.parse().unwrap(),
            kind,
        };
        let found = reread(libc::RTM_NEWROUTE, super::route::add(&route), route::read).unwrap();
        assert_eq!((found.protocol, found.ours()), (111, route));
    }
}

#[test]
fn multipath_routes_give_their_living_hops() {
    let hop = |ifindex: u8, flags: u8, gateway: &[u8]| {
        let mut bytes = vec![16, 0, flags, 0, ifindex, 0, 0, 0, 8, 0, 5, 0];
        bytes.extend_from_slice(gateway);
        bytes
    };
    let hops = [
        hop(2, 0, &[10, 0, 0, 1]),
        hop(3, 16, &[10, 0, 0, 2]),
        hop(4, 0, &[10, 0, 0, 3]),
    ]
    .concat();
    let fixed = [2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    let message = Message::new(0, 0, &fixed)
        .attribute(libc::RTA_MULTIPATH, &hops)
        .number(libc::RTA_PRIORITY, 50)
        .nested(libc::RTA_METRICS, |metrics| metrics.number(3, 7).number(2, 1400));
    let found = reread(libc::RTM_NEWROUTE, message, route::read).unwrap();
    assert_eq!(
        (found.to.to_string().as_str(), found.table, found.metric),
        ("0.0.0.0/0", 254, 50)
    );
    assert_eq!(
        found.hops.iter().map(|hop| hop.ifindex).collect::<Vec<_>>(),
        [2, 4]
    );
    assert_eq!(found.hops[1].gateway, Some("10.0.0.3".parse().unwrap()));
    assert!(found.hops.iter().all(|hop| hop.mtu == Some(1400)));
}

#[test]
fn a_neighbour_is_held_by_the_first_that_claims_it() {
    // state, flags, extended flags, protocol, hardware address
    let mac = &[2, 0, 0, 0, 0, 1][..];
    for (state, flags, extended, protocol, mac, holding, usable) in [
        (0x02, 0x10, 1, 111, mac, Holding::Ours, true),
        (0x04, 0x10, 1, 111, mac, Holding::Ours, true),
        (0x20, 0x10, 1, 111, &[][..], Holding::Ours, false),
        (0x80, 0, 0, 0, mac, Holding::Foreign, true),
        (0x80, 0, 0, 111, mac, Holding::Foreign, true),
        (0x40, 0, 0, 0, mac, Holding::Foreign, false),
        (0x02, 0x10, 0, 0, mac, Holding::Foreign, true),
        (0x02, 0, 1, 0, mac, Holding::Foreign, true),
        (0x02, 0, 0, 0, mac, Holding::Cached, true),
        (0x08, 0, 0, 2, mac, Holding::Cached, true),
        (0x01, 0, 0, 0, &[], Holding::Unresolved, false),
        (0x20, 0, 0, 0, mac, Holding::Unresolved, false),
        (0x02, 0, 0, 0, &[0xff; 6], Holding::Unresolved, false),
    ] {
        let fixed = [2, 0, 0, 0, 7, 0, 0, 0, state, 0, flags, 1];
        let mut message = Message::new(0, 0, &fixed)
            .attribute(libc::NDA_DST, &[10, 0, 0, 1])
            .number(15, extended);
        message = message.attribute(12, &[protocol]);
        if !mac.is_empty() {
            message = message.attribute(libc::NDA_LLADDR, mac);
        }
        let found = reread(libc::RTM_NEWNEIGH, message, neighbour::read).unwrap();
        assert_eq!(
            (found.holding(), found.usable().is_some()),
            (holding, usable),
            "{found:?}"
        );
    }
}

proptest! {
    #[test]
    fn b129_no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        for frame in frames(&bytes) {
            every_reader(frame);
        }
        every_reader(Frame { kind: 0, flags: 0, sequence: 0, payload: &bytes });
        prop_assert!(attributes(&bytes).count() <= bytes.len());
    }

    /// Well-formed attributes with values of any length, in any order, in every reader.
    #[test]
    fn b129_no_attributes_make_a_reader_panic(
        fixed in prop::collection::vec(any::<u8>(), 0..17),
        attributes in prop::collection::vec((0u16..64, prop::collection::vec(any::<u8>(), 0..24)), 0..12),
    ) {
        let message = attributes.iter().fold(Message::new(0, 0, &fixed), |message, (kind, value)| {
            message.attribute(*kind, value)
        });
        let bytes = message.finish(1);
        every_reader(frames(&bytes).next().unwrap());
    }

    #[test]
    fn b129_a_message_cut_anywhere_gives_no_panic(cut in 0usize..120) {
        let bytes = link_message(&[]);
        let payload = &bytes[16..];
        every_reader(Frame { kind: 0, flags: 0, sequence: 0, payload: &payload[..cut.min(payload.len())] });
    }
}
