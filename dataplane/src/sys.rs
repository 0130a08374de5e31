//! The few system calls that aya and nix do not offer safely: XDP links by descriptor, runs of a program from any thread,
//! packet sockets, driver and MTU of an interface, waiting for the programs now running, random keys.
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

const BPF_PROG_TEST_RUN: libc::c_long = 10;
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

/// `union bpf_attr` as used by `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
}

/// Runs an XDP program once on a frame as if it had come by an interface. The first four bytes of `noted` are what stands
/// before the frame (`data_meta`). Returns the verdict and how much of `out` was written, in the same form.
pub(crate) fn run_xdp(
    program: BorrowedFd<'_>,
    noted: &[u8],
    ifindex: u32,
    out: &mut [u8],
) -> io::Result<(u32, usize)> {
    let long = |_| io::Error::from_raw_os_error(libc::EMSGSIZE);
    let size = u32::try_from(noted.len()).map_err(long)?;
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let context = [4, size, 0, ifindex, 0, 0];
    let mut attr = TestRun {
        prog_fd: raw(program),
        data_size_in: size,
        data_size_out: u32::try_from(out.len()).map_err(long)?,
        data_in: noted.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat: 1,
        ctx_size_in: u32::try_from(size_of_val(&context)).map_err(long)?,
        ctx_in: context.as_ptr() as u64,
        ..TestRun::default()
    };
    // SAFETY: `attr` and the buffers it names outlive the call, and their sizes are given; the kernel writes into `attr`
    // and `out` only.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_TEST_RUN,
            ptr::from_mut(&mut attr),
            size_of::<TestRun>(),
        )
    };
    if ret < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((attr.retval, usize::try_from(attr.data_size_out).unwrap_or(0)))
}

/// A socket for frames of one type, of every interface; it never blocks.
pub(crate) fn packet_socket(ethertype: u16) -> io::Result<OwnedFd> {
    const RECEIVE_BUFFER: libc::c_int = 8 << 20;
    // SAFETY: three integers.
    let fd = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            i32::from(ethertype.to_be()),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the option's value outlives the call and its size is given.
    let ret = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            ptr::from_ref(&RECEIVE_BUFFER).cast(),
            libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4),
        )
    };
    if ret < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

fn link_address() -> libc::sockaddr_ll {
    // SAFETY: `sockaddr_ll` is plain old data; all zero is a valid value.
    unsafe { zeroed() }
}

/// A frame from a packet socket: its length, and the interface it came by.
pub(crate) fn receive_from(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, u32)> {
    let mut from = link_address();
    let mut len = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
    // SAFETY: buffer and address outlive the call and their sizes are given.
    let got = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            0,
            ptr::from_mut(&mut from).cast(),
            &raw mut len,
        )
    };
    match usize::try_from(got) {
        Ok(got) => Ok((got, from.sll_ifindex.unsigned_abs())),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Sends a frame by an interface.
pub(crate) fn send_to(socket: BorrowedFd<'_>, frame: &[u8], ifindex: u32) -> io::Result<()> {
    let mut to = link_address();
    to.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    to.sll_ifindex = i32::try_from(ifindex).map_err(io::Error::other)?;
    // SAFETY: frame and address outlive the call and their sizes are given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            ptr::from_ref(&to).cast(),
            libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0),
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives memory that is not used any more back to the kernel.
pub(crate) fn trim_heap() {
    // SAFETY: the call takes no pointer, and the allocator allows it at any time from any thread.
    unsafe { libc::malloc_trim(0) };
}
