//! The owned set over the stream, and what a term does with the difference: orphans are watched until they end, addresses of this
//! node's file alone are asked for before they are owned.
//!
//! Everything is brought about by the pass: what is kept says which orphans there are and what is withheld, whatever failed before.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onearm_dataplane::FlowTable;
use onearm_ha::probe::{self, Found};
use onearm_ha::wire::Mac;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::{Running, at};
use crate::config::Loaded;
use crate::control::{NodeState, OrphanStatus, OwnedStatus, Severity, WithheldStatus};
use crate::daemon::owned::{Split, Store, own_set};
use crate::daemon::{clock, plan};
use crate::stream::wire::OWNED;

/// Flows of orphans are counted this often.
const COUNT: Duration = Duration::from_secs(5);
/// An orphan is answered for no longer than this after the take-over.
const LONGEST: Duration = Duration::from_mins(10);
/// An address that somebody has is asked for again after this.
const AGAIN: Duration = Duration::from_mins(1);
/// Most addresses of one kind that an event or a line names.
const NAMED: usize = 8;

/// What is under way.
#[derive(Debug)]
pub(super) struct Sharing {
    flows: Arc<FlowTable>,
    store: Option<Store>,
    /// This term's.
    term: Option<Term>,
}

/// A term of ownership that began with a difference.
#[derive(Debug)]
struct Term {
    since: Instant,
    since_ns: u64,
    using: BTreeMap<IpAddr, u64>,
    count_at: Instant,
    counting: Option<JoinHandle<BTreeMap<IpAddr, u64>>>,
    ask_at: Instant,
    asking: Option<(JoinHandle<io::Result<Found>>, Arc<AtomicBool>)>,
    taken: BTreeMap<IpAddr, Mac>,
}

impl Drop for Term {
    fn drop(&mut self) {
        if let Some((_, stop)) = &self.asking {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// What came of something.
#[derive(Debug)]
pub(super) enum Done {
    /// Flows were counted.
    Counted(Result<BTreeMap<IpAddr, u64>, JoinError>),
    /// Addresses were asked for.
    Asked(Result<io::Result<Found>, JoinError>),
    /// It is time for one of them.
    Due,
}

impl Sharing {
    pub(super) const fn new(flows: Arc<FlowTable>, store: Option<Store>) -> Self {
        Self {
            flows,
            store,
            term: None,
        }
    }
}

/// Waits for whatever comes first. Cancel-safe: tasks go on.
pub(super) async fn next(sharing: &mut Sharing) -> Done {
    let Some(term) = &mut sharing.term else {
        return std::future::pending().await;
    };
    let (counts, asks) = (term.counting.is_some(), term.asking.is_some());
    let due = [(!counts).then_some(term.count_at), (!asks).then_some(term.ask_at)];
    tokio::select! {
        counted = joined(term.counting.as_mut()) => {
            term.counting = None;
            Done::Counted(counted)
        }
        asked = joined(term.asking.as_mut().map(|(task, _)| task)) => {
            term.asking = None;
            Done::Asked(asked)
        }
        () = at(due.into_iter().flatten().min()) => Done::Due,
    }
}

async fn joined<T>(task: Option<&mut JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

impl Running {
    /// What the peer owns, by its word: kept, unless this node owns itself. Whether that is new.
    pub(super) fn hear_owned(&mut self) -> bool {
        if self.node.ownership.state == NodeState::Active {
            return false;
        }
        let Some(streaming) = &self.streaming else {
            return false;
        };
        let told = streaming.view.borrow().owned.clone();
        if told.is_none() && self.peer_tells() == Some(false) {
            // What it told under another release is no word of what it owns now.
            let known = self.node.kept.take();
            self.keep_owned();
            return known.is_some();
        }
        let Some(told) = told.filter(|told| self.node.kept.as_ref() != Some(&**told)) else {
            return false;
        };
        self.node.kept = Some((*told).clone());
        self.keep_owned();
        true
    }

    /// Whether the peer's release tells what it owns; `None` without a session.
    fn peer_tells(&self) -> Option<bool> {
        let view = self.streaming.as_ref()?.view.borrow();
        let open = view.session.as_ref()?;
        Some(open.agreed.capabilities.iter().any(|name| name == OWNED))
    }

    fn keep_owned(&self) {
        if let Some(store) = &self.sharing.store {
            store.keep(self.node.kept.as_ref());
        }
    }

    /// After a pass: tells the peer, begins or ends what a difference needs, and shows it.
    pub(super) fn share(&mut self) {
        let owns = self.node.ownership.state == NodeState::Active;
        self.tell_owned(owns);
        let is_even = self.node.split.is_even();
        if !owns {
            self.sharing.term = None;
        } else if is_even {
            self.sharing.term = None;
            // Both files say the same, or what they did not agree on is over.
            if self.node.kept.take().is_some() {
                self.keep_owned();
            }
        } else if self.sharing.term.is_none() {
            self.begin_term();
        }
        self.show_owned();
    }

    fn tell_owned(&self, owns: bool) {
        let Some(streaming) = &self.streaming else { return };
        let Loaded { node, pair, .. } = &*self.node.loaded;
        let picture = self.node.picture.borrow();
        let set = owns.then(|| own_set(node, pair, &picture, &self.node.split));
        streaming.tell_owned(set.as_ref());
    }

    fn begin_term(&mut self) {
        let now = Instant::now();
        self.sharing.term = Some(Term {
            since: now,
            since_ns: clock::monotonic_ns(),
            using: BTreeMap::new(),
            // What is on its way into the table has arrived by then.
            count_at: now + COUNT,
            counting: None,
            ask_at: now,
            asking: None,
            taken: BTreeMap::new(),
        });
        self.tell_of_orphans();
        self.begin_due();
    }

    fn tell_of_orphans(&self) {
        let orphans = &self.node.split.orphans;
        if orphans.is_empty() {
            return;
        }
        let text = format!(
            "{} only in the former owner's pair.toml: connections that are there go on, for 10 minutes at most, new ones are dropped",
            names(orphans.iter().map(|orphan| orphan.address))
        );
        let remedy = "compare the two files, then restart the node whose file is wrong";
        self.node
            .board
            .record(Severity::Warning, "orphans-begin", text, remedy);
    }

    pub(super) async fn shared(&mut self, done: Done) {
        let changed = match done {
            Done::Counted(Ok(using)) => self.counted(using),
            Done::Asked(Ok(Ok(found))) => self.asked(found),
            Done::Counted(Err(panic)) => {
                tracing::warn!(%panic, "flows of orphans could not be counted");
                false
            }
            Done::Asked(Ok(Err(error))) => self.not_asked(&error.to_string()),
            Done::Asked(Err(panic)) => self.not_asked(&panic.to_string()),
            Done::Due => {
                self.begin_due();
                return;
            }
        };
        if changed {
            self.keep_owned();
            self.settle().await;
        } else {
            self.show_owned();
        }
    }

    /// Begins what is due and not under way.
    fn begin_due(&mut self) {
        let Some(term) = &mut self.sharing.term else {
            return;
        };
        let now = Instant::now();
        let split = &self.node.split;
        if term.counting.is_none() && term.count_at <= now {
            term.count_at = now + COUNT;
            let orphans: BTreeSet<IpAddr> = split.orphans.iter().map(|orphan| orphan.address).collect();
            if !orphans.is_empty() {
                let flows = Arc::clone(&self.sharing.flows);
                term.counting = Some(spawn_blocking(move || flows.count_of(&orphans)));
            }
        }
        if term.asking.is_none() && term.ask_at <= now {
            // What came of it says when it is due next.
            term.ask_at = now + AGAIN;
            let legs = legs_of(&self.node.loaded, &self.node.picture.borrow(), &split.withheld);
            if !legs.is_empty() {
                let stop = Arc::new(AtomicBool::new(false));
                let (stopped, seed) = (Arc::clone(&stop), clock::monotonic_ns());
                let task = spawn_blocking(move || probe::run(&legs, seed, &stopped));
                term.asking = Some((task, stop));
            }
        }
    }

    /// Whether an orphan has ended.
    fn counted(&mut self, using: BTreeMap<IpAddr, u64>) -> bool {
        let Some(term) = &mut self.sharing.term else {
            return false;
        };
        let late = term.since.elapsed() >= LONGEST;
        let orphans = self.node.split.orphans.iter();
        // Connections that pass a gateway do not name it.
        let ended: Vec<IpAddr> = orphans
            .filter(|orphan| late || !(orphan.router || using.contains_key(&orphan.address)))
            .map(|orphan| orphan.address)
            .collect();
        let left: u64 = ended.iter().filter_map(|address| using.get(address)).sum();
        term.using = using;
        if ended.is_empty() {
            return false;
        }
        if let Some(kept) = &mut self.node.kept {
            kept.addresses.retain(|address, _| !ended.contains(address));
        }
        let why = if left == 0 {
            "their last connections have ended".to_owned()
        } else {
            format!("10 minutes have gone, {left} connections are left")
        };
        let text = format!("{} no longer answered for: {why}", names(ended.iter().copied()));
        self.node.board.record(Severity::Info, "orphans-end", text, "");
        true
    }

    fn not_asked(&mut self, error: &str) -> bool {
        tracing::warn!(error, "nobody could be asked for addresses");
        if let Some(term) = &mut self.sharing.term {
            term.ask_at = Instant::now() + super::RETRY;
        }
        false
    }

    /// Whether an address may be owned now.
    fn asked(&mut self, found: Found) -> bool {
        let Some(term) = &mut self.sharing.term else {
            return false;
        };
        let withheld = &self.node.split.withheld;
        let board = &self.node.board;
        for (address, mac) in &found.taken {
            if term.taken.get(address) != Some(mac) {
                let text = format!("{address} is not taken: {mac} has it");
                let remedy = "only this node's pair.toml has the address, and somebody uses it: take it out of the file, or from that host; asked again each minute";
                board.record(Severity::Error, "address-in-use", text, remedy);
            }
        }
        term.taken = found.taken;
        let free: Vec<IpAddr> = found
            .free
            .into_iter()
            .filter(|address| withheld.contains(address))
            .collect();
        let asked_again = free.len() + term.taken.len() < withheld.len();
        term.ask_at = Instant::now() + if asked_again { super::RETRY } else { AGAIN };
        if free.is_empty() {
            return false;
        }
        let text = format!("{} taken: nobody else has them", names(free.iter().copied()));
        board.record(Severity::Info, "addresses-taken", text, "");
        if let Some(kept) = &mut self.node.kept {
            let Loaded { node, pair, .. } = &*self.node.loaded;
            let file = own_set(node, pair, &self.node.picture.borrow(), &Split::default());
            let taken = file.addresses.into_iter();
            kept.addresses
                .extend(taken.filter(|(address, _)| free.contains(address)));
        }
        true
    }

    /// What the status says of it.
    pub(super) fn show_owned(&self) {
        let split = &self.node.split;
        let term = self.sharing.term.as_ref();
        let legs = &self.node.loaded.node.legs;
        let orphans: Vec<OrphanStatus> = split
            .orphans
            .iter()
            .map(|orphan| OrphanStatus {
                address: orphan.address,
                leg: legs
                    .get(orphan.leg)
                    .map_or_else(String::new, |leg| leg.name.clone()),
                flows: term.map(|term| term.using.get(&orphan.address).copied().unwrap_or(0)),
            })
            .collect();
        let withheld: Vec<WithheldStatus> = split
            .withheld
            .iter()
            .map(|address| WithheldStatus {
                address: *address,
                used_by: term
                    .and_then(|term| term.taken.get(address))
                    .map(ToString::to_string),
            })
            .collect();
        let refused: BTreeMap<String, u64> = split
            .refused
            .iter()
            .map(|(why, count)| (why.name().to_owned(), *count))
            .collect();
        let board = &self.node.board;
        board.warn("owned", warnings(&orphans, &withheld, &refused, term.is_some()));
        let mut facts = board.facts();
        facts.orphans_until_ns = term
            .filter(|_| !orphans.is_empty())
            .map(|term| term.since_ns + u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX));
        facts.owned = OwnedStatus {
            known: self.node.kept.as_ref().map(|kept| kept.addresses.len() as u64),
            peer_tells: self.peer_tells(),
            orphans,
            orphans_left_ms: None,
            withheld,
            refused,
        };
    }
}

fn warnings(
    orphans: &[OrphanStatus],
    withheld: &[WithheldStatus],
    refused: &BTreeMap<String, u64>,
    owns: bool,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if !orphans.is_empty() {
        let named = names(orphans.iter().map(|orphan| orphan.address));
        warnings.push(if owns {
            format!("{named} only in the other node's pair.toml: no new connections there, until the last one has ended")
        } else {
            format!("{named} only in the other node's pair.toml: after a take-over the connections that are there go on, new ones do not begin")
        });
    }
    let named = |used: bool| {
        let of = withheld.iter().filter(|one| one.used_by.is_some() == used);
        let of: Vec<IpAddr> = of.map(|one| one.address).collect();
        (!of.is_empty()).then(|| names(of.into_iter()))
    };
    if let Some(named) = named(false) {
        warnings.push(if owns {
            format!("{named} only in this node's pair.toml: owned as soon as nobody is found to have it")
        } else {
            format!("{named} only in this node's pair.toml: after a take-over owned only once nobody is found to have it")
        });
    }
    if let Some(named) = named(true) {
        warnings.push(format!("{named} only in this node's pair.toml and used by another host: not owned; asked again each minute"));
    }
    let count: u64 = refused.values().sum();
    if count > 0 {
        let why: Vec<&str> = refused.keys().map(String::as_str).collect();
        warnings.push(format!(
            "{count} addresses of the other node cannot be answered for here ({}): their connections end with a take-over",
            why.join(", ")
        ));
    }
    warnings
}

/// `192.0.2.1, 192.0.2.2 and 7 more are`; of one `192.0.2.1 is`.
fn names(addresses: impl Iterator<Item = IpAddr>) -> String {
    let all: Vec<String> = addresses.map(|address| address.to_string()).collect();
    let shown = all
        .iter()
        .take(NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    match all.len() {
        1 => format!("{shown} is"),
        count if count > NAMED => format!("{shown} and {} more are", count - NAMED),
        _ => format!("{shown} are"),
    }
}

/// Withheld addresses on the legs they would live on, as far as those are there.
fn legs_of(
    loaded: &Loaded,
    picture: &onearm_netcfg::Picture,
    withheld: &BTreeSet<IpAddr>,
) -> Vec<probe::Leg> {
    let named = loaded.pair.named_legs();
    let mut legs: BTreeMap<usize, Vec<IpAddr>> = BTreeMap::new();
    for address in withheld {
        let leg = plan::leg_of(&loaded.node, &named, picture, *address);
        legs.entry(leg).or_default().push(*address);
    }
    let there = |(index, addresses): (usize, Vec<IpAddr>)| {
        let leg = loaded.node.legs.get(index)?;
        let ifindex = plan::leg_picture(leg, picture)?.link?.ifindex;
        Some(probe::Leg {
            ifname: leg.interface.clone(),
            ifindex,
            addresses,
        })
    };
    legs.into_iter().filter_map(there).collect()
}

#[cfg(test)]
mod tests {
    use super::{names, warnings};
    use crate::control::{OrphanStatus, WithheldStatus};
    use std::net::IpAddr;

    fn address(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    #[test]
    fn few_addresses_are_named_and_of_many_the_first() {
        assert_eq!(names([address(1)].into_iter()), "192.0.2.1 is");
        assert_eq!(names((1..3).map(address)), "192.0.2.1, 192.0.2.2 are");
        let many = names((1..=20).map(address));
        assert!(many.ends_with("192.0.2.8 and 12 more are"), "{many}");
    }

    #[test]
    fn each_difference_is_a_warning_of_its_own_and_none_without_one() {
        assert!(warnings(&[], &[], &[].into(), true).is_empty());
        let orphan = OrphanStatus {
            address: address(1),
            leg: "lan".to_owned(),
            flows: None,
        };
        let withheld = [None, Some("02:00:00:00:00:01")].map(|used_by| WithheldStatus {
            address: address(2),
            used_by: used_by.map(str::to_owned),
        });
        for owns in [false, true] {
            let refused = [("host".to_owned(), 3)].into();
            let told = warnings(std::slice::from_ref(&orphan), &withheld, &refused, owns);
            assert_eq!(told.len(), 4, "{told:?}");
            assert!(told[2].contains("used by another host") && told[3].contains("host"));
        }
    }
}
