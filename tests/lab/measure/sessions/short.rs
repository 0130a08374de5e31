//! Short connections beside the long ones: each client has a few ports and uses them again and again, at once.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result};
use socket2::{Domain, SockRef, Socket, Type};

use super::{
    super::{Recorder, Stop},
    own_descriptors,
    word::{LEN, Word},
};
use crate::{
    clock::{self, Nanos},
    netns::Namespace,
};

/// Threads; each has one connection at a time.
const HANDS: u16 = 4;
/// Ports of each thread; below those that kernels give out by themselves and those of long-lived connections.
const PORTS: u16 = 100;
/// The first of them.
const FIRST_PORT: u16 = 3_000;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(8);

/// What became of short connections.
#[derive(Clone, Debug, Default)]
pub struct Briefly {
    /// Those that were opened, said a word, got it back and were closed.
    pub done: usize,
    /// When connections were refused.
    pub refused: Vec<Nanos>,
    /// Those that could not be begun because the kernel had not done with an earlier one from the same port, whose end was
    /// lost.
    pub taken: usize,
    /// When connections were begun that took a second SYN.
    pub hesitant: Vec<Nanos>,
    /// When connections were begun that broke for another reason, and why.
    pub broken: Vec<(Nanos, String)>,
    /// Answers that belong to somebody else.
    pub foreign: Vec<String>,
}

/// Short connections under way.
#[derive(Debug)]
pub struct Short {
    recorders: Vec<Recorder<Briefly>>,
}

impl Short {
    /// Starts them inside `ns`; each thread waits `pause` between two. Half of the connections are closed by the server, the
    /// others are reset by the client, so that ports are free at once.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub fn start(ns: &Namespace, source: IpAddr, target: SocketAddr, pause: Duration) -> Result<Self> {
        let recorders = (0..HANDS)
            .map(|hand| {
                let stop = Stop::default();
                let flag = stop.clone();
                let thread = ns.thread("short-sessions", move || {
                    own_descriptors()?;
                    let mut briefly = Briefly::default();
                    let mut number = 0;
                    while !flag.is_set() {
                        let port = FIRST_PORT + hand * PORTS + u16::try_from(number % u64::from(PORTS))?;
                        number += 1;
                        once(SocketAddr::new(source, port), target, number, &mut briefly)?;
                        clock::observe(pause);
                    }
                    Ok(briefly)
                })?;
                Ok(Recorder::new(stop, thread))
            })
            .collect::<Result<_>>()?;
        Ok(Self { recorders })
    }

    /// Ends them.
    ///
    /// # Errors
    /// When a thread failed.
    pub fn finish(self) -> Result<Briefly> {
        let mut all = Briefly::default();
        for recorder in self.recorders {
            let one = recorder.finish()?;
            all.done += one.done;
            all.taken += one.taken;
            all.refused.extend(one.refused);
            all.hesitant.extend(one.hesitant);
            all.broken.extend(one.broken);
            all.foreign.extend(one.foreign);
        }
        Ok(all)
    }
}

/// The first SYN is repeated after a second.
const SECOND_SYN: Nanos = 900 * clock::MS;

fn once(from: SocketAddr, to: SocketAddr, number: u64, briefly: &mut Briefly) -> Result<()> {
    let begun = clock::now();
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket
        .bind(&from.into())
        .with_context(|| format!("{from} is taken"))?;
    if let Err(error) = socket.connect_timeout(&to.into(), PATIENCE) {
        match error.kind() {
            ErrorKind::ConnectionRefused => briefly.refused.push(begun),
            ErrorKind::AddrNotAvailable => briefly.taken += 1,
            _ => briefly.broken.push((begun, format!("connect: {error}"))),
        }
        return Ok(());
    }
    if clock::now() > begun + SECOND_SYN {
        briefly.hesitant.push(begun);
    }
    let closes = number.is_multiple_of(2);
    let word = Word {
        set: number,
        connection: u32::from(from.port()),
        number: 1,
        last: closes,
        server: 0,
        serial: 0,
    };
    socket.set_read_timeout(Some(PATIENCE))?;
    if !closes {
        socket.set_linger(Some(Duration::ZERO))?;
    }
    let mut stream = socket.into();
    match exchange(&mut stream, word, closes) {
        Ok(None) => briefly.done += 1,
        Ok(Some(said)) => briefly.foreign.push(said),
        Err(error) => {
            briefly.broken.push((begun, error.to_string()));
            // Else its port is taken for as long as the kernel tries to end it.
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        }
    }
    Ok(())
}

/// Says the word and hears the answer; what is wrong with it, if anything.
fn exchange(stream: &mut TcpStream, word: Word, closes: bool) -> std::io::Result<Option<String>> {
    stream.write_all(&word.emit())?;
    let mut bytes = [0; LEN];
    stream.read_exact(&mut bytes)?;
    let answer = Word::parse(&bytes);
    let is_own =
        answer.is_some_and(|a| (a.set, a.connection, a.number) == (word.set, word.connection, word.number));
    if !is_own {
        return Ok(Some(format!("{word:?} was answered {answer:?}")));
    }
    if closes && stream.read(&mut bytes)? != 0 {
        return Ok(Some(format!("{word:?} was answered more than once")));
    }
    Ok(None)
}
