//! How the rest of the daemon says something over the stream.

use tokio::sync::{mpsc, watch};

use super::view::View;
use super::wire::Message;

/// Messages that wait for the stream's thread. A full queue refuses the next one: nobody waits for a peer.
pub(crate) const DEPTH: usize = 64;

/// Says messages to the peer. What was taken is lost when the session ends: who needs an answer waits for it with a limit.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    said: mpsc::Sender<Message>,
    view: watch::Receiver<View>,
}

/// A message that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsaid {
    /// There is no session.
    #[error("there is no stream to the peer")]
    NoStream,
    /// The peer's release does not know it.
    #[error("the peer's release cannot do it")]
    NotKnownThere,
    /// The queue is full.
    #[error("too much waits to be said to the peer")]
    Full,
}

impl Voice {
    /// A voice and what the stream is given of it.
    pub(crate) fn new(view: watch::Receiver<View>) -> (Self, mpsc::Receiver<Message>) {
        let (said, to_say) = mpsc::channel(DEPTH);
        (Self { said, view }, to_say)
    }

    /// Says `message`; `capability` is what the peer must have said it can do.
    ///
    /// # Errors
    /// [`Unsaid`]: nothing was sent.
    pub(crate) fn send(&self, message: Message, capability: &str) -> Result<(), Unsaid> {
        let view = self.view.borrow();
        let open = view.session.as_ref().ok_or(Unsaid::NoStream)?;
        if !open.agreed.capabilities.iter().any(|name| name == capability) {
            return Err(Unsaid::NotKnownThere);
        }
        self.said.try_send(message).map_err(|_| Unsaid::Full)
    }
}
