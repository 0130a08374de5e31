use super::{Refused, Split, own_set, split};
use crate::config::{NodeConfig, PairConfig, Source, parse_node, parse_pair};
use crate::daemon::plan;
use crate::stream::owned::{MOST, OwnedSet, Place};
use onearm_netcfg::{IfName, LegPicture, Picture};
use onearm_types::NodeId;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::IpAddr;

const NODE: &str = include_str!("../../../../etc/examples/node-lb1.toml");
const PAIR: &str = include_str!("../../../../etc/examples/pair.toml");

fn node() -> NodeConfig {
    parse_node(Source::new("node.toml", NODE)).config
}

fn pair() -> PairConfig {
    parse_pair(Source::new("pair.toml", PAIR)).parsed.config
}

fn picture(node: &NodeConfig) -> Picture {
    let mut picture = Picture::default();
    let leg = LegPicture {
        addresses: ["192.168.100.2/24".parse().unwrap()].into(),
        ..LegPicture::default()
    };
    picture
        .legs
        .insert(IfName::new(&node.legs[0].interface).unwrap(), leg);
    picture.elsewhere = ["10.99.0.1".parse().unwrap()].into();
    picture
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn place(node: &NodeConfig) -> Place {
    Place {
        leg: node.legs[0].name.clone(),
        vlan: None,
        group: 0,
        router: false,
    }
}

/// What the node itself would tell, less and more.
fn told(without: &[&str], with: &[(&str, Place)]) -> OwnedSet {
    let (node, pair) = (node(), pair());
    let mut set = own_set(&node, &pair, &picture(&node), &Split::default());
    set.addresses
        .retain(|of, _| !without.iter().any(|text| address(text) == *of));
    let more = with.iter().map(|(text, place)| (address(text), place.clone()));
    set.addresses.extend(more);
    set
}

fn of(set: &OwnedSet) -> Split {
    let node = node();
    split(Some(set), &node, &pair(), &picture(&node))
}

#[test]
fn without_an_owners_word_and_with_the_same_one_the_file_alone_counts() {
    let node = node();
    assert_eq!(split(None, &node, &pair(), &picture(&node)), Split::default());
    assert_eq!(of(&told(&[], &[])), Split::default());
}

#[test]
fn an_address_of_the_owner_alone_is_an_orphan_and_one_of_the_file_alone_is_withheld() {
    let router = Place {
        router: true,
        ..place(&node())
    };
    let split = of(&told(&["192.168.100.100"], &[("192.168.100.199", router)]));
    let orphans: Vec<_> = split
        .orphans
        .iter()
        .map(|o| (o.address, o.leg, o.router))
        .collect();
    assert_eq!(orphans, [(address("192.168.100.199"), 0, true)]);
    assert_eq!(split.withheld, [address("192.168.100.100")].into());
    assert!(split.refused.is_empty() && !split.is_even());
}

#[test]
fn what_no_node_could_own_is_refused_and_counted() {
    let lan = place(&node());
    let cases = [
        (
            "192.168.100.199",
            Place {
                leg: "dmz".to_owned(),
                ..lan.clone()
            },
            Refused::UnknownLeg,
        ),
        (
            "192.168.100.199",
            Place {
                group: 1,
                ..lan.clone()
            },
            Refused::OtherGroup,
        ),
        ("0.0.0.0", lan.clone(), Refused::NotAHost),
        ("127.0.0.1", lan.clone(), Refused::NotAHost),
        ("224.0.0.18", lan.clone(), Refused::NotAHost),
        ("255.255.255.255", lan.clone(), Refused::NotAHost),
        ("192.168.100.255", lan.clone(), Refused::NotAHost),
        ("192.168.100.0", lan.clone(), Refused::NotAHost),
        ("::", lan.clone(), Refused::NotAHost),
        ("::1", lan.clone(), Refused::NotAHost),
        ("ff02::1", lan.clone(), Refused::NotAHost),
        ("::ffff:192.168.100.199", lan.clone(), Refused::NotAHost),
        ("192.168.100.2", lan.clone(), Refused::NodeAddress),
        ("10.99.0.1", lan.clone(), Refused::NodeAddress),
        ("192.168.100.3", lan.clone(), Refused::NodeAddress),
        ("192.168.100.10", lan.clone(), Refused::Host),
    ];
    for (text, place, why) in cases {
        let split = of(&told(&[], &[(text, place)]));
        assert_eq!(split.refused, [(why, 1)].into(), "{text}");
        assert!(split.is_even(), "{text}");
    }
}

#[test]
fn a_leg_may_have_its_vlan_with_a_tag_on_one_node_and_without_on_the_other_but_not_two_of_them() {
    let text = NODE.replace("interface = \"eth0\"", "vlan = 100\ninterface = \"eth0\"");
    let tagged = parse_node(Source::new("node.toml", text)).config;
    let plain = node();
    let at = |vlan| Place {
        vlan,
        ..place(&plain)
    };
    for (node, vlan, fits) in [
        (&plain, Some(7), true),
        (&tagged, None, true),
        (&tagged, Some(100), true),
        (&tagged, Some(7), false),
    ] {
        let set = told(&[], &[("192.168.100.199", at(vlan))]);
        let split = split(Some(&set), node, &pair(), &picture(node));
        assert_eq!(
            (split.orphans.len() == 1, split.refused.is_empty()),
            (fits, fits),
            "{vlan:?}"
        );
    }
}

#[test]
fn so_many_orphans_are_taken_as_there_is_room_for() {
    let lan = place(&node());
    let many: Vec<String> = (0..MOST)
        .map(|n| format!("10.7.{}.{}", n / 250, 1 + n % 250))
        .collect();
    let many: Vec<_> = many.iter().map(|text| (text.as_str(), lan.clone())).collect();
    let split = of(&told(&[], &many));
    let own = pair().owned_addresses().len();
    assert_eq!(split.orphans.len() + own, MOST);
    assert_eq!(split.refused, [(Refused::NoRoom, own as u64)].into());
}

#[test]
fn tables_announcements_and_guards_have_orphans_and_not_what_is_withheld() {
    let (node, pair) = (node(), pair());
    let picture = picture(&node);
    let withheld = pair.services[0].vip;
    let split = of(&told(
        &[&withheld.to_string()],
        &[("192.168.100.199", place(&node))],
    ));
    let orphan = address("192.168.100.199");
    let id = NodeId::new(1).unwrap();
    let whole = plan::tables(id, &pair, |_| 0, Vec::new(), |_, _| true);
    let mut tables = whole.clone();
    split.apply(&mut tables);
    let services: BTreeSet<IpAddr> = tables.services.iter().map(|s| s.vip).collect();
    assert!(
        !services.contains(&withheld)
            && services.len() + 1
                == whole
                    .services
                    .iter()
                    .map(|s| s.vip)
                    .collect::<BTreeSet<_>>()
                    .len()
    );
    let orphans: Vec<IpAddr> = tables
        .owned
        .iter()
        .filter(|o| o.kinds.orphan)
        .map(|o| o.addr)
        .collect();
    assert_eq!(orphans, [orphan]);
    assert!(tables.owned.iter().all(|o| o.addr != withheld));
    assert!(
        tables
            .services
            .iter()
            .all(|s| s.snat.iter().all(|p| p.addr != withheld))
    );
    assert!(tables.snat_ranges.iter().all(|r| r.addr != withheld));

    let announced: Vec<IpAddr> = plan::owned(&node, &pair, &picture, &split)
        .iter()
        .map(|o| o.address)
        .collect();
    assert_eq!(announced.last(), Some(&orphan), "the file's own come first");
    assert!(!announced.contains(&withheld));
    let at_most = plan::owned(&node, &pair, &picture, &split.at_most());
    assert!(at_most.iter().any(|o| o.address == withheld) && at_most.iter().any(|o| o.address == orphan));
    let mut guarded = pair.owned_addresses();
    split.guard(&mut guarded);
    assert!(guarded.contains(&orphan) && !guarded.contains(&withheld));
    let told: BTreeSet<IpAddr> = own_set(&node, &pair, &picture, &split)
        .addresses
        .into_keys()
        .collect();
    assert_eq!(
        told,
        announced.into_iter().collect(),
        "what is told is what is owned"
    );
}

proptest! {
    /// Over any two files: what is owned at once is what both have and what the owner alone has, and what this file alone has comes
    /// in one by one until nothing differs.
    #[test]
    fn nothing_is_owned_that_neither_the_owner_told_nor_was_found_free(there in proptest::collection::btree_set(60_u8..140, 0..40)) {
        let (node, pair) = (node(), pair());
        let picture = picture(&node);
        let at = place(&node);
        let addresses = there.iter().map(|n| (IpAddr::from([192, 168, 100, *n]), at.clone()));
        let mut kept = OwnedSet { digest: "ab".to_owned(), addresses: addresses.collect() };
        let own = pair.owned_addresses();
        let mut turns = 0;
        loop {
            let split = split(Some(&kept), &node, &pair, &picture);
            let owned: BTreeSet<IpAddr> = plan::owned(&node, &pair, &picture, &split).iter().map(|o| o.address).collect();
            prop_assert!(owned.iter().all(|address| kept.addresses.contains_key(address)));
            prop_assert!(own.iter().all(|address| owned.contains(address) != split.withheld.contains(address)));
            prop_assert!(split.orphans.iter().all(|orphan| !own.contains(&orphan.address) && owned.contains(&orphan.address)));
            if split.is_even() {
                prop_assert_eq!(owned, own);
                break;
            }
            turns += 1;
            prop_assert!(turns <= 200);
            if let Some(free) = split.withheld.first() {
                kept.addresses.insert(*free, at.clone());
            } else if let Some(ended) = split.orphans.first() {
                kept.addresses.remove(&ended.address);
            }
        }
    }
}
