//! Gratuitous ARP or an unsolicited neighbour advertisement for every owned address: paced (both families together),
//! repeated, refreshed, repeated after conflicts. Pure.
//!
//! A *pass* goes over the addresses that still have announcements left, in the order they were given, as fast as the
//! pace allows; the next pass starts no earlier than [`PASS_GAP_NANOS`] after the start of the one before. Taking the
//! lease gives every address [`Settings::rounds`] announcements, an added address gets the same (B20), a refresh (B14)
//! gives one. Conflicts and failed sends jump the queue but keep the pace. Losing the lease drops everything at once.
//!
//! A conflict is answered at once, but each address at most once in [`CONFLICT_GAP_NANOS`] and all together at most
//! [`CONFLICTS_PER_SECOND`] times a second. What these bounds hold back is owed, and so is an answer to what may have
//! followed a claim unseen ([`CONFLICT_BLIND_NANOS`]): the last word after a burst of forged claims is ours.
//!
//! Who carries out [`Output::Announce`] reads the leg's MAC for each frame (B15) and looks at the lease once more before
//! each send.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::units::MonoTime;
use crate::wire::arp::Form;

/// Most owned addresses.
pub const MAX_OWNED: usize = 8_192;
/// Least time between the starts of two passes. Nanoseconds.
pub const PASS_GAP_NANOS: u64 = 1_000_000_000;
/// Least time between two conflict announcements of one address (RFC 5227 §2.4). Nanoseconds.
pub const CONFLICT_GAP_NANOS: u64 = 10_000_000_000;
/// For so long after a claim another one for the same address may go unseen: the dataplane tells of one a second.
/// Nanoseconds.
pub const CONFLICT_BLIND_NANOS: u64 = 1_000_000_000;
/// Most conflict announcements in a second, all addresses together: forged conflicts are no amplifier.
pub const CONFLICTS_PER_SECOND: u32 = 10;
/// How often the pace hands out sends. Nanoseconds.
const TICK_NANOS: u64 = 20_000_000;
/// Most sends in one tick, so that an advert never waits long behind them.
const MOST_PER_TICK: u64 = 64;
/// Pause after a failed send. Nanoseconds.
const RETRY_NANOS: u64 = 100_000_000;
const SECOND_NANOS: u64 = 1_000_000_000;

/// A floating address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OwnedAddress {
    /// The address.
    pub address: IpAddr,
    /// Hosts route through it (a gateway address): IPv6 announcements say so (RFC 4861 §7.2.6, B84).
    pub router: bool,
    /// Where it lives: 0 = on the leg of the adverts, n = on the n-th of [`Config::other_legs`](crate::config::Config::other_legs).
    pub leg: u8,
}

/// How announcements are paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Announcements a second, 1 to [`Self::MOST_RATE`].
    pub rate: u32,
    /// Announcements of each address after a take-over, 1 to 10.
    pub rounds: u8,
    /// Time between two refreshes of all addresses, nanoseconds; 0: none.
    pub refresh_nanos: u64,
}

impl Settings {
    /// Highest rate: 64 sends every 20 ms.
    #[expect(clippy::cast_possible_truncation, reason = "3,200")]
    pub const MOST_RATE: u32 = (MOST_PER_TICK * SECOND_NANOS / TICK_NANOS) as u32;
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// The lease is held: announce everything.
    LeaseTaken,
    /// Ownership ended.
    LeaseLost,
    /// Everything has to be told anew: another node announced for a while, or the leg's MAC changed.
    AnnouncementsDoubtful,
    /// Somebody else claims this address by ARP or Neighbour Discovery.
    ConflictSeen(IpAddr),
    /// The announcement of this address could not be sent.
    SendFailed(IpAddr),
    /// Time passed: hands out what the pace allows.
    DeadlineReached,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Send one gratuitous ARP or unsolicited neighbour advertisement.
    Announce {
        /// For this address.
        owned: OwnedAddress,
        /// ARP in this form; forms alternate from pass to pass.
        form: Form,
    },
}

/// Times something happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnounceCounters {
    /// Announcements ordered.
    pub ordered: u64,
    /// Conflicts seen for an owned address.
    pub conflicts: u64,
    /// Conflicts not answered at once because of the bounds (or not at all: without the lease).
    pub conflicts_suppressed: u64,
    /// Announcements that could not be sent.
    pub send_errors: u64,
    /// Whole passes over all addresses that have ended.
    pub passes: u64,
    /// Time from the last take-over to the end of its first pass, nanoseconds; 0 before.
    pub first_pass_nanos: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owned {
    is: OwnedAddress,
    /// Announcements still to be sent by passes.
    left: u8,
    /// When it was last claimed.
    claimed_at: Option<MonoTime>,
    /// When a conflict was last answered.
    conflict_at: Option<MonoTime>,
    /// When the answer to a conflict is due that the bounds held back.
    owed_at: Option<MonoTime>,
}

impl Owned {
    /// Whether a claim after `now` may go unseen.
    fn may_be_claimed_unseen(&self, now: MonoTime) -> bool {
        self.claimed_at
            .is_some_and(|at| now.since(at) < CONFLICT_BLIND_NANOS)
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No lease.
    Silent,
    /// The lease is held.
    Owner(Schedule),
}

#[derive(Clone, Copy, Debug)]
struct Schedule {
    taken_at: MonoTime,
    /// Position of the running pass.
    cursor: Option<usize>,
    /// When the next pass may start, if one has something to do.
    next_pass_at: MonoTime,
    refresh_at: Option<MonoTime>,
    /// When the pace allows the next sends.
    tick_at: MonoTime,
    first_pass_done: bool,
}

/// Announcements of one leg.
#[derive(Debug)]
pub struct Announcer {
    settings: Settings,
    owned: Vec<Owned>,
    index: BTreeMap<IpAddr, usize>,
    state: State,
    /// Addresses that do not wait for a pass.
    urgent: VecDeque<IpAddr>,
    /// Every `owed_at`, in order.
    owed: BTreeSet<(MonoTime, IpAddr)>,
    form: Form,
    conflict_second: MonoTime,
    conflicts_in_second: u32,
    /// Announcements owed by the pace, in units of `rate` × nanoseconds.
    credit: u64,
    counters: AnnounceCounters,
    outputs: VecDeque<Output>,
}

impl Announcer {
    /// Without addresses and without the lease.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            owned: Vec::new(),
            index: BTreeMap::new(),
            state: State::Silent,
            urgent: VecDeque::new(),
            owed: BTreeSet::new(),
            form: Form::Request,
            conflict_second: MonoTime::ZERO,
            conflicts_in_second: 0,
            credit: 0,
            counters: AnnounceCounters::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Counters since the start.
    pub const fn counters(&self) -> &AnnounceCounters {
        &self.counters
    }

    /// Number of owned addresses.
    pub fn owned(&self) -> usize {
        self.owned.len()
    }

    /// Whether `address` is owned by the pair.
    pub fn owns(&self, address: IpAddr) -> bool {
        self.index.contains_key(&address)
    }

    /// Other settings; a new refresh interval counts from `now` (B14).
    pub fn reconfigure(&mut self, now: MonoTime, settings: Settings) {
        self.settings = settings;
        if let State::Owner(schedule) = &mut self.state {
            schedule.refresh_at = refresh_at(now, settings);
        }
    }

    /// Replaces the owned set, keeping its order: what comes first is announced first. Addresses beyond
    /// [`MAX_OWNED`] and repeated ones are left out. Added addresses are announced if the lease is held (B20).
    pub fn set_owned(&mut self, now: MonoTime, addresses: &[OwnedAddress]) {
        let mut owned = Vec::with_capacity(addresses.len().min(MAX_OWNED));
        let mut index = BTreeMap::new();
        for is in addresses {
            if owned.len() == MAX_OWNED || index.contains_key(&is.address) {
                continue;
            }
            index.insert(is.address, owned.len());
            let known = self.index.get(&is.address).map(|old| self.owned[*old]);
            owned.push(match known {
                Some(old) if old.is == *is => old,
                // New, or a router by now and no host any more: caches are to learn it.
                Some(old) => Owned {
                    is: *is,
                    left: self.settings.rounds,
                    ..old
                },
                None => Owned {
                    is: *is,
                    left: self.settings.rounds,
                    claimed_at: None,
                    conflict_at: None,
                    owed_at: None,
                },
            });
        }
        self.owned = owned;
        self.index = index;
        self.urgent.retain(|address| self.index.contains_key(address));
        self.owed.retain(|(_, address)| self.index.contains_key(address));
        if let State::Owner(schedule) = &mut self.state {
            // Positions have moved: a running pass starts over with what is left.
            schedule.cursor = None;
            schedule.next_pass_at = now;
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::DeadlineReached`] is due; `None` if there is nothing to announce.
    pub fn deadline(&self) -> Option<MonoTime> {
        let State::Owner(schedule) = self.state else {
            return None;
        };
        let work_at = if !self.urgent.is_empty() || schedule.cursor.is_some() {
            Some(schedule.tick_at)
        } else if self.owned.iter().any(|owned| owned.left > 0) {
            Some(schedule.tick_at.max(schedule.next_pass_at))
        } else {
            None
        };
        [work_at, schedule.refresh_at, self.owed_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Something happened.
    pub fn handle(&mut self, now: MonoTime, input: Input) {
        match (self.state, input) {
            (State::Silent | State::Owner(_), Input::LeaseTaken) => {
                self.urgent.clear();
                self.forgive();
                self.refill(self.settings.rounds);
                // However low the rate, the first one goes out at once.
                self.credit = SECOND_NANOS.saturating_sub(u64::from(self.settings.rate) * TICK_NANOS);
                self.form = Form::Request;
                self.state = State::Owner(Schedule {
                    taken_at: now,
                    cursor: None,
                    next_pass_at: now,
                    refresh_at: refresh_at(now, self.settings),
                    tick_at: now,
                    first_pass_done: false,
                });
                self.hand_out(now);
            }
            (State::Silent | State::Owner(_), Input::LeaseLost) => {
                self.state = State::Silent;
                self.urgent.clear();
                self.forgive();
                self.outputs.clear();
                self.refill(0);
            }
            (State::Owner(schedule), Input::AnnouncementsDoubtful) => {
                self.refill(self.settings.rounds);
                // The next pass does not wait for its time; the pace bounds this, however often it is asked for.
                self.state = State::Owner(Schedule {
                    next_pass_at: now,
                    ..schedule
                });
            }
            (State::Owner(_), Input::ConflictSeen(address)) => self.answer_conflict(now, address),
            (State::Owner(schedule), Input::SendFailed(address)) => {
                self.counters.send_errors += 1;
                self.repeat(now, address, schedule);
            }
            (State::Owner(_), Input::DeadlineReached) => self.hand_out(now),
            (State::Silent, Input::AnnouncementsDoubtful | Input::DeadlineReached) => {}
            (State::Silent, Input::SendFailed(_)) => self.counters.send_errors += 1,
            (State::Silent, Input::ConflictSeen(address)) => {
                if self.owns(address) {
                    self.counters.conflicts += 1;
                    self.counters.conflicts_suppressed += 1;
                }
            }
        }
    }

    /// Sends again what failed. On the leg of the adverts soon: without it the term ends. On another one, which may be
    /// down for long, with the next pass, so that it holds up nobody else.
    fn repeat(&mut self, now: MonoTime, address: IpAddr, schedule: Schedule) {
        let Some(position) = self.index.get(&address).copied() else {
            return;
        };
        let owned = &mut self.owned[position];
        if owned.is.leg != 0 {
            owned.left = owned.left.saturating_add(1);
            return;
        }
        if !self.urgent.contains(&address) {
            self.urgent.push_back(address);
        }
        let tick_at = schedule.tick_at.max(now.plus(RETRY_NANOS));
        self.state = State::Owner(Schedule { tick_at, ..schedule });
    }

    /// Gives every address at least `left` announcements, or none.
    fn refill(&mut self, left: u8) {
        for owned in &mut self.owned {
            owned.left = if left == 0 { 0 } else { owned.left.max(left) };
        }
    }

    fn answer_conflict(&mut self, now: MonoTime, address: IpAddr) {
        let Some(position) = self.index.get(&address).copied() else {
            return;
        };
        self.counters.conflicts += 1;
        let owned = &mut self.owned[position];
        owned.claimed_at = Some(now);
        let free_at = owned.conflict_at.map_or(now, |at| at.plus(CONFLICT_GAP_NANOS));
        if free_at <= now && self.conflicts_left(now) > 0 {
            self.answer(now, position);
        } else {
            self.counters.conflicts_suppressed += 1;
            self.owe(free_at.max(now), position);
        }
    }

    /// Answers a conflict about the address at `position`; the bounds allow it.
    fn answer(&mut self, now: MonoTime, position: usize) {
        let owned = &mut self.owned[position];
        owned.conflict_at = Some(now);
        self.conflicts_in_second += 1;
        let address = owned.is.address;
        if !self.urgent.contains(&address) {
            self.urgent.push_back(address);
        }
        if owned.may_be_claimed_unseen(now) {
            self.owe(now.plus(CONFLICT_GAP_NANOS), position);
        }
    }

    /// Owes an answer at `due`, unless one is owed.
    fn owe(&mut self, due: MonoTime, position: usize) {
        let owned = &mut self.owned[position];
        if owned.owed_at.is_none() {
            owned.owed_at = Some(due);
            self.owed.insert((due, owned.is.address));
        }
    }

    /// Conflicts that may still be answered in the second `now` is in.
    fn conflicts_left(&mut self, now: MonoTime) -> u32 {
        if now.since(self.conflict_second) >= SECOND_NANOS {
            self.conflict_second = now;
            self.conflicts_in_second = 0;
        }
        CONFLICTS_PER_SECOND.saturating_sub(self.conflicts_in_second)
    }

    /// When the first owed answer may be given.
    fn owed_due(&self) -> Option<MonoTime> {
        let (due, _) = self.owed.first()?;
        let used_up = self.conflicts_in_second >= CONFLICTS_PER_SECOND;
        let second_ends = self.conflict_second.plus(SECOND_NANOS);
        Some(if used_up { (*due).max(second_ends) } else { *due })
    }

    /// Gives the owed answers that are due.
    fn pay(&mut self, now: MonoTime) {
        while let Some((due, address)) = self.owed.first().copied()
            && due <= now
            && self.conflicts_left(now) > 0
        {
            self.settle(address);
            if let Some(position) = self.index.get(&address) {
                self.answer(now, *position);
            }
        }
    }

    /// Nothing is owed for `address` any more.
    fn settle(&mut self, address: IpAddr) {
        if let Some(position) = self.index.get(&address)
            && let Some(owed_at) = self.owned[*position].owed_at.take()
        {
            self.owed.remove(&(owed_at, address));
        }
    }

    /// Nothing is owed any more.
    fn forgive(&mut self) {
        self.owed.clear();
        for owned in &mut self.owned {
            owned.owed_at = None;
        }
    }

    /// Orders what the pace allows at `now`.
    fn hand_out(&mut self, now: MonoTime) {
        let State::Owner(mut schedule) = self.state else {
            return;
        };
        if schedule.refresh_at.is_some_and(|at| now >= at) {
            schedule.refresh_at = refresh_at(now, self.settings);
            self.refill(1);
        }
        self.pay(now);
        if now >= schedule.tick_at {
            let mut allowed = self.allowance(now, &mut schedule);
            while allowed > 0 {
                let urgent = self.urgent.pop_front();
                let urgent = urgent.and_then(|address| self.index.get(&address).copied());
                let Some(position) = urgent.or_else(|| self.next_of_pass(now, &mut schedule)) else {
                    break;
                };
                let owned = self.owned[position].is;
                if !self.owned[position].may_be_claimed_unseen(now) {
                    // Every claim is older than this announcement.
                    self.settle(owned.address);
                }
                self.counters.ordered += 1;
                self.outputs.push_back(Output::Announce {
                    owned,
                    form: self.form,
                });
                allowed -= 1;
            }
        }
        self.state = State::Owner(schedule);
    }

    /// Sends allowed in the tick that begins at `now`; sets the next tick. A late tick is not made up for.
    fn allowance(&mut self, now: MonoTime, schedule: &mut Schedule) -> u64 {
        schedule.tick_at = now.plus(TICK_NANOS);
        self.credit += u64::from(self.settings.rate) * TICK_NANOS;
        let whole = self.credit / SECOND_NANOS;
        self.credit %= SECOND_NANOS;
        whole.min(MOST_PER_TICK)
    }

    fn next_of_pass(&mut self, now: MonoTime, schedule: &mut Schedule) -> Option<usize> {
        let from = match schedule.cursor {
            Some(cursor) => cursor,
            None if now >= schedule.next_pass_at && self.owned.iter().any(|owned| owned.left > 0) => {
                schedule.next_pass_at = now.plus(PASS_GAP_NANOS);
                0
            }
            None => return None,
        };
        let found = self
            .owned
            .iter()
            .skip(from)
            .position(|owned| owned.left > 0)
            .map(|offset| from + offset);
        if let Some(position) = found {
            self.owned[position].left -= 1;
            schedule.cursor = Some(position + 1);
            return Some(position);
        }
        schedule.cursor = None;
        self.counters.passes += 1;
        if !schedule.first_pass_done {
            schedule.first_pass_done = true;
            self.counters.first_pass_nanos = now.since(schedule.taken_at);
        }
        self.form = match self.form {
            Form::Request => Form::Reply,
            Form::Reply => Form::Request,
        };
        None
    }
}

fn refresh_at(now: MonoTime, settings: Settings) -> Option<MonoTime> {
    (settings.refresh_nanos > 0).then(|| now.plus(settings.refresh_nanos))
}

#[cfg(test)]
mod tests;
