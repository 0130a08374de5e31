//! A leg beside that of the adverts: announcements of the addresses that live there leave by it, and nothing else.

use std::io;

use nix::net::if_::if_nametoindex;

use super::sockets::PacketSocket;
use crate::wire::Mac;

/// One such leg.
#[derive(Debug)]
pub(super) struct OtherLeg {
    name: String,
    /// With the index of the interface it is bound to.
    socket: Option<(u32, PacketSocket)>,
}

impl OtherLeg {
    /// The leg on interface `name`, whether that is there yet or not.
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            socket: None,
        }
    }

    /// Sends the frame that is made of the interface's Ethernet address at this moment.
    pub(super) fn send(&mut self, frame: impl FnOnce(Mac) -> Vec<u8>) -> io::Result<()> {
        let index = if_nametoindex(self.name.as_str())?;
        let socket = match self.socket.take().filter(|(bound, _)| *bound == index) {
            Some((_, socket)) => socket,
            None => PacketSocket::open_announcer(index)?,
        };
        let frame = frame(socket.mac(&self.name)?);
        socket.send(&frame)?;
        self.socket = Some((index, socket));
        Ok(())
    }
}
