//! What the main process does in place of a dead HA process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::auth::key::Signer;
use crate::auth::{Kind, Purpose, Signs, Spoken, Stamp, Word};
use crate::config::{Auth, Config, Wire};
use crate::driver::{DatagramSocket, LeaseSink, PacketSocket, advert_frame};
use crate::error::Error;
use crate::sys;
use crate::units::Priority;
use crate::wire::{Address, Mac};

/// The dead process may have sent so many messages since it told its last. Fewer than its peer tells apart.
const SENT_SINCE: u64 = 512;

/// A socket prepared for the one advert that gives ownership up; with authentication it is signed, as the dead process's
/// next message, and goes by datagram as well.
#[derive(Debug)]
pub struct Guardian {
    config: Config,
    sender: PacketSocket,
    any: OwnedFd,
    /// What the HA process said last.
    last: Option<Spoken>,
    /// Messages sent in its place since.
    sent: u64,
}

impl Guardian {
    /// Opens the socket on the leg. To be done again when the leg's interface was made anew; [`Self::act`] also tries.
    ///
    /// # Errors
    /// [`Error::OpenLeg`], [`Error::System`].
    pub fn prepare(config: &Config) -> Result<Self, Error> {
        let any = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .map_err(Error::system("open socket for interface requests"))?;
        Ok(Self {
            config: config.clone(),
            sender: open(&config.ifname)?,
            any,
            last: None,
            sent: 0,
        })
    }

    /// Takes the settings of another one; what the HA process said last stays.
    pub fn replace(&mut self, other: Self) {
        let last = self.last;
        *self = other;
        self.last = self.last.or(last);
    }

    /// What the HA process said last, of [`super::HaState::last_word`].
    pub fn note(&mut self, last: Spoken) {
        self.last = Some(last);
        self.sent = 0;
    }

    /// The HA process has ended ([`super::FromHa::Ended`], not a moment earlier: its thread could still write): clears
    /// the lease, then tells the peer, which takes over within 5 ms. On a Standby the release does no harm: an
    /// Active answers it with an advert.
    ///
    /// # Errors
    /// [`Error::Send`], [`Error::OpenLeg`]: the lease is cleared nevertheless, and the peer takes over after its wait.
    pub fn act(&mut self, lease: &mut impl LeaseSink) -> Result<(), Error> {
        lease.write(0);
        if self.release().is_ok() {
            return Ok(());
        }
        // The interface may have been made anew since.
        self.sender = open(&self.config.ifname)?;
        self.release().map_err(|source| Error::Send {
            ifname: self.config.ifname.clone(),
            source,
        })
    }

    fn release(&mut self) -> io::Result<()> {
        if self.config.auth.is_some() {
            self.release_by_datagram();
        }
        let mac = sys::mac(self.any.as_fd(), &self.config.ifname)?;
        // Each is tried; one that arrives is enough for the peer.
        let words = [self.next_word(), self.next_word()];
        let ipv4 = self.config.ipv4.as_ref();
        let ipv4 = ipv4.map_or(Ok(()), |wire| self.release_on(wire, mac, words[0]));
        let ipv6 = self.config.ipv6.as_ref();
        let ipv6 = ipv6.map_or(Ok(()), |wire| self.release_on(wire, mac, words[1]));
        ipv4.and(ipv6)
    }

    fn release_on<A: Address>(&self, wire: &Wire<A>, mac: Mac, word: Option<Spoken>) -> io::Result<()> {
        let config = &self.config;
        let fields = (Priority::RELEASE, config.advert_interval);
        let frame = advert_frame(config, wire, (mac, Mac::BROADCAST), fields, |advert| {
            let signed = advert.signed();
            sealed(config.auth.as_ref(), word, Purpose::Advert, &signed)
        });
        self.sender.send(&frame)
    }

    /// A path that fails is one of several; the peer's wait is there for the case that all do.
    fn release_by_datagram(&mut self) {
        let paths = self
            .config
            .auth
            .as_ref()
            .map_or_else(Vec::new, |auth| auth.paths.clone());
        for path in paths {
            let word = self.next_word();
            let context = [self.config.vrid.get()];
            let datagram = sealed(self.config.auth.as_ref(), word, Purpose::Datagram, &context);
            if let Ok(socket) = DatagramSocket::open(&path) {
                socket.send(&datagram).unwrap_or_default();
            }
        }
    }

    fn next_word(&mut self) -> Option<Spoken> {
        let Spoken { word, key } = self.last?;
        self.sent += 1;
        let stamp = Stamp {
            sequence: word.stamp.sequence + SENT_SINCE + self.sent,
            ..word.stamp
        };
        let word = Word {
            kind: Kind::Release,
            signs: Signs::default(),
            stamp,
            ..word
        };
        Some(Spoken { word, key })
    }
}

/// Nothing without authentication, or before the process has said anything.
fn sealed(auth: Option<&Auth>, spoken: Option<Spoken>, purpose: Purpose, context: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if let (Some(auth), Some(Spoken { word, key })) = (auth, spoken) {
        let signer = Signer::new(&auth.keys, purpose);
        word.seal(&signer, key, &[context], &mut out).unwrap_or_default();
    }
    out
}

fn open(ifname: &str) -> Result<PacketSocket, Error> {
    let failed = |source| Error::OpenLeg {
        ifname: ifname.to_owned(),
        source,
    };
    let ifindex = if_nametoindex(ifname).map_err(|errno| failed(errno.into()))?;
    PacketSocket::open_sender(ifindex).map_err(failed)
}
