//! The socket pair between the two processes: `SOCK_SEQPACKET`, one message a packet, nothing ever blocks the HA thread.
//!
//! The kernel queues few packets (`net.unix.max_dgram_qlen`, 10 by default and more): what does not fit is not sent.
//! Each end lives on the *highest* descriptor of its process, because the kernel closes descriptors highest first when a
//! process is killed: its end is seen within a millisecond, before anything slow is torn down.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::{Zeroize as _, Zeroizing};

use crate::driver::clock;
use crate::error::Error;
use crate::sys;

/// Longest message in bytes.
pub const MESSAGE_MAX: usize = 64 * 1024;
/// No descriptor above this is asked for: the kernel's table of descriptors grows with the highest number.
const HIGHEST: RawFd = 65_535;

/// One end of the pair.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
}

/// A message with the descriptors that came with it.
#[derive(Debug)]
pub(crate) struct Packet<T> {
    pub(crate) message: T,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Both ends, not yet on high descriptors.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
        .map_err(Error::system("make socket pair"))
}

impl Channel {
    /// Duplicates the socket to the highest descriptor this process may have; the caller closes the original.
    /// Descriptors opened later get lower numbers.
    pub(crate) fn on_highest(socket: &OwnedFd) -> Result<Self, Error> {
        let (soft, _) =
            getrlimit(Resource::RLIMIT_NOFILE).map_err(Error::system("read limit of open files"))?;
        let mut number = RawFd::try_from(soft.saturating_sub(1))
            .unwrap_or(HIGHEST)
            .min(HIGHEST);
        // The highest may be taken (two pairs in one process, in tests).
        loop {
            match sys::duplicate_above(socket.as_fd(), number) {
                Ok(socket) => return Ok(Self { socket }),
                Err(source) if number <= socket.as_raw_fd() => {
                    return Err(Error::System {
                        call: "move socket to the highest descriptor",
                        source,
                    });
                }
                Err(_) => number -= 1,
            }
        }
    }

    /// Sends if there is room; `false`: there was none.
    pub(crate) fn try_send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<bool, Error> {
        if descriptors.len() > sys::DESCRIPTORS_MAX {
            return Err(Error::TooManyDescriptors {
                count: descriptors.len(),
            });
        }
        // It may hold keys.
        let bytes = Zeroizing::new(serde_json::to_vec(message).map_err(Error::Message)?);
        if bytes.len() > MESSAGE_MAX {
            return Err(Error::MessageTooLong { length: bytes.len() });
        }
        let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if numbers.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            return match sendmsg::<()>(
                self.socket.as_raw_fd(),
                &[IoSlice::new(&bytes)],
                control,
                flags,
                None,
            ) {
                Ok(_) => Ok(true),
                Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(false),
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => Err(Error::PeerEnded),
                Err(Errno::EINTR) => continue,
                Err(errno) => Err(Error::system("send to the other process")(errno)),
            };
        }
    }

    /// Sends, waiting for room up to `patience`. Not for the HA thread.
    pub(crate) fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(), Error> {
        let begun = clock::now();
        while !self.try_send(message, descriptors)? {
            let waited = Duration::from_nanos(clock::now().since(begun));
            let Some(left) = patience.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(Error::PeerBusy {
                    waited_ms: waited.as_millis(),
                });
            };
            self.wait(PollFlags::POLLOUT, left)?;
        }
        Ok(())
    }

    /// The next message; `None`: there is none now.
    pub(crate) fn receive<T: DeserializeOwned>(&self, buffer: &mut [u8]) -> Result<Option<Packet<T>>, Error> {
        loop {
            return match sys::receive(self.socket.as_fd(), buffer) {
                Ok((0, _)) => Err(Error::PeerEnded),
                Ok((length, descriptors)) => {
                    let bytes = buffer.get_mut(..length).ok_or(Error::MessageTooLong { length })?;
                    let message = serde_json::from_slice(bytes).map_err(Error::Message);
                    bytes.zeroize();
                    Ok(Some(Packet {
                        message: message?,
                        descriptors,
                    }))
                }
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => Ok(None),
                    Some(Errno::EINTR) => continue,
                    Some(Errno::ECONNRESET | Errno::ENOTCONN) => Err(Error::PeerEnded),
                    _ => Err(Error::System {
                        call: "receive from the other process",
                        source: error,
                    }),
                },
            };
        }
    }

    /// Waits for `what`, or the end of the other process, up to `patience`.
    pub(crate) fn wait(&self, what: PollFlags, patience: Duration) -> Result<PollFlags, Error> {
        let mut sets = [PollFd::new(self.socket.as_fd(), what)];
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut sets, timeout) {
            Ok(_) => Ok(sets[0].revents().unwrap_or(PollFlags::empty())),
            Err(Errno::EINTR) => Ok(PollFlags::empty()),
            Err(errno) => Err(Error::system("wait for the other process")(errno)),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announce::OwnedAddress;
    use crate::process::ToHa;

    fn ends() -> (Channel, Channel) {
        let (a, b) = pair().unwrap();
        (Channel::on_highest(&a).unwrap(), Channel::on_highest(&b).unwrap())
    }

    fn receive(channel: &Channel) -> Result<Option<Packet<ToHa>>, Error> {
        channel.receive(&mut vec![0; MESSAGE_MAX])
    }

    #[test]
    fn messages_and_descriptors_arrive_as_they_were_sent() {
        let (main, ha) = ends();
        let file = tempfile_like();
        assert!(
            main.try_send(&ToHa::Links { lease: true }, &[file.as_fd(), file.as_fd()])
                .unwrap()
        );
        assert!(main.try_send(&ToHa::Heartbeat, &[]).unwrap());
        let first = receive(&ha).unwrap().unwrap();
        assert_eq!(
            (first.message, first.descriptors.len()),
            (ToHa::Links { lease: true }, 2)
        );
        assert_eq!(receive(&ha).unwrap().unwrap().message, ToHa::Heartbeat);
        assert!(receive(&ha).unwrap().is_none());
    }

    fn tempfile_like() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn the_ends_live_above_every_other_descriptor() {
        let (main, ha) = ends();
        let file = tempfile_like();
        assert!(main.as_fd().as_raw_fd() > file.as_raw_fd() && ha.as_fd().as_raw_fd() > file.as_raw_fd());
    }

    #[test]
    fn a_full_queue_never_blocks_the_sender() {
        let (main, ha) = ends();
        let mut sent = 0;
        while main.try_send(&ToHa::Heartbeat, &[]).unwrap() {
            sent += 1;
            assert!(sent < 1_000_000);
        }
        let busy = main.send(&ToHa::Stop, &[], Duration::from_millis(5)).unwrap_err();
        assert!(matches!(busy, Error::PeerBusy { .. }) && busy.is_transient());
        assert!(receive(&ha).unwrap().is_some());
        main.send(&ToHa::Stop, &[], Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn the_end_of_the_other_process_is_seen_by_reading_writing_and_polling() {
        let (main, ha) = ends();
        main.try_send(&ToHa::Stop, &[]).unwrap();
        drop(main);
        // What was sent before is still read.
        assert_eq!(receive(&ha).unwrap().unwrap().message, ToHa::Stop);
        assert!(matches!(receive(&ha), Err(Error::PeerEnded)));
        assert!(matches!(ha.try_send(&ToHa::Stop, &[]), Err(Error::PeerEnded)));
        let seen = ha.wait(PollFlags::empty(), Duration::from_secs(5)).unwrap();
        assert!(seen.contains(PollFlags::POLLHUP));
    }

    #[test]
    fn too_much_at_once_is_refused() {
        let (main, _ha) = ends();
        let owned = OwnedAddress {
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            router: false,
            leg: 0,
        };
        let addresses = vec![owned; 10_000];
        let long = main.try_send(
            &ToHa::Owned {
                addresses,
                more: false,
            },
            &[],
        );
        assert!(matches!(long, Err(Error::MessageTooLong { .. })));
        let file = tempfile_like();
        let many = main.try_send(&ToHa::Heartbeat, &[file.as_fd(); 129]);
        assert!(matches!(many, Err(Error::TooManyDescriptors { count: 129 })));
    }

    #[test]
    fn a_message_that_is_none_of_ours_is_an_error_and_not_the_end() {
        let (main, ha) = ends();
        main.try_send(&"nonsense", &[]).unwrap();
        main.try_send(&ToHa::Heartbeat, &[]).unwrap();
        assert!(matches!(receive(&ha), Err(Error::Message(_))));
        assert_eq!(receive(&ha).unwrap().unwrap().message, ToHa::Heartbeat);
    }
}
