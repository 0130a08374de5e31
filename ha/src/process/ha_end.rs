//! The HA process's half of the socket pair.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::poll::PollFlags;
use nix::unistd::dup2_stdin;

use super::channel::{Channel, MESSAGE_MAX, Packet};
use super::messages::{ToHa, ToMain};
use crate::driver::clock;
use crate::error::Error;

/// What the main process hands over first.
#[derive(Debug)]
pub struct Begin {
    /// The map of the lease cell, to be mapped by the caller.
    pub lease_map: OwnedFd,
    /// XDP links, held as long as this process lives.
    pub links: Vec<OwnedFd>,
}

/// The HA process's end of the socket pair, on the highest descriptor of the process.
#[derive(Debug)]
pub struct HaEnd {
    channel: Channel,
    buffer: Vec<u8>,
}

impl HaEnd {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            buffer: vec![0; MESSAGE_MAX],
        }
    }

    /// Takes the socket pair from standard input, where [`super::spawn`] put it, and puts `/dev/null` in its place.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn take() -> Result<Self, Error> {
        let input = std::io::stdin();
        let socket = input
            .as_fd()
            .try_clone_to_owned()
            .map_err(|source| Error::System {
                call: "take socket from standard input",
                source,
            })?;
        let null = File::open("/dev/null").map_err(|source| Error::System {
            call: "open /dev/null",
            source,
        })?;
        dup2_stdin(&null).map_err(Error::system("put /dev/null on standard input"))?;
        Ok(Self::new(Channel::on_highest(&socket)?))
    }

    /// Waits for the first message, which brings the descriptors.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`] if anything else comes or nothing within `patience`; [`Error::PeerEnded`].
    pub fn begin(&mut self, patience: Duration) -> Result<Begin, Error> {
        let begun = clock::now();
        loop {
            let packet = self.receive()?;
            let waited = Duration::from_nanos(clock::now().since(begun));
            let missing = Error::NoDescriptors {
                waited_ms: waited.as_millis(),
            };
            match packet {
                Some(Packet {
                    message: ToHa::Links { lease: true },
                    descriptors,
                }) => {
                    let mut descriptors = descriptors.into_iter();
                    let lease_map = descriptors.next().ok_or(missing)?;
                    return Ok(Begin {
                        lease_map,
                        links: descriptors.collect(),
                    });
                }
                Some(Packet {
                    message: ToHa::Heartbeat,
                    ..
                }) => {}
                Some(_) => return Err(missing),
                None => {
                    let left = patience
                        .checked_sub(waited)
                        .filter(|left| !left.is_zero())
                        .ok_or(missing)?;
                    self.channel.wait(PollFlags::POLLIN, left)?;
                }
            }
        }
    }

    /// The next message; never waits.
    pub(crate) fn receive(&mut self) -> Result<Option<Packet<ToHa>>, Error> {
        self.channel.receive(&mut self.buffer)
    }

    /// Sends if there is room; never waits.
    pub(crate) fn try_send(&self, message: &ToMain) -> Result<bool, Error> {
        self.channel.try_send(message, &[])
    }
}

impl AsFd for HaEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
