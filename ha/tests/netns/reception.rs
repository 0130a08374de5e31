//! What a node knows of its own hearing: the witness, other hosts, and who answers for the addresses.

use std::net::IpAddr;

use onearm_ha::config::Config;
use onearm_ha::election::{Alarm, Event, Role};

use crate::authenticated::{settled, with_auth};
use crate::lab::{A, B, Lab, VIP, wait_until};
use crate::node::{LONG, Node, assert_never_two, config};

const WITNESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 101));

fn watching(config: Config) -> Config {
    Config {
        witness: Some(WITNESS),
        ..config
    }
}

fn alarmed(node: &Node, alarm: Alarm) -> bool {
    node.notes.lock().unwrap().alarms.contains(&alarm)
}

#[test]
#[ignore = "needs root"]
fn with_a_link_an_owner_cut_off_from_the_witness_gives_way_at_once_and_one_in_company_stays() {
    let lab = crate::authenticated::lab(true);
    let of = |address| watching(with_auth(address, 100, true));
    let (a, b) = settled(&lab, &[of(A), of(B)]);
    // Between the nodes the leg carries nothing of IP; the witness hears and answers both.
    lab.lose("a", &["ip"]);
    let before = b.state().voice_counters.datagrams_heard;
    wait_until("datagrams on the link", LONG, || {
        b.state().voice_counters.datagrams_heard > before + 40
    });
    assert!(a.cell.holds() && b.role() == Some(Role::Standby));
    lab.lose_nothing();
    wait_until("datagrams on both paths", LONG, || {
        b.state().voice_counters.datagrams_heard > before + 120
    });
    lab.block("a");
    let took = b.wait_lease();
    println!("owner cut off at 100 ms adverts: lease of the peer after {took} ms");
    b.wait_role(Role::Active);
    wait_until("the reason", LONG, || {
        a.notes
            .lock()
            .unwrap()
            .transitions
            .last()
            .is_some_and(|last| last.event == Event::PeerIsHealthier)
    });
    assert_never_two(&a.cell, &b.cell);
}

#[test]
#[ignore = "needs root"]
fn a_standby_whose_leg_receives_nothing_claims_nothing_until_it_does() {
    let lab = Lab::new();
    let a = Node::start(&lab, "a", &watching(config(A, 100)));
    a.wait_lease();
    let b = Node::start(&lab, "b", &watching(config(B, 100)));
    b.wait_role(Role::Standby);
    b.wait_heard(5);
    lab.block("b");
    wait_until("the alarm", LONG, || alarmed(&b, Alarm::Deaf));
    assert!(!b.cell.holds() && a.cell.holds());
    // The owner dies meanwhile; the witness answers again.
    let (_, a_cell) = a.stop();
    assert!(!b.cell.holds());
    lab.unblock("b");
    b.wait_lease();
    assert_never_two(&a_cell, &b.cell);
}

#[test]
#[ignore = "needs root"]
fn b28_an_owner_whose_messages_alone_are_lost_is_known_by_its_answers_for_a_while() {
    let lab = crate::authenticated::lab(false);
    let (a, b) = settled(&lab, &[A, B].map(|address| with_auth(address, 100, false)));
    // What the dataplane does under a lease.
    lab.ip("a", &format!("addr add {VIP}/32 dev eth0"));
    lab.lose("a", &["ip"]);
    wait_until("the alarm", LONG, || alarmed(&b, Alarm::AdvertsLost));
    assert!(!b.cell.holds());
    // It dies, and answers no more.
    let (_, a_cell) = a.stop();
    lab.ip("a", &format!("addr del {VIP}/32 dev eth0"));
    b.wait_lease();
    assert_never_two(&a_cell, &b.cell);
}
