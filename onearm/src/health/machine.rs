use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::spec::{CheckResult, CheckSpec, ServerKey, Target};
use crate::control::{LastCheck, ServerHealth};

/// Results are stale when none came for so many intervals (and a time-out).
const STALE_AFTER: u32 = 3;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// These servers are to be checked from now on, and no others.
    Configured(Vec<CheckSpec>),
    /// A check that was started has ended.
    CheckEnded {
        /// The number it was started under.
        check: u64,
        /// How.
        result: CheckResult,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Try a connection and report with [`Input::CheckEnded`], at the latest when `timeout` has passed.
    StartCheck {
        /// Number of this check; never used again.
        check: u64,
        /// Where to.
        target: Target,
        /// How long to wait.
        timeout: Duration,
    },
    /// A server goes into rotation or out of it.
    ChangeServer {
        /// Which.
        key: ServerKey,
        /// Into it.
        up: bool,
        /// The result that decided.
        result: CheckResult,
    },
}

/// A server as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerView {
    /// New flows may go to it.
    pub in_rotation: bool,
    /// For people.
    pub health: ServerHealth,
    /// The last check that ended with a result.
    pub last_check: Option<LastCheck>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pending,
    Up,
    Down,
}

#[derive(Clone, Debug)]
struct Server {
    spec: CheckSpec,
    verdict: Verdict,
    /// Results of the last kind in a row since the check's parameters last changed.
    in_a_row: u32,
    last: Option<(Instant, CheckResult)>,
    /// Number and start of the check that runs.
    running: Option<(u64, Instant)>,
}

/// Judges servers by results in a row.
///
/// ```text
///             first result passed            fall failures in a row
///   Pending ────────────────────▶  Up  ────────────────────────────▶ Down
///      │                            ▲                                  │
///      │                            └──────────────────────────────────┘
///      │  first result failed             rise successes in a row      ▲
///      └───────────────────────────────────────────────────────────────┘
/// ```
///
/// A server that stays configured keeps its state: through changes of other servers, of its weight, of its check. With
/// another address it is another server. Changed parameters are tried at once. At most `capacity` checks run at a time;
/// the others wait for their turn in the order they fell due.
#[derive(Clone, Debug)]
pub struct Machine {
    servers: HashMap<ServerKey, Server>,
    due: BTreeSet<(Instant, ServerKey)>,
    running: HashMap<u64, ServerKey>,
    outputs: VecDeque<Output>,
    capacity: usize,
    seed: u64,
    next_check: u64,
    not_tried: u64,
}

impl Machine {
    /// Nothing to check yet. `seed` spreads the checks over time; `capacity` (at least one) is the number of checks that
    /// may run at a time.
    pub fn new(seed: u64, capacity: usize) -> Self {
        Self {
            servers: HashMap::new(),
            due: BTreeSet::new(),
            running: HashMap::new(),
            outputs: VecDeque::new(),
            capacity: capacity.max(1),
            seed,
            next_check: 1,
            not_tried: 0,
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Configured(specs) => self.configure(now, specs),
            Input::CheckEnded { check, result } => self.end(now, check, result),
        }
        self.start_due(now);
    }

    /// Starts what is due at `now`; to be called when [`Self::deadline`] has come.
    pub fn time_passed(&mut self, now: Instant) {
        self.start_due(now);
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Self::time_passed`] is wanted; `None` = only after an input.
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.due.first().map(|(at, _)| *at);
        next.filter(|_| self.running.len() < self.capacity)
    }

    /// The server; `None` = it is not checked.
    pub fn view(&self, now: Instant, key: &ServerKey) -> Option<ServerView> {
        let server = self.servers.get(key)?;
        let last_check = server.last.map(|(at, result)| LastCheck {
            age_ms: u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX),
            passed: passed(result),
            detail: result.to_string(),
            in_a_row: server.in_a_row.max(1),
        });
        let patience = server.spec.interval * STALE_AFTER + server.spec.timeout;
        let stale = server
            .last
            .is_some_and(|(at, _)| now.saturating_duration_since(at) > patience);
        let health = match server.verdict {
            Verdict::Pending => ServerHealth::Pending,
            Verdict::Up | Verdict::Down if stale => ServerHealth::Stale,
            Verdict::Up => ServerHealth::Up,
            Verdict::Down => ServerHealth::Down,
        };
        Some(ServerView {
            in_rotation: server.verdict == Verdict::Up,
            health,
            last_check,
        })
    }

    /// Whether new flows may go to the server; `None` = it is not checked.
    pub fn in_rotation(&self, key: &ServerKey) -> Option<bool> {
        self.servers.get(key).map(|server| server.verdict == Verdict::Up)
    }

    /// Checks this machine could not make since the start; they changed nothing.
    pub const fn not_tried(&self) -> u64 {
        self.not_tried
    }

    fn configure(&mut self, now: Instant, specs: Vec<CheckSpec>) {
        let mut before = std::mem::take(&mut self.servers);
        let mut waiting: HashMap<ServerKey, Instant> = std::mem::take(&mut self.due)
            .into_iter()
            .map(|(at, key)| (key, at))
            .collect();
        self.running.clear();
        for spec in specs {
            let key = spec.key.clone();
            let same_host = |old: &Server| old.spec.target.host() == spec.target.host();
            let server = match before.remove(&key).filter(same_host) {
                Some(old) if old.spec == spec => {
                    if let Some((check, _)) = old.running {
                        self.running.insert(check, key.clone());
                    }
                    if let Some(at) = waiting.remove(&key) {
                        self.due.insert((at, key.clone()));
                    }
                    old
                }
                old => {
                    self.due.insert((now, key.clone()));
                    let fresh = Server {
                        spec: spec.clone(),
                        verdict: Verdict::Pending,
                        in_a_row: 0,
                        last: None,
                        running: None,
                    };
                    old.map_or(fresh, |old| Server {
                        spec,
                        in_a_row: 0,
                        running: None,
                        ..old
                    })
                }
            };
            self.servers.insert(key, server);
        }
    }

    fn end(&mut self, now: Instant, check: u64, result: CheckResult) {
        // A check of a server that has gone or changed since says nothing any more.
        let Some(key) = self.running.remove(&check) else {
            return;
        };
        let Some(server) = self.servers.get_mut(&key) else {
            return;
        };
        let Some((_, started)) = server.running.take() else {
            return;
        };
        let next = (started + jittered(server.spec.interval, self.seed, check)).max(now);
        self.due.insert((next, key.clone()));
        if let CheckResult::NotTried(_) = result {
            self.not_tried += 1;
            return;
        }
        let passed = passed(result);
        let same = server.last.is_some_and(|(_, last)| self::passed(last) == passed);
        server.in_a_row = if same {
            server.in_a_row.saturating_add(1)
        } else {
            1
        };
        server.last = Some((now, result));
        let verdict = match (server.verdict, passed) {
            (Verdict::Pending, true) => Verdict::Up,
            (Verdict::Pending, false) => Verdict::Down,
            (Verdict::Up, false) if server.in_a_row >= server.spec.fall => Verdict::Down,
            (Verdict::Down, true) if server.in_a_row >= server.spec.rise => Verdict::Up,
            (unchanged @ (Verdict::Up | Verdict::Down), _) => unchanged,
        };
        if verdict != server.verdict {
            server.verdict = verdict;
            self.outputs.push_back(Output::ChangeServer {
                key,
                up: verdict == Verdict::Up,
                result,
            });
        }
    }

    fn start_due(&mut self, now: Instant) {
        while self.running.len() < self.capacity && self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.due.pop_first() else {
                return;
            };
            let Some(server) = self.servers.get_mut(&key) else {
                continue;
            };
            let check = self.next_check;
            self.next_check += 1;
            server.running = Some((check, now));
            self.outputs.push_back(Output::StartCheck {
                check,
                target: server.spec.target,
                timeout: server.spec.timeout,
            });
            self.running.insert(check, key);
        }
    }
}

const fn passed(result: CheckResult) -> bool {
    matches!(result, CheckResult::Connected(_))
}

/// `interval` ± 10 %, the same for the same seed and check.
fn jittered(interval: Duration, seed: u64, check: u64) -> Duration {
    // SplitMix64.
    let mut z = seed.wrapping_add(check.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let random = u32::try_from((z ^ (z >> 31)) % 201).unwrap_or(100);
    interval / 1_000 * (900 + random)
}
