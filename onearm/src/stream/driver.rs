//! Connections of the stream: who connects, which are let in, which one is the session.
//!
//! The node with id 2 connects, both listen. An address other than the peer's is closed unheard. At most [`MOST_UNPROVED`]
//! connections are in their handshake; the oldest gives way to the next, so that a crowd of strangers with the peer's address
//! keeps the peer out by being faster than it all the time at most, and disturbs no session that is open.

mod connection;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onearm_ha::auth::{KeyId, PairKeys};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::backoff::Backoff;
use super::end::End;
use super::owned::OwnedSet;
use super::port::{self, Carried, Port};
use super::session::{Agreed, Bounds, Own, Session};
use super::view::{Open, View};
use super::voice::DEPTH;
use super::wire::{Introduction, Message, OWNED, Profile, Refusal, SYNC};
use connection::{Done, LAST_WORDS, Talk, now, prove};

/// Most incoming connections whose handshake is not done.
const MOST_UNPROVED: usize = 4;
/// Most incoming connections heard in a second.
const MOST_A_SECOND: u32 = 20;
/// A connection is made within this.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The listening socket is tried again after this: the address may not be there yet.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// A session that lasted so long was one: the next attempt comes soon.
const LASTED: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 16;

/// Both ends of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// This node listens there, and connects from that address.
    pub(crate) own: SocketAddr,
    /// The peer listens there.
    pub(crate) peer: SocketAddr,
}

/// What the driver is given.
#[derive(Debug)]
pub(crate) struct Settings {
    /// How this node introduces itself.
    pub(crate) introduction: Introduction,
    /// Times and sizes.
    pub(crate) bounds: Bounds,
    /// Where the nodes are; `None` while this node has no address.
    pub(crate) ends: watch::Receiver<Option<Ends>>,
    /// The pair's keys.
    pub(crate) keys: watch::Receiver<Arc<PairKeys>>,
    /// What this node tells of itself.
    pub(crate) profile: watch::Receiver<Profile>,
    /// What this node owns.
    pub(crate) owned: watch::Receiver<Option<Arc<OwnedSet>>>,
    /// What else is to be said.
    pub(crate) said: mpsc::Receiver<Message>,
    /// What else is heard; what finds no room is lost and counted.
    pub(crate) heard: mpsc::Sender<Message>,
    /// Where flow sync comes from and goes to.
    pub(crate) port: Port,
    /// What becomes known.
    pub(crate) view: watch::Sender<View>,
    /// For the pauses between attempts.
    pub(crate) seed: u64,
}

/// Runs the stream until the sender of `stopped` says so or is gone.
pub(crate) async fn run(settings: &mut Settings, mut stopped: watch::Receiver<bool>) {
    // Numbers go on where a run that crashed has left off.
    let serial = settings.view.borrow().sessions;
    let mut driver = Driver {
        backoff: Backoff::new(settings.seed),
        at: None,
        listener: None,
        listen_at: Instant::now(),
        connect_at: Instant::now(),
        attempt: None,
        key: 0,
        unproved: VecDeque::new(),
        accepted: (Instant::now(), 0),
        live: None,
        serial,
        tasks: JoinSet::new(),
        settings,
    };
    driver.moved();
    loop {
        driver.listen();
        driver.connect();
        let wake = driver.wake();
        // Every branch is cancel-safe: a connection stays in the backlog, a task in the set.
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Ok(()) = driver.settings.ends.changed() => driver.moved(),
            Ok(()) = driver.settings.keys.changed() => driver.rekeyed(),
            Some(message) = driver.settings.said.recv() => driver.say(message),
            Some(done) = driver.tasks.join_next(), if !driver.tasks.is_empty() => driver.done(done),
            accepted = accept(driver.listener.as_ref()) => driver.accepted(accepted),
            () = at(wake) => {}
        }
    }
    driver.stop().await;
}

/// The session in use.
#[derive(Debug)]
struct Live {
    serial: u64,
    key: KeyId,
    since: Instant,
    say: mpsc::Sender<Message>,
    leave: watch::Sender<Option<End>>,
}

#[derive(Debug)]
struct Driver<'a> {
    settings: &'a mut Settings,
    at: Option<Ends>,
    listener: Option<TcpListener>,
    listen_at: Instant,
    connect_at: Instant,
    attempt: Option<AbortHandle>,
    /// The newest key is tried first; how many of them did not do.
    key: usize,
    unproved: VecDeque<AbortHandle>,
    /// In the second that began then.
    accepted: (Instant, u32),
    live: Option<Live>,
    serial: u64,
    backoff: Backoff,
    tasks: JoinSet<Done>,
}

impl Driver<'_> {
    fn own(&self) -> Own {
        Own {
            introduction: self.settings.introduction.clone(),
            keys: Arc::clone(&self.settings.keys.borrow()),
            bounds: self.settings.bounds,
        }
    }

    fn connects(&self) -> bool {
        self.settings.introduction.id.get() == 2
    }

    fn may_connect(&self) -> bool {
        self.connects() && self.at.is_some() && self.live.is_none() && self.attempt.is_none()
    }

    fn wake(&self) -> Option<Instant> {
        let listen = (self.at.is_some() && self.listener.is_none()).then_some(self.listen_at);
        let connect = self.may_connect().then_some(self.connect_at);
        [listen, connect].into_iter().flatten().min()
    }

    /// The addresses may have changed.
    fn moved(&mut self) {
        let ends = *self.settings.ends.borrow_and_update();
        if ends == self.at {
            return;
        }
        self.at = ends;
        self.listener = None;
        for handshake in self.unproved.drain(..).chain(self.attempt.take()) {
            handshake.abort();
        }
        self.leave(&End::Moved);
        (self.listen_at, self.connect_at) = (Instant::now(), Instant::now());
    }

    /// The keys may have changed.
    fn rekeyed(&mut self) {
        let keys = Arc::clone(&self.settings.keys.borrow_and_update());
        if self.live.as_ref().is_some_and(|live| !holds(&keys, live.key)) {
            self.leave(&End::KeyRemoved);
        }
        self.key = 0;
        self.backoff.succeeded();
        self.connect_at = Instant::now();
    }

    fn say(&self, message: Message) {
        let live = self.live.as_ref();
        if live.is_none_or(|live| live.say.try_send(message).is_err()) {
            self.settings.view.send_if_modified(|view| {
                view.unsaid += 1;
                false
            });
        }
    }

    fn leave(&mut self, end: &End) {
        if let Some(live) = &self.live {
            live.leave.send_replace(Some(end.clone()));
        }
    }

    fn listen(&mut self) {
        let Some(ends) = self
            .at
            .filter(|_| self.listener.is_none() && Instant::now() >= self.listen_at)
        else {
            return;
        };
        match bind(ends.own).and_then(|socket| socket.listen(BACKLOG)) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => {
                tracing::debug!(%error, own = %ends.own, "stream: no listening socket");
                self.listen_at = Instant::now() + LISTEN_AGAIN;
                // The node that only listens has nothing else to tell why it waits.
                if !self.connects() {
                    let end = End::Failed(format!("cannot listen on {}: {error}", ends.own));
                    self.settings.view.send_if_modified(|view| {
                        let new = view.last.as_ref() != Some(&end);
                        view.last = Some(end);
                        new
                    });
                }
            }
        }
    }

    fn connect(&mut self) {
        let Some(ends) = self
            .at
            .filter(|_| self.may_connect() && Instant::now() >= self.connect_at)
        else {
            return;
        };
        let own = self.own();
        let held: Vec<KeyId> = own.keys.ids().rev().collect();
        let key = held[self.key % held.len()];
        let attempt = async move {
            match reach(ends).await {
                Ok(stream) => match Session::ask(now(), own, key) {
                    Some(session) => prove(stream, session, true).await,
                    None => Done::Failed {
                        end: End::KeyUnknown(key),
                        outgoing: true,
                    },
                },
                Err(error) => Done::Failed {
                    end: End::Unreachable(error.to_string()),
                    outgoing: true,
                },
            }
        };
        self.attempt = Some(self.tasks.spawn(attempt));
    }

    fn accepted(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "stream: nothing can be accepted");
                self.listener = None;
                self.listen_at = Instant::now() + LISTEN_AGAIN;
                return;
            }
        };
        if self.at.is_none_or(|ends| ends.peer.ip() != from.ip()) {
            return self.count_failed("stranger");
        }
        let (begun, count) = &mut self.accepted;
        if begun.elapsed() >= Duration::from_secs(1) {
            (*begun, *count) = (Instant::now(), 0);
        }
        *count += 1;
        if *count > MOST_A_SECOND {
            return self.count_failed("flood");
        }
        self.unproved.retain(|handshake| !handshake.is_finished());
        if self.unproved.len() >= MOST_UNPROVED
            && let Some(oldest) = self.unproved.pop_front()
        {
            oldest.abort();
            self.count_failed(End::Crowded.name());
        }
        let session = Session::expect(now(), self.own());
        self.unproved
            .push_back(self.tasks.spawn(prove(stream, session, false)));
    }

    fn count_failed(&self, name: &'static str) {
        self.settings.view.send_if_modified(|view| {
            *view.failed.entry(name).or_default() += 1;
            false
        });
    }

    fn done(&mut self, done: Result<Done, JoinError>) {
        match done {
            Ok(Done::Proved {
                connection,
                agreed,
                outgoing,
            }) => {
                if outgoing {
                    self.attempt = None;
                }
                self.proved(*connection, agreed);
            }
            Ok(Done::Failed { end, outgoing }) => {
                self.count_failed(end.name());
                if outgoing {
                    self.attempt = None;
                    self.again_after(&end);
                }
                if self.live.is_none() {
                    self.settings.view.send_if_modified(|view| {
                        let new = view.last.as_ref() != Some(&end);
                        view.last = Some(end);
                        new
                    });
                }
            }
            Ok(Done::Ended { serial, end }) => {
                self.settings.port.carry(Carried::Ended { serial });
                let current = self.live.as_ref().is_some_and(|live| live.serial == serial);
                if let Some(live) = self.live.take_if(|_| current) {
                    if live.since.elapsed() >= LASTED {
                        self.backoff.succeeded();
                    }
                    self.key = 0;
                    self.again_after(&end);
                }
                self.settings.view.send_if_modified(|view| {
                    *view.ended.entry(end.name()).or_default() += 1;
                    if current {
                        (view.session, view.profile, view.last) = (None, None, Some(end));
                        view.owned = None;
                    }
                    current
                });
            }
            Err(error) if error.is_cancelled() => {}
            Err(error) => {
                tracing::error!(%error, "stream: a connection's task panicked");
                // Whichever it was: from the beginning.
                self.tasks.abort_all();
                self.settings.port.carry(Carried::Ended { serial: self.serial });
                (self.attempt, self.live) = (None, None);
                self.connect_at = Instant::now() + self.backoff.after(&End::Closed);
                self.settings
                    .view
                    .send_modify(|view| (view.session, view.profile, view.owned) = (None, None, None));
            }
        }
    }

    /// Connects again, later; at once where another key may do.
    fn again_after(&mut self, end: &End) {
        let of_key = matches!(
            end,
            End::WrongKey | End::KeyUnknown(_) | End::Refused(Refusal::KeyUnknown | Refusal::WrongKey)
        );
        if of_key {
            self.key += 1;
            if !self.key.is_multiple_of(self.settings.keys.borrow().keys().len()) {
                self.connect_at = Instant::now();
                return;
            }
        }
        self.connect_at = Instant::now() + self.backoff.after(end);
    }

    /// A handshake is done: its session takes the place of an older one.
    fn proved(&mut self, (stream, session): (TcpStream, Session), agreed: Agreed) {
        if !holds(&self.settings.keys.borrow(), agreed.key) {
            return self.count_failed(End::KeyRemoved.name());
        }
        self.leave(&End::Replaced);
        self.serial += 1;
        let (leave, left) = watch::channel(None);
        let (say, said) = mpsc::channel(DEPTH);
        let (say_body, bodies) = mpsc::channel(port::DEPTH);
        let can = |what: &str| agreed.capabilities.iter().any(|name| name == what);
        let (able, hears_owned) = (can(SYNC), can(OWNED));
        self.settings.port.carry(Carried::Opened {
            serial: self.serial,
            say: able.then_some(say_body),
        });
        self.live = Some(Live {
            serial: self.serial,
            key: agreed.key,
            since: Instant::now(),
            say,
            leave,
        });
        self.settings.view.send_modify(|view| {
            view.sessions += 1;
            view.owned = None;
            view.session = Some(Open {
                agreed,
                since: Instant::now(),
            });
        });
        let talk = Talk {
            serial: self.serial,
            stream,
            session,
            profile: self.settings.profile.clone(),
            owned: hears_owned.then(|| self.settings.owned.clone()),
            view: self.settings.view.clone(),
            said,
            heard: self.settings.heard.clone(),
            bodies: able.then_some(bodies),
            port: self.settings.port.clone(),
            left,
        };
        self.tasks.spawn(talk.run());
    }

    async fn stop(mut self) {
        self.leave(&End::Stopping);
        for handshake in self.unproved.drain(..).chain(self.attempt.take()) {
            handshake.abort();
        }
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // What is not said by then is told by the closed connection.
        timeout(2 * LAST_WORDS, all).await.ok();
    }
}

fn holds(keys: &PairKeys, key: KeyId) -> bool {
    keys.ids().any(|id| id == key)
}

/// A socket with an address of this node.
fn bind(own: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match own {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(own)?;
    Ok(socket)
}

async fn reach(ends: Ends) -> io::Result<TcpStream> {
    let mut from = ends.own;
    from.set_port(0);
    timeout(CONNECT_LIMIT, bind(from)?.connect(ends.peer)).await?
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
