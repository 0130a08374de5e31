//! The two-process shape (docs/design.md, "Two processes"): what the main process and the HA process are to each other.
//!
//! ```text
//!   main process                                HA process
//!   spawn() ── socket pair on stdin ──────────► HaEnd::take()
//!   MainEnd::hold(lease map, links) ──────────► HaEnd::begin() ── the caller maps the lease cell
//!   MainEnd::send(Configure, Owned) ──────────► driver::run()
//!   Heartbeat every 40 ms ────────────────────► silent too long: hand over, stay, come back when it speaks
//!   ◄──────────────────── State every 200 ms and on change, Transition, Alarm
//!   its end: hand over (priority 0, lease cleared), then exit ◄── end of the pair ──►
//!                                                   its end: Guardian clears the lease, sends priority 0
//! ```
//!
//! Both processes hold the XDP links, so that the death of either leaves the dataplane running and the lease alone
//! decides. The HA process ignores SIGTERM and SIGINT: the main process orders the stop.

mod channel;
mod guardian;
mod ha_end;
mod heartbeat;
mod main_end;
mod messages;

pub use channel::MESSAGE_MAX;
pub use guardian::Guardian;
pub use ha_end::{Begin, HaEnd};
pub use heartbeat::{HEARTBEAT_NANOS, Verdict, Watch};
pub use main_end::{FromHa, MainEnd, pair, spawn};
pub use messages::{HaState, OWNED_PER_MESSAGE, RECORDED_PER_MESSAGE, ToHa, ToMain, owned_messages};

/// Longest time between two [`ToMain::State`]. Nanoseconds.
pub const STATE_NANOS: u64 = 200_000_000;
