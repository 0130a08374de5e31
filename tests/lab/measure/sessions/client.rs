//! The near side: opens connections, says words at their turn and checks what comes back.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, Socket, Type};

use super::{
    super::{INSTRUMENT_PRIORITY, Recorder, Stop},
    own_descriptors,
    record::{Record, STALL, Stall, Why},
    word::{LEN, Word},
};
use crate::{
    clock::{self, MS, Nanos},
    netns::Namespace,
    process,
};

/// Connections of one thread: its descriptor table holds no more than 20,000.
const EACH: usize = 8_000;
/// Ports that kernels do not give out by themselves are below this one.
const PORTS_END: u16 = 32_768;
/// How long opening one connection may take.
const OPENING: Duration = Duration::from_secs(5);
/// Between two looks who waits for an answer.
const LOOK: Nanos = 20 * MS;
/// Events that are looked at in one turn.
const EVENTS: usize = 512;

/// What is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams, all of one connection from one port.
    Udp,
}

/// Which connections are wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Where to.
    pub target: SocketAddr,
    /// Addresses they come from; each port of an address is used once.
    pub sources: Vec<IpAddr>,
    /// The first of these ports; the last must be below 32,768.
    pub first_port: u16,
    /// How many.
    pub count: usize,
    /// Time between two words of one connection; none: it speaks when it is opened and then only when told to.
    pub period: Option<Duration>,
    /// Tells one set from another in every word.
    pub set: u64,
}

/// What the threads are asked, and answer.
#[derive(Debug, Default)]
struct Asked {
    /// Who has not had an answer to a word of this time or later is behind.
    since: AtomicU64,
    /// Who is behind this time is given up.
    give_up: AtomicU64,
    /// How often idle connections were told to speak.
    speak: AtomicU64,
}

/// One thread.
#[derive(Debug)]
struct Hand {
    recorder: Recorder<Record>,
    /// How many were behind which time.
    behind: Arc<Mutex<(Nanos, usize)>>,
}

/// Connections under way.
#[derive(Debug)]
pub struct Sessions {
    hands: Vec<Hand>,
    asked: Arc<Asked>,
}

impl Sessions {
    /// Opens them from inside `ns`; each has said one word and got it back when this returns.
    ///
    /// # Errors
    /// When one of them cannot be opened or its first word does not come back.
    pub fn open(ns: &Namespace, wanted: &Wanted) -> Result<Self> {
        let ports = usize::from(PORTS_END - wanted.first_port);
        ensure!(wanted.count <= wanted.sources.len() * ports, "too few addresses");
        let asked = Arc::new(Asked::default());
        let mut sessions = Self {
            hands: Vec::new(),
            asked: Arc::clone(&asked),
        };
        for first in (0..wanted.count).step_by(EACH) {
            let range = first..wanted.count.min(first + EACH);
            let (stop, behind) = (Stop::default(), Arc::new(Mutex::new((0, 0))));
            let (flag, seen, asked, wanted) = (
                stop.clone(),
                Arc::clone(&behind),
                Arc::clone(&asked),
                wanted.clone(),
            );
            let (ready, opened) = mpsc::channel();
            let thread = ns.thread("sessions", move || {
                own_descriptors()?;
                let mut speaking = Speaking::open(&wanted, range)?;
                ready.send(()).ok();
                process::prefer_this_thread(INSTRUMENT_PRIORITY);
                speaking.begin();
                while !flag.is_set() {
                    speaking.turn(&asked, &seen)?;
                }
                Ok(speaking.record)
            })?;
            let recorder = Recorder::new(stop, thread);
            if opened.recv().is_err() {
                recorder.finish()?;
                bail!("sessions were not opened");
            }
            sessions.hands.push(Hand { recorder, behind });
        }
        Ok(sessions)
    }

    /// Waits until every connection has had an answer to a word it said after `since`; those that have none within `limit`
    /// are broken from then on. Gives their number. Idle connections count when they have been told to speak.
    pub fn wait_answered(&self, since: Nanos, limit: Duration) -> usize {
        self.asked.since.store(since, Ordering::SeqCst);
        let end = clock::now() + clock::nanos(limit);
        loop {
            let behind = self.behind(since);
            match behind {
                Some(0) => return 0,
                Some(behind) if clock::now() > end => {
                    self.asked.give_up.store(since, Ordering::SeqCst);
                    clock::observe(Duration::from_nanos(3 * LOOK));
                    return behind;
                }
                _ => clock::observe(Duration::from_nanos(LOOK)),
            }
        }
    }

    /// How many are behind; nothing while a thread has not looked yet.
    fn behind(&self, since: Nanos) -> Option<usize> {
        let of = |hand: &Hand| {
            let (at, behind) = *hand.behind.lock().unwrap_or_else(PoisonError::into_inner);
            (at == since).then_some(behind)
        };
        self.hands.iter().map(of).sum()
    }

    /// Tells idle connections to say one word.
    pub fn speak(&self) {
        self.asked.speak.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends them.
    ///
    /// # Errors
    /// When a thread failed.
    pub fn finish(self) -> Result<Record> {
        let mut all = Record::default();
        for hand in self.hands {
            let record = hand.recorder.finish()?;
            let first = u32::try_from(all.connections)?;
            all.add(record, first);
        }
        Ok(all)
    }
}

/// One connection.
struct Talk {
    socket: Socket,
    number: u64,
    /// When the last word was said that has not come back.
    asked: Option<Nanos>,
    /// When the first of the words was said since when nothing came back.
    waiting_since: Option<Nanos>,
    /// When the last word was said that has come back.
    answered: Nanos,
    bytes: [u8; LEN],
    have: usize,
    /// Server and connection there.
    partner: Option<(u8, u32)>,
    broken: bool,
}

struct Speaking {
    wanted: Wanted,
    first: usize,
    epoll: Epoll,
    talks: Vec<Talk>,
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
    record: Record,
    spoken: u64,
    looked: Nanos,
}

impl Speaking {
    fn open(wanted: &Wanted, range: std::ops::Range<usize>) -> Result<Self> {
        let mut speaking = Self {
            wanted: wanted.clone(),
            first: range.start,
            epoll: Epoll::new(EpollCreateFlags::empty())?,
            talks: Vec::new(),
            due: BinaryHeap::new(),
            record: Record::default(),
            spoken: 0,
            looked: 0,
        };
        for connection in range {
            let talk = opened(wanted, connection).with_context(|| format!("connection {connection}"))?;
            let key = u64::try_from(speaking.talks.len())?;
            speaking
                .epoll
                .add(talk.socket.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, key))?;
            speaking.talks.push(talk);
            let index = speaking.talks.len() - 1;
            speaking.say(index, clock::now());
            let end = clock::now() + clock::nanos(OPENING);
            while speaking.talks[index].answered == 0 {
                ensure!(
                    clock::now() < end && speaking.record.broken.is_empty(),
                    "the first word of connection {connection} did not come back {:?}",
                    speaking.record.broken
                );
                speaking.hear(10)?;
            }
        }
        speaking.record = Record {
            connections: speaking.talks.len(),
            ..Record::default()
        };
        Ok(speaking)
    }

    /// From now on each speaks at its turn; their turns are spread over the period, those of neighbours far apart.
    fn begin(&mut self) {
        let Some(period) = self.wanted.period.map(clock::nanos) else {
            return;
        };
        let (now, count) = (clock::now(), self.talks.len());
        for index in 0..count {
            let turn = u64::try_from((index * 7_919) % count).unwrap_or(0);
            let count = u64::try_from(count).unwrap_or(1);
            self.due.push(Reverse((now + period * turn / count, index)));
        }
    }

    fn turn(&mut self, asked: &Asked, behind: &Mutex<(Nanos, usize)>) -> Result<()> {
        let now = clock::now();
        while let Some(Reverse((due, index))) = self.due.peek().copied()
            && due <= now
        {
            self.due.pop();
            self.say(index, now);
            if let Some(period) = self.wanted.period.map(clock::nanos)
                && !self.talks[index].broken
            {
                self.due
                    .push(Reverse((due.max(now.saturating_sub(period)) + period, index)));
            }
        }
        let next = self.due.peek().map_or(now + LOOK, |Reverse((due, _))| *due);
        let pause = next.saturating_sub(clock::now()).div_ceil(MS).min(2);
        self.hear(u8::try_from(pause).unwrap_or(0))?;
        if now > self.looked + LOOK {
            self.looked = now;
            self.look(asked, behind);
        }
        Ok(())
    }

    /// Says the next word, unless the last one of a stream is still on its way.
    fn say(&mut self, index: usize, now: Nanos) {
        let talk = &mut self.talks[index];
        if talk.broken || (talk.asked.is_some() && self.wanted.protocol == Protocol::Tcp) {
            return;
        }
        if let Some(lost) = talk.asked {
            self.record.lost.push(lost);
        }
        talk.number += 1;
        let word = Word {
            set: self.wanted.set,
            connection: u32::try_from(self.first + index).unwrap_or(u32::MAX),
            number: talk.number,
            last: false,
            server: 0,
            serial: 0,
        };
        talk.asked = Some(now);
        talk.waiting_since.get_or_insert(now);
        match talk.socket.send(&word.emit()) {
            Ok(LEN) => {}
            // What a host says of a datagram is no end of it.
            Err(_) if self.wanted.protocol == Protocol::Udp => {}
            Ok(_) => self.end(index, Why::Other),
            Err(error) => self.end(index, why(&error)),
        }
    }

    fn end(&mut self, index: usize, why: Why) {
        let talk = &mut self.talks[index];
        if !talk.broken {
            talk.broken = true;
            (talk.asked, talk.waiting_since) = (None, None);
            // A reset socket would be readable for ever.
            self.epoll.delete(talk.socket.as_fd()).ok();
            self.record.broken.push((clock::now(), why));
        }
    }

    fn hear(&mut self, ms: u8) -> Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = self.epoll.wait(&mut events, EpollTimeout::from(ms))?;
        for event in events.iter().take(count) {
            self.read(usize::try_from(event.data())?);
        }
        Ok(())
    }

    fn read(&mut self, index: usize) {
        loop {
            let talk = &mut self.talks[index];
            if talk.broken {
                return;
            }
            let rest = &mut talk.bytes[talk.have..];
            match io::Read::read(&mut &talk.socket, rest) {
                Ok(0) if self.wanted.protocol == Protocol::Tcp => return self.end(index, Why::Closed),
                Ok(len) => talk.have += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) if self.wanted.protocol == Protocol::Udp => return,
                Err(error) => return self.end(index, why(&error)),
            }
            if talk.have == LEN {
                talk.have = 0;
                if let Err(why) = self.check(index) {
                    self.end(index, why);
                }
            }
        }
    }

    /// Whether the word that came is the one that was to come.
    fn check(&mut self, index: usize) -> Result<(), Why> {
        let now = clock::now();
        let talk = &mut self.talks[index];
        let word = Word::parse(&talk.bytes).ok_or(Why::Payload)?;
        let connection = u32::try_from(self.first + index).unwrap_or(u32::MAX);
        if (word.set, word.connection) != (self.wanted.set, connection) || word.number > talk.number {
            return Err(Why::Payload);
        }
        let partner = (word.server, word.serial);
        if *talk.partner.get_or_insert(partner) != partner {
            return Err(Why::Server);
        }
        if word.number < talk.number || talk.asked.is_none() {
            // A datagram that is late or came twice.
            let is_late = self.wanted.protocol == Protocol::Udp;
            return if is_late { Ok(()) } else { Err(Why::Payload) };
        }
        self.record.answers += 1;
        talk.answered = talk.asked.take().unwrap_or(now);
        if let Some(asked) = talk.waiting_since.take()
            && now - asked > STALL
        {
            self.record.stalls.push(Stall {
                connection: u32::try_from(index).unwrap_or(u32::MAX),
                asked,
                took: now - asked,
            });
        }
        Ok(())
    }

    /// Does what the threads are asked.
    fn look(&mut self, asked: &Asked, behind: &Mutex<(Nanos, usize)>) {
        let spoken = asked.speak.load(Ordering::SeqCst);
        if self.wanted.period.is_none() && spoken > self.spoken {
            self.spoken = spoken;
            let now = clock::now();
            for index in 0..self.talks.len() {
                self.say(index, now);
            }
        }
        let (since, give_up) = (
            asked.since.load(Ordering::SeqCst),
            asked.give_up.load(Ordering::SeqCst),
        );
        let is_idle = self.wanted.period.is_none();
        let late: Vec<usize> = (0..self.talks.len())
            .filter(|index| {
                let talk = &self.talks[*index];
                !talk.broken && talk.answered < since && (!is_idle || talk.asked.is_some())
            })
            .collect();
        *behind.lock().unwrap_or_else(PoisonError::into_inner) = (since, late.len());
        if since > 0 && give_up == since {
            for index in late {
                self.end(index, Why::Silent);
            }
        }
    }
}

/// Opens one connection; its port follows from its number.
fn opened(wanted: &Wanted, connection: usize) -> Result<Talk> {
    let source = wanted.sources[connection % wanted.sources.len()];
    let port = wanted.first_port + u16::try_from(connection / wanted.sources.len())?;
    let kind = match wanted.protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(wanted.target), kind, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::new(source, port).into())?;
    socket.connect_timeout(&wanted.target.into(), OPENING)?;
    socket.set_nonblocking(true)?;
    if wanted.protocol == Protocol::Tcp {
        socket.set_tcp_nodelay(true)?;
        // Its end is a reset: the port is free at once.
        socket.set_linger(Some(Duration::ZERO))?;
    }
    Ok(Talk {
        socket,
        number: 0,
        asked: None,
        waiting_since: None,
        answered: 0,
        bytes: [0; LEN],
        have: 0,
        partner: None,
        broken: false,
    })
}

fn why(error: &io::Error) -> Why {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Why::Reset,
        ErrorKind::TimedOut => Why::Silent,
        _ => Why::Other,
    }
}
