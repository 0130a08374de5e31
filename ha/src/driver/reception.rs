//! Who on the leg's network is asked for signs of life, and what the answers say about this node.

use std::net::IpAddr;

use super::voice::DATAGRAM_NANOS;
use super::witness::{Question, Verdict, Witness};
use crate::auth::{Health, Kind};
use crate::config::Config;
use crate::election::{Election, Input, Role};
use crate::units::MonoTime;
use crate::wire::Mac;
use crate::wire::arp::Arp;
use crate::wire::ndp::Message;

/// What this node knows of its own hearing.
#[derive(Clone, Debug)]
pub(crate) struct Reception {
    witness: Witness,
    /// Who answered last, of those whose answer counts.
    answered: Option<(IpAddr, Mac)>,
    /// What the election was told.
    health: Health,
    /// Bits that the main process knows.
    of_main: Health,
    /// What the peer was and could do when it was last compared with this node.
    compared: Option<(Kind, Health)>,
    /// Since when the peer has been better than this node, the Active, by the witness alone.
    better_since: Option<MonoTime>,
    /// Up to when the election knows that the witness was asked in vain.
    looked_at: MonoTime,
    /// The peer waits to hear whether this node has lost what it has lost, or doubts.
    owes_word: bool,
    /// The election was told that the witness's answer is waited for with doubt.
    doubts: bool,
}

impl Reception {
    pub(crate) fn new(now: MonoTime, config: &Config) -> Self {
        Self {
            witness: Witness::new(now, config.advert_interval.as_nanos(), config.asks()),
            answered: None,
            health: Health::default(),
            // Nothing is known to be missing.
            of_main: Health::TRACKED,
            compared: None,
            better_since: None,
            looked_at: MonoTime::ZERO,
            owes_word: false,
            doubts: false,
        }
    }

    /// Other hosts, or the leg is there anew.
    pub(crate) fn restart(&mut self, now: MonoTime, config: &Config) {
        *self = Self {
            health: self.health,
            of_main: self.of_main,
            doubts: self.doubts,
            ..Self::new(now, config)
        };
    }

    /// What the main process knows.
    pub(crate) fn set_of_main(&mut self, health: Health) {
        self.of_main = health;
    }

    pub(crate) fn deadline(&self) -> Option<MonoTime> {
        self.witness.deadline()
    }

    /// Whether an answer is to be read as soon as it comes.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.witness.awaits_answer()
    }

    /// What must not be told of this node's health at the moment: anything of the witness while its answer is waited for.
    pub(crate) fn in_doubt(&self) -> Health {
        if self.witness.verdict() == Verdict::Doubtful {
            Health::WITNESS
        } else {
            Health::default()
        }
    }

    /// The peer was heard on the leg.
    pub(crate) fn peer_heard(&mut self, at: MonoTime, config: &Config, election: &Election) {
        let interval = election.status().learned_interval_nanos;
        let speaks = config
            .auth
            .as_ref()
            .is_some_and(|auth| auth.paths.iter().any(|path| path.ifname == config.ifname));
        if speaks {
            self.witness.peer_heard(at, interval.min(DATAGRAM_NANOS));
        } else if election.role() == Role::Standby {
            self.witness.peer_heard(at, interval);
        }
    }

    /// `address` answered from `mac`.
    pub(crate) fn answered(&mut self, now: MonoTime, address: IpAddr, mac: Mac, config: &Config) {
        if config.witnesses().any(|host| host == address) {
            self.answered = Some((address, mac));
            self.witness.answered(now);
        }
    }

    /// What is to be asked now, as frames.
    pub(crate) fn questions(&mut self, now: MonoTime, mac: Mac, config: &Config) -> Vec<Vec<u8>> {
        let Some(Question { to_all, repeated }) = self.witness.ask(now) else {
            return Vec::new();
        };
        if repeated {
            // It may have another Ethernet address by now.
            self.answered = None;
        }
        if let Some((host, at)) = self.answered.filter(|_| !to_all) {
            return question(config, mac, host, Some(at)).into_iter().collect();
        }
        let ask = |host| question(config, mac, host, None);
        if to_all {
            let others = config.neighbours.iter().copied().chain(config.peers());
            config.witness.into_iter().chain(others).filter_map(ask).collect()
        } else {
            config.witnesses().filter_map(ask).collect()
        }
    }

    /// Tells the election what this node can do; `legs`: every leg is usable. Whether the peer is to hear of it at once.
    pub(crate) fn judge(&mut self, now: MonoTime, legs: bool, election: &mut Election) -> bool {
        let mut health = self.of_main;
        if legs {
            health = health.with(Health::LEGS);
        }
        if self.witness.verdict() != Verdict::Silent {
            health = health.with(Health::WITNESS);
        }
        let mut says = false;
        if health != self.health {
            self.health = health;
            election.handle(now, Input::HealthChanged(health));
            says = true;
        }
        self.compare(now, election);
        says |= self.tell_doubts(now, election);
        let looked_at = self.witness.unanswered_at();
        let is_silent = self.witness.verdict() == Verdict::Silent;
        let better_since = election.better_by_witness_since(now).filter(|_| is_silent);
        if better_since != self.better_since {
            self.better_since = better_since;
            if better_since > Some(looked_at) {
                self.witness.look(now);
            }
        }
        if is_silent && looked_at != self.looked_at {
            self.looked_at = looked_at;
            election.handle(now, Input::WitnessLeftUnanswered(looked_at));
        }
        if self.owes_word && self.witness.verdict() != Verdict::Doubtful {
            self.owes_word = false;
            says = true;
        }
        says
    }

    /// Whoever doubts first says so: both nodes look at the same time. Whether the peer is to hear of it now; it hears of what it
    /// caused itself once the witness has answered or not.
    fn tell_doubts(&mut self, now: MonoTime, election: &mut Election) -> bool {
        let doubts = self.witness.verdict() != Verdict::Answers;
        if doubts == self.doubts {
            return false;
        }
        self.doubts = doubts;
        election.handle(now, Input::WitnessDoubted(doubts));
        !self.owes_word
    }

    /// A peer that can do less than this node, or doubts it, has noticed something: this node looks, too, and a Standby answers an
    /// owner then.
    fn compare(&mut self, now: MonoTime, election: &Election) {
        let peer = election.health_of_peer(now);
        if peer == self.compared {
            return;
        }
        self.compared = peer;
        match (election.role(), peer) {
            (Role::Standby, Some((Kind::Owner, health))) if !health.has(self.health) => {
                self.witness.doubt(now);
                self.owes_word = true;
            }
            (Role::Active, Some((Kind::Standby, health))) if !health.has(Health::WITNESS) => {
                self.witness.doubt(now);
            }
            _ => {}
        }
    }
}

/// The frame that asks for `host`, which was last seen at `at`; `None` if the adverts have no wire of its family.
pub(super) fn question(config: &Config, mac: Mac, host: IpAddr, at: Option<Mac>) -> Option<Vec<u8>> {
    match host {
        IpAddr::V4(host) => {
            let own = config.ipv4.as_ref()?.address;
            Some(Arp::request(mac, own, host).emit_frame(at.unwrap_or(Mac::BROADCAST)))
        }
        IpAddr::V6(host) => {
            let own = config.ipv6.as_ref()?.address;
            Some(Message::question(own, mac, host).emit_frame(mac))
        }
    }
}

/// The frames that ask who has the addresses the pair owns, one of each family.
pub(super) fn owner_questions(config: &Config, mac: Mac) -> Vec<Vec<u8>> {
    config
        .listed()
        .filter_map(|address| question(config, mac, address, None))
        .collect()
}
