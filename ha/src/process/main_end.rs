//! The main process's half: starting the HA process, talking to it, noticing its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::poll::PollFlags;

use super::channel::{self, Channel, MESSAGE_MAX};
use super::ha_end::HaEnd;
use super::messages::{ToHa, ToMain};
use crate::error::Error;

/// What came from the HA process.
#[derive(Debug, PartialEq)]
pub enum FromHa {
    /// A message.
    Message(ToMain),
    /// Nothing within the time given.
    Nothing,
    /// It has ended: every descriptor of it is closed or closing, and its thread runs no more. Act at once with
    /// [`super::Guardian::act`].
    Ended,
}

/// The main process's end of the socket pair, on the highest descriptor of the process. All methods take `&self`: one
/// thread may wait for messages while another sends heartbeats.
#[derive(Debug)]
pub struct MainEnd {
    channel: Channel,
    /// For one received message, so that 64 KiB are not made anew for each heartbeat.
    buffer: Mutex<Vec<u8>>,
}

/// Both ends in one process, for a driver that runs in a thread (tests).
///
/// # Errors
/// [`Error::System`].
pub fn pair() -> Result<(MainEnd, HaEnd), Error> {
    let (main, ha) = channel::pair()?;
    Ok((
        MainEnd::new(Channel::on_highest(&main)?),
        HaEnd::new(Channel::on_highest(&ha)?),
    ))
}

/// Starts `command` with its end of the socket pair as standard input. Standard output and error are the caller's
/// choice; the HA thread writes to neither.
///
/// # Errors
/// [`Error::Spawn`], [`Error::System`].
pub fn spawn(mut command: Command) -> Result<(Child, MainEnd), Error> {
    let (main, ha) = channel::pair()?;
    let child = command.stdin(Stdio::from(ha)).spawn().map_err(Error::Spawn)?;
    Ok((child, MainEnd::new(Channel::on_highest(&main)?)))
}

impl MainEnd {
    fn new(channel: Channel) -> Self {
        Self {
            channel,
            buffer: Mutex::new(vec![0; MESSAGE_MAX]),
        }
    }

    /// Gives the HA process the descriptors it holds: first of all messages with the lease map, later (after a leg was
    /// attached anew) without. It drops the links it held before.
    ///
    /// # Errors
    /// Those of [`Self::send`], [`Error::TooManyDescriptors`] above 128.
    pub fn hold(
        &self,
        lease: Option<BorrowedFd<'_>>,
        links: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(), Error> {
        let descriptors: Vec<_> = lease.into_iter().chain(links.iter().copied()).collect();
        self.channel.send(
            &ToHa::Links {
                lease: lease.is_some(),
            },
            &descriptors,
            patience,
        )
    }

    /// Sends, waiting for room up to `patience`. For orders and settings; blocks the calling thread.
    ///
    /// # Errors
    /// [`Error::PeerEnded`], [`Error::PeerBusy`], [`Error::System`].
    pub fn send(&self, message: &ToHa, patience: Duration) -> Result<(), Error> {
        self.channel.send(message, &[], patience)
    }

    /// Sends if there is room; `Ok(false)`: there was none. For heartbeats.
    ///
    /// # Errors
    /// [`Error::PeerEnded`], [`Error::System`].
    pub fn try_send(&self, message: &ToHa) -> Result<bool, Error> {
        self.channel.try_send(message, &[])
    }

    /// The next message, waiting up to `patience`. For one thread at a time; a second one waits for the first.
    ///
    /// # Errors
    /// [`Error::Message`] for a packet that is none of ours (the next one may be), [`Error::System`].
    pub fn receive(&self, patience: Duration) -> Result<FromHa, Error> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        for wait in [true, false] {
            match self.channel.receive(&mut buffer) {
                Ok(Some(packet)) => return Ok(FromHa::Message(packet.message)),
                Ok(None) if wait => {
                    self.channel.wait(PollFlags::POLLIN, patience)?;
                }
                Ok(None) => {}
                Err(Error::PeerEnded) => return Ok(FromHa::Ended),
                Err(error) => return Err(error),
            }
        }
        Ok(FromHa::Nothing)
    }
}

impl AsFd for MainEnd {
    /// Readable when a message waits or the HA process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
