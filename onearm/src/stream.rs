//! The stream between the main processes of the pair: one TCP connection, authenticated and encrypted under the pair's key.
//!
//! ```text
//!                     node 2 connects                    node 1 listens (both do; node 1 connects to nobody)
//! Opening   "1stm", form, number of the key, Noise e  ──►  key held? right? who is it?
//!           judged alike                              ◄──  Noise e, ee: who this is
//! Open      first message: proves that node 2 lives   ──►  Open: takes the place of an older session
//! ```
//!
//! Noise `NNpsk0` with the key's subkey of the stream: who does not hold it gets no answer, and what was recorded of one session is
//! of no use in another. The prologue binds the pair's id and everything said in the clear, the messages both nodes'
//! introductions. A session begins when each has shown that it lives *now*; until then it disturbs no other.
//!
//! Nothing in the election depends on the stream, and its end decides nothing. It runs on a thread of its own
//! ([`driver`]), so that neither a slow peer nor a burst delays the main loop, and the other way round. [`session`] is pure.
//!
//! **To say more over it:** a variant of [`wire::Message`] with a number of its own and a name in [`wire::CAPABILITIES`], which both
//! nodes must say before it is used. [`voice::Voice::send`] says it, from any thread, and never waits; on the other node it comes out of
//! the channel that [`driver::Settings`] was given as `heard`, and the main loop hands it on (`daemon/errands.rs`). State, which the peer needs only the latest of,
//! goes by `watch` and is said again with each session, as [`wire::Profile`] is. Many small records go together
//! in the body of one message, up to [`wire::MOST_BODY`] bytes of it.

mod backoff;
pub(crate) mod driver;
pub(crate) mod end;
mod noise;
pub(crate) mod owned;
pub(crate) mod port;
pub(crate) mod session;
pub(crate) mod view;
pub(crate) mod voice;
pub(crate) mod wire;
