//! Where room is made in a full table.

use crate::{
    host::Host,
    support::{
        Engine, Setup,
        frames::{ip, raw},
        setup::{ServiceSpec, VIP},
    },
    talk,
};
use onearm_dataplane_common::{
    addr::Addr4,
    counter::Counter,
    flow::{FlowEntry4, FlowKey4, flags, seen},
    maps::{WAYS, mode, proto},
    table::{Geometry, Place},
    tables::geometry,
};

fn key(from: (&str, u16), to: (&str, u16)) -> FlowKey4 {
    let four = |address| raw(ip(address)).0[3];
    FlowKey4::new(proto::TCP, four(from.0), from.1.to_be(), four(to.0), to.1.to_be())
}

/// What a client of that port, kept as source port, takes: its own place and that of its replies.
fn places(geometry: &Geometry, port: u16) -> (Place, Place) {
    let forward = key(("192.168.10.50", port), (VIP, 80));
    let reply = key(("192.168.100.10", 80), (VIP, port));
    (geometry.place::<Addr4>(&forward), geometry.place::<Addr4>(&reply))
}

/// Puts an entry into a way of a bucket: an affinity, which gives way, if `direct`.
fn put(host: &mut Host, at: (u32, u32), key: FlowKey4, tag: u16, direct: bool) {
    let (bucket, way) = at;
    let mode = if direct { mode::DSR } else { mode::BOTH_NAT };
    let bucket = host.buckets[bucket as usize].get_mut();
    bucket.tags[way as usize / 4] |= u64::from(tag) << (16 * (way % 4));
    bucket.entries[way as usize] = FlowEntry4 {
        saddr: key.saddr,
        daddr: key.daddr,
        sport: key.sport,
        dport: key.dport,
        proto: key.proto,
        flags: mode << flags::MODE_SHIFT,
        own: seen::OPENED | seen::CONFIRMED,
        other: seen::OPENED,
        partner: at.0 << 4 | way,
        incarnation: 1 << 56 | 1 << 39,
        ..FlowEntry4::default()
    };
}

#[test]
fn room_is_made_in_the_third_candidate_of_either_entry_too() {
    let mut host = Host::new(&Setup::service(&ServiceSpec::BOTH_NAT));
    let geometry = geometry::<Addr4>(&host.setup.node);
    let apart = |one: &Place, other: &Place| {
        ![
            one.first,
            one.second(),
            other.first,
            other.second(),
            other.third(),
        ]
        .contains(&one.third())
    };
    let port = (32_800..40_000)
        .find(|port| {
            let (forward, reply) = places(&geometry, *port);
            apart(&forward, &reply) && apart(&reply, &forward)
        })
        .expect("a client whose third candidates are nobody else's");
    let (forward, reply) = places(&geometry, port);
    for bucket in 0..geometry.buckets {
        for way in 0..u32::try_from(WAYS).expect("few") {
            let nobody = key(("10.0.0.1", 1), ("10.0.0.2", 2));
            let yields = way == 5 && (bucket == forward.third() || bucket == reply.third());
            let tag = geometry.place::<Addr4>(&nobody).tag;
            put(&mut host, (bucket, way), nobody, tag, yields);
        }
    }
    talk(port).handshake(&mut host, 1, 2);
    assert_eq!(host.counter(Counter::AffinityEvicted), 2);
    assert_eq!(host.counter(Counter::FlowCreated), 1);
}
