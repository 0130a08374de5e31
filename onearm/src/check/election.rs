use std::time::Duration;

use onearm_ha::lease;

use super::findings::Findings;
use crate::config::{Auth, NodeConfig, PairFile, Parsed};

/// Below this interval a stall of an ordinary thread is longer than a Standby waits.
const SHORTEST_WITHOUT_REALTIME: Duration = Duration::from_millis(50);

pub(super) fn judge(
    node: &Parsed<NodeConfig>,
    file: &PairFile,
    of_node: &mut Findings,
    findings: &mut Findings,
) {
    let pair = &file.parsed.config;
    let interval = pair.ha.advert_interval;
    // At most 40.95 s.
    let nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
    if let Err(too_long) = lease::check(lease::length(nanos), nanos) {
        findings.error(
            "lease",
            "ha.advert_interval",
            too_long.to_string(),
            "write a longer interval",
        );
    } else if interval < SHORTEST_WITHOUT_REALTIME {
        let message = "adverts this fast need real-time priority (LimitRTPRIO of the unit)";
        let remedy = "see `realtime` in `onearm status`; without it write \"100ms\"";
        findings.warn("realtime", "ha.advert_interval", message, remedy);
    }
    match pair.ha.auth {
        Auth::Hmac => peer_link(node, of_node),
        // Written on purpose; the daemon says so in its status, all the time.
        Auth::None => {}
    }
    if !file.parsed.is_draft() {
        let owned = pair.owned_addresses();
        if owned.is_empty() {
            findings.error(
                "nothing-to-own",
                "",
                "neither a [[service]] nor a [[gateway]]",
                "describe at least one",
            );
        }
        for (place, address) in pair.ha.announce.iter().enumerate() {
            if !owned.contains(address) {
                let field = format!("ha.announce[{place}]");
                let message = format!("{address} is no owned address");
                findings.error(
                    "announce",
                    field,
                    message,
                    "name a VIP, a gateway address or a SNAT source",
                );
            }
        }
    }
}

/// HA datagrams go over the peer link where there is one; over the leg they go anyway.
fn peer_link(node: &Parsed<NodeConfig>, findings: &mut Findings) {
    let peer = &node.config.peer;
    let Some(interface) = &peer.interface else { return };
    let mut legs = node.config.legs.iter();
    let is_leg = legs.any(|leg| leg.interface == *interface && leg.role.carries_traffic());
    if peer.link.is_none() && !node.is_draft() && !is_leg {
        let message = format!("missing: nothing of the election goes over {interface}");
        let remedy = format!(
            "write link_address (the other node's on {interface}) and own_link_address (this node's)"
        );
        findings.warn("peer-link", "peer.link_address", message, remedy);
    }
}
