use std::time::Duration;

use onearm_ha::lease;

use super::findings::Findings;
use crate::config::{Auth, PairFile};

/// Below this interval a stall of an ordinary thread is longer than a Standby waits.
const SHORTEST_WITHOUT_REALTIME: Duration = Duration::from_millis(50);

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
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
