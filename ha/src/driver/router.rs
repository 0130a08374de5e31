//! One virtual router on its leg: the machines, the sockets, and what is carried out between them.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use super::clock::{self, ReceiveTimes};
use super::counters::{DriverCounters, WireCounters};
use super::leg::{Leg, LegView};
use super::neighbour::PeerMac;
use super::sockets::{Heard, LegSockets};
use super::{LeaseSink, advert_destination};
use crate::announce::{self, Announcer};
use crate::config::{Config, Transport};
use crate::election::{Election, HeardAdvert, Input, LegFault, Output};
use crate::error::Error;
use crate::process::ToMain;
use crate::units::{Centiseconds, MonoTime, Priority};
use crate::wire::Mac;
use crate::wire::advert::{Advert, GROUP, ReceivedAdvert, emit_frame, parse_frame};
use crate::wire::arp::Arp;
use crate::wire::frame::{ETHERTYPE_ARP, Ethernet};

/// Everything that belongs to one configuration of one leg.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) config: Config,
    /// `config.announce`, sorted, to compare address lists.
    listed: Vec<Ipv4Addr>,
    leg: Leg,
    view: Result<LegView, LegFault>,
    sockets: Option<LegSockets>,
    /// The leg's Ethernet address when last read.
    mac: Option<Mac>,
    pub(super) peer_mac: Option<Mac>,
    neighbour: PeerMac,
    pub(super) election: Election,
    pub(super) announcer: Announcer,
    pub(super) wire: WireCounters,
    /// When the sockets were last read.
    read_at: MonoTime,
    /// Last deadline written into the lease cell.
    lease_until: MonoTime,
}

impl Router {
    pub(super) fn new(now: MonoTime, config: Config, owned: &[Ipv4Addr]) -> Result<Self, Error> {
        let mut announcer = Announcer::new(config.announcements());
        announcer.set_owned(now, owned);
        Ok(Self {
            listed: sorted(&config.announce),
            leg: Leg::new(&config.ifname, config.address)?,
            view: Err(LegFault::Unknown),
            sockets: None,
            mac: None,
            peer_mac: None,
            neighbour: PeerMac::default(),
            election: Election::new(now, config.election()),
            announcer,
            wire: WireCounters::default(),
            read_at: now,
            lease_until: MonoTime::ZERO,
            config,
        })
    }

    /// Takes over other settings of the same router.
    pub(super) fn reconfigure(&mut self, now: MonoTime, config: Config) {
        self.election.handle(now, Input::Reconfigured(config.election()));
        self.announcer.reconfigure(now, config.announcements());
        self.listed = sorted(&config.announce);
        self.config = config;
    }

    pub(super) fn leg_fault(&self) -> Option<LegFault> {
        self.view.err()
    }

    pub(super) const fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Descriptor that wakes the thread when an advert of the peer arrives.
    pub(super) fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.sockets.as_ref().map(LegSockets::wakes)
    }

    pub(super) fn deadline(&self) -> Option<MonoTime> {
        self.election
            .deadline()
            .into_iter()
            .chain(self.announcer.deadline())
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

    fn open(&mut self, now: MonoTime, view: LegView, counters: &mut DriverCounters) -> Result<(), LegFault> {
        self.mac = Some(self.leg.mac().map_err(|_| LegFault::NotUsable)?);
        if self.sockets.is_some() {
            return Ok(());
        }
        let sockets = LegSockets::open(view.ifindex, self.config.peer).map_err(|_| LegFault::NotUsable)?;
        counters.legs_opened += 1;
        self.sockets = Some(sockets);
        self.neighbour = PeerMac::default();
        self.read_at = now;
        Ok(())
    }

    /// Reads everything that has arrived and hands it to the machines. `now` was read before.
    pub(super) fn read(&mut self, now: MonoTime, counters: &mut DriverCounters) {
        let Some(sockets) = self.sockets.take() else {
            return;
        };
        let times = ReceiveTimes::read(self.read_at);
        self.read_at = now;
        let result = sockets.read(|source, frame, stamp| match source {
            // A receive time later than `now` belongs to a frame that came in during this very turn.
            Heard::PeerAdvert => self.hear_advert(now, times.of(stamp).min(now), frame),
            Heard::Other => self.hear_other(now, times.of(stamp).min(now), frame),
        });
        if result.is_err() {
            counters.read_errors += 1;
            self.leg.doubt();
        }
        self.sockets = Some(sockets);
    }

    /// Adds what the kernel had no room for to the counters.
    pub(super) fn count_losses(&mut self) {
        if let Some(sockets) = &self.sockets {
            let (peer, others) = sockets.drops();
            self.wire.peer_frames_lost += peer;
            self.wire.other_frames_lost += others;
        }
    }

    fn hear_advert(&mut self, now: MonoTime, at: MonoTime, frame: &[u8]) {
        let ReceivedAdvert {
            src_mac,
            src,
            dst,
            advert,
        } = match parse_frame(frame) {
            Ok(received) => received,
            Err(error) => return self.wire.count(error),
        };
        if dst != GROUP && dst != self.config.address {
            self.wire.misdirected += 1;
            return;
        }
        if advert.vrid != self.config.vrid {
            self.wire.other_vrid += 1;
            return;
        }
        if src == self.config.peer {
            self.peer_mac = Some(src_mac);
            self.neighbour.learn(now, src_mac);
        }
        self.election.handle(
            now,
            Input::AdvertReceived(HeardAdvert {
                at,
                source: src,
                priority: advert.priority,
                interval: advert.interval,
                same_addresses: sorted(&advert.addresses) == self.listed,
            }),
        );
    }

    fn hear_other(&mut self, now: MonoTime, at: MonoTime, frame: &[u8]) {
        if Ethernet::parse(frame).is_ok_and(|ethernet| ethernet.ethertype != ETHERTYPE_ARP) {
            return self.hear_advert(now, at, frame);
        }
        match Arp::parse_frame(frame) {
            Ok(arp) => {
                if arp.sender == self.config.peer {
                    self.neighbour.learn(now, arp.sender_mac);
                }
                if self.announcer.owns(arp.sender) && Some(arp.sender_mac) != self.mac {
                    self.announcer
                        .handle(now, announce::Input::ConflictSeen(arp.sender));
                }
            }
            Err(error) => self.wire.count(error),
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
        while let Some(output) = self.election.poll_output() {
            match output {
                Output::SendAdvert {
                    kind,
                    priority,
                    interval,
                    decided_at,
                } => {
                    let sent = self.send_advert(now, priority, interval, counters);
                    // After the send: an advert that left too late credits nothing.
                    let after = clock::now();
                    let report = match sent {
                        Ok(()) => Input::AdvertLeft { kind, decided_at },
                        Err(_) => Input::AdvertFailed,
                    };
                    self.election.handle(after, report);
                }
                Output::RenewLease { deadline } => {
                    sink.write(deadline.as_nanos());
                    self.lease_until = deadline;
                    counters.lease_writes += 1;
                }
                Output::ClearLease => {
                    sink.write(0);
                    self.lease_until = MonoTime::ZERO;
                    counters.lease_writes += 1;
                }
                Output::StartAnnouncing => self.announcer.handle(now, announce::Input::LeaseTaken),
                Output::AnnounceAgain => self.announcer.handle(now, announce::Input::AnnouncementsDoubtful),
                Output::StopAnnouncing => self.announcer.handle(now, announce::Input::LeaseLost),
                Output::ReportTransition(transition) => tell(ToMain::Transition(transition)),
                Output::RaiseAlarm(alarm) => tell(ToMain::Alarm(alarm)),
            }
        }
    }

    /// Builds the advert from what is true now, and sends it.
    fn send_advert(
        &mut self,
        now: MonoTime,
        priority: Priority,
        interval: Centiseconds,
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
            let question = Arp::request(mac, config.address, config.peer).emit_frame(Mac::BROADCAST);
            if sockets.send_arp(&question).is_err() {
                // The advert goes out nevertheless.
                counters.questions_failed += 1;
            }
        }
        let advert = Advert {
            vrid: config.vrid,
            priority,
            interval,
            addresses: config.announce.clone(),
        };
        let to = advert_destination(config, Some(self.neighbour.destination()));
        let sent = sockets.send_advert(&emit_frame((mac, config.address), to, &advert, config.checksum));
        if sent.is_err() {
            self.leg.doubt();
        }
        sent
    }

    /// Sends the announcements that are due, each only under a lease that is still valid.
    pub(super) fn announce(&mut self, now: MonoTime, counters: &mut DriverCounters) {
        if self.announcer.deadline().is_some_and(|due| due <= now) {
            self.announcer.handle(now, announce::Input::DeadlineReached);
        }
        while let Some(announce::Output::Announce { address, form }) = self.announcer.poll_output() {
            let moment = clock::now();
            if moment >= self.lease_until {
                counters.announcements_held_back += 1;
                self.announcer
                    .handle(moment, announce::Input::SendFailed(address));
                continue;
            }
            let sent = self.leg.mac().and_then(|mac| {
                let frame = Arp::gratuitous(address, mac, form).emit_frame(Mac::BROADCAST);
                self.sockets
                    .as_ref()
                    .map_or(Err(io::ErrorKind::NotConnected.into()), |s| s.send_arp(&frame))
            });
            if sent.is_err() {
                self.announcer
                    .handle(moment, announce::Input::SendFailed(address));
            }
        }
    }
}

fn sorted(addresses: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
    let mut addresses = addresses.to_vec();
    addresses.sort_unstable();
    addresses
}
