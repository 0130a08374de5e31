use std::os::fd::AsFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::{FlowEntry, flags, seen};
use onearm_dataplane_common::maps::{MAX_SERVICES, Server, mode, proto, server};
use onearm_dataplane_common::persistence::{Bucket, Noted, Rule, WAYS, bucket, fingerprint};
use proptest::prelude::*;

use super::{ClientMaps, Clients, buckets};
use crate::mapping::Words;

const KEY: [u64; 2] = [3, 4];
/// Stats index of the service whose clients stay, for so many ticks.
const STAYS: u16 = 1;
const TICKS: u32 = 100;
const UP: u32 = server::USED | server::UP | 1 << server::WEIGHT_SHIFT;

/// Empty maps of so many buckets.
pub(crate) fn client_maps(buckets: u32) -> ClientMaps {
    fn words<T: aya::Pod>(len: u32) -> Words<T> {
        let fd = memfd_create(c"clients", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&fd, i64::try_from(len as usize * size_of::<T>()).unwrap()).unwrap();
        Words::new(fd.as_fd(), len).unwrap()
    }
    ClientMaps {
        rules: words(MAX_SERVICES + 1),
        buckets: words::<Bucket>(buckets),
        servers: words::<Server>(64),
    }
}

/// Servers 1 to 4 are up.
fn clients(buckets: u32) -> Clients {
    let clients = Clients::new(client_maps(buckets), KEY, buckets - 1);
    clients.set_rule(STAYS.into(), Rule::new(TICKS, 0));
    (1..5).for_each(|server| set(&clients, server, UP));
    clients
}

fn set(clients: &Clients, server: u32, flags: u32) {
    let value = Server {
        flags,
        ..Server::default()
    };
    clients.maps.servers.write(server, &value);
}

fn client(n: u32) -> Addr {
    Addr::v4(n.to_be())
}

/// An established flow of client `n` at a server.
fn flow(n: u32, server: u16) -> FlowEntry {
    FlowEntry {
        saddr: client(n),
        proto: proto::TCP,
        own: seen::OPENED | seen::CONFIRMED,
        other: seen::OPENED,
        stats: STAYS,
        server,
        packets: 5,
        ..FlowEntry::default()
    }
}

/// What is noted of client `n`.
fn noted(clients: &Clients, n: u32) -> Option<Noted> {
    let who = fingerprint(KEY, STAYS.into(), clients.rule(STAYS).network(client(n)));
    let bucket = bucket(who, clients.mask);
    let way = (0..WAYS).find(|way| clients.maps.buckets.load(bucket, *way) == who)?;
    Some(Noted::of(clients.maps.buckets.load(bucket, WAYS + way)))
}

fn server_of(clients: &Clients, n: u32) -> Option<u16> {
    noted(clients, n).map(|noted| noted.server)
}

#[test]
fn a_client_is_noted_once_it_has_shown_that_it_is_there() {
    let established = flow(0, 1);
    let cases = [
        ("established", established, true),
        (
            "half-open",
            FlowEntry {
                own: seen::OPENED,
                ..established
            },
            false,
        ),
        (
            "a SYN and a RST of anybody",
            FlowEntry {
                own: seen::OPENED | seen::RST,
                ..established
            },
            false,
        ),
        (
            "closed a moment ago",
            FlowEntry {
                own: established.own | seen::FIN,
                other: seen::OPENED | seen::FIN,
                last_seen: 999,
                ..established
            },
            true,
        ),
        (
            "an unanswered datagram",
            FlowEntry {
                proto: proto::UDP,
                other: 0,
                ..established
            },
            false,
        ),
        (
            "an answered datagram",
            FlowEntry {
                proto: proto::UDP,
                own: 0,
                ..established
            },
            true,
        ),
        (
            "one packet to a dsr server",
            FlowEntry {
                flags: mode::DSR << flags::MODE_SHIFT,
                packets: 1,
                ..established
            },
            false,
        ),
        (
            "two packets to a dsr server",
            FlowEntry {
                flags: mode::DSR << flags::MODE_SHIFT,
                packets: 2,
                ..established
            },
            true,
        ),
        (
            "a service without persistence",
            FlowEntry {
                stats: 2,
                ..established
            },
            false,
        ),
        (
            "a server that is not in use",
            FlowEntry {
                server: 7,
                ..established
            },
            false,
        ),
    ];
    for (what, flow, want) in cases {
        let clients = clients(1);
        clients.note(&flow, 1_000);
        assert_eq!(noted(&clients, 0).is_some(), want, "{what}");
    }
}

#[test]
fn a_client_stays_while_its_server_is_up_and_its_flows_are_seen() {
    let clients = clients(1);
    clients.note(&flow(0, 1), 1_000);
    clients.note(&flow(0, 2), 1_010);
    assert_eq!(
        noted(&clients, 0),
        Some(Noted {
            server: 1,
            seen: 1_000
        }),
        "an old flow elsewhere moves nobody"
    );
    clients.note(&flow(0, 1), 1_050);
    clients.note(&flow(0, 2), 1_150);
    assert_eq!(server_of(&clients, 0), Some(1), "its time began anew");
    clients.note(&flow(0, 2), 1_151);
    assert_eq!(server_of(&clients, 0), Some(2), "its time was over");
}

#[test]
fn a_server_that_goes_down_loses_its_clients_for_good_and_a_drained_one_keeps_those_it_has() {
    let clients = clients(1);
    clients.note(&flow(0, 1), 1_000);
    clients.note(&flow(1, 1), 1_000);
    set(&clients, 1, UP & !server::UP);
    clients.note(&flow(0, 1), 1_010);
    clients.note(&flow(0, 2), 1_010);
    assert_eq!(
        (server_of(&clients, 0), server_of(&clients, 1)),
        (Some(2), Some(1))
    );
    set(&clients, 1, UP);
    clients.note(&flow(0, 1), 1_020);
    assert_eq!(
        server_of(&clients, 0),
        Some(2),
        "back, but the client is elsewhere"
    );
    set(&clients, 2, server::USED | server::UP);
    clients.note(&flow(0, 2), 1_090);
    clients.note(&flow(3, 2), 1_090);
    assert_eq!(
        noted(&clients, 0),
        Some(Noted {
            server: 2,
            seen: 1_010
        }),
        "kept, not renewed"
    );
    assert_eq!(server_of(&clients, 3), None, "no new ones");
}

#[test]
fn a_full_bucket_forgets_the_client_that_was_silent_longest_and_counts_it() {
    let clients = clients(1);
    for n in 0..8 {
        clients.note(&flow(n, 1), 1_000 + n);
    }
    clients.note(&flow(0, 1), 1_020);
    clients.note(&flow(8, 2), 1_030);
    let left: Vec<u32> = (0..9).filter(|n| noted(&clients, *n).is_some()).collect();
    assert_eq!(left, [0, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(clients.counts().evicted, 1);
}

#[test]
fn a_pass_counts_clients_and_frees_what_is_over() {
    let clients = clients(16);
    for n in 0..40 {
        clients.note(&flow(n, 1), if n < 10 { 1_000 } else { 1_080 });
    }
    for slice in 1..=5 {
        assert_eq!(clients.counts().clients, 0);
        clients.sweep(slice, 5, 1_101);
    }
    assert_eq!(clients.counts().clients, 30);
    let there = (0..40).filter(|n| noted(&clients, *n).is_some()).count();
    assert_eq!(there, 30);
    clients.sweep(5, 5, 2_000);
    assert_eq!((clients.counts().clients, noted(&clients, 39)), (0, None));
}

#[test]
fn clients_of_a_server_that_is_configured_no_more_are_forgotten() {
    let clients = clients(4);
    for n in 0..8 {
        clients.note(&flow(n, if n % 2 == 0 { 1 } else { 2 }), 1_000);
    }
    set(&clients, 2, server::USED | server::MOVES);
    clients.forget_removed();
    for n in 0..8 {
        assert_eq!(noted(&clients, n).is_some(), n % 2 == 0);
    }
}

#[test]
fn room_is_a_power_of_two_of_buckets() {
    assert_eq!(
        [0, 1, 4, 5, 65_536, 1_000_000].map(buckets),
        [1, 1, 1, 2, 16_384, 262_144]
    );
    assert_eq!(clients(16).capacity(), 64);
}

#[test]
fn nearly_all_clients_there_is_room_for_are_noted() {
    let clients = clients(1_024);
    for n in 0..4_096 {
        clients.note(&flow(n, 1), 1_000);
    }
    assert!(clients.counts().evicted < 60, "{:?}", clients.counts());
    clients.sweep(1, 1, 1_000);
    assert_eq!(clients.counts().clients + clients.counts().evicted, 4_096);
}

proptest! {
    /// Clients 0 to 5 have flows at servers 1 to 4, which go up and down; a bucket has room for all of them.
    #[test]
    fn notes_agree_with_a_naive_model(steps in prop::collection::vec((0_u32..6, 1_u16..5, any::<bool>(), 0_u32..60), 1..80)) {
        let clients = clients(1);
        let mut model: [Option<(u16, u32)>; 6] = [None; 6];
        let mut up = [true; 5];
        let mut now = 1_000;
        for (n, at, toggles, passed) in steps {
            now += passed;
            let server = usize::from(at);
            if toggles {
                up[server] = !up[server];
                set(&clients, at.into(), if up[server] { UP } else { UP & !server::UP });
            }
            clients.note(&flow(n, at), now);
            let known = &mut model[n as usize];
            let stays = known.is_some_and(|(of, seen)| of != at && up[usize::from(of)] && now - seen <= TICKS);
            if up[server] && !stays {
                *known = Some((at, now));
            }
            for (n, known) in (0..).zip(&model) {
                prop_assert_eq!(noted(&clients, n).map(|noted| (noted.server, noted.seen)), *known);
            }
        }
    }
}
