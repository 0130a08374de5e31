//! Neighbour solicitations for owned addresses, and advertisements of others (RFC 4861 §7).

use super::{Case, case, expect, expect_drop, expect_pass};
use crate::support::{
    Engine, Setup,
    Verdict::Transmit,
    frames::{Mac, ip, raw},
    model::verifies,
    setup::{GATEWAY, OUR_ADDR, OUR_MAC, ROUTER, ROUTER_MAC, S1, S1_MAC, VIP},
};
use onearm_dataplane_common::counter::Counter;
use std::net::{IpAddr, Ipv6Addr};

/// A solicitation as hosts send it, and what a test may spoil.
#[derive(Clone)]
struct Solicitation {
    from_mac: Mac,
    to_mac: Option<Mac>,
    vlan: Option<u16>,
    from: Ipv6Addr,
    to: Option<Ipv6Addr>,
    target: Ipv6Addr,
    hop_limit: u8,
    code: u8,
    options: Vec<u8>,
}

fn six(text: &str) -> Ipv6Addr {
    match ip(text) {
        IpAddr::V6(addr) => addr,
        IpAddr::V4(addr) => panic!("{addr}"),
    }
}

/// The solicited-node group of an address and the MAC it maps to.
fn group(addr: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., a, b, c] = addr.octets();
    let low = u32::from_be_bytes([0xff, a, b, c]);
    let group = Ipv6Addr::from(0xff02_0000_0000_0000_0000_0001_0000_0000_u128 | u128::from(low));
    (group, [0x33, 0x33, 0xff, a, b, c])
}

impl Solicitation {
    fn of(target: &str) -> Self {
        let mac = ROUTER_MAC;
        Self {
            from_mac: mac,
            to_mac: None,
            vlan: None,
            from: six(ROUTER),
            to: None,
            target: six(target),
            hop_limit: 255,
            code: 0,
            options: [&[1, 1], &mac[..]].concat(),
        }
    }

    fn probe(target: &str) -> Self {
        Self {
            from: Ipv6Addr::UNSPECIFIED,
            options: Vec::new(),
            ..Self::of(target)
        }
    }

    fn build(&self) -> Vec<u8> {
        let (group, group_mac) = group(self.target);
        let mut body = vec![135, self.code, 0, 0, 0, 0, 0, 0];
        body.extend(self.target.octets());
        body.extend(&self.options);
        message(
            (self.from_mac, self.from),
            (self.to_mac.unwrap_or(group_mac), self.to.unwrap_or(group)),
            self.vlan,
            self.hop_limit,
            body,
        )
    }
}

/// An ICMPv6 message with its checksum.
fn message(
    from: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    vlan: Option<u16>,
    hop_limit: u8,
    mut body: Vec<u8>,
) -> Vec<u8> {
    let len = u16::try_from(body.len()).expect("short");
    let pseudo = [
        &from.1.octets()[..],
        &to.1.octets(),
        &[0, 0],
        &len.to_be_bytes(),
        &[0, 0, 0, 58],
        &body,
    ]
    .concat();
    let mut sum: u32 = pseudo
        .chunks(2)
        .map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |b| u32::from(*b)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    body[2..4].copy_from_slice(&(!u16::try_from(sum).expect("folded")).to_be_bytes());
    let mut frame = [to.0, from.0].concat();
    if let Some(vlan) = vlan {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([58, hop_limit]);
    frame.extend(from.1.octets());
    frame.extend(to.1.octets());
    frame.extend(body);
    frame
}

/// The advertisement that must come out, byte by byte.
fn advertisement(to: (Mac, Ipv6Addr), vlan: Option<u16>, target: &str, flags: u8) -> Vec<u8> {
    let mut body = vec![136, 0, 0, 0, flags, 0, 0, 0];
    body.extend(six(target).octets());
    body.extend([2, 1]);
    body.extend(OUR_MAC);
    message((OUR_MAC, six(target)), to, vlan, 255, body)
}

#[track_caller]
fn answered<E: Engine>(e: &mut E, solicitation: &Solicitation, want: &[u8]) {
    let out = expect(e, &solicitation.build(), Transmit);
    assert_eq!(out, want);
    assert!(verifies(&out));
}

fn owned_addresses_are_answered<E: Engine>(e: &mut E) {
    let asker = (ROUTER_MAC, six(ROUTER));
    answered(e, &Solicitation::of(VIP), &advertisement(asker, None, VIP, 0x60));
    answered(
        e,
        &Solicitation::of(GATEWAY),
        &advertisement(asker, None, GATEWAY, 0xe0),
    );
    let unicast = Solicitation {
        to_mac: Some(OUR_MAC),
        to: Some(six(VIP)),
        ..Solicitation::of(VIP)
    };
    answered(e, &unicast, &advertisement(asker, None, VIP, 0x60));
    let short = Solicitation {
        options: Vec::new(),
        ..Solicitation::of(VIP)
    };
    answered(e, &short, &advertisement(asker, None, VIP, 0x60));
    assert_eq!(e.counter(Counter::ArpAnswered), 4);
}

fn a_probe_is_answered_to_all_nodes<E: Engine>(e: &mut E) {
    let all = (
        [0x33, 0x33, 0, 0, 0, 1],
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    );
    answered(e, &Solicitation::probe(VIP), &advertisement(all, None, VIP, 0x20));
}

fn others_are_left_to_the_kernel<E: Engine>(e: &mut E) {
    for target in [OUR_ADDR, S1, "192.168.100.77"] {
        expect_pass(e, &Solicitation::of(target).build());
    }
    // To another group: a switch floods.
    let other = Solicitation {
        to: Some(group(six(S1)).0),
        ..Solicitation::of(VIP)
    };
    expect_pass(e, &other.build());
    // To another host.
    let other = Solicitation {
        to_mac: Some(S1_MAC),
        to: Some(six(VIP)),
        ..Solicitation::of(VIP)
    };
    expect_pass(e, &other.build());
    assert_eq!(e.counter(Counter::ArpAnswered), 0);
}

fn invalid_ones_are_dropped<E: Engine>(e: &mut E) {
    let good = Solicitation::of(VIP);
    let spoilt = [
        Solicitation {
            hop_limit: 254,
            ..good.clone()
        },
        Solicitation {
            code: 1,
            ..good.clone()
        },
        Solicitation {
            options: vec![1, 0, 2, 0, 0, 0, 0, 9],
            ..good.clone()
        },
        Solicitation {
            options: vec![1, 2, 2, 0, 0, 0, 0, 9],
            ..good.clone()
        },
        Solicitation {
            from: Ipv6Addr::LOCALHOST,
            ..good.clone()
        },
        Solicitation {
            from: "ff02::9".parse().expect("address"),
            ..good.clone()
        },
        // A probe must go to the group and must not name a link-layer address.
        Solicitation {
            options: good.options.clone(),
            ..Solicitation::probe(VIP)
        },
        Solicitation {
            to: Some(six(VIP)),
            to_mac: Some(OUR_MAC),
            ..Solicitation::probe(VIP)
        },
    ];
    for solicitation in &spoilt {
        expect_drop(e, &solicitation.build(), Counter::NdInvalid);
    }
    let mut broken = good.build();
    let last = broken.len() - 1;
    broken[last] ^= 1;
    expect_drop(e, &broken, Counter::NdInvalid);
}

fn without_a_lease_nothing_is_answered<E: Engine>(e: &mut E) {
    e.lease(false);
    expect_pass(e, &Solicitation::of(VIP).build());
    assert_eq!(e.counter(Counter::ArpNotOwner), 1);
}

/// An unsolicited advertisement of the VIP.
fn claim(mac: Mac) -> Vec<u8> {
    let mut body = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    body.extend(six(VIP).octets());
    body.extend([2, 1]);
    body.extend(mac);
    let all = (
        [0x33, 0x33, 0, 0, 0, 1],
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    );
    message((mac, six(VIP)), all, None, 255, body)
}

fn an_advertisement_of_somebody_else_is_a_conflict<E: Engine>(e: &mut E) {
    expect_drop(e, &claim(S1_MAC), Counter::ArpConflict);
    let mut from_far = claim(S1_MAC);
    from_far[14 + 7] = 254;
    expect_drop(e, &from_far, Counter::NdInvalid);
    assert_eq!(e.counter(Counter::ArpConflict), 1);
    expect_pass(e, &claim(OUR_MAC));
    e.lease(false);
    expect_pass(e, &claim(S1_MAC));
}

fn the_gate_holds_advertisements_without_a_lease<E: Engine>(e: &mut E) {
    assert!(e.leaves(&claim(OUR_MAC)));
    e.lease(false);
    assert!(!e.leaves(&claim(OUR_MAC)));
    let mut own = claim(OUR_MAC);
    let at = own.len() - 24;
    own[at..at + 16].copy_from_slice(&raw(ip(OUR_ADDR)).bytes());
    let source = 14 + 8;
    own[source..source + 16].copy_from_slice(&raw(ip(OUR_ADDR)).bytes());
    assert!(e.leaves(&own), "of an address that is not owned");
    own[14 + 6] = 112;
    assert!(e.leaves(&own), "adverts");
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "solicitations for owned addresses are answered",
            Setup::classic,
            owned_addresses_are_answered,
        ),
        case(
            "solicitations for an orphan are answered as for any owned address",
            super::orphans::classic,
            owned_addresses_are_answered,
        ),
        case(
            "an address probe is answered to all nodes",
            Setup::classic,
            a_probe_is_answered_to_all_nodes,
        ),
        case(
            "solicitations for others pass",
            Setup::classic,
            others_are_left_to_the_kernel,
        ),
        case(
            "invalid solicitations are dropped",
            Setup::classic,
            invalid_ones_are_dropped,
        ),
        case(
            "without a lease no solicitation is answered",
            Setup::classic,
            without_a_lease_nothing_is_answered,
        ),
        case(
            "an owned address advertised by somebody else is a conflict",
            Setup::classic,
            an_advertisement_of_somebody_else_is_a_conflict,
        ),
        case(
            "the gate holds advertisements of owned addresses",
            Setup::classic,
            the_gate_holds_advertisements_without_a_lease,
        ),
    ]
}
