use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Daemon;
use super::exit::{Exit, Failure};
use super::output::{self, grouped, span};
use crate::control::{
    AuthenticationStatus, HaStatus, LegStatus, NodeState, OwnedStatus, Status, StreamState, StreamStatus,
    SyncStatus, SyncVerdict, TrackedState, TrackedStatus, UsageStatus,
};

/// Most addresses of a kind that are listed one by one.
const MOST_SHOWN: usize = 16;
/// A peer that was silent for longer does not speak now.
const QUIET_MS: u64 = 5_000;

pub(super) fn run(args: &Daemon) -> Result<Exit, Failure> {
    let status = args.connect()?.status()?;
    if args.json {
        output::json(&status)?;
    } else {
        output::print(&show(&status))?;
    }
    Ok(if healthy(&status) {
        Exit::Ok
    } else {
        Exit::Unhealthy
    })
}

/// Able to do its part: in the election, an Active with its lease, every leg up and attached, both nodes on one file.
pub(super) fn healthy(status: &Status) -> bool {
    let able = match status.state {
        NodeState::Initialize => false,
        NodeState::Standby => true,
        NodeState::Active => status.lease.valid,
    };
    able && !status.config.differs && status.legs.iter().all(|leg| leg.carrier && leg.mode != "none")
}

pub(super) fn show(status: &Status) -> String {
    let mut lines = Lines::default();
    let node = &status.node;
    lines.add(
        "node",
        format!(
            "{} (id {}), onearm {}, up {}",
            node.name,
            node.id.get(),
            node.version,
            span(node.uptime_ms)
        ),
    );
    lines.add(
        "state",
        format!(
            "{} for {}: {}",
            status.state,
            span(status.since_ms),
            status.reason
        ),
    );
    lines.add("lease", lease(status));
    lines.add("peer", peer(status));
    lines.add("stream", stream(&status.stream));
    lines.add("flow sync", sync(&status.sync));
    for words in owned(&status.owned) {
        lines.add("owned", words);
    }
    election(&mut lines, &status.ha);
    let config = &status.config;
    let compared = match (&config.peer_digest, config.differs) {
        (_, true) => ", the peer has ANOTHER one",
        (Some(_), false) => ", the same as the peer's",
        (None, false) => ", the peer's is not known",
    };
    lines.add(
        "pair.toml",
        format!("{}{compared}", config.digest.get(..12).unwrap_or(&config.digest)),
    );
    let data = &status.dataplane;
    lines.add(
        "flows",
        format!(
            "{} of {}, half-open {} of {}; maps {}",
            grouped(data.flows),
            grouped(data.max_flows),
            grouped(data.half_open),
            grouped(data.max_half_open),
            output::size(data.map_bytes)
        ),
    );
    let mut text = lines.0;
    text.push('\n');
    let mut table = output::table(&["leg", "interface", "role", "attached", "link", "address", "mac"]);
    for leg in &status.legs {
        let interface = match leg.vlan {
            Some(vlan) => format!("{}.{vlan}", leg.interface),
            None => leg.interface.clone(),
        };
        table.add_row([
            &*leg.name,
            &*interface,
            &*leg.role,
            &*leg.mode,
            if leg.carrier { "up" } else { "DOWN" },
            &addresses(leg),
            leg.mac.as_deref().unwrap_or("-"),
        ]);
    }
    text.push_str(&output::draw(&table));
    for leg in status.legs.iter().filter(|leg| !leg.reason.is_empty()) {
        text.push_str(&output::paragraph(&format!("{}: ", leg.name), &leg.reason));
    }
    tracked(&mut text, &status.ha.tracked);
    in_use(&mut text, &data.usage);
    counters(&mut text, "protocol", &status.ha.counters);
    counters(&mut text, "packets", &data.counters);
    counters(&mut text, "stream", &stream_counters(&status.stream));
    counters(&mut text, "flow sync", &status.sync.counters);
    if !status.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &status.warnings {
        text.push_str(&output::paragraph("! ", warning));
    }
    text
}

/// Settings of the election, and how this node compares with the other.
fn election(lines: &mut Lines, ha: &HaStatus) {
    lines.add(
        "election",
        format!(
            "vrid {}, priority {}{}, adverts every {}, auth {}{}",
            ha.vrid,
            ha.priority,
            if ha.effective_priority == ha.priority {
                String::new()
            } else {
                format!(" (now {})", ha.effective_priority)
            },
            span(ha.advert_interval_ms),
            ha.auth,
            if ha.realtime { ", real-time" } else { "" }
        ),
    );
    if let Some(auth) = &ha.authentication {
        lines.add("keys", authentication(auth));
    }
    if let Some(words) = fitness(ha) {
        lines.add("fitness", words);
    }
}

/// Where the nodes' files differ in what they own; nothing while they agree.
fn owned(owned: &OwnedStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if owned.peer_tells == Some(false) {
        lines.push("the peer's release does not tell what it owns".to_owned());
    }
    let left = owned
        .orphans_left_ms
        .map(|ms| format!(", {} left at most", span(ms)));
    for orphan in owned.orphans.iter().take(MOST_SHOWN) {
        lines.push(match (&left, orphan.flows) {
            (Some(left), Some(flows)) => {
                let flows = grouped(flows);
                format!(
                    "{} is the peer's alone: {flows} flows go on{left}",
                    orphan.address
                )
            }
            _ => format!(
                "{} is the peer's alone: after a take-over its flows go on",
                orphan.address
            ),
        });
    }
    for one in owned.withheld.iter().take(MOST_SHOWN) {
        lines.push(match &one.used_by {
            Some(mac) => format!("{} is not owned: {mac} has it", one.address),
            None => format!(
                "{} is this node's alone: owned once nobody is found to have it",
                one.address
            ),
        });
    }
    let more =
        owned.orphans.len().saturating_sub(MOST_SHOWN) + owned.withheld.len().saturating_sub(MOST_SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more: see onearm status --json"));
    }
    lines.extend(
        owned
            .refused
            .iter()
            .map(|(why, count)| format!("{count} of the peer's cannot be answered for here: {why}")),
    );
    lines
}

/// One below the other.
fn addresses(leg: &LegStatus) -> String {
    if leg.addresses.is_empty() {
        return "-".to_owned();
    }
    let texts: Vec<String> = leg.addresses.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

fn lease(status: &Status) -> String {
    let lease = status.lease;
    // Signed microseconds to whole milliseconds, away from "0 ms" for anything that is not zero.
    let ms = lease.remaining_us.unsigned_abs().div_ceil(1_000);
    match (lease.valid, lease.deadline_ns) {
        (true, _) => format!(
            "valid, {} left (renewed all the time), epoch {}",
            span(ms),
            lease.epoch
        ),
        (false, 0) => format!("none, epoch {}", lease.epoch),
        (false, _) => format!("ended {} ago, epoch {}", span(ms), lease.epoch),
    }
}

/// `key 2 (3f2a-…) in use, key 1 (…) believed; the peer holds key 2, authenticated for 3 h 5 m`.
fn authentication(auth: &AuthenticationStatus) -> String {
    let mut keys = auth.keys.clone();
    keys.sort_by_key(|key| (Some(key.id) != auth.signing_key, key.id));
    let words = keys.iter().map(|key| {
        let use_of = if Some(key.id) == auth.signing_key {
            "in use"
        } else {
            "believed"
        };
        format!("key {} ({}) {use_of}", key.id, key.fingerprint)
    });
    let mut text = words.collect::<Vec<_>>().join(", ");
    match (auth.peer_key, auth.peer_since_ms, auth.peer_heard_ms) {
        (Some(key), Some(since), Some(heard)) if heard < QUIET_MS => {
            let _ignored = write!(
                text,
                "; the peer holds key {key}, authenticated for {}",
                span(since)
            );
        }
        (Some(key), _, Some(heard)) => {
            let _ignored = write!(
                text,
                "; the peer held key {key} when it was heard with authentication last, {} ago",
                span(heard)
            );
        }
        _ => text.push_str("; the peer was not heard with authentication yet"),
    }
    if auth.rollout != "enforce" {
        let _ignored = write!(text, "; rollout \"{}\"", auth.rollout);
    }
    text
}

fn peer(status: &Status) -> String {
    let peer = &status.peer;
    let Some(address) = peer.address else {
        return "not configured".to_owned();
    };
    let Some(age) = peer.last_seen_ms else {
        return format!("{address}: never heard");
    };
    let mut text = format!("{address}");
    if let Some(state) = peer.state {
        let _ignored = write!(text, " {state}");
    }
    let _ignored = write!(text, ", heard {} ago", span(age));
    if let Some(priority) = peer.priority {
        let _ignored = write!(text, ", priority {priority}");
    }
    if let Some(interval) = peer.advert_interval_ms {
        let _ignored = write!(text, ", every {}", span(interval));
    }
    text
}

/// `lb2 (onearm 0.1.0) for 3 h 5 m, protocol 1, key 2; 12 frames heard, 14 said`.
fn stream(stream: &StreamStatus) -> String {
    if stream.state != StreamState::Open {
        return format!("none: {}", stream.reason);
    }
    let mut text = format!(
        "{} (onearm {}) for {}",
        stream.peer_name.as_deref().unwrap_or("?"),
        stream.peer_version.as_deref().unwrap_or("?"),
        span(stream.since_ms.unwrap_or_default())
    );
    if let (Some(protocol), Some(key)) = (stream.protocol, stream.key) {
        let _ignored = write!(text, ", protocol {protocol}, key {key}");
    }
    if let Some(last) = stream.last_error.as_ref().filter(|_| stream.sessions > 1) {
        let _ignored = write!(text, "; session {}, the one before: {last}", stream.sessions);
    }
    text
}

/// `behind by 12 (oldest 1 ms); acknowledged after 0.4 ms, 99 of 100 within 1.2 ms`.
fn sync(sync: &SyncStatus) -> String {
    let mut text = match sync.verdict {
        SyncVerdict::Equal => "equal: both nodes have the same flows".to_owned(),
        SyncVerdict::Behind => format!(
            "behind by {} (oldest {})",
            grouped(sync.records_behind),
            span(sync.oldest_behind_ms)
        ),
        SyncVerdict::NotSyncing => format!("NOT SYNCING, because {}", sync.because),
    };
    if sync.lag_p99_us > 0 {
        let ms = |us: u64| format!("{}.{} ms", us / 1_000, us % 1_000 / 100);
        let _ignored = write!(
            text,
            "; acknowledged after {}, 99 of 100 within {}",
            ms(sync.lag_p50_us),
            ms(sync.lag_p99_us)
        );
    }
    text
}

fn stream_counters(stream: &StreamStatus) -> BTreeMap<String, u64> {
    let failed = stream
        .failed
        .iter()
        .map(|(name, count)| (format!("failed_{name}"), *count));
    let ended = stream
        .ended
        .iter()
        .map(|(name, count)| (format!("ended_{name}"), *count));
    let traffic = [
        ("sessions", stream.sessions),
        ("frames_in", stream.frames_in),
        ("frames_out", stream.frames_out),
        ("bytes_in", stream.bytes_in),
        ("bytes_out", stream.bytes_out),
        ("unknown_records", stream.unknown_records),
        ("unsaid", stream.unsaid),
        ("untaken", stream.untaken),
    ];
    let traffic = traffic.map(|(name, count)| (name.to_owned(), count));
    traffic.into_iter().chain(failed).chain(ended).collect()
}

/// What each node lacks of all that makes a node fit; nothing where neither does.
fn fitness(ha: &HaStatus) -> Option<String> {
    let lacks = |has: &[String]| {
        let missing = HaStatus::FITNESS
            .into_iter()
            .filter(|word| !has.iter().any(|has| has == word));
        missing.collect::<Vec<_>>().join(", ")
    };
    let peer = ha.peer_has.as_deref().map(lacks).unwrap_or_default();
    match (&*lacks(&ha.has), &*peer) {
        ("", "") => None,
        (own, "") => Some(format!("this node lacks: {own}")),
        ("", peer) => Some(format!("the peer lacks: {peer}")),
        (own, peer) => Some(format!("this node lacks: {own}; the peer lacks: {peer}")),
    }
}

fn tracked(text: &mut String, tracked: &[TrackedStatus]) {
    if tracked.is_empty() {
        return;
    }
    text.push('\n');
    let mut table = output::table(&["tracked", "name", "state", "for", "why"]);
    for thing in tracked {
        let state = match (thing.state, thing.counts) {
            (TrackedState::Good, false) => "good, does not count yet",
            (TrackedState::Failed, false) => "FAILED, does not count yet",
            (state, _) => state.as_str(),
        };
        table.add_row([
            thing.kind.as_str(),
            &*thing.name,
            state,
            &span(thing.since_ms),
            &*thing.detail,
        ]);
    }
    text.push_str(&output::draw(&table));
}

/// What is in use of everything that can run out; nothing of what is not.
fn in_use(text: &mut String, usage: &[UsageStatus]) {
    let mut used = usage.iter().filter(|of| of.used > 0).peekable();
    if used.peek().is_some() {
        text.push_str("\nin use\n");
    }
    for of in used {
        let words = format!("{} of {} {}", grouped(of.used), grouped(of.limit), of.name);
        text.push_str(&output::paragraph(&format!("  {:>3} %  ", of.percent), &words));
    }
}

/// Counters that are not zero, two to a line.
fn counters(text: &mut String, title: &str, counters: &BTreeMap<String, u64>) {
    let shown: Vec<_> = counters.iter().filter(|(_, count)| **count > 0).collect();
    if shown.is_empty() {
        return;
    }
    let _ignored = writeln!(text, "\n{title}");
    for pair in shown.chunks(2) {
        let mut line = String::new();
        for (name, count) in pair {
            let _ignored = write!(line, "  {name:<25}{:>11}", grouped(**count));
        }
        let _ignored = writeln!(text, "{line}");
    }
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl AsRef<str>) {
        self.0
            .push_str(&output::paragraph(&format!("{name:<10} "), value.as_ref()));
    }
}
