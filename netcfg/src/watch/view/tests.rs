use super::*;
use crate::netlink::{
    route::Hop,
    wire::{Message, frames},
};

fn name(text: &str) -> IfName {
    IfName::new(text).unwrap()
}

fn link(ifindex: u32, text: &str, carrier: bool) -> LinkMessage {
    let mac = Some(crate::name::Mac([2, 0, 0, 0, 0, 1]));
    LinkMessage {
        ifindex,
        name: name(text),
        mac,
        mtu: 1500,
        up: true,
        carrier,
        kind: None,
        parent: None,
    }
}

fn route(to: &str, metric: u32, hops: &[(u32, Option<&str>)]) -> RouteMessage {
    let hop = |&(ifindex, gateway): &(u32, Option<&str>)| Hop {
        ifindex,
        gateway: gateway.map(|text| text.parse().unwrap()),
        mtu: None,
    };
    RouteMessage {
        table: MAIN,
        protocol: 3,
        to: to.parse().unwrap(),
        kind: libc::RTN_UNICAST,
        metric,
        selective: false,
        hops: hops.iter().map(hop).collect(),
    }
}

fn neighbour_event(kind: u16, state: u8, mac: u8) -> Vec<u8> {
    let fixed = [2, 0, 0, 0, 7, 0, 0, 0, state, 0, 0, 1];
    let message = Message::new(kind, 0, &fixed).attribute(libc::NDA_DST, &[10, 0, 0, 10]);
    message
        .attribute(libc::NDA_LLADDR, &[2, 0, 0, 0, 0, mac])
        .finish(0)
}

fn view() -> View {
    let mut view = View::default();
    view.replace(
        vec![link(7, "leg0", true), link(9, "other0", true)],
        vec![],
        vec![],
    );
    view
}

fn picture(view: &View) -> Picture {
    view.picture([name("leg0"), name("leg1")].iter(), 0)
}

#[test]
fn routes_are_mirrored_by_lowest_metric_with_their_leg() {
    let mut view = view();
    let mut selective = route("10.5.0.0/16", 0, &[(7, None)]);
    selective.selective = true;
    let mut refused = route("10.6.0.0/16", 0, &[]);
    refused.kind = libc::RTN_BLACKHOLE;
    let mut broadcast = route("10.7.0.0/16", 0, &[(7, None)]);
    broadcast.kind = libc::RTN_BROADCAST;
    view.replace_routes(vec![
        route("0.0.0.0/0", 200, &[(9, Some("10.9.0.1"))]),
        route("0.0.0.0/0", 100, &[(7, Some("10.0.0.1"))]),
        route("10.0.0.0/24", 0, &[(7, None)]),
        route("172.17.0.0/16", 0, &[(9, None)]),
        route("10.8.0.0/16", 0, &[]),
        // As IPv6 tells a multipath route.
        route("2001:db8::/32", 1024, &[(7, Some("fe80::2"))]),
        route("2001:db8::/32", 1024, &[(7, Some("fe80::1"))]),
        selective,
        refused,
        broadcast,
    ]);
    let picture = picture(&view);
    let hop = |leg: Option<&str>, gateway: Option<&str>| NextHop {
        leg: leg.map(name),
        gateway: gateway.map(|text| text.parse().unwrap()),
        mtu: None,
    };
    let hops = |hops: Vec<NextHop>| MirrorRoute::Hops(hops);
    let expected = [
        ("0.0.0.0/0", hops(vec![hop(Some("leg0"), Some("10.0.0.1"))])),
        ("10.0.0.0/24", hops(vec![hop(Some("leg0"), None)])),
        ("10.6.0.0/16", MirrorRoute::Refused),
        // Not by a leg: the mirror must know, or the default route would take it to the wrong place.
        ("172.17.0.0/16", hops(vec![hop(None, None)])),
        ("10.8.0.0/16", hops(vec![])),
        (
            "2001:db8::/32",
            hops(vec![
                hop(Some("leg0"), Some("fe80::1")),
                hop(Some("leg0"), Some("fe80::2")),
            ]),
        ),
    ];
    let expected = expected.map(|(to, route)| (to.parse().unwrap(), route)).into();
    assert_eq!(picture.routes, expected);
}

#[test]
fn more_routes_than_the_mirror_holds_are_counted() {
    let mut view = view();
    let routes = (0..=u32::try_from(MAX_ROUTES).unwrap()).map(|number| {
        let to = IpNet::new(std::net::Ipv4Addr::from(0x0a00_0000 + (number << 4)).into(), 28).unwrap();
        route(&to.to_string(), 0, &[(7, None)])
    });
    view.replace_routes(routes.collect());
    let picture = picture(&view);
    assert_eq!((picture.routes.len(), picture.routes_left_out), (MAX_ROUTES, 1));
}

/// B67, B68, M21: the picture follows the kernel's neighbour, by address, deletion and failure, and keeps a MAC that
/// has merely not been confirmed lately.
#[test]
fn b67_the_picture_follows_the_neighbour() {
    let mut view = view();
    let (new, del) = (libc::RTM_NEWNEIGH, libc::RTM_DELNEIGH);
    let neighbours = Touched::NEIGHBOURS;
    let both = neighbours.with(Touched::PICTURE);
    // event, state, MAC, touched, MAC in the picture
    for (kind, state, mac, touched, known) in [
        (new, 0x01, 1, neighbours, None),
        (new, 0x02, 1, both, Some(1)),
        (new, 0x04, 1, Touched::default(), Some(1)),
        (new, 0x08, 1, Touched::default(), Some(1)),
        (new, 0x10, 1, Touched::default(), Some(1)),
        (new, 0x02, 2, both, Some(2)),
        (new, 0x20, 2, both, None),
        (new, 0x02, 3, both, Some(3)),
        (del, 0x02, 3, both, None),
        (del, 0x02, 3, Touched::default(), None),
    ] {
        let bytes = neighbour_event(kind, state, mac);
        assert_eq!(
            view.handle(frames(&bytes).next().unwrap()),
            touched,
            "state {state:#x}"
        );
        let leg = &picture(&view).legs[&name("leg0")];
        let found = leg.neighbours.get(&"10.0.0.10".parse().unwrap());
        assert_eq!(found.map(|mac| mac.0[5]), known, "state {state:#x}");
    }
}

/// B130: what was on a link goes with it, and a new one under the same name starts afresh.
#[test]
fn b130_a_leg_deleted_and_made_again_has_another_index_and_nothing_of_the_old_one() {
    let mut view = view();
    view.handle(
        frames(&neighbour_event(libc::RTM_NEWNEIGH, 0x02, 1))
            .next()
            .unwrap(),
    );
    view.addresses.insert((7, "10.0.0.2/24".parse().unwrap()));
    assert_eq!(
        view.link(link(7, "leg0", true), libc::RTM_NEWLINK),
        Touched::default()
    );
    assert!(
        view.link(link(7, "leg0", true), libc::RTM_DELLINK)
            .has(Touched::LINKS)
    );
    assert_eq!(picture(&view).legs[&name("leg0")], LegPicture::default());
    assert!(
        view.link(link(8, "leg0", true), libc::RTM_NEWLINK)
            .has(Touched::PICTURE)
    );
    let leg = &picture(&view).legs[&name("leg0")];
    assert_eq!(
        (
            leg.link.unwrap().ifindex,
            leg.neighbours.len(),
            leg.addresses.len()
        ),
        (8, 0, 0)
    );
}

#[test]
fn a_renamed_link_is_no_longer_the_leg() {
    let mut view = view();
    view.link(link(7, "away0", true), libc::RTM_NEWLINK);
    assert_eq!(picture(&view).legs[&name("leg0")].link, None);
    view.link(link(7, "leg1", true), libc::RTM_NEWLINK);
    assert_eq!(picture(&view).legs[&name("leg1")].link.unwrap().ifindex, 7);
}

/// B144: what the daemon waits for, in any order.
#[test]
fn b144_presence_is_link_carrier_and_address() {
    use super::super::picture::Presence;
    let address = "10.0.0.2".parse().unwrap();
    let holds = |leg: &LegPicture| {
        [Presence::Link, Presence::Carrier, Presence::Address(address)].map(|presence| presence.holds(leg))
    };
    let mut leg = LegPicture::default();
    assert_eq!(holds(&leg), [false; 3]);
    leg.link = Some(LinkPicture {
        ifindex: 7,
        mac: None,
        mtu: 1500,
        up: true,
        carrier: false,
    });
    assert_eq!(holds(&leg), [true, false, false]);
    leg.addresses.insert("10.0.0.2/24".parse().unwrap());
    leg.addresses.insert("10.0.0.9/32".parse().unwrap());
    assert_eq!(holds(&leg), [true, false, true]);
    leg.link.as_mut().unwrap().carrier = true;
    assert_eq!(holds(&leg), [true; 3]);
    assert_eq!(
        leg.connected().collect::<Vec<_>>(),
        ["10.0.0.0/24".parse().unwrap()]
    );
}

#[test]
fn tentative_addresses_are_not_there_yet() {
    let mut view = view();
    for (flags, there) in [(0x40u8, false), (0x80, true), (0x48, false), (0x80, true)] {
        let fixed = [10, 64, flags, 0, 7, 0, 0, 0];
        let bytes = Message::new(libc::RTM_NEWADDR, 0, &fixed)
            .attribute(libc::IFA_ADDRESS, &[0x20; 16])
            .finish(0);
        assert!(view.handle(frames(&bytes).next().unwrap()) == Touched::PICTURE || !there);
        assert_eq!(
            picture(&view).legs[&name("leg0")].addresses.len(),
            usize::from(there)
        );
    }
}

#[test]
fn addresses_beside_the_legs_are_the_nodes_own() {
    let mut view = view();
    let address = |ifindex, network: &str| AddressMessage {
        ifindex,
        network: network.parse().unwrap(),
        tentative: false,
    };
    view.replace(
        vec![link(7, "leg0", true), link(9, "other0", true)],
        vec![
            address(7, "10.0.0.2/24"),
            address(9, "192.0.2.1/32"),
            address(1, "127.0.0.1/8"),
        ],
        vec![],
    );
    let elsewhere: Vec<_> = picture(&view).elsewhere.iter().map(ToString::to_string).collect();
    assert_eq!(elsewhere, ["192.0.2.1"]);
}
