//! What an operator hears of flow sync. Pure.

use onearm_dataplane::sync::{Because, Verdict};

use crate::control::{NewEvent, Severity};

use super::View;

/// So long may flows be out of sync before it is told: after a start, or a change of roles.
const PATIENCE_NS: u64 = 5_000_000_000;
/// An event of one kind is told once in so long.
const AGAIN_NS: u64 = 60_000_000_000;

const REMEDY: &str = "until then connections that one node alone knows are lost with it; see the stream and the sync in onearm status";

/// What was told.
#[derive(Debug)]
pub(super) struct Notices {
    /// Not in sync since then.
    out_since: Option<u64>,
    /// It was told that they are not.
    told_out: bool,
    told_out_at: Option<u64>,
    ever_in: bool,
}

impl Notices {
    pub(super) const fn new(now: u64) -> Self {
        Self {
            out_since: Some(now),
            told_out: false,
            told_out_at: None,
            ever_in: false,
        }
    }

    /// Warnings that hold now, and events to tell.
    pub(super) fn look(&mut self, now: u64, view: &View) -> (Vec<String>, Vec<NewEvent>) {
        let mut events = Vec::new();
        let Some(why) = why(view) else {
            self.out_since = None;
            if std::mem::take(&mut self.told_out) || !std::mem::replace(&mut self.ever_in, true) {
                let text = "both nodes have the same flows".to_owned();
                events.push(NewEvent::new(Severity::Info, "flows-in-sync", text, ""));
            }
            return (Vec::new(), events);
        };
        let since = *self.out_since.get_or_insert(now);
        if now - since < PATIENCE_NS {
            return (Vec::new(), events);
        }
        let text = format!("flows are not in sync: {why}");
        let due = self.told_out_at.is_none_or(|told| now - told >= AGAIN_NS);
        if !self.told_out && due {
            (self.told_out, self.told_out_at) = (true, Some(now));
            events.push(NewEvent::new(
                Severity::Warning,
                "flows-out-of-sync",
                text.clone(),
                REMEDY,
            ));
        }
        (vec![format!("{text}; {REMEDY}")], events)
    }
}

/// Why the peer does not have the flows, if so.
pub(super) fn why(view: &View) -> Option<String> {
    match (view.peer_knows, view.verdict) {
        (Some(false), _) => Some("the peer's release knows no flow sync".to_owned()),
        (None, _) => Some(Because::NoSession.to_string()),
        (Some(true), Verdict::Equal | Verdict::Behind { .. }) => None,
        (Some(true), Verdict::NotSyncing { because }) => Some(because.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onearm_dataplane::sync::Counters;

    const SECOND: u64 = 1_000_000_000;

    fn view(verdict: Verdict) -> View {
        View {
            verdict,
            peer_knows: Some(true),
            counters: Counters::default(),
        }
    }

    fn out() -> View {
        view(Verdict::NotSyncing {
            because: Because::Repairing,
        })
    }

    fn kinds((warnings, events): (Vec<String>, Vec<NewEvent>)) -> (usize, Vec<&'static str>) {
        (warnings.len(), events.iter().map(|event| event.kind).collect())
    }

    #[test]
    fn what_mends_itself_in_seconds_is_not_told_and_what_lasts_is_told_and_taken_back() {
        let mut notices = Notices::new(0);
        assert_eq!(kinds(notices.look(SECOND, &out())), (0, vec![]));
        assert_eq!(
            kinds(notices.look(2 * SECOND, &view(Verdict::Equal))),
            (0, vec!["flows-in-sync"])
        );
        assert_eq!(kinds(notices.look(3 * SECOND, &out())), (0, vec![]));
        let behind = view(Verdict::Behind {
            records: 3,
            oldest_ms: 1,
        });
        assert_eq!(kinds(notices.look(7 * SECOND, &behind)), (0, vec![]));
        assert_eq!(kinds(notices.look(10 * SECOND, &out())), (0, vec![]));
        assert_eq!(
            kinds(notices.look(15 * SECOND, &out())),
            (1, vec!["flows-out-of-sync"])
        );
        assert_eq!(kinds(notices.look(16 * SECOND, &out())), (1, vec![]));
        assert_eq!(
            kinds(notices.look(17 * SECOND, &behind)),
            (0, vec!["flows-in-sync"])
        );
        // Again within the minute.
        assert_eq!(kinds(notices.look(18 * SECOND, &out())), (0, vec![]));
        assert_eq!(kinds(notices.look(30 * SECOND, &out())), (1, vec![]));
        assert_eq!(
            kinds(notices.look(80 * SECOND, &out())),
            (1, vec!["flows-out-of-sync"])
        );
    }

    #[test]
    fn a_peer_that_cannot_do_it_is_named() {
        let older = View {
            peer_knows: Some(false),
            ..view(Verdict::Equal)
        };
        assert!(why(&older).unwrap().contains("release"));
        let alone = View {
            peer_knows: None,
            ..older
        };
        assert!(why(&alone).unwrap().contains("no session"));
    }
}
