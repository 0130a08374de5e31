//! A node under test: the HA thread in its namespace, and a main process reduced to heartbeats and a notebook.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use onearm_ha::announce::OwnedAddress;
use onearm_ha::config::{Config, Transport, Wire};
use onearm_ha::driver::{Exit, Grants, LeaseSink, now, run};
use onearm_ha::election::{Alarm, Role, Transition};
use onearm_ha::process::{FromHa, HaState, MainEnd, ToHa, ToMain, owned_messages, pair};
use onearm_ha::units::{Centiseconds, Priority, Vrid};
use onearm_ha::wire::advert::with_link_local;

use crate::lab::{A, A6, B, B6, Lab, VIP, VIP6, wait_until};

pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// Every write into the lease cell: when, and the deadline.
#[derive(Clone, Default)]
pub(crate) struct Cell {
    writes: Arc<Mutex<Vec<(u64, u64)>>>,
    deadline: Arc<AtomicU64>,
    /// Highest moment up to which it was armed.
    armed: Arc<AtomicU64>,
    /// Times it began to yield.
    yielded: Arc<AtomicU64>,
    yields: Arc<AtomicBool>,
}

impl LeaseSink for Cell {
    fn write_yielding(&mut self, deadline_ns: u64) {
        if !self.yields.swap(true, Ordering::SeqCst) {
            self.yielded.fetch_add(1, Ordering::SeqCst);
        }
        self.note(deadline_ns);
    }

    fn arm(&mut self, until_ns: u64) {
        self.armed.fetch_max(until_ns, Ordering::SeqCst);
    }

    fn relay(&mut self, _until_ns: u64) {}

    fn write(&mut self, deadline_ns: u64) {
        self.yields.store(false, Ordering::SeqCst);
        self.note(deadline_ns);
    }
}

impl Cell {
    fn note(&self, deadline_ns: u64) {
        self.deadline.store(deadline_ns, Ordering::SeqCst);
        self.writes.lock().unwrap().push((now().as_nanos(), deadline_ns));
    }

    pub(crate) fn holds(&self) -> bool {
        self.deadline.load(Ordering::SeqCst) > now().as_nanos()
    }

    pub(crate) fn times_yielded(&self) -> u64 {
        self.yielded.load(Ordering::SeqCst)
    }

    pub(crate) fn was_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) > 0
    }

    fn spans(&self) -> Vec<(u64, u64)> {
        let writes = self.writes.lock().unwrap();
        let end = |number: usize| writes.get(number + 1).map_or(u64::MAX, |(at, _)| *at);
        writes
            .iter()
            .enumerate()
            .map(|(n, (from, until))| (*from, end(n).min(*until)))
            .collect()
    }
}

/// Both leases were never valid at one instant.
#[track_caller]
pub(crate) fn assert_never_two(a: &Cell, b: &Cell) {
    for (from, until) in a.spans() {
        for (other_from, other_until) in b.spans() {
            let (start, end) = (from.max(other_from), until.min(other_until));
            assert!(start >= end, "two leases for {} ns", end - start);
        }
    }
}

#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) state: Option<HaState>,
    pub(crate) transitions: Vec<Transition>,
    pub(crate) alarms: Vec<Alarm>,
    pub(crate) refused: Vec<String>,
}

pub(crate) struct Node {
    pub(crate) main: Arc<MainEnd>,
    pub(crate) cell: Cell,
    pub(crate) notes: Arc<Mutex<Notes>>,
    beats: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    clerk: Option<JoinHandle<()>>,
    thread: Option<JoinHandle<Exit>>,
}

impl Node {
    pub(crate) fn start(lab: &Lab, space: &str, config: &Config) -> Self {
        Self::start_with(lab, space, config, &[owned(VIP), owned(VIP6)], Cell::default())
    }

    pub(crate) fn start_with(
        lab: &Lab,
        space: &str,
        config: &Config,
        owned: &[OwnedAddress],
        cell: Cell,
    ) -> Self {
        let (main, ha) = pair().unwrap();
        let sink = cell.clone();
        let links: Vec<OwnedFd> = Vec::new();
        let thread = lab.within(space, move || run(ha, sink, Grants::default(), links).unwrap());
        for message in owned_messages(owned) {
            main.send(&message, PATIENCE).unwrap();
        }
        main.send(&ToHa::Configure(Box::new(config.clone())), PATIENCE)
            .unwrap();
        let mut node = Self {
            main: Arc::new(main),
            cell,
            notes: Arc::default(),
            beats: Arc::new(AtomicBool::new(true)),
            over: Arc::default(),
            clerk: None,
            thread: Some(thread),
        };
        node.clerk = Some(node.employ());
        node
    }

    fn employ(&self) -> JoinHandle<()> {
        let (main, notes) = (Arc::clone(&self.main), Arc::clone(&self.notes));
        let (beats, over) = (Arc::clone(&self.beats), Arc::clone(&self.over));
        std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                if beats.load(Ordering::SeqCst) {
                    main.try_send(&ToHa::Heartbeat).ok();
                }
                let FromHa::Message(message) = main.receive(Duration::from_millis(5)).unwrap() else {
                    continue;
                };
                let mut notes = notes.lock().unwrap();
                match message {
                    ToMain::State(state) => notes.state = Some(*state),
                    ToMain::Transition(transition) => notes.transitions.push(transition),
                    ToMain::Alarm(alarm) => notes.alarms.push(alarm),
                    ToMain::ConfigRefused(errors) => notes.refused = errors,
                    ToMain::Flush(number) => main.send(&ToHa::Flushed(number), PATIENCE).unwrap(),
                    ToMain::Recorded { .. } | ToMain::HandOverRefused(_) | ToMain::HandOverWaits(_) => {}
                }
            }
        })
    }

    pub(crate) fn order(&self, message: &ToHa) {
        self.main.send(message, PATIENCE).unwrap();
    }

    pub(crate) fn set_beating(&self, beats: bool) {
        self.beats.store(beats, Ordering::SeqCst);
    }

    pub(crate) fn role(&self) -> Option<Role> {
        let notes = self.notes.lock().unwrap();
        notes
            .state
            .as_ref()
            .and_then(|state| state.election)
            .map(|election| election.role)
    }

    pub(crate) fn state(&self) -> HaState {
        self.notes.lock().unwrap().state.clone().unwrap()
    }

    #[track_caller]
    pub(crate) fn wait_role(&self, role: Role) -> u64 {
        wait_until(&format!("role {role}"), LONG, || self.role() == Some(role))
    }

    /// Waits until so many adverts of the peer were heard in all.
    #[track_caller]
    pub(crate) fn wait_heard(&self, adverts: u64) -> u64 {
        wait_until("adverts of the peer", LONG, || {
            let notes = self.notes.lock().unwrap();
            let state = notes.state.as_ref();
            state.is_some_and(|state| state.election_counters.adverts_received >= adverts)
        })
    }

    #[track_caller]
    pub(crate) fn wait_lease(&self) -> u64 {
        wait_until("a lease", LONG, || self.cell.holds())
    }

    /// Ends the HA thread and tells how it ended.
    pub(crate) fn stop(mut self) -> (Exit, Cell) {
        self.main.send(&ToHa::Stop, PATIENCE).unwrap();
        let exit = self.thread.take().unwrap().join().unwrap();
        (exit, self.cell.clone())
    }

    /// The main process dies.
    pub(crate) fn orphan(mut self) -> (Exit, Cell) {
        self.dismiss();
        let (cell, thread) = (self.cell.clone(), self.thread.take().unwrap());
        drop(self);
        (thread.join().unwrap(), cell)
    }

    fn dismiss(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(clerk) = self.clerk.take() {
            clerk.join().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(clerk) = self.clerk.take() {
            clerk.join().ok();
        }
    }
}

/// An address that is no gateway.
pub(crate) fn owned(address: impl Into<IpAddr>) -> OwnedAddress {
    OwnedAddress {
        address: address.into(),
        router: false,
        leg: 0,
    }
}

/// Adverts over IPv6 alone, or beside IPv4.
pub(crate) fn config6(address: Ipv4Addr, interval_ms: u16, beside_ipv4: bool) -> Config {
    let ipv4 = config(address, interval_ms);
    let (own, peer) = if address == A { (A6, B6) } else { (B6, A6) };
    Config {
        ipv6: Some(Wire {
            address: own,
            peer,
            announce: with_link_local(ipv4.vrid, &[VIP6]),
        }),
        ipv4: ipv4.ipv4.filter(|_| beside_ipv4),
        ..ipv4
    }
}

pub(crate) fn config(address: Ipv4Addr, interval_ms: u16) -> Config {
    let is_a = address == A;
    Config {
        ifname: "eth0".into(),
        other_legs: Vec::new(),
        vrid: Vrid::new(51).unwrap(),
        priority: Priority::configured(if is_a { 150 } else { 100 }).unwrap(),
        advert_interval: Centiseconds::new(interval_ms / 10).unwrap(),
        preempt: false,
        preferred: is_a,
        ipv4: Some(Wire {
            address,
            peer: if is_a { B } else { A },
            announce: vec![VIP],
        }),
        ipv6: None,
        transport: Transport::Multicast,
        checksum: onearm_ha::wire::advert::ChecksumForm::PseudoHeader,
        announce_rate: Config::ANNOUNCE_RATE,
        announce_rounds: Config::ANNOUNCE_ROUNDS,
        announce_refresh: Config::ANNOUNCE_REFRESH,
        auth: None,
        witness: None,
        neighbours: Vec::new(),
        record: false,
        stance: onearm_ha::election::Stance::Normal,
        main_silence: Duration::from_millis(200),
    }
}
