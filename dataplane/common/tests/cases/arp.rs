//! ARP for owned addresses.

use super::{Case, case, expect, expect_drop, expect_pass};
use crate::support::{
    Engine, Setup,
    Verdict::{Drop, Transmit},
    frames::{Mac, arp, arp_request, ip},
    setup::{BROADCAST, GATEWAY, OUR_ADDR, OUR_MAC, PEER_MAC, ROUTER, ROUTER_MAC, S1, S1_MAC, VIP},
};
use etherparse::ArpOperation;
use onearm_dataplane_common::counter::Counter;
use std::net::IpAddr;

#[track_caller]
fn answered<E: Engine>(e: &mut E, asker: Mac, sender: &str, target: &str, to: Mac) {
    let request = arp_request(asker, ip(sender), ip(target), to);
    let want = arp(
        ArpOperation::REPLY,
        (OUR_MAC, ip(target)),
        (asker, ip(sender)),
        asker,
    );
    assert_eq!(expect(e, &request, Transmit), want);
}

fn requests<E: Engine>(e: &mut E) {
    for target in [VIP, GATEWAY] {
        answered(e, ROUTER_MAC, ROUTER, target, BROADCAST);
        answered(e, S1_MAC, S1, target, OUR_MAC);
        answered(e, S1_MAC, "0.0.0.0", target, BROADCAST);
        answered(e, PEER_MAC, "192.168.100.3", target, BROADCAST);
    }
    let mut padded = arp_request(S1_MAC, ip(S1), ip(VIP), BROADCAST);
    padded.resize(60, 0);
    assert_eq!(expect(e, &padded, Transmit).len(), 60);
    assert_eq!(e.counters(), [("transmitted", 9), ("arp_answered", 9)]);
}

fn not_answered<E: Engine>(e: &mut E) {
    expect_pass(e, &arp_request(ROUTER_MAC, ip(ROUTER), ip(OUR_ADDR), BROADCAST));
    expect_pass(
        e,
        &arp_request(ROUTER_MAC, ip(ROUTER), ip("192.168.100.77"), BROADCAST),
    );
    expect_pass(e, &arp_request(ROUTER_MAC, ip(ROUTER), ip(VIP), PEER_MAC));
    let reply = arp(
        ArpOperation::REPLY,
        (S1_MAC, ip(S1)),
        (OUR_MAC, ip(OUR_ADDR)),
        OUR_MAC,
    );
    expect_pass(e, &reply);
    let mut other = arp_request(ROUTER_MAC, ip(ROUTER), ip(VIP), BROADCAST);
    other[15] = 6;
    expect_pass(e, &other);
    expect_pass(e, &arp_request(ROUTER_MAC, ip(ROUTER), ip(VIP), BROADCAST)[..40]);
    assert_eq!(e.counters(), [("passed", 6)]);
    expect_drop(
        e,
        &arp_request(ROUTER_MAC, ip("224.0.0.1"), ip(VIP), BROADCAST),
        Counter::BadSource,
    );
}

fn other_leg<E: Engine>(e: &mut E) {
    let mut tagged = arp_request(ROUTER_MAC, ip("172.16.10.9"), ip(VIP), BROADCAST);
    tagged.splice(12..12, [0x81, 0, 0, 10]);
    expect_pass(e, &tagged);
}

fn tagged_leg<E: Engine>(e: &mut E) {
    let mut tagged = arp_request(S1_MAC, ip("172.16.10.9"), ip("172.16.10.1"), BROADCAST);
    tagged.splice(12..12, [0x81, 0, 0xe0, 10]);
    let mut want = arp(
        ArpOperation::REPLY,
        (OUR_MAC, ip("172.16.10.1")),
        (S1_MAC, ip("172.16.10.9")),
        S1_MAC,
    );
    want.splice(12..12, [0x81, 0, 0xe0, 10]);
    assert_eq!(expect(e, &tagged, Transmit), want);
}

fn without_lease<E: Engine>(e: &mut E) {
    e.lease(false);
    expect_pass(e, &arp_request(ROUTER_MAC, ip(ROUTER), ip(VIP), BROADCAST));
    assert_eq!(e.counters(), [("passed", 1), ("arp_not_owner", 1)]);
    let announcement = arp(
        ArpOperation::REQUEST,
        (PEER_MAC, ip(VIP)),
        ([0; 6], ip(VIP)),
        BROADCAST,
    );
    expect_pass(e, &announcement);
    assert_eq!(
        e.counter(Counter::ArpConflict),
        0,
        "the owner's announcement is no conflict"
    );
}

fn reflected<E: Engine>(e: &mut E) {
    let own = arp(
        ArpOperation::REQUEST,
        (OUR_MAC, ip(VIP)),
        ([0; 6], ip(VIP)),
        BROADCAST,
    );
    expect_pass(e, &own);
    assert_eq!(e.counters(), [("passed", 1)]);
}

fn conflicts<E: Engine>(e: &mut E) {
    let stranger = [2, 0, 0, 0, 9, 9];
    let frames: [(ArpOperation, IpAddr); 3] = [
        (ArpOperation::REQUEST, ip(VIP)),
        (ArpOperation::REPLY, ip(VIP)),
        (ArpOperation::REQUEST, ip(GATEWAY)),
    ];
    for (n, (operation, target)) in (1..).zip(frames) {
        let frame = arp(operation, (stranger, ip(VIP)), ([0; 6], target), BROADCAST);
        expect(e, &frame, Drop);
        assert_eq!(e.counters(), [("arp_conflict", n)]);
    }
}

/// A `dsr` server holds the VIP on its loopback. With the kernel's own settings it asks in the VIP's name, answers probes for
/// it and announces it; with `arp_ignore = 1` and `arp_announce = 2` it does all that in its own name alone.
fn b64_server_that_is_not_silent<E: Engine>(e: &mut E) {
    let says = |operation, sender: &str, target: &str, to| {
        arp(operation, (S1_MAC, ip(sender)), ([0; 6], ip(target)), to)
    };
    let loud = [
        says(ArpOperation::REQUEST, VIP, ROUTER, BROADCAST),
        says(ArpOperation::REPLY, VIP, OUR_ADDR, OUR_MAC),
        says(ArpOperation::REQUEST, VIP, VIP, BROADCAST),
        says(ArpOperation::REPLY, VIP, VIP, BROADCAST),
    ];
    for frame in &loud {
        expect_drop(e, frame, Counter::ArpConflict);
    }
    expect_pass(e, &says(ArpOperation::REQUEST, S1, ROUTER, BROADCAST));
    answered(e, S1_MAC, S1, VIP, BROADCAST);
    assert_eq!(e.counter(Counter::ArpConflict), 4);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![
        case(
            "requests and probes for owned addresses are answered",
            Setup::classic,
            requests,
        ),
        case(
            "an orphan is answered as any owned address",
            super::orphans::classic,
            requests,
        ),
        case(
            "everything else in ARP is the kernel's",
            Setup::classic,
            not_answered,
        ),
        case(
            "an address is answered on its own leg only",
            Setup::classic,
            other_leg,
        ),
        case(
            "a leg on a VLAN answers with the tag",
            || {
                let mut setup = Setup::classic();
                let (mut key, mut owned) = setup.owned[1];
                key.addr = crate::support::frames::raw(ip("172.16.10.1"));
                owned.leg = 1;
                setup.owned.push((key, owned));
                setup
            },
            tagged_leg,
        ),
        case(
            "without a lease nothing is answered and announcements pass",
            Setup::classic,
            without_lease,
        ),
        case(
            "our own announcement come back is no conflict",
            Setup::classic,
            reflected,
        ),
        case(
            "an owned sender on somebody else's frame is a conflict",
            Setup::classic,
            conflicts,
        ),
        case(
            "b64 a server that is not silent about its VIP is noticed",
            super::direct::dsr,
            b64_server_that_is_not_silent,
        ),
    ]
}
