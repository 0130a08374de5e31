//! Who owns the addresses: a pure machine that reads no clock and sends nothing.
//!
//! ```text
//!                      leg usable, main process heard
//!   +------------+ ------------------------------------> +-----------+
//!   | Initialize |                                       |  Standby  |
//!   +------------+ <------------------------------------ +-----------+
//!         ^           leg failed, stop, main silent         |     ^
//!         |                                     wait ended, |     | better advert, lapsed,
//!         |                                   peer released |     | send errors, hand-over
//!         |                                                 v     |
//!         |           leg failed, stop, main silent      +-----------+
//!         +--------------------------------------------- |  Active   |
//!                                                        +-----------+
//! ```
//!
//! It is the VRRP election of RFC 9568 §6.4 with these differences, all of them waits or silences that a plain VRRP
//! router tolerates:
//!
//! - **Lease.** The Active acts only under a lease (see [`crate::lease`]) credited by adverts that *left*: the deadline
//!   counts from `now` of the turn that decided to send, and an advert that left after the previous credit had ended
//!   credits nothing: the node rejoins as Standby.
//! - **Asking before taking** (two-step claim). Half an interval before its wait ends, a Standby sends adverts with
//!   [`Priority::CLAIM`](crate::units::Priority::CLAIM), the lowest priority: any owner answers at once (RFC 9568 §6.4.3), no owner is displaced, and
//!   of two nodes that ask at the same time the one with the lower address waits one interval more.
//! - **Listening first.** After a start or a leg fault a node listens for at least 1 s, the node that is not preferred
//!   for 500 ms more.
//! - **Preemption** is off by default; when on, the better Standby advertises its priority *without* taking the lease
//!   until the worse owner has released or fallen silent.
//! - **Stepping down is told**: a node that yields sends priority 0, so that the winner announces its addresses again.
//! - **One peer.** Only adverts from the configured peer count. After the peer's release the wait is at most
//!   [`RELEASE_WAIT_MAX_NANOS`]: with one Standby there is nobody to be arbitrated with by the skew.
//! - **Handing over.** An owner that leaves in order arms its peer first, where messages are authenticated (see
//!   `machine/handover.rs`).
//! - **Oversleeping.** A Standby that was late for its own deadline by more than half an interval waits anew.
//!
//! The driver's part of the contract: `now` is read *before* the sockets are drained; everything received is handled
//! before [`Input::DeadlineReached`]; outputs are carried out in order, and each [`Output::SendAdvert`] is answered at
//! once by [`Input::AdvertLeft`] or [`Input::AdvertFailed`] with a `now` read after the send.

mod machine;
mod record;
mod tape;
mod vocabulary;

pub use machine::{
    Election, GRANT_NANOS, RELEASE_WAIT_MAX_NANOS, START_LISTEN_NANOS, START_LISTEN_SECOND_NANOS,
};
pub use record::{Contention, ElectionCounters, ElectionStatus};
pub use tape::{Entry, Replay, Replayed};
pub use vocabulary::{
    Alarm, Event, Input, LegFault, Output, PairMessage, Refused, Role, Said, Settings, Stance, Transition,
    Unable,
};

#[cfg(test)]
mod authenticated_tests;
#[cfg(test)]
mod pair_tests;
#[cfg(test)]
mod tests;
