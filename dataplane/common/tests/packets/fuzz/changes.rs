//! Changes of the configuration while there are flows. Each, made twice, leads back or goes on in a circle.

use super::setups::SERVICES;
use crate::support::{Setup, setup::PEER_MAC};
use onearm_dataplane_common::{
    addr::Addr,
    maps::{Leg, Service, hairpin, mode, server, service},
};

/// A change by its name, which scripts know it by.
pub type Change = (&'static str, fn(&mut Setup));

pub fn named(name: &str) -> Option<fn(&mut Setup)> {
    CHANGES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, change)| *change)
}

pub const CHANGES: &[Change] = &[
    ("drain", |s| choose(s, [1, 6], [2, 7])),
    ("fill", |s| choose(s, [2, 7], [1, 6])),
    ("fewer-servers", |s| {
        services(s, &[1], |s| s.table ^= (5 ^ 2) << 32);
        services(s, &[9, 14], |s| s.table ^= (2 ^ 1) << 32);
        services(s, &[2, 3], |s| s.table ^= (3 ^ 1) << 32);
    }),
    ("weights", |s| {
        for (index, server) in &mut s.servers {
            let other = [1, 0, 3, 1, 2][*index as usize % 5];
            server.flags ^= (1 ^ other) << server::WEIGHT_SHIFT;
        }
    }),
    ("nobody", |s| services(s, &[0, 5, 8], |s| s.table ^= 2 << 32)),
    ("modes", |s| {
        services(s, &[0, 1, 3, 13], |s| s.mode ^= mode::BOTH_NAT ^ mode::DNAT);
        services(s, &[5, 7, 9], |s| s.mode ^= mode::DSR ^ mode::L3_DSR);
    }),
    ("direct-modes", |s| services(s, &[0, 5], |s| s.mode ^= 2)),
    ("rules", |s| {
        services(s, &[0, 8, 10, 15, 16], |s| s.mode ^= mode::RULES);
    }),
    ("hairpin", |s| {
        services(s, &[1, 2, 4], |s| {
            s.hairpin = match s.hairpin {
                hairpin::OFF => hairpin::AUTO,
                hairpin::AUTO => hairpin::LISTED,
                _ => hairpin::OFF,
            };
        });
    }),
    ("segments", |s| {
        services(s, &[0, 5, 7, 13], |s| s.mss = 1_000 - s.mss.min(1_000));
    }),
    ("no-sources", |s| services(s, &[0, 4], |s| s.snat_len ^= 1)),
    ("fewer-sources", |s| services(s, &[13, 16], |s| s.snat_len ^= 3)),
    ("limits", |s| {
        services(s, &[0, 2, 13], |s| s.options ^= service::LIMITED);
    }),
    ("clients", |s| {
        services(s, &[0, 6, 14], |s| s.options ^= service::CLIENTS);
    }),
    ("allowed-only", |s| {
        services(s, &[0, 6, 14], |s| s.options ^= service::ALLOWED_ONLY);
    }),
    ("per-packet", |s| {
        services(s, &[6, 9, 11, 12], |s| s.options ^= service::PER_PACKET);
    }),
    ("no-service", |s| {
        s.services
            .iter_mut()
            .step_by(3)
            .for_each(|(_, key, _)| key.slot ^= 1);
    }),
    ("not-owned", |s| {
        s.owned.iter_mut().step_by(2).for_each(|(key, _)| key.slot ^= 1);
    }),
    ("narrow-server", |s| mtu(s, &[1, 4, 7, 10], 1_500, 640)),
    ("narrow-router", |s| mtu(s, &[3, 9], 1_500, 1_290)),
    ("narrow-leg", |s| {
        for (_, leg) in s.legs.iter_mut().skip(1) {
            leg.mtu = 1_500 + 600 - leg.mtu;
        }
    }),
    ("narrow-route", |s| {
        s.routes
            .iter_mut()
            .for_each(|(_, _, route)| route.mtu = 620 - route.mtu.min(620));
    }),
    ("no-route", |s| {
        s.routes
            .iter_mut()
            .for_each(|(_, net, _)| *net = Addr(net.0.map(u32::swap_bytes)));
    }),
    ("unresolved", |s| {
        for (index, next) in &mut s.next_hops {
            if *index % 3 == 1 {
                next.valid ^= 1;
            }
        }
    }),
    ("relay", |s| s.node.relay_to_peer ^= 1),
    ("peer", |s| {
        for (_, leg) in &mut s.legs {
            leg.peer_mac = if leg.peer_mac == PEER_MAC {
                [0; 6]
            } else {
                PEER_MAC
            };
        }
    }),
    ("direct", |s| {
        let nets = s.connected.clone();
        s.direct = if s.direct.is_empty() { nets } else { Vec::new() };
    }),
    ("affinity", |s| s.node.dsr_ways ^= 4),
    ("budget", |s| {
        s.node.half_open_budget = if s.node.half_open_budget == 1 { 1_000 } else { 1 };
    }),
    ("no-address", |s| {
        s.legs.iter_mut().for_each(|(_, leg)| move_address(leg));
    }),
];

fn services(setup: &mut Setup, which: &[u32], change: impl Fn(&mut Service)) {
    for (index, service) in &mut setup.service {
        if which.contains(&(*index % SERVICES)) {
            change(service);
        }
    }
}

/// One server in the place of another, in all schedules.
fn choose(setup: &mut Setup, old: [u64; 2], new: [u64; 2]) {
    for word in &mut setup.sched {
        *word = (0..4).rev().fold(0, |sum, n| {
            let server = *word >> (n * 16) & 0xffff;
            let place = old.iter().position(|old| *old == server);
            sum << 16 | place.map_or(server, |place| new[place])
        });
    }
}

fn mtu(setup: &mut Setup, which: &[u32], wide: u16, narrow: u16) {
    for (index, next) in &mut setup.next_hops {
        if which.contains(index) {
            next.mtu = if next.mtu == wide { narrow } else { wide };
        }
    }
}

/// The address that tunnels begin at is the leg's link-local one, or again one of its own.
fn move_address(leg: &mut Leg) {
    if leg.addr6.is_none() {
        // No IPv6, unless it was moved.
        if leg.link_local.is_none() || leg.link_local.is_v4() {
            std::mem::swap(&mut leg.addr, &mut leg.link_local);
            return;
        }
    }
    std::mem::swap(&mut leg.addr6, &mut leg.link_local);
}
