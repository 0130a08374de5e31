//! The other side: says each word back with its own name in it.

use std::{
    collections::HashMap,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    sync::mpsc,
};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, Socket, Type};

use super::{
    super::{INSTRUMENT_PRIORITY, Recorder, Stop},
    PORT, own_descriptors,
    word::{LEN, Word},
};
use crate::{netns::Namespace, process};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4_096;
/// Events that are looked at in one turn.
const EVENTS: usize = 512;

/// What a server saw.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Words it answered.
    pub answers: u64,
    /// Connections it accepted.
    pub accepted: u32,
    /// Words that did not belong to the connection they came on, by what was wrong; the first few.
    pub foreign: Vec<String>,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    recorder: Recorder<Served>,
}

impl Server {
    /// Starts it inside `ns` under the name `tag`, from 1; UDP answers come from `address`.
    ///
    /// # Errors
    /// When the port is taken or the address not there.
    pub fn start(ns: &Namespace, tag: u8, address: IpAddr) -> Result<Self> {
        let stop = Stop::default();
        let flag = stop.clone();
        let (ready, listens) = mpsc::channel();
        let thread = ns.thread("sessions-server", move || {
            own_descriptors()?;
            process::prefer_this_thread(INSTRUMENT_PRIORITY);
            let mut serving = Serving::new(tag, address)?;
            ready.send(()).ok();
            while !flag.is_set() {
                serving.turn()?;
            }
            Ok(serving.served)
        })?;
        let recorder = Recorder::new(stop, thread);
        if listens.recv().is_err() {
            recorder.finish()?;
            return Err(anyhow!("a server of sessions did not start"));
        }
        Ok(Self { recorder })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it failed.
    pub fn finish(self) -> Result<Served> {
        self.recorder.finish()
    }
}

/// One connection.
struct Heard {
    stream: TcpStream,
    serial: u32,
    /// Set, connection and number of the last word.
    last: Option<(u64, u32, u64)>,
    bytes: [u8; LEN],
    have: usize,
}

struct Serving {
    tag: u8,
    listener: TcpListener,
    datagrams: UdpSocket,
    epoll: Epoll,
    open: HashMap<u64, Heard>,
    served: Served,
}

fn key(fd: &impl std::os::fd::AsRawFd) -> u64 {
    u64::try_from(fd.as_raw_fd()).unwrap_or(u64::MAX)
}

impl Serving {
    fn new(tag: u8, address: IpAddr) -> Result<Self> {
        let any: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let any = SocketAddr::new(any, PORT);
        let socket = Socket::new(Domain::for_address(any), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&any.into()).context("the port of sessions")?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let datagrams = UdpSocket::bind((address, PORT)).with_context(|| format!("UDP at {address}"))?;
        datagrams.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        for (fd, key) in [
            (listener.as_fd(), key(&listener)),
            (datagrams.as_fd(), key(&datagrams)),
        ] {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, key))?;
        }
        Ok(Self {
            tag,
            listener,
            datagrams,
            epoll,
            open: HashMap::new(),
            served: Served::default(),
        })
    }

    fn turn(&mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = self.epoll.wait(&mut events, EpollTimeout::from(20_u8))?;
        for event in events.iter().take(count) {
            let which = event.data();
            if which == key(&self.listener) {
                self.accept()?;
            } else if which == key(&self.datagrams) {
                self.answer_datagrams();
            } else if let Some(heard) = self.open.get_mut(&which)
                && !heard.hear(self.tag, &mut self.served)
            {
                self.open.remove(&which);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            self.epoll
                .add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, key(&stream)))?;
            self.served.accepted += 1;
            let heard = Heard {
                serial: self.served.accepted,
                last: None,
                bytes: [0; LEN],
                have: 0,
                stream,
            };
            self.open.insert(key(&heard.stream), heard);
        }
        Ok(())
    }

    fn answer_datagrams(&mut self) {
        let mut bytes = [0; LEN];
        loop {
            match self.datagrams.recv_from(&mut bytes) {
                Ok((LEN, from)) => {
                    let Some(word) = Word::parse(&bytes) else {
                        self.served
                            .complain(|| format!("a datagram of {from} that is no word"));
                        continue;
                    };
                    let answer = Word {
                        server: self.tag,
                        ..word
                    };
                    self.served.answers += u64::from(self.datagrams.send_to(&answer.emit(), from).is_ok());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // An ICMP error is about an earlier answer.
                _ => {}
            }
        }
    }
}

impl Served {
    fn complain(&mut self, what: impl FnOnce() -> String) {
        if self.foreign.len() < 16 {
            self.foreign.push(what());
        }
    }
}

impl Heard {
    /// Reads and answers; false when the connection has ended.
    fn hear(&mut self, tag: u8, served: &mut Served) -> bool {
        loop {
            let Some(rest) = self.bytes.get_mut(self.have..) else {
                return false;
            };
            match self.stream.read(rest) {
                Ok(0) => return false,
                Ok(len) => self.have += len,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            if self.have < LEN {
                continue;
            }
            self.have = 0;
            let Some(word) = Word::parse(&self.bytes) else {
                served.complain(|| format!("bytes that are no word, on connection {}", self.serial));
                return false;
            };
            let expected = self
                .last
                .map_or((word.set, word.connection, 1), |(set, connection, number)| {
                    (set, connection, number + 1)
                });
            let said = (word.set, word.connection, word.number);
            if said != expected {
                served.complain(|| {
                    format!(
                        "{said:?} on connection {} where {expected:?} was next",
                        self.serial
                    )
                });
            }
            self.last = Some(said);
            let answer = Word {
                server: tag,
                serial: self.serial,
                ..word
            };
            if self.stream.write_all(&answer.emit()).is_err() {
                return false;
            }
            served.answers += 1;
            if word.last {
                return false;
            }
        }
    }
}
