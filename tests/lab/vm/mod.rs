//! VMs of the lab: Debian 12 with its kernel 6.1, emulated by QEMU, with legs on the lab's switches.
//!
//! ```text
//!  image.sh ─► [`Image`] (cached) ─► [`Vm`] ── taps ── switches of the lab
//!                                     │ agent port ◄─► [`Channel`]   commands, files
//!                                     │ QMP        ◄─► [`Qmp`]       pause, links, snapshots
//!                                     └ console    ──► a log, and `onearm-lab vm up`
//! ```

pub mod agent;
mod channel;
pub mod console;
mod image;
mod machine;
mod qmp;
mod wire;

pub use channel::{Channel, Finished, Output, Running};
pub use image::Image;
pub use machine::{Leg, Spec, Vm};
pub use qmp::Qmp;
