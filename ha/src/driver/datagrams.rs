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
/// Most errors one reading passes over; each is told before what has arrived.
const MOST_ERRORS: usize = 1_024;

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
    /// `EPERM` from a packet filter, `ENETUNREACH`, `ENODEV` and others of send(2). What came of an earlier datagram is no
    /// error of this one.
    pub(crate) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        match self.0.send(datagram) {
            Err(error) if is_told_by_icmp(&error) => self.0.send(datagram).map(drop),
            sent => sent.map(drop),
        }
    }

    /// Reads what has arrived; `hear` gets each datagram with its wall-clock receive time.
    ///
    /// # Errors
    /// Those of recvmsg(2), but for what became of datagrams sent before.
    pub(super) fn read(&self, mut hear: impl FnMut(&[u8], Option<TimeSpec>)) -> io::Result<()> {
        for _ in 0..MOST_ERRORS {
            match read_all(&self.0, &mut hear) {
                Err(error) if is_told_by_icmp(&error) => {}
                read => return read,
            }
        }
        Ok(())
    }
}

/// Whether an error tells what became of an earlier datagram. Everybody on the way can forge the ICMP message it comes from:
/// such an error neither ends the socket nor hides what has arrived, and is gone once it was told.
fn is_told_by_icmp(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EMSGSIZE
                | libc::EPROTO
                | libc::EACCES
        )
    )
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    #[test]
    fn what_came_of_a_datagram_hides_none_that_has_arrived_and_stops_none_that_is_sent() {
        let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (of_peer, own) = (peer.local_addr().unwrap(), free.local_addr().unwrap());
        drop(free);
        let path = DatagramPath {
            ifname: "lo".into(),
            own,
            peer: of_peer,
        };
        let socket = DatagramSocket::open(&path).unwrap();
        peer.send_to(b"one", own).unwrap();
        drop(peer);
        // Nobody is there any more: the kernel says so before it hands over what has arrived.
        socket.send(b"refused").unwrap();
        let mut heard = Vec::new();
        socket.read(|datagram, _| heard.push(datagram.to_vec())).unwrap();
        assert_eq!(heard, [b"one".to_vec()]);
        socket.send(b"refused").unwrap();
        socket.send(b"sent nevertheless").unwrap();
    }

    #[test]
    fn errors_that_anybody_can_forge_are_told_from_those_of_the_node_itself() {
        let is_told = |errno| is_told_by_icmp(&io::Error::from_raw_os_error(errno));
        for errno in [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENOPROTOOPT] {
            assert!(is_told(errno), "{errno}");
        }
        for errno in [
            libc::ENODEV,
            libc::ENXIO,
            libc::EADDRNOTAVAIL,
            libc::EPERM,
            libc::EBADF,
        ] {
            assert!(!is_told(errno), "{errno}");
        }
    }
}
