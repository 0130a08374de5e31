//! One virtual router on its leg: the machines, the sockets, and what is carried out between them.

mod hearing;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::clock::{self, ReceiveTimes};
use super::counters::{DriverCounters, WireCounters};
use super::families::Families;
use super::leg::{Leg, LegView};
use super::neighbour::PeerMac;
use super::other::OtherLeg;
use super::reception::{self, Reception};
use super::sockets::{Heard, LegSockets};
use super::term::TermTimes;
use super::voice::{PathView, PeerVoice, Taken, Voice, VoiceCounters};
use super::{LeaseSink, Told, advert_frame};
use crate::announce::{self, Announcer, OwnedAddress};
use crate::auth::{self, Health, Spoken};
use crate::config::{Config, Transport, Wire};
use crate::election::{Alarm, Election, Input, LegFault, Output, PairMessage, Role};
use crate::error::Error;
use crate::process::{RECORDED_PER_MESSAGE, ToMain};
use crate::units::{Centiseconds, MonoTime, Priority};
use crate::wire::arp::{Arp, Form};
use crate::wire::ndp::Message;
use crate::wire::{Address, Mac};
use hearing::hear;

/// Everything that belongs to one configuration of one leg.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) config: Config,
    leg: Leg,
    view: Result<LegView, LegFault>,
    sockets: Option<LegSockets>,
    others: Vec<OtherLeg>,
    /// Faults of the other legs, by interface.
    pub(super) other_faults: Vec<(String, LegFault)>,
    /// The leg's Ethernet address when last read.
    mac: Option<Mac>,
    pub(super) peer_mac: Option<Mac>,
    /// When an advert of the peer arrived last.
    pub(super) advert_heard_at: Option<MonoTime>,
    neighbour: PeerMac,
    families: Families,
    /// To be told with the next orders of the election.
    alarms: Vec<Alarm>,
    pub(super) election: Election,
    /// Entries of the recording that were told.
    recorded: u64,
    pub(super) announcer: Announcer,
    /// Where adverts are authenticated.
    pub(super) voice: Option<Voice>,
    reception: Reception,
    pub(super) wire: WireCounters,
    /// When the sockets were last read.
    read_at: MonoTime,
    /// Last deadline written into the lease cell.
    lease_until: MonoTime,
    /// How the last term as Active began.
    pub(super) term: Option<TermTimes>,
    /// The lease is written as that of a node that yields.
    yields: bool,
}

impl Router {
    pub(super) fn new(
        now: MonoTime,
        config: Config,
        owned: &[OwnedAddress],
        told: Told,
    ) -> Result<Self, Error> {
        let mut announcer = Announcer::new(config.announcements());
        announcer.set_owned(now, owned);
        let voice = config.auth.clone().map(|auth| Voice::new(now, auth, config.vrid));
        let epoch = config.auth.as_ref().map_or(0, |auth| auth.epoch);
        let mut election = Election::new(now, config.election(), epoch);
        if config.record {
            election.record(now);
        }
        election.handle(now, Input::PeerLegsKnown(told.peer_legs_known));
        election.handle(now, Input::PeerHasFlows(told.peer_has_flows));
        let mut reception = Reception::new(now, &config);
        reception.set_of_main(told.health);
        Ok(Self {
            voice: voice.transpose().map_err(|source| Error::System {
                call: "read random numbers",
                source,
            })?,
            leg: Leg::new(&config.ifname, config.addresses())?,
            view: Err(LegFault::Unknown),
            sockets: None,
            others: others(&config)?,
            other_faults: Vec::new(),
            mac: None,
            peer_mac: None,
            advert_heard_at: None,
            neighbour: PeerMac::default(),
            families: Families::default(),
            alarms: Vec::new(),
            election,
            recorded: 0,
            announcer,
            reception,
            wire: WireCounters::default(),
            read_at: now,
            lease_until: MonoTime::ZERO,
            term: None,
            yields: false,
            config,
        })
    }

    /// Takes over other settings of the same router.
    ///
    /// # Errors
    /// [`Error::System`] if another leg cannot be watched; nothing has changed.
    pub(super) fn reconfigure(&mut self, now: MonoTime, config: Config) -> Result<(), Error> {
        if self.config.other_legs != config.other_legs {
            self.others = others(&config)?;
        }
        self.election.handle(now, Input::Reconfigured(config.election()));
        self.announcer.reconfigure(now, config.announcements());
        if let (Some(voice), Some(auth)) = (&mut self.voice, &config.auth) {
            voice.reconfigure(auth.clone());
        }
        if !self.config.asks_alike(&config) {
            self.reception.restart(now, &config);
            // The filter of the answers goes by whom is asked.
            self.sockets = None;
            self.view = Err(LegFault::Unknown);
        }
        self.config = config;
        Ok(())
    }

    /// What the main process knows of this node.
    pub(super) fn set_health(&mut self, health: Health) {
        self.reception.set_of_main(health);
    }

    pub(super) fn leg_fault(&self) -> Option<LegFault> {
        self.view.err()
    }

    pub(super) fn last_word(&self) -> Option<Spoken> {
        self.voice.as_ref().and_then(Voice::last)
    }

    pub(super) fn peer_voice(&self) -> Option<PeerVoice> {
        self.voice.as_ref().and_then(Voice::peer)
    }

    pub(super) fn paths(&self) -> Vec<PathView> {
        self.voice.as_ref().map(Voice::paths).unwrap_or_default()
    }

    pub(super) fn voice_counters(&self) -> Option<VoiceCounters> {
        self.voice.as_ref().map(|voice| voice.counters)
    }

    pub(super) const fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Descriptors that wake the thread when a message of the peer arrives.
    pub(super) fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let awaits_answer = self.reception.awaits_answer();
        let adverts = self
            .sockets
            .iter()
            .flat_map(move |sockets| sockets.wakes(awaits_answer));
        adverts.chain(self.voice.iter().flat_map(Voice::wakes))
    }

    pub(super) fn deadline(&self) -> Option<MonoTime> {
        self.election
            .deadline()
            .into_iter()
            .chain(self.announcer.deadline())
            .chain(self.sockets.as_ref().and_then(|_| self.reception.deadline()))
            .chain(self.voice.as_ref().map(Voice::due))
            .min()
    }

    /// Looks at the leg and tells the election. Returns whether anything changed.
    pub(super) fn look_at_leg(&mut self, now: MonoTime, counters: &mut DriverCounters) -> bool {
        let seen = self.leg.look(now);
        if seen == self.view {
            return false;
        }
        if let (Ok(_), Ok(_)) = (self.view, seen) {
            // The interface was made anew between two looks: what the old sockets held is gone.
            self.election.handle(now, Input::LegFailed(LegFault::Missing));
            self.sockets = None;
        }
        let ready = seen.and_then(|view| self.open(now, view, counters).map(|()| view));
        let changed = ready != self.view;
        self.view = ready;
        match ready {
            Ok(_) => self.election.handle(now, Input::LegBecameUsable),
            Err(fault) => {
                if fault == LegFault::Missing {
                    self.sockets = None;
                }
                self.election.handle(now, Input::LegFailed(fault));
            }
        }
        changed
    }

    /// Looks at the other legs and tells the election. Returns whether anything changed.
    pub(super) fn look_at_others(&mut self, now: MonoTime) -> bool {
        let faults: Vec<_> = self
            .others
            .iter_mut()
            .filter_map(|other| Some((other.fault(now)?, other.name())))
            .map(|(fault, name)| (name.to_owned(), fault))
            .collect();
        if faults == self.other_faults {
            return false;
        }
        match (self.other_faults.is_empty(), faults.is_empty()) {
            (true, false) => self.election.handle(now, Input::OtherLegFailed),
            (false, true) => self.election.handle(now, Input::OtherLegsRecovered),
            (true, true) | (false, false) => {}
        }
        self.other_faults = faults;
        true
    }

    fn open(&mut self, now: MonoTime, view: LegView, counters: &mut DriverCounters) -> Result<(), LegFault> {
        self.mac = Some(self.leg.mac().map_err(|_| LegFault::NotUsable)?);
        if self.sockets.is_some() {
            return Ok(());
        }
        let sockets = LegSockets::open(view.ifindex, &self.config).map_err(|_| LegFault::NotUsable)?;
        counters.legs_opened += 1;
        self.sockets = Some(sockets);
        self.neighbour = PeerMac::default();
        self.reception.restart(now, &self.config);
        self.election
            .handle(now, Input::ReceptionAsked(self.config.asks()));
        self.read_at = now;
        Ok(())
    }

    /// Reads everything that has arrived and hands it to the machines. `now` was read before.
    pub(super) fn read(&mut self, now: MonoTime, counters: &mut DriverCounters) {
        let times = ReceiveTimes::read(self.read_at);
        self.read_at = now;
        self.read_datagrams(now, &times);
        let Some(sockets) = self.sockets.take() else {
            return;
        };
        let mut received_at = None;
        let result = sockets.read(|source, frame, stamp| {
            // A receive time later than `now` belongs to a frame that came in during this very turn.
            let at = times.of(stamp).min(now);
            if self
                .mac
                .is_none_or(|own| !frame.get(6..).is_some_and(|rest| rest.starts_with(&own.0)))
            {
                received_at = received_at.max(Some(at));
            }
            match source {
                Heard::PeerAdvert => self.hear_advert(now, at, frame),
                Heard::Answer => self.hear_answer(now, at, frame),
                Heard::Other => self.hear_other(now, at, frame),
            }
        });
        if let Some(at) = received_at {
            self.election.handle(now, Input::LegReceived(at));
        }
        if result.is_err() {
            counters.read_errors += 1;
            self.leg.doubt();
        }
        self.sockets = Some(sockets);
    }

    fn read_datagrams(&mut self, now: MonoTime, times: &ReceiveTimes) {
        let Some(voice) = &mut self.voice else { return };
        let settings = *self.election.settings();
        let plain = PairMessage::plain(now, settings.peer, settings.priority, settings.interval);
        let (election, reception, config) = (&mut self.election, &mut self.reception, &self.config);
        voice.read(now, times, plain, |ifname, taken| {
            if ifname == config.ifname
                && let Taken::Message(message) = taken
            {
                election.handle(now, Input::LegReceived(message.at));
                reception.peer_heard(message.at, config, election);
            }
            hear(election, now, taken);
        });
    }

    /// Adds what the kernel had no room for to the counters.
    pub(super) fn count_losses(&mut self) {
        if let Some(sockets) = &self.sockets {
            let (peer, others) = sockets.drops();
            self.wire.peer_frames_lost += peer;
            self.wire.other_frames_lost += others;
        }
    }

    /// Asks who is to be asked, and tells election and peer what this node can do. After everything was read.
    pub(super) fn check_hearing(&mut self, now: MonoTime, counters: &mut DriverCounters) {
        if let (Some(sockets), Some(mac)) = (&self.sockets, self.mac) {
            ask(
                sockets,
                self.reception.questions(now, mac, &self.config),
                counters,
            );
        }
        let legs = self.view.is_ok() && self.other_faults.is_empty();
        let says = self.reception.judge(now, legs, &mut self.election);
        if let Some(voice) = &mut self.voice {
            voice.leave_unsaid(self.reception.in_doubt());
            if says {
                voice.hurry(now);
            }
        }
    }

    /// Carries out what the election ordered; orders that follow from it as well.
    pub(super) fn carry_out(
        &mut self,
        now: MonoTime,
        sink: &mut impl LeaseSink,
        counters: &mut DriverCounters,
        mut tell: impl FnMut(ToMain),
    ) {
        for alarm in self.alarms.drain(..) {
            tell(ToMain::Alarm(alarm));
        }
        let mut speaks = false;
        while let Some(output) = self.election.poll_output() {
            match output {
                Output::SendAdvert {
                    kind,
                    priority,
                    interval,
                    decided_at,
                    ..
                } => {
                    let sent = self.send_advert(now, (kind, priority, interval), counters);
                    if let (auth::Kind::Claim, Some(mac), Some(sockets)) = (kind, self.mac, &self.sockets) {
                        ask(sockets, reception::owner_questions(&self.config, mac), counters);
                    }
                    let said = self
                        .voice
                        .as_mut()
                        .is_some_and(|voice| voice.say(now, &self.election, kind));
                    // After the send: an advert that left too late credits nothing.
                    let after = clock::now();
                    let report = match sent {
                        Ok(()) => Input::AdvertLeft { kind, decided_at },
                        // Told by another path; who owns or asks must be heard where the traffic is.
                        Err(_) if said && kind == auth::Kind::Release => {
                            Input::AdvertLeft { kind, decided_at }
                        }
                        Err(_) => Input::AdvertFailed,
                    };
                    self.election.handle(after, report);
                }
                Output::RenewLease { deadline } => {
                    self.lease_until = deadline;
                    self.write_lease(sink);
                    if let Some(term) = &mut self.term {
                        term.leased(clock::now());
                    }
                    counters.lease_writes += 1;
                }
                Output::ClearLease => {
                    self.lease_until = MonoTime::ZERO;
                    self.yields = false;
                    self.write_lease(sink);
                    counters.lease_writes += 1;
                }
                Output::Yield(yields) => {
                    self.yields = yields;
                    self.write_lease(sink);
                }
                Output::Arm { until } => sink.arm(until.as_nanos()),
                Output::Relay { until } => sink.relay(until.as_nanos()),
                Output::Speak => speaks = true,
                Output::Flush(number) => tell(ToMain::Flush(number)),
                Output::RefuseHandOver(unable) => tell(ToMain::HandOverRefused(unable)),
                Output::ShowWaiting(waits) => tell(ToMain::HandOverWaits(waits)),
                Output::StartAnnouncing => self.announcer.handle(now, announce::Input::LeaseTaken),
                Output::AnnounceAgain => self.announcer.handle(now, announce::Input::AnnouncementsDoubtful),
                Output::StopAnnouncing => self.announcer.handle(now, announce::Input::LeaseLost),
                Output::ReportTransition(transition) => {
                    if transition.next == Role::Active {
                        self.term = Some(TermTimes::begin(transition.at));
                    }
                    tell(ToMain::Transition(transition));
                }
                Output::RaiseAlarm(alarm) => tell(ToMain::Alarm(alarm)),
            }
        }
        // After everything was decided: what is said is what holds then.
        if speaks && let Some(voice) = &mut self.voice {
            voice.say(now, &self.election, self.election.role_kind());
        }
    }

    fn write_lease(&self, sink: &mut impl LeaseSink) {
        let deadline = self.lease_until.as_nanos();
        if self.yields {
            sink.write_yielding(deadline);
        } else {
            sink.write(deadline);
        }
    }

    /// Builds the advert from what is true now, and sends it.
    fn send_advert(
        &mut self,
        now: MonoTime,
        (kind, priority, interval): (auth::Kind, Priority, Centiseconds),
        counters: &mut DriverCounters,
    ) -> io::Result<()> {
        let mac = self.leg.mac()?;
        if self.mac.replace(mac) != Some(mac) {
            // The leg has another address: everybody's cache is wrong (B15).
            self.announcer.handle(now, announce::Input::AnnouncementsDoubtful);
        }
        let Some(sockets) = &self.sockets else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let config = &self.config;
        if config.transport == Transport::Unicast && self.neighbour.ask(now) {
            // The advert goes out nevertheless.
            let question = config
                .peers()
                .next()
                .and_then(|peer| reception::question(config, mac, peer, None));
            ask(sockets, question, counters);
        }
        let macs = (mac, self.neighbour.destination(now));
        let fields = (priority, interval);
        let (voice, election) = (&mut self.voice, &self.election);
        let ipv4 = config.ipv4.as_ref();
        let ipv4 =
            ipv4.map(|wire| signed_frame(config, wire, macs, fields, (now, kind), voice.as_mut(), election));
        let ipv6 = config.ipv6.as_ref();
        let ipv6 =
            ipv6.map(|wire| signed_frame(config, wire, macs, fields, (now, kind), voice.as_mut(), election));
        // A peer that hears one family only must hear it even if the other cannot be sent.
        let mut sent = Ok(());
        for frame in ipv4.into_iter().chain(ipv6) {
            sent = sent.and(sockets.send_advert(&frame));
        }
        if sent.is_err() {
            self.leg.doubt();
        }
        sent
    }

    /// Tells what the election recorded.
    pub(super) fn tell_recorded(&mut self, mut tell: impl FnMut(ToMain)) {
        for entries in self.election.take_recorded().chunks(RECORDED_PER_MESSAGE) {
            tell(ToMain::Recorded {
                from: self.recorded,
                entries: entries.to_vec(),
            });
            self.recorded += entries.len() as u64;
        }
    }

    /// Says on every path what this node is, if that is due.
    pub(super) fn speak(&mut self, now: MonoTime) {
        if let Some(voice) = &mut self.voice
            && voice.is_due(now)
        {
            voice.say(now, &self.election, self.election.role_kind());
        }
    }

    /// Sends the announcements that are due, each only under a lease that is still valid.
    pub(super) fn announce(&mut self, now: MonoTime, counters: &mut DriverCounters) {
        if self.announcer.deadline().is_some_and(|due| due <= now) {
            self.announcer.handle(now, announce::Input::DeadlineReached);
        }
        while let Some(announce::Output::Announce { owned, form }) = self.announcer.poll_output() {
            let moment = clock::now();
            if moment >= self.lease_until {
                counters.announcements_held_back += 1;
                self.announcer
                    .handle(moment, announce::Input::SendFailed(owned.address));
                continue;
            }
            let sent = if owned.leg == 0 {
                self.leg.mac().and_then(|mac| {
                    let frame = announcement(owned, mac, form);
                    self.sockets
                        .as_ref()
                        .map_or(Err(io::ErrorKind::NotConnected.into()), |s| s.send_other(&frame))
                })
            } else {
                let other = self.others.get_mut(usize::from(owned.leg) - 1);
                other.map_or(Err(io::ErrorKind::NotFound.into()), |other| {
                    other.send(|mac| announcement(owned, mac, form))
                })
            };
            if sent.is_err() {
                self.announcer
                    .handle(moment, announce::Input::SendFailed(owned.address));
            } else if let Some(term) = &mut self.term {
                term.announced(moment, self.announcer.owned());
            }
        }
    }
}

/// The frame of an advert on one wire, with what the node says where it authenticates.
fn signed_frame<A: Address>(
    config: &Config,
    wire: &Wire<A>,
    macs: (Mac, Mac),
    fields: (Priority, Centiseconds),
    (now, kind): (MonoTime, auth::Kind),
    voice: Option<&mut Voice>,
    election: &Election,
) -> Vec<u8> {
    advert_frame(config, wire, macs, fields, |advert| {
        voice.map_or_else(Vec::new, |voice| voice.trailer(now, election, kind, advert))
    })
}

fn ask(sockets: &LegSockets, questions: impl IntoIterator<Item = Vec<u8>>, counters: &mut DriverCounters) {
    for question in questions {
        if sockets.send_other(&question).is_err() {
            counters.questions_failed += 1;
        }
    }
}

fn others(config: &Config) -> Result<Vec<OtherLeg>, Error> {
    config.other_legs.iter().map(|name| OtherLeg::new(name)).collect()
}

/// The frame that announces `owned` at `mac`.
fn announcement(owned: OwnedAddress, mac: Mac, form: Form) -> Vec<u8> {
    match owned.address {
        IpAddr::V4(address) => Arp::gratuitous(address, mac, form).emit_frame(Mac::BROADCAST),
        IpAddr::V6(address) => Message::unsolicited(address, mac, owned.router).emit_frame(mac),
    }
}
