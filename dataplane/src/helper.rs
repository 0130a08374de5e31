//! What the programs cannot do by themselves ([`onearm_dataplane_common::help`]): fragments that come before their first
//! one wait here, and IPv4 packets too big for their way are fragmented. Then the same program runs on them, and what it
//! says is done. How much comes here is limited by the programs, how much waits by [`kept::MOST_BYTES`].

mod divide;
mod kept;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use onearm_dataplane_common::help::{self, note, wanted};

use crate::error::{Error, Result};
use crate::sys;
use divide::divide;
use kept::{Frame, Kept};

/// How soon [`Helper::run`] sees that it is to stop.
const LOOK_UP: Duration = Duration::from_millis(200);
/// Frames taken from the socket before those that are due get their turn.
const BATCH: usize = 256;
/// Longest IP packet, an Ethernet header with tags, and room for a tunnel's headers.
const LONGEST: usize = 65_535 + 256;
/// Verdicts.
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;

/// Interfaces of legs by id.
pub(crate) type Ports = Arc<Mutex<BTreeMap<u8, u32>>>;

/// See the module.
#[derive(Debug)]
pub struct Helper {
    program: OwnedFd,
    socket: OwnedFd,
    ports: Ports,
    kept: Kept,
    out: Vec<u8>,
}

impl Helper {
    pub(crate) fn new(program: OwnedFd, ports: Ports) -> Result<Self> {
        let socket = sys::packet_socket(u16::from_be(help::ETHERTYPE)).map_err(|source| Error::Kernel {
            operation: "opening the socket for packets that wait",
            source,
        })?;
        Ok(Self {
            program,
            socket,
            ports,
            kept: Kept::default(),
            out: vec![0; LONGEST],
        })
    }

    /// Works until `stop` is set, and for at most 200 ms more. Blocks: give it a thread.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the socket fails; what one packet meets ends nothing.
    pub fn run(mut self, stop: &AtomicBool) -> Result<()> {
        let failed = |source: io::Error| Error::Kernel {
            operation: "waiting for packets",
            source,
        };
        let mut buffer = vec![0; LONGEST];
        while !stop.load(Ordering::Relaxed) {
            let until_due = self.kept.deadline().map(|at| at.saturating_duration_since(now()));
            let wait = until_due.unwrap_or(LOOK_UP).min(LOOK_UP);
            // Rounded up, or the last millisecond would be spent in turns.
            let wait = PollTimeout::try_from(wait + Duration::from_micros(999)).unwrap_or(PollTimeout::ZERO);
            let mut asked = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut asked, wait) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            for _ in 0..BATCH {
                match sys::receive_from(self.socket.as_fd(), &mut buffer) {
                    Ok((len, ifindex)) => self.asked(ifindex, &buffer[..len.min(LONGEST)]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An interface went down; it says so once.
                    Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            while let Some((frame, last)) = self.kept.next_due(now()) {
                let note = if last { note::LAST } else { note::AGAIN };
                if self.passed_on(&frame, note) {
                    self.kept.wait_on(now(), frame);
                } else {
                    self.kept.forget(&frame);
                }
            }
        }
        Ok(())
    }

    /// A frame behind the programs' header.
    fn asked(&mut self, ifindex: u32, asked: &[u8]) {
        let known = (self.ports.lock().unwrap_or_else(PoisonError::into_inner))
            .values()
            .any(|port| *port == ifindex);
        let Some((header, bytes)) = asked.split_at_checked(help::LEN).filter(|_| known) else {
            return;
        };
        let frame = |bytes: Vec<u8>| Frame { ifindex, bytes };
        match header[help::WHAT] {
            wanted::KEEP => self.keep(frame(bytes.to_vec())),
            wanted::DIVIDE => {
                let most = u16::from_be_bytes([header[help::MOST], header[help::MOST + 1]]);
                for piece in divide(bytes, usize::from(most)) {
                    let piece = frame(piece);
                    if self.passed_on(&piece, note::AGAIN) {
                        // A later fragment in pieces, before the first one.
                        self.keep(piece);
                    }
                }
            }
            _ => {}
        }
    }

    /// Without room the program has its last word at once.
    fn keep(&mut self, frame: Frame) {
        if let Err(frame) = self.kept.keep(now(), frame) {
            self.passed_on(&frame, note::LAST);
        }
    }

    /// Runs the program and does what it says; true if the frame must wait.
    fn passed_on(&mut self, frame: &Frame, note: u32) -> bool {
        let noted = [&note.to_ne_bytes()[..], &frame.bytes].concat();
        let ran = sys::run_xdp(self.program.as_fd(), &noted, frame.ifindex, &mut self.out);
        let (verdict, len) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                // Its interface is gone.
                tracing::debug!(%error, ifindex = frame.ifindex, "a packet that waited cannot be judged");
                return false;
            }
        };
        let Some((left, out)) = self.out[..len].split_first_chunk::<4>() else {
            return false;
        };
        let port = match verdict {
            XDP_PASS => return true,
            XDP_TX => Some(frame.ifindex),
            XDP_REDIRECT => {
                let leg = u8::try_from(u32::from_ne_bytes(*left).wrapping_sub(1)).ok();
                let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
                leg.and_then(|leg| ports.get(&leg).copied())
            }
            _ => None,
        };
        if let Some(port) = port
            && let Err(error) = sys::send_to(self.socket.as_fd(), out, port)
        {
            tracing::debug!(%error, ifindex = port, "a packet that waited was not sent");
        }
        false
    }
}

#[expect(clippy::disallowed_methods, reason = "the driver's clock")]
fn now() -> Instant {
    Instant::now()
}
