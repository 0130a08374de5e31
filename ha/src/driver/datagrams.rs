//! The UDP socket of one path of HA datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};

use super::sockets::{PRIORITY, read_all};
use crate::config::DatagramPath;

/// Receive buffer, bytes of kernel memory: some hundred datagrams.
const BUFFER: usize = 128 * 1024;

/// A socket bound to one interface and connected to the peer's address: nobody else's datagrams arrive.
#[derive(Debug)]
pub(crate) struct DatagramSocket(Socket);

impl DatagramSocket {
    /// # Errors
    /// Those of bind(2): `EADDRNOTAVAIL` while the own address is not there, `ENODEV` while the interface is not.
    pub(crate) fn open(path: &DatagramPath) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(path.own),
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )?;
        socket.bind_device(Some(path.ifname.as_bytes()))?;
        socket.set_recv_buffer_size(BUFFER)?;
        socket.set_priority(PRIORITY)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        match path.own {
            SocketAddr::V4(_) => socket.set_tos_v4(0xc0)?,
            SocketAddr::V6(_) => socket.set_tclass_v6(0xc0)?,
        }
        socket.bind(&path.own.into())?;
        socket.connect(&path.peer.into())?;
        Ok(Self(socket))
    }

    /// # Errors
    /// `EPERM` from a packet filter, `ENETUNREACH`, `ENODEV` and others of send(2). What the peer's kernel refused of an
    /// earlier datagram is no error of this one.
    pub(crate) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        match self.0.send(datagram) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.0.send(datagram).map(drop),
            sent => sent.map(drop),
        }
    }

    /// Reads what has arrived; `hear` gets each datagram with its wall-clock receive time.
    ///
    /// # Errors
    /// Those of recvmsg(2), but for the peer's refusals.
    pub(super) fn read(&self, hear: impl FnMut(&[u8], Option<TimeSpec>)) -> io::Result<()> {
        match read_all(&self.0, hear) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            read => read,
        }
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
