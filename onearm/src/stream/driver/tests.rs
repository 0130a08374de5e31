//! Two drivers over real TCP on the loopback, and strangers beside them.

use super::connection::step;
use super::*;
use crate::control::ProbeRequest;
use crate::stream::port::Wharf;
use crate::stream::voice::{Unsaid, Voice};
use crate::stream::wire::{MOST_BODY, MOST_HANDSHAKE, OWNED, PROBE, SYNC};
use nix::sys::eventfd::{EfdFlags, EventFd};
use onearm_ha::auth::Key;
use onearm_types::NodeId;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

/// Anything here comes within this.
const LIMIT: Duration = Duration::from_secs(20);

fn keys(ids: &[u16]) -> Arc<PairKeys> {
    let key = |id: &u16| Key {
        id: KeyId(id % 100),
        secret: [u8::try_from(*id).unwrap(); 32],
    };
    Arc::new(PairKeys::new([7; 16], ids.iter().map(key).collect()).unwrap())
}

/// A free port on every address of the loopback, as good as certainly.
fn port() -> u16 {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn address(node: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 77, node), port).into()
}

fn introduction(node: u8) -> Introduction {
    Introduction {
        name: format!("lb{node}"),
        id: NodeId::new(node).unwrap(),
        version: "0.1.0".to_owned(),
        vrid: 51,
        protocols: (1, 1),
        capabilities: vec![PROBE.to_owned()],
    }
}

struct Side {
    keys: watch::Sender<Arc<PairKeys>>,
    ends: watch::Sender<Option<Ends>>,
    profile: watch::Sender<Profile>,
    owned: watch::Sender<Option<Arc<OwnedSet>>>,
    view: watch::Receiver<View>,
    voice: Voice,
    heard: mpsc::Receiver<Message>,
    wharf: Wharf,
    wake: Arc<EventFd>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Side {
    fn start(node: u8, port: u16, held: &[u16]) -> Self {
        Self::with(introduction(node), port, held, Bounds::DEFAULT)
    }

    fn with(introduction: Introduction, port: u16, held: &[u16], bounds: Bounds) -> Self {
        let id = introduction.id;
        let ends = Ends {
            own: address(id.get(), port),
            peer: address(id.other().get(), port),
        };
        let (keys, keys_rx) = watch::channel(keys(held));
        let (ends, ends_rx) = watch::channel(Some(ends));
        let (profile, profile_rx) = watch::channel(Profile {
            digest: format!("digest-{id:?}").replace(['(', ')'], ""),
            ..Profile::default()
        });
        let (owned, owned_rx) = watch::channel(None);
        let (view_tx, view) = watch::channel(View::default());
        let (voice, said) = Voice::new(view.clone());
        let (heard_tx, heard) = mpsc::channel(DEPTH);
        let (stop, stopped) = watch::channel(false);
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        let (port, wharf) = port::port(Arc::clone(&wake));
        let mut settings = Settings {
            introduction,
            bounds,
            ends: ends_rx,
            keys: keys_rx,
            profile: profile_rx,
            owned: owned_rx,
            said,
            heard: heard_tx,
            port,
            view: view_tx,
            seed: 7,
        };
        let task = tokio::spawn(async move { run(&mut settings, stopped).await });
        Self {
            keys,
            ends,
            profile,
            owned,
            view,
            voice,
            heard,
            wharf,
            wake,
            stop,
            task,
        }
    }

    /// The next thing for the thread of the flows.
    async fn carried(&self) -> Carried {
        let looks = async {
            loop {
                if let Some(carried) = self.wharf.take() {
                    return carried;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, looks).await.unwrap()
    }

    async fn wait(&mut self, what: &str, holds: impl Fn(&View) -> bool) -> View {
        let looks = async {
            loop {
                let view = self.view.borrow().clone();
                if holds(&view) {
                    return view;
                }
                // Counters wake nobody.
                timeout(Duration::from_millis(20), self.view.changed()).await.ok();
            }
        };
        match timeout(LIMIT, looks).await {
            Ok(view) => view,
            Err(late) => panic!("{what}, {late}: {:?}", *self.view.borrow()),
        }
    }

    async fn wait_open(&mut self, sessions: u64) -> View {
        let what = format!("session {sessions}");
        self.wait(&what, |view| {
            view.sessions >= sessions && view.session.is_some() && view.profile.is_some()
        })
        .await
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        timeout(LIMIT, self.task).await.unwrap().unwrap();
    }
}

fn run_test(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test);
}

/// A connection from the address of `node`, as only somebody on its host or segment can make.
async fn connect(node: u8, to: SocketAddr) -> TcpStream {
    let reach = async {
        loop {
            let socket = bind((Ipv4Addr::new(127, 0, 77, node), 0).into()).unwrap();
            match socket.connect(to).await {
                Ok(stream) => return stream,
                // It does not listen yet.
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    timeout(LIMIT, reach).await.unwrap()
}

#[test]
fn the_nodes_meet_tell_each_other_changes_at_once_and_part_in_order() {
    run_test(async {
        let port = port();
        let (mut one, mut two) = (Side::start(1, port, &[1]), Side::start(2, port, &[1]));
        let view = one.wait_open(1).await;
        assert_eq!(view.session.unwrap().agreed.peer.name, "lb2");
        assert_eq!(view.profile.unwrap().digest, "digest-NodeId2");
        two.wait_open(1).await;
        one.profile
            .send_modify(|profile| profile.digest = "other".to_owned());
        two.wait("the change", |view| {
            view.profile
                .as_ref()
                .is_some_and(|profile| profile.digest == "other")
        })
        .await;
        one.stop().await;
        let view = two.wait("the end", |view| view.session.is_none()).await;
        assert_eq!(view.ended.get("peer_stopped"), Some(&1));
        assert!(
            view.traffic.frames_in >= 3 && view.traffic.bytes_out > 100,
            "{:?}",
            view.traffic
        );
        // It comes back on its own.
        let mut one = Side::start(1, port, &[1]);
        one.wait_open(1).await;
        two.wait_open(2).await;
        two.stop().await;
        one.wait("the end", |view| view.ended.contains_key("peer_stopped"))
            .await;
    });
}

#[test]
fn a_key_goes_round_and_the_session_of_a_removed_one_is_made_anew_with_the_other() {
    run_test(async {
        let port = port();
        let (mut one, mut two) = (Side::start(1, port, &[1]), Side::start(2, port, &[1, 2]));
        // Node 2 tries its newest key first, and at once the one that is held on both.
        let view = one.wait_open(1).await;
        assert_eq!(view.session.unwrap().agreed.key, KeyId(1));
        assert_eq!(view.failed.get("key_unknown"), Some(&1));
        one.keys.send_replace(keys(&[1, 2]));
        one.keys.send_replace(keys(&[2]));
        let view = two.wait_open(2).await;
        assert_eq!(view.session.unwrap().agreed.key, KeyId(2));
        assert_eq!(view.ended.get("peer_removed_key"), Some(&1));
        two.keys.send_replace(keys(&[2]));
        let view = one.wait_open(2).await;
        assert_eq!((view.sessions, view.ended.get("key_removed")), (2, Some(&1)));
    });
}

#[test]
fn a_wrong_key_and_a_peer_that_is_none_are_named_on_both_sides() {
    run_test(async {
        let port = port();
        let (mut one, mut two) = (Side::start(1, port, &[1]), Side::start(2, port, &[101]));
        one.wait("the verdict", |view| view.last == Some(End::WrongKey))
            .await;
        two.wait("the verdict", |view| {
            view.last == Some(End::Refused(Refusal::WrongKey))
        })
        .await;
        two.keys.send_replace(keys(&[1]));
        one.wait_open(1).await;
        two.stop().await;
        let mut newer = introduction(2);
        newer.protocols = (8, 9);
        let mut two = Side::with(newer, port, &[1], Bounds::DEFAULT);
        let differs = |own, peer| Some(End::NoCommonVersion { own, peer });
        one.wait("the verdict", |view| view.last == differs((1, 1), (8, 9)))
            .await;
        two.wait("the verdict", |view| view.last == differs((8, 9), (1, 1)))
            .await;
    });
}

#[test]
fn strangers_crowds_and_slow_talkers_leave_the_open_session_alone() {
    run_test(async {
        let port = port();
        let (mut one, mut two) = (Side::start(1, port, &[1]), Side::start(2, port, &[1]));
        one.wait_open(1).await;
        two.wait_open(1).await;
        let at = address(1, port);
        // Of another address: closed unheard.
        let mut stranger = connect(9, at).await;
        assert!(matches!(
            timeout(LIMIT, stranger.read(&mut [0; 8])).await.unwrap(),
            Ok(0) | Err(_)
        ));
        // With the peer's address: a crowd that says nothing, one that says a byte now and then, one that says what is no opening.
        let mut crowd = Vec::new();
        for _ in 0..MOST_UNPROVED + 2 {
            crowd.push(connect(2, at).await);
        }
        let mut babbler = connect(2, at).await;
        babbler.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut slow = connect(2, at).await;
        // The longest opening there may be, a byte at a time; never its end.
        let length = u16::try_from(MOST_HANDSHAKE).unwrap().to_be_bytes();
        let drip = async {
            slow.write_all(&length).await.ok();
            for _ in 1..MOST_HANDSHAKE {
                if slow.write_all(b"1").await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LIMIT, drip).await.expect("its connection is closed");
        let view = one
            .wait("the counters", |view| {
                ["stranger", "crowded", "late", "not_understood"]
                    .iter()
                    .all(|name| view.failed.contains_key(name))
            })
            .await;
        assert!(
            view.session.is_some() && view.sessions == 1 && view.ended.is_empty(),
            "{view:?}"
        );
        for _ in 0..2 * MOST_A_SECOND {
            drop(connect(2, at).await);
        }
        one.wait("the bound", |view| view.failed.contains_key("flood"))
            .await;
        assert_eq!(one.view.borrow().sessions, 1);
        assert!(two.view.borrow().session.is_some());
    });
}

#[test]
fn a_newer_session_takes_the_place_of_one_whose_peer_went_without_a_word() {
    run_test(async {
        let port = port();
        // Of node 1's own accord the old one would stay for ever.
        let patient = Bounds {
            silence: Duration::from_hours(1),
            ..Bounds::DEFAULT
        };
        let mut one = Side::with(introduction(1), port, &[1], patient);
        // The power of this one goes off: its connection stays as it is, and nobody says anything over it.
        let off = connect(2, address(1, port)).await;
        let own = Own {
            introduction: introduction(2),
            keys: keys(&[1]),
            bounds: Bounds::DEFAULT,
        };
        let Done::Proved { connection: gone, .. } =
            prove(off, Session::ask(now(), own, KeyId(1)).unwrap(), true).await
        else {
            panic!("no session");
        };
        let (stream, mut session) = *gone;
        step(&stream, &mut session, &mut [0; 1_000]).await;
        one.wait("the old one", |view| view.sessions == 1).await;
        let mut two = Side::start(2, port, &[1]);
        two.wait_open(1).await;
        let view = one
            .wait("the newer one", |view| view.ended.contains_key("replaced"))
            .await;
        assert!(view.session.is_some() && view.sessions == 2);
        drop(stream);
    });
}

#[test]
fn a_peer_that_stops_reading_is_given_up_by_silence() {
    run_test(async {
        let port = port();
        let quick = Bounds {
            heartbeat: Duration::from_millis(100),
            silence: Duration::from_millis(500),
            ..Bounds::DEFAULT
        };
        let mut one = Side::with(introduction(1), port, &[1], quick);
        let stream = connect(2, address(1, port)).await;
        let own = Own {
            introduction: introduction(2),
            keys: keys(&[1]),
            bounds: Bounds::DEFAULT,
        };
        let proved = prove(stream, Session::ask(now(), own, KeyId(1)).unwrap(), true).await;
        let Done::Proved { connection, .. } = proved else {
            panic!("no session")
        };
        let (stream, mut session) = *connection;
        step(&stream, &mut session, &mut [0; 1_000]).await;
        one.wait("the session", |view| view.session.is_some()).await;
        let view = one.wait("its end", |view| view.session.is_none()).await;
        assert_eq!(view.last, Some(End::Silent));
    });
}

#[test]
fn a_reset_costs_a_moment() {
    run_test(async {
        let port = port();
        let (mut one, mut two) = (Side::start(1, port, &[1]), Side::start(2, port, &[1]));
        one.wait_open(1).await;
        two.wait_open(1).await;
        // As a forged reset does it, the kernel of one side ends the connection: here by a route that is no more.
        two.ends.send_replace(None);
        one.wait("the end", |view| view.session.is_none()).await;
        let from = Instant::now();
        let (own, peer) = (address(2, port), address(1, port));
        two.ends.send_replace(Some(Ends { own, peer }));
        one.wait_open(2).await;
        assert!(
            from.elapsed() < Duration::from_secs(1) * 3,
            "{:?}",
            from.elapsed()
        );
        assert_eq!(two.view.borrow().ended.get("moved"), Some(&1));
    });
}

#[test]
fn an_address_that_is_not_there_yet_is_waited_for() {
    run_test(async {
        let port = port();
        let mut one = Side::start(1, port, &[1]);
        // No such address on any machine.
        let own = ([192, 0, 2, 1], port).into();
        one.ends.send_replace(Some(Ends {
            own,
            peer: address(2, port),
        }));
        one.wait(
            "why",
            |view| matches!(&view.last, Some(End::Failed(text)) if text.contains("192.0.2.1")),
        )
        .await;
        let two = Side::start(2, port, &[1]);
        one.ends.send_replace(Some(Ends {
            own: address(1, port),
            peer: address(2, port),
        }));
        one.wait_open(1).await;
        drop(two);
    });
}

#[test]
fn messages_arrive_in_order_and_those_nobody_takes_are_lost_and_counted() {
    run_test(async {
        let port = port();
        let (mut one, mut two) = (Side::start(1, port, &[1]), Side::start(2, port, &[1]));
        let ask = |number| Message::ProbeAsked {
            number,
            request: ProbeRequest {
                target: address(1, 80),
                timeout_ms: 5,
            },
        };
        assert_eq!(one.voice.send(ask(0), PROBE), Err(Unsaid::NoStream));
        one.wait_open(1).await;
        two.wait_open(1).await;
        assert_eq!(one.voice.send(ask(0), "flight"), Err(Unsaid::NotKnownThere));
        for number in 0..DEPTH as u64 {
            assert_eq!(one.voice.send(ask(number), PROBE), Ok(()));
        }
        assert_eq!(one.voice.send(ask(0), PROBE), Err(Unsaid::Full));
        for number in 0..DEPTH as u64 {
            assert_eq!(timeout(LIMIT, two.heard.recv()).await.unwrap(), Some(ask(number)));
        }
        assert!(two.view.borrow().traffic.frames_in < 20, "said together, a frame");
        for number in 0..2 * DEPTH as u64 {
            while one.voice.send(ask(number), PROBE).is_err() {
                tokio::task::yield_now().await;
            }
        }
        let view = two.wait("the loss", |view| view.untaken > 0).await;
        assert!(view.session.is_some());
    });
}

/// Both sides' ways of saying bodies.
async fn ways(one: &Side, two: &Side) -> [(u64, Option<mpsc::Sender<Vec<u8>>>); 2] {
    let mut ways = Vec::new();
    for side in [one, two] {
        match side.carried().await {
            Carried::Opened { serial, say } => ways.push((serial, say)),
            other => panic!("{other:?}"),
        }
    }
    ways.try_into().unwrap()
}

fn able(node: u8) -> Introduction {
    Introduction {
        capabilities: vec![SYNC.to_owned()],
        ..introduction(node)
    }
}

#[test]
fn bodies_of_flow_sync_arrive_whole_in_order_and_of_the_session_they_were_said_in() {
    run_test(async {
        let port = port();
        let mut one = Side::with(able(1), port, &[1], Bounds::DEFAULT);
        let two = Side::with(able(2), port, &[1], Bounds::DEFAULT);
        one.wait_open(1).await;
        let [(_, say), (there, _answers)] = ways(&one, &two).await;
        let say = say.unwrap();
        let body = |n: u8| vec![n; MOST_BODY - usize::from(n)];
        let saying = tokio::spawn(async move {
            for n in 0..100 {
                say.send(body(n)).await.unwrap();
            }
            say
        });
        for n in 0..100 {
            match two.carried().await {
                Carried::Heard { serial, body: heard } => {
                    assert_eq!((serial, heard == body(n)), (there, true), "body {n}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(one.wake.read().unwrap() > 100, "it was told of room");
        let say = saying.await.unwrap();
        two.stop().await;
        assert!(matches!(one.carried().await, Carried::Ended { .. }));
        timeout(LIMIT, say.closed()).await.unwrap();
    });
}

#[test]
fn a_release_without_flow_sync_is_sent_none() {
    run_test(async {
        let port = port();
        let one = Side::with(able(1), port, &[1], Bounds::DEFAULT);
        let two = Side::start(2, port, &[1]);
        let [(_, here), (_, there)] = ways(&one, &two).await;
        assert!(here.is_none() && there.is_none());
    });
}

#[test]
fn bodies_that_nobody_takes_end_the_session() {
    run_test(async {
        let port = port();
        let mut one = Side::with(able(1), port, &[1], Bounds::DEFAULT);
        let mut two = Side::with(able(2), port, &[1], Bounds::DEFAULT);
        one.wait_open(1).await;
        let [(_, say), _answers] = ways(&one, &two).await;
        let say = say.unwrap();
        while say.send(vec![0; 9]).await.is_ok() {}
        two.wait("the end", |view| view.ended.contains_key("too_much"))
            .await;
    });
}

#[test]
fn flow_sync_that_begins_anew_takes_a_new_session() {
    run_test(async {
        let port = port();
        let mut one = Side::with(able(1), port, &[1], Bounds::DEFAULT);
        let two = Side::with(able(2), port, &[1], Bounds::DEFAULT);
        let [(first, say), _answers] = ways(&one, &two).await;
        drop(say);
        one.wait("the end", |view| view.ended.contains_key("failed"))
            .await;
        one.wait_open(2).await;
        assert!(matches!(one.carried().await, Carried::Ended { serial } if serial == first));
    });
}

#[test]
fn what_a_node_owns_is_told_with_each_session_and_when_it_changes_to_a_peer_that_wants_it() {
    run_test(async {
        let port = port();
        let able = |node| Introduction {
            capabilities: vec![OWNED.to_owned()],
            ..introduction(node)
        };
        let set = |digest: &str| {
            Some(Arc::new(OwnedSet {
                digest: digest.to_owned(),
                ..OwnedSet::default()
            }))
        };
        let one = Side::with(able(1), port, &[1], Bounds::DEFAULT);
        one.owned.send_replace(set("aa"));
        let mut two = Side::with(able(2), port, &[1], Bounds::DEFAULT);
        two.wait("the set", |view| view.owned == set("aa")).await;
        one.owned.send_replace(set("bb"));
        two.wait("the next set", |view| view.owned == set("bb")).await;
        one.owned.send_replace(None);
        two.wait("that there is none", |view| view.owned.is_none()).await;
        one.owned.send_replace(set("cc"));
        two.wait("a set again", |view| view.owned == set("cc")).await;
        one.stop().await;
        two.wait("the end of the session", |view| {
            view.session.is_none() && view.owned.is_none()
        })
        .await;
        let older = Side::start(1, port, &[1]);
        older.owned.send_replace(set("dd"));
        let view = two.wait_open(2).await;
        assert_eq!(view.owned, None, "its release does not know it");
        older.stop().await;
        two.stop().await;
    });
}
