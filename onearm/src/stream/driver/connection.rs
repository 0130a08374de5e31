//! One connection of the stream: bytes between its socket and its session.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::at;
use crate::stream::end::End;
use crate::stream::owned::{self, Gathered, OwnedSet, Word};
use crate::stream::port::{Carried, Port};
use crate::stream::session::{Agreed, Bounds, Input, Output, Session};
use crate::stream::view::View;
use crate::stream::wire::{Message, Profile};

/// The last words are written within this.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(200);
/// While so many bytes wait to be written no body of flow sync is taken: what else is to be said comes soon.
const BACKLOG: usize = 256 * 1024;
/// Bytes read at once.
const READ: usize = 64 * 1024;

/// What a task came to.
#[derive(Debug)]
pub(super) enum Done {
    /// A handshake.
    Proved {
        connection: Box<(TcpStream, Session)>,
        agreed: Agreed,
        outgoing: bool,
    },
    /// Another one.
    Failed { end: End, outgoing: bool },
    /// A session that was open.
    Ended { serial: u64, end: End },
}

/// The one place where a session's time comes from.
pub(super) fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// A handshake, to its end.
pub(super) async fn prove(mut stream: TcpStream, mut session: Session, outgoing: bool) -> Done {
    if let Err(error) = prepare(&stream) {
        return Done::Failed {
            end: End::Failed(error.to_string()),
            outgoing,
        };
    }
    let mut buffer = vec![0; READ];
    loop {
        match session.poll_output() {
            Some(Output::Opened(agreed)) => {
                let connection = Box::new((stream, session));
                return Done::Proved {
                    connection,
                    agreed,
                    outgoing,
                };
            }
            Some(Output::Ended(end)) => {
                last_words(&mut stream, &mut session).await;
                return Done::Failed { end, outgoing };
            }
            // Nothing is heard before a session is open.
            Some(Output::Heard(_)) => {}
            None => step(&stream, &mut session, &mut buffer).await,
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_user_timeout(Some(Bounds::DEFAULT.silence))
}

/// Writes what can be written, then waits for whatever comes first. Cancel-safe: nothing is taken before it is handled.
pub(super) async fn step(stream: &TcpStream, session: &mut Session, buffer: &mut [u8]) {
    while !session.unwritten(now()).is_empty() {
        match stream.try_write(session.unwritten(now())) {
            Ok(bytes) => session.wrote(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // What has arrived before it is still read.
            Err(_) => break,
        }
    }
    let waits = !session.unwritten(now()).is_empty();
    let deadline = session.deadline().map(Instant::from_std);
    tokio::select! {
        biased;
        _ = stream.readable() => {
            let input = match stream.try_read(buffer) {
                Ok(0) => Input::Left(End::Closed),
                Ok(bytes) => Input::Arrived(&buffer[..bytes]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::ConnectionReset => Input::Left(End::Reset),
                    ErrorKind::TimedOut => Input::Left(End::Silent),
                    _ => Input::Left(End::Failed(error.to_string())),
                },
            };
            session.handle(now(), input);
        }
        _ = stream.writable(), if waits => {}
        () = at(deadline) => {}
    }
    // A peer that sends all the time does not keep this node from its heartbeats.
    if session.deadline().is_some_and(|deadline| deadline <= now()) {
        session.handle(now(), Input::Woken);
    }
}

/// Writes what was said before the end.
async fn last_words(stream: &mut TcpStream, session: &mut Session) {
    let write = async {
        while !session.unwritten(now()).is_empty() {
            if stream.writable().await.is_err() {
                return;
            }
            match stream.try_write(session.unwritten(now())) {
                Ok(bytes) => session.wrote(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    // The end of the connection tells the rest.
    timeout(LAST_WORDS, write).await.ok();
}

/// Waits for another owned set; for ever where the peer does not want to hear of it.
async fn changed(owned: &mut Option<watch::Receiver<Option<Arc<OwnedSet>>>>) {
    let is_known = match owned {
        Some(owned) => owned.changed().await.is_ok(),
        None => false,
    };
    if !is_known {
        pending::<()>().await;
    }
}

async fn next(bodies: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match bodies {
        Some(bodies) => bodies.recv().await,
        None => pending().await,
    }
}

/// An open session.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) serial: u64,
    pub(super) stream: TcpStream,
    pub(super) session: Session,
    pub(super) profile: watch::Receiver<Profile>,
    /// `None`: the peer's release does not know it.
    pub(super) owned: Option<watch::Receiver<Option<Arc<OwnedSet>>>>,
    pub(super) view: watch::Sender<View>,
    pub(super) said: mpsc::Receiver<Message>,
    pub(super) heard: mpsc::Sender<Message>,
    /// `None`: the peer knows no flow sync.
    pub(super) bodies: Option<mpsc::Receiver<Vec<u8>>>,
    pub(super) port: Port,
    pub(super) left: watch::Receiver<Option<End>>,
}

impl Talk {
    pub(super) async fn run(mut self) -> Done {
        let mut buffer = vec![0; READ];
        let mut gathered = Gathered::default();
        self.say_profile();
        self.say_owned();
        let end = loop {
            match self.session.poll_output() {
                Some(Output::Heard(message)) => self.heard(message, &mut gathered),
                Some(Output::Ended(end)) => break end,
                Some(Output::Opened(_)) => {}
                None => {
                    // Cancel-safe: see `step`; what a `watch` says stays there.
                    tokio::select! {
                        biased;
                        _ = self.left.changed() => {
                            let end = self.left.borrow_and_update().clone().unwrap_or(End::Stopping);
                            self.session.handle(now(), Input::Left(end));
                        }
                        Ok(()) = self.profile.changed() => self.say_profile(),
                        () = changed(&mut self.owned) => self.say_owned(),
                        Some(message) = self.said.recv() => self.say(&message),
                        body = next(&mut self.bodies), if self.session.backlog() < BACKLOG => self.say_body(body),
                        () = step(&self.stream, &mut self.session, &mut buffer) => {}
                    }
                    self.count();
                }
            }
        };
        last_words(&mut self.stream, &mut self.session).await;
        self.count();
        Done::Ended {
            serial: self.serial,
            end,
        }
    }

    /// Says a message and what waits behind it, which goes into the same frame.
    fn say(&mut self, message: &Message) {
        self.session.handle(now(), Input::Said(message));
        while let Ok(next) = self.said.try_recv() {
            self.session.handle(now(), Input::Said(&next));
        }
    }

    /// Without one flow sync cannot go on in this session.
    fn say_body(&mut self, body: Option<Vec<u8>>) {
        let Some(body) = body else {
            let end = End::Failed("flow sync begins anew; the log of onearmd says why".to_owned());
            return self.session.handle(now(), Input::Left(end));
        };
        self.session.handle(now(), Input::Said(&Message::Sync(body)));
        self.port.wake();
    }

    fn say_profile(&mut self) {
        let profile = self.profile.borrow_and_update().clone();
        self.session
            .handle(now(), Input::Said(&Message::Profile(profile)));
    }

    /// All of it: the peer keeps nothing of what it heard before.
    fn say_owned(&mut self) {
        let Some(owned) = &mut self.owned else { return };
        let set = owned.borrow_and_update().clone();
        for part in owned::parts(set.as_deref()) {
            self.session.handle(now(), Input::Said(&Message::Owned(part)));
        }
    }

    fn heard(&mut self, message: Message, gathered: &mut Gathered) {
        match message {
            Message::Profile(profile) => {
                self.view.send_if_modified(|view| {
                    let new = view.profile.as_ref() != Some(&profile);
                    view.profile = Some(profile);
                    new
                });
            }
            message @ (Message::ProbeAsked { .. } | Message::ProbeAnswered { .. }) => {
                if self.heard.try_send(message).is_err() {
                    self.view.send_if_modified(|view| {
                        view.untaken += 1;
                        false
                    });
                }
            }
            Message::Sync(body) => {
                let serial = self.serial;
                if !self.port.carry(Carried::Heard { serial, body }) {
                    self.session.handle(now(), Input::Left(End::TooMuch));
                }
            }
            Message::Owned(part) => {
                let owned = match gathered.take(part) {
                    Some(Word::Owns(set)) => Some(Arc::new(set)),
                    Some(Word::OwnsNothing) => None,
                    None => return,
                };
                self.view.send_modify(|view| view.owned = owned);
            }
            Message::Heartbeat | Message::Farewell(_) => {}
        }
    }

    fn count(&mut self) {
        let traffic = self.session.take_traffic();
        self.view.send_if_modified(|view| {
            view.traffic.add(traffic);
            false
        });
    }
}
