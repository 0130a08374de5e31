//! Health of servers: TCP checks, to the server's address or by the tunnel that its packets come through, judged by a pure
//! machine, run by one task.
//!
//! A server without a check is up and unknown here. Both nodes check on their own, always. What a configuration says of a
//! server (its weight) and what the checks say are kept apart; [`effective_weight`] puts them together.

mod driver;
mod machine;
mod segment;
mod spec;
mod tunnel;

#[cfg(test)]
mod tests;

pub use driver::{DEFAULT_CAPACITY, Health};
pub use machine::{Input, Machine, Output, ServerView};
pub use spec::{CheckResult, CheckSpec, ServerKey, Target, specs};
pub use tunnel::TunnelTarget;

/// Weight new flows are balanced with.
pub const fn effective_weight(configured: u8, in_rotation: bool) -> u8 {
    if in_rotation { configured } else { 0 }
}
