//! The leg's packet sockets: adverts of the peer, answers to questions, and everything else worth hearing.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::filter;
use crate::config::Config;
use crate::sys;
use crate::wire::Mac;
use crate::wire::frame::ETHERTYPE_IPV4;
use crate::wire::ipv6::ETHERTYPE_IPV6;

/// `ETH_P_ALL`.
const EVERY_ETHERTYPE: u16 = 0x0003;
/// Longest frame read; an advert of ours has at most 54 + 8 + 16 × 16 bytes. Longer ones do not pass for whole.
pub(super) const FRAME_MAX: usize = 1518;
/// Receive buffer of the advert socket, bytes of kernel memory: some 300 frames.
const ADVERT_BUFFER: usize = 256 * 1024;
/// Receive buffer of the other socket.
const OTHER_BUFFER: usize = 128 * 1024;
/// Most frames one reading takes from a socket; more than its buffer holds, so everything that had arrived when the
/// reading began is read, and a flood cannot hold the reader.
const MOST_PER_READING: usize = 1_024;
/// Highest queueing priority that needs no capability; the default discipline sends it first.
pub(super) const PRIORITY: u32 = 6;

/// An open packet socket bound to one interface.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    socket: Socket,
}

impl PacketSocket {
    /// Opens, filters and binds.
    pub(crate) fn open(
        ifindex: u32,
        ethertype: u16,
        filters: &[SockFilter],
        receive_buffer: usize,
    ) -> io::Result<Self> {
        // Protocol 0: nothing is received before bind, so nothing of other interfaces is.
        let socket = Socket::new(
            Domain::PACKET,
            Type::RAW.nonblocking().cloexec(),
            Some(Protocol::from(0)),
        )?;
        socket.attach_filter(filters)?;
        socket.set_recv_buffer_size(receive_buffer)?;
        socket.set_priority(PRIORITY)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        sys::ignore_outgoing(socket.as_fd())?;
        sys::bind_packet(socket.as_fd(), ethertype, ifindex)?;
        Ok(Self { socket })
    }

    /// A socket that only sends.
    pub(crate) fn open_sender(ifindex: u32) -> io::Result<Self> {
        Self::open(ifindex, ETHERTYPE_IPV4, &filter::nothing(), 0)
    }

    /// A socket that only sends, and lets the kernel read the Ethernet type from the frame.
    pub(super) fn open_announcer(ifindex: u32) -> io::Result<Self> {
        Self::open(ifindex, EVERY_ETHERTYPE, &filter::nothing(), 0)
    }

    /// A socket that hears who claims which address, and asks.
    pub(crate) fn open_asker(ifindex: u32) -> io::Result<Self> {
        Self::open(ifindex, EVERY_ETHERTYPE, &filter::claims(), ADVERT_BUFFER)
    }

    /// The Ethernet address of interface `ifname` at this very moment.
    pub(crate) fn mac(&self, ifname: &str) -> io::Result<Mac> {
        sys::mac(self.socket.as_fd(), ifname)
    }

    /// Gives one frame to the kernel, through the queueing discipline (an egress filter sees it). A full queue is an
    /// error, never a wait.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        match self.socket.send(frame)? {
            sent if sent == frame.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Reads what has arrived; see [`read_all`].
    pub(crate) fn read(&self, hear: impl FnMut(&[u8], Option<TimeSpec>)) -> io::Result<()> {
        read_all(&self.socket, hear)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads what has arrived; `hear` gets each frame or datagram with its wall-clock receive time.
///
/// # Errors
/// `ENETDOWN` once after the interface went down; what was read before has been handed over.
pub(super) fn read_all(socket: &Socket, mut hear: impl FnMut(&[u8], Option<TimeSpec>)) -> io::Result<()> {
    let mut buffer = [0; FRAME_MAX];
    let mut control = nix::cmsg_space!(TimeSpec);
    for _ in 0..MOST_PER_READING {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let message = recvmsg::<()>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_DONTWAIT,
        );
        let (length, stamp) = match message {
            Ok(message) => {
                let stamp = message.cmsgs()?.find_map(|part| match part {
                    ControlMessageOwned::ScmTimestampns(stamp) => Some(stamp),
                    _ => None,
                });
                (message.bytes, stamp)
            }
            Err(nix::errno::Errno::EAGAIN) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        hear(&buffer[..length.min(FRAME_MAX)], stamp);
    }
    Ok(())
}

/// The sockets of a leg.
#[derive(Debug)]
pub(super) struct LegSockets {
    adverts: PacketSocket,
    answers: PacketSocket,
    others: PacketSocket,
}

impl LegSockets {
    /// One socket for the peer's adverts of both families, so that they are read in the order of their arrival: a
    /// release over one must not be read behind what was sent later over the other.
    pub(super) fn open(ifindex: u32, config: &Config) -> io::Result<Self> {
        let ethertype = match (&config.ipv4, &config.ipv6) {
            (Some(_), None) => ETHERTYPE_IPV4,
            (None, Some(_)) => ETHERTYPE_IPV6,
            (Some(_), Some(_)) | (None, None) => EVERY_ETHERTYPE,
        };
        let adverts = filter::peer_adverts(config);
        let answers = filter::answers(config);
        let others = filter::everything_else(config);
        Ok(Self {
            answers: PacketSocket::open(ifindex, EVERY_ETHERTYPE, &answers, OTHER_BUFFER)?,
            adverts: PacketSocket::open(ifindex, ethertype, &adverts, ADVERT_BUFFER)?,
            others: PacketSocket::open(ifindex, EVERY_ETHERTYPE, &others, OTHER_BUFFER)?,
        })
    }

    /// To be polled: adverts of the peer, and answers while one is awaited, wake the thread, nothing else. Everybody on the leg
    /// can answer as often as he likes.
    pub(super) fn wakes(&self, awaits_answer: bool) -> impl Iterator<Item = BorrowedFd<'_>> {
        let answers = Some(&self.answers).filter(|_| awaits_answer);
        let sockets = std::iter::once(&self.adverts).chain(answers);
        sockets.map(|of| of.socket.as_fd())
    }

    /// Reads all sockets; the peer's adverts first.
    pub(super) fn read(&self, mut hear: impl FnMut(Heard, &[u8], Option<TimeSpec>)) -> io::Result<()> {
        let adverts = self
            .adverts
            .read(|frame, stamp| hear(Heard::PeerAdvert, frame, stamp));
        let answers = self
            .answers
            .read(|frame, stamp| hear(Heard::Answer, frame, stamp));
        let others = self.others.read(|frame, stamp| hear(Heard::Other, frame, stamp));
        adverts.and(answers).and(others)
    }

    pub(super) fn send_advert(&self, frame: &[u8]) -> io::Result<()> {
        self.adverts.send(frame)
    }

    /// ARP and ND, through the socket of all Ethernet types, so that the kernel reads the type from the frame.
    pub(super) fn send_other(&self, frame: &[u8]) -> io::Result<()> {
        self.others.send(frame)
    }

    /// Frames lost because a buffer was full since the last call: of the peer's adverts, of others.
    pub(super) fn drops(&self) -> (u64, u64) {
        let of = |socket: &PacketSocket| sys::packet_drops(socket.socket.as_fd()).map_or(0, u64::from);
        (of(&self.adverts), of(&self.others) + of(&self.answers))
    }
}

/// Which socket a frame came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// An advert with the peer's source address.
    PeerAdvert,
    /// ARP or ND that answers a question of this node's: of the witness, or for an address of the pair's. Comes as
    /// [`Self::Other`] as well.
    Answer,
    /// ARP, ND, or an advert of somebody else.
    Other,
}
