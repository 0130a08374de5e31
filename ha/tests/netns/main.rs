//! The driver on real interfaces: two nodes against each other and against keepalived, in namespaces.
//!
//! `cargo test -p onearm-ha --test netns -- --ignored --test-threads=1`, as root.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panic")]

mod interop;
mod lab;
mod node;
mod pair;
mod process;
