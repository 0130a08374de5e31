//! The watching task: events in, picture out.

use std::{
    io,
    time::{Duration, Instant},
};

use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, TokioSocket, protocols};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{sync::watch, time::sleep_until};

use super::{
    picture::Picture,
    view::{Touched, View},
};
use crate::{
    error::Error,
    kernel::Kernel,
    netlink::{MAX_DATAGRAM, address, wire::frames},
    reconcile::Wanted,
};

/// Everything is listed anew after this, whatever events told.
const QUIET: Duration = Duration::from_secs(30);
/// A list that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// Route events are gathered this long before the main table is listed; longer if listing takes long.
const ROUTES_GATHER: Duration = Duration::from_millis(20);
/// Datagrams read before what they told is published, so that an endless stream of events cannot hold it back.
const DRAIN: usize = 256;
/// Receive buffer in bytes: some ten thousand events. When it is full the kernel says so and everything is listed.
const RECEIVE_BUFFER: usize = 8 << 20;

const GROUPS: [libc::c_uint; 8] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
];

/// How often each kind of thing was touched, for the reconciler to wake up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) links: u64,
    pub(crate) tables: u64,
    pub(crate) neighbours: u64,
}

/// Keeps a [`Picture`] up to date until `stop` changes or closes.
pub(crate) struct Watcher {
    events: TokioSocket,
    kernel: Kernel,
    view: View,
    overruns: u64,
    buffer: Vec<u8>,
    wanted: watch::Receiver<Wanted>,
    picture: watch::Sender<Picture>,
    wake: watch::Sender<Wake>,
}

impl Watcher {
    /// Subscribes to events and draws the first picture. Within a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Netlink`], [`Error::List`].
    pub(crate) fn open(
        wanted: watch::Receiver<Wanted>,
        picture: watch::Sender<Picture>,
        wake: watch::Sender<Wake>,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Netlink {
            operation: "subscribe to events",
            source,
        };
        let events = subscribe().map_err(failed)?;
        let kernel = Kernel::open()?;
        let buffer = Vec::with_capacity(MAX_DATAGRAM);
        let mut watcher = Self {
            events,
            kernel,
            view: View::default(),
            overruns: 0,
            buffer,
            wanted,
            picture,
            wake,
        };
        watcher.list_all()?;
        watcher.publish(Touched::ALL);
        Ok(watcher)
    }

    /// Runs until told to stop.
    ///
    /// Cancel-safe at each wait: `readable`, `changed` and `sleep_until` lose nothing when dropped; an event stays in
    /// the socket until it is read.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut list_at = now() + QUIET;
        let mut routes_at: Option<Instant> = None;
        loop {
            let due = routes_at.map_or(list_at, |at| at.min(list_at));
            let mut touched = Touched::default();
            tokio::select! {
                _ = stop.changed() => return,
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    touched |= Touched::PICTURE;
                }
                received = self.events.recv_from(&mut self.buffer) => {
                    touched |= self.take(received.map(|from| from.port_number()));
                    touched |= self.take_rest();
                }
                () = sleep_until(due.into()) => {}
            }
            if touched.has(Touched::LOST) || now() >= list_at {
                touched = Touched::ALL;
                list_at = now() + QUIET;
                routes_at = None;
                if let Err(error) = self.list_all() {
                    tracing::warn!(error = %crate::restore::text_of(&error), "kernel state cannot be listed");
                    list_at = now() + RETRY;
                }
            } else if touched.has(Touched::MAIN_ROUTES) && routes_at.is_none() {
                routes_at = Some(now() + ROUTES_GATHER);
            }
            if let Some(at) = routes_at.filter(|at| now() >= *at) {
                routes_at = None;
                let start = now();
                match self.list_routes() {
                    Ok(()) => touched |= Touched::PICTURE,
                    Err(error) => {
                        tracing::warn!(error = %crate::restore::text_of(&error), "routes cannot be listed");
                        routes_at = Some(at + RETRY);
                    }
                }
                // A table of a million routes that never rests must not take the whole thread.
                let cost = now() - start;
                if cost > ROUTES_GATHER {
                    routes_at = routes_at.or_else(|| Some(now() + cost * 10));
                }
            }
            self.publish(touched);
        }
    }

    /// A datagram, or why there is none, was received from a port.
    fn take(&mut self, received: io::Result<u32>) -> Touched {
        let mut touched = Touched::default();
        match received {
            // Only the kernel has port 0.
            Ok(0) => {
                for frame in frames(&self.buffer) {
                    touched |= self.view.handle(frame);
                }
            }
            Ok(_) => {}
            Err(error) => {
                if error.raw_os_error() != Some(libc::ENOBUFS) {
                    tracing::warn!(%error, "kernel events cannot be read");
                }
                self.overruns += 1;
                touched = Touched::LOST;
            }
        }
        self.buffer.clear();
        touched
    }

    /// Takes what else is there, without waiting. What is left over wakes again.
    fn take_rest(&mut self) -> Touched {
        let mut touched = Touched::default();
        for _ in 0..DRAIN {
            match self
                .events
                .socket_ref()
                .recv_from(&mut self.buffer, libc::MSG_DONTWAIT)
            {
                Ok((_, from)) => touched |= self.take(Ok(from.port_number())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => touched |= self.take(Err(error)),
            }
        }
        touched
    }

    fn list_all(&mut self) -> Result<(), Error> {
        let links = self.kernel.links()?;
        let addresses = self
            .kernel
            .requests
            .list(&address::list(), address::read)
            .map_err(|source| Error::List {
                what: "addresses",
                source,
            })?;
        let neighbours = self.kernel.neighbours()?;
        self.view.replace(links, addresses, neighbours);
        self.list_routes()
    }

    fn list_routes(&mut self) -> Result<(), Error> {
        let main = self.kernel.routes(libc::RT_TABLE_MAIN.into())?;
        self.view.replace_routes(main);
        Ok(())
    }

    fn publish(&mut self, touched: Touched) {
        if touched.has(Touched::PICTURE) {
            let picture = self
                .view
                .picture(self.wanted.borrow_and_update().desired.legs.keys(), self.overruns);
            self.picture.send_if_modified(|published| {
                let changed = *published != picture;
                *published = picture;
                changed
            });
        }
        let count = |part| u64::from(touched.has(part));
        let more = Wake {
            links: count(Touched::LINKS),
            tables: count(Touched::TABLES),
            neighbours: count(Touched::NEIGHBOURS),
        };
        if more != Wake::default() {
            self.wake.send_modify(|wake| {
                wake.links += more.links;
                wake.tables += more.tables;
                wake.neighbours += more.neighbours;
            });
        }
    }
}

fn subscribe() -> io::Result<TokioSocket> {
    let mut events = TokioSocket::new(protocols::NETLINK_ROUTE)?;
    let socket = events.socket_mut();
    socket.bind_auto()?;
    // Beyond the system's limit with CAP_NET_ADMIN, else as much as is allowed.
    if setsockopt(&*socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        setsockopt(&*socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
    }
    for group in GROUPS {
        socket.add_membership(group)?;
    }
    Ok(events)
}

/// Also right with tokio's paused clock.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests;
