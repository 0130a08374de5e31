//! What the nodes do for each other when asked over the stream: the Standby is the client of a probe.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::config::Loaded;
use crate::control::{NodeState, ProbeRequest, ProbeResult};
use crate::stream::voice::Voice;
use crate::stream::wire::{Message, PROBE};

use super::board::Board;
use super::probe;

/// Most probes at a time that the peer may have made here.
const MOST_ASKED: usize = 4;
/// The peer's answer is waited for so long beyond the probe's own limit.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// What the peer answered, or why it did not.
type Answer = Result<ProbeResult, String>;

/// Errands under way.
#[derive(Debug)]
pub(crate) struct Errands {
    voice: Voice,
    loaded: Arc<Loaded>,
    board: Arc<Board>,
    waiting: Mutex<Waiting>,
    asked: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    answers: BTreeMap<u64, oneshot::Sender<Answer>>,
}

impl Errands {
    /// None are under way yet.
    pub(crate) fn new(voice: Voice, loaded: Arc<Loaded>, board: Arc<Board>) -> Arc<Self> {
        Arc::new(Self {
            voice,
            loaded,
            board,
            waiting: Mutex::default(),
            asked: Arc::new(Semaphore::new(MOST_ASKED)),
        })
    }

    /// A panic of another holder left it whole: every writer inserts or removes one entry.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the peer make a probe.
    ///
    /// # Errors
    /// A sentence why it did not.
    pub(crate) async fn ask(&self, request: ProbeRequest) -> Answer {
        let limit = Duration::from_millis(request.timeout_ms.into()) + ON_THE_WAY;
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut waiting = self.waiting();
            waiting.last += 1;
            let number = waiting.last;
            waiting.answers.insert(number, answer);
            number
        };
        let asked = self.voice.send(Message::ProbeAsked { number, request }, PROBE);
        let came = match asked {
            Ok(()) => match timeout(limit, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => Err("the peer did not answer".to_owned()),
            },
            Err(unsaid) => Err(unsaid.to_string()),
        };
        self.waiting().answers.remove(&number);
        came
    }

    /// Takes what the peer said; its own errands go on in tasks of their own.
    pub(crate) fn heard(self: &Arc<Self>, message: Message) {
        match message {
            Message::ProbeAsked { number, request } => {
                let errands = Arc::clone(self);
                tokio::spawn(async move {
                    let result = errands.go(request).await;
                    if let Err(error) = errands
                        .voice
                        .send(Message::ProbeAnswered { number, result }, PROBE)
                    {
                        tracing::debug!(%error, "a probe of the peer's is not answered");
                    }
                });
            }
            Message::ProbeAnswered { number, result } => {
                // Who asked may have given up.
                if let Some(asker) = self.waiting().answers.remove(&number) {
                    asker.send(result).ok();
                }
            }
            // The stream keeps these to itself.
            Message::Heartbeat
            | Message::Profile(_)
            | Message::Farewell(_)
            | Message::Sync(_)
            | Message::Owned(_) => {}
        }
    }

    async fn go(&self, request: ProbeRequest) -> Answer {
        let Ok(_place) = self.asked.try_acquire() else {
            return Err("the peer makes other probes".to_owned());
        };
        if self.board.facts().state == NodeState::Active {
            return Err("the peer is an Active, too".to_owned());
        }
        if !self.loaded.pair.owned_addresses().contains(&request.target.ip()) {
            return Err(format!(
                "{} is no address of the pair's on the peer",
                request.target.ip()
            ));
        }
        Ok(probe::probe(&self.loaded.node.name, request).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Source, parse_node, parse_pair};
    use crate::stream::session::Agreed;
    use crate::stream::view::{Open, View};
    use crate::stream::wire::Introduction;
    use onearm_ha::auth::KeyId;
    use onearm_types::NodeId;
    use tokio::sync::{mpsc, watch};
    use tokio::time::Instant;

    fn loaded() -> Arc<Loaded> {
        let node = include_str!("../../../etc/examples/node-lb1.toml");
        let pair = include_str!("../../../etc/examples/pair.toml");
        Arc::new(Loaded {
            node: parse_node(Source::new("node.toml", node)).config,
            pair: parse_pair(Source::new("pair.toml", pair)).parsed.config,
            keys: None,
            warnings: Vec::new(),
        })
    }

    fn errands(capabilities: &[&str]) -> (Arc<Errands>, mpsc::Receiver<Message>) {
        let peer = Introduction {
            name: "lb2".to_owned(),
            id: NodeId::new(2).unwrap(),
            version: "0.1.0".to_owned(),
            vrid: 51,
            protocols: (1, 1),
            capabilities: Vec::new(),
        };
        let session = Open {
            agreed: Agreed {
                peer,
                protocol: 1,
                capabilities: capabilities.iter().map(|name| (*name).to_owned()).collect(),
                key: KeyId(1),
            },
            since: Instant::now(),
        };
        let view = View {
            session: Some(session),
            ..View::default()
        };
        let (_, view) = watch::channel(view);
        let (voice, said) = Voice::new(view);
        let loaded = loaded();
        let board = Board::new(loaded.node.priority, loaded.node.peer.address);
        (Errands::new(voice, loaded, Arc::new(board)), said)
    }

    fn request(target: &str) -> ProbeRequest {
        ProbeRequest {
            target: target.parse().unwrap(),
            timeout_ms: 1,
        }
    }

    #[tokio::test]
    async fn a_probe_is_asked_of_the_peer_and_its_answer_comes_back() {
        let (errands, mut said) = errands(&[PROBE]);
        let asking = tokio::spawn({
            let errands = Arc::clone(&errands);
            async move { errands.ask(request("192.168.100.100:80")).await }
        });
        let Some(Message::ProbeAsked { number, request }) = said.recv().await else {
            panic!("nothing was asked");
        };
        let result = ProbeResult {
            client_node: "lb2".to_owned(),
            client: None,
            target: request.target,
            connected: true,
            elapsed_us: 7,
            detail: "connected".to_owned(),
        };
        let answer = |number| Message::ProbeAnswered {
            number,
            result: Ok(result.clone()),
        };
        errands.heard(answer(number + 1));
        errands.heard(answer(number));
        assert_eq!(asking.await.unwrap(), Ok(result.clone()));
        errands.heard(answer(number));
        assert!(errands.waiting().answers.is_empty());
    }

    #[tokio::test]
    async fn without_an_answer_or_a_peer_that_knows_probes_there_is_a_reason() {
        let (one, _said) = errands(&[PROBE]);
        assert_eq!(
            one.ask(request("192.168.100.100:80")).await,
            Err("the peer did not answer".to_owned())
        );
        let (older, _said) = errands(&[]);
        assert_eq!(
            older.ask(request("192.168.100.100:80")).await,
            Err("the peer's release cannot do it".to_owned())
        );
        assert!(one.waiting().answers.is_empty() && older.waiting().answers.is_empty());
    }

    #[tokio::test]
    async fn the_peer_has_probes_made_to_the_pairs_own_addresses_alone() {
        let (errands, mut said) = errands(&[PROBE]);
        errands.heard(Message::ProbeAsked {
            number: 3,
            request: request("127.0.0.1:22"),
        });
        let Some(Message::ProbeAnswered {
            number: 3,
            result: Err(why),
        }) = said.recv().await
        else {
            panic!("no answer");
        };
        assert!(why.contains("no address of the pair's"), "{why}");
        errands.board.facts().state = NodeState::Active;
        errands.heard(Message::ProbeAsked {
            number: 4,
            request: request("192.168.100.100:80"),
        });
        assert!(matches!(
            said.recv().await,
            Some(Message::ProbeAnswered {
                number: 4,
                result: Err(_)
            })
        ));
    }
}
