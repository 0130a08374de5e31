//! The stream to the peer as the main loop holds it: its thread, what is told to it, and what an operator hears of it.

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use onearm_ha::auth::PairKeys;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use crate::config::Loaded;
use crate::control::{NewEvent, Severity, StreamState, StreamStatus};
use crate::stream::driver::{self, Ends, Settings};
use crate::stream::end::End;
use crate::stream::owned::OwnedSet;
use crate::stream::port::{Carried, Port};
use crate::stream::session::Bounds;
use crate::stream::view::View;
use crate::stream::voice::{DEPTH, Voice};
use crate::stream::wire::{CAPABILITIES, Introduction, Message, PROTOCOLS, Profile};

use super::clock;

/// An interruption shorter than this is a renewal.
const DOWN_AFTER: Duration = Duration::from_secs(2);
/// First and longest pause before a stream that crashed is started again; one that ran for the longest begins with the first.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// At start the peer has this long to appear.
const AT_START: Duration = Duration::from_secs(5);
/// An event of one kind is told once in so long.
const AGAIN: Duration = Duration::from_mins(1);

/// The running stream.
#[derive(Debug)]
pub(crate) struct Streaming {
    ends: watch::Sender<Option<Ends>>,
    keys: watch::Sender<Arc<PairKeys>>,
    profile: watch::Sender<Profile>,
    owned: watch::Sender<Option<Arc<OwnedSet>>>,
    /// Says more.
    pub(crate) voice: Voice,
    /// What the peer says more.
    pub(crate) heard: mpsc::Receiver<Message>,
    /// What is known of it.
    pub(crate) view: watch::Receiver<View>,
    /// What was told of it.
    pub(crate) notices: Notices,
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

impl Streaming {
    /// Starts its thread.
    ///
    /// # Errors
    /// The system's when there is no runtime or thread.
    pub(crate) fn start(loaded: &Loaded, keys: &PairKeys, port: Port) -> anyhow::Result<Self> {
        let digest = loaded.pair.digest().to_string();
        let (ends, ends_of) = watch::channel(None);
        let (keys, keys_of) = watch::channel(Arc::new(keys.clone()));
        let (profile, profile_of) = watch::channel(Profile {
            digest: digest.clone(),
            ..Profile::default()
        });
        let (owned, owned_of) = watch::channel(None);
        let (view_of, view) = watch::channel(View::default());
        let (voice, said) = Voice::new(view.clone());
        let (heard_by, heard) = mpsc::channel(DEPTH);
        let (stop, stopped) = watch::channel(false);
        let settings = Settings {
            introduction: Introduction {
                name: loaded.node.name.clone(),
                id: loaded.node.id,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                vrid: loaded.pair.ha.vrid,
                protocols: PROTOCOLS,
                capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
            },
            bounds: Bounds::DEFAULT,
            ends: ends_of,
            keys: keys_of,
            profile: profile_of,
            owned: owned_of,
            said,
            heard: heard_by,
            port,
            view: view_of,
            seed: clock::monotonic_ns(),
        };
        Ok(Self {
            ends,
            keys,
            profile,
            owned,
            voice,
            heard,
            view,
            notices: Notices::new(Instant::now(), digest),
            stop,
            ended: spawn(settings, stopped).context("no thread for the stream to the peer")?,
        })
    }

    /// Where the nodes are now.
    pub(crate) fn at(&self, ends: Option<Ends>) {
        self.ends
            .send_if_modified(|known| std::mem::replace(known, ends) != ends);
    }

    /// What this node tells of itself now.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut Profile)) {
        self.profile.send_if_modified(|known| {
            let before = known.clone();
            change(known);
            *known != before
        });
    }

    /// What this node owns now.
    pub(crate) fn tell_owned(&self, set: Option<&OwnedSet>) {
        self.owned.send_if_modified(|known| {
            let is_new = known.as_deref() != set;
            if is_new {
                *known = set.cloned().map(Arc::new);
            }
            is_new
        });
    }

    /// The keys in use now.
    pub(crate) fn use_keys(&self, keys: &PairKeys) {
        self.keys.send_replace(Arc::new(keys.clone()));
    }

    /// Says farewell and ends the thread.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        if self.ended.await.is_err() {
            tracing::warn!("the stream to the peer had ended before");
        }
    }
}

fn spawn(mut settings: Settings, stopped: watch::Receiver<bool>) -> io::Result<oneshot::Receiver<()>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (end, ended) = oneshot::channel();
    thread::Builder::new().name("stream".to_owned()).spawn(move || {
        let (view, port) = (settings.view.clone(), settings.port.clone());
        let run = async || driver::run(&mut settings, stopped.clone()).await;
        start_again(&runtime, (&view, &port), stopped.clone(), PAUSES, run);
        // The receiver is gone if nobody waits.
        end.send(()).ok();
    })?;
    Ok(ended)
}

/// Runs the stream until it ends in order. One that panics is seen, and started again, each time later.
fn start_again(
    runtime: &Runtime,
    (view, port): (&watch::Sender<View>, &Port),
    mut stopped: watch::Receiver<bool>,
    (first, longest): (Duration, Duration),
    mut run: impl AsyncFnMut(),
) {
    let mut pause = first;
    loop {
        let begun = Instant::now();
        // What may be half done went with the connections; all else is sent or kept whole.
        if catch_unwind(AssertUnwindSafe(|| runtime.block_on(run()))).is_ok() {
            return;
        }
        let serial = view.borrow().sessions;
        port.carry(Carried::Ended { serial });
        view.send_modify(|view| {
            view.crashes += 1;
            view.owned = None;
            (view.session, view.profile, view.last) = (None, None, Some(End::Crashed));
        });
        if begun.elapsed() >= longest {
            pause = first;
        }
        tracing::error!(
            pause_ms = pause.as_millis(),
            "the stream crashed and is started again"
        );
        let stops = runtime.block_on(async { timeout(pause, stopped.changed()).await.is_ok() });
        if stops {
            return;
        }
        pause = longest.min(2 * pause);
    }
}

/// What was told of the stream, so that one that comes and goes floods nobody. Pure.
#[derive(Debug)]
pub(crate) struct Notices {
    digest: String,
    /// The peer's configuration is another one.
    differs: bool,
    peer: Option<String>,
    sessions: u64,
    crashes: u64,
    crash_told_at: Option<Instant>,
    /// No session since then.
    down: Option<Instant>,
    /// That was told, and why.
    told_down: Option<&'static str>,
    down_told_at: Option<Instant>,
    renewed: u64,
    renewed_told_at: Option<Instant>,
}

/// Whether an event that was told then may be told now.
fn is_due(told: Option<Instant>, now: Instant) -> bool {
    told.is_none_or(|told| now.duration_since(told) >= AGAIN)
}

impl Notices {
    fn new(now: Instant, digest: String) -> Self {
        Self {
            digest,
            differs: false,
            peer: None,
            sessions: 0,
            crashes: 0,
            crash_told_at: None,
            down: Some(now),
            told_down: None,
            down_told_at: None,
            renewed: 0,
            renewed_told_at: None,
        }
    }

    fn is_down_for_good(&self, now: Instant) -> bool {
        let limit = if self.sessions == 0 { AT_START } else { DOWN_AFTER };
        self.down.is_some_and(|since| now.duration_since(since) >= limit)
    }

    /// When to look again though nothing changes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let limit = if self.sessions == 0 { AT_START } else { DOWN_AFTER };
        self.down
            .filter(|_| self.told_down.is_none())
            .map(|since| since + limit)
    }

    /// Warnings that hold now, and events to tell.
    pub(crate) fn look(&mut self, now: Instant, view: &View) -> (Vec<String>, Vec<NewEvent>) {
        let mut events = Vec::new();
        if let Some(open) = &view.session {
            self.opened(now, view, &open.agreed.peer.name, &mut events);
        } else {
            self.down.get_or_insert(now);
        }
        self.compare(view, &mut events);
        if view.crashes > self.crashes && is_due(self.crash_told_at, now) {
            (self.crashes, self.crash_told_at) = (view.crashes, Some(now));
            let text = format!(
                "the stream to the peer crashed, {} times so far, and is started again",
                view.crashes
            );
            events.push(NewEvent::new(
                Severity::Error,
                "stream-crashed",
                text,
                End::Crashed.remedy(),
            ));
        }
        let mut warnings = Vec::new();
        if self.is_down_for_good(now) {
            let (why, remedy) = why(view.last.as_ref());
            let text = format!("no stream to the peer: {why}");
            let name = view.last.as_ref().map_or("", End::name);
            if self.told_down != Some(name) {
                if is_due(self.down_told_at, now) {
                    self.down_told_at = Some(now);
                    events.push(NewEvent::new(
                        Severity::Warning,
                        "stream-down",
                        text.clone(),
                        remedy,
                    ));
                }
                self.told_down = Some(name);
            }
            warnings.push(if remedy.is_empty() {
                text
            } else {
                format!("{text}; {remedy}")
            });
        }
        (warnings, events)
    }

    fn opened(&mut self, now: Instant, view: &View, peer: &str, events: &mut Vec<NewEvent>) {
        self.down = None;
        if view.sessions == self.sessions {
            return;
        }
        let first = std::mem::replace(&mut self.sessions, view.sessions) == 0;
        if let Some(known) = self.peer.replace(peer.to_owned()).filter(|known| known != peer) {
            events.push(NewEvent::new(
                Severity::Warning,
                "peer-name-changed",
                format!("the other node of the pair is {peer} now, it was {known}"),
                "if nobody renamed it, another machine has its key",
            ));
        }
        let was_told = self.told_down.take().is_some();
        if first || was_told {
            events.push(NewEvent::new(
                Severity::Info,
                "stream-up",
                format!("stream to {peer}"),
                "",
            ));
            return;
        }
        self.renewed += 1;
        if is_due(self.renewed_told_at, now) {
            self.renewed_told_at = Some(now);
            let times = std::mem::take(&mut self.renewed);
            let (why, remedy) = why(view.last.as_ref());
            let text = if times == 1 {
                format!("the stream to {peer} was made anew: {why}")
            } else {
                format!("the stream to {peer} was made anew {times} times, the last time: {why}")
            };
            events.push(NewEvent::new(Severity::Info, "stream-renewed", text, remedy));
        }
    }

    /// Once, however often the other file changes.
    fn compare(&mut self, view: &View, events: &mut Vec<NewEvent>) {
        let Some(profile) = &view.profile else { return };
        let differs = profile.digest != self.digest;
        if differs && !self.differs {
            let peer = self.peer.as_deref().unwrap_or("the peer");
            events.push(NewEvent::new(
                Severity::Warning,
                "configuration-differs",
                format!("{peer} runs another pair.toml"),
                "compare the two files, then restart the node whose file is wrong",
            ));
        }
        self.differs = differs;
    }
}

fn why(last: Option<&End>) -> (String, &'static str) {
    last.map_or_else(
        || {
            (
                "the other node has not connected yet".to_owned(),
                "see whether onearmd runs there, with the other id (node.toml): the node with id 2 connects",
            )
        },
        |end| (end.to_string(), end.remedy()),
    )
}

/// The stream as `onearm status` shows it; `None` of a view: there is no key.
pub(crate) fn status(view: Option<&View>, peer: IpAddr) -> StreamStatus {
    let Some(view) = view else {
        return StreamStatus {
            reason: "authentication is off: the nodes neither compare their pair.toml nor tell each other MACs of legs".to_owned(),
            ..StreamStatus::default()
        };
    };
    let session = view.session.as_ref();
    let agreed = session.map(|open| &open.agreed);
    let named = |counts: &std::collections::BTreeMap<&str, u64>| {
        counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    let (why, remedy) = why(view.last.as_ref());
    let reason = match session {
        Some(_) => String::new(),
        None if remedy.is_empty() => format!("{peer}: {why}"),
        None => format!("{peer}: {why}; {remedy}"),
    };
    StreamStatus {
        state: if session.is_some() {
            StreamState::Open
        } else {
            StreamState::Waiting
        },
        reason,
        since_ms: session.map(|open| u64::try_from(open.since.elapsed().as_millis()).unwrap_or(u64::MAX)),
        peer_name: agreed.map(|agreed| agreed.peer.name.clone()),
        peer_id: agreed.map(|agreed| agreed.peer.id),
        peer_version: agreed.map(|agreed| agreed.peer.version.clone()),
        protocol: agreed.map(|agreed| agreed.protocol),
        capabilities: agreed
            .map(|agreed| agreed.capabilities.clone())
            .unwrap_or_default(),
        key: agreed.map(|agreed| agreed.key.0),
        sessions: view.sessions,
        frames_in: view.traffic.frames_in,
        frames_out: view.traffic.frames_out,
        bytes_in: view.traffic.bytes_in,
        bytes_out: view.traffic.bytes_out,
        unknown_records: view.traffic.unknown,
        unsaid: view.unsaid,
        untaken: view.untaken,
        failed: named(&view.failed),
        ended: named(&view.ended),
        last_error: view.last.as_ref().map(ToString::to_string),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::port;
    use crate::stream::session::Agreed;
    use crate::stream::view::Open;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use onearm_ha::auth::KeyId;
    use onearm_types::NodeId;

    fn open(sessions: u64, name: &str, last: Option<End>) -> View {
        let peer = Introduction {
            name: name.to_owned(),
            id: NodeId::new(2).unwrap(),
            version: "0.1.0".to_owned(),
            vrid: 51,
            protocols: (1, 1),
            capabilities: Vec::new(),
        };
        let agreed = Agreed {
            peer,
            protocol: 1,
            capabilities: Vec::new(),
            key: KeyId(1),
        };
        let since = Instant::now();
        View {
            session: Some(Open { agreed, since }),
            last,
            sessions,
            ..View::default()
        }
    }

    fn down(sessions: u64, last: Option<End>) -> View {
        View {
            last,
            sessions,
            ..View::default()
        }
    }

    #[test]
    fn a_stream_that_comes_and_goes_is_told_of_now_and_then_and_warned_of_while_it_is_gone() {
        let start = Instant::now();
        let mut notices = Notices::new(start, "aa".to_owned());
        let reset = || Some(End::Reset);
        let stopped = || Some(End::Unreachable("refused".to_owned()));
        // (ms after start, what is seen, warnings, events)
        let steps: [(u64, View, usize, &[&str]); 15] = [
            (0, down(0, None), 0, &[]),
            (4_999, down(0, stopped()), 0, &[]),
            (5_000, down(0, stopped()), 1, &["stream-down"]),
            (5_100, open(1, "lb2", stopped()), 0, &["stream-up"]),
            // A reset: one event, and no second one for a minute.
            (10_000, down(1, reset()), 0, &[]),
            (10_100, open(2, "lb2", reset()), 0, &["stream-renewed"]),
            (11_000, open(3, "lb2", reset()), 0, &[]),
            (11_100, open(3, "lb2", reset()), 0, &[]),
            // Gone for longer, within a minute of the last time: the warning alone.
            (20_000, down(3, stopped()), 0, &[]),
            (22_000, down(3, stopped()), 1, &[]),
            (30_000, open(4, "lb2", stopped()), 0, &["stream-up"]),
            (80_000, down(4, stopped()), 0, &[]),
            (82_000, down(4, stopped()), 1, &["stream-down"]),
            (90_000, down(4, Some(End::WrongKey)), 1, &[]),
            (
                95_000,
                open(5, "lb9", reset()),
                0,
                &["peer-name-changed", "stream-up"],
            ),
        ];
        for (ms, view, warnings, kinds) in steps {
            let (warned, told) = notices.look(start + Duration::from_millis(ms), &view);
            let told: Vec<_> = told.iter().map(|event| event.kind).collect();
            assert_eq!((warned.len(), &told[..]), (warnings, kinds), "after {ms} ms");
        }
        assert_eq!(notices.deadline(), None);
        let (_, told) = notices.look(start + Duration::from_secs(96), &open(6, "lb9", reset()));
        assert!(told[0].message.contains("made anew 2 times"), "{told:?}");
    }

    #[test]
    fn a_stream_that_panics_is_told_of_and_started_again_until_it_is_stopped() {
        for stops in [false, true] {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let (view, seen) = watch::channel(open(1, "lb2", None));
            let (stop, stopped) = watch::channel(false);
            let mut runs = 0;
            let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
            let (port, wharf) = port::port(wake);
            let pauses = (Duration::from_millis(1), Duration::from_mins(1));
            start_again(&runtime, (&view, &port), stopped, pauses, async || {
                runs += 1;
                let task = tokio::spawn(std::future::pending::<()>());
                tokio::task::yield_now().await;
                assert!(!task.is_finished());
                if runs == 2 && stops {
                    stop.send_replace(true);
                }
                assert!(runs > 3, "it panics");
            });
            assert_eq!(runs, if stops { 2 } else { 4 });
            let view = seen.borrow();
            assert_eq!(view.crashes, if stops { 2 } else { 3 });
            assert!(view.session.is_none() && view.last == Some(End::Crashed));
            assert!(matches!(wharf.take(), Some(Carried::Ended { serial: 1 })));
            let (_, events) = Notices::new(Instant::now(), "aa".to_owned()).look(Instant::now(), &view);
            assert_eq!(events[0].kind, "stream-crashed");
        }
    }

    #[test]
    fn another_configuration_is_told_once_until_they_are_the_same() {
        let now = Instant::now();
        let mut notices = Notices::new(now, "aa".to_owned());
        for (digest, told) in [("bb", 2), ("cc", 0), ("aa", 0), ("bb", 1)] {
            let mut view = open(1, "lb2", None);
            view.profile = Some(Profile {
                digest: digest.to_owned(),
                ..Profile::default()
            });
            let (_, events) = notices.look(now, &view);
            assert_eq!(events.len(), told, "{digest}: {events:?}");
        }
    }

    #[test]
    fn the_status_says_why_there_is_no_stream() {
        let peer = "192.168.100.3".parse().unwrap();
        assert_eq!(status(None, peer).state, StreamState::Off);
        let waiting = status(Some(&down(0, None)), peer);
        assert!(
            waiting.reason.contains("has not connected yet") && waiting.reason.contains("the other id"),
            "{}",
            waiting.reason
        );
        let wrong = status(Some(&down(3, Some(End::WrongKey))), peer);
        assert!(wrong.reason.contains("wrong key") && wrong.reason.contains("onearm key show"));
        let open = status(Some(&open(1, "lb2", None)), peer);
        assert_eq!(
            (open.state, &*open.reason, open.protocol),
            (StreamState::Open, "", Some(1))
        );
    }
}
