//! A socket that asks and waits for the answer.

use std::{collections::VecDeque, io, os::fd::AsRawFd as _};

use netlink_sys::{Socket, SocketAddr, protocols};
use nix::sys::{
    socket::{MsgFlags, recv, send, setsockopt, sockopt},
    time::TimeVal,
};

use super::wire::{Frame, Message, frames, u32_of};
use crate::error::Error;

/// The kernel never sends a larger datagram: dumps are cut at 32 KiB.
pub(crate) const MAX_DATAGRAM: usize = 64 * 1024;

/// Requests sent at once before their acknowledgements are read; as many fit into the smallest receive buffer.
const BATCH: usize = 64;

/// Seconds after which an answer is given up. The kernel answers within the send; only a fault shows this.
const PATIENCE_S: i64 = 5;

/// How often a list is asked for again when it changed while it was told.
const LIST_ATTEMPTS: u32 = 5;

/// A netlink socket for requests.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    /// A socket for links, addresses, neighbours, routes and rules.
    pub(crate) fn route() -> Result<Self, Error> {
        Self::new(protocols::NETLINK_ROUTE).map_err(|source| Error::Netlink {
            operation: "open rtnetlink",
            source,
        })
    }

    /// A socket for generic netlink.
    pub(crate) fn generic() -> Result<Self, Error> {
        Self::new(protocols::NETLINK_GENERIC).map_err(|source| Error::Netlink {
            operation: "open generic netlink",
            source,
        })
    }

    fn new(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        socket.set_netlink_get_strict_chk(true)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_S, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; MAX_DATAGRAM],
        })
    }

    /// Asks for a list. `None` if the kernel says there is no such thing (`ENOENT`: a table nobody made yet).
    pub(crate) fn list<T>(
        &mut self,
        request: &Message,
        mut read: impl FnMut(Frame<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..LIST_ATTEMPTS {
            let mut items = Vec::new();
            let message = request.clone().flagged(libc::NLM_F_DUMP);
            let outcome = self.exchange(message, |frame| items.extend(read(frame)));
            match outcome {
                Ok(Dump::Whole) => return Ok(items),
                Ok(Dump::Interrupted) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Asks for one object.
    pub(crate) fn get<T>(
        &mut self,
        request: Message,
        mut read: impl FnMut(Frame<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut found = None;
        self.exchange(request.flagged(libc::NLM_F_ACK), |frame| {
            found = read(frame).or(found.take());
        })?;
        Ok(found)
    }

    /// Makes changes in order, each on its own: one that fails does not stop the next.
    pub(crate) fn change(&mut self, requests: Vec<Message>) -> io::Result<Vec<io::Result<()>>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut requests = VecDeque::from(requests);
        while !requests.is_empty() {
            let batch = requests.drain(..requests.len().min(BATCH));
            let (mut bytes, first) = (Vec::new(), self.sequence.wrapping_add(1));
            let mut count: u32 = 0;
            for request in batch {
                self.sequence = self.sequence.wrapping_add(1);
                bytes.extend(request.flagged(libc::NLM_F_ACK).finish(self.sequence));
                count += 1;
            }
            self.send(&bytes)?;
            let mut missing = count;
            while missing > 0 {
                let length = self.receive()?;
                for frame in frames(&self.buffer[..length]) {
                    if frame.sequence.wrapping_sub(first) < count && is_error(frame.kind) {
                        outcomes.push(acknowledged(frame.payload));
                        missing -= 1;
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Sends a request and hands over every answer until its end.
    fn exchange(&mut self, request: Message, mut each: impl FnMut(Frame<'_>)) -> io::Result<Dump> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.send(&request.finish(sequence))?;
        let mut dump = Dump::Whole;
        loop {
            let length = self.receive()?;
            for frame in frames(&self.buffer[..length]).filter(|frame| frame.sequence == sequence) {
                if i32::from(frame.flags) & libc::NLM_F_DUMP_INTR != 0 {
                    dump = Dump::Interrupted;
                }
                if is_error(frame.kind) {
                    return acknowledged(frame.payload).map(|()| dump);
                }
                if i32::from(frame.kind) == libc::NLMSG_DONE {
                    return acknowledged(frame.payload).map(|()| dump);
                }
                each(frame);
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), bytes, MsgFlags::empty())?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<usize> {
        Ok(recv(
            self.socket.as_raw_fd(),
            &mut self.buffer,
            MsgFlags::empty(),
        )?)
    }
}

enum Dump {
    Whole,
    Interrupted,
}

fn is_error(kind: u16) -> bool {
    i32::from(kind) == libc::NLMSG_ERROR
}

/// The outcome in an acknowledgement: zero or a negative error number.
fn acknowledged(payload: &[u8]) -> io::Result<()> {
    match u32_of(payload).map(u32::cast_signed) {
        None | Some(0..) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
    }
}
