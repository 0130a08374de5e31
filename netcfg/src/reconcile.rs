//! Keeps the kernel as desired, whoever changes it.

mod driver;
mod neighbours;
mod pace;
mod report;

pub(crate) use driver::{Memory, Reconciler, Wanted};
pub(crate) use neighbours::Suspect;
pub use report::{Event, Status};
