//! The gate on the way out of the kernel.

use super::{Case, case4};
use crate::support::{
    Engine, Setup,
    frames::{arp, ip, tcp},
    setup::{BROADCAST, OUR_ADDR, OUR_MAC, VIP},
};
use etherparse::ArpOperation;
use onearm_dataplane_common::counter::Counter;

fn gate<E: Engine>(e: &mut E) {
    let announcement = arp(
        ArpOperation::REQUEST,
        (OUR_MAC, ip(VIP)),
        ([0; 6], ip(VIP)),
        BROADCAST,
    );
    let own_arp = arp(
        ArpOperation::REQUEST,
        (OUR_MAC, ip(OUR_ADDR)),
        ([0; 6], ip("192.168.100.10")),
        BROADCAST,
    );
    let owned = tcp("192.168.100.100:80", "192.168.10.50:4000", "R", 1, 0).build();
    let own = tcp("192.168.100.2:22", "192.168.10.50:4000", "A", 1, 0).build();
    let mut advert = owned.clone();
    advert[23] = 112;
    let tagged = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        frame.splice(12..12, [0x81, 0, 0, 10]);
        frame
    };
    let mut other = owned.clone();
    other[12] = 0x86;
    for (held, frame, leaves) in [
        (true, announcement.clone(), true),
        (true, owned.clone(), true),
        (false, announcement.clone(), false),
        (false, tagged(&announcement), false),
        (false, owned.clone(), false),
        (false, tagged(&owned), false),
        (false, own_arp, true),
        (false, own.clone(), true),
        (false, tagged(&own), true),
        (false, advert.clone(), true),
        (false, tagged(&advert), true),
        (false, other, true),
        (true, announcement, true),
    ] {
        e.lease(held);
        assert_eq!(e.leaves(&frame), leaves, "lease {held}, {frame:02x?}");
    }
    assert_eq!(e.counter(Counter::EgressArpBlocked), 2);
    assert_eq!(e.counter(Counter::EgressIpBlocked), 2);
}

pub fn cases<E: Engine>() -> Vec<Case<E>> {
    vec![case4(
        "no owned sender leaves the kernel without a lease, adverts apart",
        Setup::classic,
        gate,
    )]
}
