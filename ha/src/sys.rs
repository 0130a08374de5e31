//! System calls neither `nix` nor `socket2` wraps: the only `unsafe` of this crate.
#![expect(
    unsafe_code,
    reason = "packet sockets, link state and scheduling have no safe wrapper"
)]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::wire::Mac;

/// Most descriptors of one message; the kernel's own limit is 253.
pub(crate) const DESCRIPTORS_MAX: usize = 128;
/// Longest interface name with its terminating zero.
const IFNAME_LEN: usize = 16;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const SIOCGIFHWADDR: libc::Ioctl = 0x8927;
const SIOCGIFFLAGS: libc::Ioctl = 0x8913;
const ETHTOOL_GLINK: u32 = 0x0a;
const ARPHRD_ETHER: u16 = 1;

/// `struct ifreq`: a name and a union of 24 bytes.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; IFNAME_LEN],
    data: [u8; 24],
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

impl InterfaceRequest {
    fn new(name: &str) -> io::Result<Self> {
        let mut request = Self {
            name: [0; IFNAME_LEN],
            data: [0; 24],
        };
        match request.name.get_mut(..name.len()) {
            Some(place) if name.len() < IFNAME_LEN => place.copy_from_slice(name.as_bytes()),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(request)
    }

    /// # Safety
    /// What `data` holds must be what `call` expects; a pointer in it must be valid for the call.
    unsafe fn call(&mut self, socket: BorrowedFd<'_>, call: libc::Ioctl) -> io::Result<()> {
        // SAFETY: `self` is a whole ifreq (40 bytes), and the caller vouches for its contents.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), call, std::ptr::from_mut(self)) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

/// Whether the interface is up and has carrier: `ETHTOOL_GLINK`, right at once where netlink may be a second late.
/// Devices without it tell by their flags. Any socket serves.
///
/// # Errors
/// `ENODEV` if there is no such interface.
pub(crate) fn carrier(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let mut value = EthtoolValue {
        cmd: ETHTOOL_GLINK,
        data: 0,
    };
    let mut request = InterfaceRequest::new(name)?;
    let pointer = std::ptr::from_mut(&mut value) as usize;
    request.data[..size_of::<usize>()].copy_from_slice(&pointer.to_ne_bytes());
    // SAFETY: SIOCETHTOOL expects a pointer to an ethtool_value, which outlives the call.
    match unsafe { request.call(socket, SIOCETHTOOL) } {
        Ok(()) => Ok(value.data != 0),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let mut request = InterfaceRequest::new(name)?;
            // SAFETY: SIOCGIFFLAGS writes the flags into `data`.
            unsafe { request.call(socket, SIOCGIFFLAGS)? };
            let flags = i32::from(i16::from_ne_bytes([request.data[0], request.data[1]]));
            let wanted = libc::IFF_UP | libc::IFF_RUNNING;
            Ok(flags & wanted == wanted)
        }
        Err(error) => Err(error),
    }
}

/// The interface's Ethernet address now. Any socket serves.
///
/// # Errors
/// `ENODEV` if there is no such interface, `InvalidData` if it is no Ethernet.
pub(crate) fn mac(socket: BorrowedFd<'_>, name: &str) -> io::Result<Mac> {
    let mut request = InterfaceRequest::new(name)?;
    // SAFETY: SIOCGIFHWADDR writes a sockaddr (family, 14 bytes) into `data`.
    unsafe { request.call(socket, SIOCGIFHWADDR)? };
    if u16::from_ne_bytes([request.data[0], request.data[1]]) != ARPHRD_ETHER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut mac = Mac::ZERO;
    mac.0.copy_from_slice(&request.data[2..8]);
    Ok(mac)
}

/// Binds a packet socket to one interface and one Ethernet type.
///
/// # Errors
/// `ENODEV`, `ENETDOWN` and others of bind(2).
pub(crate) fn bind_packet(socket: BorrowedFd<'_>, ethertype: u16, ifindex: u32) -> io::Result<()> {
    let ifindex = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET.cast_unsigned().try_into().unwrap_or_default(),
        sll_protocol: ethertype.to_be(),
        sll_ifindex: ifindex,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of_val(&address)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `address` is a whole sockaddr_ll of the given length.
    let result = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Keeps frames sent by this machine away from a packet socket.
///
/// # Errors
/// Those of setsockopt(2); `ENOPROTOOPT` before kernel 4.20.
pub(crate) fn ignore_outgoing(socket: BorrowedFd<'_>) -> io::Result<()> {
    let yes: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&yes)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: PACKET_IGNORE_OUTGOING reads one int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            std::ptr::from_ref(&yes).cast(),
            length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Frames a packet socket had no room for since the last call.
///
/// # Errors
/// Those of getsockopt(2).
pub(crate) fn packet_drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut statistics = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let mut length =
        libc::socklen_t::try_from(size_of_val(&statistics)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: PACKET_STATISTICS writes a tpacket_stats of at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            std::ptr::from_mut(&mut statistics).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(statistics.tp_drops)
    }
}

/// Gives the calling thread real-time priority `priority` (1 to 99, first in first out).
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or within a limit.
pub(crate) fn realtime(priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: 0 is the calling thread, and `parameter` is a whole sched_param.
    let result = unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const parameter,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A duplicate of `descriptor` with a number of at least `minimum`, closed on exec.
///
/// # Errors
/// `EINVAL` and `EMFILE` at the limit of open files.
pub(crate) fn duplicate_above(descriptor: BorrowedFd<'_>, minimum: RawFd) -> io::Result<OwnedFd> {
    let number = fcntl(descriptor, FcntlArg::F_DUPFD_CLOEXEC(minimum))?;
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Receives one message and the descriptors that came with it (at most [`DESCRIPTORS_MAX`]); 0 bytes: the other end is
/// closed. The message may be longer than `buffer`: then it is cut and the returned length is `buffer.len() + 1`.
///
/// # Errors
/// `EAGAIN` and others of recvmsg(2).
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let room = buffer.len();
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut descriptors = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has just created these descriptors for us.
            descriptors.extend(
                numbers
                    .into_iter()
                    .map(|number| unsafe { OwnedFd::from_raw_fd(number) }),
            );
        }
    }
    let cut = message.flags.contains(MsgFlags::MSG_TRUNC);
    Ok((if cut { room + 1 } else { message.bytes }, descriptors))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn any_socket() -> socket2::Socket {
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap()
    }

    #[test]
    fn a_missing_interface_and_an_impossible_name_are_errors() {
        let socket = any_socket();
        let missing = carrier(socket.as_fd(), "no-such-leg").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
        let missing = mac(socket.as_fd(), "no-such-leg").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
        assert!(carrier(socket.as_fd(), "a-name-that-is-too-long").is_err());
    }

    #[test]
    fn the_loopback_is_no_ethernet() {
        let socket = any_socket();
        assert_eq!(
            mac(socket.as_fd(), "lo").unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn a_request_is_as_large_as_the_kernels() {
        assert_eq!(size_of::<InterfaceRequest>(), size_of::<libc::ifreq>());
    }
}
