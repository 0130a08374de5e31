//! The UDP echo on each server: answers every datagram with it and its own tag.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::Result;
use socket2::{Domain, Socket, Type};

use super::{INSTRUMENT_PRIORITY, Recorder, Stop};
use crate::{netns::Namespace, process};

/// Port of the echo service.
pub const PORT: u16 = 7777;

/// A running echo; dropping it ends it.
#[derive(Debug)]
pub struct Echo {
    _recorder: Recorder<()>,
}

impl Echo {
    /// Starts it inside `ns`; `tag` ends every answer.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn start(ns: &Namespace, tag: u8) -> Result<Self> {
        Self::bound(ns, ([0, 0, 0, 0], PORT).into(), tag)
    }

    /// Starts it at one address, which answers then come from: a server that is not the address's only owner, or has
    /// several, needs that.
    ///
    /// # Errors
    /// When the address is not there or the port taken.
    pub fn bound(ns: &Namespace, address: SocketAddr, tag: u8) -> Result<Self> {
        let socket = ns.enter(|| {
            let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
            // An echo at one address lives beside the one at all addresses, and goes first.
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            Ok(UdpSocket::from(socket))
        })?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let stop = Stop::default();
        let flag = stop.clone();
        let thread = ns.thread("echo", move || {
            process::prefer_this_thread(INSTRUMENT_PRIORITY);
            let mut buffer = [0; 16_384];
            while !flag.is_set() {
                // Time-outs and ICMP errors of earlier answers come here too; the next datagram is what counts.
                let Ok((len, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let Some(end) = buffer.get_mut(len) else { continue };
                *end = tag;
                if let Some(answer) = buffer.get(..=len) {
                    drop(socket.send_to(answer, from));
                }
            }
            Ok(())
        })?;
        Ok(Self {
            _recorder: Recorder::new(stop, thread),
        })
    }
}
