//! Programs of the operator's: where they may lie, and how they are run so that they can do nothing to the pair.
//!
//! Such a program has a user of its own, no capabilities and no way to new ones, a session of its own, nothing of the
//! daemon's descriptors, environment, priorities and limits, and a time after which its whole group is ended. What it
//! writes is kept up to a bound. It is started by way of the daemon's own program ([`as_script`]), which gives everything
//! up before it becomes the operator's; the daemon itself is never forked.

mod account;
mod place;
mod run;
mod shim;

pub use account::Account;
pub use place::{Misplaced, judge};
pub use run::{Ended, How, OUTPUT_BYTES, Run, run};
pub use shim::{FLAG, as_script};
