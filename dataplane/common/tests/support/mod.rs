//! Shared by the tests of the packet logic here and of the loaded programs in `dataplane/tests`: frames, a small pair to
//! send them to, and engines that run them.

pub mod frames;
pub mod model;
pub mod setup;

use onearm_dataplane_common::{
    counter::{COUNTERS, Counter},
    maps::LastHop,
};
pub use setup::Setup;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Drop,
    Transmit,
    /// Leg id where the engine can tell.
    Redirect,
}

/// What this node may do, as the words of its lease say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Nothing.
    None,
    /// To act for the pair.
    Owner,
    /// To act for the pair, but to make no flows.
    Yielding,
    /// To act on what the peer passes on.
    Armed,
    /// That, but its time has come.
    ArmedUntilNow,
    /// To pass on to the peer, whatever is known of that.
    Relaying,
}

/// Something that runs frames through the programs.
pub trait Engine {
    /// Replaces everything configured; flows, counters and stats are empty afterwards.
    fn load(&mut self, setup: &Setup);
    /// Replaces everything configured; flows stay.
    fn change(&mut self, setup: &Setup);
    /// One frame in, verdict and frame out.
    fn run(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>);
    /// One frame as user space runs the program on it, with what it puts before it; also returns what stands there
    /// afterwards.
    fn run_again(&mut self, frame: &[u8], note: u32) -> (Verdict, Vec<u8>, u32);
    /// Whether a lease is held from now on.
    fn lease(&mut self, held: bool) {
        self.permit(if held { Permission::Owner } else { Permission::None });
    }
    /// What the lease's words permit from now on.
    fn permit(&mut self, permission: Permission);
    /// True if the egress gate lets a frame leave.
    fn leaves(&mut self, frame: &[u8]) -> bool;
    /// User space finds a neighbour of a client believable, or not.
    fn judge(&mut self, hop: LastHop, believed: bool);
    /// Value of a counter.
    fn counter(&self, counter: Counter) -> u64;
    /// Published flow entries.
    fn entries(&self) -> Vec<onearm_dataplane_common::flow::FlowEntry>;
    /// Somebody holds the lock of every bucket from now on.
    fn lock_table(&mut self);
    /// There is no index left for a new last hop.
    fn use_up_last_hops(&mut self);
    /// Value of `HALF_OPEN`.
    fn half_open(&self) -> u64;
    /// Takes the records of `FLOW_TELLS`.
    fn tells(&mut self) -> Vec<Vec<u64>>;

    /// Counters that are not zero.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        COUNTERS
            .iter()
            .map(|(c, name)| (*name, self.counter(*c)))
            .filter(|(_, n)| *n != 0)
            .collect()
    }
}
