//! What the HA process hears of what the peer has: without it nothing is handed over.

use onearm_ha::process::ToHa;
use tokio::time::Instant;

use super::Running;
use crate::daemon::keeper;
use crate::daemon::node::RETRY;

impl Running {
    /// Whether anything can be handed to the peer, or be taken from it.
    pub(super) fn tell_of_peer(&mut self) {
        let known = self.node.knows_peer_legs();
        let Some((ha, _)) = &mut self.ha else { return };
        let told = ha
            .tell_peer_legs(known)
            .and_then(|()| self.peer_has_flows.map_or(Ok(()), |has| ha.tell_peer_flows(has)));
        if let Err(error) = told {
            tracing::warn!(
                error = format!("{error:#}"),
                "the HA process was not told what the peer has"
            );
            self.again_by(Instant::now() + RETRY);
        }
    }

    /// The peer is to own the flows at once: it has them before.
    pub(super) fn flush(&mut self, number: u64) {
        match &self.flow_sync {
            Some(sync) => sync.flush(number),
            // There is nobody to have them.
            None => self.synced(keeper::News::Flushed(number)),
        }
    }

    /// What flow sync says concerns hand-overs.
    pub(super) fn synced(&mut self, news: keeper::News) {
        let told = match news {
            keeper::News::Flushed(number) => match &self.ha {
                Some((ha, _)) => ha.order(&ToHa::Flushed(number)),
                None => return,
            },
            keeper::News::PeerHasFlows(has) => {
                self.peer_has_flows = Some(has);
                return self.tell_of_peer();
            }
            keeper::News::ClientsWanted(clients) => {
                for (leg, client) in clients {
                    self.want_resolved(leg, client);
                }
                return;
            }
        };
        if let Err(error) = told {
            tracing::warn!(
                error = format!("{error:#}"),
                "the HA process was not told of the flows"
            );
            self.again_by(Instant::now() + RETRY);
        }
    }
}
