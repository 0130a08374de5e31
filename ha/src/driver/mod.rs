//! The HA thread: `poll` and `timerfd`, no runtime, no lock, no log, nothing that waits.
//!
//! Each turn reads the clock, *then* takes everything in (orders, leg, frames), then judges deadlines, then carries out.
//! What is decided in a turn counts from the clock read at its beginning; a turn that stalls anywhere therefore ends by
//! writing a lease that has already expired. Adverts and datagrams of the peer, awaited answers, due deadlines and the
//! end of the main process wake the thread; everything else is looked at in the turn that comes every 20 ms anyway.

mod carrier;
pub(crate) mod clock;
mod counters;
mod datagrams;
mod families;
mod filter;
mod leg;
mod neighbour;
mod other;
mod privilege;
pub(crate) mod reception;
mod router;
mod sockets;
mod term;
mod voice;
mod witness;

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

pub use clock::now;
pub use counters::{DriverCounters, WireCounters};
pub(crate) use datagrams::DatagramSocket;
pub use privilege::Grants;
pub(crate) use sockets::PacketSocket;
pub use term::TermTimes;
pub use voice::{PathView, PeerVoice, VoiceCounters};

use crate::announce::{self, OwnedAddress};
use crate::auth::Health;
use crate::config::{Config, Transport, Wire};
use crate::election::{ElectionCounters, ElectionStatus, Input, Role};
use crate::error::Error;
use crate::lease;
use crate::process::{HaEnd, HaState, STATE_NANOS, ToHa, ToMain, Verdict, Watch};
use crate::units::{Centiseconds, MonoTime, Priority};
use crate::wire::advert::{Advert, emit_frame};
use crate::wire::{Address, Mac};
use router::Router;

/// Where the lease goes: one cell that the dataplane reads for every packet.
pub trait LeaseSink {
    /// Writes the deadline: nanoseconds of `CLOCK_MONOTONIC`, 0 for "no lease". Must be one store that never waits.
    fn write(&mut self, deadline_ns: u64);
    /// Writes the deadline of a lease whose holder makes no flows: what has none goes to the peer.
    fn write_yielding(&mut self, deadline_ns: u64);
    /// Until then this node acts on what the peer passes on, and on nothing else; 0 for "no more".
    fn arm(&mut self, until_ns: u64);
    /// Until then this node passes on to the peer what it may not act on, whoever is known to own; 0 for "no more".
    fn relay(&mut self, until_ns: u64);
}

/// Why the HA thread ended; either way the lease is cleared and a release was sent if this node was Active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// [`ToHa::Stop`].
    Ordered,
    /// The main process has ended. The caller exits, so that a new main process finds the interface free.
    MainEnded,
}

/// Time between two turns when nothing else wakes the thread: that of the lease's renewals, so that one turn serves
/// for both. Nanoseconds.
const TURN_NANOS: u64 = lease::RENEW_NANOS;
/// A node that has handed over and is to end passes strays on for so long first: announcements reach everybody within it.
/// Nanoseconds.
const LINGER_NANOS: u64 = 1_000_000_000;
/// Most orders taken in one turn.
const ORDERS_PER_TURN: usize = 32;

/// Runs until ordered to stop or the main process ends. `links` are held as long as it runs.
///
/// Not a runtime's thread: it must not share its thread with anything else.
///
/// # Errors
/// [`Error::System`] if the timer cannot be made or waited for; the lease is cleared.
pub fn run<S: LeaseSink>(
    end: HaEnd,
    mut sink: S,
    grants: Grants,
    links: Vec<OwnedFd>,
) -> Result<Exit, Error> {
    sink.write(0);
    let timer = TimerFd::new(
        ClockId::CLOCK_MONOTONIC,
        TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
    )
    .map_err(Error::system("make timer"))?;
    let mut driver = Driver::new(clock::now(), end, sink, grants, links);
    let result = loop {
        let next = driver.turn();
        if let Some(exit) = driver.ended() {
            break Ok(exit);
        }
        if let Err(error) = driver.sleep(&timer, next) {
            break Err(error);
        }
    };
    driver.sink.write(0);
    driver.sink.relay(0);
    result
}

/// The thread is to end, once what it owned is the peer's.
#[derive(Clone, Copy, Debug)]
struct Ending {
    exit: Exit,
    /// Hand-overs before.
    handed_over: u64,
    /// Since when nothing is owned.
    free_since: Option<MonoTime>,
}

/// What the main process tells once, when it changes, and every router must know.
#[derive(Clone, Copy, Debug)]
struct Told {
    health: Health,
    peer_legs_known: bool,
    peer_has_flows: bool,
}

impl Default for Told {
    /// Nothing is known to be missing.
    fn default() -> Self {
        Self {
            health: Health::TRACKED,
            peer_legs_known: true,
            peer_has_flows: true,
        }
    }
}

#[derive(Debug)]
struct Driver<S> {
    end: HaEnd,
    sink: S,
    grants: Grants,
    links: Vec<OwnedFd>,
    watch: Watch,
    router: Option<Router>,
    owned: Vec<OwnedAddress>,
    /// Parts of the next owned set.
    owned_parts: Vec<OwnedAddress>,
    told: Told,
    counters: DriverCounters,
    turned_at: MonoTime,
    /// When the next state is due.
    state_at: MonoTime,
    /// As told last.
    peer_owns: bool,
    /// Something changed that the main process should see now.
    news: bool,
    ending: Option<Ending>,
}

impl<S: LeaseSink> Driver<S> {
    fn new(now: MonoTime, end: HaEnd, sink: S, grants: Grants, links: Vec<OwnedFd>) -> Self {
        Self {
            end,
            sink,
            grants,
            links,
            watch: Watch::new(now, u64::MAX),
            router: None,
            owned: Vec::new(),
            owned_parts: Vec::new(),
            told: Told::default(),
            counters: DriverCounters::default(),
            turned_at: now,
            state_at: now,
            peer_owns: false,
            news: false,
            ending: None,
        }
    }

    /// One turn; returns when the next one is due.
    fn turn(&mut self) -> MonoTime {
        let now = clock::now();
        self.counters.turns += 1;
        self.counters.longest_gap_nanos = self.counters.longest_gap_nanos.max(now.since(self.turned_at));
        self.turned_at = now;
        self.take_orders(now);
        if let Some(router) = &mut self.router {
            self.news |= router.look_at_leg(now, &mut self.counters);
            self.news |= router.look_at_others(now);
            router.read(now, &mut self.counters);
            match self.watch.look(now) {
                Verdict::FellSilent => router.election.handle(now, Input::MainFellSilent),
                Verdict::SpokeAgain => router.election.handle(now, Input::MainSpokeAgain),
                Verdict::AsBefore => {}
            }
            router.check_hearing(now, &mut self.counters);
            router.election.handle(now, Input::DeadlineReached);
        }
        self.carry_out(now);
        if let Some(router) = &mut self.router {
            router.announce(now, &mut self.counters);
            router.speak(now);
        }
        self.report(now);
        self.router
            .as_ref()
            .and_then(Router::deadline)
            .map_or(now.plus(TURN_NANOS), |due| due.min(now.plus(TURN_NANOS)))
    }

    /// Sleeps until `next`, a message of the peer, an awaited answer, or the end of the main process.
    fn sleep(&self, timer: &TimerFd, next: MonoTime) -> Result<(), Error> {
        let nanos = next.as_nanos().max(1);
        let at = TimeSpec::new(
            (nanos / 1_000_000_000).cast_signed(),
            (nanos % 1_000_000_000).cast_signed(),
        );
        timer
            .set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            .map_err(Error::system("set timer"))?;
        // Orders wait for the next turn; only the end of the pair is reported at once.
        let mut sets = vec![PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        // The end of one that is known to have ended would wake for ever.
        if self.ending.is_none() {
            sets.push(PollFd::new(self.end.as_fd(), PollFlags::empty()));
        }
        sets.extend(
            self.router
                .iter()
                .flat_map(Router::wakes)
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
        );
        match poll(&mut sets, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::system("wait for frames and deadlines")(errno)),
        }
    }

    /// Ends in order: the election hands over first.
    fn end(&mut self, now: MonoTime, exit: Exit) {
        if self.ending.is_some() {
            return;
        }
        let counters = self.router.as_ref().map(|router| *router.election.counters());
        self.ending = Some(Ending {
            exit,
            handed_over: counters.map_or(0, |counters| counters.handed_over),
            free_since: None,
        });
        self.tell_election(now, Input::StopOrdered);
    }

    /// How the thread ends, when it is time to.
    fn ended(&mut self) -> Option<Exit> {
        let ending = self.ending.as_mut()?;
        let Some(router) = &self.router else {
            return Some(ending.exit);
        };
        if router.election.role() == Role::Active {
            return None;
        }
        let since = *ending.free_since.get_or_insert(self.turned_at);
        let strays = router.election.counters().handed_over > ending.handed_over;
        (!strays || self.turned_at.since(since) >= LINGER_NANOS).then_some(ending.exit)
    }

    fn take_orders(&mut self, now: MonoTime) {
        for _ in 0..ORDERS_PER_TURN {
            match self.end.receive() {
                Ok(Some(packet)) => {
                    self.watch.heard(now);
                    self.obey(now, packet.message, packet.descriptors);
                }
                Ok(None) => return,
                Err(Error::PeerEnded) => {
                    self.end(now, Exit::MainEnded);
                    return;
                }
                Err(_) => self.counters.messages_not_understood += 1,
            }
        }
    }

    fn obey(&mut self, now: MonoTime, message: ToHa, descriptors: Vec<OwnedFd>) {
        match message {
            ToHa::Heartbeat => {}
            ToHa::Configure(config) => self.configure(now, *config),
            ToHa::Owned { addresses, more } => {
                self.owned_parts.extend_from_slice(&addresses);
                self.owned_parts.truncate(announce::MAX_OWNED);
                if !more {
                    self.owned = std::mem::take(&mut self.owned_parts);
                    if let Some(router) = &mut self.router {
                        router.announcer.set_owned(now, &self.owned);
                    }
                }
            }
            ToHa::ConflictSeen(address) => {
                if let Some(router) = &mut self.router {
                    router
                        .announcer
                        .handle(now, announce::Input::ConflictSeen(address));
                }
            }
            ToHa::Health(health) => {
                self.told.health = health;
                if let Some(router) = &mut self.router {
                    router.set_health(health);
                }
            }
            ToHa::HandOver { force } => self.tell_election(now, Input::HandOverOrdered { force }),
            ToHa::PeerLegs(known) => {
                self.told.peer_legs_known = known;
                self.tell_election(now, Input::PeerLegsKnown(known));
            }
            ToHa::PeerHasFlows(has) => {
                self.told.peer_has_flows = has;
                self.tell_election(now, Input::PeerHasFlows(has));
            }
            ToHa::Flushed(number) => self.tell_election(now, Input::Flushed(number)),
            ToHa::TakeOver => self.tell_election(now, Input::TakeOverOrdered),
            // The second: at once.
            ToHa::Stop if self.ending.is_some() => self.tell_election(now, Input::StopOrdered),
            ToHa::Stop => self.end(now, Exit::Ordered),
            ToHa::Links { lease: _ } => close_aside(std::mem::replace(&mut self.links, descriptors)),
        }
    }

    fn configure(&mut self, now: MonoTime, config: Config) {
        let errors = config.errors();
        if !errors.is_empty() {
            let errors = errors.iter().map(ToString::to_string).collect();
            self.tell(&ToMain::ConfigRefused(errors));
            return;
        }
        self.news = true;
        self.watch.allow(config.main_silence_nanos());
        match &mut self.router {
            Some(router) if router.config.same_router(&config) => {
                if let Err(error) = router.reconfigure(now, config) {
                    self.tell(&ToMain::ConfigRefused(vec![error.to_string()]));
                }
            }
            Some(_) | None => {
                // Another router or leg: give up the old one first, at once.
                self.tell_election(now, Input::StopOrdered);
                self.tell_election(now, Input::StopOrdered);
                self.carry_out(now);
                self.router = None;
                match Router::new(now, config, &self.owned, self.told) {
                    Ok(router) => self.router = Some(router),
                    Err(error) => self.tell(&ToMain::ConfigRefused(vec![error.to_string()])),
                }
            }
        }
    }

    fn tell_election(&mut self, now: MonoTime, input: Input) {
        if let Some(router) = &mut self.router {
            router.election.handle(now, input);
        }
    }

    fn carry_out(&mut self, now: MonoTime) {
        let Some(router) = &mut self.router else { return };
        let mut messages = Vec::new();
        router.carry_out(now, &mut self.sink, &mut self.counters, |message| {
            messages.push(message);
        });
        self.news |= !messages.is_empty();
        router.tell_recorded(|message| messages.push(message));
        for message in &messages {
            self.tell(message);
        }
    }

    fn tell(&mut self, message: &ToMain) {
        // A full queue or a dead main process: the latter is noticed when orders are taken.
        if !self.end.try_send(message).unwrap_or(false) {
            self.counters.messages_dropped += 1;
        }
    }

    fn report(&mut self, now: MonoTime) {
        let peer_owns = self
            .router
            .as_ref()
            .is_some_and(|router| router.election.peer_owns());
        self.news |= std::mem::replace(&mut self.peer_owns, peer_owns) != peer_owns;
        if self.news || now >= self.state_at {
            self.news = false;
            self.state_at = now.plus(STATE_NANOS);
            let state = self.state(now);
            self.tell(&ToMain::State(Box::new(state)));
        }
    }

    fn state(&mut self, now: MonoTime) -> HaState {
        if let Some(router) = &mut self.router {
            router.count_losses();
        }
        let router = self.router.as_ref();
        HaState {
            at: now,
            election: router.map(|router| ElectionStatus {
                health: router.election.health_at(now),
                ..router.election.status()
            }),
            election_counters: router
                .map_or_else(ElectionCounters::default, |router| *router.election.counters()),
            announce_counters: router
                .map(|router| *router.announcer.counters())
                .unwrap_or_default(),
            wire_counters: router.map(|router| router.wire).unwrap_or_default(),
            driver_counters: self.counters,
            mac: router.and_then(Router::mac),
            leg_fault: router.and_then(Router::leg_fault),
            other_faults: router
                .map(|router| router.other_faults.clone())
                .unwrap_or_default(),
            last_word: router.and_then(Router::last_word),
            peer_voice: router.and_then(Router::peer_voice),
            paths: router.map(Router::paths).unwrap_or_default(),
            advert_heard_at: router.and_then(|router| router.advert_heard_at),
            voice_counters: router.and_then(Router::voice_counters).unwrap_or_default(),
            peer_mac: router.and_then(|router| router.peer_mac),
            owned: router.map_or(self.owned.len(), |router| router.announcer.owned()),
            grants: self.grants,
            term: router.and_then(|router| router.term),
            held: self.links.len(),
        }
    }
}

/// Closes descriptors on a thread of its own: detaching a program waits for the kernel, for up to 84 ms.
fn close_aside(descriptors: Vec<OwnedFd>) {
    if descriptors.is_empty() {
        return;
    }
    let thread = std::thread::Builder::new()
        .name("close".into())
        .stack_size(64 * 1024);
    // Without a thread the closure, and the descriptors in it, are dropped here.
    thread.spawn(move || drop(descriptors)).ok();
}

/// The frame of one advert on one wire, from and (unicast) to `macs`; `trailer` signs it.
pub(crate) fn advert_frame<A: Address>(
    config: &Config,
    wire: &Wire<A>,
    (mac, peer): (Mac, Mac),
    (priority, interval): (Priority, Centiseconds),
    trailer: impl FnOnce(&Advert<A>) -> Vec<u8>,
) -> Vec<u8> {
    let to = match config.transport {
        Transport::Multicast => (A::GROUP.group_mac(), A::GROUP),
        Transport::Unicast => (peer, wire.peer),
    };
    let mut advert = Advert {
        vrid: config.vrid,
        priority,
        interval,
        addresses: wire.announce.clone(),
        trailer: Vec::new(),
    };
    advert.trailer = trailer(&advert);
    emit_frame((mac, wire.address), to, &advert, config.checksum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::sample;
    use crate::election::Entry;
    use crate::process;
    use crate::units::Vrid;

    struct NoLease;

    impl LeaseSink for NoLease {
        fn write(&mut self, _deadline_ns: u64) {}
        fn write_yielding(&mut self, _deadline_ns: u64) {}
        fn arm(&mut self, _until_ns: u64) {}
        fn relay(&mut self, _until_ns: u64) {}
    }

    /// A leg that loses one of two addresses in the peer's network and gets it back.
    #[test]
    fn another_router_knows_what_the_main_process_told_the_one_before() {
        let (_main, end) = process::pair().unwrap();
        let now = clock::now();
        let mut driver = Driver::new(now, end, NoLease, Grants::default(), Vec::new());
        let mut configure = |vrid, orders: [Option<ToHa>; 2]| {
            let config = Config {
                vrid: Vrid::new(vrid).unwrap(),
                record: true,
                ..sample()
            };
            let configured = [ToHa::Configure(Box::new(config))];
            for order in configured.into_iter().chain(orders.into_iter().flatten()) {
                driver.obey(now, order, Vec::new());
            }
            let router = driver.router.as_mut().unwrap();
            router.check_hearing(now, &mut DriverCounters::default());
            let recorded = router.election.take_recorded();
            let mut legs = recorded.iter().filter_map(|entry| match entry {
                Entry::Given {
                    input: Input::PeerLegsKnown(known),
                    ..
                } => Some(*known),
                _ => None,
            });
            (router.election.health_at(now), legs.next_back())
        };
        let told = [Some(ToHa::Health(Health::DATAPLANE)), Some(ToHa::PeerLegs(false))];
        let before = configure(51, told);
        assert_eq!((before.0.has(Health::DATAPLANE), before.1), (true, Some(false)));
        assert_eq!(configure(52, [None, None]), before);
    }
}
