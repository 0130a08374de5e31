//! onearm: configuration, health, control and wiring of the pair. The only crate that knows `ha`, `netcfg` and
//! `dataplane`; it holds no protocol logic of its own.

pub mod check;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod decap;
pub mod health;
pub mod key;
pub mod metrics;
mod on_disk;
pub mod script;
mod stream;
pub mod track;
