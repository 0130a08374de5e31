//! What the main process does in place of a dead HA process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::config::Config;
use crate::driver::{LeaseSink, PacketSocket, advert_frames};
use crate::error::Error;
use crate::sys;
use crate::units::Priority;
use crate::wire::Mac;

/// A socket prepared for the one advert that gives ownership up.
///
/// With `auth = "none"` that advert is the plain VRRP release (priority 0); with authentication it will be *dead(epoch)*
/// under the pair's key.
#[derive(Debug)]
pub struct Guardian {
    config: Config,
    sender: PacketSocket,
    any: OwnedFd,
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
        })
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

    fn release(&self) -> io::Result<()> {
        let config = &self.config;
        let mac = sys::mac(self.any.as_fd(), &config.ifname)?;
        let frames = advert_frames(
            config,
            mac,
            Mac::BROADCAST,
            Priority::RELEASE,
            config.advert_interval,
        );
        // Each is tried; one that arrives is enough for the peer.
        let mut result = Ok(());
        for frame in frames {
            result = result.and(self.sender.send(&frame));
        }
        result
    }
}

fn open(ifname: &str) -> Result<PacketSocket, Error> {
    let failed = |source| Error::OpenLeg {
        ifname: ifname.to_owned(),
        source,
    };
    let ifindex = if_nametoindex(ifname).map_err(|errno| failed(errno.into()))?;
    PacketSocket::open_sender(ifindex).map_err(failed)
}
