use std::time::Duration;

use super::findings::Findings;
use crate::config::{Auth, Lease, PairFile, undercuts_lease};

/// Below this interval a stall of an ordinary thread is longer than a Standby waits.
const SHORTEST_WITHOUT_REALTIME: Duration = Duration::from_millis(50);

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    let pair = &file.parsed.config;
    let interval = pair.ha.advert_interval;
    if undercuts_lease(interval) {
        let lease = Lease::of(interval);
        let message = format!(
            "a lease may last {:?}, but the peer may claim after {:?}",
            lease.latest_end, lease.earliest_claim
        );
        findings.error("lease", "ha.advert_interval", message, "write a longer interval");
    } else if interval < SHORTEST_WITHOUT_REALTIME {
        let message = "adverts this fast need real-time priority (LimitRTPRIO of the unit)";
        let remedy = "see `realtime` in `onearm status`; without it write \"100ms\"";
        findings.warn("realtime", "ha.advert_interval", message, remedy);
    }
    match pair.ha.auth {
        // Written on purpose (it is required); the daemon says so in its status, all the time.
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
