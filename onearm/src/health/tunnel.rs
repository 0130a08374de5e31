//! The way that balanced packets take to a server of mode `l3-dsr`: a TCP segment for the VIP in the tunnel, and the answer
//! that the server sends past the pair. Its kernel says no word when it drops what came out of a tunnel (reverse-path filter,
//! no such device, no such address), so nothing but this way shows it (B70).
//!
//! The segment inside comes from this node's own address: what the server answers is for the node itself, and no flow is made.
//! Answers are heard on a packet socket, because the node's kernel has no connection they belong to, and on an Active drops
//! what comes from a VIP where reverse paths are checked.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::sync::oneshot;

use super::segment::{self, Segment, flags};
use super::spec::CheckResult;

/// A server behind a tunnel, and what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TunnelTarget {
    /// Who takes the packet out of the tunnel.
    pub server: IpAddr,
    /// What the packet inside is for: the VIP, of the server's family, and a port.
    pub vip: SocketAddr,
    /// UDP port of GUE; `None` = IP in IP of one family.
    pub gue: Option<u16>,
    /// Outer source; `None` = this node's own address.
    pub source: Option<IpAddr>,
}

/// Protocol numbers of IPv4 and IPv6 inside IP.
const IPIP: i32 = 4;
const IP6IP6: i32 = 41;
/// Ethernet types of what is heard.
const HEARD: [u16; 2] = [0x0800, 0x86dd];
/// More than headers take.
const HEAD: usize = 256;

/// Two ends of a connection: the VIP's and this node's.
type Ends = (SocketAddr, SocketAddr);

/// What each check waits for: an acknowledgment, and who is told whether it accepts.
type Expected = HashMap<Ends, (u32, oneshot::Sender<bool>)>;

/// Checks that wait for an answer, by their ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Arc<Mutex<Expected>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Expected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment was heard: ends the check that it answers.
    fn heard(&self, segment: &Segment) {
        let ends = (segment.from, segment.to);
        let mut waiting = self.lock();
        let answers = waiting
            .get(&ends)
            .is_some_and(|(acknowledgment, _)| *acknowledgment == segment.acknowledgment);
        if !answers {
            return;
        }
        if let Some((_, answer)) = waiting.remove(&ends) {
            // A check that ended meanwhile hears nothing any more.
            let _ended = answer.send(segment.flags & flags::RST == 0);
        }
    }
}

/// Waits as long as it lives.
struct Expectation<'a> {
    waiting: &'a Waiting,
    ends: Ends,
}

impl Drop for Expectation<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.ends);
    }
}

/// The sockets on which answers are heard, IPv4 and IPv6.
#[derive(Debug)]
pub(super) struct Ears([tokio::net::UdpSocket; 2]);

impl Ears {
    /// # Errors
    /// Of the system: without `CAP_NET_RAW` for one.
    pub(super) fn open() -> io::Result<Self> {
        let open = |kind: u16| {
            let socket = Socket::new(
                Domain::PACKET,
                Type::DGRAM.nonblocking(),
                Some(Protocol::from(i32::from(kind.to_be()))),
            )?;
            socket.attach_filter(&filter(kind))?;
            // Of all that the type can do, receiving is what packet sockets do alike.
            tokio::net::UdpSocket::from_std(socket.into())
        };
        Ok(Self([open(HEARD[0])?, open(HEARD[1])?]))
    }

    /// Hears for as long as it is polled. Cancel-safe: what is taken from a socket is handed on at once.
    pub(super) async fn hear(&self, waiting: &Waiting) -> std::convert::Infallible {
        let [four, six] = &self.0;
        let (mut of_four, mut of_six) = ([0; HEAD], [0; HEAD]);
        loop {
            let (head, heard) = tokio::select! {
                heard = four.recv(&mut of_four) => (&of_four, heard),
                heard = six.recv(&mut of_six) => (&of_six, heard),
            };
            // An error (an interface went) is told once, and there is no packet.
            if let Ok(len) = heard
                && let Some(segment) = Segment::parse(&head[..len])
            {
                waiting.heard(&segment);
            }
        }
    }
}

/// Takes SYN-ACKs and RST-ACKs alone: what opens or refuses connections of this node.
fn filter(kind: u16) -> Vec<SockFilter> {
    const BYTE: u16 = 0x30;
    const HALF: u16 = 0x28;
    const BYTE_BEHIND_HEADER: u16 = 0x50;
    const HEADER_LEN: u16 = 0xb1;
    const AND: u16 = 0x54;
    const EQUAL: u16 = 0x15;
    const ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let tcp = u32::from(segment::TCP);
    let find = if kind == HEARD[0] {
        // No fragment, TCP, its flags.
        vec![
            (HALF, 0, 0, 6),
            (ANY_BIT, 7, 0, 0x1fff),
            (BYTE, 0, 0, 9),
            (EQUAL, 0, 5, tcp),
            (HEADER_LEN, 0, 0, 0),
            (BYTE_BEHIND_HEADER, 0, 0, 13),
        ]
    } else {
        vec![(BYTE, 0, 0, 6), (EQUAL, 0, 4, tcp), (BYTE, 0, 0, 53)]
    };
    let judge = [
        (AND, 0, 0, u32::from(flags::SYN | flags::RST | flags::ACK)),
        (EQUAL, 2, 0, u32::from(flags::SYN | flags::ACK)),
        (EQUAL, 1, 0, u32::from(flags::RST | flags::ACK)),
        (RETURN, 0, 0, 0),
        (RETURN, 0, 0, u32::from(u16::MAX)),
    ];
    let all = find.into_iter().chain(judge);
    all.map(|(code, yes, no, operand)| SockFilter::new(code, yes, no, operand))
        .collect()
}

/// One check: a SYN through the tunnel, and a RST behind it when the server has answered.
pub(super) async fn connect(target: TunnelTarget, limit: Duration, waiting: &Waiting) -> CheckResult {
    let started = tokio::time::Instant::now();
    match tokio::time::timeout(limit, knock(target, waiting)).await {
        Ok(Ok(true)) => CheckResult::Connected(started.elapsed()),
        Ok(Ok(false)) => CheckResult::Failed(libc::ECONNREFUSED),
        Ok(Err(error)) => CheckResult::of_error(&error),
        Err(_) => CheckResult::TimedOut(limit),
    }
}

/// Whether the server accepts; waits for as long as it is silent.
async fn knock(target: TunnelTarget, waiting: &Waiting) -> io::Result<bool> {
    let way = way(target)?;
    let own = own_address(target.server)?;
    // Held until the check has ended, so that nobody else's connection has these ends.
    let port = Socket::new(Domain::for_address(own), Type::STREAM, None)?;
    port.bind(&own.into())?;
    let own = port
        .local_addr()?
        .as_socket()
        .ok_or(io::ErrorKind::AddrNotAvailable)?;
    let begin = start_number(own);
    let (told, answer) = oneshot::channel();
    let ends = (target.vip, own);
    waiting.lock().insert(ends, (begin.wrapping_add(1), told));
    let _expectation = Expectation { waiting, ends };
    let mut segment = Segment {
        from: own,
        to: target.vip,
        sequence: begin,
        acknowledgment: 0,
        flags: flags::SYN,
    };
    way.send(&segment.emit())?;
    let accepts = answer.await.map_err(|_| io::ErrorKind::Interrupted)?;
    if accepts {
        segment.sequence = begin.wrapping_add(1);
        segment.flags = flags::RST;
        way.send(&segment.emit())?;
    }
    Ok(accepts)
}

/// A socket whose packets go to the server in the outer header.
fn way(target: TunnelTarget) -> io::Result<Socket> {
    let domain = if target.server.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    let number = if target.server.is_ipv4() { IPIP } else { IP6IP6 };
    let socket = match target.gue {
        Some(_) => Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?,
        None => Socket::new(domain, Type::RAW.nonblocking(), Some(Protocol::from(number)))?,
    };
    if let Some(source) = target.source {
        // No interface has it. Routes of IPv4 ask that of the source, too.
        if source.is_ipv4() {
            socket.set_ip_transparent_v4(true)?;
        } else {
            socket.set_freebind_v6(true)?;
        }
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect(&SocketAddr::new(target.server, target.gue.unwrap_or(0)).into())?;
    Ok(socket)
}

/// This node's own address towards a server, with port 0.
fn own_address(server: IpAddr) -> io::Result<SocketAddr> {
    let any = if server.is_ipv4() {
        IpAddr::from([0; 4])
    } else {
        IpAddr::from([0; 16])
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Any port: nothing is sent.
    socket.connect((server, 9))?;
    Ok(SocketAddr::new(socket.local_addr()?.ip(), 0))
}

/// Where the sequence numbers of a check begin: elsewhere for each, as old answers must not be taken for its own.
fn start_number(own: SocketAddr) -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    let number = RandomState::new().hash_one(own);
    u32::try_from(number >> 32).unwrap_or_default()
}

#[cfg(test)]
mod tests;
