//! Captures: every frame of a namespace's interfaces, in memory and as a pcap file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, IoSliceMut, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    cmsg_space,
    sys::{
        socket::{ControlMessageOwned, LinkAddr, MsgFlags, bind, recvmsg},
        time::{TimeSpec, TimeValLike},
    },
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::{INSTRUMENT_PRIORITY, Recorder, Stop};
use crate::{
    clock::{self, MS, Nanos},
    netns::Namespace,
    packet::Frame,
    process,
};

/// Most frames kept in memory; later ones are counted only.
const MOST_FRAMES: usize = 2_000_000;
/// Between two looks at the socket; its buffer holds far more.
const PAUSE: Nanos = 4 * MS;
/// Bytes kept of a frame.
const SNAP: usize = 256;

/// What to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Everything.
    All,
    /// ARP and adverts: what tells owners.
    Ownership,
    /// IPv4 TCP.
    Tcp,
    /// IPv4 UDP to this port, in packets without options.
    UdpTo(u16),
}

/// Which way a frame went, seen from the namespace it was captured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Came in through the interface.
    In,
    /// Left through the interface.
    Out,
}

/// One captured frame.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When the kernel saw it.
    pub at: Nanos,
    /// Interface name.
    pub port: String,
    /// Which way it went.
    pub direction: Direction,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

impl Captured {
    /// A view of it.
    pub fn frame(&self) -> Option<Frame<'_>> {
        Frame::new(&self.bytes)
    }
}

/// What a capture saw.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Frames in the order of their time stamps.
    pub frames: Vec<Captured>,
    /// Frames that found no room any more.
    pub lost: u64,
}

impl Record {
    /// Writes a pcap file (nanosecond format).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_pcap(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut out = BufWriter::new(file);
        out.write_all(&0xa1b2_3c4d_u32.to_le_bytes())?;
        out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        out.write_all(&u32::try_from(SNAP)?.to_le_bytes())?;
        out.write_all(&1_u32.to_le_bytes())?;
        for frame in &self.frames {
            out.write_all(&u32::try_from(frame.at / 1_000_000_000)?.to_le_bytes())?;
            out.write_all(&u32::try_from(frame.at % 1_000_000_000)?.to_le_bytes())?;
            let len = u32::try_from(frame.bytes.len())?.to_le_bytes();
            out.write_all(&len)?;
            out.write_all(&len)?;
            out.write_all(&frame.bytes)?;
        }
        out.flush()?;
        Ok(())
    }
}

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    recorder: Recorder<Record>,
}

impl Capture {
    /// Starts to record in `ns`, on interface `only` or on all.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(ns: &Namespace, only: Option<&str>, filter: Filter) -> Result<Self> {
        let stop = Stop::default();
        let socket = ns.enter(|| open(only, filter))?;
        let names = interfaces(ns)?;
        let flag = stop.clone();
        let thread = ns.thread("capture", move || record(&socket, &names, &flag))?;
        Ok(Self {
            recorder: Recorder::new(stop, thread),
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When reading failed.
    pub fn stop(self) -> Result<Record> {
        self.recorder.finish()
    }
}

/// Names of the interfaces of `ns` by index.
///
/// # Errors
/// When they cannot be listed.
pub fn interfaces(ns: &Namespace) -> Result<BTreeMap<usize, String>> {
    ns.enter(|| {
        Ok(nix::net::if_::if_nameindex()?
            .iter()
            .filter_map(|i| {
                Some((
                    usize::try_from(i.index()).ok()?,
                    i.name().to_str().ok()?.to_owned(),
                ))
            })
            .collect())
    })
}

/// The link-layer address of an interface of the namespace the thread is in, fit to bind a packet socket to.
///
/// # Errors
/// When there is no such interface.
pub fn link_address(ifname: &str) -> Result<LinkAddr> {
    nix::ifaddrs::getifaddrs()?
        .filter(|i| i.interface_name == ifname)
        .find_map(|i| i.address?.as_link_addr().copied())
        .with_context(|| format!("no interface {ifname}"))
}

/// Opens a packet socket in the namespace the thread is in.
///
/// # Errors
/// When the kernel refuses.
pub fn open(only: Option<&str>, filter: Filter) -> Result<Socket> {
    let all = i32::from(u16::try_from(libc::ETH_P_ALL)?.to_be());
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(all)))?;
    let program = program(filter);
    if !program.is_empty() {
        socket.attach_filter(&program)?;
    }
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(64 << 20))?;
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::ReceiveTimestampns, &true)?;
    socket.set_nonblocking(true)?;
    if let Some(ifname) = only {
        bind(socket.as_raw_fd(), &link_address(ifname)?)?;
    }
    Ok(socket)
}

/// Classic BPF of a filter; empty for everything.
fn program(filter: Filter) -> Vec<SockFilter> {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let f = SockFilter::new;
    let ethertype = f(LOAD_HALF, 0, 0, 12);
    let protocol = f(LOAD_BYTE, 0, 0, 23);
    let (yes, no) = (f(RETURN, 0, 0, 0xffff), f(RETURN, 0, 0, 0));
    match filter {
        Filter::All => Vec::new(),
        Filter::Ownership => vec![
            ethertype,
            f(JUMP_EQUAL, 3, 0, 0x0806),
            f(JUMP_EQUAL, 0, 3, 0x0800),
            protocol,
            f(JUMP_EQUAL, 0, 1, 112),
            yes,
            no,
        ],
        Filter::UdpTo(port) => vec![
            ethertype,
            f(JUMP_EQUAL, 0, 5, 0x0800),
            protocol,
            f(JUMP_EQUAL, 0, 3, 17),
            f(LOAD_HALF, 0, 0, 36),
            f(JUMP_EQUAL, 0, 1, u32::from(port)),
            yes,
            no,
        ],
        Filter::Tcp => {
            vec![
                ethertype,
                f(JUMP_EQUAL, 0, 3, 0x0800),
                protocol,
                f(JUMP_EQUAL, 0, 1, 6),
                yes,
                no,
            ]
        }
    }
}

/// One frame read from a packet socket.
pub struct Received {
    /// Kernel time stamp.
    pub at: Nanos,
    /// Interface index.
    pub ifindex: usize,
    /// Which way it went.
    pub direction: Direction,
    /// Bytes of it in the buffer.
    pub len: usize,
}

/// Reads one frame; nothing if none waits.
///
/// # Errors
/// When the socket is broken.
pub fn receive(socket: &Socket, buffer: &mut [u8], offset: Nanos) -> Result<Option<Received>> {
    let mut control = cmsg_space!(TimeSpec);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = match recvmsg::<LinkAddr>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    ) {
        Ok(message) => message,
        // ENETDOWN is reported once, by an interface that went down.
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR | nix::errno::Errno::ENETDOWN) => {
            return Ok(None);
        }
        Err(error) => bail!("capture: {error}"),
    };
    let stamp = message.cmsgs()?.find_map(|c| match c {
        ControlMessageOwned::ScmTimestampns(t) => u64::try_from(t.num_nanoseconds()).ok(),
        _ => None,
    });
    let Some(address) = message.address else {
        return Ok(None);
    };
    let direction = if address.pkttype() == libc::PACKET_OUTGOING {
        Direction::Out
    } else {
        Direction::In
    };
    Ok(Some(Received {
        at: stamp.map_or_else(clock::now, |s| s.saturating_sub(offset)),
        ifindex: address.ifindex(),
        direction,
        len: message.bytes,
    }))
}

fn record(socket: &Socket, names: &BTreeMap<usize, String>, stop: &Stop) -> Result<Record> {
    process::prefer_this_thread(INSTRUMENT_PRIORITY);
    let offset = clock::realtime_offset();
    let mut record = Record::default();
    let mut buffer = [0; SNAP];
    loop {
        // Told to stop: what waits is still read.
        let last = stop.is_set();
        while let Some(got) = receive(socket, &mut buffer, offset)? {
            if record.frames.len() >= MOST_FRAMES {
                record.lost += 1;
                continue;
            }
            record.frames.push(Captured {
                at: got.at,
                port: names
                    .get(&got.ifindex)
                    .cloned()
                    .unwrap_or_else(|| got.ifindex.to_string()),
                direction: got.direction,
                bytes: buffer.get(..got.len.min(SNAP)).unwrap_or_default().to_vec(),
            });
        }
        if last {
            record.frames.sort_by_key(|f| f.at);
            return Ok(record);
        }
        // Not woken by every frame: the time stamps are the kernel's, and the machine has better to do.
        clock::sleep_until(clock::now() + PAUSE);
    }
}
