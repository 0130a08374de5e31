//! What an authenticated node says beside and within its adverts, and what it believes of what it hears.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use serde::{Deserialize, Serialize};

use super::TURN_NANOS;
use super::clock::ReceiveTimes;
use super::datagrams::DatagramSocket;
use crate::auth::key::Signer;
use crate::auth::session::Oddity;
use crate::auth::word::Disbelief;
use crate::auth::{Freshness, Health, KeyId, Kind, Purpose, Session, Spoken, Word};
use crate::config::{Auth, DatagramPath, Rollout};
use crate::election::{Election, PairMessage, Said};
use crate::units::{MonoTime, Vrid};
use crate::wire::Address;
use crate::wire::advert::Advert;

/// Silence after which the peer's authenticated speech begins anew. Nanoseconds.
const PAUSE_NANOS: u64 = 5_000_000_000;
/// Longest time between two datagrams. Nanoseconds.
pub(super) const DATAGRAM_NANOS: u64 = 50_000_000;
/// A path whose socket could not be opened is tried again after this. Nanoseconds.
const REOPEN_NANOS: u64 = 1_000_000_000;

/// Authenticated messages, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoiceCounters {
    /// HA datagrams that left, on any path.
    pub datagrams_sent: u64,
    /// HA datagrams that could not be sent: no route, no interface, or a packet filter.
    pub datagrams_failed: u64,
    /// HA datagrams of the peer that were believed, each once, on whatever path it came.
    pub datagrams_heard: u64,
    /// Messages without authentication where it is asked for.
    pub plain_refused: u64,
    /// Messages whose code is wrong, or signed with a key that this node does not hold.
    pub wrong_code: u64,
    /// Messages that are no whole word, of an unknown format, or with a field out of its range.
    pub not_understood: u64,
    /// Messages heard before: replays, loops, or a network that repeats frames.
    pub repeated: u64,
    /// Messages in this node's own name that it has not sent: of an earlier life, or of a clone.
    pub own_name: u64,
    /// Times the peer went back to an earlier state: a snapshot was restored.
    pub went_back: u64,
    /// Times two nodes of the peer's name were heard in turn.
    pub twins: u64,
}

impl VoiceCounters {
    const fn count(&mut self, disbelief: Disbelief) {
        let counter = match disbelief {
            Disbelief::Missing => &mut self.plain_refused,
            Disbelief::UnknownKey(_) | Disbelief::WrongCode => &mut self.wrong_code,
            Disbelief::Malformed | Disbelief::Format(_) | Disbelief::OutOfRange => &mut self.not_understood,
        };
        *counter += 1;
    }
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It goes to the election.
    Message(PairMessage),
    /// It was heard before, or is of an earlier state of the peer.
    Repeated,
    /// Nothing.
    Dropped,
}

impl Taken {
    /// Whether it is a message whose sender is known to be the peer, as far as messages tell.
    pub(super) fn proves_its_sender(self) -> bool {
        matches!(self, Self::Message(message) if message.proves_its_sender())
    }
}

/// The peer as its authenticated messages show it, those that prove nothing left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerVoice {
    /// Highest key it holds.
    pub newest_key: KeyId,
    /// Since when it speaks so without a pause of five seconds.
    pub since: MonoTime,
    /// When it was heard last.
    pub heard_at: MonoTime,
}

/// A path of HA datagrams as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathView {
    /// The interface.
    pub ifname: String,
    /// Why the last datagram could not be sent: an error number of the system; `None` = it left.
    pub refused: Option<i32>,
    /// When the peer was heard on it last, by a message that proves it.
    pub heard_at: Option<MonoTime>,
}

/// One path of datagrams.
#[derive(Debug)]
struct Path {
    socket: Option<DatagramSocket>,
    try_at: MonoTime,
    refused: Option<i32>,
    heard_at: Option<MonoTime>,
}

/// An authenticated node's voice and ears.
#[derive(Debug)]
pub(super) struct Voice {
    auth: Auth,
    vrid: Vrid,
    adverts: Signer,
    datagrams: Signer,
    session: Session,
    peer: Option<PeerVoice>,
    /// In the order of [`Auth::paths`].
    paths: Vec<Path>,
    due: MonoTime,
    period_nanos: u64,
    last: Option<Spoken>,
    /// What must not be said of this node's health at the moment.
    unsaid: Health,
    pub(super) counters: VoiceCounters,
}

impl Voice {
    /// # Errors
    /// [`io::Error`] if the kernel gives no random numbers.
    pub(super) fn new(now: MonoTime, auth: Auth, vrid: Vrid) -> io::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let (incarnation, salt) = random.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Ok(Self {
            adverts: Signer::new(&auth.keys, Purpose::Advert),
            datagrams: Signer::new(&auth.keys, Purpose::Datagram),
            session: Session::new(number(incarnation), number(salt)),
            peer: None,
            paths: closed(&auth),
            due: now,
            period_nanos: DATAGRAM_NANOS,
            last: None,
            unsaid: Health::default(),
            counters: VoiceCounters::default(),
            auth,
            vrid,
        })
    }

    /// Other keys, paths or generation; what is proved about the peer stays.
    pub(super) fn reconfigure(&mut self, auth: Auth) {
        if auth.keys != self.auth.keys {
            self.adverts = Signer::new(&auth.keys, Purpose::Advert);
            self.datagrams = Signer::new(&auth.keys, Purpose::Datagram);
        }
        if auth.paths != self.auth.paths {
            self.paths = closed(&auth);
        }
        self.auth = auth;
    }

    /// When the next datagram is due at the latest.
    pub(super) const fn due(&self) -> MonoTime {
        self.due
    }

    /// Whether to say something in the turn of `now`: the next one would be too late, or cost a waking of its own.
    pub(super) fn is_due(&self, now: MonoTime) -> bool {
        let early = if self.period_nanos >= 2 * TURN_NANOS {
            TURN_NANOS
        } else {
            0
        };
        now.plus(early) >= self.due
    }

    /// Descriptors that wake the thread when a datagram arrives.
    pub(super) fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.paths.iter().filter_map(|path| path.socket.as_ref());
        sockets.map(AsFd::as_fd)
    }

    /// The next datagram is due now.
    pub(super) fn hurry(&mut self, now: MonoTime) {
        self.due = self.due.min(now);
    }

    /// Bits of this node's health that are in doubt.
    pub(super) fn leave_unsaid(&mut self, bits: Health) {
        self.unsaid = bits;
    }

    /// What was said last.
    pub(super) const fn last(&self) -> Option<Spoken> {
        self.last
    }

    /// What is known of the peer's speech; `None`: it was not heard with authentication yet.
    pub(super) const fn peer(&self) -> Option<PeerVoice> {
        self.peer
    }

    /// The paths in the order of the settings.
    pub(super) fn paths(&self) -> Vec<PathView> {
        let paths = self.paths.iter().zip(&self.auth.paths);
        let view = |(path, known): (&Path, &DatagramPath)| PathView {
            ifname: known.ifname.clone(),
            refused: path.refused,
            heard_at: path.heard_at,
        };
        paths.map(view).collect()
    }

    fn word(&mut self, now: MonoTime, election: &Election, kind: Kind) -> Spoken {
        let settings = election.settings();
        let word = Word {
            kind,
            node: self.auth.node,
            newest_key: self.auth.keys.newest(),
            priority: election.priority(),
            hears_twins: self.session.hears_twins(now),
            signs: election.signs(now),
            interval: settings.interval,
            stamp: self.session.stamp(now, kind),
            epoch: election.epoch_said(kind),
            generation: self.auth.generation,
            owned_digest: 0,
            health: election.health_at(now).without(self.unsaid),
        };
        let key = self.auth.keys.to_sign(self.peer.map(|peer| peer.newest_key));
        let spoken = Spoken { word, key };
        self.last = Some(spoken);
        spoken
    }

    /// The trailer of an advert of ours.
    pub(super) fn trailer<A: Address>(
        &mut self,
        now: MonoTime,
        election: &Election,
        kind: Kind,
        advert: &Advert<A>,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let Spoken { word, key } = self.word(now, election, kind);
        // The keys to sign with are all held.
        word.seal(&self.adverts, key, &[&advert.signed()], &mut out)
            .unwrap_or_default();
        out
    }

    /// Takes an advert; `plain` is what it says by itself.
    pub(super) fn hear_advert<A: Address>(
        &mut self,
        now: MonoTime,
        advert: &Advert<A>,
        plain: PairMessage,
    ) -> Taken {
        let word = match Word::open(&self.adverts, &[&advert.signed()], &advert.trailer) {
            Ok(word) => word,
            Err(Disbelief::Missing) if self.takes_plain() => return Taken::Message(plain),
            Err(disbelief) => {
                self.counters.count(disbelief);
                return Taken::Dropped;
            }
        };
        self.take(now, &word, plain)
    }

    /// Whether messages without authentication count while it is being rolled out.
    fn takes_plain(&self) -> bool {
        match self.auth.rollout {
            Rollout::Accept => true,
            Rollout::Prefer => self.peer.is_none(),
            Rollout::Enforce => false,
        }
    }

    fn take(&mut self, now: MonoTime, word: &Word, plain: PairMessage) -> Taken {
        if word.node == self.auth.node {
            if self.session.judge_own(&word.stamp) == Oddity::OwnName {
                self.counters.own_name += 1;
            }
            return Taken::Dropped;
        }
        let unheard_nanos = self.session.unheard(now, &word.stamp);
        let judged = self.session.judge(now, &word.stamp);
        match judged.oddity {
            Some(Oddity::WentBack) => self.counters.went_back += 1,
            Some(Oddity::Twins) => self.counters.twins += 1,
            Some(Oddity::Repeated) => self.counters.repeated += 1,
            Some(Oddity::Own | Oddity::OwnName) | None => {}
        }
        let Some(freshness) = judged.freshness else {
            return Taken::Repeated;
        };
        if freshness != Freshness::Unproved {
            let unbroken = self.peer.filter(|peer| now.since(peer.heard_at) < PAUSE_NANOS);
            let overtaken = unbroken.filter(|_| judged.is_late);
            self.peer = Some(PeerVoice {
                newest_key: overtaken.map_or(word.newest_key, |peer| peer.newest_key),
                since: unbroken.map_or(now, |peer| peer.since),
                heard_at: now,
            });
        }
        Taken::Message(PairMessage {
            kind: word.kind,
            priority: word.priority,
            interval: word.interval,
            said: Some(Said {
                freshness,
                unheard_nanos,
                epoch: word.epoch,
                health: word.health,
                hears_twins: word.hears_twins,
                signs: word.signs,
                is_late: judged.is_late,
            }),
            ..plain
        })
    }

    /// Sends a datagram on every path; whether one left.
    pub(super) fn say(&mut self, now: MonoTime, election: &Election, kind: Kind) -> bool {
        self.period_nanos = DATAGRAM_NANOS.min(election.settings().interval.as_nanos());
        self.due = now.plus(self.period_nanos);
        let mut left = false;
        for at in 0..self.paths.len() {
            let Spoken { word, key } = self.word(now, election, kind);
            let mut datagram = Vec::new();
            word.seal(&self.datagrams, key, &[&[self.vrid.get()]], &mut datagram)
                .unwrap_or_default();
            let path = &mut self.paths[at];
            if path.socket.is_none() && now >= path.try_at {
                path.try_at = now.plus(REOPEN_NANOS);
                path.socket = DatagramSocket::open(&self.auth.paths[at]).ok();
            }
            let Some(socket) = &path.socket else { continue };
            match socket.send(&datagram) {
                Ok(()) => {
                    self.counters.datagrams_sent += 1;
                    path.refused = None;
                    left = true;
                }
                Err(error) => {
                    self.counters.datagrams_failed += 1;
                    path.refused = error.raw_os_error();
                    // The interface or its address is gone, perhaps made anew under the same name.
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENODEV | libc::ENXIO | libc::EADDRNOTAVAIL)
                    ) {
                        path.socket = None;
                    }
                }
            }
        }
        left
    }

    /// Reads every path; `take` gets each message with the interface it came by. `plain` stands for what an advert of the
    /// peer would say by itself.
    pub(super) fn read(
        &mut self,
        now: MonoTime,
        times: &ReceiveTimes,
        plain: PairMessage,
        mut take: impl FnMut(&str, Taken),
    ) {
        let mut arrived = Vec::new();
        for (number, path) in self.paths.iter_mut().enumerate() {
            let Some(socket) = &path.socket else { continue };
            let read = socket.read(|datagram, stamp| {
                arrived.push((times.of(stamp).min(now), number, datagram.to_vec()));
            });
            if read.is_err() {
                path.socket = None;
            }
        }
        arrived.sort_by_key(|(at, ..)| *at);
        for (at, number, datagram) in arrived {
            match Word::open(&self.datagrams, &[&[self.vrid.get()]], &datagram) {
                Ok(word) => {
                    let taken = self.take(now, &word, PairMessage { at, ..plain });
                    self.counters.datagrams_heard += u64::from(matches!(taken, Taken::Message(_)));
                    if taken.proves_its_sender() {
                        self.paths[number].heard_at = Some(at);
                    }
                    take(&self.auth.paths[number].ifname, taken);
                }
                Err(disbelief) => self.counters.count(disbelief),
            }
        }
    }
}

fn closed(auth: &Auth) -> Vec<Path> {
    let path = |_| Path {
        socket: None,
        try_at: MonoTime::ZERO,
        refused: None,
        heard_at: None,
    };
    auth.paths.iter().map(path).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::auth::{Key, PairKeys};
    use crate::election::{Settings, Stance};
    use crate::units::{Centiseconds, Priority};

    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11));
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 12));

    fn auth(node: u8, keys: &[u16]) -> Auth {
        let key = |id: &u16| Key {
            id: KeyId(*id),
            secret: [7; 32],
        };
        Auth {
            keys: PairKeys::new([1; 16], keys.iter().map(key).collect()).unwrap(),
            node,
            rollout: Rollout::Enforce,
            paths: Vec::new(),
            epoch: 0,
            generation: 1,
        }
    }

    #[test]
    fn b04_a_word_of_before_a_rotation_that_comes_late_takes_no_key_back() {
        let now = |ms: u64| MonoTime::from_nanos((1_000 + ms) * 1_000_000);
        let interval = Centiseconds::new(10).unwrap();
        let election = |address, peer| {
            let settings = Settings {
                priority: Priority::configured(100).unwrap(),
                interval,
                preempt: false,
                preferred: true,
                address,
                peer,
                authenticated: true,
                stance: Stance::Normal,
            };
            Election::new(now(0), settings, 0)
        };
        let vrid = Vrid::new(51).unwrap();
        let mut own = (
            Voice::new(now(0), auth(1, &[1, 2]), vrid).unwrap(),
            election(OWN, PEER),
        );
        let mut peer = (
            Voice::new(now(0), auth(2, &[1]), vrid).unwrap(),
            election(PEER, OWN),
        );
        let plain = |at, source| PairMessage::plain(at, source, Priority::CLAIM, interval);
        for ms in 0..3 {
            let word = own.0.word(now(ms), &own.1, Kind::Standby).word;
            peer.0.take(now(ms), &word, plain(now(ms), OWN));
            let word = peer.0.word(now(ms), &peer.1, Kind::Standby).word;
            own.0.take(now(ms), &word, plain(now(ms), PEER));
        }
        assert_eq!(own.0.word(now(3), &own.1, Kind::Standby).key, KeyId(1));
        let late = peer.0.word(now(4), &peer.1, Kind::Standby).word;
        peer.0.reconfigure(auth(2, &[1, 2]));
        let word = peer.0.word(now(5), &peer.1, Kind::Standby).word;
        for (ms, word) in [(6, word), (7, late)] {
            let taken = own.0.take(now(ms), &word, plain(now(ms), PEER));
            assert!(taken.proves_its_sender());
            assert_eq!(own.0.word(now(ms), &own.1, Kind::Standby).key, KeyId(2), "{ms}");
        }
    }
}
