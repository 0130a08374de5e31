//! What the daemon holds: two threads that watch and reconcile.

use std::{io, net::IpAddr, thread};

use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    error::Error,
    journal::StateDir,
    kernel::Kernel,
    name::IfName,
    reconcile::{Event, Reconciler, Status, Suspect, Wanted},
    restore::Restored,
    state::Desired,
    watch::{Picture, Watcher},
};

/// Events kept for a reader that is late. When full, new ones are dropped and counted in [`Status::events_lost`]; the
/// status itself always tells how things stand.
const EVENTS: usize = 256;

/// Doubts about neighbours kept until the next pass. When full, new ones are dropped: the next failed check repeats it.
const SUSPECTS: usize = 256;

/// A running netcfg: a thread that watches the kernel and one that keeps it as desired.
///
/// Both are threads of their own because kernel calls block for as long as a driver holds the lock all interfaces
/// share; no caller ever waits for them. They live in the network namespace of the thread that started them. Dropping
/// this value ends them and leaves the kernel as it is: guards stay.
#[derive(Debug)]
pub struct Netcfg {
    wanted: watch::Sender<Wanted>,
    picture: watch::Receiver<Picture>,
    status: watch::Receiver<Status>,
    suspects: mpsc::Sender<Suspect>,
    stop: watch::Sender<bool>,
    restored: oneshot::Receiver<Option<Restored>>,
}

/// The reconciling thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody keeps the kernel as desired any more")]
pub struct Ended;

impl Netcfg {
    /// Starts watching and reconciling. Returns when the first picture is there; changes nothing before
    /// [`Netcfg::want`], so that guards left by a crashed predecessor stand until then.
    ///
    /// # Errors
    /// [`Error::Netlink`], [`Error::List`] if the kernel cannot be asked; [`Error::Thread`].
    pub fn start(state_dir: StateDir) -> Result<(Self, mpsc::Receiver<Event>), Error> {
        let (wanted, wanted_seen) = watch::channel(Wanted::default());
        let (picture_sender, picture) = watch::channel(Picture::default());
        let (wake_sender, wake) = watch::channel(crate::watch::Wake::default());
        let (status_sender, status) = watch::channel(Status::default());
        let (events_sender, events) = mpsc::channel(EVENTS);
        let (suspects, suspects_seen) = mpsc::channel(SUSPECTS);
        let (stop, stop_seen) = watch::channel(false);
        let (restored_sender, restored) = oneshot::channel();
        let reconciler = Reconciler {
            kernel: Kernel::open()?,
            state_dir,
            wanted: wanted_seen.clone(),
            picture: picture.clone(),
            wake,
            suspects: suspects_seen,
            status: status_sender,
            events: events_sender,
            memory: crate::reconcile::Memory::default(),
        };
        let (opened_sender, opened) = std::sync::mpsc::sync_channel(1);
        let stop_watching = stop_seen.clone();
        spawn("netcfg-watch", move |runtime| {
            runtime.block_on(async {
                let watcher = match Watcher::open(wanted_seen, picture_sender, wake_sender) {
                    Ok(watcher) => watcher,
                    Err(error) => return drop(opened_sender.send(Err(error))),
                };
                if opened_sender.send(Ok(())).is_ok() {
                    watcher.run(stop_watching).await;
                }
            });
        })?;
        opened.recv().map_err(|_| Error::Thread {
            source: io::ErrorKind::BrokenPipe.into(),
        })??;
        spawn("netcfg-apply", move |runtime| {
            // The receiver is gone if nobody waits for the outcome.
            drop(restored_sender.send(runtime.block_on(reconciler.run(stop_seen))));
        })?;
        Ok((
            Self {
                wanted,
                picture,
                status,
                suspects,
                stop,
                restored,
            },
            events,
        ))
    }

    /// Asks for a state, whole; latest wins. Returns its number for [`Netcfg::settled`].
    pub fn want(&self, desired: Desired) -> u64 {
        let mut number = 0;
        self.wanted.send_modify(|wanted| {
            wanted.revision += 1;
            number = wanted.revision;
            wanted.desired = desired;
        });
        number
    }

    /// Waits until a state asked for, or a later one, has been applied and verified. Cancel-safe.
    ///
    /// # Errors
    /// [`Ended`] if the reconciling thread has ended.
    pub async fn settled(&self, revision: u64) -> Result<Status, Ended> {
        let mut status = self.status.clone();
        let status = status
            .wait_for(|status| status.revision >= revision)
            .await
            .map_err(|_| Ended)?;
        Ok(status.clone())
    }

    /// Waits until the guards of a state asked for, or of a later one, stand: then the program may be attached. Does
    /// not wait for settings, offloads and neighbours. Cancel-safe.
    ///
    /// # Errors
    /// [`Ended`] if the reconciling thread has ended.
    pub async fn guarded(&self, revision: u64) -> Result<Status, Ended> {
        let mut status = self.status.clone();
        let status = status
            .wait_for(|status| status.guarded >= revision)
            .await
            .map_err(|_| Ended)?;
        Ok(status.clone())
    }

    /// The live picture.
    pub fn picture(&self) -> watch::Receiver<Picture> {
        self.picture.clone()
    }

    /// How things stand.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Says that a neighbour does not answer: it is asked at once whether it still is where it was, and sought anew
    /// if not. Without this the kernel notices a changed hardware address nobody announced after up to 45 s.
    ///
    /// Paced: at most once in five seconds each; dropped when too many are waiting.
    pub fn suspect(&self, leg: &IfName, address: IpAddr) {
        // Full: the next failed check says it again. Closed: `settled` and the status tell.
        drop(self.suspects.try_send((leg.clone(), address)));
    }

    /// Clean stop: puts everything back, guards included.
    ///
    /// # Errors
    /// [`Ended`] if the reconciling thread ended before; [`crate::restore`] can still do it.
    pub async fn stop(self) -> Result<Restored, Ended> {
        self.stop.send_replace(true);
        self.restored.await.ok().flatten().ok_or(Ended)
    }
}

fn spawn(name: &str, work: impl FnOnce(tokio::runtime::Runtime) + Send + 'static) -> Result<(), Error> {
    let failed = |source| Error::Thread { source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || work(runtime))
        .map_err(failed)?;
    // Nobody joins: the end shows in the channels.
    drop(thread);
    Ok(())
}
