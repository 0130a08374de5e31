//! What is always true: of every table, and of what is counted for a frame.

use super::{Judge, NEVER, Outcome};
use crate::{
    fuzz::{
        expect::{address, is_direct},
        read::{Content, Ip, Link},
    },
    support::{Engine, Verdict, frames::raw},
};
use onearm_dataplane_common::{
    counter::Counter,
    flow::{State, seen},
    limits,
    maps::Addr,
    tables::Tables,
};
use std::collections::{HashMap, HashSet};

impl Judge {
    /// What is true of every table.
    pub(super) fn sound(&self, o: &Outcome<'_>) -> Result<(), String> {
        let (before, after) = (o.before, o.after);
        let mut half_open = 0;
        let mut keys = HashSet::new();
        for entry in after {
            ensure!(keys.insert(entry.key()), "one key twice");
            if is_direct(entry) {
                continue;
            }
            let partner = after
                .iter()
                .find(|e| e.incarnation == entry.incarnation && e.is_reply() != entry.is_reply())
                .ok_or("half a flow")?;
            ensure!(entry.reply_key() == partner.key(), "the partner has another key");
            ensure!(
                (entry.own, entry.other) == (partner.other, partner.own),
                "partners disagree"
            );
            half_open += u64::from(entry.state() == State::HalfOpen);
        }
        ensure!(
            half_open == 2 * Engine::half_open(&self.host),
            "half-open flows are miscounted"
        );
        let mut open: HashMap<u32, u64> = HashMap::new();
        let mut of_service: HashMap<u32, u64> = HashMap::new();
        let mut of_client: HashMap<(u32, Addr), u64> = HashMap::new();
        for entry in after
            .iter()
            .filter(|e| !e.is_reply() && e.state() != State::Closing)
        {
            *open.entry(u32::from(entry.server)).or_default() += 1;
            *of_service.entry(u32::from(entry.stats)).or_default() += 1;
            if entry.own & seen::COUNTED != 0 {
                *of_client
                    .entry((u32::from(entry.stats), entry.saddr))
                    .or_default() += 1;
            }
        }
        for index in self.host.server_indexes() {
            let (counted, there) = (
                self.host.open_of_server(index),
                open.get(&index).copied().unwrap_or(0),
            );
            ensure!(
                counted == there,
                "server {index} has {there} flows, not {counted}"
            );
        }
        for index in self.host.service_indexes() {
            let (counted, there) = (
                self.host.open_of_service(index),
                of_service.get(&index).copied().unwrap_or(0),
            );
            ensure!(
                counted == there,
                "service {index} has {there} flows, not {counted}"
            );
        }
        let key = self.host.node().ok_or("a node")?.flow_hash_key;
        for ((stats, client), there) in of_client {
            let counted = limits::of_source(&self.host, key, stats, client);
            ensure!(
                counted == there,
                "{} has {there} flows of service {stats}, not {counted}",
                address(client)
            );
        }
        // Nobody takes an established flow away, but its own client, when it is overdue or its server is gone.
        let own = Link::read(o.frame, o.ifindex)
            .and_then(|link| Ip::read(o.frame, link.l3, link.kind == 0x86dd))
            .filter(|ip| matches!(ip.content, Content::Ports(..) | Content::Fragment));
        for entry in before
            .iter()
            .filter(|e| !e.is_reply() && !is_direct(e) && e.state() == State::Established)
        {
            let there = after.iter().any(|e| e.incarnation == entry.incarnation);
            let by_client = own.is_some_and(|ip| {
                (ip.proto == entry.proto || ip.content == Content::Fragment)
                    && raw(ip.from) == entry.saddr
                    && raw(ip.to) == entry.daddr
            });
            // Datagrams nobody has answered give way.
            let unanswered = entry.proto == 17 && entry.other & seen::OPENED == 0;
            ensure!(
                there || by_client || unanswered,
                "an established flow was taken away"
            );
            ensure!(entry.own & seen::RST == 0, "an established flow with a RST");
        }
        Ok(())
    }
}

/// One frame, one verdict, one counter for it.
pub(super) fn accounted(o: &Outcome<'_>) -> Result<(), String> {
    for counter in NEVER {
        ensure!(!o.counted(counter), "{} counted", counter.name());
    }
    let of = |counter| o.moved.get(&counter).copied().unwrap_or(0);
    // A conflict is told, and dropped.
    let is_drop = |c: Counter| c.is_drop() || c == Counter::ArpConflict;
    let drops: u64 = o.moved.iter().filter(|(c, _)| is_drop(**c)).map(|(_, n)| n).sum();
    let ends = [
        of(Counter::Passed) + of(Counter::FragmentKept) + of(Counter::Divided),
        of(Counter::Transmitted),
        of(Counter::Redirected),
        drops,
    ];
    let want = match o.verdict {
        // User space knows what it has asked for.
        Verdict::Pass if o.note == 1 && ends == [0; 4] => return Ok(()),
        Verdict::Pass => [1, 0, 0, 0],
        Verdict::Transmit => [0, 1, 0, 0],
        Verdict::Redirect => [0, 0, 1, 0],
        Verdict::Drop => [0, 0, 0, 1],
    };
    ensure!(ends == want, "passed, transmitted, redirected, dropped: {ends:?}");
    Ok(())
}
