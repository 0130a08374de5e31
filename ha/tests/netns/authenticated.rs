//! Two nodes with a key: over the leg alone, and with a peer link beside it.

use std::net::{Ipv4Addr, SocketAddrV4};

use onearm_ha::auth::{Health, Key, KeyId, PairKeys};
use onearm_ha::config::{Auth, Config, DatagramPath, Rollout};
use onearm_ha::driver::{Exit, now};
use onearm_ha::election::{Event, Role};
use onearm_ha::process::ToHa;
use onearm_ha::units::{Centiseconds, Priority, Vrid};
use onearm_ha::wire::Address as _;
use onearm_ha::wire::advert::{Advert, ChecksumForm};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::{A, B, Lab, VIP, wait_until};
use crate::node::{LONG, Node, assert_never_two, config};

const PORT: u16 = 8471;
const A_LINK: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);
const B_LINK: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 12);

pub(crate) fn keys(ids: &[u8]) -> PairKeys {
    let key = |id: &u8| Key {
        id: KeyId(u16::from(*id)),
        secret: [*id; 32],
    };
    PairKeys::new([9; 16], ids.iter().map(key).collect()).unwrap()
}

/// [`config`] with key 1, datagrams on the leg and, with `link`, on eth1.
pub(crate) fn with_auth(address: Ipv4Addr, interval_ms: u16, link: bool) -> Config {
    let is_a = address == A;
    let path = |ifname: &str, own, peer| DatagramPath {
        ifname: ifname.to_owned(),
        own: SocketAddrV4::new(own, PORT).into(),
        peer: SocketAddrV4::new(peer, PORT).into(),
    };
    let (own, peer) = if is_a { (A, B) } else { (B, A) };
    let mut paths = vec![path("eth0", own, peer)];
    if link {
        let (own, peer) = if is_a { (A_LINK, B_LINK) } else { (B_LINK, A_LINK) };
        paths.push(path("eth1", own, peer));
    }
    Config {
        auth: Some(Auth {
            keys: keys(&[1]),
            node: if is_a { 1 } else { 2 },
            rollout: Rollout::Enforce,
            paths,
            epoch: 0,
            generation: 0,
        }),
        ..config(address, interval_ms)
    }
}

pub(crate) fn lab(link: bool) -> Lab {
    let lab = Lab::new();
    if link {
        lab.add_inside();
        lab.ip("a", &format!("addr add {A_LINK}/24 dev eth1"));
        lab.ip("b", &format!("addr add {B_LINK}/24 dev eth1"));
    }
    lab
}

/// Both nodes, A settled as Active, each proved to the other.
pub(crate) fn settled(lab: &Lab, configs: &[Config; 2]) -> (Node, Node) {
    let a = Node::start(lab, "a", &configs[0]);
    let b = Node::start(lab, "b", &configs[1]);
    a.wait_lease();
    b.wait_role(Role::Standby);
    wait_until("datagrams both ways", LONG, || {
        [&a, &b]
            .iter()
            .all(|node| node.state().voice_counters.datagrams_heard > 10)
    });
    (a, b)
}

#[track_caller]
fn wait_epoch(node: &Node, epoch: u64) {
    wait_until(&format!("epoch {epoch}"), LONG, || {
        node.state()
            .election
            .is_some_and(|election| election.epoch == epoch)
    });
}

#[test]
#[ignore = "needs root"]
fn an_authenticated_pair_moves_ownership_by_stop_cut_and_silence_and_counts_epochs() {
    for link in [false, true] {
        let lab = lab(link);
        let (a, b) = settled(&lab, &[A, B].map(|address| with_auth(address, 100, link)));
        wait_epoch(&b, 1);
        let (_, a_cell) = a.stop();
        b.wait_lease();
        wait_epoch(&b, 2);
        let a = Node::start_with(&lab, "a", &with_auth(A, 100, link), &[], a_cell);
        a.wait_role(Role::Standby);
        wait_epoch(&a, 2);
        lab.ip("sw", "link set pb down");
        a.wait_lease();
        wait_epoch(&a, 3);
        assert_never_two(&a.cell, &b.cell);
    }
}

/// The node has heard the other for longer than any wait, and waits on.
#[track_caller]
fn assert_waits_on(waiting: &Node, owner: &Node) {
    let heard = waiting.state().election_counters.adverts_received;
    waiting.wait_heard(heard + 15);
    assert_eq!(waiting.role(), Some(Role::Standby));
    assert!(owner.cell.holds() && !waiting.cell.holds());
}

#[test]
#[ignore = "needs root"]
fn b31_without_preemption_a_node_that_returns_waits_whatever_it_had_lost() {
    let whole = Health::DATAPLANE.with(Health::TRACKED);
    for (is_authenticated, is_equal) in [(false, false), (false, true), (true, false), (true, true)] {
        let configs = [A, B].map(|address| Config {
            priority: Priority::configured(if address == A && !is_equal { 200 } else { 100 }).unwrap(),
            ..if is_authenticated {
                with_auth(address, 50, false)
            } else {
                config(address, 50)
            }
        });
        let lab = lab(false);
        let a = Node::start(&lab, "a", &configs[0]);
        a.order(&ToHa::Health(whole));
        a.wait_lease();
        let b = Node::start(&lab, "b", &configs[1]);
        b.order(&ToHa::Health(whole));
        b.wait_role(Role::Standby);
        b.wait_heard(20);
        let give_back = |a: &Node| {
            b.order(&ToHa::HandOver { force: true });
            a.wait_lease();
            b.wait_role(Role::Standby);
        };

        lab.ip("sw", "link set pa down");
        b.wait_lease();
        lab.ip("sw", "link set pa up");
        a.wait_role(Role::Standby);
        assert_waits_on(&a, &b);
        give_back(&a);

        a.order(&ToHa::Health(Health::DATAPLANE));
        b.wait_lease();
        a.order(&ToHa::Health(whole));
        a.wait_role(Role::Standby);
        assert_waits_on(&a, &b);
        give_back(&a);

        let (_, a_cell) = a.stop();
        b.wait_lease();
        let a = Node::start_with(&lab, "a", &configs[0], &[], a_cell);
        a.order(&ToHa::Health(whole));
        a.wait_role(Role::Standby);
        assert_waits_on(&a, &b);
        let took_over = b.state().election_counters.became_active;
        assert_eq!(took_over, 3, "authenticated {is_authenticated}, equal {is_equal}");
        assert_never_two(&a.cell, &b.cell);
    }
}

#[test]
#[ignore = "needs root"]
fn a_hand_over_arms_the_peer_and_yields_before_it_lets_go_whoever_is_told() {
    for link in [false, true] {
        let lab = lab(link);
        let (a, b) = settled(&lab, &[A, B].map(|address| with_auth(address, 100, link)));
        for node in [&a, &b] {
            node.order(&ToHa::Health(Health::DATAPLANE));
            // The owner first: it gives way to a healthier peer at once.
            wait_until("the node to say what it can do", LONG, || {
                let word = node.state().last_word.map(|spoken| spoken.word);
                word.is_some_and(|word| word.health.has(Health::DATAPLANE))
            });
        }
        // Refused until the peer is known to be able.
        wait_until("a hand-over by A", LONG, || {
            a.order(&ToHa::HandOver { force: false });
            b.cell.holds()
        });
        assert_eq!((a.cell.times_yielded(), b.cell.times_yielded()), (1, 0));
        assert!(b.cell.was_armed() && !a.cell.was_armed());
        a.wait_role(Role::Standby);
        wait_until("a hand-over asked for by A", LONG, || {
            a.order(&ToHa::TakeOver);
            a.cell.holds()
        });
        assert_eq!((a.cell.times_yielded(), b.cell.times_yielded()), (1, 1));
        b.wait_role(Role::Standby);
        let begun = now();
        let (exit, a_cell) = a.stop();
        assert_eq!(exit, Exit::Ordered);
        assert!(
            now().since(begun) >= 1_000_000_000,
            "strays are passed on for a second"
        );
        assert!(b.cell.holds() && !a_cell.holds());
        assert_eq!(a_cell.times_yielded(), 2);
        let a = Node::start_with(&lab, "a", &with_auth(A, 100, link), &[], a_cell);
        a.order(&ToHa::Health(Health::DATAPLANE));
        a.wait_role(Role::Standby);
        wait_until("B to know what A can do", LONG, || {
            b.order(&ToHa::HandOver { force: false });
            a.cell.holds()
        });
        b.wait_role(Role::Standby);
        let (exit, a_cell) = a.orphan();
        assert_eq!(exit, Exit::MainEnded);
        assert_eq!((a_cell.times_yielded(), b.cell.holds()), (3, true));
        assert_never_two(&a_cell, &b.cell);
    }
}

#[test]
#[ignore = "needs root"]
fn with_a_link_a_silent_leg_moves_nothing_and_a_lost_carrier_is_told_at_once() {
    let lab = lab(true);
    let (a, b) = settled(&lab, &[A, B].map(|address| with_auth(address, 1_000, true)));
    lab.block("a");
    let before = b.state().voice_counters.datagrams_heard;
    // Longer than the wait of four seconds, in datagrams of 50 ms.
    wait_until("datagrams on the link", LONG, || {
        b.state().voice_counters.datagrams_heard > before + 100
    });
    assert!(a.cell.holds() && b.role() == Some(Role::Standby));
    lab.unblock("a");
    lab.ip("sw", "link set pa down");
    let took = b.wait_lease();
    println!("carrier lost at 1 s adverts: lease of the peer after {took} ms");
    assert!(took <= 500, "{took} ms");
    // The lease is written before the transition is told.
    b.wait_role(Role::Active);
    assert_eq!(
        b.notes.lock().unwrap().transitions.last().unwrap().event,
        Event::PeerReleased
    );
    assert_never_two(&a.cell, &b.cell);
}

#[test]
#[ignore = "needs root"]
fn b28_a_forged_advert_of_priority_255_in_the_owners_name_moves_nothing_and_is_counted() {
    let lab = lab(false);
    let (a, b) = settled(&lab, &[A, B].map(|address| with_auth(address, 100, false)));
    lab.within("c", || {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(112))).unwrap();
        socket.set_header_included_v4(true).unwrap();
        socket
            .set_multicast_if_v4(&Ipv4Addr::new(192, 0, 2, 101))
            .unwrap();
        let group = SocketAddrV4::new(Ipv4Addr::GROUP, 0).into();
        for (from, priority) in [(A, 255), (A, 0), (B, 255), (B, 0)] {
            let advert = Advert {
                vrid: Vrid::new(51).unwrap(),
                priority: Priority::from_wire(priority),
                interval: Centiseconds::new(4095).unwrap(),
                addresses: vec![VIP],
                trailer: vec![0xaa; 112],
            };
            for forged in [
                advert.clone(),
                Advert {
                    trailer: Vec::new(),
                    ..advert
                },
            ] {
                let mut packet = Vec::new();
                Ipv4Addr::emit_header(&mut packet, from, Ipv4Addr::GROUP, forged.wire_len());
                forged.emit(&mut packet, from, Ipv4Addr::GROUP, ChecksumForm::PseudoHeader);
                socket.send_to(&packet, &group).unwrap();
            }
        }
    })
    .join()
    .unwrap();
    wait_until("the counters of both", LONG, || {
        [&a, &b]
            .iter()
            .all(|node| node.state().voice_counters.plain_refused >= 8)
    });
    assert!(a.cell.holds() && b.role() == Some(Role::Standby));
    wait_epoch(&a, 1);
    assert_never_two(&a.cell, &b.cell);
}

#[test]
#[ignore = "needs root"]
fn keys_are_changed_and_authentication_is_introduced_without_a_gap() {
    let lab = lab(false);
    let node = |address, ids: &[u8], rollout| {
        let mut config = with_auth(address, 100, false);
        if let Some(auth) = &mut config.auth {
            auth.keys = keys(ids);
            auth.rollout = rollout;
        }
        Box::new(config)
    };
    let (a, b) = settled(&lab, &[A, B].map(|address| with_auth(address, 100, false)));
    let steps: [(&[u8], &[u8]); 4] = [(&[1, 2], &[1]), (&[1, 2], &[1, 2]), (&[2], &[1, 2]), (&[2], &[2])];
    for (of_a, of_b) in steps {
        a.order(&onearm_ha::process::ToHa::Configure(node(
            A,
            of_a,
            Rollout::Enforce,
        )));
        b.order(&onearm_ha::process::ToHa::Configure(node(
            B,
            of_b,
            Rollout::Enforce,
        )));
        let before = [&a, &b].map(|node| node.state().voice_counters.datagrams_heard);
        wait_until("datagrams under these keys", LONG, || {
            a.state().voice_counters.datagrams_heard > before[0] + 20
                && b.state().voice_counters.datagrams_heard > before[1] + 20
        });
    }
    assert!(a.cell.holds() && b.role() == Some(Role::Standby));
    let terms = [&a, &b].map(|node| node.state().election_counters.became_active);
    assert_eq!(terms, [1, 0]);
    drop((a, b));

    // One node speaks plain VRRP still.
    let plain = Node::start(&lab, "a", &config(A, 100));
    plain.wait_lease();
    let changed = Node::start(&lab, "b", &node(B, &[1], Rollout::Accept));
    changed.wait_role(Role::Standby);
    changed.wait_heard(20);
    assert_eq!(changed.role(), Some(Role::Standby));
    assert_never_two(&plain.cell, &changed.cell);
}
