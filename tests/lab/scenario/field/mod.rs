//! Field cases: short stories that went wrong elsewhere.

mod adverts;
mod clients;
mod election;
mod legs;
mod neighbours;
mod steadiness;

use std::net::SocketAddrV4;

use anyhow::Result;

use super::Scenario;
use crate::{
    measure::echo,
    topology::{OneArm, VIP},
};

/// The scenarios.
pub(super) fn scenarios() -> Vec<Scenario> {
    let case = |name, about, for_peers, run| Scenario {
        name,
        about,
        for_peers,
        run,
    };
    vec![
        case(
            "nodes-as-client",
            "each node as client of the VIP: served or refused at once, never left hanging (B62)",
            false,
            clients::nodes_as_client,
        ),
        case(
            "b05-simultaneous-start",
            "both nodes start at once: one owner of all addresses each time (B05)",
            true,
            election::simultaneous_start,
        ),
        case(
            "b12-unheard-winner",
            "the Standby took over unheard: neighbours find the winner again (B12)",
            true,
            election::unheard_winner,
        ),
        case(
            "b14-announce-refresh",
            "announcements are repeated, by the Active only (B14)",
            false,
            adverts::announce_refresh,
        ),
        case(
            "b17-two-legs",
            "a second leg on the same segment: one answer to each question for the VIP (B17)",
            false,
            steadiness::two_legs_on_one_segment,
        ),
        case(
            "b18-forgetful-switch",
            "a switch that forgets in 5 s and floods nothing, a request every 8 s (B18)",
            false,
            steadiness::forgetful_switch,
        ),
        case(
            "b25-reflected-adverts",
            "a node's own adverts reflected to it change nothing (B25)",
            true,
            adverts::reflected_adverts,
        ),
        case(
            "b27-slow-owner",
            "plain adverts that carry 3 s and come every 3 s: the Standby waits by them (B27)",
            false,
            steadiness::slow_owner,
        ),
        case(
            "b35-flapping-leg",
            "the Active's leg flaps twelve times: its priority is whole again (B35)",
            false,
            steadiness::flapping_leg,
        ),
        case(
            "b36-reloads",
            "one node, reloaded again and again: it stays Active (B36)",
            false,
            steadiness::reloads,
        ),
        case(
            "b67-server-new-mac",
            "a server comes back with another MAC, silently (B67)",
            true,
            neighbours::server_new_mac,
        ),
        case(
            "b68-flushed-neighbours",
            "the Active's neighbour table is flushed under traffic (B68)",
            true,
            neighbours::flushed_neighbours,
        ),
        case(
            "b130-leg-replaced",
            "the leg is deleted, made anew, renamed; strangers come and go (B130)",
            false,
            legs::leg_replaced,
        ),
        case(
            "b130-foreign-links",
            "links of strangers come and go at 10 ms adverts: nobody loses ownership (B130)",
            true,
            legs::foreign_links,
        ),
        case(
            "b144-leg-comes-late",
            "the daemon starts before its leg exists, is up, has an address (B144)",
            false,
            legs::leg_comes_late,
        ),
    ]
}

fn echo_target() -> SocketAddrV4 {
    SocketAddrV4::new(VIP, echo::PORT)
}

/// MAC that `short` has in its neighbour table for `address`.
fn neighbour(lab: &OneArm, short: &str, address: std::net::Ipv4Addr) -> Result<Option<String>> {
    // A datagram to a closed port makes it resolve; what becomes of it does not matter.
    lab.ns(short)
        .output(&["ping", "-c", "1", "-W", "1", &address.to_string()])?;
    let text = lab.ns(short).run(&format!("ip neigh show {address} dev eth0"))?;
    Ok(text
        .split_whitespace()
        .skip_while(|w| *w != "lladdr")
        .nth(1)
        .map(str::to_owned))
}
