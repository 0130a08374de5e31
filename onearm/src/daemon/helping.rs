//! The thread that does for the programs what they cannot do themselves: fragments that wait, packets to be fragmented.
//! Should it end, by an error or a panic, it is started again after a pause.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use onearm_dataplane::Helper;

use crate::control::Severity;

use super::board::Board;

/// The shortest pause before it is started again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Who has worked so long begins with the shortest pause anew.
const STEADY: Duration = Duration::from_mins(1);
/// Whose warning it is on the board.
const SOURCE: &str = "helper";

/// Works until it is told to stop.
pub(crate) trait Work {
    /// Returns when `stop` is set, or why it cannot go on.
    fn work(self, stop: &AtomicBool) -> anyhow::Result<()>;
}

impl Work for Helper {
    fn work(self, stop: &AtomicBool) -> anyhow::Result<()> {
        Ok(self.run(stop)?)
    }
}

/// The running thread; it ends soon after this is dropped.
#[derive(Debug)]
pub(crate) struct Helping {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl Helping {
    /// Starts `first`, and after its end what `again` makes.
    ///
    /// # Errors
    /// The system's when there is no thread.
    pub(crate) fn start<W: Work + Send + 'static>(
        first: W,
        again: impl FnMut() -> anyhow::Result<W> + Send + 'static,
        board: Arc<Board>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let handle = thread::Builder::new()
            .name("helper".to_owned())
            .spawn(move || supervise(first, again, &board, &stopped))?;
        let thread = handle.thread().clone();
        Ok(Self { stop, thread })
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn supervise<W: Work>(
    first: W,
    mut again: impl FnMut() -> anyhow::Result<W>,
    board: &Board,
    stop: &AtomicBool,
) {
    let (mut next, mut pause) = (Ok(first), FIRST_PAUSE);
    loop {
        let began = now();
        let ended = match next {
            Ok(work) => {
                board.warn(SOURCE, Vec::new());
                catch_unwind(AssertUnwindSafe(|| work.work(stop)))
                    .unwrap_or_else(|_| Err(anyhow::anyhow!("a panic, which the log shows")))
            }
            Err(error) => Err(error),
        };
        if stop.load(Ordering::Relaxed) {
            return;
        }
        pause = pause_after(pause, now().duration_since(began));
        let why = ended
            .err()
            .map_or("it ended".to_owned(), |error| format!("{error:#}"));
        let lost = "fragments in disorder and packets too big for their way are lost";
        board.facts().helper_restarts += 1;
        board.warn(SOURCE, vec![format!("{lost}: {why}")]);
        board.record(
            Severity::Warning,
            "helper-ended",
            format!("{lost} for {} ms: {why}", pause.as_millis()),
            "it is started again; if it goes on, look at the log and at the capabilities of onearmd (CAP_NET_RAW, CAP_BPF)",
        );
        // One that wakes too early tries too early.
        thread::park_timeout(pause);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        next = again();
    }
}

/// The pause after a run of `ran`.
fn pause_after(due: Duration, ran: Duration) -> Duration {
    if ran >= STEADY { FIRST_PAUSE } else { due }
}

#[expect(clippy::disallowed_methods, reason = "the driver's clock")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::{FIRST_PAUSE, Helping, LONGEST_PAUSE, STEADY, Work, pause_after};
    use crate::control::EventQuery;
    use crate::daemon::board::Board;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Weak};
    use std::time::Duration;

    /// Longer than anything takes here.
    const LONG: Duration = Duration::from_mins(1);

    /// What a worker does in its turn.
    enum Turn {
        Fails,
        Panics,
        Ends,
        Works(Sender<()>),
    }

    impl Work for Turn {
        fn work(self, stop: &AtomicBool) -> anyhow::Result<()> {
            match self {
                Self::Fails => anyhow::bail!("no socket"),
                Self::Panics => panic!("a bug"),
                Self::Ends => {}
                Self::Works(begun) => {
                    begun.send(()).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            }
            Ok(())
        }
    }

    fn board() -> Arc<Board> {
        Arc::new(Board::new(100, "192.0.2.1".parse().unwrap()))
    }

    fn turns(turns: Vec<anyhow::Result<Turn>>, board: &Arc<Board>) -> (Helping, Receiver<()>) {
        let (begun, begins) = channel();
        let mut rest = turns.into_iter();
        let first = rest.next().unwrap().unwrap();
        let again = move || rest.next().unwrap_or_else(|| Ok(Turn::Works(begun.clone())));
        (Helping::start(first, again, Arc::clone(board)).unwrap(), begins)
    }

    #[test]
    fn whatever_ends_it_it_is_started_again_and_told_of() {
        let board = board();
        let cannot = Err(anyhow::anyhow!("no descriptor"));
        let (helping, begins) = turns(
            vec![Ok(Turn::Fails), Ok(Turn::Panics), Ok(Turn::Ends), cannot],
            &board,
        );
        begins.recv_timeout(LONG).unwrap();
        let told = board.events(EventQuery::default()).events;
        let kinds: Vec<_> = told.iter().map(|event| &*event.kind).collect();
        assert_eq!(kinds, ["helper-ended"; 4]);
        for (event, why) in told
            .iter()
            .zip(["no socket", "a panic", "it ended", "no descriptor"])
        {
            assert!(event.message.contains(why), "{}", event.message);
        }
        let facts = board.facts();
        assert_eq!((facts.helper_restarts, facts.warnings.len()), (4, 0));
        drop(facts);
        drop(helping);
    }

    #[test]
    fn it_ends_when_it_is_dropped_at_work_and_between_two_turns() {
        for first in [Turn::Fails, Turn::Works(channel().0)] {
            let board = board();
            let watched: Weak<Board> = Arc::downgrade(&board);
            let (sender, begins) = channel();
            let first = match first {
                Turn::Works(_) => Turn::Works(sender),
                other => other,
            };
            let waits = matches!(first, Turn::Works(_));
            let again = || Err::<Turn, _>(anyhow::anyhow!("never"));
            let helping = Helping::start(first, again, board).unwrap();
            if waits {
                begins.recv_timeout(LONG).unwrap();
            }
            drop(helping);
            let mut turns = 0_u64;
            while watched.strong_count() > 0 {
                turns += 1;
                assert!(turns < 1 << 40, "the thread goes on");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn pauses_begin_anew_after_a_steady_run() {
        assert_eq!(pause_after(LONGEST_PAUSE, STEADY), FIRST_PAUSE);
        assert_eq!(pause_after(LONGEST_PAUSE, FIRST_PAUSE), LONGEST_PAUSE);
    }
}
