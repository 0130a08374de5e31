//! The few system calls that aya and nix do not offer safely: XDP links by descriptor, driver and MTU of an
//! interface, waiting for the programs now running, random keys.
#![expect(unsafe_code, reason = "raw system calls live here and nowhere else")]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use aya::maps::{MapData, RingBuf};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_DETACH: libc::c_long = 34;
const BPF_XDP: u32 = 37;
/// Run in the kernel's stack, before the packet reaches a protocol.
pub(crate) const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
/// Run in the driver.
pub(crate) const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const ETHTOOL_GDRVINFO: u32 = 3;
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

/// First part of `union bpf_attr` as used by `BPF_LINK_CREATE`; the kernel takes the rest as zero.
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// `union bpf_attr` as used by `BPF_LINK_DETACH`.
#[repr(C)]
struct LinkDetach {
    link_fd: u32,
}

fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` outlives the call, its size is given, and neither command writes through it.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attr), size_of::<T>()) };
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// Attaches an XDP program to an interface by a link, which the kernel removes with its last descriptor.
pub(crate) fn xdp_link_create(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        prog_fd: raw(program),
        target_ifindex: ifindex,
        attach_type: BPF_XDP,
        flags,
    };
    let fd = bpf(BPF_LINK_CREATE, &attr)?;
    let fd = i32::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel just returned this descriptor (close-on-exec) and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Detaches a link at once, whoever else holds descriptors of it.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(BPF_LINK_DETACH, &LinkDetach { link_fd: raw(link) }).map(drop)
}

fn control_socket() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?)
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is plain old data; all zero is a valid value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

/// Name of the driver of an interface, for example `veth` or `virtio_net`.
pub(crate) fn driver(name: &str) -> io::Result<String> {
    let socket = control_socket()?;
    let mut request = request(name)?;
    // struct ethtool_drvinfo: cmd (4), driver (32), and 160 bytes of no interest.
    let mut info = [0_u8; 196];
    info[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    // SAFETY: `request` and `info` outlive the call and have the size SIOCETHTOOL expects for this command.
    let ret = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCETHTOOL as libc::Ioctl,
            ptr::from_mut(&mut request),
        )
    };
    if ret < 0 {
        return Err(io::Error::last_os_error());
    }
    let driver = CStr::from_bytes_until_nul(&info[4..36]).map_err(io::Error::other)?;
    Ok(driver.to_string_lossy().into_owned())
}

/// MTU of an interface in bytes.
pub(crate) fn mtu(name: &str) -> io::Result<u32> {
    let socket = control_socket()?;
    let mut request = request(name)?;
    // SAFETY: `request` outlives the call; SIOCGIFMTU fills `ifru_mtu`.
    let ret = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFMTU as libc::Ioctl,
            ptr::from_mut(&mut request),
        )
    };
    if ret < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the successful call above made `ifru_mtu` the active field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

/// Returns when every program that was running at the time of the call has ended, and sees what was written before.
///
/// `MEMBARRIER_CMD_GLOBAL` is `synchronize_rcu()` in the kernel (10–30 ms); programs run inside an RCU read section.
/// Where it is refused (`nohz_full`), closing a packet socket waits for the same grace period.
pub(crate) fn wait_for_running_programs() -> io::Result<()> {
    // SAFETY: the call takes three integers and touches no memory of ours.
    let ret = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if ret == 0 {
        return Ok(());
    }
    let packet = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    drop(packet);
    Ok(())
}

/// A random number from the kernel.
pub(crate) fn random_u64() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    // SAFETY: the buffer is ours and its length is given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(got) == Ok(bytes.len()) {
        Ok(u64::from_ne_bytes(bytes))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A second descriptor of the same object, closed on exec.
pub(crate) fn duplicate(fd: &impl AsFd) -> io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

/// Registers the event ring with the runtime's reactor.
pub(crate) fn poll_ring(ring: RingBuf<MapData>) -> io::Result<AsyncFd<RingBuf<MapData>>> {
    // SAFETY: the ring owns its map's descriptor, keeps it open and never exchanges it.
    Ok(unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?)
}
