//! Whether anybody has an address, asked before it is taken: ARP probes (RFC 5227 §2.1) and neighbour solicitations without a source
//! (RFC 4862 §5.4), three of each. [`Probe`] is pure; [`run`] lends it sockets.
//!
//! Each address is asked for three times, 1 to 2 s apart, after a wait of up to 1 s; 2 s after the last question silence counts as
//! nobody. Many addresses are asked for together, paced.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::driver::{self, PacketSocket};
use crate::sys;
use crate::units::MonoTime;
use crate::wire::Mac;
use crate::wire::arp::{Arp, Operation};
use crate::wire::frame::{ETHERTYPE_ARP, Ethernet};
use crate::wire::ndp::{Kind, Message, solicited_node};

/// Questions about each address (`PROBE_NUM`).
const ROUNDS: u8 = 3;
/// Longest wait before the first one (`PROBE_WAIT`), nanoseconds.
const WAIT_NANOS: u64 = 1_000_000_000;
/// Least time between two rounds (`PROBE_MIN`); the most (`PROBE_MAX`) is twice that. Nanoseconds.
const GAP_NANOS: u64 = 1_000_000_000;
/// From the last question to the verdict (`ANNOUNCE_WAIT`), nanoseconds.
const SILENCE_NANOS: u64 = 2_000_000_000;
/// Questions at one time, and the pause after them: 3,200 a second, as announcements at most.
const BURST: usize = 64;
const PACE_NANOS: u64 = 20_000_000;
/// A caller that gives up is heard within this.
const LOOK: Duration = Duration::from_millis(100);

/// Addresses to be asked for on one leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Name of the interface.
    pub ifname: String,
    /// Its index.
    pub ifindex: u32,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
}

/// What came of it. An address that is in neither was not asked for often enough: a leg was down, or the caller gave up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Nobody has these.
    pub free: BTreeSet<IpAddr>,
    /// Somebody has these.
    pub taken: BTreeMap<IpAddr, Mac>,
}

/// The asking.
#[derive(Debug)]
pub struct Probe {
    asked: Vec<(usize, IpAddr)>,
    legs: BTreeMap<IpAddr, usize>,
    /// Questions that left, by address.
    left: BTreeMap<IpAddr, u8>,
    taken: BTreeMap<IpAddr, Mac>,
    /// Legs whose silence means nothing.
    lost: BTreeSet<usize>,
    rounds: u8,
    next: usize,
    due: Option<MonoTime>,
    random: u64,
}

impl Probe {
    /// About addresses, each with the number of its leg. `seed`: any number.
    pub fn new(now: MonoTime, asked: Vec<(usize, IpAddr)>, seed: u64) -> Self {
        let mut probe = Self {
            legs: asked.iter().map(|(leg, address)| (*address, *leg)).collect(),
            asked,
            left: BTreeMap::new(),
            taken: BTreeMap::new(),
            lost: BTreeSet::new(),
            rounds: 0,
            next: 0,
            due: None,
            random: seed | 1,
        };
        probe.due = Some(now.plus(probe.below(WAIT_NANOS)));
        probe
    }

    /// When [`Self::questions`] are due; `None`: it is over.
    pub fn deadline(&self) -> Option<MonoTime> {
        self.due.filter(|_| self.taken.len() < self.asked.len())
    }

    /// Questions to be asked now, by leg.
    pub fn questions(&mut self, now: MonoTime) -> Vec<(usize, IpAddr)> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        if self.rounds == ROUNDS {
            self.due = None;
            return Vec::new();
        }
        let end = self.asked.len().min(self.next + BURST);
        let now_asked = &self.asked[self.next..end];
        let wanted = now_asked.iter().copied();
        let questions = wanted
            .filter(|(_, address)| !self.taken.contains_key(address))
            .collect();
        self.next = end;
        let pause = if end < self.asked.len() {
            PACE_NANOS
        } else {
            self.next = 0;
            self.rounds += 1;
            if self.rounds == ROUNDS {
                SILENCE_NANOS
            } else {
                GAP_NANOS + self.below(GAP_NANOS)
            }
        };
        self.due = Some(now.plus(pause));
        questions
    }

    /// A question has left.
    pub fn asked(&mut self, address: IpAddr) {
        if !self.legs.get(&address).is_some_and(|leg| self.lost.contains(leg)) {
            *self.left.entry(address).or_default() += 1;
        }
    }

    /// The leg of that number went down: what was not heard of its hosts cannot be told from silence, and what left may have
    /// gone nowhere.
    pub fn lose(&mut self, leg: usize) {
        self.lost.insert(leg);
        let legs = &self.legs;
        self.left.retain(|address, _| legs.get(address) != Some(&leg));
    }

    /// Whether the leg of that number has been up all the time.
    fn listens(&self, leg: usize) -> bool {
        !self.lost.contains(&leg)
    }

    /// A frame came in by the leg of that number, whose own MAC is `own`.
    pub fn heard(&mut self, leg: usize, own: Mac, frame: &[u8]) {
        if let Some((address, mac)) = claim(frame)
            && mac != own
            && self.legs.get(&address) == Some(&leg)
        {
            self.taken.entry(address).or_insert(mac);
        }
    }

    /// What came of it.
    pub fn found(self) -> Found {
        let over = self.due.is_none();
        let is_free = |address: &IpAddr| {
            over && self.left.get(address) == Some(&ROUNDS) && !self.taken.contains_key(address)
        };
        let asked = self.asked.iter().map(|(_, address)| *address);
        Found {
            free: asked.filter(is_free).collect(),
            taken: self.taken,
        }
    }

    /// A number below `limit` (xorshift64).
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }
}

/// Who has, or is about to take, which address, as a frame says.
fn claim(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    if Ethernet::parse(frame).ok()?.ethertype == ETHERTYPE_ARP {
        let arp = Arp::parse_frame(frame).ok()?;
        // A probe of somebody else (RFC 5227 §2.1.1).
        let address = if arp.sender.is_unspecified() {
            arp.target
        } else {
            arp.sender
        };
        return Some((address.into(), arp.sender_mac));
    }
    let (src_mac, message) = Message::parse_frame(frame).ok()?;
    match message.kind {
        Kind::Advertisement { .. } => Some((message.target.into(), message.mac.unwrap_or(src_mac))),
        Kind::Solicitation if message.src.is_unspecified() => Some((message.target.into(), src_mac)),
        Kind::Solicitation => Some((message.src.into(), src_mac)),
    }
}

fn question(address: IpAddr, mac: Mac) -> Vec<u8> {
    match address {
        IpAddr::V4(target) => Arp {
            operation: Operation::Request,
            sender_mac: mac,
            sender: Ipv4Addr::UNSPECIFIED,
            target_mac: Mac::ZERO,
            target,
        }
        .emit_frame(Mac::BROADCAST),
        IpAddr::V6(target) => Message {
            src: Ipv6Addr::UNSPECIFIED,
            dst: solicited_node(target),
            kind: Kind::Solicitation,
            target,
            mac: None,
        }
        .emit_frame(mac),
    }
}

/// Asks for all addresses on their legs. Blocks for 4 to 7 s, and as long as the pace takes beyond 1,000 addresses; less once `stop`
/// is set.
///
/// # Errors
/// The system's where a leg's socket cannot be opened or polled.
pub fn run(legs: &[Leg], seed: u64, stop: &AtomicBool) -> io::Result<Found> {
    let mut open = Vec::with_capacity(legs.len());
    for leg in legs {
        let socket = PacketSocket::open_asker(leg.ifindex)?;
        let mac = socket.mac(&leg.ifname)?;
        open.push((socket, mac));
    }
    let numbered = legs.iter().enumerate();
    let asked = numbered
        .flat_map(|(number, leg)| leg.addresses.iter().map(move |address| (number, *address)))
        .collect();
    let mut probe = Probe::new(driver::now(), asked, seed);
    while let Some(due) = probe.deadline().filter(|_| !stop.load(Ordering::Relaxed)) {
        for (leg, address) in probe.questions(driver::now()) {
            let (socket, mac) = &open[leg];
            // What did not leave is missing in the end.
            if socket.send(&question(address, *mac)).is_ok() {
                probe.asked(address);
            }
        }
        let span = Duration::from_nanos(due.since(driver::now())).min(LOOK);
        let mut waits: Vec<_> = open
            .iter()
            .enumerate()
            .filter(|(number, _)| probe.listens(*number))
            .map(|(_, (socket, _))| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        match poll(
            &mut waits,
            PollTimeout::try_from(span).unwrap_or(PollTimeout::ZERO),
        ) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for (number, (socket, mac)) in open.iter().enumerate() {
            if !probe.listens(number) {
                continue;
            }
            let read = socket.read(|frame, _| probe.heard(number, *mac, frame));
            // Without carrier the kernel takes what is sent, and drops it.
            let up = sys::carrier(socket.as_fd(), &legs[number].ifname);
            if read.is_err() || !up.unwrap_or(false) {
                probe.lose(number);
            }
        }
    }
    Ok(probe.found())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Asks to the end; `at` is called after each question with its number. Gives when each question left, and the end.
    fn ask(
        asked: &[&str],
        seed: u64,
        mut at: impl FnMut(&mut Probe, usize, IpAddr),
    ) -> (Vec<(u64, IpAddr)>, u64, Found) {
        let start = MonoTime::from_nanos(5_000_000_000);
        let asked = asked.iter().map(|text| (0, address(text))).collect();
        let mut probe = Probe::new(start, asked, seed);
        let (mut log, mut now) = (Vec::new(), start);
        while let Some(due) = probe.deadline() {
            now = due;
            for (_, address) in probe.questions(now) {
                probe.asked(address);
                log.push((now.since(start), address));
                at(&mut probe, log.len(), address);
            }
        }
        (log, now.since(start), probe.found())
    }

    #[test]
    fn silence_after_three_questions_is_nobody_in_the_times_of_the_rfc() {
        for seed in 0..200 {
            let (log, end, found) = ask(&["192.0.2.1", "2001:db8::1"], seed, |_, _, _| ());
            let times: Vec<u64> = log.iter().step_by(2).map(|(time, _)| *time).collect();
            assert_eq!(log.len(), 6);
            assert!(times[0] < WAIT_NANOS);
            assert!(
                times
                    .windows(2)
                    .all(|two| (GAP_NANOS..2 * GAP_NANOS).contains(&(two[1] - two[0])))
            );
            assert_eq!(end, times[2] + SILENCE_NANOS);
            assert_eq!(found.free.len(), 2);
        }
    }

    #[test]
    fn who_has_an_address_is_named_and_is_not_asked_again() {
        let reply = Arp {
            operation: Operation::Reply,
            sender_mac: OTHER,
            sender: "192.0.2.1".parse().unwrap(),
            target_mac: OWN,
            target: Ipv4Addr::UNSPECIFIED,
        }
        .emit_frame(OWN);
        let advertised = Message::unsolicited("2001:db8::1".parse().unwrap(), OTHER, false).emit_frame(OTHER);
        for frame in [reply, advertised] {
            let (log, _, found) = ask(&["192.0.2.1", "2001:db8::1"], 7, |probe, number, _| {
                if number == 2 {
                    probe.heard(1, OWN, &frame);
                    assert!(probe.taken.is_empty(), "of another leg");
                    probe.heard(0, OTHER, &frame);
                    assert!(probe.taken.is_empty(), "its own word");
                    probe.heard(0, OWN, &frame);
                }
            });
            assert_eq!(log.len(), 4, "the other one is asked for twice more");
            assert_eq!((found.free.len(), found.taken.len()), (1, 1));
            assert_eq!(found.taken.values().next(), Some(&OTHER));
        }
    }

    #[test]
    fn somebody_who_asks_for_the_same_address_counts_as_having_it() {
        for asked in ["192.0.2.1", "2001:db8::1"] {
            let frame = question(address(asked), OTHER);
            let (log, end, found) = ask(&[asked], 3, |probe, _, _| probe.heard(0, OWN, &frame));
            assert_eq!(log.len(), 1);
            assert!(end < WAIT_NANOS, "nothing is left to wait for");
            assert_eq!(found.taken[&address(asked)], OTHER);
        }
    }

    #[test]
    fn an_address_whose_question_did_not_leave_is_neither_free_nor_taken() {
        let start = MonoTime::from_nanos(1);
        let mut probe = Probe::new(start, vec![(0, address("192.0.2.1"))], 5);
        let mut rounds = 0;
        while let Some(due) = probe.deadline() {
            for (_, address) in probe.questions(due) {
                rounds += 1;
                if rounds != 2 {
                    probe.asked(address);
                }
            }
        }
        assert_eq!(probe.found(), Found::default());
        let cut = Probe::new(start, vec![(0, address("192.0.2.1"))], 5);
        assert_eq!(cut.found(), Found::default(), "given up");
    }

    #[test]
    fn many_addresses_are_asked_for_at_a_bounded_pace() {
        let many: Vec<String> = (0..1_000)
            .map(|n| format!("10.0.{}.{}", n / 250, n % 250))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (log, _, found) = ask(&many, 11, |_, _, _| ());
        assert_eq!((log.len(), found.free.len()), (3_000, 1_000));
        let mut at = BTreeMap::new();
        for (time, _) in log {
            *at.entry(time / PACE_NANOS).or_insert(0) += 1;
        }
        assert!(at.values().all(|count| *count <= 2 * BURST));
    }

    #[test]
    fn silence_of_a_leg_that_was_down_says_nothing_and_other_legs_are_judged() {
        let (one, other) = (address("192.168.100.5"), address("10.0.0.5"));
        for down_at in 0..4 {
            let mut probe = Probe::new(MonoTime::ZERO, vec![(0, one), (1, other)], 7);
            let mut round = 0;
            while let Some(due) = probe.deadline() {
                if round == down_at {
                    probe.lose(0);
                }
                let questions = probe.questions(due);
                for (_, address) in &questions {
                    probe.asked(*address);
                }
                round += usize::from(!questions.is_empty());
            }
            let found = probe.found();
            assert_eq!(found.free, [other].into(), "down before round {down_at}");
            assert!(found.taken.is_empty());
        }
    }
}
